import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.spec.board import Figure, Scale, Table, load_board, product, read_board
from fedspan.benchmark.spec.cell import key_of
from fedspan.benchmark.spec.plan import placed, plan, plan_grid
from fedspan.benchmark.spec.presets import yaml_files
from tests.report.made import board as grid_of

names = st.sampled_from("abcd")
values = st.one_of(st.integers(), st.text(max_size=3), st.booleans(), st.none())


@given(st.dictionaries(names, st.lists(values, min_size=1, max_size=3)))
def test_lists_are_axes_and_a_grid_is_their_product(axes):
    points = product(axes)
    expected = [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]
    assert points == expected


@given(st.dictionaries(names, st.one_of(values, st.just([]))))
def test_plain_values_and_empty_lists_are_fixed(axes):
    assert product(axes) == [axes]


def test_a_list_in_a_list_is_one_value():
    assert product({"addons": [[], ["a"], ["a", "b"]]}) == [{"addons": []}, {"addons": ["a"]}, {"addons": ["a", "b"]}]


def test_a_list_of_mappings_sets_several_keys_at_once_and_its_own_name_is_a_label():
    axes = {"skew": [{"partition": "iid"}, {"partition": "dirichlet", "partition.alpha": 0.1}], "seed": [0, 1]}
    assert product(axes) == [
        {"partition": "iid", "seed": 0},
        {"partition": "iid", "seed": 1},
        {"partition": "dirichlet", "partition.alpha": 0.1, "seed": 0},
        {"partition": "dirichlet", "partition.alpha": 0.1, "seed": 1},
    ]


@pytest.fixture
def board(tmp_path):
    def write(text):
        path = tmp_path / "board.yaml"
        path.write_text(text)
        return read_board(path)

    return write


def test_a_board_of_one_empty_sub_grid_is_the_default_cell(board):
    default = board("grid: [{}]")
    assert default.expand() == [{}]
    assert (default.name, default.title, default.tables, default.figures) == ("board", "board", (Table(),), ())


@pytest.mark.parametrize("text", ["", "title: T\ndescription: D", "grid: []", "tables: [{rows: [method]}]"])
def test_a_board_without_cells_is_refused(board, text):
    with pytest.raises(UserError, match=r"board\.yaml: it declares no cells; add base, grid or boards"):
        board(text)


def test_sub_grids_are_added_and_repetitions_dropped(board):
    points = board("base: {clients: 3}\ngrid: [{seed: [0, 1]}, {seed: [1, 2]}]").expand()
    assert points == [{"clients": 3, "seed": seed} for seed in (0, 1, 2)]


def test_a_sub_grid_replaces_the_base(board):
    assert board("base: {seed: 5}\ngrid: [{seed: [0, 1]}]").expand() == [{"seed": 0}, {"seed": 1}]


def test_settings_from_outside_replace_axes(board):
    points = board("grid: [{seed: [0, 1], clients: [2, 3]}]").expand({"seed": [7], "protocol.rounds": [1]})
    assert points == [{"seed": 7, "clients": n, "protocol.rounds": 1} for n in (2, 3)]


SCALED = "base: {protocol.rounds: 9}\nscales: {smoke: {protocol.rounds: 1}}\ngrid: [{seed: [0, 1]}]"


def test_a_scale_replaces_settings_and_what_is_asked_for_replaces_the_scale(board):
    scaled = board(SCALED)
    assert scaled.expand({"scale": ["smoke"]}) == [{"protocol.rounds": 1, "seed": s, "scale": "smoke"} for s in (0, 1)]
    asked = scaled.expand({"scale": ["smoke"], "protocol.rounds": [4]})
    assert {point["protocol.rounds"] for point in asked} == {4}
    assert scaled.expand({"scale": ["own"]})[0] == {"protocol.rounds": 9, "seed": 0, "scale": "own"}


def test_what_is_asked_for_is_seen_by_the_rules_of_a_scale_and_holds_for_the_full_cell_too(board):
    rule = "{when: {partition: dirichlet, algorithm: fedprox}, set: {partition.min_size: 2}}"
    scaled = board(
        f"base: {{partition: iid}}\nscales: {{smoke: {{protocol.rounds: 1, tuned: [{rule}]}}}}\ngrid: [{{}}]"
    )
    asked = {"partition": ["dirichlet"], "partition.alpha": [0.3], "algorithm": ["fedprox"], "seed": [4]}
    [full], [smoke] = plan(scaled.expand(asked)), plan(scaled.expand(asked | {"scale": ["smoke"]}))
    assert (smoke.cell.partition.min_size, full.cell.partition.min_size) == (2, 10)
    assert smoke.origin.key == full.cell.key


