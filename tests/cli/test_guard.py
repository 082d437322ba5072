"""What waits for a process hears signals, whichever thread the system gives them to and whenever they come."""

import signal
import subprocess
import sys
import threading

import pytest

from fedspan.benchmark.cli.guard import wait_for
from tests.helpers import PATIENCE


class Watched(subprocess.Popen):
    """A process that tells when somebody looks at it."""

    def __init__(self, code):
        self.looked = threading.Event()
        super().__init__([sys.executable, "-c", code], stdin=subprocess.PIPE)

    def poll(self):
        self.looked.set()
        return super().poll()

    def wait(self, timeout=None):
        self.looked.set()
        return super().wait(timeout)


class Heard(Exception):
    """The handler of a signal ran."""


def hear(*_):
    raise Heard


def test_the_status_of_a_process_that_ended_is_returned():
    assert wait_for(Watched("raise SystemExit(3)")) == 3


def test_a_signal_that_interrupts_no_call_is_handled_while_a_process_runs():
    process = Watched("input()")

    def disturb():
        process.looked.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, hear)
    release = threading.Timer(PATIENCE, process.kill)  # of one that waits and does not hear
    thread = threading.Thread(target=disturb)
    for started in (release, thread):
        started.start()
    try:
        with pytest.raises(Heard):
            wait_for(process)
        assert process.poll() is None, "it need not end for that"
    finally:
        release.cancel()
        thread.join()
        signal.signal(signal.SIGUSR1, before)
        process.kill()
        process.communicate()
