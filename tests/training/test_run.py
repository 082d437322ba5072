import re
import weakref
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedspan.benchmark.component import Component, Local
from fedspan.benchmark.data import batches
from fedspan.benchmark.errors import Incompatible, UserError
from fedspan.benchmark.net import one_hot
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.benchmark.task import Images
from fedspan.benchmark.training import evaluation
from fedspan.benchmark.training.run import Run, participants
from fedspan.benchmark.training.scoring import score_stages
from fedspan.methods.addons.feddecorr import FedDecorr
from fedspan.methods.algorithms.centralized import Centralized
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.tasks.fleets.speeds import Speeds
from tests.helpers import how, start, toy_cell, trained, weights
from tests.toys import CLIENTS, Blobs, LocalHead, LocalNorm, NormNet, Nova, Scaffold, ServerMomentum, Sphere, toy

# participation ------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.floats(0.001, 1.0), st.integers(0, 5), st.integers(0, 50))
def test_the_right_number_of_distinct_clients_takes_part(clients, participation, seed, round):
    chosen = participants(clients, participation, seed, round)
    exact = clients * participation
    assert len(chosen) == len(set(chosen)) == max(1, int(exact + 0.5))
    assert chosen == sorted(chosen)
    assert set(chosen) <= set(range(clients))
    assert participants(clients, participation, seed, round) == chosen


def test_rounds_and_seeds_draw_other_clients_and_everybody_gets_a_turn():
    draws = [tuple(participants(20, 0.25, 0, round)) for round in range(60)]
    assert len(set(draws)) > 50
    assert set(sum(draws, ())) == set(range(20))
    assert draws != [tuple(participants(20, 0.25, 1, round)) for round in range(60)]
    counts = np.bincount(sum(draws, ()), minlength=20)
    assert counts.min() >= 5
    assert counts.max() <= 28


def test_independent_draws_take_each_client_as_often_as_they_should():
    draws = [participants(30, 0.2, 0, round, "poisson") for round in range(400)]
    assert all(chosen == sorted(set(chosen)) for chosen in draws)
    assert draws[7] == participants(30, 0.2, 0, 7, "poisson")
    sizes, turns = np.array([len(chosen) for chosen in draws]), np.bincount([*chain(*draws)], minlength=30)
    assert sizes.mean() == pytest.approx(6, abs=0.5)
    assert sizes.var() == pytest.approx(30 * 0.2 * 0.8, rel=0.25), "a fixed number has none"
    assert turns.min() > 50
    assert turns.max() < 110
    assert participants(30, 1.0, 0, 0, "poisson") == list(range(30))


def test_a_round_that_draws_nobody_leaves_the_model(tmp_path):
    run = start(toy_cell(participation=0.05, protocol={"rounds": 30, "sampling": "poisson"}))
    empty, before = 0, weights(run)
    while not run.finished:
        here = run.participants()
        run.advance()
        empty += not here
        assert (weights(run) == before) == (not here)
        before = weights(run)
    assert 0 < empty < 30
    assert run.meter.visits == sum(len(participants(6, 0.05, 0, round, "poisson")) for round in range(30))
    assert run.curve["train_loss"].count(None) == empty
    record = run_cell(run.cell, how(tmp_path))
    assert record["status"] == "done", record["reason"]


def test_fewer_steps_than_rounds_are_a_result_like_any_other(tmp_path):
    cell = toy_cell(participation=0.1, protocol={"rounds": 12, "sampling": "poisson", "batch_size": 64})
    record = run_cell(cell, how(tmp_path))
    assert record["status"] == "done", record["reason"]
    assert 0 < record["compute"]["steps"] < 12


def test_a_clock_stands_still_in_rounds_before_the_first_client(tmp_path):
    def chosen(seed):
        return [participants(6, 0.1, seed, round, "poisson") for round in range(6)]

    seed = next(seed for seed in range(99) if not chosen(seed)[0] and any(chosen(seed)))
    protocol = {"rounds": 6, "sampling": "poisson"}
    record = run_cell(toy_cell(participation=0.1, seed=seed, fleet=Speeds(), protocol=protocol), how(tmp_path))
    assert record["status"] == "done", record["reason"]
    seconds = record["fleet"]["seconds_at_round"]
    assert seconds[0] == 0 < seconds[-1] == record["fleet"]["seconds"]
    assert record["fleet"]["empty_rounds"] == chosen(seed).count([])


