"""The pages of a tuned board: default and tuned rows, what was chosen, what it gained, and what it cost."""

import math
import re
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from fedspan.benchmark.mirror.boards import mirror
from fedspan.benchmark.mirror.runs import Mirror
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.selection import WORST, select
from fedspan.benchmark.records.sources import REMEDY, source_digests
from fedspan.benchmark.report.analysis import analyse
from fedspan.benchmark.report.axes import TUNING, Axes
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.headline import _so_far, of_table
from fedspan.benchmark.report.render_page import cost_of_trials
from fedspan.benchmark.report.report import write_report
from fedspan.benchmark.report.summary import read
from fedspan.benchmark.report.tabulation import tabulate
from fedspan.benchmark.report.tuning import (
    Reported,
    TrialRow,
    TunedMethod,
    best_frame,
    outcome_lines,
    outcomes_frame,
    sensitivities,
    trials_frame,
    tuned_methods,
    tuning_facts,
)
from fedspan.benchmark.search import Space, choice, log
from fedspan.benchmark.spec.board import Figure, Table
from fedspan.benchmark.spec.studies import studies
from fedspan.benchmark.spec.tuning import Tune
from tests.report.made import board, cells_of, keep, record, results_of, stopped, trial, with_digest

SEEDS = [0, 1, 2, 3, 4]
GRID = {"partition": "iid", "algorithm": ["fedavg", "fedprox"], "seed": SEEDS}
TUNE = Tune(trials=4, seeds=(100, 101), space={"protocol.lr": {"log": [0.001, 1.0]}})
TRIED = {"fedavg": [50.0, 80.0, 70.0, 60.0], "fedprox": [90.0, 40.0, 30.0, 20.0]}  # held-out accuracy by trial
TESTED = {"fedavg": (45.0, 75.0), "fedprox": (85.0, 85.0)}  # test accuracy, default and tuned


def method_of(planned):
    return planned.cell.algorithm.name


def outcomes(selections, results):
    return tuned_methods(selections, results, collect(Reported.of([], selections).cells, results))


def result_of(planned, tuned):
    return record(planned, TESTED[method_of(planned)][tuned] + 0.1 * (planned.cell.seed * (1 + tuned)))


@pytest.fixture
def made(tmp_path):
    """A tuned board, its cells, its studies, and a folder with the records of all trials and results."""
    example = board(GRID, tables=[Table(rows=("algorithm",))], tune=TUNE)
    cells, found = cells_of(example), studies(example, {})
    results = results_of(tmp_path / "results", [result_of(planned, 0) for planned in cells])
    for study in found:
        for one in study.trials:
            reached = TRIED[method_of(one.cells[0])][one.number]
            keep(results, [trial(planned, reached + sign) for planned, sign in zip(one.cells, (-1, 1), strict=True)])
    selections = [select(study, results.read) for study in found]
    keep(results, [result_of(planned, 1) for one in selections if one.chosen.number for planned in one.tuned])
    return example, cells, found, results, selections


def test_tuned_cells_stand_beside_the_defaults_under_the_same_name(made):
    _, cells, _, _, selections = made
    found = Reported.of(cells, selections)
    assert found.tuning == (("default",) * 5 + ("tuned",) * 5) * 2
    assert found.cells[:5] == found.named[:5] == found.named[5:10] == tuple(cells[:5])
    assert found.cells[10:15] == found.named[10:15] == tuple(cells[5:])
    assert {one.cell.protocol.lr for one in found.cells[5:10]} == {selections[0].chosen.values["protocol.lr"]}
    assert Reported.of(cells, []).tuning == ()
    assert Reported.of(cells, selections[:1]).cells[10:] == tuple(cells[5:])


def test_tables_have_both_rows_and_a_switch(made, tmp_path):
    example, cells, _, results, selections = made
    write_report(example, cells, results, tmp_path / "pages", selections)
    table = pd.read_csv(tmp_path / "pages" / "example" / "table-1.csv")
    means = {(row.algorithm, row.tuning): row.mean for row in table.itertuples()}
    assert means == pytest.approx(
        {("fedavg", "default"): 45.2, ("fedavg", "tuned"): 75.4,
         ("fedprox", "default"): 85.2, ("fedprox", "tuned"): 85.2}
    )  # fmt: skip
    page = (tmp_path / "pages" / "example" / "index.html").read_text()
    options = "".join(f'<option value="{kind}">{kind}</option>' for kind in ("default", "tuned"))
    assert re.search(f"<label>Tuning <select[^>]*>.*{options}", page)


