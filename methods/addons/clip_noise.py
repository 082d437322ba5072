"""Client-level differential privacy: clipped updates, and noise on their sum."""

import math
import sys
import warnings
from typing import Annotated, Any

import torch
from torch import Tensor

from fedspan.benchmark.component import Aggregate, Component, Local, Setting, addon
from fedspan.benchmark.errors import Incompatible, UserError, how_to_install, require
from fedspan.benchmark.search import fixed, log
from fedspan.benchmark.tree import Tree, root, scale, sqnorm

MOST_NOISE = 1e6


@addon("clip_noise")
class ClipNoise(Component):
    """McMahan et al. 2018 (ICLR), Algorithm 1: clip each client's update and add Gaussian noise to the sum.

    Updates longer than `clip` are scaled down to that length (the paper's flat clipping). The server adds noise of
    standard deviation ``noise clip`` to the sum of updates and divides by the expected number of participants per
    round. Clients have equal weights, so more images give no client more influence.

    The stage ``privacy`` of a record holds the epsilon that the whole training spends at `delta`, computed by Opacus'
    accountant of Renyi differential privacy: it bounds what the global models of all rounds reveal about whether a
    client's update was used or was 0. With ``protocol.sampling=poisson`` clients are sampled independently, as in the
    paper, and epsilon accounts for that; otherwise, and with full participation, it is the epsilon of a client that
    takes part in every round. A cell that would spend more than `epsilon` is refused before it trains.

    Anything else that clients send would not be private: statistics of BatchNorm or of features, control variates,
    single updates. Components that send them are refused by name. Choosing settings by the results of several cells
    spends more than the epsilon of each, and so does choosing the `best` round. The noise is simulated, in floating
    point.
    """

    title = "Client-level DP"
    summary = "Clients clip their updates and the server adds noise to the sum: client-level differential privacy."
    papers = ("mcmahan2018",)
    wording = {"noise": "noise {}", "clip": "clip {}", "epsilon": "", "delta": "delta {}"}
    identifying = ("noise",)

    clip: Annotated[float, log(0.1, 10.0, source="ours")] = 1.0
    noise: Annotated[float, fixed("it sets epsilon")] = 1.0
    delta: Annotated[float, fixed("it belongs to the guarantee")] = 1e-5
    epsilon: Annotated[float | None, fixed("a bound, which changes no number")] = None

    def __post_init__(self) -> None:
        require(self.clip > 0, "addon.clip_noise.clip", "must be positive", self.clip)
        require(self.noise > 0, "addon.clip_noise.noise", "must be positive", self.noise)
        require(0 < self.delta < 1, "addon.clip_noise.delta", "must lie between 0 and 1", self.delta)
        if self.epsilon is not None:
            require(self.epsilon > 0, "addon.clip_noise.epsilon", "must be positive", self.epsilon)

    def check(self, setting: Setting) -> None:
        if self.delta * setting.clients >= 1:
            raise Incompatible(
                f"addon.clip_noise.delta={self.delta:g} promises nothing to one of {setting.clients} clients; "
                f"it must be below {1 / setting.clients:g}"
            )

    def weights(self, counts: Tensor, samples: int) -> Tensor:
        return torch.ones(len(counts), dtype=counts.dtype)

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Tree, Tree]:
        factor = (self.clip / root(sqnorm(delta))).clamp(max=1)
        return {path: leaf * factor.to(leaf) for path, leaf in delta.items()}, {}, {}

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        mean = scale(delta, agg.participants / agg.expected)
        deviation = self.noise * self.clip / agg.expected
        return {path: leaf + deviation * _normal(leaf, agg.rng) for path, leaf in mean.items()}, {}

    def privacy(self, setting: Setting) -> tuple[float, float]:
        protocol = setting.protocol
        rate = setting.participation if protocol.sampling == "poisson" else 1.0
        spent = epsilon_of(self.noise, rate, protocol.rounds, self.delta)
        if self.epsilon is not None and spent > self.epsilon:
            raise Incompatible(
                f"addon.clip_noise.noise={self.noise:g} spends epsilon {spent:.4g} at delta {self.delta:g} in "
                f"{protocol.rounds} rounds, more than addon.clip_noise.epsilon={self.epsilon:g}; "
                f"{enough(self.epsilon, rate, protocol.rounds, self.delta)}"
            )
        return spent, self.delta


def _normal(like: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=rng, dtype=like.dtype).to(like.device)


def epsilon_of(noise: float, rate: float, rounds: int, delta: float) -> float:
    """Return the epsilon at `delta` of `rounds` Gaussian mechanisms, each including a client with probability `rate`.

    If `noise` squared underflows to 0, return the largest float.
    """
    if noise**2 == 0:
        return sys.float_info.max
    accountant = _accountants().create_accountant("rdp")
    accountant.history = [(noise, rate, rounds)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Opacus: other orders may give a tighter bound
        return float(accountant.get_epsilon(delta))


def enough(epsilon: float, rate: float, rounds: int, delta: float) -> str:
    """Return a hint, for an error message, at the noise that keeps within `epsilon`."""
    noise = 1.0
    while epsilon_of(noise, rate, rounds, delta) > epsilon:
        if noise > MOST_NOISE:
            return "no noise keeps within it"
        noise *= 1.05
    return f"noise={math.ceil(noise * 100) / 100:g} keeps within it"


def _accountants() -> Any:
    try:
        from opacus import accountants
    except ImportError:
        raise UserError(
            f"addon clip_noise counts epsilon with the package opacus: {how_to_install('privacy')}"
        ) from None
    return accountants
