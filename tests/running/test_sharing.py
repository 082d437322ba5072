"""How many workers a cell may have, by what runs beside it and by how long it still has to go."""

import logging
from types import SimpleNamespace

import pytest

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.running.sharing import PAYS, Share
from tests.helpers import how


def run(clients=10, seconds=0.0, done=0, rounds=100, workers=1):
    """Return what `Share` looks at: a run whose rounds took `seconds` in all."""
    return SimpleNamespace(
        participants=lambda: list(range(clients)),
        state=SimpleNamespace(round=done),
        meter=SimpleNamespace(seconds={"local": seconds}),
        cell=SimpleNamespace(protocol=SimpleNamespace(rounds=rounds)),
        workers=workers,
    )


def after_ten_rounds(share, seconds, **more):
    """Return the workers of a cell whose first ten of a hundred rounds took `seconds`."""
    assert share(run(**more)) == 1
    return share(run(seconds=seconds, done=10, **more))


@pytest.mark.parametrize(("beside", "workers"), [(0, 8), (1, 4), (2, 2), (3, 2), (4, 1), (7, 1), (20, 1)])
def test_cells_that_run_at_a_time_share_the_workers(beside, workers):
    assert after_ten_rounds(Share(how(workers=8), lambda: beside, lone=False), 1000.0) == workers


def test_a_cell_that_is_soon_done_stays_alone():
    short, long = ((PAYS + change) / 9 for change in (-1.0, 1.0))
    assert after_ten_rounds(Share(how(workers=8), lambda: 0, lone=False), short) == 1
    assert after_ten_rounds(Share(how(workers=8), lambda: 0, lone=False), long) == 8


def test_no_more_workers_than_clients():
    assert after_ten_rounds(Share(how(workers=8), lambda: 0, lone=False), 1000.0, clients=3) == 3


def test_a_lone_cell_takes_the_workers_it_was_given_at_once_and_says_once_what_is_too_many(caplog):
    share = Share(how(workers=8), lambda: 5, lone=True)
    with caplog.at_level(logging.WARNING, "fedspan"):
        assert [share(run(clients=6)), share(run(clients=6, done=1))] == [6, 6]
    assert [record.getMessage() for record in caplog.records] == [
        "workers=8, but 6 clients train in a round: 6 will do"
    ]


def test_a_job_of_slurm_has_cores_of_its_own():
    assert after_ten_rounds(Share(how(workers=8, launcher="submitit"), lambda: 0, lone=False), 1000.0) == 1


def test_workers_on_gpus_need_ray():
    with pytest.raises(UserError, match="workers=4 on device=cuda needs launcher=ray: one worker for each GPU"):
        Share(how(workers=4, device="cuda"), lambda: 0, lone=True)