def test_default_and_tuned_rows_are_ranked_apart_each_with_a_reference_of_its_own(made):
    _, cells, _, results, selections = made
    reported = Reported.of(cells, selections)
    axes = Axes(reported.named, {TUNING: reported.tuning})
    analysis = analyse(tabulate(collect(reported.cells, results), axes, Table(rows=("algorithm", TUNING)), 1))
    by_kind = {}
    for standing in analysis.standings:
        by_kind.setdefault(standing.row.labels[-1], []).append(standing)
    assert {kind: [s.place.field for s in found] for kind, found in by_kind.items()} == {
        "default": [2, 2], "tuned": [2, 2],
    }  # fmt: skip
    assert [standing.row.labels[-1] for standing in analysis.standings] == ["tuned"] * 2 + ["default"] * 2
    assert not analysis.several, "places within a kind need no letter"
    assert of_table(analysis).startswith("FedProx leads among the tuned rows: +9.80 points against FedAvg (95% CI ")
    assert "So far" not in of_table(analysis)
    some = Reported.of(cells, [one for one in selections if one.study.default[0].cell.algorithm.name == "fedavg"])
    axes = Axes(some.named, {TUNING: some.tuning})
    fewer = analyse(tabulate(collect(some.cells, results), axes, Table(rows=("algorithm", TUNING)), 1))
    tuned = replace(fewer, standings=tuple(s for s in fewer.standings if s.kind == "tuned"))
    assert (_so_far(fewer), _so_far(tuned)) == ("", " So far 1 of 2 rows have results.")
    assert {row.labels for row in analysis.references} == {("fedavg", "default"), ("fedavg", "tuned")}
    measured = {s.row.labels for s in analysis.standings if s.difference}
    assert measured == {("fedprox", "default"), ("fedprox", "tuned")}


def test_figures_show_default_and_tuned_runs(made, tmp_path):
    example, cells, _, results, selections = made
    drawn = []
    with patch("fedspan.benchmark.report.report.figures.files", lambda one: drawn.append(one) or {}):
        both = replace(example, figures=(Figure(), Figure(kind="shares", where={"algorithm": "fedavg"})))
        write_report(both, cells, results, tmp_path / "pages", selections)
    assert drawn[0].labels == ("FedAvg, default", "FedAvg, tuned", "FedProx, default", "FedProx, tuned")
    assert [panel.title for panel in drawn[1].panels] == ["IID, default", "IID, tuned"], "a map shows one row"


def test_tuned_results_have_a_name_of_their_own_whatever_was_chosen(made, tmp_path):
    example, cells, _, results, selections = made
    found = write_report(example, cells, results, tmp_path / "pages", selections).summary
    seen = {(one.method, one.asked): one.mean for one in found.results}
    assert seen == pytest.approx(
        {("fedavg", 5): 45.2, ("fedavg, tuned", 5): 75.4, ("fedprox", 5): 85.2, ("fedprox, tuned", 5): 85.2}
    )
    assert read(tmp_path / "pages" / "example" / "results.json") == found


def test_a_number_is_ranked_among_those_of_its_kind_and_a_run_in_two_rows_is_counted_once(made, tmp_path):
    example, cells, _, results, selections = made
    built = write_report(example, cells, results, tmp_path / "pages", selections).summary
    ranks = {(entry.row["algorithm"], entry.row[TUNING]): entry.rank for entry in built.entries}
    assert ranks == {
        ("fedavg", "default"): 2, ("fedavg", "tuned"): 2, ("fedprox", "default"): 1, ("fedprox", "tuned"): 1,
    }  # fmt: skip
    assert built.counts == {"done": 15}, "FedProx's trials chose its defaults"


def test_tuned_results_are_not_called_by_a_setting_that_was_searched(tmp_path):
    example = board({**GRID, "protocol.lr": 0.7}, tune=TUNE)
    cells, empty = cells_of(example), results_of(tmp_path / "empty", [])
    selections = [replace(select(one, empty.read), chosen=one.trials[1]) for one in studies(example, {})]
    ran = [*cells, *(planned for one in selections for planned in one.tuned)]
    results = results_of(tmp_path / "results", [record(planned) for planned in ran])
    page = write_report(example, cells, results, tmp_path / "pages", selections).summary
    named = [one.method for one in page.results]
    assert named == ["fedavg, lr=0.7", "fedavg, tuned", "fedprox, lr=0.7", "fedprox, tuned"]