RULES = "tuned: [{when: {dataset: cifar10}, set: {protocol.rounds: 2}}]"


def test_a_setting_that_only_the_plugin_of_a_scale_has_may_be_asked_for(board):
    scaled = board(f"scales: {{smoke: {{model: small_cnn, {RULES}}}}}\ngrid: [{{model: mobilenet_v2}}]")
    [smoke] = plan(scaled.expand({"scale": ["smoke"], "model.width": [8]}))
    assert (smoke.cell.model.width, smoke.origin.model.name) == (8, "mobilenet_v2")
    with pytest.raises(UserError, match=r"unknown setting 'model.width' of model=mobilenet_v2"):
        plan(scaled.expand({"model.width": [8]}))


@pytest.mark.parametrize("place", ["base: {dataset.source: PHOTOS}\n", ""])
def test_where_images_lie_concerns_the_datasets_that_have_the_setting_at_a_scale_with_rules_too(board, place):
    scaled = board(f"{place}scales: {{smoke: {{{RULES}}}}}\ngrid: [{{dataset: [cifar10, digits]}}]")
    points = scaled.expand({"scale": ["smoke"]} | ({} if place else {"dataset.source": ["PHOTOS"]}))
    assert [(point["dataset"], point.get("protocol.rounds")) for point in points] == [("cifar10", 2), ("digits", None)]
    assert [point.get("dataset.source") for point in placed(points)] == ["PHOTOS", None]


def test_a_plugin_that_is_asked_for_takes_the_place_of_another_and_of_its_settings(board):
    mine = board("""
grid:
  - algorithm: [{algorithm: moon, algorithm.mu: 0.5}, {algorithm: fedprox, algorithm.mu: 0.1}]
    addons: [{addons: [feddecorr, etf], addon.feddecorr.form: paper, addon.etf.temperature: 1.0}]
""")
    points = mine.expand({"algorithm": ["fedprox"], "addons": [["etf"]]})
    assert points == [
        {"algorithm": "fedprox", "addons": ["etf"], "addon.etf.temperature": 1.0},
        {"algorithm": "fedprox", "algorithm.mu": 0.1, "addons": ["etf"], "addon.etf.temperature": 1.0},
    ]
    assert plan(points)


def test_add_ons_that_are_no_list_are_refused_as_without_a_board(board):
    with pytest.raises(UserError, match="addons must be a list, got 5"):
        plan(board("grid: [{addons: [[feddecorr]]}]").expand({"addons": [5]}))


def test_a_scale_that_the_board_lacks_is_an_error(board):
    with pytest.raises(UserError, match="declares no scale 'small'; it has own, smoke"):
        board(SCALED).expand({"scale": ["small"]})
    with pytest.raises(UserError, match="unknown scale 'smok'; did you mean 'smoke'"):
        board(SCALED).expand({"scale": ["smok"]})


PRINTED = {
    "a table": "tables: [{printed: [feddecorr_tpami/1]}]\n",
    "a figure": "printed: [feddecorr_iclr2023/figure_4]\n",
}


@pytest.mark.parametrize("printed", PRINTED.values(), ids=PRINTED)
def test_the_full_size_of_a_board_that_reproduces_something_printed_is_paper(board, printed):
    asked, smoke = board(printed + SCALED).expand(), board(printed + SCALED).expand({"scale": ["smoke"]})
    assert {planned.cell.scale for planned in plan(asked)} == {"paper"}
    assert {planned.origin.key for planned in plan(smoke)} == {planned.cell.key for planned in plan(asked)}
    with pytest.raises(UserError, match="declares no scale 'own'; it has paper, smoke"):
        board(printed + SCALED).expand({"scale": ["own"]})


def test_no_scale_of_a_recipe_that_no_paper_has_is_called_paper(board):
    assert {planned.cell.scale for planned in plan(board(SCALED).expand())} == {"own"}
    message = "declares no scale 'paper': it names nothing printed that it reproduces; it has own, smoke"
    with pytest.raises(UserError, match=message):
        board(SCALED).expand({"scale": ["paper"]})
    with pytest.raises(UserError, match=r"scales\.paper is for boards that reproduce printed numbers; add printed"):
        board("scales: {paper: {seed: 1}}")


