"""Every operation against Pillow, or scipy where the released code uses it; the policy against its table."""

import dataclasses
import math
import typing

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image, ImageEnhance, ImageOps
from scipy import ndimage
from torchvision.transforms import AutoAugment, AutoAugmentPolicy

from fedspan.benchmark.data import batches as data_module
from fedspan.benchmark.data.augment import AUGMENTATIONS, DEGREES, flip_rotate, flip_rotate_draws
from fedspan.benchmark.data.autoaugment import (
    LEVELS,
    NUMBER,
    OPERATIONS,
    POLICY,
    RANGES,
    autoaugment,
    autoaugment_draws,
)
from fedspan.benchmark.data.batches import DeviceData
from fedspan.benchmark.errors import Incompatible
from fedspan.benchmark.protocol import Protocol
from fedspan.benchmark.task import Data, Images
from tests.helpers import everything_to_one, toy_cell

ON_VALUES = {
    "Invert": lambda image, m: ImageOps.invert(image),
    "Solarize": ImageOps.solarize,
    "Posterize": lambda image, m: ImageOps.posterize(image, round(m)),
    "AutoContrast": lambda image, m: ImageOps.autocontrast(image),
    "Equalize": lambda image, m: ImageOps.equalize(image),
    "Contrast": lambda image, m: ImageEnhance.Contrast(image).enhance(m),
    "Color": lambda image, m: ImageEnhance.Color(image).enhance(m),
    "Brightness": lambda image, m: ImageEnhance.Brightness(image).enhance(m),
    "Sharpness": lambda image, m: ImageEnhance.Sharpness(image).enhance(m),
}


def moved(name, size, m):
    """Return where a pixel (row, column, 1) is read: the released code's matrices about its middle."""
    height, width = size
    angle = math.radians(m)
    about = {
        "ShearX": [[1, m, 0], [0, 1, 0]],
        "ShearY": [[1, 0, 0], [m, 1, 0]],
        "TranslateX": [[1, 0, 0], [0, 1, m * width]],
        "TranslateY": [[1, 0, m * height], [0, 1, 0]],
        "Rotate": [[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0]],
    }[name]
    about = np.array([*about, [0, 0, 1]])
    there, back = np.eye(3), np.eye(3)
    there[:2, 2] = height / 2 + 0.5, width / 2 + 0.5
    back[:2, 2] = -there[:2, 2]
    return there @ about @ back


MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")


def photographs(n, height, width, channels=3):
    """Return smooth images with some noise; one is constant, one nothing but noise, one has little contrast."""
    rng = np.random.default_rng(0)
    coarse = rng.uniform(-60, 315, (n, 5, 5, channels))
    rows, columns = (np.linspace(0, 4, size) for size in (height, width))
    fine = np.stack([
        np.stack([ndimage.map_coordinates(image[..., c], np.meshgrid(rows, columns, indexing="ij"), order=1)
                  for c in range(channels)], axis=-1) for image in coarse
    ])  # fmt: skip
    x = np.clip(fine + rng.normal(0, 4, fine.shape), 0, 255).astype(np.uint8)
    x[0] = 77
    x[1] = rng.integers(0, 256, x[1].shape)
    x[2] = 100 + x[2] // 16
    x[3, ..., 0] = 255
    return torch.from_numpy(x)


def magnitudes(name, n):
    """Return magnitudes over the whole range with both ends."""
    low, high = RANGES[name]
    return torch.linspace(low, high, n, dtype=torch.float64)


def to_pillow(image):
    return Image.fromarray(image.numpy() if image.shape[2] == 3 else image[..., 0].numpy())


def from_pillow(image, channels):
    return torch.from_numpy(np.array(image)).reshape(image.height, image.width, channels)


SIZES = pytest.mark.parametrize(("height", "width"), [(32, 32), (64, 64), (10, 14)])


def test_every_operation_is_tested():
    assert set(OPERATIONS) == set(ON_VALUES) | set(MOVES) == set(RANGES)


@pytest.mark.parametrize("name", ON_VALUES)
@SIZES
@pytest.mark.parametrize("channels", [1, 3])
def test_operations_on_values_are_pillows_bit_for_bit(name, height, width, channels):
    x, m = photographs(24, height, width, channels), magnitudes(name, 24)
    expected = [from_pillow(ON_VALUES[name](to_pillow(i), v), channels) for i, v in zip(x, m.tolist(), strict=True)]
    assert torch.equal(OPERATIONS[name](x, m), torch.stack(expected))


