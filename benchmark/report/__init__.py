"""Reports from records: Markdown, CSV, LaTeX, figures and one self-contained page per board."""
