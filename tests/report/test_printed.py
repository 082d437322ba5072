"""Printed numbers: read as they stand, matched by settings, compared only at the papers' scale."""

import math
from functools import cache

import pytest

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.report.analysis import analyse
from fedspan.benchmark.report.axes import Axes, flat
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.headline import of_table
from fedspan.benchmark.report.printed import printed_in
from fedspan.benchmark.report.render_text import entry_text, to_csv, to_latex, to_markdown
from fedspan.benchmark.report.tabulation import tabulate
from fedspan.benchmark.spec.board import Scale, Table, load_board
from fedspan.benchmark.spec.plan import plan
from fedspan.benchmark.spec.presets import yaml_files
from tests.report.made import board, cells_of, record, results_of

PAPERS = {
    "feddecorr_iclr2023": [str(table) for table in range(1, 11)],
    "feddecorr_tpami": [str(table) for table in range(1, 9)],
    "spherefed_eccv2022": [*map(str, range(1, 11)), "text_C.1", "text_C.2"],
}
UNMEASURED = {"test_accuracy_spread_points_upper_bound"}  # printed, but no score of a run
TABLES = [(name, table) for name in sorted(yaml_files("boards")) for table in load_board(name).tables if table.printed]


@cache
def points(name):
    """Return the flat settings of the cells of a board, for one seed."""
    return [flat(planned.cell.what) for planned in plan(load_board(name).expand({"seed": [0]}))]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_printed_score_has_its_cell_in_the_grid_of_a_board_that_shows_it(paper):
    boards = {name for name, table in TABLES if any(source.startswith(f"{paper}/") for source in table.printed)}
    cells = {name: points(name) for name in boards}
    for table in PAPERS[paper]:
        source = f"{paper}/{table}"
        showing = [(name, shown) for name, shown in TABLES if source in shown.printed]
        for number in printed_in([source]):
            if number.metric in UNMEASURED:
                continue
            found = [
                sum(number.belongs_to(what) for what in cells[name])
                for name, shown in showing
                if shown.metric == number.metric
                or (shown.metric.endswith(".*") and number.metric.startswith(shown.metric[:-1]))
            ]
            assert 1 in found, f"{source}: {number.row}, {number.column}, {number.metric}"
            assert max(found) == 1, f"{source}: {number.row}, {number.column} is the number of several cells"


@pytest.mark.parametrize(("name", "table"), TABLES, ids=[f"{name}: {table.title}" for name, table in TABLES])
def test_every_source_of_a_table_has_numbers_for_it(name, table):
    metric = table.metric.removesuffix("*")
    metrics = (metric, metric.replace("computed.", "cost."))  # papers tell measured from computed
    mine = points(name)
    for source in table.printed:
        numbers = (*printed_in([source]), *(printed_in([source], differences=True) if table.minus else ()))
        named = [n for n in numbers if n.metric.startswith(metrics) and any(map(n.belongs_to, mine))]
        assert named, f"{source} has no number of '{table.title}'"