@pytest.mark.parametrize("name", ON_VALUES)
@given(arrays.arrays(np.uint8, (6, 5, 3)), st.floats(0, 1))
def test_operations_on_values_are_pillows_on_any_image(name, image, where):
    low, high = RANGES[name]
    m = low + (high - low) * where
    ours = OPERATIONS[name](torch.from_numpy(image)[None], torch.tensor([m], dtype=torch.float64))[0]
    assert np.array_equal(ours, ON_VALUES[name](Image.fromarray(image), m))


@pytest.mark.parametrize("name", MOVES)
@SIZES
@pytest.mark.parametrize("channels", [1, 3])
def test_operations_on_positions_are_the_released_codes_cubic_splines(name, height, width, channels):
    """Bit for bit; rotations, in float32, round one of 10,000 values to a neighbouring level."""
    x, m = photographs(24, height, width, channels), magnitudes(name, 24)

    def reference(image, magnitude):
        matrix = moved(name, (height, width), magnitude)
        planes = [
            ndimage.affine_transform(image[..., c].numpy(), matrix[:2, :2], matrix[:2, 2]) for c in range(channels)
        ]
        return torch.from_numpy(np.stack(planes, axis=-1))

    expected = torch.stack([reference(image, v) for image, v in zip(x, m.tolist(), strict=True)])
    apart = (OPERATIONS[name](x, m).int() - expected.int()).abs()
    assert apart.max() <= (name == "Rotate")
    assert apart.sum() <= 1e-4 * x.numel()


@pytest.mark.parametrize("name", MOVES)
def test_operations_on_positions_agree_with_pillows_bicubic_ones(name):
    """Two cubic kernels, and Pillow drops fractions: on waves at most 6 levels apart, 1.6 on average."""
    rng, m = np.random.default_rng(1), magnitudes(name, 36)
    rows, columns = np.mgrid[:32, :32]
    phase = rng.uniform(0, 6, (36, 3, 1, 1))
    waves = np.sin(rng.uniform(0, 0.3, phase.shape) * rows + rng.uniform(0, 0.3, phase.shape) * columns + phase)
    x = torch.from_numpy((127 + 100 * waves).astype(np.uint8)).permute(0, 2, 3, 1).contiguous()
    for image, ours, magnitude in zip(x, OPERATIONS[name](x, m), m.tolist(), strict=True):
        matrix = moved(name, (32, 32), magnitude)
        swap = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1]])  # Pillow counts columns first, and from pixels' corners
        half = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
        coefficients = (half @ swap @ matrix @ swap @ np.linalg.inv(half))[:2].flatten()
        theirs = to_pillow(image).transform((32, 32), Image.Transform.AFFINE, coefficients, Image.Resampling.BICUBIC)
        everywhere = Image.new("L", (32, 32), 255).transform(
            (32, 32), Image.Transform.AFFINE, coefficients, Image.Resampling.BICUBIC
        )
        inside = ndimage.binary_erosion(np.array(everywhere) == 255, iterations=2)
        apart = np.abs(ours.numpy().astype(int) - np.array(theirs).astype(int))[inside]
        assert inside.sum() > 100
        assert apart.max() <= 6
        assert apart.mean() < 1.6


def test_positive_degrees_turn_clockwise_and_leave_the_outside_black():
    x = torch.zeros(1, 33, 33, 3, dtype=torch.uint8)
    x[:, 4:8, 16:19] = 255  # above the middle
    y = OPERATIONS["Rotate"](x, torch.tensor([30.0], dtype=torch.float64))[0, ..., 0].double()
    assert (y * torch.arange(33)).sum() / y.sum() > 20
    white = torch.full((1, 32, 32, 3), 255, dtype=torch.uint8)
    assert OPERATIONS["Rotate"](white, torch.tensor([30.0], dtype=torch.float64))[0, 0, 0].tolist() == [0, 0, 0]


