"""The tables of docs/findings.md and docs/reproducibility.md, made from the records. Run by `nox -s findings`.

Each table is enclosed by two HTML comments, the first of which names it. The text about the tables is written by hand.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev

import pandas as pd

from fedspan.benchmark import names
from fedspan.benchmark.protocol import Protocol
from fedspan.benchmark.records.model import STAGES, Record
from fedspan.benchmark.records.record import digest_of
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.selection import cells_of, select
from fedspan.benchmark.records.verification import Verification, readable
from fedspan.benchmark.registry import discover
from fedspan.benchmark.report.analysis import Analysis, Standing, analyse, pairwise
from fedspan.benchmark.report.axes import Axes
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.statistics import Difference, Gap, difference
from fedspan.benchmark.report.table import TableCell
from fedspan.benchmark.report.tabulation import tabulate
from fedspan.benchmark.report.tuning import TunedMethod, tuned_methods
from fedspan.benchmark.rng import numpy_generator
from fedspan.benchmark.spec.board import load_board
from fedspan.benchmark.spec.plan import plan_grid
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.spec.studies import studies_of
from fedspan.methods.algorithms.fednova import effective_steps

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "docs" / name for name in ("findings.md", "reproducibility.md")]
BLOCK = re.compile(r"(<!-- table (\w+), made by nox -s findings -->\n).*?(<!-- until here -->)", re.DOTALL)
OUTSIDE = re.compile(r", (?![^()]*\))")  # a comma outside parentheses
BOARDS = ["cifar10_small", "cifar10_small_fidelity", "personal_fidelity"]
TUNED = ["digits_tuned", "cifar10_tuned"]
WIDER = {"field_tuned": "cifar10_tuned"}  # tuned board: the board whose studies it also has
RANKED = {"field": "fedavg", "personal": "local_only"}  # board: reference method
SHOWN = (  # board, table, scale
    ("fleet", 1, "own"),
    ("fleet", 2, "own"),
    ("quantity", 1, "own"),
    ("momentum", 1, "own"),
    ("domains_fidelity", 1, "paper"),
    ("cifar10_rates", 1, "own"),
    ("cifar10_rounds", 1, "own"),
    ("cifar10_rounds", 2, "own"),
)
MADE = {  # board: scale, of boards whose records are portable
    "cifar10_small": "own",
    "cifar10_small_fidelity": "own",
    "cifar10_tuned": "own",
    "field_tuned": "own",
    "cifar10_rates": "own",
    "cifar10_rounds": "own",
    "collapse": "own",
    "digits_tuned": "own",
    "field": "own",
    "personal": "own",
    "personal_fidelity": "own",
    "fleet": "own",
    "quantity": "own",
    "momentum": "own",
    "feddecorr_domains": "small",
}
ALPHAS = (0.05, 0.5)
LENGTHS = (8, 40)  # rounds of the board cifar10_rounds
ALGORITHMS = ("FedAvg", "FedProx", "FedAvgM", "MOON")
FORMS = ("paper", "released")
DOMAINS = "Domains (0.5 times the smallest)"
TEST_IMAGES = {"amazon": 192, "caltech": 225, "dslr": 32, "webcam": 59}  # of Office-Caltech10's domains
PHOTOGRAPHS = {"paper": "not normalised", "small": "64x64 pixels"}  # how task names describe them, by scale


@dataclass(frozen=True)
class Run:
    """A run in its record: accuracy in percent at its last stage, minus infinity if it diverged, and spectrum.

    The accuracy is the mean over domains if the task has any, or over clients that have their own test images.
    """

    accuracy: float
    effective_rank: float
    significant: float

    @classmethod
    def of(cls, record: Record) -> Run:
        """Return the run of a record."""
        stage = next((stage for stage in reversed(STAGES) if stage in record["scores"]), None)
        scores = record["scores"][stage] if stage else {}
        spectrum = record.get("spectra", {}).get("global", {})
        kinds = ("domain_accuracy", "client_accuracy", "accuracy")
        accuracy = next((scores[kind] for kind in kinds if scores.get(kind) is not None), None)
        if record["status"] == "diverged":
            accuracy = -math.inf
        found = accuracy, spectrum.get("effective_rank"), spectrum.get("significant")
        return cls(*(math.nan if value is None else float(value) for value in found))


# Runs of one method on one task, by seed.
Seeds = Mapping[int, Run]


class Runs:
    """The runs of some boards in a results folder, by method name, task name and augmentation."""

    def __init__(self, place: Results) -> None:
        discover()
        self.place = place
        self._found: dict[tuple[str, str, str], dict[int, Run]] = {}
        planned = plan_grid({"board": BOARDS})
        planned += plan_grid({"board": ["feddecorr_domains"], "scale": [*PHOTOGRAPHS]})
        for record in map(place.read, dict.fromkeys(one.cell.key for one in planned)):
            if record is None:
                continue
            spec = record["spec"]
            name = names.method_name(spec), names.task_name(spec), str(spec["protocol"].get("augment"))
            self._found.setdefault(name, {})[int(spec["seed"])] = Run.of(record)

    def cifar(self, method: str, alpha: float, more: str = "", augment: str = "crop_flip") -> Seeds:
        """Return runs of the boards cifar10_small and cifar10_small_fidelity; `more` is the rest of the task name.

        Raises `KeyError` if there are none, as names of methods and tasks depend on settings and may change.
        """
        return self._found[method, f"CIFAR-10, 5,000 images, 10 clients, alpha {alpha}{more}", augment]

    def personal(self, method: str, alpha: float) -> Seeds:
        """Return the runs of the board personal_fidelity on CIFAR-10."""
        return self.cifar(method, alpha, ", 15% of each client for its test")

    def domains(self, method: str, scale: str) -> Seeds:
        """Return the runs of the board feddecorr_domains on Office-Caltech10 at a scale."""
        task = f"Office-Caltech10, {PHOTOGRAPHS[scale]}, 4 clients, {DOMAINS}"
        return next((seeds for name, seeds in self._found.items() if name[:2] == (method, task)), {})


def collapse(runs: Runs) -> list[list[str]]:
    """Return accuracy, effective rank and gain of every method of cifar10_small."""
    rows = [["method", "alpha", "accuracy", "effective rank", "values above e^-2", "gain of each seed"]]
    for alpha in ALPHAS:
        for algorithm in ALGORITHMS:
            bare = runs.cifar(algorithm, alpha)
            others = [decorr(algorithm, form) for form in FORMS]
            for name in (algorithm, *others, *(["FedAvg + SphereFed"] if algorithm == "FedAvg" else [])):
                own, sphere = runs.cifar(name, alpha), "SphereFed" in name
                rows.append(
                    [
                        name + (", calibrated" if sphere else ""),
                        str(alpha),
                        spread(run.accuracy for run in own.values()),
                        spread(run.effective_rank for run in own.values()),
                        "" if sphere else spread(run.significant for run in own.values()),
                        "" if name == algorithm else listed(differences(own, bare)),
                    ]
                )
    return rows


def gains(runs: Runs) -> list[list[str]]:
    """Return the effect of both forms of FedDecorr on accuracy and effective rank of the four algorithms."""
    rows = [["form", "alpha", "pairs", "gain", "mean gain", "smallest and largest", "effective rank multiplied by"]]
    for form in (*FORMS, "released minus paper"):
        for alpha in ALPHAS:
            found, ratios = [], []
            for algorithm in ALGORITHMS:
                first = runs.cifar(decorr(algorithm, form.split()[0]), alpha)
                second = runs.cifar(decorr(algorithm, "paper") if " " in form else algorithm, alpha)
                found += differences(first, second)
                ratios += [
                    first[seed].effective_rank / second[seed].effective_rank for seed in sorted({*first} & {*second})
                ]
            if found:
                better = sum(value > 0 for value in found)
                extremes = f"{min(found):.1f} to {max(found):.1f}"
                times = f"{min(ratios):.1f} to {max(ratios):.1f}"
                rows.append([form, str(alpha), str(len(found)), str(better), f"{fmean(found):.1f}", extremes, times])
    return rows


def collapse_over_rates(runs: Runs) -> list[list[str]]:
    """Return accuracy and effective rank at the learning rates of the board `collapse`."""
    found: dict[tuple[str, float, float], list[Run]] = {}
    for record in records_of(runs, "collapse", "own"):
        spec = record["spec"]
        place = names.method_name(spec), spec["partition"]["alpha"], spec["protocol"]["lr"]
        found.setdefault(place, []).append(Run.of(record))
    rows = [["method", "alpha", "learning rate", "accuracy", "effective rank"]]
    for (method, alpha, rate), mine in sorted(found.items(), key=lambda item: (item[0][1], item[0][0], item[0][2])):
        ranks = spread(run.effective_rank for run in mine)
        rows.append([method, str(alpha), str(rate), spread(run.accuracy for run in mine), ranks])
    return rows


def leads_over_rounds(runs: Runs) -> list[list[str]]:
    """Return each method's lead over FedAvg after 8 and after 40 rounds, at the better learning rate of each.

    The better rate is that of the higher mean accuracy, at each alpha and number of rounds, among rates with the most
    seeds. Leads are those of each seed and, over both alphas, their mean with its interval. Methods without runs at one
    of these are left out.
    """
    found: dict[tuple[str, float, int], dict[float, dict[int, Run]]] = {}
    for record in records_of(runs, "cifar10_rounds", "own"):
        spec = record["spec"]
        protocol, alpha = spec["protocol"], spec["partition"]["alpha"]
        rates = found.setdefault((names.method_name(spec), alpha, protocol["rounds"]), {})
        rates.setdefault(protocol["lr"], {})[spec["seed"]] = Run.of(record)

    def worth(rate: tuple[float, Seeds]) -> tuple[int, float]:
        return len(rate[1]), fmean(run.accuracy for run in rate[1].values())

    best = {place: max(rates.items(), key=worth) for place, rates in found.items()}
    everywhere = Counter(method for method, _, _ in best)
    methods = [name for name in everywhere if name != "FedAvg" and everywhere[name] == len(ALPHAS) * len(LENGTHS)]

    def each(method: str, alpha: float, rounds: int) -> str:
        return listed(differences(*(best[one, alpha, rounds][1] for one in (method, "FedAvg"))))

    def whole(method: str, rounds: int) -> str:
        mine, base = (
            {a: {seed: run.accuracy for seed, run in best[one, a, rounds][1].items()} for a in ALPHAS}
            for one in (method, "FedAvg")
        )
        return interval(difference(mine, base))

    rows = [["method", "alpha", "better rate, 8 rounds", "40 rounds", "lead over FedAvg, 8 rounds", "40 rounds"]]
    for alpha in ALPHAS:
        for method in methods:
            rates = (str(best[method, alpha, rounds][0]) for rounds in LENGTHS)
            rows.append([method, str(alpha), *rates, *(each(method, alpha, rounds) for rounds in LENGTHS)])
    return rows + [[method, "both", "–", "–", *(whole(method, rounds) for rounds in LENGTHS)] for method in methods]


def disagreements(runs: Runs) -> list[list[str]]:
    """Return the effect on accuracy, seed by seed, of settings on which paper and code disagree."""
    rows = [["disagreement", *(f"alpha {alpha}" for alpha in ALPHAS)]]
    warm, plain = "MOON (temperature 1)", ", plain draw"
    on_body = "MOON (temperature 1, body features)"
    pairs: list[tuple[str, str, str]] = [
        ("FedDecorr on FedAvg: released loss minus the paper's", decorr("FedAvg", "released"), decorr("FedAvg")),
        (
            "FedDecorr on FedAvg: the pseudocode's loss minus the paper's",
            decorr("FedAvg", "pseudocode"),
            decorr("FedAvg"),
        ),
        (
            "FedDecorr on MOON: on the body's features minus on the projected ones (released)",
            decorr(on_body, "released"),
            decorr(warm, "released"),
        ),
        ("FedProx: mu = 0.001 (papers) minus 0 (released)", "FedProx", "FedProx (mu 0)"),
        ("FedAvgM, momentum 0.5: plain minus damped (released)", "FedAvgM (plain momentum)", "FedAvgM"),
        ("FedAvgM, damped: 0.9 (scripts) minus 0.5 (papers)", "FedAvgM (rho 0.9)", "FedAvgM"),
        ("FedAvgM, plain: 0.9 minus 0.5", "FedAvgM (rho 0.9, plain momentum)", "FedAvgM (plain momentum)"),
        (
            "FedAvgM, damped 0.9: running statistics moved (released) minus averaged",
            "FedAvgM (rho 0.9, momentum on BatchNorm statistics)",
            "FedAvgM (rho 0.9)",
        ),
        (
            "FedNova: running statistics moved (released) minus averaged",
            "FedNova (BatchNorm statistics as weights)",
            "FedNova",
        ),
        ("MOON: temperature 1 (released) minus 0.5 (paper)", warm, "MOON"),
        ("MOON: no projection minus one of 640 and 256", "MOON (temperature 1, projection none)", warm),
        (
            "MOON: a client's first previous model untrained (released) minus the global one",
            "MOON (temperature 1, untrained first previous)",
            warm,
        ),
        (
            "FedETF: absent classes kept (released) minus removed (paper)",
            "FedAvg + FedETF (absent classes kept)",
            "FedAvg + FedETF",
        ),
        (
            "Elastic aggregation: sensitivities over each tensor's largest (OpenFed) minus over the model's",
            "Elastic aggregation (scope tensor)",
            "Elastic aggregation",
        ),
        (
            "FedDyn: alpha divided by the client's share of the images (released) minus not (paper)",
            "FedDyn (alpha by share of images)",
            "FedDyn",
        ),
        (
            "FedDC: the same, with its variates divided too (released) minus not (paper)",
            "FedDC (alpha by share of images)",
            "FedDC",
        ),
        (
            "FedDC, divided: variates scaled by the mean client's steps (released) minus by the client's own (paper)",
            "FedDC (alpha by share of images, mean client's steps)",
            "FedDC (alpha by share of images)",
        ),
    ]
    for text, first, second in pairs:
        rows.append([text, *(listed(differences(runs.cifar(first, a), runs.cifar(second, a))) for a in ALPHAS)])
    draws: list[tuple[str, Callable[[float], Seeds], Callable[[float], Seeds]]] = [
        (
            "Dirichlet: full clients get more (not said in the papers) minus nothing more (released)",
            lambda alpha: runs.cifar("FedAvg", alpha, plain),
            lambda alpha: runs.cifar("FedAvg", alpha),
        ),
        (
            "the same, at least one image per client minus at least ten",
            lambda alpha: runs.cifar("FedAvg", alpha, f"{plain}, 1 or more images each"),
            lambda alpha: runs.cifar("FedAvg", alpha, plain),
        ),
        (
            "no augmentation (the papers mention none) minus crop and flip (released)",
            lambda alpha: runs.cifar("FedAvg", alpha, augment="none"),
            lambda alpha: runs.cifar("FedAvg", alpha),
        ),
        (
            "APFL on `personal`: mixing moves every round (released) minus every step",
            lambda alpha: runs.personal("APFL (mixing moves every round)", alpha),
            lambda alpha: runs.personal("APFL", alpha),
        ),
        (
            "LG-FedAvg on `personal`: six sevenths of the rounds as FedAvg's (released) minus none (Algorithm 1)",
            lambda alpha: runs.personal("LG-FedAvg (86% warm-up as FedAvg)", alpha),
            lambda alpha: runs.personal("LG-FedAvg", alpha),
        ),
        (
            "FedProto on `personal`: weight 0.1 (the authors' command for CIFAR10) minus 1 (their default)",
            lambda alpha: runs.personal("FedProto (weight 0.1)", alpha),
            lambda alpha: runs.personal("FedProto", alpha),
        ),
        (
            "FedAMP on `personal`: alpha 10,000 and from the cloud model (a public copy) minus 1 and from its own",
            lambda alpha: runs.personal("FedAMP (alpha 10000, from the cloud model)", alpha),
            lambda alpha: runs.personal("FedAMP", alpha),
        ),
        (
            "the same, with a self-weight of 0.5 (RigFL, a public copy after the authors' notebook) instead of 0.1",
            lambda alpha: runs.personal("FedAMP (alpha 10000, self weight 0.5, from the cloud model)", alpha),
            lambda alpha: runs.personal("FedAMP (alpha 10000, from the cloud model)", alpha),
        ),
    ]
    rows += [[text, *(listed(differences(one(a), other(a))) for a in ALPHAS)] for text, one, other in draws]
    return rows


def portable_domains(runs: Runs) -> list[list[str]]:
    """Return each cell of the domain table that was also trained with portable numerics, beside its GPU record."""
    head = ["method", "seed", "portable, on CPUs", "native, on a GPU"]
    found = []
    for record in Results(ROOT / "results" / "arriving", sets_aside=False).all():
        beside = runs.place.read(record["key"])
        assert beside is not None, record["key"]
        scores = [one["scores"]["trained"] for one in (record, beside)]
        found.append((names.method_name(record["spec"]), int(record["spec"]["seed"]), *map(ended, scores)))
    rows = [[method, str(seed), *ends] for method, seed, *ends in sorted(found)]
    return [head, *rows]


def ended(scores: Mapping[str, float | None]) -> str:
    """Return the mean accuracy over the domains of Office-Caltech10, with the number of test images that are right."""
    each = {name: scores[f"domain_accuracy.{name}"] for name in TEST_IMAGES}
    right = sum(round(value / 100 * TEST_IMAGES[name]) for name, value in each.items() if value is not None)
    return f"{scores['domain_accuracy']:.1f} ({right})"


def nova_weights(runs: Runs) -> list[list[str]]:
    """Return the runs of FedNova under quantity skew, in the order of the sum of the clients' weights in its mean.

    The last columns are those of the runs without momentum in the board `momentum`, by learning rate.
    """
    plain: dict[tuple[float, float, int], str] = {}
    for record in records_of(runs, "momentum", "own"):
        method, task, sgd = (record["spec"][part] for part in ("algorithm", "partition", "protocol"))
        if method["name"] == "fednova" and task["name"] == "quantity" and not sgd["momentum"]:
            plain[sgd["lr"], task["alpha"], record["spec"]["seed"]] = listed([Run.of(record).accuracy])
    rates = sorted({rate for rate, _, _ in plain})
    found = []
    for cell in (planned.cell for planned in plan_grid({"board": ["quantity"]})):
        if cell.algorithm.name != "fednova" or cell.partition.name != "quantity":
            continue
        parts = cell.partition.prepare(
            cell.dataset.prepare(How().data), cell.clients, numpy_generator(cell.seed, "partition")
        ).train
        images = [len(part) for part in parts]
        weight, lighter = (
            weights_in_sum(images, cell.protocol, momentum) for momentum in (cell.protocol.momentum, 0.0)
        )
        record = runs.place.read(cell.key)
        assert record is not None, cell.key
        place = cell.partition.alpha, cell.seed
        without = [f"{lighter:.1f}", *(plain.get((rate, *place), "–") for rate in rates)]
        found.append((weight, [*map(str, (*place, max(images))), listed([Run.of(record).accuracy]), *without]))
    rows = [[f"{weight:.1f}", *row] for weight, row in sorted(found)]
    heading = ["sum of weights", "alpha", "seed", "images of the largest client", "accuracy"]
    return [[*heading, "sum without momentum", *(f"accuracy, rate {rate}" for rate in rates)], *rows]


def weights_in_sum(images: Sequence[int], protocol: Protocol, momentum: float) -> float:
    """Return the sum of the weights that FedNova gives to clients with these numbers of images.

    A client's weight is its share of the images times the mean number of effective steps over its own.
    """
    shares = [number / sum(images) for number in images]
    batches = [math.ceil(number / protocol.batch_size) for number in images]
    steps = [effective_steps(protocol.local_epochs * number, momentum) for number in batches]
    return sum(map(operator.mul, shares, steps)) * sum(map(operator.truediv, shares, steps))


def nova_leads(runs: Runs) -> list[list[str]]:
    """Return FedNova's lead over FedAvg on each task of the board `momentum`, with momentum and without."""
    found: dict[tuple[float, float], dict[str, dict[str, dict[int, float]]]] = {}
    for record in records_of(runs, "momentum", "own"):
        spec = record["spec"]
        tasks = found.setdefault((spec["protocol"]["momentum"], spec["protocol"]["lr"]), {})
        methods = tasks.setdefault(names.task_name(spec), {})
        methods.setdefault(spec["algorithm"]["name"], {})[spec["seed"]] = Run.of(record).accuracy
    rows = [["momentum", "learning rate", *telling(list(next(iter(found.values()))))]]
    for sgd, tasks in found.items():
        gaps = (difference({0: of["fednova"]}, {0: of["fedavg"]}) for of in tasks.values())
        rows.append([*map(str, sgd), *map(interval, gaps)])
    return rows