def test_the_scale_paper_is_that_of_the_boards_of_the_papers_and_own_that_of_all_others():
    boards = [load_board(name) for name in yaml_files("boards")]
    full = {board.name: board.full for board in boards if not board.boards}
    ours = {"cifar10_small", "cifar10_small_fidelity", "cifar10_tuned", "digits", "digits_all", "digits_tuned"}
    ours |= {"cifar10_rates", "cifar10_rounds", "collapse", "field", "field_tuned", "fleet", "momentum"}
    ours |= {"personal", "personal_fidelity", "quantity"}
    assert {name for name, scale in full.items() if scale == "own"} == ours
    assert {planned.cell.scale for planned in plan([{}])} == {"own"}, "of a bare run"


def test_a_scale_in_the_grid_is_that_of_the_cell_as_in_cells_that_are_run_again(board):
    again = board("grid: [{scale: [smoke], clients: [3]}, {scale: [paper], clients: [4]}]")
    assert {(planned.cell.scale, planned.cell.clients) for planned in plan(again.expand())} == {
        ("smoke", 3),
        ("paper", 4),
    }


def test_a_scale_may_have_axes_of_its_own_and_rules_for_some_cells(board):
    scaled = board(
        "grid: [{seed: [0, 1, 2], clients: [20, 50], model: resnet18, model.variant: spherefed}]\n"
        "scales: {smoke: {seed: [0, 1], model: small_cnn, tuned: [{when: {clients: [50]}, set: {clients: 5}},"
        " {when: {clients: 20, seed: 2}, set: {clients: 4}}]}}"
    )
    points = scaled.expand({"scale": ["smoke"]})
    assert {(p["clients"], p["seed"]) for p in points} == {(20, 0), (20, 1), (5, 0), (5, 1), (4, 0), (4, 1)}
    assert not any("model.variant" in point for point in points), "a setting of the model that was replaced"
    assert len(scaled.expand()) == 6


def seeds_of(board, when):
    """Return the seeds at a scale that sets 1 under `when`, of cells with none, one and two add-ons."""
    rules = f"scales: {{smoke: {{tuned: [{{when: {when}, set: {{seed: 1}}}}]}}}}"
    methods = "grid: [{seed: 0, addons: [[], feddecorr, [feddecorr], [ccvr, feddecorr]]}]"
    return [point["seed"] for point in board(f"{methods}\n{rules}").expand({"scale": ["smoke"]})]


@pytest.mark.parametrize(
    ("wanted", "seeds"),
    [
        ("feddecorr", [0, 1, 1, 1]),
        ("[feddecorr]", [0, 1, 1, 1]),
        ("[feddecorr, ccvr]", [0, 0, 0, 1]),
        ("[]", [1, 0, 0, 0]),
    ],
)
def test_a_rule_for_add_ons_asks_for_all_of_them_however_they_are_written(board, wanted, seeds):
    assert seeds_of(board, f"{{addons: {wanted}}}") == seeds


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ("{protocol: digits}", "'protocol', which holds several settings; name one: protocol.rounds"),
        (
            "{protocol.local_epoch: 5}",
            "'protocol.local_epoch', which is not a setting; did you mean 'protocol.local_ep",
        ),
        ("{diagnostics.spectrum: true}", "not a setting; did you mean 'diagnostics.spectra'?"),
        ("{addon.feddecorr.beat: 1}", "not a setting; did you mean 'addon.feddecorr.beta'?"),
        ("{addon.fedecorr.beta: 1}", "not a setting; did you mean 'addon.feddecorr'?"),
        ("{algorithm.projektion: 1}", "not a setting; did you mean 'algorithm.projection'?"),
        ("{clients.number: 1}", "not a setting; 'clients' is a setting itself"),
    ],
)
def test_a_rule_that_no_cell_can_meet_is_refused(board, when, message):
    with pytest.raises(UserError, match=re.escape(message)) as error:
        seeds_of(board, when)
    assert "\n" not in str(error.value)


def test_a_rule_asks_for_one_of_the_listed_values_also_of_a_setting_that_is_a_list(board):
    for wanted, seeds in (("[]", [0, 1, 0]), ("[32, 16]", [0, 0, 1]), ("[[], [32, 16]]", [0, 1, 1])):
        scaled = board(
            "grid: [{seed: 0, algorithm: moon, algorithm.projection: [[64], [], [32, 16]]}]\n"
            f"scales: {{smoke: {{tuned: [{{when: {{algorithm.projection: {wanted}}}, set: {{seed: 1}}}}]}}}}"
        )
        assert [point["seed"] for point in scaled.expand({"scale": ["smoke"]})] == seeds


