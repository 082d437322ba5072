"""Federated training written again in NumPy float64: a small net with its own backward pass, SGD, weighted means.

Nothing here uses torch or the engine beyond the batches, the first weights and the numbers of the protocol.
"""

import numpy as np

from fedspan.benchmark.task import Partition
from tests.helpers import start, toy_cell
from tests.toys import toy

TANH = {"here": np.tanh, "slope": lambda out: 1 - out**2}
RELU = {"here": lambda into: np.maximum(into, 0), "slope": lambda out: out > 0}
LINEAR = {"here": lambda into: into, "slope": np.ones_like}

DOUBLE = {"precision": "float64"}


def numbers(tree):
    """Return a tree of tensors as float64 arrays of their own."""
    return {path: leaf.detach().numpy().astype(np.float64) for path, leaf in tree.items()}


class Net:
    """Layers (path, activation) in order; the last one is the head, what it reads are the features."""

    def __init__(self, *layers):
        self.layers = [*layers, ("head", LINEAR)]

    def outs(self, w, x):
        """Return the input and the output of every layer."""
        outs = [x]
        for path, activation in self.layers:
            outs.append(activation["here"](outs[-1] @ w[f"{path}.weight"].T + w[f"{path}.bias"]))
        return outs

    def features(self, w, x):
        return self.outs(w, x)[-2]

    def logits(self, w, x):
        return self.outs(w, x)[-1]

    def gradient(self, w, x, to_logits, to_features=0.0):
        """Return the gradient in all weights from those in logits and features."""
        outs, grads = self.outs(w, x), {}
        back = to_logits
        for number, (path, activation) in reversed(list(enumerate(self.layers))):
            back = back * activation["slope"](outs[number + 1])
            grads[f"{path}.weight"], grads[f"{path}.bias"] = back.T @ outs[number], back.sum(0)
            back = back @ w[f"{path}.weight"]
            if number == len(self.layers) - 1:
                back = back + to_features
        return grads


PLAIN = Net(("body.1", TANH))  # tests.toys.PlainNet


def softmax(logits):
    shares = np.exp(logits - logits.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


def one_hot(y, classes):
    return np.eye(classes)[y]


def cross_entropy_slope(logits, y):
    """Return the gradient of the mean cross-entropy in the logits."""
    return (softmax(logits) - one_hot(y, logits.shape[1])) / len(y)


def plain_gradient(w, x, y, net=PLAIN):
    """Return the gradient of the mean cross-entropy in all weights."""
    return net.gradient(w, x, cross_entropy_slope(net.logits(w, x), y))


def batches(run, client, round, epochs=None):
    """Return a client's batches of a round as arrays, images as rows."""
    epochs = range(run.cell.protocol.local_epochs) if epochs is None else epochs
    return [
        (x.numpy().astype(np.float64).reshape(len(x), -1), y.numpy())
        for epoch in epochs
        for x, y in run.trainer.data.epoch(client, round, epoch)
    ]


def sgd(w, batches, gradient, lr, momentum, weight_decay, moves=lambda path: True, beside=None):
    """Return (weights, steps) after SGD; `beside` is added to every step, past the momentum."""
    w, m = dict(w), {}
    for x, y in batches:
        grads = gradient(w, x, y)
        for path in filter(moves, w):
            g = grads[path] + weight_decay * w[path]
            m[path] = momentum * m[path] + g if path in m else g
        w |= {path: w[path] - lr * m[path] + (beside[path] if beside else 0) for path in m}
    return w, len(batches)


def trained_by_hand(run, w, client, round, gradient=plain_gradient, **more):
    """Return (weights, steps) of one client's round under the run's protocol."""
    p = run.cell.protocol
    return sgd(w, batches(run, client, round), gradient, p.lr_at(round), p.momentum, p.weight_decay, **more)


def mean(trees, weights):
    """Return the weighted mean of trees."""
    share = np.array(weights, dtype=np.float64) / np.sum(weights)
    return {path: sum(s * tree[path] for s, tree in zip(share, trees, strict=True)) for path in trees[0]}


def minus(a, b):
    return {path: a[path] - b[path] for path in a}


def plus(a, b, scale=1.0):
    return {path: a[path] + scale * b[path] for path in a}


def norm(tree):
    return np.sqrt(sum((leaf**2).sum() for leaf in tree.values()))


def fresh(algorithm, **parts):
    """Return a run in float64 with clients of 1 to 37 images, half of which take part in a round."""
    protocol = DOUBLE | parts.pop("protocol", {})
    return start(toy_cell(algorithm, protocol=protocol, **({"participation": 0.5} | parts)))


@toy("partition", "by_class")
class ByClass(Partition):
    """Client k holds images of class k mod 3 alone, the first client one of them."""

    def split(self, labels, classes, clients, rng):
        halves = [np.flatnonzero(labels == c) for c in range(classes)]
        cut = [1, 9, 14]
        return [half[: cut[c]] for c, half in enumerate(halves)] + [half[cut[c] :] for c, half in enumerate(halves)]


def finished(run):
    while not run.finished:
        run.advance()
    return run


def sizes(run, clients):
    return [run.trainer.data.size(client) for client in clients]


def counts(run, client, classes=3):
    """Return the client's images per class."""
    return np.bincount(run.trainer.data.train.y[run.trainer.data.indices[client]].numpy(), minlength=classes)


def federated(run, local, server=plus):
    """Return the weights after all rounds of `local(weights, client, round)`, averaged and given to `server`."""
    w = numbers(run.state.params)
    for round in range(run.cell.protocol.rounds):
        run.state.round = round
        chosen = run.participants()
        ends = [minus(local(w, client, round), w) for client in chosen]
        w = server(w, mean(ends, sizes(run, chosen)))
    run.state.round = 0
    return w


def agree(tree, expected, tolerance=1e-10):
    """Assert equality to a relative error over the whole tree."""
    assert set(tree) == set(expected)
    got = numbers(tree)
    error = norm(minus(got, expected)) / norm(expected)
    assert error <= tolerance, f"relative error {error:.2e}"
