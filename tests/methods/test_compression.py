"""Updates of few numbers and of few bits: what arrives, what stays, what it costs."""

import math

import numpy as np
import pytest
import torch

from fedspan.benchmark.errors import Incompatible, UserError
from fedspan.benchmark.rng import generator
from fedspan.methods.addons.quantise import Quantise
from fedspan.methods.addons.topk import TopK, largest
from fedspan.methods.algorithms.centralized import Centralized
from fedspan.methods.algorithms.fedala import FedALA
from fedspan.methods.algorithms.fedamp import FedAMP
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.local_only import LocalOnly
from tests.helpers import start, toy_cell, trained
from tests.methods.by_hand import DOUBLE, agree, mean, minus, numbers, plus, sizes, trained_by_hand
from tests.toys import NormNet

CLIENTS = range(6)
NUMBERS = (72 + 1) * 5 + (5 + 1) * 3  # of the plain net


def compressed(addon, **parts):
    protocol = DOUBLE | {"rounds": 4} | parts.pop("protocol", {})
    return start(toy_cell(FedAvg(), addon, protocol=protocol, participation=0.5, **parts))


def by_size(update, share):
    """Keep the largest numbers of an update, in NumPy."""
    every = np.concatenate([leaf.ravel() for leaf in update.values()])
    least = np.sort(np.abs(every))[-math.ceil(share * every.size)]
    return {path: np.where(np.abs(leaf) >= least, leaf, 0) for path, leaf in update.items()}


@pytest.mark.parametrize("algorithm", [FedAMP(), FedALA()])
def test_what_a_client_keeps_anyway_is_not_kept_back_too(algorithm):
    with pytest.raises(Incompatible, match=f"'topk' does not work beside '{algorithm.name}': its clients keep"):
        start(toy_cell(algorithm, TopK()))
    for addon in (TopK(memory=False), TopK(share=1.0)):
        start(toy_cell(algorithm, addon))


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_all_rounds_of_top_k_with_and_without_memory(share, memory):
    run = compressed(TopK(share=share, memory=memory))
    w = numbers(run.state.params)
    rest = {client: minus(w, w) for client in CLIENTS}
    while not run.finished:
        chosen, sent = run.participants(), []
        for client in chosen:
            update = plus(minus(trained_by_hand(run, w, client, run.state.round)[0], w), rest[client])
            sent.append(by_size(update, share))
            if memory:
                rest[client] = minus(update, sent[-1])
        w = plus(w, mean(sent, sizes(run, chosen)))
        run.advance()
        agree(run.state.params, w)
    for client in CLIENTS if memory else ():
        agree(run.state.row(client).states["topk"] | {"one": torch.ones(1)}, rest[client] | {"one": np.ones(1)})


def test_top_k_keeps_as_many_as_it_says():
    tree = {"a": torch.tensor([[3.0, -1.0], [0.5, 0.0]]), "b": torch.tensor([-2.0])}
    kept = {path: leaf.tolist() for path, leaf in largest(tree, 2).items()}
    assert kept == {"a": [[3.0, 0.0], [0.0, 0.0]], "b": [-2.0]}
    assert TopK(share=0.1).kept({"w": torch.zeros(30)}) == 3
    assert TopK(share=0.1).kept({"w": torch.zeros(31)}) == 4
    assert TopK(share=1e-14).kept({"w": torch.zeros(31)}) == 1


def test_rounding_by_chance_is_right_on_average_and_has_these_levels_alone():
    v, quantise = torch.tensor([0.30, -0.07, 0.0, 1.0, -0.5], dtype=torch.float64), Quantise(bits=3)
    rng = torch.Generator().manual_seed(0)
    draws = torch.stack([quantise._rounded(v, rng) for _ in range(4000)])
    levels = draws * 3
    assert torch.allclose(levels, levels.round(), atol=1e-12)
    assert torch.equal(draws[:, 3], torch.ones(4000, dtype=torch.float64)), "the largest is exact"
    assert not draws[:, 2].any()
    assert ((draws.mean(0) - v).abs() < 4 * draws.std(0) / 4000**0.5 + 1e-12).all()


