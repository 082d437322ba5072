"""The report of a board: all files generated from its records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records.atomic import discard, write_atomically
from fedspan.benchmark.records.record import SIDECARS
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.selection import Selection
from fedspan.benchmark.records.sources import REMEDY
from fedspan.benchmark.report import figures, panels, render_text, summary
from fedspan.benchmark.report.analysis import Analysis, analyse, reach_targets
from fedspan.benchmark.report.axes import TUNING
from fedspan.benchmark.report.diagrams import average_ranks, score_against_cost
from fedspan.benchmark.report.drawing import KINDS, Drawing
from fedspan.benchmark.report.frame import collect, point_of
from fedspan.benchmark.report.recipes import Sourced, examine
from fedspan.benchmark.report.render_page import Content, Extras, board_page, runs_pages
from fedspan.benchmark.report.summary import Summary, summarise
from fedspan.benchmark.report.table import Tabulated
from fedspan.benchmark.report.tuning import (
    Reported,
    TunedMethod,
    best_frame,
    outcome_lines,
    outcomes_frame,
    tables_of,
    trials_frame,
    tuned_methods,
)
from fedspan.benchmark.spec.board import Board, Figure
from fedspan.benchmark.spec.plan import PlannedCell, distinct, plan
from fedspan.benchmark.spec.settings import FULL, How
from fedspan.benchmark.training.costs import STAGE

LEFT_OUT = "left out: "


@dataclass
class Report:
    """A finished report: its files, its tables, and problems with the records.

    It is not `whole` if a record, table or figure had to be left out.
    """

    written: list[Path]
    summary: Summary
    problems: list[str]
    whole: bool
    tables: list[tuple[Tabulated, Analysis | None]]


def write_report(
    board: Board, cells: Sequence[PlannedCell], results: Results, out: Path, selections: Sequence[Selection] = ()
) -> Report:
    """Write the page of a board with its tables and figures, and the pages of the runs behind its numbers.

    The folder is ``out/<board>``, or ``out/<board>/<scale>`` if all cells have one scale other than the full size; runs
    and copies of their records go to ``out/runs`` and ``out/records``. Records that must not be compared, and tables or
    figures that cannot be made, are left out and named in `problems`; the rest is still written. The same records give
    the same bytes. `selections` are the outcomes of a tuned board's studies. Raise `UserError` if a folder cannot be
    written.
    """
    scales = {planned.cell.scale for planned in cells}
    place = board.name if scales != {only := min(scales)} or only in FULL else f"{board.name}/{only}"
    folder, root = out / place, "../" * (1 + place.count("/"))
    computed = any(table.metric.startswith(f"{STAGE}.") for table in board.tables)
    reported = Reported.of(cells, selections)
    frame, problems = collect(reported.cells, results, computed), _Problems()
    tables, drawings = _made(board, frame, reported, problems)
    runs = frame.drop_duplicates("key")
    trials = distinct(cell for selection in selections for cell in selection.study.cells)
    problems.add("records", _stale(runs))
    problems.add("trials", _stale(collect(trials, results)))
    problems.add("records", _passed_over([*reported.cells, *trials], results))
    tuned = tuned_methods(selections, results, frame)
    found = replace(summarise(board, reported, frame, tables, f"{place}/"), studies=tuple(outcome_lines(tuned)))
    extras = {table.number: _extras(table, frame) for table in tables}
    contents: dict[str, bytes] = {summary.FILE: summary.to_json(found).encode()}
    for table in tables:
        contents |= _table_files(table, extras[table.number], board.name)
    for drawing in drawings:
        for suffix, content in figures.files(drawing).items():
            contents[f"figure-{drawing.number}.{suffix}"] = content
    contents |= _tuning_files(tuned)
    said = problems.lines()
    families = {result.family for result in found.results}
    page = Content(runs, tables, drawings, extras, said, _recipe(board, cells), tuned, families, found.pictured)
    contents["index.html"] = board_page(board, page, root, How.of(cells[0].config))
    for name, content in contents.items():
        write_atomically(folder / name, content)
    _remove_stale(folder, set(contents))
    _write_runs(distinct(reported.cells), runs, results, out, found)
    return Report(
        written=[folder / name for name in contents],
        summary=found,
        problems=said,
        whole=not any(LEFT_OUT in problem for problem in said),
        tables=[(table, extras[table.number].analysis) for table in tables],
    )


def _made(
    board: Board, frame: pd.DataFrame, reported: Reported, problems: _Problems
) -> tuple[list[Tabulated], list[Drawing]]:
    """Return the tables and figures of a board that can be made, and add the problems of each to `problems`.

    Those of a tuned board have default and tuned rows for each method.
    """
    tables, drawings = [], []
    for number, made in tables_of(board.tables, frame, reported):
        if isinstance(made, UserError):
            problems.add(f"table {number}", [f"it is {LEFT_OUT}{made}"])
        else:
            tables.append(made)
            problems.add(f"table {number}", made.problems)
    for number, figure in enumerate(board.figures, 1):
        if reported.tuning and TUNING not in (*figure.rows, *figure.columns):
            figure = _with_tuning_axis(figure)
        try:
            drawings.append(panels.draw(frame, reported.axes, figure, number))
            problems.add(f"figure {number}", drawings[-1].problems)
        except UserError as error:
            problems.add(f"figure {number}", [f"it is {LEFT_OUT}{error}"])
    return tables, drawings


def _with_tuning_axis(figure: Figure) -> Figure:
    """Return a figure of a tuned board with default and tuned runs, in separate panels if a panel has only one row."""
    if KINDS[figure.kind].of_one_row:
        return replace(figure, columns=(*figure.columns, TUNING))
    return replace(figure, rows=(*figure.rows, TUNING))


def _table_files(table: Tabulated, extra: Extras, board: str) -> dict[str, bytes]:
    """Return the files of a table by name: the table in three formats, and the content below it."""
    name, number = f"table-{table.number}", table.number
    contents = {
        f"{name}.md": render_text.to_markdown(table).encode(),
        f"{name}.csv": render_text.to_csv(table).encode(),
        f"{name}.tex": render_text.to_latex(table, f"tab:{board}-{number}").encode(),
    }
    if extra.analysis:
        contents[f"standing-{number}.csv"] = render_text.standings_to_csv(extra.analysis).encode()
    if extra.targets:
        contents[f"target-{number}.csv"] = render_text.targets_to_csv(extra.targets).encode()
    for diagram in extra.diagrams:
        contents |= {f"{diagram.name}.{suffix}": content for suffix, content in diagram.files.items()}
    return contents


def _tuning_files(tuned: Sequence[TunedMethod]) -> dict[str, bytes]:
    """Return the data files of the section on tuning by name; none if the board is not tuned."""
    if not tuned:
        return {}
    frames = {"tuning": outcomes_frame(tuned), "trials": trials_frame(tuned), "budget": best_frame(tuned)}
    return {f"{name}.csv": render_text.safe_csv(frame.to_dict("records")).encode() for name, frame in frames.items()}


def _recipe(board: Board, cells: Sequence[PlannedCell]) -> list[Sourced]:
    """Return the sources of the cells' full-size settings; nothing if they cannot be read."""
    try:
        settings = examine(board, (replace(planned, cell=planned.origin) for planned in cells)).settings
    except UserError:  # the tables say which printed numbers cannot be read
        return []
    return sorted(settings, key=lambda one: (one.setting, one.of, one.source, one.value))


