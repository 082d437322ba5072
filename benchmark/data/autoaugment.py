"""AutoAugment's CIFAR-10 policy on whole batches: images are grouped by operation and computed group by group.

Images are uint8 [B, H, W, C] with one or three channels. Operations on pixel values equal Pillow's bit for bit.
Operations that move pixels are those of the code released with FedDecorr, cubic splines with zeros outside: they are
equal bit for bit too, except that rotations round fewer than one in 10,000 values to a neighbouring level.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# Cubuk et al. 2019, Table 7 in the appendix: (operation, probability, level) twice for each sub-policy.
POLICY = (
    (("Invert", 0.1, 7), ("Contrast", 0.2, 6)),
    (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
    (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
    (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.5, 8), ("Equalize", 0.9, 2)),
    (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
    (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
    (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
    (("Equalize", 0.6, 5), ("Equalize", 0.5, 1)),
    (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
    (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
    (("Equalize", 0.3, 7), ("AutoContrast", 0.4, 8)),
    (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
    (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
    (("Solarize", 0.5, 2), ("Invert", 0.0, 3)),
    (("Equalize", 0.2, 0), ("AutoContrast", 0.6, 0)),
    (("Equalize", 0.2, 8), ("Equalize", 0.6, 4)),
    (("Color", 0.9, 9), ("Equalize", 0.6, 6)),
    (("AutoContrast", 0.8, 4), ("Solarize", 0.2, 8)),
    (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
    (("Solarize", 0.4, 5), ("AutoContrast", 0.9, 3)),
    (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.9, 2), ("Solarize", 0.8, 3)),
    (("Equalize", 0.8, 8), ("Invert", 0.1, 3)),
    (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 1)),
)
LEVELS = 10
GROUP_BYTES = 2**18  # of images per call of an operation on a CPU: its intermediate results then fit a core's cache
# The released code cuts each range into ten levels and draws uniformly within the sub-policy's level.
RANGES = {
    "ShearX": (-0.3, 0.3),
    "ShearY": (-0.3, 0.3),
    "TranslateX": (-150 / 331, 150 / 331),  # of the width
    "TranslateY": (-150 / 331, 150 / 331),  # of the height
    "Rotate": (-30.0, 30.0),  # degrees
    "Solarize": (0.0, 256.0),
    "Posterize": (4.0, 8.0),  # bits kept
    "Contrast": (0.1, 1.9),
    "Color": (0.1, 1.9),
    "Brightness": (0.1, 1.9),
    "Sharpness": (0.1, 1.9),
    "AutoContrast": (0.0, 0.0),
    "Equalize": (0.0, 0.0),
    "Invert": (0.0, 0.0),
}


def autoaugment_draws(n: int, generator: torch.Generator) -> Tensor:
    """Return float64 [n, 4]: two pairs of an operation (number in `OPERATIONS`, -1 for none) and its magnitude."""
    policy = torch.randint(0, len(POLICY), (n,), generator=generator)
    chance, where = torch.rand(2, n, 2, generator=generator, dtype=torch.float64)
    operation, probability, low, high = _table()[policy].unbind(2)
    operation = operation.where(chance < probability, -1.0)
    return torch.stack([operation, low + (high - low) * where], dim=2).flatten(1)


@lru_cache
def _table() -> Tensor:
    """Return the policy as [25, 2, 4]: operation, probability, lowest and highest magnitude."""
    rows = []
    for name, probability, level in (step for pair in POLICY for step in pair):
        low, high = RANGES[name]
        width = (high - low) / LEVELS
        rows.append([NUMBER[name], probability, low + level * width, low + (level + 1) * width])
    return torch.tensor(rows, dtype=torch.float64).view(len(POLICY), 2, 4)


def autoaugment(x: Tensor, draws: Tensor) -> Tensor:
    """Return the uint8 images [B, H, W, C], each after the two operations in its row of `draws` [B, 4]."""
    most = max(1, GROUP_BYTES // x.shape[1:].numel()) if x.device.type == "cpu" else max(1, len(x))
    y = x.clone(memory_format=torch.contiguous_format)
    rows = y.flatten(1)
    rows = rows.view(torch.int64) if rows.shape[1] % 8 == 0 else rows  # copying single bytes is slow
    for operations, magnitudes in ((draws[:, 0], draws[:, 1]), (draws[:, 2], draws[:, 3])):
        numbers = operations.long() + 1
        groups = numbers.argsort(stable=True).split(torch.bincount(numbers, minlength=len(OPERATIONS) + 1).tolist())
        for change, group in zip(OPERATIONS.values(), groups[1:], strict=True):
            for part in group.split(most) if len(group) else ():
                where = part.to(x.device)
                changed = change(y.index_select(0, where), magnitudes[part].to(x.device))
                rows.index_copy_(0, where, changed.flatten(1).view(rows.dtype))
    return y


# pixel values: as Pillow's ImageOps and ImageEnhance ------------------------------------------------


def invert(x: Tensor, magnitude: Tensor) -> Tensor:
    """Return 255 - x."""
    return 255 - x


def solarize(x: Tensor, threshold: Tensor) -> Tensor:
    """Invert the values at or above the threshold."""
    above = x.short() >= threshold.ceil().short()[:, None, None, None]
    return x ^ above.to(torch.uint8).mul_(255)


def posterize(x: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest `bits` bits, rounded to a whole number."""
    masks = 256 - 2 ** (8 - bits.round().long())
    return x & masks.to(torch.uint8)[:, None, None, None]


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance from black by `factor`."""
    return _to_bytes(x.float().mul_(_per_image(factor)))


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Scale the difference from the image's mean grey by `factor`."""
    mean = _grey(_planes(x)).mean((1, 2, 3), dtype=torch.float64)
    return _to_bytes(_blend((mean + 0.5).floor().float()[:, None, None, None], x.float(), factor))


