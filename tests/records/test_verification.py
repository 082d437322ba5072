"""What came of repeating a record: files that cannot be changed unnoticed, badges, and the first difference."""

import copy
import json
from dataclasses import replace

import pytest

from fedspan.benchmark.errors import CorruptFile, UserError
from fedspan.benchmark.records import verification
from fedspan.benchmark.records.record import digest_of
from fedspan.benchmark.records.verification import Badge, Repeated, Verification
from fedspan.benchmark.running.repetition import compare, machines

ONE = Verification(
    key="0" * 20, record="a" * 64, outcome="identical", compared="digests", date="2026-11-22T10:00:00+00:00",
    processor="A", instructions="AVX2", numerics="portable", device="cpu", versions={"torch": "2.15.0"},
    sources={"algorithm:fedavg": "syntax:1"}, engine="syntax:2", sample={"size": 1, "of": 3, "sample_seed": 4},
)  # fmt: skip
OTHER = replace(ONE, outcome="differs", where="digests.rounds.4", round=4, points=-0.6)


@pytest.mark.parametrize("one", [ONE, OTHER], ids=["identical", "differs"])
def test_what_is_written_is_read_and_writing_it_again_changes_nothing(tmp_path, one):
    path = one.write(tmp_path)
    before = path.stat().st_mtime_ns
    assert verification.read(path) == one
    assert one.write(tmp_path) == path
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("name", [*vars(OTHER), "schema", "digest"])
def test_a_changed_or_removed_field_is_detected(tmp_path, name):
    path = OTHER.write(tmp_path)
    raw = json.loads(path.read_text())
    for changed in ({**raw, name: "x"}, {key: value for key, value in raw.items() if key != name}):
        path.write_text(json.dumps(changed))
        with pytest.raises(CorruptFile):
            verification.read(path)


