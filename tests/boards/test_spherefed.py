"""SphereFed's boards: the cells of printed numbers have what the paper states of them."""

import json

import pytest

from fedspan.benchmark.records.results import Results
from fedspan.benchmark.report.axes import Axes, flat
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.printed import all_printed, printed_in
from fedspan.benchmark.report.recipes import excuse
from fedspan.benchmark.report.tabulation import tabulate
from fedspan.benchmark.spec.board import load_board
from fedspan.benchmark.spec.plan import plan
from fedspan.benchmark.spec.presets import yaml_files


def cells(board, **extra):
    """Return the settings of a board's cells, for one seed."""
    return [flat(planned.cell.settings) for planned in plan(load_board(board).expand({"seed": [0], **extra}))]


def shown(board, table):
    """Return (printed number, the settings of its one cell) of every number of a table that a cell of the board has."""
    numbers = [number for number in printed_in([f"spherefed_eccv2022/{table}"]) if number.metric.startswith("final.")]
    pairs = [(number, [what for what in cells(board) if number.belongs_to(what)]) for number in numbers]
    assert all(len(found) == 1 for _, found in pairs)
    return [(number, what) for number, [what] in pairs]


@pytest.mark.parametrize(
    ("board", "table", "rate_of_mse"), [("spherefed_ingredients", "3", 0.5), ("spherefed_ffc", "9", 1.0)]
)
def test_each_loss_has_its_own_rate_whatever_ingredients_it_is_with(board, table, rate_of_mse):
    """Sec. 5.3 tunes one for each loss. Table 16 has 0.1 for FedAvg and BABU; SphereFed's is its squared error's."""
    for number, what in shown(board, table):
        squared = what.get("addon.spherefed.criterion") == "mse"
        assert what["protocol.lr"] == (rate_of_mse if squared else 0.1), number.row


@pytest.mark.parametrize(("board", "table"), [("spherefed_ingredients", "3"), ("spherefed_ffc", "9")])
def test_a_fixed_random_classifier_trains_as_babu_whose_number_it_prints(board, table):
    [(number, what)] = [(n, w) for n, w in shown(board, table) if "Fix (R), CE)" in n.row]
    main = {number.value: what for number, what in shown("spherefed_main", "2")}[number.value]
    assert main["addons"] == ["babu"]
    same = {
        name: value for name, value in main.items() if name.startswith(("protocol", "partition", "model", "algorithm"))
    }
    assert {name: what[name] for name in same} == same


def test_calibrations_that_are_compared_share_their_trained_model():
    for board in ("spherefed_calibration", "spherefed_ridge", "spherefed_ffc"):
        planned = plan(load_board(board).expand({"seed": [0]}))
        trainings = [
            one.cell.train_key for one in planned
            if one.cell.addons and not any(addon.calibrates_every for addon in one.cell.addons)
        ]  # fmt: skip
        tasks = {json.dumps(one.cell.what["partition"]) for one in planned}
        assert len(set(trainings)) == len(tasks) < len(trainings), board


def test_the_sanity_check_tries_both_losses_at_every_candidate_rate():
    checks = [what for what in cells("spherefed_calibration") if "oracle_head" in what["addons"]]
    assert len(checks) == 2
    for what in checks:
        assert what["addon.oracle_head.by"] == "search"
        assert set(what["addon.oracle_head.criteria"]) == {"ce", "mse"}
        assert what["addon.oracle_head.rates"] == [0.005, 0.01, 0.05, 0.1, 0.5, 0.8, 1.0]  # App. F.2
        assert what["addon.oracle_head.held_out"] == 0.15  # Sec. 5.1


def test_every_personalised_number_is_of_models_that_clients_have_of_their_own():
    """App. B: methods with one global model are tuned at each client; the others keep weights there."""
    for number, what in shown("spherefed_personalised", "8"):
        own = what["algorithm"] in ("lg_fedavg", "fedrep")
        assert ("personal_head" in what["addons"]) is not own, number.row


def test_the_personal_partition_is_drawn_as_that_of_the_main_table():
    [main] = {what["partition.balanced"] for what in cells("spherefed_main") if what["partition"] == "dirichlet"}
    assert {what["partition.balanced"] for what in cells("spherefed_personalised")} == {main}


