import json
import math
import statistics
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.report.axes import Axes
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.metric import Metric
from fedspan.benchmark.report.render_page import provenance
from fedspan.benchmark.report.render_text import to_markdown
from fedspan.benchmark.report.tabulation import letters, tabulate
from fedspan.benchmark.report.units import bytes_text, flops_text, seconds_text
from fedspan.benchmark.spec.board import Scale, Table
from tests.report.made import board, cells_of, record, results_of, seeded, stopped, with_digest

ONE_METHOD = {"partition": "iid", "seed": [0, 1, 2]}
TWO_METHODS = {"partition": "iid", "algorithm": ["fedavg", "fedprox"], "seed": [0, 1, 2]}


class Memory:
    """Results without a folder."""

    root = Path("a folder that is not there")

    def __init__(self, records):
        self.records = {one["key"]: one for one in records if one["status"] != "failed"}
        self.failures = {one["key"]: one for one in records if one["status"] == "failed"}

    def read(self, key):
        return self.records.get(key)

    def failure(self, key):
        return self.failures.get(key)


def make(cells, records, table=Table()):  # noqa: B008 - it is frozen
    return tabulate(collect(cells, Memory(records)), Axes(cells), table, 1)


def only(table):
    ((entry,),) = [row.entries for row in table.rows]
    return entry


accuracies = st.lists(st.integers(0, 10_000).map(lambda hundredths: hundredths / 100), min_size=1, max_size=6)


@settings(max_examples=30, deadline=None)
@given(accuracies)
def test_a_cell_is_mean_and_sample_deviation_of_its_seeds(values):
    cells = cells_of(board({"partition": "iid", "seed": list(range(len(values)))}))
    entry = only(make(cells, [record(planned, value) for planned, value in zip(cells, values, strict=True)]))
    assert entry.mean == pytest.approx(sum(values) / len(values), abs=1e-9)
    assert entry.n == entry.asked == len(values)
    if len(values) == 1:
        assert entry.std is None
    else:
        assert entry.std == pytest.approx(statistics.stdev(values), abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(["done", "missing", "failed", "diverged", "skipped"]), min_size=1, max_size=5))
def test_every_seed_that_the_grid_asks_for_is_accounted_for(statuses):
    cells = cells_of(board({"partition": "iid", "seed": list(range(len(statuses)))}))
    records = [
        record(planned) if status == "done" else stopped(planned, status, "why")
        for planned, status in zip(cells, statuses, strict=True)
        if status != "missing"
    ]
    entry = only(make(cells, records))
    assert [run.status for run in entry.runs] == statuses
    assert entry.n == statuses.count("done")
    assert entry.asked == len(statuses)
    assert (entry.mean is None) == (entry.n == 0)


def test_rows_and_columns_stand_in_the_order_of_the_grid():
    cells = cells_of(board())
    table = make(cells, [])
    assert [row.labels for row in table.rows] == [(label,) for label in dict.fromkeys(Axes(cells).labels("method"))]
    assert table.columns == (("dirichlet(alpha=0.05)",), ("iid",))


def test_the_highest_accuracy_and_the_lowest_loss_are_the_best_of_a_column():
    cells = cells_of(board(TWO_METHODS))
    records = [record(p, 80.0) if p.cell.algorithm.name == "fedavg" else record(p, 81.0) for p in cells]
    assert [row.entries[0].best for row in make(cells, records).rows] == [False, True]
    for one in records:
        one["scores"]["trained"]["loss"] = one["scores"]["trained"]["accuracy"]
    by_loss = make(cells, records, Table(metric="trained.loss"))
    assert [row.entries[0].best for row in by_loss.rows] == [True, False]


def test_what_ties_as_printed_is_best_together():
    cells = cells_of(board(TWO_METHODS))
    records = [record(p, 80.001 if p.cell.algorithm.name == "fedavg" else 80.0) for p in cells]
    assert [row.entries[0].best for row in make(cells, records).rows] == [True, True]


