"""The dataset during training: decoded images resident on the device, batched without a data loader."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from fedspan.benchmark import rng
from fedspan.benchmark.data.augment import steps_of
from fedspan.benchmark.data.held_out import hold_out
from fedspan.benchmark.protocol import Protocol
from fedspan.benchmark.task import Data, Images, Split

CHUNK_BYTES = 4 * 2**20  # of images augmented or normalised at once, to fit a core's cache
ON_DEVICE = 64  # factor on CHUNK_BYTES for other devices, where each operation costs a launch
EVALUATION_BATCH = 500  # images of at most 64x64 pixels; fewer larger ones, whose feature maps would fill the memory
EVALUATION_PIXELS = EVALUATION_BATCH * 64 * 64


def memory_format(device: torch.device, precision: str) -> torch.memory_format:
    """Return the memory layout of images, feature maps and convolution weights.

    Channels last is fastest on CPUs, and in bfloat16 on GPUs; in float32 it is slower on GPUs.
    """
    by_channel = device.type == "cuda" and precision == "float32"
    return torch.contiguous_format if by_channel else torch.channels_last


class DeviceData:
    """Training and test images on one device, and each client's share of them.

    `indices[k]` index `train` and `tests[k]` index `test`; `tests` is None if every client is tested on all of `test`.
    With `one_client`, every client trains on the images of all clients. In a trial, `test` holds held-out training
    images, and `tests[k]` may be empty.
    """

    def __init__(
        self, data: Data, split: Split, protocol: Protocol, device: torch.device, seed: int, one_client: bool = False
    ) -> None:
        trial = protocol.trial
        data, split = hold_out(data, split, protocol.validation, seed) if trial else split.apply(data)
        self.train, self.test = data.train.to(device), data.test.to(device)
        self.classes, self.domains = len(data.classes), data.domains
        self.protocol, self.device, self.seed = protocol, device, seed
        self.memory_format = memory_format(device, protocol.precision)
        self.indices = [torch.from_numpy(np.asarray(part)) for part in split.train]
        self._everybody = torch.cat(self.indices).sort().values if one_client else None
        self.tests = None if split.test is None else [torch.from_numpy(np.asarray(part)) for part in split.test]
        std = torch.tensor(data.std, dtype=torch.float64)
        mean = torch.tensor(data.mean, dtype=torch.float64)
        self._augmentation = steps_of(protocol.augment, self.shape[0])
        self._gain = (1 / (255 * std)).to(device, protocol.dtype)[:, None, None]
        self._shift = (-mean / std).to(device, protocol.dtype)[:, None, None]

    @property
    def clients(self) -> int:
        """The number of clients that hold images."""
        return len(self.indices)

    def train_indices(self, client: int) -> Tensor:
        """Return the indices of a client's training images: its own, or those of all clients."""
        return self.indices[client] if self._everybody is None else self._everybody

    def size(self, client: int) -> int:
        """Return the number of images that a client trains on."""
        return len(self.train_indices(client))

    @cached_property
    def mean_images(self) -> float:
        """The mean number of images that a client trains on."""
        return sum(map(self.size, range(self.clients))) / self.clients

    def test_of(self, client: int) -> Images:
        """Return the images that a client is tested on."""
        return self.test if self.tests is None else self.test.take(self.tests[client].to(self.device))

    def counts(self, client: int) -> Tensor:
        """Return a client's number of training images per class, [classes]."""
        labels = self.train.y[self.train_indices(client).to(self.device)]
        return torch.bincount(labels, minlength=self.classes).to(self.protocol.dtype)

    def batch_sizes(self, n: int) -> list[int]:
        """Return the batch sizes of one epoch over `n` images.

        A client with fewer images than a batch trains on one short batch even under `last_batch: drop`.
        """
        full, rest = divmod(n, self.protocol.batch_size)
        sizes = [self.protocol.batch_size] * full
        if rest and (self.protocol.last_batch == "keep" or not full):
            sizes.append(rest)
        return sizes

    def normalise(self, x: Tensor) -> Tensor:
        """Return uint8 [B, H, W, C] as normalised [B, C, H, W], in the protocol's dtype and `memory_format`."""
        planes = x.permute(0, 3, 1, 2).to(self._gain.dtype, memory_format=self.memory_format)
        return planes.mul_(self._gain).add_(self._shift)

    def epoch(self, client: int, round: int, epoch: int, steps: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the shuffled, augmented batches of one local epoch, keyed by (seed, round, client, epoch).

        With `steps`, only those among the client's first `steps` of the round.
        """
        whole = self._batches(client, round, epoch)
        if steps is None:
            return whole
        return islice(whole, max(0, steps - epoch * len(self.batch_sizes(self.size(client)))))

    def _batches(self, client: int, round: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = rng.generator(self.seed, "batches", round, client, epoch)
        mine = self.train_indices(client)
        sizes = self.batch_sizes(len(mine))
        order = mine[torch.randperm(len(mine), generator=generator)][: sum(sizes)].to(self.device)
        draws = [draw(len(order), generator) for draw, _ in self._augmentation]
        labels = self.train.y[order]
        image_bytes = self.train.x[0].numel() * self._gain.element_size()
        chunk_bytes = CHUNK_BYTES if self.device.type == "cpu" else CHUNK_BYTES * ON_DEVICE
        step = max(1, chunk_bytes // (image_bytes * self.protocol.batch_size)) * self.protocol.batch_size
        augmented = step * self._gain.element_size()  # images with as many bytes before normalisation
        for first in range(0, len(order), augmented):
            chunk = self.train.x.index_select(0, order[first : first + augmented])
            for (_, change), drawn in zip(self._augmentation, draws, strict=True):
                chunk = change(chunk, drawn[first : first + augmented])
            for x, y in zip(chunk.split(step), labels[first : first + augmented].split(step), strict=True):
                batches = self.normalise(x).split(self.protocol.batch_size)
                yield from zip(batches, y.split(self.protocol.batch_size), strict=True)

    @property
    def evaluation_batch(self) -> int:
        """The number of images per forward pass outside training."""
        _, height, width = self.shape
        return max(1, min(EVALUATION_BATCH, EVALUATION_PIXELS // (height * width)))

    def in_order(self, images: Images, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of all images in order, without augmentation, for evaluation."""
        for x, y in zip(images.x.split(batch), images.y.split(batch), strict=True):
            yield self.normalise(x), y

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, height, width, channels = self.train.x.shape
        return channels, height, width
