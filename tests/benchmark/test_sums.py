import numpy as np
import pytest
import torch

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.training.executors import executor_of
from fedspan.benchmark.training.executors.round_sums import RoundSums
from fedspan.benchmark.training.local import ClientResult
from fedspan.benchmark.training.state import Row
from fedspan.benchmark.tree import nbytes


def finished(client, n, steps=2, dtype=torch.float32, uploads=None):
    rng = np.random.default_rng(client)
    delta = {"w": torch.from_numpy(rng.normal(size=(3, 2)) * 10.0 ** rng.integers(-4, 4)).to(dtype)}
    buffers = {"mean": torch.from_numpy(rng.normal(size=2)).to(dtype)}
    sent = nbytes(delta) + nbytes(buffers)
    return ClientResult(client, n, steps, steps * 8, delta, buffers, uploads or {}, Row({}, {}), 0.5 + client, sent)


def summed(clients):
    sums = RoundSums()
    for done in clients:
        sums.add(done)
    return sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_means_are_numpys_in_float64_rounded_once(dtype):
    clients = [finished(k, n, dtype=dtype) for k, n in enumerate([1, 50, 7, 1000, 3])]
    sums = summed(clients)
    sizes = [done.n for done in clients]
    for ours, theirs in (
        (sums.mean_delta({"w": clients[0].delta["w"]})["w"], [done.delta["w"] for done in clients]),
        (sums.mean_buffers({"mean": clients[0].buffers["mean"]})["mean"], [done.buffers["mean"] for done in clients]),
    ):
        mean = np.average([leaf.double().numpy() for leaf in theirs], axis=0, weights=sizes)
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours.double().numpy(), mean, rtol=1e-15 if dtype is torch.float64 else 6e-8)


def test_steps_images_and_samples_are_summed_over_clients():
    sums = summed([finished(0, 10, steps=3), finished(1, 30, steps=5)])
    assert (sums.participants, sums.samples, sums.steps, sums.images) == (2, 40, 8, 64)
    assert sums.loss / sums.samples == pytest.approx((10 * 0.5 + 30 * 1.5) / 40)


def test_uploads_are_plain_sums_in_their_own_type():
    def upload(value):
        return {"a": {"v": torch.tensor([value, 1.0])}, "b": {"v": torch.tensor([2 * value, 0.0])}}

    sums = summed([finished(k, 10 * k + 1, uploads=upload(float(k))) for k in range(4)])
    assert sums.uploads("a")["v"].tolist() == [6.0, 4.0]
    assert sums.uploads("b")["v"].tolist() == [12.0, 0.0]
    assert sums.uploads("a")["v"].dtype == torch.float32
    assert sums.uploads("nobody") == {}


def test_plain_numbers_are_summed_exactly():
    third = 1 / 3
    sums = summed([finished(k, 1, uploads={"a": {"x": third, "n": 2**31 + k}}) for k in range(3)])
    assert sums.uploads("a")["x"].item() == third + third + third
    assert sums.uploads("a")["n"].item() == 3 * 2**31 + 3


def test_bytes_up_are_those_of_the_weights_the_buffers_and_the_uploads():
    uploads = {"a": {"v": torch.zeros(5), "n": 3, "x": 0.5}}
    sums = summed([finished(0, 1, uploads=uploads), finished(1, 1)])
    assert sums.upload_bytes == (6 * 4 + 2 * 4) * 2 + 5 * 4 + 8 + 8


def test_what_is_added_stays_as_it_was():
    done = finished(0, 7, uploads={"a": {"v": torch.ones(2, dtype=torch.float64)}})
    before = done.delta["w"].clone()
    sums = summed([done, done, done])
    assert torch.equal(done.delta["w"], before)
    assert done.uploads["a"]["v"].tolist() == [1, 1]
    assert sums.uploads("a")["v"].tolist() == [3, 3]


def test_many_small_clients_are_not_lost_beside_a_large_one():
    large, small = finished(0, 1), finished(1, 1)
    large.delta["w"].fill_(2.0**24)
    small.delta["w"].fill_(1.0)
    sums = summed([large] + [small] * 1000)
    assert sums.mean_delta({"w": torch.zeros(3, 2, dtype=torch.float64)})["w"][0, 0].item() * 1001 == 2**24 + 1000


def test_an_unknown_executor_is_answered_with_a_near_one():
    with pytest.raises(UserError, match="unknown executor 'lop'; did you mean 'loop'"):
        executor_of("lop")
