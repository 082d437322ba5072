"""What commands make of `numerics=`, in processes of their own, for torch cannot change its instructions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedspan.benchmark import numerics
from tests.cli.conftest import ONE, QUICK, ROOT
from tests.helpers import PATIENCE

pytestmark = pytest.mark.skipif(bool(numerics.missing_features()), reason=f"portable {numerics.missing_features()}")
GRID = ("run", "-m", *QUICK, "seed=0,1")


def found(folder="results"):
    """Return numerics and digests of the records of a folder, by seed."""
    made = [json.loads(path.read_text()) for path in Path(folder, "records").glob("*.json")]
    return {one["spec"]["seed"]: (one["provenance"]["numerics"], one["digests"]) for one in made}


def modes(folder="results"):
    return {mode for mode, _ in found(folder).values()}


NO_RESTART = """
import os, sys
from fedspan.benchmark.cli.main import main
os.execv = lambda *_: sys.exit("it starts again")
sys.exit(main())
"""


@pytest.mark.slow
def test_native_is_what_torch_takes_on_its_own_from_a_word_and_from_the_environment_alike(
    unprepared, here, monkeypatch
):
    """Neither loads torch twice: what the command says is known before."""
    command = [sys.executable, "-c", NO_RESTART, "run", *QUICK, "numerics=native"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=here, env=environment, check=True, timeout=PATIENCE)
    monkeypatch.setenv(numerics.CHOICE, "native")
    assert unprepared("run", *QUICK, "paths.results=environment").status == 0
    assert found() == found("environment")
    assert modes() == {"native"}


@pytest.mark.slow
def test_a_command_with_bf16_starts_again_natively(unprepared):
    assert unprepared("run", *QUICK, "protocol.precision=bf16").status == 0
    assert modes() == {"native"}


@pytest.mark.slow
def test_a_grid_that_needs_processes_of_two_kinds_is_refused_unless_all_of_it_is_native(fedspan, unprepared):
    mixed = (*GRID, *ONE, "protocol.precision=float32,bf16")
    assert "split the grid, or use numerics=native" in fedspan(*mixed).complaint
    assert not Path("results/records").exists()
    assert unprepared(*mixed, "numerics=native").status == 0
    made = [json.loads(path.read_text())["provenance"]["numerics"] for path in Path("results/records").glob("*.json")]
    assert made == ["native"] * 4


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("device=cuda",), "is for the CPU, not for device=cuda"),
        (("protocol.precision=bf16",), "is for float32, not for protocol.precision=bf16"),
        (("threads=2",), "is computed in one thread, not with threads=2"),
    ],
)
def test_portable_where_it_cannot_be_is_one_clear_line(fedspan, words, why):
    answer = fedspan("run", *QUICK, "numerics=portable", *words)
    assert answer.status == 2
    assert answer.complaint == (
        f"fedspan: numerics=portable {why}; use numerics=native, whose bits depend on the machine"
    )
    assert not Path("results/records").exists()


def test_a_misspelt_mode_is_one_clear_line(fedspan):
    answer = fedspan("run", *QUICK, "numerics=nativ")
    assert (answer.status, answer.complaint) == (2, "fedspan: unknown numerics 'nativ'; did you mean 'native'?")


def test_doctor_says_what_torch_takes(fedspan):
    answer = fedspan("doctor")
    assert "portable: ATen AVX2, MKL COMPATIBLE, oneDNN at most AVX2" in " ".join(answer.out.split())


def test_a_command_called_from_python_does_not_replace_its_process(fedspan):
    here = os.getpid()
    assert fedspan("run", *QUICK, "numerics=native").status == 0
    assert os.getpid() == here
    assert modes() == {"native"}