def test_a_file_under_another_name_is_refused(tmp_path):
    path = ONE.write(tmp_path)
    with pytest.raises(CorruptFile, match=f"its name should be {path.name}"):
        verification.read(path.rename(tmp_path / f"{'1' * 20}.json"))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff", "[" * 100_000, "{}", "x" * 20_000])
def test_what_is_no_verification_is_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(CorruptFile):
        verification.read(path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "x"}, {"record": "a"}, {"outcome": "fine"}, {"date": "yesterday"}, {"date": "2026-11-22T10:00:00"},
        {"versions": {"torch": 2}}, {"round": 3}, {"where": "curve"}, {"points": 1.0}, {"sample": {"sizes": 1}},
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_is_refused(wrong):
    with pytest.raises(UserError):
        verification.from_values(Verification, vars(ONE) | wrong, "verification")


def test_rounds_are_counted_from_one():
    assert replace(OTHER, round=1).round == 1
    with pytest.raises(UserError, match="round must be at least 1, got 0"):
        replace(OTHER, round=0)


def test_a_file_larger_than_any_verification_is_not_read(tmp_path):
    path = ONE.write(tmp_path)
    path.write_text(path.read_text() + " " * verification.LIMIT_BYTES)
    with pytest.raises(CorruptFile, match=f"bytes, more than {verification.LIMIT_BYTES}"):
        verification.read(path)


# badges -----------------------------------------------------------------------------------------------------


def test_a_badge_counts_kinds_of_processor_and_hides_no_difference():
    again = replace(ONE, date="2026-11-23T10:00:00+00:00")
    wide, elsewhere = replace(ONE, instructions="AVX512"), replace(OTHER, processor="B")
    assert Badge().text == "not repeated yet"
    assert Badge((ONE, again)).text == "repeated on 1 kind of processor"
    assert Badge((ONE, again, wide)).text == "repeated on 2 kinds of processor"
    assert Badge((OTHER,)).text == "could not be repeated"
    assert Badge((ONE, elsewhere)).text == "repeated on 1 kind of processor, not on 1"
    gpus = [replace(ONE, device=gpu, processor=host) for gpu, host in (("H100", "A"), ("H100", "B"), ("H200", "A"))]
    assert Badge(tuple(gpus[:2])).text == "repeated on 1 kind of processor", "whatever feeds the GPU"
    assert Badge(tuple(gpus)).text == "repeated on 2 kinds of processor"
    assert [badge.state for badge in (Badge(), Badge((ONE,)), Badge((OTHER,)), Badge((ONE, OTHER)))] == [
        "unverified", "repeated", "refuted", "mixed",
    ]  # fmt: skip


def test_details_say_where_and_by_how_much():
    assert Badge((OTHER,)).details == (
        "differs from round 4 on, -0.60 points (A, AVX2, numerics portable, torch 2.15.0, 2026-11-22)",
    )


def test_a_verification_counts_only_for_the_record_that_it_names():
    record = {"key": "0" * 20, "scores": {}}
    mine = replace(ONE, record=digest_of(record))
    repeated = Repeated([ONE, mine, replace(mine, key="1" * 20)])
    assert repeated.of_record(record).verifications == (mine,)
    assert repeated.of_record({**record, "scores": {"trained": {}}}).state == "unverified"


def test_a_sample_is_told_with_what_came_of_it():
    drawn = replace(ONE, sample={"size": 2, "of": 9, "sample_seed": 4, "among": "board digits"})
    badges = [Badge((drawn,)), Badge((replace(OTHER, key="1" * 20, sample=drawn.sample), replace(ONE, sample={})))]
    assert verification.samples(badges) == [
        ("2 of 9 records of board digits, drawn with sample_seed=4", "1 identical, 1 different")
    ]


# the first difference ------------------------------------------------------------------------------------------

RECORD = {
    "status": "done",
    "reason": None,
    "scores": {"trained": {"accuracy": 60.0, "loss": 1.0}, "calibrated": {"accuracy": 61.0}},
    "curve": {"round": [2, 4, 10], "accuracy": [30.0, 50.0, 60.0], "loss": [3.0, 2.0, 1.0]},
    "compute": {"steps": 9, "seconds": {"total": 3.0}, "seconds_at_round": [1.0, 2.0, 3.0], "peak_memory_bytes": 1},
    "digests": {
        "rounds": {"2": "a", "4": "b", "10": "c"},
        "stages": {"trained": "c", "calibrated": "d"},
    },
    "provenance": {
        "versions": {"torch": "2.15.0"}, "sources": {"algorithm:fedavg": "syntax:1"}, "engine": "syntax:2",
        "processor": "A (AVX2)", "numerics": "portable", "device": "cpu", "executor": "loop", "threads": 1,
    },
}  # fmt: skip


def edited(path, value):
    changed = copy.deepcopy(RECORD)
    node = changed
    *parents, last = path
    for part in parents:
        node = node[part]
    node[last] = value
    return changed


def test_a_repetition_is_identical_whatever_the_clock_says():
    again = edited(("compute", "seconds"), {"total": 9.0})
    again["compute"] |= {"seconds_at_round": [3.0, 4.0, 5.0], "peak_memory_bytes": 2}
    assert compare(RECORD, again) is None


@pytest.mark.parametrize(
    ("path", "value", "where", "when", "points"),
    [
        (("digests", "rounds", "4"), "x", "digests.rounds.4", 4, 0.0),
        (("digests", "rounds", "10"), "x", "digests.rounds.10", 10, 0.0),
        (("digests", "rounds"), {"2": "a"}, "digests.rounds.4", 4, 0.0),
        (("curve", "loss", 0), 3.5, "curve.loss", 2, 0.0),
        (("digests", "stages", "calibrated"), "x", "digests.stages.calibrated", None, 0.0),
        (("scores", "calibrated", "accuracy"), 61.5, "scores.calibrated.accuracy", None, 0.0),
        (("scores", "trained", "accuracy"), 58.5, "scores.trained.accuracy", None, -1.5),
        (("scores", "best"), {"round": 2}, "scores.best.round", None, 0.0),
        (("compute", "steps"), 8, "compute.steps", None, 0.0),
        (("status",), "diverged", "status", None, 0.0),
    ],
)
def test_the_first_difference_is_named_with_its_round_and_the_points_in_the_end(path, value, where, when, points):
    found = compare(RECORD, edited(path, value))
    assert (found.where, found.round, found.points) == (where, when, points)


def test_of_several_differences_the_earliest_round_is_named():
    again = edited(("digests", "rounds", "10"), "x")
    again["curve"]["accuracy"][1] = 49.0
    assert compare(RECORD, again).round == 4


@pytest.mark.parametrize(("field", "part", "name"), [("compute", "bytes", "up"), ("scores", "trained", "domain.a")])
def test_a_name_with_dots_is_not_the_value_that_it_spells(field, part, name):
    """A decoy holds the true number, and pages show the forged one."""
    true, forged = edited((field, part), {name: 5.0}), edited((field, part), {name: 9.0})
    *above, last = f"{part}.{name}".split(".")
    decoy = {f"{part}.{name}": 5.0} if field == "compute" else {".".join(above): {last: 5.0}}
    forged[field] |= decoy
    assert compare(forged, true).where == f"{field}.{part}.{name}"


@pytest.mark.parametrize("entry", ["evaluate", "features"])
def test_a_cost_that_a_record_leaves_out_is_a_difference(entry):
    again = copy.deepcopy(RECORD)
    again["compute"]["flops"] = {"train": 5, "evaluate": 7, "features": 2}
    theirs = copy.deepcopy(again)
    del theirs["compute"]["flops"][entry]
    assert compare(theirs, again).where == f"compute.flops.{entry}"


def test_a_score_that_contradicts_its_own_digests_is_told():
    text = compare(edited(("scores", "trained", "accuracy"), 99.0), RECORD).text
    said = "scores.trained.accuracy: 99 in the record, 60 recomputed although its digests match"
    assert f"{said}; final accuracy -39.00 points" in text


def test_a_record_without_digests_is_compared_by_its_numbers():
    old = {name: value for name, value in RECORD.items() if name != "digests"}
    assert compare(old, edited(("digests", "rounds", "2"), "x")) is None
    assert compare(old, edited(("curve", "accuracy", 1), 51.0)).round == 4


def test_what_differs_between_machines_is_named():
    here = copy.deepcopy(RECORD)
    here["provenance"] |= {
        "versions": {"torch": "2.16.0"}, "processor": "B (AVX512)", "numerics": "native", "engine": "syntax:3",
        "sources": {"algorithm:fedavg": "syntax:9"}, "uncommitted": ["methods/mine.py"],
    }  # fmt: skip
    assert list(machines(RECORD, RECORD)) == []
    assert list(machines(RECORD, here)) == [
        "numerics: portable in the record, native here",
        "processor: A (AVX2) in the record, B (AVX512) here",
        "versions: torch 2.15.0 in the record, 2.16.0 here",
        "sources: algorithm:fedavg differ",
        "sources: the engine differs",
        "uncommitted here: methods/mine.py",
    ]


@pytest.mark.parametrize(("name", "there", "here"), [
    ("fleet", {"lost": 3}, {"lost": 4}),
    ("spectra", {"global": {"rank": 2.0}}, {"global": {"rank": 3.0}}),
    ("diagnostics", {"penalties": [0.1]}, {"penalties": [0.2]}),
])  # fmt: skip
def test_what_is_measured_beside_scores_is_compared_too(name, there, here):
    assert compare({**RECORD, name: there}, {**RECORD, name: there}) is None
    assert compare({**RECORD, name: there}, {**RECORD, name: here}).where.startswith(f"{name}.")


def test_two_runs_that_diverge_differ_where_they_say_another_reason():
    there, here = ({**RECORD, "status": "diverged", "scores": {}, "reason": f"round {n}: nan"} for n in (5, 6))
    assert compare(there, there) is None
    assert compare(there, here).where == "reason"


@pytest.mark.parametrize("points", [100.1, -100.1])
def test_accuracies_differ_by_a_hundred_points_at_most(points):
    with pytest.raises(UserError, match=r"points must lie in -100\.\.100"):
        verification.from_values(Verification, vars(OTHER) | {"points": points}, "verification")


def test_the_points_of_a_trial_are_those_of_its_held_out_images():
    trial = copy.deepcopy(RECORD)
    trial["scores"] = {"validation": {"accuracy": 50.0}}
    again = copy.deepcopy(trial)
    again["scores"]["validation"]["accuracy"] = 51.0
    assert compare(trial, again).points == 1.0
