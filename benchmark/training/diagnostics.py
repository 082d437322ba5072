"""Measurements besides scores: the diagnostics of one round, in the form of a record."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.head import BIAS, WEIGHT
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.benchmark.training.evaluation import outputs
from fedspan.benchmark.training.local import LocalTrainer
from fedspan.benchmark.training.spectra import (
    by_tsne,
    classifier_alignment,
    covariance,
    gap,
    linear_map,
    on_sphere,
    singular_space_alignment,
    singular_values,
    summary,
)
from fedspan.benchmark.training.state import State
from fedspan.benchmark.tree import Tree

Measured = dict[str, Any]  # alignment, spectra, and for figures penalties, shares, spaces, embedding; JSON only


def check(settings: Diagnostics, participants: Sequence[int], classes: int) -> None:
    """Raise `UserError`, before training, for a client or class that the cell does not have."""
    named = settings.clients if settings.spectra or settings.embedding != "none" else ()
    for client in named:
        if client not in participants:
            raise UserError(f"diagnostics.clients names client {client}, which does not train in {settings.when}")
    if settings.alignment and len(participants) < 2:
        raise UserError(f"diagnostics.alignment compares local models, {settings.when} has {len(participants)}")
    for label in settings.classes if settings.embedding != "none" else ():
        if not 0 <= label < classes:
            raise UserError(f"diagnostics.classes names class {label} of only {classes}")


def measurable(settings: Diagnostics, own: Collection[str]) -> Diagnostics:
    """Return the settings without measurements of a global model whose weights `own` stay with the clients.

    Its representations would be those before training. A head that stays matters to `spaces` alone.
    """
    if not (own := set(own) if settings.spaces else set(own) - {WEIGHT, BIAS}):
        return settings
    body = bool(own - {WEIGHT, BIAS})
    return replace(
        settings,
        spectra=settings.spectra and not body,
        spaces=False,
        embedding="none" if body and not settings.clients else settings.embedding,
    )


def check_images(settings: Diagnostics, labels: Tensor) -> None:
    """Raise `UserError` if the classes of an embedding have too few test images."""
    least = 3 if settings.embedding == "tsne" else 1
    if settings.embedding != "none" and (count := len(_shown(settings, labels))) < least:
        raise UserError(
            f"diagnostics.embedding={settings.embedding} needs {least} test images or more; the classes in "
            f"diagnostics.classes have {count}"
        )


def measure(
    trainer: LocalTrainer, state: State, settings: Diagnostics, kept: Mapping[int, Tree], seed: int
) -> Measured:
    """Return the diagnostics of the round that `state` has just finished; `kept` are its local models by client.

    Models with non-finite representations have no spectrum or embedding; those with a non-finite classifier are left
    out of the alignment. Detecting divergence is left to the scores.
    """
    settings, found = measurable(settings, trainer.paths.own), Measured()
    if settings.alignment:
        heads = [weights[WEIGHT] for _, weights in sorted(kept.items())]
        finite = [head for head in heads if bool(head.isfinite().all())]
        if len(finite) > 1:
            found["alignment"] = classifier_alignment(finite)
    if settings.spectra and (spectra := _spectra(trainer, state, settings, kept)):
        found["spectra"] = spectra
    if settings.shares:
        data = trainer.data
        labels = (data.train.y[mine.to(data.device)] for mine in data.indices)
        found["shares"] = [torch.bincount(own, minlength=data.classes).tolist() for own in labels]
    if settings.spaces:
        found["spaces"] = spaces(trainer, state)
    if settings.embedding != "none" and (embedding := _embedding(trainer, state, settings, kept, seed)):
        found["embedding"] = embedding
    return found


def for_figures(measured: Measured) -> Measured:
    """Return the measurements for figures: all but alignment and spectra, which a record stores separately."""
    return {name: value for name, value in measured.items() if name not in ("alignment", "spectra")}


def _spectra(trainer: LocalTrainer, state: State, settings: Diagnostics, kept: Mapping[int, Tree]) -> dict[str, Any]:
    """Return spectra on the test set, of the global and the selected local models; empty if the global has none."""
    trainer.load(state, state.first_row)
    globe = _spectrum(trainer)
    if globe is None:
        return {}
    result: dict[str, Any] = {
        "log_threshold": settings.log_threshold,
        "global": summary(globe, settings),
        "local": {},
        "gap": {},
    }
    for client, weights in sorted(kept.items()):
        if client not in settings.clients:
            continue
        trainer.put(weights)
        if (local := _spectrum(trainer)) is not None:
            result["local"][str(client)] = summary(local, settings)
            result["gap"][str(client)] = gap(local, globe)
    return result


def _spectrum(trainer: LocalTrainer) -> np.ndarray | None:
    """Return the singular values of the loaded model, None if a representation is not finite."""
    matrix = covariance(z for z, _, _ in outputs(trainer))
    return singular_values(matrix) if bool(matrix.isfinite().all()) else None


@torch.no_grad()
def spaces(trainer: LocalTrainer, state: State) -> list[list[float]]:
    """Return the alignment of the global model's singular spaces; raise `UserError` if its body is not linear."""
    trainer.load(state, state.first_row)
    net, device = trainer.net.eval(), trainer.data.device
    product = linear_map(lambda x: net.body(x.to(device)).cpu(), trainer.data.shape, net.head.weight.dtype)
    return _rounded(singular_space_alignment(product, net.head.weight.cpu()))


def _embedding(
    trainer: LocalTrainer, state: State, settings: Diagnostics, kept: Mapping[int, Tree], seed: int
) -> dict[str, Any]:
    """Return points [n, 2 or 3] of test images, their classes, and the clients whose local models computed them.

    Empty if a representation is not finite.
    """
    data = trainer.data
    images = data.test.take(_shown(settings, data.test.y.cpu()).to(data.device))
    trainer.load(state, state.first_row)
    models: dict[int | None, Tree] = {client: kept[client] for client in settings.clients if client in kept}
    features = []
    for weights in (models or {None: {}}).values():
        trainer.put(weights)
        features += [z.cpu() for z, _, _ in outputs(trainer, images)]
    every = torch.cat(features)
    if not every.isfinite().all():
        return {}
    points = by_tsne(every, seed) if settings.embedding == "tsne" else on_sphere(every)
    count = len(images)
    return {
        "points": _rounded(points),
        "classes": images.y.tolist() * max(len(models), 1),
        "clients": [client for client in models or [None] for _ in range(count)],
    }


def _shown(settings: Diagnostics, labels: Tensor) -> Tensor:
    """Return the indices of the test images in an embedding: the first of its classes, or of all."""
    wanted = torch.isin(labels, torch.tensor(settings.classes)) if settings.classes else torch.ones_like(labels) > 0
    return wanted.nonzero().flatten()[: settings.images]


def _rounded(values: Tensor) -> list[list[float]]:
    """Return a matrix as lists, rounded to five significant digits for a record."""
    return [[float(f"{value:.5g}") for value in row] for row in values.tolist()]
