"""Evaluation of a cell's models, the global one or each client's own, on unaugmented test images.

In a trial, the images that clients hold out replace the test images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedspan.benchmark.errors import Diverged
from fedspan.benchmark.protocol import Protocol
from fedspan.benchmark.records.model import LARGEST
from fedspan.benchmark.task import Images
from fedspan.benchmark.training.local import LocalTrainer
from fedspan.benchmark.training.state import Row, State

StageScores = dict[str, float | None]  # one stage's scores, by metric
OVER_CLIENTS = ("client_accuracy", "client_accuracy_std", "worst_tenth_accuracy")


@dataclass(frozen=True)
class Score:
    """Score of a net on N images: `right` bool [N], whether each prediction is correct, and the mean cross-entropy."""

    right: Tensor
    loss: float

    @property
    def accuracy(self) -> float:
        """Accuracy in percent."""
        return percent(self.right)


def percent(right: Tensor) -> float:
    """Return the share of True in percent."""
    return 100 * int(right.sum()) / len(right)


@dataclass
class Hits:
    """Running counts of correct predictions and of images, per domain."""

    domains: tuple[str, ...]
    right: np.ndarray
    total: np.ndarray

    @classmethod
    def none(cls, domains: tuple[str, ...]) -> Hits:
        """Return counts of zero."""
        return cls(domains, *np.zeros((2, len(domains)), dtype=np.int64))

    def add(self, score: Score, images: Images) -> None:
        """Count a net's predictions on `images`."""
        if images.domain is not None:
            domain = images.domain.cpu().numpy()
            self.right += np.bincount(domain[score.right.numpy()], minlength=len(self.domains))
            self.total += np.bincount(domain, minlength=len(self.domains))

    def scores(self) -> dict[str, float | None]:
        """Return the accuracy per domain and their unweighted mean, `domain_accuracy`; empty without domains."""
        counts = zip(self.domains, self.right.tolist(), self.total.tolist(), strict=True)
        each = {f"domain_accuracy.{name}": 100 * right / total for name, right, total in counts if total}
        return {"domain_accuracy": float(np.mean(list(each.values()))), **each} if each else {}


