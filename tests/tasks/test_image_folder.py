"""image_folder: the same images give the same arrays wherever and however they are packed, or one clear line."""

import errno
import logging
import lzma
import os
import signal
import stat
import subprocess
import sys
import tarfile
import time
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedspan.benchmark.data import archives
from fedspan.benchmark.data import decoding as images
from fedspan.benchmark.data import image_files as labelled
from fedspan.benchmark.data.archives import open_root
from fedspan.benchmark.data.decoding import Unreadable, decode, mean_and_std, to_rgb
from fedspan.benchmark.data.roots import Folder, digest_once
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.task import content_digest
from fedspan.tasks.datasets.image_folder import ImageFolder
from tests.tasks.files import encode, pack, pixels, png, write, zipped

CLASSES = ("ant", "bee", "cow")
SUFFIXES = (".tar", ".tar.gz", ".tar.xz", ".tar.bz2")


def small(train: int = 4, test: int = 2) -> dict[str, bytes]:
    """Three classes; the seed of an image is its place in this list."""
    names = [
        f"{split}/{cls}/{number:03}.png"
        for split, count in (("train", train), ("test", test))
        for cls in CLASSES
        for number in range(count)
    ]
    return {name: png(seed) for seed, name in enumerate(names)}


def load(root: Path, cache: Path, **fields):
    return ImageFolder(root=str(root), size=fields.pop("size", 4), **fields).prepare(cache)


def refused(root: Path | str, cache: Path, **fields) -> str:
    """Return the one line with which a root is refused; nothing may be kept of it."""

    def plan_and_prepare() -> None:
        plugin = ImageFolder(root=str(root), size=4, **fields)
        plugin.what()
        plugin.prepare(cache)

    with pytest.raises(UserError) as error:
        plan_and_prepare()
    message = str(error.value)
    assert "\n" not in message
    assert not list(cache.glob("decoded/*/manifest.json"))
    return message


@pytest.fixture
def decoded(monkeypatch):
    """The names of the images that were decoded."""
    names = []
    real = images.decode_all

    def spy(files, rows, *rest):
        names.extend(rows)
        real(files, rows, *rest)

    monkeypatch.setattr("fedspan.benchmark.data.image_files.decode_all", spy)
    return names


# What is loaded -----------------------------------------------------------------------------------


def test_images_and_labels_are_those_of_the_files(tmp_path):
    data = load(write(tmp_path / "root", small()), tmp_path)
    assert data.classes == CLASSES
    assert data.train.y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.test.y.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.train.x.dtype == torch.uint8
    assert data.train.y.dtype == data.test.y.dtype == torch.int64
    assert np.array_equal(data.train.x, np.stack([pixels(seed) for seed in range(12)]))
    assert np.array_equal(data.test.x, np.stack([pixels(seed) for seed in range(12, 18)]))
    assert data.shape == (3, 4, 4)


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".zip"])
def test_a_folder_and_its_archive_are_the_same_data(tmp_path, suffix):
    files = small()
    in_folder = load(write(tmp_path / "root", files), tmp_path / "a")
    shuffled = dict(sorted(files.items(), key=lambda item: item[1]))
    put = zipped if suffix == ".zip" else pack
    in_archive = load(put(tmp_path / f"root{suffix}", shuffled), tmp_path / "b")
    assert in_folder.digest == in_archive.digest
    assert content_digest(in_folder.train.x, in_folder.test.x) == content_digest(in_archive.train.x, in_archive.test.x)
    assert (in_folder.classes, in_folder.mean, in_folder.std) == (in_archive.classes, in_archive.mean, in_archive.std)


@pytest.mark.parametrize("top", ["", "./", "cifar/", "./cifar/"])
def test_one_top_folder_makes_no_difference(tmp_path, top):
    files = small()
    plain = load(write(tmp_path / "plain", files), tmp_path / "a")
    nested = write(tmp_path / "nested", {top + name: content for name, content in files.items()})
    assert load(nested, tmp_path / "b").digest == plain.digest
    assert load(pack(tmp_path / "x.tar", files, top=top), tmp_path / "c").digest == plain.digest


