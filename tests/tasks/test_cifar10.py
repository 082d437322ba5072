"""cifar10: the published archive read safely, or a user's own images, never one for the other."""

import hashlib
import pickle
import re

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10

from fedspan.tasks.datasets.cifar10 import Cifar10
from tests.tasks.files import pack, png, write
from tests.tasks.pickles import cifar_archive, pickled, rows

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FOLDER = "cifar-10-batches-py"
BATCHES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]


def members(**changes):
    """Twelve images per batch."""
    batches = {
        f"{FOLDER}/{name}": {
            "batch_label": name,
            "labels": [(number + place) % 10 for place in range(12)],
            "data": rows(number, 12),
            "filenames": [f"{place}.png" for place in range(12)],
        }
        for number, name in enumerate(BATCHES)
    }
    meta = {"num_cases_per_batch": 12, "label_names": NAMES, "num_vis": 3072}
    return {f"{FOLDER}/batches.meta": meta, **batches, **{f"{FOLDER}/{k}": v for k, v in changes.items()}}


@pytest.fixture
def archive(own_data_root, monkeypatch):
    """Return a function that puts an archive where it belongs and makes its md5 the published one."""

    def put(content=None):
        path = own_data_root / "cifar10" / "cifar-10-python.tar.gz"
        monkeypatch.setattr(CIFAR10, "tgz_md5", cifar_archive(path, content or members()))
        return path

    return put


def own(files_per_class=(5, 2), classes=NAMES):
    return {
        f"{split}/{cls}/{number}.png": png(hash((split, cls, number)) % 1000, (32, 32))
        for split, count in zip(("train", "test"), files_per_class, strict=True)
        for cls in classes
        for number in range(count)
    }


def test_images_and_labels_are_those_of_the_batches_in_order(archive, own_data_root):
    archive()
    data = Cifar10().prepare(own_data_root)
    expected = np.concatenate([rows(number, 12) for number in range(5)]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    assert np.array_equal(data.train.x, expected)
    assert np.array_equal(data.test.x, rows(5, 12).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    assert data.train.y.tolist() == [(number + place) % 10 for number in range(5) for place in range(12)]
    assert data.classes == tuple(NAMES)
    assert data.train.y.dtype == torch.int64


def test_pickles_are_those_of_python_2():
    loaded = pickle.loads(pickled({"data": rows(0, 2), "labels": [1, 2]}), encoding="bytes")
    assert np.array_equal(loaded[b"data"], rows(0, 2))
    assert b"numpy.core.multiarray\n_reconstruct" in pickled({"data": rows(0, 2)})


def test_pixels_are_normalised_by_the_constants_of_the_released_code(archive, own_data_root):
    archive()
    data = Cifar10().prepare(own_data_root)
    assert [255 * mean for mean in data.mean] == pytest.approx([125.3, 123.0, 113.9])
    assert [255 * std for std in data.std] == pytest.approx([63.0, 62.1, 66.7])


def test_the_key_needs_no_files_and_no_place(archive, tmp_path):
    assert Cifar10().what() == Cifar10(root=str(tmp_path)).what() == {"name": "cifar10", "version": 1, "limit": 0}


def test_root_is_the_folder_or_the_file_itself(archive, own_data_root, tmp_path):
    path = archive().rename(tmp_path / "cifar-10-python.tar.gz")
    digests = {Cifar10(root=str(root)).prepare(tmp_path / str(i)).digest for i, root in enumerate((tmp_path, path))}
    assert len(digests) == 1


def test_decoded_arrays_outlive_the_archive(archive, own_data_root):
    path = archive()
    first = Cifar10().prepare(own_data_root)
    path.unlink()
    assert Cifar10().prepare(own_data_root).digest == first.digest


def test_a_missing_archive_is_one_line_with_its_name_folder_and_address(refused, own_data_root):
    line = refused(Cifar10)
    assert "put cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz into " in line
    assert f"into {own_data_root / 'cifar10'}" in line
    assert "fedspan data fetch cifar10" in line
    assert "dataset.root" in line
    write(own_data_root / "cifar10", {"cifar-10-python.tar.gz.part": b"x"})
    assert "half-downloaded" in refused(Cifar10)


def test_an_archive_with_another_checksum_is_not_opened(archive, own_data_root, refused):
    path = archive()
    path.write_bytes(path.read_bytes()[:-1])
    line = refused(Cifar10)
    assert f"{path} is not the published file: its md5 is {hashlib.md5(path.read_bytes()).hexdigest()}" in line
    assert CIFAR10.tgz_md5 in line


class Harmful:
    def __reduce__(self):
        return print, ("harm",)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"data_batch_2": pickle.dumps(Harmful(), 2)}, "data_batch_2 in .* is refused: it asks for __builtin__.print"),
        ({"data_batch_2": b"no pickle"}, "data_batch_2 in .* is refused"),
        ({"data_batch_2": [1]}, "holds no dictionary"),
        ({"data_batch_2": {"data": rows(0, 2)}}, "has not the format of cifar10: KeyError"),
        ({"data_batch_2": {"data": rows(0, 2)[:, :7], "labels": [1, 2]}}, "has not the format of cifar10"),
        ({"data_batch_2": {"data": rows(0, 2), "labels": [1]}}, "has 50 train images but 49 labels"),
        ({"test_batch": {"data": rows(0, 2), "labels": [1, 10]}}, "has the test label 10, outside 0..9"),
        ({"test_batch": {"data": rows(0, 2), "labels": [1, -1]}}, "has the test label -1, outside 0..9"),
        ({"batches.meta": {"label_names": NAMES[:9]}}, "names 9 classes, cifar10 has 10"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:30],
)
def test_an_archive_of_another_content_is_refused(archive, refused, capsys, change, reason):
    archive(members(**change))
    assert re.search(reason, refused(Cifar10))
    assert "harm" not in capsys.readouterr().out


