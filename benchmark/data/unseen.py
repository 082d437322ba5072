"""Unseen clients, which never train, like clients that join a federation later: their choice and their images."""

from __future__ import annotations

import numpy as np

from fedspan.benchmark import rng
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.task import Split


def split_off_unseen(split: Split, training_clients: int, seed: int) -> tuple[Split, Split | None]:
    """Return the split of the training clients, drawn by `seed`, and that of the unseen ones (None if all train).

    Both renumber their clients in the original order. Raises `UserError` if clients have no test images of their own:
    unseen clients train on their training images when they personalise a model, so only test images can score it.
    """
    clients = len(split.train)
    if training_clients == clients:
        return split, None
    if split.test is None:
        raise UserError(
            "unseen clients are scored on test images of their own, which this partition lacks; choose one that has "
            "them (partition=personal), or set unseen=0"
        )
    drawn = rng.numpy_generator(seed, "unseen").permutation(clients)[:training_clients]
    trains = np.isin(np.arange(clients), drawn)
    return _of(split, np.flatnonzero(trains)), _of(split, np.flatnonzero(~trains))


def _of(split: Split, clients: np.ndarray) -> Split:
    test = None if split.test is None else tuple(split.test[client] for client in clients)
    return Split(tuple(split.train[client] for client in clients), test, split.pooled)
