"""``fedspan data``: fetch, verify and locate the published files of datasets."""

from __future__ import annotations

import errno
import hashlib
import http.client
import io
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from fedspan.benchmark.data.array_cache import reading_afresh
from fedspan.benchmark.data.checksums import checksum_now
from fedspan.benchmark.data.published import PARTIAL, Published, PublishedFile
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.fields import defaults_of
from fedspan.benchmark.patience import doing
from fedspan.benchmark.records.atomic import sync
from fedspan.benchmark.registry import plugins
from fedspan.benchmark.task import Data, Dataset, Images

CHUNK_BYTES = 2**18
TIMEOUT = 30  # seconds without a byte
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CUTS = 5  # broken connections per address that are resumed, as long as each brings new bytes

OnProgress = Callable[[int, int | None], None]  # bytes so far, total bytes if known


# fetch --------------------------------------------------------------------------------------------


def fetch(dataset: Dataset, data: Path) -> int:
    """Download the missing or incomplete files of a dataset; raise `UserError` if that fails."""
    if not isinstance(dataset, Published):
        own = "root" in defaults_of(type(dataset))
        print(f"{dataset.name}: " + ("reads your own files: set dataset.root" if own else "built in, nothing to fetch"))
        return 0
    if source := getattr(dataset, "source", ""):
        print(f"{dataset.name}: reads your own files, {source}")
        return 0
    places = dataset.places(data)
    if not places:
        if here := [path for path in dataset.present(data) if path.exists()]:
            print(f"{dataset.name}: already here, {here[0]}")
            return 0
        if dataset.root and Path(dataset.root).expanduser().exists() and "content" in dataset.what():
            print(f"{dataset.name}: reads your own files, {dataset.root}")
            return 0
        raise UserError(dataset.absent((), data).replace(f"run 'fedspan data fetch {dataset.name}', or ", ""))
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        for file, path in places:
            if path.is_file() and file.is_at(path):
                progress.console.print(f"{path}: already here", highlight=False, soft_wrap=True)
                continue
            if dataset.root and path.is_file():
                raise UserError(
                    f"{path} differs from the publisher's file; move it away to fetch that, or keep your own"
                )
            task = progress.add_task(file.name, total=None)
            try:
                download(file, path, lambda done, total, task=task: progress.update(task, completed=done, total=total))  # type: ignore[misc]
            except UserError as error:
                more = ", ".join(other.name for other, there in places if other != file and not there.is_file())
                raise UserError(f"{error}; {dataset.name} also needs {more}" if more else str(error)) from error
    for _, path in places:
        print(path)
    return 0


def download(file: PublishedFile, path: Path, on_progress: OnProgress = lambda done, total: None) -> None:
    """Fetch `file` to `path`, resuming from the partial file of an earlier attempt.

    `path` appears complete and with the right checksum, or not at all. Raises `UserError` on failure.
    """
    partial = path.with_name(path.name + PARTIAL)
    problems: dict[str, None] = {}
    with _alone_in(partial) as out:
        begun = out.seek(0, os.SEEK_END) > 0  # perhaps of another version: then its address is tried twice
        for url in (*file.urls[:begun], *file.urls):
            try:
                _transfer(url, out, on_progress)
                out.flush()
                os.fsync(out.fileno())
                file.check(partial, checksum_now)
                break
            except UserError:
                out.truncate(0)
                problems[f"{url}: the file does not match the publisher's checksum, {file.checksum}"] = None
            except (OSError, http.client.HTTPException, ValueError) as error:
                if isinstance(error, OSError) and error.errno in DISK_IS_FULL:
                    raise UserError(f"cannot write {partial}: {error.strerror}; free space there") from error
                problems[f"{url}: {_reason(error)}"] = None
        else:
            held = out.seek(0, os.SEEK_END)
            if not held:
                partial.unlink()
            kept = f"; the first {held} bytes are kept, the same command resumes from them" if held else ""
            raise UserError(
                f"cannot fetch {file.name} ({'; '.join(problems)}){kept}; or put the file into {path.parent} yourself"
            )
        os.replace(partial, path)
    sync(path.parent)


@contextmanager
def _alone_in(partial: Path) -> Iterator[io.FileIO]:
    """Open a partial file for appending; raise `UserError` if another process is fetching it."""
    lock = partial.with_name(f"{partial.name}.lock")
    with ExitStack() as stack:
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(lock, blocking=False))
            stack.callback(lock.unlink, missing_ok=True)  # before its release: never removes another's lock
            out = stack.enter_context(partial.open("ab", buffering=0))
        except Timeout:
            raise UserError(f"another process is fetching {partial.name.removesuffix(PARTIAL)}; wait for it") from None
        except OSError as error:
            raise UserError(
                f"cannot write {partial}: {error.strerror or error}; "
                "choose another folder with paths.data (or FEDSPAN_DATA)"
            ) from error
        yield out


def _transfer(url: str, out: io.FileIO, on_progress: OnProgress) -> None:
    """Append the missing rest of `url` to `out`, reconnecting if necessary."""
    cuts = 0
    while True:
        before = out.seek(0, os.SEEK_END)
        try:
            _receive(url, out, on_progress)
            return
        except urllib.error.HTTPError:
            raise
        except (OSError, http.client.HTTPException):
            cuts += 1
            if out.seek(0, os.SEEK_END) <= before or cuts > CUTS:
                raise


