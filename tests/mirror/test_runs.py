"""The mirror in MLflow, against a real sqlite store."""

import io
import json
import logging
import os
import sys
import threading
from pathlib import Path

import pytest

from fedspan.benchmark.mirror import runs as tracking
from fedspan.benchmark.mirror.runs import Mirror, Unreachable, follow, sync
from fedspan.benchmark.records.record import dotted, flatten, short_digest
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.running.cell_run import Outcome, make_record
from fedspan.benchmark.running.grid import all_mirrored
from fedspan.benchmark.spec.plan import plan
from fedspan.benchmark.spec.settings import How
from tests.helpers import wait_for, whole

CURVE = {"round": [1, 2, 20], "accuracy": [10.0, None, 30.0], "loss": [3.0, 2.0, 1.0], "train_loss": [2.0, 1.5, 1.25]}


@pytest.fixture
def results(tmp_path, empty_store, monkeypatch):
    empty_store(tmp_path / "results")
    return Results(tmp_path / "results")


def record(status="done", reason=None, accuracy=30.0, **overrides):
    [planned] = plan([{key.replace("__", "."): value for key, value in overrides.items()}])
    scores = {"trained": {"accuracy": accuracy, "loss": 1.0}} if status == "done" else {}
    made = make_record(
        planned.cell, How(Path(), Path(), command="fedspan run ..."), Outcome(status, reason, scores), None
    )
    compute = {"seconds": {"local": 1.5, "total": 2.0}, "flops": {"train": 1e9}}
    return whole(made | ({"curve": CURVE, "compute": compute} if status == "done" else {}))


def runs(mirror):
    return mirror.client.search_runs([mirror.experiment])


def test_a_cell_is_one_flat_run_with_a_tag_for_every_axis(results):
    results.write(record(algorithm="fedprox", addons=["feddecorr"], seed=3, partition__alpha=0.05, clients=7))
    mirror = Mirror(results)
    assert mirror.sync() == 1
    [run] = runs(mirror)
    tags = run.data.tags
    expected = {
        "dataset": "digits", "partition": "dirichlet", "clients": "7", "participation": "1.0", "model": "small_cnn",
        "algorithm": "fedprox", "addons": "feddecorr", "method": "FedProx + FedDecorr (released form)",
        "task": "Digits, 7 clients, alpha 0.05",
        "seed": "3", "scale": "own", "status": "done",
    }  # fmt: skip
    assert expected.items() <= tags.items()
    assert run.info.run_name == "FedProx + FedDecorr (released form), seed 3"
    assert "mlflow.parentRunId" not in tags
    assert run.info.status == "FINISHED"
    assert run.data.params["partition.alpha"] == "0.05"
    assert run.data.params["algorithm.mu"] == "0.001"
    assert run.data.params["protocol.rounds"] == "20"


def test_scores_costs_and_every_round_are_metrics(results):
    results.write(record())
    (mirror := Mirror(results)).sync()
    [run] = runs(mirror)
    assert run.data.metrics["trained.accuracy"] == 30.0
    assert run.data.metrics["compute.seconds.total"] == 2.0
    assert run.data.metrics["compute.flops.train"] == 1e9

    def history(name):
        return [(point.step, point.value) for point in mirror.client.get_metric_history(run.info.run_id, name)]

    assert history("curve.accuracy") == [(1, 10.0), (20, 30.0)]
    assert history("curve.loss") == [(1, 3.0), (2, 2.0), (20, 1.0)]
    assert history("trained.accuracy") == [(20, 30.0)]


def test_a_run_lasts_as_long_as_its_training(results):
    results.write(record())
    (mirror := Mirror(results)).sync()
    [run] = runs(mirror)
    assert run.info.end_time - run.info.start_time == 2000


def test_a_run_is_linked_to_its_dataset_and_its_model(results):
    results.write(record())
    (mirror := Mirror(results)).sync()
    [run] = runs(mirror)
    [used] = run.inputs.dataset_inputs
    assert used.dataset.name == "Digits, 10 clients, alpha 0.5"
    [model] = mirror.client.search_logged_models([mirror.experiment])
    assert (model.name, model.source_run_id) == ("Small CNN", run.info.run_id)
    assert [output.model_id for output in run.outputs.model_outputs] == [model.model_id]


def test_a_run_that_is_replaced_takes_its_model_with_it(results):
    results.write(record(accuracy=10.0))
    (mirror := Mirror(results)).sync()
    results.write(record(accuracy=20.0))
    mirror.sync()
    [run] = runs(mirror)
    assert [model.source_run_id for model in mirror.client.search_logged_models([mirror.experiment])] == [
        run.info.run_id
    ]