def test_a_rule_may_ask_for_a_setting_that_only_other_plugins_have(board):
    assert seeds_of(board, "{algorithm.projection: 1}") == [0, 0, 0, 0]


def test_what_a_scale_keeps_outlives_the_plugin_that_it_replaces(board):
    scaled = board(
        "base: {dataset: cifar10, dataset.limit: 50, dataset.normalise: false}\n"
        "scales: {smoke: {dataset: mnist, keep: [dataset.limit]}}"
    )
    assert scaled.expand({"scale": ["smoke"]}) == [{"dataset": "mnist", "dataset.limit": 50, "scale": "smoke"}]


@pytest.mark.parametrize("named", ["", "model: small_cnn, "], ids=["by default", "by name"])
def test_a_scale_that_names_the_plugin_of_a_cell_drops_none_of_its_settings(board, named):
    scaled = board(f"base: {{{named}model.width: 7}}\nscales: {{smoke: {{model: [small_cnn, linear_net]}}}}")
    assert [point.get("model.width") for point in scaled.expand({"scale": ["smoke"]})] == [7, None]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("boards", "pieces"):
        (tmp_path / "leaderboards" / name).mkdir(parents=True)

    def write(name, text):
        (tmp_path / "leaderboards" / f"{name}.yaml").write_text(text)

    return write


def test_a_board_begins_with_what_it_extends(folder):
    folder("pieces/a", "base: {clients: 3, seed: 5}\naxes: {skews: [{partition: iid}]}\nscales: {smoke: {seed: 0}}")
    folder(
        "pieces/b",
        "extends: a\nbase: {seed: [0, 1]}\n"
        "scales: {smoke: {protocol.rounds: 1, tuned: [{when: {}, set: {clients: 2}}]}}",
    )
    folder("boards/mine", "extends: b\nbase: {skew: $skews}\nscales: {small: {seed: 7}}")
    mine = load_board("mine")
    assert mine.expand() == [{"clients": 3, "seed": seed, "partition": "iid"} for seed in (0, 1)]
    assert mine.expand({"scale": ["smoke"]}) == [
        {"clients": 2, "seed": 0, "partition": "iid", "protocol.rounds": 1, "scale": "smoke"}
    ]
    assert set(mine.scales) == {"smoke", "small"}


def test_of_several_pieces_the_later_one_wins_and_their_scales_add_up(folder):
    rule = "tuned: [{when: {}, set: {clients: %s, %s: 0.5}}]"
    first = f"{{smoke: {{protocol.rounds: 1, protocol.lr: 0.5, {rule % (2, 'participation')}}}}}"
    second = f"{{smoke: {{protocol.rounds: 2, {rule % (4, 'protocol.momentum')}}}}}"
    folder("pieces/a", f"base: {{clients: 3, seed: 5}}\naxes: {{skews: [{{partition: iid}}]}}\nscales: {first}")
    folder("pieces/b", f"base: {{seed: 6}}\naxes: {{seeds: [7, 8]}}\nscales: {second}")
    folder("boards/mine", "extends: [a, b]\ngrid: [{skew: $skews, seed: $seeds}]")
    assert load_board("mine").expand() == [{"clients": 3, "seed": seed, "partition": "iid"} for seed in (7, 8)]
    scaled = {"protocol.rounds": 2, "protocol.lr": 0.5, "clients": 4, "participation": 0.5, "protocol.momentum": 0.5}
    for point in load_board("mine").expand({"scale": ["smoke"]}):
        assert scaled.items() <= point.items()
    folder("boards/other", "extends: [b, a]")
    assert [(p["clients"], p["seed"]) for p in load_board("other").expand()] == [(3, 5)]


def test_the_tables_of_pieces_come_before_those_of_a_board(folder):
    folder("pieces/a", "tables: [{title: first}]")
    folder("pieces/b", "tables: [{title: second}]")
    folder("boards/mine", "extends: [a, b]\nbase: {seed: 0}\ntables: [{title: third}]")
    folder("boards/none", "base: {seed: 0}")
    assert [table.title for table in load_board("mine").tables] == ["first", "second", "third"]
    assert load_board("none").tables == (Table(),)