def test_an_outcome_says_what_was_chosen_and_what_it_gained_on_fresh_seeds(made):
    _, _, _, results, selections = made
    one, other = outcomes(selections, results)
    assert one.chosen == 1
    assert one.settings == f"protocol.lr={selections[0].study.trials[1].values['protocol.lr']}"
    assert one.settings_said == f"learning rate {selections[0].study.trials[1].values['protocol.lr']:g}"
    assert one.shown == (50.0, 80.0)
    assert sorted(one.default) == sorted(one.tuned) == SEEDS
    gaps = np.array([one.tuned[seed] - one.default[seed] for seed in SEEDS])
    low, high = stats.t.interval(0.95, 4, gaps.mean(), stats.sem(gaps))
    assert (one.gain.mean, one.gain.low, one.gain.high) == pytest.approx((gaps.mean(), low, high))
    assert one.optimism == pytest.approx((80.0 - 50.0) - gaps.mean())
    assert other.optimism == 0, "what is not tuned gains nothing, and looks no better"
    assert (other.chosen, other.settings, other.gain.mean) == (0, "the defaults", 0.0)


def test_a_chosen_value_at_an_end_of_its_range_is_called_so(made):
    _, _, _, results, selections = made
    one = outcomes(selections, results)[0]
    value = one.trials[1].values["protocol.lr"]
    ends = [replace(one, space={**one.space, "protocol.lr": space}) for space in (log(value, 9.0), log(1e-9, value))]
    assert [one.settings_said for one in ends] == [
        f"learning rate {value:g} (low end)", f"learning rate {value:g} (high end)"
    ]  # fmt: skip
    assert ends[0].settings == one.settings


def test_how_many_choices_lie_at_an_end_is_said(made, tmp_path, monkeypatch):
    example, cells, _, results, selections = made
    page = tmp_path / "pages" / "example" / "index.html"
    write_report(example, cells, results, tmp_path / "pages", selections)
    assert "choices have a setting at an end" not in page.read_text()
    monkeypatch.setattr(Space, "end", lambda space, value: "low")
    write_report(example, cells, results, tmp_path / "pages", selections)
    assert "1 of 2 choices have a setting at an end of what is searched" in page.read_text()


def test_the_cost_is_that_of_the_trials_alone(made):
    _, _, _, results, selections = made
    found = outcomes(selections, results)
    assert [one.cost.seconds for one in found] == [6.0 * 8] * 2  # a record of `made` took six seconds
    assert tuning_facts(found)["cost"].seconds == 6.0 * 16
    assert tuning_facts([found[0], found[0]])["trials"] == 4  # shared trials are paid for once


def test_a_cost_that_no_record_tells_is_unknown_and_not_zero(made):
    _, _, _, results, selections = made
    one = outcomes(selections, results)[0]
    untimed = replace(one, trials=tuple(replace(trial, seconds=math.nan) for trial in one.trials))
    assert math.isnan(untimed.cost.seconds)
    assert cost_of_trials(tuning_facts([untimed])) == "4 trials took an unknown time."


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(known=st.lists(st.booleans(), min_size=4, max_size=4))
def test_a_cost_says_of_how_many_trials_it_is_known(made, known):
    _, _, _, results, selections = made
    one = outcomes(selections[:1], results)[0]
    pairs = zip(one.trials, known, strict=True)
    some_timed = replace(
        one, trials=tuple(replace(row, seconds=1.0 if is_known else math.nan) for row, is_known in pairs)
    )
    cost, said = some_timed.cost, cost_of_trials(tuning_facts([some_timed]))
    assert (cost.known, cost.ran, cost.partial) == (sum(known), 4, 0 < sum(known) < 4)
    assert cost.seconds == sum(known) or not any(known)
    assert (f"at least {cost.seconds:.1f} s of one processor, known for {cost.known} of them" in said) == cost.partial
    assert ("at least" in said) == ("known for" in said) == cost.partial


def test_a_trial_with_an_untimed_seed_has_no_known_cost(made, tmp_path):
    example, cells, found, results, selections = made
    untimed = trial(found[0].trials[2].cells[1], 71.0)
    untimed["provenance"] |= {"workers": 2}  # nobody knows the processors' seconds of both
    keep(results, [untimed])
    [one, _] = outcomes(selections, results)
    assert [math.isfinite(row.seconds) for row in one.trials] == [True, True, False, True]
    assert one.cost.seconds == 6.0 * 6
    write_report(example, cells, results, tmp_path / "pages", selections)
    page = (tmp_path / "pages" / "example" / "index.html").read_text()
    assert '36.0 s<span class="n">known for 3 of 4 trials</span>' in page
    table = pd.read_csv(tmp_path / "pages" / "example" / "tuning.csv")
    assert table["trials_with_seconds"].tolist() == [3, 4]


