"""The first page's ranking: what its headline says follows from the comparisons, and switches change what competes."""

from dataclasses import replace

import pytest

from fedspan.benchmark.report import site
from fedspan.benchmark.report.headline import headline, points, ratio
from fedspan.benchmark.report.overall import Comparisons, Ranked, choices
from fedspan.benchmark.report.overview import Overview, _without_known_gains, about, sentence
from fedspan.benchmark.report.ranking import Place
from fedspan.benchmark.report.statistics import Difference, Withheld
from fedspan.benchmark.report.summary import Summary
from tests.report.test_site import results_on, tuned_on

BOTH = {"a": 50.0, "b": 60.0}


def place(at=1, first=1, last=1, tested=True, ahead=0):
    return Place(0, 0, 3, first, last, ahead, 2, tested, at, shared=first != last)


def row(method, gain=None, leads=False, costs=(1.0, 1.0, 1.0), **places):
    return Ranked(method, place(**places), 2, 6, costs, gain, leads)


def gap(mean, low, high):
    return Difference(mean, low, high, 0.01, 2, 6, "")


BASE, BEHIND = row("fedavg", at=2, first=2, last=3), row("moon", gap(-1.0, -2, 0.5), at=2, first=2, last=3)


def test_a_leader_is_named_with_gain_interval_and_cost():
    said, more = headline([row("fedprox", gap(12.86, 10.44, 15.25), leads=True), BASE, BEHIND], "fedavg")
    assert said == "FedProx leads: +12.9 points over FedAvg (95% CI 10.4 to 15.3), at equal compute and traffic."
    assert more == (
        "It beats each of the 2 other methods; the chance of naming the wrong leader is about 5%. "
        "Its gain is that of 6 paired runs on 2 tasks."
    )


@pytest.mark.parametrize(
    ("by_divergence", "said"),
    [
        (2, "It beats each of the 2 other methods: on their common tasks it alone has no diverged run. "),
        (
            1,
            "It beats each of the 2 other methods, 1 of them for their diverged runs; among the others the chance ",
        ),
    ],
)
def test_a_lead_over_diverged_runs_is_no_tested_one(by_divergence, said):
    first = replace(row("fedprox", gap(2.0, 1.0, 3.0), leads=True), by_divergence=by_divergence)
    assert headline([first, BASE, BEHIND], "fedavg")[1].startswith(said)


def test_a_leader_of_some_methods_is_said_to_beat_those_that_share_a_task_with_it():
    elsewhere = [replace(row(name), place=replace(place(), group=1)) for name in ("ditto", "apfl")]
    first = row("fedprox", gap(2.0, 1.0, 3.0), leads=True)
    said = headline([first, BASE, BEHIND, *elsewhere], "fedavg")[1]
    assert said.startswith("It beats each of the 2 other methods that share a task with it; the chance")
    assert headline([first, BASE, *elsewhere], "fedavg")[1].startswith("It beats the other method that shares a task")


def test_a_ranking_counts_the_methods_that_are_behind_because_they_diverged():
    results = [
        replace(one, lost=(4,), seeds={s: v for s, v in one.seeds.items() if int(s) < 4} | {"3": 90.0})
        if one.method == "moon"
        else replace(one, seeds={**one.seeds, "3": one.mean, "4": one.mean})
        for one in results_on({"fedprox": BOTH, "fedavg": {"a": 40.0, "b": 40.0}, "moon": BOTH})
    ]
    ranking = Comparisons(results).ranking(frozenset(one.task for one in results))
    assert {row.method: row.by_divergence for row in ranking} == {"fedprox": 1, "fedavg": 1, "moon": 0}


@pytest.mark.parametrize(
    ("compute", "traffic", "said"),
    [
        (1.8, 2.3, ", at 1.8 times the compute and 2.3 times the traffic."),
        (1.04, 2.3, ", at about equal compute and 2.3 times the traffic."),
        (float("nan"), 0.5, ", at 0.5 times the traffic."),
        (1.0, 0.016, ", at equal compute and 0.02 times the traffic."),
        (float("nan"), float("nan"), " (95% CI 1.0 to 3.0)."),
    ],
)
def test_what_the_leader_costs_is_said_as_far_as_it_is_known(compute, traffic, said):
    first = row("fedprox", gap(2.0, 1.0, 3.0), leads=True, costs=(1.0, compute, traffic))
    assert headline([first, BASE], "fedavg")[0].endswith(said)