def test_a_store_of_an_earlier_version_keeps_its_runs(results):
    results.write(record())
    (mirror := Mirror(results)).sync()
    mirror.client.rename_experiment(mirror.experiment, "fedspan")
    again = Mirror(results)
    assert (again.experiment, again.sync(), len(runs(again))) == (mirror.experiment, 0, 1)


def test_a_long_curve_arrives_whole(results):
    rounds = list(range(1, 700))
    results.write(whole(record(protocol__rounds=699) | {"curve": {"round": rounds, "train_loss": rounds}}))
    (mirror := Mirror(results)).sync()
    [run] = runs(mirror)
    history = mirror.client.get_metric_history(run.info.run_id, "curve.train_loss")
    assert [point.value for point in history] == rounds


def test_the_record_itself_is_an_artifact(results, tmp_path):
    results.write(made := record())
    (mirror := Mirror(results)).sync()
    [run] = runs(mirror)
    path = mirror.client.download_artifacts(run.info.run_id, "record.json", str(tmp_path))
    assert json.loads(Path(path).read_text()) == made
    assert (results.root / "mlartifacts").is_dir()


def test_a_second_sync_sends_nothing(results):
    for seed in range(3):
        results.write(record(seed=seed))
    assert sync(results.root)[1] == 3
    assert sync(results.root)[1] == 0
    mirror = Mirror(results)
    assert (mirror.sync(), mirror.sync(), len(runs(mirror))) == (0, 0, 3)


def test_drivers_that_share_a_folder_send_a_record_once(results):
    one, other = Mirror(results), Mirror(results)
    results.write(record())
    assert [one.sync(), other.sync()] == [1, 0]
    assert len(runs(one)) == 1


def test_a_record_that_was_made_again_replaces_its_run(results):
    results.write(record(accuracy=10.0))
    results.write(record(seed=1))
    (mirror := Mirror(results)).sync()
    results.write(record(accuracy=20.0))
    assert mirror.sync() == 1
    assert sorted(run.data.metrics["trained.accuracy"] for run in runs(mirror)) == [20.0, 30.0]


def test_a_failure_is_mirrored_until_the_cell_succeeds(results):
    results.write(record("failed", "RuntimeError: no memory"))
    (mirror := Mirror(results)).sync()
    [run] = runs(mirror)
    assert (run.info.status, run.data.tags["status"], run.data.tags["reason"]) == (
        "FAILED",
        "failed",
        "RuntimeError: no memory",
    )
    results.write(record())
    assert mirror.sync() == 1
    [run] = runs(mirror)
    assert (run.info.status, run.data.tags["status"]) == ("FINISHED", "done")


