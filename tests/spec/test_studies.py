"""Trials of tuned boards: what they are follows from task, method and space alone."""

from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.search import choice, linear, log, typed
from fedspan.benchmark.spec.board import read_board
from fedspan.benchmark.spec.plan import plan, plan_grid
from fedspan.benchmark.spec.presets import yaml_files
from fedspan.benchmark.spec.studies import proposals, studies, studies_of

TUNE = {"trials": 4, "seeds": [100], "validation": 0.2}


@pytest.fixture
def tuned(tmp_path):
    """Return a function that returns the studies of a board: its grid, how it tunes, and what is asked for."""

    def made(grid=({"algorithm": "fedprox"},), asked=None, more=None, **tune):
        path = tmp_path / "mine.yaml"
        base = {"seed": [0, 1], "diagnostics.spectra": True}
        path.write_text(yaml.safe_dump({"base": base, "grid": list(grid), "tune": TUNE | tune} | (more or {})))
        return studies(read_board(path), asked or {})

    return made


def keys(study):
    return [planned.cell.key for planned in study.cells]


def settings_of(study):
    return [tuple(study.values_of(trial).values()) for trial in study.trials]


# drawing points -----------------------------------------------------------------------------------

spaces = st.dictionaries(
    st.sampled_from("abcd"),
    st.sampled_from([log(1e-3, 1.0), linear(0.0, 2.0), choice(1, 2, 3), choice(0.0), typed(linear(2, 5), int)]),
    min_size=1,
)


def names(points):
    return [tuple(point.items()) for point in points]


def first(space, seed, count):
    return names(point for point, _ in zip(proposals(space, seed), range(count), strict=False))


@given(spaces, st.integers(0, 2**64 - 1), st.integers(1, 30), st.integers(0, 30))
@settings(max_examples=30)
def test_points_lie_in_their_space_and_none_comes_twice(space, seed, count, more):
    found = first(space, seed, count + more)
    assert found[:count] == first(space, seed, count), "more points begin with the same ones"
    assert len(set(found)) == len(found)
    for point in found:
        for name, value in point:
            part = space[name]
            assert value in part.every() if part.size < 99 else part.values[0] <= value <= part.values[1]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(0, 2**64 - 1))
@settings(max_examples=30)
def test_of_a_finite_space_every_point_comes(sizes, seed):
    space = {str(number): choice(*range(size)) for number, size in enumerate(sizes)}
    found = names(proposals(space, seed))
    expected = 1
    for size in sizes:
        expected *= size
    assert len(found) == len(set(found)) == expected


def test_what_the_sequence_leaves_out_of_a_finite_space_comes_at_its_end(monkeypatch):
    monkeypatch.setattr("fedspan.benchmark.spec.studies.DRAWS", 4)
    space = {"a": choice(*range(3)), "b": choice(0)}
    monkeypatch.setattr(type(space["a"]), "at", lambda part, u: part.values[0])
    assert names(proposals(space, 7)) == [(("a", 0), ("b", 0)), (("a", 1), ("b", 0)), (("a", 2), ("b", 0))]


def test_a_space_of_more_points_than_an_integer_of_64_bits_counts_is_not_listed():
    huge = SimpleNamespace(size=2**32, at=lambda u: u, every=lambda: pytest.fail("its values were listed"))
    assert len(first({"a": huge, "b": huge}, 1, 3)) == 3


def test_the_sequence_is_the_same_on_every_machine():
    """Another one would be other trials for every board; `RULES` says so in their keys."""
    space = {"a": log(1e-4, 1.0), "b": linear(0.0, 1.0)}
    assert first(space, 1, 3) == [
        (("a", 0.0014), ("b", 0.163)),
        (("a", 0.0212), ("b", 0.938)),
        (("a", 0.225), ("b", 0.323)),
    ]


# trials -------------------------------------------------------------------------------------------


