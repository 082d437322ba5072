"""MLflow as a leaderboard: one experiment per board, one run per row, written again only if a number changed."""

import json
import os
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from fedspan.benchmark.cli.ui import serving_site
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.mirror import boards as leaderboard
from fedspan.benchmark.mirror.runs import Mirror
from fedspan.benchmark.report import site
from fedspan.benchmark.report.report import write_report
from fedspan.benchmark.report.summary import to_json
from fedspan.benchmark.spec.board import Table
from tests.helpers import PATIENCE
from tests.report.made import board, cells_of, record, results_of, seeded, stopped


@pytest.fixture
def lost():
    """How many runs of the better method diverged."""
    return 0


@pytest.fixture
def mirrored(tmp_path, empty_store, lost):
    """A board of two methods on one partition with three seeds each, and the store that holds it."""
    empty_store(tmp_path)
    grid = {"partition": "iid", "algorithm": ["fedavg", "fedprox"], "seed": [0, 1, 2]}
    example = board(grid, tables=[Table()])
    cells = cells_of(example)
    records = seeded(cells)
    for number in range(len(cells) - lost, len(cells)):
        records[number] = stopped(cells[number], "diverged", "round 2: the test loss is nan")
    results = results_of(tmp_path, records)
    write_report(example, cells, results, tmp_path / "pages")
    store = Mirror(results)
    store.sync()
    leaderboard.mirror(store, tmp_path / "pages")
    return store, example, cells, results, tmp_path / "pages"


def runs_of(store):
    """Return the experiment of the board, and its runs but the last one, which has the files."""
    experiment = store.client.get_experiment_by_name("Example (example, own)")
    *rows, files = store.client.search_runs([experiment.experiment_id])
    assert files.info.run_name == leaderboard.FILES
    return experiment, rows


def test_each_run_is_one_row_with_rank_cost_and_links_and_the_first_is_the_best(mirrored):
    store, *_ = mirrored
    experiment, runs = runs_of(store)
    assert [run.data.tags["row"] for run in runs] == ["FedProx", "FedAvg"], "MLflow shows the youngest first"
    assert [run.info.run_name for run in runs] == ["FedProx", "FedAvg"]
    assert [run.data.metrics["rank"] for run in runs] == [1, 2]
    first = runs[0].data.metrics
    assert (first["mean"], first["seeds"], first["seconds"]) == (52, 3, 6)
    assert first["std"] == pytest.approx(1.0259, abs=5e-5)
    assert first["kilobytes"] == pytest.approx(0.4)
    assert "printed" not in first
    note = runs[0].data.tags["mlflow.note.content"]
    cells = {run.info.run_id for run in store.client.search_runs([store.experiment])}
    linked = {line.split("/runs/")[1].rstrip(")") for line in note.splitlines() if "/runs/" in line}
    assert len(linked) == 3
    assert linked <= cells
    view = json.loads(experiment.tags["mlflow.sharedViewState.leaderboard"])
    assert view["orderByKey"] == "metrics.`rank`"
    assert "metrics.`mean`" in view["selectedColumns"]
    assert leaderboard.address_of(experiment.experiment_id)[1:] in experiment.tags["mlflow.note.content"]


@pytest.mark.parametrize("lost", [1, 3])
def test_a_row_with_runs_that_diverged_is_there_and_behind_the_others(mirrored, lost):
    experiment, runs = runs_of(mirrored[0])
    assert [run.data.tags["row"] for run in runs] == ["FedAvg", "FedProx"]
    assert [run.data.metrics["rank"] for run in runs] == [1, 2]
    first, last = (run.data for run in runs)
    assert "diverged" not in first.metrics
    assert (last.metrics["diverged"], last.metrics["seeds"]) == (lost, 3 - lost)
    assert "mean" not in last.metrics, "a diverged run is worse than any score"
    assert "metrics.`diverged`" in json.loads(experiment.tags["mlflow.sharedViewState.leaderboard"])["selectedColumns"]
    assert f"over {3 - lost} of 3 seeds; {lost} diverged." in last.tags["mlflow.note.content"]


def test_a_row_without_all_columns_has_no_rank_nor_mean_and_comes_last(tmp_path, empty_store):
    """It may have only the easy ones."""
    empty_store(tmp_path)
    skews = [{"partition": "iid"}, {"partition": "dirichlet"}]
    example = board({"partition": skews, "algorithm": ["fedavg", "fedprox"], "seed": [0, 1, 2]})
    cells = cells_of(example)
    there = [p for p in cells if (p.cell.algorithm.name, p.cell.partition.name) != ("fedprox", "dirichlet")]
    results = results_of(tmp_path, seeded(there))
    write_report(example, cells, results, tmp_path / "pages")
    store = Mirror(results)
    leaderboard.mirror(store, tmp_path / "pages")
    first, last = (run.data for run in runs_of(store)[1])
    assert (first.tags["row"], last.tags["row"]) == ("FedAvg", "FedProx")
    assert {"rank", "mean"} <= first.metrics.keys()
    assert not {"rank", "mean"} & last.metrics.keys()
    assert last.metrics["seeds"] == 3


