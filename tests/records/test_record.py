import copy
import errno
import json
import logging
import os
from pathlib import Path

import pytest

from fedspan.benchmark.errors import CorruptFile, UserError
from fedspan.benchmark.records import atomic as files
from fedspan.benchmark.records.model import core_seconds
from fedspan.benchmark.records.record import LIMIT_BYTES
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.validation import validate
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.spec.cell import key_of
from tests.helpers import how, numbers, toy_cell

CELL = toy_cell(protocol={"rounds": 2, "local_epochs": 1})


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return run_cell(CELL, how(tmp_path_factory.mktemp("once")))


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path / "results")


def changed(record, **changes):
    """Return a copy with dotted fields replaced, as ``scores__trained``."""
    record = copy.deepcopy(record)
    for name, value in changes.items():
        *parents, last = name.split("__")
        node = record
        for part in parents:
            node = node[part]
        node[last] = value
    return record


def test_a_record_reads_back_as_it_was_written(results, record):
    results.write(record)
    assert results.read(record["key"]) == record
    assert list(results.all()) == [record]
    assert Results(results.root).failure(record["key"]) is None


def test_a_record_says_what_it_must(record):
    assert set(record) >= {
        "schema", "key", "spec", "status", "reason", "scores", "curve", "compute", "provenance",
    }  # fmt: skip
    assert record["status"] == "done"
    assert record["spec"] == CELL.what
    assert set(record["scores"]) == {"trained", "best"}
    assert record["curve"]["round"] == [1, 2]
    assert set(record["compute"]) >= {"seconds", "flops", "bytes", "steps", "images", "memory_bytes"}
    assert record["provenance"]["device"] == "cpu"
    assert set(record["provenance"]["sources"]) == {
        "dataset:blobs", "partition:ragged", "model:plain_net", "algorithm:fedavg",
    }  # fmt: skip


def test_a_second_run_computes_nothing_and_returns_the_record(tmp_path, monkeypatch):
    first = run_cell(CELL, how(tmp_path))
    monkeypatch.setattr("fedspan.benchmark.running.cell_run.Run", None)
    assert run_cell(CELL, how(tmp_path)) == first


def test_a_deleted_record_comes_back_with_the_same_numbers(tmp_path):
    first = run_cell(CELL, how(tmp_path))
    Results(how(tmp_path).results).path(CELL.key).unlink()
    assert numbers(run_cell(CELL, how(tmp_path))) == numbers(first)


def test_what_was_left_of_earlier_attempts_goes_with_the_record(results, record):
    failed = changed(record, status="failed", reason="no", scores={})
    results.write(failed)
    assert results.read(record["key"]) is None
    assert results.failure(record["key"]) == failed
    results.checkpoint(record["key"]).parent.mkdir(parents=True)
    results.checkpoint(record["key"]).write_bytes(b"x")
    results.write(record)
    assert results.failure(record["key"]) is None
    assert not results.checkpoint(record["key"]).exists()


def test_a_failure_that_another_grid_moves_at_the_same_moment_is_no_error(results, record, monkeypatch):
    results.write(changed(record, status="failed", reason="for once", scores={}))
    move = Path.replace

    def by_both(path, target):
        move(path, target)
        return move(path, target)

    monkeypatch.setattr(Path, "replace", by_both)
    results.forget_failure(record["key"])
    assert [one["key"] for one in results.failed()] == [record["key"]]


def test_a_failure_may_name_a_file_that_is_no_utf8(results, record):
    results.write(
        changed(record, status="failed", reason="cannot read /data/\udcff.zip", scores={}, traceback="\udcff")
    )
    failure = results.failure(record["key"])
    assert (failure["reason"], failure["traceback"]) == ("cannot read /data/\\udcff.zip", "\\udcff")


@pytest.mark.parametrize("rounds", [2_000, 20_000])
def test_thousands_of_evaluated_rounds_go_to_sidecars(results, record, rounds):
    values = [k / 7 for k in range(rounds)]
    spec = record["spec"] | {"protocol": record["spec"]["protocol"] | {"rounds": rounds}}
    curve = dict.fromkeys(record["curve"], values) | {"round": list(range(1, rounds + 1))}
    curve["accuracy"] = [50.0] * rounds
    long = changed(
        record,
        key=key_of(spec),
        spec=spec,
        curve=curve,
        compute__seconds_at_round=values,
        compute__bytes_at_round=values,
        compute__seconds__total=1e6,
        compute__bytes__up=1e6,
        compute__steps=rounds,
        compute__images=rounds,
        scores__trained__accuracy=50.0,
        scores__best={"accuracy": 50.0, "round": 1},
        digests__rounds={str(when): "a" * 64 for when in curve["round"]},
    )
    results.write(long)
    assert results.path(long["key"]).stat().st_size <= 64 * 1024
    assert results.read(long["key"]) == long
    assert list(results.all()) == [long]


