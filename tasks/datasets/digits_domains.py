"""Handwritten digits in four styles: domains without a download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedspan.benchmark.data.decoding import mean_and_std
from fedspan.benchmark.rng import numpy_generator
from fedspan.benchmark.task import Data, Dataset, Images, content_digest, dataset
from fedspan.tasks.datasets.digits import Digits

NOISE = 24  # largest change of a pixel, out of 255


@dataset("digits_domains")
class DigitsDomains(Dataset):
    """scikit-learn's digits (Alpaydin and Kaynak 1998) in four styles.

    1,797 images as uint8 8x8x1, 10 classes, split as in `digits`. Each image is in exactly one domain, so no client
    sees another client's image in its own style: within each class of each split, images are dealt to the domains in
    turn, in a fixed random order.

    * ``plain``: unchanged,
    * ``inverted``: 255 - x,
    * ``rotated``: a quarter turn counter-clockwise,
    * ``blurred``: the binomial 3x3 blur (1 2 1), rounded down, plus integer noise drawn uniformly from -24..24, clipped
      to 0..255.

    Pixels are normalised by the mean and standard deviation of the training images of all domains.
    """

    title = "Digits in four styles"
    summary = "scikit-learn's handwritten digits in four domains: plain, inverted, rotated and blurred."
    papers = ("alpaydin1998",)

    def load(self, cache: Path) -> Data:
        digits = Digits().load(cache)
        train, test = (_styled(images, split) for images, split in ((digits.train, "train"), (digits.test, "test")))
        mean, std = mean_and_std(train.x.numpy())
        digest = content_digest(train.x, train.y, test.x, test.y)
        return Data(train, test, digits.classes, mean, std, digest, tuple(STYLES))


def _plain(x: np.ndarray, split: str) -> np.ndarray:
    return x


def _inverted(x: np.ndarray, split: str) -> np.ndarray:
    return 255 - x


def _rotated(x: np.ndarray, split: str) -> np.ndarray:
    return np.rot90(x, axes=(1, 2))


def _blurred(x: np.ndarray, split: str) -> np.ndarray:
    wide = np.pad(x.astype(np.int64), ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    rows = wide[:, :-2] + 2 * wide[:, 1:-1] + wide[:, 2:]
    blurred = (rows[:, :, :-2] + 2 * rows[:, :, 1:-1] + rows[:, :, 2:]) // 16
    noise = numpy_generator(0, "digits_domains noise", split).integers(-NOISE, NOISE + 1, blurred.shape)
    return (blurred + noise).clip(0, 255).astype(np.uint8)


STYLES = {"plain": _plain, "inverted": _inverted, "rotated": _rotated, "blurred": _blurred}


def _styled(images: Images, split: str) -> Images:
    """Return the images of a split, each in the style of its domain."""
    x, y = images.x.numpy().copy(), images.y.numpy()
    domain = np.empty(len(y), dtype=np.int64)
    for label in np.unique(y):
        members = numpy_generator(0, "digits_domains", split, int(label)).permutation(np.flatnonzero(y == label))
        domain[members] = (np.arange(len(members)) + label) % len(STYLES)  # classes start with different domains
    for number, style in enumerate(STYLES.values()):
        x[domain == number] = style(x[domain == number], split)
    return Images(torch.from_numpy(x), images.y, torch.from_numpy(domain))
