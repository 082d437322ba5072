"""Scores of a trained cell, stage by stage, and digests of the scored models."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from fedspan.benchmark.records.model import STAGES
from fedspan.benchmark.training import stages
from fedspan.benchmark.training.evaluation import (
    OVER_CLIENTS,
    Score,
    StageScores,
    score,
    score_clients,
    score_loaded,
    tested_images,
)
from fedspan.benchmark.training.local import LocalTrainer
from fedspan.benchmark.training.run import Run
from fedspan.benchmark.training.state import Row, State
from fedspan.benchmark.tree import digest


def score_stages(run: Run) -> dict[str, StageScores]:
    """Return the scores of every stage, and store the digests of their models in the run.

    `trained` is the last round, `best` the best evaluated round, whose model is not kept. A trial replaces all model
    stages by `validation`. Raises `Diverged` if a loss is not finite; the digests of earlier stages remain.
    """
    trainer, state, meter = run.trainer, run.state, run.meter
    with meter.phase("evaluate"):
        result = {"trained": score(trainer, state) | _of_newcomers(run)}
        run.stage_digests["trained"] = state.digest()
        result |= _best(run)
    if run.method.calibrator:
        with meter.phase("calibrate"):
            trained, state.params = state.params, run.calibrated()
        with meter.phase("evaluate"):
            result["calibrated"] = score(trainer, state) | _of_newcomers(run)
            run.stage_digests["calibrated"] = state.digest()
        state.params = trained
    if run.method.personalises:
        with meter.phase("personalise"):
            result["personalised"] = _score_personalised(run) | _of_personalised_newcomers(run)
    if run.cell.protocol.trial:
        result = {"validation": _of_trial(run, result)}
    if "alignment" in run.measured:
        result["alignment"] = dict(run.measured["alignment"])
    return result | ({"privacy": run.privacy} if run.privacy else {})


def _of_trial(run: Run, stages: dict[str, StageScores]) -> StageScores:
    """Return the scores of the method's last stage, accuracy and loss of every stage, and the numbers of images.

    `images` are held out by `clients` clients; `clients_without` have too few images to hold one out.
    """
    had = [name for name in STAGES if name in stages]
    scores = dict(stages[had[-1]])
    for name in had:
        scores |= {f"{metric}.{name}": stages[name][metric] for metric in ("accuracy", "loss")}
    held = [len(images) for images in run.trainer.data.tests or ()]
    giving = sum(map(bool, held))
    return scores | {"images": sum(held), "clients": giving, "clients_without": len(held) - giving}


def _best(run: Run) -> dict[str, StageScores]:
    """Return the highest accuracy over evaluated rounds, the earliest if tied; empty without a global model."""
    rounds = zip(run.curve["accuracy"], run.curve["round"], strict=True)
    seen = [(accuracy, number) for accuracy, number in rounds if accuracy is not None]
    if not seen:
        return {}
    accuracy, number = max(seen, key=lambda pair: (pair[0], -pair[1]))
    return {"best": {"accuracy": accuracy, "round": number}}


def _of_newcomers(run: Run) -> StageScores:
    """Return the global model's scores on clients that never train; None if weights stay with clients."""
    if run.newcomers is None:
        return {}
    if run.trainer.paths.own:
        return _as_newcomers(dict.fromkeys(OVER_CLIENTS))
    trainer = run.newcomers
    trainer.load(run.state, run.state.first_row)
    scores = (score_loaded(trainer, client) for client in range(trainer.data.clients))
    return _as_newcomers(score_clients(trainer, run.state.round, scores))


def _of_personalised_newcomers(run: Run) -> StageScores:
    """Return the scores of the personalised models of clients that never train, each personalised on its own images."""
    if run.newcomers is None:
        return {}
    trainer = run.newcomers
    scores = (_personalised(trainer, run.state, client, {})[0] for client in range(trainer.data.clients))
    return _as_newcomers(score_clients(trainer, run.state.round, scores))


def _as_newcomers(scores: StageScores) -> StageScores:
    """Return the scores over clients, renamed for clients that never train."""
    return {
        name.replace("client", "unseen") if "client" in name else f"unseen_{name}": scores[name]
        for name in OVER_CLIENTS
    }


def _score_personalised(run: Run) -> StageScores:
    """Score each client's personalised model; the stage's digest covers all models, in client order."""
    trainer, state, models = run.trainer, run.state, hashlib.sha256()
    clients = range(trainer.data.clients)
    calls = [(trainer, state, client, state.rows_of(client)) for client in clients]
    costs = [tested + len(own) for tested, own in zip(tested_images(trainer), trainer.data.indices, strict=True)]

    def each() -> Iterator[Score | None]:
        for found, model in trainer.each(state, _personalised, calls, costs):
            models.update(model.encode())
            yield found

    scores = score_clients(trainer, state.round, each())
    run.stage_digests["personalised"] = models.hexdigest()
    return scores


def _personalised(trainer: LocalTrainer, state: State, client: int, rows: dict[int, Row]) -> tuple[Score | None, str]:
    """Return the score and the digest of a client's personalised model."""
    stages.personalise(trainer, state.holding(rows), client, trainer.data.seed)
    return score_loaded(trainer, client), digest(trainer.params | trainer.buffers)
