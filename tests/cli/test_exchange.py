"""Records that travel: collected from folders and from MLflow, checked, refused by name. Cells that are run again."""

import contextlib
import json
import re
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from fedspan.benchmark.mirror.runs import Mirror
from fedspan.benchmark.records.exchange import read, validate_files
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.verification import Repeated, Verification
from fedspan.benchmark.running import signals
from fedspan.benchmark.running.retry import prepare
from fedspan.benchmark.training.run import Run
from tests.cli.conftest import ONE, QUICK, change, failures, records

GRID = ("run", "-m", *QUICK, *ONE)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    return tmp_path_factory.mktemp("elsewhere") / "records"


@pytest.fixture
def made(fedspan, elsewhere):
    """A results folder with three records, made elsewhere."""
    if not elsewhere.exists():
        assert fedspan(*GRID, "seed=0,1,2", "paths.results=there").status == 0
        shutil.copytree("there/records", elsewhere)
    shutil.copytree(elsewhere, "there/records", dirs_exist_ok=True)
    return sorted(Path("there/records").glob("*.json"))


def content(folder):
    return {path.name: path.read_bytes() for path in Path(folder, "records").glob("*.json")}


@pytest.mark.parametrize("place", ["there", "there/records"])
def test_records_made_elsewhere_are_collected_as_they_are_and_only_once(fedspan, made, place):
    ran = fedspan("sync", "--from", place)
    assert (ran.status, ran.out, ran.err) == (0, "records: 3 collected\n", "")
    assert content("results") == content("there")
    assert fedspan("sync", "--from", place).out == "records: 0 collected, 3 known already\n"
    assert "3 with a record, nothing to run" in fedspan(*GRID, "seed=0,1,2").out


def test_records_are_collected_from_mlflow(fedspan, made, empty_store, here):
    empty_store(here / "there")
    Mirror(Results(here / "there")).sync()
    ran = fedspan("sync", "--from", f"sqlite:///{here}/there/mlflow.db")
    assert (ran.status, ran.out) == (0, "records: 3 collected\n")
    assert content("results") == content("there")


def test_a_record_that_was_changed_in_mlflow_is_refused_by_name_and_the_others_are_collected(
    fedspan, made, empty_store, here
):
    empty_store(here / "there")
    Mirror(Results(here / "there")).sync()
    changed, gone, _ = sorted((here / "there" / "mlartifacts").rglob("record.json"))
    record = json.loads(changed.read_text())
    record["scores"]["trained"]["loss"] = 9.0
    changed.write_text(json.dumps(record))
    key = json.loads(gone.read_text())["key"]
    gone.unlink()
    ran = fedspan("sync", "--from", f"sqlite:///{here}/there/mlflow.db")
    assert (ran.status, ran.out) == (1, "records: 1 collected, 2 refused\n")
    assert f"{record['key']} of run" in ran.err
    assert "is refused: its digest is not that of its run" in ran.err
    assert re.search(rf"{key} of run \w+ is refused: it cannot be fetched: ", ran.err)
    assert len(content("results")) == 1


def test_a_store_without_records_says_what_it_lacks(fedspan, empty_store, here):
    empty_store(here / "there")
    with contextlib.closing(sqlite3.connect(here / "there" / "mlflow.db")) as store, store:
        store.execute("update experiments set name = 'theirs ' || experiment_id")
    ran = fedspan("sync", "--from", f"sqlite:///{here}/there/mlflow.db")
    assert (ran.status, ran.out) == (2, "")
    assert "holds no experiment called" in ran.complaint