def test_a_dataset_at_the_root_hides_those_deeper_down(tmp_path):
    files = small()
    both = {f"old/{name}": png(99) for name in files} | files
    plain = load(write(tmp_path / "plain", files), tmp_path / "a").digest
    assert load(write(tmp_path / "both", both), tmp_path / "b").digest == plain
    assert load(pack(tmp_path / "both.tar", both), tmp_path / "c").digest == plain


def test_what_desktops_leave_behind_and_files_elsewhere_are_ignored(tmp_path, caplog):
    litter = [
        "train/ant/.hidden",
        "train/ant/Thumbs.db",
        "train/ant/._000.png",
        "train/.DS_Store",
        "test/ant/desktop.ini",
    ]
    files = small() | dict.fromkeys(litter, b"x") | {"README": b"x", "__MACOSX/train/ant/0.png": b"x"}
    plain = load(write(tmp_path / "plain", small()), tmp_path / "a").digest
    assert load(write(tmp_path / "littered", files), tmp_path / "b").digest == plain
    assert load(pack(tmp_path / "littered.tar", files), tmp_path / "c").digest == plain
    assert [line for line in caplog.records if line.levelname != "INFO"] == []
    load(write(tmp_path / "stray", small() | {"train/list.txt": b"x"}), tmp_path / "d")
    assert "train/list.txt in no class folder: ignored" in caplog.text


def test_links_in_a_users_own_folder_are_followed(tmp_path):
    files = small()
    plain = load(write(tmp_path / "plain", files), tmp_path / "a").digest
    linked = tmp_path / "linked"
    linked.mkdir()
    for split in ("train", "test"):
        (linked / split).symlink_to(tmp_path / "plain" / split)
    assert load(linked, tmp_path / "b").digest == plain


def test_normalisation_is_that_of_the_training_images(tmp_path):
    data = load(write(tmp_path / "root", small()), tmp_path)
    scaled = data.train.x.double() / 255
    assert data.mean == pytest.approx(scaled.mean((0, 1, 2)).tolist(), rel=1e-12)
    assert data.std == pytest.approx(scaled.std((0, 1, 2), correction=0).tolist(), rel=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 4))
def test_mean_and_std_are_exact(seed, n, channels):
    x = np.random.default_rng(seed).integers(0, 256, (n, 3, 2, channels), dtype=np.uint8)
    mean, std = mean_and_std(x)
    assert mean == pytest.approx((x / 255).mean((0, 1, 2)), rel=1e-12)
    assert std == pytest.approx((x / 255).std((0, 1, 2)), rel=1e-9)


def test_a_channel_without_variation_can_be_divided_by():
    assert mean_and_std(np.full((2, 3, 3, 1), 51, np.uint8)) == ((0.2,), (1.0,))


def test_limit_takes_from_every_class(tmp_path):
    data = load(write(tmp_path / "root", small(train=10, test=4)), tmp_path, limit=6)
    assert np.bincount(data.train.y).tolist() == [2, 2, 2]
    assert np.bincount(data.test.y).tolist() == [2, 2, 2]
    assert data.digest != load(tmp_path / "root", tmp_path).digest


def test_arrays_are_shared_memory_maps_and_torch_does_not_complain(tmp_path):
    root = write(tmp_path / "root", small())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = load(root, tmp_path), load(root, tmp_path)
    if Path("/proc/self/maps").exists():
        maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
        assert sum(line.endswith("train_x.npy") for line in maps) == 2
    first.train.x.zero_()
    assert second.train.x.any()


# Identity -----------------------------------------------------------------------------------------


def test_the_key_depends_on_the_content_and_not_on_the_location(tmp_path):
    for first, second in (
        (write(tmp_path / "a", small()), write(tmp_path / "b/c", small())),
        (pack(tmp_path / "a.tar", small()), pack(tmp_path / "b.tar", small())),
    ):
        here = ImageFolder(root=str(first)).what()
        assert here == ImageFolder(root=str(second)).what()
        assert str(tmp_path) not in str(here)


