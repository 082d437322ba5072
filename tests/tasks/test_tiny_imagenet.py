"""tiny_imagenet: the official layout, from the published zip or a user's own copy, whole or refused."""

import hashlib
import io

import numpy as np
import pytest
import torch
from PIL import Image

from fedspan.benchmark.data.published import PublishedFile
from fedspan.tasks.datasets import tiny_imagenet
from fedspan.tasks.datasets.tiny_imagenet import TinyImageNet
from tests.tasks.files import pack, write, zipped

WNIDS = [f"n{number:08}" for number in range(200)]


def jpeg(level: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), (level, level, level)).save(file, "JPEG")
    return file.getvalue()


def files(per_class=1):
    """The official layout; the grey level of an image is its class."""
    content = {"wnids.txt": "\n".join(reversed(WNIDS)).encode(), "words.txt": b"n00000000\tword\n"}
    lines = []
    for label, wnid in enumerate(WNIDS):
        image = jpeg(label)
        content[f"train/{wnid}/{wnid}_boxes.txt"] = b"0\t0\t0\t1\t1\n"
        content |= {f"train/{wnid}/images/{wnid}_{number}.JPEG": image for number in range(per_class)}
        content[f"val/images/val_{199 - label}.JPEG"] = image
        lines.append(f"val_{199 - label}.JPEG\t{wnid}\t0\t0\t63\t63")
    content["val/val_annotations.txt"] = "\n".join(lines).encode()
    content["test/images/test_0.JPEG"] = jpeg(0)
    return content


@pytest.fixture(scope="module")
def layout():
    return files()


def test_labels_are_the_classes_of_folders_and_annotations(tmp_path, own_data_root, layout):
    data = TinyImageNet(root=str(write(tmp_path / "own", layout))).prepare(own_data_root)
    assert data.classes == tuple(WNIDS)
    assert data.shape == (3, 64, 64)
    for images in (data.train, data.test):
        assert images.y.unique().tolist() == list(range(200))
        assert torch.equal(images.x[:, 0, 0, 0].long(), images.y)
    assert (data.mean, data.std) == ((0.5,) * 3, (0.5,) * 3)


def test_folder_tar_and_zip_are_the_same_data(tmp_path, own_data_root, layout, caplog):
    roots = [
        write(tmp_path / "a" / "tiny-imagenet-200", layout).parent,
        pack(tmp_path / "b.tar.gz", layout, top="tiny-imagenet-200/"),
        zipped(tmp_path / "c.zip", layout, top="tiny-imagenet-200/"),
    ]
    plugins = [TinyImageNet(root=str(root)) for root in roots]
    assert len({str(plugin.what()) for plugin in plugins}) == 1
    assert len({plugin.prepare(own_data_root).digest for plugin in plugins}) == 1
    assert "has 200 training and 200 test images, not 100000 and 10000 as tiny_imagenet" in caplog.text


def test_a_user_s_own_copy_is_another_dataset_than_the_published_one(tmp_path, layout):
    published, own = TinyImageNet(), TinyImageNet(root=str(write(tmp_path / "own", layout)))
    assert "content" not in published.what()
    assert own.what()["content"]
    assert str(tmp_path) not in str(own.what())


@pytest.fixture
def published(own_data_root, monkeypatch, layout):
    path = zipped(own_data_root / "tiny_imagenet" / "tiny-imagenet-200.zip", layout, top="tiny-imagenet-200/")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    archive = PublishedFile(path.name, f"sha256:{sha256}", tiny_imagenet.ARCHIVE.urls)
    monkeypatch.setattr(tiny_imagenet, "ARCHIVE", archive)
    return path


def test_the_published_zip_is_known_wherever_it_lies(published, own_data_root, tmp_path):
    first = TinyImageNet().prepare(own_data_root)
    moved = published.rename(tmp_path / published.name)
    for root in (tmp_path, moved):
        plugin = TinyImageNet(root=str(root))
        assert plugin.what() == TinyImageNet().what()
        assert plugin.prepare(tmp_path / "elsewhere").digest == first.digest


@pytest.mark.parametrize("held", [None, (), ("tiny-imagenet-200.zip.part", "tiny-imagenet-200.zip.part.lock")])
def test_the_published_zip_can_be_fetched_into_a_folder_of_ones_own(tmp_path, refused, held):
    place = tmp_path / "place"
    if held is not None:
        write(place, dict.fromkeys(held, b"")).mkdir(exist_ok=True)
    chosen = TinyImageNet(root=str(place))
    assert chosen.places(tmp_path) == [(tiny_imagenet.ARCHIVE, place / "tiny-imagenet-200.zip")]
    assert "content" not in chosen.what()
    assert "run 'fedspan data fetch tiny_imagenet'" in refused(lambda: chosen)


