"""Any record repeated by one command: what it says of good, changed and foreign records, and what it leaves behind."""

import errno
import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedspan.benchmark.cli.main import main
from fedspan.benchmark.cli.verify import sampled
from fedspan.benchmark.data.array_cache import AFRESH
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.places import interpreter
from fedspan.benchmark.records import sources
from fedspan.benchmark.records.record import digest_of
from fedspan.benchmark.records.verification import read
from fedspan.benchmark.running import repetition
from fedspan.benchmark.running.repetition import end_of
from fedspan.benchmark.spec.cell import key_of
from tests.cli.conftest import ONE, QUICK
from tests.helpers import PATIENCE, wait_for

GRID = ("run", "-m", *QUICK, *ONE)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    return tmp_path_factory.mktemp("made") / "results"


class Forked:
    """Stands for `Popen`: the command runs in a fork of this process, because starting Python anew takes seconds."""

    def __init__(self, command, env, **_):
        assert env[AFRESH] == "1", "a repetition reads its images afresh"
        assert command[:3] == [*interpreter(), "-m"], "files of the working folder are no modules"
        reader, writer = multiprocessing.Pipe(duplex=False)
        words = command[command.index("fedspan") + 1 :]
        self._said, self._process = (
            reader,
            multiprocessing.get_context("fork").Process(target=self._run, args=(words, writer)),
        )
        self._process.start()
        writer.close()
        self.pid, self.returncode = self._process.pid, None

    @staticmethod
    def _run(words, writer):
        os.setsid()
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        status = main(list(words))
        writer.send(sys.stderr.getvalue())
        os._exit(status)

    def communicate(self):
        said = self._said.recv() if self._said.poll(PATIENCE) else ""
        self._process.join(PATIENCE)
        self.returncode = self._process.exitcode
        return None, said

    def poll(self):
        return self._process.exitcode


