"""How the rows of a table stand, and how soon they reach a target."""

import itertools
import math
import re
from dataclasses import replace

import pytest
from matplotlib.text import Text

from fedspan.benchmark.report import diagrams
from fedspan.benchmark.report.analysis import analyse, pairwise, pareto, reach_targets
from fedspan.benchmark.report.axes import Axes
from fedspan.benchmark.report.diagrams import (
    _caption_of_costs,
    _draw_ranks,
    _points,
    average_ranks,
    joined,
    row_in_words,
    score_against_cost,
)
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.headline import _joined_by_or, of_table, signed_points
from fedspan.benchmark.report.metric import Metric
from fedspan.benchmark.report.render_page import Content, Extras, board_page
from fedspan.benchmark.report.render_text import reach_text, standings_to_csv, to_markdown
from fedspan.benchmark.report.report import write_report
from fedspan.benchmark.report.standings import ShownStanding, changes, standings
from fedspan.benchmark.report.statistics import Difference
from fedspan.benchmark.report.tabulation import tabulate
from fedspan.benchmark.report.units import COST_COLUMNS, signed
from fedspan.benchmark.spec.board import Table
from fedspan.benchmark.spec.settings import How
from tests.report.made import SKEWS, board, cells_of, digests_of, record, results_of, seeded, stopped
from tests.report.test_statistics import decided_by_divergence


@pytest.fixture
def made(tmp_path_factory):
    def made(cells, records, table=Table()):  # noqa: B008 - it is frozen
        frame = collect(cells, results_of(tmp_path_factory.mktemp("results"), records))
        return tabulate(frame, Axes(cells), table, 1), frame

    return made


def test_rows_are_ranked_and_measured_against_the_first(made):
    cells = cells_of(board())
    analysis = analyse(made(cells, seeded(cells))[0])
    assert [standing.number for standing in analysis.standings] == [6, 5, 4, 3, 2, 1], "later rows are made better"
    assert [standing.rank for standing in analysis.standings] == [1, 2, 3, 4, 5, 6]
    assert analysis.standings[-1].difference is None
    assert all(isinstance(standing.difference, Difference) for standing in analysis.standings[:-1])
    assert (analysis.shared, analysis.columns) == (2, 2)
    assert {standing.blocks for standing in analysis.standings} == {6}


def test_columns_that_a_row_lacks_do_not_rank_it(made):
    cells = cells_of(board())
    records = [one for one, cell in zip(seeded(cells), cells, strict=True) if _first(cell) or cell.cell.addons]
    analysis = analyse(made(cells, records)[0])
    assert analysis.shared == 1
    table = made(cells, [stopped(p, "diverged", "why") for p in cells])[0]
    assert analyse(table) is None


def test_scores_of_the_same_runs_count_as_one_task(made):
    """Six domains of three runs are three pairs, not eighteen, and no sample of six tasks."""
    cells = cells_of(board({"algorithm": ["fedavg", "fedprox"], "seed": [0, 1, 2]}))
    records = []
    for planned in cells:
        first = 50.0 + (planned.cell.algorithm.name == "fedprox")
        domains = {f"domain_accuracy.{number}": first + number * planned.cell.seed for number in range(6)}
        records.append(record(planned, scores={"trained": domains}))
    table = made(cells, records, Table(metric="trained.domain_accuracy.*"))[0]
    assert table.metric.heading == "Accuracy on each domain (trained), %"
    assert (len(table.columns), table.tasks) == (6, ((0, 1, 2, 3, 4, 5),))
    analysis = analyse(table)
    assert [(standing.mean, standing.blocks) for standing in analysis.standings] == [(53.5, 3), (52.5, 3)]
    assert analysis.standings[0].difference.reason.startswith("3 pairs of runs on 1 task are too few")
    assert next(analysis.merged_columns).startswith("These columns score the same models and count as one task")
    assert (analysis.shared, analysis.columns) == (6, 6)


def on_fleets(*fleets):
    """Return cells of two methods and their records with digests of the models: alike but where clients drop out."""
    cells = cells_of(board({"algorithm": ["fedavg", "fedprox"], "fleet": list(fleets), "seed": [0, 1, 2]}))
    records = []
    for planned in cells:
        lost = planned.cell.fleet.name == "dropout"
        accuracy = 60.0 + planned.cell.seed + (planned.cell.algorithm.name == "fedprox") - 9 * lost
        model = f"{planned.cell.algorithm.name} {planned.cell.seed} {lost}"
        records.append(record(planned, accuracy, digests=digests_of(planned, model)))
    return cells, records


def test_equal_models_under_two_fleets_count_as_one_task_but_for_their_costs(made):
    cells, records = on_fleets("reliable", "speeds", "dropout")
    by_fleet = made(cells, records, Table(columns=("fleet",)))[0]
    assert by_fleet.tasks == ((0, 1), (2,))
    analysis = analyse(by_fleet)
    assert [standing.mean for standing in analysis.standings] == [57.5, 56.5]
    assert next(analysis.merged_columns).endswith("one task, by their mean: Reliable clients; Speeds.")
    costs = made(cells, records, Table(columns=("fleet",), metric="cost.bytes"))[0]
    assert costs.tasks == ((0,), (1,), (2,))


@pytest.mark.parametrize("seeds_alike", [3, 2])
def test_rows_with_the_same_models_are_named_as_one_piece_of_evidence(made, seeds_alike):
    cells = cells_of(board({"algorithm": ["fedavg", "fedprox", "fednova"], "seed": [0, 1, 2]}))
    records = []
    for planned in cells:
        name, seed = planned.cell.algorithm.name, planned.cell.seed
        alike = name != "fednova" and seed < seeds_alike
        records.append(record(planned, 60.0 + seed, digests=digests_of(planned, f"{seed} {'' if alike else name}")))
    found = analyse(made(cells, records)[0]).assumptions
    said = [one for one in found if one.startswith("These rows trained the same models")]
    assert [one.rpartition(": ")[2] for one in said] == ["FedAvg; FedProx."] * (seeds_alike == 3)


def test_tasks_on_which_one_of_two_rows_scores_the_same_models_are_one_task_for_these_two(made):
    """FedProx has one model for both partitions: it is compared with the others on one task, they on two."""
    names = ["fedavg", "fedprox", "fednova"]
    cells = cells_of(board({"algorithm": names, "partition": ["iid", "dirichlet"], "seed": list(range(5))}))
    records = []
    for planned in cells:
        name, partition, seed = planned.cell.algorithm.name, planned.cell.partition.name, planned.cell.seed
        model = f"{name} {seed} {'' if name == 'fedprox' else partition}"
        better = 2.0 * (name == "fednova") + 4.0 * (name == "fedavg" and partition == "iid")
        accuracy = 60.0 + better + 0.1 * seed * names.index(name)
        records.append(record(planned, accuracy, digests=digests_of(planned, model)))
    table = made(cells, records, Table(columns=("partition",)))[0]
    assert table.tasks == ((0,), (1,)), "they are two for the table"
    differ, (plain, proximal, normalised) = pairwise(table), table.rows
    for one, other, tasks, pairs in ((plain, proximal, 1, 5), (normalised, proximal, 1, 5), (normalised, plain, 2, 10)):
        assert (differ(one, other).tasks, differ(one, other).pairs) == (tasks, pairs)
    assert differ(plain, proximal).mean == pytest.approx(2.0 - 0.2), "the mean over both"