def test_without_a_leader_there_is_no_winner_whatever_the_means():
    tied = row("fedprox", gap(1.2, -0.3, 2.7), last=2, ahead=1)
    said, more = headline([tied, replace(BASE, place=place(last=2))], "fedavg")
    assert said == "No clear winner: FedProx or FedAvg may be the best."
    assert more == (
        "FedProx is ahead of more methods than any other: +1.2 points over FedAvg (95% CI −0.3 to 2.7), "
        "at equal compute and traffic."
    )
    elsewhere = replace(row("ditto"), place=replace(place(ahead=1), group=1))
    assert headline([tied, replace(BASE, place=place(last=2)), elsewhere], "fedavg")[1] == more, "no task in common"
    level = headline([tied, replace(BASE, place=place(last=2, ahead=1))], "fedavg")[1]
    assert level.startswith("FedProx is shown first: +1.2 points"), "both are ahead of as many"


def test_too_few_runs_name_nobody_and_say_why():
    few = row("fedprox", Withheld("3 pairs are too few"), tested=False, last=2)
    said, more = headline([few, replace(BASE, place=place(tested=False, last=2))], "fedavg")
    assert said == "No winner can be named."
    assert more == "3 pairs are too few."
    assert headline([few], "fedprox") == (said, "3 pairs are too few.")
    assert headline([replace(few, gain=None)], "fedprox") == (said, "Only one method has results.")
    apart = [replace(one, gain=None, place=replace(few.place, compared=0)) for one in (few, BASE)]
    near = [replace(few, gain=None), replace(few, gain=None, method="moon"), apart[1]]
    assert headline(near, "fedavg") == (said, "No method has a run in common with the reference.")
    assert headline(apart, "fedavg") == (said, "The methods have no run in common.")
    assert headline([], "") == ("No results for this choice.", "")


def test_a_method_with_too_few_runs_keeps_a_lead_from_being_called_one_and_is_not_passed_over():
    ahead = row("fedprox", gap(10.0, 9.7, 10.3), last=2, ahead=1)
    behind = replace(BASE, place=replace(place(at=2, first=2, last=3), contends=False))
    few = row("moon", Withheld("1 pair is too few"), tested=False, last=3)
    assert headline([ahead, behind, few], "fedavg")[0] == (
        "No clear winner: FedProx ranks first, but 1 other method cannot be compared."
    )
    assert headline([ahead, replace(BASE, place=place(last=2)), few, replace(few, method="fednova")], "fedavg")[0] == (
        "No clear winner: FedProx or FedAvg may be the best; 2 more methods cannot be compared."
    )
    assert headline([ahead, behind], "fedavg")[0] == (
        "No clear winner: FedProx ranks first, but it does not beat each other one."
    )


def test_methods_of_the_same_components_are_told_apart_by_their_settings():
    tied = [row(name, gap(1.2, -0.3, 2.7), last=3) for name in ("fedprox", "fedprox, batch_size=16")]
    behind = replace(BEHIND, place=replace(BEHIND.place, contends=False))
    said, _ = headline([*tied, behind], "moon")
    assert said == "No clear winner: FedProx; or FedProx, batch size 16 may be the best."


def test_the_reference_can_lead_itself():
    assert headline([row("fedavg", leads=True), BEHIND], "fedavg")[0] == "FedAvg leads."


@pytest.mark.parametrize(
    ("value", "said"), [(0.25, "0.3"), (-0.25, "−0.3"), (12.849, "12.8"), (-0.04, "0.0"), (0.0, "0.0"), (10.0, "10.0")]
)
def test_points_are_rounded_as_the_script_rounds_them(value, said):
    assert points(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.05, "0.1"), (0.049, "0.05"), (0.0163, "0.02"), (0.00025, "0.0003"), (0.0, "0"), (2.25, "2.3")],
)
def test_a_small_ratio_shows_its_first_digit(value, said):
    assert ratio(value) == said


def overview(results):
    return Overview(results, Comparisons(results))


