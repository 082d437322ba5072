"""The structure of every model: a body that computes representations and a head that classifies them."""

from __future__ import annotations

import copy
import os
import traceback
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Net(nn.Module):
    """``forward(x) -> (features, logits)``: x is [B, C, H, W], features [B, d], logits [B, classes].

    The features are the representation (the papers' z), the input of the head. `body` must return one row per image.
    """

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(features)


class Unit(nn.Module):
    """Layer that scales each row to unit Euclidean length."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1)


def one_hot(labels: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return integer labels [B] as one-hot rows [B, classes]; traceable by `torch.func`."""
    return (labels[:, None] == torch.arange(classes, device=labels.device)).to(dtype)


def parameters_of(net: nn.Module) -> dict[str, Tensor]:
    """Return the live parameters by path."""
    return dict(net.named_parameters())


def buffers_of(net: nn.Module) -> dict[str, Tensor]:
    """Return the live floating-point buffers by path (normalisation statistics, but not step counters)."""
    return {path: buffer for path, buffer in net.named_buffers() if buffer.is_floating_point()}


def owners(net: nn.Module) -> dict[str, nn.Module]:
    """Map the path of each parameter and buffer to the module that owns it."""
    return {
        f"{prefix}.{name}" if prefix else name: module
        for prefix, module in net.named_modules()
        for name in (*module._parameters, *module._buffers)
    }


class Twin:
    """A copy of a net in evaluation mode that computes with borrowed weights.

    Borrowing copies no weights and switches no module's mode: on a small net either costs more than the forward pass.
    """

    def __init__(self, net: Net) -> None:
        self.net = copy.deepcopy(net).eval()
        modules = owners(self.net)
        names = {path: path.rpartition(".")[2] for path in modules}
        self.places = {
            path: (module._parameters if names[path] in module._parameters else module._buffers, names[path])
            for path, module in modules.items()
        }

    def under(self, leaves: Mapping[str, Tensor]) -> Net:
        """Return the net under `leaves`, which hold every parameter and floating-point buffer by path."""
        for path, leaf in leaves.items():
            place, name = self.places[path]
            place[name] = leaf  # type: ignore[assignment]
        return self.net


# check that a net fits a task ---------------------------------------------------------------------------

IMAGES = 2
NOT_THEIRS = (f"{Path(torch.__file__).parent}{os.sep}", __file__)


def wrong_with(net: Net, shape: tuple[int, int, int], classes: int) -> str:
    """Return what is wrong with a net's outputs for images of `shape` (channels, height, width), or nothing."""
    if any(leaf.is_meta for leaf in net.parameters()):
        return ""
    if fixed := next((path for path, leaf in net.named_parameters() if not leaf.requires_grad), ""):
        return (
            f"its {fixed} has requires_grad=False, which training ignores; keep it fixed with `trainable(path)` of an "
            "add-on, or register it as a buffer"
        )
    norms = (module for module in net.modules() if getattr(module, "track_running_stats", False))
    if any(getattr(norm, "momentum", 0.0) is None for norm in norms):
        return "its BatchNorm has momentum=None, so its statistics depend on a count over all clients; set a momentum"
    try:
        outputs = _outputs(net, shape)
    except Exception as error:
        return f"its forward{_raised(error)}"
    if not isinstance(outputs, tuple) or len(outputs) != 2 or not all(isinstance(part, Tensor) for part in outputs):
        return f"its forward returned a {type(outputs).__name__}, not (features [B, d], logits [B, classes])"
    features, logits = (list(part.shape) for part in outputs)
    if len(features) != 2 or features[0] != IMAGES:
        return f"its body returns {features} for {IMAGES} images, not a row each"
    if logits != [IMAGES, classes]:
        return f"its head returns {logits} for {IMAGES} images, not {[IMAGES, classes]}"
    try:
        drew = _draws(net, shape)
    except Exception as error:
        return f"its forward in training mode{_raised(error)}"
    # torch's own generator has no key of client and round: the bits would depend on what ran before
    return (
        "its forward draws random numbers in training, like nn.Dropout: make it deterministic, so runs repeat"
        if drew
        else ""
    )


def _raised(error: Exception) -> str:
    """Return where in the model's own code an error was raised, and the error."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f" ({frame.filename}, line {frame.lineno})" for frame in frames if _is_theirs(frame.filename)]
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{theirs[-1] if theirs else ''} raised {said}"


def _is_theirs(filename: str) -> bool:
    return not filename.startswith(NOT_THEIRS)


def _outputs(net: Net, shape: tuple[int, int, int]) -> object:
    """Return the outputs of a net in evaluation mode for images of zeros."""
    state = torch.get_rng_state()
    try:
        with torch.no_grad():
            return _with_own_statistics(net).eval()(torch.zeros(IMAGES, *shape))
    finally:
        torch.set_rng_state(state)


def _draws(net: Net, shape: tuple[int, int, int]) -> bool:
    """Return whether a net draws from torch's global generator in training."""
    state = torch.get_rng_state()
    try:
        with torch.no_grad():
            _with_own_statistics(net).train()(torch.zeros(IMAGES, *shape))
        return not torch.equal(state, torch.get_rng_state())
    finally:
        torch.set_rng_state(state)


def _with_own_statistics(net: Net) -> Net:
    """Return a float32 copy of a net that shares its float32 weights: large ones would take long to copy."""
    places: dict[int, object] = {id(leaf): nn.Parameter(leaf.detach().float()) for leaf in net.parameters()}
    for leaf in net.buffers():
        places[id(leaf)] = leaf.clone().float() if leaf.is_floating_point() else leaf.clone()
    return copy.deepcopy(net, places)