def on_partitions(*methods):
    """Return cells of methods on two partitions, those named with one only on that one, with records of 5 seeds."""
    cells = [
        planned
        for planned in cells_of(
            board({"algorithm": [*dict(methods)], "partition": ["iid", "dirichlet"], "seed": list(range(5))})
        )
        if dict(methods)[planned.cell.algorithm.name] in (planned.cell.partition.name, None)
    ]
    records = []
    for number, planned in enumerate(cells):
        accuracy = 50.0 + 30 * (planned.cell.partition.name == "iid") + number / 100
        models = f"{planned.cell.algorithm.name} {planned.cell.seed}"
        records.append(record(planned, accuracy, digests=digests_of(planned, models)))
    return cells, records


def test_a_bound_that_trains_the_same_models_on_two_columns_does_not_make_them_one_task(made):
    """Otherwise FedProx on the easy column would be compared with FedAvg on the hard one."""
    table = made(*on_partitions(("centralized", None), ("fedavg", "dirichlet"), ("fedprox", "iid")),
                 Table(columns=("partition",)))[0]  # fmt: skip
    assert table.tasks == ((0,), (1,))
    assert {standing.place.compared for standing in analyse(table).standings} == {0}


@pytest.mark.parametrize("known", [True, False])
def test_columns_are_one_task_only_if_all_finished_runs_of_both_have_the_same_models(made, known):
    cells, records = on_partitions(("fedavg", None), ("fedprox", None))
    if not known:
        records = [one | {"digests": {}} if one["spec"]["algorithm"]["name"] == "fedprox" else one for one in records]
    assert made(cells, records, Table(columns=("partition",)))[0].tasks == (((0, 1),) if known else ((0,), (1,)))


@pytest.mark.parametrize("diverged", [True, False])
def test_a_run_that_diverged_or_is_missing_leaves_equal_models_of_other_runs_one_task(made, diverged):
    cells, records = on_fleets("reliable", "speeds")
    at = next(i for i, p in enumerate(cells) if (p.cell.fleet.name, p.cell.algorithm.name) == ("speeds", "fedprox"))
    records[at : at + 1] = [stopped(cells[at], "diverged", "why")] if diverged else []
    table = made(cells, records, Table(columns=("fleet",)))[0]
    assert table.tasks == ((0, 1),)
    plain, proximal = map(table.scores, table.rows)
    assert plain == {0: {0: 60.0, 1: 61.0, 2: 62.0}}
    assert proximal == {0: {0: -math.inf if diverged else 61.0, 1: 62.0, 2: 63.0}}


def test_a_row_that_ran_under_one_of_two_fleets_with_equal_models_is_compared_on_their_task(made):
    cells, records = on_fleets("reliable", "speeds")
    third = cells_of(board({"algorithm": ["fednova"], "fleet": ["reliable", "speeds"], "seed": [0, 1, 2]}))
    ran = [record(planned, 70.0 + planned.cell.seed) for planned in third if planned.cell.fleet.name == "reliable"]
    analysis = analyse(made(cells + third, records + ran, Table(columns=("fleet",)))[0])
    first = analysis.standings[0]
    assert (first.row.labels, first.mean) == (("fednova",), 71.0)
    assert (analysis.common, analysis.columns) == ((0,), 2), "it lacks the other column"


def _first(planned):
    return planned.cell.partition.name == "dirichlet"


def test_equal_rows_share_a_place_and_no_mark_says_otherwise(made):
    grid = {"partition": SKEWS, "algorithm": ["fedavg", "fedprox", "fedavgm"], "seed": [0, 1, 2]}
    cells = cells_of(board(grid))
    values = {"fedavg": (90, 91, 89.3), "fedprox": (90.5, 89.9, 89.7), "fedavgm": (50, 51, 49.1)}
    table = made(cells, [record(p, float(values[p.cell.algorithm.name][p.cell.seed])) for p in cells])[0]
    analysis = analyse(table)
    assert {s.number: (s.place.text, s.sure) for s in analysis.standings} == {
        1: ("1=", 0),
        2: ("1=", 0),
        3: ("3", -1),
    }
    assert analysis.significant_pairs == {frozenset({1, 3}), frozenset({2, 3})}
    assert [entry.best for row in table.rows for entry in row.entries] == [True, True, False, False, False, False]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_row_whose_runs_diverged_is_behind_in_all_that_a_table_says(made, lost):
    """The runs that are left are the best of all."""
    grid = {"partition": SKEWS, "algorithm": ["fedavg", "fedprox", "fednova"], "seed": [0, 1, 2]}
    cells = cells_of(board(grid))
    records = seeded(cells)
    for number, planned in enumerate(cells):
        if planned.cell.algorithm.name == "fednova":
            diverged = planned.cell.seed < lost and planned.cell.partition.name == "iid"
            why = "round 2: the test loss is nan"
            records[number] = (
                stopped(planned, "diverged", why) if diverged else record(planned, 97.0 + planned.cell.seed)
            )
    table = made(cells, records)[0]
    last = analyse(table).standings[-1]
    assert (last.number, last.place.text, last.sure) == (3, "3", -1)
    assert last.wins == pytest.approx(100 * (6 - lost) / 6)
    assert last.rank == pytest.approx((6 - lost + 3 * lost) / 6)
    said = f"{lost} run{'s' * (lost > 1)} diverged on the tasks that both have"
    assert decided_by_divergence(last.difference) == (said, -1)
    assert math.isnan(last.mean), "of the runs that are left"
    assert not table.rows[2].entries[1].best
    csv = standings_to_csv(analyse(table)).splitlines()
    assert csv[-1].startswith("fednova,2,3,3,3,")


def test_a_row_of_diverged_runs_alone_takes_part_and_is_last(made):
    cells = cells_of(board({"partition": "iid", "algorithm": ["fednova", "fedavg"], "seed": [0, 1, 2]}))
    records = [stopped(p, "diverged", "why") if p.cell.algorithm.name == "fednova" else record(p) for p in cells]
    first, last = analyse(made(cells, records)[0]).standings
    assert (first.number, first.place.text, last.number, last.place.text) == (2, "1", 1, "2")
    assert (first.difference, last.wins) == (None, 0)


def test_no_mark_says_that_a_far_worse_cell_ties_with_the_best(made):
    """Three uneven seeds of one column cannot tell 72 from 97 apart, two such columns can."""
    cells = cells_of(board({"partition": SKEWS, "algorithm": ["fedavg", "moon"], "seed": [0, 1, 2]}))
    values = {"fedavg": (97.0, 97.5, 97.1), "moon": (60.0, 90.0, 66.0)}
    table = made(cells, [record(p, values[p.cell.algorithm.name][p.cell.seed]) for p in cells])[0]
    assert "≈" not in to_markdown(table)
    assert [(s.number, s.place.text) for s in analyse(table).standings] == [(1, "1"), (2, "2")]


def test_bars_join_only_neighbours_that_are_not_told_apart():
    apart = {frozenset(pair) for pair in ((1, 4), (2, 4), (1, 5), (3, 5))}
    assert joined([1, 2, 3, 4, 5], apart) == [[1, 2, 3], [3, 4], [4, 5]]
    assert joined([1, 2, 3], set()) == [[1, 2, 3]]
    assert joined([1, 2], {frozenset((1, 2))}) == []


def tuned_too(table):
    """Return a table of which the later half of the rows is tuned."""
    half = len(table.rows) // 2
    kinds = ["default"] * half + ["tuned"] * (len(table.rows) - half)
    rows = tuple(replace(row, labels=(*row.labels, kind)) for row, kind in zip(table.rows, kinds, strict=True))
    return replace(table, row_axes=(*table.row_axes, "tuning"), rows=rows)