def domains(runs: Runs, scale: str) -> list[list[str]]:
    """Return mean accuracy over domains with and without FedDecorr, beside Table 3 of the journal paper."""
    table = pd.read_csv(ROOT / "results" / "paper" / "feddecorr_tpami.csv", dtype=str)
    found = table[(table["table"] == "3") & (table["column"] == "office_caltech10, alexnet_bn, average")]
    printed = {row: f"{float(value):.1f}" for row, value in zip(found["row"], found["value"], strict=True)}
    rows = [["", "bare", "with FedDecorr (released form)", "gain of each seed", "printed, at the papers' scale"]]
    for name in ("FedAvg", "FedProx", "FedAvgM", "MOON (temperature 1)", "FedBN"):
        bare, other = runs.domains(name, scale), runs.domains(decorr(name, "released"), scale)
        means = [spread(run.accuracy for run in seeds.values()) for seeds in (bare, other)]
        stated = name.partition(" (")[0]
        both = f"{printed[stated]}, {printed[f'{stated} + FedDecorr']}"
        rows.append([name, *means, listed(differences(other, bare)), both])
    return rows


def tuning(runs: Runs, board: str) -> list[list[str]]:
    """Return the gains of tuning on a board, measured on test images with seeds that no trial used."""
    rows = [["method", "task", "defaults", "tuned", "gain of tuning", "chosen", "trials diverged"]]
    for one in studied(runs, board):
        diverged = sum(trial.status == "diverged" for trial in one.trials)
        found = [spread(one.default.values()), spread(one.tuned.values()), interval(one.gain)]
        rows.append([one.method, one.task, *found, one.settings_said, f"{diverged} of {len(one.trials)}"])
    return rows


