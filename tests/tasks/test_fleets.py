"""Fleets draw what their papers say."""

import math
from statistics import median, stdev

import pytest

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.fleet import WHOLE, Draws, Work
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.tasks.fleets.dropout import Dropout
from fedspan.tasks.fleets.speeds import Speeds
from fedspan.tasks.fleets.stragglers import Stragglers
from tests.helpers import how, toy_cell


def work(clients, epochs=5, steps=3, down=0, up=0):
    return [Work(client, epochs * steps, steps, down, up) for client in range(clients)]


def rounds(fleet, mine, count=50):
    return [fleet.turns(mine, Draws(0, round)) for round in range(count)]


# stragglers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "clients", "slow"), [(0.0, 10, 0), (0.5, 10, 5), (0.9, 10, 9), (0.5, 3, 2), (0.7, 45, 32)]
)
def test_that_share_of_each_round_straggles_and_others_each_time(share, clients, slow):
    drawn = rounds(Stragglers(share=share, dropped=True), work(clients))
    lost = [frozenset(place for place, turn in enumerate(turns) if not turn.arrives) for turns in drawn]
    assert {len(one) for one in lost} == {slow}
    assert (len(set(lost)) > 1) == (0 < slow < clients)


@pytest.mark.parametrize("least", [1, 2, 4])
def test_a_straggler_takes_whole_epochs_from_the_least_to_all(least):
    drawn = [turn for turns in rounds(Stragglers(share=1.0, least=least), work(10)) for turn in turns]
    epochs = [5 if turn.steps is None else turn.steps / 3 for turn in drawn]
    counts = {number: epochs.count(number) for number in epochs}
    assert set(counts) == set(range(least, 6))
    expected = len(drawn) / (6 - least)
    assert all(abs(count - expected) < 5 * math.sqrt(expected) for count in counts.values())


def test_steps_can_be_drawn_where_epochs_leave_no_choice():
    mine = work(10, epochs=1, steps=4)
    assert {turn for turns in rounds(Stragglers(share=1.0), mine) for turn in turns} == {WHOLE}
    steps = {turn.steps for turns in rounds(Stragglers(share=1.0, unit="steps"), mine) for turn in turns}
    assert steps == {1, 2, 3, None}


def test_more_epochs_at_least_than_there_are_is_all_of_them():
    assert Stragglers(share=1.0, least=9).turns(work(3), Draws(0, 0)) == [WHOLE] * 3


# dropout ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.7])
def test_clients_are_lost_at_that_rate_independently(rate):
    drawn = [[not turn.arrives for turn in turns] for turns in rounds(Dropout(rate=rate), work(20))]
    lost = sum(map(sum, drawn))
    assert abs(lost - 1000 * rate) <= 4 * math.sqrt(1000 * rate * (1 - rate))
    assert all(turn.steps is None for turn in Dropout(rate=rate).turns(work(20), Draws(0, 0))), "it does all its work"


# speeds -----------------------------------------------------------------------------------------------


def seconds(fleet, mine, round=0):
    return [turn.seconds for turn in fleet.turns(mine, Draws(0, round))]


def test_a_client_keeps_its_speed_and_time_grows_with_its_work():
    fleet = Speeds(byte_seconds=0.0)
    once, twice = seconds(fleet, work(10)), seconds(fleet, work(10, epochs=10), round=4)
    assert twice == pytest.approx([2 * one for one in once])
    assert len(set(once)) == 10
    sent = Speeds(step_seconds=0.0)
    assert seconds(sent, work(10, down=10, up=20)) == pytest.approx([2 * s for s in seconds(sent, work(10, down=15))])


@pytest.mark.parametrize("part", ["step", "byte"])
def test_speeds_are_log_normal_with_that_median_and_spread(part):
    off = {f"{'byte' if part == 'step' else 'step'}_seconds": 0.0}
    fleet = Speeds(**{f"{part}_seconds": 0.2, f"{part}_spread": 0.5}, **off)
    logs = [math.log(one) for one in seconds(fleet, work(3000, epochs=1, steps=1, up=1))]
    assert median(logs) == pytest.approx(math.log(0.2), abs=0.05)
    assert stdev(logs) == pytest.approx(0.5, rel=0.06)


def test_who_is_later_than_the_deadline_is_lost_and_waited_for_until_then():
    alone = seconds(Speeds(), work(50))
    deadline = median(alone)
    turns = Speeds(deadline=deadline).turns(work(50), Draws(0, 0))
    assert [turn.arrives for turn in turns] == [one <= deadline for one in alone]
    assert [turn.seconds for turn in turns] == [min(one, deadline) for one in alone]


# fleets that change nothing ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fleet", "epochs", "said"),
    [
        (Stragglers(share=1.0), 1, ["fleet=stragglers changed none of 18 visits and so had no effect"]),
        (Stragglers(share=1.0, unit="steps"), 1, []), (Stragglers(share=1.0), 5, []),
        (Stragglers(share=0.5, dropped=True), 1, []), (Dropout(rate=0.9), 1, []), (Speeds(), 1, []),
    ],
)  # fmt: skip
def test_a_fleet_that_changed_no_visit_is_named(fleet, epochs, said, tmp_path, caplog):
    run_cell(toy_cell(fleet=fleet, protocol={"rounds": 3, "local_epochs": epochs}), how(tmp_path))
    assert [one.getMessage() for one in caplog.records if one.name == "fedspan"] == said


# bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "setting", "value"),
    [
        (Stragglers, "share", 1.1), (Stragglers, "share", -0.1), (Stragglers, "least", 0), (Dropout, "rate", 1.0),
        (Dropout, "rate", -0.1), (Speeds, "deadline", -1.0), (Speeds, "step_seconds", -0.1),
        (Speeds, "byte_spread", -1.0),
    ],
)  # fmt: skip
def test_a_setting_that_makes_no_sense_is_one_clear_line(cls, setting, value):
    with pytest.raises(UserError, match=rf"^fleet\.{setting} .*, got {value}$"):
        cls(**{setting: value})
