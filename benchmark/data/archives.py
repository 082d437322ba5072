"""A dataset's files in a folder, a tar or a zip archive: listed and read, never unpacked."""

from __future__ import annotations

import bz2
import functools
import gzip
import hashlib
import io
import itertools
import lzma
import stat
import tarfile
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from fedspan.benchmark.data.checksums import file_state
from fedspan.benchmark.data.roots import Folder, Root, visible
from fedspan.benchmark.errors import UserError

__all__ = ["Archive", "Root", "Tar", "Zip", "open_root"]

OPENERS: dict[bytes, Callable[[io.BufferedReader], Any]] = {
    b"\xfd7zXZ\x00": lzma.open,
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
}
ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")  # with members, and empty
BUFFER_BYTES = 2**20
MEMBER_BYTES = 2**29  # largest unpacked member
UTF8 = 0x800  # flag of a zip member whose name says that it is in UTF-8
NAMES = 2  # version of how names in a zip are read; a higher one discards the digests of older versions
RATIO = 200  # largest ratio of unpacked bytes to bytes of the archive


def open_root(
    root: str | Path,
    folders: tuple[str, ...],
    layout: str,
    files: tuple[str, ...] = (),
    setting: str = "dataset.root",
    levels: int = 1,
) -> Root:
    """Return the root with the files below `folders` and the `files` beside them, optionally in one top folder.

    In messages, `layout` is the expected content and `setting` the setting that names `root`. There are `levels`
    folder levels between one of `folders` and its files. Raises `UserError` if there is no such folder or archive.
    """
    if not str(root):
        raise UserError(f"{setting} is not set; it must name {layout}")
    try:
        path = Path(root).expanduser().resolve()
        if path.is_dir():
            return Folder(path, folders, layout, files, setting, levels)
        if path.is_file():
            with path.open("rb") as file:
                kind = Zip if file.read(4) in ZIP_STARTS else Tar
            return kind(path, folders, layout, files, setting, levels)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"cannot read {setting}={root}: {error}; it must name {layout}") from error
    raise UserError(f"{setting}={path} does not exist; it must name {layout}")