def test_a_failure_is_no_result_wherever_it_comes_from(fedspan, made, empty_store, here):
    """It is neither a valid record nor collected; a store that mirrors it is no worse for it."""
    change(made[0], lambda r: r.update(status="failed", reason="no disk", scores={}, curve={}, compute={}, digests={}))
    ran = fedspan("sync", "--from", "there")
    assert (ran.out, failures()) == ("records: 2 collected, 1 refused\n", [])
    assert f"{made[0]} is refused: it failed, so it is not a result" in ran.complaint
    assert fedspan("validate", "there").status == 1
    empty_store(here / "there")
    (here / "there" / "failures").mkdir()
    made[0].rename(here / "there" / "failures" / made[0].name)
    Mirror(Results(here / "there")).sync()
    ran = fedspan("sync", "--from", f"sqlite:///{here}/there/mlflow.db", "paths.results=third")
    assert (ran.status, ran.out) == (0, "records: 2 collected\n")


def test_the_same_result_at_another_speed_is_no_conflict(fedspan, made):
    fedspan("sync", "--from", "there")
    before = content("results")
    change(made[0], lambda record: record["compute"]["seconds"].update(total=1.0))
    assert fedspan("sync", "--from", "there").out == "records: 0 collected, 3 known already\n"
    assert content("results") == before


@pytest.mark.parametrize("at", ["here", "there"])
def test_a_record_that_lacks_a_count_of_the_other_is_a_conflict(fedspan, made, at):
    fedspan("sync", "--from", "there")
    path = made[0] if at == "there" else Path("results/records", made[0].name)
    change(path, lambda record: record["compute"]["flops"].update(hooks=1))
    ran = fedspan("sync", "--from", "there")
    assert ran.status == 1
    assert "compute.flops.hooks is " in ran.complaint


def test_collecting_moves_no_damaged_record_away(fedspan, made):
    shutil.copytree("there/records", "results/records")
    damaged = Path("results/records", made[0].name)
    damaged.write_text("{")
    ran = fedspan("sync", "--from", "there")
    assert (ran.status, damaged.read_text()) == (1, "{")
    assert f"{damaged} exists but cannot be used" in ran.err


def test_a_conflict_is_refused_by_name_and_the_others_are_collected(fedspan, made):
    shutil.copytree("there/records", "results/records")
    for path in made[1:]:
        Path("results/records", path.name).unlink()
    before = Path("results/records", made[0].name).read_bytes()

    def edit(record):
        record["scores"]["trained"]["loss"] += 0.5

    change(made[0], edit)
    ran = fedspan("sync", "--from", "there")
    assert (ran.status, ran.out) == (1, "records: 2 collected, 1 refused\n")
    assert (
        f"{made[0]} is refused: it contradicts results/records/{made[0].name}: scores.trained.loss is " in ran.complaint
    )
    assert Path("results/records", made[0].name).read_bytes() == before


# validation -----------------------------------------------------------------------------------------


def test_good_records_are_valid(fedspan, made):
    said = "records: 3 valid\n  3 not repeated yet\n"
    assert fedspan("validate", "there").out.startswith(said)
    assert fedspan("validate", *made).out.startswith(said)
    assert fedspan("validate", "paths.results=there").out.startswith(said)
    assert fedspan("validate", "there", *made).out.startswith(said), "each once"


def test_a_file_beside_a_record_is_read_with_it(fedspan, made):
    beside = made[0].with_suffix(".spectra.json")
    beside.write_text("{}")
    assert fedspan("validate", *made, beside).out.startswith("records: 3 valid\n")


def everywhere(value):
    return lambda record: record["curve"]["accuracy"].__setitem__(0, value)