def _receive(url: str, out: io.FileIO, on_progress: OnProgress) -> None:
    """Append the data of one connection to `out`; raise `ConnectionError` if it ends too early."""
    done = out.seek(0, os.SEEK_END)
    headers = {"User-Agent": "fedspan"} | ({"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not done:
            raise
        if error.headers.get("Content-Range", "").endswith(f"/{done}"):
            return  # nothing is missing
        out.truncate(0)
        _receive(url, out, on_progress)
        return
    with response:
        continues = response.status == http.HTTPStatus.PARTIAL_CONTENT
        if done and not (continues and response.headers.get("Content-Range", "").startswith(f"bytes {done}-")):
            if continues:
                raise ValueError("the server sent another part than was asked for")
            done = 0  # the server cannot continue, and sends the whole file again
            out.truncate(0)
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        on_progress(done, total)
        while chunk := response.read(CHUNK_BYTES):
            left = memoryview(chunk)
            while left:
                left = left[out.write(left) :]
            done += len(chunk)
            on_progress(done, total)
    if total is not None and done < total:
        raise ConnectionError(f"the connection was cut after {done} of {total} bytes")


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.URLError) and not isinstance(error, urllib.error.HTTPError):
        return " ".join(str(error.reason).split())
    return " ".join(str(error).split()) or type(error).__name__


# verify, where ------------------------------------------------------------------------------------


def verify(dataset: Dataset, data: Path) -> int:
    """Compare all files of a dataset with their checksums and load it; return 1 if a file is wrong.

    Everything is read again: published files, a user's own files, and decoded arrays, which are recomputed if damaged.
    A user's own files, whose content is part of a record's key, have no checksums to be compared with. Test images that
    equal a training image are counted.
    """
    if isinstance(dataset, Published) and "content" not in dataset.what():
        places = dataset.places(data)
        missing = [file for file, path in places if not path.is_file()]
        if missing or not dataset.present(data):
            raise UserError(dataset.absent(missing, data))
        wrong = 0
        for file, path in places:
            try:
                file.check(path, checksum_now)
                print(f"{path}: ok ({file.checksum})")
            except UserError as error:
                print(f"fedspan: {error}", file=sys.stderr)
                wrong += 1
        if wrong:
            return 1
    with reading_afresh():
        loaded = dataset.prepare(data)
    print(f"{dataset.name}: {_described(loaded)}")
    with doing("comparing test images with training images"):
        count = trained_on(loaded)
    if count:
        print(f"{dataset.name}: test images that equal a training image: {count:,} of {len(loaded.test):,}")
    return 0


def trained_on(data: Data) -> int:
    """Return the number of test images that equal a training image in every pixel."""

    def digests(images: Images) -> Iterator[bytes]:
        return (hashlib.blake2b(x.tobytes(), digest_size=16).digest() for x in images.x.numpy())

    known = set(digests(data.train))
    return sum(digest in known for digest in digests(data.test))


def _described(data: Data) -> str:
    channels, height, width = data.shape
    text = (
        f"{len(data.train):,} training and {len(data.test):,} test images of {height}x{width}x{channels}, "
        f"{len(data.classes)} classes"
    )
    if data.domains and data.train.domain is not None and data.test.domain is not None:
        counts = [torch.bincount(part, minlength=len(data.domains)) for part in (data.train.domain, data.test.domain)]
        each = (f"{name} {int(n)} + {int(m)}" for name, n, m in zip(data.domains, *counts, strict=True))
        text += f"; {', '.join(each)}"
    return text


def where(data: Path) -> int:
    """Print the data root and the state of each dataset's files."""
    print(f"data root: {data}{'' if data.is_dir() else ' (does not exist yet)'}")
    for name, cls in plugins("dataset").items():
        dataset = cls()
        assert isinstance(dataset, Dataset)
        decoded = sum(path.stat().st_size for path in data.glob(f"decoded/{name}-v*/*") if path.is_file())
        note = f"; decoded arrays: {decimal(decoded)}" if decoded else ""
        print(f"  {name:18} {state(dataset, data)}{note}")
    return 0


def state(dataset: Dataset, data: Path) -> str:
    """Return the state of a dataset's files in a few words: found, incomplete or absent."""
    if not isinstance(dataset, Published):
        return "reads your own files (dataset.root)" if "root" in defaults_of(type(dataset)) else "built in"
    places, present = dataset.places(data), dataset.present(data)
    folder = dataset.folder(data)
    if present and len(present) >= len(places):
        size = f" ({decimal(sum(path.stat().st_size for path in present))})" if places else ""
        return f"found: {present[0] if len(present) == 1 else folder}{size}"
    partial = [path.name for _, path in places if path.with_name(path.name + PARTIAL).is_file()]
    missing = [file.name for file, path in places if not path.is_file()]
    if partial:
        return f"half-downloaded: {', '.join(partial)}; resume with 'fedspan data fetch {dataset.name}'"
    if present:
        return f"incomplete: {folder} lacks {', '.join(missing)}"
    return f"not here: fedspan data fetch {dataset.name}" if places else f"not here: put your own copy into {folder}"
