"""domainnet: six archives and their lists, exactly as published or known to be others."""

import hashlib

import numpy as np
import pytest
import torch

from fedspan.tasks.datasets import domainnet
from fedspan.tasks.datasets.domainnet import DOMAINS, SUMS, TEN_CLASSES, DomainNet
from tests.tasks.files import png, write, zipped

LABELS = {"aircraft_carrier": 0, "bird": 31, "zebra": 343, "zigzag": 344}
CHOSEN = ("bird", "zebra")
COUNTS = {"train": 3, "test": 1}


def lists():
    """The lines of each list, as published: path, one space, label."""
    return {
        f"{domain}_{split}.txt": [
            f"{domain}/{cls}/{domain}_{label:03}_{split}{number:06}.png {label}"
            for cls, label in LABELS.items()
            for number in range(count)
        ]
        for domain in DOMAINS
        for split, count in COUNTS.items()
    }


def put(folder, lines=None, spoil=lambda images: images):
    """Write six archives and twelve lists; `spoil` changes the images of each archive."""
    lines = lines or lists()
    write(folder, {name: "\n".join(part).encode() + b"\n" for name, part in lines.items()})
    for number, domain in enumerate(DOMAINS):
        names = [line.split()[0] for split in COUNTS for line in lists()[f"{domain}_{split}.txt"]]
        images = {name: png(1000 * number + place, (9, 12)) for place, name in enumerate(names)}
        zipped(folder / f"{domain}.zip", spoil(images))
    return folder


def plugin(root, **fields):
    return DomainNet(root=str(root), **{"classes": CHOSEN, "size": 8} | fields)


def test_the_lists_say_what_is_trained_on_and_tested(tmp_path, own_data_root):
    data = plugin(put(tmp_path / "own")).prepare(own_data_root)
    assert data.classes == CHOSEN
    assert data.domains == DOMAINS
    assert data.shape == (3, 8, 8)
    for split, images in (("train", data.train), ("test", data.test)):
        count = COUNTS[split]
        assert images.y.tolist() == ([0] * count + [1] * count) * 6
        assert images.domain.tolist() == [domain for domain in range(6) for _ in range(2 * count)]
    every = torch.cat([data.train.x, data.test.x]).flatten(1)
    assert len(torch.unique(every, dim=0)) == len(every) == 48


def test_the_ten_classes_are_those_of_fedbn():
    assert DomainNet().classes == TEN_CLASSES
    assert len(TEN_CLASSES) == 10


def test_by_default_images_have_the_size_of_fedbns_code():
    assert DomainNet().what()["size"] == 256


def test_without_normalisation_pixels_are_only_scaled(tmp_path, own_data_root):
    root = put(tmp_path / "own")
    scaled = plugin(root, normalise=False).prepare(own_data_root)
    assert (scaled.mean, scaled.std) == ((0, 0, 0), (1, 1, 1))
    assert torch.equal(scaled.train.x, plugin(root).prepare(own_data_root).train.x)


def test_other_classes_are_another_dataset(tmp_path, own_data_root):
    root = put(tmp_path / "own")
    wide = plugin(root, classes=("zigzag", "bird", "zebra"))
    assert wide.what() != plugin(root).what()
    data = wide.prepare(own_data_root)
    assert data.classes == ("zigzag", "bird", "zebra")
    assert len(data.train) == 54
    assert data.digest != plugin(root).prepare(own_data_root).digest


def test_own_files_enter_the_key_and_their_place_does_not(tmp_path):
    first, second = plugin(put(tmp_path / "a")), plugin(put(tmp_path / "b/c"))
    assert first.what() == second.what()
    assert str(tmp_path) not in str(first.what())
    changed = lists()
    changed["real_test.txt"].reverse()
    assert plugin(put(tmp_path / "d", changed)).what() != first.what()
    assert "content" not in DomainNet().what()


def test_the_published_files_are_known_wherever_they_lie(tmp_path, own_data_root, monkeypatch):
    folder = put(own_data_root / "domainnet")
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in SUMS}
    monkeypatch.setattr(domainnet, "SUMS", sums)
    here = DomainNet(classes=CHOSEN, size=8)
    first = here.prepare(own_data_root)
    moved = plugin(folder.rename(tmp_path / "moved"))
    assert moved.what() == here.what()
    assert moved.prepare(tmp_path / "cache").digest == first.digest


def test_published_names_with_other_content_are_refused(own_data_root, refused):
    folder = put(own_data_root / "domainnet")
    assert f"{folder / 'clipart.zip'} is not the published file" in refused(DomainNet)


def test_missing_files_are_named_with_their_folder(own_data_root, refused):
    folder = put(own_data_root / "domainnet")
    (folder / "real.zip").unlink()
    (folder / "sketch_test.txt").unlink()
    assert f"put real.zip, sketch_test.txt into {folder}" in refused(DomainNet)