def test_every_method_has_as_many_trials_and_the_first_has_the_defaults(tuned):
    grid = [{"algorithm": ["fedavg", "fedprox"]}, {"algorithm": "fedavg", "addons": [["feddecorr"], ["ccvr"]]}]
    found = tuned(grid, space={"protocol.lr": {"log": [0.01, 1.0]}})
    assert len(found) == 4
    for study in found:
        assert [trial.number for trial in study.trials] == [0, 1, 2, 3]
        assert len(set(keys(study))) == 4
        assert study.trials[0].values == {}
        assert not study.exhausted


def test_a_trial_has_the_tuning_seeds_and_holds_images_out_and_measures_nothing_else(tuned):
    [study] = tuned(seeds=[7, 8])
    for trial in study.trials:
        assert [planned.cell.seed for planned in trial.cells] == [7, 8]
        for planned in trial.cells:
            assert planned.cell.protocol.validation == 0.2
            assert not planned.cell.diagnostics.spectra
    for trial in (study.trials[0], study.trials[1]):
        reported = [planned.cell for planned in study.tuned(trial)]
        assert [(cell.seed, cell.protocol.validation, cell.diagnostics.spectra) for cell in reported] == [
            (0, 0.0, True),
            (1, 0.0, True),
        ]


def test_the_reported_cells_are_those_of_the_board_with_the_values_of_the_trial(tuned):
    [study] = tuned()
    assert [planned.cell.key for planned in study.tuned(study.trials[0])] == [p.cell.key for p in study.default]
    trial = study.trials[2]
    for planned in study.tuned(trial):
        assert planned.cell.protocol.lr == trial.values["protocol.lr"]
        assert planned.cell.algorithm.mu == trial.values["algorithm.mu"]


def test_a_space_with_fewer_points_than_trials_is_tried_whole_and_once(tuned):
    [study] = tuned(trials=9, space={"protocol.lr": [0.1, 0.01], "algorithm.mu": "fixed"})
    assert sorted(settings_of(study)) == [(0.01,), (0.1,)]
    assert study.exhausted
    [whole] = tuned(trials=2, space={"protocol.lr": [0.1, 0.01], "algorithm.mu": "fixed"})
    assert not whole.exhausted


def test_a_method_with_nothing_to_search_has_one_trial(tuned):
    [study] = tuned([{"algorithm": "fedavg"}], space={"protocol.lr": "fixed"})
    assert [trial.values for trial in study.trials] == [{}]
    assert study.exhausted


def test_another_method_adds_its_trials_alone(tuned):
    before = {key for study in tuned() for key in keys(study)}
    after = tuned([{"algorithm": ["fedprox", "moon"]}])
    assert {key for study in after[:1] for key in keys(study)} == before
    assert not before & set(keys(after[1]))


def test_boards_that_tune_the_same_share_their_trials(tuned):
    """Whatever they report and measure, and whatever the default of what is tuned."""
    [here] = tuned()
    [there] = tuned([{"algorithm": "fedprox", "algorithm.mu": 0.5, "protocol.lr": 0.3, "seed": [5]}], trials=6)
    assert set(keys(here)[1:]) < set(keys(there)[1:]), "one more, in place of a point that is a default here"
    assert keys(here)[0] != keys(there)[0]


@pytest.mark.parametrize(
    "grid",
    [
        {"algorithm": "fedprox", "clients": 4},
        {"algorithm": "fedprox", "protocol.rounds": 3},
        {"algorithm": "fedprox", "addons": [["ffc"]], "addon.ffc.ridge": 0.0},
    ],
)
def test_another_task_or_method_draws_other_points(tuned, grid):
    kept = {"space": {"addon.ffc.ridge": "fixed"}} if "addons" in grid else {}
    assert settings_of(tuned()[0])[1:] != settings_of(tuned([grid], **kept)[0])[1:]


