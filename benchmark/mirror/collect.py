"""Import of records from MLflow: fetched from a store that mirrors them, and checked like all imported records."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedspan.benchmark.errors import CorruptFile, UserError
from fedspan.benchmark.mirror.runs import EXPERIMENT, FORMER, Unreachable, client_of, runs_of
from fedspan.benchmark.records.atomic import content_of
from fedspan.benchmark.records.exchange import runnable
from fedspan.benchmark.records.model import Record
from fedspan.benchmark.records.record import WHOLE_BYTES, parse, short_digest


def from_mlflow(uri: str) -> Iterator[tuple[str, Callable[[], Record]]]:
    """Yield (name, function that fetches it) for each record mirrored in a tracking store, without failures.

    Raises `Unreachable` if the store cannot be used, and `UserError` if it has no experiment of records.
    """
    if uri.startswith("sqlite:///") and not Path(urlsplit(uri).path[1:]).is_file():  # opening it would make it
        raise UserError(f"{uri}: there is no such database")
    try:
        client = client_of(uri)
        experiment = client.get_experiment_by_name(EXPERIMENT) or client.get_experiment_by_name(FORMER)
        if experiment is None:
            raise UserError(f"{uri} holds no experiment called {EXPERIMENT}")
        runs = [(run.info.run_id, run.data.tags) for run in runs_of(client, experiment.experiment_id)]
    except UserError:
        raise
    except Exception as error:  # any error of the store or its network stack
        raise Unreachable(f"{uri}: {error}".split("\n")[0]) from error
    for run, tags in runs:
        if "fedspan.digest" in tags and tags.get("status") != "failed":  # an interrupted mirroring has no digest
            yield f"{tags.get('fedspan.key')} of run {run}", partial(_fetched, client, run, tags["fedspan.digest"])


def _fetched(client: Any, run: str, digest: str) -> Record:
    """Return the record of a run; raise `CorruptFile` if it cannot be fetched, is invalid, or is not the run's."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            content = content_of(Path(client.download_artifacts(run, "record.json", folder)), WHOLE_BYTES)
        except CorruptFile:
            raise
        except Exception as error:
            raise CorruptFile(f"it cannot be fetched: {error}".split("\n")[0]) from error
    record = parse(content, None)
    if short_digest(record) != digest:
        raise CorruptFile("its digest is not that of its run")
    return runnable(record)
