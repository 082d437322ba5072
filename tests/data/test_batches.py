import dataclasses

import numpy as np
import pytest
import torch

from fedspan.benchmark.data.batches import DeviceData
from fedspan.benchmark.task import Split
from tests.helpers import QUICK, device_data, everything_to_one, toy_cell
from tests.toys import Blobs

CPU = torch.device("cpu")


def resident(**protocol):
    data = Blobs().prepare(None)
    return data, DeviceData(data, everything_to_one(data), dataclasses.replace(QUICK, **protocol), CPU, seed=0)


def epoch(device_data, *where):
    return [torch.cat(parts) for parts in zip(*device_data.epoch(*where), strict=True)]


def test_pixels_are_normalised_by_channel():
    data, device = resident(precision="float64")
    x = data.train.x[:5].double().permute(0, 3, 1, 2) / 255
    expected = (x - torch.tensor([0.5, 0.4]).double()[:, None, None]) / torch.tensor([0.25, 0.3]).double()[
        :, None, None
    ]
    torch.testing.assert_close(device.normalise(data.train.x[:5]), expected)


def test_an_epoch_is_every_image_once_with_its_label():
    data, device = resident()
    x, y = epoch(device, 0, 0, 0)
    shown = {(image.numpy().tobytes(), int(label)) for image, label in zip(x, y, strict=True)}
    held = {
        (i.numpy().tobytes(), int(label)) for i, label in zip(device.normalise(data.train.x), data.train.y, strict=True)
    }
    assert shown == held
    assert len(x) == len(data.train)


def test_epochs_are_shuffled_by_round_client_and_number_and_repeat_exactly():
    data = Blobs().prepare(None)
    everything = np.arange(len(data.train))
    device = DeviceData(data, Split((everything, everything)), QUICK, CPU, seed=0)
    first = epoch(device, 0, 0, 0)[1].tolist()
    assert epoch(device, 0, 0, 0)[1].tolist() == first
    others = [(0, 0, 1), (0, 1, 0), (1, 0, 0)]
    assert all(epoch(device, *where)[1].tolist() != first for where in others)
    assert epoch(DeviceData(data, Split((everything,)), QUICK, CPU, seed=1), 0, 0, 0)[1].tolist() != first


def test_a_client_sees_its_own_images_only():
    device = device_data(toy_cell())
    held = [set(part.tolist()) for part in device.indices]
    assert sum(map(len, held)) == len(set.union(*held)) == 94
    for client, indices in enumerate(device.indices):
        _, y = epoch(device, client, 0, 0)
        assert torch.equal(y.sort().values, device.train.y[indices].sort().values)
        assert device.counts(client).tolist() == np.bincount(y, minlength=3).tolist()
        assert device.size(client) == len(indices)


@pytest.mark.parametrize(
    ("n", "last_batch", "sizes"),
    [(20, "keep", [8, 8, 4]), (20, "drop", [8, 8]), (16, "keep", [8, 8]), (5, "keep", [5]), (5, "drop", [5])],
)
def test_the_short_last_batch(n, last_batch, sizes):
    data = Blobs().prepare(None)
    protocol = dataclasses.replace(QUICK, last_batch=last_batch)
    device = DeviceData(data, Split((np.arange(n),)), protocol, CPU, 0)
    assert device.batch_sizes(n) == sizes
    assert [len(y) for _, y in device.epoch(0, 0, 0)] == sizes


def test_augmentation_changes_images_not_their_order():
    plain, augmented = (epoch(resident(augment=augment)[1], 0, 0, 0) for augment in ("none", "crop_flip"))
    assert torch.equal(plain[1], augmented[1])
    assert not torch.equal(plain[0], augmented[0])


def test_evaluation_is_in_order_and_never_augmented():
    data, device = resident(augment="crop_flip")
    x, y = (torch.cat(parts) for parts in zip(*device.in_order(device.test, 7), strict=True))
    assert torch.equal(x, device.normalise(data.test.x))
    assert torch.equal(y, data.test.y)
