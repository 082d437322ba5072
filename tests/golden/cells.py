"""Golden cells: tiny runs of every model, algorithm, add-on, partition and augmentation, and the digests they end with.

`cells.json` keeps the digests and the families of processors on which they were found. After a change that is meant to
change bits, or on a new family where all of them agree, `python -m tests.golden.cells` renews the file.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedspan.benchmark import numerics
from fedspan.benchmark.records.provenance import instructions, versions
from fedspan.benchmark.registry import plugins
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.compose import make_cell, resolve
from fedspan.benchmark.task import Data, Dataset, Images
from fedspan.benchmark.training.process import set_up_process
from fedspan.benchmark.tree import digest
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.tasks.models.small_cnn import SmallCNN
from tests.helpers import how, toy_cell
from tests.toys import toy

FILE = Path(__file__).with_suffix(".json")
ROUNDING = ("torch", "numpy", "scikit-learn")  # packages whose versions may change a bit
BY_MKL = ("sqrt", "acos", "asin", "atan", "_cdist_forward")  # found by comparing processors
AUGMENTATIONS = ("crop_flip", "crop_flip_autoaugment", "flip_rotate")
KINDS = ("model", "algorithm", "addon", "partition")
SMALL = {
    "dataset": "digits", "dataset.limit": 200, "clients": 3, "scale": "smoke",
    "protocol.rounds": 2, "protocol.local_epochs": 1, "protocol.batch_size": 16,
}  # fmt: skip


@toy("dataset", "noise32")
class Noise(Dataset):
    """Photographs' size, but noise: 24 training and 10 test images of 32x32 pixels in three channels."""

    def load(self, cache: Path) -> Data:
        draws = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (34, 32, 32, 3), dtype=torch.uint8, generator=draws)
        y = torch.arange(34) % 10
        classes = tuple("0123456789")
        return Data(Images(x[:24], y[:24]), Images(x[24:], y[24:]), classes, (0.5,) * 3, (0.25,) * 3, digest="32" * 32)


@toy("dataset", "noise32_by_client")
class NoiseByClient(Noise):
    """The same images, of four people."""

    def load(self, cache: Path) -> Data:
        data = super().load(cache)
        train, test = (replace(images, client=torch.arange(len(images)) % 4) for images in (data.train, data.test))
        return replace(data, train=train, test=test, clients=("ann", "bob", "cy", "di"))


def names() -> list[str]:
    """Return ``kind:name`` of every golden cell: each plugin of this repository has one."""
    ours = {cls.__module__.partition(".")[0] for cls in (FedAvg, SmallCNN)}
    found = [
        f"{kind}:{name}"
        for kind in KINDS
        for name, cls in plugins(kind).items()
        if cls.__module__.partition(".")[0] in ours
    ]
    return [*found, *(f"augment:{name}" for name in AUGMENTATIONS)]


def cell_of(name: str) -> Cell:
    """Return the golden cell of that name."""
    kind, _, plugin = name.partition(":")
    if kind in ("model", "augment"):
        protocol = {"rounds": 2, "local_epochs": 1, "batch_size": 8}
        if kind == "augment":
            protocol["augment"] = plugin
        model = plugins("model")[plugin]() if kind == "model" else SmallCNN()
        return toy_cell(dataset=Noise(), model=model, clients=2, protocol=protocol)
    if plugin == "natural":
        parts = {"dataset": NoiseByClient(), "partition": plugins(kind)[plugin](), "model": SmallCNN(), "clients": 3}
        return toy_cell(**parts, protocol={"rounds": 2, "local_epochs": 1, "batch_size": 8})
    chosen = {"addons": [plugin]} if kind == "addon" else {kind: plugin}
    if plugin == "pathological":
        chosen["partition.classes_per_client"] = 5
    if plugin == "domain":
        chosen |= {"dataset": "digits_domains", "clients": 4}
    if plugin == "fedbn":
        chosen["model"] = "resnet20"  # with BatchNorm: without it the cell is FedAvg's
    return make_cell(resolve(SMALL | chosen))


