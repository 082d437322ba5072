"""Jobs that a launcher starts in its own processes."""

import os

import pytest
from hydra.core.hydra_config import HydraConfig

from fedspan.benchmark import registry
from fedspan.benchmark.running.hydra_jobs import GridJob, JobConfigs
from fedspan.benchmark.spec.compose import by_hydra
from tests.cli.conftest import QUICK, here, records  # noqa: F401
from tests.cli.test_plugins import MINE

WORDS = (*QUICK, "algorithm=mine", "plugins=my.py")


@pytest.fixture
def job_config(here):  # noqa: F811
    """The configuration of a job, loaded where its plugins were known, as Ray's launcher does in the driver."""
    path = here / "my.py"
    path.write_text(MINE)
    config = JobConfigs().load_sweep_config(by_hydra([], hydra_config=True), list(WORDS))
    path.unlink()
    registry.reload_edited()  # this process knows the plugin no longer
    path.write_text(MINE)
    HydraConfig.instance().set_config(config)
    return config


def test_a_job_imports_its_plugins_in_the_process_that_runs_it(job_config):
    GridJob(os.getpid())(job_config)
    assert [one["spec"]["algorithm"]["name"] for one in records().values()] == ["mine"]