@pytest.fixture
def forked(monkeypatch):
    """Repeat records in forks of this process."""
    names = SimpleNamespace(Popen=Forked, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(repetition, "subprocess", names)


@pytest.fixture
def made(fedspan, made_once, here, monkeypatch, forked):
    """A results folder with three records, one of which started from the model of another; scratch lies in `tmp`."""
    if not made_once.exists():
        assert fedspan(*GRID, "seed=0", "addons=[],[ccvr]", "paths.results=once").status == 0
        assert fedspan(*GRID, "seed=1", "paths.results=once").status == 0
        shutil.copytree("once", made_once)
    shutil.copytree(made_once, "results")
    (here / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(here / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield sorted(Path("results/records").glob("*.json"))
    assert list((here / "tmp").glob("fedspan-*")) == []


@pytest.fixture
def without_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def change(path, edit):
    """Change a record as somebody would who computes its digest and key again; return where it is then."""
    record = json.loads(path.read_text())
    path.unlink()
    del record["digest"]
    edit(record)
    record["key"] = key_of(record["spec"])
    path = path.with_name(f"{record['key']}.json")
    path.write_text(json.dumps({**record, "digest": digest_of(record)}))
    return path


def kept():
    return [read(path) for path in sorted(Path("results/verifications").glob("*.json"))]


def content():
    return {path.name: path.read_bytes() for path in Path("results/records").glob("*.json")}


def test_records_of_this_machine_are_repeated_to_the_bit_and_that_is_kept_checked_and_collected(fedspan, made):
    before = content()
    ran = fedspan("verify", *ONE, *(path.stem for path in made))
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.count("identical  ") == 3
    assert ran.out.endswith("3 identical\nkept in results/verifications\n")
    assert content() == before
    found = kept()
    assert [(one.outcome, one.compared, one.where) for one in found] == [("identical", "digests", "")] * 3
    assert {one.key for one in found} == {path.stem for path in made}
    assert "  3 repeated on 1 kind of processor\nverifications: 3 valid\n" in fedspan("validate").out
    collected = fedspan("sync", "--from", "results", "paths.results=there").out
    assert collected == "records: 3 collected\nverifications: 3 collected\n"
    again = fedspan("sync", "--from", "results", "paths.results=there").out
    assert again == "records: 0 collected, 3 known already\nverifications: 0 collected, 3 known already\n"


def test_a_forged_verification_is_refused_and_not_collected(fedspan, made):
    fedspan("verify", made[0].stem)
    [path] = Path("results/verifications").glob("*.json")
    path.write_text(path.read_text().replace("identical", "identicaI"))
    ran = fedspan("validate")
    assert (ran.status, "verifications: 0 valid, 1 refused" in ran.out) == (1, True)
    assert f"{path} is refused: " in ran.complaint
    assert "verifications: 0 collected, 1 refused" in fedspan("sync", "--from", "results", "paths.results=there").out
    assert not Path("there/verifications").exists()


@pytest.mark.slow
def test_a_repetition_never_starts_from_a_model_that_is_there(fedspan, made, monkeypatch):
    """The trained models in the results folder are of another run: only one that is not used gives the same bits."""
    calibrated = next(path for path in made if json.loads(path.read_text())["spec"]["addons"])
    assert json.loads(calibrated.read_text())["provenance"]["trained_by"]
    commands = []

    def popen(words, **more):
        commands.append(words)
        return subprocess.Popen(words, **more)  # a process of its own, as users have it

    monkeypatch.setattr(repetition.subprocess, "Popen", popen)
    assert fedspan("verify", calibrated.stem[:8]).status == 0
    [words] = [words for words in commands if "run" in words]
    [folder] = [word for word in words if word.startswith("paths.results=")]
    assert "fedspan-verify-" in folder


# changed records ---------------------------------------------------------------------------------------------


def score(record):
    record["scores"]["trained"]["accuracy"] = record["scores"]["best"]["accuracy"] = 100.0
    record["scores"]["best"]["round"] = 3
    record["curve"]["accuracy"][-1] = 100.0


def weights(record):
    record["digests"]["rounds"]["2"] = "0" * 64


FORGED = {
    "score and curve": (score, "it differs from round 3 on (curve.accuracy: 100 in the record, ", 3),
    "loss": (lambda r: r["scores"]["trained"].update(loss=0.1), "it differs in scores.trained.loss: 0.1 in the ", None),
    "spec": (lambda r: r["spec"].update(seed=77), "it differs in provenance.partition_digest: ", None),
    "images": (
        lambda r: r["provenance"].update(dataset_digest="0" * 64),
        "it differs in provenance.dataset_digest: 0000",
        None,
    ),
    "digest": (weights, "it differs from round 2 on; final accuracy +0.00 points", 2),
}


@pytest.mark.parametrize(("edit", "message", "when"), FORGED.values(), ids=FORGED)
def test_a_forged_record_that_contradicts_nothing_differs_when_it_is_computed(fedspan, made, edit, message, when):
    path = change(made[0], edit)
    assert "1 refused" not in fedspan("validate", path).out
    ran = fedspan("verify", path.stem)
    assert ran.status == 1
    assert message in ran.out
    assert ran.out.endswith("1 differs\nkept in results/verifications\n")
    assert [(one.outcome, one.round) for one in kept()] == [("differs", when)]
    assert "1 could not be repeated" in fedspan("validate").out


def test_what_differs_between_the_machines_is_said(fedspan, made):
    def elsewhere(record):
        weights(record)
        record["provenance"]["versions"]["torch"] = "1.0"
        record["provenance"]["processor"] = "another (AVX2)"
        record["provenance"]["sources"]["algorithm:fedavg"] = f"{sources.FORM}0"

    ran = fedspan("verify", change(made[0], elsewhere).stem)
    assert (ran.status, ran.err) == (1, "")
    out = ran.out
    assert "    processor: another (AVX2) in the record, " in out
    assert "    versions: torch 1.0 in the record, " in out
    assert "    sources: algorithm:fedavg differ\n" in out


def test_what_other_code_of_a_plugin_computes_says_nothing_of_a_record(fedspan, made):
    """A colleague who edits a method and repeats my record runs another experiment."""

    def edited(record):
        weights(record)
        record["provenance"]["sources"]["algorithm:fedavg"] = f"{sources.FORM}0"

    ran = fedspan("verify", change(made[0], edited).stem)
    assert (ran.status, kept()) == (1, [])
    assert "    not kept: the code of algorithm:fedavg is not the record's\n1 differs\n" in ran.out


def test_a_record_without_digests_is_compared_by_its_numbers_and_that_is_said(fedspan, made):
    path = change(made[0], lambda record: record.pop("digests"))
    ran = fedspan("verify", path.stem)
    assert ran.status == 0
    assert "it holds no digests of weights: compared by curve and scores" in ran.out
    assert kept()[0].compared == "numbers"


def test_a_record_changed_after_it_was_written_is_refused_and_stays_where_it_is(fedspan, made):
    made[0].write_text(made[0].read_text().replace('"threads": 1', '"threads": 2'))
    before = content()
    ran = fedspan("verify", made[0].stem)
    assert (ran.status, kept()) == (1, [])
    assert "its digest does not match: it was changed after it was written" in ran.out
    assert content() == before


# what cannot be computed here -----------------------------------------------------------------------------------


def foreign(record):
    record["spec"]["algorithm"]["name"] = "fedavk"


def other_version(record):
    record["spec"]["algorithm"]["version"] = 99


def of_a_gpu(record):
    record["provenance"] |= {"device": "cuda", "executor": "graph", "gpu": "NVIDIA H100"}


def without_data(record):
    content = {"content": "0" * 64, "unreadable": "error"}
    record["spec"]["dataset"] = {"name": "cifar10", "version": 1, "limit": 60, **content}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (foreign, "unknown algorithm 'fedavk'; did you mean 'fedavg'?"),
        (other_version, "it was made with version 99 of algorithm 'fedavg', not 1"),
        (without_data, "cifar10"),
        (of_a_gpu, "it was made on NVIDIA H100, but torch sees no CUDA device here; repeat it on a machine with one"),
    ],
)
@pytest.mark.usefixtures("without_gpu")
def test_a_record_that_cannot_be_computed_here_is_said_to_be_so_and_nothing_is_kept(fedspan, made, edit, message):
    path = change(made[0], edit)
    ran = fedspan("verify", path.stem)
    assert message in ran.out
    assert (ran.status, kept()) == (2, [])
    assert ran.out.endswith("1 not computed\n")
    assert ran.err == ""


def test_without_space_for_the_scratch_folder_it_says_so(fedspan, made, monkeypatch):
    def full(**names):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fedspan.benchmark.cli.verify.tempfile.mkdtemp", full)
    ran = fedspan("verify", made[0].stem)
    assert (ran.status, ran.out, kept()) == (2, "", [])
    assert "cannot make a scratch folder in " in ran.complaint
    assert "No space left on device; free space, or " in ran.complaint
    assert "name another folder with TMPDIR" in ran.complaint


def test_a_full_scratch_folder_is_named(fedspan, made, monkeypatch):
    def full(self):
        raise UserError(f"cannot write {self.root}: No space left on device; choose another with paths.results")

    monkeypatch.setattr(repetition.Results, "check_writable", full)
    ran = fedspan("verify", made[0].stem)
    assert (ran.status, kept()) == (2, [])
    assert "is full or read-only; free space, or name another with TMPDIR" in ran.out


@pytest.mark.usefixtures("in_a_terminal")
@pytest.mark.parametrize(
    ("number", "status", "told"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGHUP, 143, "terminated")]
)
def test_a_signal_removes_the_scratch_folder_and_ends_what_was_started(made, start, here, number, status, told):
    before = content()
    process = start("verify", *ONE, *(path.stem for path in made))
    wait_for(lambda: list((here / "tmp").glob("fedspan-verify-*/*/status/*.json")))
    [running] = (here / "tmp").glob("fedspan-verify-*/*/status/*.json")
    pid = json.loads(running.read_text())["pid"]
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == status
    assert [line for line in err.splitlines() if line] == [f"fedspan: {told}; run the same command again to resume"]
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])
    assert content() == before


