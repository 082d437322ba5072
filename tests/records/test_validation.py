"""Every record that a run writes is one, and nothing is that has a field of another type or range."""

import copy
import json
import os
import re
import types
import typing
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fedspan.benchmark.errors import CorruptFile, is_number
from fedspan.benchmark.records.model import Record
from fedspan.benchmark.records.record import LIMIT_BYTES, digest_of, is_record_file, read
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.validation import validate
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.spec.cell import key_of
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.methods.addons.spherefed import SphereFed
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.tasks.fleets.speeds import Speeds
from tests.helpers import how, toy_cell
from tests.toys import Scaffold, ServerMomentum

COMMITTED = Path(__file__).parents[2] / "results" / "records"
SEEN = Diagnostics(
    spectra=True, clients=(0, 1), alignment=True, penalties=True, shares=True, embedding="sphere", images=4
)


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """Return a record that a run wrote, with every field that one can have."""
    cell = toy_cell(None, SphereFed(), diagnostics=SEEN, fleet=Speeds())
    record = run_cell(cell, how(tmp_path_factory.mktemp("full")))
    torch.set_flush_denormal(False)  # the first test to use this draws subnormal numbers
    record["provenance"] |= {
        "gpu": "a GPU",
        "cells_beside": 0,
        "workers": 2,
        "trained_by": "0" * 20,
        "uncommitted": ["a.py"],
    }
    record["compute"]["peak_memory_bytes"] = 1
    record["diagnostics"] |= {"spaces": [[1.0]], "penalties": {"feddecorr": {"0": [1.0]}}}
    record["spec"]["protocol"]["validation"] = record["spec"]["unseen"] = 0.0
    record |= {"refused": False, "traceback": "Traceback", "digest": "0" * 64, "key": key_of(record["spec"])}
    return validate(record)


# what is a record ------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    algorithm=st.sampled_from([FedAvg, Scaffold, ServerMomentum]),
    rounds=st.integers(1, 3),
    every=st.integers(1, 4),
    diagnostics=st.builds(Diagnostics, spectra=st.booleans(), shares=st.booleans(), alignment=st.booleans()),
)
def test_every_record_that_a_run_writes_is_one(tmp_path_factory, algorithm, rounds, every, diagnostics):
    protocol = {"rounds": rounds, "local_epochs": 1, "eval_every": every}
    cell, place = toy_cell(algorithm(), protocol=protocol, diagnostics=diagnostics), tmp_path_factory.mktemp("run")
    made = run_cell(cell, how(place))
    assert validate(made, cell.key) == Results(how(place).results).read(cell.key)


def test_the_records_of_this_repository_are_read_as_they_are():
    paths = [path for path in sorted(COMMITTED.glob("*.json")) if is_record_file(path)]
    if not paths:
        pytest.skip("not a checkout")
    for path in paths:
        assert read(path, sealed=True)["key"] == path.stem


def test_fields_that_this_version_does_not_know_are_kept(full):
    record = copy.deepcopy(full)
    record["later"] = record["compute"]["later"] = record["provenance"]["later"] = {"a": [None, "b"]}
    assert validate(record)["later"] == {"a": [None, "b"]}


# what is none ---------------------------------------------------------------------------------------


def fields(hint, value, path=()):
    """Yield path and type of every field of a record's value; of lists and open mappings the first item stands for all.

    Fields of the model that the value lacks are yielded with the type None.
    """
    if path:
        yield path, hint
    bare = typing.get_args(hint)[0] if typing.get_origin(hint) in (typing.Annotated, typing.NotRequired) else hint
    origin, inner = typing.get_origin(bare), typing.get_args(bare)
    if typing.is_typeddict(bare):
        for name, one in typing.get_type_hints(bare, include_extras=True).items():
            yield from fields(one, value[name], (*path, name)) if name in value else [((*path, name), None)]
    elif origin is dict and value:
        name = next(iter(value))
        yield from fields(inner[1], value[name], (*path, name))
    elif origin is list and value:
        yield from fields(inner[0], value[0], (*path, 0))


