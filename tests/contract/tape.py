"""A recorder for CPU that keeps CUDA graphs' promises: what was recorded is done again, on the same memory."""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Notes every operation with its tensors; numbers that Python computed are fixed, as in a CUDA graph."""

    def __init__(self):
        super().__init__()
        self.operations = []
        self.written = []  # (tensor, its values before an operation in place)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a value is read while a step is recorded")
        if func._schema.is_mutable:
            self.written += [(leaf, leaf.clone()) for leaf in tree_leaves((args, kwargs)) if torch.is_tensor(leaf)]
        out = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, out))
        return out

    @torch.no_grad()
    def replay(self):
        for func, args, kwargs, before in self.operations:
            after = func(*args, **kwargs)
            for old, new in zip(tree_leaves(before), tree_leaves(after), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    @torch.no_grad()
    def undo(self):
        for tensor, before in reversed(self.written):
            tensor.copy_(before)


class Tapes:
    """Stands for `executors.graph.Cuda` on CPU. Recording does the work; the first replay does not."""

    def __init__(self, device):
        self.recorded, self.working = 0, False

    def queue(self):
        return None

    def on(self, queue):
        self.working = True
        return contextlib.nullcontext()

    def begin(self, queue):
        pass

    def wait(self):
        self.working = False

    def memory(self):
        assert not self.working, "memory is counted while work goes on"
        return 0, 2**30

    def release(self):
        assert not self.working, "memory is given back that work still reads"

    def record(self, work, queue):
        self.recorded += 1
        tape, done = Tape(), []
        try:
            with tape:
                work()
        except RuntimeError:
            tape.undo()  # CUDA does nothing while it records
            raise

        def replay():
            if done:
                tape.replay()
            done.append(True)

        return replay