def leads(runs: Runs, board: str) -> list[list[str]]:
    """Return each method's lead over the board's first one, by task and then over all tasks, untuned and tuned."""
    methods: dict[str, dict[str, TunedMethod]] = {}
    for one in studied(runs, board):
        methods.setdefault(one.method, {})[one.task] = one
    base, *others = methods.values()

    def lead(over: Mapping[str, TunedMethod], mine: Mapping[str, TunedMethod]) -> list[str]:
        untuned = difference(*({task: row[task].default for task in over} for row in (mine, base)))
        tuned = difference(*({task: row[task].tuned for task in over} for row in (mine, base)))
        return [interval(untuned), interval(tuned)]

    rows = [["method", "task", "lead with defaults", "lead when both are tuned"]]
    whole = [("all", base)] if len(base) > 1 else []
    for label, over in [*((task, {task: one}) for task, one in base.items()), *whole]:
        had = (mine for mine in others if over.keys() <= mine.keys())
        rows += [[next(iter(mine.values())).method, label, *lead(over, mine)] for mine in had]
    return rows


def beyond(runs: Runs, board: str, other: str, table: Callable[[Runs, str], list[list[str]]]) -> list[list[str]]:
    """Return the rows of a board's table that the same table of another board lacks."""
    head, *rows = table(runs, board)
    known = table(runs, other)
    return [head, *(row for row in rows if row not in known)]


