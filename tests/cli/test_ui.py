"""`fedspan ui` ends all that it started, whichever way it is ended."""

import os
import re
import signal
import socket

import pytest

from tests.helpers import wait_for

pytestmark = pytest.mark.slow


def listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_no_signal_leaves_a_server_behind(start, here, empty_store, number):
    empty_store(here / "results")
    process = start("ui", "--port", "0", "--site-port", "0")
    ports = []
    while len(ports) < 2:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        ports += [int(port) for port in re.findall(r"http://127\.0\.0\.1:(\d+)", line)]
    assert all(map(listening, ports)), "an address is printed when it answers"
    os.kill(process.pid, number)
    process.wait()
    wait_for(lambda: not any(map(listening, ports)))
