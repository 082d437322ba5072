"""Portable numerics: what they need, who gets them, and that nothing claims them wrongly."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedspan.benchmark import numerics
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.numerics import NATIVE, PORTABLE, choose
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.methods.addons.ffc import FFC
from tests.helpers import how, toy_cell

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(bool(numerics.missing_features()), reason=f"portable {numerics.missing_features()}")


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    monkeypatch.delenv(numerics.CHOICE, raising=False)


# which cells are portable --------------------------------------------------------------------------


def test_float32_on_the_cpu_in_one_thread_is_portable_unless_told_otherwise(monkeypatch):
    assert choose(None, "cpu", "float32", 1) == choose(PORTABLE, "cpu", "float32", 1) == PORTABLE
    assert choose(NATIVE, "cpu", "float32", 1) == NATIVE
    monkeypatch.setenv(numerics.CHOICE, NATIVE)
    assert choose(None, "cpu", "float32", 1) == NATIVE
    assert choose(PORTABLE, "cpu", "float32", 1) == PORTABLE


WHERE = {"device": "cpu", "precision": "float32", "threads": 1}
IMPOSSIBLE = {
    "device": ("cuda:0", "is for the CPU, not for device=cuda:0"),
    "precision": ("bf16", "is for float32, not for protocol.precision=bf16"),
    "threads": (2, "is computed in one thread, not with threads=2"),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_what_cannot_be_portable_is_native_and_refused_where_portable_is_asked_for(what):
    value, why = IMPOSSIBLE[what]
    assert choose(None, **WHERE | {what: value}) == NATIVE
    with pytest.raises(UserError, match=f"numerics=portable {why}; use numerics=native"):
        choose(PORTABLE, **WHERE | {what: value})


@pytest.mark.parametrize(
    ("machine", "flags", "why"),
    [
        ("aarch64", "", "needs an x86-64 processor, this is aarch64"),
        ("x86_64", "sse2 avx", "needs a processor with AVX2 and FMA"),
        ("x86_64", "sse2 avx2", "needs a processor with FMA"),
    ],
)
def test_on_a_processor_without_its_instructions_portable_is_refused_and_nothing_is_set(
    monkeypatch, machine, flags, why
):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(numerics, "_flags", lambda: set(flags.split()))
    monkeypatch.setattr(numerics, "missing_features", numerics.missing_features.__wrapped__)
    for name in numerics.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert choose(None, **WHERE) == NATIVE
    with pytest.raises(UserError, match=f"numerics=portable {why}"):
        choose(PORTABLE, **WHERE)
    numerics.prepare()
    assert not set(numerics.VARIABLES) & set(os.environ)
    assert numerics.prepared() == NATIVE


def test_a_misspelt_mode_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="unknown numerics 'portabel'; did you mean 'portable'"):
        choose("portabel", **WHERE)


# what processes get --------------------------------------------------------------------------------


def test_switching_tells_the_processes_started_from_here(unchanged_process):
    numerics.switch(NATIVE)
    assert numerics.prepared() == os.environ[numerics.CHOICE] == NATIVE
    assert not set(numerics.VARIABLES) & set(os.environ)
    numerics.switch(PORTABLE)
    assert numerics.prepared() == os.environ[numerics.CHOICE] == PORTABLE
    assert numerics.VARIABLES.items() <= os.environ.items()


def test_a_users_own_limits_stay_in_native_processes(unchanged_process):
    os.environ |= {numerics.CHOICE: NATIVE, "ATEN_CPU_CAPABILITY": "avx2"}
    numerics.switch(NATIVE)
    assert os.environ["ATEN_CPU_CAPABILITY"] == "avx2"


def said(program, **environment):
    """Run a program in a new interpreter that was not prepared by this one; return its last line."""
    hidden = {numerics.CHOICE, *numerics.VARIABLES}
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=inherited | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return (ran.stdout + ran.stderr).strip().splitlines()[-1]


RUN = """
from fedspan.benchmark.running.cell_run import run_cell
from tests.helpers import how, toy_cell
from pathlib import Path
import json, tempfile
with tempfile.TemporaryDirectory() as folder:
    record = run_cell(toy_cell(), how(Path(folder)))