def standing(runs: Runs, board: str, over: str) -> list[list[str]]:
    """Rank the methods of a board's first table, as its page does; bounds come last. Each is compared with `over`."""
    found = ranked(runs, board)
    table = found.table
    base, differ = next(row for row in table.rows if row.labels == (over,)), pairwise(table)

    entries = zip(*(one.row.entries for one in found.measured), strict=True)
    filled = [i for i, column in enumerate(entries) if any(entry and entry.outcomes(+1) for entry in column)]
    columns = telling([said(table.column_axes, table.columns[i]) for i in filled])
    rows = [["place", "method", *columns, f"ahead of {said(table.row_axes, base.labels)}"]]
    for one in found.measured:
        place = one.place.text if isinstance(one, Standing) else "bound"
        gap = None if one.row is base else differ(one.row, base)
        numbers = (outcomes(one.row.entries[i]) for i in filled)
        rows.append([place, said(table.row_axes, one.row.labels), *numbers, interval(gap)])
    return rows


def machines(runs: Runs) -> list[list[str]]:
    """Count the records of each board by processor, and give the seconds of one core that a finished cell took.

    Further columns count those made with another torch than most. The records of a tuned board are those of its
    trials, defaults and chosen settings. Boards share cells.
    """
    counted = {board: records_of(runs, board, scale) for board, scale in MADE.items()}
    processors = sorted({one["provenance"]["processor"] for found in counted.values() for one in found})
    torches = Counter(one["provenance"]["versions"]["torch"] for found in counted.values() for one in found)
    others = sorted(set(torches) - {torches.most_common(1)[0][0]})
    built = [f"torch {torch}" for torch in others]
    rows = [["board", "records", *processors, *built, "diverged", "core seconds: median (range)"]]
    for board, found in counted.items():
        made = Counter(one["provenance"]["processor"] for one in found)
        done = [one["compute"] for one in found if one["status"] == "done"]
        seconds = [cost["processor_seconds"] for cost in done if "processor_seconds" in cost]
        ran = Counter(one["provenance"]["versions"]["torch"] for one in found)
        numbers = len(found), *(made[one] for one in processors), *(ran[one] for one in others), len(found) - len(done)
        took = f"{median(seconds):.0f} ({min(seconds):.0f} to {max(seconds):,.0f})"
        rows.append([f"`{board}`", *map(str, numbers), took])
    return rows