def test_gains_are_those_over_the_default_algorithm_and_costs_relative_to_it():
    results = [
        replace(one, cost={"flops": {"a": 3e9, "b": 6e9}[one.task.partition] if one.method == "moon" else 2e9})
        for one in results_on({"moon": {"a": 52.0, "b": 63.0}, "fedavg": BOTH, "fednova": {"a": 40.0, "b": 40.0}})
    ]
    view = overview(results).view(frozenset(one.task for one in results))
    lines = {line.method: line for line in view.lines}
    assert view.reference == "fedavg"
    assert lines["fedavg"].gain is None
    assert lines["moon"].gain == (2.5, 2.5, 2.5), "as written: the runs scatter by hundredths of a point"
    assert lines["moon"].mean == pytest.approx(57.5, abs=0.05)
    assert lines["moon"].costs[0] == 2.25
    assert view.headline.startswith("MOON leads: +2.5 points over FedAvg")
    assert view.headline.endswith("at 2.3 times the compute.")


@pytest.mark.parametrize("moved", [0.0, 0.5])
def test_fleets_that_differ_in_their_clocks_alone_are_one_task_and_others_are_not(moved):
    results = results_on({"moon": BOTH, "fedavg": {"a": 48.0, "b": 59.0}})
    timed = [replace(one, task=replace(one.task, fleet="speeds")) for one in results]
    timed = [
        replace(one, seeds={seed: value + moved for seed, value in one.seeds.items()}) if one.method == "moon" else one
        for one in timed
    ]

    def ranked(chosen):
        ranking = Comparisons(chosen).ranking(frozenset(one.task for one in chosen))
        return {line.method: (line.tasks, line.gain) for line in ranking}

    assert ranked(results)["moon"][0] == 2
    assert (ranked([*results, *timed]) == ranked(results)) is (moved == 0)
    assert ranked([*results, *timed])["moon"][0] == (4 if moved else 2)
    late = [replace(one, seeds=dict(list(one.seeds.items())[1:])) for one in timed]
    assert ranked([*results, *late])["moon"][0] == (4 if moved else 2), "a seed that is still to come tells nothing"
    if not moved:
        assert ranked([*results, *late]) == ranked([*late, *results]) == ranked(results), "nor does it hide one"
    gone = [replace(one, seeds={}, lost=tuple(map(int, one.seeds))) for one in (*results, *timed)]
    assert ranked(gone)["moon"][0] == 4, "runs that diverged do not tell that their models are the same"


def test_tasks_on_which_one_of_two_methods_scores_the_same_models_are_one_task_for_these_two():
    """Pooled training has the same models on any partition: its runs there are one piece of evidence."""
    results = results_on({"moon": BOTH, "fedavg": {"a": 48.0, "b": 59.0}, "pooled": BOTH})
    pooled = results[-2].seeds
    results[-2:] = [
        replace(one, seeds=pooled, models={seed: f"model {seed}" for seed in pooled}) for one in results[-2:]
    ]
    results[:2] = [
        replace(one, models={seed: f"{one.task.partition} {seed}" for seed in one.seeds}) for one in results[:2]
    ]
    found, tasks = Comparisons(results), frozenset(one.task for one in results)
    assert found.alike["pooled"] == {results[-1].task: results[-2].task}
    assert (found.alike["moon"], found.alike["fedavg"]) == ({}, {})
    assert "3 pairs of runs on 1 task are too few" in found.gap("fedavg", "pooled", tasks).reason
    assert found.gap("fedavg", "pooled", tasks).mean == pytest.approx((48.0 + 59.0) / 2 - 50.0, abs=0.1), "over both"
    assert (found.gap("fedavg", "moon", tasks).tasks, found.gap("fedavg", "moon", tasks).pairs) == (2, 6)
    apart = [replace(one, seeds=dict.fromkeys("789", 50.0)) if one is results[2] else one for one in results]
    assert Comparisons(apart).gap("fedavg", "pooled", tasks) is None, "no seed has runs of both tasks"