class Archive(Root):
    """An archive that holds the files of a dataset."""

    def entries(self) -> list[str]:
        return self._contents.entries

    def read(self, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
        top = self._contents.top
        wanted = {f"{top}/{name}" if top else name: name for name in names}
        with self._damage_is_named():
            for member, content in self._extract(wanted):
                yield wanted.pop(member), content
        if wanted:
            raise UserError(f"{min(wanted)} vanished from the archive {self.where}; start again")

    def quick_signature(self) -> tuple[int, ...]:
        return tuple(map(int, self.signature().split()))

    def signature(self) -> str:
        try:
            return file_state(self.path)
        except OSError as error:
            raise UserError(f"cannot read {self.where}: {error.strerror or error}") from error

    @abstractmethod
    def _members(self) -> Iterator[tuple[str, str]]:
        """Yield (name, sha256 of the content) of every member after checking it.

        Names of folders end with ``/``. The sha256 is ``""`` where it is not available.
        """

    @abstractmethod
    def _extract(self, members: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """Yield (member, content) of `members`."""

    @property
    def _contents(self) -> _Contents:
        return contents_once(self, self.quick_signature())

    def _list(self) -> _Contents:
        """Return the contents of the archive after checking all members."""
        with self._damage_is_named():
            members = list(self._members())
        names = [name for name, _ in members if all(map(visible, PurePosixPath(name).parts))]
        tops = {name: self._top_of(name) for name in names}
        top = self._top({top for top in tops.values() if top is not None})
        beside = {f"{top}/{file}" if top else file for file in self.files}
        inside = [name.removeprefix(f"{top}/") for name in names if tops[name] == top or name in beside]
        files = sorted(name for name in inside if not name.endswith("/"))
        for name, after in itertools.pairwise(files):
            if name == after:
                raise UserError(f"the archive {self.where} holds {name} twice; pack it again")
        parents = {f"{parent}/" for name in inside for parent in PurePosixPath(name).parents if parent.parts}
        digests = dict(members)
        return _Contents(
            top, sorted({*inside, *parents}), {name: digests[f"{top}/{name}" if top else name] for name in files}
        )

    def _file_digests(self) -> Iterable[tuple[str, str]]:
        known = self._contents.digests
        return known.items() if all(known.values()) else super()._file_digests()

    def _top_of(self, name: str) -> str | None:
        """Return the top folder under which `name` is in one of `folders` (``""`` for none), or None."""
        parts = PurePosixPath(name).parts
        is_folder = name.endswith("/")
        if parts and parts[0] in self.folders and (len(parts) > 1 or is_folder):
            return ""
        if len(parts) > 1 and parts[1] in self.folders and (len(parts) > 2 or is_folder):
            return parts[0]
        return None

    def _plus(self, unpacked: int, name: str, size: int) -> int:
        """Return `unpacked` plus another member's `size`, in bytes; raise `UserError` if implausibly large."""
        packed = self.path.stat().st_size
        if size > MEMBER_BYTES:
            what = f"its member {name!r} unpacks to {size} bytes, more than {MEMBER_BYTES}"
        elif unpacked + size > max(RATIO * packed, MEMBER_BYTES):
            what = f"its {packed} bytes unpack to more than {RATIO} times as many"
        else:
            return unpacked + size
        raise UserError(f"the archive {self.where} is refused: {what}")

    def _check(self, name: str, is_link: bool, is_plain: bool) -> None:
        """Raise `UserError` for a member that no dataset needs and that could do harm when unpacked."""
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            what = "a path that leaves its folder"
        elif is_link:
            what = "a link"
        elif not is_plain:
            what = "neither a file nor a folder"
        else:
            return
        raise UserError(f"the archive {self.where} is refused: its member {name!r} is {what}; pack plain files only")

    @contextmanager
    def _damage_is_named(self) -> Iterator[None]:
        try:
            yield
        except (
            tarfile.TarError, zipfile.BadZipFile, EOFError, lzma.LZMAError, zlib.error, OSError, ValueError,
            NotImplementedError,
        ) as error:  # fmt: skip
            raise UserError(
                f"cannot read the archive {self.where}: {error}; it is damaged, cut short, or not a tar or zip "
                f"archive: fetch it again ({self.layout} is expected)"
            ) from error


class _Contents(NamedTuple):
    top: str  # the folder that holds the entries
    entries: list[str]
    digests: dict[str, str]  # of every file


@functools.lru_cache(maxsize=4)
def contents_once(archive: Archive, quick_signature: tuple[int, ...]) -> _Contents:
    """Return an archive's contents, listed once per process: listing a compressed one reads all of it."""
    return archive._list()


class Tar(Archive):
    """A tar archive, plain or compressed with xz, gzip or bzip2, read sequentially."""

    def _members(self) -> Iterator[tuple[str, str]]:
        with self._tar() as (tar, stream):
            for member in self._checked(tar):
                file = tar.extractfile(member)  # the stream is read through in any case, so hash it now
                yield _name(member), hashlib.file_digest(file, "sha256").hexdigest() if file else ""  # type: ignore[arg-type]
            # tarfile takes a truncated or garbled header for the end; the true end is marked by a block of zeros.
            if len(stream.last) != tarfile.BLOCKSIZE or stream.last.strip(b"\0"):
                raise tarfile.ReadError("it ends without an end mark")
            while stream.read(BUFFER_BYTES):  # the checksums of the compression are at the end
                pass

    def _checked(self, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        """Yield the members of an open tar, each checked before its content is read."""
        unpacked = 0
        for member in tar:
            is_plain = (member.isreg() and not member.issparse()) or member.isdir()
            self._check(member.name, member.issym() or member.islnk(), is_plain)
            unpacked = self._plus(unpacked, member.name, member.size)
            yield member

    def _extract(self, members: Collection[str]) -> Iterator[tuple[str, bytes]]:
        left = set(members)
        with self._tar() as (tar, _):
            for member in tar:
                name = _name(member)
                if name in left and (file := tar.extractfile(member)) is not None:
                    left.remove(name)
                    yield name, file.read()

    @contextmanager
    def _tar(self) -> Iterator[tuple[tarfile.TarFile, _Stream]]:
        with self.path.open("rb") as file:
            start = file.peek(8)
            opener = next((opener for magic, opener in OPENERS.items() if start.startswith(magic)), None)
            plain = opener(file) if opener else file
            with _Stream(plain, BUFFER_BYTES) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
                yield tar, stream


class _Stream(io.BufferedReader):
    """A stream that keeps the result of its latest read in `last`."""

    last = b""

    def read(self, size: int | None = -1, /) -> bytes:
        self.last = super().read(size)
        return self.last


def _name(member: tarfile.TarInfo) -> str:
    name = str(PurePosixPath(member.name))
    return f"{name}/" if member.isdir() else name


class Zip(Archive):
    """A zip archive. The list of members is at its end; reading a member verifies its checksum."""

    def signature(self) -> str:
        return f"{super().signature()} {NAMES}"

    def _members(self) -> Iterator[tuple[str, str]]:
        unpacked = 0
        with zipfile.ZipFile(self.path) as archive:
            for member in archive.infolist():
                mode = stat.S_IFMT(member.external_attr >> 16)  # 0 if the archive was made on another system
                written = _written(member)
                self._check(written, mode == stat.S_IFLNK, mode in (0, stat.S_IFREG, stat.S_IFDIR))
                if member.flag_bits & 1:
                    raise zipfile.BadZipFile(f"{written} is encrypted")
                unpacked = self._plus(unpacked, written, member.file_size)
                yield _zip_name(member), ""

    def _extract(self, members: Collection[str]) -> Iterator[tuple[str, bytes]]:
        left = set(members)
        with zipfile.ZipFile(self.path) as archive:
            for member in sorted(archive.infolist(), key=lambda member: member.header_offset):
                if (name := _zip_name(member)) in left:
                    left.remove(name)
                    yield name, archive.read(member)


def _zip_name(member: zipfile.ZipInfo) -> str:
    name = str(PurePosixPath(_written(member)))
    return f"{name}/" if member.is_dir() else name


def _written(member: zipfile.ZipInfo) -> str:
    """Return a member's name; `zip` writes UTF-8 without saying so, which Python takes for cp437."""
    if not member.flag_bits & UTF8:
        with suppress(UnicodeError):
            return member.filename.encode("cp437").decode()
    return member.filename