# what is asked for ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name the records to repeat: fedspan verify KEY ..., board=NAME, or sample=N of all 3 in results/records"),
        (["workers=1"], "name the records to repeat: "),
        (["zzzz"], "no record 'zzzz' in results/records"),
        ([""], "3 records begin with ''"),
        (["seed=3"], "records are computed as they were, so 'seed' cannot be set"),
        (["sampel=3"], "did you mean 'sample'?"),
        (["sample=0"], "sample must be a whole number of at least 1, got 0"),
        (["sample=x"], "sample must be a whole number of at least 1, got 'x'"),
        (["sample_seed=-1"], "sample_seed must be a whole number"),
        (["sample=1", "sample_seed=99999999999999999999"], "sample_seed must be at most 9223372036854775807"),
        (["board=digits", "sample_seed=3"], "sample_seed draws a sample; add sample=N"),
        (["board=digit"], "unknown board 'digit'; did you mean 'digits'?"),
        (["board=digits", "scale=smoke"], "holds no record of the "),
        (["--all"], "unknown option '--all'"),
        (["paths.results=nowhere"], "nowhere/records holds no record"),
        (["workers=0"], "workers must be at least 1"),
    ],
)
def test_what_cannot_be_asked_is_answered_in_one_line_and_changes_nothing(fedspan, made, words, message):
    before = content()
    ran = fedspan("verify", *words)
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.complaint
    assert (content(), kept()) == (before, [])


