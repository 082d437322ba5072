"""Labelled image files, decoded once: code shared by all datasets made of image files."""

from __future__ import annotations

import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from fedspan.benchmark.data.array_cache import Cached, cached
from fedspan.benchmark.data.decoding import Unreadable, decode_all, mean_and_std
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.task import Data, Images

log = logging.getLogger("fedspan")

SPLITS = ("train", "test")
NAMED_IN_MANIFEST = 20  # skipped images listed in the manifest
SOME = 5  # names in a message

Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation per channel
ONLY_SCALED: Statistics = (0.0,) * 3, (1.0,) * 3  # leaves pixels in [0, 1]

IN_MEMORY = 2**28  # bytes of decoded images; larger datasets are decoded into a file


class Sample(NamedTuple):
    """An image file with its class and domain."""

    file: str
    label: int
    domain: int = 0


class Labelled(NamedTuple):
    """The files of a dataset and how to read them; `where` is their location in messages."""

    where: str
    classes: tuple[str, ...]
    train: Sequence[Sample]
    test: Sequence[Sample]
    read: Callable[[Collection[str]], Iterator[tuple[str, bytes]]]
    unchanged: Callable[[], bool]
    domains: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    owners: Mapping[str, Sequence[int]] = MappingProxyType({})  # by split: the client of each image


def load_labelled(
    cache: Path,
    key: str,
    size: int,
    unreadable: Literal["error", "skip"],
    open: Callable[[], Labelled],
    statistics: Statistics | None = None,
) -> Data:
    """Return the images of `open` as arrays of `size` x `size`, decoded only if `cache` has none under `key`.

    `key` must change with everything that changes the arrays; see `array_cache.cached`. An unreadable image raises
    `UserError`, or is left out and counted in a warning. `statistics` default to those of the training images.
    """
    found = cached(cache, key, lambda: _decode(open(), size, unreadable, cache))
    facts = found.facts
    if facts["skipped"]:
        log.warning(
            "unreadable images left out (dataset.unreadable=skip): %d, the first is %s",
            facts["skipped"], facts["skipped_first"][0],
        )  # fmt: skip
    return data_of(found, statistics or (tuple(facts["mean"]), tuple(facts["std"])))


def data_of(found: Cached, statistics: Statistics) -> Data:
    """Return the dataset of cached arrays ``<split>_x``, ``<split>_y`` and optionally ``_domain`` and ``_client``."""

    def tensor(name: str) -> torch.Tensor | None:
        return torch.from_numpy(found.arrays[name]) if name in found.arrays else None

    train, test = (
        Images(
            torch.from_numpy(found.arrays[f"{split}_x"]),
            torch.from_numpy(found.arrays[f"{split}_y"]),
            tensor(f"{split}_domain"),
            tensor(f"{split}_client"),
        )
        for split in SPLITS
    )
    mean, std = statistics
    return Data(
        train=train,
        test=test,
        classes=tuple(found.facts["classes"]),
        mean=mean,
        std=std,
        digest=found.digest,
        domains=tuple(found.facts.get("domains", ())),
        clients=tuple(found.facts.get("clients", ())),
    )


