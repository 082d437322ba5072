"""Whatever lies in a file or stands on a command line: a result or a documented error, never a crash."""

import gzip
import io
import json
import shutil
import struct
import tarfile
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspan.benchmark.data.archives import open_root
from fedspan.benchmark.errors import CorruptFile, UserError
from fedspan.benchmark.records import checkpoint, exchange
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.running.cell_run import Outcome, make_record
from fedspan.benchmark.spec.cell import key_of
from fedspan.benchmark.spec.compose import resolve
from fedspan.benchmark.spec.overrides import axes_of
from fedspan.benchmark.spec.plan import plan_grid
from fedspan.benchmark.spec.settings import How
from fedspan.tasks.datasets.cifar10 import Cifar10
from fedspan.tasks.datasets.mnist import Mnist
from tests.helpers import toy_cell, whole

FEW, MANY = 150, 10_000


def fuzz(*arguments):
    """Return a decorator that runs a test on a few inputs, and as a slow test on many."""

    def decorate(test):
        def wrapped(inputs, tmp_path):
            checked = given(st.tuples(*arguments))(lambda values: test(tmp_path, *values))
            settings(max_examples=inputs, database=None)(checked)()

        wrapped.__name__ = test.__name__
        return pytest.mark.parametrize("inputs", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])(wrapped)

    return decorate


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from([[], {}, -1, 10**400, "NaN", float("nan"), "../x", "<script>", "\ud800", "a" * 300]),
)  # fmt: skip
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))


@st.composite
def damaged(draw, content):
    """Bytes with some changed, removed, repeated or put in."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        where = draw(st.integers(0, len(data)))
        what = draw(st.sampled_from(["flip", "cut", "drop", "insert", "repeat"]))
        if what == "flip" and where < len(data):
            data[where] ^= 1 << draw(st.integers(0, 7))
        elif what == "cut":
            del data[where:]
        elif what == "drop":
            del data[where : where + draw(st.integers(1, 40))]
        elif what == "insert":
            data[where:where] = draw(st.binary(max_size=9))
        else:
            data[where:where] = data[where : where + draw(st.integers(1, 40))]
    return bytes(data)


def places(value, path=()):
    """Return the paths of all nodes in nested JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


@st.composite
def edited(draw, value):
    """Nested JSON with some nodes replaced or removed."""
    root = {"root": json.loads(json.dumps(value))}
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(root["root"], ("root",))))
        node = root
        for key in path[:-1]:
            node = node[key]
        if len(path) > 1 and draw(st.booleans()):
            del node[path[-1]]
        else:
            node[path[-1]] = draw(values)
    return root.get("root")


# records ----------------------------------------------------------------------------------------------


def made_record():
    scores = {"trained": {"accuracy": 50.0, "loss": 1.0}, "best": {"accuracy": 60.0, "round": 2}}
    record = make_record(toy_cell(), How(Path(), Path(), command="fedspan run"), Outcome(scores=scores), None)
    record["curve"] = {"round": [1, 2, 3], "accuracy": [1.0, 60.0, 50.0], "loss": [None, 1.0, 1.0]}
    return json.loads(json.dumps(whole(record)))


RECORD = made_record()
CONTENT = json.dumps(RECORD, indent=1).encode()


