"""What a record holds: its fields with their types and ranges.

`NotRequired` marks what records of earlier versions lack, `total=False` what a cell that never started has none of.
Fields that this version does not know are allowed: they are kept, and looked at by nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

LARGEST = 1e150  # in a score: its square and sums of squares are still numbers
MOST = 1e30  # of anything that is counted or measured as a cost

Finite = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Cost = Annotated[float, Meta(ge=0, le=MOST)]
Percent = Annotated[float, Meta(ge=0, le=100)]
Share = Annotated[float, Meta(gt=0, le=1)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Number = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Key = Annotated[str, Meta(pattern="^[0-9a-f]{20}$")]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
DataDigest = Annotated[str, Meta(pattern="^[0-9a-f]{8,64}$")]
Client = Annotated[str, Meta(pattern="^[0-9]{1,9}$")]  # by number, as a name in JSON
Status = Literal["done", "skipped", "diverged", "failed"]

STAGES = ("trained", "calibrated", "personalised")  # each has weights of its own; the last that a method has counts
TRIAL = "validation"  # the stage in place of these where held-out training images are scored


class Part(TypedDict):
    """A plugin of a cell; its settings stand beside these two."""

    name: str
    version: int


class ProtocolSpec(TypedDict):
    """How training goes; further settings of `fedspan.benchmark.protocol.Protocol` stand beside it."""

    rounds: Number
    validation: NotRequired[Annotated[float, Meta(ge=0, lt=1)]]


class Spec(TypedDict):
    """All that changes a cell's result."""

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

    Accuracy and loss are those of test images, in a trial those of held-out training images.
    """

    round: list[Number]
    accuracy: list[Percent | None]
    loss: list[Finite | None]
    train_loss: list[Finite | None]


class Bytes(TypedDict, total=False):
    """The bytes that all clients send and receive, and what one sends and receives in a round on average."""

    up: Cost
    down: Cost
    calibration_up: Cost
    calibration_down: Cost
    up_per_client_round: Cost
    down_per_client_round: Cost


class Classifier(TypedDict):
    """What the classifier alone costs, counted as SphereFed 2022, Table 1 does."""

    bytes_of_one_client: Cost
    flops: Cost


class Compute(TypedDict, total=False):
    """What a cell cost: `seconds` by phase, `flops` and `memory_bytes` by purpose, the rest as its name says.

    `processor_seconds` are those that the process and its workers had processors for, in all phases and threads.
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
    """Where the numbers come from: machine, versions, sources, data, and the command that repeats them."""

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
    """Singular values of representations, largest first, and what they come to."""

    singular_values: list[Cost]
    dimension: Count
    significant: Count
    effective_rank: Cost


# "global" is a word of the language.
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
    """Points of test images [n, 2 or 3], their classes, and the clients whose models made them (None: the global)."""

    points: list[list[Finite]]
    classes: list[Count]
    clients: list[Count | None]


class DiagnosticResults(TypedDict, total=False):
    """What figures show: penalties by component, client and local epoch; images [clients, classes]; spaces [C, C]."""

    penalties: dict[str, dict[Client, list[Finite]]]
    shares: list[list[Count]]
    spaces: list[list[Finite]]
    embedding: Embedding


class FleetTurns(TypedDict):
    """What a fleet made of the clients' visits (client x round), and its simulated clock in seconds.

    Of `lost` ones nothing arrived, `cut` ones took only part of their steps; `empty_rounds` are those of which nothing
    arrived, so that the model stayed as it was.
    """

    visits: Count
    lost: Count
    cut: Count
    empty_rounds: Count
    seconds: NotRequired[Cost]
    seconds_at_round: NotRequired[list[Cost]]


class Record(TypedDict):
    """The outcome of a cell. `digest` is of all the rest.

    `refused` marks a failure whose reason says what to change, `traceback` is of one that nobody expected.
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
    """Tell whether the scores of a record are of held-out training images, so that it is no result."""
    return record["spec"]["protocol"].get("validation", 0) > 0


def core_seconds(record: Mapping[str, Any]) -> float | None:
    """Return the seconds that one core takes for what a record's run did; None if that is unknown.

    On a CPU those are its processors' seconds, whatever else the machine did; older records do not name them.
    """
    compute, made = record["compute"], record["provenance"]
    busy, spread = compute.get("processor_seconds"), made.get("workers", 1) > 1
    if spread or (busy is not None and made.get("device", "cpu") == "cpu"):
        return busy
    return compute.get("seconds", {}).get("total")


def machine_of(made: Mapping[str, Any]) -> str | None:
    """Return the kind of machine that a provenance names, by device and processor; None if it names no device."""
    if "device" not in made:
        return None
    return f"{made['device']} · {made.get('gpu') or made.get('processor') or made.get('platform', 'unknown')}"


def judged(record: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return the stage by which a record is judged, the last that it has, and its accuracy there in percent.

    Empty without a stage, None without an accuracy. The record may be any that a file holds, before it is checked.
    """
    stages = record.get("scores", {})
    last = next((name for name in (TRIAL, *reversed(STAGES)) if isinstance(stages.get(name), dict)), "")
    return last, _of_stage(stages, last)


def headline(record: Mapping[str, Any]) -> float | None:
    """Return the accuracy at the end of training in percent, of a trial that on held-out images; None without one.

    The record may be any that a file holds, before it is checked.
    """
    stages = record.get("scores", {})
    return _of_stage(stages, TRIAL if TRIAL in stages else STAGES[0])


def _of_stage(stages: Mapping[str, Any], name: str) -> float | None:
    scores = stages.get(name, {})
    selected_by = scores.get("accuracy") if name == TRIAL else None
    return accuracy_of(scores) if selected_by is None else selected_by


def accuracy_of(scores: Mapping[str, Any]) -> float | None:
    """Return the accuracy of a stage's scores by which methods compare, in percent; None without one.

    Where clients have test images of their own it is their mean on those, which methods without a global model have
    too; elsewhere that on all test images.
    """
    own = scores.get("client_accuracy")
    return scores.get("accuracy") if own is None else own
