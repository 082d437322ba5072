"""Feature skew: one domain per client."""

import numpy as np

from fedspan.benchmark.errors import UserError, require
from fedspan.benchmark.task import Data, Partition, Split, grouped, partition


@partition("domain")
class Domain(Partition):
    """Client k holds the dataset's domain k and is tested on it (Li et al. 2021, Sec. 5; Shi et al. 2024, Sec. 5).

    ``subsample=s`` > 0 keeps a random subset of each domain: s times the training images of the smallest domain.
    FedBN's released code does so with 0.5 on Office-Caltech10 and 0.05 on DomainNet (always the first images); its
    paper only says that domains were cut to equal sizes; FedDecorr's says nothing. 0 keeps all images. The protocol
    ``feddecorr_domain`` sets those shares.
    """

    title = "Domains"
    summary = "Client k holds the dataset's domain k and is tested on it: feature skew."
    papers = ("li2021fedbn", "shi2024")
    wording = {"subsample": "{:g} times the smallest"}

    subsample: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.subsample <= 1, "partition.subsample", "must lie in [0, 1]; 0 keeps all", self.subsample)

    def assign(self, data: Data, clients: int, rng: np.random.Generator) -> Split:
        train_domain, test_domain = data.train.domain, data.test.domain
        if train_domain is None or test_domain is None:
            raise UserError("partition=domain needs a dataset with domains, and this one has none; choose another")
        domains = len(data.domains)
        if clients != domains:
            raise UserError(
                f"partition=domain gives each client one of the {domains} domains ({', '.join(data.domains)}), "
                f"got clients={clients}; set clients={domains}"
            )
        train, test = (grouped(domain.numpy(), domains) for domain in (train_domain, test_domain))
        for name, mine, own_test in zip(data.domains, train, test, strict=True):
            if not (len(mine) and len(own_test)):
                raise UserError(
                    f"domain '{name}' has {len(mine)} training and {len(own_test)} test images; raise dataset.limit"
                )
        if self.subsample:
            keep = int(self.subsample * min(map(len, train)))
            if keep == 0:
                raise UserError(
                    f"partition.subsample={self.subsample} of the smallest domain, {min(map(len, train))} training "
                    "images, is none; raise it"
                )
            train = [rng.permutation(mine)[:keep] for mine in train]
        return Split(tuple(train), tuple(test))
