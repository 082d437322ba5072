"""The embedded database is whole or absent, and one that cannot be used is told at once."""

import contextlib
import logging
import os
import sqlite3
from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, TEMPORARILY_UNAVAILABLE

from fedspan.benchmark.mirror import database
from fedspan.benchmark.mirror import runs as tracking
from fedspan.benchmark.mirror.runs import Mirror, Unreachable, runs_of
from fedspan.benchmark.records import index
from fedspan.benchmark.records.results import Results
from tests.mirror.test_runs import record, results, runs  # noqa: F401


@pytest.fixture
def empty(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    return Results(tmp_path / "results")


def cut_off(path):
    """Leave what MLflow leaves that was killed while it made its tables."""
    with contextlib.closing(sqlite3.connect(path)) as store, store:
        store.execute("create table experiments (experiment_id integer)")
        store.execute("create table runs (run_uuid text)")


UNFINISHED = {
    "cut off": cut_off,
    "empty": lambda path: path.touch(),
    "no database": lambda path: path.write_bytes(b"what is this" * 1000),
}


@pytest.mark.parametrize("leave", UNFINISHED.values(), ids=UNFINISHED.keys())
def test_an_unfinished_database_is_set_aside_and_made_again(empty, leave, monkeypatch):
    leave(empty.root / database.NAME)
    left = (empty.root / database.NAME).read_bytes()
    monkeypatch.setattr(database, "_make", lambda path, root: path.write_bytes(b"made"))
    database.prepare(empty)
    assert (empty.root / database.NAME).read_bytes() == b"made"
    assert (empty.aside / f"{database.NAME}.1").read_bytes() == left


def test_a_database_appears_whole_or_not_at_all(empty, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", lambda new, path: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            database.prepare(empty)
    assert list(empty.root.iterdir()) == []
    (empty.root / f".{database.NAME}.killed.tmp").touch()
    mirror = Mirror(empty)
    assert database.is_whole(empty.root / database.NAME)
    assert mirror.sync() == 0
    assert {path.name for path in empty.root.iterdir()} == {database.NAME, index.NAME}


def test_who_finds_another_process_at_work_waits_for_it_and_gives_up_in_the_end(empty, monkeypatch):
    monkeypatch.setattr(database, "_make", lambda path, root: path.write_bytes(b"made"))
    monkeypatch.setattr(database, "PATIENCE", 0.0)
    with database._alone(empty.root), pytest.raises(database.Unusable, match="another process has been making it"):
        database.prepare(empty)
    assert not (empty.root / database.NAME).exists()
    database.prepare(empty)
    assert (empty.root / database.NAME).exists()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
def test_a_database_that_cannot_be_opened_is_told_without_trying_for_minutes(empty, make, monkeypatch):
    make(empty.root / database.NAME)
    monkeypatch.setattr(tracking, "client_of", None)
    with pytest.raises(Unreachable, match=r"mlflow\.db: Unusable: "):
        Mirror(empty)


def test_a_path_that_is_none_of_a_database_is_told(tmp_path):
    with pytest.raises(database.Unusable, match=r"its path has a '\?'"):
        database.prepare(Results(tmp_path / "a?b"))
    assert not list(tmp_path.iterdir())


def test_runs_that_an_earlier_mlflow_kept_are_left_to_it(empty):
    path = empty.root / database.NAME
    cut_off(path)
    with contextlib.closing(sqlite3.connect(path)) as store, store:
        store.execute("insert into runs values ('mine')")
    database.prepare(empty)
    assert database.is_whole(path)
    assert not empty.aside.exists()


def test_a_record_that_mlflow_refuses_stops_no_other(results, monkeypatch, caplog):  # noqa: F811
    for seed in range(3):
        results.write(record(seed=seed))
    mirror, refused = Mirror(results), record(seed=1)["key"]
    fill = Mirror._fill

    def picky(self, run, one, digest):
        if one["key"] == refused:
            raise MlflowException.invalid_parameter_value("Invalid value <x> for parameter 'name'")
        fill(self, run, one, digest)

    monkeypatch.setattr(Mirror, "_fill", picky)
    with caplog.at_level(logging.WARNING, "fedspan"):
        assert (mirror.sync(), mirror.sync()) == (2, 0)
    assert f"{refused} is not mirrored" in caplog.text
    assert len(runs(mirror)) == 2


@pytest.mark.parametrize("code", [INTERNAL_ERROR, TEMPORARILY_UNAVAILABLE])
def test_a_store_that_fails_refuses_no_record(results, monkeypatch, caplog, code):  # noqa: F811
    """The record is sent another time; its run, half filled, has no digest."""
    results.write(record())
    mirror = Mirror(results)

    def fail(self, run, one, digest):
        raise MlflowException("try again", code)

    monkeypatch.setattr(Mirror, "_fill", fail)
    with pytest.raises(Unreachable, match="try again"):
        mirror.sync()
    assert "refuses it" not in caplog.text
    monkeypatch.undo()
    assert Mirror(results).sync() == 1


def test_a_metric_of_any_name_is_mirrored(results):  # noqa: F811
    one = record()
    one["scores"]["trained"] |= {"a<b>/../é": 1.0, "x" * 400: 2.0}
    results.write(one)
    (mirror := Mirror(results)).sync()
    [run] = runs(mirror)
    assert {1.0, 2.0} <= set(run.data.metrics.values())


def test_a_store_that_names_the_same_page_again_and_again_is_not_followed():
    page = type("Page", (list,), {"token": "again"})([1])
    with pytest.raises(Unreachable, match="same page"):
        list(runs_of(SimpleNamespace(search_runs=lambda *_, **__: page), "0"))
