"""What takes longer than two seconds says what it does, to persons."""

import io
import threading

import pytest

from fedspan.benchmark import patience
from fedspan.benchmark.patience import doing


class Screen(io.StringIO):
    """A terminal, or a pipe, that tells when something was written."""

    def __init__(self, person=True):
        super().__init__()
        self.person, self.flushed = person, threading.Event()

    def isatty(self):
        return self.person

    def flush(self):
        self.flushed.set()


@pytest.fixture
def screen(monkeypatch):
    def use(person=True, after=0.0):
        found = Screen(person)
        monkeypatch.setattr("sys.stderr", found)
        monkeypatch.setattr(patience, "PATIENCE", after)
        return found

    return use


def test_long_work_says_what_it_is(screen):
    seen = screen()
    with doing("planning 20,000 cells"):
        assert seen.flushed.wait(60)
    assert seen.getvalue() == "planning 20,000 cells ...\n"


def test_short_work_says_nothing(screen):
    seen = screen(after=3600.0)
    before = threading.active_count()
    with doing("planning"):
        pass
    while threading.active_count() > before:  # the timer ends as soon as it is cancelled
        threading.Event().wait(0.001)
    assert not seen.getvalue()


def test_a_pipe_gets_nothing(screen):
    seen, before = screen(person=False), threading.active_count()
    with doing("planning"):
        assert threading.active_count() == before, "nobody waits to say something"
    assert not seen.getvalue()
