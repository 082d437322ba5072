"""The launchers of clusters, with the real libraries; they are extras, and where one is absent its tests say so."""

import os
import signal
from pathlib import Path

import pytest

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.running.launchers import check_how, launcher_words
from fedspan.benchmark.spec.settings import How
from tests.cli.conftest import QUICK, Ran, records
from tests.cli.test_plugins import MINE
from tests.faults.conftest import check_files, leftovers, plain, ray_nodes
from tests.helpers import PATIENCE, wait_for

GRID = ("run", "-m", *QUICK, "checkpoint_seconds=0")


def finish(process):
    out, err = process.communicate(timeout=PATIENCE)
    return Ran(process.returncode, out, err)


@pytest.fixture
def undisturbed(start):
    """Return a function that gives the records of the same grid in one process."""

    def records(*words):
        assert finish(start(*GRID, *words, "workers=1", "paths.results=undisturbed")).status == 0
        return plain("undisturbed")

    return records


@pytest.mark.slow
@pytest.mark.parametrize("given", ["setting", "environment"])
@pytest.mark.parametrize("launcher", ["ray", "submitit_local"])
def test_every_worker_process_knows_the_plugins_of_a_file(start, here, monkeypatch, launcher, given):
    pytest.importorskip({"ray": "ray", "submitit_local": "submitit"}[launcher], reason=f"{launcher} is not installed")
    (here / "my.py").write_text(MINE)
    if given == "environment":
        monkeypatch.setenv("FEDSPAN_PLUGINS", str(here / "my.py"))
    words = ["plugins=my.py"] if given == "setting" else []
    ran = finish(start(*GRID, "algorithm=fedavg,mine", f"launcher={launcher}", "workers=2", *words))
    assert ran.status == 0, ran.err
    assert {one["spec"]["algorithm"]["name"] for one in records().values()} == {"fedavg", "mine"}


# Ray ------------------------------------------------------------------------------------------------


@pytest.fixture
def two_nodes(here, toys, monkeypatch):
    """A Ray cluster of two nodes that know the toys, started in another folder."""
    with ray_nodes(here, toys) as nodes:
        for name, value in nodes.variables.items():
            monkeypatch.setenv(name, value)
        yield


@pytest.mark.slow
def test_on_two_ray_nodes_a_killed_worker_costs_only_its_cell(start, two_nodes, undisturbed, here):
    cells = ("algorithm=toy_slow", "algorithm.seconds=0.3", "seed=range(0,12)")
    grid = start(*GRID, *cells, "launcher=ray", f"paths.results={here}/results")
    wait_for(lambda: len(list(Path("results/records").glob("*.json"))) >= 2)
    wait_for(lambda: list(Path("results/leases").glob("*.json")))
    killed = False
    while not killed:
        for path in Path("results/leases").glob("*.1.json"):
            words = path.read_text()
            if '"pid": ' in words:
                os.kill(int(words.split('"pid": ')[1].split(",")[0]), signal.SIGKILL)
                killed = True
                break
    ran = finish(grid)
    assert ran.status == 0, ran.err
    assert plain() == undisturbed(*cells)
    assert len(plain()) == 12
    check_files()


@pytest.mark.slow
def test_a_grid_without_an_address_starts_its_own_ray_beside_a_cluster(start, here, toys):
    with ray_nodes(here, toys):
        ran = finish(start(*GRID, "launcher=ray", "workers=1"))
    assert ran.status == 0, ran.err


@pytest.mark.slow
def test_relative_results_on_a_cluster_are_refused(start, two_nodes):
    ran = finish(start(*GRID, "launcher=ray"))
    assert ran.status == 2
    assert ran.complaint.endswith("must be an absolute path that all nodes of the Ray cluster share")


# Submitit -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_submitits_local_jobs_make_the_records_of_one_process(start, undisturbed):
    pytest.importorskip("submitit", reason="the extra fedspan[slurm] is not installed")
    ran = finish(start(*GRID, "seed=range(0,4)", "launcher=submitit_local"))
    assert ran.status == 0, ran.err
    assert plain() == undisturbed("seed=range(0,4)")
    assert {path.split("/")[1] for path in leftovers()} == {"submitit"}


@pytest.fixture
def slurm(here, monkeypatch):
    """A machine on which SLURM's commands are, which only note what they are asked for."""
    pytest.importorskip("submitit", reason="the extra fedspan[slurm] is not installed")
    tools = here / "tools"
    tools.mkdir()
    for name, answer in {"sbatch": "cp $1 $OLDPWD_SCRIPT; echo Submitted batch job 12", "srun": "true"}.items():
        (tools / name).write_text(f"#!/bin/sh\n{answer}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("OLDPWD_SCRIPT", str(here / "script"))
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    return here / "script"


def test_a_slurm_script_asks_for_what_the_settings_say(start, slurm):
    words = ("launcher=submitit", "workers=3", "threads=2", "gpus=1", "timeout=600", "hydra.launcher.partition=long")
    start(*GRID, "seed=range(0,4)", *words)
    wait_for(slurm.exists)
    wait_for(lambda: "srun" in slurm.read_text())
    script = slurm.read_text()
    for line in ("array=0-3%3", "cpus-per-task=2", "gpus-per-node=1", "time=15", "partition=long", "job-name=fedspan"):
        assert f"#SBATCH --{line}\n" in script
    assert f"{Path.cwd()}/results/submitit/" in script


def test_without_slurm_its_launcher_says_so():
    pytest.importorskip("submitit", reason="the extra fedspan[slurm] is not installed")
    with pytest.raises(
        UserError, match="launcher=submitit needs SLURM's sbatch, which is not here; use launcher=joblib"
    ):
        launcher_words(How(launcher="submitit"))


@pytest.mark.parametrize("launcher", ["ray", "submitit"])
def test_cells_of_a_cluster_on_gpus_need_a_share_and_no_number(launcher):
    with pytest.raises(UserError, match=f"device=cuda with launcher={launcher} needs gpus=.*as in gpus=1$"):
        launcher_words(How(launcher=launcher, device="cuda"))
    with pytest.raises(UserError, match=f"device=cuda:1, but launcher={launcher} gives each cell its GPU"):
        launcher_words(How(launcher=launcher, device="cuda:1", gpus=1))
    check_how(How(launcher=launcher, device="cuda"), alone=True)


def test_a_launcher_that_is_not_installed_names_its_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for launcher, extra in {"ray": "ray", "submitit": "slurm", "submitit_local": "slurm"}.items():
        with pytest.raises(UserError, match=rf"launcher={launcher} is not installed: uv .* '\.\[{extra}\]'"):
            launcher_words(How(launcher=launcher))
