"""What a cell costs: seconds by phase, FLOPs, bytes, the memory of a step."""

from __future__ import annotations

import math
import resource
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedspan.benchmark.records.model import Cost, Count

CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward


def backward_flops_of_convolution(
    grad_out: Tensor, x: Tensor, weight: Tensor, *arguments: Any, out_val: Any = None
) -> int:
    """Return the FLOPs of a convolution's gradients: each of input and weight costs what the forward pass does.

    `arguments` are those of ``aten.convolution_backward`` from `bias_sizes` on. torch's own formula takes a grouped
    weight gradient for an ungrouped one.
    """
    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, (of_input, of_weight, _) = arguments
    batch, _, *positions = (x if transposed else grad_out).shape
    return 2 * (int(of_input) + int(of_weight)) * batch * math.prod(positions) * weight.numel()


@cache
def _flop_formulas() -> Mapping[Any, Callable[..., int]]:
    """Return what computes the FLOPs of an operation from its arguments, by operation."""
    from torch.utils.flop_counter import flop_registry  # brings Triton, 80 MB that a grid's driver can do without

    return {**flop_registry, CONVOLUTION_BACKWARD: backward_flops_of_convolution}


class _Memory:
    """The bytes of the tensors that a block works on: those it finds when it first reads them, those it makes.

    What lives is known by storages, so views count once and a tensor that autograd keeps counts until it is freed.
    """

    def __init__(self) -> None:
        self.found = self.change = self.most = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def read(self, tensors: Iterable[Tensor]) -> None:
        """Count what was there before the block."""
        for size in self._new(tensors):
            self.found += size

    def made(self, tensors: Iterable[Tensor]) -> None:
        """Count what an operation has made."""
        for size in self._new(tensors):
            self.change += size
        self.most = max(self.most, self.change)

    @property
    def peak(self) -> int:
        """The most bytes that lived at once."""
        return self.found + self.most

    def _new(self, tensors: Iterable[Tensor]) -> Iterator[int]:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            place, size = storage._cdata, storage.nbytes()
            if place in self._alive:
                continue

            def freed(_: object, place: int = place, size: int = size) -> None:
                self._alive.pop(place, None)
                self.change -= size

            self._alive[place] = weakref.ref(storage, freed)
            yield size


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


class Watched(TorchDispatchMode):
    """Counts the FLOPs of every operation and follows its tensors.

    torch's `FlopCounterMode` imports a compiler, which takes seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops, self.memory = 0, _Memory()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.memory.read(_tensors((*args, *kwargs.values())))
        out = func(*args, **kwargs)
        self.memory.made(_tensors((out,)))
        kind = func._overloadpacket
        formula = _flop_formulas().get(kind)
        if formula is not None:
            self.flops += int(formula(*args, **kwargs, out_val=out))
        return out


@dataclass
class Meter:
    """Running totals of one cell; they continue over a resume.

    The first step of each kind is watched, the others are taken to do the same work. FLOPs are those of matrix
    products and convolutions, forward and backward; they follow from shapes alone. `memory` is the most bytes that the
    tensors of such a step took at once: weights, gradients, activations, what the method adds, and images of the same
    client that lie ready beside the batch, without a kernel's own scratch. It is the client's first step: momentum, as
    large as the trained weights, is there from its end on.
    """

    seconds: dict[str, Cost] = field(default_factory=dict)
    processor_seconds: Cost = 0.0  # of this process, all threads, in all phases
    worker_seconds: Cost = 0.0  # the same of its workers
    flops: dict[str, int] = field(default_factory=dict)
    bytes_up: Count = 0
    bytes_down: Count = 0
    calibration_up: Count = 0  # bytes besides those of rounds
    calibration_down: Count = 0
    steps: Count = 0
    images: Count = 0
    visits: Count = 0  # clients x rounds
    lost: Count = 0  # visits of which nothing arrived
    cut: Count = 0  # visits that took only part of their steps
    empty_rounds: Count = 0  # of which nothing arrived
    simulated_seconds: Cost | None = None  # None without a clock
    memory: dict[str, Count] = field(default_factory=dict)
    peak_memory: Count = 0  # of the allocator of a CUDA device
    flops_of_step: dict[str, int] = field(default_factory=dict)

    def take_over(self, other: Meter) -> None:
        """Have the totals of another meter, for all that count with this one."""
        vars(self).update(vars(other))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall-clock seconds of the block to the phase `name`, less those of phases inside it."""
        start, before = time.perf_counter(), sum(self.seconds.values())
        busy, busy_before = time.process_time(), self.processor_seconds
        try:
            yield
        finally:
            inside = sum(self.seconds.values()) - before
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start - inside
            self.processor_seconds = busy_before + time.process_time() - busy

    @contextmanager
    def step(self, purpose: str, kind: str, times: int = 1) -> Iterator[None]:
        """Add the FLOPs of the block to `purpose`; blocks of one `kind` do the same work, here `times` at once."""
        name = f"{purpose} {kind}"
        if name in self.flops_of_step:
            yield
        else:
            with Watched() as watched:
                yield
            self.flops_of_step[name] = watched.flops // times
            self.memory[purpose] = max(self.memory.get(purpose, 0), watched.memory.peak)
        self.flops[purpose] = self.flops.get(purpose, 0) + times * self.flops_of_step[name]

    @property
    def bytes(self) -> int:
        """The bytes that all clients have sent and received so far."""
        return self.bytes_up + self.bytes_down + self.calibration_up + self.calibration_down

    def as_dict(self) -> dict[str, Any]:
        """Return the record's `compute`."""
        visits = max(self.visits, 1)
        seconds = {name: round(value, 4) for name, value in self.seconds.items()}
        return {
            "seconds": {**seconds, "total": round(sum(self.seconds.values()), 4)},
            "processor_seconds": round(self.processor_seconds + self.worker_seconds, 4),
            "flops": dict(self.flops),
            "bytes": {
                "up": self.bytes_up + self.calibration_up,
                "down": self.bytes_down + self.calibration_down,
                "calibration_up": self.calibration_up,
                "calibration_down": self.calibration_down,
                "up_per_client_round": self.bytes_up / visits,
                "down_per_client_round": self.bytes_down / visits,
            },
            "steps": self.steps,
            "images": self.images,
            "memory_bytes": dict(self.memory),
            **({"peak_memory_bytes": self.peak_memory} if self.peak_memory else {}),
        }

    def of_fleet(self, seconds_at_round: list[float]) -> dict[str, Any]:
        """Return the record's `fleet`: visits by outcome, and the simulated clock, if any, at each evaluated round."""
        found: dict[str, Any] = {
            "visits": self.visits,
            "lost": self.lost,
            "cut": self.cut,
            "empty_rounds": self.empty_rounds,
        }
        if self.simulated_seconds is not None:
            found |= {"seconds": self.simulated_seconds, "seconds_at_round": seconds_at_round}
        return found


def reset_peak_memory(device: torch.device) -> None:
    """Start a new measurement of the peak, where the system allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_memory(device: torch.device) -> int:
    """Return the peak bytes of the device's allocator, or on CPU the largest resident size of this process.

    The latter is over all that the process has done: no cost of one cell.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