def test_each_diagram_of_ranks_has_the_rows_of_one_kind_of_which_every_pair_was_compared(made):
    cells = cells_of(board())
    table = made(cells, seeded(cells, spread=9.0))[0]
    analysis = analyse(tuned_too(table))
    diagrams = average_ranks(analysis)
    assert [diagram.name for diagram in diagrams] == ["ranks-1-tuned", "ranks-1-default"]
    for diagram, kind in zip(diagrams, ("tuned", "default"), strict=True):
        mine = [standing for standing in analysis.standings if standing.kind == kind]
        assert sorted(standing.rank for standing in mine) == [1, 2, 3]
        assert sorted(standing.wins for standing in mine) == [0, 50, 100]
        for standing in analysis.standings:
            assert (row_in_words(analysis.table, standing.row) in diagram.inline) is (standing in mine)
        assert f"every {kind} row" in diagram.caption
        assert ("Dots on a bar" in diagram.caption) is any(
            frozenset((one.number, other.number)) not in analysis.significant_pairs
            for one, other in itertools.pairwise(mine)
        )


def test_a_bar_of_average_ranks_is_named_in_words_and_ends_at_the_first_and_last_of_its_rows(made):
    cells = cells_of(board())
    analysis = replace(analyse(made(cells, seeded(cells))[0]), significant_pairs=frozenset())
    [diagram] = average_ranks(analysis)
    first, *_, last = sorted(analysis.standings, key=lambda standing: standing.rank)
    assert (
        "A bar joins {} to {}.".format(*(row_in_words(analysis.table, s.row) for s in (first, last))) in diagram.inline
    )
    drawn = _draw_ranks({0: 1.0, 1: 1.5, 2: 3.5, 3: 4.0}, dict.fromkeys(range(4), "row"), [0, 1, 2, 3], [[0, 1, 2]])
    lines = drawn.axes[0].lines
    [dots] = [line for line in lines if line.get_marker() == "o"]
    [bar] = [line for line in lines if line.get_solid_capstyle() == "butt"]
    assert len(dots.get_xdata()) == 3
    assert (min(dots.get_xdata()), max(dots.get_xdata())) == tuple(bar.get_xdata())


def test_costs_are_compared_on_the_columns_on_which_the_scores_are(made):
    """FedNova lacks the dear column; on the other one it is both worse and dearer than FedAvg."""
    cells = cells_of(board({"partition": SKEWS, "algorithm": ["fedavg", "fedprox", "fedavgm", "fednova"], "seed": [0]}))
    flops = {"fedavg": 10e9, "fedprox": 30e9, "fedavgm": 40e9, "fednova": 11e9}
    score = {"fedavg": 80.0, "fedprox": 90.0, "fedavgm": 70.0, "fednova": 60.0}
    records = []
    for planned in cells:
        name, dear = planned.cell.algorithm.name, planned.cell.partition.name == "iid"
        if not (dear and name == "fednova"):
            one = record(planned, score[name])
            one["compute"] = one["compute"] | {"flops": {"train": int(flops[name] * (1 + dear)), "evaluate": 1}}
            records.append(one)
    diagram = score_against_cost(analyse(made(cells, records)[0]))
    assert "On the front, by Compute: FedAvg, FedProx." in diagram.inline
    assert "both are means over the 1 column that all rows have" in diagram.caption


def test_a_row_without_cost_is_on_the_front(made):
    """FedNova costs something and is worse: a reader who saw it on the front would not know of the free row."""
    cells = cells_of(board({"partition": "iid", "algorithm": ["fedavg", "fedprox", "fednova"], "seed": [0]}))
    score, sent = {"fedavg": 60.0, "fedprox": 80.0, "fednova": 50.0}, {"fedavg": 0, "fedprox": 4000, "fednova": 100}
    records = []
    for planned in cells:
        one = record(planned, score[planned.cell.algorithm.name])
        one["compute"] = one["compute"] | {"bytes": {"up": sent[planned.cell.algorithm.name], "down": 0}}
        records.append(one)
    diagram = score_against_cost(analyse(made(cells, records)[0]))
    assert "Traffic: FedAvg, FedProx." in diagram.inline
    assert ">0 B<" in diagram.inline


def test_means_of_scores_and_costs_say_that_columns_of_the_same_models_count_as_one(made):
    cells, records = on_fleets("reliable", "speeds", "dropout")
    for one in records:
        lost = one["spec"].get("fleet", {}).get("name") == "dropout"
        one["compute"] = one["compute"] | {"flops": {"train": (5 if lost else 2) * 10**9, "evaluate": 1}}
        if one["spec"]["algorithm"]["name"] == "fedprox":
            one["compute"]["flops"]["train"] *= 4
    analysis = analyse(made(cells, records, Table(columns=("fleet",)))[0])
    caption = _caption_of_costs(analysis, all_named=True)
    assert "both are means over all columns; columns that score the same models count as one." in caption
    compute = next(column for column in COST_COLUMNS if column.title == "Compute")
    assert [cost for cost, *_ in _points(analysis, compute)] == [14e9, 3.5e9], "not 12e9 and 3e9, over three columns"
    alone = analyse(made(*on_partitions(("fedavg", "iid"), ("fedprox", "iid")), Table(columns=("partition",)))[0])
    assert alone.once == ""


@pytest.mark.parametrize("others", [13, 14])
def test_of_many_rows_those_at_the_reference_s_cost_are_named_only_on_the_front(made, others):
    """FedAvg, the best FedProx and a dear FedNova, among FedProx of many mu that cost about as much as FedAvg."""
    mu = [round(0.01 * (1 + number), 2) for number in range(others + 1)]
    grid = [{"algorithm": "fedavg"}, {"algorithm": "fednova"}, {"algorithm": "fedprox", "algorithm.mu": mu}]
    cells = cells_of(board(*({"partition": "iid", "seed": [0], **one} for one in grid)))
    records = []
    for number, planned in enumerate(cells):
        one = record(planned, 50.0 + number)
        flops = 11e9 if planned.cell.algorithm.name == "fednova" else 10e9 * (1.02 - number / 1000)
        one["compute"] = one["compute"] | {"flops": {"train": int(flops), "evaluate": 1}}
        records.append(one)
    diagram = score_against_cost(analyse(made(cells, records)[0]))
    drawn = diagram.inline.partition("</desc>")[2]
    names = ["FedAvg", "FedNova", *(f"FedProx (mu {one:g})" for one in mu)]
    few = others == 13
    assert [name for name in names if f">{name}<" in drawn] == (names if few else ["FedAvg", "FedNova", names[-1]])
    assert ("rows that cost as much as the reference, within 5%, are not named" in diagram.caption) is not few


def test_a_target_is_reached_at_the_first_evaluated_round_above_it(made):
    cells = cells_of(board({"partition": "iid", "algorithm": ["fedavg", "fedprox", "fedavgm"], "protocol.rounds": 20}))
    curves = {"fedavg": [10.0, 60.0, 80.0], "fedprox": [70.0, 85.0, 10.0], "fedavgm": [1.0, 2.0, 3.0]}
    records = []
    for planned in cells:
        one = record(planned, curve={"round": [5, 10, 20], "accuracy": curves[planned.cell.algorithm.name]})
        records.append(one)
    records[1]["compute"] = records[1]["compute"] | {"seconds_at_round": [1.0, 2.5, 6.0]}
    targets = reach_targets(*made(cells, records))
    assert targets.targets == (80.0,)
    (baseline,), (sooner,), (never,) = (reached for _, reached in targets.rows)
    assert (baseline.rounds, baseline.traffic, baseline.seconds) == (20, 400, 6.0)
    assert (sooner.rounds, sooner.traffic, sooner.seconds) == (10, 200, 2.5)
    assert (never.n, never.never, never.asked, math.isnan(never.rounds)) == (0, 1, 1, True)
    assert reach_targets(*made(cells, records, Table(metric="trained.loss"))) is None


