"""`fedspan ui` ends all that it started, whichever way it is ended."""

import os
import re
import signal
import socket

import pytest

from tests.helpers import wait_for


def listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_port_that_another_server_has_is_refused_before_anything_starts(fedspan, empty_store, here):
    empty_store(here / "results")
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = str(other.getsockname()[1])
        for option, what in (("--port", "MLflow"), ("--site-port", "the site")):
            words = [word for pair in ({"--port": "0", "--site-port": "0"} | {option: taken}).items() for word in pair]
            ran = fedspan("ui", *words)
            assert ran.status == 2
            assert f"port {taken} cannot be used for {what}" in ran.err
            assert f"choose another with {option}" in ran.err


@pytest.mark.slow
@pytest.mark.usefixtures("in_a_terminal")
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