BAD = {
    "key": (lambda record: record.update(key="0" * 20), "its key does not match its spec"),
    "spec": (lambda record: record["spec"].update(seed=77), "its key does not match its spec"),
    "schema": (lambda record: record.update(schema=99), "its schema is 99"),
    "score": (lambda record: record["scores"]["trained"].update(accuracy=101.0), "outside 0..100"),
    "curve": (everywhere(-1.0), "its curve.accuracy[0] is -1.0, below 0"),
    "text": (everywhere("99"), "its curve.accuracy[0] is '99', not a number or null"),
    "beyond all floats": (everywhere(10**400), "its curve.accuracy[0] is 1000"),
    "truth": (everywhere(True), "its curve.accuracy[0] is True, not a number or null"),
    "length": (lambda record: record["curve"]["loss"].pop(), "curve.loss does not have one value for each"),
    "order": (lambda record: record["curve"]["round"].reverse(), "its curve.round does not rise within 1..3"),
    "end": (lambda record: [v.pop() for v in record["curve"].values()], "its curve ends after round 2 of 3"),
    "headline": (lambda record: record["scores"]["trained"].update(accuracy=99.5), "is 99.5, its curve ends with"),
    "best": (lambda record: record["scores"]["best"].update(accuracy=99.5), "is 99.5, the best of its curve is"),
    "cost": (lambda record: record["compute"]["bytes"].update(up=-1), "its compute.bytes.up is -1, below 0"),
    "data": (lambda record: record["provenance"].pop("dataset_digest"), "its provenance.dataset_digest is None"),
    "digest": (
        lambda record: record["provenance"].update(partition_digest="<b>"),
        "partition_digest is '<b>', not",
    ),
    "shape": (lambda record: record["scores"].update(best=3), "its scores.best is 3, not an object"),
}


@pytest.mark.parametrize(("edit", "message"), BAD.values(), ids=BAD)
def test_what_no_run_can_give_is_refused_by_name_and_stays_where_it_is(fedspan, made, edit, message):
    change(made[1], edit)
    before = content("there")
    ran = fedspan("validate", "there")
    assert (ran.status, ran.out.splitlines()[0]) == (1, "records: 2 valid, 1 refused")
    assert ran.complaint.startswith(f"fedspan: {made[1]} is refused: ")
    assert message in ran.complaint
    assert content("there") == before
    assert fedspan("sync", "--from", "there").out == "records: 2 collected, 1 refused\n"


def check_refused(fedspan, why):
    """Check that one of the three records is refused, and the others taken, by `validate` and by `sync`."""
    for words, counted in ((["validate"], "2 valid"), (["sync", "--from"], "2 collected")):
        ran = fedspan(*words, "there")
        assert (ran.status, ran.out.splitlines()[0]) == (1, f"records: {counted}, 1 refused")
        assert why in ran.complaint


def of_other_data(record):
    record["provenance"]["dataset_digest"] = "0" * 64


@pytest.mark.parametrize("which", [0, 2], ids=["the first", "the last"])
def test_records_of_one_task_are_made_from_the_same_data(fedspan, made, which):
    change(made[which], of_other_data)
    check_refused(fedspan, f"{made[which]} is refused: its provenance.dataset_digest is 000000000000, but ")


@pytest.mark.parametrize("order", [["forged", "there"], ["there", "forged"]])
def test_of_two_files_of_one_record_the_forged_one_is_refused(fedspan, made, order):
    Path("forged").mkdir()
    change(Path(shutil.copy(made[0], "forged")), of_other_data)
    ran = fedspan("validate", *order)
    assert f"forged/{made[0].name} is refused" in ran.complaint
    assert ran.out.startswith("records: 3 valid, 1 refused\n")


def test_without_a_majority_all_records_of_a_task_are_refused(fedspan, made):
    change(made[0], of_other_data)
    ran = fedspan("validate", *made[:2])
    assert ran.out.startswith("records: 0 valid, 2 refused\n")


def test_a_repeated_record_outvotes_those_that_nobody_repeated(made):
    for path in made[1:]:
        change(path, of_other_data)
    record = json.loads(made[0].read_text())
    same = Verification(
        key=record["key"], record=record["digest"], outcome="identical", compared="digests",
        date="2026-11-22T10:00:00+00:00", processor="A", instructions="AVX2", numerics="portable", device="cpu",
        versions={}, sources={}, engine="syntax:1",
    )  # fmt: skip
    assert set(validate_files(made, Repeated()).refused) == {str(made[0])}
    assert set(validate_files(made, Repeated([same])).refused) == {str(path) for path in made[1:]}


