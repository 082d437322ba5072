"""`fedspan submit`, `review`, `freeze` and `cite`."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from fedspan.benchmark.bibliography import papers
from fedspan.benchmark.cli import submission
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records.record import digest_of
from fedspan.benchmark.records.sources import FORM, REMEDY
from fedspan.benchmark.spec import freezing
from fedspan.benchmark.spec.board import load_board
from tests.cli.conftest import QUICK, change

BOARD = """\
title: Tiny
base: {%s}
grid: [{algorithm: [fedavg, fedprox], seed: [0, 1]}]
"""


def git(*words):
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *identity, *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(here, monkeypatch):
    """A git repository with a board of its own, in the working folder; changes to this checkout do not count."""
    monkeypatch.setattr(submission, "uncommitted", lambda cell: [])
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "me")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "me@example.org")
    board = Path("leaderboards/boards/tiny.yaml")
    board.parent.mkdir(parents=True)
    settings = (word.split("=") for word in QUICK if not word.startswith("tracking"))
    board.write_text(BOARD % ", ".join(f"{name}: {value}" for name, value in settings))
    Path(".gitignore").write_text("/results/*\n")
    git("init", "--quiet", "--initial-branch=main")
    git("add", ".")
    git("commit", "--quiet", "--message", "A board")
    return here


@pytest.fixture
def ran(repository, fedspan):
    assert fedspan("run", "-m", "board=tiny", "workers=1", "launcher=basic", "tracking=false").status == 0
    return repository


def test_published_records_are_read_whole_by_as_many_processes_however_many_there_are(repository, monkeypatch):
    folder = Path("results/records")
    folder.mkdir(parents=True)
    contents = {"a.json": b"", "a b.json": b"{}\n", "\u00e4.json": b"no newline", "x.npz": bytes(range(256))}
    for name, content in (contents | {f"{number}.json": b"%d\n" % number for number in range(30)}).items():
        (folder / name).write_bytes(content)
    git("add", "--force", "results")
    git("commit", "--quiet", "--message", "Records")
    asked, run = [], subprocess.run
    monkeypatch.setattr(submission.subprocess, "run", lambda *given, **how: asked.append(given) or run(*given, **how))
    with submission._published(".", "HEAD") as found:
        assert {path.name: path.read_bytes() for path in found.records.iterdir()} == {
            path.name: path.read_bytes() for path in folder.iterdir()
        }
    assert len(asked) == 2


def test_a_submission_is_a_branch_with_the_records_and_leaves_the_working_tree_alone(ran, fedspan):
    told = fedspan("submit", "board=tiny", "sample=0")
    assert told.status == 0, told.err
    keys = {path.stem for path in Path("results/records").glob("*.json")}
    brought = git("diff", "--name-only", "main", "submit/tiny").split()
    assert {Path(path).stem for path in brought} == keys
    assert (git("status", "--porcelain"), git("branch", "--show-current").strip()) == ("", "main")
    assert len(git("worktree", "list").splitlines()) == 1
    message = git("log", "-1", "--format=%B", "submit/tiny")
    assert message.startswith("Records of tiny (own): 4\n")
    assert "FedProx: new, too few runs for a place" in message
    assert Path("results/submission-tiny.md").read_text().strip() == message.strip()
    assert "git push origin submit/tiny" in told.out


def test_a_branch_is_reviewed_without_being_checked_out(ran, fedspan):
    fedspan("submit", "board=tiny", "sample=0")
    for path in Path("results/records").glob("*.json"):
        path.unlink()
    told = fedspan("review", "submit/tiny", "sample=0")
    assert told.status == 0, told.err
    assert "records: 4 valid" in told.out
    assert "FedAvg: new, too few runs for a place" in told.out
    assert "git merge submit/tiny" in told.out
    assert not list(Path("results/records").glob("*.json"))


def test_a_review_is_of_the_board_and_the_scale_that_the_description_names(repository, fedspan):
    board = Path("leaderboards/boards/tiny.yaml")
    board.write_text(board.read_text() + "scales: {smoke: {model.width: 3}}\n")
    git("commit", "--quiet", "--all", "--message", "A scale")
    git("branch", "submit/tiny")  # taken
    fedspan("run", "-m", "board=tiny", "scale=smoke", "workers=1", "launcher=basic", "tracking=false")
    assert fedspan("submit", "board=tiny", "scale=smoke", "sample=0").status == 0
    message = git("log", "-1", "--format=%B", "submit/tiny-2")
    assert message.rstrip().endswith("Review: fedspan review submit/tiny-2 board=tiny scale=smoke")
    told = fedspan("review", "submit/tiny-2", "sample=0")
    assert "FedAvg: new, too few runs for a place" in told.out, "at full size nothing would be new"


def tree(*entries):
    """Write a tree of (mode, name, object) as it is, also one that git itself would not make."""
    content = b"".join(f"{mode} {name}\0".encode() + bytes.fromhex(what) for mode, name, what in entries)
    words = ["git", "hash-object", "-t", "tree", "-w", "--literally", "--stdin"]
    return subprocess.run(words, input=content, check=True, capture_output=True).stdout.decode().strip()


@pytest.mark.parametrize("hostile", ["..", "submodule", "link"])
def test_a_branch_writes_nothing_outside_the_folder_that_it_is_reviewed_in(ran, fedspan, hostile):
    fedspan("submit", "board=tiny", "sample=0")
    listed = git("ls-tree", "-z", "submit/tiny:results/records").split("\0")[:-1]
    records = [(mode, name, what) for mode, _, what, name in (line.split() for line in listed)]
    [(_, _, blob), *_] = records
    entry = {
        "..": ("40000", "..", tree(("40000", "..", tree(("100644", "owned.json", blob))))),
        "submodule": ("160000", "a", "1" * 40),
        "link": ("120000", "a.json", blob),
    }[hostile]
    root = tree(("40000", "results", tree(("40000", "records", tree(*records, entry)))))
    said = "Review: fedspan review evil board=tiny"
    git("branch", "evil", git("commit-tree", "-p", "HEAD", "-m", said, root).strip())
    told = fedspan("review", "evil", "sample=0")
    assert (told.status, "which is not a plain file there; do not merge it" in told.complaint) == (2, True)
    assert "Traceback" not in told.err


def test_where_images_lie_changes_no_board(ran, fedspan):
    assert submission.Submission.of(["board=cifar10_small", "dataset.source=x"], 1).how == {"dataset.source": "x"}
    with pytest.raises(UserError, match=r"'dataset\.limit' cannot be set"):
        submission.Submission.of(["board=cifar10_small", "dataset.limit=5"], 1)


def test_what_is_staged_is_not_published_yet(ran, fedspan):
    git("add", "--force", "results/records")
    assert fedspan("submit", "board=tiny", "sample=0").status == 0


def test_what_is_published_is_submitted_only_once(ran, fedspan):
    fedspan("submit", "board=tiny", "sample=0")
    git("merge", "--quiet", "submit/tiny")
    told = fedspan("submit", "board=tiny", "sample=0")
    assert told.status == 2
    assert "no record of board 'tiny' that is not published already" in told.complaint


def test_a_record_that_cannot_be_right_is_refused_in_submission_and_review(ran, fedspan):
    path = next(Path("results/records").glob("*.json"))
    record = json.loads(path.read_text())
    record["scores"]["trained"]["accuracy"] = 200.0
    record["digest"] = digest_of(record)
    fedspan("submit", "board=tiny", "sample=0")
    git("checkout", "--quiet", "submit/tiny")
    path.write_text(json.dumps(record))
    git("commit", "--quiet", "--all", "--message", "Better")
    git("checkout", "--quiet", "main")
    told = fedspan("review", "submit/tiny", "board=tiny", "sample=0")
    assert (told.status, "is refused" in told.err) == (2, True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))
    told = fedspan("submit", "board=tiny", "sample=0")
    assert (told.status, "is refused" in told.err) == (2, True)


def test_review_names_what_else_a_branch_changes(ran, fedspan):
    fedspan("submit", "board=tiny", "sample=0")
    git("checkout", "--quiet", "submit/tiny")
    Path("code.py").write_text("print('never run')\n")
    git("add", "code.py")
    git("commit", "--quiet", "--message", "Code")
    git("checkout", "--quiet", "main")
    told = fedspan("review", "submit/tiny", "board=tiny", "sample=0")
    assert "also adds code.py: read it" in told.out
    assert not Path("code.py").exists()


STRAYS = ("spectra.json", "install.sh")  # files that only begin like a record: it names no sidecar


def test_a_submission_has_records_and_the_sidecars_that_they_name_and_nothing_else(ran, fedspan, tmp_path):
    secret, records = tmp_path / "secret", sorted(Path("results/records").glob("*.json"))
    secret.write_text("secret")
    for ending in STRAYS:
        records[0].with_name(f"{records[0].stem}.{ending}").symlink_to(secret)
    Path("results/submission-tiny.md").symlink_to(secret)
    assert fedspan("submit", "board=tiny", "sample=0").status == 0
    listed = git("ls-tree", "--name-only", "submit/tiny:results/records").split()
    assert sorted(listed) == [path.name for path in records]
    assert secret.read_text() == "secret"
    assert Path("results/submission-tiny.md").read_text().startswith("Records of tiny")


def test_review_names_files_that_only_begin_like_a_record(published, fedspan):
    _, last = published
    strays = [last.with_name(f"{last.stem}.{ending}") for ending in STRAYS]
    for path in strays:
        path.write_text("{}")
        git("add", "--force", str(path))
    told = reviewed(fedspan)
    assert told.status == 0, told.err
    for path in strays:
        assert f"also adds {path}: read it" in told.out


def test_a_file_too_large_for_a_record_is_not_read(published, fedspan, monkeypatch):
    _, last = published
    monkeypatch.setattr(submission, "WHOLE_BYTES", 10**6)
    large = last.with_name(f"{last.stem}.zz")
    with large.open("wb") as file:
        file.truncate(10**6 + 1)
    git("add", "--force", str(large))
    told = reviewed(fedspan)
    assert (told.status, f"has '{large}' among its records, which is too large for one" in told.complaint) == (2, True)


@pytest.mark.parametrize(("name", "said"), [(b"\x1b[2Jcode.py", "\\x1b[2Jcode.py"), (b"\xff.py", "\\udcff.py")])
def test_names_of_files_of_a_branch_are_printed_as_text_whatever_their_bytes_are(ran, fedspan, name, said):
    fedspan("submit", "board=tiny", "sample=0")
    git("checkout", "--quiet", "submit/tiny")
    with open(name, "w") as file:
        file.write("print('never run')\n")
    git("add", "--all", "*.py")
    git("commit", "--quiet", "--message", "Code")
    git("checkout", "--quiet", "main")
    told = fedspan("review", "submit/tiny", "board=tiny", "sample=0")
    assert told.status == 0, told.err
    assert f"also adds {said}: read it" in told.out


@pytest.fixture
def published(ran, fedspan):
    """A repository that publishes all records of the board but the last; that one is on a branch, checked out."""
    *there, last = sorted(Path("results/records").glob("*.json"))
    git("add", "--force", *map(str, there))
    git("commit", "--quiet", "--message", "Records")
    git("checkout", "--quiet", "-b", "theirs")
    git("add", "--force", str(last))
    return there, last


def reviewed(fedspan, *words):
    git("commit", "--quiet", "--message", "Theirs")
    git("checkout", "--quiet", "main")
    return fedspan("review", "theirs", "board=tiny", "sample=0", *words)


def test_review_names_records_that_a_branch_deletes_or_replaces_and_strangers_among_them(published, fedspan):
    (gone, replaced, *_), last = published
    git("rm", "--quiet", str(gone))
    change(replaced, lambda record: record["provenance"].update(git_commit="0123abcd"))
    stranger = Path("results/records/note.py")
    stranger.write_text("print('never run')\n")
    git("add", "--force", str(replaced), str(stranger))
    told = reviewed(fedspan)
    assert told.status == 0, told.err
    said = told.out.splitlines()
    assert f"also deletes {gone}: read it; records of plugins that are not checked out here are refused" in said
    assert f"also changes {replaced}: compare it with the published one" in said
    assert any(line.startswith(f"also adds {stranger}: read it") for line in said)
    assert not any(str(last) in line for line in said)
    deleted = json.loads(git("show", f"main:{gone}"))["spec"]["algorithm"]["name"]
    title = {"fedavg": "FedAvg", "fedprox": "FedProx"}[deleted]
    assert any(line.strip().startswith(f"{title}: ") for line in said), "its mean is another one"


def test_a_record_of_other_data_than_the_published_ones_is_refused(published, fedspan):
    _, last = published
    change(last, lambda record: record["provenance"].update(dataset_digest="0" * 64))
    git("add", "--force", str(last))
    told = reviewed(fedspan)
    assert (told.status, "its provenance.dataset_digest is" in told.complaint) == (2, True)


@pytest.mark.usefixtures("published")
def test_what_a_branch_says_was_repeated_counts_nothing(fedspan):
    forged = Path("results/verifications/forged.json")
    forged.parent.mkdir()
    forged.write_text("{}")
    git("add", "--force", str(forged))
    told = reviewed(fedspan)
    assert (told.status, "git add" in told.out) == (0, False)
    assert not forged.exists()


@pytest.mark.slow
def test_a_submission_of_a_tuned_board_has_its_trials_and_tuned_cells(repository, fedspan):
    board = Path("leaderboards/boards/tiny.yaml")
    board.write_text(board.read_text().replace("[fedavg, fedprox]", "[fedavg]") + "tune: {trials: 2, seeds: [100]}\n")
    assert fedspan("run", "-m", "board=tiny", "workers=1", "launcher=basic", "tracking=false").status == 0
    records = {path.stem for path in Path("results/records").glob("*.json")}
    told = fedspan("submit", "board=tiny", "sample=0")
    assert told.status == 0, told.err
    assert len(records) in (4, 6), "two trials, two cells with the defaults, and two tuned ones if these are others"
    assert f"Records: {len(records)} of {len(records)} cells" in told.out
    assert {Path(path).stem for path in git("diff", "--name-only", "main", "submit/tiny").split()} == records
    assert set(re.findall(r"(.*): new, too few runs", told.out)) == {"  FedAvg, default", "  FedAvg, tuned"}
    drawn = fedspan("verify", "board=tiny", "sample=1", "sample_seed=0", "workers=1").out
    assert f"sample: 1 of {len(records)} records of board tiny" in drawn


def test_a_commit_that_a_hook_refuses_leaves_no_branch(ran, fedspan):
    hook = Path(".git/hooks/pre-commit")
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho 'no records on Wednesdays' >&2\nexit 1\n")
    hook.chmod(0o755)
    told = fedspan("submit", "board=tiny", "sample=0")
    assert (told.status, told.complaint) == (2, "fedspan: git commit failed: no records on Wednesdays")
    assert git("branch", "--format=%(refname:short)").split() == ["main"]
    assert len(git("worktree", "list").splitlines()) == 1
    hook.unlink()
    assert "branch submit/tiny has 4 records" in fedspan("submit", "board=tiny", "sample=0").out


def test_a_submission_is_ranked_among_what_is_published(ran, fedspan):
    kept = {path: path.read_text() for path in Path("results/records").glob("*.json")}
    later = {path: text for path, text in kept.items() if json.loads(text)["spec"]["algorithm"]["name"] == "fedprox"}
    for path in later:
        path.unlink()
    fedspan("submit", "board=tiny", "sample=0")
    git("merge", "--quiet", "submit/tiny")
    for path, text in later.items():
        path.write_text(text)
    told = fedspan("submit", "board=tiny", "sample=0")
    assert (len(later), told.status) == (2, 0), told.err
    assert "FedProx: new, too few runs for a place" in told.out


def test_what_came_to_main_after_a_branch_is_no_change_of_the_branch(ran, fedspan):
    fedspan("submit", "board=tiny", "sample=0")
    Path("later.md").write_text("More\n")
    git("add", "later.md")
    git("commit", "--quiet", "--message", "Later")
    told = fedspan("review", "submit/tiny", "sample=0")
    assert told.status == 0, told.err
    assert "later.md" not in told.out


@pytest.mark.slow
def test_a_sample_is_repeated_by_submitter_and_reviewer(ran, fedspan):
    assert fedspan("submit", "board=tiny", "sample=1").status == 0
    assert len(list(Path("results/verifications").glob("*.json"))) == 1
    shutil.rmtree("results/verifications")
    told = fedspan("review", "submit/tiny", "sample=4")
    assert told.status == 0, told.out + told.err
    made = sorted(map(str, Path("results/verifications").glob("*.json")))
    assert len(made) == 4
    assert f"git add -f {' '.join(made)} && " in told.out
    assert f"kept in {Path('results/verifications').resolve()}" in told.out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["submit"], "name one board (board=digits)"),
        (["submit", "board=tiny", "seed=7"], "so 'seed' cannot be set"),
        (["submit", "board=tiny", "sample=-1"], "sample must be a whole number, 0 or more"),
        (["submit", "board=tiny"], "has no record of board 'tiny'"),
        (["review"], "write: fedspan review BRANCH"),
        (["review", "nowhere"], "there is no branch or commit 'nowhere' here; 'git fetch' may bring it"),
        (["freeze"], "write: fedspan freeze NAME"),
        (["freeze", "everything"], "is made of boards"),
        (["cite", "fedprix"], "cannot cite 'fedprix'; did you mean 'fedprox'?"),
    ],
)
@pytest.mark.usefixtures("repository")
def test_what_cannot_be_done_is_one_line(fedspan, words, complaint):
    told = fedspan(*words)
    assert told.status == 2
    assert complaint in told.complaint


# frozen versions ------------------------------------------------------------------------------------


def test_a_frozen_version_has_its_own_name_and_the_same_cells(repository, fedspan):
    assert fedspan("freeze", "tiny").out.startswith("leaderboards/frozen/tiny-v1.yaml\n")
    assert fedspan("plan", "board=tiny-v1").out.startswith("4 cells")
    told = fedspan("freeze", "tiny")
    assert (told.status, "has the cells of its version tiny-v1" in told.complaint) == (2, True)
    told = fedspan("freeze", "tiny-v1")
    assert (told.status, "is frozen already" in told.complaint) == (2, True)
    told = fedspan("freeze", "leaderboards/boards/tiny.yaml")
    assert (told.status, "has the cells of its version tiny-v1" in told.complaint) == (2, True)
    shutil.copy("leaderboards/boards/tiny.yaml", "mine.yaml")
    told = fedspan("freeze", "mine.yaml")
    assert (told.status, "mine.yaml is not a board" in told.complaint) == (2, True)


@pytest.mark.parametrize("digest", ["1234567890e12345", "0123456701234567"])
def test_a_digest_that_looks_like_a_number_is_a_digest(repository, fedspan, monkeypatch, digest):
    monkeypatch.setattr(freezing, "digests_of", lambda board: {"own": digest})
    assert fedspan("freeze", "tiny").status == 0
    assert load_board("tiny-v1").frozen == {"own": digest}


def test_a_changed_board_leaves_its_frozen_version_as_it_was(repository, fedspan):
    fedspan("freeze", "tiny")
    board = Path("leaderboards/boards/tiny.yaml")
    board.write_text(board.read_text().replace("seed: [0, 1]", "seed: [1, 2, 3]"))
    assert fedspan("plan", "board=tiny").out.startswith("6 cells")
    for words, cells in (("tiny-v1", 4), ("tiny,tiny-v1", 8), ("tiny-v1,tiny", 8)):
        assert fedspan("plan", f"board={words}").out.startswith(f"{cells} cells")
    assert fedspan("freeze", "tiny").out.startswith("leaderboards/frozen/tiny-v2.yaml\n")


@pytest.mark.parametrize("scales", ["own", "own,small"])
def test_a_frozen_version_whose_cells_changed_is_refused(repository, fedspan, scales):
    board = Path("leaderboards/boards/tiny.yaml")
    board.write_text(board.read_text() + "scales: {small: {seed: [0]}}\n")
    fedspan("freeze", "tiny")
    path = Path("leaderboards/frozen/tiny-v1.yaml")
    path.write_text(path.read_text().replace("model.width: 2", "model.width: 3"))
    told = fedspan("plan", "board=tiny-v1", f"scale={scales}")
    assert told.status == 2
    assert "its cells are no longer those of its version" in told.complaint


def test_a_frozen_version_takes_no_scale_that_its_pieces_have_since(repository, fedspan):
    piece = Path("leaderboards/pieces/part.yaml")
    piece.parent.mkdir(exist_ok=True)
    piece.write_text("scales: {small: {seed: [0]}}\n")
    board = Path("leaderboards/boards/tiny.yaml")
    board.write_text(board.read_text() + "extends: part\n")
    fedspan("freeze", "tiny")
    piece.write_text("scales: {small: {seed: [0]}, smoke: {seed: [1]}}\n")
    assert fedspan("plan", "board=tiny-v1", "scale=small").status == 0
    told = fedspan("plan", "board=tiny-v1", "scale=smoke")
    assert (told.status, "its cells are no longer those of its version" in told.complaint) == (2, True)


def test_a_board_in_flow_style_is_not_frozen_into_a_file_that_cannot_be_read(repository, fedspan):
    Path("leaderboards/boards/tiny.yaml").write_text("{title: Flow, base: {clients: 2, partition: iid}}\n")
    told = fedspan("freeze", "tiny")
    assert (told.status, "write the board in block style" in told.complaint) == (2, True)
    assert not Path("leaderboards/frozen").exists()


# cite -----------------------------------------------------------------------------------------------


def test_citing_prints_bibtex_of_the_suite_and_of_what_is_asked_for(fedspan):
    keys = re.findall(r"^@\w+\{(\w+),", fedspan("cite", "fedprox", "cifar10", "fedprox").out, re.MULTILINE)
    assert keys == ["fedspan", "krizhevsky2009", "li2020"]
    assert re.findall(r"^@\w+\{(\w+),", fedspan("cite").out, re.MULTILINE) == ["fedspan"]
    assert "acar2021" in fedspan("cite", "board=digits,field").out, "of several boards"
    everything = re.findall(r"^@\w+\{(\w+),", fedspan("cite", "all").out, re.MULTILINE)
    assert set(everything) == set(papers())


def test_citing_a_board_prints_the_papers_of_its_plugins(repository, fedspan):
    keys = re.findall(r"^@\w+\{(\w+),", fedspan("cite", "board=tiny").out, re.MULTILINE)
    assert {"fedspan", "mcmahan2017", "li2020", "alpaydin1998"} <= set(keys)
    assert "shi2023" not in keys


def test_review_names_records_that_are_not_of_the_board(published, fedspan):
    """They would otherwise be merged unseen; their data are compared with all that is published."""
    fedspan("run", *QUICK, "seed=5", "paths.results=apart")
    [other] = Path("apart/records").glob("*.json")
    shutil.copy(other, "results/records")
    git("add", "--force", f"results/records/{other.name}")
    told = reviewed(fedspan)
    assert f"also adds results/records/{other.name}: it is not of tiny, so not in the ranking below" in told.out


def test_a_review_without_a_gpu_is_no_review_of_records_of_a_gpu(published, fedspan, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    _, last = published

    def of_a_gpu(record):
        record["provenance"] |= {"device": "cuda", "executor": "graph", "gpu": "A card"}

    change(last, of_a_gpu)
    git("add", "--force", str(last))
    git("commit", "--quiet", "--message", "Theirs")
    git("checkout", "--quiet", "main")
    told = fedspan("review", "theirs", "board=tiny", "sample=1")
    assert told.status == 2
    assert "review it on a machine with a GPU: 1 record made on one cannot be repeated here" in told.out
    assert "git merge" not in told.out
    assert "ask the submitter" not in told.out


def test_a_review_says_all_that_kept_records_from_being_repeated(published, fedspan, monkeypatch):
    fedspan("run", *QUICK, "seed=5", "paths.results=apart")
    [other] = Path("apart/records").glob("*.json")
    shutil.copy(other, "results/records")
    git("add", "--force", f"results/records/{other.name}")
    monkeypatch.setattr(submission, "_repeat", lambda *_: 2)
    monkeypatch.setattr(submission.verify, "repeatable", lambda keys, *_: keys[1:])
    git("commit", "--quiet", "--message", "Theirs")
    git("checkout", "--quiet", "main")
    told = fedspan("review", "theirs", "board=tiny", "sample=1")
    assert told.status == 2
    assert "review it on a machine with a GPU" in told.out
    assert "ask the submitter of theirs" in told.out


def test_a_record_that_differs_is_the_submitter_s_whatever_a_gpu_would_say_of_others(published, fedspan, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(submission, "_repeat", lambda *_: 1)
    monkeypatch.setattr(submission.verify, "repeatable", lambda keys, *_: [])
    git("commit", "--quiet", "--message", "Theirs")
    git("checkout", "--quiet", "main")
    told = fedspan("review", "theirs", "board=tiny", "sample=1")
    assert (told.status, "ask the submitter of theirs" in told.out) == (1, True)


def test_the_description_counts_the_repetitions_that_there_are(ran, fedspan):
    assert fedspan("submit", "board=tiny", "sample=1").status == 0
    assert "Records: 4 of 4 cells, 1 of them repeated bit for bit before submission" in git("log", "-1", "submit/tiny")
    assert fedspan("submit", "board=tiny", "sample=0").status == 0
    assert "1 of them repeated" in git("log", "-1", "submit/tiny-2"), "that one still is"


def test_a_submission_of_several_scales_can_be_reviewed(repository, fedspan):
    board = Path("leaderboards/boards/tiny.yaml")
    board.write_text(board.read_text() + "scales: {smoke: {model.width: 3}}\n")
    git("commit", "--quiet", "--all", "--message", "A scale")
    scales = "scale=own,smoke"
    fedspan("run", "-m", "board=tiny", scales, "workers=1", "launcher=basic", "tracking=false")
    assert fedspan("submit", "board=tiny", scales, "sample=0").status == 0
    assert git("log", "-1", "--format=%B", "submit/tiny").rstrip().endswith(f"submit/tiny board=tiny {scales}")
    told = fedspan("review", "submit/tiny", "sample=0")
    assert told.status == 0, told.err
    assert "not of tiny" not in told.out


def test_a_submission_of_a_board_s_file_can_be_reviewed_whatever_its_folder_is_called(repository, fedspan):
    board = Path("my boards/tiny.yaml")
    board.parent.mkdir()
    Path("leaderboards/boards/tiny.yaml").rename(board)
    fedspan("run", "-m", f"board={board}", "workers=1", "launcher=basic", "tracking=false")
    assert fedspan("submit", f"board={board}", "sample=0").status == 0
    told = fedspan("review", "submit/tiny", "sample=0")
    assert told.status == 0, told.err
    assert "not of tiny" not in told.out


def test_a_description_that_cannot_be_read_names_no_board(ran, fedspan):
    fedspan("submit", "board=tiny", "sample=0")
    git("checkout", "--quiet", "submit/tiny")
    git("commit", "--quiet", "--amend", "--message", f"{submission.REVIEW}submit/tiny 'board=tiny")
    git("checkout", "--quiet", "main")
    told = fedspan("review", "submit/tiny", "sample=0")
    assert told.err == "fedspan: the last commit of submit/tiny names no board; add board=NAME\n"


def test_records_of_uncommitted_sources_are_not_submitted(ran, fedspan, monkeypatch):
    monkeypatch.setattr(submission, "uncommitted", lambda cell: ["methods/mine.py"])
    told = fedspan("submit", "board=tiny", "sample=0")
    assert told.status == 2
    assert "cannot repeat records of sources that are not committed; commit methods/mine.py" in told.complaint
    assert "submit/" not in git("branch")


def test_records_of_other_sources_are_not_submitted_until_repeated(ran, fedspan):
    path = min(Path("results/records").glob("*.json"))
    name = f"algorithm:{json.loads(path.read_text())['spec']['algorithm']['name']}"
    change(path, lambda record: record["provenance"]["sources"].update({name: f"{FORM}0"}))
    told = fedspan("submit", "board=tiny", "sample=0")
    assert told.status == 2
    assert f"{path.stem}.json was made by other sources ({name}); {REMEDY}" in told.complaint
    assert fedspan("verify", path.stem).status == 0
    assert fedspan("submit", "board=tiny", "sample=0").status == 0
