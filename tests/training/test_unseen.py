"""How well models do for clients that never train, and for those that do worst."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fedspan.benchmark.component import Component
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.spec.cell import training_clients
from fedspan.benchmark.task import Data
from fedspan.benchmark.training.evaluation import worst_tenth
from fedspan.benchmark.training.run import clients_a_round
from fedspan.benchmark.training.saving import resume, save
from fedspan.benchmark.training.scoring import score_stages
from fedspan.methods.addons.personal_head import PersonalHead
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.scaffold import Scaffold
from fedspan.tasks.partitions.personal import Personal as PersonalPartition
from tests.helpers import how, start, toy_cell, trained, weights
from tests.toys import Blobs, LocalHead, OwnHead, toy

UNSEEN = ("unseen_accuracy", "unseen_accuracy_std", "unseen_worst_tenth_accuracy")
TASK = {"partition": PersonalPartition(alpha=1.0), "dataset": Blobs(train=120, test=60), "clients": 4, "unseen": 0.25}


def cell_of(*components, **more):
    return toy_cell(*components, **(TASK | {"protocol": {"rounds": 2, "local_epochs": 1}} | more))


@toy("dataset", "poisoned_blobs")
class Poisoned(Blobs):
    """The images of the toy task, of which some are black and of another class."""

    victims: tuple[int, ...] = ()

    def load(self, cache) -> Data:
        data = super().load(cache)
        both = data.train.followed_by(data.test)
        both.x[list(self.victims)] = 0
        both.y[list(self.victims)] = (both.y[list(self.victims)] + 1) % 3
        n = len(data.train)
        parts = [torch.arange(n), torch.arange(n, len(both))]
        return dataclasses.replace(data, train=both.take(parts[0]), test=both.take(parts[1]))


@toy("partition", "fixed_personal")
class FixedPersonal(PersonalPartition):
    """The split of the unpoisoned task, which looks at labels."""

    def assign(self, data, clients, rng):
        return super().assign(Blobs(train=120, test=60).load(None), clients, rng)


def theirs():
    """Return the images, among training and then test ones, that an unseen client holds or is tested on."""
    run = start(cell_of())
    data, whole = run.newcomers.data, Blobs(train=120, test=60).load(None)
    both = whole.train.followed_by(whole.test).x.flatten(1)
    used = torch.cat([data.train.x[torch.cat(data.indices)], data.test.x[torch.cat(data.tests)]]).flatten(1)
    return tuple(place for place, image in enumerate(both) if (used == image).all(1).any())


def test_no_image_of_an_unseen_client_is_learnt_from():
    plain, poisoned = (
        trained(
            cell_of(Scaffold(), dataset=Poisoned(train=120, test=60, victims=victims), partition=FixedPersonal(1.0))
        )
        for victims in ((), theirs())
    )
    assert weights(plain) == weights(poisoned)
    assert plain.curve == poisoned.curve, "nor scored with those of the others"
    scores = [score_stages(run)["trained"] for run in (plain, poisoned)]
    assert scores[0]["unseen_accuracy"] != scores[1]["unseen_accuracy"]


def test_methods_know_only_of_clients_that_can_train():
    run = trained(cell_of(Scaffold(), protocol={"rounds": 2, "local_epochs": 1, "precision": "float64"}))
    assert run.meter.visits == 2 * 3
    assert len(run.trainer.data.indices) == len(run.state.rows) == 3
    for path, c in run.state.server["scaffold"].items():
        rows = [row.states["scaffold"][path] for row in run.state.rows.values()]
        assert torch.allclose(c, sum(rows) / 3, rtol=1e-9, atol=1e-12)


def test_unseen_clients_are_scored_with_the_global_and_then_with_their_own_models(tmp_path):
    scores = run_cell(cell_of(FedAvg(), OwnHead()), how(tmp_path))["scores"]
    for stage in ("trained", "personalised"):
        assert all(scores[stage][name] is not None for name in UNSEEN)
    assert scores["trained"]["unseen_accuracy"] == scores["trained"]["unseen_worst_tenth_accuracy"], "there is only one"
    assert scores["trained"]["unseen_accuracy_std"] == 0
    plain = run_cell(cell_of(FedAvg(), OwnHead(), unseen=0.0), how(tmp_path))["scores"]
    assert not any(name in plain[stage] for stage in plain for name in UNSEEN)
    assert "unseen" in cell_of().what
    assert "unseen" not in cell_of(unseen=0.0).what


def test_unseen_clients_are_scored_on_test_images_of_their_own():
    run = trained(cell_of(unseen=0.5, protocol={"rounds": 1, "local_epochs": 1, "lr": 0.01}))
    scores, data = score_stages(run)["trained"], run.newcomers.data
    run.trainer.load(run.state, run.state.first_row)
    each = []
    for images in map(data.test_of, range(2)):
        right = run.trainer.net.eval()(data.normalise(images.x))[1].argmax(1) == images.y
        each.append(100 * right.double().mean().item())
    assert scores["unseen_accuracy"] == pytest.approx(np.mean(each))
    assert scores["unseen_accuracy_std"] == pytest.approx(np.std(each))
    assert np.std(each) > 0


def test_unseen_clients_draw_apart_from_those_that_train():
    drawn = []

    @toy("addon", "toy_drawer")
    class Drawer(Component):
        def own(self, params, local):
            drawn.append(float(torch.rand((), generator=local.rng)))
            return dict(params) | dict(local.buffers)

    run = trained(cell_of(FedAvg(), Drawer()))
    score_stages(run)
    assert len(set(drawn)) == len(drawn) == 4, "three that train and one that does not"


def test_scoring_unseen_clients_costs_the_same_after_a_resume(tmp_path):
    whole, saved, resumed = trained(cell_of()), start(cell_of()), start(cell_of())
    saved.advance()
    save(saved, tmp_path / "checkpoint")
    assert resume(resumed, tmp_path / "checkpoint")
    resumed.advance()
    assert score_stages(whole) == score_stages(resumed)
    assert whole.meter.flops == resumed.meter.flops


def test_scoring_unseen_clients_is_no_cost_of_the_method():
    scored, unscored = (trained(cell_of(FedAvg(), PersonalHead(epochs=1))) for _ in range(2))
    unscored.newcomers = None
    assert "unseen_accuracy" in score_stages(scored)["personalised"]
    assert "unseen_accuracy" not in score_stages(unscored)["personalised"]
    assert scored.meter.flops == unscored.meter.flops


def test_where_weights_stay_with_clients_there_is_nothing_for_unseen_ones_before_they_train():
    run = trained(cell_of(LocalHead(), OwnHead()))
    scores = score_stages(run)
    assert [scores["trained"][name] for name in UNSEEN] == [None] * 3
    assert scores["personalised"]["unseen_accuracy"] is not None


def test_a_trial_leaves_unseen_clients_out():
    run = trained(cell_of(protocol={"rounds": 1, "local_epochs": 1, "validation": 0.2}))
    assert run.newcomers is None
    assert not any(name.startswith("unseen") for name in score_stages(run)["validation"])


@pytest.mark.parametrize(
    ("unseen", "said"),
    [(1.0, r"unseen must lie in \[0, 1\), got 1.0"), (-0.1, "unseen must lie in"), (0.9, "leaves no client to train")],
)
def test_a_share_that_makes_no_sense_is_one_clear_line(unseen, said):
    with pytest.raises(UserError, match=f"^{said}|{said}; lower it$"):
        cell_of(unseen=unseen)


@pytest.mark.parametrize(("unseen", "training"), [(0.0, 10), (0.01, 9), (0.25, 7), (0.5, 5), (0.94, 1)])
def test_at_least_one_client_is_unseen_if_any_is(unseen, training):
    assert toy_cell(clients=10, unseen=unseen).training_clients == training


@example(45, 70)
@example(50, 29)
@given(st.integers(1, 1000), st.integers(1, 99))
def test_shares_of_clients_are_rounded_as_written_halves_upwards(clients, hundredths):
    exact = max(1, (2 * clients * hundredths + 100) // 200)
    assert clients_a_round(clients, hundredths / 100) == exact
    assert clients - training_clients(clients, hundredths / 100) == exact


# the tenth that does worst -------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50))
def test_the_worst_tenth_is_between_the_worst_and_the_mean(accuracies):
    worst = worst_tenth(accuracies)
    assert min(accuracies) <= worst + 1e-9
    assert worst <= sum(accuracies) / len(accuracies) + 1e-9
    assert worst_tenth(accuracies[::-1]) == worst


@pytest.mark.parametrize(
    ("accuracies", "worst"), [([50.0], 50.0), (range(10), 0.0), (range(11), 0.5), (range(100), 4.5), ([9, 1, 5], 1.0)]
)
def test_it_is_rounded_up_to_whole_clients(accuracies, worst):
    assert worst_tenth(list(accuracies)) == worst


def test_records_of_clients_with_tests_of_their_own_have_it(tmp_path):
    scores = run_cell(cell_of(unseen=0.0), how(tmp_path))["scores"]["trained"]
    assert 0 <= scores["worst_tenth_accuracy"] <= scores["client_accuracy"] <= 100