def test_where_images_lie_changes_no_trial_and_concerns_the_boards_that_have_such_a_dataset(tmp_path):
    boards = []
    for name, task in {"a": {"dataset": "digits"}, "b": {"dataset": "cifar10", "dataset.content": "0" * 64}}.items():
        boards.append(str(tmp_path / f"{name}.yaml"))
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"grid": [{**task, "seed": 0}], "tune": TUNE}))
    plain, placed = (studies_of({"board": boards, **place}) for place in ({}, {"dataset.source": ["photographs"]}))
    assert [keys(study) for study in placed] == [keys(study) for study in plain]
    assert [one.overrides.get("dataset.source") for study in placed for one in study.cells[:1]] == [None, "photographs"]


def test_each_task_has_a_study_of_its_own(tuned):
    found = tuned([{"algorithm": "fedprox", "partition.alpha": [0.1, 1.0]}])
    assert [study.points[0]["partition.alpha"] for study in found] == [0.1, 1.0]
    assert [study.task for study in found] == [
        f"Digits, 10 clients, alpha {alpha}, Small CNN" for alpha in ("0.1", "1")
    ]


def test_tasks_that_differ_in_images_or_model_have_other_names(tuned):
    found = tuned([{"algorithm": "fedprox", "dataset.limit": [100, 200], "model": ["small_cnn", "convnet"]}])
    assert len({study.task for study in found}) == 4


def test_a_scale_and_a_command_change_how_a_board_tunes(tuned):
    more = {"scales": {"smoke": {"tune.trials": 2, "seed": [3]}}}
    assert [len(study.trials) for study in tuned(more=more)] == [4]
    assert [len(study.trials) for study in tuned(more=more, asked={"scale": ["smoke"]})] == [2]
    asked = {"scale": ["smoke"], "tune.trials": [3], "tune.seeds": [8, 9]}
    [study] = tuned(more=more, asked=asked)
    assert [[planned.cell.seed for planned in trial.cells] for trial in study.trials] == 3 * [[8, 9]]


def test_a_setting_of_an_add_on_concerns_the_methods_that_have_it(tuned):
    grid = ({"algorithm": "fedprox"}, {"addons": [["feddecorr"]]})
    proximal, decorrelated = tuned(grid, asked={"addon.feddecorr.form": ["paper"]})
    assert [len(proximal.trials), len(decorrelated.trials)] == [4, 4]
    assert keys(proximal) == keys(tuned(grid)[0])
    assert len(proximal.default) == len(proximal.tuned(proximal.trials[1])) == 2


def test_a_command_may_leave_out_the_method_whose_setting_a_board_searches(tuned):
    grid, space = ({"algorithm": ["fedprox", "fednova"]},), {"algorithm.mu": [0.1, 1.0], "protocol.lr": "fixed"}
    [study] = tuned(grid, space=space, asked={"algorithm": ["fednova"]})
    assert study.space == {}


def test_no_trial_depends_on_how_a_space_is_spelled_or_on_the_order_of_its_lines(tuned):
    one = {
        "protocol.momentum": {"linear": [0, 0.9]},
        "protocol.weight_decay": {"log": [1e-6, 1]},
        "algorithm.mu": [1, 2],
    }
    other = {
        "algorithm.mu": [1.0, 2.0],
        "protocol.weight_decay": {"log": [1e-6, 1.0]},
        "protocol.momentum": {"linear": [0.0, 0.9]},
    }
    assert keys(tuned(space=one)[0]) == keys(tuned(space=other)[0])


def test_a_board_may_search_other_settings_and_other_values(tuned):
    space = {"protocol.lr": "fixed", "algorithm.mu": {"linear": [1, 2]}, "protocol.batch_size": {"log": [4, 64]}}
    [study] = tuned(space=space)
    assert set(study.space) == {"algorithm.mu", "protocol.batch_size"}
    for trial in study.trials[1:]:
        assert 1 <= trial.values["algorithm.mu"] <= 2
        assert type(trial.values["protocol.batch_size"]) is int