def test_the_key_follows_every_change_of_the_content(tmp_path):
    files = small()
    renamed = {name.replace("003", "004"): content for name, content in files.items()}
    edited = files | {"test/cow/001.png": png(99)}
    swapped = files | {"train/ant/000.png": files["train/ant/001.png"], "train/ant/001.png": files["train/ant/000.png"]}
    roots = [write(tmp_path / str(i), change) for i, change in enumerate((files, renamed, edited, swapped))]
    roots += [pack(tmp_path / f"{i}.tar", change) for i, change in enumerate((files, renamed, edited, swapped))]
    contents = [ImageFolder(root=str(root)).what()["content"] for root in roots]
    assert len(set(contents)) == 4
    assert contents[:4] == contents[4:], "a folder and its archive are the same content"
    assert ImageFolder(root=str(roots[0]), size=8).what() != ImageFolder(root=str(roots[0])).what()


@pytest.mark.parametrize("name", ["root", "root.tar"])
def test_a_root_is_hashed_once_for_a_whole_grid_and_for_later_starts(tmp_path, monkeypatch, name):
    root = write(tmp_path / name, small()) if name == "root" else pack(tmp_path / name, small())
    hashed = []
    for cls in (Folder, archives.Archive):
        monkeypatch.setattr(cls, "hash", lambda self, *rest, real=cls.hash: hashed.append(self) or real(self, *rest))
    first = [ImageFolder(root=str(root), size=size).what()["content"] for size in range(1, 55)]
    assert len(hashed) == 1
    digest_once.cache_clear()  # as a new process starts
    assert {ImageFolder(root=str(root)).what()["content"]} == set(first)
    assert len(hashed) == 1


@pytest.mark.parametrize("name", ["root", "root.tar"])
def test_a_later_change_is_noticed(tmp_path, name):
    put = write if name == "root" else pack
    before = ImageFolder(root=str(put(tmp_path / name, small()))).what()
    digest_once.cache_clear()
    after = ImageFolder(root=str(put(tmp_path / name, small() | {"train/ant/000.png": png(99)}))).what()
    assert before != after


def test_a_change_between_planning_and_decoding_is_refused(tmp_path):
    root = write(tmp_path / "root", small())
    plugin = ImageFolder(root=str(root), size=4)
    plugin.what()
    write(root, {"train/ant/000.png": png(99)})
    with pytest.raises(UserError, match="was changed while it was read; start again"):
        plugin.load(tmp_path)


def test_two_datasets_in_one_place_have_their_own_digests(tmp_path):
    for root in (write(tmp_path / "root", small()), pack(tmp_path / "root.tar", small())):
        digests = [open_root(root, (folder,), "").digest() for folder in ("train", "test")]
        digest_once.cache_clear()  # as a new process starts
        assert [open_root(root, (folder,), "").digest() for folder in ("train", "test")] == digests
        assert len(set(digests)) == 2


def test_an_unwritable_data_root_only_costs_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDSPAN_DATA", str(tmp_path / "file"))
    assert ImageFolder(root=str(pack(tmp_path / "root.tar", small()))).what()["content"]


@pytest.mark.parametrize("name", ["root", "root.tar"])
def test_the_second_start_decodes_nothing(tmp_path, decoded, caplog, name):
    caplog.set_level(logging.INFO, "fedspan")
    root = write(tmp_path / name, small()) if name == "root" else pack(tmp_path / name, small())
    first = load(root, tmp_path)
    assert len(decoded) == 18
    assert "decoding 18 images" in caplog.text
    caplog.clear()
    second = load(root, tmp_path)
    assert len(decoded) == 18
    assert not caplog.text
    assert first.digest == second.digest
    moved = root.rename(tmp_path / f"moved-{name}")
    load(moved, tmp_path)
    assert len(decoded) == 18
    load(moved, tmp_path, size=5)
    assert len(decoded) == 36


