"""Where a number comes from: the processor and the commit."""

import subprocess

import pytest

from fedspan.benchmark.records import provenance


@pytest.mark.parametrize("instructions", ["AVX2", "AVX512"])
def test_processors_of_one_name_whose_instructions_round_differently_are_told_apart(monkeypatch, instructions):
    monkeypatch.setattr("torch.cpu._is_avx512_supported", lambda: instructions == "AVX512")
    assert provenance.processor.__wrapped__().endswith(f" ({instructions})")


@pytest.fixture
def checkout(tmp_path):
    """Return a checkout with a source, a record and a page, all committed, and its commit."""

    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(("git", *who, *words), cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    for name in ("methods/mine.py", "results/records/a.json", "leaderboards/pages/index.html"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("before")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    return tmp_path, git("rev-parse", "HEAD").strip()


@pytest.mark.parametrize("name", ["results/records/a.json", "leaderboards/pages/index.html", "methods/new.py"])
def test_records_pages_and_files_that_git_does_not_know_leave_a_commit_what_it_is(checkout, name):
    root, commit = checkout
    (root / name).write_text("after")
    assert provenance.commit_of(root) == commit


def test_a_changed_source_is_no_longer_the_commit(checkout):
    root, commit = checkout
    (root / "methods/mine.py").write_text("after")
    assert provenance.commit_of(root) == f"{commit}+dirty"


def test_what_is_no_checkout_has_no_commit(tmp_path):
    assert provenance.commit_of(tmp_path) is None


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"versions": {"torch": "2", "numpy": "1"}, "numerics": "portable", "engine": "e"}, ""),
        ({"versions": {"torch": "3", "numpy": "1"}, "numerics": "portable", "engine": "e"}, "torch 3, here 2"),
        ({"versions": {"torch": "2"}, "numerics": "portable", "engine": "e"}, "numpy absent, here 1"),
        ({"versions": {"torch": "2", "numpy": "1"}, "numerics": "EPYC", "engine": "e"}, "numerics EPYC, here portable"),
        ({"versions": {"torch": "2", "numpy": "1"}, "numerics": "portable"}, "engine absent, here e"),
    ],
)
def test_the_first_difference_is_named(theirs, said):
    mine = {"versions": {"torch": "2", "numpy": "1"}, "numerics": "portable", "engine": "e"}
    assert provenance.difference(mine, theirs) == said