def test_a_board_is_written_again_only_when_a_number_changed(mirrored):
    store, example, cells, results, pages = mirrored
    before = {run.info.run_id for run in runs_of(store)[1]}
    leaderboard.mirror(store, pages)
    assert {run.info.run_id for run in runs_of(store)[1]} == before
    results.path(cells[0].cell.key).unlink()
    write_report(example, cells, results, pages)
    leaderboard.mirror(store, pages)
    after = runs_of(store)[1]
    assert not before & {run.info.run_id for run in after}
    assert [run.data.metrics["seeds"] for run in after] == [3, 2]


def test_an_experiment_keeps_its_board_when_the_title_changes(mirrored, tmp_path):
    store, example, cells, results, pages = mirrored
    before, _ = runs_of(store)
    write_report(replace(example, title="Another title"), cells, results, pages)
    leaderboard.mirror(store, pages)
    after = store.client.get_experiment_by_name("Another title (example, own)")
    assert after.experiment_id == before.experiment_id
    assert store.client.get_experiment_by_name(before.name) is None
    write_report(replace(example, name="other", title="Another board"), cells, results, pages)
    leaderboard.mirror(store, pages)
    other = store.client.get_experiment_by_name("Another board (other, own)")
    assert other.experiment_id != before.experiment_id
    store.results = type(results)(tmp_path / "of somebody else")
    write_report(replace(example, title="Their title"), cells, results, tmp_path / "their pages")
    leaderboard.mirror(store, tmp_path / "their pages")
    assert store.client.get_experiment_by_name(after.name) is not None, "it is the board of another folder"


def test_the_boards_of_two_folders_that_share_a_store_are_two_experiments(mirrored, tmp_path, monkeypatch):
    _, example, cells, results, pages = mirrored
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/shared.db")
    other = results_of(tmp_path / "other", [record(cell, 10.0 + cell.cell.seed) for cell in cells])
    write_report(example, cells, other, tmp_path / "their pages")
    mine, theirs = Mirror(results), Mirror(other)

    def means():
        leaderboard.mirror(mine, pages)
        [name] = leaderboard.mirror(theirs, tmp_path / "their pages")
        found = []
        for store, wanted in ((mine, name), (theirs, f"{name} [{theirs.folder[:8]}]")):
            experiment = store.client.get_experiment_by_name(wanted)
            found.append([run.data.metrics.get("mean") for run in store.client.search_runs([experiment.experiment_id])])
        return found

    assert means() == means() == [[52.0, 51.0, None], [11.0, 11.0, None]]


def test_a_board_is_written_again_if_the_runs_that_it_links_are_others(mirrored):
    store, *_, results, pages = mirrored
    before = {run.info.run_id for run in runs_of(store)[1]}
    [run, *_] = store.client.search_runs([store.experiment])
    store.client.delete_run(run.info.run_id)
    again = Mirror(results)
    assert again.sync() == 1
    leaderboard.mirror(again, pages)
    assert not before & {run.info.run_id for run in runs_of(store)[1]}


def test_an_experiment_without_tags_is_found_by_its_name(mirrored):
    """As one of an earlier version."""
    store, *_, pages = mirrored
    before, _ = runs_of(store)
    for tag in ("fedspan.board", "fedspan.scale", "fedspan.digest"):
        store.client._tracking_client.store.delete_experiment_tag(before.experiment_id, tag)
    leaderboard.mirror(store, pages)
    after, _ = runs_of(store)
    assert after.experiment_id == before.experiment_id
    assert (after.tags["fedspan.board"], after.tags["fedspan.scale"]) == ("example", "own")


def test_a_small_number_arrives_whole(mirrored):
    store, *_, pages = mirrored
    [summary] = site.summaries_in(pages)
    entries = [replace(entry, mean=3.2e-6) for entry in summary.entries]
    (pages / "example" / "results.json").write_text(to_json(replace(summary, entries=tuple(entries))))
    leaderboard.mirror(store, pages)
    assert {run.data.metrics["mean"] for run in runs_of(store)[1]} == {3.2e-6}


