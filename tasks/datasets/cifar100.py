"""CIFAR-100."""

from __future__ import annotations

from typing import Any, ClassVar

from fedspan.benchmark.data.image_files import Statistics
from fedspan.benchmark.task import dataset
from fedspan.tasks.datasets.cifar import Cifar


@dataset("cifar100")
class Cifar100(Cifar):
    """CIFAR-100 (Krizhevsky 2009) with its fine labels: 60,000 RGB images of 32x32 in 100 classes.

    The published split: 50,000 images (500 of each class) for training, 10,000 for testing. Read from the publisher's
    python archive, checked against torchvision's md5, in the folder `root`; or with `source` from a folder or archive
    of ``train/<class>/*`` and ``test/<class>/*``, whose content then enters the record's key. Pixels in [0, 1] are
    normalised by the constants of the code released with FedDecorr (Shi et al. 2023), digit for digit.
    """

    title = "CIFAR-100"
    summary = "60,000 colour photographs of 32x32 pixels in 100 classes."
    papers = ("krizhevsky2009",)

    version: ClassVar[int] = 2  # 1 rounded the constants to four digits
    class_count: ClassVar[int] = 100
    statistics: ClassVar[Statistics] = (
        (0.5070751592371323, 0.48654887331495095, 0.4409178433670343),
        (0.2673342858792401, 0.2564384629170883, 0.27615047132568404),
    )

    def published(self) -> Any:
        from torchvision.datasets import CIFAR100

        return CIFAR100
