"""Checkpoints: tensors and JSON in one safetensors file with a digest; nothing in them is ever executed."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from fedspan.benchmark.errors import CorruptFile, UserError
from fedspan.benchmark.records.atomic import check_regular, replacing
from fedspan.benchmark.tree import Tree, digest

MAPPED_BYTES = 2**29  # of a checkpoint that are read before the file is mapped again


def save(path: Path, key: str, tensors: Tree, meta: dict[str, Any]) -> None:
    """Write a checkpoint of the cell `key` atomically, without needless copies: tensors may fill half the memory."""
    plain: Tree = {}
    taken: set[int] = set()
    for name, leaf in tensors.items():
        leaf = leaf.detach().cpu().contiguous()
        memory = leaf.untyped_storage().data_ptr()
        plain[name] = leaf.clone() if memory in taken else leaf  # the format refuses tensors that share memory
        taken.add(memory)
    # The format sorts names, but the rounding of a sum over a tree depends on the tree's order: store it too.
    text = json.dumps({"order": list(plain), **meta})
    header = {"key": key, "meta": text, "digest": _digest(plain, text)}
    with replacing(path) as new, tempfile.TemporaryDirectory(".tmp", f"{new.stem}.", new.parent) as folder:
        # The library first writes to a file of its own, which a kill leaves behind: the folder's name tells whose.
        whole = Path(folder, path.name)
        try:
            safetensors.torch.save_file(plain, whole, header)
        except safetensors.SafetensorError as error:
            raise OSError(str(error)) from error
        whole.chmod(stat.S_IMODE(new.stat().st_mode))  # the library makes files private to their owner
        os.replace(whole, new)


def _digest(tensors: Tree, meta: str) -> str:
    return hashlib.sha256(f"{digest(tensors)}{meta}".encode()).hexdigest()


def _read(path: Path) -> tuple[dict[str, str], Tree]:
    """Return header and tensors; the file is remapped every `MAPPED_BYTES`, so that the mapping fills no memory too."""
    header: dict[str, str] | None = None
    names: list[str] = []
    tensors: Tree = {}
    while header is None or names:
        with safetensors.safe_open(path, "pt") as file:
            if header is None:
                header, names = file.metadata() or {}, list(file.keys())
            held = 0
            while names and held < MAPPED_BYTES:
                name = names.pop()
                # Copy into memory that torch aligns: kernels round differently at the file's odd addresses.
                tensors[name] = file.get_tensor(name).clone()
                held += tensors[name].nbytes
    return header, tensors


def load(path: Path, key: str) -> tuple[Tree, dict[str, Any]] | None:
    """Return (tensors, meta) or None if there is no checkpoint.

    Raises `CorruptFile` if it is damaged or of another cell, and `UserError` if it cannot be read, such as without
    permission.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            file.read(1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; make it readable, or move it away") from error
    try:
        header, tensors = _read(path)
        if header["key"] != key or header["digest"] != _digest(tensors, header["meta"]):
            raise CorruptFile("its digest or key does not match")
        meta = json.loads(header["meta"])
        tensors = {name: tensors[name] for name in meta.pop("order")}
    except KeyError as error:
        raise CorruptFile(f"it lacks {error}") from error
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFile(str(error)) from error
    return tensors, meta
