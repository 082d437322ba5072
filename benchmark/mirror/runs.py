"""MLflow's mirror of the records: one flat run per cell. Training never waits for it or depends on it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedspan.benchmark import names
from fedspan.benchmark.errors import is_number
from fedspan.benchmark.mirror import database
from fedspan.benchmark.records.index import Index, store_of
from fedspan.benchmark.records.model import TRIAL, Record, is_trial
from fedspan.benchmark.records.record import dotted, flatten, is_record_file, leaves_of, short_digest
from fedspan.benchmark.records.results import Results

log = logging.getLogger("fedspan")

EXPERIMENT = "FedSpan: all runs"
FORMER = "fedspan"  # its former name
FOLDER = "fedspan.results"  # tag of runs and experiments: the results folder that they come from, as a digest
POLL_SECONDS = 2.0
BATCH = 1000  # metrics per request, MLflow's limit
PAGE = 5000  # runs per request
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
}


REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")  # errors of the request, not of the state of the store


class Unreachable(Exception):
    """The tracking store cannot be used now; the message says why."""


def tracking_uri(results: Path) -> str:
    """Return `MLFLOW_TRACKING_URI`, else the embedded database in the results folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or database.uri_of(results / database.NAME)


def first_line(error: Exception) -> str:
    """Return an error's type and the first line of its message."""
    return f"{type(error).__name__}: {error}".split("\n")[0].removesuffix(": ")