def _stale(frame: pd.DataFrame) -> list[str]:
    """Return how many records of a frame were made from sources other than the available ones."""
    counts = Counter(text for text in frame["stale"] if text.startswith("made by other sources"))
    return [f"{count} {text}; {REMEDY}" for text, count in sorted(counts.items())]


def _passed_over(cells: Sequence[PlannedCell], results: Results) -> Iterator[str]:
    """Yield the files of cells that cannot be used, and why."""
    keys = {planned.cell.key for planned in cells}
    for path, why in sorted(results.passed_over.items()):
        if path.stem in keys:
            yield f"{path.parent.name}/{path.name} is {LEFT_OUT}{why}"


def _extras(table: Tabulated, frame: pd.DataFrame) -> Extras:
    analysis = analyse(table)
    scored = table.metric.stage != "cost"  # a cost against costs is meaningless
    drawn = (*average_ranks(analysis), score_against_cost(analysis)) if analysis and scored else ()
    return Extras(analysis, reach_targets(table, frame), tuple(diagram for diagram in drawn if diagram is not None))


def _write_runs(cells: Sequence[PlannedCell], frame: pd.DataFrame, results: Results, out: Path, board: Summary) -> None:
    """Write the page of the runs of every point of a board that has any, and copy their records to the site.

    Boards share points, each with seeds of its own; all of them write the page with all records of the point.
    """
    ranked = {result.point for result in board.results}  # these have pages over all boards
    points: dict[str, list[tuple[PlannedCell, Any]]] = {}
    for planned, run in zip(cells, frame.itertuples(index=False), strict=True):
        points.setdefault(str(run.point), []).append((planned, run))
    for planned, run in _other_seeds(points, results):
        points[str(run.point)].append((planned, run))
    for point, pairs in points.items():
        runs = sorted((run for _, run in pairs), key=lambda run: run.seed)
        if all(run.status == "missing" for run in runs):
            continue
        for name, page in runs_pages(point, pairs[0][0], runs, point in ranked, board.pictured):
            put(out / "runs" / name, page)
        for run in (run for run in runs if run.status != "missing"):
            for source in (results.path(run.key), results.failures / f"{run.key}.json"):
                if source.exists():
                    for file in (source, *filter(Path.exists, map(source.with_suffix, SIDECARS.values()))):
                        put(out / "records" / file.name, file.read_bytes())
                    break