def test_the_targets_of_the_columns_with_a_run_are_one_sentence(made):
    """Of a grid that is half done the reference may lack the last column."""
    example = board({"partition": SKEWS, "algorithm": ["fedavg", "fedprox"], "seed": [0, 1]})
    cells = cells_of(example)
    first = cells[0].cell.partition.name
    records = [record(p, curve={"round": [1, p.cell.protocol.rounds], "accuracy": [40.0, 50.0]}) for p in cells
               if p.cell.algorithm.name == "fedprox" or p.cell.partition.name == first]  # fmt: skip
    table, frame = made(cells, records)
    extras = {1: Extras(analyse(table), reach_targets(table, frame), ())}
    page = board_page(example, Content(frame, [table], [], extras), "../", How()).decode()
    [said] = re.findall("The target of each column is .*? Means over seeds", page)
    assert said.endswith("50.00%. Means over seeds")
    assert said.count("%") == 1


def reached(made, curves, rounds=8):
    """Return the reach of a row whose seeds have these accuracies by round, over a baseline that ends at 50.

    A seed that is None diverged, one that is "missing" has no record.
    """
    grid = {"partition": "iid", "algorithm": ["fedavg", "fedprox"], "seed": list(range(len(curves)))}
    cells = cells_of(board(grid | {"protocol.rounds": rounds}))
    records = []
    for planned in cells:
        accuracy = curves[planned.cell.seed] if planned.cell.algorithm.name == "fedprox" else [50.0] * rounds
        if accuracy is None:
            records.append(stopped(planned, "diverged", "why"))
        elif accuracy != "missing":
            one = record(planned, curve={"round": list(range(1, rounds + 1)), "accuracy": accuracy})
            one["compute"] = one["compute"] | {"bytes": {"up": 8 * rounds, "down": 24 * rounds}}
            one["compute"]["seconds"] = {"total": float(rounds)}
            one["compute"]["seconds_at_round"] = [float(when) for when in range(1, rounds + 1)]
            records.append(one)
    return reach_targets(*made(cells, records)).rows[1][1][0]


def arriving_at(when, rounds=8):
    return [10.0 if now < (when or math.inf) else 60.0 for now in range(1, rounds + 1)]


def test_a_seed_that_never_arrives_counts_with_all_its_rounds(made):
    whole = reached(made, [arriving_at(4), arriving_at(6), arriving_at(8)])
    assert (whole.n, whole.never, whole.rounds, whole.arrives) == (3, 0, 6, True)
    assert whole.seconds_std == pytest.approx(2.0)
    for lost in (arriving_at(None), None):
        part = reached(made, [arriving_at(4), arriving_at(6), lost])
        assert (part.n, part.never, part.rounds, part.arrives) == (2, 1, 6, False)
        assert (part.traffic, part.seconds) == (6 * 32, 6.0)


@pytest.mark.parametrize("lost", [arriving_at(None), None])
def test_a_row_with_a_seed_that_never_arrives_never_reads_as_faster(made, lost):
    late, sometimes = reached(made, 3 * [arriving_at(8)]), reached(made, [arriving_at(1), arriving_at(1), lost])
    assert reach_text(late)[0] == "8 rounds"
    assert reach_text(sometimes)[0] == "2 of 3 seeds reach it"
    assert reach_text(sometimes)[1].startswith("restricted mean 3.33 rounds · ")
    waiting = reached(made, [arriving_at(2), arriving_at(2), "missing"])
    assert reach_text(waiting)[0] == "2 rounds (2 of 3 seeds so far)"
    assert reach_text(reached(made, [arriving_at(None), "missing", "missing"]))[0] == (
        "not reached in 8 rounds (1 of 3 seeds so far)"
    )
    assert reach_text(reached(made, [None, None, None]))[0] == "not reached"
    assert reach_text(reached(made, 2 * [arriving_at(1)]))[0] == "1 round"


def test_a_target_is_reached_by_runs_that_all_end_at_it(made):
    """The mean of equal accuracies may differ from them in its last digit."""
    assert sum([60.2] * 3) / 3 > 60.2
    for end in (60.2, 0.1, 58.07086614173228, 100 / 7):
        cells = cells_of(board({"partition": "iid", "algorithm": ["fedavg", "fedprox"], "seed": [0, 1, 2]}))
        records = [record(planned, end) for planned in cells]
        assert {reach.n for _, (reach,) in reach_targets(*made(cells, records)).rows} == {3}


def test_the_front_holds_what_no_other_point_beats_in_both():
    points = [(1.0, 50.0), (2.0, 40.0), (2.0, 60.0), (3.0, 60.0), (4.0, 90.0)]
    assert pareto(points, +1) == [0, 2, 4]
    assert pareto([(cost, -score) for cost, score in points], -1) == [0, 2, 4]


@pytest.mark.parametrize(("low", "high"), [(0.18, 0.31), (0.24, 0.26), (100.0, 300.0)])
def test_no_two_places_of_a_cost_axis_are_written_alike(made, low, high):
    cells = cells_of(board())
    records = seeded(cells)
    for number, one in enumerate(records):
        seconds = low + (high - low) * number / (len(records) - 1)
        one["compute"] = one["compute"] | {"seconds": one["compute"]["seconds"] | {"total": seconds}}
    inline = score_against_cost(analyse(made(cells, records)[0])).inline
    written = re.findall(r">([0-9.]+ (?:s|min))<", inline)
    assert len(set(written)) == len(written) > 0


def test_neighbours_that_differ_are_not_all_rows(made):
    """FedProx's diverged run puts it behind both others, which no test separates."""
    cells = cells_of(board({"partition": SKEWS, "algorithm": ["fedavg", "fednova", "fedprox"], "seed": [0, 1, 2]}))
    analysis = analyse(made(cells, [record(p, 50.0 + p.cell.seed) for p in cells])[0])
    first, last = (s.number for s in (analysis.standings[0], analysis.standings[-1]))
    [middle] = {s.number for s in analysis.standings} - {first, last}
    for apart, said in (
        ([(first, middle), (middle, last)], "Neighbours differ significantly."),
        ([(first, middle), (middle, last), (first, last)], "All rows differ significantly."),
    ):
        ranked = [replace(s, rank={first: 1.0, middle: 2.0, last: 3.0}[s.number]) for s in analysis.standings]
        one = replace(analysis, standings=tuple(ranked), significant_pairs=frozenset(map(frozenset, apart)))
        [diagram] = average_ranks(one)
        assert said in diagram.caption


