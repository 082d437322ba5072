"""Which trial the records of a study choose."""

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.benchmark.records.selection import WORST, select
from fedspan.benchmark.spec.board import Board
from fedspan.benchmark.spec.studies import studies
from fedspan.benchmark.spec.tuning import Tune

SEEDS = (100, 101)


def study_of(trials, **space):
    board = Board("mine", "", "", {"algorithm": "fedavg"}, ({},), {}, tune=Tune(trials, SEEDS, space=space))
    [study] = studies(board, {})
    return study


STUDY = study_of(5, **{"protocol.lr": {"log": [0.01, 1.0]}})


def read_from(study, outcomes, data=()):
    """Return the `read` of records: an accuracy, a status, or None for each seed of each trial.

    `data` are digests of datasets, one for each trial.
    """
    found = {}
    digests = dict(zip((trial.number for trial in study.trials), data, strict=False))
    for trial, seeds in zip(study.trials, outcomes, strict=True):
        for planned, outcome in zip(trial.cells, seeds, strict=True):
            if outcome is not None:
                status, accuracy = (outcome, 100.0) if isinstance(outcome, str) else ("done", outcome)
                found[planned.cell.key] = {
                    "status": status,
                    "scores": {"validation": {"accuracy": accuracy}},
                    "provenance": {"dataset_digest": digests.get(trial.number)},
                }
    return found.get


percents = st.floats(0, 100)


@given(st.lists(st.tuples(percents, percents), min_size=5, max_size=5))
def test_the_highest_mean_over_the_seeds_is_chosen(outcomes):
    found = select(STUDY, read_from(STUDY, outcomes))
    means = [(a + b) / 2 for a, b in outcomes]
    assert found.accuracies == pytest.approx(means)
    assert found.accuracies[found.chosen.number] == max(found.accuracies)
    assert (found.missing, found.diverged, found.note) == (0, 0, "")
    assert [p.cell.key for p in found.tuned] == [p.cell.key for p in STUDY.tuned(found.chosen)]


def test_of_equals_the_earlier_trial_is_chosen():
    found = select(STUDY, read_from(STUDY, [(1, 1), (2, 2), (3, 1), (1, 3), (0, 0)]))
    assert found.chosen.number == 1
    one, other = sorted([[100 * hits / 360 for hits in pair] for pair in ((45, 295), (62, 278))], key=fmean)
    assert fmean(one) < fmean(other), "in their last bits, for as many images"
    assert select(STUDY, read_from(STUDY, [(1, 1), one, other, (1, 3), (0, 0)])).chosen.number == 1


@pytest.mark.parametrize(("outcome", "said"), [("diverged", "diverged"), ("skipped", "cannot run")])
def test_a_trial_that_diverges_or_cannot_run_on_one_seed_is_the_worst(outcome, said):
    found = select(STUDY, read_from(STUDY, [(0, 0), (99, outcome), (0, 0), (0, 0), (1, 1)]))
    assert found.chosen.number == 4
    assert found.accuracies[1] == WORST
    assert found.note == f"1 of 5 trials {said}"


def test_if_all_trials_diverge_the_default_is_kept_and_that_is_said():
    found = select(STUDY, read_from(STUDY, 5 * [("diverged", 3.0)]))
    assert found.chosen.number == 0
    assert found.note == "all 5 trials diverged: the default is kept"
    assert [p.cell.key for p in found.tuned] == [p.cell.key for p in STUDY.default]


def test_nothing_is_chosen_before_every_trial_has_run_on_every_seed():
    found = select(STUDY, read_from(STUDY, [(9, 9), (1, None), (1, 1), (None, None), (1, 1)]))
    assert (found.chosen, found.tuned, found.missing) == (None, [], 2)
    assert found.note == "2 of 5 trials have no record yet"


@pytest.mark.parametrize(
    ("trials", "outcomes", "said"),
    [
        (5, 5 * [(None, None)], "no trial has a record yet"),
        (5, [(9, None), *(4 * [(1, 1)])], "1 of 5 trials has no record yet"),
        (1, [("diverged", 3.0)], "the only trial diverged: the default is kept"),
        (1, [("skipped", 3.0)], "the only trial cannot run: the default is kept"),
        (2, [("skipped", 3.0), ("diverged", 3.0)], "all 2 trials diverged or cannot run: the default is kept"),
    ],
)
def test_what_is_said_of_trials_agrees_with_their_number(trials, outcomes, said):
    study = study_of(trials, **{"protocol.lr": {"log": [0.01, 1.0]}})
    assert select(study, read_from(study, outcomes)).note == said


@given(st.lists(st.sampled_from(["aa", "bb", None]), min_size=5, max_size=5))
def test_trials_on_other_data_than_most_are_named(data):
    found = select(STUDY, read_from(STUDY, 5 * [(1, 1)], data))
    rest = [digest for number, digest in enumerate(data) if digest and number not in found.on_other_data]
    strange = [data[number] for number in found.on_other_data]
    assert len(set(rest)) <= 1
    assert None not in strange
    assert not set(rest) & set(strange)
    assert len(rest) >= len(strange)
    assert ("other data" in found.note) == bool(strange)
    assert found.chosen.number == 0, "they choose all the same"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("abaaa", "trial 1 used other data than the rest (by digest), so accuracies are not comparable"),
        ("abbaa", "trials 1, 2 used other data than the rest (by digest), so accuracies are not comparable"),
        ("aaaaa", ""),
    ],
)
def test_the_note_says_which_trials_ran_on_other_data(data, said):
    assert select(STUDY, read_from(STUDY, 5 * [(1, 1)], data)).note == said


def test_a_small_space_is_mentioned():
    study = study_of(9, **{"protocol.lr": [0.1, 0.2]})
    found = select(study, read_from(study, len(study.trials) * [(1, 1)]))
    assert found.note == f"the space has {len(study.trials)} points, fewer than 9 trials"
    assert len(study.trials) == 3, "both values, and the default"


def test_a_trial_without_an_accuracy_counts_as_worst():
    read = read_from(STUDY, 5 * [(1, 1)])
    broken = {"status": "done", "scores": {"validation": {"accuracy": None}}, "provenance": {}}
    first = STUDY.trials[0].cells[0].cell.key
    found = select(STUDY, lambda key: broken if key == first else read(key))
    assert found.accuracies[0] == WORST
    assert replace(found, chosen=None).tuned == []


@pytest.mark.parametrize(
    ("tune", "said"),
    [
        (Tune(12, (100,), 0.15), "12 trials on seed 100, scored on 15% of the training images"),
        (Tune(1, SEEDS, 0.2), "1 trial on seeds 100, 101, scored on 20% of the training images"),
        (
            Tune(space={"protocol.lr": {"log": [0.005, 1]}, "protocol.momentum": [0, 0.9], "algorithm.mu": [1, 2]}),
            "12 trials on seed 100, scored on 15% of the training images; learning rate 0.005 to 1 (log); "
            "momentum 0, 0.9",
        ),
        (
            Tune(space={"protocol.lr": "fixed"}),
            "12 trials on seed 100, scored on 15% of the training images; learning rate not tuned",
        ),
    ],
)
def test_a_budget_is_told_in_words(tune, said):
    assert tune.budget == said


def test_equal_spaces_in_other_digits_are_one_budget():
    assert len({Tune(space={"protocol.lr": {"log": ends}}).budget for ends in ([1, 2], [1.0, 2.0], [1, 2.0])}) == 1