def test_trials_that_lack_or_diverged_are_said(made, tmp_path):
    example, cells, found, _, _ = made
    [study, _] = found
    results = results_of(tmp_path / "some", [trial(planned, 50.0) for planned in study.trials[0].cells])
    keep(
        results,
        [stopped(planned, "diverged", "round 2: the validation loss is nan") for planned in study.trials[1].cells],
    )
    [one] = outcomes([select(study, results.read)], results)
    assert [row.status for row in one.trials] == ["done", "diverged", "missing", "missing"]
    assert (one.chosen, one.settings, one.settings_said, one.tuned, one.gain) == (None, "", "", {}, None)
    assert [best.k for best in one.best] == [1, 2]
    untried = replace(one, trials=one.trials[2:], default={}, tuned={})
    assert (one.begun, untried.begun, replace(untried, default={7: 50.0}).begun) == (True, False, True)
    facts = tuning_facts([one])
    assert (facts["trials"], facts["cost"].ran, facts["diverged"]) == (4, 2, 1)
    write_report(example, cells, results, tmp_path / "pages", [select(study, results.read) for study in found])
    page = (tmp_path / "pages" / "example" / "index.html").read_text()
    assert "not chosen yet" in page
    waiting = page[page.index("1 row without trials") :].partition("</details>")[0]
    assert ("FedProx" in waiting, "FedAvg" in waiting) == (True, False)
    assert "2 of 8 trials have run and took at least 12.0 s of one processor, known for 1 of them; 1 diverged." in page


def test_before_any_trial_nothing_is_said_to_have_been_chosen(made, tmp_path):
    example, cells, found, _, _ = made
    results = results_of(tmp_path / "none", [])
    write_report(example, cells, results, tmp_path / "pages", [select(study, results.read) for study in found])
    page = (tmp_path / "pages" / "example" / "index.html").read_text()
    caption = page[page.index('id="tuning-title"') :].partition("</p>")[0]
    assert "Every method gets the same budget of trials" in caption
    assert caption.endswith("None of the 8 trials has run yet.")
    assert "was chosen" not in page
    assert "without trials" not in page


def test_sensitivity_shows_each_finished_trial_where_its_value_lies_in_the_space(made):
    _, _, _, results, selections = made
    one, _ = outcomes(selections, results)
    [rate] = [found for found in sensitivities(one) if found.setting == "protocol.lr"]
    for place, accuracy, number in rate.points:
        value = one.trials[number].values["protocol.lr"]
        assert accuracy == TRIED["fedavg"][number]
        assert value == pytest.approx(0.001 * 1000**place, rel=1e-6)
    assert rate.best == str(one.trials[1].values["protocol.lr"])
    values, accuracies = zip(*((place, accuracy) for place, accuracy, _ in rate.points), strict=True)
    assert rate.correlation == pytest.approx(stats.spearmanr(values, accuracies).statistic)


@given(st.permutations(range(4)))
def test_a_correlation_is_that_of_the_values_however_a_list_names_them(order):
    values, accuracies = [0.01, 0.1, 1.0, 100.0], [10.0, 20.0, 15.0, 30.0]
    trials = tuple(TrialRow(i, {"a.b": values[i]}, accuracies[i], 1.0, (str(i),)) for i in range(4))
    space = choice(*(values[i] for i in order if i < 3))
    one = TunedMethod("m", "t", 0.15, {"a.b": space}, trials, 3, "", {}, {}, None)
    [found] = sensitivities(one)
    assert found.correlation == pytest.approx(stats.spearmanr(values, accuracies).statistic)
    assert found.ends == ("0.01", "1.0")
    assert [place for place, _, _ in found.points] == [0.0, 0.5, 1.0, 1.0], "100 lies beyond the high end"


