"""fedspan data: a file appears whole and right or not at all, whatever the server does."""

import errno
import gzip
import hashlib
import os
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image
from torchvision.datasets import MNIST

from fedspan.benchmark.cli.main import main
from fedspan.benchmark.data import checksums
from fedspan.benchmark.data import download as fetch
from fedspan.benchmark.data.download import download
from fedspan.benchmark.data.published import PublishedFile
from fedspan.benchmark.data.roots import Folder, digest_once
from fedspan.benchmark.errors import UserError
from fedspan.tasks.datasets.mnist import Mnist
from fedspan.tasks.datasets.office_caltech10 import OfficeCaltech10
from tests.tasks.files import png, write

CONTENT = np.random.default_rng(0).bytes(300_000)


class Server(ThreadingHTTPServer):
    """Serves `files` by path; `ranges` says whether it continues, `cuts` how many replies end in the middle."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"/file.bin": CONTENT}
        self.ranges, self.cuts, self.length, self.shift = True, 0, True, 0
        self.asked = []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, start = self.server, 0
        asked = self.headers.get("Range")
        server.asked.append(asked)
        content = server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        if asked and server.ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-")) + server.shift
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        rest = content[start:]
        if server.length:
            self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if server.cuts:
            server.cuts -= 1
            rest = rest[: len(rest) // 2]
        self.wfile.write(rest)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def file(server):
    return PublishedFile("file.bin", f"md5:{hashlib.md5(CONTENT).hexdigest()}", (server.address + "file.bin",))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_fetched_whole(server, file, tmp_path):
    steps = []
    download(file, tmp_path / "new" / "file.bin", lambda done, total: steps.append((done, total)))
    assert (tmp_path / "new" / "file.bin").read_bytes() == CONTENT
    assert names(tmp_path / "new") == ["file.bin"]
    assert steps[0] == (0, len(CONTENT))
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert server.asked == [None]


@pytest.mark.parametrize("held", [1, 1000, len(CONTENT) - 1, len(CONTENT)])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_partial_file_is_gone_on_with(server, file, tmp_path, held, ranges):
    server.ranges = ranges
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:held])
    steps = []
    download(file, tmp_path / "file.bin", lambda done, total: steps.append(done))
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert names(tmp_path) == ["file.bin"]
    assert server.asked == [f"bytes={held}-"]
    if steps:
        assert steps[0] == (held if ranges else 0), "what is there is not sent again"


def test_a_partial_file_longer_than_the_whole_is_fetched_anew(server, file, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"x")
    download(file, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT) + 1}-", None]


@pytest.mark.parametrize(("ranges", "cuts"), [(True, 4), (False, 1)])
def test_a_cut_connection_is_gone_on_with_as_long_as_it_brings_something(server, file, tmp_path, ranges, cuts):
    server.cuts, server.ranges = cuts, ranges
    download(file, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert len(server.asked) == cuts + 1


def test_what_came_before_the_last_cut_is_kept_for_the_next_attempt(server, file, tmp_path):
    server.cuts = 100
    with pytest.raises(UserError, match=r"the connection was cut after \d+ of 300000 bytes.* resumes from them"):
        download(file, tmp_path / "file.bin")
    assert names(tmp_path) == ["file.bin.part"]
    held = (tmp_path / "file.bin.part").read_bytes()
    assert held == CONTENT[: len(held)]
    assert len(held) > len(CONTENT) / 2
    server.cuts = 0
    download(file, tmp_path / "file.bin")
    assert server.asked[-1] == f"bytes={len(held)}-"
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_reply_of_unknown_length_is_judged_by_its_checksum(server, file, tmp_path):
    server.length = False
    download(file, tmp_path / "file.bin")
    server.cuts = 1
    with pytest.raises(UserError, match="does not match the publisher's checksum"):
        download(file, tmp_path / "other.bin")


def test_a_partial_file_of_another_version_is_fetched_anew(server, file, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"a partial file of another version")
    download(file, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("before", [b"", b"a partial file of another version"])
def test_a_wrong_checksum_leaves_nothing(server, file, tmp_path, before):
    if before:
        (tmp_path / "file.bin.part").write_bytes(before)
    server.files["/file.bin"] = CONTENT[:-1] + b"x"
    with pytest.raises(UserError, match=f"does not match the publisher's checksum, {file.checksum}"):
        download(file, tmp_path / "file.bin")
    assert names(tmp_path) == []


def test_a_server_that_sends_another_part_is_not_believed(server, file, tmp_path):
    server.shift = 10
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    with pytest.raises(UserError, match="another part than was asked for"):
        download(file, tmp_path / "file.bin")
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:1000]


def test_the_next_address_is_tried(server, file, tmp_path):
    gone = PublishedFile(file.name, file.checksum, ("http://127.0.0.1:1/", server.address + "gone", *file.urls))
    download(gone, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_the_next_address_is_tried_after_one_that_sends_something_else(server, file, tmp_path):
    server.files["/page.html"] = b"<html>moved</html>"
    moved = PublishedFile(file.name, file.checksum, (server.address + "page.html", *file.urls))
    download(moved, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_without_network_one_line_says_which_file_to_put_where(server, file, tmp_path):
    away = PublishedFile(file.name, file.checksum, ("http://127.0.0.1:1/x", server.address + "gone"))
    with pytest.raises(UserError) as error:
        download(away, tmp_path / "file.bin")
    message = str(error.value)
    assert "\n" not in message
    assert f"http://127.0.0.1:1/x: [Errno {errno.ECONNREFUSED}] Connection refused" in message
    assert "gone: HTTP Error 404: Not Found" in message
    assert f"put the file into {tmp_path} yourself" in message
    assert names(tmp_path) == []


def test_two_processes_do_not_write_one_file(file, tmp_path):
    with FileLock(tmp_path / "file.bin.part.lock"):
        with pytest.raises(UserError, match=r"another process is fetching file\.bin"):
            download(file, tmp_path / "file.bin")
        assert names(tmp_path) == ["file.bin.part.lock"]
    download(file, tmp_path / "file.bin")
    assert names(tmp_path) == ["file.bin"]


def test_a_folder_that_cannot_be_written_is_one_line(file, tmp_path):
    (tmp_path / "taken").write_bytes(b"")
    with pytest.raises(UserError, match=r"cannot write .*paths\.data"):
        download(file, tmp_path / "taken" / "file.bin")


def test_a_full_disk_is_one_line(file, tmp_path, monkeypatch):
    def full(url, out, report):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch, "_receive", full)
    with pytest.raises(UserError, match="No space left on device; free space there"):
        download(file, tmp_path / "file.bin")


# the command --------------------------------------------------------------------------------------


@pytest.fixture
def mnist(server, tmp_path, monkeypatch, unchanged_process):
    """Serve four small files in MNIST's format as if they were the published ones; return the data root."""
    monkeypatch.setenv("FEDSPAN_DATA", str(tmp_path / "data"))
    checksums.checksum_once.cache_clear()
    sums = []
    for (name, _), shape in zip(MNIST.resources, [(20, 28, 28), (20,), (10, 28, 28), (10,)], strict=True):
        values = (np.arange(np.prod(shape)) % 10).astype(np.uint8)
        content = gzip.compress(struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + values.tobytes())
        server.files[f"/{name}"] = content
        sums.append((name, hashlib.md5(content).hexdigest()))
    monkeypatch.setattr(MNIST, "mirrors", [server.address])
    monkeypatch.setattr(MNIST, "resources", sums)
    return tmp_path / "data"


