"""The index says of a folder what its files say, whatever becomes of either; and it saves reading them."""

import contextlib
import json
import os
import random
import sqlite3
import threading
from pathlib import Path

import pytest

from fedspan.benchmark.records import index as indexes
from fedspan.benchmark.records import results as folders
from fedspan.benchmark.records.index import Entry, Index, store_of
from fedspan.benchmark.records.record import digest_of
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.spec.plan import plan
from tests.report.made import keep, record, stopped


@pytest.fixture(scope="module")
def records():
    first, second, third = plan([{"seed": seed} for seed in range(3)])
    return {one["key"]: one for one in (record(first), record(second), stopped(third, "diverged", "at round 2"))}


def test_a_record_is_known_by_its_accuracy_at_the_stage_that_is_judged():
    [planned] = plan([{}])
    scores = {"trained": {"accuracy": 40.0}, "best": {"accuracy": 50.0, "round": 1}, "calibrated": {"accuracy": 42.0}}
    assert Entry.about(record(planned, scores=scores)).accuracy == 42.0


@pytest.fixture
def results(tmp_path, records, monkeypatch):
    """A folder of records whose files count as old enough to be told from what replaces them."""
    monkeypatch.setattr(indexes, "SETTLED_SECONDS", -60.0)
    found = Results(tmp_path, sets_aside=False)
    keep(found, list(records.values()))
    return found


@pytest.fixture
def read(monkeypatch):
    """Note the files that are read."""
    seen, really = [], folders.read
    monkeypatch.setattr(folders, "read", lambda path, **how: (seen.append(path.stem), really(path))[1])
    return seen


def truth(results):
    """Return what the files say, each read."""
    return {one["key"]: Entry.about(one) for one in results.all()}


def test_entries_say_what_the_files_say(results, records):
    for _ in range(2):  # without an index, and with one
        assert results.entries() == truth(results)
        assert {key: entry.digest for key, entry in results.entries().items()} == {
            key: digest_of(one) for key, one in records.items()
        }
        assert {entry.key: spec for entry, spec in results.specs()} == {key: r["spec"] for key, r in records.items()}


def test_no_file_is_read_twice(results, records, read):
    results.entries()
    assert sorted(read) == sorted(records)
    read.clear()
    results.entries()
    list(results.specs())
    assert read == []


def test_a_few_records_are_read_without_an_index(results, records, read):
    [key, *_] = records
    assert list(results.entries([key, "0" * 20])) == [key]
    assert not Index(results.root).path.exists()


def rewritten(results, key, change):
    path = results.path(key)
    one = json.loads(path.read_text())
    change(one)
    one["digest"] = digest_of({name: value for name, value in one.items() if name != "digest"})
    return path, json.dumps(one, indent=1)


def in_place(path, text):
    path.write_text(text)


def by_another_of_the_same_size_and_time(path, text):
    before = path.stat()
    new = path.with_suffix(".new")
    new.write_text(text.ljust(before.st_size))
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(new, path)