@pytest.mark.parametrize(("norm", "length"), [("max", np.max), ("l2", np.linalg.norm)])
def test_a_round_of_qsgd_is_its_equation_with_these_draws(norm, length):
    run = compressed(Quantise(bits=4, norm=norm), protocol={"rounds": 1})
    w, chosen = numbers(run.state.params), run.participants()
    sent = []
    for client in chosen:
        update = minus(trained_by_hand(run, w, client, 0)[0], w)
        rng, arrived = generator(run.cell.seed, "client_end", "quantise", 0, client), {}
        for path, v in update.items():
            u = torch.rand(v.shape, generator=rng, dtype=torch.float64).numpy()
            size = length(np.abs(v))
            down = np.floor(7 * np.abs(v) / size)
            level = down + (u >= 1 - (7 * np.abs(v) / size - down))
            arrived[path] = size * np.sign(v) * level / 7
        sent.append(arrived)
    run.advance()
    agree(run.state.params, plus(w, mean(sent, sizes(run, chosen))))


def test_an_update_of_zeros_stays_one():
    for norm in ("max", "l2"):
        assert not Quantise(norm=norm)._rounded(torch.zeros(3), torch.Generator()).any()


@pytest.mark.parametrize(
    ("addons", "bits"),
    [
        ((TopK(share=0.1),), math.ceil(0.1 * NUMBERS) * (32 + 32)),
        ((Quantise(bits=4),), NUMBERS * 4 + 4 * 32),
        ((TopK(share=0.1), Quantise(bits=4)), math.ceil(0.1 * NUMBERS) * (4 + 32) + 4 * 32),
        ((TopK(share=1.0),), NUMBERS * 32),
    ],
    ids=["top-k", "qsgd", "both", "everything"],
)
def test_bytes_are_those_of_the_numbers_that_travel(addons, bits):
    run = trained(toy_cell(FedAvg(), *addons, protocol={"rounds": 1}))
    assert run.meter.bytes_up == 6 * math.ceil(bits / 8)
    assert run.meter.bytes_down == 6 * 4 * NUMBERS


def test_what_was_kept_back_is_not_added_to_numbers_already_rounded():
    with pytest.raises(Incompatible, match=r"already written in 4 bits a number.*; put 'topk' before what rounds"):
        trained(toy_cell(FedAvg(), Quantise(bits=4), TopK(share=0.1)))
    forgetful = trained(toy_cell(FedAvg(), Quantise(bits=4), TopK(share=0.1, memory=False), protocol={"rounds": 1}))
    assert forgetful.meter.bytes_up == 6 * math.ceil((math.ceil(0.1 * NUMBERS) * (4 + 32) + 4 * 32) / 8)


def test_statistics_travel_whole_beside_few_weights():
    few = trained(toy_cell(FedAvg(), TopK(share=0.1), model=NormNet(), protocol={"rounds": 1}))
    weights = sum(leaf.numel() for leaf in few.state.params.values())
    assert few.meter.bytes_up == 6 * (math.ceil(0.1 * weights) * 8 + 2 * 4 * 4)


@pytest.mark.parametrize("addon", [TopK(), Quantise()], ids=lambda addon: addon.name)
def test_there_is_nothing_to_compress_where_nothing_travels(addon):
    with pytest.raises(Incompatible, match=f"'{addon.name}' works on updates, and 'local_only' lets none travel"):
        start(toy_cell(LocalOnly(), addon))
    with pytest.raises(Incompatible, match=f"'{addon.name}' works on updates, and 'centralized' sends none"):
        start(toy_cell(Centralized(), addon))


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (TopK, {"share": 0.0}, r"addon\.topk\.share must lie in \(0, 1\], got 0\.0"),
        (TopK, {"share": 1.5}, r"addon\.topk\.share must lie in \(0, 1\], got 1\.5"),
        (Quantise, {"bits": 1}, r"addon\.quantise\.bits must lie in \[2, 16\], got 1"),
    ],
)
def test_settings_outside_their_domain_are_one_line(cls, values, message):
    with pytest.raises(UserError, match=message):
        cls(**values)