class Portable(TorchDispatchMode):
    """Refuses the functions that torch leaves to MKL's vector library, which rounds by the processor's maker."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").partition(".")[0].removeprefix("_foreach_").rstrip("_")
        by_mkl = name in BY_MKL or (name == "pow" and [p for p in args[1:] if isinstance(p, float)] == [0.5])
        assert not by_mkl, f"{name} has other bits on other processors; for square roots take benchmark.tree.root"
        return func(*args, **(kwargs or {}))


def digests_of(name: str, workers: int = 1) -> dict[str, Any]:
    """Run a golden cell, on so many workers at most, and return its digests, by round and by stage."""
    with tempfile.TemporaryDirectory() as folder, Portable():
        where = how(Path(folder), numerics=numerics.PORTABLE)
        record = run_cell(cell_of(name), where, share=lambda run: min(workers, len(run.participants())))
    assert record["status"] == "done", f"{name}: {record['reason']}"
    return record["digests"]


def operations() -> dict[str, str]:
    """Return digests of what single operations make of fixed numbers: they say what differs first where cells do."""
    set_up_process(how())
    draws = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws)

    a, b, z = normal(64, 600), normal(600, 128), normal(5000)
    square = a.double() @ a.double().T
    found = {
        "normal draws": z,
        "product": a @ b,
        "transposed product": a.T @ a,
        "float64 product": square,
        "float64 eigenvectors": torch.linalg.eigh(square).eigenvectors,
        "orthogonal basis": torch.linalg.qr(normal(128, 64)).Q,
        "sum": z.sum(),
        "mean of rows": normal(1000, 64).mean(0),
        "log_softmax": F.log_softmax(z.view(50, 100), 1),
        "batch statistics": torch.cat(torch.batch_norm_update_stats(normal(64, 64, 8, 8), None, None, 0.0)),
        **{name: getattr(torch, name)(z.abs()) for name in ("exp", "log", "tanh", "sigmoid", "rsqrt")},
        **{f"float64 {name}": getattr(torch, name)(z.abs().double()) for name in ("exp", "log")},
    }
    for name, (images, inputs, outputs, side, kernel, stride, groups) in CONVOLUTIONS.items():
        x = normal(images, inputs, side, side).to(memory_format=torch.channels_last).requires_grad_()
        weight = normal(outputs, inputs // groups, kernel, kernel).to(memory_format=torch.channels_last)
        y = F.conv2d(x, weight.requires_grad_(), padding=kernel // 2, stride=stride, groups=groups)
        y.square().sum().backward()
        found |= {name: y, f"{name}, input gradient": x.grad, f"{name}, weight gradient": weight.grad}
    return {name: digest({"": value}) for name, value in found.items()}


CONVOLUTIONS = {  # images, inputs, outputs, side, kernel, stride, groups
    "convolution": (16, 32, 64, 16, 3, 1, 1),
    "1x1 convolution": (16, 48, 24, 8, 1, 1, 1),
    "wide convolution": (8, 256, 256, 4, 3, 1, 1),
    "strided convolution": (8, 32, 64, 16, 3, 2, 1),
    "depthwise convolution": (8, 32, 32, 16, 3, 1, 32),
    "strided depthwise convolution": (8, 32, 32, 16, 3, 2, 32),
    "convolution of an image": (8, 3, 32, 32, 3, 1, 1),
}


def family() -> str:
    """Return this processor's maker and the widest instructions that torch would take on it."""
    with open("/proc/cpuinfo") as lines:
        vendor = next(line.split(":")[1].strip() for line in lines if line.startswith("vendor_id"))
    return f"{vendor} {instructions()}"


def here() -> dict[str, str]:
    """Return the versions that may change a bit."""
    return {package: versions()[package] for package in ROUNDING}


def load() -> dict[str, Any]:
    """Return the golden file."""
    return json.loads(FILE.read_text())


def difference(expected: dict[str, Any], found: dict[str, Any]) -> str | None:
    """Say from where on a cell's digests differ, or None."""
    for round, known in expected["rounds"].items():
        if found["rounds"].get(round) != known:
            return f"from round {round} on"
    stages = [stage for stage, known in expected["stages"].items() if found["stages"].get(stage) != known]
    return f"in the stage {' and '.join(stages)}" if stages else None if expected == found else "in what is evaluated"


def verdict(what: str, golden: dict[str, Any], processors: str, packages: dict[str, str]) -> tuple[bool, str]:
    """Tell whether a difference is a failure, and say all that helps to find its cause.

    It is one where a processor of the same family has passed with the same packages: then the code has changed.
    """
    if packages != golden["versions"]:
        old, new = (" ".join(f"{name} {v}" for name, v in sorted(of.items())) for of in (golden["versions"], packages))
        return False, f"{what}; the golden digests are of {old}, here is {new}"
    passed = ", ".join(golden["families"])
    if processors in golden["families"]:
        return True, f"{what}, on {processors}, which has passed; if bits were to change: python -m tests.golden.cells"
    return False, (
        f"{what}, on {processors}, the first of its family ({passed} have passed): a finding, please report it; "
        "python -m tests.golden.cells adds a family where nothing differs"
    )


def renewed(known: dict[str, Any]) -> dict[str, Any]:
    """Return the golden file of this code on this machine; families stay in it where no known digest differs."""
    cells = {name: digests_of(name) for name in names()}
    new: dict[str, Any] = {"versions": here(), "operations": operations(), "cells": cells}
    same = all(known[part].items() <= new[part].items() for part in ("operations", "cells"))
    new["families"] = sorted({family(), *(known["families"] if same else ())})
    return new


def main() -> None:
    """Renew the golden file and say what changed."""
    known = load() if FILE.exists() else {"operations": {}, "cells": {}, "families": []}
    new = renewed(known)
    FILE.write_text(json.dumps(new, indent=1) + "\n")
    changed = [name for name in new["cells"] if known["cells"].get(name) != new["cells"][name]]
    print(f"{len(new['cells'])} cells, {len(changed)} changed: {', '.join(changed) or 'none'}")
    print(f"families: {', '.join(new['families'])}")


if __name__ == "__main__":
    main()
