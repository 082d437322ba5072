"""AutoAugment on whole batches against pipelines that take one Pillow image at a time."""

import dataclasses
import random

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from scipy import ndimage
from torchvision import transforms

from fedspan.benchmark.data.autoaugment import LEVELS, POLICY, RANGES, autoaugment, autoaugment_draws
from fedspan.benchmark.data.batches import DeviceData
from fedspan.benchmark.task import Data, Images
from fedspan.benchmark.training.process import keep_freed_memory
from tests.data.test_autoaugment import MOVES, ON_VALUES, moved, photographs
from tests.helpers import everything_to_one, toy_cell

pytestmark = pytest.mark.perf

N = 2560


BICUBIC = Image.Resampling.BICUBIC
ONE_IMAGE = {
    **ON_VALUES,
    "ShearY": lambda i, m: i.transform(i.size, Image.Transform.AFFINE, (1, m, 0, 0, 1, 0), BICUBIC),
    "TranslateX": lambda i, m: i.transform(i.size, Image.Transform.AFFINE, (1, 0, m * i.width, 0, 1, 0), BICUBIC),
    "TranslateY": lambda i, m: i.transform(i.size, Image.Transform.AFFINE, (1, 0, 0, 0, 1, m * i.height), BICUBIC),
    "Rotate": lambda i, m: i.rotate(m, BICUBIC),
}


def one_autoaugment(image, operations=ONE_IMAGE):
    for name, probability, level in random.choice(POLICY):
        if random.random() < probability:
            low, high = RANGES[name]
            width = (high - low) / LEVELS
            image = operations[name](image, low + width * (level + random.random()))
    return image


def by_spline(name):
    """The released code's operation: SciPy's cubic spline, as ours computes too."""

    def move(image, magnitude):
        pixels, matrix = np.asarray(image), moved(name, (image.height, image.width), magnitude)
        planes = [ndimage.affine_transform(pixels[..., c], matrix[:2, :2], matrix[:2, 2]) for c in range(3)]
        return Image.fromarray(np.stack(planes, axis=-1))

    return move


THE_SAME_PIXELS = {**ON_VALUES, **{name: by_spline(name) for name in MOVES}}


def one_crop_flip(image):
    left, top = random.randrange(9), random.randrange(9)
    image = ImageOps.expand(image, 4).crop((left, top, left + image.width, top + image.height))
    return ImageOps.mirror(image) if random.random() < 0.5 else image


@pytest.fixture(autouse=True)
def as_a_run_has_it():
    keep_freed_memory()


def bare(image):
    """Nothing but Pillow, and as little of it as possible; its bicubic kernel in place of the spline."""
    return np.asarray(one_autoaugment(image))


def released(image):
    """What gives the pixels that ours gives."""
    return np.asarray(one_autoaugment(image, THE_SAME_PIXELS))


POLICY_OF_TORCHVISION = transforms.AutoAugment(transforms.AutoAugmentPolicy.CIFAR10)


def stock(image):
    """What most training scripts do."""
    return np.asarray(POLICY_OF_TORCHVISION(image))


REFERENCES = {
    "the released code's operations": released, "torchvision's AutoAugment": stock, "nothing but Pillow": bare,
}  # fmt: skip
against = pytest.mark.parametrize("reference", REFERENCES, ids=lambda name: name.replace(" ", "-"))


@pytest.mark.parametrize("side", [32, 64])
@against
def test_autoaugment(compare, side, reference):
    x = photographs(N * 32 // side, side, side)
    generator = torch.Generator().manual_seed(0)

    def ours():
        for part in x.split(4 * 2**20 // x[0].numel()):
            autoaugment(part, autoaugment_draws(len(part), generator))

    compare(
        ours, lambda: [REFERENCES[reference](Image.fromarray(image)) for image in x.numpy()],
        against=f"{reference}, one image at a time", target="at most 0.2", repeats=5,
    )  # fmt: skip


@against
def test_an_epoch_of_batches_of_64(compare, reference):
    x = photographs(N, 32, 32)
    images = Images(x, torch.arange(N) % 10)
    data = Data(images, images, tuple("0123456789"), (0.5,) * 3, (0.25,) * 3, "digest")
    protocol = dataclasses.replace(toy_cell().protocol, batch_size=64, augment="crop_flip_autoaugment")
    device = DeviceData(data, everything_to_one(data), protocol, torch.device("cpu"), seed=0)
    order = iter(range(10**9))
    augment, whole = REFERENCES[reference], transforms.Compose([
        transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(),
        POLICY_OF_TORCHVISION, transforms.ToTensor(),
        transforms.Normalize((0.5,) * 3, (0.25,) * 3),
    ])  # fmt: skip

    def by_pillow(batch):
        made = [augment(one_crop_flip(Image.fromarray(i))) for i in x[batch].numpy()]
        return (torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25

    def by_torchvision(batch):
        return torch.stack([whole(Image.fromarray(i)) for i in x[batch].numpy()])

    work = by_torchvision if augment is stock else by_pillow
    compare(
        lambda: [len(y) for _, y in device.epoch(0, 0, next(order))],
        lambda: [work(batch) for batch in torch.randperm(N).split(64)],
        against=f"crop, flip, AutoAugment and normalisation: {reference}", target="at most 0.2", repeats=5,
    )  # fmt: skip