def test_a_cell_that_lacks_seeds_is_not_best_beside_whole_ones():
    cells = cells_of(board(TWO_METHODS))
    lucky = [record(p, 99.0) for p in cells if p.cell.algorithm.name == "fedavg" and p.cell.seed == 0]
    whole = [record(p, 80.0) for p in cells if p.cell.algorithm.name == "fedprox"]
    assert [row.entries[0].best for row in make(cells, lucky + whole).rows] == [False, True]


def test_no_cell_is_best_in_a_column_without_a_whole_one():
    cells = cells_of(board(TWO_METHODS))
    table = make(cells, [record(p, 80.0 + p.cell.seed) for p in cells if p.cell.seed < 2])
    assert "bold is the highest mean over all seeds of a column" in table.reading
    assert [row.entries[0].best for row in table.rows] == [False, False]
    assert "**" not in to_markdown(table)


def test_without_a_value_a_cell_says_why():
    cells = cells_of(board(ONE_METHOD))
    assert only(make(cells, [])).state == "missing"
    assert only(make(cells, [stopped(cells[0], "failed", "disk full")])).state == "failed"
    assert only(make(cells, [stopped(p, "skipped", "x and y") for p in cells])).state == "skipped"
    assert only(make(cells, [stopped(p, "diverged", "round 1") for p in cells])).state == "diverged"
    null = make(cells, [record(p, None) for p in cells])
    assert only(null).state == "n/a"
    assert null.problems == ()


def test_the_reason_of_a_stopped_run_is_a_note_once_per_reason():
    cells = cells_of(board(TWO_METHODS))
    table = make(cells, [stopped(p, "diverged", "the loss is not finite") for p in cells])
    assert table.notes == (("a", "diverged: the loss is not finite"),)
    assert all(row.entries[0].marks == ("a",) for row in table.rows)


def test_a_score_that_finished_records_lack_is_a_problem():
    cells = cells_of(board(TWO_METHODS))
    table = make(cells, seeded(cells), Table(metric="trained.acuracy"))
    assert table.problems == ("6 of 6 finished records have no trained.acuracy; did you mean 'trained.accuracy'?",)
    assert {row.entries[0].state for row in table.rows} == {"absent"}


def test_costs_are_means_over_finished_runs_of_the_row():
    cells = cells_of(board(ONE_METHOD))
    records = [record(p) for p in cells]
    for one, seconds in zip(records, (1.0, 2.0, 6.0), strict=True):
        one["compute"]["seconds"]["total"] = seconds
    records[2] |= {"status": "diverged", "reason": "why", "scores": {}}
    (row,) = make(cells, records).rows
    assert row.cost["seconds"] == 1.5
    assert row.cost["bytes_up"] == 100
    assert math.isnan(make(cells, []).rows[0].cost["seconds"])


def test_runs_from_several_machines_are_remarked():
    cells = cells_of(board(ONE_METHOD))
    records = [record(p) for p in cells]
    assert make(cells, records).remarks == ()
    records[0]["provenance"]["processor"] = "another processor"
    said = "The runs come from 2 kinds of machine: cpu · another processor, cpu · a processor. Times are not comparable"
    for numerics, scores in (("native", ", and the same seed may give slightly different results"), ("portable", "")):
        for one in records:
            one["provenance"]["numerics"] = numerics
        assert make(cells, records).remarks == (f"{said} across machines{scores}.",)
    records[1]["provenance"]["numerics"] = "native"
    assert "slightly different" in make(cells, records).remarks[0]


def test_captions_and_untitled_tables_begin_with_a_capital():
    cells = cells_of(board(ONE_METHOD))
    table = make(cells, seeded(cells))
    assert table.title == "Accuracy (trained), %"
    assert table.caption.startswith("Accuracy (trained), %: mean")


