"""Generated parts of README: the picture of gains, and the tables of plugins.

The picture is made from the records in the repository. Run by `nox -s readme`.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes as Plot
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from fedspan.benchmark import names
from fedspan.benchmark.bibliography import papers_of
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.selection import select
from fedspan.benchmark.registry import Plugin, discover, plugins
from fedspan.benchmark.report import labels
from fedspan.benchmark.report.axes import Axes
from fedspan.benchmark.report.drawing import Panel
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.headline import points
from fedspan.benchmark.report.overall import Comparisons
from fedspan.benchmark.report.overview import Overview, View
from fedspan.benchmark.report.panels import draw
from fedspan.benchmark.report.preview import draw_gains
from fedspan.benchmark.report.style import COLOURS, DASHES, INK, QUIET, STYLE, TWO_COLUMNS
from fedspan.benchmark.report.summary import summarise
from fedspan.benchmark.report.tuning import Reported
from fedspan.benchmark.spec.board import Figure, load_board
from fedspan.benchmark.spec.plan import plan_grid
from fedspan.benchmark.spec.studies import studies_of

ROOT = Path(__file__).resolve().parents[1]
README, PICTURE = ROOT / "README.md", ROOT / "docs" / "gains.svg"
BOARD, SHOWN = "field_tuned", 10  # its tuned methods, and how many of them the picture has
COLLAPSE, PARTITION = "collapse", "dirichlet(alpha=0.05)"
BEGIN, END = "<!-- made by nox -s readme -->", "<!-- until here -->"
TABLES = (
    ("Algorithms", "algorithm"),
    ("Add-ons", "addon"),
    ("Datasets", "dataset"),
    ("Partitions", "partition"),
    ("Fleets", "fleet"),
    ("Models", "model"),
)
COUNTED = TABLES[:3]  # on the first screen


def own_plugins(kind: str) -> list[type[Plugin]]:
    """Return the plugins of a kind that come with the package."""
    return [cls for cls in plugins(kind).values() if cls.__module__.startswith("fedspan.")]


def catalogue() -> str:
    """Return the tables of the plugins that come with the package, with links to their papers."""
    discover()
    lines = []
    for heading, kind in TABLES:
        found = own_plugins(kind)
        lines += [f"**{heading}** ({len(found)})", "", "| name | what it is | papers |", "|---|---|---|"]
        for cls in sorted(found, key=lambda cls: cls.title.lower()):
            cited = ", ".join(
                f"[{paper.short}]({paper.link})" if paper.link else paper.short for paper in papers_of(cls)
            )
            lines.append(f"| {cls.title} (`{cls.name}`) | {names.summary_of(cls)} | {cited} |")
        lines.append("")
    return "\n".join(lines).strip()


def with_catalogue(text: str) -> str:
    """Return README with the tables and counts of the current plugins."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    tables, counted = catalogue(), [(heading.lower(), len(own_plugins(kind))) for heading, kind in COUNTED]
    before = re.sub(
        " x ".join(rf"\d+ {heading}" for heading, _ in counted),
        " x ".join(f"{number} {heading}" for heading, number in counted),
        before,
    )
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


def ranking() -> View:
    """Return the ranking of the board's committed runs, each method as tuned."""
    place = Results(ROOT / "results", sets_aside=False)
    selections = [select(study, place.read) for study in studies_of({"board": [BOARD]})]
    reported = Reported.of(plan_grid({"board": [BOARD]}), selections)
    frame = collect(reported.cells, place)
    found = summarise(load_board(BOARD), reported, frame, [], f"{BOARD}/").results
    return Overview(found, Comparisons(found)).view(frozenset(result.task for result in found), tuned=True)


def spectra() -> Panel:
    """Return singular values of FedAvg and FedDecorr at two learning rates on one partition."""
    cells = plan_grid({"board": [COLLAPSE]})
    frame = collect(cells, Results(ROOT / "results", sets_aside=False))
    figure = Figure(kind="spectrum", rows=("method", "protocol.lr"), where={"partition": PARTITION})
    [panel] = draw(frame, Axes(cells), figure, 1).panels
    return Panel("", tuple(replace(line, mean=line.mean - line.mean[0]) for line in panel.lines))


def about(view: View) -> str:
    """Return what was compared, and how many of the methods the picture shows."""
    return f"The first {SHOWN} of {len(view.lines)} methods: {view.about}"


def words(view: View) -> str:
    """Return the picture in words."""
    gains = "; ".join(
        f"{line.name} {points(line.gain[0])} ({points(line.gain[1])} to {points(line.gain[2])})"
        for line in view.lines[:SHOWN]
        if line.gain
    )
    return f"{view.headline} {about(view)}. Gains in points, 95% CI: {gains}."


def picture() -> None:
    """Draw gains with their intervals next to the singular values of representations."""
    view = ranking()
    with matplotlib.rc_context({**STYLE, "savefig.transparent": False, "savefig.facecolor": "white"}):
        width, height, inner = 1.4 * TWO_COLUMNS, 3.95, 2.35
        canvas = Canvas(figsize=(width, height))
        FigureCanvasAgg(canvas)
        gains = canvas.add_axes((0.25, 0.14, 0.33, inner / height))
        draw_gains(gains, view.lines[:SHOWN])
        gains.set_xlabel("Gain over FedAvg in points of test accuracy, 95% CI")
        _spectra(canvas.add_axes((0.64, 0.14, 0.23, inner / height)), spectra(), inner)
        canvas.text(0.01, 0.97, "\n".join(labels.wrapped(view.headline, 80)), weight="bold", fontsize=11, va="top")
        canvas.text(0.01, 0.86, "\n".join(labels.wrapped(about(view), 150)), fontsize=8, color=QUIET, va="top")
        canvas.savefig(PICTURE, format="svg", metadata={"Date": None, "Description": words(view)})


def _spectra(plot: Plot, panel: Panel, height: float) -> None:
    for line in panel.lines:
        (drawn,) = plot.plot(line.x, line.mean, color=COLOURS[line.number], linestyle=DASHES[line.number])
        drawn.set_gid(f"line-{line.number}")
    labels.name_lines(plot, panel, height, INK)
    plot.set_xlabel("Index k of a singular value of representations")
    plot.set_title("Collapse: log of value k over the largest, alpha 0.05", fontsize=8)


def main() -> int:
    """Write picture and tables, or with --check return 1 if either is out of date."""
    if "--check" not in sys.argv:
        picture()
        README.write_text(with_catalogue(README.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    said = re.search(r"<dc:description>(.*?)</dc:description>", PICTURE.read_text(encoding="utf-8"), re.DOTALL)
    stale = said is None or " ".join(said[1].split()) != words(ranking())
    if stale or with_catalogue(text := README.read_text(encoding="utf-8")) != text:
        print("README shows other results or plugins than there are; run: nox -s readme", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