def read_everywhere(folder, content):
    results = Results(folder / "results")
    path = results.path(RECORD["key"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    with suppress(CorruptFile):
        exchange.read(path)
    record = results.read(RECORD["key"])
    assert record in (None, RECORD), "a damaged file is never another record"
    assert (record is None) == (not path.exists() or path in results.passed_over)
    shutil.rmtree(results.aside, ignore_errors=True)


@fuzz(damaged(CONTENT))
def test_a_damaged_record_is_read_or_set_aside(folder, content):
    read_everywhere(folder, content)


@fuzz(edited(RECORD), st.booleans())
def test_an_edited_record_is_read_or_set_aside(folder, record, rekey):
    if rekey and isinstance(record, dict) and "spec" in record:
        with suppress(ValueError):
            record["key"] = key_of(record["spec"])
    try:
        content = json.dumps(record).encode()
    except (ValueError, UnicodeEncodeError):
        return
    read_everywhere(folder, content)


# boards -----------------------------------------------------------------------------------------------

BOARD = {
    "title": "A board", "base": {"dataset": "digits", "dataset.limit": 60, "protocol.rounds": 2},
    "grid": [{"algorithm": ["fedavg", "fedprox"], "seed": [0, 1]}, {"addons": [["feddecorr"]], "clients": 3}],
    "scales": {"smoke": {"protocol.rounds": 1}},
    "tables": [{"rows": ["method"], "columns": ["partition"], "where": {"clients": 10}}],
    "figures": [{"kind": "accuracy"}],
}  # fmt: skip


def plan_board(path):
    with suppress(UserError):
        assert plan_grid({"board": [str(path)], "scale": ["smoke"]})


@fuzz(edited(BOARD))
def test_an_edited_board_is_planned_or_refused(folder, value):
    try:
        text = yaml.safe_dump(value, allow_unicode=True)
        (folder / "board.yaml").write_text(text, encoding="utf-8")
    except UnicodeEncodeError:
        return
    plan_board(folder / "board.yaml")


@fuzz(damaged(yaml.safe_dump(BOARD).encode()))
def test_a_damaged_board_is_planned_or_refused(folder, content):
    (folder / "board.yaml").write_bytes(content)
    plan_board(folder / "board.yaml")


# checkpoints ------------------------------------------------------------------------------------------


def made_checkpoint():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint")
        checkpoint.save(
            path, "key", {"a/b": torch.arange(6.0), "c": torch.tensor([3])}, {"round": 2, "curve": {"x": [1]}}
        )
        return path.read_bytes()


CHECKPOINT = made_checkpoint()


@fuzz(damaged(CHECKPOINT))
def test_a_damaged_checkpoint_is_refused(folder, content):
    path = folder / "checkpoint"
    path.write_bytes(content)
    try:
        tensors, meta = checkpoint.load(path, "key")
    except CorruptFile:
        return
    assert (tensors["a/b"].tolist(), tensors["c"].tolist(), meta["round"]) == ([0, 1, 2, 3, 4, 5], [3], 2)


@fuzz(edited(json.loads(CHECKPOINT[8 : 8 + struct.unpack("<Q", CHECKPOINT[:8])[0]])))
def test_a_checkpoint_with_an_edited_header_is_refused(folder, header):
    try:
        text = json.dumps(header).encode()
    except (ValueError, UnicodeEncodeError):
        return
    body = CHECKPOINT[8 + struct.unpack("<Q", CHECKPOINT[:8])[0] :]
    test = folder / "checkpoint"
    test.write_bytes(struct.pack("<Q", len(text)) + text + body)
    try:
        checkpoint.load(test, "key")
    except CorruptFile:
        return


# dataset files ----------------------------------------------------------------------------------------

FILES = {f"{split}/{name}/{n}.png": b"an image" for split in ("train", "test") for name in "ab" for n in range(2)}


def made_tar(mode):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def made_zip():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    return buffer.getvalue()


ARCHIVES = {"tar": made_tar("w"), "tar.gz": made_tar("w:gz"), "tar.xz": made_tar("w:xz"), "zip": made_zip()}


@fuzz(st.sampled_from(sorted(ARCHIVES)).flatmap(lambda kind: damaged(ARCHIVES[kind])))
def test_a_damaged_archive_is_read_or_refused_and_writes_nothing(folder, content):
    path = folder / "archive"
    path.write_bytes(content)
    with suppress(UserError):
        root = open_root(path, ("train", "test"), "train/")
        for name, _ in root.read([name for name in root.entries() if not name.endswith("/")]):
            assert not name.startswith("/")
            assert ".." not in name.split("/")
    assert [found.name for found in folder.iterdir()] == ["archive"]


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


IDX = [idx(np.zeros(shape, np.uint8)) for shape in ((4, 28, 28), (4,), (2, 28, 28), (2,))]


@fuzz(st.integers(0, 3).flatmap(lambda number: st.tuples(st.just(number), damaged(IDX[number]), st.booleans())))
def test_a_damaged_idx_file_is_read_or_refused(folder, change):
    number, content, packed = change
    paths = [folder / f"{part}.gz" for part in range(4)]
    for path, good in zip(paths, IDX, strict=True):
        path.write_bytes(gzip.compress(good, 1))
    paths[number].write_bytes(gzip.compress(content, 1) if packed else content)
    with suppress(UserError):
        Mnist()._read(paths)


CIFAR = made_tar("w:gz")


@fuzz(damaged(CIFAR))
def test_no_pickle_of_another_archive_than_the_published_one_is_opened(folder, content):
    """Damaged pickles of arrays can bring NumPy itself down, so the checksum comes first."""
    (folder / "cifar-10-python.tar.gz").write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedspan.tasks.datasets.cifar._unpickle", None)
        with pytest.raises(UserError, match="md5"):
            Cifar10(root=str(folder)).prepare(folder / "cache")


# command lines ----------------------------------------------------------------------------------------

SETTINGS = [
    *sorted(key for key in resolve({}) if key not in ("board", "addon", "paths")),
    "protocol.rounds", "dataset.limit", "partition.alpha", "addon.feddecorr.beta", "algorithm.mu", "hydra.verbose",
    "board", "paths.results", "model.width", "dataset.root",
]  # fmt: skip
words = st.one_of(
    st.text(max_size=30),
    st.builds("{}={}".format, st.sampled_from(SETTINGS), st.text("ab01.,=[](){}'\"\\$~+-:/ \t\n\x00é", max_size=14)),
    st.builds("{}={}".format, st.sampled_from(SETTINGS), leaves),
)


@fuzz(st.lists(words, max_size=4))
def test_a_command_line_is_planned_or_refused(folder, line):
    with suppress(UserError):
        assert plan_grid(axes_of(line))
