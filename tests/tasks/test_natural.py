"""Clients as the data have them: the partition, and the datasets that say whose each image is."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedspan.benchmark.data.roots import digest_once
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.rng import numpy_generator
from fedspan.benchmark.task import Data, Images
from fedspan.tasks.datasets.client_folder import ClientFolder
from fedspan.tasks.datasets.femnist import CLASSES, Femnist
from fedspan.tasks.partitions.natural import Natural
from tests.helpers import how, toy_cell, trained
from tests.tasks.files import pack, png, write, zipped


def owned(train, test=None, clients=None):
    """Return images without pixels whose owners are given by number; `test` None: everybody's."""

    def images(owners):
        client = None if owners is None else torch.tensor(owners)
        n = 5 if owners is None else len(owners)
        return Images(torch.zeros(n, 1, 1, 1, dtype=torch.uint8), torch.arange(n) % 2, client=client)

    names = tuple(map(str, range(clients or max(train) + 1)))
    return Data(images(train), images(test), ("a", "b"), (0.5,), (0.5,), "d" * 8, clients=names)


def split(data, clients, seed=0, **settings):
    return Natural(**settings).prepare(data, clients, numpy_generator(seed, "partition"))


# the partition --------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 3), st.integers(0, 9), st.data())
def test_each_client_holds_all_images_of_one_person_and_no_other(owners, least, seed, data):
    able = {owner for owner in owners if owners.count(owner) >= least}
    if not able:
        return
    clients = data.draw(st.integers(1, len(able)))
    parts = split(owned(owners, clients=7), clients, seed, min_size=least).train
    people = [owners[part[0]] for part in parts]
    assert people == sorted(set(people)), "in the order of their names"
    assert set(people) <= able
    for owner, part in zip(people, parts, strict=True):
        assert part.tolist() == [image for image, other in enumerate(owners) if other == owner]


