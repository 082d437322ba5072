"""LaTeX tables compile with a stock TeX Live, whatever the names in them."""

import shutil
import subprocess

import pytest

from fedspan.benchmark.report.report import write_report
from fedspan.benchmark.spec.board import Table
from tests.helpers import PATIENCE
from tests.report.made import board, cells_of, results_of, seeded, stopped

DOCUMENT = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage{booktabs}
\usepackage{graphicx}
\begin{document}
%s
\end{document}
"""


def test_a_label_in_brackets_is_no_argument_of_the_line_before_it(tmp_path):
    example = board(
        {"algorithm": "moon", "algorithm.projection": [[640, 256], [64, 32]]},
        tables=[Table(rows=("algorithm.projection",))],
    )
    cells = cells_of(example)
    write_report(example, cells, results_of(tmp_path, seeded(cells)), tmp_path)
    lines = (tmp_path / "example" / "table-1.tex").read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith("{[}") for line in lines) == 2
    assert not any(line.startswith(("[", "*")) for line in lines)


@pytest.mark.slow
def test_tables_compile_with_a_stock_tex_live(tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is needed (Debian: texlive-latex-base and texlive-latex-recommended)")
    title = "50% of a_b & {c} ~ ^ \\ # $x$ <y> é ü ≥ 日本 “quoted” − × ✓"
    example = board(title=title, tables=[Table(title=title), Table(rows=("algorithm", "addons"))])
    cells = cells_of(example)
    records = seeded(cells)
    records[4] = stopped(cells[4], "diverged", "round 2: the loss is not finite, 100% of {it} ∞")
    write_report(example, cells, results_of(tmp_path, records), tmp_path)
    inputs = "\n".join(rf"\input{{example/table-{number}}}" for number in (1, 2))
    (tmp_path / "all.tex").write_text(DOCUMENT % inputs, encoding="utf-8")
    ran = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"],
        cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False,
    )  # fmt: skip
    log = (tmp_path / "all.log").read_text(errors="replace")
    assert ran.returncode == 0, log[-3000:]
    assert "Missing character" not in log
    assert (tmp_path / "all.pdf").read_bytes().startswith(b"%PDF")