def test_a_damaged_published_zip_is_refused(published, refused):
    published.write_bytes(published.read_bytes()[:-10])
    assert f"{published} is not the published file: its sha256 is" in refused(TinyImageNet)


def test_without_files_one_line_says_what_to_put_where(refused, own_data_root):
    line = refused(TinyImageNet)
    assert "put tiny-imagenet-200.zip from http://cs231n.stanford.edu/tiny-imagenet-200.zip into" in line
    assert str(own_data_root / "tiny_imagenet") in line


def without(layout, part):
    return {name: content for name, content in layout.items() if not name.startswith(part)}


def edited(layout, name, edit):
    return layout | {name: edit(layout[name].decode()).encode()}


ANNOTATIONS = "val/val_annotations.txt"
SPOILED = {
    "no list of classes": (lambda files: without(files, "wnids.txt"), "lacks wnids.txt"),
    "no annotations": (lambda files: without(files, ANNOTATIONS), f"lacks {ANNOTATIONS}"),
    "199 classes": (lambda files: edited(files, "wnids.txt", lambda text: text[10:]), "lists 199 classes"),
    "201 classes": (lambda files: edited(files, "wnids.txt", lambda text: text + "\nn9"), "lists 201 classes"),
    "a class twice": (
        lambda files: edited(files, "wnids.txt", lambda text: text.replace(WNIDS[1], WNIDS[0])),
        "lists a class twice",
    ),
    "a class without images": (lambda files: without(files, f"train/{WNIDS[7]}/images"), f"images of {WNIDS[7]}"),
    "an unlisted class": (lambda files: files | {"train/n9/images/x.JPEG": b""}, "wnids.txt does not list n9"),
    "a missing line": (
        lambda files: edited(files, ANNOTATIONS, lambda text: text.partition("\n")[2]),
        "has no line for val/images/val_199.JPEG",
    ),
    "a missing image": (lambda files: without(files, "val/images/val_3.JPEG"), "lacks val/images/val_3.JPEG"),
    "an unknown class": (
        lambda files: edited(files, ANNOTATIONS, lambda text: text.replace(WNIDS[1], "n77", 1)),
        "val_annotations.txt line 2 of",
    ),
    "a line without class": (
        lambda files: edited(files, ANNOTATIONS, lambda text: "val_199.JPEG\n" + text),
        "val_annotations.txt line 1 of",
    ),
    "an unreadable image": (
        lambda files: files | {"val/images/val_5.JPEG": b"x"},
        "cannot decode val/images/val_5.JPEG",
    ),
}


@pytest.mark.parametrize(("spoil", "reason"), SPOILED.values(), ids=SPOILED.keys())
def test_a_spoiled_copy_is_refused(tmp_path, refused, layout, spoil, reason):
    root = zipped(tmp_path / "own.zip", spoil(layout))
    assert reason in refused(lambda: TinyImageNet(root=str(root)))


def test_unreadable_images_can_be_left_out_with_a_count(tmp_path, own_data_root, layout, caplog):
    root = pack(tmp_path / "own.tar", layout | {"val/images/val_5.JPEG": b"x"})
    data = TinyImageNet(root=str(root), unreadable="skip").prepare(own_data_root)
    assert (len(data.train), len(data.test)) == (200, 199)
    assert "unreadable images left out (dataset.unreadable=skip): 1, the first is val/images/val_5.JPEG" in caplog.text


def test_a_cell_trains_on_the_published_zip(published, train):
    assert "content" not in train("dataset=tiny_imagenet")["spec"]["dataset"]


@pytest.mark.data
@pytest.mark.slow
def test_a_cell_trains_on_the_real_subset(real, train, own_data_root, capsys):
    root = real / "tiny-imagenet-200-subset.tar.xz"
    record = train("dataset=tiny_imagenet", f"dataset.root={root}")
    assert record["spec"]["dataset"]["content"]
    assert "has 20000 training and 4000 test images, not 100000 and 10000" in " ".join(capsys.readouterr().err.split())
    data = TinyImageNet(root=str(root)).prepare(own_data_root)
    assert np.bincount(data.train.y).tolist() == [100] * 200
    assert np.bincount(data.test.y).tolist() == [20] * 200
