"""Which numbers of another machine this one repeats: `python -m tests.golden.machines [CELL ...] [cifar=SOURCE]`.

`machines.json` holds cells with the curves that an AMD EPYC with AVX512 made of them under three settings: `portable`,
`avx2` (portable without MKL's compatible path) and `native`. Cells of CIFAR-10 need its files.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fedspan.benchmark import numerics
from fedspan.benchmark.errors import UserError, require
from fedspan.benchmark.records.provenance import processor

FILE = Path(__file__).with_suffix(".json")
AVX2 = {name: value for name, value in numerics.VARIABLES.items() if name != "MKL_CBWR"}
MODES: dict[str, dict[str, str]] = {
    "portable": {numerics.CHOICE: numerics.PORTABLE},
    "avx2": {numerics.CHOICE: numerics.NATIVE, **AVX2},
    "native": {numerics.CHOICE: numerics.NATIVE},
}
CURVES = {"train_loss": "train_loss", "test_loss": "loss", "accuracy": "accuracy"}  # as a record calls them


def curve(command: str, mode: str, *more: str) -> dict[str, list[float]]:
    """Run a cell's command in a process of that mode and return its curve."""
    kept = {name: value for name, value in os.environ.items() if name not in (numerics.CHOICE, *numerics.VARIABLES)}
    with tempfile.TemporaryDirectory() as folder:
        words = [*shlex.split(command)[1:], *more, "tracking=false", f"paths.results={folder}"]
        run = [sys.executable, "-m", "fedspan", *words]
        subprocess.run(run, env=kept | MODES[mode], check=True, stdout=subprocess.DEVNULL)
        [path] = Path(folder, "records").glob("*.json")
        record = json.loads(path.read_text())
    return {name: record["curve"][ours] for name, ours in CURVES.items()}


def compared(expected: dict[str, list[float]], found: dict[str, list[float]]) -> str:
    """Say that all numbers are repeated, or from which round on they differ, and by how many points at most."""
    pairs = {name: list(zip(expected[name], found[name], strict=True)) for name in expected}
    rounds = [number for of in pairs.values() for number, (a, b) in enumerate(of, 1) if a != b]
    if not rounds:
        return "every number is the same"
    points = max(abs(a - b) for a, b in pairs["accuracy"])
    return f"differs from round {min(rounds)} on, by at most {points:.2f} points"


def main(words: list[str]) -> None:
    """Run the cells in all modes and print a table. Raise `UserError` for the name of no cell."""
    kept: dict[str, Any] = json.loads(FILE.read_text())
    source = next((word.partition("=")[2] for word in words if word.startswith("cifar=")), None)
    names = [word for word in words if "=" not in word] or list(kept["cells"])
    for name in names:
        require(name in kept["cells"], "CELL", f"is none of {', '.join(kept['cells'])}", name)
    print(f"{kept['processor']} against {processor()}")
    for name in names:
        cell = kept["cells"][name]
        of_cifar = "dataset=cifar10" in cell["command"]
        if of_cifar and source is None:
            print(f"{name}: needs cifar=SOURCE")
            continue
        more = [f"dataset.source={source}"] if of_cifar else []
        for mode in MODES:
            print(f"{name}, {mode}: {compared(cell[mode], curve(cell['command'], mode, *more))}", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(str(error))