def fedspan(capsys, *words):
    status = main(["data", *words])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_fetch_verify_and_where_tell_the_same_story(mnist, capsys, server):
    assert "mnist              not here: fedspan data fetch mnist" in fedspan(capsys, "where")[1]
    status, out, _ = fedspan(capsys, "fetch", "mnist")
    assert status == 0
    assert out.splitlines() == [str(mnist / "mnist" / name) for name, _ in MNIST.resources]
    status, out, _ = fedspan(capsys, "verify", "mnist")
    assert status == 0
    assert out.count(": ok (md5:") == 4
    assert "mnist: 20 training and 10 test images of 28x28x1, 10 classes" in out
    assert f"found: {mnist / 'mnist'}" in fedspan(capsys, "where")[1]
    asked = len(server.asked)
    assert "already here" in fedspan(capsys, "fetch", "mnist")[2]
    assert len(server.asked) == asked


def test_a_damaged_file_is_found_by_verify_and_replaced_by_fetch(mnist, capsys):
    fedspan(capsys, "fetch", "mnist")
    damaged = mnist / "mnist" / MNIST.resources[2][0]
    status = damaged.stat()
    content = bytearray(damaged.read_bytes())
    content[40] ^= 1
    damaged.write_bytes(content)
    os.utime(damaged, ns=(status.st_atime_ns, status.st_mtime_ns))
    code, out, err = fedspan(capsys, "verify", "mnist")
    assert code == 1
    assert out.count(": ok (md5:") == 3
    assert f"{damaged} is not the published file" in err
    assert fedspan(capsys, "fetch", "mnist")[0] == 0
    assert fedspan(capsys, "verify", "mnist")[0] == 0


