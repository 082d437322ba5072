"""Label skew with a personal test set for each client."""

import numpy as np

from fedspan.benchmark.errors import require
from fedspan.benchmark.task import Data, Split, partition
from fedspan.tasks.partitions.dirichlet import Dirichlet


@partition("personal")
class Personal(Dirichlet):
    """Training and test images are merged and spread by `dirichlet`; each client is tested on `held_back` of its own.

    SphereFed (Dong et al. 2022, App. B): a random share of 0.15, rounded (halves to even), at least one image. The
    paper does not mention balancing, so its form, the default, is ``balanced=false``.
    """

    title = "Personal Dirichlet"
    summary = "Dirichlet label skew, and each client is tested on held-back images of its own."
    papers = ("dong2022", "yurochkin2019")
    wording = {"held_back": "{:.0%} of each client for its test"}
    identifying = ("held_back",)

    balanced: bool = False
    held_back: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.min_size >= 2, "partition.min_size", "must be at least 2: to train and to test", self.min_size)
        require(0 < self.held_back < 1, "partition.held_back", "must lie in (0, 1)", self.held_back)

    def assign(self, data: Data, clients: int, rng: np.random.Generator) -> Split:
        labels = np.concatenate([data.train.y.numpy(), data.test.y.numpy()])
        train, test = [], []
        for mine in self.split(labels, len(data.classes), clients, rng):
            held_back = min(max(1, round(self.held_back * len(mine))), len(mine) - 1)
            mine = rng.permutation(mine)
            test.append(mine[:held_back])
            train.append(mine[held_back:])
        return Split(tuple(train), tuple(test), pooled=True)