print(json.dumps([record["provenance"]["numerics"], record["digests"]["stages"]["trained"]]))
"""


def test_a_script_is_portable_also_where_it_imports_torch_first(tmp_path):
    here = run_cell(toy_cell(), how(tmp_path))
    expected = [PORTABLE, here["digests"]["stages"]["trained"]]
    assert json.loads(said(f"import torch\n{RUN}")) == expected


def test_importing_the_package_alone_is_enough_before_torch_computes():
    program = "import fedspan, torch; torch.randn(64, 64) @ torch.randn(64, 64); from fedspan.benchmark import numerics"
    assert said(f"{program}\nprint(all(good for _, good in numerics.instructions_in_use().values()))") == "True"


@pytest.mark.skipif(not torch.cpu._is_avx512_supported(), reason="torch has nothing else to take here")
def test_a_script_that_computes_before_it_imports_fedspan_is_told_so_when_it_runs_a_cell_and_not_before():
    program = f"import torch; torch.ones(2) + 1; import fedspan.benchmark.training.run; print('imported')\n{RUN}"
    assert said(program).endswith(
        "UserError: numerics=portable is not possible in this process: torch already uses other instructions "
        "(ATen AVX512); import FedSpan before anything computes with torch, or use numerics=native"
    )


@pytest.mark.parametrize("library", ["ATen", "MKL", "oneDNN"])
def test_every_library_has_to_have_taken_what_is_promised(monkeypatch, library):
    numerics.check()
    found = numerics.instructions_in_use()
    monkeypatch.setattr(numerics, "instructions_in_use", lambda: found | {library: ("wide", False)})
    with pytest.raises(UserError, match=rf"\({library} wide\)"):
        numerics.check()


@pytest.mark.parametrize(("variable", "library"), [*zip(numerics.VARIABLES, ("ATen", "oneDNN", "MKL"), strict=True)])
@pytest.mark.skipif(not torch.cpu._is_avx512_supported(), reason="torch has nothing else to take here")
def test_what_each_library_took_is_seen(variable, library):
    ask = f"import os, fedspan.benchmark; del os.environ[{variable!r}]; from fedspan.benchmark import numerics; "
    assert (
        said(ask + "print([name for name, (_, good) in numerics.instructions_in_use().items() if not good])")
        == f"['{library}']"
    )


# what records claim --------------------------------------------------------------------------------


def test_a_record_says_how_it_was_computed(tmp_path):
    assert run_cell(toy_cell(), how(tmp_path))["provenance"]["numerics"] == PORTABLE
    assert run_cell(toy_cell(seed=1), how(tmp_path, threads=2))["provenance"]["numerics"] == NATIVE
    bf16 = toy_cell(protocol={"precision": "bf16"})
    assert run_cell(bf16, how(tmp_path))["provenance"]["numerics"] == NATIVE


class PowerCut(BaseException):
    pass


def cut(progress):
    if progress.round == 1:
        raise PowerCut


@pytest.mark.parametrize(("first", "then"), [(NATIVE, PORTABLE), (PORTABLE, NATIVE), (PORTABLE, PORTABLE)])
def test_all_rounds_of_a_cell_have_the_numerics_of_its_record(tmp_path, first, then):
    with pytest.raises(PowerCut):
        run_cell(toy_cell(), how(tmp_path, checkpoint_seconds=0, numerics=first), cut)
    rounds = []
    record = run_cell(toy_cell(), how(tmp_path, numerics=then), lambda progress: rounds.append(progress.round))
    assert record["provenance"]["numerics"] == then
    assert min(rounds) == (1 if first == then else 0)


@pytest.mark.parametrize(("first", "then"), [(NATIVE, PORTABLE), (PORTABLE, NATIVE), (NATIVE, NATIVE)])
def test_a_trained_model_is_taken_by_cells_of_the_same_numerics_alone(tmp_path, first, then):
    run_cell(toy_cell(), how(tmp_path, numerics=first))
    record = run_cell(toy_cell(None, FFC()), how(tmp_path, numerics=then))
    assert ("trained_by" in record["provenance"]) == (first == then)


def test_a_native_model_is_not_taken_on_another_processor(tmp_path, monkeypatch):
    run_cell(toy_cell(), how(tmp_path, numerics=NATIVE))
    monkeypatch.setattr("fedspan.benchmark.records.provenance.processor", lambda: "another")
    assert "trained_by" not in run_cell(toy_cell(None, FFC()), how(tmp_path, numerics=NATIVE))["provenance"]


def test_numerics_are_no_part_of_a_cells_identity(tmp_path):
    run_cell(toy_cell(), how(tmp_path, numerics=NATIVE))
    assert Results(how(tmp_path).results).path(toy_cell().key).exists()