def test_a_cell_in_which_nobody_ever_trains_is_refused():
    with pytest.raises(UserError, match="sampling=poisson draws no client in 2 rounds; raise participation"):
        start(toy_cell(participation=1e-9, protocol={"rounds": 2, "sampling": "poisson"}))


def test_a_method_that_samples_nobody_trains_at_any_participation():
    run = trained(toy_cell(Centralized(), participation=1e-9, protocol={"rounds": 2, "sampling": "poisson"}))
    assert run.meter.visits == 2


def test_how_clients_are_drawn_enters_the_key_only_where_it_is_not_as_ever():
    one, other = (toy_cell(participation=0.5, protocol={"sampling": how}) for how in ("fixed", "poisson"))
    assert one.key == toy_cell(participation=0.5).key != other.key
    assert "sampling" not in one.what["protocol"]


def test_only_the_chosen_train():
    run = start(toy_cell(Scaffold(), participation=0.5))
    run.advance()
    assert sorted(run.state.rows) == participants(6, 0.5, 0, 0)


# aggregation --------------------------------------------------------------------------------------


def test_batchnorm_buffers_are_plain_means_and_never_pass_through_the_server():
    run = start(toy_cell(ServerMomentum(), model=NormNet()))
    run.advance()
    before = {path: leaf.clone() for path, leaf in run.state.buffers.items()}
    done = [run.trainer.train(run.state, client) for client in range(6)]
    run.advance()
    assert set(run.state.buffers) == {"body.1.running_mean", "body.1.running_var"}
    for path, leaf in run.state.buffers.items():
        mean = np.average([d.buffers[path].double() for d in done], axis=0, weights=[d.n for d in done])
        np.testing.assert_allclose(leaf, mean, rtol=1e-6)
        assert not torch.equal(leaf, before[path])


def test_server_momentum_is_that_of_its_formula():
    run, plain = (start(toy_cell(algorithm, protocol={"rounds": 2})) for algorithm in (ServerMomentum(), FedAvg()))
    first = {path: leaf.clone() for path, leaf in run.state.params.items()}
    run.advance()
    plain.advance()
    assert all(torch.equal(leaf, plain.state.params[path]) for path, leaf in run.state.params.items())
    after = {path: leaf.clone() for path, leaf in run.state.params.items()}
    run.advance()
    plain.advance()
    for path, leaf in run.state.params.items():
        expected = plain.state.params[path] + 0.5 * (after[path] - first[path])
        torch.testing.assert_close(leaf, expected, rtol=1e-5, atol=1e-6)
    assert run.state.server["toy_momentum"]["m"] == 2


def test_scaffolds_first_round_is_fedavg_and_its_variates_are_the_mean_of_the_clients():
    run, plain = (start(toy_cell(algorithm)) for algorithm in (Scaffold(), FedAvg()))
    run.advance()
    plain.advance()
    for path, leaf in run.state.params.items():
        torch.testing.assert_close(leaf, plain.state.params[path])
        rows = [run.state.row(client).states["toy_scaffold"][path] for client in range(6)]
        torch.testing.assert_close(run.state.server["toy_scaffold"][path], torch.stack(rows).mean(0))
    run.advance()
    plain.advance()
    assert weights(run) != weights(plain)


def test_normalised_averaging_is_that_of_its_formula():
    run, plain = (start(toy_cell(algorithm)) for algorithm in (Nova(), FedAvg()))
    first = {path: leaf.clone() for path, leaf in run.state.params.items()}
    done = [plain.trainer.train(plain.state, client) for client in range(6)]
    run.advance()
    n, steps = np.array([d.n for d in done]), np.array([d.steps for d in done])
    for path, leaf in run.state.params.items():
        mean = np.average([d.delta[path] / d.steps for d in done], axis=0, weights=n) * np.average(steps, weights=n)
        np.testing.assert_allclose(leaf - first[path], mean, rtol=1e-4, atol=1e-6)


