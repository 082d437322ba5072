"""After a grid the terminal tells who is ahead and what to do next."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from fedspan.benchmark.records.selection import WORST
from fedspan.benchmark.running.summary import next_step, scores, show_scores
from fedspan.benchmark.spec.plan import plan
from fedspan.benchmark.spec.settings import How
from tests.tasks.files import write
from tests.tasks.test_image_folder import small


@pytest.fixture(scope="module")
def grid():
    cells = plan([{"algorithm": name, "seed": seed} for name in ("fedavg", "fedprox") for seed in (0, 1)])
    values = [50.0, 52.0, 60.0, None]
    return cells, {cell.cell.key: value for cell, value in zip(cells, values, strict=True)}


def test_methods_stand_by_their_mean_the_highest_first(grid):
    assert scores(*grid) == {"Digits, 10 clients, alpha 0.5, Small CNN": {"FedProx": [60.0], "FedAvg": [50.0, 52.0]}}
    console = Console(file=io.StringIO(), width=80)
    show_scores(console, *grid)
    said = console.file.getvalue()
    assert said.index("60.00") < said.index("51.00 ± 1.41")


def test_a_method_with_diverged_runs_is_last_whatever_the_others_reached(grid):
    cells, accuracies = grid
    accuracies = accuracies | {cells[3].cell.key: WORST}
    assert list(*map(list, scores(cells, accuracies).values())) == ["FedAvg", "FedProx"]
    console = Console(file=io.StringIO(), width=80)
    show_scores(console, cells, accuracies)
    show_scores(console, cells, dict.fromkeys(accuracies, WORST))
    shown = [line.split() for line in console.file.getvalue().splitlines() if "FedProx" in line]
    assert shown == [["FedProx", "60.00", "1,", "1", "diverged"], ["FedProx", "0,", "2", "diverged"]]


def test_runs_of_one_method_under_several_protocols_are_no_seeds_of_one():
    cells = plan([{"protocol.lr": lr, "seed": seed} for lr in (0.5, 0.05) for seed in (0, 1)])
    values = {cell.cell.key: value for cell, value in zip(cells, [10.0, 11.0, 60.0, 61.0], strict=True)}
    assert list(*scores(cells, values).values()) == ["FedAvg, learning rate 0.05", "FedAvg, learning rate 0.5"]
    assert list(*scores(cells[:2], values).values()) == ["FedAvg"]


def test_other_fleets_and_clients_that_never_train_are_other_tasks():
    cells = plan([{"fleet": fleet, "seed": seed} for fleet in ("reliable", "dropout") for seed in (0, 1)])
    cells += plan([{"unseen": unseen} for unseen in (0.0, 0.2)])
    found = scores(cells, {cell.cell.key: 50.0 for cell in cells})
    assert len(found) == 3
    assert sorted(len(seeds) for methods in found.values() for seeds in methods.values()) == [1, 2, 2]


def test_a_seed_counts_once_and_scales_are_told_apart():
    """The model is the same whatever is measured on it."""
    cells = plan([{"seed": seed, "diagnostics.spectra": on} for seed in (0, 1) for on in (True, False)])
    [[seeds]] = [methods.values() for methods in scores(cells, {one.cell.key: 50.0 for one in cells}).values()]
    assert seeds == [50.0, 50.0]
    cells = plan([{"scale": scale} for scale in ("own", "paper")])
    found = scores(cells, {one.cell.key: 50.0 for one in cells})
    assert [task.rpartition(", ")[2] for task in found] == ["scale own", "scale paper"]


def test_two_folders_of_images_are_two_tasks(tmp_path):
    roots = [str(write(tmp_path / str(size), small(train=size))) for size in (4, 5)]
    cells = plan([{"dataset": "image_folder", "dataset.root": root, "seed": seed} for root in roots for seed in (0, 1)])
    accuracies = dict(zip((one.cell.key for one in cells), (90.0, 91.0, 10.0, 11.0), strict=True))
    found = scores(cells, accuracies)
    assert [list(*methods.values()) for methods in found.values()] == [[90.0, 91.0], [10.0, 11.0]]
    contents = {one.cell.what["dataset"]["content"][:8] for one in cells}
    assert {task.rpartition(", images ")[2] for task in found} == contents


@pytest.mark.parametrize(
    ("settings", "asked", "command"),
    [
        ({}, "scale=smoke", "fedspan ui"),
        ({}, "seed=0,1 algorithm.mu=0.1", "fedspan report seed=0,1 algorithm.mu=0.1"),
        ({"board": "digits"}, "board=digits scale=smoke", "fedspan report board=digits scale=smoke"),
        (
            {"board": "digits", "results": Path("mine")},
            "board=digits scale=smoke",
            "fedspan report board=digits scale=smoke paths.results=mine",
        ),
        (
            {"board": "a/b.yaml", "plugins": ("c.py",)},
            "board=a/b.yaml",
            "fedspan report board=a/b.yaml plugins=c.py",
        ),
    ],
)
def test_the_next_step_is_a_command(settings, asked, command):
    how = How(**{"results": Path("results"), "data": Path("data")} | settings)
    assert next_step(how, asked.split()) == command
