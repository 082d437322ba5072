"""Descriptions of values returned by plugin hooks, and one-line errors for invalid ones."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedspan.benchmark import rng
from fedspan.benchmark.errors import HookError, has_controls
from fedspan.benchmark.registry import Plugin

if TYPE_CHECKING:
    from fedspan.benchmark.task import Data, Images

FACTORS = (1, 3)  # channels of almost all images
DIGEST = "[0-9a-f]{8,64}"  # of a dataset, as accepted in a record (DataDigest)
MANY = 9  # numbers, of which a message gives the ends
SMALLEST = 4  # pixels; this small, a side could also be a number of channels

T = TypeVar("T")


def refusal(plugin: Plugin, hook: str, wanted: str, problem: str) -> HookError:
    """Return the error for a hook that did not return `wanted`, with its file and line."""
    return HookError(f"{_placed(plugin, hook)} must return {wanted}: {problem}")


def _placed(plugin: Plugin, hook: str) -> str:
    code = inspect.unwrap(getattr(type(plugin), hook)).__code__
    return f"{plugin.kind} '{plugin.name}', {hook} ({code.co_filename}, line {code.co_firstlineno})"


@contextlib.contextmanager
def repeatable(plugin: Plugin, hook: str, instead: str) -> Iterator[None]:
    """Raise `HookError` if a hook draws from a global random generator: such a draw could not be repeated."""
    before = rng.global_state()
    yield
    if rng.global_state() != before:
        raise HookError(f"{_placed(plugin, hook)} draws from a global random generator; {instead}")


@contextlib.contextmanager
def unchanged(plugin: Plugin, hook: str, inputs: Any) -> Iterator[None]:
    """Raise `HookError` if a hook changes a tensor among its inputs in place."""
    before = list(_versions(inputs))
    yield
    if list(_versions(inputs)) != before:
        raise HookError(f"{_placed(plugin, hook)} changes an input in place; return new tensors: x + y, not x.add_(y)")


def _versions(value: Any) -> Iterator[int]:
    """Yield the in-place version counter of each tensor in trees and in the fields of views."""
    if isinstance(value, Tensor):
        yield 0 if value.is_inference() else value._version
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _versions(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _versions(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _versions(getattr(value, field.name))


def shown(value: Any) -> str:
    """Return a short description of a hook's result."""
    return f"it returned {'None; is a return missing?' if value is None else described(value)}"


def described(value: Any) -> str:
    """Return the type of a value and its shape, if any; numbers and short texts verbatim."""
    if isinstance(value, Tensor):
        return f"a tensor {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype} {list(value.shape)}"
    if isinstance(value, (tuple, list, Mapping)):
        return f"a {type(value).__name__} of {len(value)}"
    if value is None or isinstance(value, (int, float, str, np.generic)):
        return f"{value!r:.60}"
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def returned(plugin: Plugin, hook: str, value: Any, kind: type[T]) -> T:
    """Return a hook's value; raise `HookError` unless it is a `kind`."""
    if not isinstance(value, kind):
        raise refusal(plugin, hook, f"a {kind.__name__}", shown(value))
    return value


# datasets ---------------------------------------------------------------------------------------------


def check_data(dataset: Plugin, data: Data, kind: type[Images]) -> None:
    """Raise `HookError` if training would misread a dataset's `data`; check all but the values of images.

    `kind` is the class of its images.
    """
    for split in ("train", "test"):
        images = getattr(data, split)
        if not isinstance(images, kind):
            raise refusal(dataset, "load", f"Images as `{split}`", f"it is {described(images)}")
        for wanted, problem in _wrong_images(split, images):
            raise refusal(dataset, "load", wanted, problem)
    for wanted, problem in itertools.chain(_wrong_facts(data), _wrong_references(data)):
        raise refusal(dataset, "load", wanted, problem)


