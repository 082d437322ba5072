"""Messages to single clients: what they are written from, who gets them, what they cost."""

import pytest
import torch

from fedspan.benchmark.errors import CorruptFile, HookError
from fedspan.benchmark.tree import nbytes
from fedspan.tasks.fleets.dropout import Dropout
from tests.helpers import start, toy_cell
from tests.methods.by_hand import DOUBLE, agree, finished, numbers, plus
from tests.toys import Messages


def test_a_message_is_written_from_what_each_client_sent_last():
    seen, received = {}, {}

    class Watching(Messages):
        def message(self, download):
            seen[download.round, download.client] = dict(download.sent)
            return received.setdefault((download.round, download.client), super().message(download))

    run = start(toy_cell(Watching(), participation=0.5, protocol=DOUBLE | {"rounds": 3}))
    expected = {}
    while not run.finished:
        round, chosen = run.state.round, run.participants()
        done = {client: run.trainer.train(run.state, client) for client in chosen}
        for client in chosen:
            assert seen[round, client].keys() == expected.keys()
            for other, tree in seen[round, client].items():
                agree(tree, expected[other])
        expected |= {client: plus(numbers(run.state.params), numbers(one.delta)) for client, one in done.items()}
        run.advance()
    assert len(expected) > 3, "the clients of all rounds are the same"
    drawn = [tree["head.bias"] for tree in received.values()]
    assert not any(torch.equal(a, b) for n, a in enumerate(drawn) for b in drawn[:n])


def test_what_clients_sent_is_in_their_order_as_after_a_resume():
    run = start(toy_cell(Messages(), participation=0.5, protocol={"rounds": 4}, seed=3))
    arrivals = []
    while not run.finished:
        arrivals += [client for client in run.participants() if client not in arrivals]
        run.advance()
        assert list(run.state.sent) == sorted(run.state.sent)
    assert arrivals != sorted(arrivals), "they first took part in order"


def test_a_lost_client_has_sent_what_it_sent_before():
    cell = toy_cell(Messages(), fleet=Dropout(rate=0.5), protocol={"rounds": 4})
    run, sent = start(cell), []
    while not run.finished:
        before, rows = dict(run.state.sent), run.meter.lost
        run.advance()
        sent.append(sum(run.state.sent[client] is not before.get(client) for client in run.state.sent))
        assert sent[-1] == 6 - (run.meter.lost - rows)
    assert 0 < run.meter.lost < 24


def test_a_message_adds_to_what_is_broadcast_and_to_the_bytes_down():
    run, plain = (start(toy_cell(one, protocol={"rounds": 2})) for one in (Messages(), None))
    for one in (run, plain):
        finished(one)
    each = nbytes(run.state.params) + 4  # and the scalar that all receive
    assert run.meter.bytes_down - plain.meter.bytes_down == 2 * 6 * each


def test_a_message_cannot_use_the_names_of_the_broadcast():
    class Twice(Messages):
        def message(self, download):
            return super().message(download) | {"pull": torch.zeros(())}

    run = start(toy_cell(Twice()))
    with pytest.raises(HookError, match=r"message .* must return names that `broadcast` does not have: .*'pull'"):
        run.advance()


@pytest.mark.parametrize("spoilt", [{"head.bias": torch.zeros(7)}, {"tail": torch.zeros(3)}])
def test_a_checkpoint_of_another_model_is_refused_by_what_clients_sent(spoilt):
    run, fresh = finished(start(toy_cell(Messages()))), start(toy_cell(Messages()))
    run.state.sent[2] = run.state.sent[2] | spoilt
    with pytest.raises(CorruptFile, match="another model or method"):
        fresh.state.unpack(run.state.pack(), 1)
    assert fresh.state.round == 0
    assert fresh.state.sent == {}
