"""Picture docs/rooms.svg: the rooms (subpackages) of the engine and the imports between them; run by `nox -s rooms`.

With --check it compares the imports with those in the picture, and draws nothing.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import grimp
import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

PICTURE = Path(__file__).with_name("rooms.svg")
PUBLIC = "public"
PLACES = {  # room: (column, row from the top)
    "notebook": (0.4, 0), "cli": (1.6, 0), "mirror": (1.6, 1), "running": (2.8, 1), "report": (0.4, 2),
    "training": (2.8, 2), "data": (1.6, 3), "records": (1.6, 4), "spec": (1.6, 5), PUBLIC: (1.6, 6),
    "tasks": (2.8, 3), "methods": (2.8, 5),
}  # fmt: skip
ABOUT = {
    "notebook": "runs as data frames",
    "cli": "commands",
    "mirror": "MLflow's copy",
    "running": "jobs, grids, launchers, leases",
    "report": "tables, figures, pages",
    "training": "local training, aggregation, scores",
    "data": "files, decoding, batches",
    "records": "what is kept, and how",
    "spec": "from settings to cells",
    PUBLIC: "component, task, protocol, registry ...",
    "methods": "algorithms, add-ons",
    "tasks": "datasets, partitions, models, fleets",
}


def room_of(module: str) -> str:
    """Return the room of a module; `PUBLIC` for the engine's top-level files, which plugins import."""
    parts = module.split(".")
    if len(parts) > 1 and parts[1] in ("methods", "tasks"):
        return parts[1]
    return parts[2] if len(parts) > 2 and parts[2] in PLACES else PUBLIC


def imports() -> Counter[tuple[str, str]]:
    """Return the number of imports from each room to each other room."""
    graph = grimp.build_graph("fedspan")
    found: Counter[tuple[str, str]] = Counter()
    for module in graph.modules:
        if module.startswith(("fedspan.benchmark.", "fedspan.methods.", "fedspan.tasks.")):
            for other in graph.find_modules_directly_imported_by(module):
                if other != "fedspan" and (ends := (room_of(module), room_of(other)))[0] != ends[1]:
                    found[ends] += 1
    return found


def written(found: Counter[tuple[str, str]]) -> str:
    """Return the imports in the form of the picture's description."""
    return ", ".join(f"{one} to {other} {count}" for (one, other), count in sorted(found.items()))


def direct(found: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the imports that are not implied by a path through other rooms."""

    def reaches(start: str, end: str, without: tuple[str, str], seen: frozenset[str] = frozenset()) -> bool:
        steps = [other for one, other in found if one == start and (one, other) != without and other not in seen]
        return end in steps or any(reaches(step, end, without, seen | {start}) for step in steps)

    return [pair for pair in sorted(found) if not reaches(*pair, pair)]


def draw(found: Counter[tuple[str, str]]) -> None:
    """Write the picture: a room may import all rooms that its arrows lead to, directly or through others."""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rooms", "font.size": 8}):
        canvas = Figure(figsize=(7.2, 6.4))
        FigureCanvasSVG(canvas)
        plot = canvas.add_axes((0, 0, 1, 1), xlim=(-0.2, 3.4), ylim=(6.6, -0.5))
        plot.set_axis_off()
        for one, other in direct(found):
            start, end = _ends(PLACES[one], PLACES[other])
            plot.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color="#6e7781", zorder=1))
        for room, (x, y) in PLACES.items():
            colour = "#ddf4ff" if room in ("methods", "tasks") else "#dafbe1" if room == PUBLIC else "#f6f8fa"
            box = FancyBboxPatch(
                (x - 0.5, y - 0.26), 1.0, 0.52, boxstyle="round,pad=0.02", facecolor=colour, edgecolor="#57606a"
            )
            plot.add_patch(box)
            plot.text(x, y - 0.06, room, ha="center", va="center", weight="bold", fontsize=10)
            plot.text(x, y + 0.14, ABOUT[room], ha="center", va="center", fontsize=6.5, color="#424a53")
        canvas.savefig(PICTURE, format="svg", metadata={"Date": None, "Description": written(found)})


def _ends(start: tuple[float, float], end: tuple[float, float]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ends of an arrow between the boxes of `start` and `end`: at top and bottom, or at the sides."""
    (x, y), (u, v) = start, end
    slide = 0.35 * max(-1.0, min(1.0, u - x))
    if y == v:
        side = 0.5 if u > x else -0.5
        return (x + side, y), (u - side, v)
    down = 0.29 if v > y else -0.29
    return (x + slide, y + down), (u - slide, v - down)


def main() -> int:
    """Draw the picture, or with --check return 1 if it is out of date."""
    found = imports()
    if "--check" not in sys.argv:
        draw(found)
        return 0
    said = re.search(r"<dc:description>(.*?)</dc:description>", PICTURE.read_text(), re.DOTALL)
    if said is None or " ".join(said[1].split()) != written(found):
        print("docs/rooms.svg shows other imports than the code has; run: nox -s rooms", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
