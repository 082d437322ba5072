"""`fedspan submit` and `fedspan review`: commit records to a branch, and check such a branch."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fedspan.benchmark.cli import verify
from fedspan.benchmark.errors import UserError, did_you_mean, plain
from fedspan.benchmark.names import counted_as
from fedspan.benchmark.records import exchange
from fedspan.benchmark.records.atomic import write_atomically
from fedspan.benchmark.records.provenance import processor_name
from fedspan.benchmark.records.record import WHOLE_BYTES, files_of, is_record_file
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.selection import cells_of
from fedspan.benchmark.records.sources import REMEDY, stale, uncommitted
from fedspan.benchmark.records.verification import Repeated
from fedspan.benchmark.report.standings import changes, standings
from fedspan.benchmark.spec.board import Board, load_board
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.compose import resolve
from fedspan.benchmark.spec.overrides import axes_of, override_text, single
from fedspan.benchmark.spec.plan import PlannedCell, plan_grid
from fedspan.benchmark.spec.settings import How, first_change, is_place
from fedspan.benchmark.spec.studies import studies_of

PUBLISHED = PurePosixPath("results/records")  # in the repository
REVIEW = "Review: fedspan review "  # in a branch's description, before branch, board and scales
FILE_MODES = ("100644", "100755")  # of plain files in a git tree, so no links, folders or submodules
VERBS = {"A": "adds", "D": "deletes"}  # verbs for changed paths, by git's status letter
REPLACED = "compare it with the published one"
REVIEW_NEEDED = "read it; records of plugins that are not checked out here are refused"
EXIT_NOT_COMPUTED = 2  # as of `fedspan verify`
SAMPLE = {"submit": 2, "review": 3}  # records to recompute by default


@dataclass(frozen=True)
class Submission:
    """A parsed command line: board and scale, number of records to repeat, and how to run them."""

    board: Board
    axes: dict[str, list[Any]]
    cells: list[PlannedCell]
    sample: int
    how: dict[str, Any]

    def all_cells(self, results: Results) -> dict[str, Cell]:
        """Return all cells of the board by key, including trials and the tuned cells that these have chosen."""
        return {one.cell.key: one.cell for one in cells_of(self.axes, results.read)}

    @classmethod
    def of(cls, words: Sequence[str], sample: int) -> Submission:
        """Return the submission of a command line; raise `UserError` if it is invalid."""
        axes = axes_of(words)
        repeated = single({"sample": axes.pop("sample", [sample])})["sample"]
        if type(repeated) is not int or repeated < 0:
            raise UserError(f"sample must be a whole number, 0 or more, got {repeated!r}")
        names = axes.get("board", [])
        if len(names) != 1:
            raise UserError("name one board (board=digits)")
        if other := first_change(axes):
            raise UserError(f"submissions take a board unchanged, so '{other}' cannot be set")
        how = single({name: values for name, values in axes.items() if name not in ("board", "scale")})
        return cls(load_board(str(names[0])), axes, plan_grid(axes), repeated, how)


def submit(arguments: argparse.Namespace) -> int:
    """Check the new records of a board, commit them to a new branch, and print the remaining steps."""
    submission = Submission.of(arguments.settings, SAMPLE["submit"])
    own = {name: value for name, value in submission.how.items() if not is_place(name)}
    results, top = Results(How.of(resolve(own)).results, sets_aside=False), _top()
    published = set(_git(top, "ls-tree", "--full-tree", "-r", "--name-only", "HEAD", str(PUBLISHED)).split())
    cells = submission.all_cells(results)
    new = [key for key in cells if results.path(key).exists() and f"{PUBLISHED}/{key}.json" not in published]
    if not new:
        raise UserError(
            f"{results.records} has no record of board '{submission.board.name}' that is not published already; "
            f"run 'fedspan run -m {' '.join(_grid(arguments.settings))}', or name another folder with paths.results=DIR"
        )
    with _published(top, "HEAD") as before:
        _validate(results, new, before, cells)
        _require_sources({key: cells[key] for key in new}, results)
        if status := _repeat(new, submission, results.root):
            return status
        said = _ranking(submission, before, results, new)
    branch = _free_branch(top, submission.board.name)
    text = _description(submission, new, len(cells), _repeated(results, new), said, branch)
    _commit(top, branch, results, new, text)
    note = results.root / f"submission-{submission.board.name}.md"
    write_atomically(note, text.encode())  # it replaces a link, and does not write through it
    print(f"\n{text}\nbranch {branch} has {len(new)} records; your working tree is as it was. What remains:\n")
    print(f"  git push origin {branch}\n  # open a pull request; its description is in {note}")
    return 0


def review(arguments: argparse.Namespace) -> int:
    """Check the records of a branch without checking it out: validate, repeat a sample, show changes in the ranking."""
    branches = [word for word in arguments.words if "=" not in word]
    if len(branches) != 1:
        raise UserError("write: fedspan review BRANCH [board=NAME] [sample=N]")
    [branch], top = branches, _top()
    _require(top, branch)
    base = _git(top, "merge-base", "HEAD", branch).strip()
    changed = _changed(top, base, branch)
    brought = sorted(path.stem for path, letter in changed.items() if letter != "D" and _is_record(path))
    gone = [path.stem for path, letter in changed.items() if letter == "D" and _is_record(path)]
    with _published(top, branch) as results, _published(top, "HEAD") as before:
        own = {PUBLISHED / path.name for path in _files(results, brought)}
        for path, letter in sorted(changed.items()):
            if path not in own or letter != "A":
                why = REPLACED if path in own else REVIEW_NEEDED
                print(plain(f"also {VERBS.get(letter, 'changes')} {path}: {why}"))
        if not brought:
            raise UserError(f"{branch} adds no record to {PUBLISHED}")
        shutil.rmtree(results.root / "verifications", ignore_errors=True)  # a branch's own verifications do not count
        settings = [word for word in arguments.words if "=" in word]
        given = {word.partition("=")[0] for word in settings}
        said = [] if "board" in given else [word for word in _said_of(top, branch) if word.split("=")[0] not in given]
        submission = Submission.of([*settings, *said], SAMPLE["review"])
        for key in sorted(set(brought) - set(submission.all_cells(results))):
            why = f"it is not of {submission.board.name}, so not in the ranking below"
            print(plain(f"also adds {PUBLISHED}/{key}.json: {why}"))
        published = {path.stem for path in exchange.record_files([before.root])} if before.records.is_dir() else set()
        _validate(results, brought, before, published - {*brought, *gone})
        on_gpu = len(brought) - len(verify.repeatable(brought, results, submission.how)) if submission.sample else 0
        place = Path(top) / "results" / "verifications"
        repeated = _repeat(brought, submission, results.root, place)
        status = repeated or (EXIT_NOT_COMPUTED if on_gpu else 0)
        kept = _keep_verifications(results.verifications, place)
        print("\n".join(["", *_ranking(submission, before, results, brought, gone)]))
    print("\nWhat remains:")
    if on_gpu and status == EXIT_NOT_COMPUTED:
        print(
            f"  review it on a machine with a GPU: {counted_as(on_gpu, 'record')} made on one cannot be repeated here"
        )
    if repeated and (repeated != EXIT_NOT_COMPUTED or on_gpu < len(brought)):
        print(f"  ask the submitter of {branch}")
    elif not status:
        print(f"  git merge {branch}")
    if kept:
        files = " ".join(os.path.relpath(path) for path in kept)
        print(f"  git add -f {files} && git commit -m 'Repeated a sample'")
    return status


def _changed(top: str, base: str, branch: str) -> dict[PurePosixPath, str]:
    """Return git's status letter of each path that a branch adds (A), changes (M, T) or deletes (D)."""
    lines = _git(top, "diff", "--name-status", "--no-renames", "-z", base, branch).split("\0")
    return {PurePosixPath(path): letter for letter, path in zip(lines[::2], lines[1::2], strict=False)}


