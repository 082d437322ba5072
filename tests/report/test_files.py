"""What is written: the same numbers in every format, all text inert, the same bytes for the same records."""

import csv
import hashlib
import io
import json
import re
from base64 import b64encode
from dataclasses import dataclass
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from fedspan.benchmark.component import Component
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.report import render_page
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.render_page import runs_pages
from fedspan.benchmark.report.report import write_report
from fedspan.benchmark.spec.board import Figure, Table
from tests.report.made import board, cells_of, markdown, record, renamed, results_of, seeded, stopped, with_digest

FIGURES = (Figure(kind="accuracy"), Figure(kind="spectrum"))
NASTY = '<img src=x onerror="document.title=1">&\'{{ 7 * 7 }}|`_$%'


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    example = board(figures=FIGURES)
    cells = cells_of(example)
    records = seeded(cells)
    records[4] = stopped(cells[4], "diverged", "round 2: the loss is not finite")
    records[7] = stopped(cells[7], "failed", "no space left")
    del records[0]
    report = write_report(example, cells, results_of(folder / "results", records), folder / "pages")
    return folder / "pages" / "example", report


class Page(HTMLParser):
    """The elements of a page with their attributes, and what each table cell holds."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scores, self._score = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.elements.append((tag, attrs))
        if tag == "td" and "score" in attrs.get("class", "") and "data-v" in attrs:
            self.scores.append(attrs["data-v"])

    def values(self, attribute):
        return [attrs[attribute] for _, attrs in self.elements if attribute in attrs]


def read(folder, name):
    return (folder / name).read_text(encoding="utf-8")


def test_every_part_of_the_board_is_written(made):
    folder, report = made
    expected = {"index.html", "results.json", "table-1.md", "table-1.csv", "table-1.tex"}
    expected |= {"standing-1.csv", "target-1.csv"}
    pictures = ("figure-1", "figure-2")  # no ranks-1: one pair of runs lacks in each of five rows; all costs are equal
    expected |= {f"{name}.{suffix}" for name in pictures for suffix in ("svg", "pdf", "png")}
    assert {path.name for path in folder.iterdir()} == expected
    assert {path.name for path in report.written} == expected
    assert report.problems == ["figure 1, figure 2: 2 of 36 runs diverged or failed and are excluded from means"]


def test_all_formats_hold_the_same_numbers(made):
    folder, report = made
    lines = list(csv.DictReader(io.StringIO(read(folder, "table-1.csv"))))
    assert len(lines) == 12
    shown = [f"{float(line['mean']):.2f} ± {float(line['std']):.2f}" for line in lines]
    for text in (markdown(report), read(folder, "table-1.tex").replace(r"$\pm$", "±")):
        for cell in shown:
            assert cell in text
    on_page = [float(score) for score in Page(read(folder, "index.html")).scores]
    assert sorted(on_page) == sorted(float(line["mean"]) for line in lines), "in the order of places"


def test_fewer_seeds_and_their_reasons_show_in_every_format(made):
    folder, report = made
    for text in (markdown(report), read(folder, "table-1.tex"), read(folder, "index.html")):
        assert text.count("n=2/3") >= 3
        assert "diverged: round 2: the loss is not finite" in text
        assert "failed: no space left" in text
    lines = list(csv.DictReader(io.StringIO(read(folder, "table-1.csv"))))
    assert sorted(line["n"] for line in lines).count("2") == 3
    assert lines[0]["statuses"] == "missing done done"


def test_the_best_of_each_column_is_bold_in_every_format(made):
    folder, report = made
    best = [line for line in csv.DictReader(io.StringIO(read(folder, "table-1.csv"))) if line["best"] == "True"]
    assert len(best) == 2
    assert markdown(report).count("**") == 4
    assert read(folder, "table-1.tex").count(r"\textbf{") == 2
    assert read(folder, "index.html").count("<strong>") == 2
    for line in best:
        assert f"**{float(line['mean']):.2f} ±" in markdown(report)


def test_missing_cells_are_shown_as_missing(tmp_path):
    example = board({"partition": "iid", "algorithm": ["fedavg", "fedprox"]})
    cells = cells_of(example)
    report = write_report(example, cells, results_of(tmp_path, [record(cells[0])]), tmp_path)
    row = next(line for line in markdown(report).splitlines() if line.startswith("| fedprox"))
    assert row.split("|")[2].strip() == "—"
    page = read(tmp_path / "example", "index.html")
    assert "1 missing" in page
    assert "Cells without a number" in page


def shown_rows(page):
    """Return the names of the rows that the first table of a page shows, and the text of what only names rows."""
    table = page[page.index('<table aria-labelledby="table-1-title"') :].partition("</table>")[0]
    _, _, waiting = page.partition('<details class="without">')
    return re.findall(r'<th scope="row" class="label">(?:<a [^>]*>)?([^<]*)<', table), waiting.partition("</details>")[
        0
    ]


def test_a_page_only_names_the_rows_without_results_and_files_have_them_all(tmp_path):
    example = board({"partition": "iid", "algorithm": ["fedavg", "fedprox", "fednova", "moon"], "seed": [0, 1]})
    cells = cells_of(example)
    results = results_of(tmp_path, [record(cells[0]), stopped(cells[2], "failed", "no space left")])
    write_report(example, cells, results, tmp_path)
    rows, waiting = shown_rows(read(tmp_path / "example", "index.html"))
    assert rows == ["FedAvg", "FedProx"], "a failed run is a result to be told"
    assert "2 rows without results" in waiting
    assert re.findall("<li>([^<]*)", waiting) == ["FedNova", "MOON"]
    assert len(list(csv.DictReader(io.StringIO(read(tmp_path / "example", "table-1.csv"))))) == 4


def test_before_anything_has_run_a_page_shows_every_row(tmp_path):
    example = board({"partition": "iid", "algorithm": ["fedavg", "fedprox"]})
    write_report(example, cells_of(example), results_of(tmp_path, []), tmp_path)
    assert shown_rows(read(tmp_path / "example", "index.html")) == (["FedAvg", "FedProx"], "")


def test_a_page_folds_columns_and_tables_without_results_away_and_names_what_was_not_run(tmp_path):
    tasks = [{"dataset": "digits"}, {"dataset": "cifar10"}]
    tables = (Table(columns=["dataset"]), Table(columns=["dataset"], where={"dataset": "cifar10"}))
    example = board({"partition": "iid", "task": tasks, "seed": [0]}, tables=tables)
    cells = cells_of(example)

    def folded(records):
        write_report(example, cells, results_of(tmp_path / "results", records), tmp_path)
        page = (tmp_path / "example" / "index.html").read_text()
        said = ("1 column without results: CIFAR-10", "No results yet", "fedspan data fetch cifar10")
        return tuple(text in page for text in said)

    assert folded([]) == (False, False, False)  # before anything has run all is shown
    assert folded([record(cells[0])]) == (True, True, True)
    assert folded(list(map(record, cells))) == (False, False, False)


def test_images_that_only_a_digest_names_are_not_said_to_be_fetched(tmp_path):
    tasks = [{"dataset": "digits"}, {"dataset": "cifar10", "dataset.content": "c" * 64}]
    example = board({"partition": "iid", "task": tasks, "seed": [0]}, tables=(Table(columns=["dataset"]),))
    cells = cells_of(example)
    write_report(example, cells, results_of(tmp_path / "results", [record(cells[0])]), tmp_path)
    page = (tmp_path / "example" / "index.html").read_text()
    assert "Nothing has been run on CIFAR-10 yet." in page
    assert "data fetch" not in page


def test_methods_stand_best_first_on_the_page_unless_a_paper_gives_their_order(tmp_path):
    grid = {"partition": "iid", "algorithm": ["fedavg", "fedprox", "fednova"], "seed": [0, 1]}
    for printed, rows in (
        ((), ["FedNova", "FedAvg", "FedProx"]),
        (("paper/table_1",), ["FedAvg", "FedProx", "FedNova"]),
    ):
        example = board(grid, printed=printed)
        cells = cells_of(example)
        records = [
            record(cell, {"fedavg": 50.0, "fedprox": 40.0, "fednova": 60.0}[cell.cell.algorithm.name]) for cell in cells
        ]
        write_report(example, cells, results_of(tmp_path / "results", records), tmp_path)
        assert shown_rows(read(tmp_path / "example", "index.html"))[0] == rows
        lines = csv.DictReader(io.StringIO(read(tmp_path / "example", "table-1.csv")))
        assert [line["method"] for line in lines] == ["fedavg", "fedprox", "fednova"], "as declared"


def test_the_page_says_where_its_numbers_come_from(made):
    page = read(made[0], "index.html")
    for text in ("0123abcd", "torch 2.15.0", "cpu · a processor", "d" * 64, "33 of 36"):
        assert text in page


def test_each_number_leads_to_its_runs_and_they_to_their_records(made):
    folder, _ = made
    links = re.findall(r'<a class="entry" href="([^"]*)"', read(folder, "index.html"))
    lines = list(csv.DictReader(io.StringIO(read(folder, "table-1.csv"))))
    assert len(links) == len(lines) == 12
    pages = {link: read(folder, link) for link in links}
    for line in lines:
        [runs] = [page for page in pages.values() if f"../records/{line['keys'].split()[-1]}.json" in page]
        for seed, key, status in zip(
            line["seeds"].split(), line["keys"].split(), line["statuses"].split(), strict=True
        ):
            assert f"seed={seed}" in runs
            assert status in runs
            assert (f"../records/{key}.json" in runs) == (status != "missing")
            if status != "missing":
                assert json.loads(read(folder.parent / "records", f"{key}.json"))["key"] == key
        for text in ("d" * 64, "e" * 64, " 0a1b2c3d", "cpu · a processor", "0123abcd", "torch 2.15.0"):
            assert text in runs


def test_a_record_goes_with_what_lies_beside_it(tmp_path):
    example = board({"partition": "iid"})
    [planned, *_] = cells_of(example)
    large = record(planned, spectra={"global": {"singular_values": [1.0 / n for n in range(1, 9000)]}})
    write_report(example, [planned], results_of(tmp_path / "results", [large]), tmp_path)
    copied = {path.name for path in (tmp_path / "records").iterdir()}
    assert copied == {f"{planned.cell.key}.json", f"{planned.cell.key}.spectra.json"}


def test_the_page_of_a_point_shows_the_seeds_of_all_boards_whichever_is_made_last(tmp_path):
    first, second = (board({"algorithm": "fedavg", "seed": seeds}) for seeds in ([0, 1], [1, 7]))
    cells = [cells_of(one) for one in (first, second)]
    results = results_of(tmp_path / "results", [record(planned) for one in cells for planned in one])
    for made, planned in ((first, cells[0]), (second, cells[1]), (first, cells[0])):
        write_report(made, planned, results, tmp_path)
        [page] = (tmp_path / "runs").glob("*.html")
        seeds = re.findall(r'<th scope="row">(\d+)</th><td>done', page.read_text())
        assert seeds == ["0", "1", "7"]
    assert len(list((tmp_path / "records").glob("*.json"))) == 3


def test_the_runs_of_many_seeds_take_several_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(render_page, "MOST_RUNS", 2)
    cells = cells_of(board({"algorithm": "fedavg", "seed": [0, 1, 2, 3, 4]}))
    runs = list(collect(cells, results_of(tmp_path, seeded(cells))).itertuples(index=False))
    pages = dict(runs_pages("point", cells[0], runs, ranked=True))
    names, keys = ["point.html", "point-2.html", "point-3.html"], [planned.cell.key for planned in cells]
    assert list(pages) == names
    for i, (name, page) in enumerate(pages.items()):
        links = Page(page.decode()).values("href")
        assert [link for link in links if link in names] == [other for other in names if other != name]
        records = [link for link in links if link.startswith("../records/")]
        assert records == [f"../records/{key}.json" for key in keys[2 * i : 2 * i + 2]]


def test_the_page_of_runs_names_its_task_in_words_and_shows_the_scores_that_some_run_has(tmp_path):
    [planned] = cells_of(board({"algorithm": "fedavg", "partition": "dirichlet", "partition.alpha": 0.05}))
    scores = {"loss": 0.5, "accuracy": 71.0, "client_accuracy": 70.0, "domain_accuracy": None}
    runs = collect([planned], results_of(tmp_path, [record(planned, scores={"trained": scores})]))
    [(_, page)] = runs_pages("point", planned, list(runs.itertuples(index=False)), ranked=True)
    lead, heads = (
        re.findall(shown, page.decode()) for shown in ('<p class="lead">(.*)</p>', r'"num">([A-Za-z ]+) \(trained\)')
    )
    words = "Digits, 10 clients, alpha 0.05, Small CNN, 20 rounds of 5 epochs"
    assert lead == [f"{words}; protocol default, tested on each client&#39;s own images"]
    assert heads == ["Mean accuracy over clients", "Mean accuracy over clients", "Accuracy", "Loss"], "compared; all"


def test_the_score_by_which_methods_are_compared_is_the_first_of_a_run(tmp_path):
    [planned] = cells_of(board({"algorithm": "fedavg"}))
    scores = {"accuracy": 71.0, "client_accuracy": 70.0, "loss": 0.5}
    whole = record(planned, scores={"trained": scores, "personalised": {"loss": 0.4} | scores})
    for stages, first in (
        (whole, "Mean accuracy over clients (personalised), %"),
        (record(planned), "Accuracy (trained), %"),
    ):
        runs = collect([planned], results_of(tmp_path / first, [stages]))
        [(_, page)] = runs_pages("point", planned, list(runs.itertuples(index=False)), ranked=True)
        heads = re.findall(r'"num">([^<]+)<', page.decode())
        assert heads[0] == first


def test_the_page_needs_nothing_but_itself(made):
    for path in (made[0] / "index.html", next((made[0].parent / "runs").iterdir())):
        text = path.read_text(encoding="utf-8")
        page = Page(text)
        for link in page.values("href"):
            target = link.split("#")[0]
            of_the_site = ("../index.html", "../compare.html")
            assert (
                link == "data:,"
                or not target
                or target in of_the_site
                or _made_with_the_site(target)
                or (path.parent / target).exists()
            )
        assert_inert(page, text)


def _made_with_the_site(target):
    return target.startswith(("../methods/", "../datasets/"))


def assert_inert(page, text):
    assert page.values("src") == []
    assert page.values("style") == [], "the policy forbids style attributes"
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert not re.search(r"https?://|@import|url\((?!#)", text)


def test_the_policy_allows_exactly_the_own_styles_and_script(made):
    for path in (made[0] / "index.html", next((made[0].parent / "runs").iterdir())):
        text = path.read_text(encoding="utf-8")
        (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        for tag in ("style", "script"):
            codes = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
            hashes = [f"'sha256-{b64encode(hashlib.sha256(code.encode()).digest()).decode()}'" for code in codes]
            assert f"{tag}-src {' '.join(hashes) or repr('none')};" in policy


def test_ids_are_unique_and_every_reference_has_one(made):
    text = read(made[0], "index.html")
    page = Page(text)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    targets = [value[1:] for value in page.values("href") if value.startswith("#")]
    targets += re.findall(r"url\(#([^)]*)\)", text)
    for name in ("aria-labelledby", "aria-describedby"):
        targets += [target for value in page.values(name) for target in value.split()]
    assert len(targets) > 20
    assert set(targets) <= set(ids)


def test_figures_in_the_page_are_described_in_words(made):
    text = read(made[0], "index.html")
    assert text.count('role="img" class="plot"') == 4
    assert "FedAvg: from 10.0 to " in text
    assert "at round 2" in text


def test_text_is_inert_wherever_it_comes_from(tmp_path):
    @dataclass(frozen=True)
    class Nasty(Component):
        """Nobody 2000."""

        note: str = "plain"

    Nasty.kind, Nasty.name = "algorithm", NASTY
    plain = board(
        {"partition": "iid", "seed": [0, 1]},
        title=NASTY,
        description=NASTY,
        tables=[Table(title=NASTY)],
        figures=[Figure(title=NASTY)],
    )
    cells = [renamed(planned, Nasty(note=NASTY)) for planned in cells_of(plain)]
    records = [record(cells[0]), stopped(cells[1], "diverged", NASTY)]
    records[0]["provenance"] |= {"command": NASTY, "git_commit": NASTY, "versions": {NASTY: NASTY}, "processor": NASTY}
    records[0]["provenance"]["gpu"] = NASTY
    report = write_report(plain, cells, results_of(tmp_path, records), tmp_path)
    text = read(tmp_path / "example", "index.html")
    page = Page(text)
    assert not any(tag == "img" for tag, _ in page.elements)
    assert page.values("onerror") == []
    assert "{{ 7 * 7 }}" in text
    assert "<img" not in markdown(report).replace(r"\<img", "")
    for suffix in ("svg", "pdf", "png"):
        assert (tmp_path / "example" / f"figure-1.{suffix}").stat().st_size > 1000
    rows = [line for line in markdown(report).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {7}


def test_latex_escapes_what_latex_reads(tmp_path):
    example = board({"partition": "iid"}, tables=[Table(title="50% of a_b & {c} ~ ^ \\ # $x$ <y>")])
    cells = cells_of(example)
    write_report(example, cells, results_of(tmp_path, [record(cells[0])]), tmp_path)
    text = read(tmp_path / "example", "table-1.tex")
    caption = next(line for line in text.splitlines() if "caption" in line)
    assert (
        r"50\% of a\_b \& \{c\} \textasciitilde{} \textasciicircum{} \textbackslash{} \# \$x\$ \textless{}y" in caption
    )
    assert text.count("{") == text.count("}")
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert text.count(rule) == 1
    columns = len(re.search(r"begin\{tabular\}\{([lr]+)\}", text)[1])
    for line in text.splitlines():
        if line.endswith(r"\\"):
            assert len(re.findall(r"(?<!\\)&", line)) == columns - 1


def test_the_same_records_give_the_same_bytes(made, tmp_path):
    folder, _ = made
    example = board(figures=FIGURES)
    again = write_report(example, cells_of(example), results_of(folder.parent.parent / "results", []), tmp_path)
    assert len(again.written) == 13
    for path in again.written:
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name


def test_a_table_or_figure_that_cannot_be_made_does_not_stop_the_rest(tmp_path):
    tables = [Table(rows=("methd",)), Table(metric="accuracy"), Table()]
    example = board({"partition": "iid"}, tables=tables, figures=[Figure(columns=("nothing",)), Figure()])
    cells = cells_of(example)
    report = write_report(example, cells, results_of(tmp_path, [record(cells[0])]), tmp_path)
    places = [problem.split(" is left out:")[0] for problem in report.problems]
    assert places == ["table 1: it", "table 2: it", "figure 1: it"]
    assert "did you mean 'method'?" in report.problems[0]
    names = {path.name for path in report.written}
    assert {"table-3.md", "figure-2.svg", "index.html"} <= names
    assert "methd" in read(tmp_path / "example", "index.html")


def test_a_problem_of_several_tables_is_said_once(tmp_path):
    example = board({"partition": "iid", "seed": [0, 1, 2]}, tables=[Table(), Table()], figures=[Figure()])
    cells = cells_of(example)
    records = seeded(cells)
    records[2] = with_digest(records[2], "e" * 64)
    (problem,) = write_report(example, cells, results_of(tmp_path, records), tmp_path).problems
    assert problem.startswith("table 1, table 2, figure 1: 1 record is left out")


def test_what_an_earlier_report_wrote_does_not_stay(tmp_path):
    folder = tmp_path / "example"
    folder.mkdir()
    for name in ("table-7.md", "figure-2.png", "ranks-3.svg", "ranks-1-tuned.pdf", "target-2.csv", "notes.md"):
        (folder / name).write_text("old")
    example = board({"partition": "iid"})
    write_report(example, cells_of(example), results_of(tmp_path, []), tmp_path)
    assert {path.name for path in folder.iterdir()} == {
        "index.html",
        "results.json",
        "table-1.md",
        "table-1.csv",
        "table-1.tex",
        "notes.md",
    }


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "example").write_text("a file where the folder should be")
    example = board({"partition": "iid"})
    with pytest.raises(UserError, match="cannot write"):
        write_report(example, cells_of(example), results_of(tmp_path, []), tmp_path)


def test_figure_files_are_whole(made):
    folder, _ = made
    for number in (1, 2):
        ElementTree.fromstring(read(folder, f"figure-{number}.svg"))
        assert (folder / f"figure-{number}.pdf").read_bytes().startswith(b"%PDF")
        assert (folder / f"figure-{number}.png").read_bytes().startswith(b"\x89PNG")