def test_a_task_repeated_under_another_clock_is_one_task_in_whatever_order_they_come():
    results = [
        replace(one, models={seed: f"{one.method} {seed}" for seed in one.seeds})
        for one in results_on({"moon": {"a": 60.0}, "fedavg": {"a": 50.0}})
    ]
    timed = [replace(one, task=replace(one.task, fleet="speeds")) for one in results]
    tasks = frozenset(one.task for one in (*results, *timed))
    for order in ((*results, *timed), (*timed, *results)):
        gap = Comparisons(order).gap("fedavg", "moon", tasks)
        assert "3 pairs of runs on 1 task are too few" in gap.reason


def test_a_mean_counts_a_task_once_whatever_the_clocks():
    results = results_on({"moon": {"a": 60.0, "b": 50.0}, "fedavg": {"a": 50.0, "b": 50.0}})
    timed = [replace(one, task=replace(one.task, fleet="speeds")) for one in results if one.task.partition == "a"]
    assert len(timed) == 2
    view = overview([*results, *timed]).view(frozenset(one.task for one in (*results, *timed)))
    moon, fedavg = (next(line for line in view.lines if line.method == name) for name in ("moon", "fedavg"))
    assert round(moon.mean - fedavg.mean, 1) == moon.gain[0]
    assert "2 fleets, 3 seeds, 2 tasks" in view.about
    assert len(view.columns) == 3


def test_of_two_settings_of_the_default_algorithm_the_one_as_it_comes_is_the_reference():
    results = [replace(one, family="fedavg") for one in results_on({"fedavg(other=1)": BOTH, "fedavg": BOTH})]
    assert overview(results).view(frozenset(one.task for one in results)).reference == "fedavg"


def test_a_mean_is_over_the_tasks_that_all_rows_have():
    results = results_on({"fedavg": {"a": 50.0, "b": 90.0}, "fedprox": {"a": 60.0}})
    view = overview(results).view(frozenset(one.task for one in results))
    assert {line.method: round(line.mean) for line in view.lines} == {"fedavg": 50, "fedprox": 60}
    assert len(view.columns) == 2


def test_a_mean_over_what_is_left_of_diverged_runs_says_so(tmp_path):
    results = [
        replace(one, lost=(3, 4) if one.method == "scaffold" else ())
        for one in results_on({"fedavg": BOTH, "scaffold": BOTH})
    ]
    summary = Summary("b", "B", "", "paper", "b/", {"done": 12}, tuple(results), ())
    page = site.pages(tmp_path, [summary], [])[tmp_path / "index.html"].decode()
    rows = {name: page.partition(f">{name}</a>")[2].partition("</tr>")[0] for name in ("FedAvg", "SCAFFOLD")}
    assert [rows[name].count("2 diverged") for name in rows] == [0, 2]


def test_tuned_results_compete_among_themselves():
    marked = tuned_on({"fedavg": BOTH, "fedprox": {"a": 55.0, "b": 65.0}, "fedavg, tuned": {"a": 70.0, "b": 80.0}})
    first, tasks = overview(marked), frozenset(one.task for one in marked)
    assert first.variants == [(False, False), (True, False)]
    assert [line.method for line in first.view(tasks).lines] == ["fedprox", "fedavg"]
    assert [line.method for line in first.view(tasks, tuned=True).lines] == ["fedavg, tuned"]
    assert first.view(tasks, tuned=True).reference == "fedavg, tuned"
    assert [line.note for line in first.view(tasks, tuned=True).lines] == [""], "the switch says it once"


def on_two_datasets():
    """Return results of two methods on two tasks of the digits and of a third one on another dataset."""
    digits = results_on({"fedavg": BOTH, "fedprox": BOTH})
    [other] = results_on({"moon": {"a": 70.0}})
    return [replace(other, task=replace(other.task, dataset="mnist")), *digits]


def test_the_page_opens_with_the_dataset_that_most_methods_have():
    results = on_two_datasets()
    assert overview(results).opening == {one.task for one in results[1:]}
    assert overview([replace(one, ablation=True) for one in results[1:]] + results[:1]).opening == {results[0].task}
    assert overview([]).opening == frozenset()
    assert overview([]).scale == ""


def test_the_page_opens_with_the_scale_that_most_methods_have():
    """A few cells at the papers' scale do not hide what every method has at another one."""
    paper = results_on({"moon": {"a": 70.0}})
    own = [replace(one, task=replace(one.task, scale="own")) for one in results_on({"fedavg": BOTH, "fedprox": BOTH})]
    assert overview([*own, *paper]).opening == {one.task for one in own}
    assert overview([*own, *paper]).scale == own[0].task.scale != paper[0].task.scale
    assert overview([*own[:2], *paper]).opening == {paper[0].task}, "equally many: the papers' scale"


