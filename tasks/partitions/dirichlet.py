"""Label skew from a Dirichlet distribution."""

from collections.abc import Sequence

import numpy as np

from fedspan.benchmark.errors import UserError, require
from fedspan.benchmark.task import Partition, grouped, partition

ATTEMPTS = 1000


@partition("dirichlet")
class Dirichlet(Partition):
    """Each class is spread over the clients by proportions from Dir(alpha) (Yurochkin et al. 2019; Shi et al. 2023).

    ``balanced=true`` follows FedDecorr's released code (2023): a client that already holds N/clients samples gets none
    of the later classes. The paper does not mention this. ``false`` is the plain form in the papers. Both redraw until
    every client has `min_size` samples, at most 1,000 times. Cut points are truncated to integers, and the last client
    gets the rest of a class: if it is full, rounding may still give it one image. Hsu et al. 2019, often cited for this
    partition, draw each client's proportions of classes instead, for clients of equal size.
    """

    title = "Dirichlet"
    summary = "Each class is spread over the clients by proportions from a Dirichlet distribution: label skew."
    papers = ("yurochkin2019", "shi2023")
    wording = {"balanced": {False: "plain draw", True: "balanced draw"}, "min_size": "{} or more images each"}

    version = 2
    skew_field = "alpha"

    alpha: float = 0.5
    balanced: bool = True
    min_size: int = 10

    def __post_init__(self) -> None:
        require(self.alpha > 0, "partition.alpha", "must be positive (for no skew use partition=iid)", self.alpha)
        require(self.min_size >= 1, "partition.min_size", "must be at least 1", self.min_size)

    def split(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        if self.min_size * clients > len(labels):
            raise UserError(
                f"partition.min_size={self.min_size} for clients={clients} needs {self.min_size * clients} images, "
                f"there are {len(labels)}; lower partition.min_size or clients"
            )
        by_class = grouped(labels, classes)
        counts = self._counts(np.array([len(members) for members in by_class]), clients, rng)
        owner = np.empty(len(labels), dtype=np.min_scalar_type(clients - 1))
        for members, shares in zip(by_class, counts, strict=True):
            owner[rng.permutation(members)] = np.repeat(np.arange(clients), shares)
        return grouped(owner, clients)

    def _counts(self, class_sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return the number of samples per class and client, [classes, clients], before shuffling."""
        total = class_sizes.sum()
        for _ in range(ATTEMPTS):
            counts = self._draw(class_sizes, clients, rng)
            if counts is not None and counts.sum(0).min() >= self.min_size:
                return counts
        smaller = "min_size or clients" if self.min_size > 1 else "clients"
        raise UserError(
            f"no draw of {ATTEMPTS} gave each of clients={clients} at least partition.min_size={self.min_size} "
            f"of {total} images at partition.alpha={self.alpha}; lower {smaller}, or raise alpha"
        )

    def _draw(self, class_sizes: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray | None:
        """Return one draw of the counts, or None if only full clients have a share of some class."""
        shares = rng.dirichlet(np.full(clients, self.alpha), size=len(class_sizes))
        if not self.balanced:
            return _cut(shares, class_sizes[:, None])
        fair = class_sizes.sum() / clients
        counts = np.zeros(shares.shape, dtype=np.int64)
        held = np.zeros(clients, dtype=np.int64)
        for label, size in enumerate(class_sizes):
            open_shares = shares[label] * (held < fair)
            if not open_shares.sum() > 0:
                return None
            counts[label] = _cut(open_shares, size)
            held += counts[label]
        return counts


def _cut(shares: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return integer counts in proportion to `shares` along the last axis; the last one takes the remainder."""
    cuts = (np.cumsum(shares / shares.sum(-1, keepdims=True), axis=-1) * sizes).astype(np.int64)
    cuts[..., -1:] = sizes
    return np.diff(cuts, axis=-1, prepend=0)