def test_the_server_sees_sums_and_nothing_of_a_single_client():
    seen = {}

    class Looking(FedAvg):
        def client_end(self, delta, local):
            assert isinstance(local, Local)
            return delta, {"n": torch.tensor([float(local.n)]), "one": 1}, {}

        def server(self, delta, agg):
            seen.update(vars(agg) | {"sums": dict(agg.sums)})
            return delta, {}

    run = start(toy_cell(Looking(), participation=0.5))
    run.advance()
    chosen = participants(6, 0.5, 0, 0)
    samples = sum(run.trainer.data.size(client) for client in chosen)
    assert seen["sums"] == {"n": samples, "one": 3}
    assert (seen["participants"], seen["clients"], seen["samples"], seen["round"]) == (3, 6, samples, 0)


def test_own_layers_change_nothing_where_there_are_none():
    assert weights(trained(toy_cell(LocalNorm()))) == weights(trained(toy_cell()))


# scores -------------------------------------------------------------------------------------------


def test_the_score_is_that_of_the_test_images():
    run = trained(toy_cell(model=NormNet()))
    scores = score_stages(run)
    run.trainer.load(run.state, run.state.first_row)
    data = run.trainer.data
    with torch.no_grad():
        logits = run.trainer.net.eval()(data.normalise(data.test.x))[1].double()
    right = (logits.argmax(1) == data.test.y).double().mean()
    assert scores["trained"]["accuracy"] == pytest.approx(100 * right.item())
    loss = torch.nn.functional.cross_entropy(logits, data.test.y).item()
    assert scores["trained"]["loss"] == pytest.approx(loss, rel=1e-6)
    assert scores["trained"]["accuracy"] == run.curve["accuracy"][-1]


def test_scores_do_not_depend_on_the_evaluation_batch(monkeypatch):
    run = trained(toy_cell(model=NormNet()))
    whole = score_stages(run)["trained"]
    monkeypatch.setattr(batches, "EVALUATION_BATCH", 7)
    parts = score_stages(run)["trained"]
    assert parts["accuracy"] == whole["accuracy"]
    assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-6)


@pytest.mark.parametrize(("side", "batch"), [(8, 500), (64, 500), (256, 31)])
def test_large_images_are_evaluated_in_smaller_batches(side, batch):
    trainer = start(toy_cell()).trainer
    pixels = torch.zeros(501, 1, 1, trainer.data.shape[0], dtype=torch.uint8).expand(-1, side, side, -1)
    images = Images(pixels, torch.zeros(501).long())
    trainer.data.train = trainer.data.test = images
    sizes = []
    trainer.net.forward = lambda x: sizes.append(len(x)) or (x[:, :, 0, 0], x[:, :, 0, 0])
    assert sum(len(y) for _, _, y in evaluation.outputs(trainer)) == 501
    assert max(sizes) == batch


def test_the_best_round_is_kept_beside_the_last_the_earliest_of_equals():
    run = trained(toy_cell())
    run.curve["accuracy"], run.curve["round"] = [50.0, 80.0, None, 80.0, 70.0], [1, 2, 3, 4, 5]
    assert score_stages(run)["best"] == {"accuracy": 80.0, "round": 2}


def test_evaluation_happens_when_asked_and_after_the_last_round():
    run = trained(toy_cell(protocol={"rounds": 5, "eval_every": 2}))
    assert run.curve["round"] == [2, 4, 5]
    assert {len(values) for values in run.curve.values()} == {3}


def test_the_seconds_until_a_round_are_those_of_all_phases_so_far():
    run = trained(toy_cell())
    assert run.seconds_at_round[-1] == pytest.approx(sum(run.meter.seconds.values()), abs=1e-3)


def test_a_clients_update_is_gone_when_the_next_one_trains():
    run, seen = start(toy_cell()), []
    train = run.trainer.train

    def watched(state, client, steps):
        assert [update for update in seen if update() is not None] == []
        done = train(state, client, steps)
        seen.append(weakref.ref(done))
        return done

    run.trainer.train = watched
    run.advance()
    assert len(seen) == CLIENTS


