"""Every field of every kind of file, damaged in ten ways, through every command.

No command may raise, hang, lose a good record or show a number that no record has. A round damages files of all kinds
at once, each of its own cell, and runs the commands once; a round that fails is taken apart, so that the report names
the mutation. The slow test tries every field, the ordinary one a sample.
"""

import contextlib
import functools
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from fedspan.benchmark.cli.main import main
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.running.leases import Leases
from tests.fuzz.damage import FIELD, WHOLE, Mutation, damaged, paths_in, with_header
from tests.fuzz.workplace import (
    GOOD,
    KINDS,
    MANY,
    OF_PAGES,
    ONE,
    QUICK,
    READ,
    TAKEN_UP,
    Workplace,
    accuracy_of,
    numbers_of,
)

SECONDS = 300  # that a command may take on a busy machine before it counts as hanging
ABOUT = ("__metadata__", "meta")  # of a file of tensors
RUN = ("run", "-m", "board=mutations", *QUICK)
RETRY = ("retry", "--failed", *QUICK)


def reading(place):
    """Return the commands that compute nothing."""
    plans = [("plan", board) for board in ("board=mutations", *place.boards())]
    return [*plans, ("validate",), ("list", "protocols", "boards"), ("report", "board=mutations")]


def computing(place):
    """Return the commands that compute cells, or take records over."""
    collect = ("sync", "--from", "results", "paths.results=collected")
    return [collect, RETRY, RUN, *(("run", "-m", board, *QUICK) for board in place.boards())]


