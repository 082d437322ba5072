"""Fed-RoD against NumPy float64: the generic model, and each client's head on top of it."""

import numpy as np
import pytest

from fedspan.benchmark.errors import Incompatible
from fedspan.benchmark.training.scoring import score_stages
from fedspan.benchmark.tree import under
from fedspan.methods.addons.spherefed import SphereFed
from fedspan.methods.algorithms.fedrod import FedRoD
from tests.helpers import start, toy_cell, trained
from tests.methods.by_hand import (
    PLAIN,
    ByClass,
    agree,
    batches,
    counts,
    cross_entropy_slope,
    fresh,
    mean,
    minus,
    numbers,
    plus,
    sizes,
    trained_by_hand,
)
from tests.toys import NormNet

CLIENTS = range(6)
HEAD = ("head.weight", "head.bias")


def balanced(run, client, gamma, least):
    """Return the gradient of the balanced softmax in all weights; a class has at least `least` images."""
    with np.errstate(divide="ignore"):
        prior = gamma * np.log(np.maximum(counts(run, client), least)) if gamma else 0.0

    def gradient(w, x, y):
        return PLAIN.gradient(w, x, cross_entropy_slope(PLAIN.logits(w, x) + prior, y))

    return gradient


def personal_by_hand(run, w, own, client, round, gradient):
    """Return the personal head after a round: at every batch the generic weights of that moment, which move beside."""
    p = run.cell.protocol
    lr, momentum, speed, moving = p.lr_at(round), dict.fromkeys(HEAD, 0.0), {}, dict(w)
    for x, y in batches(run, client, round):
        z = PLAIN.features(moving, x)
        slope = cross_entropy_slope(PLAIN.logits(moving, x) + z @ own["head.weight"].T + own["head.bias"], y)
        for path, g in (("head.weight", slope.T @ z), ("head.bias", slope.sum(0))):
            momentum[path] = p.momentum * momentum[path] + g + p.weight_decay * own[path]
            own = own | {path: own[path] - lr * momentum[path]}
        grads = gradient(moving, x, y)
        for path in moving:
            speed[path] = p.momentum * speed.get(path, 0.0) + grads[path] + p.weight_decay * moving[path]
        moving = {path: moving[path] - lr * speed[path] for path in moving}
    return own


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("parts", [{}, {"partition": ByClass()}], ids=["mixed", "one class each"])
@pytest.mark.parametrize(("public", "least", "begin"), [({}, 0, 0), ({"absent": "kept", "start": "generic"}, 1, 1)])
def test_all_rounds_train_both_heads(gamma, parts, public, least, begin):
    run = fresh(FedRoD(gamma=gamma, **public), protocol={"schedule": "cosine"}, **parts)
    w = numbers(run.state.params)
    own = {k: {path: begin * w[path] for path in HEAD} for k in CLIENTS}
    while not run.finished:
        chosen, ends = run.participants(), []
        for k in chosen:
            gradient = balanced(run, k, gamma, least)
            own[k] = personal_by_hand(run, w, own[k], k, run.state.round, gradient)
            ends.append(minus(trained_by_hand(run, w, k, run.state.round, gradient)[0], w))
        w = plus(w, mean(ends, sizes(run, chosen)))
        run.advance()
        agree(run.state.params, w)
        for k in run.state.rows:
            agree(under("own", run.state.row(k).states["fedrod"]), own[k])


def test_a_client_s_model_adds_its_logits_to_the_generic_ones():
    run = trained(toy_cell(FedRoD(), model=NormNet(), partition=ByClass(), protocol={"rounds": 6}))
    scores = score_stages(run)
    assert scores["trained"]["accuracy"] is not None, "there is a global model too"
    net, params = run.trainer.net, numbers(run.state.params)
    right = []
    for client in CLIENTS:
        run.trainer.load(run.state, run.state.row(client))
        net.eval()
        own = numbers(under("own", run.state.row(client).states["fedrod"]))
        for x, y in run.trainer.data.in_order(run.trainer.data.test, 30):
            z = net.body(x).detach().numpy()
            logits = z @ (params["head.weight"] + own["head.weight"]).T + params["head.bias"] + own["head.bias"]
            right.append(100 * float((logits.argmax(1) == y.numpy()).mean()))
    assert scores["personalised"]["client_accuracy"] == pytest.approx(np.mean(right))
    assert scores["personalised"]["client_accuracy"] != scores["trained"]["accuracy"]


def test_personal_heads_never_travel():
    run, plain = (start(toy_cell(algorithm)) for algorithm in (FedRoD(), None))
    for one in (run, plain):
        one.advance()
    assert run.meter.bytes == plain.meter.bytes


def test_another_loss_is_refused():
    with pytest.raises(Incompatible, match=r"'fedrod' and 'spherefed' both replace 'loss'"):
        start(toy_cell(FedRoD(), SphereFed()))
