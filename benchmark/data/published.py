"""Datasets published as files: names, addresses, checksums and local paths of the files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedspan.benchmark.data import checksums
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.registry import how
from fedspan.benchmark.task import Dataset

PARTIAL = ".part"  # suffix of a partly downloaded file


@dataclass(frozen=True)
class PublishedFile:
    """A published file. `checksum` is ``md5:...`` or ``sha256:...``; `urls` are tried in order."""

    name: str
    checksum: str
    urls: tuple[str, ...]

    def is_at(self, path: Path) -> bool:
        """Return whether `path` is this file, complete and unmodified; the result is cached between starts."""
        algorithm, _, expected = self.checksum.partition(":")
        return checksums.checksum(path, algorithm) == expected

    def check(self, path: Path, read: Callable[[Path, str], str] = checksums.checksum) -> None:
        """Raise `UserError` unless `path` is this file; `read` returns the hex digest of a file."""
        algorithm, _, expected = self.checksum.partition(":")
        if (found := read(path, algorithm)) != expected:
            raise UserError(
                f"{path} is not the published file: its {algorithm} is {found} instead of {expected}; "
                "it is damaged, half-downloaded or another one, so delete it and fetch it again"
            )


@dataclass(frozen=True)
class Published(Dataset):
    """Base of datasets with published files.

    `root` is the folder that holds the files (or the file itself, if there is only one); by default the folder of
    the dataset's name in the data root. It never enters a record's key: the files are identified by their checksums.
    """

    root: str = how("")

    def files(self) -> tuple[PublishedFile, ...]:
        """Return the files that this dataset needs; empty if there is no address to fetch them from."""
        raise NotImplementedError

    def folder(self, cache: Path) -> Path:
        """Return the folder of the files, whether or not they are present; `cache` is the data root."""
        root = Path(self.root).expanduser() if self.root else cache / self.name
        return root.parent if root.is_file() else root

    def places(self, cache: Path) -> list[tuple[PublishedFile, Path]]:
        """Return each file with its path, whether or not it is present."""
        files, root = self.files(), Path(self.root).expanduser()
        if len(files) == 1 and self.root and root.is_file():
            return [(files[0], root)]
        return [(file, self.folder(cache) / file.name) for file in files]

    def present(self, cache: Path) -> list[Path]:
        """Return the files of the dataset that are present, complete or not."""
        return [path for _, path in self.places(cache) if path.is_file()]

    def whole(self, cache: Path) -> list[Path]:
        """Return the paths of all files, checked; raise a one-line `UserError` if one is missing or wrong."""
        places = self.places(cache)
        if missing := [file for file, path in places if not path.is_file()]:
            raise UserError(self.absent(missing, cache))
        for file, path in places:
            file.check(path)
        return [path for _, path in places]

    def absent(self, missing: Sequence[PublishedFile], cache: Path) -> str:
        """Return a one-line message that says which files to put where."""
        folder = self.folder(cache)
        started = [file.name for file in missing if (folder / (file.name + PARTIAL)).is_file()]
        state = f" ({', '.join(started)} is half-downloaded)" if started else ""
        source = f" from {missing[0].urls[0]}" if len(missing) == 1 and missing[0].urls else ""
        names = ", ".join(file.name for file in missing)
        return (
            f"dataset '{self.name}' is not here{state}: run 'fedspan data fetch {self.name}', or put "
            f"{names}{source} into {folder}, or name another folder with dataset.root"
        )
