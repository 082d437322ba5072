"""The toy task, a net with and one without BatchNorm, and toy methods that together use every hook."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fedspan.benchmark.component import Component
from fedspan.benchmark.net import Net, Unit, one_hot
from fedspan.benchmark.registry import KINDS
from fedspan.benchmark.task import Data, Dataset, Images, Model, Partition, content_digest
from fedspan.benchmark.tree import add, prefixed, scale, sub, under, zeros
from fedspan.methods.algorithms.fedavg import FedAvg

CLIENTS = 6
CLASSES = 3


def toy(kind: str, name: str) -> Callable[[type], type]:
    """Make a plugin that no registry knows, so that tests cannot disturb each other."""
    assert kind in KINDS

    def make(cls: type) -> type:
        plugin = dataclasses.dataclass(frozen=True)(cls)
        plugin.kind, plugin.name = kind, name
        return plugin

    return make


@toy("dataset", "blobs")
class Blobs(Dataset):
    """Three noisy patterns of 6x6 pixels with two channels."""

    train: int = 94
    test: int = 30

    def load(self, cache: Path) -> Data:
        rng = np.random.default_rng(0)
        patterns = rng.integers(0, 256, (CLASSES, 6, 6, 2))

        def images(n: int) -> Images:
            y = np.arange(n) % CLASSES
            x = np.clip(patterns[y] + rng.normal(0, 60, (n, 6, 6, 2)), 0, 255).astype(np.uint8)
            return Images(torch.from_numpy(x), torch.from_numpy(y))

        train, test = images(self.train), images(self.test)
        return Data(train, test, ("a", "b", "c"), (0.5, 0.4), (0.25, 0.3), content_digest(train.x, test.x))


@toy("partition", "ragged")
class Ragged(Partition):
    """Clients of very different sizes, the first with one image."""

    def split(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        weights = np.arange(1, clients + 1) ** 2
        cuts = (np.cumsum(weights) / weights.sum() * len(labels)).astype(int)[:-1]
        return np.split(rng.permutation(len(labels)), cuts)


@toy("model", "plain_net")
class PlainNet(Model):
    """One smooth hidden layer."""

    width: int = 5

    def build(self, shape: tuple[int, int, int], classes: int) -> Net:
        body = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), self.width), nn.Tanh())
        return Net(body, nn.Linear(self.width, classes))


@toy("model", "norm_net")
class NormNet(Model):
    """A convolution with BatchNorm."""

    def build(self, shape: tuple[int, int, int], classes: int) -> Net:
        body = nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())
        return Net(body, nn.Linear(4 * ((shape[1] - 2) // 2) * ((shape[2] - 2) // 2), classes))


# toy methods ---------------------------------------------------------------------------------------


def in_head(path: str) -> bool:
    return path.startswith("head.")


@toy("algorithm", "toy_momentum")
class ServerMomentum(Component):
    """State on the server, as in Hsu et al. 2019."""

    beta: float = 0.5

    def init(self, params, shared, buffers):
        return {"m": torch.zeros(())} | prefixed("m", zeros(shared)), {}

    def server(self, delta, agg):
        m = add(scale(under("m", agg.server), self.beta), delta)
        return m, {"m": agg.server["m"] + 1} | prefixed("m", m)


@toy("algorithm", "toy_scaffold")
class Scaffold(Component):
    """State on both sides, as in Karimireddy et al. 2020."""

    def init(self, params, shared, buffers):
        return zeros(shared), zeros(shared)

    def broadcast(self, server):
        return dict(server)

    def shift(self, step):
        return scale(sub(step.client, step.server), step.lr)

    def client_end(self, delta, local):
        speed = 1 / (local.steps * local.protocol.lr_at(local.round))
        c = sub(sub(local.client, local.server), scale(delta, speed))
        return delta, sub(c, local.client), c

    def server(self, delta, agg):
        return delta, add(agg.server, scale(agg.sums, 1 / agg.clients))


@toy("algorithm", "toy_nova")
class Nova(Component):
    """Uploads plain numbers and rescales, as in Wang et al. 2020."""

    def client_end(self, delta, local):
        return scale(delta, 1 / local.steps), {"tau": local.n * local.steps, "third": local.n / 3}, dict(local.client)

    def server(self, delta, agg):
        return scale(delta, agg.sums["tau"] / (3 * agg.sums["third"])), dict(agg.server)


@toy("algorithm", "toy_fedbn")
class LocalNorm(Component):
    """BatchNorm stays with its client, as in Li et al. 2021."""

    def shared(self, path, module):
        return not isinstance(module, nn.modules.batchnorm._BatchNorm)


@toy("algorithm", "toy_fedrep")
class LocalHead(Component):
    """Own head first, then the shared body, as in Collins et al. 2021."""

    def shared(self, path, module):
        return not in_head(path)

    def phases(self, epochs):
        return [(1, in_head), (epochs, lambda path: not in_head(path))]


@toy("addon", "toy_sam")
class Sharpness(Component):
    """A second gradient at perturbed weights, as in Foret et al. 2021."""

    rho: float = 0.05

    def grads(self, grads, step):
        norm = torch.stack([g.square().sum() for g in grads.values()]).sum().sqrt() + 1e-12
        return step.grad_at({**step.params, **{k: step.params[k] + self.rho * g / norm for k, g in grads.items()}})


@toy("addon", "toy_moon")
class Contrast(Component):
    """Forward passes under other weights and a client's own memory, as in Li et al. 2021."""

    def init(self, params, shared, buffers):
        return {}, dict(params)

    def penalty(self, step):
        near, far = step.apply(step.start)[0], step.apply(step.client)[0]
        sims = [F.cosine_similarity(step.features, z) for z in (near, far)]
        return 0.1 * F.cross_entropy(torch.stack(sims, 1), torch.zeros_like(step.y))

    def client_end(self, delta, local):
        return delta, {}, dict(local.params)