def test_provenance_counts_the_records_that_are_there_and_begins_with_the_most_frequent():
    cells = cells_of(board(TWO_METHODS))
    records = seeded(cells)[:5]
    for one in records[:2]:
        one["provenance"]["git_commit"] = "0000"
    for one in records[3:]:
        one["provenance"] |= {"partition_digest": None, "versions": {"torch": "1.0"}}
    found = dict(provenance(collect(cells, Memory(records)).itertuples(index=False)))
    assert found["Git commit"] == [("0123abcd", 3), ("0000", 2)]
    assert found["Partition digest"] == [("e" * 64, 3)]
    assert found["Versions"] == [("python 3.11.7", 3), ("torch 1.0", 2), ("torch 2.15.0", 3)]
    assert found["Components"] == [("algorithm:fedavg 0a1b2c3d", 3), ("algorithm:fedprox 0a1b2c3d", 2)]
    assert found["Record schema"] == [(str(cells[0].cell.what["schema"]), 5)]
    assert provenance(collect(cells, Memory([])).itertuples(index=False)) == []


# what must not be compared ------------------------------------------------------------------------


def test_records_of_other_data_are_left_out_and_named():
    cells = cells_of(board(TWO_METHODS))
    records = seeded(cells)
    records[1] = with_digest(records[1], "e" * 64)
    table = make(cells, records)
    assert len(table.problems) == 1
    assert "1 record is left out: dataset digest of digits is eeeeeeeeeeee" in table.problems[0]
    assert records[1]["key"] in table.problems[0]
    first, second = (row.entries[0] for row in table.rows)
    assert (first.n, first.asked, second.n) == (2, 3, 3)
    assert first.mean == statistics.fmean([50.0, 52.0])


def test_runs_of_one_seed_on_another_partition_are_left_out():
    cells = cells_of(board(TWO_METHODS))
    records = seeded(cells)
    other = records[-1]["provenance"] | {"partition_digest": "f" * 64}
    table = make(cells, [*records[:-1], records[-1] | {"provenance": other}])
    [said] = table.problems
    assert said.startswith("1 record is left out: partition digest of seed 2 is ffffffffffff")
    assert [row.entries[0].n for row in table.rows] == [3, 2]


def test_runs_that_are_not_there_are_not_left_out():
    """Nothing is known of them, and they have no page to link to."""
    cells = cells_of(board({"protocol.lr": [0.1, 0.2], "scale": ["small", "paper"]}))
    table = make(cells, [], Table(rows=("algorithm",)))
    assert table.problems == ()
    assert {entry.state for row in table.rows for entry in row.entries} == {"missing"}
    mixed = make(cells, [record(one) for one in cells], Table(rows=("algorithm",)))
    assert any("cells mix runs that differ in protocol.lr" in problem for problem in mixed.problems)


def test_different_datasets_may_have_different_digests():
    cells = cells_of(board({"partition": "iid", "dataset.limit": [500, 1000]}))
    records = [with_digest(record(p), str(p.cell.dataset.limit) * 8) for p in cells]
    table = make(cells, records, Table(columns=("dataset",)))
    assert table.problems == ()
    assert [entry.n for entry in table.rows[0].entries] == [1, 1]


def test_records_of_another_scale_are_left_out_and_named():
    cells = cells_of(
        board(TWO_METHODS | {"scale": ["small", "paper"]}, scales={"small": Scale({"protocol.rounds": 1})})
    )
    table = make(cells, [record(p, 90.0 if p.cell.scale == "paper" else 10.0) for p in cells[:-1]])
    assert "scale is paper, the others' is small" in table.problems[0]
    assert [row.entries[0].mean for row in table.rows] == [10.0, 10.0]
    assert [row.entries[0].n for row in table.rows] == [3, 3]


def test_runs_that_differ_in_more_than_the_seed_are_never_averaged():
    cells = cells_of(board(TWO_METHODS | {"clients": [5, 10]}))
    table = make(cells, seeded(cells))
    assert "differ in clients" in table.problems[0]
    assert {row.entries[0].state for row in table.rows} == {"refused"}
    split = make(cells, seeded(cells), Table(columns=("clients",)))
    assert split.problems == ()
    chosen = make(cells, seeded(cells), Table(where={"clients": 5}))
    assert chosen.problems == ()
    assert [row.entries[0].n for row in chosen.rows] == [3, 3]


