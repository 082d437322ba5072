"""The scores of a trained cell, stage by stage, and the digests of the models behind them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from fedspan.benchmark.records.model import STAGES
from fedspan.benchmark.training import stages
from fedspan.benchmark.training.evaluation import Score, Scores, score, score_clients, score_loaded, tested_images
from fedspan.benchmark.training.local import LocalTrainer
from fedspan.benchmark.training.run import Run
from fedspan.benchmark.training.state import Row, State
from fedspan.benchmark.tree import digest


def score_stages(run: Run) -> dict[str, Scores]:
    """Return the scores of every stage, and leave the digests of their models in the run.

    `trained` is the last round, `best` the best evaluated round, which has no model any more. A trial has the stage
    `validation` in place of all these. Raises `Diverged` if a loss is not finite; the digests of the stages before
    stay.
    """
    trainer, state, meter = run.trainer, run.state, run.meter
    with meter.phase("evaluate"):
        result = {"trained": score(trainer, state)}
        run.stage_digests["trained"] = state.digest()
        result |= _best(run)
    if run.method.calibrator:
        with meter.phase("calibrate"):
            trained, state.params = state.params, stages.calibrate(trainer, state, run.cell.seed)
        with meter.phase("evaluate"):
            result["calibrated"] = score(trainer, state)
            run.stage_digests["calibrated"] = state.digest()
        state.params = trained
    if run.method.personalises:
        with meter.phase("personalise"):
            result["personalised"] = _score_personalised(run)
    if run.cell.protocol.trial:
        result = {"validation": _of_trial(run, result)}
    if "alignment" in run.measured:
        result["alignment"] = dict(run.measured["alignment"])
    return result


def _of_trial(run: Run, stages: dict[str, Scores]) -> Scores:
    """Return the scores of the stage that the method is judged by, accuracy and loss of every stage, and on what.

    `images` are held out, by `clients` of them; `clients_without` have too few to give one.
    """
    had = [name for name in STAGES if name in stages]
    scores = dict(stages[had[-1]])
    for name in had:
        scores |= {f"{metric}.{name}": stages[name][metric] for metric in ("accuracy", "loss")}
    held = [len(images) for images in run.trainer.data.tests or ()]
    giving = sum(map(bool, held))
    return scores | {"images": sum(held), "clients": giving, "clients_without": len(held) - giving}


def _best(run: Run) -> dict[str, Scores]:
    """Return the highest accuracy of an evaluated round, the earliest of equals; nothing without a global model."""
    rounds = zip(run.curve["accuracy"], run.curve["round"], strict=True)
    seen = [(accuracy, number) for accuracy, number in rounds if accuracy is not None]
    if not seen:
        return {}
    accuracy, number = max(seen, key=lambda pair: (pair[0], -pair[1]))
    return {"best": {"accuracy": accuracy, "round": number}}


def _score_personalised(run: Run) -> Scores:
    """Score each client's personalised model; their digest is one over all clients' in the order of numbers."""
    trainer, state, models = run.trainer, run.state, hashlib.sha256()
    calls = [(trainer, state, c, state.rows_of(c), run.cell.seed) for c in range(trainer.data.clients)]
    costs = [tested + len(own) for tested, own in zip(tested_images(trainer), trainer.data.indices, strict=True)]

    def scores() -> Iterator[Score | None]:
        for found, model in trainer.each(state, _personalised, calls, costs):
            models.update(model.encode())
            yield found

    result = score_clients(trainer, state.round, scores())
    run.stage_digests["personalised"] = models.hexdigest()
    return result


def _personalised(
    trainer: LocalTrainer, state: State, client: int, rows: dict[int, Row], seed: int
) -> tuple[Score | None, str]:
    """Return the score of a client's personalised model, and the model's digest."""
    stages.personalise(trainer, state.holding(rows), client, seed)
    model = digest(trainer.params | trainer.buffers)
    return score_loaded(trainer, client), model