@toy("addon", "toy_anchor")
class Anchor(Component):
    """The server remembers the first weights themselves, and each client where it last started."""

    def init(self, params, shared, buffers):
        return dict(shared), dict(params)

    def broadcast(self, server):
        return dict(server)

    def penalty(self, step):
        return 0.01 * torch.stack([(step.params[k] - w).square().sum() for k, w in step.server.items()]).sum()

    def client_end(self, delta, local):
        return delta, {}, dict(local.start)


@toy("addon", "toy_sphere")
class Sphere(Component):
    """Unit features, a frozen orthogonal head, squared loss, a closed-form head at the end, as in Dong et al. 2022."""

    def net(self, net, setting):
        head = nn.Linear(net.head.in_features, setting.classes, bias=False)
        nn.init.orthogonal_(head.weight)
        return Net(nn.Sequential(net.body, Unit()), head)

    def trainable(self, path):
        return not in_head(path)

    def loss(self, step):
        return F.mse_loss(step.logits, one_hot(step.y, step.logits.shape[1], step.logits.dtype))

    def stats(self, features, labels, classes):
        return {"zz": features.T @ features, "zy": features.T @ one_hot(labels, classes, features.dtype)}

    def calibration_cost(self, images, clients, features, classes):
        return clients * features * (features + classes), 2 * images * features * (features + classes)

    def calibrate(self, params, sums, rng):
        noise = 1e-6 * torch.rand(len(sums["zz"]), generator=rng, dtype=torch.float64)
        head = torch.linalg.solve(sums["zz"] + torch.diag(1e-3 + noise), sums["zy"]).T
        return {**params, "head.weight": head.to(params["head.weight"])}


@toy("addon", "toy_own_head")
class OwnHead(Component):
    """Each client moves its head towards its own class means, after training, as in Oh et al. 2022."""

    def personalise(self, params, features, labels, classes, rng):
        means = one_hot(labels, classes, features.dtype).T @ features / len(labels)
        step = 0.1 + 0.01 * torch.rand((), generator=rng).item()
        return {**params, "head.weight": params["head.weight"] + step * means}


