"""Our methods beside released code that ran itself: where its rounds ended, ours end, to 1e-10 in float64.

`released/NAME.json` holds the weights that the code of the authors, or of a well-known library, computed on the problem
below from our first weights and batches. It names repository, commits, what stood in for loaders and logs, what differs
from ours. Nothing of that code is in this repository.
"""

import json
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedspan.benchmark.net import Net
from fedspan.benchmark.task import Data, Dataset, Images, Model, Partition, content_digest
from fedspan.benchmark.tree import under
from fedspan.methods.algorithms.ditto import Ditto
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.feddyn import FedDyn
from fedspan.methods.algorithms.fedntd import FedNTD
from fedspan.methods.algorithms.fedproto import FedProto
from tests.helpers import start, toy_cell
from tests.toys import toy

FOLDER = Path(__file__).parent / "released"
SHAPE, CLASSES, MEAN, STD = (1, 6, 6), 4, 0.5, 0.25
TOLERANCE = 1e-10
FAR = 1e-4

# the problem; the released code ran on what these functions return ---------------------------------


def pictures(seed, n):
    """Return uint8 noise [n, 6, 6, 1] and labels [n] in blocks of six, so that neighbours share a class."""
    x = np.random.RandomState(seed).randint(0, 256, (n, *SHAPE[1:], SHAPE[0])).astype(np.uint8)
    return x, np.arange(n) // 6 % CLASSES


def pieces(sizes):
    """Return the images of each client: consecutive ones, of two or three classes."""
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


def tiny(seed):
    """Return a net of 119 weights without BatchNorm; the weights are uniform draws, rounded to float32."""
    body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 5), nn.Tanh())
    net, draws = Net(body, nn.Linear(5, CLASSES)), np.random.RandomState(seed)
    with torch.no_grad():
        for leaf in net.parameters():
            leaf.copy_(torch.from_numpy(draws.uniform(-0.5, 0.5, tuple(leaf.shape))))
    return net


def batches(seed, images, size, *, client, round, epoch):
    """Return a client's images of one local epoch, batch by batch; the last batch may be short."""
    order = np.random.RandomState([seed, client, round, epoch]).permutation(images)
    return np.split(order, range(size, len(order), size))


# ours ---------------------------------------------------------------------------------------------


@toy("dataset", "pictures")
class Pictures(Dataset):
    seed: int = 0
    images: int = 32

    def load(self, cache):
        x, y = (torch.from_numpy(part) for part in pictures(self.seed, self.images))
        return Data(Images(x, y), Images(x[:8], y[:8]), tuple("abcd"), (MEAN,), (STD,), content_digest(x, y))


@toy("partition", "pieces")
class Pieces(Partition):
    sizes: tuple[int, ...] = ()

    def split(self, labels, classes, clients, rng):
        return pieces(self.sizes)


@toy("model", "tiny")
class Tiny(Model):
    seed: int = 0

    def build(self, shape, classes):
        return tiny(self.seed)


@dataclass(frozen=True)
class Case:
    """One run of released code: `record` is its file, `facts` are what that says of this run."""

    record: dict
    facts: dict

    @property
    def ends(self):
        return {name: np.array(numbers) for name, numbers in self.facts["ends"].items()}

    def state(self, algorithm):
        """Return our state after the rounds of this run, with its participants and batches."""
        facts, seeds = self.facts, self.record["seeds"]
        sizes, size = facts["sizes"], facts["protocol"]["batch_size"]
        run = start(
            toy_cell(algorithm, dataset=Pictures(seed=seeds["images"], images=sum(sizes)),
                     partition=Pieces(sizes=tuple(sizes)), clients=len(sizes), model=Tiny(seed=seeds["weights"]),
                     protocol=facts["protocol"] | {"precision": "float64"})
        )  # fmt: skip
        data = run.trainer.data

        def epoch(client, round, epoch, steps=None):
            mine = pieces(sizes)[client]
            for rows in batches(seeds["batches"], mine, size, client=client, round=round, epoch=epoch):
                yield data.normalise(data.train.x[rows]), data.train.y[rows]

        data.epoch = epoch
        for clients in facts["participants"]:
            sums, _ = run.executor.run(run.state, clients)
            run.aggregate(sums)
            run.state.round += 1
        return run.state

    def tree(self, state, name):
        """Return one of our trees as a vector: "global", "prototypes", or "own" or "drift" and a client's number."""
        what, *client = name.split()
        if what == "global":
            tree = state.params
        elif what == "prototypes":
            return state.server["fedproto"]["prototypes"].numpy().ravel()
        else:
            row = state.row(int(client[0]))
            states = row.states
            tree = under("h", states["feddyn"]) if what == "drift" else row.own or under("v", states["ditto"])
        return np.concatenate([tree[path].detach().numpy().ravel() for path in self.record["order"]])

    def distances(self, algorithm):
        """Return by how much each of our trees ends away from the released code's."""
        state = self.state(algorithm)
        return {name: np.abs(self.tree(state, name) - end).max() for name, end in self.ends.items()}


