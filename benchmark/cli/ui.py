"""`fedspan ui`: serves the site and MLflow on loopback only; both end with this process."""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.client
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from fedspan.benchmark.cli.accepted import accepted
from fedspan.benchmark.cli.guard import PAUSE, wait_for
from fedspan.benchmark.cli.main import tell
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.mirror import boards as leaderboard
from fedspan.benchmark.mirror.runs import QUIET, Mirror, Unreachable, tracking_uri
from fedspan.benchmark.places import interpreter
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.running.signals import Stopped, until_stopped
from fedspan.benchmark.spec.settings import How

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")  # hosts accepted in requests from browsers on this machine
START_SECONDS = 300.0  # timeout for MLflow's first answer
LOG = "mlflow-server.log"  # the server's output, in the results folder


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves only files of the site: no listings, no log, no links out of it, no other host names."""

    def send_head(self) -> IO[bytes] | None:  # type: ignore[override]
        if self.headers.get("Host", "").partition(":")[0] not in NAMES:  # without a port if it is 80
            self.send_error(403, "Not a name of this site")
            return None
        path = Path(os.path.realpath(self.translate_path(self.path)))  # `resolve` raises for a link to itself
        inside = path.is_relative_to(os.path.realpath(self.directory))
        if not inside or not (path.is_dir() or path.is_file()):  # not a pipe, which has no end
            self.send_error(404, "File not found")
            return None
        return super().send_head()

    def list_directory(self, path: Any) -> None:
        self.send_error(404, "File not found")

    def end_headers(self) -> None:
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return


@contextlib.contextmanager
def serving_site(pages: Path, port: int) -> Iterator[http.server.ThreadingHTTPServer]:
    """Serve a folder on loopback until the block ends; `port` 0 picks a free one.

    Raises `UserError` if the port is taken.
    """
    try:
        server = http.server.ThreadingHTTPServer((HOST, port), functools.partial(_Handler, directory=str(pages)))
    except OSError as error:
        raise UserError(
            f"port {port} cannot be used for the site: {error.strerror or error}; choose another with --site-port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, args=(PAUSE,), daemon=True)
    thread.start()
    with server:
        try:
            yield server
        finally:
            server.shutdown()  # the thread would ask a closed socket for requests, again and again
            thread.join()


def show(arguments: argparse.Namespace) -> int:
    """Serve the pages and the MLflow store until a signal arrives."""
    how = How.of(
        accepted(arguments.settings, ("paths.results", "paths.pages", "plugins"), "all pages and runs are served")
    )
    try:
        return run(Results(how.results, sets_aside=False), how.pages, arguments.site_port, arguments.port)
    except KeyboardInterrupt as end:
        tell("the site and MLflow are closed")
        return 128 + (signal.SIGTERM if isinstance(end, Stopped) else signal.SIGINT)


def run(results: Results, pages: Path, site_port: int, mlflow_port: int) -> int:
    """Mirror new records to MLflow, print the addresses of site and MLflow, and serve both until a signal arrives."""
    if not (pages / "index.html").is_file():
        tell(f"{pages} has no site yet; run 'fedspan report' to make it")
    with until_stopped(), serving_site(pages, site_port) as server:
        print(f"site on http://{HOST}:{server.server_port} (Ctrl-C ends it)", flush=True)
        remote = os.environ.get("MLFLOW_TRACKING_URI", "")
        boards = _mirrored(results, pages)
        if remote.startswith("http"):
            _print_addresses(remote.rstrip("/"), boards)
            while True:  # until a signal
                time.sleep(PAUSE)
        mlflow_port = mlflow_port or _free_port()
        print("starting MLflow ...", file=sys.stderr, flush=True)
        with _mlflow(results, mlflow_port) as process:
            _print_addresses(f"http://{HOST}:{mlflow_port}", boards)
            if ended := wait_for(process):
                tell(f"MLflow ended; {results.root / LOG} says why")
            return ended


def _print_addresses(address: str, boards: dict[str, str]) -> None:
    print(f"MLflow on {address}", flush=True)
    for name, path in boards.items():
        print(f"  {name}: {address}{path}", flush=True)


@contextlib.contextmanager
def _mlflow(results: Results, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start MLflow and yield its guard once it answers; raise `UserError` if it fails. MLflow ends with the block.

    The port is tried first: another server there would answer in its place.
    """
    try:
        socket.create_server((HOST, port)).close()
    except OSError as error:
        raise UserError(
            f"port {port} cannot be used for MLflow: {error.strerror or error}; choose another with --port"
        ) from error
    environment = {**QUIET, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
    names = ",".join(f"{name}:{port}" for name in NAMES)
    server = ["-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1", "--allowed-hosts", names]
    server += ["--backend-store-uri", tracking_uri(results.root), "--uvicorn-opts", "--log-level warning"]
    command = [*interpreter(), "-m", "fedspan.benchmark.cli.guard", *interpreter(), *server]
    log = results.root / LOG
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True
        )
    try:
        _wait_for(process, port, log)
        yield process
    finally:
        process.terminate()
        process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until the server answers requests; raise `UserError` if it exits or takes too long.

    Connecting is not a proof: the port accepts connections while the server is still importing.
    """
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(HOST, port, timeout=5)
            with contextlib.closing(connection):
                connection.request("GET", "/health")
                if connection.getresponse().status == http.HTTPStatus.OK:
                    return
        time.sleep(0.1)
    raise UserError(f"MLflow does not answer on port {port} ({log} says why); choose another with --port")


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


def _mirrored(results: Results, pages: Path) -> dict[str, str]:
    try:
        store = Mirror(results)
        print("sending new records to MLflow ...", file=sys.stderr, flush=True)
        store.sync()
        return leaderboard.mirror(store, pages)
    except Unreachable as error:
        tell(f"could not update MLflow: {error}")
        return {}
