import itertools
import logging
import multiprocessing
import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch

from fedspan.benchmark.errors import CorruptFile
from fedspan.benchmark.records import checkpoint, provenance
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.running import cell_run
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.training import saving
from fedspan.benchmark.training.run import Run
from fedspan.benchmark.training.saving import _constant_origin, resume, save
from fedspan.tasks.fleets.speeds import Speeds
from tests import memory
from tests.helpers import how, numbers, start, toy_cell, trained, weights
from tests.toys import LocalHead, NormNet, Scaffold

KEY = "a key"
META = {"round": 2, "curve": {"loss": [0.5, None]}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.safetensors"


@pytest.mark.parametrize("mapped", [checkpoint.MAPPED_BYTES, 1], ids=["whole", "a tensor at a time"])
def test_what_is_saved_is_loaded_bit_for_bit_in_its_order(path, monkeypatch, mapped):
    monkeypatch.setattr(checkpoint, "MAPPED_BYTES", mapped)
    shared = torch.randn(3, 5)
    tensors = {
        "z/first": shared,
        "a/same memory": shared,
        "m/a view": shared.t(),
        "n/double": torch.randn(2, dtype=torch.float64),
        "b/scalar": torch.tensor(1e-40),
        "c/count": torch.tensor([3, -1]),
        "d/odd": torch.tensor([float("nan"), float("inf"), -0.0]),
        "e/empty": torch.zeros(0, 4),
    }
    checkpoint.save(path, KEY, tensors, META)
    loaded, meta = checkpoint.load(path, KEY)
    assert list(loaded) == list(tensors)
    for name, leaf in tensors.items():
        assert loaded[name].dtype == leaf.dtype
        assert loaded[name].shape == leaf.shape
        assert loaded[name].contiguous().numpy().tobytes() == leaf.contiguous().numpy().tobytes()
    assert meta == META


def test_loaded_tensors_lie_where_torch_would_have_put_them(path):
    """Kernels round by alignment: a resumed run must not differ in its last bits."""
    checkpoint.save(path, KEY, {f"leaf {i}": torch.randn(i + 1) for i in range(9)}, META)
    loaded, _ = checkpoint.load(path, KEY)
    assert all(leaf.data_ptr() % 64 == 0 for leaf in loaded.values())


def killed_while_it_writes(path):
    def save_file(tensors, file, header):
        file.with_name(".tmpA1b2C3").write_bytes(b"half")  # the library's own name, which tells nothing
        os._exit(9)

    safetensors.torch.save_file = save_file
    checkpoint.save(path, KEY, {"w": torch.ones(2)}, META)


@pytest.mark.parametrize("clean", ["clear_temporary", "sweep"])
def test_a_kill_within_the_library_leaves_nothing_that_is_not_found(tmp_path, clean):
    results, mine, other = Results(tmp_path), "0123456789abcdef0123", "1123456789abcdef0123"
    for key in (mine, other):
        process = multiprocessing.get_context("fork").Process(
            target=killed_while_it_writes, args=[results.checkpoint(key)]
        )
        process.start()
        process.join()
        assert process.exitcode == 9
    if clean == "sweep":
        results.records.mkdir()
        results.path(mine).touch()
        results.remove_leftovers()
    else:
        results.clear_temporary(mine, "2123456789abcdef0123")
    assert [path.parent.name.split(".")[1] for path in results.checkpoints.rglob(".tmpA1b2C3")] == [other]


def test_the_next_owner_of_a_cell_removes_what_was_cut_off_and_nothing_else(tmp_path):
    results, mine, trainer, other = Results(tmp_path), "0" * 20, "1" * 20, "2" * 20
    paths = [results.path, lambda key: results.failures / f"{key}.json", results.checkpoint, results.trained_model_path]
    for place, key in itertools.product(paths, (mine, trainer, other)):
        whole = place(key)
        whole.parent.mkdir(exist_ok=True)
        whole.touch()
        whole.with_name(f".{whole.name}.a1b2.tmp").touch()
    results.clear_temporary(mine, trainer)
    left = {(path.parent.name, path.name.split(".")[1]) for path in tmp_path.rglob("*.tmp")}
    cleared = {("records", mine), ("failures", mine), ("checkpoints", mine), ("trained", trainer)}
    every = {(place(key).parent.name, key) for place, key in itertools.product(paths, (mine, trainer, other))}
    assert left == every - cleared
    assert all(place(key).exists() for place, key in itertools.product(paths, (mine, trainer, other)))


def test_an_unfinished_model_is_removed_once_nobody_can_be_writing_it(tmp_path):
    results = Results(tmp_path)
    results.models.mkdir()
    young, old = (results.models / f".{name}.safetensors.tmp" for name in ("young", "old"))
    for path in (young, old):
        path.touch()
    os.utime(old, (0, time.time() - 2 * 24 * 3600))
    results.prune_trained()
    assert (young.exists(), old.exists()) == (True, False)


def test_no_file_is_no_checkpoint(path):
    assert checkpoint.load(path, KEY) is None


def test_another_cells_checkpoint_is_refused(path):
    checkpoint.save(path, KEY, {"w": torch.ones(2)}, META)
    with pytest.raises(CorruptFile, match="digest or key"):
        checkpoint.load(path, "other key")


@pytest.mark.parametrize("length", [0, 1, 7, 8, 100, -1])
def test_a_truncated_file_is_refused(path, length):
    checkpoint.save(path, KEY, {"w": torch.randn(50)}, META)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CorruptFile):
        checkpoint.load(path, KEY)