def _quieten() -> None:
    """Silence MLflow on the terminal; call this before importing it."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


def client_of(uri: str) -> Any:
    """Return a quiet client of a tracking store."""
    _quieten()
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri)


def runs_of(client: Any, experiment: str) -> Iterator[Any]:
    """Yield every run of an experiment, fetched page by page."""
    token, seen = None, set[str]()
    while True:
        page = client.search_runs([experiment], max_results=PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
        if token in seen:
            raise Unreachable("it returned the same page of runs twice")
        seen.add(token)


class Mirror:
    """An open tracking store and the runs that it already holds."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.uri = tracking_uri(results.root)
        self._stamps: dict[Path, tuple[int, int]] = {}
        self._noted: dict[str, str] = {}
        self._finished: set[str] = set()  # keys of cells with a result in the store
        self._foreign: set[str] = set()  # runs from other results folders, which a shared store may hold
        self._embedded = self.uri == database.uri_of(results.root / database.NAME)
        try:
            _quieten()
            if self._embedded:
                database.prepare(results)
            self.client = client_of(self.uri)
            import mlflow

            self._entities: Any = mlflow.entities
            former = self.client.get_experiment_by_name(FORMER)
            if former is not None and self.client.get_experiment_by_name(EXPERIMENT) is None:
                self.client.rename_experiment(former.experiment_id, EXPERIMENT)
            self.experiment = self.experiment_of(EXPERIMENT)
            self.runs = self._existing()
        except Exception as error:  # any error of the store or its network stack
            raise Unreachable(f"{self.uri}: {first_line(error)}") from error

    @property
    def folder(self) -> str:
        """The digest of the results folder's path."""
        return hashlib.sha256(str(self.results.root.resolve()).encode()).hexdigest()[:16]

    def is_foreign(self, tags: Mapping[str, str]) -> bool:
        """Return whether a run or experiment with these tags comes from another results folder.

        An embedded database has none: its folder may have been moved.
        """
        return not self._embedded and tags.get(FOLDER, self.folder) != self.folder

    def run_of(self, key: str) -> str | None:
        """Return the run of a cell, preferably one from this results folder; None without any."""
        return min(self.runs.get(key, ()), key=self._foreign.__contains__, default=None)

    def experiment_of(self, name: str) -> str:
        """Return the id of the experiment of that name, created or restored from deletion if necessary."""
        found = self.client.get_experiment_by_name(name)
        if found is not None:
            if found.lifecycle_stage == "deleted":
                self.client.restore_experiment(found.experiment_id)
            return str(found.experiment_id)
        artifacts = None
        if self.uri.startswith("sqlite"):
            artifacts = (self.results.root / "mlartifacts").absolute().as_uri()
        return str(self.client.create_experiment(name, artifact_location=artifacts))

    def metric(self, name: str, value: float, now: int) -> Any:
        """Return a metric in the store's format; `now` in milliseconds."""
        return self._entities.Metric(name, value, now, 0)

    def _existing(self) -> dict[str, dict[str, str]]:
        """Return key -> run -> digest. Interrupted or concurrent syncs may have left several runs per key."""
        runs: dict[str, dict[str, str]] = {}
        for run in runs_of(self.client, self.experiment):
            if "fedspan.key" in run.data.tags:
                runs.setdefault(run.data.tags["fedspan.key"], {})[run.info.run_id] = self._digest_of(run)
        return runs

    def _digest_of(self, run: Any) -> str:
        """Return the digest of a run's record, empty if it was interrupted, and note what else its tags say."""
        tags = run.data.tags
        if tags.get("status") != "failed" and tags.get("fedspan.digest"):
            self._finished.add(tags["fedspan.key"])
        if self.is_foreign(tags):
            self._foreign.add(run.info.run_id)
        return str(tags.get("fedspan.digest", ""))

    def _runs_now(self, key: str) -> dict[str, str]:
        """Return the runs of a cell, run -> digest: another driver of this folder may have sent it a moment ago."""
        found = self.client.search_runs([self.experiment], f"tags.`fedspan.key` = '{key}'")
        self.runs[key] = {run.info.run_id: self._digest_of(run) for run in found}
        return self.runs[key]

    def sync(self, keys: Sequence[str] | None = None) -> int:
        """Mirror new and changed records and failures, of all keys or only `keys`; return the number sent.

        Idempotent. Runs from other results folders stay, and stand for equal records of this one.
        """
        sent = 0
        for record in self._changed(keys):
            digest = short_digest(record)
            try:
                runs = self._runs_now(record["key"])
                if record["status"] == "failed" and record["key"] in self._finished:
                    continue  # another machine's result stays
                same = next((run for run, seen in runs.items() if seen == digest), None)
                if (kept := same or self._send(record, digest)) is None:
                    continue
                for run in [run for run in runs if run != kept and run not in self._foreign]:
                    self._delete(run)
                    del runs[run]
            except Exception as error:
                raise Unreachable(f"{self.uri}: {first_line(error)}") from error
            runs[kept] = digest
            sent += same is None
        self._note()
        return sent

    def _held(self) -> dict[str, str]:
        """Return the digests, by key, of the records that have exactly one run, apart from those of other folders."""
        held = {}
        for key, runs in self.runs.items():
            mine = {run: digest for run, digest in runs.items() if run not in self._foreign} or runs
            if len(mine) == 1:
                held[key] = next(iter(mine.values()))
        return held

    def _note(self) -> None:
        """Note in the index what is mirrored, so that a grid with nothing to run starts no mirror."""
        if (held := self._held()) != self._noted and (store := store_of(self.results.root)) is not None:
            Index(self.results.root).note_mirrored(store, held)
            self._noted = held

    def _changed(self, keys: Sequence[str] | None) -> Iterator[Record]:
        """Yield the records, and the failures of cells without one, whose files changed since the last call."""
        records, failures = self.results.records, self.results.failures
        known = {} if self._stamps else self.results.entries(keys)
        held = self._held()
        for path in (path for folder in (records, failures) for path in _files(folder, keys)):
            if not is_record_file(path) or (path.parent == failures and (records / path.name).exists()):
                continue
            try:
                found = path.stat()
            except FileNotFoundError:  # it was set aside, or its cell ran again
                continue
            stamp = (found.st_mtime_ns, found.st_size)
            if self._stamps.get(path) == stamp:
                continue
            if path.parent == records and path.stem in known and held.get(path.stem) == known[path.stem].beginning:
                self._stamps[path] = stamp
                continue
            record = self.results.read(path.stem) if path.parent == records else self.results.failure(path.stem)
            if record is not None:
                yield record
            self._stamps[path] = stamp

    def _send(self, record: Record, digest: str) -> str | None:
        """Send a record and return its new run, or None if the store refuses it, which stops no other record."""
        from mlflow.exceptions import MlflowException

        run = self._new_run(record)
        try:
            self._fill(run, record, digest)
        except MlflowException as error:
            if error.error_code not in REFUSED:
                raise
            log.warning("%s is not mirrored, MLflow refuses it: %s", record["key"], first_line(error))
            self._delete(str(run.info.run_id))
            return None
        return str(run.info.run_id)

    def _new_run(self, record: Record) -> Any:
        """Create the run of a record, with a readable name and the training's duration."""
        spec = record["spec"]
        axes = {
            "method": names.method_name(spec),
            "task": names.task_name(spec),
            **{kind: spec[kind]["name"] for kind in ("dataset", "partition", "model", "algorithm")},
            "addons": "+".join(addon["name"] for addon in spec["addons"]),
            **{name: spec[name] for name in ("clients", "participation", "seed", "scale")},
            "status": record["status"],
            "reason": record["reason"] or "",
        }
        axes |= {"fleet": spec["fleet"]["name"]} if "fleet" in spec else {}
        tags = {name: str(value)[:5000] for name, value in axes.items()}
        command = record["provenance"].get("command", "")[:5000]
        model = names.name_from("model", spec["model"])
        if is_trial(record):
            tags["validation"] = str(spec["protocol"].get("validation"))
        tags |= {
            "fedspan.key": record["key"],
            "fedspan.command": command,
            FOLDER: self.folder,
            "mlflow.note.content": f"{axes['method']} on {axes['task']}, {model}.\n\n```sh\n{command}\n```",
        }
        start = int(1000 * (time.time() - _seconds(record)))
        name = f"{axes['method']}, seed {spec['seed']}"
        return self.client.create_run(self.experiment, start_time=start, run_name=name[:250], tags=tags)

    def _link(self, run: Any, record: Record) -> None:
        """Link a run to its dataset and its model; stores of older MLflow versions cannot hold models."""
        from mlflow.exceptions import MlflowException

        spec, made, run_id = record["spec"], record["provenance"], str(run.info.run_id)
        entities = self._entities
        dataset = entities.Dataset(
            names.task_name(spec)[:500],
            (made.get("dataset_digest") or "unknown")[:36],
            "fedspan",
            json.dumps({"dataset": spec["dataset"], "partition": spec["partition"], "clients": spec["clients"]}),
        )
        context = entities.InputTag("mlflow.data.context", "training")
        self.client.log_inputs(run_id, [entities.DatasetInput(dataset, [context])])
        params = {metric_name(dotted(steps)): str(value)[:500] for steps, value in flatten(spec["model"])}
        tags = {"fedspan.key": record["key"]}
        try:
            name = re.sub(r"[/:.%\"']", "_", names.name_from("model", spec["model"]))
            model = self.client.create_logged_model(self.experiment, name, run_id, tags, params, "fedspan")
            self.client.finalize_logged_model(model.model_id, "READY")
            self.client.log_outputs(run_id, [entities.LoggedModelOutput(model.model_id, spec["protocol"]["rounds"])])
        except MlflowException as error:
            log.debug("%s has no linked model: %s", record["key"], first_line(error))

    def _delete(self, run: str) -> None:
        """Delete a run and the model linked to it."""
        from mlflow.exceptions import MlflowException

        self.client.delete_run(run)
        with contextlib.suppress(MlflowException):
            for model in self.client.search_logged_models([self.experiment], f"source_run_id = '{run}'"):
                self.client.delete_logged_model(model.model_id)

    def _fill(self, run: Any, record: Record, digest: str) -> None:
        run_id = str(run.info.run_id)
        settings = [(metric_name(dotted(steps)), str(value)[:6000]) for steps, value in flatten(record["spec"])]
        params = [self._entities.Param(name, value) for name, value in settings]
        for start in range(0, len(params), 100):
            self.client.log_batch(run_id, params=params[start : start + 100])
        metrics = list(self._metrics(record, int(run.info.start_time)))
        for start in range(0, len(metrics), BATCH):
            self.client.log_batch(run_id, metrics=metrics[start : start + BATCH])
        self.client.log_dict(run_id, record, "record.json")
        if record["status"] == "done":
            self._link(run, record)
        status = {"done": "FINISHED", "skipped": "KILLED"}.get(record["status"], "FAILED")
        self.client.set_terminated(run_id, status, int(run.info.start_time + 1000 * _seconds(record)))
        # The digest comes last, so an interrupted run is sent again.
        self.client.set_tag(run_id, "fedspan.digest", digest)

    def _metrics(self, record: Record, now: int) -> Iterator[Any]:
        """Yield the metrics of a run; the metrics of a trial's curve have other names than those of a result's."""
        last = record["spec"]["protocol"]["rounds"]
        for steps, value in leaves_of(record, "scores", "compute").items():
            if is_number(value):
                name = dotted(steps).removeprefix("scores.")
                yield self._entities.Metric(metric_name(name), float(value), now, last)
        rounds, of_curve = record["curve"].get("round", []), f"{TRIAL}." if is_trial(record) else ""
        for steps, values in leaves_of(record, "curve").items():
            if steps != ("curve", "round"):
                for round, value in zip(rounds, values, strict=True):
                    if value is not None:
                        yield self._entities.Metric(metric_name(of_curve + dotted(steps)), float(value), now, round)