METHODS = {"feddyn": FedDyn, "fedntd": FedNTD, "fedproto": FedProto, "ditto": Ditto, "ditto_pfllib": Ditto}


@cache
def case(name, clients):
    """Return the run of a file with `clients`, "equal" or "unequal"."""
    record = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return Case(record, record["cases"][clients])


# the comparison -----------------------------------------------------------------------------------

CASES = [
    ("feddyn", "equal"), ("fedntd", "equal"), ("fedntd", "unequal"), ("fedproto", "unequal"), ("ditto", "equal"),
    ("ditto_pfllib", "unequal"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "clients"), CASES)
def test_rounds_end_where_the_released_code_ended(name, clients):
    released = case(name, clients)
    distances = released.distances(METHODS[name](**released.facts["algorithm"]))
    assert {tree: far for tree, far in distances.items() if not far <= TOLERANCE} == {}


@pytest.mark.parametrize(("name", "clients"), CASES)
def test_fedavg_ends_elsewhere(name, clients):
    """So a method that did nothing could not pass; Ditto's global model alone is FedAvg's."""
    released = case(name, clients)
    plain = released.tree(released.state(FedAvg()), "global")
    for tree in released.ends.keys() - {"prototypes"}:
        far = np.abs(released.ends[tree] - (0 if "drift" in tree else plain)).max()
        if tree == "global" and METHODS[name] is Ditto:
            assert far <= TOLERANCE
        else:
            assert far > FAR


@pytest.mark.parametrize(("name", "clients", "off"), [
    ("fedproto", "unequal", FedProto(weight=0.0)), ("ditto", "equal", Ditto(lam=0.0)),
    ("ditto_pfllib", "unequal", Ditto(lam=0.0)),
])  # fmt: skip
def test_clients_that_train_alone_end_elsewhere(name, clients, off):
    distances = case(name, clients).distances(off)
    assert min(far for tree, far in distances.items() if tree != "global") > FAR


# rules of released code that are no defaults here: with each of them alone the rounds agree again ------


@pytest.mark.parametrize(("name", "mine", "theirs"), [
    ("feddyn", FedDyn, partial(FedDyn, share="divides")), ("ditto", Ditto, partial(Ditto, mean="clients")),
])  # fmt: skip
def test_where_clients_are_unequal_one_named_rule_makes_the_difference(name, mine, theirs):
    released = case(name, "unequal")
    settings = released.facts["algorithm"]
    assert max(released.distances(theirs(**settings)).values()) <= TOLERANCE
    assert max(released.distances(mine(**settings)).values()) > FAR


@pytest.mark.parametrize("name", METHODS)
def test_files_say_where_their_numbers_come_from(name):
    record = case(name, CASES[[each for each, _ in CASES].index(name)][1]).record
    assert record.keys() == {
        "repository", "files", "date", "versions", "replaced", "differences", "seeds", "order", "cases",
    }  # fmt: skip
    assert all(len(commit) == 40 for commit in record["files"].values())