def test_where_that_selects_nothing_is_an_error():
    cells = cells_of(board(TWO_METHODS))
    with pytest.raises(UserError, match=r"partition=idd selects no cell; did you mean 'iid'\?"):
        make(cells, [], Table(where={"partition": "idd"}))


def test_cells_that_the_grid_does_not_have_stay_empty():
    cells = cells_of(board({"partition": "iid"}, {"partition": "dirichlet", "algorithm": "fedprox"}))
    table = make(cells, [])
    assert [[entry is None for entry in row.entries] for row in table.rows] == [[False, True], [True, False]]


def test_failures_and_records_are_found_in_the_results_folder(tmp_path):
    cells = cells_of(board(ONE_METHOD))
    results = results_of(tmp_path, [record(cells[0]), stopped(cells[1], "failed", "no disk")])
    frame = collect(cells, results)
    assert list(frame["status"]) == ["done", "failed", "missing"]
    assert frame["command"][2].startswith("fedspan run ")


@pytest.mark.parametrize(
    "damage",
    [
        {"compute": {"seconds": 3}},
        {"compute": {"memory_bytes": "much"}},
        {"curve": {"round": [1], "accuracy": ["high"]}},
        {"spectra": {"global": {"singular_values": [[1], [2, 3]]}}},
        {"provenance": {"versions": 3}},
    ],
)
def test_a_record_with_a_wrong_inside_is_named_and_stops_nothing(damage, tmp_path, caplog):
    cells = cells_of(board(ONE_METHOD))
    results = results_of(tmp_path, [record(planned) for planned in cells])
    path = results.path(cells[0].cell.key)
    path.write_text(json.dumps(record(cells[0]) | damage))
    table = tabulate(collect(cells, results), Axes(cells), Table(), 1)
    assert only(table).n == 2
    assert f"{path} is damaged: its {next(iter(damage))}." in caplog.text


def test_a_metric_is_a_stage_and_a_name():
    assert Metric.of("calibrated.accuracy").better == 1
    with pytest.raises(UserError, match=r"must be written stage\.metric"):
        Metric.of("accuracy")


def test_large_costs_are_written_without_a_power_of_ten():
    seconds = Metric.of("cost.simulated_seconds")
    assert [seconds.write(value) for value in (9_999.4, 9_999.6, 123_456.7)] == ["9999", "10000", "123457"]
    assert seconds.difference("FedAvg", relative=False).write(-12_345.6) == "−12346"


def test_small_numbers_keep_their_significant_digits():
    delta = Metric.of("privacy.delta")
    assert [delta.write(value) for value in (1e-5, 0.0, 0.25)] == ["1e-05", "0.0000", "0.2500"]
    assert Metric.of("trained.loss").write_spread(0.00001234) == "1.234e-05"
    assert Metric.of("trained.accuracy").write(0.00001) == "0.00"


def test_sizes_are_written_for_people_whether_measured_or_computed():
    assert Metric.of("cost.bytes").write(398_307_840) == "398 MB"
    assert Metric.of("computed.memory_bytes").write_spread(54_824) == "54.8 kB"
    less = Metric.of("cost.bytes").difference("FedAvg", relative=False)
    assert less.write(-6_600_000) == "−6.60 MB"
    assert Metric.of("cost.bytes").difference("FedAvg", relative=True).write(0.5) == "+0.50"


def test_quantities_are_written_for_people():
    assert [seconds_text(s) for s in (0.34, 89.96, 150, 7200, math.nan)] == [
        "0.3 s",
        "90.0 s",
        "2.5 min",
        "2.0 h",
        "—",
    ]
    assert [bytes_text(b) for b in (12, 54824, 9.3e8)] == ["12 B", "54.8 kB", "930 MB"]
    assert [flops_text(f) for f in (0, 1.564e9, 2.8e12)] == ["0 FLOP", "1.56 GFLOP", "2.80 TFLOP"]
    assert [letters(i) for i in (0, 25, 26, 27, 701, 702)] == ["a", "z", "aa", "ab", "zz", "aaa"]