def test_a_translation_by_whole_pixels_moves_them_and_fills_with_zeros():
    x = photographs(5, 32, 32)
    quarter = torch.full((5,), 0.25, dtype=torch.float64)
    y = OPERATIONS["TranslateX"](x, quarter)
    assert torch.equal(y[:, :, :24], x[:, :, 8:])
    assert not y[:, :, 24:].any()
    y = OPERATIONS["TranslateY"](x, -quarter)
    assert torch.equal(y[:, 8:], x[:, :24])
    assert not y[:, :8].any()


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_image_is_changed_alone_and_the_input_stays(name):
    x, m = photographs(12, 16, 16), magnitudes(name, 12)
    before = x.clone()
    together = OPERATIONS[name](x, m)
    alone = torch.cat([OPERATIONS[name](x[i : i + 1], m[i : i + 1]) for i in range(12)])
    assert torch.equal(together, alone)
    assert torch.equal(x, before)
    assert together.dtype == torch.uint8
    assert together.shape == x.shape


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("size", [(1, 1), (2, 3)])
def test_tiny_images_work(name, size):
    x = torch.randint(0, 256, (4, *size, 3), dtype=torch.uint8)
    assert OPERATIONS[name](x, magnitudes(name, 4)).shape == x.shape


# the policy ---------------------------------------------------------------------------------------


def test_the_policy_is_the_published_one_for_cifar10():
    published = AutoAugment(AutoAugmentPolicy.CIFAR10).policies
    assert len(POLICY) == len(published) == 25
    for ours, theirs in zip(POLICY, published, strict=True):
        for (name, probability, level), (their_name, their_probability, their_level) in zip(ours, theirs, strict=True):
            assert (name, probability) == (their_name, their_probability)
            assert their_level in (None, level)