def test_of_more_people_than_clients_some_are_drawn():
    data = owned([number // 3 for number in range(60)])
    drawn = {tuple(int(part[0]) // 3 for part in split(data, 5, seed).train) for seed in range(5)}
    assert len(drawn) > 1
    assert split(data, 20, 0).digest == split(data, 20, 1).digest, "all of them take part"


def test_clients_are_tested_on_their_own_images_where_these_are_known():
    found = split(owned([0, 0, 1, 2, 2], [2, 0, 0, 3], clients=4), 2)
    assert [part.tolist() for part in found.train] == [[0, 1], [3, 4]]
    assert [part.tolist() for part in found.test] == [[1, 2], [0]]
    assert split(owned([0, 1]), 2).test is None


def test_too_many_clients_are_one_clear_line():
    said = (
        r"of the 4 clients in the data 2 have at least partition.min_size=1 training images and a test image of their"
    )
    with pytest.raises(UserError, match=said + r" own, got clients=3; lower clients$"):
        split(owned([0, 0, 1, 2, 2], [2, 0, 0, 3], clients=4), 3)
    with pytest.raises(UserError, match=r"0 have at least partition.min_size=9 training images, got clients=1"):
        split(owned([0, 0, 1]), 1, min_size=9)
    with pytest.raises(UserError, match=r"partition.min_size must be at least 1"):
        Natural(min_size=0)


def test_a_dataset_that_does_not_say_whose_its_images_are_is_refused():
    data = owned([0, 1])
    nobodys = dataclasses.replace(data, train=dataclasses.replace(data.train, client=None))
    with pytest.raises(UserError, match=r"needs a dataset that says whose each image is, as femnist or client_folder"):
        split(nobodys, 2)


@given(st.integers(10, 40), st.permutations([number % 5 for number in range(40)]))
def test_a_limit_of_an_image_for_each_person_and_class_reaches_everybody(limit, owners):
    data = owned(owners, owners)

    @dataclasses.dataclass(frozen=True)
    class Given(Femnist):
        name = "given"

        def load(self, cache):
            return data

    cut = Given(limit=limit).prepare(None).train
    assert len(cut) == limit
    assert len(cut.client.unique()) == 5


# folders of clients ---------------------------------------------------------------------------------------

OWN = {
    f"{split}/{client}/{cls}/{number}.png": png(seed)
    for seed, (split, client, cls, number) in enumerate(
        (s, c, k, n)
        for s, many in (("train", 2), ("test", 1))
        for c in ("ann", "bob")
        for k in "xy"
        for n in range(many)
    )
}
SHARED = {name: content for name, content in OWN.items() if name.startswith("train")} | {"test/y/0.png": png(99)}


def test_clients_and_classes_are_folders(tmp_path):
    data = ClientFolder(root=str(write(tmp_path / "photos", OWN)), size=4).prepare(tmp_path)
    assert (data.clients, data.classes) == (("ann", "bob"), ("x", "y"))
    assert data.train.client.tolist() == [0] * 4 + [1] * 4
    assert data.train.y.tolist() == [0, 0, 1, 1] * 2
    assert data.test.client.tolist() == [0, 0, 1, 1]
    own = split(data, 2)
    assert [part.tolist() for part in own.test] == [[0, 1], [2, 3]]


def test_test_images_can_be_everybodys(tmp_path):
    data = ClientFolder(root=str(write(tmp_path / "photos", SHARED)), size=4).prepare(tmp_path)
    assert data.test.client is None
    assert data.test.y.tolist() == [1]
    assert split(data, 2).test is None


def test_clients_and_classes_may_have_the_same_names(tmp_path):
    named = {"x": "ann", "y": "bob"}
    for files in (OWN, SHARED):
        alike = {"/".join(named.get(part, part) for part in name.split("/")): files[name] for name in files}
        folders = [str(write(tmp_path / f"{len(files)}-{number}", each)) for number, each in enumerate((files, alike))]
        data, same = (ClientFolder(root=folder, size=4).prepare(tmp_path) for folder in folders)
        assert same.classes == same.clients == ("ann", "bob")
        assert same.test.y.tolist() == data.test.y.tolist()
        assert (same.test.client is None) == (data.test.client is None)


def test_an_image_that_is_added_is_seen_by_the_same_process(tmp_path):
    folder = write(tmp_path / "photos", OWN)
    before = ClientFolder(root=str(folder), size=4).what()
    write(folder, {"train/ann/x/new.png": png(78)})
    assert ClientFolder(root=str(folder), size=4).what() != before
    assert len(ClientFolder(root=str(folder), size=4).prepare(tmp_path).train) == 9


def test_the_key_is_that_of_the_content_wherever_it_lies(tmp_path):
    folder, archive = write(tmp_path / "a", OWN), zipped(tmp_path / "b.zip", OWN)
    cells = [toy_cell(dataset=ClientFolder(root=str(root), size=4)).key for root in (folder, archive)]
    assert cells[0] == cells[1]
    (folder / "train" / "ann" / "x" / "0.png").write_bytes(png(77))
    digest_once.cache_clear()  # as in another process
    assert toy_cell(dataset=ClientFolder(root=str(folder), size=4)).key != cells[0]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"train/ann/x.png": png(0), "test/ann/x.png": png(1)}, "no images below train/<client>/<class>/"),
        ({"train/ann/x/0.png": png(0), "test/0.png": png(1)}, "no images below test/"),
        ({"train/ann/x/0.png": png(0), "test/carl/x/0.png": png(1)}, "neither clients nor classes of train/: carl"),
        (
            {"train/ann/x/0.png": png(0), "test/ann/x/0.png": png(1), "test/carl/x/0.png": png(2)},
            "neither clients nor classes of train/: carl$",
        ),
        ({"train/ann/x/0.png": png(0), "test/ann/z/0.png": png(1)}, "neither clients nor classes of train/: z"),
    ],
)
def test_another_layout_is_one_clear_line(tmp_path, files, said):
    with pytest.raises(UserError, match=said) as error:
        ClientFolder(root=str(write(tmp_path / "photos", files))).prepare(tmp_path)
    assert "\n" not in str(error.value)


# FEMNIST as LEAF writes it ----------------------------------------------------------------------------------


def leaf(writers, seed=0):
    """Return a file of LEAF's: `writers` have so many images each."""
    draws = np.random.default_rng(seed)
    users = {
        name: {"x": (draws.integers(0, 256, (n, 784)) / 255).tolist(), "y": draws.integers(0, 62, n).tolist()}
        for name, n in writers.items()
    }
    return {"users": list(writers), "num_samples": list(writers.values()), "user_data": users}


def stored(folder, **files):
    """Write LEAF's files, `train_0` as train/0.json."""
    return write(folder, {f"{name.replace('_', '/')}.json": json.dumps(one).encode() for name, one in files.items()})


