"""Content of the figures: the panels of each kind, built from a board's records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.report.arrange import arrange
from fedspan.benchmark.report.axes import Axes, in_words, under_title
from fedspan.benchmark.report.drawing import (
    FLOOR,
    KINDS,
    MOST_LINES,
    MOST_PANELS,
    ONE_SEED,
    PERCENT,
    VIEW,
    Drawing,
    Kind,
    Panel,
    PlotLine,
    Points,
)
from fedspan.benchmark.report.metric import Metric
from fedspan.benchmark.report.sweeps import line_through, order_along_x, ratios, short, swept_name
from fedspan.benchmark.spec.board import Figure

MEANS = "mean of the seeds, ± one sample standard deviation."


@dataclass
class _Parts:
    """The finished runs of a figure that hold its data, by column and row."""

    figure: Figure
    kind: Kind
    rows: tuple[tuple[str, ...], ...]
    columns: tuple[tuple[str, ...], ...]
    places: dict[tuple[Any, Any], pd.DataFrame]
    problems: tuple[str, ...]

    def row_label(self, row: Sequence[str]) -> str:
        return _words(self.figure.rows, row, "all")

    def column_title(self, column: Sequence[str]) -> str:
        return _words(self.figure.columns, column, "")

    def first(self, column: tuple[str, ...]) -> Any:
        """Return the data of the first seed of a column's only row, or None; raise `UserError` for several rows."""
        found = [self.places[column, row] for row in self.rows if (column, row) in self.places]
        if len(found) > 1:
            raise UserError(
                f"a figure of kind '{self.figure.kind}' shows one row per panel, got {len(found)}; name it in columns"
            )
        return found[0].sort_values("seed")[self.kind.column].iloc[0] if found else None


def draw(frame: pd.DataFrame, axes: Axes, figure: Figure, number: int) -> Drawing:
    """Return the content of a figure of the board; raise `UserError` if it cannot be made."""
    kind = KINDS[figure.kind]
    scores = {"sweep": _draw_sweep, "bars": _draw_bars}
    drawing = scores.get(figure.kind, _draw_records)(frame, axes, figure, number)
    rows = "bars" if kind.style == "bars" else "lines"
    counts = ((len(drawing.labels), MOST_LINES, rows), (len(drawing.panels), MOST_PANELS, "panels"))
    for found, most, what in counts:
        if found > most:
            raise UserError(f"{found} {what} are too many to tell apart (at most {most}); select some with where")
    return drawing


def _draw_records(frame: pd.DataFrame, axes: Axes, figure: Figure, number: int) -> Drawing:
    """Return the drawing of curves, spectra or diagnostics of records."""
    kind = KINDS[figure.kind]
    parts = _parts(frame, axes, figure, kind, frame[kind.column])
    makers: Mapping[str, Callable[[_Parts], tuple[list[Panel], list[str]]]] = {
        "local_spectrum": _local_spectra,
        "gap": _gaps,
        "penalty": _penalties,
        "shares": _shares,
        "spaces": _spaces,
        "sphere": _embeddings,
        "tsne": _embeddings,
    }
    panels, labels = makers.get(figure.kind, _curves)(parts)
    return Drawing(
        number=number,
        title=figure.title or kind.y,
        kind=kind,
        labels=tuple(labels),
        panels=tuple(panels) or (Panel(""),),  # only records know the clients
        problems=parts.problems,
    )


def _parts(frame: pd.DataFrame, axes: Axes, figure: Figure, kind: Kind, held: pd.Series[Any]) -> _Parts:
    arranged = arrange(frame, axes, figure)
    done = arranged.runs[arranged.runs["state"] == "done"]
    holds = held[done.index].notna()
    problems = list(arranged.problems)
    if not holds.all():
        lacking = done[~holds]
        problems.append(
            f"{len(lacking)} of {len(done)} finished records hold {kind.lacking} (first: {lacking['key'].iloc[0]})"
        )
    if count := int(arranged.runs["state"].isin(["diverged", "failed"]).sum()):
        problems.append(f"{count} of {len(arranged.runs)} runs diverged or failed and are excluded from means")
    places: Any = dict(iter(done[holds].groupby(["column", "row"], sort=False)))
    return _Parts(
        figure=figure,
        kind=kind,
        rows=tuple(dict.fromkeys(arranged.runs["row"])),
        columns=tuple(dict.fromkeys(arranged.runs["column"])),
        places=places,
        problems=tuple(problems),
    )


