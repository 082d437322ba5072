import numpy as np
import pytest
import torch

from fedspan.methods.algorithms.fedavg_uniform import FedAvgUniform
from fedspan.tasks.partitions.iid import IID
from tests.helpers import start, toy_cell, trained
from tests.methods.by_hand import agree, fresh, mean, minus, numbers, plus, sizes, trained_by_hand
from tests.toys import NormNet, PlainNet


@pytest.mark.parametrize("model", [PlainNet(), NormNet()], ids=["plain", "batchnorm"])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_one_client_with_everything_is_plain_sgd(model, schedule):
    """Momentum starts anew each round; everything else is the textbook's loop."""
    protocol = {"precision": "float64", "rounds": 2, "schedule": schedule, "weight_decay": 0.01}
    cell = toy_cell(clients=1, partition=IID(), model=model, protocol=protocol)
    by_hand = start(cell)
    net = by_hand.trainer.net.train()
    for round, lr in enumerate([0.05, 0.05] if schedule == "constant" else [0.05, 0.025]):
        sgd = torch.optim.SGD(net.parameters(), lr, momentum=0.9, weight_decay=0.01)
        for epoch in range(2):
            for x, y in by_hand.trainer.data.epoch(0, round, epoch):
                sgd.zero_grad()
                torch.nn.functional.cross_entropy(net(x)[1], y).backward()
                sgd.step()
    run = trained(cell)
    expected = dict(net.named_parameters()) | dict(net.named_buffers())
    for path, leaf in (run.state.params | run.state.buffers).items():
        torch.testing.assert_close(leaf, expected[path].detach())


def test_the_new_weights_are_the_clients_mean_by_numbers_of_samples():
    run = start(toy_cell(model=NormNet()))
    before = {path: leaf.numpy().astype(np.float64) for path, leaf in run.state.params.items()}
    ends, sizes = [], []
    for client in range(6):
        done = run.trainer.train(run.state, client)
        ends.append({path: before[path] + leaf.numpy().astype(np.float64) for path, leaf in done.delta.items()})
        sizes.append(done.n)
    assert sizes == [run.trainer.data.size(client) for client in range(6)]
    assert len(set(sizes)) > 3
    run.advance()
    for path, leaf in run.state.params.items():
        mean = np.average([end[path] for end in ends], axis=0, weights=sizes)
        np.testing.assert_allclose(leaf.numpy(), mean, rtol=1e-6, atol=1e-7)


def test_accuracy_exceeds_90_percent_after_six_rounds():
    curve = trained(toy_cell(protocol={"rounds": 6})).curve
    assert curve["accuracy"][-1] > 90
    assert curve["loss"][-1] < curve["loss"][0]


def test_with_equal_weights_it_is_the_plain_mean():
    run = fresh(FedAvgUniform(), participation=0.5)
    w = numbers(run.state.params)
    while not run.finished:
        chosen = run.participants()
        ends = [minus(trained_by_hand(run, w, client, run.state.round)[0], w) for client in chosen]
        assert len(set(sizes(run, chosen))) == len(chosen) == 3
        w = plus(w, mean(ends, [1] * len(chosen)))
        run.advance()
        agree(run.state.params, w)
