import os
import signal
import sys
import threading
import time

import pytest

from fedspan.benchmark.running import signals as stop
from fedspan.benchmark.running.signals import Stopped, TimedOut, stopping, until_stopped


def handlers():
    of_signals = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)]
    return of_signals, signal.getitimer(signal.ITIMER_REAL), sys.unraisablehook


@pytest.fixture(autouse=True)
def handlers_are_put_back():
    before = handlers()
    yield
    assert handlers() == before


def forever(number=None):
    if number:
        os.kill(os.getpid(), number)
    while True:
        time.sleep(0.01)


def test_without_a_limit_or_a_signal_nothing_ends():
    with stopping() as stop:
        stop.check()
        assert not stop.asked


def test_a_limit_that_is_over_at_once_ends_like_any_other():
    with pytest.raises(TimedOut), stopping(1e-6):
        forever()


def test_a_signal_lets_the_round_end_first():
    ended = []

    def round_of_a_cell():
        with stopping() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            ended.append("the round")
            stop.check()
            ended.append("the next one")

    with pytest.raises(Stopped):
        round_of_a_cell()
    assert ended == ["the round"]


def test_a_signal_while_a_cell_ends_by_itself_is_not_lost():
    """The grid would begin the next cell."""
    before = signal.getsignal(signal.SIGTERM)

    def last_moments():
        with stopping():
            os.kill(os.getpid(), signal.SIGTERM)
            return "a record"

    with pytest.raises(Stopped):
        last_moments()
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_round_that_outlasts_the_grace_is_ended(monkeypatch):
    monkeypatch.setattr(stop, "GRACE", 0.05)
    with pytest.raises(Stopped), stopping():
        forever(signal.SIGTERM)


def test_what_never_comes_back_is_ended_when_its_time_is_over():
    with pytest.raises(TimedOut, match=r"timed out after 0\.05 s"), stopping(0.05):
        forever()


class Endless:
    """An alarm inside a destructor ends the destructor alone."""

    def __del__(self):
        forever()


class Broken:
    def __del__(self):
        raise ValueError("of the plugin")


def test_an_alarm_lost_in_a_destructor_comes_again_and_prints_nothing(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: reported.append(str(lost.exc_value)))

    def work():
        Endless()
        Broken()
        forever()

    with pytest.raises(TimedOut), stopping(0.05):
        work()
    assert reported == ["of the plugin"]


@pytest.mark.parametrize("seconds", [None, 500])
def test_the_callers_alarm_waits_until_the_cell_has_ended(seconds):
    signal.setitimer(signal.ITIMER_REAL, 1000, 7)
    with pytest.raises(ValueError, match="bad cell"), stopping(seconds):
        raise ValueError("bad cell")
    rest, every = signal.setitimer(signal.ITIMER_REAL, 0)
    assert 500 < rest <= 1000
    assert every == 7


@pytest.mark.usefixtures("in_a_terminal")
def test_a_closed_terminal_ends_a_command_unless_it_is_told_to_ignore_that():
    with pytest.raises(Stopped), until_stopped():
        forever(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with until_stopped():
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_another_thread_is_ended_between_its_steps():
    ended = []

    def work():
        try:
            with stopping(0.01) as stop:
                while True:
                    stop.check()
        except TimedOut:
            ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert ended