def repetitions(runs: Runs) -> list[list[str]]:
    """Count the repetitions of today's records, and those with the same bits, by the processors of both."""
    found: dict[str, list[Verification]] = {}
    for one in readable(runs.place.root):
        record = runs.place.read(one.key)
        if record is not None and digest_of(record) == one.record:
            found.setdefault(record["provenance"]["processor"], []).append(one)
    kinds = sorted({f"{one.processor} ({one.instructions})" for mine in found.values() for one in mine})
    rows = [["made on", *(f"repeated on {kind}" for kind in kinds)]]
    for maker in sorted(found):
        by_kind = {
            kind: [one for one in found[maker] if f"{one.processor} ({one.instructions})" == kind] for kind in kinds
        }
        rows.append([maker, *(_identical(mine) for mine in by_kind.values())])
    return rows


def _identical(repeated: Sequence[Verification]) -> str:
    same = sum(one.outcome == "identical" for one in repeated)
    return f"{same} of {len(repeated)} identical" if repeated else "–"


def shown(runs: Runs, board: str, number: int, scale: str) -> list[list[str]]:
    """Return a table of a board as on its page."""
    cells = plan_grid({"board": [board], "scale": [scale]})
    table = tabulate(collect(cells, runs.place), Axes(cells), load_board(board).tables[number - 1], number)
    headings = telling([said(table.column_axes, labels) for labels in table.columns])
    rows = [[said(table.row_axes, row.labels), *map(outcomes, row.entries)] for row in table.rows]
    return [["", *headings], *rows]