def test_an_archive_without_a_batch_is_refused(archive, refused):
    content = members()
    del content[f"{FOLDER}/data_batch_3"]
    archive(content)
    assert f"lacks {FOLDER}/data_batch_3" in refused(Cifar10)


# own images ---------------------------------------------------------------------------------------


def test_own_images_are_another_dataset_wherever_they_lie(tmp_path, own_data_root, caplog):
    folder, archive = write(tmp_path / "own", own()), pack(tmp_path / "own.tar.gz", own())
    first, second = Cifar10(source=str(folder)), Cifar10(source=str(archive))
    assert first.what() == second.what() != Cifar10().what()
    assert str(tmp_path) not in str(first.what())
    data = first.prepare(own_data_root)
    assert data.digest == second.prepare(own_data_root).digest
    assert data.mean[0] == pytest.approx(125.3 / 255)
    assert "has 50 training and 20 test images, not 50000 and 10000 as cifar10" in caplog.text


def test_own_images_of_other_classes_are_refused(tmp_path, refused):
    root = write(tmp_path / "own", own(classes=NAMES[:3]))
    assert f"dataset.source={root} has 3 classes, cifar10 has 10" in refused(lambda: Cifar10(source=str(root)))


def test_an_unreadable_own_image_is_named_or_left_out_with_a_count(tmp_path, refused, own_data_root, caplog):
    root = write(tmp_path / "own", own() | {"train/cat/1.png": b"x"})
    line = refused(lambda: Cifar10(source=str(root)))
    assert f"cannot decode train/cat/1.png of dataset.source={root}" in line
    assert "dataset.unreadable=skip" in line
    data = Cifar10(source=str(root), unreadable="skip").prepare(own_data_root)
    assert len(data.train) == 49
    assert "unreadable images left out (dataset.unreadable=skip): 1, the first is train/cat/1.png" in caplog.text


def test_root_and_source_together_are_refused(refused):
    assert "give one of the two" in refused(lambda: Cifar10(root="x", source="y"))


def test_a_missing_source_names_its_setting(tmp_path, refused):
    assert f"dataset.source={tmp_path / 'no'} does not exist" in refused(lambda: Cifar10(source=str(tmp_path / "no")))


def test_a_cell_trains_on_it(archive, train):
    archive()
    assert train("dataset=cifar10")["spec"]["dataset"]["name"] == "cifar10"


@pytest.mark.data
@pytest.mark.slow
def test_a_cell_trains_on_the_real_jpegs(real, train, capsys):
    record = train("dataset=cifar10", f"dataset.source={real / 'cifar10-jpeg.tar.xz'}")
    assert record["spec"]["dataset"]["content"]
    assert "WARNING" not in capsys.readouterr().err


def test_a_stated_content_gives_the_key_where_the_images_are_not(tmp_path, own_data_root, refused):
    here = Cifar10(source=str(write(tmp_path / "own", own())))
    content = here.what()["content"]
    elsewhere = Cifar10(content=content)
    assert elsewhere.what() == here.what() == Cifar10(source=here.source, content=content).what()
    assert "dataset.source is not set" in refused(lambda: elsewhere)
    assert "holds other images than dataset.content=0000" in refused(
        lambda: Cifar10(source=here.source, content="0000")
    )
    assert "dataset.content" not in refused(lambda: Cifar10(source=str(tmp_path / "absent")))
