"""Messages between the processes of a cell: a pickle, and the bytes of its tensors apart, for shared memory."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes, as torch allocates: kernels may sum unaligned data in another order


class TensorLayout(NamedTuple):
    """Byte offset and layout of a tensor in the memory of a message, and whether it comes from a GPU."""

    offset: int
    on_gpu: bool
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Memory:
    """The memory of a message, uint8 [bytes], at the start of its storage."""

    def __init__(self, memory: Tensor) -> None:
        self._bytes = memory[: len(memory) // ALIGNMENT * ALIGNMENT]
        self._typed: dict[torch.dtype, Tensor] = {}

    def view(self, layout: TensorLayout) -> Tensor:
        """Return a view of the tensor at `layout`."""
        dtype = layout.dtype
        if dtype not in self._typed:
            self._typed[dtype] = self._bytes.view(dtype)
        return self._typed[dtype].as_strided(layout.shape, layout.stride, layout.offset // dtype.itemsize)


@dataclass(frozen=True)
class Packed:
    """A message: its pickle, `head`, and the tensors that it refers to, which take `size` bytes."""

    head: bytes
    size: int
    tensors: tuple[tuple[TensorLayout, Tensor], ...]

    def write(self, memory: Tensor) -> None:
        """Copy the tensors into `memory`, uint8 [at least size]."""
        place = Memory(memory)
        for layout, tensor in self.tensors:
            place.view(layout).copy_(tensor)

    def memory(self) -> Tensor:
        """Return a copy of the tensors in new memory, uint8 [size]."""
        memory = torch.empty(self.size, dtype=torch.uint8)
        self.write(memory)
        return memory


class _Packer(pickle.Pickler):
    """Pickler that collects tensors separately, and writes only the names of `residents`, which every process has."""

    def __init__(self, file: io.BytesIO, residents: Mapping[str, Any]) -> None:
        super().__init__(file, protocol=5)
        self.names = {id(value): name for name, value in residents.items()}
        self.layouts: dict[int, tuple[Tensor, TensorLayout]] = {}  # by id; kept tensors keep their ids unique
        self.tensors: list[tuple[TensorLayout, Tensor]] = []
        self.size = 0

    def persistent_id(self, value: Any) -> str | TensorLayout | None:
        if id(value) in self.names:
            return self.names[id(value)]
        if not isinstance(value, Tensor):
            return None
        if id(value) not in self.layouts:
            self.layouts[id(value)] = value, self._layout(value.detach())
        return self.layouts[id(value)][1]

    def _layout(self, leaf: Tensor) -> TensorLayout:
        dense = torch.empty_like(leaf, device="meta").stride()  # strides of a dense copy
        nbytes = leaf.numel() * leaf.element_size()
        layout = TensorLayout(self.size, leaf.is_cuda, leaf.dtype, tuple(leaf.shape), tuple(dense))
        self.tensors.append((layout, leaf))
        self.size += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return layout


class _Unpacker(pickle.Unpickler):
    def __init__(
        self, head: bytes, memory: Tensor, residents: Mapping[str, Any], copy: bool, gpu: torch.device | str
    ) -> None:
        super().__init__(io.BytesIO(head))
        self.memory, self.residents, self.copy, self.gpu = Memory(memory), residents, copy, gpu

    def persistent_load(self, name: str | TensorLayout) -> Any:
        if isinstance(name, str):
            return self.residents[name]
        view = self.memory.view(name)
        if name.on_gpu:
            return view.to(self.gpu)
        return view.clone() if self.copy else view


def pack(message: Any, residents: Mapping[str, Any] | None = None) -> Packed:
    """Return a message ready to send; residents become names, for which the receiver substitutes its own objects."""
    file = io.BytesIO()
    packer = _Packer(file, residents or {})
    packer.dump(message)
    return Packed(file.getvalue(), packer.size, tuple(packer.tensors))


def unpack(
    head: bytes,
    memory: Tensor,
    residents: Mapping[str, Any] | None = None,
    copy: bool = False,
    gpu: torch.device | str = "cuda",
) -> Any:
    """Return a message whose tensors are views of `memory`, or copies if `copy` is set.

    Tensors that come from a GPU are moved to this process's `gpu`.
    """
    return _Unpacker(head, memory, residents or {}, copy, gpu).load()