def test_the_site_is_served_on_loopback_without_listings_or_links_out_of_it(tmp_path):
    site = tmp_path / "site"
    (site / "folder").mkdir(parents=True)
    (site / "index.html").write_text("a page")
    (tmp_path / "secret").write_text("not of the site")
    (site / "link").symlink_to(tmp_path / "secret")
    (site / "above").symlink_to(tmp_path)
    (site / "loop").symlink_to("loop")
    os.mkfifo(site / "pipe")
    with serving_site(site, 0) as server:
        assert server.server_address[0] == "127.0.0.1"
        address = f"http://127.0.0.1:{server.server_port}"
        with urllib.request.urlopen(f"{address}/", timeout=PATIENCE) as answer:
            assert answer.read() == b"a page"
        by_name = urllib.request.Request(address, headers={"Host": "localhost"})  # as with port 80
        with urllib.request.urlopen(by_name, timeout=PATIENCE) as answer:
            assert answer.read() == b"a page"
        for missing in ("folder/", "../secret", "%2e%2e/secret", "link", "above/secret", "loop", "pipe"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{address}/{missing}", timeout=PATIENCE)
        for name in ("rebound.example", f"rebound.example:{server.server_port}", ""):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(urllib.request.Request(address, headers={"Host": name}), timeout=PATIENCE)
        taken = pytest.raises(UserError, match=f"port {server.server_port} cannot be used")
        with taken, serving_site(site, server.server_port):
            pass


def test_nothing_of_the_server_outlives_its_block(tmp_path):
    before = threading.enumerate()
    with pytest.raises(UserError, match="MLflow"), serving_site(tmp_path, 0):
        raise UserError("MLflow ended")
    assert threading.enumerate() == before


def test_a_printed_value_is_a_metric_and_a_column(mirrored):
    store, _, _, _, pages = mirrored
    (summary,) = site.summaries_in(pages)
    entries = [replace(entry, printed=51.5, difference=entry.mean - 51.5) for entry in summary.entries]
    (pages / "example" / "results.json").write_text(to_json(replace(summary, entries=tuple(entries))))
    leaderboard.mirror(store, pages)
    experiment, runs = runs_of(store)
    assert [(run.data.metrics["printed"], run.data.metrics["difference"]) for run in runs] == [
        (51.5, 0.5),
        (51.5, -0.5),
    ]
    assert "metrics.`printed`" in json.loads(experiment.tags["mlflow.sharedViewState.leaderboard"])["selectedColumns"]


def test_the_last_run_has_the_tables_and_figures_of_the_page(mirrored):
    store, *_, pages = mirrored
    experiment, _ = runs_of(store)
    files = store.client.search_runs([experiment.experiment_id])[-1]
    sent = {file.path for file in store.client.list_artifacts(files.info.run_id)}
    assert {"table-1.csv", "table-1.md", "standing-1.csv"} <= sent
    assert sent == {path.name for path in (pages / "example").iterdir() if path.suffix in leaderboard.SUFFIXES}


def test_a_file_that_changed_alone_is_sent_again(mirrored, tmp_path):
    """As a table does that now says its runs were repeated, with the same numbers."""
    store, *_, pages = mirrored
    (table,) = pages.glob("example/table-1.csv")
    table.write_text(table.read_text() + "repeated\n")
    leaderboard.mirror(store, pages)
    experiment = store.client.get_experiment_by_name("Example (example, own)")
    *_, files = store.client.search_runs([experiment.experiment_id])
    sent = store.client.download_artifacts(files.info.run_id, table.name, str(tmp_path))
    assert Path(sent).read_text() == table.read_text()


def test_rows_of_several_tables_stand_table_by_table_beside_the_name_of_theirs(mirrored):
    *_, pages = mirrored
    [summary] = site.summaries_in(pages)
    view = leaderboard._view(summary.entries, widths={1: 1, 2: 1})
    assert view["selectedColumns"][0] == "tags.`table`"
    assert (view["orderByKey"], view["orderByAsc"]) == ("attributes.start_time", False)


def test_a_row_of_several_columns_is_one_run_with_a_metric_for_each(tmp_path, empty_store):
    empty_store(tmp_path)
    grid = {"partition": "dirichlet", "partition.alpha": [0.1, 1.0], "algorithm": ["fedavg", "fedprox"], "seed": [0, 1]}
    example = board(grid, tables=[Table(columns=("partition",))])
    cells = cells_of(example)
    results = results_of(tmp_path, seeded(cells))
    (table, _), *_ = write_report(example, cells, results, tmp_path / "pages").tables
    leaderboard.mirror(store := Mirror(results), tmp_path / "pages")
    experiment, runs = runs_of(store)
    assert len(runs) == len(table.rows) == 2
    means = {row.labels[0]: [entry.mean for entry in row.entries] for row in table.rows}
    for run in runs:
        found = [run.data.metrics[f"alpha {alpha}"] for alpha in ("0.1", "1")]
        assert found == pytest.approx(means[run.data.tags["method"]])
        assert run.data.metrics["mean"] == pytest.approx(sum(found) / 2)
    view = json.loads(experiment.tags["mlflow.sharedViewState.leaderboard"])
    assert "metrics.`alpha 0.1`" in view["selectedColumns"]
