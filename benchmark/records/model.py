"""Schema of a record: its fields with their types and ranges.

`NotRequired` marks fields that records of earlier versions lack, `total=False` fields that a cell that never started
lacks. Unknown fields are allowed: they are kept and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

LARGEST = 1e150  # in a score: its square and sums of squares stay finite
MOST = 1e30  # of anything counted or measured as a cost

Finite = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Cost = Annotated[float, Meta(ge=0, le=MOST)]
DIGITS = 12  # significant digits to which equal means agree despite rounding errors
Percent = Annotated[float, Meta(ge=0, le=100)]
Share = Annotated[float, Meta(gt=0, le=1)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Number = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Key = Annotated[str, Meta(pattern="^[0-9a-f]{20}$")]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
DataDigest = Annotated[str, Meta(pattern="^[0-9a-f]{8,64}$")]
Client = Annotated[str, Meta(pattern="^[0-9]{1,9}$")]  # a client's number, as a JSON key
Status = Literal["done", "skipped", "diverged", "failed"]

STAGES = ("trained", "calibrated", "personalised")  # each has its own weights; a method is judged by its last one
TRIAL = "validation"  # replaces these stages in a trial, which scores held-out training images


class Part(TypedDict):
    """A plugin of a cell; its settings are further fields."""

    name: str
    version: int


class ProtocolSpec(TypedDict):
    """The training protocol; the other settings of `fedspan.benchmark.protocol.Protocol` are further fields."""

    rounds: Number
    validation: NotRequired[Annotated[float, Meta(ge=0, lt=1)]]


class Spec(TypedDict):
    """Everything that changes a cell's result."""

    schema: int
    dataset: Part
    partition: Part
    clients: Number
    participation: Share
    unseen: NotRequired[Annotated[float, Meta(ge=0, lt=1)]]
    fleet: NotRequired[Part]
    model: Part
    algorithm: Part
    addons: list[Part]
    protocol: ProtocolSpec
    seed: Count
    scale: str
    diagnostics: NotRequired[dict[str, Any]]


Metrics = dict[str, Finite | None]  # by name; those whose name ends in accuracy are in percent
# By stage: trained, best, calibrated, personalised, or validation alone; and alignment, privacy.
Scores = dict[str, Metrics]


class Curve(TypedDict, total=False):
    """Curves over the evaluated rounds, [R] each; None where a method has no such number.

    Accuracy and loss are measured on test images, in a trial on held-out training images. `train_loss` is the mean
    training objective per image, penalties included, over the clients whose updates arrived, weighted by images.
    """

    round: list[Number]
    accuracy: list[Percent | None]
    loss: list[Finite | None]
    train_loss: list[Finite | None]


class Bytes(TypedDict, total=False):
    """Bytes that all clients send and receive in total, and that one client does per round on average."""

    up: Cost
    down: Cost
    calibration_up: Cost
    calibration_down: Cost
    up_per_client_round: Cost
    down_per_client_round: Cost


class Classifier(TypedDict):
    """Cost of the classifier alone, counted as in SphereFed 2022, Table 1."""

    bytes_of_one_client: Cost
    flops: Cost


class Compute(TypedDict, total=False):
    """Cost of a cell: `seconds` by phase, `flops` and `memory_bytes` by purpose, the rest as named.

    `processor_seconds` is the CPU time of the process and its workers, over all phases and threads.
    """

    seconds: dict[str, Cost]
    processor_seconds: Cost
    flops: dict[str, Cost]
    bytes: Bytes
    steps: Count
    images: Count
    memory_bytes: dict[str, Cost]
    peak_memory_bytes: Cost
    seconds_at_round: list[Cost]
    bytes_at_round: list[Cost]
    classifier: Classifier


class Provenance(TypedDict, total=False):
    """Origin of the numbers: machine, versions, sources, data, and the command that repeats them."""

    versions: dict[str, str]
    git_commit: str | None
    uncommitted: list[str] | None
    platform: str
    processor: str
    gpu: str
    engine: str
    sources: dict[str, str]
    device: str
    executor: str
    threads: Number
    workers: Count
    numerics: str
    command: str
    dataset_digest: DataDigest | None
    partition_digest: DataDigest | None
    cells_beside: Count
    trained_by: Key


class Digests(TypedDict, total=False):
    """Sha256 of weights, by evaluated round and by stage."""

    rounds: dict[str, Sha256]
    stages: dict[str, Sha256]


class Spectrum(TypedDict, total=False):
    """Singular values of representations, largest first, and statistics of them."""

    singular_values: list[Cost]
    dimension: Count
    significant: Count
    effective_rank: Cost