def change_unnoticed(path, place, monkeypatch):
    """Flip a bit, as a failing disk does: no size, time or inode tells."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    monkeypatch.setattr(checksums, "file_state", lambda path: "the same")


def test_verify_reads_the_files_again(mnist, capsys, monkeypatch):
    monkeypatch.setattr(checksums, "file_state", lambda path: "the same")
    fedspan(capsys, "fetch", "mnist")
    assert fedspan(capsys, "verify", "mnist")[0] == 0
    damaged = mnist / "mnist" / MNIST.resources[1][0]
    change_unnoticed(damaged, -1, monkeypatch)
    assert "already here" in fedspan(capsys, "fetch", "mnist")[2]
    code, _, err = fedspan(capsys, "verify", "mnist")
    assert code == 1
    assert f"{damaged} is not the published file" in err


def test_verify_reads_the_decoded_arrays_again_and_makes_damaged_ones_anew(mnist, capsys, monkeypatch):
    fedspan(capsys, "fetch", "mnist")
    fedspan(capsys, "verify", "mnist")
    [decoded] = (mnist / "decoded").glob("mnist-*/train_x.npy")
    whole = decoded.read_bytes()
    change_unnoticed(decoded, -1, monkeypatch)
    assert fedspan(capsys, "verify", "mnist")[0] == 0
    assert decoded.read_bytes() == whole


def test_verify_reads_a_user_s_own_images_again(mnist, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(checksums, "file_state", lambda path: "the same")
    monkeypatch.setattr(Folder, "signature", lambda root: "the same")
    for split in ("train", "test"):
        (tmp_path / "own" / split / "a").mkdir(parents=True)
        Image.new("RGB", (4, 4), 10).save(tmp_path / "own" / split / "a" / "1.bmp")
    verify = ("verify", "image_folder", f"dataset.root={tmp_path / 'own'}")
    assert fedspan(capsys, *verify)[0] == 0
    change_unnoticed(tmp_path / "own" / "train" / "a" / "1.bmp", -1, monkeypatch)
    digest_once.cache_clear()
    assert fedspan(capsys, *verify)[0] == 0
    assert len(list((mnist / "decoded").glob("image_folder-*/manifest.json"))) == 2


@pytest.mark.parametrize(("seed", "said"), [(2, "a training image: 1 of 2\n"), (4, "")])
def test_verify_counts_test_images_that_are_training_images(mnist, capsys, tmp_path, seed, said):
    """Whatever their names and classes, and once however many copies of them are trained on."""
    seeds = {"train/a/1.png": 2, "train/b/2.png": 2, "train/a/3.png": 1, "test/a/9.png": seed, "test/b/8.png": 3}
    write(tmp_path / "own", {name: png(drawn) for name, drawn in seeds.items()})
    code, out, _ = fedspan(capsys, "verify", "image_folder", f"dataset.root={tmp_path / 'own'}")
    assert (code, said in out, "a training image" in out) == (0, True, bool(said))


def test_own_images_instead_of_published_ones_are_verified_and_never_fetched(mnist, capsys, tmp_path):
    write(tmp_path / "own", {f"{split}/{name}/1.png": png(name) for split in ("train", "test") for name in range(10)})
    own = ("cifar10", f"dataset.source={tmp_path / 'own'}")
    code, out, _ = fedspan(capsys, "verify", *own)
    assert (code, "cifar10: 10 training and 10 test images" in out) == (0, True)
    assert fedspan(capsys, "fetch", *own) == (0, f"cifar10: reads your own files, {tmp_path / 'own'}\n", "")
    assert not (mnist / "cifar10").exists()


def test_a_file_of_ones_own_in_the_place_of_a_published_one_is_kept(mnist, capsys, tmp_path):
    place = tmp_path / "mine"
    first, *_ = Mnist(root=str(place)).places(tmp_path)
    write(place, {first[1].name: b"mine"})
    code, _, err = fedspan(capsys, "fetch", "mnist", f"dataset.root={place}")
    assert code == 2
    assert f"{first[1]} differs from the publisher's file; move it away" in err
    assert first[1].read_bytes() == b"mine"


def test_a_copy_of_ones_own_in_a_published_layout_has_nothing_to_fetch(mnist, capsys, monkeypatch, tmp_path):
    place = tmp_path / "mine"
    place.mkdir()
    monkeypatch.setattr(Mnist, "files", lambda self: ())
    monkeypatch.setattr(Mnist, "what", lambda self: {"content": "c" * 64})
    said = f"mnist: reads your own files, {place}\n"
    assert fedspan(capsys, "fetch", "mnist", f"dataset.root={place}") == (0, said, "")


def test_decoded_images_are_no_files_to_verify(mnist, capsys, monkeypatch):
    monkeypatch.setattr(OfficeCaltech10, "prepare", lambda *_: pytest.fail("there is nothing to load"))
    code, _, err = fedspan(capsys, "verify", "office_caltech10")
    assert (code, "dataset 'office_caltech10' is not here" in err) == (2, True)


def test_half_downloaded_files_are_told(mnist, capsys, server):
    (mnist / "mnist").mkdir(parents=True)
    (mnist / "mnist" / f"{MNIST.resources[0][0]}.part").write_bytes(b"")
    assert f"half-downloaded: {MNIST.resources[0][0]}" in fedspan(capsys, "where")[1]
    code, _, err = fedspan(capsys, "verify", "mnist")
    assert code == 2
    assert f"({MNIST.resources[0][0]} is half-downloaded)" in err


def test_files_can_lie_elsewhere(mnist, capsys, tmp_path):
    assert fedspan(capsys, "fetch", "mnist", f"dataset.root={tmp_path / 'there'}")[0] == 0
    assert len(names(tmp_path / "there")) == 4
    assert fedspan(capsys, "verify", "mnist", f"dataset.root={tmp_path / 'there'}")[0] == 0
    assert fedspan(capsys, "fetch", "mnist", f"paths.data={tmp_path / 'other'}")[0] == 0
    assert len(names(tmp_path / "other" / "mnist")) == 4


def test_without_a_server_fetch_is_one_line(mnist, capsys, monkeypatch):
    monkeypatch.setattr(MNIST, "mirrors", ["http://127.0.0.1:1/"])
    code, _, err = fedspan(capsys, "fetch", "mnist")
    assert code == 2
    assert f"cannot fetch {MNIST.resources[0][0]}" in err.splitlines()[-1]
    assert f"put the file into {mnist / 'mnist'} yourself" in err.splitlines()[-1]
    assert all(name in err.splitlines()[-1] for name, _ in MNIST.resources), "all files that are needed"


def test_of_several_datasets_each_is_looked_at(mnist, capsys):
    code, out, err = fedspan(capsys, "verify", "office_caltech10", "digits")
    assert code == 2
    assert "'office_caltech10' is not here" in err
    assert "digits: 1,438 training and 359 test images" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fetch", "digits"], "digits: built in, nothing to fetch"),
        (["fetch", "image_folder"], "image_folder: reads your own files: set dataset.root"),
        (["verify", "digits"], "digits: 1,438 training and 359 test images of 8x8x1, 10 classes"),
        (["verify", "digits_domains"], "; plain 360 + 90, inverted 360 + 89, rotated 360 + 90, blurred 358 + 90"),
    ],
)
def test_datasets_without_published_files(mnist, capsys, words, said):
    code, out, _ = fedspan(capsys, *words)
    assert code == 0
    assert said in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "write: fedspan data fetch NAME"),
        (["fech", "mnist"], "did you mean 'fetch'"),
        (["fetch"], "name a dataset: fedspan data fetch cifar10|"),
        (["fetch", "mnis"], "unknown dataset 'mnis'; did you mean 'mnist'"),
        (["fetch", "mnist", "dataset.rot=x"], "unknown setting 'dataset.rot'"),
        (["where", "mnist"], "without a name"),
        (["fetch", "office_caltech10"], "'office_caltech10' is not here: put the folders amazon"),
        (["fetch", "office_caltech10", "dataset.root=/no/such/folder"], "into /no/such/folder, or name their place"),
    ],
)
def test_bad_input_is_one_line(mnist, capsys, words, said):
    code, out, err = fedspan(capsys, *words)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1
    assert not out
