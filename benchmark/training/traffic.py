"""Communication between server and clients in bytes, and the cost of the classifier alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedspan.benchmark.head import in_head
from fedspan.benchmark.training.client_view import received
from fedspan.benchmark.training.executors.round_sums import RoundSums
from fedspan.benchmark.training.local import LocalTrainer
from fedspan.benchmark.training.state import State
from fedspan.benchmark.tree import Tree, nbytes


def count_round(trainer: LocalTrainer, clients: Sequence[int], down: int, sums: RoundSums) -> None:
    """Add the visits, steps, images and bytes of a round to the meter.

    `down`: bytes received by its clients. `sums`: uploaded bytes that arrived, and the work of all clients.
    """
    meter, method = trainer.meter, trainer.method
    meter.visits += len(clients)
    meter.steps += sums.steps
    meter.images += sums.images
    if not method.one_client:
        meter.bytes_up += sums.upload_bytes
        meter.bytes_down += down


def download_bytes(trainer: LocalTrainer, state: State, clients: Sequence[int], beside: int | None = None) -> list[int]:
    """Return the bytes that each client receives in the current round of `state`, before it trains.

    After a warm-up, a client receives its own weights once and keeps them from then on. Without a warm-up they are
    initialised from the seed and never sent. `beside` are the `bytes_beside_model`, if known.
    """
    shared = model_bytes(trainer, state) + (bytes_beside_model(trainer, state) if beside is None else beside)
    own = nbytes(state.first_row.own) if 0 < trainer.paths.warm_rounds <= state.round else 0
    return [shared if client in state.rows and state.rows[client].own else shared + own for client in clients]


def bytes_beside_model(trainer: LocalTrainer, state: State) -> int:
    """Return the bytes that each client receives from components in a round; they follow from shapes alone."""
    return sum(nbytes(tree) for tree in received(trainer, state, 0).values())


def count_calibration(trainer: LocalTrainer, state: State, clients: int, numbers: int) -> None:
    """Add the bytes of a calibration to the meter: the model to each of `clients`, `numbers` back from all of them.

    The numbers are summed in float64 but counted at the width of a weight, as in SphereFed 2022, Table 1.
    """
    if trainer.method.one_client:
        return
    trainer.meter.calibration_up += numbers * trainer.protocol.dtype.itemsize
    trainer.meter.calibration_down += clients * model_bytes(trainer, state)


def count_sent_weights(trainer: LocalTrainer, before: Tree, after: Tree) -> None:
    """Add the bytes of calibrated weights that are not part of the next round's model download."""
    if trainer.method.one_client:
        return
    shared = trainer.paths.shared
    sent = {path: leaf for path, leaf in after.items() if path not in shared and leaf is not before[path]}
    trainer.meter.calibration_down += trainer.data.clients * nbytes(sent)


def model_bytes(trainer: LocalTrainer, state: State) -> int:
    """Return the bytes of the weights and buffers that travel one way in the current round of `state`."""
    paths = trainer.paths.at(state.round, trainer.net)
    weights = {path: state.params[path] for path in paths.shared}
    buffers = {path: state.buffers[path] for path in paths.shared_buffers}
    return nbytes(weights) + nbytes(buffers)


def classifier_cost(trainer: LocalTrainer, state: State) -> dict[str, float]:
    """Return the cost of the classifier alone, counted as in SphereFed 2022, Table 1.

    `bytes_of_one_client`: its weights, before any compression, down and up in every round of the mean client, if they
    travel and arrive, plus its uploads for calibration. `flops`: of all clients and the server, without the forward
    pass: `classifier_flops` of all images, plus the calibration.
    """
    meter, paths, clients = trainer.meter, trainer.paths, trainer.data.clients
    head = {path: leaf for path, leaf in state.params.items() if in_head(path)}
    visits = 0 if trainer.method.one_client else 2 * meter.visits - meter.lost
    sent = visits / clients * nbytes({path: head[path] for path in head if path in paths.shared})
    trained = round(classifier_flops(trainer, head) * meter.images)
    return {
        "bytes_of_one_client": sent + meter.calibration_up / clients,
        "flops": trained + meter.flops.get("calibrate", 0),
    }


def classifier_flops(trainer: LocalTrainer, head: Mapping[str, Tensor]) -> float:
    """Return the FLOPs per trained image of gradient and update of the classifier: 3 d C for its d x C weights.

    Weights that are not trained cost nothing; those that only some epochs of a round train count in proportion.
    """
    phases = trainer.method.phases(trainer.protocol.local_epochs)
    whole = sum(epochs for epochs, _ in phases)
    moved = (
        leaf.numel() * sum(epochs for epochs, moving in phases if moving(path)) / whole
        for path, leaf in head.items()
        if leaf.ndim == 2 and path in trainer.paths.trainable
    )
    return 3 * sum(moved)
