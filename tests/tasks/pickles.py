"""Pickles as Python 2 and an old NumPy wrote them: the format of the CIFAR archives."""

import hashlib
import io
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np


class Python2Pickler(pickle._Pickler):
    """Writes texts and bytes as Python 2's `str`, and names of NumPy's modules of that time."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_text(self, text):
        content = text.encode("latin1") if isinstance(text, str) else text
        short = len(content) < 256
        self.write(pickle.SHORT_BINSTRING + bytes([len(content)]) if short else b"T" + struct.pack("<i", len(content)))
        self.write(content)
        self.memoize(text)

    dispatch[str] = dispatch[bytes] = save_text

    def save_global(self, obj, name=None):
        module = obj.__module__.replace("numpy._core", "numpy.core")
        self.write(f"c{module}\n{name or obj.__qualname__}\n".encode())
        self.memoize(obj)

    dispatch[type] = save_global
    dispatch[type(lambda: None)] = save_global


def pickled(value):
    file = io.BytesIO()
    Python2Pickler(file, 2).dump(value)
    return file.getvalue()


def cifar_archive(path: Path, members: dict[str, object]) -> str:
    """Write a .tar.gz of pickles (or of bytes as they are) and return its md5."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, value in members.items():
            content = value if isinstance(value, bytes) else pickled(value)
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return hashlib.md5(path.read_bytes()).hexdigest()


def rows(seed: int, n: int) -> np.ndarray:
    """Return n images as CIFAR stores them: 1024 red, then green, then blue values."""
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)