def test_long_spectra_go_to_a_sidecar_that_the_record_names(results, record):
    spectra = {"global": {"singular_values": [1 / (i + 1) for i in range(LIMIT_BYTES // 10)]}}
    long = {**record, "spectra": spectra}
    results.write(long)
    stored = json.loads(results.path(record["key"]).read_text())
    assert results.path(record["key"]).stat().st_size <= LIMIT_BYTES
    assert (results.records / stored["spectra"]["sidecar"]).exists()
    assert results.read(record["key"]) == long
    assert list(results.all()) == [long]


def test_the_largest_record_that_keeps_its_diagnostics_can_be_read(results, record):
    def lengthened(by):
        return {**record, "diagnostics": {"padding": "x" * by}}

    results.write(lengthened(0))
    room = LIMIT_BYTES - results.path(record["key"]).stat().st_size
    for by in (room, room + 1):
        results.path(record["key"]).unlink()
        results.write(lengthened(by))
        assert Results(results.root).read(record["key"]) == lengthened(by)
        assert (results.records / f"{record['key']}.diagnostics.json").exists() == (by > room)


# damage -------------------------------------------------------------------------------------------


def assert_set_aside(results, content, caplog):
    """Assert that what lies at the record's place is named in a warning, kept elsewhere, and not used."""
    path = results.path(CELL.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "fedspan"):
        assert results.read(CELL.key) is None
    assert not path.exists()
    kept = results.aside / f"{path.name}.1"
    assert kept.read_bytes() == content
    for named in (str(path), str(kept)):
        assert named in caplog.text


DAMAGE = {
    "empty": lambda text: "",
    "truncated": lambda text: text[: len(text) // 2],
    "no JSON": lambda text: "hello",
    "not an object": lambda text: "[]",
    "null": lambda text: "null",
    "NaN": lambda text: text.replace('"reason": null', '"reason": NaN'),
    "huge number": lambda text: text.replace('"reason": null', '"reason": ' + "9" * 5000),
    "deep": lambda text: "[" * 100_000,
    "trailing": lambda text: text + "}",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_is_set_aside(results, record, damage, caplog):
    assert_set_aside(results, damage(json.dumps(record)).encode(), caplog)


def test_bytes_that_are_no_text_are_set_aside(results, record, caplog):
    assert_set_aside(results, json.dumps(record).encode()[:-1] + b"\xff", caplog)


WRONG = {
    "other schema": ({"schema": 99}, "its schema is 99, this version reads 1"),
    "other key": ({"key": "0" * 20}, "its key does not match its spec"),
    "changed spec": ({"spec__seed": 7}, "its key does not match its spec"),
    "unknown status": ({"status": "perfect"}, "its status is 'perfect', none of done, skipped, diverged, failed"),
    "scores are a list": ({"scores": []}, r"its scores is \[\], not an object"),
    "a stage is a number": ({"scores__trained": 3}, r"its scores\.trained is 3, not an object"),
    "an impossible accuracy": ({"scores__trained__accuracy": 101.0}, "outside 0..100"),
    "an accuracy as text": ({"scores__trained__accuracy": "99"}, r"scores\.trained\.accuracy is '99'"),
    "an infinite loss": ({"scores__trained__loss": float("inf")}, r"scores\.trained\.loss is inf"),
    "a loss beyond all floats": ({"scores__trained__loss": 10**400}, r"scores\.trained\.loss is 1000"),
    "done without a score": ({"scores": {}}, r"it is done but has no scores\.trained"),
}


@pytest.mark.parametrize(("changes", "why"), WRONG.values(), ids=WRONG.keys())
def test_a_record_that_contradicts_itself_is_none(record, changes, why):
    with pytest.raises(CorruptFile, match=why):
        validate(changed(record, **changes), CELL.key)


@pytest.mark.parametrize(
    "field", ["schema", "key", "spec", "status", "reason", "scores", "curve", "compute", "provenance"]
)
def test_a_record_without_a_field_names_it(record, field):
    with pytest.raises(CorruptFile, match=f"it lacks {field}"):
        validate({k: v for k, v in record.items() if k != field})


def test_another_cells_record_under_this_name_is_set_aside(results, record, caplog):
    other = run_cell(toy_cell(seed=5, protocol={"rounds": 1}), how(results.root.parent / "other"))
    assert_set_aside(results, json.dumps(other).encode(), caplog)
    assert "its key is not that of its file" in caplog.text


def test_every_single_flipped_bit_is_noticed(results, record):
    """A flip either leaves the record as it was (a space, an escaped letter) or sets it aside."""
    results.write(record)
    path = results.path(CELL.key)
    content = path.read_bytes()
    for position in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        found = results.read(CELL.key)
        if found is not None:
            assert {k: v for k, v in found.items() if k in record} == record, f"byte {position}"
    path.write_bytes(content)
    assert results.read(CELL.key) == record


def test_a_changed_number_is_noticed(results, record, caplog):
    results.write(record)
    text = results.path(CELL.key).read_text()
    stored = json.loads(text)
    stored["scores"]["trained"]["loss"] += 0.5
    assert_set_aside(results, json.dumps(stored).encode(), caplog)
    assert "its digest does not match" in caplog.text


@pytest.mark.parametrize("damage", ["missing", "truncated", "changed"])
def test_a_damaged_sidecar_takes_its_record_with_it(results, record, damage, caplog):
    results.write({**record, "spectra": {"values": [1 / (i + 1) for i in range(LIMIT_BYTES // 10)]}})
    sidecar = results.records / f"{CELL.key}.spectra.json"
    text = sidecar.read_text()
    if damage == "missing":
        sidecar.unlink()
    else:
        sidecar.write_text(text[:-9] if damage == "truncated" else text.replace("0.5", "0.6", 1))
    assert_set_aside(results, results.path(CELL.key).read_bytes(), caplog)
    assert not sidecar.exists()
    assert damage == "missing" or (results.aside / f"{sidecar.name}.1").exists()


def test_nothing_that_was_set_aside_is_overwritten(results, record, caplog):
    for number in range(3):
        path = results.path(CELL.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"broken {number}")
        assert results.read(CELL.key) is None
    assert sorted(p.read_text() for p in results.aside.iterdir()) == ["broken 0", "broken 1", "broken 2"]


def test_a_damaged_record_is_computed_again(tmp_path, caplog):
    first = run_cell(CELL, how(tmp_path))
    path = Results(how(tmp_path).results).path(CELL.key)
    path.write_text(path.read_text()[:100])
    assert numbers(run_cell(CELL, how(tmp_path))) == numbers(first)
    assert "was moved to" in caplog.text


# folders ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "text"), [(errno.ENOSPC, "No space left on device"), (errno.EROFS, "Read-only file system")]
)
def test_a_folder_that_takes_no_files_is_refused_before_training(tmp_path, monkeypatch, code, text):
    def refuse(dir):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    monkeypatch.setattr("fedspan.benchmark.running.cell_run.Run", None)
    with pytest.raises(UserError, match=rf"cannot write .*{text}; free space.* paths\.results") as error:
        run_cell(CELL, how(tmp_path))
    assert "\n" not in str(error.value)
    assert not [path for path in (tmp_path / "results").rglob("*") if path.is_file()], "it left a file behind"


def test_a_results_path_below_a_file_is_refused(tmp_path):
    (tmp_path / "results").write_text("a file")
    with pytest.raises(UserError, match=r"cannot write .*paths\.results"):
        run_cell(CELL, how(tmp_path))


def test_a_write_that_fails_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.write_atomically(path, b"old")
    monkeypatch.setattr(files.os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
    with pytest.raises(UserError, match="I/O error"):
        files.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_never_holds_what_is_no_number(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "x.json", {"a": float("nan")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("provenance", "compute", "seconds"),
    [
        ({"device": "cpu"}, {"seconds": {"total": 90.0}, "processor_seconds": 20.0}, 20.0),
        ({"device": "cpu"}, {"seconds": {"total": 90.0}}, 90.0),
        ({"device": "cuda"}, {"seconds": {"total": 90.0}, "processor_seconds": 20.0}, 90.0),
        ({"device": "cpu", "workers": 2}, {"seconds": {"total": 90.0}, "processor_seconds": 150.0}, 150.0),
        ({"device": "cpu", "workers": 2}, {"seconds": {"total": 90.0}}, None),
    ],
)
def test_what_one_core_takes_does_not_depend_on_what_else_the_machine_did(provenance, compute, seconds):
    assert core_seconds({"provenance": provenance, "compute": compute}) == seconds