def with_its_time_put_back(path, text):
    before = path.stat()
    path.write_text(text.ljust(before.st_size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("replaced", [in_place, by_another_of_the_same_size_and_time, with_its_time_put_back])
def test_a_file_that_changed_is_read_again(results, records, replaced):
    results.entries()
    [key, *_] = records
    replaced(*rewritten(results, key, lambda one: one["scores"]["trained"].update(loss=0.25)))
    found = results.entries()
    assert found == truth(results)
    assert found[key].digest != digest_of(records[key])


def test_a_sidecar_that_changed_counts_as_well(results, records):
    [key, *_] = records
    path = results.path(key)
    stored = json.loads(path.read_text())
    beside = path.with_name(f"{key}.compute.json")  # sorts before the record
    beside.write_text(json.dumps(stored["compute"]))
    path.write_text(json.dumps({**stored, "compute": {"sidecar": beside.name}}))
    assert key in results.entries()
    beside.write_text(json.dumps({**stored["compute"], "steps": 1}))
    assert key not in results.entries()
    assert list(results.passed_over) == [path]


def test_what_is_damaged_or_gone_is_no_entry(results, records):
    results.entries()
    first, second, _ = records
    results.path(first).write_text("{}")
    results.path(second).unlink()
    assert results.entries() == truth(results)
    assert len(results.entries()) == 1
    with sqlite3.connect(Index(results.root).path) as database:
        assert second in {key for (key,) in database.execute("SELECT key FROM records")}, "nothing new, nothing written"


def test_a_file_too_young_to_be_told_from_its_successor_is_not_remembered(results, read, monkeypatch):
    monkeypatch.setattr(indexes, "SETTLED_SECONDS", 3600.0)
    results.entries()
    read.clear()
    results.entries()
    assert len(read) == 3


def with_another_status(path):
    with sqlite3.connect(path) as database:
        database.execute("UPDATE records SET status = 'skipped'")


def with_another_spec(path):
    with sqlite3.connect(path) as database:
        database.execute("""UPDATE records SET spec = '{"seed": 7}'""")


def of_another_version(path):
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 1")
        rows = database.execute(f"SELECT {indexes.FIELDS} FROM records").fetchall()
        for key, _, *values, _ in rows:  # whole rows, by other rules
            total = indexes._sum((key, "skipped", *values))
            database.execute("UPDATE records SET status = 'skipped', sum = ? WHERE key = ?", (total, key))


def with_an_endless_view(path):
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE records")
        names = ", ".join(f"i AS {name}" for name in (*indexes.FIELDS.split(", "), "spec"))
        endless = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {names} FROM n WHERE i < 0"
        database.execute(f"CREATE VIEW records AS {endless}")


def a_folder(path):
    path.unlink()
    path.mkdir()


def a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def a_device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def cut_off(path):
    os.truncate(path, path.stat().st_size // 2)


def no_database(path):
    path.write_bytes(b"no database" * 1000)


def empty(path):
    path.write_bytes(b"")


DAMAGES = [
    with_another_status, with_another_spec, of_another_version, with_an_endless_view, a_folder, a_pipe, a_device,
    cut_off, no_database, empty,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_none(results, records, damage, read):
    expected = results.entries()
    damage(Index(results.root).path)
    for _ in range(2):
        assert results.entries() == expected
        assert {entry.key: spec for entry, spec in results.specs()} == {key: r["spec"] for key, r in records.items()}
    read.clear()
    results.entries()
    assert read == [] or damage in (a_folder, a_pipe), "it was made anew where that can be"


def test_a_database_of_somebody_else_stays_as_it_is(results, records):
    path = Index(results.root).path
    path.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE photos (name TEXT)")
    content = path.read_bytes()
    assert {entry.key: spec for entry, spec in results.specs()} == {key: r["spec"] for key, r in records.items()}
    assert path.read_bytes() == content


def test_no_byte_of_an_index_can_change_what_is_known(results):
    expected = results.entries()
    path = Index(results.root).path
    content, draw = path.read_bytes(), random.Random(0)
    used = [place for place, byte in enumerate(content) if byte]
    for _ in range(40):
        place = draw.choice(used)
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :])
        assert results.entries() == expected, place


def test_where_no_index_can_be_written_the_files_are_read(results, monkeypatch):
    monkeypatch.setattr(indexes, "WAIT_SECONDS", 0.0)
    expected = truth(results)
    results.entries()
    before = Index(results.root).path.stat().st_ino
    with sqlite3.connect(Index(results.root).path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert results.entries() == expected
        other.execute("ROLLBACK")
    assert Index(results.root).path.stat().st_ino == before, "it is in use, not damaged"


def test_many_may_write_at_once(results):
    expected, found = truth(results), []

    def look():
        found.append(Results(results.root, sets_aside=False).entries())

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8
    assert len(Index(results.root).entries(indexes.stamps(results.records))) == 3


def test_an_empty_file_is_filled_as_another_process_may_be_about_to(results):
    with Index(results.root).path.open("w") as begun:
        results.entries()
        assert os.fstat(begun.fileno()).st_nlink == 1, "what the other writes into it would be lost"
    assert len(Index(results.root).entries(indexes.stamps(results.records))) == 3


def test_a_store_that_was_made_again_holds_nothing(tmp_path, monkeypatch):
    assert store_of(tmp_path) is None
    (tmp_path / "mlflow.db").touch()
    store = store_of(tmp_path)
    Index(tmp_path).note_mirrored(store, {"a": "1", "b": "2"})
    assert Index(tmp_path).mirrored(store) == {"a": "1", "b": "2"}
    (tmp_path / "new").touch()
    Path(tmp_path / "new").replace(tmp_path / "mlflow.db")
    assert Index(tmp_path).mirrored(store_of(tmp_path)) == {}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://there")
    assert Index(tmp_path).mirrored(store_of(tmp_path)) == {}