def test_a_piece_that_two_others_extend_comes_once_and_before_both(folder):
    folder("pieces/c", "base: {clients: 3, seed: 5}\ntables: [{title: common}]")
    folder("pieces/a", "extends: c\nbase: {clients: 4}")
    folder("pieces/b", "extends: c\nbase: {participation: 0.5}")
    folder("boards/mine", "extends: [a, b]")
    mine = load_board("mine")
    assert mine.expand() == [{"clients": 4, "seed": 5, "participation": 0.5}]
    assert [table.title for table in mine.tables] == ["common"]


@pytest.mark.parametrize("names", ["a", "[b]"])
def test_a_piece_that_extends_itself_is_one_line(folder, names):
    folder("pieces/a", f"extends: {names}")
    folder("pieces/b", "extends: a")
    folder("boards/mine", "extends: a")
    with pytest.raises(UserError, match=r"pieces/[ab]\.yaml: it extends itself"):
        load_board("mine")


def test_a_board_of_boards_is_their_union(folder):
    folder("boards/one", "grid: [{seed: [0, 1]}]")
    folder("boards/two", "grid: [{seed: [1, 2]}]")
    folder("boards/all", "boards: [one, two, one]")
    both = load_board("all")
    assert [part.name for part in both.parts()] == ["one", "two"]
    assert both.expand() == [{"seed": seed} for seed in (0, 1, 2)]
    folder("boards/more", "boards: [all]")
    with pytest.raises(UserError, match="'all' is itself made of boards"):
        load_board("more").expand()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: spherefd", r"extends: unknown piece 'spherefd' \(leaderboards/pieces\); did you mean 'spherefed'\?"),
        ("extends: digits", r"extends: 'digits' is a board, not a piece \(leaderboards/pieces\); known: cifar10"),
        ("grid: [{seed: $sedes}]", r"unknown axis '\$sedes'"),
        ("grid: [3]", r"grid\[0\] must be a mapping, got 3"),
        ("extends: [a, b, c, d, e, f]", "it extends 6 pieces, more than 5; put the rest on the board"),
        (
            "base: {protocol.rounds: 40}\nscales: {smoke: {protocol.rounds: 2, keep: [protocol.round]}}",
            r"scales\.smoke\.keep: nothing sets 'protocol\.round'; did you mean 'protocol\.rounds'\?",
        ),
        ("scales: {smoke: {tune.trials: 2}}", r"scales\.smoke: tune\.trials is for boards that tune; add tune"),
        ("grid: 3", "grid must be a list"),
        ("scales: {smoke: {tuned: 3}}", r"scales\.smoke: tuned must be a list of mappings"),
        ("boards: [digits]\ntables: [{}]", "a board of boards has a title, a description and boards, nothing else"),
        ("boards: [digts]", "unknown board 'digts'; did you mean 'digits'"),
    ],
)
def test_what_is_wrong_in_a_board_is_one_line(board, text, message):
    with pytest.raises(UserError, match=message) as error:
        board(text).expand()
    assert "\n" not in str(error.value)


def test_tables_and_figures_are_read_with_their_types(board):
    read = board(
        "base: {seed: 0}\n"
        "tables: [{title: T, rows: [method, clients], columns: [seed], metric: a.b, where: {seed: 0}}]\n"
        "figures: [{kind: spectrum, rows: [algorithm]}]"
    )
    assert read.tables == (Table("T", ("method", "clients"), ("seed",), "a.b", {"seed": 0}),)
    assert read.figures == (Figure("spectrum", rows=("algorithm",)),)


def test_a_setting_of_an_add_on_may_be_common_if_some_cell_uses_it():
    assert len(plan_grid({"addons": [[], ["feddecorr"]], "addon.feddecorr.beta": [0.2]})) == 2
    with pytest.raises(UserError, match=r"no cell uses the add-on 'feddecorr'; add addons=\[feddecorr\]"):
        plan_grid({"addons": [[], ["ccvr"]], "addon.feddecorr.beta": [0.2]})


def test_where_images_lie_concerns_the_datasets_of_a_grid_that_have_such_a_setting():
    grid = {"dataset": ["cifar10", "office_caltech10", "digits"], "dataset.source": ["photographs"]}
    points = [
        {**point, "dataset.content": "0" * 64} if point["dataset"] == "cifar10" else point for point in product(grid)
    ]
    asked = [dict(point) for point in points]
    cells = plan(points)
    assert [getattr(one.cell.dataset, "source", None) for one in cells] == ["photographs", None, None]
    assert ["dataset.source" in one.overrides for one in cells] == [True, False, False]
    assert points == asked, "what was asked for is left as it was"
    with pytest.raises(UserError, match=r"unknown setting 'dataset.source' of dataset=office_caltech10"):
        plan(points[1:])