def test_a_diverged_trial_has_the_lowest_rank_and_a_place_on_the_lower_edge(made, tmp_path):
    values, accuracies = [0.01, 0.1, 1.0, 0.5, 0.05], [60.0, 70.0, WORST, WORST, WORST]
    trials = tuple(
        TrialRow(i, {"a.b": values[i]}, accuracies[i], 1.0, (str(i),), possible=i < 4) for i in range(len(values))
    )
    one = TunedMethod("m", "t", 0.15, {"a.b": choice(0.01, 0.1, 1.0)}, trials, 1, "", {}, {}, None)
    [found] = sensitivities(one)
    assert [number for _, _, number in found.points] == [0, 1, 2, 3], "the last one cannot run"
    assert found.correlation == pytest.approx(stats.spearmanr(values[:4], [60.0, 70.0, 0.0, 0.0]).statistic)
    assert found.correlation < 0 < stats.spearmanr(values[:2], accuracies[:2]).statistic
    assert (found.range, found.best) == ((60.0, 70.0), "0.1")
    assert sensitivities(replace(one, trials=trials[2:])) == []
    example, cells, studied, _, _ = made
    results = results_of(tmp_path / "some", [])
    for study in studied:
        for tried in study.trials:
            lost = tried.number == 2
            keep(results, [stopped(p, "diverged", "why") if lost else trial(p, 50.0 + tried.number)
                           for p in tried.cells])  # fmt: skip
    write_report(example, cells, results, tmp_path / "pages", [select(study, results.read) for study in studied])
    page = (tmp_path / "pages" / "example" / "index.html").read_text()
    drawn = page[page.index("How much a setting matters") :]
    assert drawn.count('cy="96" r="3" fill="none"') == drawn.count("<figure>") > 1


def means_of(folder):
    """Return the mean of every row of the first table, and of the section on tuning, by method and tuning."""
    table, section = (pd.read_csv(folder / f"{name}.csv") for name in ("table-1", "tuning"))
    told = section.set_index("method")[["test_default", "test_tuned"]].stack(future_stack=True)
    return (
        {(row.algorithm, row.tuning): row.mean for row in table.itertuples()},
        {(method, name.removeprefix("test_")): mean for (method, name), mean in told.items()},
    )


@pytest.mark.parametrize(
    "of_other_data",
    [
        lambda planned, tuned: method_of(planned) == "fedavg" and tuned and planned.cell.seed < 2,
        lambda planned, tuned: method_of(planned) == "fedavg" and not tuned and planned.cell.seed == 4,
        lambda planned, tuned: method_of(planned) == "fedprox",
        lambda planned, tuned: method_of(planned) == "fedavg" and planned.cell.seed > 0,
    ],
    ids=["some tuned", "one default", "a whole method", "most of a method"],
)
def test_the_section_on_tuning_counts_the_runs_that_the_tables_count(made, tmp_path, of_other_data):
    example, cells, _, results, selections = made
    reported = [(planned, False) for planned in cells]
    reported += [(planned, True) for one in selections if one.chosen.number for planned in one.tuned]
    changed = [result_of(planned, tuned) | {"scores": {"trained": {"accuracy": 1.0}}} for planned, tuned in reported
               if of_other_data(planned, tuned)]  # fmt: skip
    keep(results, [with_digest(one, "f" * 64) for one in changed])
    made_report = write_report(example, cells, results, tmp_path / "pages", selections)
    table, section = means_of(tmp_path / "pages" / "example")
    assert section == pytest.approx(table, nan_ok=True)
    assert not made_report.whole


def test_a_trial_on_other_data_is_named_where_it_may_have_been_chosen(made, tmp_path):
    example, cells, found, results, _ = made
    one = found[0].trials[1]
    keep(results, [with_digest(trial(planned, 80.0), "f" * 64) for planned in one.cells])
    write_report(example, cells, results, tmp_path / "pages", [select(study, results.read) for study in found])
    page = (tmp_path / "pages" / "example" / "index.html").read_text()
    assert page.count("trial 1 used other data than the rest") == 1


def test_a_damaged_trial_is_left_out_by_name(made, tmp_path):
    example, cells, found, results, _ = made
    key = found[0].trials[2].cells[0].cell.key
    results.path(key).write_text('{"damaged')
    reading = Results(results.root, sets_aside=False)
    made_report = write_report(
        example, cells, reading, tmp_path / "pages", [select(study, reading.read) for study in found]
    )
    assert not made_report.whole
    assert [problem for problem in made_report.problems if f"records/{key}.json is left out: " in problem]
    assert f"records/{key}.json" in (tmp_path / "pages" / "example" / "index.html").read_text()


