"""Base class of CIFAR-10 and CIFAR-100: their archive format, or a user's own images."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

import numpy as np

from fedspan.benchmark.data.archives import Root, open_root
from fedspan.benchmark.data.array_cache import cached
from fedspan.benchmark.data.image_files import (
    SPLITS,
    Labelled,
    Statistics,
    data_of,
    load_labelled,
    some,
    warn_of_other_counts,
)
from fedspan.benchmark.data.published import Published, PublishedFile
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.registry import how
from fedspan.benchmark.task import Data, Extent
from fedspan.tasks.datasets.image_folder import LAYOUT, class_folders

SIZE = 32
PIXELS = 3 * SIZE * SIZE


@dataclass(frozen=True)
class Cifar(Published):
    """Base class of both: the publisher's python archive, or with `source` an image folder or archive.

    `content` is the digest of the images in `source`. If a board states it, keys, and so tables, can be computed
    without the images; training needs a `source` with exactly these images.
    """

    source: str = how("")
    content: str = ""
    unreadable: Literal["error", "skip"] = "error"

    counts: ClassVar[dict[str, int]] = {"train": 50_000, "test": 10_000}
    class_count: ClassVar[int]
    statistics: ClassVar[Statistics]  # of the training images, as in FedDecorr's released code

    def __post_init__(self) -> None:
        if self.root and self.source:
            raise UserError(
                "dataset.root names the published archive and dataset.source other images: give one of the two"
            )
        if self.root and self.content:
            raise UserError("dataset.content is about dataset.source: leave it out beside dataset.root")

    def published(self) -> Any:
        """Return torchvision's class, which has the archive's address, checksum and members."""
        raise NotImplementedError

    def files(self) -> tuple[PublishedFile, ...]:
        facts = self.published()
        return (PublishedFile(facts.filename, f"md5:{facts.tgz_md5}", (facts.url,)),)

    def what(self) -> dict[str, Any]:
        mine = super().what()
        if not self.source and not self.content:
            del mine["unreadable"], mine["content"]  # these concern image files only
            return mine
        return mine | {"content": self.content or self._source().digest()}

    def extent(self) -> Extent | None:
        if self.source or self.content:
            return None
        return Extent((3, SIZE, SIZE), self.class_count, **self.counts).cut(self.limit)

    def _source(self) -> Root:
        """Return the image files; raise `UserError` if they differ from `content`."""
        root = open_root(self.source, SPLITS, LAYOUT, setting="dataset.source")
        if self.content and root.digest() != self.content:
            raise UserError(f"{root.where} holds other images than dataset.content={self.content} says")
        return root

    def load(self, cache: Path) -> Data:
        if self.source or self.content:
            root = self._source()
            key = f"{self.name}-v{self.version}-{root.digest()[:32]}-{self.unreadable}"
            return load_labelled(cache, key, SIZE, self.unreadable, lambda: self._labelled(root), self.statistics)
        [file] = self.files()
        key = f"{self.name}-v{self.version}-{file.checksum.partition(':')[2]}"
        return data_of(cached(cache, key, lambda: self._read(self.whole(cache)[0])), self.statistics)

    def _labelled(self, root: Root) -> Labelled:
        labelled = class_folders(root)
        if len(labelled.classes) != self.class_count:
            raise UserError(f"{root.where} has {len(labelled.classes)} classes, {self.name} has {self.class_count}")
        warn_of_other_counts(self.name, labelled, self.counts)
        return labelled

    def _read(self, path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the arrays and facts of the published archive."""
        facts = self.published()
        names = {
            "train": [name for name, _ in facts.train_list],
            "test": [name for name, _ in facts.test_list],
        }
        root = open_root(path, (facts.base_folder,), "the published python archive")
        members = [facts.meta["filename"], *names["train"], *names["test"]]
        wanted = [f"{facts.base_folder}/{name}" for name in members]
        if missing := set(wanted) - set(root.entries()):
            raise UserError(f"{path} lacks {some(missing)}; fetch it again")
        parts = {PurePosixPath(name).name: _unpickle(path, name, content) for name, content in root.read(wanted)}
        try:
            classes = [str(name) for name in parts[facts.meta["filename"]][facts.meta["key"]]]
            arrays = {}
            for split in SPLITS:
                batches = [parts[name] for name in names[split]]
                pixels = np.concatenate([np.asarray(batch["data"]) for batch in batches])
                labels = [
                    label for batch in batches for label in batch["labels" if "labels" in batch else "fine_labels"]
                ]
                arrays[f"{split}_x"] = _images(pixels)
                arrays[f"{split}_y"] = np.asarray(labels, dtype=np.int64)
                _check(path, split, arrays[f"{split}_x"], arrays[f"{split}_y"], self.class_count)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} has not the format of {self.name}: {type(error).__name__}: {error}") from error
        if len(classes) != self.class_count:
            raise UserError(f"{path} names {len(classes)} classes, {self.name} has {self.class_count}")
        return arrays, {"classes": classes}


class _Unpickler(pickle.Unpickler):
    """Unpickler of arrays, lists, numbers and strings only."""

    ALLOWED = {
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _unpickle(path: Path, name: str, content: bytes) -> dict[str, Any]:
    try:
        loaded = _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a pickle can raise anything
        raise UserError(f"{name} in {path} is refused: {error}") from error
    if not isinstance(loaded, dict):
        raise UserError(f"{name} in {path} holds no dictionary")
    return loaded


def _images(pixels: np.ndarray) -> np.ndarray:
    """Return rows of 1024 red, then green, then blue values as images [N, 32, 32, 3]."""
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != PIXELS:
        raise ValueError(f"pixels of {pixels.dtype}{list(pixels.shape)}")
    return np.ascontiguousarray(pixels.reshape(-1, 3, SIZE, SIZE).transpose(0, 2, 3, 1))


def _check(path: Path, split: str, x: np.ndarray, y: np.ndarray, classes: int) -> None:
    if len(x) != len(y):
        raise UserError(f"{path} has {len(x)} {split} images but {len(y)} labels")
    outside = np.flatnonzero((y < 0) | (y >= classes))
    if len(outside):
        raise UserError(f"{path} has the {split} label {y[outside[0]]}, outside 0..{classes - 1}")