def test_a_record_that_lacks_a_score_of_the_other_is_a_conflict(fedspan, made):
    fedspan("sync", "--from", "there")
    change(made[0], lambda record: record["scores"]["trained"].update(worst_tenth_accuracy=50.0))
    ran = fedspan("sync", "--from", "there")
    assert (ran.status, "scores.trained.worst_tenth_accuracy is None here" in ran.complaint) == (1, True)


def test_published_records_are_right_however_many_new_ones_contradict_them(fedspan, made):
    published, *new = made
    for path in new:
        change(path, lambda record: record["provenance"].update(dataset_digest="0" * 64))
    found = validate_files(new, Repeated(), [read(published)])
    assert (found.good, set(found.refused)) == ([], set(map(str, new)))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"key": NaN}', "\xff"])
def test_what_is_no_record_is_refused_in_one_line(fedspan, here, text):
    (here / "wrong.json").write_bytes(text.encode("latin1"))
    ran = fedspan("validate", "wrong.json")
    assert ran.status == 1
    assert "wrong.json is refused: " in ran.complaint


def test_a_link_to_itself_is_refused_and_the_others_are_checked(fedspan, made):
    loop = made[0].with_name(f"{'0' * 20}.json")
    loop.symlink_to(loop.name)
    ran = fedspan("validate", "there")
    assert (ran.status, f"{loop} is refused: " in ran.complaint) == (1, True)
    assert ran.out.startswith(f"records: {len(made)} valid, 1 refused")


def test_a_place_without_records_is_named(fedspan):
    assert "absent does not exist" in fedspan("validate", "absent").complaint
    assert "argument --from: expected one argument" in fedspan("sync", "--from").complaint


# again ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("with_toys")
def test_what_failed_is_run_again_and_what_diverged_keeps_its_record(fedspan, here):
    mended = here / "mended"
    fedspan(*GRID, "algorithm=toy_raises", f"algorithm.until={mended}", "seed=0,1")
    fedspan(*GRID, "algorithm=toy_diverges,fedavg")
    before = content("results")
    assert len(failures()) == 2
    mended.touch()
    ran = fedspan("retry", "--failed", "tracking=false", *ONE)
    assert ran.status == 0
    first, second = ran.out.splitlines()[:2]
    assert first.startswith("1 diverged cell is not retried: a repetition diverges again; ")
    assert "fresh=true" in first
    assert second.startswith("2 cells: 0 with a record, 2 to run")
    assert failures() == []
    after = content("results")
    assert len(after) == 4
    assert before.items() <= after.items()
    assert fedspan("retry", "--failed").out.splitlines()[1:] == ["nothing to retry"]


def test_a_cell_that_took_too_long_goes_on_with_more_time(fedspan, with_toys, monkeypatch):
    held = ("algorithm=toy_held", "algorithm.at=1", "checkpoint_seconds=0")
    saved = Path("results/checkpoints").glob
    with monkeypatch.context() as patch:  # time passes once the first round is saved, however long it takes
        clock = SimpleNamespace(monotonic=lambda: 1000.0 * any(saved("*.safetensors")))
        patch.setattr(signals, "time", clock)
        assert fedspan(*GRID, *held, "timeout=0.6").status == 1
    [failure] = failures()
    assert failure["reason"] == "timed out after 0.6 s; a longer timeout resumes it"
    Path("go").touch()
    begun = []
    advance = Run.advance
    monkeypatch.setattr(Run, "advance", lambda run, *more: begun.append(run.state.round) or advance(run, *more))
    assert fedspan("retry", "--failed", "tracking=false", *ONE, "timeout=60").status == 0
    assert begun[0] == 1, "it resumed"
    assert fedspan(*GRID, *held, "paths.results=undisturbed").status == 0
    assert records() == records("undisturbed")