@contextlib.contextmanager
def in_time(what):
    def late(*_):
        raise AssertionError(f"{what} hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Return a function that makes a workplace, for the tests of this module alone."""
    before, patch = Path.cwd(), pytest.MonkeyPatch()
    patch.delenv("MLFLOW_TRACKING_URI", raising=False)
    patch.setattr("fedspan.benchmark.running.leases.WRITING", 0.01)
    patch.setattr(Leases.__init__, "__defaults__", (0.5, 0.1))  # nobody else computes here

    @functools.cache
    def make(many):
        folder = tmp_path_factory.mktemp("mutations") / "place"
        folder.mkdir()
        os.chdir(folder)
        patch.setenv("FEDSPAN_DATA", str(folder / "data"))
        return Workplace(folder, MANY if many else ONE)

    yield make
    os.chdir(before)
    patch.undo()


@pytest.fixture
def place(places, request):
    """A folder with one file of each kind, for slow tests with many."""
    made = places(request.node.get_closest_marker("slow") is not None)
    os.chdir(made.folder)
    return made


def mutations(place, kinds):
    """Yield every damage to every field of each kind of file."""
    place.restore()  # the commands of an earlier test have taken files up
    for kind in kinds:
        content = place.content(kind, place.files(kind)[0])
        for write in place.writers(kind):
            places = paths_in(content)
            if write is with_header:  # under a digest that does not fit, whatever stands in `meta` is one case
                places = [where for where in places if where[:2] != ABOUT or len(where) == len(ABOUT)]
            for where in places:
                for damage in FIELD:
                    yield Mutation(kind, where, damage, write)


def rounds(place, chosen):
    """Yield the mutations in rounds: of each kind as many as there are files of it."""
    left = {kind: [one for one in chosen if one.kind == kind] for kind in KINDS}
    while any(left.values()):
        yield [one for kind in KINDS for one in left[kind][: place.counts[kind]]]
        left = {kind: left[kind][place.counts[kind] :] for kind in KINDS}


def harm(place, chosen):
    """Damage a file for each mutation; return the mutations by file, without those that cannot be written."""
    free, found = {kind: iter(place.files(kind)) for kind in KINDS}, {}
    for one in chosen:
        path = next(free[one.kind])
        with contextlib.suppress(ValueError, OverflowError):
            one.write(path, damaged(place.content(one.kind, path), one.where, one.damage))
            found[path] = one
    return found


def check(place, found, commands):
    """Run the commands on what lies there now; assert that nothing is lost and nothing wrong is shown."""
    harmed = set(map(key_of, found))
    records = Path("results/records").glob("*.json")
    good = {path: path.read_bytes() for path in records if key_of(path) not in harmed}
    left = {path: path.read_bytes() for path in found}
    for command in commands:
        with in_time(" ".join(command)):
            status = main(list(command))  # whatever is raised fails here
        assert status in (0, 1, 2), command
        assert {path: path.read_bytes() for path in good} == good, f"{command} changed a good record"
        if command in reading(place):
            kept = {path: path.read_bytes() for path in left if path.exists()}
            assert kept == left, f"{command} changed or moved what is damaged"
        if command[0] == "report" and status != 1:
            check_pages(place, found)
    if RUN in commands:
        check_records(place, found)
        later = [path for path, one in found.items() if one.later]
        assert {path: path.read_bytes() for path in later} == {path: left[path] for path in later}


def key_of(path):
    return path.name.split(".")[0]


def check_pages(place, found):
    """No number is shown that no record has, and none is missing of those that nobody damaged."""
    forged = {key_of(path) for path, one in found.items() if one.forged}
    harmed = {key_of(path) for path, one in found.items() if one.kind in ("record", "sidecar")}
    accuracies, of_pages = place.shown()
    for kind, cells in place.cells.items():
        for cell in (planned.cell for planned in cells):
            shown, true = accuracies.get(cell.seed), accuracy_of(place.records[cell.key])
            if cell.key not in harmed | forged:
                assert shown == (None if kind in TAKEN_UP else true), f"seed {cell.seed} is shown as {shown}"
            elif cell.key not in forged:
                assert shown in (None, true), f"seed {cell.seed} is shown as {shown}"
    for number, path in enumerate(place.files("summary")):
        shown, true = of_pages.get(OF_PAGES + number), 50.0 + number
        if path not in found:
            assert shown == true, f"{path} is shown as {shown}"
        elif not found[path].forged:
            assert shown in (None, true), f"{path} is shown as {shown}"


def check_records(place, found):
    """Every cell has the record of an undisturbed run or one of a later version; none has failed by a traceback."""
    forged = {key_of(path) for path, one in found.items() if one.forged}
    later = {key_of(path) for path, one in found.items() if one.later}
    results = Results(Path("results"), sets_aside=False)
    for kind, cells in place.cells.items():
        for cell in (planned.cell for planned in cells):
            failure, record = results.failure(cell.key), results.read(cell.key)
            crashed = failure is not None and "traceback" in failure
            assert not crashed, f"{kind}: {failure['reason'] if crashed else ''}"
            if cell.key in later:
                assert record is None, f"{kind}: {cell.key} has a record of another version"
            elif not {cell.key, cell.train_key} & forged:
                assert record is not None, f"{kind}: {cell.key} has no record"
                assert numbers_of(record) == numbers_of(place.records[cell.key]), f"{kind}: {cell.key} differs"


def tried(place, chosen, commands):
    """Try mutations in one round, or alone if that fails; return how many were tried, by kind."""
    place.restore()
    found = harm(place, chosen)
    try:
        check(place, found, commands)
    except Exception as error:
        if len(chosen) == 1:
            raise AssertionError(f"{chosen[0]}: {type(error).__name__}: {error}") from error
        for one in chosen:
            tried(place, [one], commands)
        raise
    return Counter(one.kind for one in found.values())


def test_a_sample_of_mutations_harms_no_command(place):
    every = list(mutations(place, KINDS))
    random.Random(os.environ.get("FEDSPAN_MUTATIONS_SEED", "0")).shuffle(every)
    counts = tried(place, next(rounds(place, every)), [*reading(place), *computing(place)])
    assert counts.total() > len(KINDS) / 2


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_no_mutation_harms_any_command(place, part, capsys):
    """What is read by commands that compute nothing goes through the others every tenth time."""
    counts, collect = Counter(), computing(place)[:1]
    for number, chosen in enumerate(rounds(place, list(mutations(place, READ))[part::8])):
        counts += tried(place, chosen, [*reading(place), *(collect if number % 10 else computing(place))])
    for chosen in rounds(place, list(mutations(place, TAKEN_UP))[part::8]):
        counts += tried(place, chosen, [("report", "board=mutations"), RETRY, RUN])
    with capsys.disabled():
        print(f"\nmutations tried: {dict(counts)}, {counts.total()} in all")


@pytest.mark.parametrize(
    "damage", [pytest.param(damage, marks=[] if damage in ("a pipe",) else [pytest.mark.slow]) for damage in WHOLE]
)
def test_what_is_no_file_of_ours_at_all_stops_no_command(place, damage):
    """One file of every kind is something else altogether."""
    place.restore()
    harmed = {kind: place.files(kind)[0] for kind in KINDS}
    for path in harmed.values():
        with contextlib.suppress(OSError):  # the disk of a test may hold no such file
            WHOLE[damage](path)
    keys = set(map(key_of, harmed.values()))
    good = {path: path.read_bytes() for path in Path("results/records").glob("*.json") if key_of(path) not in keys}
    for command in [*reading(place), *computing(place)]:
        with in_time(f"{command} beside {damage}"):
            assert main(list(command)) in (0, 1, 2)
        assert {path: path.read_bytes() for path in good} == good
        if command in reading(place):
            assert all(map(os.path.lexists, harmed.values())), command
    results = Results(Path("results"), sets_aside=False)
    for cell in (planned.cell for planned in place.cells[GOOD]):
        assert numbers_of(results.read(cell.key)) == numbers_of(place.records[cell.key])