@toy("addon", "toy_personal")
class Personal(Component):
    """An own closed-form head for each client after training."""

    def personalise(self, params, features, labels, classes, rng):
        z = features.double()
        noise = 1e-6 * torch.rand(z.shape[1], generator=rng, dtype=torch.float64)
        head = torch.linalg.solve(z.T @ z + torch.diag(0.1 + noise), z.T @ one_hot(labels, classes, z.dtype)).T
        return {**params, "head.weight": head.to(params["head.weight"])}


@toy("algorithm", "toy_balance")
class Balance(Component):
    """Weights of its own, by the balance of a client's classes, as in Ye et al. 2023."""

    def weights(self, counts, samples):
        shares = counts / counts.sum(1, keepdim=True)
        return (counts.sum(1) / samples - (shares - 1 / counts.shape[1]).abs().sum(1) / 10 + 0.2).relu()


@toy("algorithm", "toy_ditto")
class TwoModels(Component):
    """A second model that trains beside the first and is a client's own, as in Li et al. 2021."""

    pull: float = 0.5

    def init(self, params, shared, buffers):
        return {}, {**params, **buffers, "steps": torch.zeros(())}

    def carry(self, grads, step):
        own = {path: leaf for path, leaf in step.client.items() if path in step.params}
        rest = {path: leaf for path, leaf in step.client.items() if path not in own and path != "steps"}
        grads, rest = step.learn_at(own, rest)
        pulled = {path: g + self.pull * (own[path] - step.start[path]) for path, g in grads.items()}
        moved = {path: own[path] - step.lr * g for path, g in pulled.items()}
        return {**own, **moved, **rest, "steps": step.client["steps"] + 1.0 * (step.epoch == 1)}

    def own(self, params, local):
        return {path: leaf for path, leaf in local.client.items() if path != "steps"}


@toy("algorithm", "toy_adam")
class LocalMomentum(Component):
    """A local optimiser with a state of its own, new in every round."""

    def init(self, params, shared, buffers):
        return {}, zeros(params)

    def carry(self, grads, step):
        kept = 0.5 * (step.number > 0)
        return {path: m * kept + grads[path] if path in grads else m for path, m in step.client.items()}

    def grads(self, grads, step):
        late = 1.0 * (step.number >= step.steps - 1)
        return {path: step.client[path] - step.client[path] * late / 10 for path in grads}


@toy("addon", "toy_second_batch")
class SecondHalf(Component):
    """A gradient on half of a batch at weights that the other half moved, as in Fallah et al. 2020."""

    def grads(self, grads, step):
        half = len(step.y) // 2
        inner = step.grad_at(step.params, slice(0, half) if half else None)
        moved = {path: step.params[path] - 0.1 * g for path, g in inner.items()}
        return step.grad_at({**step.params, **moved}, slice(half, None))


