"""What Ray's actors do, without Ray: each prepares the cell for itself, or it is told apart from its driver."""

import pickle
from pathlib import Path

import pytest
import torch

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records.provenance import difference
from fedspan.benchmark.training.executors.graph import Graph
from fedspan.benchmark.training.executors.loop import RoundClients
from fedspan.benchmark.training.process import set_up_process
from fedspan.benchmark.training.workers.actors import RemoteWorker, Setup, identity_of
from fedspan.benchmark.training.workers.messages import pack, unpack
from fedspan.benchmark.training.workers.replica import residents_of, state_update
from fedspan.benchmark.training.workers.spread import call_of, train
from fedspan.benchmark.tree import digest
from tests.contract.tape import Tapes
from tests.helpers import how, start, toy_cell
from tests.toys import NormNet
from tests.training.test_workers import STACKS


def begun(stack="server and client state", **more):
    """Return a cell after its first round, in which clients remember and the server broadcasts."""
    set_up_process(how())
    run = start(toy_cell(*STACKS[stack], model=NormNet()), **more)
    run.advance()
    return run


@pytest.fixture
def driver():
    return begun()


def prepared(driver, room=2**24):
    """Return an actor's worker that has prepared the driver's cell and heard its state, and its identity."""
    worker = RemoteWorker()
    identity = worker.prepare(Setup(driver.how, pickle.dumps(driver.cell), folder=Path.cwd(), room=room))
    state_message = state_update(driver, driver.state)
    worker.receive_state(state_message.head, state_message.memory().numpy())
    return worker, identity


def call(driver, clients):
    """Return the arguments that have a worker train some clients."""
    arguments = call_of(driver.local_executor, driver.state, RoundClients(clients), clients)
    message = pack((train, arguments), residents_of(driver, driver.state))
    return message.head, message.memory().numpy()


def agree(driver):
    """Have a worker train clients, and hold it to the bits of its driver."""
    clients = driver.participants()[1:4]
    worker, (_, origin) = prepared(driver)
    assert difference(identity_of(driver)[1], origin) == ""
    head, array = worker.make(*call(driver, clients))
    reply = unpack(head, torch.from_numpy(array), gpu=driver.device)
    assert reply.flops["train"] > 0
    pairs = zip(reply.value, driver.local_executor.each(driver.state, RoundClients(clients)), strict=True)
    for (mine, _), (other, _) in pairs:
        assert mine.client == other.client
        assert any(other.row.states.values())
        assert mine.row.states.keys() == other.row.states.keys()
        ours, theirs = ([done.delta, done.buffers, *done.row.states.values()] for done in (mine, other))
        for found, tree in zip(ours, theirs, strict=True):
            assert digest(found) == digest(tree)
            assert [leaf.device for leaf in found.values()] == [leaf.device for leaf in tree.values()]


def test_an_actor_trains_clients_to_the_bits_of_its_driver(driver):
    agree(driver)


@pytest.mark.parametrize("executor", ["vmap", "graph"])
def test_an_actor_trains_clients_side_by_side(monkeypatch, executor):
    monkeypatch.setattr(Graph, "machine", Tapes)
    agree(begun("moon", executor=executor))


def test_a_result_too_large_for_the_object_store_is_refused(driver):
    worker, _ = prepared(driver, room=1000)
    with pytest.raises(UserError, match=r"^the results of clients take 0 MiB, the smallest object store of the Ray"):
        worker.make(*call(driver, [3]))
