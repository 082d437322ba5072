"""`fedspan report`: pages of boards with results or of a sweep, and pages over all boards."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedspan.benchmark.cli import sweeps
from fedspan.benchmark.cli.main import tell
from fedspan.benchmark.errors import CorruptFile, UserError
from fedspan.benchmark.fields import defaults_of
from fedspan.benchmark.names import counted_as
from fedspan.benchmark.patience import doing
from fedspan.benchmark.records.atomic import discard
from fedspan.benchmark.records.record import is_record_file
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.selection import select
from fedspan.benchmark.report import render_terminal, site
from fedspan.benchmark.report.frame import point_of
from fedspan.benchmark.report.partitions import draw_partitions
from fedspan.benchmark.report.render_terminal import WIDTH
from fedspan.benchmark.report.report import Report, put, write_report
from fedspan.benchmark.report.summary import FILE, Summary, read
from fedspan.benchmark.spec.board import Board, board_files, load_board
from fedspan.benchmark.spec.compose import resolve
from fedspan.benchmark.spec.overrides import axes_of, single, split_hydra
from fedspan.benchmark.spec.plan import PlannedCell, digest_of_cells, plan_grid
from fedspan.benchmark.spec.presets import import_plugins_of, unknown_setting, yaml_files
from fedspan.benchmark.spec.settings import SCALES, How, check_scale, first_change
from fedspan.benchmark.spec.studies import Study, digest_of_trials, studies, trials_at
from fedspan.benchmark.spec.tuning import Tune

Axes = Mapping[str, list[Any]]
Grid = tuple[Board, list[PlannedCell], list[Study]]
Digests = dict[tuple[str, str], tuple[str, str | None]]  # of cells and trials, by board and scale


def show(arguments: argparse.Namespace) -> int:
    """Render the named boards, a sweep, or by default every board with results; then the pages over all boards.

    Problems do not stop the rest, but make the exit status 2. Raises `UserError` if a named board cannot be rendered.
    """
    settings, _ = split_hydra(arguments.settings)  # a launcher's options do not change the cells
    axes = axes_of(settings)
    named = [str(name) for name in axes.pop("board", [])]
    config = resolve(single({key: values for key, values in axes.items() if key.split(".")[0] in ("paths", "plugins")}))
    for name in named:
        import_plugins_of(load_board(name).base)
    _check_settings(axes, config)
    results = Results(How.of(config).results, sets_aside=False)
    if "paths.results" in axes:
        results.check_there()
    pages = _pages(axes, results, named) or How.of(config).pages
    sweep = None if named else _sweep(axes, results, settings)
    named = [sweeps.NAME] if sweep else named
    if not named and not _keys(results) and site.summaries_in(pages):
        raise UserError(f"no results in {results.root}, so the site in {pages} stays as it is; set paths.results=DIR")
    status, built, failed, current = 0, [], set(), Digests()
    for name in named or sorted(board_files()):  # a board before its frozen versions
        try:
            asked = _asked(name, axes, results, pages) if named else _with_results(name, axes, results, current)
            for board, cells, tuned in [sweep] if sweep else asked:
                with doing(f"writing the page of {board.name}"):
                    made = write_report(board, cells, results, pages, [select(study, results.read) for study in tuned])
                _print_report(made, whole=bool(named))
                built.append(made)
                status = max(status, 0 if made.whole else 2)
                draw_partitions(_scored(cells, made), pages / site.PARTITIONS, How.of(cells[0].config).data)
        except UserError as error:
            if named:
                raise
            tell(f"board '{name}' is left out: {error}")
            status = 2
            failed.add(name)
    if not named and results.passed_over:  # of no board, too
        status = 2
    if not (built or named or status):
        _report_no_results(axes, results)
    with doing("writing the pages over all boards"):
        whole = not named and "scale" not in axes
        summaries = [made.summary for made in built] if whole else site.summaries_in(pages)
        if whole:  # boards that failed, or lie in the user's own files, keep their earlier pages
            earlier = [one for one in site.summaries_in(pages) if one.own or one.board in failed]
            summaries += [one for one in earlier if one not in summaries]
        _write_site(pages, summaries, clean=whole)
    print(f"site: {pages / 'index.html'}")
    return status


def _check_settings(axes: Axes, config: Mapping[str, Any]) -> None:
    """Raise `UserError` for an unknown setting or scale, even if no board has results, so that none is planned."""
    for key in axes:
        if (hint := unknown_setting({**config, "tune": defaults_of(Tune)}, key)) is not None:
            raise UserError(f"unknown setting '{key}'{hint}")
    for scale in axes.get("scale", []):
        check_scale(scale)


def _pages(axes: Axes, results: Results, named: Sequence[str]) -> Path | None:
    """Return a separate folder for a sweep, or if settings change the cells of the `named` boards, else None.

    The leaderboard reads the pages of boards.
    """
    other = first_change(axes)
    if not other or "paths.pages" in axes:
        return None
    place = results.root / "pages"
    if named:
        tell(
            f"with '{other}' these are not the cells of the board, so its page goes to {place}; "
            "paths.pages=DIR names another folder"
        )
    return place


def _sweep(axes: Axes, results: Results, words: Sequence[str]) -> Grid | None:
    """Return the cells that a command line asks for without a board; None if its settings change no cell."""
    if not first_change(axes):
        return None
    cells = plan_grid(axes)
    if not _any_known(_keys(results), cells):
        cells_said = "this cell" if len(cells) == 1 else f"these {len(cells)} cells"
        raise UserError(
            f"no record of {cells_said} in {results.root}; give the settings of 'fedspan run', or set paths.results=DIR"
        )
    return sweeps.board_of(words, axes, cells, results), cells, []


def _asked(name: str, axes: Axes, results: Results, pages: Path) -> Iterator[Grid]:
    """Yield each board that a name stands for, with its cells and studies, at each requested scale.

    Raise `UserError` for one without any record whose page has results: it would lose them.
    """
    whole, known = load_board(name), _keys(results)
    for board in whole.parts():
        for scale in axes.get("scale", [None]):
            mine = axes if scale is None else {**axes, "scale": [scale]}
            cells, tuned = plan_grid({**mine, "board": [board.name if whole.boards else name]}), studies(board, mine)
            if not _any_known(known, cells, tuned):
                _require_empty(board, cells[0].cell.scale, results, pages)
            yield board, cells, tuned


def _require_empty(board: Board, scale: str, results: Results, pages: Path) -> None:
    """Raise `UserError` if the page of a board without records has results."""
    if any(one.results for one in site.summaries_in(pages) if (one.board, one.scale) == (board.name, scale)):
        raise UserError(
            f"no record of board '{board.name}' in {results.root}, so its page in {pages} stays as it is; "
            "set paths.results=DIR"
        )


def _with_results(name: str, axes: Axes, results: Results, current: Digests) -> Iterator[Grid]:
    """Yield a board with its cells and studies at each scale that has a record or failure.

    A frozen version that has the cells and trials of today's board, according to `current`, is covered by its page.
    """
    board = load_board(name)
    if board.boards:  # its parts are boards themselves
        return
    known = _keys(results)
    for scale in axes.get("scale", SCALES):
        if known and (scale == board.full or scale in board.scales):
            frozen = board.frozen.get(scale), board.frozen.get(trials_at(scale))
            if board.frozen and current.get((board.lineage, scale)) == frozen:
                continue
            cells = plan_grid({**axes, "board": [name], "scale": [scale]})
            tuned = studies(board, {**axes, "scale": [scale]})
            current[name, scale] = digest_of_cells(cells), digest_of_trials(tuned) if tuned else None
            if _any_known(known, cells, tuned):
                yield board, cells, tuned


def _keys(results: Results) -> set[str]:
    """Return the keys of all records and failures."""
    folders = (results.records, results.failures)
    return {path.stem for folder in folders for path in folder.glob("*.json") if is_record_file(path)}


def _any_known(known: set[str], cells: Sequence[PlannedCell], tuned: Sequence[Study] = ()) -> bool:
    """Return whether a cell, or a trial of a study, is among the `known` keys."""
    return any(planned.cell.key in known for planned in itertools.chain(cells, *(study.cells for study in tuned)))


def _report_no_results(axes: Axes, results: Results) -> None:
    """Say how to show runs of no board; raise `UserError` if no board has results at a requested scale."""
    if "scale" in axes:
        raise UserError(f"no board has results at scale {', '.join(axes['scale'])}; results: {results.root}")
    if runs := len(_keys(results)):
        said = f"{results.root} has {counted_as(runs, 'run')}, none of a board"
        tell(f"{said}; to show them, give 'fedspan report' the settings of 'fedspan run'")


def _print_report(made: Report, whole: bool) -> None:
    if whole:
        known = [(table, analysis) for table, analysis in made.tables if not all(row.waits for row in table.rows)]
        if count := len(made.tables) - len(known):
            print(f"{count} of {counted_as(len(made.tables), 'table')} without results yet")
        for table, analysis in known:
            render_terminal.show(table, analysis, Console(width=None if sys.stdout.isatty() else WIDTH))
    for problem in made.problems:
        tell(problem)
    print(f"page: {next(path for path in made.written if path.name == 'index.html')}")


def _scored(cells: Sequence[PlannedCell], made: Report) -> list[PlannedCell]:
    """Return the cells with results in a report."""
    done = {result.point for result in made.summary.results}
    return [planned for planned in cells if point_of(planned.cell.what) in done]


def _write_site(pages: Path, summaries: Sequence[Summary], clean: bool) -> None:
    """Write the pages over all boards and remove those that no result needs; `clean` removes other summaries too."""
    files = site.pages(pages, summaries, _without_results({summary.board for summary in summaries}))
    for path, content in files.items():
        put(path, content)
    for folder in ("methods", "datasets"):
        for path in {*(pages / folder).glob("*.html")} - files.keys():
            discard(path)
    if clean:
        _remove_summaries(pages, {pages / summary.page / FILE for summary in summaries})


def _without_results(shown: set[str]) -> list[tuple[str, str]]:
    """Return names and titles of the boards that are not `shown`, without those made of others."""
    without = []
    for name in sorted(yaml_files("boards")):
        with contextlib.suppress(UserError):  # told where the boards are rendered
            board = load_board(name)
            if name not in shown and not board.boards:
                without.append((name, board.title))
    return without


def _remove_summaries(pages: Path, kept: set[Path]) -> None:
    """Remove all summaries but `kept`, so that a later report of one board does not find them."""
    for path in {*pages.glob(f"**/{FILE}")} - kept:
        with contextlib.suppress(CorruptFile):
            read(path)  # a file that is no summary stays
            discard(path)