def _is_record(path: PurePosixPath) -> bool:
    return path.parent == PUBLISHED and is_record_file(Path(path))


def _validate(results: Results, keys: Sequence[str], published: Results, others: Iterable[str]) -> None:
    """Raise `UserError` unless every record is valid and agrees with the published ones of the keys `others`."""
    beside = (record for key in others if (record := published.read(key)) is not None)
    found = exchange.validate_files([results.path(key) for key in keys], Repeated(), beside)
    print("\n".join([found.summary("valid"), *found.remarks()]))
    if found.refused:
        name, why = next(iter(found.refused.items()))
        more = f" (and {len(found.refused) - 1} more)" if len(found.refused) > 1 else ""
        raise UserError(f"{name} is refused: {why}{more}")


def _require_sources(cells: Mapping[str, Cell], results: Results) -> None:
    """Raise `UserError` unless the records of these cells, by key, come from sources that are committed here.

    A reviewer repeats them with committed sources.
    """
    repeated = Repeated.of(results)
    for key, cell in cells.items():
        record = results.read(key)
        if record and (said := stale(record["provenance"], cell, repeated.of_record(record).repeated_by)):
            raise UserError(f"{results.path(key)} was {said}; {REMEDY}")
        if files := uncommitted(cell):
            raise UserError(
                f"a reviewer cannot repeat records of sources that are not committed; commit {', '.join(files)}"
            )


