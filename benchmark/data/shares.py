"""Shares of a partition: images per class, domain and client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedspan.benchmark import names, rng
from fedspan.benchmark.data.held_out import hold_out
from fedspan.benchmark.data.unseen import split_off_unseen
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.task import Data, Split


@dataclass(frozen=True)
class Shares:
    """Image counts of each client: `classes` and `domains` map a name to its counts per client [clients]."""

    title: str
    classes: dict[str, np.ndarray]
    domains: dict[str, np.ndarray]
    tested: np.ndarray | None  # a client's own test images, [clients]
    held_out: np.ndarray | None  # training images held out in a trial, [clients]
    available: int
    digest: str
    newcomers: int = 0  # clients that never train, not counted above

    @property
    def sizes(self) -> np.ndarray:
        """Training images per client."""
        return np.sum(list(self.classes.values()), axis=0)

    @property
    def facts(self) -> list[str]:
        """Key numbers for a reader, one line each."""
        sizes, held = self.sizes, (np.array(list(self.classes.values())) > 0).sum(0)
        facts = [
            f"{sizes.sum():,} of {self.available:,} images are held for training",
            f"{_range(sizes)} images per client, median {np.median(sizes):,.0f}, "
            f"coefficient of variation {sizes.std() / sizes.mean():.2f}",
            f"{_range(held)} of {len(self.classes)} classes per client, mean {held.mean():.1f}",
        ]
        if self.newcomers:
            facts.append(f"{self.newcomers} more clients never train")
        if self.tested is not None:
            facts.append(f"{_range(self.tested)} own test images per client")
        if self.held_out is not None:
            facts.append(
                f"{self.held_out.sum():,} images are held out for validation, {_range(self.held_out)} per client"
            )
        return facts


def _range(values: np.ndarray) -> str:
    low, high = values.min(), values.max()
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def shares(cell: Cell, data_folder: Path) -> Shares:
    """Return the shares of a cell's partition; raise `UserError` if it cannot split the dataset."""
    data = cell.dataset.prepare(data_folder)
    whole = cell.partition.prepare(data, cell.clients, rng.numpy_generator(cell.seed, "partition"))
    split, newcomers = split_off_unseen(whole, cell.training_clients, cell.seed)
    used, mine = split.apply(data)

    def counts(names: Sequence[str], key: torch.Tensor | None) -> dict[str, np.ndarray]:
        if key is None:
            return {}
        per_client = [np.bincount(key.numpy()[part], minlength=len(names)) for part in mine.train]
        return dict(zip(names, np.transpose(per_client), strict=True))

    return Shares(
        title=f"{names.task_name({**cell.what, 'fleet': None})}, seed {cell.seed}",
        classes=counts(data.classes, used.train.y),
        domains=counts(data.domains, used.train.domain),
        tested=None if mine.test is None else np.array([len(part) for part in mine.test]),
        held_out=_held_out(cell, data, split),
        available=len(data.train) + (len(data.test) if split.pooled else 0),
        digest=whole.digest,
        newcomers=0 if newcomers is None else len(newcomers.train),
    )


def _held_out(cell: Cell, data: Data, split: Split) -> np.ndarray | None:
    if not cell.protocol.trial:
        return None
    _, parts = hold_out(data, split, cell.protocol.validation, cell.seed)
    return np.array([len(part) for part in parts.test or ()])
