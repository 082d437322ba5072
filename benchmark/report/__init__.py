"""Reports from records: Markdown, CSV, LaTeX, figures and one self-contained page per board."""

from fedspan.benchmark.report.report import Report, write_report

__all__ = ["Report", "write_report"]