def test_seconds_have_their_spread_over_the_seeds_of_a_cell():
    """A row's columns may take differently long: that is no spread over seeds."""
    skews = [{"partition": "dirichlet"}, {"partition": "iid"}]
    cells = cells_of(board({"partition": skews, "seed": [0, 1, 2]}))

    def took(planned):
        base = 100.0 if planned.cell.partition.name == "iid" else 10.0
        compute = record(planned)["compute"]
        return record(planned, compute=compute | {"seconds": {"total": base + planned.cell.seed}})

    (row,) = make(cells, [took(planned) for planned in cells]).rows
    assert (row.cost["seconds"], row.cost["seconds_std"]) == (pytest.approx(56.0), pytest.approx(1.0))
    assert [entry.cost["seconds_std"] for entry in row.entries] == [pytest.approx(1.0)] * 2
    time = make(cells, [took(planned) for planned in cells]).costs[0]
    assert time.text(row.cost) == "56.0 ± 1.0 s"
    assert time.text({**row.cost, "seconds_std": math.nan}) == "56.0 s"


def test_the_spread_of_seconds_counts_every_run_of_a_cell_but_one():
    grids = {"partition": "dirichlet", "seed": [0, 1]}, {"partition": "iid", "seed": [0, 1, 2, 3, 4]}
    cells = cells_of(board(*grids))
    records = [record(planned) for planned in cells]
    for planned, one in zip(cells, records, strict=True):
        one["compute"]["seconds"] = {
            "total": 5.0 if planned.cell.partition.name == "iid" else 1.0 + 2 * planned.cell.seed
        }
    assert make(cells, records).rows[0].cost["seconds_std"] == pytest.approx(math.sqrt(2 / 5))


def test_a_row_has_no_time_if_that_of_one_of_its_cells_is_unknown():
    """A mean over the others would be over other tasks than those of the row beside it."""
    skews = [{"partition": "dirichlet"}, {"partition": "iid"}]
    cells = cells_of(board({"partition": skews, "seed": [0, 1]}))
    records = [record(planned) for planned in cells]
    for planned, one in zip(cells, records, strict=True):
        base = 100.0 if planned.cell.partition.name == "iid" else 10.0
        one["compute"] |= {"seconds": {"local": base, "total": base}, "processor_seconds": base}
    records[0]["compute"]["processor_seconds"] = 0.0
    assert make(cells, records).rows[0].cost["seconds"] == pytest.approx(55.0), "a cell has several runs"
    records[1]["compute"]["processor_seconds"] = 0.0
    row = make(cells, records).rows[0]
    assert [math.isnan(entry.cost["seconds"]) for entry in row.entries] == [True, False]
    assert math.isnan(row.cost["seconds"])
    assert row.cost["flops"] > 0


def test_seconds_of_runs_that_shared_their_machine_are_marked():
    cells = cells_of(board(ONE_METHOD))
    records = [record(planned) for planned in cells]
    assert not any("machine" in remark for remark in make(cells, records).remarks)
    records[1]["provenance"] = records[1]["provenance"] | {"cells_beside": 3}
    del records[2]["provenance"]["cells_beside"]
    table = make(cells, records)
    assert table.costs[0].text(table.rows[0].cost) == "6.0 ± 0.0 s ‡"
    assert any(remark.startswith("‡ 1 of 3 runs shared their machine with up to 3 other") for remark in table.remarks)
    assert any("not recorded for 1 of 3 runs" in remark for remark in table.remarks)


def test_a_mark_that_no_number_has_is_not_explained():
    cells = cells_of(board(ONE_METHOD))
    records = [record(planned) for planned in cells]
    for one in records:
        one["provenance"] |= {"cells_beside": 3}
        one["compute"] |= {"seconds": {"local": 60.0, "total": 60.0}, "processor_seconds": 6.0}
    remarks = make(cells, records).remarks
    assert not any(remark.startswith("‡") for remark in remarks)
    assert any(remark.startswith("The seconds of 3 of 3 runs are left out") for remark in remarks)