def test_every_flipped_bit_is_refused_weights_and_progress_alike(path):
    checkpoint.save(path, KEY, {"w": torch.randn(6), "count": torch.tensor([1, 2])}, META)
    content, tensors = path.read_bytes(), checkpoint.load(path, KEY)
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            found, meta = checkpoint.load(path, KEY)
        except CorruptFile:
            continue
        assert meta == tensors[1], f"byte {position}"
        assert all(torch.equal(found[name], leaf) for name, leaf in tensors[0].items()), f"byte {position}"


@pytest.mark.parametrize("header", [None, {"key": KEY}, {"key": KEY, "meta": "{}", "digest": "0"}])
def test_a_file_of_another_writer_is_refused(path, header):
    path.write_bytes(safetensors.torch.save({"w": torch.ones(2)}, header))
    with pytest.raises(CorruptFile):
        checkpoint.load(path, KEY)


# in a run -----------------------------------------------------------------------------------------

CELL = toy_cell(Scaffold(), model=NormNet())


class PowerCut(BaseException):
    pass


def interrupted(folder, cell=CELL):
    """Run a cell until the middle of its second round, and return where its checkpoint is."""

    def cut(progress):
        if (progress.round, progress.client) == (1, 2):
            raise PowerCut

    with pytest.raises(PowerCut):
        run_cell(cell, how(folder, checkpoint_seconds=0), cut)
    return Results(how(folder).results).checkpoint(cell.key)


def other_run(path, cell):
    run = start(cell)
    run.advance()
    save(run, path)


def of_another_code(path):
    tensors, meta = checkpoint.load(path, CELL.key)
    checkpoint.save(path, CELL.key, tensors, {k: v for k, v in meta.items() if k != "meter"})


def of_other_data(path):
    tensors, meta = checkpoint.load(path, CELL.key)
    checkpoint.save(path, CELL.key, tensors, {**meta, "digests": {"dataset_digest": "x"}})


def of_another_model(path):
    tensors, meta = checkpoint.load(path, CELL.key)
    tensors["params/head.weight"] = tensors["params/head.weight"][:, 1:]
    checkpoint.save(path, CELL.key, tensors, meta)


def without_server_state(path):
    tensors, meta = checkpoint.load(path, CELL.key)
    checkpoint.save(path, CELL.key, {k: v for k, v in tensors.items() if not k.startswith("server/")}, meta)


def metering(**other):
    """Return a damage: its meter says something else, under a digest that fits."""

    def change(path):
        tensors, meta = checkpoint.load(path, CELL.key)
        checkpoint.save(path, CELL.key, tensors, {**meta, "meter": {**meta["meter"], **other}})

    return change


def saying(**other):
    """Return a damage: the file says something else, under a digest that fits."""

    def change(path):
        tensors, meta = checkpoint.load(path, CELL.key)
        checkpoint.save(path, CELL.key, tensors, {**meta, **other})

    return change


def originating(*left_out, **other):
    """Return a damage: its origin lacks some fields or says something else, under a digest that fits."""

    def change(path):
        _, meta = checkpoint.load(path, CELL.key)
        made_by = {name: value for name, value in meta["made_by"].items() if name not in left_out}
        saying(made_by={**made_by, **other})(path)

    return change


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "flipped bit": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "another cell's": lambda path: other_run(path, toy_cell(seed=9)),
    "incomplete": of_another_code,
    "other data": of_other_data,
    "another model": of_another_model,
    "without server state": without_server_state,
    "a text as seconds": saying(seconds_at_round=["x"]),
    "more time than the whole": saying(seconds_at_round=[1e9]),
    "more lost visits than a number holds": metering(lost=10**400),
    "a negative cost": saying(bytes_at_round=[-1]),
    "a round beyond the last": saying(round=17),
    "no evaluated round": saying(curve={"round": [], "accuracy": [], "loss": [], "train_loss": []}),
    "a round without its digest": saying(round_digests={}),
    "a list as its origin": saying(made_by=["torch"]),
    "an origin without sources": originating("sources"),
    "an origin without the version of torch": originating(versions={}),
    "an origin with a number as uncommitted files": originating(uncommitted=3),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_checkpoint_is_named_set_aside_and_never_used(tmp_path, damage, caplog):
    path = interrupted(tmp_path / "cut")
    damage(path)
    content = path.read_bytes()
    rounds = []
    with caplog.at_level(logging.WARNING, "fedspan"):
        record = run_cell(CELL, how(tmp_path / "cut"), lambda progress: rounds.append(progress.round))
    kept = Results(how(tmp_path / "cut").results).aside / f"{path.name}.1"
    assert kept.read_bytes() == content
    assert str(path) in caplog.text
    assert str(kept) in caplog.text
    assert min(rounds) == 0, "it went on from a damaged checkpoint"
    assert numbers(record) == numbers(run_cell(CELL, how(tmp_path / "whole")))