def test_evaluation_changes_nothing():
    every, rarely = (trained(toy_cell(model=NormNet(), protocol={"eval_every": n})) for n in (1, 3))
    assert weights(every) == weights(rarely)


def test_without_one_global_model_clients_are_scored_with_their_own():
    run = trained(toy_cell(LocalHead(), participation=0.5))
    scores = score_stages(run)["trained"]
    accuracies, losses = [], []
    for client in range(6):
        run.trainer.load(run.state, run.state.row(client))
        score = evaluation.evaluate(run.trainer)
        accuracies.append(score.accuracy)
        losses.append(score.loss)
    assert scores["accuracy"] is None
    assert scores["client_accuracy"] == pytest.approx(np.mean(accuracies))
    assert scores["client_accuracy_std"] == pytest.approx(np.std(accuracies))
    assert scores["loss"] == pytest.approx(np.mean(losses))
    assert len(set(losses)) > 1
    assert "best" not in score_stages(run)


@toy("algorithm", "toy_level")
class Level(FedAvg):
    """A loss of 1 per image, whatever the weights."""

    def loss(self, step):
        return 1.0 + 0 * step.logits.sum()


def test_the_training_loss_is_the_mean_over_the_images_that_were_trained_on():
    assert trained(toy_cell(Level())).curve["train_loss"] == [1.0] * 3


def test_calibration_is_a_further_stage_from_sums_over_all_training_images():
    run = trained(toy_cell(None, Sphere(), model=NormNet()))
    before = weights(run)
    scores = score_stages(run)
    assert weights(run) == before
    assert set(scores) == {"trained", "best", "calibrated"}
    run.trainer.load(run.state, run.state.first_row)
    data, net = run.trainer.data, run.trainer.net.eval()
    with torch.no_grad():
        z = net(data.normalise(data.train.x))[0].double()
        test = net(data.normalise(data.test.x))[0].double()
    targets = one_hot(data.train.y, 3, torch.float64)
    head = torch.linalg.solve(z.T @ z + 1e-3 * torch.eye(z.shape[1], dtype=torch.float64), z.T @ targets)
    accuracy = 100 * ((test @ head).argmax(1) == data.test.y).double().mean().item()
    assert scores["calibrated"]["accuracy"] == pytest.approx(accuracy)


# outcomes -----------------------------------------------------------------------------------------


def test_a_loss_that_no_record_holds_has_diverged_though_it_is_a_number(tmp_path):
    one_step = {"rounds": 2, "local_epochs": 1, "batch_size": 1000, "momentum": 0.0}
    record = run_cell(toy_cell(protocol={**one_step, "precision": "float64", "lr": 1e80}), how(tmp_path))
    assert record["status"] == "diverged"
    assert re.fullmatch(r"round 2: the test loss is [\d.]+e\+1\d\d", record["reason"])


def test_a_run_that_blows_up_is_recorded_as_diverged_with_its_curve(tmp_path):
    class Bomb(FedAvg):
        def server(self, delta, agg):
            factor = 1.0 if agg.round < 2 else float("inf")
            return {path: leaf * factor for path, leaf in delta.items()}, {}

    cell = toy_cell(Bomb(), protocol={"rounds": 5})
    record = run_cell(cell, how(tmp_path))
    assert record["status"] == "diverged"
    assert record["reason"] == "round 3: the aggregated weights are not finite"
    assert record["curve"]["round"] == [1, 2]
    assert record["scores"] == {}
    assert Results(how(tmp_path).results).read(cell.key) == record


def test_a_huge_learning_rate_diverges(tmp_path):
    record = run_cell(toy_cell(model=NormNet(), protocol={"lr": 1e30, "rounds": 4}), how(tmp_path))
    assert record["status"] == "diverged"
    assert record["reason"].startswith("round 1")


