"""Pictures of the partitions behind a site's results, each drawn once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedspan.benchmark.data.shares import shares
from fedspan.benchmark.errors import CorruptFile, Incompatible, UserError
from fedspan.benchmark.report.pages import slug
from fedspan.benchmark.report.partition_figure import figure
from fedspan.benchmark.report.report import put
from fedspan.benchmark.report.site import MOST_PICTURES
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.plan import PlannedCell


def picture_of(cell: Cell) -> str:
    """Return the name of a partition's picture: all that the counts depend on, except the seed, which it shows."""
    content = str(cell.what["dataset"].get("content", ""))[:12]
    apart = {"unseen": cell.unseen, "validation": cell.protocol.validation, "content": content}
    words = [cell.dataset.label(), cell.partition.label(), str(cell.clients)]
    words.append(f"versions {cell.dataset.version} {cell.partition.version}")
    return slug(" ".join([*words, *(f"{name} {share}" for name, share in apart.items() if share)]))


def draw_partitions(cells: Sequence[PlannedCell], folder: Path, data: Path) -> None:
    """Draw the partitions of `cells`, one picture for each name that `picture_of` gives.

    `data` is the folder of the datasets; datasets that are not on this machine are skipped.
    """
    wanted: dict[str, dict[str, PlannedCell]] = {}
    for planned in cells:
        wanted.setdefault(planned.cell.dataset.name, {}).setdefault(picture_of(planned.cell), planned)
    for name, pictures in wanted.items():
        for key, planned in list(pictures.items())[:MOST_PICTURES]:
            path = folder / f"{slug(name)}.{key}.svg"
            if path.with_suffix(".json").exists():  # written last
                continue
            try:
                found = shares(planned.cell, data)
            except (CorruptFile, Incompatible, UserError):  # maybe of this partition alone
                continue
            put(path, figure(found))
            put(
                path.with_suffix(".json"),
                json.dumps({"title": found.title, "words": "; ".join(found.facts)}).encode(),
            )