def _other_seeds(
    points: Mapping[str, Sequence[tuple[PlannedCell, Any]]], results: Results
) -> Iterator[tuple[PlannedCell, Any]]:
    """Yield the runs of further seeds of the same points in the results folder."""
    known = {run.key for pairs in points.values() for _, run in pairs}
    found = [(point_of(spec), spec["seed"]) for entry, spec in results.specs() if entry.key not in known]
    cells = plan([{**points[point][0][0].overrides, "seed": seed} for point, seed in found if point in points])
    yield from zip(cells, collect(cells, results).itertuples(index=False), strict=True)


def put(path: Path, content: bytes) -> None:
    """Write a file of the site unless unchanged; not atomically, as it can be regenerated after a power failure."""
    try:
        if path.read_bytes() == content:
            return
    except OSError:
        pass
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


class _Problems:
    """Problems, each listed once with all places that it concerns."""

    def __init__(self) -> None:
        self._places: dict[str, list[str]] = {}

    def add(self, place: str, problems: Iterable[str]) -> None:
        for problem in problems:
            self._places.setdefault(problem, []).append(place)

    def lines(self) -> list[str]:
        return [f"{', '.join(places)}: {problem}" for problem, places in self._places.items()]


def _remove_stale(folder: Path, written: set[str]) -> None:
    """Remove files of an earlier report (tables, figures, tuning data) that this one did not write."""
    mine = r"(table-\d+\.(md|csv|tex)|(standing|target)-\d+\.csv|(figure|cost)-\d+\.(svg|pdf|png)|"
    mine += r"ranks-\d+(-\w+)?\.(svg|pdf|png)|(tuning|trials|budget)\.csv)"
    for path in folder.iterdir():
        if re.fullmatch(mine, path.name) and path.name not in written:
            discard(path)