def said(axes: Iterable[str], labels: Iterable[str]) -> str:
    """Return the labels of a row or a column in words."""
    return ", ".join(map(names.of_axis_label, axes, labels))


def telling(headings: Sequence[str]) -> list[str]:
    """Return headings without the parts shared by all of one dataset, and without the dataset if it is the only one."""
    parts = [OUTSIDE.split(heading) for heading in headings]
    several = len({dataset for dataset, *_ in parts}) > 1
    shorts = []
    for dataset, *others in parts:
        common = set(others).intersection(*(rest for other, *rest in parts if other == dataset))
        shorts.append(", ".join([dataset] * several + [part for part in others if part not in common]))
    return [short or whole for short, whole in zip(shorts, headings, strict=True)]


def ranked(runs: Runs, board: str) -> Analysis:
    """Return the ranking of a board's first table; raise `KeyError` if its rows cannot be compared."""
    cells, spec = plan_grid({"board": [board]}), load_board(board).tables[0]
    found = analyse(tabulate(collect(cells, runs.place), Axes(cells), spec, 1))
    if found is None:
        raise KeyError(f"the records of {board} compare no methods")
    return found


def outcomes(entry: TableCell | None) -> str:
    """Return mean and standard deviation of a cell of a board's table, and the number of diverged runs."""
    return spread(entry.outcomes(+1).values()) if entry else "–"


