"""Every refactoring keeps the bits of the golden cells, on every processor where they have passed."""

import copy
import json
from types import SimpleNamespace

import pytest
import torch

from fedspan.benchmark import numerics
from fedspan.benchmark.registry import plugins
from fedspan.benchmark.tree import root
from tests.golden import cells
from tests.golden.conftest import pytest_terminal_summary

GOLDEN = cells.load()

pytestmark = pytest.mark.skipif(
    numerics.prepared() == numerics.NATIVE, reason="golden cells are portable; this process is native"
)


def judge(what):
    fails, why = cells.verdict(what, GOLDEN, cells.family(), cells.here())
    if fails:
        pytest.fail(why)
    pytest.skip(why)


@pytest.mark.parametrize("name", cells.names())
def test_a_golden_cell_ends_with_its_digests(name):
    assert name in GOLDEN["cells"], f"{name} has no golden cell yet: python -m tests.golden.cells"
    if where := cells.difference(GOLDEN["cells"][name], cells.digests_of(name)):
        judge(f"{name} differs {where}")


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="workers cannot be forked where torch sees a GPU")
@pytest.mark.parametrize("name", cells.names())
def test_a_golden_cell_ends_with_its_digests_on_workers_too(name):
    if where := cells.difference(GOLDEN["cells"][name], cells.digests_of(name, workers=3)):
        judge(f"{name} differs {where}")


def test_single_operations_give_their_digests():
    found = cells.operations()
    if differing := [name for name, known in GOLDEN["operations"].items() if found.get(name) != known]:
        judge(f"differing operations: {', '.join(differing)}")


def test_no_golden_cell_is_of_a_plugin_that_is_gone():
    assert set(GOLDEN["cells"]) == set(cells.names())


def test_every_plugin_of_fedspan_is_in_the_golden_cell_of_its_name():
    for kind in cells.KINDS:
        for name, plugin in plugins(kind).items():
            if plugin.__module__.startswith("fedspan."):
                cell = cells.cell_of(f"{kind}:{name}")
                parts = cell.addons if kind == "addon" else (getattr(cell, kind),)
                assert [type(part) for part in parts] == [plugin]
                assert f"{kind}:{name}" in GOLDEN["cells"]


def test_each_golden_cell_shows_its_plugin_at_work():
    """Cells with the same digests would pass with either plugin; two pairs are the same method by definition."""
    alike: dict[str, set[str]] = {}
    for name, digests in GOLDEN["cells"].items():
        alike.setdefault(json.dumps(digests), set()).add(name)
    twice = [names for names in alike.values() if len(names) > 1]
    assert twice == [{"algorithm:fedavg", "partition:dirichlet"}, {"algorithm:fedbabu", "addon:babu"}]


@pytest.mark.parametrize("call", [torch.sqrt, torch.Tensor.sqrt_, lambda x: x**0.5, lambda x: torch.cdist(x, x)])
def test_what_rounds_by_the_processor_is_refused_in_golden_cells(call):
    with cells.Portable(), pytest.raises(AssertionError, match="has other bits on other processors"):
        call(torch.ones(2, 2))
    with cells.Portable():
        assert root(torch.tensor([0.0, 4.0, torch.inf])).tolist() == [0.0, 2.0, torch.inf]


# what is said where bits differ ----------------------------------------------------------------------

KNOWN = {"rounds": {"1": "a", "2": "b"}, "stages": {"trained": "b", "calibrated": "c"}}


def test_the_first_round_or_stage_that_differs_is_named():
    def found(**changed):
        return copy.deepcopy(KNOWN) | changed

    assert cells.difference(KNOWN, found()) is None
    assert cells.difference(KNOWN, found(rounds={"1": "a", "2": "x"})) == "from round 2 on"
    assert cells.difference(KNOWN, found(rounds={"1": "x", "2": "x"})) == "from round 1 on"
    assert cells.difference(KNOWN, found(stages={"trained": "b", "calibrated": "x"})) == "in the stage calibrated"
    assert cells.difference(KNOWN, found(stages=KNOWN["stages"] | {"personalised": "d"})) == "in what is evaluated"


