"""FedProto."""

from collections.abc import Mapping
from typing import Annotated, Literal

from torch import Tensor, nn

from fedspan.benchmark.component import Aggregate, Component, Local, Step, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.head import BIAS, WEIGHT
from fedspan.benchmark.net import one_hot
from fedspan.benchmark.registry import later
from fedspan.benchmark.search import log
from fedspan.benchmark.tree import Tree, add, scale


@algorithm("fedproto")
class FedProto(Component):
    """Tan et al. 2022 (AAAI), Algorithm 1: clients keep their models and share prototypes, mean features of classes.

    A client's loss adds ``weight`` times the mean squared difference between features and the global prototypes of
    their classes (Eq. 7), where these exist: the first round is local training. Clients send their own prototypes (Eq.
    3), and the server averages them per class (Eq. 6). No weights are sent. The stage ``trained`` scores the clients'
    models; ``personalised`` classifies features by the nearest global prototype, which a head without bias cannot
    express: there it equals ``trained``.

    Where the paper and the authors' code differ, the default follows the code, except for the nearest prototype:

    - prototypes: ``last_epoch`` averages the features computed in the last local epoch, while the weights move;
      ``final`` is Eq. 3, with the final weights and without augmentation.
    - mean: ``clients`` weighs clients equally, ``samples`` by numbers of samples (Eq. 6, without its division by the
      number of clients).
    - Eq. 7 compares a client's prototypes; the code, as here, compares each image's features, also averaging over
      dimensions.
    - nearest: the prototype is searched among ``all`` classes, as in the paper, or among the client's ``own`` (code).
    - An upload is counted with a row for every class, including those that the client does not hold.
    - The code trains all clients; here a class that no participant holds keeps its prototype.

    A class without a prototype gets a logit of -1e9: each test image of such a class adds about 1e9 to the loss of the
    stage ``personalised``, whose accuracy is the one to read.
    """

    title = "FedProto"
    summary = "Clients share class prototypes, the mean features of each class, instead of weights."
    papers = ("tan2022",)
    wording = {
        "prototypes": {"final": "prototypes of the last weights"},
        "nearest": {"all": "", "own": "nearest of own classes"},
    }

    weight: Annotated[float, log(0.01, 10.0, source="ours, around the authors' 1, and 0.1 for CIFAR10")] = 1.0
    prototypes: Literal["last_epoch", "final"] = "last_epoch"
    mean: Literal["clients", "samples"] = "clients"
    nearest: Literal["all", "own"] = later("all")
    coefficient = "weight"

    def __post_init__(self) -> None:
        require(self.weight >= 0, "algorithm.weight", "must not be negative", self.weight)

    @property
    def idle(self) -> frozenset[str]:
        return frozenset({"carry"} if self.prototypes == "final" else ())

    def shared(self, path: str, module: nn.Module) -> bool:
        return False

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        sums = params[WEIGHT].new_zeros(params[WEIGHT].shape)
        nothing = {"sums": sums, "counts": sums[:, 0].clone()}
        return {"prototypes": sums.clone(), "known": sums[:, 0].clone()}, {} if "carry" in self.idle else nothing

    def broadcast(self, server: Mapping[str, Tensor]) -> Tree:
        return dict(server)

    def penalty(self, step: Step) -> Tensor:
        gaps = (step.features - step.server["prototypes"][step.y]).square().mean(1)
        return self.weight * (gaps * step.server["known"][step.y]).mean()

    def carry(self, grads: Tree, step: Step) -> Tree:
        later = 1.0 * (step.number > 0)
        last = 1.0 * (step.epoch == (step.steps - 1) // step.epoch_steps)
        fresh = scale(sums_by_class(step.features, step.y, len(step.counts)), last)
        return add(scale(step.client, later), fresh)

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Tree, Tree]:
        mine = dict(local.client)
        if self.prototypes == "final":
            mine = sums_by_class(local.apply(local.params)[0], local.y, len(local.counts))
        if self.mean == "clients":
            held = (mine["counts"] > 0).to(mine["counts"])
            mine = {"sums": mine["sums"] / mine["counts"].clamp(min=1)[:, None], "counts": held}
        return delta, mine, dict(local.client)

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        sums, counts = agg.sums["sums"], agg.sums["counts"]
        held = (counts > 0).to(sums)
        means = sums / counts.clamp(min=1)[:, None]
        kept = agg.server["prototypes"] * (1 - held)[:, None]
        return delta, {"prototypes": means * held[:, None] + kept, "known": agg.server["known"].maximum(held)}

    def own(self, params: Tree, local: Local) -> Tree:
        """Return the head whose largest logit, 2 p z - |p|^2, belongs to the prototype p nearest to the features z."""
        if BIAS not in params:
            return {}
        prototypes, known = local.server["prototypes"], local.server["known"]
        if self.nearest == "own":
            known = known * (local.counts > 0)
        far = (known - 1) * 1e9
        return {WEIGHT: 2 * prototypes, BIAS: far - prototypes.square().sum(1)}


def sums_by_class(features: Tensor, y: Tensor, classes: int) -> Tree:
    """Return the sums [classes, d] and counts [classes] of features [n, d] by class."""
    members = one_hot(y, classes, features.dtype)
    return {"sums": members.T @ features, "counts": members.sum(0)}
