"""IID clients: no skew."""

from collections.abc import Sequence

import numpy as np

from fedspan.benchmark.task import Partition, partition


@partition("iid")
class IID(Partition):
    """A random permutation cut into equal parts, sizes differing by at most one (McMahan et al. 2017, Sec. 3)."""

    title = "IID"
    summary = "A random permutation, cut into equal parts: no skew."
    papers = ("mcmahan2017",)

    def split(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        return np.array_split(rng.permutation(len(labels)), clients)
