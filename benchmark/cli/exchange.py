"""`fedspan sync` and `fedspan validate`: exchange records with MLflow and other machines, and check them."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedspan.benchmark.cli.accepted import accepted
from fedspan.benchmark.cli.main import fail
from fedspan.benchmark.errors import plain
from fedspan.benchmark.mirror.collect import from_mlflow
from fedspan.benchmark.mirror.runs import Mirror, Unreachable
from fedspan.benchmark.names import counted_as
from fedspan.benchmark.patience import doing
from fedspan.benchmark.records import exchange
from fedspan.benchmark.records.exchange import CheckOutcome
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.verification import Repeated, readable
from fedspan.benchmark.spec.settings import How

WHOLE = "all records of a folder are taken"


def sync(arguments: argparse.Namespace) -> int:
    """Mirror missing records and boards to MLflow, or import records made elsewhere."""
    how = How.of(accepted(arguments.settings, ("paths.results", "paths.pages", "plugins"), WHOLE))
    if arguments.place:
        return _collect(arguments.place, Results(how.results, sets_aside=False))
    from fedspan.benchmark.mirror import boards as leaderboard  # reads pages, which takes seconds to import

    results = Results(how.results, sets_aside=False)
    results.check_there()
    try:
        store = Mirror(results)
        with doing("sending records to MLflow"):
            sent = store.sync()
        with doing("sending boards to MLflow"):
            boards = leaderboard.mirror(store, how.pages)
    except Unreachable as error:
        return fail(f"MLflow could not be reached: {error}", 1)
    print(
        f"{counted_as(sent, 'run')} mirrored to MLflow ({store.uri})"
        + (f"; {counted_as(len(boards), 'board')}" if boards else "")
    )
    return 0


def _collect(place: str, results: Results) -> int:
    try:
        records = from_mlflow(place) if "://" in place else exchange.from_folder(Path(place))
        with doing(f"collecting records from {place}"):
            collected = exchange.collect(results, records)
        status = _print_outcome(collected, "collected")
        verifications = exchange.check_verifications(Path(place), results.verifications)
        return status if verifications.empty else max(status, _print_outcome(verifications, "collected"))
    except Unreachable as error:
        return fail(f"MLflow could not be reached: {error}", 1)


def validate(arguments: argparse.Namespace) -> int:
    """Check records and verifications; return 1 if one is refused."""
    settings = [word for word in arguments.words if "=" in word and not Path(word).exists()]
    places = [Path(word) for word in arguments.words if word not in settings]
    results = Results(How.of(accepted(settings, ("paths.results", "plugins"), WHOLE)).results, sets_aside=False)
    folders = [place for place in places or [results.root] if place.is_dir()]
    repeated = Repeated(one for folder in folders or [results.root] for one in readable(folder))
    with doing("checking records"):
        found = exchange.validate_files(places or [results.root], repeated)
    statuses = [_print_outcome(found, "valid")]
    for line in found.remarks():
        print(plain(f"  {line}"))
    statuses += [
        _print_outcome(checked, "valid")
        for folder in folders
        if not (checked := exchange.check_verifications(folder)).empty
    ]
    return max(statuses)


def _print_outcome(found: CheckOutcome, verb: str) -> int:
    for name, why in found.refused.items():
        fail(f"{name} is refused: {why}")
    print(found.summary(verb))
    return int(bool(found.refused))