def _seconds(record: Record) -> float:
    """Return the seconds that a cell took, 0 if its record does not say."""
    total = record["compute"].get("seconds", {}).get("total", 0.0)
    return float(total) if is_number(total) else 0.0


def metric_name(name: str) -> str:
    """Return a valid MLflow name for a metric or parameter."""
    return re.sub(r"[^\w. -]|^\.+", "_", name, flags=re.ASCII)[:250]


def _files(folder: Path, keys: Sequence[str] | None) -> list[Path]:
    """Return the files of `keys`, by default of all, in a folder of records; some may not exist."""
    return sorted(folder.glob("*.json") if keys is None else (folder / f"{key}.json" for key in keys))


def sync(results: Path, keys: Sequence[str] | None = None) -> tuple[str, int]:
    """Mirror everything, or only the records of `keys`, once; return (URI, runs sent). Raises `Unreachable`."""
    mirror = Mirror(Results(results, sets_aside=False))
    return mirror.uri, mirror.sync(keys)


def follow(results: Path, keys: Sequence[str], ended: threading.Event) -> str:
    """Mirror new records of `keys` until `ended`, then once more; return one line for the user."""
    sent, trouble, mirror = 0, "", None
    while True:
        final = ended.wait(POLL_SECONDS)
        try:
            mirror = mirror or Mirror(Results(results, sets_aside=False))
            sent, trouble = sent + mirror.sync(keys), ""
        except Unreachable as error:
            mirror, trouble = None, str(error)
        if final:
            break
    if trouble:
        return f"MLflow could not be reached ({trouble}); all records are kept, run 'fedspan sync' later"
    return f"{names.counted_as(sent, 'run')} mirrored to MLflow ({tracking_uri(results)})" if sent else ""


def main() -> None:
    """Mirror the records named in the first line of standard input, until standard input is closed.

    Messages for the user go to standard output.
    """
    logging.getLogger("fedspan").addHandler(logging.StreamHandler(sys.stdout))
    keys, ended = sys.stdin.readline().split(), threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    print(follow(Path(sys.argv[1]), keys, ended), flush=True)


if __name__ == "__main__":
    main()