def _repeat(keys: Sequence[str], submission: Submission, root: Path, kept_in: Path | None = None) -> int:
    """Recompute a sample of the records of a results folder; return the exit status of `verify`."""
    if not submission.sample:
        return 0
    how = {name: value for name, value in submission.how.items() if name != "tracking"} | {"paths.results": str(root)}
    words = [*keys, f"sample={submission.sample}", *(override_text(name, value) for name, value in how.items())]
    return verify.show(argparse.Namespace(words=words), kept_in)


def _ranking(
    submission: Submission, before: Results, after: Results, new: Sequence[str], gone: Sequence[str] = ()
) -> list[str]:
    """Return lines on how new and deleted records change the ranking of the board."""
    with tempfile.TemporaryDirectory() as folder:
        both = Results(Path(folder), sets_aside=False)
        both.records.mkdir(parents=True)
        kept = (path for path in before.records.glob("*") if path.name.split(".")[0] not in gone)
        for path in (*kept, *_files(after, new)):
            shutil.copy(path, both.records)
        studies = studies_of(submission.axes)
        known, now = (standings(submission.board, submission.cells, here, studies) for here in (before, both))
        return ["What changes in the ranking:", *changes(known, now)]


def _files(results: Results, keys: Iterable[str]) -> Iterator[Path]:
    """Yield the files of records: theirs, and the sidecars that they name."""
    for key in keys:
        yield from files_of(results.path(key))


def _repeated(results: Results, keys: Iterable[str]) -> int:
    """Return how many of the records were repeated bit for bit."""
    known = Repeated.of(results)
    badges = (known.of_record(record) for key in keys if (record := results.read(key)) is not None)
    return sum(
        any(one.outcome == "identical" and one.compared == "digests" for one in badge.verifications) for badge in badges
    )


def _description(
    submission: Submission, new: Sequence[str], cells: int, repeated: int, said: Sequence[str], branch: str
) -> str:
    scales = sorted({one.cell.scale for one in submission.cells})
    words = [branch, f"board={submission.board.word}"]
    if scales != [submission.board.full]:
        words.append(f"scale={','.join(scales)}")
    again = f", {repeated} of them repeated bit for bit before submission" if repeated else ""
    return "\n".join(
        [
            f"Records of {submission.board.name} ({', '.join(scales)}): {len(new)}",
            "",
            f"Board: {submission.board.title}",
            f"Machine: {processor_name()}",
            f"Records: {len(new)} of {cells} cells{again}",
            "",
            *said,
            "",
            f"{REVIEW}{shlex.join(words)}",
        ]
    )


def _free_branch(top: str, name: str) -> str:
    """Return an unused branch name for a submission."""
    branches = set(_git(top, "branch", "--format=%(refname:short)").split())
    return next(one for one in _numbered(f"submit/{name}") if one not in branches)