@pytest.fixture
def large(monkeypatch):
    """Every dataset is too large to be decoded in memory; return the arrays that it is decoded into."""
    rooms = []
    real = labelled.room
    monkeypatch.setattr(labelled, "IN_MEMORY", 0)
    monkeypatch.setattr(labelled, "room", lambda *asked: rooms.append(real(*asked)) or rooms[-1])
    return rooms


def test_many_images_are_decoded_into_a_file_that_goes_afterwards(tmp_path, large, monkeypatch):
    root = write(tmp_path / "root", small())
    data = load(root, tmp_path / "a")
    assert [type(room) for room in large] == [np.memmap]
    assert [path.name for path in (tmp_path / "a/decoded").iterdir() if not path.name.endswith(".lock")] == [
        path.name for path in (tmp_path / "a/decoded").iterdir() if path.is_dir()
    ]
    monkeypatch.setattr(labelled, "IN_MEMORY", 2**20)
    assert load(root, tmp_path / "b").digest == data.digest
    assert [type(room) for room in large] == [np.memmap, np.ndarray]


def test_a_system_that_cannot_reserve_a_file_decodes_into_one_all_the_same(tmp_path, large, monkeypatch):
    root = write(tmp_path / "root", small())
    digest = load(root, tmp_path / "a").digest
    monkeypatch.delattr(os, "posix_fallocate")  # as on macOS
    assert load(root, tmp_path / "b").digest == digest
    assert [type(room) for room in large] == [np.memmap] * 2


def test_a_disk_too_full_to_decode_into_is_one_line(tmp_path, large, monkeypatch):
    def full(*asked):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    message = refused(write(tmp_path / "root", small()), tmp_path)
    assert "cannot decode 18 images" in message
    assert "No space left on device; free space there" in message


def test_a_cache_cut_short_is_decoded_again(tmp_path, decoded, caplog):
    root = write(tmp_path / "root", small())
    first = load(root, tmp_path)
    (path,) = tmp_path.glob("decoded/*/train_x.npy")
    path.write_bytes(path.read_bytes()[:-1])
    assert load(root, tmp_path).digest == first.digest
    assert len(decoded) == 36
    assert "damaged" in caplog.text