@pytest.mark.parametrize("scale", ["own", "small"])
def test_a_board_may_say_where_images_lie_at_every_scale(scale):
    tasks = [{"dataset": "cifar10", "dataset.content": "0" * 64}, {"dataset": "digits"}]
    grid = {"task": tasks, "dataset.source": "photographs"}
    cells = plan(grid_of(grid, scales={"small": Scale({"protocol.rounds": 2})}).expand({"scale": [scale]}))
    assert [one.cell.dataset.name for one in cells] == ["cifar10", "digits"]
    assert [one.origin.dataset.name for one in cells] == ["cifar10", "digits"]


def test_what_a_dataset_is_made_of_concerns_all_of_a_grid():
    with pytest.raises(UserError, match=r"unknown setting 'dataset.size' of dataset=digits"):
        plan(product({"dataset": ["office_caltech10", "digits"], "dataset.size": 64}))


def test_the_working_folder_hides_the_installation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "digits" in yaml_files("boards")
    folder = tmp_path / "leaderboards" / "boards"
    folder.mkdir(parents=True)
    (folder / "digits.yaml").write_text("title: mine\nbase: {seed: 0}")
    assert load_board("digits").title == "mine"


@pytest.mark.parametrize("name", sorted(name for name in yaml_files("boards") if not load_board(name).boards))
def test_every_board_can_be_planned_at_every_scale(name):
    board = load_board(name)
    one = {"seed": [board.expand()[0].get("seed", 0)]}
    papers = {planned.cell.key for planned in plan(board.expand(one))}
    assert papers
    for scale in board.scales:
        cells = plan(board.expand({"scale": [scale]} | one))
        assert {planned.cell.scale for planned in cells} == {scale}
        assert points_of(planned.cell for planned in cells) == points_of(planned.origin for planned in cells)
        assert {planned.origin.key for planned in cells} <= papers


def points_of(cells):
    """Count what differs in more than the seed."""
    return len({key_of({name: value for name, value in cell.what.items() if name != "seed"}) for cell in cells})


def test_the_default_board_crosses_three_skews_with_feddecorr_on_two_algorithms_and_three_seeds():
    cells = [planned.cell for planned in plan(load_board("digits").expand())]
    assert {cell.clients for cell in cells} == {10}
    found = {
        (
            (cell.partition.name, getattr(cell.partition, "alpha", None)),
            (cell.algorithm.name, *((addon.name, getattr(addon, "form", None)) for addon in cell.addons)),
            cell.seed,
        )
        for cell in cells
    }
    skews = [("dirichlet", 0.05), ("dirichlet", 0.5), ("iid", None)]
    addons = [(), (("feddecorr", "released"),), (("feddecorr", "paper"),)]
    methods = [(base, *addon) for base in ("fedavg", "fedprox") for addon in addons]
    assert set(itertools.product(skews, methods, (0, 1, 2))) <= found


def test_ablations_are_marked_in_the_base_a_sub_grid_or_a_row_and_no_mark_wins():
    plain = {"addons": []}
    marked = {"addons": ["feddecorr"], "ablation": True}
    made = grid_of(
        {"algorithm": "fedavg", "method": [plain, marked]},
        {"algorithm": "fedprox", "ablation": True},
        {"algorithm": "fedavgm", "ablation": True},
        {"algorithm": "fedavgm"},
    )
    found = {planned.cell.label: planned.ablation for planned in plan(made.expand())}
    assert list(found.values()) == [False, True, True, False]
    whole = grid_of({"algorithm": ["fedavg", "fedprox"]}, base={"ablation": True})
    assert [planned.ablation for planned in plan(whole.expand())] == [True, True]
    assert [planned.cell.key for planned in plan(whole.expand())] == [
        planned.cell.key for planned in plan(grid_of({"algorithm": ["fedavg", "fedprox"]}).expand())
    ], "the mark is not a setting"
    with pytest.raises(UserError, match="board 'example': ablation must be true or false, got 'yes'"):
        grid_of({"algorithm": "fedavg", "ablation": "yes"}).expand()
