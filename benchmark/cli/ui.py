"""`fedspan ui`: the site and MLflow side by side, on loopback only."""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.mirror import boards as leaderboard
from fedspan.benchmark.mirror.runs import QUIET, Mirror, Unreachable, tracking_uri
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.spec.compose import resolve
from fedspan.benchmark.spec.overrides import settings_of
from fedspan.benchmark.spec.settings import How

HOST = "127.0.0.1"


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the files of the site only: no listings, no log."""

    def list_directory(self, path: Any) -> None:
        self.send_error(404, "File not found")

    def end_headers(self) -> None:
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return


def serve_site(pages: Path, port: int) -> http.server.ThreadingHTTPServer:
    """Serve a folder on loopback in a thread; `port` 0 picks a free one. Raises `UserError` if the port is taken."""
    try:
        server = http.server.ThreadingHTTPServer((HOST, port), functools.partial(_Handler, directory=str(pages)))
    except OSError as error:
        raise UserError(
            f"port {port} cannot be used for the site: {error.strerror or error}; choose another"
        ) from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def show(arguments: argparse.Namespace) -> int:
    """Serve the pages and MLflow store of the settings."""
    how = How.of(resolve(settings_of(arguments.settings)))
    return run(Results(how.results, mends=False), how.pages, arguments.site_port, arguments.port)


def run(results: Results, pages: Path, site_port: int, mlflow_port: int) -> int:
    """Mirror new records to MLflow, serve both until interrupted, and print their addresses, one line each."""
    if not (pages / "index.html").is_file():
        print(f"fedspan: {pages} has no site yet; run 'fedspan report' to make it", file=sys.stderr)
    with serve_site(pages, site_port) as server:
        print(f"site on http://{HOST}:{server.server_port} (Ctrl-C ends it)", flush=True)
        remote = os.environ.get("MLFLOW_TRACKING_URI", "")
        boards = _mirrored(results, pages)
        address = remote.rstrip("/") if remote.startswith("http") else f"http://{HOST}:{mlflow_port}"
        print(f"MLflow on {address}", flush=True)
        for name, path in boards.items():
            print(f"  {name}: {address}{path}", flush=True)
        if remote.startswith("http"):
            threading.Event().wait()
        environment = {**QUIET, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
        command = ["-m", "mlflow", "server", "--host", HOST, "--port", str(mlflow_port)]
        command += ["--backend-store-uri", tracking_uri(results.root)]
        return subprocess.run([sys.executable, *command], env=environment, check=False).returncode


def _mirrored(results: Results, pages: Path) -> dict[str, str]:
    results.root.mkdir(parents=True, exist_ok=True)
    try:
        store = Mirror(results)
        store.sync()
        return leaderboard.mirror(store, pages)
    except Unreachable as error:
        print(f"fedspan: could not update MLflow: {error}", file=sys.stderr)
        return {}