def test_diagrams_say_in_words_what_they_show(made):
    cells = cells_of(board())
    records = seeded(cells)
    for number, one in enumerate(records):
        one["compute"] = one["compute"] | {"flops": {"train": 1e9 * (1 + number // 3), "evaluate": 1}}
    analysis = analyse(made(cells, records)[0])
    [diagram] = average_ranks(analysis)
    assert "Average rank over the 6 pairs" in diagram.caption
    assert "FedProx + FedDecorr (paper form): 1.00" in diagram.inline
    assert "On the front" in score_against_cost(analysis).inline
    for made_of in (diagram, score_against_cost(analysis)):
        assert set(made_of.files) == {"svg", "pdf", "png"}
        assert "style" not in made_of.inline
    names = {row_in_words(analysis.table, standing.row) for standing in analysis.standings}
    cost = score_against_cost(analysis)
    assert all(
        cost.inline.partition("</desc>")[2].count(f">{name}<") == cost.inline.count("Compute<") for name in names
    )
    few = analyse(made(cells, [one for one in seeded(cells) if one["spec"]["seed"] == 0])[0])
    assert all((place.text, place.range) == ("1=", "1–6") for place in (s.place for s in few.standings))
    assert average_ranks(few) == []


@pytest.mark.parametrize(("methods", "pictures"), [(20, 1), (21, 0)])
def test_more_than_twenty_ranks_are_not_drawn(made, methods, pictures):
    grid = {
        "partition": SKEWS,
        "algorithm": "fedprox",
        "algorithm.mu": [0.01 * i for i in range(methods)],
        "seed": [0, 1, 2],
    }
    cells = cells_of(board(grid))
    records = [record(cell, 50.0 + (7 * cell.cell.seed + i) % 5) for i, cell in enumerate(cells)]
    assert len(average_ranks(analyse(made(cells, records)[0]))) == pictures


def test_a_table_of_costs_has_no_picture_of_ranks_or_of_costs(tmp_path):
    example = board(tables=[Table(), Table(metric="cost.bytes")])
    cells = cells_of(example)
    write_report(example, cells, results_of(tmp_path / "results", seeded(cells)), tmp_path / "pages")
    drawn = sorted(path.stem for path in (tmp_path / "pages" / "example").glob("*.svg"))
    assert [name for name in drawn if name.startswith(("ranks", "cost"))] == ["ranks-1"], "here all rows cost the same"


def test_a_table_says_who_leads_or_that_nobody_does(made):
    cells = cells_of(board())
    analysis = analyse(made(cells, seeded(cells))[0])
    gap = analysis.standings[0].difference
    assert of_table(analysis) == (
        f"FedProx + FedDecorr (paper form) leads: {signed(gap.mean)} points against FedAvg "
        f"(95% CI {signed(gap.low)} to {signed(gap.high)})."
    )
    equal = analyse(made(cells, [record(p, 50.0 + (p.cell.seed * 7 + i) % 3) for i, p in enumerate(cells)])[0])
    assert of_table(equal).startswith("No clear winner: 6 rows may be the best. ")
    assert {standing.leads for standing in equal.standings} == {False}
    assert [standing.number for standing in analysis.standings if standing.leads] == [6]


def test_of_several_groups_the_headline_says_which_one_has_no_test(made):
    """Three methods with one seed on a partition, and two with five on another."""
    seeds = {"fedavg": [0], "fedprox": [0], "fedavgm": [0], "moon": list(range(5)), "scaffold": list(range(5))}
    cells = cells_of(
        board(*({"partition": "iid" if len(own) == 1 else "dirichlet", "algorithm": name, "seed": own}
                for name, own in seeds.items()))
    )  # fmt: skip
    records = [record(p, 50.0 + 9 * (p.cell.algorithm.name == "moon") + number % 3) for number, p in enumerate(cells)]
    table = made(cells, records, Table(columns=("partition",)))[0]
    assert of_table(analyse(table)).startswith("No difference is tested among the first 3 rows: 1 pair")
    few = [one for one in records if one["spec"]["partition"]["name"] == "iid"]
    assert of_table(analyse(made(cells, few, Table(columns=("partition",)))[0])).startswith(
        "No difference is tested: 1 pair"
    )


def test_a_row_that_no_comparison_could_decide_shares_no_place(made):
    """A single seed of the third row decides nothing."""
    cells = cells_of(board({"partition": SKEWS, "algorithm": ["fedavg", "fedprox", "fedavgm"], "seed": [0, 1, 2]}))
    values = {"fedavg": (90, 91, 89.3), "fedprox": (90.5, 90.9, 89.7), "fedavgm": (50,)}
    records = [
        record(p, float(values[p.cell.algorithm.name][p.cell.seed]))
        for p in cells
        if p.cell.seed < len(values[p.cell.algorithm.name])
    ]
    analysis = analyse(made(cells, records)[0])
    assert sorted(standing.place.tested for standing in analysis.standings) == [False, True, True]
    said = "No clear winner: FedProx or FedAvg may be the best; 1 more row cannot be compared. "
    assert of_table(analysis).startswith(said)
    assert "So far" not in of_table(analysis)
    without = analyse(made(cells, [one for one in records if one["spec"]["algorithm"]["name"] != "fedavgm"])[0])
    assert of_table(without).endswith(" So far 2 of 3 rows have results.")
    skipped = [
        one | {"status": "skipped", "reason": "impossible", "scores": {}}
        if one["spec"]["algorithm"]["name"] == "fedavgm"
        else one
        for one in records
    ]
    assert "So far" not in of_table(analyse(made(cells, skipped)[0])), "nothing is to come"
    assert "bold is the highest mean over all seeds of a column" in analysis.table.reading
    assert "bold is the highest mean of a column" in without.table.reading


@pytest.mark.parametrize(
    ("several", "said"),
    [
        (["FedAvg", "MOON"], "FedAvg or MOON"),
        (["FedAvg", "MOON", "ETF"], "FedAvg, MOON or ETF"),
        (["MOON (mu 1, no head)", "FedAvg"], "MOON (mu 1, no head); or FedAvg"),
        (["a, b", "a", "b"], "a, b; a; or b"),
    ],
)
def test_names_with_commas_are_told_apart(several, said):
    assert _joined_by_or(several) == said


def test_diverged_runs_of_other_rows_do_not_explain_why_one_is_shown_first(made):
    cells = cells_of(board({"partition": SKEWS, "algorithm": ["fedavg", "fedprox", "fedavgm"], "seed": [0, 1, 2]}))
    records = [record(cell, 50.0 + cell.cell.seed) for cell in cells]
    records[-1] = stopped(cells[-1], "diverged", "round 2: the loss is not finite")
    assert of_table(analyse(made(cells, records)[0])) == (
        "No clear winner: FedAvg or FedProx may be the best. FedAvg is shown first. 1 run of FedAvgM diverged."
    )


def test_a_table_without_a_leader_says_which_rows_may_be_the_best_and_who_is_ahead_of_more(made):
    grid = {"partition": SKEWS, "algorithm": ["fedavg", "fedprox", "fedavgm"], "seed": [0, 1, 2]}
    cells = cells_of(board(grid))
    values = {"fedavg": (90, 91, 89.3), "fedprox": (90.5, 90.9, 89.7), "fedavgm": (50, 51, 49.1)}
    records = [record(p, float(values[p.cell.algorithm.name][p.cell.seed])) for p in cells]
    said = of_table(analyse(made(cells, records)[0]))
    assert said.startswith(
        "No clear winner: FedProx or FedAvg may be the best. FedProx is ahead of more rows than any other: "
    )
    level = [record(p, float(values["fedavgm" if p.cell.algorithm.name == "fedavgm" else "fedavg"][p.cell.seed]))
             for p in cells]  # fmt: skip
    said = of_table(analyse(made(cells, level)[0]))
    assert "than any other" not in said, "two rows are ahead of as many"


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ({"fedavg": 1}, "FedProx leads: 2 runs of FedAvg diverged."),
        ({"fedprox": 3}, "FedAvg leads: 6 runs of FedProx diverged."),
        ({"fedprox": 3, "fedavgm": 1}, "FedAvg leads: runs of 2 other rows diverged."),
        ({"fedavg": 1, "fedprox": 1}, "No difference is tested: 4 runs diverged on the tasks that both have."),
    ],
)
def test_a_table_says_that_its_leader_is_ahead_because_other_rows_diverged(made, lost, said):
    algorithms = ["fedavg", "fedprox", *(["fedavgm"] if "fedavgm" in lost else [])]
    cells = cells_of(board({"partition": SKEWS, "algorithm": algorithms, "seed": [0, 1, 2]}))
    records = [
        stopped(p, "diverged", "why") if p.cell.seed < lost.get(p.cell.algorithm.name, 0) else record(p) for p in cells
    ]
    assert of_table(analyse(made(cells, records)[0])) == said


def test_a_lead_among_rows_of_one_kind_is_not_explained_by_diverged_runs_of_the_other(made):
    cells = cells_of(board({"partition": SKEWS, "algorithm": ["fedavg", "fedprox"], "seed": [0, 1, 2]}))
    values = {"fedavg": 60.0, "fedprox": 50.0}
    records = [record(p, values[p.cell.algorithm.name] + p.cell.seed) for p in cells]
    records[-1] = stopped(cells[-1], "diverged", "why")
    analysis = analyse(made(cells, records)[0])
    assert of_table(analysis) == "FedAvg leads: 1 run of FedProx diverged."
    first, other = analysis.standings
    apart = replace(analysis, standings=(first, replace(other, kind="default")))
    assert of_table(apart).startswith("FedAvg leads. ")


def test_sentences_over_a_table_begin_with_a_capital(made):
    """Rows are called by a setting here, ``mu 0.1``."""
    grid = {"partition": SKEWS, "algorithm": "fedprox", "algorithm.mu": [0.1, 0.2], "seed": [0, 1, 2]}
    cells = cells_of(board(grid))
    for better in (0.1, 0.2):
        accuracies = [50.0 + 9 * (p.cell.algorithm.mu == better) + p.cell.seed * p.cell.algorithm.mu for p in cells]
        records = [record(p, accuracy) for p, accuracy in zip(cells, accuracies, strict=True)]
        said = of_table(analyse(made(cells, records, Table(rows=("algorithm.mu",)))[0]))
        assert said.startswith(f"Mu {better} leads"), said


def test_only_an_interval_is_marked_as_one_that_holds(made):
    """The mark says that an interval holds for all pairs; a row that is behind because it diverged has none."""
    example = board({"partition": SKEWS, "algorithm": ["fedavg", "fedprox", "fedavgm"], "seed": [0, 1, 2]})
    cells = cells_of(example)
    values = {"fedavg": (90.0, 90.4, 90.9), "fedprox": (50.0, 50.7, 51.1)}
    records = [
        record(p, values[p.cell.algorithm.name][p.cell.seed])
        if p.cell.algorithm.name in values
        else stopped(p, "diverged", "why")
        for p in cells
    ]
    table, frame = made(cells, records)
    analysis = analyse(table)
    assert [s.sure for s in analysis.standings] == [0, -1, -1]
    page = board_page(example, Content(frame, [table], [], {1: Extras(analysis, None, ())}), "../", How()).decode()
    assert re.search(r"leads: .*\. Ranked by accuracy after the last round, before any calibration\.</p>", page)
    first = page[: page.index("<main")]
    assert re.search(r'<p class="verdict">.* leads: .*<a href="#table-1">', first), "also over the page"
    assert "95% interval" in page
    assert "95 %" not in page, "one way to write it"
    standing = page[page.index('class="standing"') :]
    behind, diverged = (re.search(f">{name}</th>.*", standing)[0] for name in ("FedProx", "FedAvgM"))
    assert "✓" in behind
    assert "withheld" in diverged
    assert "✓" not in diverged


def page_of(made, example, cells, records, *table):
    table, frame = made(cells, records, *table)
    extras = {1: Extras(analyse(table), None, ())}
    return board_page(example, Content(frame, [table], [], extras), "../", How()).decode()


def test_one_row_is_the_reference_and_a_row_without_a_run_in_common_with_it_is_not(made):
    example = board(
        {"partition": ["iid"], "algorithm": ["fedavg", "fedprox"], "seed": [0, 1, 2]},
        {"partition": ["dirichlet"], "algorithm": ["moon", "fednova"], "seed": [0, 1, 2]},
    )
    cells = cells_of(example)
    page = page_of(made, example, cells, seeded(cells), Table(columns=("partition",)))
    standing = page[page.index('class="standing"') :]
    cellsof = {name: re.search(f">{name}</th>.*", standing)[0] for name in ("FedAvg", "FedProx", "MOON", "FedNova")}
    assert [name for name, row in cellsof.items() if ">reference<" in row] == ["FedAvg"]
    assert all(">—</td>" in cellsof[name] for name in ("MOON", "FedNova"))


def test_a_picture_shows_differences_far_below_a_hundredth(made):
    """Losses may differ by thousandths: the picture is that of the numbers, whatever their size."""
    example = board({"partition": ["iid"], "algorithm": ["fedavg", "fedprox"], "seed": [0, 1, 2, 3, 4]})
    cells = cells_of(example)

    def loss(cell):
        return 1.003 + 1e-5 * cell.seed if cell.algorithm.name == "fedavg" else 1.0

    records = [record(p, scores={"trained": {"accuracy": 50.0, "loss": loss(p.cell)}}) for p in cells]
    page = page_of(made, example, cells, records, Table(metric="trained.loss", columns=("partition",)))
    standing = page[page.index('class="standing"') :]
    row = re.search(">FedProx</th>.*", standing)[0]
    assert "✓" in row
    assert '<circle class="sure"' in row
    zero, dot = (float(re.search(f'{name}="([0-9.]+)"', row)[1]) for name in ("x1", "cx"))
    assert abs(zero - dot) > 50


def test_a_check_mark_that_only_leading_gives_is_explained_by_leading(made):
    """Of these three rows the first leads by tests at 2.5%, while Holm's correction of all three holds for none."""
    values = {"fedavg": (50.7, 50.3, 49.4, 50.3, 51.5), "fedprox": (50.9, 51.8, 52.6, 53.1, 53.2),
              "fedavgm": (50.1, 50.7, 50.0, 50.5, 49.1)}  # fmt: skip
    example = board({"partition": "iid", "algorithm": list(values), "seed": list(range(5))})
    cells = cells_of(example)
    table, frame = made(cells, [record(p, values[p.cell.algorithm.name][p.cell.seed]) for p in cells])
    analysis = analyse(table)
    first = analysis.standings[0]
    assert first.leads
    assert 0.05 / 3 < first.difference.p < 0.05 / 2
    page = board_page(example, Content(frame, [table], [], {1: Extras(analysis, None, ())}), "../", How()).decode()
    assert re.search(r'>FedProx</th>.*aria-label="significantly better">✓', page)
    assert "✓ if it also holds after correction for all pairs, or if one of the two rows leads." in page
    assert "significantly better than each of them, even where Holm&#39;s correction rejects nothing" in page


@pytest.mark.parametrize(("rows", "filtered"), [(2, False), (6, True)])
def test_a_page_of_many_tables_has_contents_and_tells_costs_once_and_filters_long_ones(made, rows, filtered):
    names = ("fedavg", "fedprox", "fedavgm", "fednova", "fedsam", "fedexp")
    example = board({"partition": "iid", "algorithm": list(names[:rows])})
    cells = cells_of(example)
    table, frame = made(cells, [record(p, 50.0) for p in cells])

    def page(count):
        tables = [replace(table, number=number) for number in range(1, count + 1)]
        extras = {table.number: Extras(None, None, ()) for table in tables}
        return board_page(example, Content(frame, tables, [], extras), "../", How()).decode()

    one, many = page(1), page(6)
    assert re.search('On this page: 6 tables.*<a href="#table-6">Table 6</a>', many, re.DOTALL)
    assert "On this page" not in one
    assert many.count("Costs are means over") == one.count("Costs are means over") == 1
    assert ("Filter rows" in one) is filtered


@pytest.mark.parametrize("beside", [0, 1])
def test_times_of_runs_that_shared_their_machine_are_no_cost_of_a_row(made, beside):
    cells = cells_of(board({"partition": SKEWS, "algorithm": ["fedavg", "fedprox", "fedavgm"], "seed": [0, 1, 2]}))
    records = seeded(cells)
    for number, one in enumerate(records):
        one["provenance"] = one["provenance"] | {"cells_beside": beside * (number == 0)}
        one["compute"] = one["compute"] | {
            "seconds": one["compute"]["seconds"] | {"total": 1.0 + number // 3},
            "flops": {"train": 1e9 * (1 + number // 3), "evaluate": 1},
            "seconds_at_round": [0.5, 1.0],
        }
    table, frame = made(cells, records)
    assert math.isfinite(reach_targets(table, frame).rows[0][1][0].seconds) is not bool(beside)
    diagram = score_against_cost(analyse(table))
    assert ("Time" in diagram.inline) is not bool(beside)
    assert ("Times are omitted: runs shared their machine with others." in diagram.caption) is bool(beside)


@pytest.mark.parametrize("machines", [("cpu",), ("cpu", "another cpu")])
def test_times_are_set_against_each_other_only_where_one_kind_of_machine_took_them(made, machines):
    cells = cells_of(board({"partition": SKEWS, "algorithm": ["fedavg", "fedprox", "fedavgm"], "seed": [0, 1, 2]}))
    records = seeded(cells)
    for number, one in enumerate(records):
        one["provenance"] = one["provenance"] | {"device": machines[number % len(machines)]}
        one["compute"] = one["compute"] | {
            "seconds": one["compute"]["seconds"] | {"total": 1.0 + number // 3},
            "flops": {"train": 1e9 * (1 + number // 3), "evaluate": 1},
            "seconds_at_round": [0.5, 1.0],
        }
    table, frame = made(cells, records)
    alone = len(machines) == 1
    assert any("Times are not comparable" in remark for remark in table.remarks) is not alone
    diagram = score_against_cost(analyse(table))
    assert "Compute" in diagram.inline
    assert ("Time" in diagram.inline) is alone
    assert ("Times are omitted" in diagram.caption) is not alone
    reach = reach_targets(table, frame).rows[0][1][0]
    assert math.isfinite(reach.seconds) is alone
    assert (" s" in reach_text(reach)[1], "—" in reach_text(reach)[1]) == (alone, False)


@pytest.mark.parametrize("machines", [("cpu",), ("cpu", "another cpu")])
def test_times_rank_rows_only_where_one_kind_of_machine_took_them(made, machines):
    cells = cells_of(board({"partition": SKEWS, "algorithm": ["fedavg", "fedprox", "fedavgm"], "seed": [0, 1, 2]}))
    records = seeded(cells)
    for number, one in enumerate(records):
        one["provenance"] = one["provenance"] | {"device": machines[number % len(machines)]}
        one["compute"] = one["compute"] | {"seconds": one["compute"]["seconds"] | {"net": 1.0 + number // 3}}
    alone = len(machines) == 1
    times = made(cells, records, Table(metric="cost.head_seconds"))[0]
    assert (analyse(times) is not None) is alone
    assert any(entry.best for row in times.rows for entry in row.entries) is alone
    assert ("bold is the lowest" in times.reading) is alone
    assert analyse(made(cells, records, Table(metric="cost.bytes"))[0]) is not None, "whatever counts them"


def sized(cells, sizes, losses):
    """Return records whose algorithms send so many bytes and end with such losses, on every seed."""
    records = []
    for planned in cells:
        name = planned.cell.algorithm.name
        one = record(planned, scores={"trained": {"accuracy": 50.0 + planned.cell.seed, "loss": losses[name]}})
        one["compute"] = one["compute"] | {"bytes": one["compute"]["bytes"] | {"up": sizes[name], "down": sizes[name]}}
        records.append(one)
    return records


def test_differences_are_written_in_the_unit_of_the_means(made):
    example = board({"partition": SKEWS, "algorithm": ["fedavg", "fedprox"], "seed": [0, 1]})
    cells = cells_of(example)
    records = sized(cells, {"fedavg": 200_000_000, "fedprox": 120_000_000}, dict.fromkeys(("fedavg", "fedprox"), 0.5))
    table, frame = made(cells, records, Table(metric="cost.bytes"))
    analysis = analyse(table)
    assert of_table(analysis) == "FedProx leads: −160 MB against FedAvg."
    page = board_page(example, Content(frame, [table], [], {1: Extras(analysis, None, ())}), "../", How()).decode()
    standing = re.search(">FedProx</th>.*", page[page.index('class="standing"') :])[0]
    assert all(f">{text}</td>" in standing for text in ("240 MB", "−160 MB to −160 MB"))
    assert "✓</span> −160 MB</td>" in standing
    assert ",-160000000.0," in standings_to_csv(analysis), "a file has the numbers"


def test_a_small_change_of_a_loss_is_a_change(tmp_path):
    example = board({"partition": SKEWS, "algorithm": ["fedavg", "fedprox"], "seed": [0, 1]},
                    tables=[Table(metric="trained.loss")])  # fmt: skip
    cells = cells_of(example)
    before, after = (
        standings(example, cells, results_of(
            tmp_path / name, sized(cells, dict.fromkeys(("fedavg", "fedprox"), 100), {"fedavg": 0.6, "fedprox": loss})
        ))
        for name, loss in (("before", 0.5), ("after", 0.504))
    )  # fmt: skip
    assert changes(before, before)[1:] == ["  nothing changes"]
    assert changes(before, after)[1:] == ["  FedProx: too few runs for a place, as before (0.5000 -> 0.5040)"]


def test_standings_name_a_place_only_where_the_page_does(tmp_path):
    example = board({"partition": "iid", "algorithm": ["fedavg", "fedprox"], "seed": 0})
    cells = cells_of(example)
    results = results_of(tmp_path, sized(cells, {"fedavg": 100, "fedprox": 100}, {"fedavg": 0.5, "fedprox": 0.6}))
    new = changes({}, standings(example, cells, results))
    assert [line.partition(": ")[2].partition(" (")[0] for line in new[1:]] == ["new, too few runs for a place"] * 2
    example = board({"partition": SKEWS, "algorithm": ["fedavg", "fedprox"], "seed": [0, 1]},
                    tables=[Table(metric="cost.bytes")])  # fmt: skip
    cells = cells_of(example)
    records = sized(cells, {"fedavg": 100, "fedprox": 200}, {"fedavg": 0.5, "fedprox": 0.6})
    new = changes({}, standings(example, cells, results_of(tmp_path / "counted", records)))
    assert [line.partition(" (")[0] for line in new[1:]] == ["  FedAvg: new, place 1", "  FedProx: new, place 2"]


def test_a_change_is_told_with_both_places_or_as_before():
    first, second, better = (
        ShownStanding("place 1", "90"),
        ShownStanding("place 2", "80"),
        ShownStanding("place 1", "91"),
    )
    told = changes({"T": {"a": first, "b": second}}, {"T": {"a": better, "b": first}})
    assert told == ["T", "  a: place 1, as before (90 -> 91)", "  b: place 2 -> place 1 (80 -> 90)"]


def test_what_is_ranked_no_more_is_a_change():
    first, second = ShownStanding("place 1", "90"), ShownStanding("place 2", "80")
    gone = changes({"T": {"a": first, "b": second}, "U": {"c": first}}, {"T": {"a": first}})
    assert gone == ["T", "  b: no longer ranked (was place 2)", "U", "  c: no longer ranked (was place 1)"]


@pytest.mark.parametrize(
    ("path", "value", "written", "said"),
    [
        ("final.accuracy", -1.234, "−1.23", "−1.23 points"),
        ("trained.loss", 0.004, "+0.0040", "+0.0040"),
        ("cost.bytes", -158932480.0, "−159 MB", "−159 MB"),
        ("cost.simulated_seconds", 1.2037, "+1.204", "+1.204 s"),
        ("cost.simulated_seconds", 8.8e-5, "+8.8e-05", "+8.8e-05 s"),
        ("cost.classifier_gflop", -3.2e-5, "−3.2e-05", "−3.2e-05 GFLOP"),
        ("trained.loss", 3e-6, "+3e-06", "+3e-06"),
        ("cost.minutes_per_round", -0.0123, "−0.0123", "−0.0123 min"),
        ("cost.classifier_gflop", 3.0, "+3", "+3 GFLOP"),
        ("cost.lost_visits", 2.0, "+2", "+2"),
    ],
)
def test_a_difference_has_a_sign_and_is_written_as_its_metric_is(path, value, written, said):
    metric = Metric.of(path)
    assert metric.write_difference(value) == written
    assert metric.write_difference(value)[1:] == metric.write(abs(value))
    assert metric.say_difference(value) == said


def test_a_difference_that_is_rounded_to_zero_has_no_sign():
    assert {Metric.of("final.accuracy").write_difference(value) for value in (-0.004, 0.0, 0.004)} == {"0.00"}
    assert Metric.of("trained.loss").write_difference(0.1 + 0.2 - 0.3) == "0.0000", "an error of floats"
    assert Metric.of("trained.loss").difference("FedAvg", relative=False).write_spread(5.6e-17) == "0.0000"
    assert {signed(value) for value in (-0.004, 0.0, 0.004)} == {"0.00"}
    assert {signed_points(value) for value in (-0.04, 0.0, 0.04)} == {"0.0"}


def test_only_what_follows_from_shapes_is_counted_and_only_a_clock_of_a_machine_measures_time():
    paths = ("trained.accuracy", "trained.loss", "cost.bytes", "cost.memory_bytes", "cost.classifier_gflop",
             "cost.head_seconds", "cost.minutes_per_round", "cost.local_seconds_per_round", "cost.simulated_seconds",
             "cost.lost_visits")  # fmt: skip
    assert [path for path in paths if Metric.of(path).counted] == [*paths[2:5]]
    assert [path for path in paths if Metric.of(path).timed] == [*paths[5:8]]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("trained.accuracy", "accuracy after the last round, before any calibration"),
        ("calibrated.accuracy", "accuracy after calibration"),
        ("final.accuracy", "accuracy at the method's last stage"),
        (
            "trained.client_accuracy_std",
            "standard deviation of the accuracy over clients after the last round, before any calibration",
        ),
        ("best.accuracy", "accuracy (best)"),
    ],
)
def test_what_ranks_the_rows_is_said_with_its_stage(path, said):
    assert Metric.of(path).ranked == said


@pytest.mark.parametrize("ran", [0, 1])
def test_a_board_without_any_result_says_so_in_one_sentence(made, ran):
    example = board({"partition": "iid", "algorithm": ["fedavg", "fedprox"]})
    cells = cells_of(example)
    table, frame = made(cells, [record(p) for p in cells[:ran]])
    page = board_page(example, Content(frame, [table], [], {1: Extras(None, None, ())}), "../", How()).decode()
    said = "Nothing has been run yet. This command runs it: <code>fedspan run -m board=example</code></p>"
    assert (f'<p class="notice">{said}' in page) is (ran == 0)


def test_costs_of_two_rows_or_all_equal_ones_are_no_picture(made):
    cells = cells_of(board())
    assert score_against_cost(analyse(made(cells, seeded(cells))[0])) is None, "all cost the same"
    nearly = seeded(cells)
    for number, one in enumerate(nearly):
        one["compute"] = one["compute"] | {"flops": {"train": 398_000_000_000_000 + number, "evaluate": 1}}
    assert score_against_cost(analyse(made(cells, nearly)[0])) is None, "all costs are written alike"


def test_the_words_beside_a_picture_of_costs_keep_to_their_panel(made, monkeypatch):
    monkeypatch.setattr(diagrams, "_diagram", lambda *parts: parts[-1]())  # the canvas itself
    cells = cells_of(board({"partition": SKEWS, "algorithm": ["fedavg", "fedprox", "fedavgm"], "seed": [0]}))
    records = [record(planned, 50.0) for planned in cells]
    for number, one in enumerate(records):
        one["scores"]["trained"]["worst_tenth_accuracy"] = 10.0 + number
        one["compute"] = one["compute"] | {"flops": {"train": 10**9 * (1 + number), "evaluate": 1}}
    table = made(cells, records, Table(metric="trained.worst_tenth_accuracy"))[0]
    canvas = score_against_cost(analyse(table))
    plots = canvas.axes
    assert len(plots) > 0
    assert "".join(plots[0].get_ylabel().split()) == "".join(table.metric.heading.split())
    for plot in plots:
        assert plot.yaxis.label.get_window_extent().height <= 1.1 * plot.get_window_extent().height


@pytest.mark.parametrize("words", [12, 1])
def test_however_long_the_names_beside_a_picture_of_costs_the_plot_keeps_its_room(made, monkeypatch, words):
    monkeypatch.setattr(diagrams, "_diagram", lambda *parts: parts[-1]())  # the canvas itself
    names = iter([" ".join([letter * (120 // words)] * words) for letter in "abc"])
    monkeypatch.setattr(diagrams, "row_in_words", lambda table, row, without="": next(names))
    cells = cells_of(board({"partition": "iid", "algorithm": ["fedavg", "fedprox", "fedavgm"], "seed": [0]}))
    records = [record(planned, 50.0) for planned in cells]
    for number, one in enumerate(records):
        one["compute"] = one["compute"] | {"flops": {"train": 10**9 * (1 + number), "evaluate": 1}}
    canvas = score_against_cost(analyse(made(cells, records)[0]))
    canvas.draw_without_rendering()
    for plot in canvas.axes:
        assert plot.get_window_extent().width >= 1.5 * canvas.dpi - 1e-6
        spans = sorted(tuple(Text.get_window_extent(text).intervaly) for text in plot.texts)
        assert len(spans) == 3
        assert all(below[1] <= above[0] + 1 for below, above in itertools.pairwise(spans))


def test_of_points_that_cost_the_same_the_best_alone_is_on_the_front():
    assert pareto([(1.0, 50.0), (1.0, 60.0), (2.0, 55.0), (2.0, 70.0)], +1) == [1, 3]


def test_seconds_scatter_over_all_seeds_also_those_that_never_arrive(made):
    part = reached(made, [arriving_at(4), arriving_at(4), arriving_at(None)])
    assert (part.seconds, part.seconds_std) == pytest.approx(((4 + 4 + 8) / 3, (16 / 3) ** 0.5))
