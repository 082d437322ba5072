"""MNIST."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fedspan.benchmark.data.array_cache import cached
from fedspan.benchmark.data.decoding import mean_and_std
from fedspan.benchmark.data.image_files import SPLITS, data_of
from fedspan.benchmark.data.published import Published, PublishedFile
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.task import Data, Extent, dataset

CLASSES = 10
SIZE = 28


@dataset("mnist")
class Mnist(Published):
    """MNIST (LeCun, Bottou, Bengio and Haffner 1998): 70,000 grey 28x28 images of the digits 0 to 9.

    The published split: 60,000 images for training, 10,000 for testing. torchvision reads the four published files, in
    the folder `root`, and supplies their addresses and md5 sums. Pixels are normalised by the mean and standard
    deviation of the training images.
    """

    title = "MNIST"
    summary = "70,000 grey images of handwritten digits, 28x28 pixels."
    papers = ("lecun1998",)

    def files(self) -> tuple[PublishedFile, ...]:
        from torchvision.datasets import MNIST

        return tuple(
            PublishedFile(name, f"md5:{md5}", tuple(mirror + name for mirror in MNIST.mirrors))
            for name, md5 in MNIST.resources
        )

    def extent(self) -> Extent:
        return Extent((1, SIZE, SIZE), CLASSES, 60_000, 10_000).cut(self.limit)

    def load(self, cache: Path) -> Data:
        found = cached(cache, f"{self.name}-v{self.version}", lambda: self._read(self.whole(cache)))
        return data_of(found, (tuple(found.facts["mean"]), tuple(found.facts["std"])))

    def _read(self, paths: list[Path]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return arrays and facts from `paths`: training images, training labels, test images, test labels."""
        from torchvision.datasets.mnist import read_image_file, read_label_file

        arrays: dict[str, np.ndarray] = {}
        for split, images, labels in zip(SPLITS, paths[::2], paths[1::2], strict=True):
            x = _uncompressed(images, read_image_file).numpy()
            y = _uncompressed(labels, read_label_file).numpy()
            if x.shape[1:] != (SIZE, SIZE):
                raise UserError(f"{images} holds images of {x.shape[1]}x{x.shape[2]}, mnist has {SIZE}x{SIZE}")
            if len(x) != len(y):
                raise UserError(f"{images} holds {len(x)} images but {labels.name} {len(y)} labels")
            if len(y) and y.max() >= CLASSES:
                raise UserError(f"{labels} holds the label {y.max()}, outside 0..{CLASSES - 1}")
            arrays |= {f"{split}_x": x[..., None], f"{split}_y": y}
        mean, std = mean_and_std(arrays["train_x"])
        return arrays, {"classes": [str(digit) for digit in range(CLASSES)], "mean": mean, "std": std}


def _uncompressed(path: Path, read: Any) -> Any:
    """Return the result of torchvision's `read` on a compressed file."""
    try:
        with tempfile.NamedTemporaryFile(suffix=path.stem) as plain:
            plain.write(gzip.decompress(path.read_bytes()))
            plain.flush()
            return read(plain.name)
    except (OSError, EOFError, ValueError, TypeError, AssertionError, LookupError, RuntimeError) as error:
        raise UserError(f"cannot read {path}: {error or type(error).__name__}; delete it and fetch it again") from error
