"""Measured costs of a cell: seconds by phase, FLOPs, bytes, memory of a step."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedspan.benchmark.records.model import Cost, Count

CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward


def backward_flops_of_convolution(
    grad_out: Tensor, x: Tensor, weight: Tensor, *arguments: Any, out_val: Any = None
) -> int:
    """Return the FLOPs of a convolution's gradients: input and weight each cost as much as the forward pass.

    `arguments` are those of ``aten.convolution_backward`` from `bias_sizes` on. torch's own formula counts a grouped
    weight gradient as an ungrouped one.
    """
    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, (of_input, of_weight, _) = arguments
    batch, _, *positions = (x if transposed else grad_out).shape
    return 2 * (int(of_input) + int(of_weight)) * batch * math.prod(positions) * weight.numel()


@cache
def _flop_formulas() -> Mapping[Any, Callable[..., int]]:
    """Return FLOP formulas by operation; each takes the operation's arguments."""
    from torch.utils.flop_counter import flop_registry  # imports Triton: 80 MB that a grid's driver does not need

    return {**flop_registry, CONVOLUTION_BACKWARD: backward_flops_of_convolution}


class _Memory:
    """Bytes of the tensors that a block uses: existing ones, counted at their first read, and new ones.

    Storages are tracked, so views count once and a tensor kept by autograd counts until it is freed.
    """

    def __init__(self) -> None:
        self.found = self.change = self.most = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def read(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that existed before the block."""
        for size in self._new(tensors):
            self.found += size

    def made(self, tensors: Iterable[Tensor]) -> None:
        """Count the output of an operation."""
        for size in self._new(tensors):
            self.change += size
        self.most = max(self.most, self.change)

    @property
    def peak(self) -> int:
        """The most bytes alive at once."""
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


class OperationCounter(TorchDispatchMode):
    """Dispatch mode that counts the FLOPs of every operation and tracks its tensors.

    torch's `FlopCounterMode` is not used because it imports a compiler, which takes seconds.
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
    """Running totals of one cell; they continue after a resume.

    The first step of each kind is watched; the others are assumed to do the same work. FLOPs are those of matrix
    products and convolutions, forward and backward, and follow from shapes alone. `memory` is the most bytes that the
    tensors of such a step took at once: weights, gradients, activations, the method's own tensors, and prefetched
    images of the same client beside the batch, without a kernel's scratch memory. The watched step is the client's
    first: momentum, as large as the trained weights, is allocated only at its end.
    """

    seconds: dict[str, Cost] = field(default_factory=dict)
    processor_seconds: Cost = 0.0  # of this process: all threads, all phases
    worker_seconds: Cost = 0.0  # processor seconds of its workers
    flops: dict[str, int] = field(default_factory=dict)
    bytes_up: Count = 0
    bytes_down: Count = 0
    calibration_up: Count = 0  # bytes of calibrations, not included in those of rounds
    calibration_down: Count = 0
    steps: Count = 0
    images: Count = 0
    visits: Count = 0  # clients x rounds
    lost: Count = 0  # visits whose result never arrived
    cut: Count = 0  # visits that took only some of their steps
    empty_rounds: Count = 0  # rounds from which nothing arrived
    simulated_seconds: Cost | None = None  # None without a clock
    memory: dict[str, Count] = field(default_factory=dict)
    peak_memory: Count = 0  # of a CUDA device's allocator
    flops_of_step: dict[str, int] = field(default_factory=dict)

    def take_over(self, other: Meter) -> None:
        """Take over another meter's totals, in place, so that all users of this meter see them."""
        vars(self).update(vars(other))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall-clock seconds of the block to the phase `name`, excluding nested phases."""
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
        """Add the FLOPs of the block to `purpose`; blocks of one `kind` do the same work, this one `times` over."""
        name = f"{purpose} {kind}"
        if name in self.flops_of_step:
            yield
        else:
            with OperationCounter() as watched:
                yield
            self.flops_of_step[name] = watched.flops // times
            self.memory[purpose] = max(self.memory.get(purpose, 0), watched.memory.peak)
        self.flops[purpose] = self.flops.get(purpose, 0) + times * self.flops_of_step[name]

    @property
    def bytes(self) -> int:
        """The bytes sent and received by all clients so far."""
        return self.bytes_up + self.bytes_down + self.calibration_up + self.calibration_down

    def as_dict(self) -> dict[str, Any]:
        """Return the field `compute` of the record."""
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
        """Return the field `fleet` of the record: visits by outcome and any simulated time at each evaluated round."""
        found: dict[str, Any] = {
            "visits": self.visits,
            "lost": self.lost,
            "cut": self.cut,
            "empty_rounds": self.empty_rounds,
        }
        if self.simulated_seconds is not None:
            found |= {"seconds": self.simulated_seconds, "seconds_at_round": seconds_at_round}
        return found