def test_trials_made_by_other_sources_are_counted(made, tmp_path):
    example, cells, found, results, selections = made
    for planned in found[1].cells:
        one = trial(planned, 50.0)
        others = {"algorithm:fedprox": "syntax:0000000000000000"}
        one["provenance"] |= {"sources": source_digests(planned.cell) | others}
        keep(results, [one])
    problems = write_report(example, cells, results, tmp_path / "pages", selections).problems
    remark = f"8 made by other sources (algorithm:fedprox); {REMEDY}"
    assert problems == [f"trials: {remark}"]


def test_no_text_of_the_files_begins_like_a_formula(made, tmp_path):
    example, cells, _, results, selections = made
    named = [replace(one, method="=1+1", task="@task", note="+note") for one in outcomes(selections, results)]
    with patch("fedspan.benchmark.report.report.tuned_methods", lambda *_: named):
        write_report(example, cells, results, tmp_path / "pages", selections)
    for name in ("tuning", "trials", "budget"):
        table = pd.read_csv(tmp_path / "pages" / "example" / f"{name}.csv")
        assert set(table["method"]) == {"'=1+1"}
        assert set(table["task"]) == {"'@task"}


def test_frames_have_a_row_per_trial_per_study_and_per_budget(made):
    _, _, _, results, selections = made
    found = outcomes(selections, results)
    trials, whole, best = trials_frame(found), outcomes_frame(found), best_frame(found)
    assert trials["validation_accuracy"].tolist() == TRIED["fedavg"] + TRIED["fedprox"]
    assert trials["chosen"].tolist() == [False, True, False, False, True, False, False, False]
    assert whole["validation_tuned"].tolist() == [80.0, 90.0]
    assert whole["test_tuned"].tolist() == pytest.approx([75.4, 85.2])
    still_open = outcomes_frame([replace(found[0], chosen=None), found[1]])
    assert [*map(str, still_open["chosen"])] == ["<NA>", str(found[1].chosen)], "a whole number beside none"
    assert best["trials"].tolist() == [1, 2, 4] * 2
    assert best["mean"].tolist()[:3] == pytest.approx([65.0, np.mean([80, 80, 80, 70, 70, 60]), 80.0])


def test_no_gain_and_no_optimism_are_told_where_a_run_diverged(made):
    _, _, _, results, selections = made
    keep(results, [stopped(selections[0].tuned[0], "diverged", "round 2: the test loss is nan")])
    found = outcomes(selections, results)
    for number in ("gain", "optimism"):
        assert np.isnan(outcomes_frame(found)[number]).tolist() == [True, False]
    assert [line["gain"] for line in outcome_lines(found)] == [None, 0.0]


def test_files_lie_beside_the_page_and_go_with_the_tuning(made, tmp_path):
    example, cells, _, results, selections = made
    names = {"tuning.csv", "trials.csv", "budget.csv"}
    write_report(example, cells, results, tmp_path / "pages", selections)
    assert names < {path.name for path in (tmp_path / "pages" / "example").iterdir()}
    write_report(example, cells, results, tmp_path / "pages")
    assert not names & {path.name for path in (tmp_path / "pages" / "example").iterdir()}


def test_no_result_is_read_from_a_trial(made):
    """A trial's record stands in the numbers of trials alone."""
    _, cells, _, results, selections = made
    frame = collect(Reported.of(cells, selections).cells, results)
    assert not set(frame["key"]) & {planned.cell.key for one in selections for planned in one.study.cells}
    assert all(math.isfinite(value) for one in outcomes(selections, results) for value in one.default.values())


def test_mlflow_has_both_rows_and_a_run_for_each_study(made, tmp_path, empty_store, monkeypatch):
    example, cells, _, results, selections = made
    write_report(example, cells, results, tmp_path / "pages", selections)
    empty_store(results.root)
    store = Mirror(results)
    mirror(store, tmp_path / "pages")
    runs = store.client.search_runs([store.client.get_experiment_by_name("Example (example, own)").experiment_id])
    rows = {run.data.tags["row"]: run.data.metrics["mean"] for run in runs if "mean" in run.data.metrics}
    assert rows["FedAvg, default"] == pytest.approx(45.2)
    assert rows["FedAvg, tuned"] == pytest.approx(75.4)
    chosen = {run.data.tags["row"]: run.data for run in runs if run.data.tags["table"] == "tuning"}
    assert set(chosen) == {one.study.method for one in selections}
    assert chosen["fedavg"].tags["settings"].startswith("protocol.lr=")
    assert chosen["fedavg"].metrics["validation_tuned"] == 80.0
    assert chosen["fedavg"].metrics["gain"] == pytest.approx(30.2)
    assert chosen["fedavg"].metrics["seconds"] == 48.0