@pytest.mark.parametrize(("alpha", "rate"), [(0.5, 0.5), (0.1, 1.0)])
def test_spherefed_has_the_rate_of_its_alpha_under_the_personal_partition_too(alpha, rate):
    mine = [what for what in cells("spherefed_personalised") if what["partition.alpha"] == alpha]
    assert {what["protocol.lr"] for what in mine if "spherefed" in what["addons"]} == {rate}
    assert {what["protocol.lr"] for what in mine if "spherefed" not in what["addons"]} == {0.1}


def test_lg_fedavg_begins_from_fedavg_as_its_authors_code_does():
    [warm_up] = {
        what["algorithm.warm_up"] for what in cells("spherefed_personalised") if what["algorithm"] == "lg_fedavg"
    }
    assert warm_up == pytest.approx(1200 / 1400, abs=5e-4)


GAINS = [name for name in sorted(yaml_files("boards")) if any(table.minus for table in load_board(name).tables)]


@pytest.fixture(scope="module")
def differences(tmp_path_factory):
    """Return what stands beside ours in every table of differences of a board, and the notes; nothing was ever run."""
    found = {}
    for name in GAINS:
        board = load_board(name)
        planned = plan(board.expand({"seed": [0]}))
        frame, axes = collect(planned, Results(tmp_path_factory.mktemp(name))), Axes(planned)
        measured = [table for table in board.tables if table.minus and not table.metric.startswith("computed.")]
        found[name] = [tabulate(frame, axes, table, number) for number, table in enumerate(measured, 1)]
    return found


def beside(tables):
    return [
        entry.printed.printed
        for table in tables
        for row in table.rows
        for entry in row.entries
        if entry and entry.printed
    ]


def test_every_printed_difference_that_has_a_cell_stands_in_a_table(differences):
    shown = {number.name for tables in differences.values() for number in beside(tables) if not number.derived}
    expected = {number.name for number in all_printed() if number.kind != "value" and excuse(number) is None}
    assert len(expected) == 92
    assert shown == expected


def test_a_note_tells_of_the_four_printed_gains_that_are_not_those_of_the_printed_values(differences):
    notes = [text for tables in differences.values() for table in tables for _, text in table.notes]
    assert sorted(text for text in notes if "differ by" in text) == [
        f"spherefed_eccv2022, Table {table}: its values differ by {gain}"
        for table, gain in (("2", "+1.12"), ("2", "+1.32"), ("2", "+1.70"), ("6", "+3.12"))
    ]


@pytest.mark.parametrize(
    ("board", "table", "quoted"), [("spherefed_main", "5.2", [4.92, 2.96]), ("spherefed_ingredients", "5.3", [1.22])]
)
def test_what_the_text_quotes_stands_beside_its_cell_and_in_the_description(differences, board, table, quoted):
    found = [number for number in beside(differences[board]) if number.table == f"text_{table}"]
    assert [number.value for number in found] == quoted
    assert all(f"{value:.2f}" in load_board(board).description for value in quoted)


def test_the_savings_of_the_accelerator_stand_on_the_board_of_figure_5(differences):
    description = load_board("spherefed_hardware").description
    savings = [-number.value for number in printed_in(["spherefed_eccv2022/text_5.4"], differences=True)]
    assert len(savings) == 3
    assert all(f"{saving:g}%" in description.replace("\n", " ") for saving in savings)
    assert [number.value for number in beside(differences["spherefed_hardware"])] == [-13.6]


def test_fedbabu_trains_at_babus_rate():
    """Table 16, TinyImageNet: 0.01 where FedAvg has 0.1."""
    asked = {"protocol": "spherefed_tiny_imagenet"}
    babu, fedbabu = plan([{**asked, "addons": ["babu"]}, {**asked, "algorithm": "fedbabu"}])
    assert babu.cell.protocol.lr == fedbabu.cell.protocol.lr == 0.01


def test_figure_3_is_of_the_90th_round_of_100():
    for what in cells("spherefed_features"):
        expected = (90, 100, 10) if what["algorithm"] == "fedavg" else (None, 120, 1)
        found = (what.get("diagnostics.round"), what["protocol.rounds"], what["protocol.local_epochs"])
        assert found == expected
