"""FEMNIST."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedspan.benchmark.data.archives import Root, open_root
from fedspan.benchmark.data.array_cache import cached
from fedspan.benchmark.data.decoding import mean_and_std
from fedspan.benchmark.data.image_files import SPLITS, data_of
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.registry import how
from fedspan.benchmark.task import Data, Dataset, dataset

CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
SIZE = 28
LAYOUT = (
    "the folder data/femnist/data of LEAF (github.com/TalwalkarLab/leaf) after './preprocess.sh -s niid --sf 0.1 -k 64 "
    "-t sample' in data/femnist: train/*.json and test/*.json, in a folder or an archive"
)


@dataset("femnist")
class Femnist(Dataset):
    """FEMNIST (Caldas et al. 2018, LEAF): grey 28x28 images of 62 digits and letters; the writers are the clients.

    `root` is a folder or an archive of ``train/*.json`` and ``test/*.json`` as written by LEAF's scripts. These draw
    writers and images at random, so there is no single published file: the sha256 of the files, `content`, enters a
    record's key. A board that states `content` can be planned without the files, and refuses other files. LEAF's
    ``-t sample`` gives each writer test images of its own, as ``partition=natural`` needs. Pixels are normalised by the
    mean and standard deviation of the training images.
    """

    title = "FEMNIST"
    summary = "Grey 28x28 images of 62 digits and letters, by their writers."
    papers = ("caldas2018",)

    root: str = how("")
    content: str = ""

    def what(self) -> dict[str, Any]:
        return super().what() | {"content": self.content or self._open().digest()}

    def _open(self) -> Root:
        """Return the files; raise `UserError` if they differ from `content`."""
        root = open_root(self.root, SPLITS, LAYOUT)
        if self.content and root.digest() != self.content:
            raise UserError(f"{root.where} holds other files than dataset.content={self.content} says")
        return root

    def load(self, cache: Path) -> Data:
        root = self._open()
        found = cached(cache, f"{self.name}-v{self.version}-{root.digest()[:32]}-sorted", lambda: _read(root))
        return data_of(found, (tuple(found.facts["mean"]), tuple(found.facts["std"])))


def _read(root: Root) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return images, labels and writers of both splits, and the writers' names in alphabetical order."""
    content = root.digest()
    splits = {split: {writer: held for _, writer, held in sorted(_users(root, split), key=by_file)} for split in SPLITS}
    writers = sorted({name for users in splits.values() for name in users})
    arrays: dict[str, np.ndarray] = {}
    for split, users in splits.items():
        if not users:
            raise UserError(f"{root.where} has no images below {split}/; it must name {root.layout}")
        arrays |= {
            f"{split}_x": np.concatenate([x for x, _ in users.values()]),
            f"{split}_y": np.concatenate([y for _, y in users.values()]),
            f"{split}_client": np.repeat(
                np.searchsorted(writers, list(users)), [len(y) for _, y in users.values()]
            ).astype(np.int64),
        }
    if root.digest_now() != content:
        raise UserError(f"{root.where} was changed while it was read; start again")
    mean, std = mean_and_std(arrays["train_x"])
    return arrays, {"classes": list(CLASSES), "clients": writers, "mean": mean, "std": std}


def by_file(user: tuple[str, str, Any]) -> tuple[str, str]:
    """Return a writer's sort key: folders and archives list files in different orders."""
    file, writer, _ = user
    return file, writer


def _users(root: Root, split: str) -> Iterator[tuple[str, str, tuple[np.ndarray, np.ndarray]]]:
    """Yield file, name, images uint8 [n, 28, 28, 1] and labels int64 [n] of each writer of a split that has images."""
    names = [name for name in root.entries() if name.startswith(f"{split}/") and name.endswith(".json")]
    seen: set[str] = set()
    for name, text in root.read(names):
        try:
            held = json.loads(text)["user_data"]
            if twice := seen & set(held):
                raise ValueError(f"writer {min(twice)} is in another file of {split}/ too")
            seen |= set(held)
            for writer in sorted(held):
                if len(held[writer]["y"]):
                    yield name, writer, _images(held[writer])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            said = f"{type(error).__name__}: {error}"[:200]
            raise UserError(f"{name} of {root.where} is not LEAF's FEMNIST: {said}; make it again") from None


def _images(held: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return one writer's images and labels; LEAF writes grey values from 0 to 1."""
    x, y = np.asarray(held["x"], dtype=np.float64), np.asarray(held["y"])
    if x.shape != (len(y), SIZE * SIZE) or not (x.min() >= 0 and x.max() <= 1):
        raise ValueError(f"x of shape {list(x.shape)} is not {len(y)} images of {SIZE * SIZE} values from 0 to 1")
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= len(CLASSES):
        raise ValueError(f"y has labels that are no whole numbers from 0 to {len(CLASSES) - 1}")
    return np.rint(255 * x).astype(np.uint8).reshape(-1, SIZE, SIZE, 1), y.astype(np.int64)