def test_a_fleets_clock_is_checked_like_the_others(tmp_path):
    cell = toy_cell(fleet=Speeds())
    path = interrupted(tmp_path, cell)
    tensors, meta = checkpoint.load(path, cell.key)
    checkpoint.save(path, cell.key, tensors, {**meta, "simulated_at_round": [1e9]})
    with pytest.raises(CorruptFile, match=r"its fleet.seconds_at_round ends with"):
        resume(start(cell), path)


def gone_on(folder, **changed):
    """Return the first round that `CELL` computes anew, counted from 0, beside a checkpoint of an earlier one."""
    rounds = []
    run_cell(CELL, how(folder, **changed), lambda progress: rounds.append(progress.round))
    return rounds[0]


@pytest.mark.parametrize(("changed", "said"), [
    ({"executor": "vmap"}, "executor loop, here vmap"),
    ({"threads": 2, "numerics": "native"}, "threads 1, here 2"),
    ({"numerics": "native"}, "numerics portable, here "),
], ids=["executor", "threads", "numerics"])  # fmt: skip
def test_rounds_of_another_executor_number_of_threads_or_numerics_are_not_gone_on_from(changed, said, tmp_path, caplog):
    interrupted(tmp_path)
    assert gone_on(tmp_path, **changed) == 0
    assert f"the first rounds were computed with {said}" in caplog.text
    assert "so the cell starts again" in caplog.text


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_native_rounds_of_another_processor_are_not_gone_on_from_but_on_a_gpu(tmp_path, monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    found = []
    for name in ("one", "other"):
        monkeypatch.setattr(provenance, "processor", lambda name=name: name)
        found.append(_constant_origin(provenance.origin(CELL, how(tmp_path), torch.device(device), "native")))
    assert provenance.difference(*found) == ("numerics other, here one" if device == "cpu" else "")


def test_a_resumed_cell_counts_the_cells_beside_all_of_its_rounds(tmp_path):
    def cut(progress):
        if progress.round == 1:
            raise PowerCut

    with pytest.raises(PowerCut):
        run_cell(CELL, how(tmp_path, checkpoint_seconds=0), cut, beside=lambda: 5)
    record = run_cell(CELL, how(tmp_path), beside=lambda: 2)
    assert record["provenance"]["cells_beside"] == 5


def test_rounds_of_another_source_or_torch_are_not_gone_on_from(tmp_path, monkeypatch, caplog):
    interrupted(tmp_path / "torch")
    interrupted(tmp_path / "source")
    with monkeypatch.context() as other:
        other.setattr(provenance, "versions", lambda: {"torch": "1.0"})
        assert gone_on(tmp_path / "torch") == 0
    assert re.search(r"were computed with torch \S+, here 1\.0, so the cell starts again", caplog.text)
    edited = dict.fromkeys(provenance.source_digests(CELL.training), "edited")
    monkeypatch.setattr(provenance, "source_digests", lambda cell: edited)
    assert gone_on(tmp_path / "source") == 0
    assert re.search(r"were computed with source of \w+:\w+ syntax:\w+, here edited", caplog.text)


@pytest.mark.parametrize("dirty", ["then", "now", "never"])
def test_rounds_of_an_engine_with_uncommitted_changes_are_not_gone_on_from(tmp_path, monkeypatch, caplog, dirty):
    """Tests pin the numbers of a committed engine, whatever its version."""
    changed = {"then": ["benchmark/training/local.py"], "now": [], "never": []}[dirty]
    with monkeypatch.context() as then:
        then.setattr(provenance, "engine_digest", lambda: "another")
        then.setattr(saving, "uncommitted", lambda cell: changed)
        interrupted(tmp_path)
    monkeypatch.setattr(saving, "uncommitted", lambda cell: ["benchmark/tree.py"] if dirty == "now" else [])
    assert gone_on(tmp_path) == (1 if dirty == "never" else 0)
    said = {"then": "benchmark/training/local.py", "now": "benchmark/tree.py", "never": ""}[dirty]
    assert (f"another engine: uncommitted changes of {said}, so the cell" in caplog.text) == (dirty != "never")


def test_an_uncommitted_engine_goes_on_from_its_own_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "uncommitted", lambda cell: ["benchmark/tree.py"])
    interrupted(tmp_path)
    assert gone_on(tmp_path) == 1


