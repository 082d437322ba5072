"""Extreme label skew: a few classes per client."""

from collections.abc import Sequence

import numpy as np

from fedspan.benchmark.errors import UserError, require
from fedspan.benchmark.task import Partition, grouped, partition


@partition("pathological")
class Pathological(Partition):
    """Each client holds M classes, `classes_per_client` (McMahan et al. 2017, Sec. 3; Shi et al. 2023, App. C.5).

    McMahan et al. sort the images by class and deal two shards to each client, so most clients hold two classes; Shi et
    al. do not say how. Here clients, in random order, draw from the classes with the fewest holders so far, so holders
    per class differ by at most one; a class's samples are split evenly over its holders.
    """

    title = "Pathological"
    summary = "Each client holds a few classes only: label skew."
    papers = ("mcmahan2017", "shi2023")
    wording = {"classes_per_client": "{} classes per client"}
    identifying = ("classes_per_client",)

    classes_per_client: int = 2

    def __post_init__(self) -> None:
        require(
            self.classes_per_client >= 1, "partition.classes_per_client", "must be at least 1", self.classes_per_client
        )

    def split(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        each = self.classes_per_client
        if each > classes:
            raise UserError(f"partition.classes_per_client={each} is more than the {classes} classes; lower it")
        if clients * each < classes:
            raise UserError(
                f"clients={clients} with partition.classes_per_client={each} hold {clients * each} of {classes} "
                "classes at most; raise one of them"
            )
        holds = self._deal(classes, clients, rng)
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for label, members in enumerate(grouped(labels, classes)):
            holders = rng.permutation(np.flatnonzero(holds[:, label]))
            if len(members) < len(holders):
                raise UserError(
                    f"class {label} has {len(members)} images for the {len(holders)} clients that should hold it; "
                    "lower clients or partition.classes_per_client, or raise dataset.limit"
                )
            for client, share in zip(holders, np.array_split(rng.permutation(members), len(holders)), strict=True):
                parts[client].append(share)
        return [np.concatenate(shares) for shares in parts]

    def _deal(self, classes: int, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return the classes that each client holds, bool [clients, classes]."""
        holds = np.zeros((clients, classes), dtype=bool)
        holders = np.zeros(classes, dtype=np.int64)
        for mine in holds:
            fewest = np.lexsort((rng.random(classes), holders))[: self.classes_per_client]
            mine[fewest] = True
            holders[fewest] += 1
        return rng.permutation(holds)