def test_weights_that_are_finite_but_score_nothing_are_no_accuracy(tmp_path):
    class Huge(FedAvg):
        def server(self, delta, agg):
            return {path: torch.full_like(leaf, 1e38) for path, leaf in delta.items()}, {}

    record = run_cell(toy_cell(Huge(), model=NormNet()), how(tmp_path))
    assert record["status"] == "diverged"
    assert record["scores"] == {}
    assert "the test loss is nan" in record["reason"]


@pytest.mark.parametrize("calibrated", [float("nan"), float("inf")])
def test_a_calibration_that_fails_is_no_accuracy(tmp_path, calibrated):
    class Broken(Sphere):
        def calibrate(self, params, sums, rng):
            return {**params, "head.weight": torch.full_like(params["head.weight"], calibrated)}

    assert run_cell(toy_cell(None, Broken()), how(tmp_path))["status"] == "diverged"


def test_an_impossible_stack_is_recorded_as_skipped_with_its_reason(tmp_path):
    cell = toy_cell(FedAvg(), FedDecorr(), FedDecorr(beta=0.3))
    record = run_cell(cell, how(tmp_path))
    assert (record["status"], record["scores"], record["curve"]) == ("skipped", {}, {})
    assert record["reason"] == "'feddecorr' appears twice in fedavg + feddecorr + feddecorr"
    assert Results(how(tmp_path).results).read(cell.key) == record


def test_a_component_that_finds_the_task_impossible_is_skipped(tmp_path):
    @toy("addon", "toy_picky")
    class Picky(Component):
        def check(self, setting):
            if setting.classes < 10:
                raise Incompatible("'toy_picky' needs 10 classes")

    record = run_cell(toy_cell(FedAvg(), Picky()), how(tmp_path))
    assert (record["status"], record["reason"]) == ("skipped", "'toy_picky' needs 10 classes")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"clients": 95}, "clients=95 is more than the 94 training images; lower clients"),
        ({"clients": 31, "dataset": Blobs(limit=30)}, "clients=31 is more than the 30 training images"),
        ({"diagnostics": Diagnostics(spectra=True, clients=(9,))}, "diagnostics.clients names client 9"),
        ({"dataset": Blobs(test=0)}, "dataset 'blobs', load .* must return test images: there are none"),
    ],
    ids=str,
)  # fmt: skip
def test_what_the_user_must_change_is_no_record(tmp_path, parts, message):
    cell = toy_cell(**parts)
    with pytest.raises(UserError, match=message):
        run_cell(cell, how(tmp_path))
    assert not list((tmp_path / "results").rglob("*.json"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"device": "cud"}, "device=cud is not a device to train on; use cpu, cuda or cuda:0"),
        ({"executor": "lop"}, "unknown executor 'lop'; did you mean 'loop'"),
    ],
)
def test_an_impossible_machine_is_one_line(tmp_path, more, message):
    with pytest.raises(UserError, match=message):
        run_cell(toy_cell(), how(tmp_path, **more))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_an_absent_device_is_one_line(tmp_path):
    with pytest.raises(UserError, match="torch sees 0 CUDA devices; use device=cpu"):
        run_cell(toy_cell(), how(tmp_path, device="cuda"))
    assert not torch.are_deterministic_algorithms_enabled()  # the process is as it was, for the next cell on the CPU


def test_a_watcher_sees_every_client_and_round(tmp_path):
    seen = []
    run_cell(
        toy_cell(participation=0.5, protocol={"rounds": 2}), how(tmp_path),
        lambda p: seen.append((p.round, p.client, p.clients, p.rounds, p.accuracy is not None)),
    )  # fmt: skip
    assert seen == [
        (0, 1, 3, 2, False), (0, 2, 3, 2, False), (0, 3, 3, 2, False), (1, 3, 3, 2, True),
        (1, 1, 3, 2, True), (1, 2, 3, 2, True), (1, 3, 3, 2, True), (2, 3, 3, 2, True),
    ]  # fmt: skip


def test_where_and_how_leave_no_trace_in_the_numbers():
    others = {"checkpoint_seconds": 0, "command": "x"}
    one, two = (Run(toy_cell(model=NormNet()), how(None, **more)) for more in ({}, others))
    one.advance()
    two.advance()
    assert weights(one) == weights(two)