def records_of(runs: Runs, board: str, scale: str) -> list[Record]:
    """Return the records of a board's cells and, if it tunes, of its trials and tuned cells."""
    cells = cells_of({"board": [board], "scale": [scale]}, runs.place.read)
    return [record for one in cells if (record := runs.place.read(one.cell.key)) is not None]


def studied(runs: Runs, board: str) -> list[TunedMethod]:
    """Return the studies of a tuned board whose trials have all run, sorted by task, with readable names."""
    found = [select(study, runs.place.read) for study in studies_of({"board": [board]})]
    done = [selection for selection in found if selection.chosen]
    specs = [selection.study.default[0].cell.settings for selection in done]
    tasks = list(dict.fromkeys(map(names.task_name, specs)))
    short = dict(zip(tasks, telling(tasks), strict=True))
    frame = collect([cell for one in done for cell in (*one.study.default, *one.tuned)], runs.place)
    told = [
        replace(one, method=names.method_name(spec), task=short[names.task_name(spec)])
        for one, spec in zip(tuned_methods(done, runs.place, frame), specs, strict=True)
    ]
    return sorted(told, key=lambda one: list(short.values()).index(one.task))


TABLES: dict[str, Callable[[Runs], list[list[str]]]] = {
    **{
        table.__name__: table
        for table in (
            machines,
            repetitions,
            collapse,
            gains,
            disagreements,
            collapse_over_rates,
            leads_over_rounds,
            portable_domains,
            nova_weights,
            nova_leads,
        )
    },
    **{f"{domains.__name__}_{scale}": partial(domains, scale=scale) for scale in PHOTOGRAPHS},
    **{f"{board}_{table.__name__}": partial(table, board=board) for board in TUNED for table in (tuning, leads)},
    **{
        f"{board}_{table.__name__}": partial(beyond, board=board, other=other, table=table)
        for board, other in WIDER.items()
        for table in (tuning, leads)
    },
    **{f"{board}_{standing.__name__}": partial(standing, board=board, over=over) for board, over in RANKED.items()},
    **{f"{board}_{number}": partial(shown, board=board, number=number, scale=scale) for board, number, scale in SHOWN},
}


