"""Who only reads moves nothing, and nobody replaces a record that he cannot judge."""

import json
import os

import pytest

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records import checkpoint
from fedspan.benchmark.records.exchange import collect, from_folder
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.running.cell_run import run_cell
from tests.helpers import how, toy_cell

CELL = toy_cell(protocol={"rounds": 1, "local_epochs": 1})


def later(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 2, "new": {"a": 1}}))


def of_a_later_spectrum(path):
    later(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"scores": {"sidecar": "of another form"}}))


def unopenable(path):
    path.unlink()
    path.symlink_to(path.name)


def half_copied(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"scores": {"sidecar": f"{path.stem}.scores.json"}}))


@pytest.fixture
def kept(tmp_path):
    run_cell(CELL, how(tmp_path))
    return Results(how(tmp_path).results, sets_aside=False)


def test_a_record_that_another_process_has_set_aside_is_no_error(kept):
    kept.set_record_aside(CELL.key)
    kept.set_record_aside(CELL.key)
    assert kept.read(CELL.key) is None
    assert [path.name for path in kept.aside.iterdir()] == [f"{CELL.key}.json.1"]


@pytest.mark.parametrize("change", [later, of_a_later_spectrum, unopenable, half_copied])
def test_who_only_reads_moves_nothing(kept, change):
    path = kept.path(CELL.key)
    change(path)
    before = os.lstat(path)
    assert kept.read(CELL.key) is None
    assert list(kept.all()) == []
    assert list(kept.passed_over) == [path]
    assert os.lstat(path).st_mtime_ns == before.st_mtime_ns
    assert not kept.aside.exists()


@pytest.mark.parametrize("change", [later, of_a_later_spectrum, unopenable])
def test_who_computes_neither_moves_nor_replaces_what_he_cannot_judge(kept, change, tmp_path, monkeypatch):
    path = kept.path(CELL.key)
    change(path)
    before = os.lstat(path)
    monkeypatch.setattr("fedspan.benchmark.running.cell_run.Run", None)  # nothing is computed
    with pytest.raises(UserError, match=r"cannot be used .* and is not replaced; move it away"):
        run_cell(CELL, how(tmp_path))
    assert os.lstat(path).st_mtime_ns == before.st_mtime_ns


def test_a_collection_does_not_replace_it_either(kept, tmp_path):
    path = kept.path(CELL.key)
    other = Results(tmp_path / "other")
    other.records.mkdir(parents=True)
    (other.records / path.name).write_bytes(path.read_bytes())
    later(path)
    left = path.read_bytes()
    found = collect(Results(kept.root), from_folder(other.root))
    assert [*found.refused.values()] != []
    assert path.read_bytes() == left


def test_a_checkpoint_is_as_readable_as_any_file(tmp_path):
    plain = tmp_path / "plain"
    plain.touch()
    checkpoint.save(tmp_path / "checkpoint", "key", {}, {})
    assert (tmp_path / "checkpoint").stat().st_mode == plain.stat().st_mode


def test_a_checkpoint_that_cannot_be_opened_is_not_called_damaged(tmp_path):
    path = tmp_path / "checkpoint"
    path.symlink_to(path.name)
    with pytest.raises(UserError, match=r"cannot read .*; make it readable, or move it away"):
        checkpoint.load(path, "key")


def test_a_record_that_came_while_its_cell_was_computed_is_kept(tmp_path, caplog):
    cell = toy_cell()
    mine = run_cell(cell, how(tmp_path / "elsewhere"))
    results = Results(how(tmp_path).results)

    def collected(progress):
        if not results.path(cell.key).exists():
            results.write({**mine, "provenance": {**mine["provenance"], "command": "another"}})

    run_cell(cell, how(tmp_path), collected)
    assert results.read(cell.key)["provenance"]["command"] == "another"
    assert "appeared while its cell was being computed; keeping it" in caplog.text


def test_a_record_whose_digest_was_taken_away_is_none(tmp_path, caplog):
    """It may have been changed since it was written."""
    results = Results(how(tmp_path).results, sets_aside=False)
    key = run_cell(toy_cell(), how(tmp_path))["key"]
    content = json.loads(results.path(key).read_text())
    del content["digest"]
    results.path(key).write_text(json.dumps(content))
    assert results.read(key) is None
    assert "it has no digest" in caplog.text
