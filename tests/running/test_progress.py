import io
import json

import pytest
from rich.console import Console

from fedspan.benchmark.records.results import Results
from fedspan.benchmark.running.cell_run import CellProgress
from fedspan.benchmark.running.progress import (
    GridDisplay,
    StatusFile,
    describe,
    duration,
    labels_of,
    read_as,
)
from fedspan.benchmark.spec.plan import plan


@pytest.fixture
def grid(tmp_path):
    """Four cells, one of them with a record from before, and a function that shows what the screen says."""
    results = Results(tmp_path)
    planned = plan([{"seed": seed} for seed in range(3)])
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    display = GridDisplay(console, results, planned, done=1, workers=2)

    def screen():
        display.look(None)
        with console.capture() as shown:
            console.print(display.render())
        return shown.get()

    return results, [cell.cell.key for cell in planned], screen


def test_the_screen_shows_what_is_done_running_and_failed(grid):
    results, keys, screen = grid
    assert "1/4" in screen()
    assert "0 running, 0 failed" in screen()
    StatusFile(results.status / f"{keys[0]}.json")(CellProgress("a cell", 2, 8, client=3, clients=5, accuracy=12.345))
    StatusFile(results.status / f"{keys[1]}.json").write({"label": "another", "rounds": 8})
    results.failures.mkdir()
    (results.failures / f"{keys[2]}.json").write_text(json.dumps({"status": "failed", "reason": "no"}))
    shown = " ".join(screen().split())
    assert "2/4" in shown
    assert "2 running, 1 failed" in shown
    assert "10 clients, seed 0 round 3/8 client 3/5 12.35%" in shown
    assert "10 clients, seed 1 preparing" in shown


def test_cells_of_one_label_say_what_tells_them_apart():
    sweep = [{"protocol.lr": lr, "seed": seed, "protocol.rounds": 3} for lr in (0.1, 0.01) for seed in (0, 1)]
    with_momentum = plan([*sweep, {"protocol.lr": 0.1, "protocol.rounds": 3, "protocol.momentum": 0.0, "seed": 0}])
    plain = plan([{"seed": 7}])[0]
    start = plain.cell.label.removesuffix("seed 7")
    assert list(labels_of([*with_momentum, plain]).values()) == [
        f"{start}seed 0, protocol.lr=0.1",
        f"{start}seed 1, protocol.lr=0.1",
        f"{start}seed 0, protocol.lr=0.01",
        f"{start}seed 1, protocol.lr=0.01",
        f"{start}seed 0, protocol.lr=0.1, protocol.momentum=0.0",
        plain.cell.label,
    ]


def test_a_cell_with_a_record_is_not_failed_whatever_an_earlier_failure_says(grid):
    results, keys, screen = grid
    for folder, status in ((results.records, "done"), (results.failures, "failed")):
        folder.mkdir(exist_ok=True)
        (folder / f"{keys[0]}.json").write_text(json.dumps({"status": status, "reason": "no"}))
    shown = screen()
    assert "2/4" in shown
    assert "0 failed" in shown


def test_a_cell_that_ends_is_no_longer_running(grid):
    results, keys, screen = grid
    status = StatusFile(results.status / f"{keys[0]}.json")
    status(CellProgress("a cell", 0, 8, client=1, clients=5))
    assert "1 running" in screen()
    status.remove()
    assert "0 running" in screen()


def test_a_half_written_status_shows_nothing(grid):
    results, keys, screen = grid
    results.status.mkdir()
    for text in ('{"label": "a c', "[]", '{"round": "x"}', '{"rounds": 0}', '{"round": 1e400}', '{"clients": -1}'):
        (results.status / f"{keys[0]}.json").write_text(text)
        assert "0 running" in screen()


@pytest.mark.parametrize(
    ("finished", "running", "left"), [(1, [], 20.0), (0, [4], 50.0), (1, [4], 10.0), (0, [], None)]
)
def test_time_left_follows_from_the_share_that_is_done(grid, monkeypatch, finished, running, left):
    monkeypatch.setattr("fedspan.benchmark.running.progress.time.monotonic", lambda: 110.0)
    results, keys, _ = grid
    planned = plan([{"seed": seed} for seed in range(3)])
    display = GridDisplay(Console(file=io.StringIO()), results, planned, done=0, workers=1)
    display.started = 100.0
    display.finished = dict.fromkeys(keys[:finished], "done")
    statuses = [CellProgress(round=round, rounds=8, client=0, clients=5) for round in running]
    seconds = display.seconds_left(statuses)
    assert seconds == (None if left is None else pytest.approx(left))


def test_statuses_are_written_at_most_twice_a_second(tmp_path, monkeypatch):
    now = [10.0]
    monkeypatch.setattr("fedspan.benchmark.running.progress.time.monotonic", lambda: now[0])
    status = StatusFile(tmp_path / "status" / "k.json")
    for round in range(10):
        now[0] += 0.125
        status(CellProgress("a cell", round, 10))
    assert read_as(status.path, CellProgress).round == 8


def test_a_status_that_cannot_be_written_harms_nothing(tmp_path):
    (tmp_path / "taken").write_text("")
    status = StatusFile(tmp_path / "taken" / "k.json")
    status.write({"label": "a cell"})
    status.remove()
    assert read_as(status.path, CellProgress) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (61, "1 min 01 s"),
        (3600, "1 h 00 min"),
        (90061, "25 h 01 min"),
    ],
)
def test_durations_read_as_people_say_them(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"status": "done", "scores": {"trained": {"accuracy": 97.5}}}, " 97.50%"),
        ({"status": "done", "scores": {"trained": {"accuracy": None, "client_accuracy": 50.0}}}, " 50.00%"),
        ({"status": "done", "scores": {"trained": {"accuracy": 39.0, "client_accuracy": 50.0}}}, " 50.00%"),
        (
            {"status": "done", "scores": {"trained": {"accuracy": 40.0}, "calibrated": {"accuracy": 42.0}}},
            " 42.00% calibrated",
        ),
        (
            {"status": "done", "scores": {"trained": {"accuracy": 4.0}, "personalised": {"client_accuracy": 50.0}}},
            " 50.00% personalised",
        ),
        (
            {"status": "done", "scores": {"validation": {"accuracy": 97.5, "client_accuracy": 60.0}}},
            " 97.50% of held-out images",
        ),
        ({"status": "failed", "scores": {}, "reason": "no memory"}, "failed: no memory"),
        ({"status": "failed", "scores": {}, "reason": "\x1b[2Jgone"}, "failed: \\x1b[2Jgone"),
        ({"status": "done", "scores": {"trained": {"accuracy": "x"}}}, "done: None"),
        ({"status": "done", "scores": {"sidecar": "a.scores.json"}}, "done: None"),
    ],
)
def test_an_outcome_in_a_few_words(record, text):
    assert describe(record) == text