def decorr(algorithm: str, form: str = "paper") -> str:
    """Return the name of an algorithm with FedDecorr."""
    return f"{algorithm} + FedDecorr ({form} form)"


def differences(first: Seeds, second: Seeds) -> list[float]:
    """Return the differences in accuracy of runs with the same seed, sorted by seed; NaN if one diverged."""
    return [first[seed].accuracy - second[seed].accuracy for seed in sorted({*first} & {*second})]


def interval(gap: Gap | None) -> str:
    """Return a mean difference in points with its 95% interval."""
    if isinstance(gap, Difference):
        mean, low, high = (round(value, 1) + 0.0 for value in (gap.mean, gap.low, gap.high))
        return f"{mean:.1f} ({low:.1f} to {high:.1f})"
    if gap is None:
        return "–"
    why = f"none: {gap.reason.split(';')[0]}"
    return why if math.isnan(gap.mean) else f"{gap.mean:.1f} (interval {why})"


def spread(values: Iterable[float]) -> str:
    """Return mean and standard deviation of the finite values, and the number of diverged runs (minus infinity)."""
    found = list(values)
    known = [value for value in found if math.isfinite(value)]
    diverged = found.count(-math.inf)
    lost = f"{diverged} of {len(found)} diverged"
    if not known:
        return lost if diverged else "–"
    said = f"{fmean(known):.1f} ± {stdev(known):.1f}" if len(known) > 1 else f"{known[0]:.1f}"
    return f"{said}, {lost}" if diverged else said


def listed(values: Iterable[float]) -> str:
    """Return values as a text, with a word for diverged ones."""
    return ", ".join(f"{round(value, 1) + 0.0:.1f}" if math.isfinite(value) else "diverged" for value in values) or "–"


def with_tables(text: str, runs: Runs) -> str:
    """Return the page with tables of the current records."""

    def table(found: re.Match[str]) -> str:
        head, *rows = TABLES[found[2]](runs)
        lines = [head, ["---"] * len(head), *rows]
        drawn = "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)
        return f"{found[1]}\n{drawn}\n\n{found[3]}"

    return BLOCK.sub(table, text)


def main() -> int:
    """Write the tables, or with --check return 1 if a page is out of date."""
    runs, stale = Runs(Results(ROOT / "results", sets_aside=False)), []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (made := with_tables(text, runs)) != text:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(made, encoding="utf-8")
    if stale and "--check" in sys.argv:
        print(f"docs/{stale[0]} shows other numbers than the records; run: nox -s findings", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
