"""FedSpan from Python: the same cells as on the command line, typed frames, the statistics of the pages."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fedspan
from fedspan.benchmark import discovery, numerics, registry
from fedspan.benchmark.cli.main import main
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.notebook.frames import COLUMNS, OWN, _task_id, frame_of
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.spec.plan import plan_grid

QUICK = {"dataset.limit": 200, "clients": 3, "protocol.rounds": 2, "protocol.local_epochs": 1}
GOOD, FAIR = [61.0, 62.5, 63.0, 61.0, 62.0], [50.0, 51.0, 52.0, 50.0, 51.0]
GRID = {"algorithm": ["fedavg", "fedprox"], "seed": range(2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def runs(folder):
    return fedspan.run(QUICK, algorithm__mu=0.1, algorithm="fedprox", results=folder)


@pytest.fixture(scope="module")
def grid(folder, runs):
    return fedspan.run(QUICK, over=GRID, results=folder)


def made(frame, **accuracies):
    """Return runs of methods on one task, with the accuracies of their seeds; None for one that diverged."""
    pattern = frame.iloc[0].to_dict()
    rows = [
        pattern
        | {"method": method, "algorithm": method.lower(), "seed": seed, "accuracy": value if value else pd.NA}
        | {"status": "done" if value else "diverged"}
        for method, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows).astype({name: kind for name, (kind, _) in COLUMNS.items()})


# run ------------------------------------------------------------------------------------------------------


def test_a_run_is_the_cell_of_the_command_line(runs):
    axes = {name: [value] for name, value in QUICK.items()} | {"algorithm": ["fedprox"], "algorithm.mu": [0.1]}
    assert set(runs["key"]) == {one.cell.key for one in plan_grid(axes)}
    assert runs["status"].tolist() == ["done"]


def test_the_accuracy_of_a_run_is_that_of_its_last_stage(runs, folder):
    place = Results(folder)
    record = place.read(runs["key"].iloc[0])
    calibrated = record | {"scores": record["scores"] | {"calibrated": {"accuracy": 12.5}}}
    [row] = frame_of(place, [calibrated]).itertuples()
    assert (row.accuracy, row.stage) == (12.5, "calibrated")


def test_own_runs_go_to_a_folder_of_their_own_and_a_second_time_trains_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first = fedspan.run(QUICK)
    assert [path.stem for path in Path(OWN, "records").glob("*.json")] == first["key"].tolist()
    assert not Path("results").exists()
    capsys.readouterr()
    pd.testing.assert_frame_equal(fedspan.run(QUICK), first)
    assert "nothing to run" in capsys.readouterr().out
    pd.testing.assert_frame_equal(fedspan.results(), first)


def test_a_failing_cell_is_a_row_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("fedspan.benchmark.running.cell_run.Run", lambda cell, how: 1 / 0)
    failed = fedspan.run(QUICK, results=tmp_path)
    assert failed["status"].tolist() == ["failed"]
    assert failed["reason"].tolist() == ["ZeroDivisionError: division by zero"]
    assert failed["accuracy"].isna().all()


def test_native_cells_are_refused_where_torch_is_portable_already(tmp_path, monkeypatch):
    """Their records would call portable bits native, and no native repetition would be identical."""
    monkeypatch.setattr(numerics, "instructions_in_use", lambda: {"ATen": ("AVX2", True), "MKL": ("COMPATIBLE", True)})
    for settings in ({"numerics": "native"}, {"protocol.precision": "bf16"}):
        with pytest.raises(UserError, match="start Python with FEDSPAN_NUMERICS=native"):
            fedspan.run(QUICK | settings, results=tmp_path)
    assert not list(tmp_path.glob("records/*"))
    monkeypatch.setattr(numerics, "instructions_in_use", lambda: {"ATen": ("AVX2", True), "MKL": ("its own", False)})
    assert fedspan.run(QUICK | {"numerics": "native"}, results=tmp_path)["status"].tolist() == ["done"]


def test_a_board_that_tunes_is_for_the_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr("fedspan.benchmark.notebook.runs.studies_of", lambda axes: ["a study"])
    with pytest.raises(UserError, match="board=digits_tuned tunes its methods"):
        fedspan.run(board="digits_tuned", results=tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algoritm": "fedavg"}, "did you mean"),
        ({"seed": 1, "over": {"seed": [1, 2]}}, "'seed' is given twice"),
        (
            {"settings": {"protocol.rounds": 1}, "protocol__rounds": 3},
            r"'protocol\.rounds' is given twice, in the mapping",
        ),
        ({"paths__results": "mine"}, "write results='mine', not paths__results"),
        (
            {"over": {"threads": [1, 2]}},
            r"over\['threads'\]: threads says how to run, which takes one value for all cells",
        ),
        (
            {"settings": "fedprox"},
            "settings must be a mapping of settings, got 'fedprox'; write run\\(algorithm='fedprox'",
        ),
        ({"over": ["seed"]}, r"over must be a mapping of settings, got \['seed'\]"),
        ({"over": {"seed": []}}, r"over\['seed'\] has no values"),
        ({"over": {"seed": 3}}, r"over\['seed'\] must list values, got 3; write \[3\]"),
        ({"over": {"algorithm": "fedavg"}}, r"over\['algorithm'\] must list values, got 'fedavg'; write \['fedavg'\]"),
    ],
)
def test_wrong_settings_are_one_line(settings, message, tmp_path):
    with pytest.raises(UserError, match=message):
        fedspan.run(settings.pop("settings", None), results=tmp_path, **settings)


def test_numpy_s_numbers_are_numbers(grid, folder):
    axes = {"algorithm": np.array(["fedavg", "fedprox"]), "seed": np.arange(2)}
    pd.testing.assert_frame_equal(fedspan.run(QUICK | {"clients": np.int64(3)}, over=axes, results=folder), grid)


SCALED = """
from fedspan.benchmark.component import Component, algorithm
from fedspan.benchmark.tree import scale