def fits(value, hint):
    """Tell whether a value of JSON is of a type of the model, read anew from its annotations."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.NotRequired:
        return fits(value, inner[0])
    if origin is typing.Annotated:
        [meta] = hint.__metadata__
        if not fits(value, inner[0]):
            return False
        if meta.pattern is not None:
            return bool(re.search(meta.pattern, value))
        low = (meta.ge is None or value >= meta.ge) and (meta.gt is None or value > meta.gt)
        return low and (meta.le is None or value <= meta.le) and (meta.lt is None or value < meta.lt)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is typing.Literal:
        return value in inner
    if origin is list:
        return isinstance(value, list) and all(fits(one, inner[0]) for one in value)
    if origin is dict:
        named = isinstance(value, dict) and all(fits(name, inner[0]) for name in value)
        return named and all(fits(one, inner[1]) for one in value.values())
    if typing.is_typeddict(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        return (
            isinstance(value, dict)
            and hint.__required_keys__ <= value.keys()
            and all(fits(value[name], one) for name, one in hints.items() if name in value)
        )
    if hint in (int, float):
        return is_number(value) and (hint is float or isinstance(value, int))
    return hint is typing.Any or (value is None if hint in (None, type(None)) else isinstance(value, hint))


def written(path):
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from([10**400, -(10**400), float("nan"), float("inf"), "nan", "0" * 64, 101.0, 2**64]),
)
json_values = st.recursive(leaves, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=3), one))


def test_the_record_that_is_changed_below_has_every_field_of_the_model(full):
    assert [written(path) for path, hint in fields(Record, full) if hint is None] == []


@settings(max_examples=400, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_field_of_another_type_or_range_is_refused_in_one_line_that_names_it(full, data):
    path, hint = data.draw(st.sampled_from(list(fields(Record, full))), label="field")
    value = data.draw(json_values, label="value")
    assume(not fits(value, hint))
    record = copy.deepcopy(full)
    node = record
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    with pytest.raises(CorruptFile) as refused:
        validate(record)
    assert str(refused.value).startswith(f"its {written(path)}")
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    "value", ["text", [], {}, True, float("nan"), 10**400], ids=["text", "list", "object", "truth", "NaN", "huge"]
)
def test_every_field_is_checked(full, value):
    for path, hint in fields(Record, full):
        record = copy.deepcopy(full)
        node = record
        for step in path[:-1]:
            node = node[step]
        node[path[-1]] = value
        if not fits(value, hint):
            with pytest.raises(CorruptFile, match=r"^its "):
                validate(record)


def end(totals, name):
    totals[name][-1] = 1e30


RULES = {
    "a curve that stops": (lambda r: [v.pop() for v in r["curve"].values()], "ends after round 2 of 3"),
    "no partition": (
        lambda r: r["provenance"].update(partition_digest=None),
        "its provenance.partition_digest is None",
    ),
    "a later curve of texts": (
        lambda r: r["curve"].update(later=["a"] * 3),
        "its curve.later holds values that are not",
    ),
    "an empty curve": (lambda r: [v.clear() for v in r["curve"].values()], "it is done, but it has no curve"),
    "a curve without accuracy": (lambda r: r["curve"].pop("accuracy"), "its curve has no accuracy"),
    "more rounds": (lambda r: r["curve"]["round"].__setitem__(-1, 4), "its curve.round does not rise within 1..3"),
    "a short curve": (lambda r: r["curve"]["loss"].pop(), "its curve.loss does not have one value for each of 3"),
    "no costs": (lambda r: r["compute"]["bytes"].pop("up"), "its compute lacks bytes.up"),
    "time that runs back": (lambda r: r["compute"]["seconds_at_round"].reverse(), "seconds_at_round does not rise"),
    "bytes of other rounds": (lambda r: r["compute"]["bytes_at_round"].pop(), "bytes_at_round does not rise"),
    "more time than in all": (
        lambda r: end(r["compute"], "seconds_at_round"),
        "seconds_at_round ends with 1e+30",
    ),
    "more bytes than in all": (lambda r: end(r["compute"], "bytes_at_round"), "bytes_at_round ends with 1e+30"),
    "bytes of a diverged run that sent none": (
        lambda r: r.update(status="diverged", reason="nan", scores={}) or r["compute"].update(bytes={}),
        "more than the 0 of the whole cell",
    ),
    "scores of a diverged run": (lambda r: r.update(status="diverged"), "it is diverged, but has scores"),
    "a clock that runs ahead": (
        lambda r: end(r["fleet"], "seconds_at_round"),
        "seconds_at_round ends with 1e+30",
    ),
    "more steps than images": (lambda r: r["compute"].update(images=1), "steps on 1 images in 3 rounds are impossible"),
    "no data": (lambda r: r["provenance"].update(dataset_digest=None), "its provenance.dataset_digest is None"),
    "the best elsewhere": (lambda r: r["scores"]["best"].update(round=99), "its scores.best.round is 99"),
    "digests of other rounds": (lambda r: r["digests"]["rounds"].pop("1"), "its digests.rounds are not of the rounds"),
    "digests of other stages": (lambda r: r["digests"]["stages"].pop("trained"), "its digests.stages are of"),
    "uneven shares": (lambda r: r["diagnostics"]["shares"][0].pop(), "its diagnostics.shares has rows of different"),
    "points of no class": (lambda r: r["diagnostics"]["embedding"]["classes"].pop(), "one class and one client for"),
    "a client without number": (lambda r: r["spectra"]["gap"].update(x=1.0), "its spectra.gap.x is not a valid key"),
}


@pytest.mark.parametrize(("edit", "message"), RULES.values(), ids=RULES)
def test_fields_that_contradict_each_other_are_refused(full, edit, message):
    record = copy.deepcopy(full)
    edit(record)
    with pytest.raises(CorruptFile, match=re.escape(message)):
        validate(record)


# files ------------------------------------------------------------------------------------------------


def test_what_is_too_large_or_has_no_end_is_not_read(tmp_path):
    pipe, large = tmp_path / "pipe.json", tmp_path / "large.json"
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(CorruptFile, match="it is not a regular file"):
        read(pipe)
    with pytest.raises(CorruptFile, match=f"it has {2**40} bytes, more than {LIMIT_BYTES}"):
        read(large)


@pytest.mark.parametrize("text", ["a\nb", "\x1b[2Jgone", "\x7f", "\x9b2J", "a\u2028b"], ids=ascii)
@pytest.mark.parametrize("kind", ["text", "name", "sidecar"])
def test_control_characters_could_forge_the_output_of_a_terminal(tmp_path, full, kind, text):
    full = copy.deepcopy(full)
    if kind == "text":
        full["provenance"]["uncommitted"] = [text]
    elif kind == "name":
        full["scores"]["trained"][text] = 1.0
    else:
        full["spectra"] = {"sidecar": f"{full['key']}.spectra.json"}
        (tmp_path / full["spectra"]["sidecar"]).write_text(json.dumps({text: 1.0}, ensure_ascii=False))
    path = tmp_path / f"{full['key']}.json"
    for escaped in (True, False):
        path.write_text(json.dumps(full, ensure_ascii=escaped), encoding="utf-8")
        with pytest.raises(CorruptFile, match="has control characters") as error:
            read(path)
        assert str(error.value).isprintable()


def test_a_traceback_has_several_lines(tmp_path, full):
    path = tmp_path / f"{full['key']}.json"
    record = {name: value for name, value in full.items() if name != "digest"}
    path.write_text(json.dumps({**record, "traceback": "one\ntwo"}))
    assert read(path)["traceback"] == "one\ntwo"


def test_a_long_failure_stays_readable(tmp_path, full):
    results = Results(tmp_path)
    started = {name: value for name, value in full.items() if name not in ("digest", "fleet")}
    said = {"status": "failed", "reason": "é" * LIMIT_BYTES, "traceback": "x" * LIMIT_BYTES + "the end"}
    results.write({**started, **said, "scores": {}, "curve": {}, "compute": {}, "digests": {}, "spectra": {}})
    kept = results.failure(full["key"])
    assert kept["reason"].startswith("ééé")
    assert kept["traceback"].endswith("the end")
    assert digest_of(kept) == digest_of(results.failure(full["key"]))
