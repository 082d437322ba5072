"""MLflow as a team has it: a server in front of PostgreSQL, both the real ones, on loopback."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from fedspan.benchmark.mirror.runs import Mirror, sync
from fedspan.benchmark.records.results import Results
from tests.cli.conftest import ONE, QUICK, fedspan, here, records, short_calibration  # noqa: F401
from tests.conftest import empty_store  # noqa: F401
from tests.helpers import wait_for

pytestmark = pytest.mark.slow
GRID = ("run", "-m", *QUICK, *ONE)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def tool(name):
    """Return the path of one of PostgreSQL's programs; Debian keeps most of them off the path."""
    places = [*map(str, Path("/usr/lib/postgresql").glob("*/bin")), os.environ["PATH"]]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        pytest.skip(f"PostgreSQL's {name} is not installed (Debian: apt install postgresql)")
    return found


@pytest.fixture(scope="module")
def postgres(tmp_path_factory):
    """The address of a PostgreSQL server with an empty database, on loopback."""
    pytest.importorskip("psycopg", reason="the extra fedspan[postgres] is not installed")
    initdb, server = tool("initdb"), tool("postgres")
    folder, port = tmp_path_factory.mktemp("postgres"), free_port()
    as_user = {}
    if os.getuid() == 0:  # PostgreSQL refuses to run as root
        owner = next((entry for entry in pwd.getpwall() if entry.pw_name in ("postgres", "nobody")), None)
        if owner is None:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        for parent in folder.parents:
            if parent.stat().st_uid == 0 and not parent.stat().st_mode & 1:
                parent.chmod(parent.stat().st_mode | 0o011)
        as_user = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    data = folder / "data"
    subprocess.run(
        [initdb, "-D", data, "-A", "trust", "-U", "fedspan"],
        check=True,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        **as_user,
    )
    options = ["-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", folder, "-c", "fsync=off"]
    process = subprocess.Popen([server, *options], cwd=folder, stderr=subprocess.DEVNULL, **as_user)
    try:
        wait_for(lambda: answers(port))
        yield f"postgresql+psycopg://fedspan@127.0.0.1:{port}/postgres"
    finally:
        process.terminate()
        process.wait(60)


def answers(port):
    import psycopg

    with contextlib.suppress(psycopg.OperationalError):
        psycopg.connect(f"host=127.0.0.1 port={port} user=fedspan dbname=postgres").close()
        return True
    return False


@pytest.fixture(scope="module")
def server(postgres, tmp_path_factory):
    """The address of an MLflow server over PostgreSQL."""
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", postgres, "--artifacts-destination", folder / "artifacts",
    ]  # fmt: skip
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    log = (folder / "log").open("w")
    process = subprocess.Popen(command, cwd=folder, env=os.environ | quiet, stdout=log, stderr=log)

    def healthy():
        assert process.poll() is None, (folder / "log").read_text()
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200
        return False

    try:
        wait_for(healthy)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def test_records_go_to_a_server_over_postgresql_once_and_come_back_the_same(fedspan, here, server, monkeypatch):  # noqa: F811
    fedspan(*GRID, "seed=0,1", "algorithm=fedavg,fedprox")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    assert sync(here / "results") == (server, 4)
    assert sync(here / "results") == (server, 0)
    assert set(Mirror(Results(here / "results")).runs) == set(records())
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    ran = fedspan("sync", "--from", server, "paths.results=back")
    assert (ran.status, ran.out) == (0, "records: 4 collected\n")
    for path in Path("results/records").glob("*.json"):
        assert Path("back/records", path.name).read_bytes() == path.read_bytes()


def test_a_grid_mirrors_to_the_server_while_it_runs(fedspan, here, server, monkeypatch):  # noqa: F811
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    words = [word for word in GRID if word != "tracking=false"]
    ran = fedspan(*words, "seed=5,6")
    assert ran.status == 0
    assert f"2 runs mirrored to MLflow ({server})" in ran.out
    assert sync(here / "results") == (server, 0)