def test_a_difference_fails_on_a_family_that_has_passed_and_is_a_finding_on_another():
    versions = {"torch": "2.0"}
    golden = {"versions": versions, "families": ["AuthenticAMD AVX2"]}
    fails, why = cells.verdict("x differs", golden, "AuthenticAMD AVX2", versions)
    assert fails
    assert "python -m tests.golden.cells" in why
    fails, why = cells.verdict("x differs", golden, "GenuineIntel AVX512", versions)
    assert not fails
    assert "GenuineIntel AVX512, the first of its family (AuthenticAMD AVX2 have passed)" in why


def test_other_versions_of_torch_may_change_bits():
    golden = {"versions": {"torch": "2.0"}, "families": ["AuthenticAMD AVX2"]}
    fails, why = cells.verdict("x differs", golden, "AuthenticAMD AVX2", {"torch": "3.0"})
    assert not fails
    assert "of torch 2.0, here is torch 3.0" in why


@pytest.fixture
def changed_golden(monkeypatch):
    """The committed file with another digest for the last round of one cell and for one operation."""
    golden = copy.deepcopy(GOLDEN) | {"families": [cells.family()], "versions": cells.here()}
    golden["cells"]["model:linear_net"]["rounds"]["2"] = golden["operations"]["exp"] = "0" * 64
    monkeypatch.setitem(globals(), "GOLDEN", golden)
    return golden


CHECKS = {
    "model:linear_net differs from round 2 on": lambda: test_a_golden_cell_ends_with_its_digests("model:linear_net"),
    "differing operations: exp, on": lambda: test_single_operations_give_their_digests(),
}


@pytest.mark.parametrize("said", CHECKS)
def test_a_cell_or_an_operation_that_differs_fails_here_and_is_skipped_with_the_reason_elsewhere(changed_golden, said):
    with pytest.raises(pytest.fail.Exception, match=f"{said}.* which has passed"):
        CHECKS[said]()
    changed_golden["families"] = ["GenuineIntel AVX2"]
    with pytest.raises(
        pytest.skip.Exception, match=rf"{said}.* the first of its family \(GenuineIntel AVX2 have passed"
    ):
        CHECKS[said]()


def test_the_end_of_a_test_run_shows_what_golden_cells_were_skipped_for():
    told: list[str] = []
    skipped = [
        SimpleNamespace(nodeid="tests/golden/test_golden.py::a", longrepr=("file", 1, "Skipped: a differs")),
        SimpleNamespace(nodeid="tests/data/test_data.py::b", longrepr=("file", 1, "Skipped: no images")),
    ]
    pytest_terminal_summary(SimpleNamespace(stats={"skipped": skipped}, write_line=told.append))
    assert told == ["tests/golden/test_golden.py::a: Skipped: a differs"]


@pytest.fixture
def one_cell(monkeypatch):
    """Golden files of one cell without operations, whose digest is `d`."""
    monkeypatch.setattr(cells, "names", lambda: ["model:a"])
    monkeypatch.setattr(cells, "digests_of", lambda name: {"rounds": {"1": "d"}, "stages": {"trained": "d"}})
    monkeypatch.setattr(cells, "operations", dict)
    monkeypatch.setattr(cells, "family", lambda: "New AVX2")
    return {
        "versions": cells.here(),
        "families": ["Old AVX2"],
        "operations": {},
        "cells": {"model:a": cells.digests_of("model:a")},
    }


def test_renewing_adds_a_family_where_nothing_differs_and_begins_anew_elsewhere(one_cell, monkeypatch):
    assert cells.renewed(one_cell)["families"] == ["New AVX2", "Old AVX2"]
    monkeypatch.setattr(cells, "names", lambda: ["model:a", "model:new"])
    assert cells.renewed(one_cell)["families"] == ["New AVX2", "Old AVX2"]
    one_cell["cells"]["model:a"]["rounds"]["1"] = "changed"
    assert cells.renewed(one_cell)["families"] == ["New AVX2"]


def test_renewing_writes_the_file_and_names_the_cells_that_changed(one_cell, tmp_path, monkeypatch, capsys):
    one_cell["cells"]["model:a"] = {"rounds": {"1": "changed"}, "stages": {}}
    monkeypatch.setattr(cells, "FILE", tmp_path / "cells.json")
    cells.FILE.write_text(json.dumps(one_cell))
    cells.main()
    assert capsys.readouterr().out == "1 cells, 1 changed: model:a\nfamilies: New AVX2\n"
    assert cells.load()["cells"] == {"model:a": cells.digests_of("model:a")}
    cells.main()
    assert capsys.readouterr().out == "1 cells, 0 changed: none\nfamilies: New AVX2\n"
