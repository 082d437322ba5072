"""Augmentation of whole batches on the training device, with random draws keyed by the caller."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedspan.benchmark.data.autoaugment import autoaugment, autoaugment_draws
from fedspan.benchmark.errors import Incompatible

PADDING = 4
DEGREES = 30


def crop_flip_draws(n: int, generator: torch.Generator) -> Tensor:
    """Return int64 [n, 3]: per image, the crop's top and left in 0..8 and whether to flip it."""
    corner = torch.randint(0, 2 * PADDING + 1, (n, 2), generator=generator)
    return torch.cat([corner, torch.randint(0, 2, (n, 1), generator=generator)], dim=1)


def crop_flip(x: Tensor, draws: Tensor) -> Tensor:
    """Zero-pad `x` uint8 [B, H, W, C] by 4, crop it back and flip it left to right, according to `draws` [B, 3].

    FedDecorr's released code does this on CIFAR-10 (random crop with padding 4, horizontal flip).
    """
    _, height, width, _ = x.shape
    top, left, flip = draws.to(x.device)[:, :, None, None].unbind(1)
    rows = top + torch.arange(height, device=x.device)[:, None]
    columns = torch.arange(width, device=x.device)
    columns = left + torch.where(flip.bool(), width - 1 - columns, columns)
    return _pixels(torch.nn.functional.pad(x, (0, 0, PADDING, PADDING, PADDING, PADDING)), rows, columns)


def _pixels(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return [B, H', W', C]: the pixels of x [B, H, W, C] at rows and columns that broadcast to [B, H', W']."""
    batch, height, width, channels = x.shape
    line = rows + torch.arange(0, batch * height, height, device=x.device)[:, None, None]
    index = line * width + columns
    return x.reshape(-1, channels).index_select(0, index.flatten()).view(*index.shape, channels)


def flip_rotate_draws(n: int, generator: torch.Generator) -> Tensor:
    """Return float64 [n, 2]: per image, whether to flip it (0 or 1) and an angle between -30 and 30 degrees."""
    angles = (torch.rand(n, generator=generator, dtype=torch.float64) * 2 - 1) * DEGREES
    return torch.stack([torch.randint(0, 2, (n,), generator=generator).double(), angles], dim=1)


def flip_rotate(x: Tensor, draws: Tensor) -> Tensor:
    """Flip left to right, then rotate counter-clockwise about the centre: nearest pixels, zeros outside.

    FedBN's public code (Li et al. 2021) does this on its domains; identical to Pillow's `Image.rotate` bit for bit.
    """
    _, height, width, _ = x.shape
    flip, degrees = draws.to(x.device)[:, :, None, None].unbind(1)
    angle = -degrees.deg2rad()
    cos, sin = angle.cos(), angle.sin()
    middle_x, middle_y = width / 2, height / 2
    left = middle_x - cos * middle_x - sin * middle_y + (cos + sin) / 2
    top = middle_y + sin * middle_x - cos * middle_y + (cos - sin) / 2
    row = torch.arange(height, device=x.device)[:, None]
    column = torch.arange(width, device=x.device)
    columns = (_fixed(left) + _fixed(cos) * column + _fixed(sin) * row) >> 16
    rows = (_fixed(top) - _fixed(sin) * column + _fixed(cos) * row) >> 16
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    columns = torch.where(flip.bool(), width - 1 - columns, columns).clamp_(0, width - 1)
    return _pixels(x, rows.clamp_(0, height - 1), columns) * inside[..., None]


def _fixed(number: Tensor) -> Tensor:
    """Return a number in units of 1/65536, as in the fixed-point arithmetic by which Pillow moves pixels."""
    return (number * 65536 + 0.5).floor().long()


Step = tuple[Callable[[int, torch.Generator], Tensor], Callable[[Tensor, Tensor], Tensor]]
CROP_FLIP: Step = (crop_flip_draws, crop_flip)
AUTOAUGMENT: Step = (autoaugment_draws, autoaugment)
AUGMENTATIONS: dict[str, tuple[Step, ...]] = {
    "none": (),
    "crop_flip": (CROP_FLIP,),
    "crop_flip_autoaugment": (CROP_FLIP, AUTOAUGMENT),
    "autoaugment": (AUTOAUGMENT,),
    "flip_rotate": ((flip_rotate_draws, flip_rotate),),
}


def steps_of(name: str, channels: int) -> tuple[Step, ...]:
    """Return the steps of `protocol.augment`, each a function that draws for n images and one that applies the draws.

    Raises `Incompatible` if they do not support images with this number of channels.
    """
    steps = AUGMENTATIONS[name]
    if AUTOAUGMENT in steps and channels not in (1, 3):
        raise Incompatible(f"protocol.augment={name} needs grey or colour images, got {channels} channels")
    return steps