def test_there_are_eighteen_files_each_with_an_address_and_a_checksum():
    files = DomainNet().files()
    assert {file.name for file in files} == {
        f"{domain}{rest}" for domain in DOMAINS for rest in (".zip", "_train.txt", "_test.txt")
    }
    assert all(file.urls and len(file.checksum) == len("sha256:") + 64 for file in files)
    assert len({file.checksum for file in files}) == 18


def with_line(name, line):
    changed = lists()
    changed[name].insert(1, line)
    return changed


SPOILED = {
    "a label outside": (with_line("real_train.txt", "real/bird/x.png 345"), "line 2 has the label 345, outside 0..344"),
    "a negative label": (with_line("real_train.txt", "real/bird/x.png -1"), "line 2 has the label -1, outside 0..344"),
    "two labels of a class": (with_line("real_test.txt", "real/bird/x.png 7"), "gives bird the label 7, not 31"),
    "a line of another domain": (with_line("real_train.txt", "clipart/bird/x.png 31"), "line 2 is not 'real/<class>/"),
    "a path upwards": (with_line("real_train.txt", "real/../../x.png 31"), "line 2 is not 'real/<class>/"),
    "half a line": (with_line("real_train.txt", "real/bird/x.png"), "line 2 is not 'real/<class>/"),
    "an unlisted image": (with_line("real_train.txt", "real/bird/x.png 31"), "lacks 1 images that its lists name"),
    "a class without images": (
        lists() | {"real_test.txt": [line for line in lists()["real_test.txt"] if "/bird/" not in line]},
        "real_test.txt lists no images of bird",
    ),
}


@pytest.mark.parametrize(("lines", "reason"), SPOILED.values(), ids=SPOILED.keys())
def test_spoiled_lists_are_refused(tmp_path, refused, lines, reason):
    root = put(tmp_path / "own", lines)
    assert reason in refused(lambda: plugin(root))


def test_a_damaged_archive_is_refused(tmp_path, refused):
    root = put(tmp_path / "own")
    whole = (root / "real.zip").read_bytes()
    (root / "real.zip").write_bytes(whole[: len(whole) // 2])
    assert f"cannot read the archive dataset.root={root / 'real.zip'}" in refused(lambda: plugin(root))


def test_an_unreadable_image_is_named_or_left_out_with_a_count(tmp_path, refused, own_data_root, caplog):
    bird = "quickdraw/bird/quickdraw_031_train000001.png"
    root = put(tmp_path / "own", spoil=lambda images: images | ({bird: b"x"} if bird in images else {}))
    assert f"cannot decode {bird}" in refused(lambda: plugin(root))
    data = plugin(root, unreadable="skip").prepare(own_data_root)
    assert len(data.train) == 35
    assert np.bincount(data.train.domain).tolist() == [6, 6, 6, 5, 6, 6]
    assert f"unreadable images left out (dataset.unreadable=skip): 1, the first is {bird}" in caplog.text


def test_a_file_that_is_listed_twice_is_two_equal_images_and_one_of_both_splits_is_told(
    tmp_path, own_data_root, caplog
):
    lines = lists()
    lines["real_train.txt"].append(lines["real_train.txt"][3])
    lines["clipart_train.txt"].append(lines["clipart_test.txt"][1])
    data = plugin(put(tmp_path / "own", lines)).prepare(own_data_root)
    assert len(data.train) == 38
    assert data.train.x.flatten(1).amax(1).min() > 0, "no image is black"
    assert torch.equal(data.train.x[6], data.test.x[0])
    assert len(torch.unique(data.train.x.flatten(1), dim=0)) == 37
    twice = lines["clipart_test.txt"][1].split()[0]
    assert f"{tmp_path / 'own'} has images both in train and in test: 1 ({twice})" in caplog.text


@pytest.mark.parametrize(
    ("classes", "reason"),
    [
        (("bird", "zebr"), "DomainNet has no class 'zebr'; did you mean 'zebra'"),
        (("bird", "bird"), "names a class twice"),
        (("bird",), "must name two classes or more"),
        ((), "name 4 classes, domainnet has 345"),
    ],
)
def test_impossible_classes_are_refused(tmp_path, refused, classes, reason):
    root = put(tmp_path / "own")
    assert reason in refused(lambda: plugin(root, classes=classes))


def test_a_cell_trains_on_it(tmp_path, train):
    root = put(tmp_path / "own")
    record = train("dataset=domainnet", f"dataset.root={root}", "dataset.classes=[bird,zebra]", "dataset.size=16")
    assert record["spec"]["dataset"]["classes"] == list(CHOSEN)