def test_the_page_opens_with_tuned_methods_where_they_compare():
    """Default settings favour the methods that they happen to suit."""
    default = {"fedavg": BOTH, "fedprox": BOTH, "moon": BOTH}
    few, alone = ({f"{name}, tuned": BOTH for name in names} for names in (["fedavg", "fedprox"], ["fedavg"]))
    opened = overview(tuned_on(default | few)).opening_view
    assert opened.tuned
    assert {line.method for line in opened.lines} == set(few)
    assert not overview(tuned_on(default | alone)).opening_view.tuned, "one tuned method compares with nothing"
    assert overview([]).opening_view is None


def test_the_page_does_not_open_with_ablations_where_a_method_competes():
    [alone] = results_on({"moon": {"a": 70.0}})
    smoke = [replace(one, task=replace(one.task, scale="smoke")) for one in results_on({"fedavg": BOTH})]
    assert overview([replace(alone, ablation=True), *smoke]).scale == "smoke"
    assert overview([alone, *smoke]).scale == "paper"


def test_the_page_opens_with_the_scale_smoke_only_where_there_is_no_other():
    default = results_on({"moon": {"a": 70.0}})
    tuned = tuned_on({"fedavg, tuned": BOTH, "fedprox, tuned": BOTH})
    smoke = [replace(one, task=replace(one.task, scale="smoke")) for one in tuned]
    assert not overview([*default, *smoke]).opening_view.tuned
    assert overview([*default, *smoke]).scale == "paper"
    assert overview(smoke).opening_view.tuned
    assert overview(smoke).scale == "smoke"


def test_the_page_opens_with_tasks_of_one_kind_of_test_images():
    shared = results_on({"fedavg": BOTH, "fedprox": BOTH})
    own = [replace(one, task=replace(one.task, tested="own")) for one in shared[:2]]
    first = overview([*own, *shared])
    assert first.opening == {one.task for one in shared}
    assert first.data()["first"] == {
        "scale": "paper", "dataset": shared[0].task.dataset, "tested": "shared", "tuned": False,
    }  # fmt: skip
    assert frozenset(one.task for one in own) in set(choices(first.tasks)), "a filter chooses the others"


def test_columns_name_the_dataset_where_there_are_several():
    results = on_two_datasets()
    first = overview(results)
    assert first.view(first.opening).headings == ("a", "b")
    assert first.view(frozenset(one.task for one in results)).headings == ("MNIST", "Digits, a", "Digits, b")


@pytest.mark.parametrize(
    ("repeated", "refuted", "said"),
    [
        ((1, 2), (0, 0), "3 of 6"),
        ((0, 3), (0, 0), "3 of 6"),
        ((0, 0), (0, 0), "not yet"),
        ((2, 2), (0, 1), "4 of 6, 1 differed"),
        ((0, 0), (0, 1), "0 of 6, 1 differed"),
    ],
)
def test_a_row_says_how_many_of_its_runs_were_repeated(repeated, refuted, said):
    results = [
        replace(one, repeated=repeated[i], refuted=refuted[i]) for i, one in enumerate(results_on({"fedavg": BOTH}))
    ]
    [line] = overview(results).view(frozenset(one.task for one in results)).lines
    assert line.repeated == said


def test_tasks_are_told_in_words():
    [first, second] = (one.task for one in results_on({"fedavg": BOTH}))
    skewed = replace(
        first, dataset="cifar10(limit=5000, content=78086fc2…)", partition="dirichlet(alpha=0.05)", participation=0.2,
        model="convnet(norm=batch)", local_epochs=2,
    )  # fmt: skip
    assert sentence(skewed) == (
        "CIFAR-10 (5,000 images), 10 clients (20% a round), alpha 0.05, ConvNet (batch norm), 5 rounds of 2 epochs"
    )
    assert about([first, second], results_on({"fedavg": BOTH}), 2) == (
        "Digits, 10 clients, 2 partitions, Small CNN, 5 rounds, 3 seeds, 2 tasks"
    )


