"""The table of docs/performance.md, which the session that measures times writes."""

import shutil

from tests.perf import table

ROW = {"ours": 1.0, "reference": 2.0, "ratio": 0.5, "unit": "s", "against": "plain loop", "target": "1", "torch": "2"}


def test_a_measurement_replaces_the_row_of_the_one_before_and_changes_nothing_else(tmp_path, monkeypatch):
    page = tmp_path / "performance.md"
    shutil.copy(table.PAGE, page)
    before = page.read_text().splitlines()
    monkeypatch.setattr(table, "PAGE", page)
    [said] = table.write({"test_w2[loop]": ROW})
    changed = [(old, new) for old, new in zip(before, page.read_text().splitlines(), strict=True) if old != new]
    [(old, new)] = changed
    assert old.startswith("| W2, loop | ")
    assert new.startswith("| W2, loop | 1 s | 2 s, plain loop | 0.500 | 1 | ")
    assert said == f"{new} before: {old.split(' | ')[3]} |"


def test_what_was_never_measured_gets_a_row_at_the_end_of_the_table(tmp_path, monkeypatch):
    page = tmp_path / "performance.md"
    page.write_text(f"# Speed\n\n{table.BEGIN}\n{table.END}\n")
    monkeypatch.setattr(table, "PAGE", page)
    table.write({"test_a_round[moon-without-head]": {**ROW, "unit": ""}})
    [row] = [line for line in page.read_text().splitlines() if line.startswith("| a round")]
    assert row.startswith("| a round, moon without head | 1 | 2, plain loop | 0.500 | 1 | ")