@pytest.fixture(scope="module")
def drawn():
    return autoaugment_draws(100_000, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("place", [0, 1])
def test_operations_are_drawn_as_often_as_the_table_says(drawn, place):
    """Each operation's share of all images within five standard deviations."""
    n = len(drawn)
    found = torch.bincount(drawn[:, 2 * place].long() + 1, minlength=len(OPERATIONS) + 1) / n
    expected = dict.fromkeys(OPERATIONS, 0.0)
    for pair in POLICY:
        name, probability, _ = pair[place]
        expected[name] += probability / len(POLICY)
    for name, share in expected.items():
        error = 5 * math.sqrt(share * (1 - share) / n)
        assert float(found[NUMBER[name] + 1]) == pytest.approx(share, abs=error or 1e-12)
    assert float(found[0]) == pytest.approx(1 - sum(expected.values()), abs=0.01)


def test_pairs_of_operations_are_drawn_as_often_as_the_table_says(drawn):
    n = len(drawn)
    pairs = drawn[:, 0].long() * 100 + drawn[:, 2].long()
    expected = {}
    for (first, p, _), (second, q, _) in POLICY:
        key = NUMBER[first] * 100 + NUMBER[second]
        expected[key] = expected.get(key, 0) + p * q / len(POLICY)
    for key, share in expected.items():
        assert float((pairs == key).sum()) / n == pytest.approx(share, abs=5 * math.sqrt(share / n) + 1e-12)


def test_magnitudes_are_uniform_within_the_levels_of_the_table(drawn):
    for place in (0, 1):
        operations, found = drawn[:, 2 * place].long(), drawn[:, 2 * place + 1]
        for name, (low, high) in RANGES.items():
            width = (high - low) / LEVELS
            levels = {level for pair in POLICY for n, p, level in [pair[place]] if n == name and p > 0}
            mine = found[operations == NUMBER[name]]
            if width == 0:
                assert not mine.any()
                continue
            position = (mine - low) / width
            assert set(position.floor().long().tolist()) == levels
            if levels:
                assert float(position.frac().mean()) == pytest.approx(0.5, abs=3 / math.sqrt(len(mine)))


def test_shares_do_not_depend_on_the_operation_that_was_skipped(drawn):
    """A sub-policy's two operations are drawn independently: with Rotate 0.7 and TranslateX 0.3, 9% are untouched."""
    rotated = drawn[:, 0] == NUMBER["Rotate"]
    both = rotated & (drawn[:, 2] == NUMBER["TranslateX"])
    assert float(both.sum() / rotated.sum()) == pytest.approx(0.3, abs=0.05)


def test_draws_follow_the_generator():
    first, again, other = (autoaugment_draws(50, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_is_changed_image_by_image_as_its_draws_say(channels):
    x, draws = photographs(300, 16, 16, channels), autoaugment_draws(300, torch.Generator().manual_seed(3))
    before = x.clone()
    expected = []
    for image, row in zip(x, draws, strict=True):
        made = image[None]
        for number, magnitude in row.view(2, 2):
            if number >= 0:
                made = list(OPERATIONS.values())[int(number)](made, magnitude[None])
        expected.append(made[0])
    assert torch.equal(autoaugment(x, draws), torch.stack(expected))
    assert torch.equal(x, before)


# flips and rotations ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(60, 32, 32, 3), (60, 24, 32, 1), (60, 31, 65, 3)])
def test_flips_and_rotations_are_pillows_bit_for_bit(shape):
    x = torch.randint(0, 256, shape, dtype=torch.uint8)
    draws = flip_rotate_draws(len(x), torch.Generator().manual_seed(0))
    draws[:3, 1] = torch.tensor([0.0, 30.0, -30.0])
    for image, made, (flip, degrees) in zip(x, flip_rotate(x, draws), draws.tolist(), strict=True):
        picture = to_pillow(image)
        if flip:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        assert torch.equal(made, from_pillow(picture.rotate(degrees), shape[3]))


def test_flips_are_fair_and_angles_uniform():
    draws = flip_rotate_draws(20_000, torch.Generator().manual_seed(0))
    assert float(draws[:, 0].mean()) == pytest.approx(0.5, abs=0.02)
    assert draws[:, 0].unique().tolist() == [0, 1]
    histogram = torch.histc(draws[:, 1], 6, -DEGREES, DEGREES) / len(draws)
    assert histogram.sum() == 1
    assert (histogram - 1 / 6).abs().max() < 0.02


# in training --------------------------------------------------------------------------------------


def resident(channels=3, **protocol):
    """Return resident photographs of one client."""
    x = photographs(94, 12, 12, channels)
    images = Images(x, torch.arange(94) % 3)
    data = Data(images, images, ("a", "b", "c"), (0.5,) * channels, (0.25,) * channels, "digest")
    settings = dataclasses.replace(toy_cell().protocol, **protocol)
    return DeviceData(data, everything_to_one(data), settings, torch.device("cpu"), seed=0)


def epoch(device_data, *where):
    return torch.cat([x for x, _ in device_data.epoch(*where)])


def test_the_protocol_offers_all_augmentations():
    assert set(typing.get_args(typing.get_type_hints(Protocol)["augment"])) == set(AUGMENTATIONS)


@pytest.mark.parametrize("augment", AUGMENTATIONS)
def test_batches_do_not_depend_on_how_many_images_are_made_at_once(monkeypatch, augment):
    device = resident(augment=augment)
    whole = [torch.cat(parts) for parts in zip(*device.epoch(0, 0, 0), strict=True)]
    monkeypatch.setattr(data_module, "CHUNK_BYTES", 1)
    for one, other in zip(whole, zip(*device.epoch(0, 0, 0), strict=True), strict=True):
        assert torch.equal(one, torch.cat(other)), "images, and labels"


@pytest.mark.parametrize("augment", [name for name in AUGMENTATIONS if name != "none"])
def test_images_are_augmented_anew_in_every_epoch_round_and_client(augment):
    device = resident(augment=augment)
    first = epoch(device, 0, 0, 0)
    assert torch.equal(first, epoch(device, 0, 0, 0))
    assert not torch.equal(first.sort(0).values, epoch(resident(augment="none"), 0, 0, 0).sort(0).values)
    for where in [(0, 0, 1), (0, 1, 0)]:
        assert not torch.equal(first, epoch(device, *where))


def test_crop_and_flip_come_before_autoaugment():
    steps = [change.__name__ for _, change in AUGMENTATIONS["crop_flip_autoaugment"]]
    assert steps == ["crop_flip", "autoaugment"]


def test_autoaugment_needs_grey_or_colour():
    with pytest.raises(Incompatible, match=r"protocol\.augment=autoaugment needs grey or colour images, got 2"):
        resident(channels=2, augment="autoaugment")
