"""One cell as a job: lease, status file, signals, and a record whatever happens."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from fedspan.benchmark.contract import blame
from fedspan.benchmark.errors import UserError, plain
from fedspan.benchmark.records.model import Record
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.running.cell_run import CellProgress, Outcome, make_record, run_cell
from fedspan.benchmark.running.leases import Busy, Leases
from fedspan.benchmark.running.progress import StatusFile
from fedspan.benchmark.running.sharing import GridWorkers, SingleRunWorkers
from fedspan.benchmark.running.signals import TimedOut, stopping
from fedspan.benchmark.spec.compose import make_cell
from fedspan.benchmark.spec.overrides import command_of
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.training.process import ran_out_of_memory


def run_job(config: Mapping[str, Any], words: Sequence[str], lone: bool = False) -> Record:
    """Run the cell of a composed configuration in this process; every error becomes a failed record with its reason.

    `words` are the overrides that made it; a `lone` cell belongs to no grid and takes all workers. Returns an existing
    record or failure: another grid may just have made it. Raises `Busy` if another process computes the cell, and
    `UserError` if nothing can be written.
    """
    cell, how = make_cell(config), dataclasses.replace(How.of(config), command=command_of(words))
    results = Results(how.results)
    lease = Leases(results.leases).claim(cell.key)
    status = StatusFile(results.status / f"{cell.key}.json")
    try:
        if (known := results.read(cell.key) or results.failure(cell.key)) is not None:
            return known
        results.clear_temporary(cell.key, cell.train_key)
        status.write({"label": cell.label, "rounds": cell.protocol.rounds})
        with stopping(how.timeout) as stop:

            def watch(progress: CellProgress) -> bool:
                lease.check()
                status(progress)
                return stop.asked

            def other_cells() -> int:
                lease.check(at_once=True)  # the stages after the last round may outlast it, and the other has a record
                return lease.most_other_cells()

            share = SingleRunWorkers(how) if lone else GridWorkers(how, lease.other_cells)
            return run_cell(cell, how, watch, other_cells, share)
    except Busy:
        raise
    except (Exception, SystemExit) as error:
        if (known := results.read(cell.key)) is not None:  # it timed out just after the record was written
            return known
        lease.check(at_once=True)  # a process that lost its lease records no failure: another one computes the cell
        record = make_record(cell, how, Outcome("failed", reason_of(error)), None)
        if isinstance(error, UserError):
            record["refused"] = True
        elif not isinstance(error, TimedOut):
            record["traceback"] = traceback.format_exc()
        results.write(record)
        return record
    finally:
        if not lease.taken_over:
            status.remove()
        lease.release(finished=results.path(cell.key).exists())


def reason_of(error: BaseException) -> str:
    """Return the reason of a failure in one line."""
    if isinstance(error, (UserError, TimedOut)):
        reason = str(error)
    elif ran_out_of_memory(error):
        reason = f"out of memory: {error}"
    else:
        reason = blame(error) or getattr(error, "blamed", "") or f"{type(error).__name__}: {error}"
    return plain(" ".join(reason.split()))
