"""Archives and images that are made to harm are refused before they take memory, time, or another program."""

import gzip
import io
import subprocess
import tarfile
import zipfile

import pytest
from PIL import EpsImagePlugin, Image

from fedspan.benchmark.data import archives, decoding
from fedspan.benchmark.data.archives import open_root
from fedspan.benchmark.data.checksums import checksum
from fedspan.benchmark.data.decoding import Unreadable, decode
from fedspan.benchmark.errors import UserError
from tests.tasks.files import encode

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n(%pipe%touch harm) (w) file\n%%EOF\n"


def listed(path):
    return open_root(path, ("train", "test"), "train/").entries()


def refused(path, why):
    with pytest.raises(UserError, match=f"is refused: {why}"):
        listed(path)


def test_no_image_is_given_to_another_program(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setattr(subprocess, "check_call", None)
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", None)
    with pytest.raises(Unreadable, match="not an image of a known format"):
        decode(EPS, 4)


@pytest.mark.parametrize("mode", ["RGB", "I;16", "1"])
def test_an_image_of_too_many_pixels_is_not_decoded(mode, monkeypatch):
    content = encode(Image.new(mode, (40, 40)))
    monkeypatch.setattr(decoding, "MOST_PIXELS", 40 * 40 - 1)
    monkeypatch.setattr(Image.Image, "load", None)
    with pytest.raises(Unreadable, match="1600 pixels, more than 1599"):
        decode(content, 4)


def tar_of(path, *members, mode="w"):
    with tarfile.open(path, mode) as tar:
        for member, content in members:
            tar.addfile(member, io.BytesIO(content))
    return path


def test_a_sparse_member_is_refused(tmp_path):
    member = tarfile.TarInfo("train/a/1.png")
    member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(200 * 10**9)}
    content = b"1\n0\n1\n".ljust(512, b"\0") + b"x".ljust(512, b"\0")
    member.size = len(content)
    path = tmp_path / "sparse.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member, io.BytesIO(content))
    assert path.stat().st_size < 20_000
    refused(path, "its member 'train/a/1.png' is neither a file nor a folder")


def test_members_that_unpack_to_more_than_any_dataset_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MEMBER_BYTES", 10_000)
    monkeypatch.setattr(tarfile.TarFile, "extractfile", None)  # nothing of it is read
    monkeypatch.setattr(zipfile.ZipFile, "open", None)
    large, content = tarfile.TarInfo("train/a/1.png"), bytes(10_001)
    large.size = len(content)
    for suffix in ("tar", "gz", "xz"):
        path = tar_of(tmp_path / f"large.{suffix}", (large, content), mode="w" if suffix == "tar" else f"w:{suffix}")
        refused(path, "its member 'train/a/1.png' unpacks to 10001 bytes, more than 10000")


@pytest.mark.parametrize(
    ("encoding", "flag", "classes"),
    [
        ("utf-8", 0x800, ["ant", "caf\xe9", "\u732b"]),
        ("utf-8", 0, ["ant", "caf\xe9", "\u732b"]),
        ("cp437", 0, ["caf\xe9"]),
    ],
    ids=["UTF-8 that says so", "UTF-8 of Info-ZIP", "cp437"],
)
def test_the_names_in_a_zip_are_those_that_were_packed(tmp_path, monkeypatch, encoding, flag, classes):
    names = [f"train/{name}/1.png" for name in classes]
    monkeypatch.setattr(
        zipfile.ZipInfo, "_encodeFilenameFlags", lambda member: (member.filename.encode(encoding), flag)
    )
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in names:
            archive.writestr(name, name)
    root = open_root(tmp_path / "a.zip", ("train", "test"), "train/")
    assert [name for name in root.entries() if name.endswith(".png")] == names
    assert dict(root.read(names)) == {name: name.encode() for name in names}


def test_a_digest_remembered_from_when_names_were_read_otherwise_is_not_used_again(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSPAN_DATA", str(tmp_path / "data"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("train/a/1.png", b"")
    digests = []
    for version in (archives.NAMES - 1, archives.NAMES):
        monkeypatch.setattr(archives, "NAMES", version)
        monkeypatch.setattr(archives, "_zip_name", lambda member, version=version: f"train/{version}/1.png")
        digests.append(open_root(tmp_path / "a.zip", ("train", "test"), "train/").digest())
    assert digests[0] != digests[1]


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_an_archive_that_unpacks_to_many_times_its_size_is_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(archives, "MEMBER_BYTES", 100_000)
    path, names = tmp_path / f"bomb.{kind}", [f"train/a/{number}.png" for number in range(60)]
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in names:
                archive.writestr(name, bytes(90_000))
    else:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size = 90_000
                tar.addfile(member, io.BytesIO(bytes(90_000)))
        path.write_bytes(gzip.compress(buffer.getvalue(), 9))
    refused(path, f"its {path.stat().st_size} bytes unpack to more than 200 times as many")


def test_a_link_to_itself_has_no_checksum(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match=r"cannot read .*loop"):
        checksum(tmp_path / "loop", "md5")
