"""scikit-learn's handwritten digits: a real dataset that needs no download."""

from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import torch

from fedspan.benchmark.rng import numpy_generator
from fedspan.benchmark.task import Data, Dataset, Images, content_digest, dataset


@dataset("digits")
class Digits(Dataset):
    """Optical recognition of handwritten digits (Alpaydin and Kaynak 1998), as bundled with scikit-learn.

    1,797 images as uint8 8x8x1; a fixed split, 80% of each class for training and 20% for testing.
    """

    title = "Digits"
    summary = "1,797 handwritten digits of 8x8 pixels, bundled with scikit-learn: no download."
    papers = ("alpaydin1998",)

    def load(self, cache: Path) -> Data:
        # Does what `sklearn.datasets.load_digits` does, whose import takes a second per process.
        file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
        numbers = np.loadtxt(str(file), delimiter=",")
        x = np.rint(numbers[:, :-1].reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
        y = numbers[:, -1].astype(np.int64)
        is_test = np.zeros(len(y), dtype=bool)
        for label in range(10):
            members = numpy_generator(0, "digits test split", label).permutation(np.flatnonzero(y == label))
            is_test[members[: round(0.2 * len(members))]] = True
        train, test = (Images(torch.from_numpy(x[part]), torch.from_numpy(y[part])) for part in (~is_test, is_test))
        pixels = x[~is_test] / 255
        return Data(
            train, test, tuple(map(str, range(10))), (float(pixels.mean()),), (float(pixels.std()),),
            content_digest(train.x, train.y, test.x, test.y),
        )  # fmt: skip