# "global" is a Python keyword.
Spectra = TypedDict(
    "Spectra",
    {
        "log_threshold": Finite,
        "global": Spectrum,
        "local": dict[Client, Spectrum],
        "gap": dict[Client, Finite],
    },
    total=False,
)


class Embedding(TypedDict):
    """Points of test images [n, 2 or 3], their classes, and the clients whose models made them (None: global model)."""

    points: list[list[Finite]]
    classes: list[Count]
    clients: list[Count | None]


class DiagnosticResults(TypedDict, total=False):
    """Data of figures: penalties by component, client and local epoch; images [clients, classes]; spaces [C, C]."""

    penalties: dict[str, dict[Client, list[Finite]]]
    shares: list[list[Count]]
    spaces: list[list[Finite]]
    embedding: Embedding


class FleetTurns(TypedDict):
    """Outcome of client visits (client x round) under a fleet, and its simulated clock in seconds.

    Nothing arrived from `lost` visits; `cut` visits took only part of their steps. In `empty_rounds` nothing arrived at
    all, so the model stayed unchanged.
    """

    visits: Count
    lost: Count
    cut: Count
    empty_rounds: Count
    seconds: NotRequired[Cost]
    seconds_at_round: NotRequired[list[Cost]]


class Record(TypedDict):
    """The outcome of a cell. `digest` covers all other fields.

    `refused` marks a failure whose reason says what to change; `traceback` is that of an unexpected failure.
    """

    schema: int
    key: Key
    spec: Spec
    status: Status
    reason: str | None
    scores: Scores
    curve: Curve
    compute: Compute
    fleet: NotRequired[FleetTurns]
    provenance: Provenance
    digests: NotRequired[Digests]
    spectra: NotRequired[Spectra]
    diagnostics: NotRequired[DiagnosticResults]
    refused: NotRequired[bool]
    traceback: NotRequired[str]
    digest: NotRequired[Sha256]


def is_trial(record: Record) -> bool:
    """Return whether a record is a trial, scored on held-out training images, and therefore not a result."""
    return record["spec"]["protocol"].get("validation", 0) > 0


def core_seconds(record: Mapping[str, Any]) -> float | None:
    """Return the core seconds of a record's run; None if unknown.

    On a CPU or with several workers these are processor seconds, unaffected by the machine's other load. On other
    devices, and for older records of one worker, which lack those, they are the total seconds.
    """
    compute, made = record["compute"], record["provenance"]
    busy, spread = compute.get("processor_seconds"), made.get("workers", 1) > 1
    if spread or (busy is not None and made.get("device", "cpu") == "cpu"):
        return busy
    return compute.get("seconds", {}).get("total")


def machine_of(made: Mapping[str, Any]) -> str | None:
    """Return the kind of machine in a provenance, device and processor; None if it names no device."""
    if "device" not in made:
        return None
    return f"{made['device']} · {made.get('gpu') or made.get('processor') or made.get('platform', 'unknown')}"


def settled(value: float) -> float:
    """Return a mean rounded to `DIGITS` significant digits, so that equal means are equal numbers."""
    return float(f"{value:.{DIGITS}g}")


def judged(record: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return a record's last stage, by which it is judged, and its accuracy there in percent.

    The stage is empty and the accuracy None if missing. The record may be the unchecked content of a file.
    """
    stages = record.get("scores", {})
    last = next((name for name in (TRIAL, *reversed(STAGES)) if isinstance(stages.get(name), dict)), "")
    return last, _of_stage(stages, last)


def trained_accuracy(record: Mapping[str, Any]) -> float | None:
    """Return the accuracy at the end of training in percent, for a trial on held-out images; None if missing.

    The record may be the unchecked content of a file.
    """
    stages = record.get("scores", {})
    return _of_stage(stages, TRIAL if TRIAL in stages else STAGES[0])


def _of_stage(stages: Mapping[str, Any], name: str) -> float | None:
    scores = stages.get(name, {})
    selected_by = scores.get("accuracy") if name == TRIAL else None
    return accuracy_of(scores) if selected_by is None else selected_by


def accuracy_of(scores: Mapping[str, Any]) -> float | None:
    """Return the accuracy in a stage's scores by which methods are compared, in percent; None if missing."""
    return scores.get(compared_metric(scores))


def compared_metric(scores: Mapping[str, Any]) -> str:
    """Return the name of the accuracy in a stage's scores by which methods are compared.

    If clients have test images of their own, it is their mean accuracy on those, which methods without a global model
    have too; otherwise it is the accuracy on all test images.
    """
    return "accuracy" if scores.get("client_accuracy") is None else "client_accuracy"
