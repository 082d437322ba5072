"""The comparison with another machine's numbers, on the smallest of its cells."""

import json

import pytest

from fedspan.benchmark import numerics
from tests.golden import cells, machines

KEPT = json.loads(machines.FILE.read_text())


@pytest.mark.skipif(bool(numerics.missing_features()), reason=f"portable {numerics.missing_features()}")
def test_the_portable_curve_of_another_machine_is_repeated_to_the_last_digit():
    cell = KEPT["cells"]["digits_fedavg"]
    theirs = {name: KEPT["versions"][name] for name in cells.ROUNDING}
    if theirs != cells.here():
        pytest.skip(f"the curves are of {theirs}, here is {cells.here()}")
    found = machines.curve(cell["command"], "portable")
    assert machines.compared(cell["portable"], found) == "every number is the same"


def test_what_differs_is_said_in_rounds_and_points():
    expected = {"train_loss": [1.0, 0.5], "test_loss": [1.0, 0.5], "accuracy": [10.0, 20.0]}
    assert machines.compared(expected, expected) == "every number is the same"
    other = expected | {"test_loss": [1.0, 0.6], "accuracy": [10.0, 21.5]}
    assert machines.compared(expected, other) == "differs from round 2 on, by at most 1.50 points"
