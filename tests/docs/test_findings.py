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


def test_weights_of_fednova_sum_to_one_if_all_take_equal_steps_and_to_more_with_momentum(findings):
    protocol = findings.Protocol(batch_size=32, local_epochs=1)
    assert findings.weights_in_sum([70, 70, 70], protocol, 0.9) == pytest.approx(1)
    plain = findings.weights_in_sum([32, 320], protocol, 0.0)  # 1 and 10 steps, shares of 1/11 and 10/11
    assert plain == pytest.approx((1 / 11 + 100 / 11) * (1 / 11 + 1 / 11))
    assert findings.weights_in_sum([32, 320], protocol, 0.9) > plain


def test_leads_of_fednova_are_paired_by_seed_at_each_momentum_and_rate(findings, monkeypatch):
    made = []
    for cell in (planned.cell for planned in findings.plan_grid({"board": ["momentum"]})):
        behind = cell.protocol.lr * (1 + cell.seed) if cell.algorithm.name == "fednova" else 0.0
        score = 90.0 + cell.seed - 100 * behind * (cell.partition.name == "quantity")
        made.append({"spec": cell.settings, "status": "done", "scores": {"trained": {"accuracy": score}}})
    monkeypatch.setattr(findings, "records_of", lambda *_: made)
    heading, *rows = findings.nova_leads(None)
    assert heading[2:4] == ["alpha 0.1", "alpha 0.1, Stragglers (share 0.9)"]
    assert [row[:2] for row in rows] == [["0.9", "0.005"], ["0.0", "0.05"], ["0.9", "0.02"], ["0.0", "0.2"]]
    assert all(row[2:4] == 2 * ["0.0 (0.0 to 0.0)"] for row in rows)
    assert [row[4].split()[0] for row in rows] == ["-2.2", "-22.5", "-9.0", "-90.0"]


def test_headings_leave_out_what_those_of_their_dataset_share(findings):
    skewed = ["CIFAR-10, 10 clients, alpha 0.05", "CIFAR-10, 10 clients, alpha 0.5"]
    assert findings.telling(skewed) == ["alpha 0.05", "alpha 0.5"]
    shortened = findings.telling([*skewed, "Digits, 10 clients"])
    assert shortened == ["CIFAR-10, alpha 0.05", "CIFAR-10, alpha 0.5", "Digits"]
    assert findings.telling(skewed[:1]) == skewed[:1]
    fleets = ["Stragglers (share 0.9)", "Stragglers (share 0.9, dropped)"]
    assert findings.telling(fleets) == fleets, "a comma in parentheses ends nothing"
