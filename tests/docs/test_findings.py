"""The pages with tables of the records show their numbers: `nox -s findings` renews them."""

import importlib.util
import sys
from pathlib import Path

import pytest

from fedspan.benchmark.records.results import Results

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def findings():
    spec = importlib.util.spec_from_file_location("findings", ROOT / "docs" / "findings.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["findings"] = module  # where its dataclass looks for the names of its types
    spec.loader.exec_module(module)
    return module


@pytest.mark.docs  # whoever merges records renews the tables, so their pull request passes without
def test_its_tables_are_those_of_the_records(findings):
    texts = [page.read_text(encoding="utf-8") for page in findings.PAGES]
    assert sorted(name for text in texts for _, name, _ in findings.BLOCK.findall(text)) == sorted(findings.TABLES)
    runs = findings.Runs(Results(ROOT / "results", sets_aside=False))
    assert [findings.with_tables(text, runs) for text in texts] == texts, "run nox -s findings"


def test_differences_are_of_equal_seeds_and_name_runs_that_diverged(findings):
    def run(accuracy):
        return findings.Run(accuracy, 1.0, 1.0)

    first, second = {0: run(40.0), 2: run(30.0), 1: run(float("nan"))}, {2: run(31.5), 1: run(20.0), 3: run(9.0)}
    assert findings.listed(findings.differences(first, second)) == "diverged, -1.5"
    assert findings.listed(findings.differences(first, {})) == "–"


def test_leads_over_rounds_are_those_of_each_methods_better_rate_with_all_seeds(findings, monkeypatch):
    def accuracy(cell):
        rounds, rate = cell.protocol.rounds, cell.protocol.lr
        if not cell.addons:
            return 30.0 if rate == 0.005 else 40.0
        if [addon.name for addon in cell.addons] == ["ffc"] and (rate == 0.005 or cell.seed == 3):
            return 44.0 + cell.seed if rate == 0.005 else 90.0  # the second rate has a single, lucky seed
        return 41.0 if [addon.name for addon in cell.addons] == ["ccvr"] and rounds == 8 else None

    cells = [planned.cell for planned in findings.plan_grid({"board": ["cifar10_rounds"]})]
    made = [
        {"spec": cell.settings, "status": "done", "scores": {"trained": {"accuracy": score}}}
        for cell in cells
        if (score := accuracy(cell)) is not None
    ]
    monkeypatch.setattr(findings, "records_of", lambda *_: made)
    _, *rows = findings.leads_over_rounds(None)
    assert [row[:2] for row in rows] == [["FedAvg + FFC", alpha] for alpha in ("0.05", "0.5", "both")], (
        "CCVR is not done"
    )
    assert rows[0][2:] == rows[1][2:] == ["0.005", "0.005", "7.0, 8.0, 9.0", "7.0, 8.0, 9.0"]
    assert rows[2][4].startswith("8.0 (")


def test_headings_leave_out_what_those_of_their_dataset_share(findings):
    skewed = ["CIFAR-10, 10 clients, alpha 0.05", "CIFAR-10, 10 clients, alpha 0.5"]
    assert findings.telling(skewed) == ["alpha 0.05", "alpha 0.5"]
    shortened = findings.telling([*skewed, "Digits, 10 clients"])
    assert shortened == ["CIFAR-10, alpha 0.05", "CIFAR-10, alpha 0.5", "Digits"]
    assert findings.telling(skewed[:1]) == skewed[:1]
    fleets = ["Stragglers (share 0.9)", "Stragglers (share 0.9, dropped)"]
    assert findings.telling(fleets) == fleets, "a comma in parentheses ends nothing"