def test_a_board_that_does_not_tune_has_no_studies():
    assert studies_of({"board": ["digits"]}) == []
    assert studies_of({"seed": [0]}) == []


@pytest.mark.parametrize("name", sorted(name for name in yaml_files("boards") if name.endswith("_tuned")))
def test_the_tuned_boards_of_this_checkout_have_trials_at_every_scale(name):
    board = read_board(yaml_files("boards")[name])
    for scale in (board.full, *board.scales):
        found = studies(board, {"scale": [scale]})
        assert {planned.cell.key for study in found for planned in study.default} == {
            planned.cell.key for planned in plan_grid({"board": [name], "scale": [scale]})
        }
        assert all(planned.cell.protocol.trial for study in found for planned in study.cells)


# what makes no sense ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"trials": 0}, r"mine\.yaml: tune\.trials must be at least 1 \(the defaults\), got 0"),
        ({"seeds": []}, r"tune\.seeds must name a seed"),
        ({"seeds": [3, 3]}, r"tune\.seeds must name different seeds"),
        ({"validation": 0.0}, r"tune\.validation must lie in \(0, 1\), got 0\.0"),
        ({"trails": 3}, r"unknown field 'tune\.trails'; did you mean 'trials'"),
        ({"space": {"protocol.lr": []}}, r"mine\.yaml: tune\.space\.protocol\.lr: choice\(\) is empty"),
        ({"space": {"protocol.lr": {"log": [1.0, 0.1]}}}, r"tune\.space\.protocol\.lr: log\(1\.0, 0\.1\) is empty"),
        ({"space": {"protocol.lr": {"log": [0.1]}}}, r"must be a list of values, \{log: \[low, high\]\}, .* or fixed"),
        ({"space": {"protocol.lr": "fix"}}, r"must be a list of values"),
        ({"space": {"protocol.lx": [1]}}, r"no method of the board has 'protocol\.lx'; did you mean 'protocol\.lr'"),
        ({"space": {"algorithm.rho": [1]}}, r"no method of the board has 'algorithm\.rho'"),
        ({"space": {"protocol.validation": [0.1]}}, r"hold out the same share; set it as tune\.validation"),
        ({"space": {"protocol.rounds": [8, 80]}}, r"'protocol\.rounds' is the same for all methods of a task"),
        ({"space": {"algorithm.mu": [-1.0, 1.0]}}, r"algorithm\.mu, .*, leaves its domain: .*must not be negative"),
        ({"space": {"protocol.lr": {"linear": [0, 1]}}}, r"leaves its domain: protocol\.lr must be positive, got 0"),
        ({"space": {"protocol.batch_size": {"log": [1.5, 3]}}}, r"the ends of a range of whole numbers must be whole"),
        ({"seeds": [100, 1]}, r"tune\.seeds: 1 is also a reported seed"),
    ],
)
def test_what_makes_no_sense_is_one_line(tuned, tune, message):
    with pytest.raises(UserError, match=message) as caught:
        tuned(**tune)
    assert "\n" not in str(caught.value)


def test_a_board_does_not_vary_what_it_searches(tuned):
    """Its tuned rows would be several of one name."""
    with pytest.raises(UserError, match=r"^tune.space: the board both tunes and varies protocol.lr for"):
        tuned(grid=({"algorithm": "fedprox", "protocol.lr": [0.1, 0.2]},))
    assert len(tuned(grid=({"algorithm": "fedprox", "protocol.lr": 0.1, "partition.alpha": [0.1, 0.2]},))) == 2


def test_tuning_of_a_board_that_does_not_tune_is_refused():
    with pytest.raises(UserError, match=r"board 'digits' does not tune; leave out 'tune\.trials'"):
        plan_grid({"board": ["digits"], "tune.trials": [3]})


def test_the_plan_of_a_tuned_board_has_its_defaults(tuned):
    [study] = tuned()
    assert [planned.cell.key for planned in study.default] == [
        planned.cell.key for planned in plan([dict(point) for point in study.points])
    ]
