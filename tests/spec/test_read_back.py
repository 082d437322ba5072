"""What is accepted can be read back: every setting of every plugin, at values at the edge of what files can hold.

A setting is refused with one line before anything starts, or its cell's record and its command lead to the same cell.
"""

import contextlib
import dataclasses
import json
import math
import sys
import typing

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.protocol import Protocol
from fedspan.benchmark.records.record import LIMIT_BYTES, digest_of, parse
from fedspan.benchmark.registry import KINDS, plugins
from fedspan.benchmark.running.cell_run import Outcome, make_record
from fedspan.benchmark.spec.compose import override_words
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.benchmark.spec.overrides import axes_of, command_of, settings_of
from fedspan.benchmark.spec.plan import plan
from fedspan.benchmark.spec.rebuild import DataElsewhere, rebuild
from fedspan.benchmark.spec.settings import How, What

FLOATS = [
    0.0, -0.0, 5e-324, 1e-320, -1e-310, sys.float_info.min, 1e-300, 1e-8, 0.1 + 0.2, 1 / 3, 1.0, 1e16, 1e30, 1e300,
    sys.float_info.max, -1.0, math.inf, -math.inf, math.nan,
]  # fmt: skip
INTS = [0, 1, 2, -1, 7, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**30, 10**400, 1e30, 1.5]
TEXTS = [
    "", " ", "ä", "e\u0301", "日本", "\u202e", "\ud800", "a\nb", "\x1b[2J", "\0", "'", "\\", "\\'", '"', "a,b", "[a]",
    "${x}", "null", "true", "1e5", "nan", "~", "=", "a=b", "x" * 300, "x" * 999, "'" * 999, "日" * 999, "x" * 10_000,
]  # fmt: skip
NASTY = [None, True, [], [1, 1], [-1], ["x"], list(range(3000)), {}, *FLOATS, *INTS, *TEXTS]


def fields():
    """Yield every setting outside of `How` with the settings that it needs, its type's own values first."""
    for cls, prefix in ((What, ""), (Protocol, "protocol."), (Diagnostics, "diagnostics.")):
        yield from ((prefix + field.name, {}, cls, field.name) for field in dataclasses.fields(cls))
    for kind in KINDS:
        for name, cls in plugins(kind).items():
            chosen = {"addons": [name]} if kind == "addon" else {kind: name}
            prefix = f"addon.{name}." if kind == "addon" else f"{kind}."
            yield from ((prefix + field.name, chosen, cls, field.name) for field in dataclasses.fields(cls))


FIELDS = list(fields())


def fitting(cls, name):
    """Return values that the field might accept, of its own type."""
    hint = typing.get_type_hints(cls, include_extras=False)[name]
    text = str(hint)
    own = list(typing.get_args(hint)) if typing.get_origin(hint) is typing.Literal else []
    found = st.sampled_from(NASTY)
    if own:
        found = st.sampled_from(own) | found
    if "float" in text:
        found = st.sampled_from(FLOATS) | st.floats() | found
    if "int" in text:
        found = st.sampled_from(INTS) | st.integers() | st.lists(st.integers(), max_size=4) | found
    if "str" in text or "Path" in text:
        found = st.sampled_from(TEXTS) | st.text() | found
    return found


@contextlib.contextmanager
def flushing():
    """Take subnormal numbers for 0, as every process does that has run a cell; afterwards values are as drawn."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def read_back(setting, chosen, value):
    """Assert the law for one setting; return whether it was accepted."""
    overrides = {**chosen, setting: value}
    try:
        [planned] = plan([overrides])
    except UserError as error:
        refused = str(error)
    else:
        refused = None
    if refused is not None:
        assert len(refused.splitlines()) == 1
        return False
    cell = planned.cell
    with flushing():
        how = How(command=command_of(override_words(planned.overrides)))
        record = make_record(cell, how, Outcome("skipped", "for this test"), None)
        stored = json.dumps({**record, "digest": digest_of(record)}, indent=1)
        assert len(stored) <= LIMIT_BYTES
        found = parse(stored.encode(), None, sealed=True)
        assert (found["key"], found["spec"]) == (cell.key, cell.what)
        again = settings_of(override_words(planned.overrides))
        assert [one.cell.key for one in plan([again])] == [cell.key]
        with contextlib.suppress(DataElsewhere):
            assert rebuild(found["spec"]).cell.key == cell.key
    return True


@pytest.mark.parametrize("inputs", [250, pytest.param(20_000, marks=pytest.mark.slow)])
def test_what_is_accepted_can_be_read_back(inputs):
    accepted = set()

    @settings(max_examples=inputs, database=None)
    @given(st.data())
    def check(data):
        setting, chosen, cls, name = data.draw(st.sampled_from(FIELDS))
        value = data.draw(fitting(cls, name))
        assume(not (isinstance(value, dict) and value))
        if read_back(setting, chosen, value):
            accepted.add(setting)

    check()
    assert len(accepted) > min(inputs / 20, len(FIELDS) / 2)


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "chosen", "cls", "name"), FIELDS, ids=[field[0] for field in FIELDS])
def test_edge_values_are_refused_or_read_back(setting, chosen, cls, name):
    tried = [value for value in NASTY if not (isinstance(value, dict) and value)]
    for value in tried:
        read_back(setting, chosen, value)


@pytest.mark.parametrize(
    ("setting", "value", "refused"),
    [
        ("partition.alpha", 5e-324, True),
        ("partition.alpha", sys.float_info.min, False),
        ("protocol.weight_decay", -0.0, False),
        ("seed", 2**63, True),
        ("seed", 2**63 - 1, False),
        ("dataset.root", "a\nb", True),
        ("dataset.root", "\ud800", True),
        ("dataset.root", "x" * 300, True),
        ("diagnostics.clients", list(range(3000)), True),
    ],
)
def test_values_at_a_limit_are_accepted_and_beyond_it_refused(setting, value, refused):
    chosen = {"dataset": "tiny_imagenet"} if setting.startswith("dataset") else {}
    chosen |= {"diagnostics.spectra": True} if setting.startswith("diagnostics") else {}
    assert read_back(setting, chosen, value) == (not refused)


def test_places_of_images_that_the_system_cannot_look_at_are_refused():
    for name, cls in plugins("dataset").items():
        for place in [field.name for field in dataclasses.fields(cls) if field.metadata.get("how")]:
            with pytest.raises(UserError, match=r"^cannot read x+: File name too long$"):
                plan([{"dataset": name, f"dataset.{place}": "x" * 300}])


def test_a_number_that_some_processes_take_for_0_is_no_text_either():
    with pytest.raises(UserError, match=r"dataset\.content must be 0 or at least 2\.22507e-308 in size"):
        plan([{"dataset": "cifar100", "dataset.content": 5e-324}])


def test_zero_and_minus_zero_have_one_key():
    keys = {plan([{"protocol.weight_decay": value}])[0].cell.key for value in (0, 0.0, -0.0)}
    assert len(keys) == 1


def test_a_command_line_says_every_value_as_it_is():
    for value in (0.1 + 0.2, 1e-300, 1e300, "'\\", "ä", True, None, [1, 2], "true"):
        assert axes_of(override_words({"x": value})) == {"x": [value]}
