"""Tables and figures of a board, as its YAML declares them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Table:
    """A table over the board's cells.

    `rows` and `columns` name axes of the spec: `method`, `algorithm`, `addons`, `partition`, `clients`, ... or
    a dotted path. `metric` is ``stage.metric`` of the record's scores; stage ``final`` is the method's last one, stage
    ``cost`` holds measurements besides scores. `where` keeps the cells whose label along an axis is the given value or
    one of the given values. `printed` lists sources of the same numbers as ``paper/table``: these are read from
    ``results/paper/<paper>.csv`` and shown beside the measured ones.

    With `minus`, the numbers are differences: `minus` selects reference cells like `where`, along axes of the table,
    and each other cell shows its value minus that of the reference with the same labels along the other axes, seed by
    seed; if `relative`, in percent of the reference.
    """

    title: str = ""
    rows: tuple[str, ...] = ("method",)
    columns: tuple[str, ...] = ("partition",)
    metric: str = "trained.accuracy"
    where: dict[str, Any] = field(default_factory=dict)
    printed: tuple[str, ...] = ()
    minus: dict[str, Any] = field(default_factory=dict)
    relative: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure over the board's cells: one panel per column, one line per row unless its kind says otherwise.

    - `accuracy` per round; `accuracy_over_time`: over the time of the fleet's clock;
    - `spectrum` and `local_spectrum`: singular values of representations under the global model and under the local
      models of `clients` (default: all recorded ones); `gap`: both in one panel, with R;
    - `sweep` and `bars`: `metric` over the axis `x`, or one bar per row, as a share of the first one if `relative`;
    - `penalty`: the penalties of each client over the local epochs of a round, without their coefficients;
    - `shares`: number of images of each class per client;
    - `spaces`: alignment of the singular spaces of a linear network;
    - `sphere` and `tsne`: representations of test images.
    """

    kind: Literal[
        "accuracy", "accuracy_over_time", "spectrum", "local_spectrum", "gap", "sweep", "bars",
        "penalty", "shares", "spaces", "sphere", "tsne",
    ] = "accuracy"  # fmt: skip
    title: str = ""
    rows: tuple[str, ...] = ("method",)
    columns: tuple[str, ...] = ("partition",)
    where: dict[str, Any] = field(default_factory=dict)
    x: str = ""
    metric: str = "trained.accuracy"
    clients: tuple[int, ...] = ()
    relative: bool = False