def _words(names: Sequence[str], labels: Sequence[str], otherwise: str) -> str:
    return ", ".join(in_words(axis, label) for axis, label in zip(names, labels, strict=True)) or otherwise


# one line per row -------------------------------------------------------------------------------------


def _curves(parts: _Parts) -> tuple[list[Panel], list[str]]:
    labels = [parts.row_label(row) for row in parts.rows]
    makers: Mapping[str, Callable[[Sequence[Any]], tuple[np.ndarray, np.ndarray]]] = {
        "spectrum": _spectrum,
        "accuracy_over_time": _over_time,
    }
    make = makers.get(parts.figure.kind, _curve)
    panels = [
        Panel(parts.column_title(column), tuple(_lines(parts, column, labels, lambda runs: make(list(runs)))))
        for column in parts.columns
    ]
    return panels, labels


def _lines(
    parts: _Parts, column: Any, labels: Sequence[str], make: Callable[[pd.Series[Any]], tuple[np.ndarray, np.ndarray]]
) -> Iterable[PlotLine]:
    for number, row in enumerate(parts.rows):
        if (column, row) in parts.places:
            yield _line(number, labels[number], *make(parts.places[column, row][parts.kind.column]))


def _line(number: int, label: str, x: np.ndarray, ys: np.ndarray) -> PlotLine:
    std = ys.std(axis=0, ddof=1) if len(ys) > 1 else np.zeros_like(x)
    return PlotLine(number=number, label=label, x=x, mean=ys.mean(axis=0), std=std, n=len(ys))