def test_a_misspelt_key_is_answered_with_the_nearest(fedspan, made):
    key = made[0].stem
    wrong = key[:-1] + ("0" if key[-1] != "0" else "1")
    assert f"did you mean '{key}'?" in fedspan("verify", wrong).complaint
    assert "did you mean" not in fedspan("verify", f"zz{key[2:4]}").complaint  # a few equal digits are chance
    assert "name keys or a board, not both" in fedspan("verify", key, "board=digits").complaint


def test_a_sample_is_drawn_by_its_seed_alone_and_kept_with_what_came_of_it(fedspan, made):
    ran = fedspan("verify", "sample=1", "sample_seed=5")
    assert "sample: 1 of 3 records of the whole results folder, drawn with sample_seed=5\n" in ran.out
    [one] = kept()
    assert one.key == sampled([path.stem for path in made], 1, 5)[0]
    assert one.sample == {"size": 1, "of": 3, "sample_seed": 5, "among": "the whole results folder"}


@pytest.mark.usefixtures("without_gpu")
def test_a_sample_leaves_out_what_only_a_gpu_repeats(fedspan, made):
    change(made[0], of_a_gpu)
    ran = fedspan("verify", "sample=3", "sample_seed=5")
    assert "sample: 2 of 2 records of the whole results folder but 1 made on a GPU, drawn with" in ran.out
    assert (ran.status, sorted(one.key for one in kept())) == (0, sorted(path.stem for path in made[1:]))
    for path in made[1:]:
        change(path, of_a_gpu)
    ran = fedspan("verify", "sample=1")
    assert "torch sees no CUDA device here" in ran.out
    assert (ran.status, ran.out.splitlines()[-1]) == (2, "1 not computed")


@pytest.mark.parametrize("counted", ["calibrate", "features"])
def test_a_record_that_leaves_out_a_cost_differs(fedspan, made, counted):
    [calibrated] = [path for path in made if counted in json.loads(path.read_text())["compute"]["flops"]]
    change(calibrated, lambda record: record["compute"]["flops"].pop(counted))
    ran = fedspan("verify", calibrated.stem)
    assert (ran.status, [one.outcome for one in kept()]) == (1, ["differs"])
    assert "it differs in compute.flops." in ran.out


@pytest.mark.parametrize("how", ["numerics=native", "executor=vmap"])
def test_a_difference_under_other_settings_than_the_record_s_is_no_verification(fedspan, made, how):
    """Other roundings say nothing against a record."""
    path = change(made[0], weights)
    ran = fedspan("verify", path.stem, how)
    assert (ran.status, kept()) == (1, [])
    assert f"not kept: the record was not made with {how}, which changes the rounding" in ran.out
    assert ran.out.endswith("\n1 differs\n")