@torch.no_grad()
def outputs(
    trainer: LocalTrainer, images: Images | None = None, purpose: str = "evaluate"
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (features, logits, labels) of `images`, by default the test set, under the loaded net.

    The meter counts the computation under `purpose`.
    """
    data = trainer.data
    trainer.net.eval()
    for x, y in data.in_order(data.test if images is None else images, data.evaluation_batch):
        with trainer.meter.step(purpose, str(len(y))), trainer.autocast():
            features, logits = trainer.net(x)
        yield features.to(x.dtype), logits.to(x.dtype), y
    trainer.net.train()


def evaluate(trainer: LocalTrainer, images: Images | None = None) -> Score:
    """Score the loaded net on `images`, by default the test set."""
    return _joined(_answers(trainer, images))


Answers = tuple[Tensor, Tensor]  # for a batch: correct or not, bool [B], and the summed loss, a float64 scalar


def _answers(trainer: LocalTrainer, images: Images | None) -> Iterator[Answers]:
    for _, logits, y in outputs(trainer, images):
        yield logits.argmax(1) == y, F.cross_entropy(logits.double(), y, reduction="sum")


def _joined(answers: Iterable[Answers]) -> Score:
    right: list[Tensor] = []
    loss: Tensor | float = 0.0
    for part, summed in answers:
        right.append(part)
        loss = loss + summed  # in batch order, on whichever process they were computed
    every = torch.cat(right).cpu()
    return Score(every, float(loss) / len(every))


def _answers_of_part(trainer: LocalTrainer, state: State, first: int, last: int) -> list[Answers]:
    """Return the global model's answers to test images `first` to `last` - 1."""
    trainer.load(state, state.first_row)
    return list(_answers(trainer, trainer.data.test.part(first, last)))


def evaluate_global(trainer: LocalTrainer, state: State) -> Score:
    """Score the global model on the test set, with its batches shared among workers."""
    images = len(trainer.data.test)
    step = images if trainer.pool is None else trainer.pool.share(images, trainer.data.evaluation_batch)
    calls = [(trainer, state, first, min(first + step, images)) for first in range(0, images, step)]
    costs = [float(last - first) for _, _, first, last in calls]
    return _joined(one for part in trainer.each(state, _answers_of_part, calls, costs) for one in part)


def score(trainer: LocalTrainer, state: State) -> StageScores:
    """Score the global model, or each client's own model if weights stay with clients.

    If clients have test images of their own, `client_accuracy` is the mean over clients of the accuracy on these,
    `client_accuracy_std` its standard deviation, and `worst_tenth_accuracy` the mean over the worst tenth of clients.
    If the data has domains, `domain_accuracy` is the mean over domains, and `domain_accuracy.<name>` that of one.
    Raises `Diverged` if a loss exceeds the range of a record: the accuracy would be finite but meaningless.

    In a trial, `accuracy` and `loss` are means over all held-out images, for clients' own models too, and means over
    clients include only those that hold out images.
    """
    if trainer.paths.own:
        calls = [(trainer, state, client, state.rows_of(client)) for client in range(trainer.data.clients)]
        return score_clients(trainer, state.round, trainer.each(state, _score_own, calls, tested_images(trainer)))
    data = trainer.data
    hits = Hits.none(data.domains)
    found = _finite(evaluate_global(trainer, state), state.round, data.protocol)
    hits.add(found, data.test)
    scores: StageScores = {"accuracy": found.accuracy, "loss": found.loss}
    if data.tests is not None:
        scores |= _over_clients([percent(found.right[test]) for test in data.tests if len(test)])
    return scores | hits.scores()


def tested_images(trainer: LocalTrainer) -> list[float]:
    """Return the number of test images of each client's own model."""
    data = trainer.data
    return [float(len(data.test if data.tests is None else data.tests[client])) for client in range(data.clients)]


def _score_own(trainer: LocalTrainer, state: State, client: int, rows: dict[int, Row]) -> Score | None:
    trainer.load(state, state.holding(rows).row(client))
    return score_loaded(trainer, client)


def score_loaded(trainer: LocalTrainer, client: int) -> Score | None:
    """Score the loaded net on a client's test images; None if it has none."""
    images = trainer.data.test_of(client)
    return evaluate(trainer, images) if len(images) else None


def score_clients(trainer: LocalTrainer, round: int, each: Iterable[Score | None]) -> StageScores:
    """Combine the scores of clients' own models, given in client order; raise `Diverged` as `score` does."""
    data = trainer.data
    hits = Hits.none(data.domains)
    found: list[Score] = []
    for client, one in enumerate(each):
        if one is not None:
            found.append(_finite(one, round, data.protocol))
            if data.domains:
                hits.add(one, data.test_of(client))
    accuracies, losses = [one.accuracy for one in found], [one.loss for one in found]
    scores: StageScores = {"accuracy": None, "loss": float(np.mean(losses))}
    if data.protocol.trial:
        scores = {
            "accuracy": percent(torch.cat([one.right for one in found])),
            "loss": float(np.average(losses, weights=[len(one.right) for one in found])),
        }
    return scores | _over_clients(accuracies) | hits.scores()


def _over_clients(accuracies: list[float]) -> StageScores:
    found = float(np.mean(accuracies)), float(np.std(accuracies)), worst_tenth(accuracies)
    return dict(zip(OVER_CLIENTS, found, strict=True))


def worst_tenth(accuracies: Sequence[float]) -> float:
    """Return the mean of the lowest tenth, rounded up to whole clients (Li et al. 2020, q-FFL, Table 1)."""
    return float(np.mean(sorted(accuracies)[: math.ceil(len(accuracies) / 10)]))


def _finite(found: Score, round: int, protocol: Protocol) -> Score:
    if not abs(found.loss) <= LARGEST:
        raise Diverged(f"round {round}: the {'validation' if protocol.trial else 'test'} loss is {found.loss}")
    return found