NUMBERS = """paper,table,row,column,metric,value,std,delta,minus,seeds,settings,note
mine,1,FedAvg,iid,trained.accuracy,50.0,3.0,,,3,partition=iid algorithm=fedavg addons=[],
mine,1,FedProx,iid,trained.accuracy,,,,,,partition=iid algorithm=fedprox addons=[],printed as Diverging
mine,2,FedAvg,iid,trained.accuracy,49.0,,,,,partition=iid algorithm=fedavg addons=[],
"""
METHODS = {"partition": "iid", "algorithm": ["fedavg", "fedprox"], "seed": [0, 1, 2]}
PRINTED = ("mine/1", "mine/2")


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Tabulate records of two methods with the accuracies 48 to 50 against three printed numbers."""
    (tmp_path / "results" / "paper").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    def made(numbers=NUMBERS, sources=PRINTED, accuracy=49.0, cells=None, metric="trained.accuracy", ran=None, **of):
        (tmp_path / "results" / "paper" / "mine.csv").write_text(numbers)
        cells = cells or cells_of(board(METHODS, printed=PRINTED))
        records = [record(planned, accuracy + planned.cell.seed - 1, **of) for planned in cells[:ran]]
        frame = collect(cells, results_of(tmp_path, records))
        return tabulate(frame, Axes(cells), Table(metric=metric, printed=sources), 1)

    return made


@pytest.mark.parametrize(("accuracy", "within"), [(49.0, True), (50.0 - math.sqrt(10) - 0.01, False)])
def test_the_difference_lies_within_the_root_of_the_sum_of_both_squared_deviations(made, accuracy, within):
    entry = made(accuracy=accuracy).rows[0].entries[0]
    assert entry.std == 1.0
    assert entry.printed.printed.value == 50.0
    assert entry.printed.difference == pytest.approx(accuracy - 50)
    assert entry.printed.within is within


@pytest.mark.parametrize(
    ("accuracy", "said"), [(49.0, "2 of 2 means"), (53.5, "1 of 2 means; 1 above"), (30.0, "0 of 2 means; 2 below")]
)
def test_the_headline_counts_the_means_that_agree_with_print(made, accuracy, said):
    numbers = NUMBERS.replace("trained.accuracy,,,", "trained.accuracy,51.0,3.0,")
    count, _, more = said.partition(";")
    agree = f"{count} agree with print within the combined spread{more and ';' + more}. "
    assert of_table(analyse(made(numbers, accuracy=accuracy))).startswith(agree)


@pytest.mark.parametrize("numbers", [NUMBERS.replace("50.0,3.0", ","), NUMBERS.replace("=iid", "=single_class")])
def test_without_a_comparable_number_the_headline_does_not_speak_of_print(made, numbers):
    assert "print" not in of_table(analyse(made(numbers, sources=["mine/1"])))


def test_every_format_shows_what_is_printed(made):
    table = made()
    first, second = (row.entries[0] for row in table.rows)
    assert entry_text(table, first) == "49.00 ± 1.00, printed 50.00 ± 3.00, −1.00 within"
    assert entry_text(table, second) == "49.00 ± 1.00, printed without a number"
    assert [note for _, note in table.notes] == ["mine, Table 2 prints 49", "mine, Table 1: printed as Diverging"]
    assert "printed 50.00 ± 3.00" in to_markdown(table)
    assert r"printed 50.00 $\pm$ 3.00, $-$1.00 within" in to_latex(table, "x")
    assert '50.0,3.0,"mine, Table 1",-1.0,True' in to_csv(table)
    assert "Printed: mine, Table 1; mine, Table 2" in table.caption


def test_at_another_scale_the_number_is_shown_and_not_compared(made):
    scaled = board(METHODS, printed=PRINTED, scales={"small": Scale({"partition": "dirichlet"})})
    cells = plan(scaled.expand({"scale": ["small"]}))
    table = made(cells=cells)
    found = table.rows[0].entries[0].printed
    assert (found.printed.value, found.difference, found.within) == (50.0, None, None)
    assert "Scale: small." in table.caption
    assert "not comparable with this scale" in table.caption


def test_changed_settings_have_no_printed_number(made):
    table = made(cells=cells_of(board(METHODS | {"partition": "dirichlet"})))
    assert {entry.printed for row in table.rows for entry in row.entries} == {None}
    assert "No number in mine, Table 1; mine, Table 2 matches these cells." in table.remarks


def test_a_table_with_printed_numbers_does_not_say_that_it_has_none(made):
    assert not [remark for remark in made().remarks if remark.startswith("No number in")]


@pytest.mark.parametrize(("numbers", "waiting"), [(NUMBERS, []), (NUMBERS.replace("=fedprox", "=moon"), ["fedprox"])])
def test_a_page_shows_what_is_printed_of_rows_that_have_not_run(made, numbers, waiting):
    table = made(numbers, ran=3)
    assert [row.labels[0] for row in table.waiting] == waiting
    assert [row.labels[0] for row in table.shown] == [name for name in ("fedavg", "fedprox") if name not in waiting]


PER_DOMAIN = NUMBERS.replace("trained.accuracy", "trained.domain_accuracy.amazon", 1)


@pytest.mark.parametrize(
    ("domain", "remarks"),
    [("amazon", []), ("plain", ["No number in mine, Table 1 matches these cells; its domains are amazon."])],
)
def test_a_number_per_domain_stands_beside_its_own_domain_only(made, domain, remarks):
    scores = {"trained": {f"domain_accuracy.{domain}": 49.0}}
    table = made(PER_DOMAIN, ["mine/1"], metric="trained.domain_accuracy.*", scores=scores)
    assert table.columns == (("iid", domain),)
    assert [row.entries[0].printed is not None for row in table.rows] == [domain == "amazon", False]
    assert [remark for remark in table.remarks if remark.startswith("No number in")] == remarks


def test_a_mean_without_any_spread_is_compared_without_a_verdict(made):
    bare = NUMBERS.replace("50.0,3.0", "50.0,")
    [entry] = made(bare, cells=cells_of(board({"partition": "iid", "seed": [0]}, printed=PRINTED))).rows[0].entries
    assert (entry.printed.difference, entry.printed.within) == (-2.0, None)


@pytest.mark.parametrize(
    ("numbers", "sources", "message"),
    [
        (NUMBERS, ("mne/1",), r"no numbers of 'mne' in results/paper; did you mean 'mine'\?"),
        (NUMBERS, ("mine/3",), r"mine\.csv has no table '3'"),
        (NUMBERS.replace("50.0", "high"), ("mine/1",), r"mine\.csv line 2: could not convert string to float: 'high'"),
        (NUMBERS.replace("settings", "cell"), ("mine/1",), r"mine\.csv lacks the column settings"),
    ],
)
def test_what_is_wrong_with_printed_numbers_is_one_line(made, numbers, sources, message):
    with pytest.raises(UserError, match=message) as error:
        made(numbers, sources)
    assert "\n" not in str(error.value)