def test_a_record_of_a_gpu_can_be_computed_on_a_processor_where_that_is_asked_for(fedspan, made):
    path = change(made[0], of_a_gpu)
    ran = fedspan("verify", path.stem, "device=cpu", "executor=loop")
    assert ran.out.endswith("1 identical\nkept in results/verifications\n")  # the numbers here are a processor's


MADE = {"device": "cpu", "executor": "loop", "threads": 1, "numerics": "portable"}


@pytest.mark.parametrize(
    ("name", "value"), [("device", "cuda:0"), ("executor", "vmap"), ("threads", 2), ("numerics", "native")]
)
def test_each_setting_that_changes_the_rounding_is_told(name, value):
    again = {"provenance": MADE | {name: value}}
    assert repetition.differing_settings({"provenance": MADE}, again) == [f"{name}={value}"]
    assert repetition.differing_settings(again, again) == []


HERE = MADE | {"processor": "Xeon (AVX512)", "versions": {"torch": "2.15.0"}}


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        ({"versions": {"torch": "2.11.0"}}, {}, "torch 2.11.0"),
        ({"processor": "EPYC (AVX2)"}, {}, ""),
        ({"processor": "EPYC (AVX2)", "numerics": "native"}, {"numerics": "native"}, "native numerics on EPYC (AVX2)"),
        ({"gpu": "H100", "numerics": "native"}, {"gpu": "A100", "numerics": "native"}, "native numerics on H100"),
        ({"gpu": "H100", "numerics": "native", "processor": "EPYC"}, {"gpu": "H100", "numerics": "native"}, ""),
    ],
)
def test_a_difference_with_other_hardware_or_torch_proves_nothing_unless_bits_are_promised(there, here, said):
    for made in (there, here):
        if "gpu" in made:
            made["device"] = "cuda"
    record, again = ({"provenance": HERE | {"sources": {}} | made} for made in (there, here))
    why = f"the record was made with {said}, which may round differently"
    assert repetition.incomparable(record, again) == (why if said else "")


def test_a_record_of_more_threads_than_this_machine_has_cores_is_left_to_another(monkeypatch, tmp_path):
    monkeypatch.setattr(repetition, "missing_gpu", lambda record, how: "")
    monkeypatch.setattr(repetition, "usable_cores", lambda: 1)
    planned = SimpleNamespace(overrides={}, cell=SimpleNamespace(key="a"))
    asked = repetition.Repetition(
        record={"provenance": MADE | {"threads": 2}}, planned=planned, how={}, scratch=tmp_path
    )
    with pytest.raises(UserError, match="it took 2 threads, this process may use 1 core; try threads=1"):
        asked.settings()


def test_any_gpu_is_like_that_of_the_record(monkeypatch, tmp_path):
    monkeypatch.setattr(repetition, "missing_gpu", lambda record, how: "")
    planned = SimpleNamespace(overrides={}, cell=SimpleNamespace(key="a"))
    record = {"provenance": {"device": "cuda:1", "executor": "graph", "threads": 1}}
    repeated = repetition.Repetition(record=record, planned=planned, how={}, scratch=tmp_path).settings()
    assert (repeated["device"], repeated["executor"]) == ("cuda", "graph")


def test_a_sample_does_not_depend_on_the_order_and_grows_by_more_records():
    keys = [f"{number:020x}" for number in range(50)]
    drawn = sampled(keys, 5, 1)
    assert sampled(keys[::-1], 5, 1) == drawn
    assert set(drawn) < set(sampled(keys, 9, 1))
    assert sampled(keys, 5, 2) != drawn
    assert sampled(keys, 500, 1) == keys


def test_without_a_seed_nobody_knows_beforehand_which_records_are_drawn(fedspan, made, monkeypatch):
    monkeypatch.setattr("fedspan.benchmark.cli.verify.secrets.randbelow", lambda count: 123)
    assert "drawn with sample_seed=123" in fedspan("verify", "sample=1").out


