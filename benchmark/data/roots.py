"""A user's copy of a dataset's files: listed, read and hashed by name, in a folder or an archive."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedspan.benchmark.data.checksums import remembered
from fedspan.benchmark.errors import UserError

LITTER = {"thumbs.db", "desktop.ini", "__macosx"}  # left by desktop systems; ignored like hidden files


def same_name(name: str) -> str:
    """Return `name` unchanged: the default renaming in digests."""
    return name


@dataclass(frozen=True)
class Root(ABC):
    """Files by name. A name is a relative path with ``/``, without the top folder."""

    path: Path
    folders: tuple[str, ...]
    layout: str
    files: tuple[str, ...]
    setting: str
    levels: int = 1  # folder levels between one of `folders` and its files

    @property
    def where(self) -> str:
        """The location, as messages name it."""
        return f"{self.setting}={self.path}"

    @abstractmethod
    def entries(self) -> list[str]:
        """Return the sorted names of all files and folders, the folders' with a final ``/``.

        Hidden files and files left by desktop systems are not listed. Raises `UserError` for anything that is
        neither file nor folder, and for an archive that is damaged or could write outside its folder.
        """

    @abstractmethod
    def read(self, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """Yield (name, content) of the files `names`, each once, in the fastest order."""

    @abstractmethod
    def quick_signature(self) -> tuple[int, ...]:
        """Return a cheap fingerprint that changes with nearly every change of the files."""

    @abstractmethod
    def signature(self) -> str:
        """Return a string that changes with every change of the files, without reading them."""

    def hash(self, rename: Callable[[str], str] = same_name) -> str:
        """Return a sha256 of all names and contents, independent of packing; reads all files."""
        sha = hashlib.sha256()
        for name, digest in sorted((rename(name), digest) for name, digest in self._file_digests()):
            sha.update(f"{name}\0{digest}\n".encode(errors="surrogateescape"))
        return sha.hexdigest()

    def _file_digests(self) -> Iterable[tuple[str, str]]:
        """Return (name, sha256 of the content) of every file."""
        for name, content in self.read([name for name in self.entries() if not name.endswith("/")]):
            yield name, hashlib.sha256(content).hexdigest()

    def digest(self, rename: Callable[[str], str] = same_name) -> str:
        """Return a sha256 of names (after `rename`) and contents, independent of location and packing.

        A process hashes a root at most once, and not at all if an earlier one stored the digest of files with the
        same sizes and times under `data_root`.
        """
        return digest_once(self, self.quick_signature(), rename)

    def digest_now(self, rename: Callable[[str], str] = same_name) -> str:
        """Return `digest`, checking every file's size and time again."""
        what = json.dumps(["content", self.folders, self.files, rename.__qualname__])
        return remembered(self.path, what, self.signature(), lambda: self.hash(rename))

    def _top(self, tops: Collection[str]) -> str:
        """Return the single top folder that holds `folders`, ``""`` for the root itself; else raise `UserError`."""
        if "" in tops:
            return ""
        if not tops:
            spelled_once = dict.fromkeys(folder.lower() for folder in self.folders)
            wanted = " or ".join(f"{folder}/" for folder in spelled_once)
            raise UserError(f"{self.where} has no folder {wanted}; it must name {self.layout}")
        if len(tops) > 1:
            raise UserError(f"{self.where} holds several datasets, {', '.join(sorted(tops))}; name one of them")
        return next(iter(tops))


@functools.lru_cache
def digest_once(root: Root, quick_signature: tuple[int, ...], rename: Callable[[str], str]) -> str:
    """Return `root.digest_now`, cached in the process as long as `quick_signature` stays the same."""
    return root.digest_now(rename)


def visible(name: str) -> bool:
    """Return whether a file or folder name is neither hidden nor left by a desktop system."""
    return not name.startswith(".") and name.lower() not in LITTER


class Folder(Root):
    """A folder on disk. Symbolic links in it are followed: they are the user's own."""

    def entries(self) -> list[str]:
        return sorted(name for name, _ in self._walk())

    def read(self, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
        top = self._top_path()
        for name in names:
            try:
                yield name, (top / name).read_bytes()
            except OSError as error:
                raise UserError(f"cannot read {top / name}: {error.strerror or error}") from error

    def quick_signature(self) -> tuple[int, ...]:
        top = self._top_path()
        deepest = [top / folder for folder in self.folders if (top / folder).is_dir()]
        seen = [top, *(top / file for file in self.files if (top / file).is_file()), *deepest]
        for _ in range(self.levels):
            deepest = [Path(entry.path) for folder in deepest for entry in _scan(folder) if entry.is_dir()]
            seen += deepest
        return tuple(path.stat().st_mtime_ns for path in seen)

    def signature(self) -> str:
        sha = hashlib.sha256()
        for name, entry in sorted(self._walk(), key=lambda pair: pair[0]):
            if not name.endswith("/"):
                stat = entry.stat()
                sha.update(
                    f"{name}\0{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}\0".encode(errors="surrogateescape")
                )
        return sha.hexdigest()

    def _top_path(self) -> Path:
        tops = ["", *(entry.name for entry in _scan(self.path) if visible(entry.name) and entry.is_dir())]
        return self.path / self._top([top for top in tops if any((self.path / top / f).is_dir() for f in self.folders)])

    def _walk(self) -> Iterator[tuple[str, os.DirEntry[str]]]:
        top = self._top_path()
        for entry in _scan(top):
            if entry.name in self.folders and entry.is_dir():
                yield f"{entry.name}/", entry
                yield from _walk(entry.path, f"{entry.name}/", frozenset([os.path.realpath(top)]))
            elif entry.name in self.files and entry.is_file():
                yield entry.name, entry


def _scan(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"cannot read the folder {folder}: {error.strerror or error}") from error


def _walk(folder: str, prefix: str, above: frozenset[str]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    real = os.path.realpath(folder)
    if real in above:
        raise UserError(f"the folder {folder} is a link to a folder that holds it; remove the link")
    for entry in _scan(folder):
        if not visible(entry.name):
            continue
        name = prefix + entry.name
        if entry.is_dir():
            yield f"{name}/", entry
            yield from _walk(entry.path, f"{name}/", above | {real})
        elif entry.is_file():
            yield name, entry
        else:
            raise UserError(f"{entry.path} is neither a file nor a folder (perhaps a broken link); remove it")