def test_a_decoder_that_is_killed_does_not_stop_the_next(tmp_path):
    root = pack(tmp_path / "root.tar", small())
    program = f"""
import time
from pathlib import Path
from fedspan.benchmark.data import decoding as images
from fedspan.tasks.datasets.image_folder import ImageFolder
from tests.tasks.files import encode, pack, pixels, png, write, zipped
def slow(content, size):
    Path({str(tmp_path / "now")!r}).touch()
    time.sleep(60)
images.decode = slow
ImageFolder(root={str(root)!r}, size=4).load(Path({str(tmp_path)!r}))
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    while not (tmp_path / "now").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(load(root, tmp_path).train) == 12
    assert not [path for path in (tmp_path / "decoded").iterdir() if path.name.startswith(".")]


# Decoding any image -------------------------------------------------------------------------------

GREY = np.arange(256, dtype=np.uint8).reshape(16, 16)
COLOUR = np.stack([GREY, GREY[::-1], GREY.T], axis=-1)
ALPHA = np.roll(GREY, 77)
OPAQUE = ("1", "L", "P", "RGB", "CMYK", "YCbCr", "HSV", "LAB")


@pytest.mark.parametrize("mode", OPAQUE)
def test_opaque_modes_are_converted_as_pillow_does(mode):
    image = Image.fromarray(COLOUR)
    image = (
        image.convert("CMYK") if mode == "CMYK" else Image.new(mode, (16, 16)) if mode == "LAB" else image.convert(mode)
    )
    assert np.array_equal(to_rgb(image), image.convert("RGB"))


def onto_black(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    return colour * (alpha[..., None] / 255)


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
def test_transparent_colours_are_laid_onto_black(format):
    image = Image.fromarray(np.dstack([COLOUR, ALPHA]))
    options = {"lossless": True, "exact": True} if format == "WEBP" else {}
    got = decode(encode(image, format, **options), 16)
    assert np.abs(got - onto_black(COLOUR, ALPHA)).max() <= 1


def test_transparent_grey_is_laid_onto_black():
    image = Image.merge("LA", (Image.fromarray(GREY), Image.fromarray(ALPHA)))
    got = decode(encode(image), 16)
    assert np.abs(got - onto_black(np.dstack([GREY] * 3), ALPHA)).max() <= 1


@pytest.mark.parametrize("format", ["PNG", "GIF"])
def test_the_transparent_colour_of_a_palette_is_black(format):
    image = Image.new("P", (2, 1))
    image.putpalette([200, 100, 50, 10, 20, 30])
    image.putdata([0, 1])
    got = decode(encode(image.resize((2, 2)), format, transparency=0), 2)
    assert got[0].tolist() == [[0, 0, 0], [10, 20, 30]]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 65535), min_size=4, max_size=4))
def test_16_bit_grey_is_scaled_to_8_bits(values):
    array = np.array(values, dtype=np.uint16).reshape(2, 2)
    expected = (array.astype(int) + 128) // 257
    for format in ("PNG", "TIFF"):
        got = decode(encode(Image.fromarray(array), format), 2)
        assert got.tolist() == np.dstack([expected] * 3).tolist()
    as_integers = to_rgb(Image.fromarray(array.astype(np.int32)))
    assert np.array_equal(np.asarray(as_integers)[..., 0], expected)


def test_big_endian_16_bit_grey_is_read_as_such():
    image = Image.frombytes("I;16B", (2, 1), (257 * 3).to_bytes(2, "big") + (257 * 200).to_bytes(2, "big"))
    assert np.asarray(to_rgb(image))[0, :, 0].tolist() == [3, 200]


def test_wide_integers_and_floats_are_clipped_not_wrapped():
    wide = Image.fromarray(np.array([[-5, 70000]], dtype=np.int32))
    assert np.asarray(to_rgb(wide))[0, :, 0].tolist() == [0, 255]
    floats = Image.fromarray(np.array([[-1, 0.6, 254.4, 300]], dtype=np.float32))
    assert np.asarray(to_rgb(floats))[0, :, 0].tolist() == [0, 1, 254, 255]
    with pytest.raises(Unreadable, match="finite"):
        to_rgb(Image.fromarray(np.array([[np.nan]], dtype=np.float32)))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_upright(orientation):
    stored = Image.fromarray(COLOUR)
    exif = Image.Exif()
    exif[0x0112] = orientation
    turns = {
        2: "FLIP_LEFT_RIGHT",
        3: "ROTATE_180",
        4: "FLIP_TOP_BOTTOM",
        5: "TRANSPOSE",
        6: "ROTATE_270",
        7: "TRANSVERSE",
        8: "ROTATE_90",
    }
    upright = stored.transpose(Image.Transpose[turns[orientation]]) if orientation > 1 else stored
    assert np.array_equal(decode(encode(stored, exif=exif), 16), upright)


def test_other_sizes_are_squeezed_to_the_square_and_averaged():
    halves = np.zeros((8, 4, 3), dtype=np.uint8)
    halves[:4] = 100
    shrunk = decode(encode(Image.fromarray(halves)), 2)
    assert shrunk.shape == (2, 2, 3)
    assert (shrunk[0] > 80).all()
    assert (shrunk[1] < 20).all()
    checks = np.indices((64, 64)).sum(0).astype(np.uint8) % 2 * 200
    assert np.abs(decode(encode(Image.fromarray(checks)), 4).astype(int) - 100).max() <= 8
    dot = pixels(0, (1, 1))
    assert np.array_equal(decode(encode(Image.fromarray(dot)), 3), np.broadcast_to(dot, (3, 3, 3)))


def test_of_an_animation_the_first_frame_is_taken():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    assert decode(encode(frames[0], "GIF", save_all=True, append_images=frames[1:]), 4)[0, 0].tolist() == [255, 0, 0]


def empty_png() -> bytes:
    """Return a PNG of zero width."""
    content = bytearray(png(0))
    content[16:20] = bytes(4)
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


BROKEN = {
    "cut short": png(0, (64, 64))[:-200],
    "cut short as JPEG": encode(Image.fromarray(pixels(0, (64, 64))), "JPEG")[:-500],
    "a wrong checksum": png(0)[:40] + b"\0\0\0\0" + png(0)[44:],
    "empty": b"",
    "a text": b"this is no image",
    "without pixels": empty_png(),
    "another file's start": png(0)[:8],
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_an_unreadable_image_is_named_or_left_out_with_a_count(tmp_path, caplog, content):
    files = small() | {"train/bee/002.png": content}
    for root in (write(tmp_path / "root", files), pack(tmp_path / "root.tar", files)):
        message = refused(root, tmp_path / "cache")
        assert "train/bee/002.png" in message
        assert "dataset.unreadable=skip" in message
        assert "0x" not in message
    for _ in range(2):
        caplog.clear()
        data = load(tmp_path / "root", tmp_path / "cache", unreadable="skip")
        assert "unreadable images left out (dataset.unreadable=skip): 1, the first is train/bee/002.png" in caplog.text
        assert np.bincount(data.train.y).tolist() == [4, 3, 4]
        assert np.array_equal(data.train.x, np.stack([pixels(seed) for seed in range(12) if seed != 6]))
        assert len(data.test) == 6


def test_a_split_of_unreadable_images_only_is_refused(tmp_path):
    files = small() | {name: b"x" for name in small() if name.startswith("test")}
    assert "no readable test image" in refused(write(tmp_path / "root", files), tmp_path / "cache", unreadable="skip")


# Roots that are refused ---------------------------------------------------------------------------


def test_a_missing_root_says_what_is_expected(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for root in ("", tmp_path / "nowhere", tmp_path / "loop", "nul\0"):
        message = refused(root, tmp_path)
        assert "dataset.root" in message
        assert "train/<class>/*" in message
        assert "test/<class>/*" in message
        assert ".tar.xz" in message


def without(part: str) -> dict[str, bytes]:
    return {name: content for name, content in small().items() if not name.startswith(part)}


LAYOUTS = {
    "nothing": ({}, "has no folder train/ or test/"),
    "only other files": ({"a/b.png": png(0)}, "has no folder train/ or test/"),
    "no training images": (without("train"), "no images below train/"),
    "no test images": (without("test"), "no images below test/"),
    "images in no class": ({"train/0.png": png(0), "test/0.png": png(0)}, "no images below train/"),
    "an unknown class": (small() | {"test/dog/0.png": png(0)}, "classes in test/ that are not in train/: dog"),
    "several datasets": ({f"{top}/{name}": c for top in "ab" for name, c in small().items()}, "several datasets, a, b"),
}


@pytest.mark.parametrize(("files", "reason"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_wrong_layout_is_refused(tmp_path, files, reason):
    (tmp_path / "root").mkdir()
    assert reason in refused(write(tmp_path / "root", files), tmp_path / "cache")
    assert reason in refused(pack(tmp_path / "root.tar", files), tmp_path / "cache")


def test_an_empty_class_folder_is_refused(tmp_path):
    root = write(tmp_path / "root", small())
    (root / "train" / "dog").mkdir()
    assert "class folders without images: train/dog/" in refused(root, tmp_path / "cache")
    folder = tarfile.TarInfo("train/dog")
    folder.type = tarfile.DIRTYPE
    archive = pack(tmp_path / "root.tar", small(), folder)
    assert "class folders without images: train/dog/" in refused(archive, tmp_path / "cache")


def test_a_class_without_test_images_is_only_worth_a_warning(tmp_path, caplog):
    data = load(write(tmp_path / "root", without("test/bee")), tmp_path)
    assert data.classes == CLASSES
    assert data.test.y.tolist() == [0, 0, 2, 2]
    assert "no test images of bee" in caplog.text


def member(name: str, type: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = type, target
    return info


DANGEROUS = {
    "absolute path": (member("/etc/passwd"), "a path that leaves its folder"),
    "path upwards": (member("train/../../x.png"), "a path that leaves its folder"),
    "symbolic link": (member("train/ant/x.png", tarfile.SYMTYPE, "/etc/passwd"), "a link"),
    "hard link": (member("train/ant/x.png", tarfile.LNKTYPE, "train/ant/000.png"), "a link"),
    "device": (member("train/ant/x.png", tarfile.CHRTYPE), "neither a file nor a folder"),
    "pipe outside the classes": (member("x", tarfile.FIFOTYPE), "neither a file nor a folder"),
}


@pytest.mark.parametrize(("info", "reason"), DANGEROUS.values(), ids=DANGEROUS.keys())
def test_an_archive_that_could_harm_is_refused_and_its_member_named(tmp_path, info, reason):
    message = refused(pack(tmp_path / "root.tar", small(), info), tmp_path / "cache")
    assert f"is refused: its member {info.name!r} is {reason}" in message


@pytest.mark.parametrize(("info", "reason"), DANGEROUS.values(), ids=DANGEROUS.keys())
def test_a_zip_that_could_harm_is_refused_too(tmp_path, info, reason):
    if info.islnk():
        pytest.skip("a zip has no hard links")
    path = zipped(tmp_path / "root.zip", small())
    kind = {tarfile.SYMTYPE: stat.S_IFLNK, tarfile.CHRTYPE: stat.S_IFCHR, tarfile.FIFOTYPE: stat.S_IFIFO}
    with zipfile.ZipFile(path, "a") as archive:
        harmful = zipfile.ZipInfo(info.name)
        harmful.create_system = 3  # Unix, whose modes it holds
        harmful.external_attr = (kind.get(info.type, stat.S_IFREG) | 0o644) << 16
        archive.writestr(harmful, info.linkname)
    assert f"is refused: its member {info.name!r} is {reason}" in refused(path, tmp_path / "cache")


def test_a_zip_that_is_damaged_or_encrypted_or_holds_a_file_twice_is_refused(tmp_path):
    whole = zipped(tmp_path / "root.zip", small()).read_bytes()
    content = bytearray(whole)
    content[60] ^= 255  # in the first file
    directory = bytearray(whole)
    directory[directory.index(b"PK\1\2") + 8] |= 1
    for number, spoiled in enumerate((whole[:-1], whole[: len(whole) // 2], whole[:100], content, directory)):
        path = tmp_path / f"{number}.zip"
        path.write_bytes(spoiled)
        assert "cannot read the archive" in refused(path, tmp_path / "cache"), number
    with zipfile.ZipFile(tmp_path / "root.zip", "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("train/ant/000.png", b"")
    assert "holds train/ant/000.png twice" in refused(tmp_path / "root.zip", tmp_path / "cache")


def test_an_archive_that_holds_a_file_twice_is_refused(tmp_path):
    path = pack(tmp_path / "root.tar", small())
    with tarfile.open(path, "a") as tar:
        tar.addfile(member("./train/ant/000.png"))
    assert "holds train/ant/000.png twice" in refused(path, tmp_path / "cache")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_archive_cut_anywhere_is_refused(tmp_path, suffix):
    whole = pack(tmp_path / f"whole{suffix}", small()).read_bytes()
    end = whole.rstrip(b"\0").__len__() if suffix == ".tar" else len(whole)
    cuts = {1, 100, 512, 1024, 1536, 10_000, end // 2, end - 1, end // 512 * 512, -(-end // 512) * 512}
    for cut in sorted(cut for cut in cuts if cut < len(whole)):
        path = tmp_path / f"cut{cut}{suffix}"
        path.write_bytes(whole[:cut])
        assert "cannot read the archive" in refused(path, tmp_path / "cache"), cut


def test_an_archive_cut_far_behind_its_last_file_is_refused(tmp_path):
    padded = pack(tmp_path / "whole.tar", small()).read_bytes() + bytes(4 * archives.BUFFER_BYTES)
    whole = lzma.compress(padded)
    (tmp_path / "whole.tar.xz").write_bytes(whole)
    assert len(load(tmp_path / "whole.tar.xz", tmp_path).train) == 12
    (tmp_path / "cut.tar.xz").write_bytes(whole[:-1])
    assert "cannot read the archive" in refused(tmp_path / "cut.tar.xz", tmp_path / "cache")


def test_an_archive_with_a_garbled_header_is_refused(tmp_path):
    path = pack(tmp_path / "root.tar", small())
    content = bytearray(path.read_bytes())
    header = content.index(b"train/cow/001.png")
    content[header : header + 512] = b"x" * 512
    path.write_bytes(content)
    assert "cannot read the archive" in refused(path, tmp_path / "cache")


@pytest.mark.parametrize("content", [b"", b"PK\3\4 a zip", b"x" * 5000], ids=["empty", "zip", "text"])
def test_what_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "root.tar").write_bytes(content)
    assert "not a tar or zip archive" in refused(tmp_path / "root.tar", tmp_path / "cache")


def test_a_folder_with_a_loop_or_a_broken_link_or_a_pipe_is_refused(tmp_path):
    for number, spoil in enumerate(
        (
            lambda root: (root / "train/ant/loop").symlink_to(root / "train"),
            lambda root: (root / "train/ant/gone.png").symlink_to(root / "nowhere"),
            lambda root: os.mkfifo(root / "train/ant/pipe.png"),
        )
    ):
        root = write(tmp_path / str(number), small())
        spoil(root)
        assert str(root / "train/ant") in refused(root, tmp_path / "cache")


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_below_one_is_refused(size):
    with pytest.raises(UserError, match=r"dataset\.size must be at least 1"):
        ImageFolder(root="x", size=size)


def test_a_size_beyond_all_memory_and_disk_is_one_line(tmp_path):
    root = write(tmp_path / "root", small())
    for size in (10**7, 10**12):
        with pytest.raises(UserError, match=r"GiB\) in .*; free space there, lower dataset\.size"):
            load(root, tmp_path, size=size)


def test_a_cache_that_cannot_be_written_is_refused_before_decoding(tmp_path, decoded):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"paths\.data"):
        load(write(tmp_path / "root", small()), tmp_path / "file")
    assert not decoded


# Real photographs ---------------------------------------------------------------------------------


@pytest.mark.data
def test_the_real_cifar10_archive_is_listed_whole(real):
    entries = open_root(str(real / "cifar10-jpeg.tar.xz"), ("train", "test"), "").entries()
    assert sum(name.startswith("train/") and not name.endswith("/") for name in entries) == 50_000
    assert sum(name.startswith("test/") and not name.endswith("/") for name in entries) == 10_000


@pytest.mark.data
@pytest.mark.slow
def test_the_real_cifar10_archive_is_decoded_once(real, tmp_path, decoded):
    for _ in range(2):
        data = load(real / "cifar10-jpeg.tar.xz", tmp_path, size=32)
        assert data.train.x.shape == (50_000, 32, 32, 3)
        assert data.test.x.shape == (10_000, 32, 32, 3)
        assert len(decoded) == 60_000
    assert data.classes[:3] == ("airplane", "automobile", "bird")
    assert np.bincount(data.train.y).tolist() == [5000] * 10
    assert data.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=1e-3)  # published constants
    assert data.std == pytest.approx((0.2470, 0.2435, 0.2616), abs=3e-3)


@pytest.mark.data
def test_real_photographs_of_many_sizes_are_the_same_from_folder_and_archive(real, tmp_path):
    files = {}
    with tarfile.open(real / "office-caltech10.tar") as tar:
        for info in tar:
            domain, *rest = Path(info.name).parts
            if info.isfile() and domain in ("dslr", "webcam"):
                split = "train" if domain == "webcam" else "test"
                files["/".join([split, *rest])] = tar.extractfile(info).read()
    data = load(pack(tmp_path / "office.tar", files), tmp_path, size=32)
    assert (len(data.train), len(data.test), len(data.classes)) == (295, 157, 10)
    assert data.digest == load(write(tmp_path / "office", files), tmp_path / "other", size=32).digest
