"""Work in processes of their own, so that neither side of a comparison inherits the other's memory or settings."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing import get_context

import torch

from fedspan.benchmark.numerics import PORTABLE, prepared, switch
from tests import memory

Work = Callable[[], object]


class Aside:
    """A process that prepares one piece of work and then does it whenever it is called; `peak` is in bytes."""

    def __init__(self, prepare: Callable[..., Work], *arguments: object, numerics: str = PORTABLE) -> None:
        context = get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, prepare, arguments))  # may start loaders
        mine = prepared()
        switch(numerics)  # for the new process, which reads the environment
        self._process.start()
        switch(mine)
        there.close()  # so that a process that fails ends `recv` with EOFError
        self._here.recv()

    def __call__(self) -> float:
        """Do the work once; return its seconds."""
        self._here.send("go")
        seconds, self.peak = self._here.recv()
        return seconds

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(pipe, prepare: Callable[..., Work], arguments: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    work = prepare(*arguments)
    pipe.send("ready")
    while pipe.recv() == "go":
        start = time.perf_counter()
        work()
        pipe.send((time.perf_counter() - start, memory.peak()))
