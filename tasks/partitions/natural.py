"""Natural clients, as given by the dataset."""

import numpy as np

from fedspan.benchmark.errors import UserError, require
from fedspan.benchmark.task import Data, Partition, Split, grouped, partition


@partition("natural")
class Natural(Partition):
    """Each client holds the images of one writer, camera or hospital (Caldas et al. 2018, LEAF, Sec. 3).

    The dataset names the client of each image, as ``femnist`` and ``client_folder`` do. If it does so for test images
    too, clients are tested on their own. Clients with fewer than `min_size` training images, or without a test image of
    their own, are left out. If more than `clients` remain, that many are drawn.
    """

    title = "Natural"
    summary = "Clients given by the data: writers, cameras, hospitals."
    papers = ("caldas2018",)

    min_size: int = 1

    def __post_init__(self) -> None:
        require(self.min_size >= 1, "partition.min_size", "must be at least 1", self.min_size)

    def assign(self, data: Data, clients: int, rng: np.random.Generator) -> Split:
        if data.train.client is None:
            raise UserError(
                "partition=natural needs a dataset that says whose each image is, as femnist or client_folder, "
                "and this one does not; choose another"
            )
        people = len(data.clients)
        train = grouped(data.train.client.numpy(), people)
        test = None if data.test.client is None else grouped(data.test.client.numpy(), people)
        able = [k for k in range(people) if len(train[k]) >= self.min_size and (test is None or len(test[k]))]
        if clients > len(able):
            own = "" if test is None else " and a test image of their own"
            raise UserError(
                f"partition=natural: of the {people} clients in the data {len(able)} have at least "
                f"partition.min_size={self.min_size} training images{own}, got clients={clients}; lower clients"
            )
        chosen = np.sort(rng.permutation(able)[:clients]) if clients < len(able) else np.array(able)
        return Split(tuple(train[k] for k in chosen), None if test is None else tuple(test[k] for k in chosen))