def test_an_interrupted_retry_forgets_no_failed_cell(fedspan, with_toys):
    assert fedspan(*GRID, "algorithm=toy_raises").status == 1
    [failure] = failures()
    Results(Path("results")).forget_failure(failure["key"])  # the cell starts again, and its process is killed
    assert failures() == []
    ran = fedspan("retry", "--failed", "tracking=false", *ONE)
    assert ran.out.splitlines()[0] == "1 cell: 0 with a record, 1 to run with workers=1"
    assert [one["key"] for one in failures()] == [failure["key"]]
    assert not list(Path("results/failures/earlier").iterdir())


def test_a_retry_runs_cells_as_their_own_commands_did(fedspan, with_toys):
    assert fedspan(*GRID, "algorithm=toy_raises", "executor=vmap", "numerics=native").status == 1
    results = Results(Path("results"))
    as_before = {"board": "results/retry.yaml", "executor": "vmap", "numerics": "native"}
    assert prepare(results, {}) == as_before
    assert prepare(results, {"executor": "loop"}) == {"board": "results/retry.yaml", "numerics": "native"}
    assert fedspan(*GRID, "seed=1", "algorithm=toy_raises").status == 1
    ran = fedspan("retry", "--failed", "tracking=false", *ONE)
    assert "the failed cells ran with executor=" in ran.complaint
    assert "give one for all of them" in ran.complaint
    assert fedspan("retry", "--failed", "tracking=false", *ONE, "executor=loop", "numerics=native").status == 1
    assert {(one["provenance"]["executor"], one["provenance"]["numerics"]) for one in failures()} == {
        ("loop", "native")
    }


def test_what_says_the_same_in_other_words_is_no_disagreement_between_failed_cells(fedspan, with_toys):
    """Portable numerics are the default here, and all GPUs compute alike."""
    toy = [*GRID, "algorithm=toy_raises"]
    assert fedspan(*toy).status == 1
    assert fedspan(*toy, "seed=1", "numerics=portable").status == 1
    results = Results(Path("results"))
    assert prepare(results, {}) == {"board": "results/retry.yaml", "numerics": "portable"}
    for number, failure in enumerate(failures()):
        failure["provenance"]["command"] += f" device=cuda{':0' * number}"
        results.write(failure)
    assert prepare(results, {})["device"] in ("cuda", "cuda:0")


def test_a_plan_counts_what_an_interrupted_retry_left(fedspan, with_toys):
    assert fedspan(*GRID, "algorithm=toy_raises").status == 1
    [failure] = failures()
    Results(Path("results")).forget_failure(failure["key"])
    told = fedspan("plan", *GRID[2:], "algorithm=toy_raises").out
    assert "1 of the missing failed before and will be retried" in told


def test_a_retry_takes_the_plugin_files_that_it_needs(fedspan, here):
    text = """
from fedspan.benchmark.component import Component, Setting, algorithm

@algorithm("of_a_file_too")
class OfAFile(Component):
    \"\"\"Ours (2026).\"\"\"

    def check(self, setting: Setting) -> None:
        raise RuntimeError("it fails")
"""
    (here / "mine.py").write_text(text)
    assert fedspan(*GRID, "algorithm=of_a_file_too", "plugins=mine.py").status == 1
    assert prepare(Results(Path("results")), {}) == {"board": "results/retry.yaml", "plugins": ["mine.py"]}
    (here / "mine.py").rename("moved.py")
    given = {"plugins": ["moved.py"]}
    assert prepare(Results(Path("results")), given) == {"board": "results/retry.yaml"}


def test_with_nothing_to_run_again_it_says_so(fedspan, here):
    (here / "results").mkdir()
    assert fedspan("retry", "--failed").out == "nothing to retry\n"


@pytest.mark.parametrize("words", [["retry"], ["retry", "tracking=false"]])
def test_a_retry_names_what_it_repeats(fedspan, words):
    assert fedspan(*words).complaint == "fedspan: write: fedspan retry --failed [name=value ...]"