@algorithm("scaled")
class Scaled(Component):
    "Nobody 2020."

    def server(self, delta, agg):
        return scale(delta, {by}), {{}}
"""


@pytest.fixture
def apart(monkeypatch):
    """Plugins of these tests are in no registry afterwards."""
    registry.discover()
    monkeypatch.setattr(registry, "_plugins", {kind: dict(known) for kind, known in registry._plugins.items()})
    monkeypatch.setattr(registry, "_files", {})


def scaled(place, **more):
    """Run the algorithm `scaled`; return its accuracies and the digest of its source."""
    ran = fedspan.run(QUICK, algorithm="scaled", results=place, over={"seed": [0, 1]}, **more)
    [digest] = {record["provenance"]["sources"]["algorithm:scaled"] for record in Results(place).all()}
    return tuple(ran["accuracy"]), digest


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_plugin_file_that_was_edited_is_imported_anew_with_its_own_source_in_the_record(tmp_path, workers):
    plugin, found = tmp_path / "scaled.py", []
    for by in ("1.0", "0.0", "class (", "0.5"):  # texts of one length, within one second
        plugin.write_text(by if by == "class (" else SCALED.format(by=by))
        if by == "class (":
            with pytest.raises(UserError, match=r"scaled.py cannot be imported: SyntaxError"):
                scaled(tmp_path / by, plugins=[plugin], workers=workers)
        else:
            found.append(scaled(tmp_path / by, plugins=plugin, workers=workers))
    accuracies, digests = zip(*found, strict=True)
    assert len(set(accuracies)) == len(set(digests)) == 3
    plugin.unlink()
    assert list(fedspan.run(QUICK, over={"seed": [0]}, results=tmp_path / "other")["status"]) == ["done"]


@pytest.mark.usefixtures("apart")
def test_a_file_that_was_added_to_a_folder_of_plugins_is_imported(tmp_path):
    (folder := tmp_path / "plugins").mkdir()
    for name in ("scaled", "scaled_too"):
        (folder / f"{name}.py").write_text(SCALED.format(by="1.0").replace('"scaled"', f'"{name}"'))
        ran = fedspan.run(QUICK, algorithm=name, plugins=folder, results=tmp_path / "records")
        assert list(ran["status"]) == ["done"]


@pytest.mark.usefixtures("apart")
def test_workers_follow_the_notebook_into_another_folder(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (folder := tmp_path / name).mkdir()
        monkeypatch.chdir(folder)
        ran = fedspan.run(QUICK, over={"seed": [0, 1]}, results="here", workers=2)
        assert list(ran["status"]) == ["done", "done"]
        assert len(list((folder / "here" / "records").glob("*.json"))) == 2


@pytest.mark.usefixtures("apart")
def test_a_broken_file_in_a_folder_of_plugins_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_broken", [])
    (tmp_path / "scaled.py").write_text(SCALED.format(by="1.0"))
    (tmp_path / "broken.py").write_text("class (")
    with pytest.warns(UserWarning, match=r"broken\.py cannot be imported: SyntaxError"):
        assert len(scaled(tmp_path / "records", plugins=tmp_path)[0]) == 2


@pytest.mark.usefixtures("apart")
def test_an_edited_file_of_the_environment_is_imported_anew_too(tmp_path):
    plugin = tmp_path / "scaled.py"
    plugin.write_text(SCALED.format(by="1.0"))
    discovery.import_file(plugin)  # as `discover` does
    before = scaled(tmp_path / "before")
    plugin.write_text(SCALED.format(by="0.0"))
    after = scaled(tmp_path / "after")
    assert before[0] != after[0]
    assert before[1] != after[1]


@pytest.mark.usefixtures("apart")
def test_a_file_edited_since_the_first_run_is_uncommitted_in_the_records_after_it(tmp_path):
    (plugin := tmp_path / "scaled.py").write_text(SCALED.format(by="1.0"))
    who = ("-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "Scaled"]):
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True)
    listed = []
    for by in ("1.0", "0.5"):
        plugin.write_text(SCALED.format(by=by))
        scaled(tmp_path / by, plugins=plugin)
        listed += [set(record["provenance"]["uncommitted"]) for record in Results(tmp_path / by).all()]
    assert ["scaled.py" in one for one in listed] == [False, False, True, True]


def test_a_run_leaves_torch_as_its_caller_had_it(tmp_path):
    def state():
        backends = torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32
        return torch.get_num_threads(), backends, float(torch.tensor([1e-40]) * 1)

    before, threads = state(), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        mine = state()
        fedspan.run(QUICK, results=tmp_path)
        assert state() == mine != before
    finally:
        torch.set_num_threads(threads)


def test_a_trial_is_a_row_with_its_accuracy_on_held_out_images_and_on_no_task_of_results(folder, grid):
    trial = fedspan.run(QUICK, protocol__validation=0.5, results=folder)
    scores = Results(folder).read(trial["key"][0])["scores"]
    assert trial[["stage", "accuracy"]].to_numpy().tolist() == [["validation", scores["validation"]["accuracy"]]]
    assert trial["task_id"][0] not in set(grid["task_id"])


# results --------------------------------------------------------------------------------------------------


def test_columns_have_the_documented_types_also_without_rows(grid, tmp_path):
    for frame in (grid, fedspan.results(results=tmp_path)):
        assert {name: str(kind) for name, kind in frame.dtypes.items()} == {n: kind for n, (kind, _) in COLUMNS.items()}


def test_rows_are_readable_and_sorted(grid):
    assert grid["method"].tolist() == ["FedAvg"] * 2 + ["FedProx"] * 2
    assert grid["task"].unique().tolist() == ["Digits, 200 images, 3 clients, alpha 0.5"]
    assert grid["seed"].tolist() == [0, 1] * 2
    assert grid["accuracy"].between(0, 100).all()
    assert (grid[["seconds", "gflop", "up_megabytes", "down_megabytes", "memory_megabytes"]] > 0).all(axis=None)
    assert grid["task_id"].nunique() == 1


def test_runs_of_another_fleet_are_on_another_task(folder, grid):
    record = Results(folder).read(str(grid["key"][0]))
    spec, images = record["spec"], record["provenance"]["dataset_digest"]
    plain, unseen, seed = (_task_id(spec | more, images) for more in ({}, {"unseen": 0.2}, {"seed": 7}))
    assert plain == seed == grid["task_id"][0]
    assert unseen != plain


def test_results_of_a_board_are_its_cells_alone(grid, folder):
    assert len(fedspan.results(results=folder)) == 5
    assert fedspan.results("digits", scale="smoke", results=folder).empty


def test_a_board_that_tunes_has_default_and_tuned_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"protocol.lr": 0.0001, "partition": "iid"} | QUICK
    tune = {"trials": 2, "seeds": [100], "space": {"protocol.lr": [0.0001, 0.1]}}
    board = {"base": settings, "grid": [{"algorithm": ["fedavg", "fedprox"], "seed": [0, 1]}], "tune": tune}
    Path("mine.yaml").write_text(json.dumps(board))
    main(["run", "-m", "board=mine.yaml", "paths.results=there", "tracking=false", "workers=1", "launcher=basic"])
    found = fedspan.results("mine.yaml", results="there")
    assert found.groupby(["method", "tuning"]).size().to_dict() == {
        (f"{name}{', tuned' * (kind == 'tuned')}", kind): 2
        for name in ("FedAvg", "FedProx") for kind in ("default", "tuned")
    }  # fmt: skip
    assert set(found[found["tuning"] == "tuned"]["lr"]) == {0.1}
    assert (fedspan.compare("fedavg, tuned", "fedavg", found).pairs["difference"] > 0).all()
    assert fedspan.compare("FedAvg", "fedprox", found).pairs.shape[0] == 2
    Path("also.yaml").write_text(json.dumps(board | {"title": "Also"}))
    Path("both.yaml").write_text(json.dumps({"boards": ["mine.yaml", "also.yaml"]}))
    assert fedspan.results("both.yaml", results="there")["key"].tolist() == found["key"].tolist()


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("given", [str, lambda path: path, lambda path: [path]], ids=["text", "path", "list"])
def test_the_board_of_a_plugin_in_a_file_is_read_with_that_file(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    plugin = tmp_path / "scaled.py"
    plugin.write_text(SCALED.format(by="0.5"))
    Path("mine.yaml").write_text(json.dumps({"base": QUICK, "grid": [{"algorithm": ["fedavg", "scaled"]}]}))
    Path("there").mkdir()
    with pytest.raises(UserError, match="unknown algorithm 'scaled'"):
        fedspan.results("mine.yaml", results="there")
    assert fedspan.results("mine.yaml", results="there", plugins=given(plugin)).empty


def test_trials_of_a_search_are_no_results(tmp_path):
    fedspan.run(QUICK, protocol__validation=0.5, results=tmp_path)
    assert len(list((tmp_path / "records").glob("*.json"))) == 1
    assert fedspan.results(results=tmp_path).empty


def test_curves_of_frames_put_together_ask_for_the_folder_of_their_records(grid, folder, tmp_path):
    together = pd.concat([grid, fedspan.results(results=tmp_path)])
    with pytest.raises(UserError, match="4 of 4 finished runs have no record in own_results; give results=DIR"):
        fedspan.curves(together)
    pd.testing.assert_frame_equal(fedspan.curves(together, results=folder), fedspan.curves(grid))


def test_results_of_a_folder_that_does_not_exist_are_no_empty_frame(tmp_path):
    with pytest.raises(UserError, match=f"the results folder {tmp_path}/nowhere does not exist"):
        fedspan.results(results=tmp_path / "nowhere")


def test_a_scale_needs_its_board():
    with pytest.raises(UserError, match="name the board"):
        fedspan.results(scale="smoke")


def test_curves_have_a_row_for_each_evaluated_round(grid):
    found = fedspan.curves(grid)
    assert found.groupby(["method", "seed"]).size().tolist() == [2] * 4
    last = found[found["round"] == 2].set_index("key")["accuracy"]
    assert (last.loc[grid["key"]].to_numpy() == grid["accuracy"].to_numpy()).all()


# compare --------------------------------------------------------------------------------------------------


def test_equal_methods_have_no_winner(grid):
    assert fedspan.compare("fedprox", "fedavg", made(grid, FedProx=FAIR, FedAvg=FAIR)).mean == 0


def test_the_mean_difference_of_pairs_with_its_interval(grid):
    found = fedspan.compare("Good", "fedavg", made(grid, Good=GOOD, FedAvg=FAIR))
    assert found.mean == pytest.approx(11.1)
    assert found.interval[0] < found.mean < found.interval[1]
    assert found.p < 0.05
    assert repr(found).startswith("Good is better by 11.10 points")
    assert found.pairs["difference"].tolist() == [11.0, 11.5, 11.0, 11.0, 11.0]


def test_runs_on_other_images_are_on_another_task_and_other_partitions_are_not_compared(grid, folder):
    place = Results(folder)
    records = [place.read(key) for key in grid["key"]]
    changed = [one for one in records if one["spec"]["algorithm"]["name"] == "fedprox"]
    for one in changed:
        one["provenance"]["partition_digest"] = "0" * 64
    with pytest.raises(UserError, match="other images per client"):
        fedspan.compare("fedprox", "fedavg", frame_of(place, records))
    for one in changed:
        one["provenance"]["dataset_digest"] = "0" * 64
    with pytest.raises(UserError, match="no run on the same task"):
        fedspan.compare("fedprox", "fedavg", frame_of(place, records))


def test_a_method_without_a_title_is_found_by_its_name_beside_its_other_settings(grid):
    runs = made(grid, mine=GOOD, other=FAIR)
    more = made(grid, mine=FAIR).assign(method="mine (k 0.5)")
    both = pd.concat([runs, more])
    assert fedspan.compare("mine", "other", both).mean == fedspan.compare("mine", "other", runs).mean > 0
    assert fedspan.compare("mine (k 0.5)", "other", both).mean == 0


def test_runs_that_differ_in_their_diagnostics_alone_count_once(grid):
    runs = made(grid, Good=GOOD, Fair=FAIR)
    again = runs[runs["method"] == "Good"].assign(key="b" * 20, memory_megabytes=99.0)
    assert fedspan.compare("good", "fair", pd.concat([runs, again])).text == fedspan.compare("good", "fair", runs).text


def test_a_scale_without_a_board_warns_that_the_cell_keeps_its_size(tmp_path):
    with pytest.warns(UserWarning, match="scale=smoke is only a label without a board"):
        fedspan.run(QUICK, scale="smoke", results=tmp_path)


def test_the_other_way_round_is_the_negative(grid):
    frame = made(grid, Good=GOOD, FedAvg=FAIR)
    one, other = fedspan.compare("Good", "FedAvg", frame), fedspan.compare("FedAvg", "Good", frame)
    assert one.mean == pytest.approx(-other.mean)
    assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]))


def test_few_seeds_carry_no_interval_and_the_text_says_so(grid):
    found = fedspan.compare("Good", "FedAvg", made(grid, Good=[61.0, 62.5], FedAvg=[50.0, 51.0]))
    assert math.isnan(found.mean)
    assert found.text.startswith("No interval is given")


def test_a_diverged_run_is_behind(grid):
    found = fedspan.compare("Wild", "FedAvg", made(grid, Wild=[90.0, 90.0, 90.0, 90.0, None], FedAvg=FAIR))
    assert found.text.startswith("FedAvg is ahead")


def test_fleets_that_train_the_same_models_are_one_task_and_others_are_not(folder, grid):
    spec = Results(folder).read(str(grid["key"][0]))["spec"]
    tasks = [_task_id(spec | more, None) for more in ({}, {"fleet": {"name": "speeds"}}, {"unseen": 0.2})]
    plain = made(grid, Good=GOOD, FedAvg=FAIR).assign(task_id=tasks[0])
    alone = fedspan.compare("Good", "FedAvg", plain)

    def beside(runs):
        both = pd.concat([plain, runs])
        return fedspan.compare("Good", "FedAvg", both), dots(fedspan.plot_gains(both, "fedavg"))

    found, drawn = beside(plain.assign(task_id=tasks[1]))
    assert (found.gap, len(found.pairs), drawn["Good"]) == (alone.gap, 5, alone.mean)
    other = made(grid, Good=GOOD[::-1], FedAvg=FAIR).assign(task_id=tasks[1])
    for runs in (other, plain.assign(task_id=tasks[2])):
        assert beside(runs)[0].gap.tasks == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [("fedavgg", "did you mean 'fedavg'"), ("fedprox", "several settings; name one of FedProx, FedProx .mu 0.1.")],
)
def test_a_name_that_fits_none_or_several_is_one_line(grid, folder, name, message):
    with pytest.raises(UserError, match=message):
        fedspan.compare(name, "fedavg", fedspan.results(results=folder))


@pytest.mark.parametrize(
    "use",
    [
        lambda runs: fedspan.compare("fedavg", "fedprox", runs),
        fedspan.plot_curves,
        lambda runs: fedspan.plot_gains(runs, "fedavg"),
    ],
    ids=["compare", "plot_curves", "plot_gains"],
)
def test_a_frame_of_other_columns_is_one_line(use):
    with pytest.raises(UserError, match=r"these runs lack .*task_id; give rows of fedspan\.results or fedspan\.run"):
        use(pd.DataFrame({"method": ["FedAvg"], "accuracy": [1.0]}))


@pytest.mark.parametrize("use", [fedspan.plot_curves, lambda runs: fedspan.plot_gains(runs, "fedavg")])
@pytest.mark.parametrize("runs", [None, []], ids=str)
def test_runs_that_are_no_table_are_one_line(use, runs):
    with pytest.raises(UserError, match=rf"^runs must be a table, got {re.escape(str(runs))}; give rows of"):
        use(runs)


def test_methods_without_a_common_run_are_not_compared(grid):
    frame = made(grid, Good=[61.0], FedAvg=[50.0, 51.0]).drop(index=1)
    with pytest.raises(UserError, match="have no run on the same task with the same seed"):
        fedspan.compare("Good", "FedAvg", frame)


# figures --------------------------------------------------------------------------------------------------


def test_figures_are_matplotlib_s_and_show_every_method(grid):
    from matplotlib.figure import Figure

    curves = fedspan.plot_curves(grid)
    assert isinstance(curves, Figure)
    assert [line.get_label() for line in curves.axes[0].get_lines()] == ["FedAvg", "FedProx"]
    gains = fedspan.plot_gains(made(grid, Good=GOOD, Few=[51.0, 52.0], FedAvg=FAIR), "fedavg")
    assert [label.get_text() for label in gains.axes[0].get_yticklabels()] == ["Few", "Good"]
    assert "Gain over FedAvg" in gains.axes[0].get_xlabel()


def test_a_curve_is_the_mean_of_the_finished_runs_and_its_label_counts_those_that_diverged(grid):
    lost = (grid["method"] == "FedProx") | (grid["seed"] == 1)
    frame = grid.assign(status=grid["status"].mask(lost, "diverged"))
    fedavg, fedprox = fedspan.plot_curves(frame).axes[0].get_lines()
    alone = fedspan.curves(grid[~lost])
    assert (fedavg.get_label(), fedprox.get_label()) == ("FedAvg (1 of 2 diverged)", "FedProx (2 of 2 diverged)")
    assert fedavg.get_ydata().tolist() == alone["accuracy"].tolist()
    assert len(fedprox.get_ydata()) == 0
    with pytest.raises(UserError, match="none of these runs has finished with a curve"):
        fedspan.plot_curves(frame[lost])


def test_curves_of_several_tasks_are_not_drawn_into_one_plot(grid):
    several = grid.assign(task_id=[str(number) for number in range(len(grid))])
    with pytest.raises(UserError, match=r"of 4 tasks; choose one: runs\[runs.task_id == ...\]"):
        fedspan.plot_curves(several)


@pytest.mark.parametrize(("column", "value", "said"), [
    ("scale", "smoke", r"these runs are at the scales own, smoke; choose one: runs\[runs.scale == ...\]"),
    ("stage", "validation", r'some of these runs are trials; leave them out: runs\[runs.stage != "validation"\]'),
])  # fmt: skip
def test_runs_at_several_scales_and_trials_are_not_compared_as_one(grid, column, value, said):
    one = made(grid, Good=GOOD, FedAvg=FAIR)
    both = pd.concat([one, one.assign(task_id="another", **{column: value})])
    for compared in (lambda: fedspan.compare("Good", "fedavg", both), lambda: fedspan.plot_gains(both, "fedavg")):
        with pytest.raises(UserError, match=said):
            compared()
    assert fedspan.compare("Good", "fedavg", both[both[column] == value]).mean == pytest.approx(11.1)


def test_a_comparison_is_of_runs_or_of_a_board(grid):
    with pytest.raises(UserError, match="give runs or board='digits', not both"):
        fedspan.compare("fedprox", "fedavg", grid, board="digits")


def test_a_gain_without_an_interval_is_the_mean_over_tasks_too(grid):
    one = made(grid, Good=[60.0, 62.0], FedAvg=[50.0] * 2)
    both = pd.concat([one, made(grid, Good=[51.0], FedAvg=[50.0]).assign(task_id="another")])
    compared = fedspan.compare("Good", "fedavg", both)
    assert math.isnan(compared.mean)
    assert dots(fedspan.plot_gains(both, "fedavg")) == {"Good": pytest.approx(6.0)}


@pytest.mark.parametrize("plot", [fedspan.plot_curves, lambda runs: fedspan.plot_gains(runs, "fedprox")])
def test_runs_of_one_seed_under_several_protocols_are_not_drawn_as_one_method(grid, plot):
    rates = pd.concat([grid, grid[grid["method"] == "FedAvg"].assign(lr=0.5)])
    with pytest.raises(UserError, match=r"'FedAvg' has several runs of one seed on a task; choose among"):
        plot(rates)


def dots(figure):
    """Return the gain that is drawn for each method, None without one."""
    drawn = {
        line.get_ydata()[0]: line.get_xdata()[0] for line in figure.axes[0].get_lines() if line.get_marker() == "o"
    }
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    return {name: drawn.get(place) for place, name in enumerate(names)}


def test_a_gain_is_drawn_at_the_mean_of_its_interval(grid):
    """Nine seeds on one task and three on another: the mean over tasks is not that of all pairs."""
    one = made(grid, Good=[60.0 + i % 2 for i in range(9)], FedAvg=[50.0] * 9)
    other = made(grid, Good=[50.0, 51.0, 50.5], FedAvg=[50.0] * 3).assign(task_id="another")
    both = pd.concat([one, other])
    assert dots(fedspan.plot_gains(both, "fedavg")) == {
        "Good": pytest.approx(fedspan.compare("Good", "fedavg", both).mean)
    }


def test_no_gain_is_drawn_where_runs_diverged_and_the_name_says_so(grid):
    frame = made(grid, Wild=[60.0] + [None] * 4, Lost=[None] * 5, Good=GOOD, FedAvg=FAIR)
    drawn = dots(fedspan.plot_gains(frame, "fedavg"))
    assert drawn == {"Wild (runs diverged)": None, "Lost (runs diverged)": None, "Good": pytest.approx(11.1)}


def test_without_the_reference_there_are_no_gains(grid):
    with pytest.raises(UserError, match="no runs of the method 'fedagv'; did you mean 'fedavg'"):
        fedspan.plot_gains(grid, "fedagv")
    alone = grid[grid["method"] == "FedAvg"]
    with pytest.raises(UserError, match="no method shares a run with 'fedavg'"):
        fedspan.plot_gains(alone, "fedavg")


# import ---------------------------------------------------------------------------------------------------


def test_importing_the_package_imports_neither_torch_nor_pandas():
    code = "import sys, fedspan; dir(fedspan); print({'torch', 'pandas', 'matplotlib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_every_public_name_is_there_and_no_other():
    assert all(callable(getattr(fedspan, name)) for name in fedspan.__all__)
    with pytest.raises(AttributeError, match="no attribute 'wrong'"):
        _ = fedspan.wrong


def test_a_frame_remembers_the_folder_of_its_records_wherever_the_notebook_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert frame_of(Results(Path("mine")), []).attrs["folder"] == str(tmp_path / "mine")


def test_methods_compare_by_the_clients_own_images_where_they_have_some_as_one_without_a_global_model_must(tmp_path):
    domains = {"dataset": "digits_domains", "partition": "domain", "clients": 4, "model": "resnet20"}
    found = fedspan.run(QUICK | domains, over={"algorithm": ["fedavg", "fedbn"]}, results=tmp_path)
    trained = [Results(tmp_path).read(key)["scores"]["trained"] for key in found["key"]]
    assert found["accuracy"].tolist() == [scores["client_accuracy"] for scores in trained]
    assert sum(scores.get("accuracy") is not None for scores in trained) == 1