@pytest.fixture
def tiny(tmp_path):
    return stored(
        tmp_path / "leaf",
        train_0=leaf({"f0001": 3, "f0000": 2}),
        train_1=leaf({"f0002": 4, "f0003": 0}, 1),
        test_0=leaf({"f0000": 1, "f0002": 2}, 2),
    )


def test_leafs_files_are_images_of_writers(tiny, tmp_path):
    data = Femnist(root=str(tiny)).prepare(tmp_path)
    assert data.clients == ("f0000", "f0001", "f0002")
    assert (len(CLASSES), CLASSES[10], CLASSES[36], CLASSES[61]) == (62, "A", "a", "z")
    assert data.shape == (1, 28, 28)
    assert data.train.client.tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert data.test.client.tolist() == [0, 2, 2]
    first = json.loads((tiny / "train" / "0.json").read_text())["user_data"]["f0001"]
    assert (data.train.x[2:5].flatten(1) / 255).numpy() == pytest.approx(np.array(first["x"]))
    assert data.train.y[2:5].tolist() == first["y"]
    assert data.mean[0] == pytest.approx(float(data.train.x.double().mean() / 255))


def test_the_order_of_an_archive_changes_nothing(tiny, tmp_path):
    files = {str(path.relative_to(tiny)): path.read_bytes() for path in sorted(tiny.rglob("*.json"), reverse=True)}
    own, packed = Femnist(root=str(tiny)), Femnist(root=str(pack(tmp_path / "leaf.tar", files)))
    assert own.what() == packed.what()
    assert packed.prepare(tmp_path / "second").digest == own.prepare(tmp_path / "first").digest


def test_a_cell_trains_on_writers(tiny, tmp_path):
    cell = toy_cell(dataset=Femnist(root=str(tiny)), partition=Natural(), clients=2, protocol={"rounds": 1})
    run = trained(cell, folder=tmp_path)
    assert [run.trainer.data.size(client) for client in range(2)] == [2, 4]
    assert [len(test) for test in run.trainer.data.tests] == [1, 2]
    assert how(tmp_path).data.is_dir()


def test_the_files_are_known_by_their_content(tiny, tmp_path):
    content = Femnist(root=str(tiny)).what()["content"]
    assert Femnist(content=content).what() == Femnist(root=str(tiny), content=content).what()
    stored(tiny, test_0=leaf({"f0000": 1, "f0002": 2}, 3))
    digest_once.cache_clear()  # as in another process
    assert Femnist(root=str(tiny)).what()["content"] != content
    with pytest.raises(UserError, match=f"holds other files than dataset.content={content} says"):
        Femnist(root=str(tiny), content=content).prepare(tmp_path)


def test_without_files_it_says_where_to_get_them(tmp_path):
    with pytest.raises(
        UserError, match=r"^dataset\.root is not set; .*preprocess\.sh -s niid --sf 0\.1 -k 64 -t sample"
    ):
        Femnist().prepare(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"user_data": {"w": {"x": [[0.0] * 783], "y": [1]}}}, r"x of shape \[1, 783\] is not 1 images of 784"),
        ({"user_data": {"w": {"x": [[2.0] * 784], "y": [1]}}}, "values from 0 to 1"),
        ({"user_data": {"w": {"x": [[0.0] * 784], "y": [62]}}}, "no whole numbers from 0 to 61"),
        ({"user_data": {"w": {"x": [[0.0] * 784], "y": [0.5]}}}, "no whole numbers"),
        ({"user_data": {"w": {"x": [[0.0] * 784]}}}, "KeyError: 'y'"),
        ({"user_data": {"f0002": {"x": [], "y": []}}}, "writer f0002 is in another file of train/ too"),
        ({"user_data": {"w": {"x": [[10**400] * 784], "y": [1]}}}, "OverflowError"),
        ({"users": []}, "KeyError: 'user_data'"),
        ([], "TypeError"),
    ],
)
def test_a_file_of_another_form_is_one_clear_line(tiny, tmp_path, change, said):
    stored(tiny, train_2=change)
    with pytest.raises(UserError, match=f"train/2.json of .* is not LEAF's FEMNIST: .*{said}") as error:
        Femnist(root=str(tiny)).prepare(tmp_path)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_json_is_one_clear_line(tiny, tmp_path):
    (tiny / "test" / "0.json").write_bytes(b"\x80{")
    with pytest.raises(UserError, match=r"test/0\.json of .* is not LEAF's FEMNIST"):
        Femnist(root=str(tiny)).prepare(tmp_path)