def test_a_smoke_test_proves_no_method_better():
    [usual] = (one.task for one in results_on({"fedavg": {"a": 50.0}}))
    quick = replace(usual, scale="smoke")
    warning = ". At the scale smoke, the numbers only show that everything works"
    assert about([quick], [], 1) == sentence(quick) + ", 1 task" + warning
    assert warning not in about([usual, quick], [], 2) + about([usual], [], 1)


def test_a_ranking_of_tuned_methods_tells_what_each_was_given():
    results = [replace(one, tuned=True, budget="12 trials on seed 1") for one in results_on({"fedavg": {"a": 50.0}})]
    said = f"{sentence(results[0].task)}, 3 seeds, 1 task"
    assert about([results[0].task], results, 1) == f"{said}. Each method was tuned on each task: 12 trials on seed 1"
    for budget in ("60 trials", ""):  # several, or one that an earlier version did not write
        assert about([results[0].task], [*results, replace(results[0], budget=budget)], 1) == said


def test_a_fleet_is_told_where_clients_fail():
    [usual] = (one.task for one in results_on({"fedavg": {"a": 50.0}}))
    lossy = replace(usual, fleet="dropout(rate=0.3)")
    assert sentence(lossy) == sentence(usual) + ", Dropout (rate 0.3)"
    assert about([lossy], [], 1) == sentence(lossy) + ", 1 task"
    assert about([usual, lossy], [], 2) == sentence(usual) + ", 2 fleets, 2 tasks"
    assert sentence(replace(usual, unseen=0.2)) == sentence(usual) + ", 20% of the clients unseen"


def test_a_ranking_with_ablations_leaves_out_only_gains_that_the_one_without_them_has_too():
    plain = ["", "", "", 0, [[0, 1, 0, 0], [1, 2, 0, 0, 10, 5, 15], [2, 3, 0, 0, 4, 3, 5]]]
    rows = [[3, 1, 0, 0, 9, 8, 9], [0, 2, 0, 0], [1, 3, 0, 0, 10, 5, 15], [2, 4, 0, 0, 7, 6, 8]]
    packed = _without_known_gains(["", "", "", 0, rows], plain)
    assert packed[-1] == [rows[0], rows[1], rows[2][:4], rows[3]]
    for alone in (None, ["", "", "", 1, plain[-1]]):  # nothing to leave out, or gains over another method
        assert _without_known_gains(["", "", "", 0, rows], alone)[-1] == rows


@pytest.mark.slow
@pytest.mark.parametrize("ablations", [0, 15])
def test_fifty_methods_and_their_ablations_on_twenty_tasks_weigh_300_kilobytes_at_most(tmp_path, ablations):
    bases = ("fedavg", "fedprox", "fedavgm", "moon", "scaffold", "fednova", "fedadam", "fedyogi", "fedbn", "fedsam")
    addons = ("", " + feddecorr", " + ccvr", " + babu", " + decov", " + spherefed", " + ffc")
    methods = [base + addon for addon in addons for base in bases][: 50 + ablations]
    made = results_on({method: {"a": 50.0 + i} for i, method in enumerate(methods)}, noise=1.0)
    places = [(d, a, c) for d in ("cifar10", "cifar100") for a in (0.05, 0.1, 0.5, 1.0, 5.0) for c in (10, 100)]
    tasks = [
        replace(made[0].task, dataset=d, partition=f"dirichlet(alpha={a})", skew=a, clients=c, skew_field="alpha")
        for d, a, c in places
    ]
    cost = {"seconds": 1234.5, "flops": 1.2345e15, "bytes_up": 1e6,
            "bytes_down": 1e6, "memory_bytes": 1e8}  # fmt: skip
    results = tuple(
        replace(one, task=task, cost=cost, point=f"{20 * i + j:020x}", ablation=i >= 50)
        for i, one in enumerate(made)
        for j, task in enumerate(tasks)
    )
    summary = Summary("big", "Big", "", "paper", "big/", {"done": 3000}, results, ())
    files = site.pages(tmp_path, [summary], [(f"board{i}", f"A board without results, number {i}") for i in range(31)])
    assert len(files[tmp_path / "index.html"]) <= 300_000