def test_seconds_of_runs_that_waited_for_a_processor_are_left_out():
    """They tell of the machine's other work, whoever did it."""
    cells = cells_of(board(ONE_METHOD))
    records = [record(planned) for planned in cells]
    for one, (took, had) in zip(records, ((6.0, 5.9), (60.0, 53.0), (8.0, 7.3)), strict=True):
        one["compute"] |= {"seconds": {"local": took, "total": took}, "processor_seconds": had}
    table = make(cells, records)
    assert table.rows[0].cost["seconds"] == pytest.approx(7.0)
    assert any(remark.startswith("The seconds of 1 of 3 runs are left out") for remark in table.remarks)
    records[1]["provenance"] |= {"device": "cuda"}  # whose processor may idle while the device computes
    assert make(cells, records).rows[0].cost["seconds"] == pytest.approx(74.0 / 3)


def test_seconds_of_runs_that_workers_shared_are_left_out():
    cells = cells_of(board(ONE_METHOD))
    records = [record(planned) for planned in cells]
    for one, took in zip(records, (6.0, 60.0, 8.0), strict=True):
        one["compute"] |= {"seconds": {"local": took, "total": took}, "processor_seconds": 0.95 * took}
    records[1]["provenance"] |= {"workers": 4}
    table = make(cells, records)
    assert table.rows[0].cost["seconds"] == pytest.approx(7.0)
    assert "The seconds of 1 of 3 runs are left out: several workers shared each run." in table.remarks


def test_a_cost_that_no_record_has_is_no_column():
    """The peak that a record made on CPU once held was that of its process, over all cells before it."""
    cells = cells_of(board(ONE_METHOD))
    records = [record(planned) for planned in cells]
    assert "Memory" in [cost.title for cost in make(cells, records).costs]
    for one in records:
        one["compute"] = {k: v for k, v in one["compute"].items() if k != "memory_bytes"} | {"peak_memory_bytes": 9}
    table = make(cells, records)
    assert [cost.title for cost in table.costs] == ["Time", "Compute", "Traffic"]
    assert "memory" not in table.caption


def test_compute_is_all_that_a_method_computes_on_images_but_for_evaluations():
    [planned] = cells_of(board({"partition": "iid"}))
    one = record(planned)
    one["compute"]["flops"] = {"train": 8, "hooks": 4, "calibrate": 2, "features": 16, "evaluate": 1}
    frame = collect([planned], Memory([one]))
    assert frame["flops"].tolist() == [30]
    one["compute"]["flops"] = {"evaluate": 1}
    assert math.isnan(collect([planned], Memory([one]))["flops"].item()), "nobody counted those of the training"


def test_times_are_those_of_a_round_in_minutes_and_of_a_client_that_trains():
    grid = {"partition": "personal", "clients": 10, "unseen": 0.5, "protocol.rounds": 4}
    [planned] = cells_of(board(grid | {"seed": [0]}))
    one = record(planned)
    one["compute"]["seconds"] |= {"local": 480.0, "calibrate": 10.0, "calibrate_server": 1.0}
    cost = collect([planned], Memory([one]))["stages"].item()["cost"]
    assert (cost["local_seconds_per_round"], cost["minutes_per_round"]) == (120.0, 2.0)
    assert cost["calibration_seconds"] == 10 / 5 + 1


@pytest.mark.parametrize("ran", [[], [0], [1], [0, 1]])
def test_a_table_splits_into_the_columns_with_an_outcome_and_the_rest(ran):
    cells = cells_of(board({"partition": ["iid", "dirichlet"], "seed": [0]}))
    table = make(cells, [record(cells[i], status="diverged") for i in ran], Table(columns=["partition"]))
    parts = [table.begun, *filter(None, [table.folded])]
    assert table.waits is not bool(ran)
    assert [len(part.columns) for part in parts] == ([1, 1] if len(ran) == 1 else [2])
    assert sorted(column for part in parts for column in part.columns) == sorted(table.columns)
    assert {entry.state for row in table.begun.rows for entry in row.entries} == ({"diverged"} if ran else {"missing"})
