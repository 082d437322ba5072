"""The shell commands of the README and of docs/, and an empty copy of the checkout to run them in."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.helpers import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
DIGITS = re.compile(r'"dataset": \{\s*"name": "digits"')  # in a record whose data comes with scikit-learn
OF_RECORDS = re.compile(r"board=|fedspan (run( -m)? algorithm=|retry|validate|sync|verify|report)")


def commands():
    """Return each command once, though several pages name it, with the first page that does."""
    found = {}
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.strip().splitlines():
                found.setdefault(line, page.name)
    return [pytest.param(line, id=f"{name}: {line[:60]}") for line, name in found.items()]


def of_records(command):
    """Tell whether a command makes records that another one reads, or reads them, so that their order matters."""
    return bool(OF_RECORDS.search(command))


def copied(folder):
    """Return a copy of what git would clone, with a few photographs beside it."""
    copy = folder / "fedspan"
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in files.split():
        path, is_record = ROOT / name, name.startswith("results/records/")
        if path.is_file() and (not is_record or DIGITS.search(path.read_text())):  # others' data is not beside the copy
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    draws = np.random.default_rng(0)
    for split, count in (("train", 150), ("test", 5)):
        for label in ("cat", "dog"):
            photos = copy / "PHOTOS" / split / label
            photos.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(draws.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(photos / f"{number}.png")
    return copy


def check_runs(command, checkout, data):
    """Run a command in a copy of the checkout; assert that it ends well."""
    if "nox -s" in command:
        pytest.skip("starts a whole session; that it exists is tested below")
    if command.startswith("uv pip install"):
        command = f"{sys.executable} -m {command} --dry-run --python {sys.executable}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(checkout), "FEDSPAN_DATA": str(data), "PATH": path}
    shell = ["bash", "-ec", command]
    ran = subprocess.run(shell, cwd=checkout, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stdout + ran.stderr