def _wrong_images(split: str, images: Images) -> Iterator[tuple[str, str]]:
    """Yield (requirement, problem) for the images of a split."""
    x = images.x
    if not isinstance(x, Tensor) or x.dtype != torch.uint8 or x.ndim != 4:
        hint = ""
        if isinstance(x, np.ndarray):
            hint = "; wrap it in torch.from_numpy"
        elif isinstance(x, Tensor) and x.is_floating_point():
            hint = "; training divides by 255; for pixels in [0, 1] return (255 * x).round().to(torch.uint8)"
        yield "images as a tensor uint8 [N, height, width, channels]", f"{split}.x is {described(x)}{hint}"
    elif x.shape[1] in FACTORS and x.shape[2] == x.shape[3] > SMALLEST:
        problem = f"{split}.x has the shape {list(x.shape)}, channels first; return x.permute(0, 2, 3, 1)"
        yield "images as [N, height, width, channels]", problem
    for name in ("y", "domain", "client"):
        part = getattr(images, name)
        if part is None and name != "y":
            continue
        if not isinstance(part, Tensor) or part.dtype != torch.int64 or part.ndim != 1:
            yield f"`{name}` as a tensor int64 [N]", f"{split}.{name} is {described(part)}"
        elif len(part) != len(x):
            yield f"`{name}` of every image", f"{split} has {len(x)} images and {len(part)} in {split}.{name}"


def _wrong_references(data: Data) -> Iterator[tuple[str, str]]:
    """Yield (requirement, problem) for images of classes, domains or clients that a dataset does not name."""
    for split in ("train", "test"):
        images = getattr(data, split)
        if not len(images):
            yield f"{split} images", "there are none; check where it reads them"
        named = {"y": data.classes, "domain": data.domains, "client": data.clients}
        for part, names in named.items():
            of = "classes" if part == "y" else f"{part}s"
            found = [] if (numbers := getattr(images, part)) is None else numbers.unique().tolist()
            strange = [number for number in found if not 0 <= number < len(names)]
            if strange or (part == "domain" and len(found) < len(names)):
                wanted = f"images of its `{of}`, and Data({of}=...) with their names"
                yield wanted, f"{split}.{part} holds {_range(found)}, and there are {len(names)} names"


def _range(numbers: list[int]) -> str:
    """Return sorted numbers as text: all if few, else only the ends."""
    return ", ".join(map(str, numbers)) or "none" if len(numbers) < MANY else f"{numbers[0]} to {numbers[-1]}"


def _wrong_facts(data: Data) -> Iterator[tuple[str, str]]:
    """Yield (requirement, problem) for a dataset's facts about its images."""
    sizes = [list(images.x.shape[1:]) for images in (data.train, data.test)]
    if sizes[0] != sizes[1]:
        yield "train and test images of one size", f"they are {sizes[0]} and {sizes[1]} (height, width, channels)"
    for name in ("classes", "domains", "clients"):
        names = getattr(data, name)
        if not isinstance(names, (tuple, list)) or not all(isinstance(one, str) for one in names):
            kinds = f", of {described(names[0])} and so on" if isinstance(names, (tuple, list)) else ""
            yield f"`{name}` as a tuple of names", f"it is {described(names)}{kinds}"
        elif len(set(names)) < len(names):
            [(name_twice, times)] = Counter(names).most_common(1)
            yield f"`{name}` as different names", f"{name_twice!r} occurs {times} times"
        elif odd := [one for one in names if has_controls(one)]:
            yield f"`{name}` as names without control characters", f"there is {odd[0]!r}"
    channels = sizes[0][2]
    for name, low in (("mean", "[0"), ("std", "(0")):
        numbers = getattr(data, name)
        if not isinstance(numbers, (tuple, list)) or len(numbers) != channels:
            yield f"`{name}` as a tuple of one number per channel", f"it is {described(numbers)}, for {channels}"
            return
        for one in numbers:
            if not isinstance(one, (int, float, np.floating)) or not 0 <= one <= 1 or (low == "(0" and one == 0):
                yield f"`{name}` of pixels scaled to [0, 1], in {low}, 1]", f"it holds {described(one)}"
    if not isinstance(data.digest, str) or not re.fullmatch(DIGEST, data.digest):
        yield "the text that content_digest returns as `digest`", f"it is {described(data.digest)}"