# stale records ----------------------------------------------------------------------------------------------------


def test_a_repetition_that_is_killed_is_no_complaint_of_its_own():
    said = "fedspan: scale=smoke is only a label without a board\n"
    assert end_of(-9, said) == "its process was killed (signal 9), possibly out of memory"
    assert end_of(2, f"{said}fedspan: no such folder\nmore") == "no such folder"
    assert end_of(3, "") == "its process ended with 3"
    trace = "Traceback (most recent call last):\n  File ...\nRuntimeError: no space left\n"
    assert end_of(1, said + trace) == "its process ended with 1: RuntimeError: no space left"


def stale(record):
    record["provenance"]["sources"]["algorithm:fedavg"] = f"{sources.FORM}0"


SAID = "1 record made by other sources (algorithm:fedavg): fedavg"


@pytest.mark.parametrize("grid", [(), ("-m", *ONE)], ids=["one cell", "grid"])
def test_a_record_of_other_sources_is_named_by_run_and_computed_anew_on_request(fedspan, made, grid):
    path = next(path for path in made if json.loads(path.read_text())["spec"]["seed"] == 1)
    change(path, stale)
    old, command = path.read_bytes(), ("run", *grid, *QUICK, "seed=1")
    ran = fedspan(*command)
    assert SAID in ran.out
    assert "'fedspan verify' checks their numbers, fresh=true recomputes them" in ran.out
    assert path.read_bytes() == old
    assert "  1 made by other sources (algorithm:fedavg): results/records" in fedspan("validate").out
    assert "1 done, 0 missing" in fedspan("plan", *command[1:][len(grid) :]).out
    assert "0 done, 1 missing" in fedspan("plan", *command[1:][len(grid) :], "fresh=true").out
    ran = fedspan(*command, "fresh=true")
    assert (ran.status, SAID in ran.out, "moved to results/set_aside" in ran.out) == (0, True, True)
    assert Path("results/set_aside", f"{path.name}.1").read_bytes() == old
    new = path.read_bytes()
    assert new != old
    ran = fedspan(*command, "fresh=true")  # nothing is left to compute
    assert "other sources" not in ran.out
    assert path.read_bytes() == new


def test_a_record_made_before_sources_had_such_digests_is_named_too(fedspan, made):
    path = next(path for path in made if json.loads(path.read_text())["spec"]["seed"] == 1)
    change(path, lambda record: record["provenance"].update(sources={"algorithm:fedavg": "87edf040a465401f"}))
    said = "1 record made by unknown sources (their digests are missing or of an older form)"
    assert said in fedspan(*GRID, "seed=1").out


def test_a_record_repeated_with_the_sources_at_hand_is_theirs_whatever_made_it(fedspan, made):
    path = change(next(path for path in made if json.loads(path.read_text())["spec"]["seed"] == 1), stale)
    old = path.read_bytes()
    assert SAID in fedspan(*GRID, "seed=1").out
    assert fedspan("verify", path.stem).status == 0
    ran = fedspan(*GRID, "seed=1", "fresh=true")
    assert "sources" not in ran.out
    assert path.read_bytes() == old
    assert "other sources" not in fedspan("validate").out


def test_an_outcome_that_cannot_be_kept_is_said_all_the_same(fedspan, made):
    Path("results/verifications").write_text("in the way")
    ran = fedspan("verify", *ONE, made[0].stem)
    assert "[1/1] identical  " in ran.out
    assert "not kept: cannot write results/verifications" in ran.out


def test_a_record_is_named_by_its_file_too(fedspan, made):
    assert "[1/1] identical  " in fedspan("verify", *ONE, made[0]).out
    Path("copy").mkdir()
    copy = shutil.copy(made[0], "copy")
    assert fedspan("verify", *ONE, copy).complaint.startswith(f"fedspan: {copy} is not a record of ")
    Path("copy/loop.json").symlink_to("loop.json")
    assert "copy/loop.json is not a record of " in fedspan("verify", *ONE, "copy/loop.json").complaint