def test_two_kinds_of_gpu_are_two_origins(tmp_path, monkeypatch):
    found = []
    for name in ("one", "other"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        found.append(provenance.origin(CELL, how(tmp_path), torch.device("cuda"), "native"))
    assert provenance.difference(*found) == "gpu other, here one"
    assert provenance.difference(*map(_constant_origin, found)) == "gpu other, here one"


def test_a_checkpoint_of_an_earlier_version_is_not_gone_on_from(tmp_path, caplog):
    path = interrupted(tmp_path)
    tensors, meta = checkpoint.load(path, CELL.key)
    del meta["made_by"]
    checkpoint.save(path, CELL.key, tensors, meta)
    assert gone_on(tmp_path) == 0
    assert "the first rounds were computed with an earlier version, so the cell starts again" in caplog.text


def test_a_checkpoint_that_cannot_be_written_is_a_warning_not_the_end(tmp_path, monkeypatch, caplog):
    from fedspan.benchmark.errors import UserError

    def full(*args):
        raise UserError("cannot write: no space")

    monkeypatch.setattr(checkpoint, "save", full)
    record = run_cell(CELL, how(tmp_path, checkpoint_seconds=0))
    assert record["status"] == "done"
    assert "no checkpoint after round 1: cannot write: no space" in caplog.text


def test_clients_that_never_trained_start_from_the_beginning_after_a_resume(tmp_path):
    cell = toy_cell(LocalHead(), participation=0.3, protocol={"rounds": 2})
    run = start(cell)
    run.advance()
    save(run, tmp_path / "c")
    resumed = start(cell)
    resume(resumed, tmp_path / "c")
    assert set(resumed.state.rows) == set(run.state.rows)
    assert 0 < len(run.state.rows) < 6
    idle = next(client for client in range(6) if client not in run.state.rows)
    first = start(cell).state.row(idle).own
    assert all(torch.equal(leaf, first[path]) for path, leaf in resumed.state.row(idle).own.items())
    assert weights(resumed) == weights(run)


# what it costs ------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_writing_one_takes_no_second_copy_of_the_tensors(path):
    tensors = {f"leaf {i}": torch.ones(2_500_000) for i in range(20)}  # 200 MB
    memory.reset_peak()
    before = memory.peak()
    checkpoint.save(path, KEY, tensors, META)
    assert path.stat().st_size > 200e6
    assert memory.peak() - before < 100e6


def test_a_full_disk_is_one_line_and_leaves_nothing_behind(path):
    script = f"""
import resource, torch
from pathlib import Path
from fedspan.benchmark.records import checkpoint, provenance
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
checkpoint.save(Path({str(path)!r}), "key", {{"w": torch.zeros(100_000)}}, {{}})
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"fedspan.benchmark.errors.UserError: cannot write {path}")
    assert "File too large" in last
    assert list(path.parent.iterdir()) == []


def test_slow_checkpoints_are_written_less_often(tmp_path, monkeypatch):
    clock, saved = [0.0], []

    def slow_save(run, path):
        clock[0] += 5
        saved.append(run.state.round)

    def advance(self, tick):
        clock[0] += 10
        original(self, tick)

    original = Run.advance
    monkeypatch.setattr(cell_run, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(cell_run, "save", slow_save)
    monkeypatch.setattr(Run, "advance", advance)
    run_cell(toy_cell(protocol={"rounds": 12}), how(tmp_path, checkpoint_seconds=10))
    assert saved[:3] == [1, 6, 11], "5 of every 50 seconds"


def test_a_checkpoint_of_the_last_round_counts_its_training(tmp_path):
    path = tmp_path / "checkpoint"
    save(trained(CELL), path)
    metering(flops={})(path)
    with pytest.raises(CorruptFile, match="it counts no training"):
        resume(start(CELL), path)


def test_a_resumed_cell_has_the_seconds_of_both_its_processes(tmp_path):
    path = tmp_path / "checkpoint"
    other_run(path, CELL)
    metering(seconds={"prepare": 3.0, "local": 2.0}, processor_seconds=4.0)(path)
    run = start(CELL)
    run.meter.seconds, run.meter.processor_seconds = {"prepare": 10.0}, 20.0
    assert resume(run, path)
    assert (run.meter.seconds, run.meter.processor_seconds) == ({"prepare": 13.0, "local": 2.0}, 24.0)
