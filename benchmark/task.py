"""Base classes of the plugins that make up a task: datasets, partitions over clients, and models."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedspan.benchmark.errors import HookError, UserError, require
from fedspan.benchmark.net import Net, wrong_with
from fedspan.benchmark.registry import Plugin, decorator
from fedspan.benchmark.returned import check_data, described, refusal, repeatable, returned, shown


@dataclass(frozen=True)
class Images:
    """Labelled images: `x` uint8 [N, H, W, C] (channels last, possibly memory-mapped), `y` int64 [N].

    `domain` int64 [N] is each image's index into the dataset's domains, if it has any, and `client` int64 [N] the index
    of the client to whom the image belongs, if the dataset says so.
    """

    x: Tensor
    y: Tensor
    domain: Tensor | None = None
    client: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: Tensor) -> Images:
        """Return the images at `indices`, in that order."""
        return self._each(lambda part: part[indices])

    def part(self, first: int, last: int) -> Images:
        """Return the images from `first` up to but excluding `last`, without copying."""
        return self._each(lambda part: part[first:last])

    def to(self, device: torch.device) -> Images:
        """Return the images on a device."""
        return self._each(lambda part: part.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Images:
        domain, client = (None if part is None else change(part) for part in (self.domain, self.client))
        return Images(change(self.x), change(self.y), domain, client)

    def followed_by(self, other: Images) -> Images:
        """Return these images followed by those of `other`."""
        pairs = ((self.domain, other.domain), (self.client, other.client))
        domain, client = (None if a is None or b is None else torch.cat([a, b]) for a, b in pairs)
        return Images(torch.cat([self.x, other.x]), torch.cat([self.y, other.y]), domain, client)


@dataclass(frozen=True)
class Data:
    """A decoded dataset. `mean` and `std` normalise pixels scaled to [0, 1], one number per channel.

    By default both are those of all training images of the dataset, before `limit`, held-out images and partitions that
    pool test images, with the population's `std` (``correction=0``); a dataset may fix others. `digest` identifies its
    images and labels: their `content_digest`, or a digest of its files. Records name it, so that runs on other images
    are never taken for the same.

    `domains` names the domains of its images, if any, indexed by `Images.domain`. `clients` names the clients to whom
    its images belong, if known, indexed by `Images.client`; a partition can use them as its clients.
    """

    train: Images
    test: Images
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    digest: str
    domains: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, height, width, channels = self.train.x.shape
        return channels, height, width


@dataclass(frozen=True)
class Extent:
    """Facts about a dataset known without its files: `shape` (channels, height, width), classes and image counts."""

    shape: tuple[int, int, int]
    classes: int
    train: int
    test: int

    def cut(self, limit: int) -> Extent:
        """Return the extent after a cut to `limit` images per split (0: no cut)."""
        return replace(self, train=min(self.train, limit), test=min(self.test, limit)) if limit else self


def content_digest(*arrays: np.ndarray | Tensor) -> str:
    """Return the sha256 digest of shapes, types and bytes: ``content_digest(train.x, train.y, test.x, test.y)``."""
    sha = hashlib.sha256()
    for array in arrays:
        flat = np.ascontiguousarray(np.asarray(array))
        sha.update(f"{flat.shape}{flat.dtype.str}".encode())
        sha.update(flat.tobytes())
    return sha.hexdigest()


@dataclass(frozen=True)
class Dataset(Plugin):
    """Base of dataset plugins.

    `limit` > 0 keeps at most that many images of each split, balanced over classes and, within a class, over domains or
    clients, if there are any.
    """

    wording = {"limit": "{:,} images", "unreadable": {"skip": "", "error": ""}, "content": "", "root": "", "source": ""}

    limit: int = 0

    def load(self, cache: Path) -> Data:
        """Return the whole decoded dataset; `cache` is the folder for decoded arrays. Raise `UserError` if absent."""
        raise NotImplementedError

    def extent(self) -> Extent | None:
        """Return shape and numbers of classes and images after `limit`, or None if unknown without the files."""
        return None

    @property
    def _places(self) -> list[Any]:
        return [getattr(self, field.name) for field in fields(self) if field.metadata.get("how")]

    def unplaced(self) -> bool:
        """Return whether only the content of its images is known, so that `load` fails until a setting names them."""
        return bool(getattr(self, "content", "") and self._places) and not any(self._places)

    def check_places(self) -> None:
        """Raise `OSError` for a path that the system cannot look at, such as too long a name; it may be missing."""
        for place in self._places:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.stat(os.path.expanduser(str(place)))

    def prepare(self, cache: Path) -> Data:
        """Return the dataset, checked and cut to `limit`."""
        require(self.limit >= 0, "dataset.limit", "must be 0 (all) or more", self.limit)
        with repeatable(self, "load", "use one with a seed of its own, as torch.Generator().manual_seed(0)"):
            loaded = self.load(cache)
        data = returned(self, "load", loaded, Data)
        check_data(self, data, Images)
        if not self.limit:
            return data
        train, test = (_cut(images, self.limit) for images in (data.train, data.test))
        digest = content_digest(np.frombuffer(data.digest.encode(), np.uint8), np.array([self.limit]))
        return replace(data, train=train, test=test, digest=digest)


def _cut(images: Images, limit: int) -> Images:
    """Return the first `limit` images, in turns over classes and, within a class, over its domains or clients."""
    if limit >= len(images):
        return images
    labels = images.y.numpy()
    turn = occurrence_numbers(labels)
    source = images.client if images.domain is None else images.domain
    if source is not None:
        sources, origin = int(source.max()) + 1, source.numpy()
        # Classes start with different sources, so that even a small limit reaches every source.
        order = np.lexsort(((origin + labels) % sources, occurrence_numbers(labels * sources + origin), labels))
        turn[order] = occurrence_numbers(labels[order])
    kept = torch.from_numpy(np.sort(np.lexsort((labels, turn))[:limit]))
    return images.take(kept)


def share_of(count: int, share: float) -> int:
    """Return a share of `count`, rounded to the nearest integer (halves up) as if in decimal arithmetic.

    0.7 of 45 is 32, although the floating-point product is 31.499999999999996.
    """
    return int(round(count * share, 9) + 0.5)


def occurrence_numbers(keys: np.ndarray) -> np.ndarray:
    """Return, for each element, the number of equal elements before it."""
    order = np.argsort(keys, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(keys))])
    turn = np.empty(len(keys), dtype=np.int64)
    turn[order] = np.arange(len(keys)) - starts[keys[order]]
    return turn


@dataclass(frozen=True)
class Split:
    """Assignment of images to clients: `train[k]` are client k's indices into the training images.

    `test[k]` are the indices of the test images on which client k is tested; without `test`, every client is tested on
    all of them. In a `pooled` split, which needs `test`, all indices refer to the training images followed by the test
    images.
    """

    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...] | None = None
    pooled: bool = False

    @property
    def digest(self) -> str:
        """The sha256 digest of all index lists."""
        lists = [np.asarray(indices, dtype=np.int64) for indices in self.train]
        if self.test is not None:
            lists += [
                np.array([len(self.train), self.pooled]),
                *(np.asarray(part, dtype=np.int64) for part in self.test),
            ]
        return content_digest(*lists)

    def apply(self, data: Data) -> tuple[Data, Split]:
        """Return the data without unused images, and the split with indices into the remaining ones."""
        train, test, tests = data.train, data.test, self.test
        if self.pooled:
            train = test = data.train.followed_by(data.test)
        train, trains = _in_use(train, self.train)
        if tests is not None:
            test, tests = _in_use(test, tests)
        return replace(data, train=train, test=test), Split(trains, tests)


def _in_use(images: Images, parts: tuple[np.ndarray, ...]) -> tuple[Images, tuple[np.ndarray, ...]]:
    used = np.zeros(len(images), dtype=bool)
    used[np.concatenate(parts)] = True
    if used.all():
        return images, parts
    place = np.cumsum(used) - 1
    return images.take(torch.from_numpy(np.flatnonzero(used))), tuple(place[part] for part in parts)


def grouped(keys: np.ndarray, groups: int) -> list[np.ndarray]:
    """Return, for each value in 0..groups-1, the ascending positions at which `keys` [N] has it."""
    # NumPy sorts small integer types by radix, in linear time.
    order = np.argsort(keys.astype(np.min_scalar_type(max(groups - 1, 0))), kind="stable")
    return np.split(order, np.cumsum(np.bincount(keys, minlength=groups))[:-1])


@dataclass(frozen=True)
class Partition(Plugin):
    """Base of partition plugins: most override `split`; those that use more than training labels override `assign`.

    `skew_field` names the numeric field that measures how unequal the clients are. Pages show it even at its default,
    and readers choose tasks by it.
    """

    skew_field: ClassVar[str] = ""

    def split(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Return one array of indices into `labels` [N] per client; raise `UserError` if impossible."""
        raise NotImplementedError

    def assign(self, data: Data, clients: int, rng: np.random.Generator) -> Split:
        """Return the split: each client's training and, if any, test images; raise `UserError` if impossible."""
        labels = data.train.y.numpy()
        labels.flags.writeable = False  # the array belongs to the dataset
        parts: Any = self.split(labels, len(data.classes), clients, rng)
        if isinstance(parts, (str, Mapping)) or not isinstance(parts, Iterable):
            raise refusal(self, "split", "one index array per client", shown(parts))
        return Split(tuple(parts))

    def prepare(self, data: Data, clients: int, rng: np.random.Generator) -> Split:
        """Return the checked split: every training index at most once, no client without training or test images."""
        if clients > len(data.train):
            raise UserError(
                f"clients={clients} is more than the {len(data.train)} training images; "
                "lower clients, or raise dataset.limit if it is set"
            )
        with repeatable(self, self._hook, "draw from `rng`"):
            assigned = self.assign(data, clients, rng)
        split = returned(self, "assign", assigned, Split)
        if split.pooled and split.test is None:
            raise self._refusal("test images too", "all images are pooled, but no client has test images")
        trains, tests = len(data.train), len(data.test)
        if split.pooled:
            trains = tests = trains + tests
        train = self._checked("training", split.train, clients, trains)
        test = None if split.test is None else self._checked("test", split.test, clients, tests)
        self._check_once("every training image at most once", train, clients)
        if split.pooled and test is not None:
            self._check_once("no image for both training and testing", (*train, *test), clients)
        return Split(train, test, split.pooled)

    def _refusal(self, wanted: str, problem: str) -> HookError:
        return refusal(self, self._hook, wanted, problem)

    @property
    def _hook(self) -> str:
        return "split" if type(self).assign is Partition.assign else "assign"

    def _checked(self, use: str, parts: Any, clients: int, images: int) -> tuple[np.ndarray, ...]:
        """Return each client's sorted indices; raise `HookError` unless all `clients` have valid ones."""
        wanted = f"indices of {use} images for each of the {clients} clients"
        if not isinstance(parts, (tuple, list)) or len(parts) != clients:
            raise self._refusal(wanted, shown(parts))
        found = []
        for client, part in enumerate(parts):
            if (indices := _indices(part)) is None:
                hint = "; np.flatnonzero makes indices of a mask" if str(getattr(part, "dtype", "")) == "bool" else ""
                raise self._refusal(wanted, f"client {client} has {described(part)}, not integers [n]{hint}")
            if not len(indices):
                raise self._refusal(wanted, f"client {client} has none")
            if indices[0] < 0 or indices[-1] >= images:
                outside = indices[0] if indices[0] < 0 else indices[-1]
                raise self._refusal(wanted, f"client {client} has {outside}, and there are {images} images")
            found.append(indices)
        return tuple(found)

    def _check_once(self, wanted: str, parts: Sequence[np.ndarray], clients: int) -> None:
        """Raise `HookError` if an index occurs twice in `parts`."""
        times: np.ndarray = np.bincount(np.concatenate(parts))
        if times.max() > 1:
            image = int(np.argmax(times))
            holders = [place % clients for place, part in enumerate(parts) for _ in range(int((part == image).sum()))]
            raise self._refusal(wanted, f"image {image} occurs {times.max()} times, at the clients {holders[:9]}")


def _indices(part: Any) -> np.ndarray | None:
    """Return integers [n], sorted, or None for anything else."""
    try:
        array = np.asarray(part)
    except (TypeError, ValueError):  # e.g. lists of different lengths
        return None
    if array.ndim != 1 or (array.dtype.kind not in "iu" and len(array)):
        return None
    return np.sort(array.astype(np.int64, copy=False))


@dataclass(frozen=True)
class Model(Plugin):
    """Base of model plugins."""

    def build(self, shape: tuple[int, int, int], classes: int) -> Net:
        """Return a fresh net for images of `shape` (channels, height, width); raise `Incompatible` if impossible."""
        raise NotImplementedError

    def prepare(self, shape: tuple[int, int, int], classes: int) -> Net:
        """Return a fresh net, checked to accept images of `shape` and to return logits of `classes`."""
        net = self.build(shape, classes)
        wanted = f"a Net for images {list(shape)} (channels, height, width) of {classes} classes"
        if problem := shown(net) if not isinstance(net, Net) else wrong_with(net, shape, classes):
            raise refusal(self, "build", wanted, problem)
        return net


dataset = decorator("dataset")
partition = decorator("partition")
model = decorator("model")