def color(x: Tensor, factor: Tensor) -> Tensor:
    """Scale the difference from the image's grey version by `factor`."""
    planes = _planes(x)
    return _from_planes(_blend(_grey(planes), planes, factor))


def sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Scale the difference from the image's smoothed version by `factor`; border pixels stay unchanged."""
    if min(x.shape[1:3]) < 3:
        return x
    values = x.short()
    lines = (values[:, :-2] + values[:, 1:-1]).add_(values[:, 2:])
    inner = values[:, 1:-1, 1:-1]
    smooth = (lines[:, :, :-2] + lines[:, :, 1:-1]).add_(lines[:, :, 2:]).add_(inner, alpha=4)
    smooth = smooth.float().mul_(1 / 13).add_(0.5).floor_()  # thirteenths are never half-way
    y = x.clone()
    y[:, 1:-1, 1:-1] = _to_bytes(_blend(smooth, inner, factor))
    return y


def auto_contrast(x: Tensor, magnitude: Tensor) -> Tensor:
    """Stretch each channel to 0..255; a constant channel stays unchanged."""
    n, _, width, channels = x.shape
    low, high = (f(f(x.flatten(2), 1).view(n, width, channels), 1).double() for f in (torch.amin, torch.amax))
    flat = high <= low
    scale = torch.div(torch.full_like(high, 255), high - low).masked_fill_(flat, 1)
    shift = (-low * scale).masked_fill_(flat, 0)
    values = torch.arange(256, dtype=torch.float64, device=x.device)
    tables = (scale[:, :, None] * values).add_(shift[:, :, None])
    return _to_bytes(tables).flatten().index_select(0, _entries(x)).view(x.shape)


def equalize(x: Tensor, magnitude: Tensor) -> Tensor:
    """Equalise the histogram of each channel."""
    rows, entries = len(x) * x.shape[3], _entries(x)
    counts = torch.bincount(entries, minlength=256 * rows).view(rows, 256).double()
    values = torch.arange(256, dtype=torch.uint8, device=x.device)
    last = counts.gather(1, (counts > 0).mul(values).amax(1, keepdim=True).long())
    step = ((counts.sum(1, keepdim=True) - last) / 255).floor_()
    below = counts.cumsum(1).sub_(counts)
    spread = below.add_((step / 2).floor_()).div_(step.clamp(min=1)).clamp_(max=255)
    return torch.where(step > 0, spread, values).to(torch.uint8).flatten().index_select(0, entries).view(x.shape)