@toy("addon", "toy_adapted_start")
class AdaptedStart(Component):
    """Clients begin from weights fitted to images drawn from theirs, as in Zhang et al. 2023."""

    def init(self, params, shared, buffers):
        return {}, {"wrong": next(iter(params.values())).new_zeros(())}

    def client_start(self, params, local):
        rows = torch.randperm(local.n, generator=local.rng)[: local.n // 2 + 1]
        features, logits = local.apply(params)
        wrong = (logits.argmax(1) != local.y).to(features.dtype).mean()
        speed = 0.05 * (wrong + local.client["wrong"])
        _, grads = local.loss_at(params, rows)
        adapted = {path: leaf - speed * grads[path] if path in grads else leaf for path, leaf in params.items()}
        return adapted, {"wrong": wrong}

    def own(self, params, local):
        grads = local.grad_at(params)
        return {path: params[path] - 0.1 * g for path, g in grads.items()}


@toy("addon", "toy_rounded")
class Rounded(Component):
    """Noise at clients and server, and updates of few bits, as in Alistarh et al. 2017."""

    def client_end(self, delta, local):
        noise = {path: torch.rand(leaf.shape, generator=local.rng).to(leaf) for path, leaf in delta.items()}
        return {path: ((leaf * 100 + noise[path]).floor() / 100) for path, leaf in delta.items()}, {}, {}

    def wire(self, size, delta, local):
        return dataclasses.replace(size, bits=8, extra=size.extra + 32)

    def server(self, delta, agg):
        noise = {path: torch.randn(leaf.shape, generator=agg.rng).to(leaf) for path, leaf in delta.items()}
        return add(delta, scale(noise, 1e-3)), {}


@toy("addon", "toy_guard")
class Guard(Component):
    """Stands between clients and server, as in McMahan et al. 2018."""

    def client_end(self, delta, local):
        return {path: leaf.clamp(-0.1, 0.1) for path, leaf in delta.items()}, {}, dict(local.client)

    def server(self, delta, agg):
        noise = {path: torch.randn(leaf.shape, generator=agg.rng).to(leaf) for path, leaf in delta.items()}
        return add(scale(delta, agg.participants / agg.expected), scale(noise, 1e-3)), dict(agg.server)

    def privacy(self, setting):
        return setting.protocol.rounds / 10, 1e-5


@toy("algorithm", "toy_median")
class Median(Component):
    """Looks at single updates, as in Yin et al. 2018."""

    def aggregate(self, updates, agg):
        return {
            path: torch.stack([tree[path] for _, tree in sorted(updates.items())]).median(0).values
            for path in next(iter(updates.values()))
        }


@toy("algorithm", "toy_messages")
class Messages(Component):
    """Pulls each client to a noisy mean of what the others sent last, as in Huang et al. 2021."""

    def init(self, params, shared, buffers):
        return {"pull": torch.full((), 0.1, dtype=next(iter(params.values())).dtype)}, {}

    def broadcast(self, server):
        return dict(server)

    def message(self, download):
        others = [tree for client, tree in sorted(download.sent.items()) if client != download.client]
        found = {}
        for path, leaf in download.params.items():
            near = torch.stack([tree[path] for tree in others]).mean(0) if others else leaf
            found[path] = near + 0.01 * torch.randn(leaf.shape, generator=download.rng).to(leaf)
        return found

    def penalty(self, step):
        return step.server["pull"] * sum((w - step.server[path]).square().sum() for path, w in step.params.items())


@toy("addon", "toy_prototypes")
class Prototypes(Component):
    """Class means under a client's last model, summed, as in Tan et al. 2022."""

    def init(self, params, shared, buffers):
        return {"sums": torch.zeros_like(params["head.weight"])}, {}

    def broadcast(self, server):
        return dict(server)

    def penalty(self, step):
        means = step.server["sums"] / (1 + step.server["sums"].abs().sum())
        return 0.1 * (step.features - means[step.y]).square().mean()

    def client_end(self, delta, local):
        features, _ = local.apply(local.params)
        return delta, {"sums": one_hot(local.y, len(local.counts), features.dtype).T @ features}, {}

    def server(self, delta, agg):
        return delta, {"sums": agg.sums["sums"].to(agg.server["sums"])}


def toy_stacks() -> dict[str, tuple[Component, ...]]:
    """Return stacks of toy components by name: base first."""
    return {
        "server state": (ServerMomentum(),),
        "server and client state": (Scaffold(),),
        "plain numbers as uploads": (Nova(),),
        "own BatchNorm": (LocalNorm(),),
        "own head in phases": (LocalHead(),),
        "second gradient": (FedAvg(), Sharpness()),
        "client memory": (FedAvg(), Contrast()),
        "state that is the weights": (FedAvg(), Anchor()),
        "frozen head, calibrated": (FedAvg(), Sphere()),
        "own heads at the end": (LocalNorm(), OwnHead()),
        "own head afterwards": (FedAvg(), Personal()),
        "weights of its own": (Balance(),),
        "two models": (TwoModels(),),
        "state from step to step": (LocalMomentum(),),
        "two halves of a batch": (FedAvg(), SecondHalf()),
        "a start of its own": (FedAvg(), AdaptedStart()),
        "noise, few bits": (FedAvg(), Rounded()),
        "between clients and server": (LocalNorm(), Guard()),
        "single updates": (Median(),),
        "messages to single clients": (Messages(),),
        "features of the last model": (FedAvg(), Prototypes()),
        "stack of the later hooks": (TwoModels(), Rounded(), Prototypes(), Personal()),
        "stack": (Scaffold(), Sharpness(), Contrast()),
    }