def test_a_failure_replaces_no_result_of_another_machine(results, tmp_path, monkeypatch):
    results.write(record())
    (mirror := Mirror(results)).sync()
    other = Results(tmp_path / "other")
    other.write(record("failed", "RuntimeError: no memory"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mirror.uri)
    assert Mirror(other).sync() == 0
    [run] = runs(mirror)
    assert run.data.tags["status"] == "done"


def test_folders_that_share_a_store_keep_each_others_runs_and_equal_records_are_one(results, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", Mirror(results).uri.replace("mlflow.db", "shared.db"))
    other = Results(tmp_path / "other")
    results.write(record(accuracy=10.0))
    other.write(record(accuracy=20.0))
    for place in (results, other):
        place.write(record(seed=1))
    assert [Mirror(place).sync() for place in (results, other, results, other)] == [2, 1, 0, 0]
    mirror = Mirror(other)
    key = record()["key"]
    scores = {run.info.run_id: run.data.metrics["trained.accuracy"] for run in runs(mirror)}
    assert sorted(scores.values()) == [10.0, 20.0, 30.0]
    assert [scores[Mirror(place).run_of(key)] for place in (results, other)] == [10.0, 20.0]
    other.write(record(accuracy=40.0))
    assert mirror.sync() == 1
    assert sorted(run.data.metrics["trained.accuracy"] for run in runs(mirror)) == [10.0, 30.0, 40.0]


@pytest.mark.parametrize(("status", "shown"), [("skipped", "KILLED"), ("diverged", "FAILED")])
def test_other_outcomes_are_runs_with_their_reason(results, status, shown):
    results.write(record(status, "why"))
    (mirror := Mirror(results)).sync()
    [run] = runs(mirror)
    assert (run.info.status, run.data.tags["status"], run.data.tags["reason"]) == (shown, status, "why")


def refuse(*args, **more):
    raise ConnectionError("the line is dead\nand more")


@pytest.mark.parametrize("step", ["log_batch", "log_dict", "set_terminated", "set_tag"])
def test_a_run_that_was_sent_half_is_sent_again_and_its_half_removed(results, step):
    results.write(record())
    mirror = Mirror(results)
    setattr(mirror.client, step, refuse)
    with pytest.raises(Unreachable, match=r"ConnectionError: the line is dead$"):
        mirror.sync()
    again = Mirror(results)
    assert again.sync() == 1
    [run] = runs(again)
    assert run.data.tags["fedspan.digest"] == short_digest(results.read(run.data.tags["fedspan.key"]))
    assert sync(results.root)[1] == 0


def test_an_old_run_that_could_not_be_removed_goes_next_time(results):
    results.write(record(accuracy=10.0))
    sync(results.root)
    results.write(record(accuracy=20.0))
    mirror = Mirror(results)
    mirror.client.delete_run = refuse
    with pytest.raises(Unreachable):
        mirror.sync()
    again = Mirror(results)
    assert len(runs(again)) == 2
    assert again.sync() == 0
    [run] = runs(again)
    assert run.data.metrics["trained.accuracy"] == 20.0


def test_a_damaged_record_is_not_mirrored(results):
    results.write(record())
    [path] = results.records.glob("*.json")
    path.write_text("{")
    assert sync(results.root)[1] == 0


# following a grid -----------------------------------------------------------------------------------


def test_the_records_of_a_grid_alone_are_mirrored_as_they_come_and_the_last_ones_at_the_end(results, monkeypatch):
    monkeypatch.setattr(tracking, "POLL_SECONDS", 0.01)
    ended, said = threading.Event(), []
    watcher = Mirror(results)
    results.write(record(seed=0))
    results.write(record(seed=2))
    keys = [record(seed=seed)["key"] for seed in (0, 1)]
    thread = threading.Thread(target=lambda: said.append(follow(results.root, keys, ended)))
    thread.start()
    wait_for(lambda: len(runs(watcher)) == 1)
    assert thread.is_alive()
    results.write(record(seed=1))
    ended.set()
    thread.join()
    assert len(runs(watcher)) == 2
    assert said == [f"2 runs mirrored to MLflow (sqlite:///{results.root}/mlflow.db)"]


def test_nothing_new_is_nothing_to_say(results):
    ended = threading.Event()
    ended.set()
    assert follow(results.root, [], ended) == ""


def test_a_store_out_of_reach_is_one_line_that_says_what_to_do(results, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    results.write(record())
    ended = threading.Event()
    ended.set()
    said = follow(results.root, [record()["key"]], ended)
    assert said.startswith("MLflow could not be reached (http://127.0.0.1:9: ")
    assert said.endswith("all records are kept, run 'fedspan sync' later")
    assert "\n" not in said


def test_the_process_beside_a_grid_ends_with_its_input_and_says_what_it_did(results, monkeypatch, capsys):
    results.write(record(seed=0))
    results.write(record(seed=1))
    damaged = min(results.records.glob("*.json"))
    damaged.write_text("{")
    monkeypatch.setattr(sys, "argv", ["fedspan.benchmark.mirror.runs", str(results.root)])
    monkeypatch.setattr(sys, "stdin", io.StringIO(" ".join(path.stem for path in results.records.glob("*.json"))))
    monkeypatch.setattr(logging.getLogger("fedspan"), "handlers", [])
    tracking.main()
    out = capsys.readouterr().out
    assert f"{damaged} is passed over: " in out
    assert out.splitlines()[-1].startswith("1 run mirrored to MLflow")


def test_nobody_is_told_that_fedspan_runs(results):
    Mirror(results)
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_nested_values_have_dotted_names_and_lists_stay():
    leaves = {dotted(steps): value for steps, value in flatten({"a": {"b": 1, "c": {"d": [2]}}, "e": None})}
    assert leaves == {"a.b": 1, "a.c.d": [2], "e": None}


# the index: what is mirrored already -----------------------------------------------------------------


def test_a_grid_knows_when_its_records_are_all_mirrored_as_they_are(results):
    results.write(record())
    assert not all_mirrored(results, results.entries())
    Mirror(results).sync()
    assert all_mirrored(results, results.entries())
    results.write(record(accuracy=29.0) | {"curve": CURVE | {"accuracy": [10.0, None, 29.0]}})
    assert not all_mirrored(results, results.entries())


def test_records_that_the_store_holds_are_not_read_again(results, monkeypatch):
    monkeypatch.setattr("fedspan.benchmark.records.index.SETTLED_SECONDS", -60.0)
    results.write(record())
    Mirror(results).sync()
    results.entries()
    monkeypatch.setattr(results, "read", None)  # it would raise
    assert Mirror(results).sync() == 0


def test_a_run_that_was_deleted_comes_back_with_the_next_sync(results):
    results.write(record())
    (mirror := Mirror(results)).sync()
    [run] = runs(mirror)
    mirror.client.delete_run(run.info.run_id)
    assert Mirror(results).sync() == 1