def _spectrum(runs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return k [K] and each seed's log singular values [seeds, K]."""
    size = min(map(len, runs))
    floors = [FLOOR * max(float(values[0]), 1e-300) for values in runs]
    ys = np.array([np.log(np.maximum(values[:size], floor)) for values, floor in zip(runs, floors, strict=True)])
    return np.arange(1, size + 1, dtype=np.float64), ys


def _curve(runs: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounds [R] that all seeds have, and each seed's values at them [seeds, R]."""
    x = np.array(sorted(set.intersection(*({*rounds.tolist()} for rounds, _ in runs))))
    return x, np.array([np.asarray(values)[np.searchsorted(rounds, x)] for rounds, values in runs])


def _over_time(runs: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the times [T] at which any seed is evaluated, and each seed's latest value by then [seeds, T].

    Times start once every seed has been evaluated and stop when the first seed ends.
    """
    times = np.unique(np.concatenate([seconds for seconds, _ in runs]))
    first, last = max(seconds[0] for seconds, _ in runs), min(seconds[-1] for seconds, _ in runs)
    x = times[(times >= first) & (times <= max(first, last))]
    return x, np.array([values[np.searchsorted(seconds, x, side="right") - 1] for seconds, values in runs])


# local models -----------------------------------------------------------------------------------------


def _kept_clients(parts: _Parts) -> list[int]:
    """Return the clients to show: those named by the figure that have data, or else all with data."""
    held = {client for runs in parts.places.values() for one in runs[parts.kind.column] for client in one}
    return [client for client in parts.figure.clients if client in held] or sorted(held)


def _with_client(parts: _Parts, column: Any, row: Any, client: int) -> list[Any]:
    """Return the runs of a column and row that hold a client's local model; a round may be without some clients."""
    runs: Iterable[Any] = parts.places.get((column, row), pd.DataFrame()).itertuples(index=False)
    return [run for run in runs if client in run.local_spectra]


def _local_spectra(parts: _Parts) -> tuple[list[Panel], list[str]]:
    labels = [parts.row_label(row) for row in parts.rows]
    panels = []
    for column in parts.columns:
        for client in _kept_clients(parts):
            panel_title = ", ".join(filter(None, (parts.column_title(column), f"client {client}")))
            found = [_with_client(parts, column, row, client) for row in parts.rows]
            lines = (
                _line(number, labels[number], *_spectrum([run.local_spectra[client] for run in runs]))
                for number, runs in enumerate(found)
                if runs
            )
            panels.append(Panel(panel_title, tuple(lines)))
    return panels, labels


def _gaps(parts: _Parts) -> tuple[list[Panel], list[str]]:
    """Return one panel per column: spectra of the global model and of one client's local model, and R as a note."""
    client = next(iter(_kept_clients(parts)), 0)
    labels = ["global model", f"local model of client {client}"]
    panels = []
    for column in parts.columns:
        runs = [run for row in parts.rows for run in _with_client(parts, column, row, client)]
        if parts.first(column) is None or not runs:
            panels.append(Panel(parts.column_title(column)))
            continue
        lines = (
            _line(0, labels[0], *_spectrum([run.spectrum for run in runs])),
            _line(1, labels[1], *_spectrum([run.local_spectra[client] for run in runs])),
        )
        r = np.mean([run.gaps[client] for run in runs])
        panels.append(Panel(parts.column_title(column), lines, note=f"R = {r:.2f}"))
    return panels, labels


def _penalties(parts: _Parts) -> tuple[list[Panel], list[str]]:
    found = {column: parts.first(column) or {} for column in parts.columns}
    shown: dict[str, dict[str, list[float]]] = {}
    for column, penalties in found.items():
        for name, clients in penalties.items():
            said = [parts.column_title(column)] + ([name] if len(penalties) > 1 else [])
            shown[", ".join(filter(None, said))] = clients
    labels = sorted({client for clients in shown.values() for client in clients}, key=int)
    panels = [
        Panel(
            name,
            tuple(
                _line(labels.index(client), f"client {client}", np.arange(1, len(means) + 1.0), np.array([means]))
                for client, means in clients.items()
            ),
        )
        for name, clients in shown.items()
    ]
    return panels, [f"client {client}" for client in labels]


# matrices and points ----------------------------------------------------------------------------------


def _spaces(parts: _Parts) -> tuple[list[Panel], list[str]]:
    panels = []
    for column in parts.columns:
        shades = parts.first(column)
        diagonal = ", ".join(f"{value:.2f}" for value in np.diagonal(shades)) if shades is not None else ""
        panels.append(Panel(parts.column_title(column), shades=shades, words=f"On the diagonal: {diagonal}."))
    return panels, []


def _shares(parts: _Parts) -> tuple[list[Panel], list[str]]:
    panels = []
    for column in parts.columns:
        counts = parts.first(column)
        if counts is None:
            panels.append(Panel(parts.column_title(column)))
            continue
        held = "; ".join(
            f"client {client}: {own.sum():,} images of {(own > 0).sum()} classes" for client, own in enumerate(counts)
        )
        said = f"At most {counts.max():,} images of a class. {held}."
        panels.append(
            Panel(
                parts.column_title(column),
                shades=counts.T / counts.max(),
                first=0,
                words=said,
                most=float(counts.max()),
            )
        )
    return panels, []


def _embeddings(parts: _Parts) -> tuple[list[Panel], list[str]]:
    found = {column: parts.first(column) for column in parts.columns}
    every = [embedding for embedding in found.values() if embedding is not None]
    classes = sorted({label for embedding in every for label in embedding["classes"]})
    clients = list(dict.fromkeys(client for embedding in every for client in embedding["clients"]))
    names = {(c, k): _point_label(c, k) for c in classes for k in clients}
    number = {pair: i for i, pair in enumerate(names)}
    panels = []
    for column, embedding in found.items():
        groups = []
        if embedding is not None:
            xy, far = _flat(np.array(embedding["points"], dtype=np.float64))
            owners = list(zip(embedding["classes"], embedding["clients"], strict=True))
            for pair in dict.fromkeys(sorted(owners, key=lambda pair: number[pair])):
                mine = np.array([owner == pair for owner in owners])
                groups.append(
                    Points(
                        number=number[pair], label=names[pair], xy=xy[mine], mark=classes.index(pair[0]), far=far[mine]
                    )
                )
        panels.append(Panel(parts.column_title(column), points=tuple(groups)))
    return panels, list(names.values())


def _point_label(label: int, client: int | None) -> str:
    return f"class {label}" if client is None else f"class {label}, client {client}"


def _flat(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return plane points [n, 2] and whether each is on the far side [n]; points in space are seen from `VIEW`."""
    if points.shape[1] == 2:
        return points, np.zeros(len(points), dtype=bool)
    azimuth, elevation = VIEW
    right = np.array([-np.sin(azimuth), np.cos(azimuth), 0.0])
    eye = np.array([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)])
    return points @ np.stack([right, np.cross(eye, right)]).T, points @ eye < 0


# a score over an axis ---------------------------------------------------------------------------------


def _draw_sweep(frame: pd.DataFrame, axes: Axes, figure: Figure, number: int) -> Drawing:
    """Return the drawing of a score over the axis `x`."""
    if not figure.x:
        raise UserError("a figure of kind 'sweep' needs x, the axis that it sweeps over")
    parts = _with_scores(frame, axes, replace(figure, columns=(*figure.columns, figure.x)))
    found = list(dict.fromkeys(column[-1] for column in parts.columns))
    inner, ticks, places = order_along_x(found, [under_title(figure.x, label) for label in found])
    position = dict(zip(inner, places or range(len(inner)), strict=True))
    panels = []
    for outer in dict.fromkeys(column[:-1] for column in parts.columns):
        positions = {column: position[column[-1]] for column in parts.columns if column[:-1] == outer}
        panels.append(Panel(_words(figure.columns, outer, ""), tuple(_score_lines(parts, positions))))
    over = swept_name(figure.x, inner)
    return Drawing(
        number=number,
        title=figure.title or parts.kind.y,
        kind=replace(parts.kind, x=over[:1].upper() + over[1:]),
        labels=tuple(map(parts.row_label, parts.rows)),
        panels=tuple(panels),
        problems=parts.problems,
        ticks=ticks,
        places=places,
    )


def _draw_bars(frame: pd.DataFrame, axes: Axes, figure: Figure, number: int) -> Drawing:
    """Return the drawing of each column's scores, or of their ratios to the score of the first row."""
    parts = _with_scores(frame, axes, figure)
    titles = list(dict.fromkeys(map(parts.column_title, parts.columns)))
    positions = {column: titles.index(parts.column_title(column)) for column in parts.columns}
    labels, panel = tuple(map(parts.row_label, parts.rows)), Panel("", tuple(_score_lines(parts, positions)))
    means = MEANS if any(line.n > 1 for line in panel.lines) else ONE_SEED
    kind, problems = replace(parts.kind, caption=f"{parts.kind.y}: {means}"), parts.problems
    if figure.relative:
        panel, lost = ratios(panel, labels[0], len(titles))
        problems += lost
        caption = f"{parts.kind.y}, over that of {labels[0]}: {means}"
        kind = replace(kind, y=f"Ratio to {labels[0]}", caption=caption)
    return Drawing(
        number=number,
        title=figure.title or kind.y,
        kind=kind,
        labels=labels,
        panels=(panel,),
        problems=problems,
        ticks=tuple(short(titles)),
        level=1.0 if figure.relative else None,
    )


def _with_scores(frame: pd.DataFrame, axes: Axes, figure: Figure) -> _Parts:
    """Return the runs that have the figure's metric, with its values in the column `metric`."""
    metric = Metric.of(figure.metric)
    values = pd.Series([metric.find(stages)[1] for stages in frame["stages"]], index=frame.index, dtype="float64")
    ends = PERCENT if metric.unit == "%" and not figure.relative else KINDS[figure.kind].ends
    kind = replace(KINDS[figure.kind], y=metric.heading, lacking=f"no {figure.metric}", ends=ends)
    return _parts(frame.assign(metric=values), axes, figure, kind, values)


def _score_lines(parts: _Parts, positions: Mapping[tuple[str, ...], float]) -> Iterable[PlotLine]:
    """Yield each row's scores over x; `positions` are those of the columns."""
    for number, row in enumerate(parts.rows):
        found = {x: parts.places[column, row] for column, x in positions.items() if (column, row) in parts.places}
        if found:
            yield line_through(number, parts.row_label(row), {x: runs["metric"] for x, runs in found.items()})
