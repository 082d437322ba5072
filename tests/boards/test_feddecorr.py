"""FedDecorr's boards have the settings that its papers state, or that the code has which the papers follow."""

import csv
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from fedspan.benchmark.spec.board import load_board
from fedspan.benchmark.spec.plan import plan

with Path("results/paper/hyperparameters.csv").open(encoding="utf-8") as lines:
    FACTS = list(csv.DictReader(lines))


def stated(scope, name):
    """Return the values that the papers state, each once."""
    found = {
        row["value"] for row in FACTS if "feddecorr" in row["paper"] and (row["scope"], row["name"]) == (scope, name)
    }
    assert found, f"nothing is stated on {name} of {scope}"
    return found


def numbers(scope, name):
    """Return the one list of numbers that the papers state."""
    [text] = stated(scope, name)
    return [float(number) for number in text.split("|")]


@cache
def cells(board, scale="paper"):
    return [planned.cell for planned in plan(load_board(board).expand({"seed": [0], "scale": [scale]}))]


# journal Table 3 ----------------------------------------------------------------------------------


def test_domains_have_the_images_of_fedbns_code():
    assert {(cell.dataset.name, cell.dataset.size, cell.dataset.normalise) for cell in cells("feddecorr_domains")} == {
        ("office_caltech10", 256, False),
        ("domainnet", 256, False),
    }


def test_alexnets_last_average_repeats_no_pixel_of_the_domains_images():
    for cell in cells("feddecorr_domains"):
        side = cell.dataset.size
        with torch.device("meta"):
            net = cell.model.build((3, side, side), 10)
        [pool] = [module for module in net.body if isinstance(module, nn.AdaptiveAvgPool2d)]
        seen = []
        pool.register_forward_hook(lambda module, inputs, output, seen=seen: seen.append(inputs[0].shape[2:]))
        net(torch.zeros(2, 3, side, side, device="meta"))
        assert min(seen[0]) >= pool.output_size


def test_the_small_domains_are_those_of_earlier_records():
    """Their keys know neither field that came later, nor the larger default."""
    whats = [cell.dataset.what() for cell in cells("feddecorr_domains", "small")]
    assert {(what["size"], "normalise" in what) for what in whats} == {(64, False)}


# MOON ---------------------------------------------------------------------------------------------

WITH_MOON = (
    "feddecorr_dirichlet", "feddecorr_domains", "feddecorr_pathological", "feddecorr_spectra_more", "feddecorr_time",
    "feddecorr_tuning",
)  # fmt: skip


@pytest.mark.parametrize("board", WITH_MOON)
@pytest.mark.parametrize("scale", ["paper", "small", "smoke"])
def test_moon_has_the_temperature_with_which_the_released_code_computes(board, scale):
    moons = [cell.algorithm for cell in cells(board, scale) if cell.algorithm.name == "moon"]
    assert {moon.temperature for moon in moons} == {1.0}


@pytest.mark.parametrize("scale", ["paper", "smoke"])
def test_only_the_board_of_disagreements_has_moons_own_temperature_too(scale):
    moons = [cell.algorithm for cell in cells("fidelity", scale) if cell.algorithm.name == "moon"]
    assert {moon.temperature for moon in moons} == {0.5, 1.0}


# ICLR Table 3 and journal Table 4 -----------------------------------------------------------------


def test_rounds_follow_the_number_of_clients_where_the_text_says_so_and_participation_everywhere():
    """Journal Sec. 5.4 speaks of TinyImageNet; for CIFAR100 there are the rounds of Sec. 5.1."""
    few, many = "client-count ablation;clients=10|20|30", "client-count ablation;clients=50|100"
    rounds = {scope: numbers(scope, "rounds")[0] for scope in (few, many)}
    [share] = numbers(many, "participation")
    expected = dict.fromkeys((10, 20, 30), (rounds[few], 1.0))
    expected |= dict.fromkeys((50, 100), (rounds[many], share))
    [usual] = {cell.protocol.rounds for cell in cells("feddecorr_dirichlet") if cell.dataset.name == "cifar100"}
    for cell in cells("feddecorr_clients"):
        own, part = expected[cell.clients]
        asked = usual if cell.dataset.name == "cifar100" else own
        assert (cell.protocol.rounds, cell.participation) == (asked, part), cell.label


# ICLR App. F and D.2 ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "field", "fact"),
    [("fedprox", "mu", "mu"), ("moon", "mu", "mu"), ("fedavgm", "rho", "server_momentum")],
)
def test_what_was_tuned_is_swept_and_what_was_chosen_is_the_default(base, field, fact):
    tried = {getattr(cell.algorithm, field) for cell in cells("feddecorr_tuning") if cell.algorithm.name == base}
    assert tried == set(numbers(f"base={base}", f"{fact}_grid"))
    main = {getattr(cell.algorithm, field) for cell in cells("feddecorr_dirichlet") if cell.algorithm.name == base}
    assert main == set(numbers(f"base={base}", fact))


def test_as_many_singular_values_are_kept_as_are_drawn():
    scope = "singular value visualisation"
    drawn = {"resnet32": numbers(scope, "top_k_singular_values_resnet32")}
    for cell in (*cells("feddecorr_spectra"), *cells("feddecorr_spectra_more")):
        assert [cell.diagnostics.top] == drawn.get(cell.model.name, numbers(scope, "top_k_singular_values"))
