"""Selection of a study's trial: the most accurate one on validation images, according to the available records."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedspan.benchmark.names import counted_as
from fedspan.benchmark.records.model import Record, settled
from fedspan.benchmark.spec.plan import PlannedCell, distinct, plan_grid
from fedspan.benchmark.spec.studies import Study, Trial, studies_of

WORST = -math.inf  # accuracy of a run that diverged, or of a trial that cannot run

Read = Callable[[str], Record | None]


@dataclass(frozen=True)
class Selection:
    """The outcome of a study.

    `accuracies` are the trials' accuracies on validation images, in percent, means over the tuning seeds: `WORST` for a
    trial without one, None for one that has not run on every seed. `chosen` is None until all trials have run.
    `on_other_data` are the numbers of trials with a run on other data than most runs of the study; `impossible` is the
    number of trials that cannot run.
    """

    study: Study
    accuracies: tuple[float | None, ...]
    chosen: Trial | None
    on_other_data: tuple[int, ...] = ()
    impossible: int = 0

    @property
    def missing(self) -> int:
        """The number of trials that have not run on every seed."""
        return sum(accuracy is None for accuracy in self.accuracies)

    @property
    def diverged(self) -> int:
        """The number of trials that count as worst: they diverged, or cannot run."""
        return sum(accuracy == WORST for accuracy in self.accuracies)

    @property
    def worst(self) -> str:
        """The outcome of the trials that count as worst, in words."""
        if not self.impossible:
            return "diverged"
        return "cannot run" if self.impossible == self.diverged else "diverged or cannot run"

    @property
    def tuned(self) -> list[PlannedCell]:
        """The reported cells with the chosen settings; none until all trials have run."""
        return [] if self.chosen is None else self.study.tuned(self.chosen)

    @property
    def note(self) -> str:
        """Caveats: trials without a result or on other data, a space with fewer points than trials."""
        trials, said = len(self.accuracies), []
        if self.missing == trials:
            said.append("no trial has a record yet")
        elif self.missing:
            said.append(f"{self.missing} of {trials} trials {'has' if self.missing == 1 else 'have'} no record yet")
        elif self.diverged == trials:
            every = "the only trial" if trials == 1 else f"all {trials} trials"
            said.append(f"{every} {self.worst}: the default is kept")
        elif self.diverged:
            said.append(f"{self.diverged} of {trials} trials {self.worst}")
        if self.on_other_data:
            which = ("trial " if len(self.on_other_data) == 1 else "trials ") + ", ".join(map(str, self.on_other_data))
            said.append(f"{which} used other data than the rest (by digest), so accuracies are not comparable")
        if self.study.exhausted:
            said.append(f"the space has {counted_as(trials, 'point')}, fewer than {self.study.tune.trials} trials")
        return "; ".join(said)


def select(study: Study, read: Read) -> Selection:
    """Return the selection from the records of a study's trials: the highest mean accuracy, at a tie the earlier trial.

    `read` returns the record of a key or None, like `Results.read`. A failed cell has none.
    """
    runs = [[read(planned.cell.key) for planned in trial.cells] for trial in study.trials]
    accuracies = tuple(map(_accuracy, runs))
    known = [accuracy for accuracy in accuracies if accuracy is not None]
    complete = len(known) == len(accuracies)
    chosen = study.trials[known.index(max(known))] if complete else None
    impossible = sum(any(record and record["status"] == "skipped" for record in records) for records in runs)
    return Selection(study, accuracies, chosen, _on_other_data(runs), impossible)


def cells_of(axes: Mapping[str, list[Any]], read: Read) -> list[PlannedCell]:
    """Return all cells of a command line that can have records, each once.

    These are the cells of its board or sweeps and, if it tunes, all trials and the cells with the chosen settings.
    """
    cells = plan_grid(axes)
    for study in studies_of(axes):
        cells += [*study.cells, *select(study, read).tuned]
    return distinct(cells)


def _on_other_data(runs: Sequence[Sequence[Record | None]]) -> tuple[int, ...]:
    """Return the numbers of trials with a run on other data than most runs; at a tie, the first trial's data counts."""
    told = [[record["provenance"].get("dataset_digest") for record in records if record] for records in runs]
    digests = [{digest for digest in of_trial if digest} for of_trial in told]
    usual = {digest for digest, _ in Counter(filter(None, itertools.chain(*told))).most_common(1)}
    return tuple(number for number, seen in enumerate(digests) if seen - usual)


def _accuracy(records: Sequence[Record | None]) -> float | None:
    found = [_validated(record) for record in records if record is not None]
    return settled(fmean(found)) if len(found) == len(records) else None


def _validated(record: Record) -> float:
    """Return a trial's accuracy on its validation images; `WORST` if it has none."""
    if record["status"] != "done":
        return WORST
    accuracy = record["scores"].get("validation", {}).get("accuracy")
    return WORST if accuracy is None else accuracy
