"""CIFAR-10."""

from __future__ import annotations

from typing import Any, ClassVar

from fedspan.benchmark.data.image_files import Statistics
from fedspan.benchmark.task import dataset
from fedspan.tasks.datasets.cifar import Cifar


@dataset("cifar10")
class Cifar10(Cifar):
    """CIFAR-10 (Krizhevsky 2009): 60,000 RGB images of 32x32 in 10 classes.

    The published split: 50,000 images (5,000 of each class) for training, 10,000 for testing. Read from the publisher's
    python archive, checked against torchvision's md5, in the folder `root`; or with `source` from a folder or archive
    of ``train/<class>/*`` and ``test/<class>/*`` (recompressed copies are different images, so their content enters the
    record's key). Pixels are normalised by the constants of the FedDecorr code: means 125.3, 123.0, 113.9 and standard
    deviations 63.0, 62.1, 66.7, out of 255.
    """

    title = "CIFAR-10"
    summary = "60,000 colour photographs of 32x32 pixels in 10 classes."
    papers = ("krizhevsky2009",)

    class_count: ClassVar[int] = 10
    statistics: ClassVar[Statistics] = (
        (125.3 / 255, 123.0 / 255, 113.9 / 255),
        (63.0 / 255, 62.1 / 255, 66.7 / 255),
    )

    def published(self) -> Any:
        from torchvision.datasets import CIFAR10

        return CIFAR10