def _commit(top: str, branch: str, results: Results, keys: Sequence[str], text: str) -> None:
    """Commit records to a new branch from HEAD, in a separate working tree; delete the branch if git fails."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _git(top, "worktree", "add", "--quiet", "-b", branch, str(tree), "HEAD")
        try:
            (tree / PUBLISHED).mkdir(parents=True, exist_ok=True)
            for path in _files(results, keys):
                shutil.copy(path, tree / PUBLISHED)
            _git(str(tree), "add", "--force", str(PUBLISHED))
            _git(str(tree), "commit", "--quiet", "--message", text)
        except BaseException:
            _git(top, "worktree", "remove", "--force", str(tree))
            _git(top, "branch", "--delete", "--force", branch)
            raise
        _git(top, "worktree", "remove", "--force", str(tree))


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1


@contextmanager
def _published(top: str, commit: str) -> Iterator[Results]:
    """Yield a temporary results folder with the records and verifications published at a commit."""
    with tempfile.TemporaryDirectory() as folder:
        listed = _git(top, "ls-tree", "-r", "-l", "-z", commit, "results/records", "results/verifications")
        files = [line.split("\t", 1) for line in filter(None, listed.split("\0"))]  # mode, type, object and size; path
        for what, path in files:
            *_, name = parts = PurePosixPath(path).parts
            if what.split()[0] not in FILE_MODES or len(parts) != 3 or name == "..":
                raise UserError(
                    f"{commit} has {path!r} among its records, which is not a plain file there; do not merge it"
                )
            if int(what.split()[3]) > WHOLE_BYTES:
                raise UserError(f"{commit} has {path!r} among its records, which is too large for one; do not merge it")
        contents = _blobs(top, [what.split()[2] for what, _ in files])
        for (_, path), content in zip(files, contents, strict=True):
            place = Path(folder, *PurePosixPath(path).parts[1:])
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        yield Results(Path(folder), sets_aside=False)


def _keep_verifications(made: Path, place: Path) -> list[Path]:
    """Copy the verifications that the folder `place` lacks; return their new paths."""
    kept = []
    for path in sorted(made.glob("*.json")):
        if not (copy := place / path.name).exists():
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
            kept.append(copy)
    return kept


def _grid(settings: Sequence[str]) -> list[str]:
    """Return the words that select the cells: board and scale."""
    return [word for word in settings if word.startswith(("board=", "scale="))]


def _require(top: str, branch: str) -> None:
    """Raise `UserError` unless git knows the branch or commit."""
    try:
        _git(top, "rev-parse", "--verify", "--quiet", f"{branch}^{{commit}}")
    except UserError:
        known = _git(top, "branch", "--all", "--format=%(refname:short)").split()
        hint = did_you_mean(branch, known)
        raise UserError(f"there is no branch or commit '{branch}' here; 'git fetch' may bring it{hint}") from None


def _said_of(top: str, branch: str) -> list[str]:
    """Return the board and scale words in the description of a branch."""
    for line in _git(top, "log", "-1", "--format=%B", branch).splitlines():
        if line.startswith(REVIEW) and "board=" in line:
            with suppress(ValueError):  # an unmatched quote: not a line that this program wrote
                return _grid(shlex.split(line))
    raise UserError(f"the last commit of {branch} names no board; add board=NAME")


def _top() -> str:
    try:
        return _git(".", "rev-parse", "--show-toplevel").strip()
    except UserError as error:
        raise UserError(f"submissions are branches of a clone of FedSpan; run this in one ({error})") from None


def _git(folder: str, *words: str) -> str:
    return _git_bytes(folder, *words).decode(errors="surrogateescape")


def _blobs(folder: str, objects: Sequence[str]) -> Iterator[bytes]:
    """Yield the contents of git objects, read by one process because there are thousands of records."""
    said = io.BytesIO(_git_bytes(folder, "cat-file", "--batch", told="".join(f"{one}\n" for one in objects).encode()))
    for _ in objects:
        size = int(said.readline().split()[2])
        yield said.read(size)
        said.read(1)  # the newline that git adds


def _git_bytes(folder: str, *words: str, told: bytes = b"") -> bytes:
    """Return git's output for the input `told`; raise `UserError` with its last error line if it fails."""
    try:
        ran = subprocess.run(["git", "-C", folder, *words], input=told, capture_output=True, check=False)
    except FileNotFoundError:
        raise UserError("git is not installed, and submissions are branches of a git repository") from None
    if ran.returncode:
        said = ran.stderr.decode(errors="replace").strip().splitlines()
        raise UserError(f"git {words[0]} failed: {said[-1] if said else 'no such branch or commit'}")
    return ran.stdout
