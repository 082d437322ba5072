"""Development tasks, one session each; `nox --list` lists them."""

import json
import os
import shutil
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.options.default_venv_backend = "uv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "types", "tests"]
nox.needs_version = ">=2024.10.9"

DEFAULT = ["board=digits"]
AXE = "axe-core@4.14.1"  # finds accessibility problems of pages


def install(session: nox.Session, *extras: str) -> None:
    session.env["PYTHONDONTWRITEBYTECODE"] = ""  # if set, as in some images, every process recompiles everything
    wanted = f".[{','.join(extras)}]" if extras else "."
    session.install("-e", wanted, "-c", "constraints.txt")


def asked(session: nox.Session) -> list[str]:
    """Return the overrides after ``--``, with the default board if none is named."""
    words = list(session.posargs)
    named = any(word.startswith("board=") or word in ("-m", "--multirun") for word in words)
    return words if named else [*DEFAULT, *words]


@nox.session
def bench(session: nox.Session) -> None:
    """Run a grid (default: board=digits), print its tables and render its page."""
    install(session)
    words = asked(session)
    failed = False
    try:
        session.run("fedspan", "run", "-m", *words)
    except CommandFailed:
        failed = True
    if any(word.startswith("board=") for word in words):
        session.run("fedspan", "report", *[word for word in words if not word.startswith("-")])
    if failed:
        session.error("some cells have no result; the lines above say which and why")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the ordinary tests in parallel; arguments after -- go to pytest."""
    install(session, "test")
    session.run("pytest", "-n", str(min(4, os.cpu_count() or 1)), "--dist", "worksteal", *session.posargs)


def installed_wheel(session: nox.Session, *packages: str) -> Path:
    """Build a wheel, install it into an empty environment, and return an empty folder."""
    folder = Path(session.create_tmp())
    dist, empty = folder / "dist", folder / "empty"
    for place in (dist, empty):
        shutil.rmtree(place, ignore_errors=True)
    empty.mkdir()
    session.install("uv")
    session.run("uv", "build", "--quiet", "--out-dir", str(dist))
    [built] = dist.glob("*.whl")
    session.install(str(built), *packages, "-c", "constraints.txt")
    return empty


@nox.session
def wheel(session: nox.Session) -> None:
    """Build a wheel, install it into an empty environment; in an empty folder run a board and test a new method."""
    with session.chdir(installed_wheel(session, "pytest")):
        session.run("fedspan", "run", "-m", "board=digits", "scale=smoke", *session.posargs)
        session.run("fedspan", "report")
        session.run("fedspan", "report", "board=spherefed_main")
        session.run("fedspan", "new", "algorithm", "fedx", "--package", "mine")
        session.run("fedspan", "test", "fedx", "plugins=mine/fedspan_fedx.py")


@nox.session
def desk(session: nox.Session) -> None:
    """Execute the notebook, make the site, submit and review a board's records, from a wheel in an empty folder."""
    tour = Path("examples/tour.ipynb").resolve()
    who = {f"GIT_{role}_{part}": "me@example.org" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    with session.chdir(installed_wheel(session, "nbconvert", "ipykernel")):
        session.run("jupyter", "nbconvert", "--execute", "--to", "notebook", str(tour), "--output-dir", ".")
        session.run("git", "init", "--quiet", external=True)
        Path("leaderboards/boards").mkdir(parents=True)
        session.run("fedspan", "new", "board", "mine")
        Path(".gitignore").write_text("/*\n!/leaderboards/\n/leaderboards/pages/\n")
        session.run("git", "add", ".", external=True)
        session.run("git", "commit", "--quiet", "--message", "A board", external=True, env=who)
        session.run("fedspan", "run", "-m", "board=mine", "scale=smoke", *session.posargs)
        session.run("fedspan", "report")
        session.run("fedspan", "submit", "board=mine", "scale=smoke", "sample=1", env=who)
        session.run("fedspan", "review", "submit/mine", "sample=1")


@nox.session
def slow(session: nox.Session) -> None:
    """Run the slow tests; if npm is available, also the accessibility tests with axe-core."""
    install(session, "test")
    if shutil.which("npm"):
        folder = session.create_tmp()
        session.run("npm", "install", "--silent", "--prefix", folder, AXE, external=True)
        session.env["FEDSPAN_AXE"] = str(Path(folder).resolve() / "node_modules" / "axe-core" / "axe.min.js")
    session.run("pytest", "-m", "slow", *session.posargs)


@nox.session
def data(session: nox.Session) -> None:
    """Run the tests that read real images."""
    install(session, "test")
    session.run("pytest", "-m", "data", *session.posargs)


@nox.session
def gpu(session: nox.Session) -> None:
    """Run the tests that need a CUDA device."""
    install(session, "test")
    session.run("pytest", "-m", "gpu", "-vv", *session.posargs)


@nox.session
def golden(session: nox.Session) -> None:
    """Update the digests of the golden cells after an intended change of bits."""
    install(session, "test")
    session.run("python", "-m", "tests.golden.cells")


@nox.session
def machines(session: nox.Session) -> None:
    """Report which numbers of another machine this one reproduces; arguments after -- are cells, and cifar=SOURCE."""
    install(session, "test")
    session.run("python", "-m", "tests.golden.machines", *session.posargs)


@nox.session
def report(session: nox.Session) -> None:
    """Make the site from the available records."""
    install(session)
    session.run("fedspan", "report", *session.posargs)


@nox.session
def ui(session: nox.Session) -> None:
    """Serve the site and MLflow on loopback."""
    install(session)
    session.run("fedspan", "ui", *session.posargs)


@nox.session
def perf(session: nox.Session) -> None:
    """Measure the speed ratios; the result is saved as JSON and compared with the last saved run."""
    install(session, "test")
    session.run(
        "pytest", "-m", "perf", "tests/perf", "--benchmark-only", "--benchmark-storage=file://results/perf",
        "--benchmark-autosave", "--benchmark-compare", "-s", *session.posargs,
    )  # fmt: skip


@nox.session
def scale(session: nox.Session) -> None:
    """Run the tests of what spans several machines: Ray, Submitit, PostgreSQL, an MLflow server."""
    install(session, "test", "ray", "slurm", "postgres")
    session.run(
        "pytest",
        "-m",
        "slow or not slow",
        "tests/faults/test_launchers.py",
        "tests/faults/test_ray_workers.py",
        "tests/faults/test_server.py",
        *session.posargs,
    )


@nox.session
def audit(session: nox.Session) -> None:
    """Check the pinned versions for known vulnerabilities; needs network access to the feed."""
    session.install("pip-audit>=2.9")
    pins = session.posargs or ["--strict", "--no-deps", "--disable-pip", "--requirement", "constraints.txt"]
    session.run("pip-audit", *pins)


@nox.session
def recipes(session: nox.Session) -> None:
    """Write docs/recipes.md: the source of each setting of each board."""
    install(session)
    session.run("python", "-m", "fedspan.benchmark.report.recipe_text")


# Licences missing from metadata: two from the packages' own texts; NVIDIA's package has no files, only its terms.
UNSTATED = {"cuda-toolkit": "NVIDIA's terms", "huey": "MIT", "skops": "MIT"}


@nox.session
def licences(session: nox.Session) -> None:
    """Write docs/licences.md from the packages that an installation with all extras brings."""
    install(session, "test", "lint", "types", "docs", "ray", "slurm", "postgres", "privacy")
    session.install("pip-licenses>=5")
    options = ["--format=json", "--from=mixed", "--with-system", "--ignore-packages", "fedspan", "pip-licenses"]
    found = json.loads(session.run("pip-licenses", *options, silent=True) or "[]")
    page = Path("docs/licences.md")
    head, _, _ = page.read_text(encoding="utf-8").partition("|---|---|---|\n")
    for package in found:
        if package["License"] == "UNKNOWN":
            package["License"] = UNSTATED[package["Name"]]
    rows = [
        f"| {package['Name']} | {package['Version']} | {' '.join(package['License'].split())[:120]} |"
        for package in sorted(found, key=lambda package: package["Name"].lower())
    ]
    page.write_text("\n".join([f"{head}|---|---|---|", *rows, ""]), encoding="utf-8")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting, import contracts, and the pages generated from the code."""
    session.install("-e", ".[lint]", "-c", "constraints.txt")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")
    session.run("python", "docs/rooms.py", "--check")
    session.run("python", "docs/hooks.py", "--check")


@nox.session
def rooms(session: nox.Session) -> None:
    """Draw docs/rooms.svg, the picture of the rooms, from the imports."""
    session.install("-e", ".[lint]", "-c", "constraints.txt")
    session.run("python", "docs/rooms.py")


@nox.session
def readme(session: nox.Session) -> None:
    """Draw docs/gains.svg from the records, and write README's tables of plugins and counts."""
    install(session)
    session.run("python", "docs/readme.py", *session.posargs)


@nox.session
def findings(session: nox.Session) -> None:
    """Write the tables of docs/findings.md and docs/reproducibility.md from the records."""
    install(session)
    session.run("python", "docs/findings.py", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """Run the ordinary tests and report line coverage."""
    install(session, "test")
    session.install("pytest-cov>=6", "-c", "constraints.txt")
    session.run(
        "pytest", "-n", str(min(4, os.cpu_count() or 1)), "--cov=fedspan", "--cov-report=term", *session.posargs
    )


@nox.session
def types(session: nox.Session) -> None:
    """Check types."""
    install(session, "types")
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation, including the leaderboard, into site/, and check its links."""
    install(session, "docs")
    session.env.update(NO_MKDOCS_2_WARNING="1", FEDSPAN_DOCS="../index.html")
    session.run("mkdocs", "build", "--quiet", "--clean")
    session.run("fedspan", "report", "paths.pages=site/leaderboard")
    session.run("python", "docs/check_site.py", "site")


@nox.session(name="docs-check")
def docs_check(session: nox.Session) -> None:
    """Run the commands of the README and the docs in an empty copy of the checkout."""
    install(session, "test")
    workers = str(min(2, os.cpu_count() or 1))
    session.run("pytest", "-m", "docs", "-n", workers, "--dist", "loadfile", "tests/docs", *session.posargs)
