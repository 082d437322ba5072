"""Style of all figures: legible to colour-blind readers and in grey, and as wide as the columns of a paper."""

from __future__ import annotations

from typing import Any

from matplotlib.colors import LinearSegmentedColormap

# Okabe and Ito (2008), with wine and indigo of Tol (2021): any two differ by at least 16 (CIE 1976), also for readers
# with the common colour vision deficiencies. Lines use the first seven, whose contrast to white is at least 3.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#882255", "#332288", "#000000", "#F0E442", "#E69F00", "#56B4E9")
LINES = 7
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
MARKS = 7  # per line, about
QUIET = "#6E7781"
INK, GRID = "#24292F", "#DDE1E6"
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "savefig.transparent": True,
    "svg.hashsalt": "fedspan",
    "pdf.fonttype": 42,
    "hatch.linewidth": 0.5,
}
ONE_COLUMN, TWO_COLUMNS = 3.4, 7.0  # inches, as in journals and proceedings
MOST_ACROSS = 3
STEPS = 16  # of a colour bar
WIDE = 20  # least ratio of largest to smallest x for a logarithmic axis
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---", "ooo")
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*", "<", ">")
SHADES = LinearSegmentedColormap.from_list("shades", ["#FFFFFF", COLOURS[0], "#001B2E"])


def fill_of(number: int) -> tuple[str, str]:
    """Return a bar's colour and hatch: the pair is unique among `MOST_LINES`; hatches separate neighbours in grey."""
    return COLOURS[number % LINES], HATCHES[(number + number // LINES) % len(HATCHES)]