def _entries(x: Tensor) -> Tensor:
    """Return the flat index of each value of x, flattened, into tables [B, C, 256]."""
    n, _, width, channels = x.shape
    first = torch.arange(0, 256 * n * channels, 256, dtype=torch.int32, device=x.device).view(n, channels)
    return (x + _tiled(first, width)).flatten()


def _tiled(values: Tensor, width: int) -> Tensor:
    """Return `values` [B, C] repeated along rows, [B, 1, W, C], so that they broadcast to [B, H, W, C]."""
    n, channels = values.shape
    return values[:, None, None, :].expand(n, 1, width, channels).contiguous()


def _grey(planes: Tensor) -> Tensor:
    """Return the ITU-R 601 luminance [B, 1, H, W] in whole numbers, like Pillow's mode L; sums of it are exact."""
    if planes.shape[1] == 1:
        return planes
    red, green, blue = planes.split(1, dim=1)
    return (red * 19595).add_(green, alpha=38470).add_(blue, alpha=7471).add_(32768).div_(65536).floor_()


def _blend(base: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    return (x - base).mul_(_per_image(factor)).add_(base)


def _per_image(factor: Tensor) -> Tensor:
    return factor.float()[:, None, None, None]


def _to_bytes(values: Tensor) -> Tensor:
    """Clip to 0..255 and drop the fraction; two conversions are faster than one."""
    return values.clamp_(0, 255).to(torch.int16).to(torch.uint8)


def _planes(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return [B, H, W, C] as floating-point [B, C, H, W]."""
    return x.permute(0, 3, 1, 2).to(dtype, memory_format=torch.contiguous_format)


def _from_planes(values: Tensor) -> Tensor:
    return _to_bytes(values.permute(0, 2, 3, 1).contiguous())


# pixel positions: cubic splines as scipy.ndimage.affine_transform with zeros outside ----------------


def shear_x(x: Tensor, factor: Tensor) -> Tensor:
    """Shift each column vertically by `factor` times its distance from the centre (the released code's ShearX)."""
    _, _, width, channels = x.shape
    shift = factor[:, None] * _from_middle(width, x.device)
    return _further(x.flatten(2), shift.repeat_interleave(channels, dim=1)).view(x.shape)


def shear_y(x: Tensor, factor: Tensor) -> Tensor:
    """Shift each row horizontally by `factor` times its distance from the centre (the released code's ShearY)."""
    return shear_x(x.transpose(1, 2), factor).transpose(1, 2)


def translate_x(x: Tensor, fraction: Tensor) -> Tensor:
    """Shift the image to the left by `fraction` of its width."""
    return translate_y(x.transpose(1, 2), fraction).transpose(1, 2)


def translate_y(x: Tensor, fraction: Tensor) -> Tensor:
    """Shift the image up by `fraction` of its height."""
    return _further(x.flatten(2), fraction[:, None] * x.shape[1]).view(x.shape)


def _further(x: Tensor, shift: Tensor) -> Tensor:
    """Return x [B, L, M] with each column read `shift` [B, M or 1] places further down."""
    size = x.shape[1]
    whole, places = shift.floor(), torch.arange(size + 3, device=x.device)[:, None]
    reached = (places + whole.long()[:, None] + (MARGIN - 1)).clamp_(0, size + 2 * MARGIN - 1)
    knots, weights = _knots(size, x.device), [weight[:, None] for weight in _spline(shift - whole)]
    position = places[:size] + shift[:, None]
    inside = (position >= 0) & (position <= size - 1)
    if shift.shape[1] == 1:  # whole lines: one matrix for all columns, which is faster
        near = knots.index_select(0, reached.flatten()).view(len(x), size + 3, size)
        return _to_bytes((_weighted(near, weights).mul_(inside) @ x.double()).add_(0.5))
    return _to_bytes(_weighted((knots @ x.double()).gather(1, reached), weights).add_(0.5).mul_(inside))


def _weighted(near: Tensor, weights: list[Tensor]) -> Tensor:
    """Return [B, L, M], the weighted sums over four neighbours in `near` [B, L + 3, M]."""
    size = near.shape[1] - 3
    y = near[:, :size] * weights[0]
    for k in (1, 2, 3):
        y.addcmul_(near[:, k : k + size], weights[k])
    return y


def rotate(x: Tensor, degrees: Tensor) -> Tensor:
    """Rotate clockwise, as seen on a screen, about the centre.

    Each sum over 4x4 knots is computed as four bilinear interpolations between 2x2 knots, in float32.
    """
    _, height, width, _ = x.shape
    angle = degrees.deg2rad()[:, None, None]
    cos, sin = angle.cos(), angle.sin()
    row, column = _from_middle(height, x.device)[:, None], _from_middle(width, x.device)
    row_pairs = _pairs(cos * row - sin * column + _middle(height), height)
    column_pairs = _pairs(sin * row + cos * column + _middle(width), width)
    knots = (_knots(height, x.device) @ _planes(x, torch.float64) @ _knots(width, x.device).T).float()
    y = torch.full_like(knots[:, :, :height, :width], 0.5)  # rounds
    for row, row_weight in row_pairs:
        for column, column_weight in column_pairs:
            values = F.grid_sample(knots, torch.stack([column, row], dim=3), align_corners=True)
            y.addcmul_(values, (row_weight * column_weight)[:, None])
    return _from_planes(y)


def _middle(size: int) -> float:
    """Return the centre of `size` pixels in the released code: one pixel beyond the true centre."""
    return size / 2 + 0.5


def _from_middle(size: int, device: torch.device) -> Tensor:
    """Return the signed distances of the pixels from the centre."""
    return torch.arange(size, dtype=torch.float64, device=device) - _middle(size)


def _pairs(position: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """Return (sampling coordinate, weight) for the two knots before and the two after each position.

    Coordinates are -1 at the first and 1 at the last of `size + 2 * MARGIN` knots. Weights are 0 outside the image.
    """
    whole = position.floor()
    far, near, next_near, next_far = _spline((position - whole).float())
    before, after = far + near, next_near + next_far
    inside = (position >= 0) & (position <= size - 1)
    unit = 2 / (size + 2 * MARGIN - 1)
    corner = (whole.float() + (MARGIN - 1)).mul_(unit).sub_(1)
    return [
        ((near / before).mul_(unit).add_(corner), before * inside),
        ((next_far / after).mul_(unit).add_(corner).add_(2 * unit), after * inside),
    ]


def _spline(t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the cubic B-spline at distances 1 + t, t, 1 - t and 2 - t; the values add up to 1."""
    last = t**3 / 6
    first = (1 - t) ** 3 / 6
    second = last * 3 - t * t + 2 / 3
    return first, second, 1 - first - second - last, last


MARGIN = 2  # knots beyond the first and the last pixel


@lru_cache
def _knots(size: int, device: torch.device) -> Tensor:
    """Return the matrix [size + 2 * MARGIN, size] from pixels to the knots of the cubic spline through them."""
    mirror = np.pad(np.arange(size), MARGIN, mode="reflect")
    values = torch.zeros(size, size, dtype=torch.float64)
    for k, weight in ((-1, 1 / 6), (0, 4 / 6), (1, 1 / 6)):
        values[torch.arange(size), mirror[MARGIN + k : MARGIN + k + size]] += weight
    return torch.linalg.inv(values)[mirror].to(device)


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": translate_x,
    "TranslateY": translate_y,
    "Rotate": rotate,
    "AutoContrast": auto_contrast,
    "Invert": invert,
    "Equalize": equalize,
    "Solarize": solarize,
    "Posterize": posterize,
    "Contrast": contrast,
    "Color": color,
    "Brightness": brightness,
    "Sharpness": sharpness,
}
NUMBER = {name: number for number, name in enumerate(OPERATIONS)}
