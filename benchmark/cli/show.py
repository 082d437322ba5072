"""`fedspan show partition`: the number of images of each class at each client."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from fedspan.benchmark.data.shares import shares
from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.records.atomic import write_atomically
from fedspan.benchmark.report.figures import FORMATS
from fedspan.benchmark.report.partition_figure import figure, terminal
from fedspan.benchmark.report.partitions import picture_of
from fedspan.benchmark.spec.overrides import axes_of
from fedspan.benchmark.spec.plan import plan_grid
from fedspan.benchmark.spec.settings import How

KINDS = ("partition",)


def show(arguments: argparse.Namespace) -> int:
    """Draw the partition of one cell into a file and in the terminal."""
    kind, settings = (arguments.words or [""])[0], arguments.words[1:]
    if kind not in KINDS:
        raise UserError(f"cannot show '{kind}'{did_you_mean(kind, KINDS)}")
    if arguments.out and Path(arguments.out).suffix[1:].lower() not in FORMATS:
        raise UserError(f"--out {arguments.out}: a figure is a file that ends in .{', .'.join(FORMATS)}")
    planned = plan_grid(axes_of(settings))
    drawn = {(picture_of(each.cell), each.cell.seed) for each in planned}
    if len(drawn) > 1:
        raise UserError(f"these settings make {len(drawn)} partitions; give each setting one value")
    cell, how = planned[0].cell, How.of(planned[0].config)
    found = shares(cell, how.data)
    name = f"{picture_of(cell)}-{found.digest[:8]}.svg"
    path = Path(arguments.out) if arguments.out else how.results / "partitions" / name
    write_atomically(path, figure(found, path.suffix[1:].lower()))
    Console().print(terminal(found))
    print(path)
    return 0
