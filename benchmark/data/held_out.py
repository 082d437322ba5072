"""Held-out images of a trial: a share of each client's training images, scored in place of test images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedspan.benchmark import rng
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.task import Data, Split, occurrence_numbers, share_of


def hold_out(data: Data, split: Split, share: float, seed: int) -> tuple[Data, Split]:
    """Return the data and the split of a trial: client k is tested on its held-out images, and trains on the rest.

    No test image is used, and none is left in the data. The draw depends only on `seed`, the client's number and its
    own labels, so other clients' images do not affect it. A client with too few images to hold one out keeps them all.
    Raises `UserError` if a client is left without images, or if no client holds out any.
    """
    data, split = replace(split, test=None).apply(data)
    labels = data.train.y.numpy()
    kept, held = [], []
    for client, mine in enumerate(split.train):
        draws = rng.numpy_generator(seed, "validation", client)
        out = stratified(labels[mine], share, draws)
        if out.all():
            raise UserError(
                f"protocol.validation={share:g} leaves client {client} none of its {len(mine)} images; lower it"
            )
        kept.append(mine[~out])
        held.append(mine[out])
    every = np.sort(np.concatenate(held))
    if not len(every):
        most = max(map(len, split.train))
        raise UserError(
            f"protocol.validation={share:g} holds out no image: no client has more than {most} for training; raise it"
        )
    # The held-out images stay among the training images too: removing them would mean copying the others.
    test = data.train.take(torch.from_numpy(every))
    return replace(data, test=test), Split(tuple(kept), tuple(np.searchsorted(every, part) for part in held))


def stratified(labels: np.ndarray, share: float, draws: np.random.Generator) -> np.ndarray:
    """Return bool [n]: which of its images with `labels` [n] a client holds out.

    Their number is share x n rounded to the nearest integer, halves upwards; per class, it is the class's share rounded
    down or up, by largest remainders. A client with a single image keeps it.
    """
    if len(labels) < 2:
        return np.zeros(len(labels), dtype=bool)
    due = np.round(share * np.bincount(labels), 9)  # 0.29 of 100 is 28.999999999999996
    give = np.floor(due).astype(np.int64)
    rest = share_of(len(labels), share) - int(give.sum())
    order = draws.permutation(len(give))  # breaks ties between remainders
    give[order[np.argsort(give[order] - due[order], kind="stable")][:rest]] += 1
    order, turn = draws.permutation(len(labels)), np.empty(len(labels), dtype=np.int64)
    turn[order] = occurrence_numbers(labels[order])
    return turn < give[labels]