def _decode(
    files: Labelled, size: int, unreadable: Literal["error", "skip"], cache: Path
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the decoded arrays and the facts to cache."""
    started = time.perf_counter()
    names = [sample.file for sample in (*files.train, *files.test)]
    rows = {name: row for row, name in enumerate(dict.fromkeys(names))}
    if in_both := {sample.file for sample in files.train} & {sample.file for sample in files.test}:
        log.warning("%s has images both in train and in test: %d (%s)", files.where, len(in_both), some(in_both))
    log.info("decoding %d images of %s to %dx%d", len(rows), files.where, size, size)
    skipped: list[str] = []

    def on_unreadable(name: str, reason: Unreadable) -> None:
        if unreadable == "error":
            raise UserError(
                f"cannot decode {name} of {files.where}: {reason}; "
                "replace it, or leave such images out with dataset.unreadable=skip"
            )
        skipped.append(name)

    try:
        x = room(len(rows), size, cache)
        decode_all(files.read(list(rows)), rows, x, on_unreadable)
        if len(rows) < len(names):  # a list may name a file several times
            x = x[[rows[name] for name in names]]
    except MemoryError:
        gib = len(names) * size**2 * 3 / 2**30
        raise UserError(f"decoding {len(names)} images needs {gib:.1f} GiB of memory; lower dataset.size") from None
    if not files.unchanged():
        raise UserError(f"{files.where} was changed while it was read; start again")
    arrays = _arrays(files, x, set(skipped))
    mean, std = mean_and_std(arrays["train_x"])
    log.info(
        "decoded %d images in %.1f s%s", len(names), time.perf_counter() - started,
        f"; {len(skipped)} were unreadable" if skipped else "",
    )  # fmt: skip
    return arrays, {
        "classes": list(files.classes),
        "domains": list(files.domains),
        "clients": list(files.clients),
        "mean": mean,
        "std": std,
        "skipped": len(skipped),
        "skipped_first": sorted(skipped)[:NAMED_IN_MANIFEST],
    }


def _arrays(files: Labelled, x: np.ndarray, left_out: Collection[str]) -> dict[str, np.ndarray]:
    """Return images, labels, domains and clients of each split.

    `x` [N, size, size, 3] holds all images, training images first. Raises `UserError` if all images of a split are
    `left_out`.
    """
    arrays: dict[str, np.ndarray] = {}
    start = 0
    for split, samples in zip(SPLITS, (files.train, files.test), strict=True):
        kept = np.array([sample.file not in left_out for sample in samples], dtype=bool)
        if not kept.any():
            raise UserError(f"{files.where} has no readable {split} image")
        part = x[start : start + len(kept)]
        start += len(kept)
        arrays[f"{split}_x"] = part if kept.all() else part[kept]
        arrays[f"{split}_y"] = np.array([sample.label for sample in samples], dtype=np.int64)[kept]
        if files.domains:
            arrays[f"{split}_domain"] = np.array([sample.domain for sample in samples], dtype=np.int64)[kept]
        if split in files.owners:
            arrays[f"{split}_client"] = np.array(files.owners[split], dtype=np.int64)[kept]
    return arrays


def room(count: int, size: int, cache: Path) -> np.ndarray:
    """Return zeros uint8 [count, size, size, 3], above `IN_MEMORY` in a file that disappears with the array.

    The system can write a file's pages back and drop them, so decoding does not need memory for all images.
    """
    shape = count, size, size, 3
    if math.prod(shape) <= IN_MEMORY:
        return np.zeros(shape, dtype=np.uint8)
    folder = cache / "decoded"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # a full disk fails here instead of crashing later
                os.posix_fallocate(file.fileno(), 0, math.prod(shape))
            else:  # macOS
                file.truncate(math.prod(shape))
            return np.memmap(file, np.uint8, "r+", shape=shape)
    except (OSError, OverflowError) as error:
        gib = math.prod(shape) / 2**30
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot decode {count} images ({gib:.1f} GiB) in {folder}: {reason}; free space there, "
            "lower dataset.size, or choose another folder with paths.data (or FEDSPAN_DATA)"
        ) from None


def warn_of_other_counts(name: str, files: Labelled, published: Mapping[str, int]) -> None:
    """Warn if a user's copy of a dataset has more or fewer images than the published one."""
    counts = {"train": len(files.train), "test": len(files.test)}
    if counts != dict(published):
        log.warning(
            "%s has %d training and %d test images, not %d and %d as %s: results of it are not those of %s",
            files.where, counts["train"], counts["test"], published["train"], published["test"], name, name,
        )  # fmt: skip


def some(names: Collection[str]) -> str:
    """Return at most `SOME` names for a message, and the number of the rest."""
    names = sorted(names)
    more = len(names) - SOME
    return ", ".join(names[:SOME]) + (f" and {more} more" if more > 0 else "")
