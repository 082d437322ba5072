"""Tables of differences: each number less that of a reference cell, of the same seed, beside the printed difference."""

import pytest

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.report.analysis import analyse
from fedspan.benchmark.report.axes import Axes
from fedspan.benchmark.report.differences import reference_in_words
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.printed import printed_in
from fedspan.benchmark.report.render_text import entry_text, to_csv, to_markdown
from fedspan.benchmark.report.summary import summarise
from fedspan.benchmark.report.tabulation import tabulate
from fedspan.benchmark.report.tuning import Reported
from fedspan.benchmark.spec.board import Scale, Table
from fedspan.benchmark.spec.plan import plan
from tests.report.made import board, cells_of, record, results_of, stopped

SKEWS = [{"partition": "iid"}, {"partition": "dirichlet", "partition.alpha": 0.1}]
GRID = {"partition": SKEWS, "algorithm": ["fedavg", "fedprox"], "addons": [[], ["feddecorr"]], "seed": [0, 1, 2]}
GAIN = Table(rows=("algorithm", "addons"), minus={"addons": "none"})
HEAD = "paper,table,row,column,metric,value,std,delta,minus,seeds,settings,note\n"


def accuracy(planned):
    """Return an accuracy that every setting changes, and every seed in its own way."""
    cell = planned.cell
    skew, mine, more = cell.partition.name == "dirichlet", cell.algorithm.name == "fedprox", bool(cell.addons)
    return 80.0 + cell.seed**2 - 10 * skew + 2 * mine + more * (3 + cell.seed - skew)


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Tabulate records of a grid; `numbers` are the lines of a file of printed ones."""
    (tmp_path / "results" / "paper").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    def made(table=GAIN, records=None, cells=None, numbers=""):
        (tmp_path / "results" / "paper" / "mine.csv").write_text(HEAD + numbers)
        cells = cells or cells_of(board(GRID, printed=["mine/1"]))
        frame = collect(cells, results_of(tmp_path, records or [record(p, accuracy(p)) for p in cells]))
        return tabulate(frame, Axes(cells), table, 1)

    return made


def numbers(table):
    return {row.labels: [entry and entry.mean for entry in row.entries] for row in table.rows}


def test_a_number_is_the_mean_of_differences_to_the_reference_of_the_same_seed(make):
    table = make()
    assert numbers(table) == {(base, "feddecorr"): [4.0, 3.0] for base in ("fedavg", "fedprox")}
    assert {entry.std for row in table.rows for entry in row.entries} == {1.0}  # the seeds' own 0, 1, 4 cancel
    assert table.columns == (("iid",), ("dirichlet(alpha=0.1)",))


def test_the_reference_may_be_a_column_or_part_of_a_method(make):
    gap = make(Table(minus={"partition": "dirichlet(alpha=0.1)"}))
    assert gap.columns == (("iid",),)
    assert [row.entries[0].mean for row in gap.rows] == [10.0, 11.0, 10.0, 11.0]
    assert numbers(make(Table(minus={"addons": "none"}))) == {
        ("fedavg + feddecorr",): [4.0, 3.0],
        ("fedprox + feddecorr",): [4.0, 3.0],
    }


def test_the_reference_may_be_a_whole_method(make):
    table = make(Table(minus={"method": "fedprox"}))
    assert numbers(table) == {
        ("fedavg",): [-2.0, -2.0],
        ("fedavg + feddecorr",): [2.0, 1.0],
        ("fedprox + feddecorr",): [4.0, 3.0],
    }
    assert table.metric.minus == "FedProx"


@pytest.mark.parametrize(
    ("minus", "words"),
    [
        ({"addons": "none"}, "no add-ons"),
        ({"method": "fedavg + feddecorr"}, "FedAvg + FedDecorr (released form)"),
        ({"algorithm": ["fedavg", "fedprox"], "clients": 10}, "FedAvg or FedProx, 10 clients"),
    ],
)
def test_readers_see_the_reference_in_words(minus, words):
    assert reference_in_words(Table(minus=minus)) == words


def test_a_relative_difference_is_in_percent_of_the_reference(make):
    cells = cells_of(board(GRID | {"seed": [0]}))
    table = make(Table(rows=("addons",), where={"algorithm": "fedavg"}, minus={"addons": "none"}, relative=True))
    assert table.rows[0].entries[0].mean == pytest.approx(sum(100 * d / r for d, r in ((3, 80), (4, 81), (5, 84))) / 3)
    one = make(Table(minus={"addons": "none"}, relative=True), cells=cells).rows[0].entries[0]
    assert one.mean == 100 * 3 / 80
    nothing = [record(p, accuracy(p) if p.cell.addons else 0.0) for p in cells]
    assert make(Table(minus={"addons": "none"}, relative=True), nothing, cells).rows[0].entries[0].state == "n/a"


@pytest.mark.parametrize("status", ["failed", "diverged", "skipped"])
def test_a_seed_whose_reference_has_no_number_says_so(make, status):
    cells = cells_of(board(GRID))
    lost = next(p for p in cells if p.cell.seed == 1 and not p.cell.addons)
    records = [stopped(p, status, "why") if p is lost else record(p, accuracy(p)) for p in cells]
    table = make(records=records, cells=cells)
    entry = table.rows[0].entries[0]
    assert (entry.n, entry.asked, entry.mean) == (2, 3, 4.0)
    assert (f"{entry.marks[0]}", f"{status}: the reference: why") in table.notes
    assert {e.n for row in table.rows for e in row.entries if e is not entry} == {3}


def test_a_reference_that_was_never_run_leaves_the_cell_missing(make):
    cells = cells_of(board(GRID))
    table = make(records=[record(p, accuracy(p)) for p in cells if p.cell.addons], cells=cells)
    assert {entry.state for row in table.rows for entry in row.entries} == {"missing"}


def test_a_cell_whose_plugin_is_tuned_is_measured_against_the_plugin_of_that_name(make):
    tuned = {"partition": "iid", "algorithm": "fedprox", "addons": [["feddecorr"]], "algorithm.mu": 0.5}
    plain = {"partition": "iid", "algorithm": "fedprox", "addons": [[]], "algorithm.mu": 0.1}
    cells = cells_of(board(tuned | {"seed": [0]}, plain | {"seed": [0]}))
    assert numbers(make(cells=cells)) == {("fedprox(mu=0.5)", "feddecorr"): [3.0]}
    both = cells_of(board(tuned | {"seed": [0]}, plain | {"seed": [0]}, plain | {"algorithm.mu": 0.2, "seed": [0]}))
    with pytest.raises(UserError, match="no cell matches the reference no add-ons"):
        make(cells=both)


def test_among_such_references_the_one_on_the_same_task_is_taken(make):
    task = {"partition": "dirichlet", "partition.alpha": [0.1, 0.5], "algorithm": "fedprox", "seed": [0]}
    tuned = {"addons": [["feddecorr"]], "algorithm.mu": 0.5}
    plain = {"addons": [[]], "algorithm.mu": 0.1}
    cells = cells_of(board(task | tuned, task | plain))
    assert numbers(make(cells=cells)) == {("fedprox(mu=0.5)", "feddecorr"): [2.0, 2.0]}


def test_a_cell_without_a_reference_on_its_own_task_is_left_out(make):
    task = {"partition": "dirichlet", "algorithm": "fedavg", "seed": [0]}
    plain = {"partition.alpha": 0.5, "addons": [[]]}
    cells = cells_of(board(task | plain, task | {"partition.alpha": [0.5, 0.05], "addons": [["feddecorr"]]}))
    table = make(cells=cells)
    assert table.columns == (("dirichlet(alpha=0.5)",),)
    assert numbers(table) == {("fedavg", "feddecorr"): [2.0]}
    own = cells_of(board(task | plain, task | {"partition.alpha": 0.05, "addons": [["feddecorr"]]}))
    with pytest.raises(UserError, match="no cell matches the reference no add-ons"):
        make(cells=own)


def test_differences_are_signed_and_neither_ranked_nor_costed_nor_told_to_other_pages(make, tmp_path):
    cells = cells_of(board(GRID))
    table = make(Table(minus={"partition": "iid"}))
    assert entry_text(table, table.rows[0].entries[0]) == "−10.00 ± 0.00"
    assert "difference to IID, percentage points" in to_markdown(table)
    assert "accuracy" in to_csv(table)
    assert ",iid,False," in to_csv(table)
    assert analyse(table) is None
    assert not table.costs
    assert not any(entry.best for row in table.rows for entry in row.entries)
    assert not table.of_runs  # so there is no target to reach either
    frame = collect(cells, Results(tmp_path / "nothing"))
    assert summarise(board(GRID), Reported.of(cells, []), frame, [table], "x/").entries == ()


WHERE = "cifar,trained.accuracy"
PLAIN = f"mine,1,FedAvg,{WHERE},70.0,,,,,partition=iid algorithm=fedavg addons=[],\n"
MORE = f"mine,1,FedDecorr,{WHERE},74.5,,DELTA,,partition=iid algorithm=fedavg addons=[feddecorr],\n"


@pytest.mark.parametrize(
    ("delta", "shown", "note"),
    [
        ("4.5,addons=[]", "printed +4.50, −0.50 within", None),
        ("4.6,addons=[]", "printed +4.60, −0.60 within", None),  # 70.0 and 74.5 are rounded too
        ("4.7,addons=[]", "printed +4.70, −0.70 within", "mine, Table 1: its values differ by +4.50"),
        ("3.5,addons=[]", "printed +3.50, +0.50 within", "mine, Table 1: its values differ by +4.50"),
        (",", "printed values give +4.50, −0.50 within", None),
        ("9.9,addons=[ffc]", "printed values give +4.50, −0.50 within", None),
        ("6.4%,addons=[]", "printed values give +4.50, −0.50 within", None),
    ],
)
def test_the_difference_that_is_printed_to_this_reference_stands_beside_ours(make, delta, shown, note):
    table = make(Table(**vars(GAIN) | {"printed": ("mine/1",)}), numbers=PLAIN + MORE.replace("DELTA", delta))
    entry = table.rows[0].entries[0]
    assert entry_text(table, entry) == f"+4.00 ± 1.00, {shown}"
    assert [text for _, text in table.notes] == ([note] if note else [])
    assert table.rows[1].entries[0].printed is None
    assert "where no difference is printed, that of the printed values" in table.caption


def test_a_difference_of_printed_values_has_the_root_of_both_variances_summed(make):
    printed = PLAIN.replace("70.0,", "70.0,3.0") + MORE.replace("74.5,,DELTA", "74.5,4.0,,")
    table = make(Table(**vars(GAIN) | {"printed": ("mine/1",)}), numbers=printed)
    assert table.rows[0].entries[0].printed.printed.std == 5.0


def test_a_relative_difference_is_printed_in_percent(make):
    line = f"mine,1,FedDecorr,{WHERE},,,-6.4%,addons=[],,partition=iid algorithm=fedavg addons=[feddecorr],\n"
    relative = Table(rows=("algorithm", "addons"), minus={"addons": "none"}, relative=True, printed=("mine/1",))
    table = make(relative, numbers=line)
    assert table.rows[0].entries[0].printed.printed.value == -6.4
    assert printed_in(["mine/1"]) == ()
    values = make(relative, numbers=PLAIN + MORE.replace("DELTA", ",")).rows[0].entries[0].printed.printed
    assert values.value == pytest.approx(100 * 4.5 / 70)


def test_a_printed_difference_is_no_value_of_its_cell(make):
    numbers = PLAIN + MORE.replace("DELTA", "4.5,addons=[]")
    table = make(Table(rows=("algorithm", "addons"), printed=("mine/1",)), numbers=numbers)
    assert table.rows[1].entries[0].printed.printed.value == 74.5
    assert table.notes == ()


def test_at_another_scale_a_printed_difference_is_not_compared(make):
    scaled = board(GRID, printed=["mine/1"], scales={"small": Scale({"protocol.rounds": 2})})
    cells = plan(scaled.expand({"scale": ["small"]}))
    table = make(
        Table(**vars(GAIN) | {"printed": ("mine/1",)}),
        cells=cells,
        numbers=PLAIN + MORE.replace("DELTA", "4.5,addons=[]"),
    )
    found = table.rows[0].entries[0].printed
    assert (found.printed.value, found.difference) == (4.5, None)


@pytest.mark.parametrize(
    ("minus", "message"),
    [
        (
            {"addon": "none"},
            r"minus: 'addon' is not an axis of the table; did you mean 'addons'\?",
        ),
        ({"addons": "feddecor"}, r"minus: addons=feddecor selects no cell; did you mean 'feddecorr'\?"),
    ],
)
def test_a_reference_that_cannot_be_is_one_line(make, minus, message):
    with pytest.raises(UserError, match=message):
        make(Table(rows=("algorithm", "addons"), minus=minus))


def test_a_reference_that_is_several_cells_is_one_line(make):
    grid = GRID | {"algorithm": "fedavg", "partition": "iid", "addons": [[], ["feddecorr"], ["decov"]]}
    with pytest.raises(UserError, match=r"minus: \[none, decov\] is several cells beside fedavg, iid; add the axis"):
        make(Table(rows=("algorithm", "addons"), minus={"addons": ["none", "decov"]}), cells=cells_of(board(grid)))


@pytest.mark.parametrize("delta", ["4.5,", ",addons=[]"])
def test_a_printed_difference_names_its_reference(make, delta):
    with pytest.raises(UserError, match=r"mine\.csv line 3: a delta needs the settings of the cell"):
        make(Table(**vars(GAIN) | {"printed": ("mine/1",)}), numbers=PLAIN + MORE.replace("DELTA", delta))