def test_a_retry_repeats_cells_as_they_were(fedspan):
    assert "'seed' cannot be set" in fedspan("retry", "--failed", "seed=3").complaint


@pytest.mark.usefixtures("with_toys")
def test_a_retry_passes_the_options_of_its_launcher_on(fedspan):
    fedspan("run", *QUICK, "algorithm=toy_raises")
    ran = fedspan("retry", "--failed", "tracking=false", *ONE, "launcher=basic", "hydra.launcher.qos=long")
    assert ran.complaint == "fedspan: Could not override 'hydra.launcher.qos'."


@pytest.fixture
def photos(here):
    """Return the settings of a short cell on a user's own images."""
    for number, (split, label) in enumerate((s, c) for s in ("train", "test") for c in "ab"):
        (here / "photos" / split / label).mkdir(parents=True)
        for copy in range(4):
            image = Image.new("RGB", (8, 8), (40 * number, 60 * copy, 0))
            image.save(here / "photos" / split / label / f"{copy}.png")
    words = [word for word in QUICK if not word.startswith("dataset.")]
    return [*words, "dataset=image_folder", f"dataset.root={here / 'photos'}", "dataset.size=8"]


def test_a_retry_is_told_where_the_images_are(fedspan, photos, with_toys):
    [root] = [word for word in photos if word.startswith("dataset.root=")]
    slow = ("algorithm=toy_slow", "algorithm.seconds=0.4", "checkpoint_seconds=0")
    assert fedspan("run", *photos, *slow, "timeout=0.6").status == 1
    assert fedspan(*GRID, *slow, "timeout=0.6").status == 1
    ran = fedspan("retry", "--failed", "tracking=false", *ONE, "timeout=60", root)
    assert ran.out.splitlines()[0] == "2 cells: 0 with a record, 2 to run with workers=1"
    assert failures() == []


def test_a_retry_without_the_images_says_what_it_needs(fedspan, photos, with_toys):
    slow = ("algorithm=toy_slow", "algorithm.seconds=0.4", "checkpoint_seconds=0")
    assert fedspan("run", *photos, *slow, "timeout=0.6").status == 1
    ran = fedspan("retry", "--failed", "tracking=false")
    assert ran.status == 2
    assert "is not run again: dataset.root is not set" in ran.err
    assert "nothing to retry but 1 cell that cannot be run again" in ran.err
    assert len(failures()) == 1


def test_a_record_of_a_users_own_images_is_valid_and_verify_says_who_can_repeat_it(fedspan, here, photos):
    assert fedspan("run", *photos).status == 0
    ran = fedspan("validate")
    assert (ran.status, ran.err) == (0, "")
    assert "1 valid" in ran.out
    [key] = records()
    ran = fedspan("verify", key)
    assert ran.status == 2
    assert "the images of image_folder are known by their content alone" in ran.out + ran.err


def test_records_of_one_task_are_made_from_the_same_partition(made):
    published = read(made[0])
    change(made[0], lambda record: record["provenance"].update(partition_digest="0" * 64))
    found = validate_files(made, Repeated(), [published])
    assert (found.good, list(found.refused)) == ([str(path) for path in made[1:]], [str(made[0])])
    assert "its provenance.partition_digest is 000000000000, but " in found.refused[str(made[0])]


def test_a_record_from_elsewhere_without_its_digest_is_refused(fedspan, made):
    """Without one nothing tells that it is what was written."""
    record = json.loads(made[0].read_text())
    del record["digest"]
    made[0].write_text(json.dumps(record))
    check_refused(fedspan, f"{made[0]} is refused: it has no digest")


def test_a_database_that_is_not_there_is_not_made(fedspan, here):
    ran = fedspan("sync", "--from", f"sqlite:///{here}/nowhere/mlflow.db")
    assert (ran.status, ran.out) == (2, "")
    assert "nowhere/mlflow.db: there is no such database" in ran.err
    assert not (here / "nowhere").exists()
