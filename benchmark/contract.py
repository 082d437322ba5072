"""Checks of hook results on the first call, and attribution of errors to hooks."""

from __future__ import annotations

import dataclasses
import inspect
import linecache
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedspan.benchmark.component import Component, Wire
from fedspan.benchmark.net import Net
from fedspan.benchmark.registration import ENGINE, base_of
from fedspan.benchmark.registry import Plugin, prefix_of
from fedspan.benchmark.returned import refusal, shown

GENERATED = "<string>"  # the file of methods that dataclasses write
BRANCHED = ("cannot be called on meta tensors", "data-dependent control flow")  # in torch's errors, also under vmap


def check_returned(component: Component, hook: str, inputs: Sequence[Any], returned: Any) -> None:
    """Raise `HookError` if a hook returned something invalid; reads names and shapes, never values of tensors."""
    wanted, wrong_with = RULES.get(hook, ("", lambda returned, *inputs: ""))
    if problem := wrong_with(returned, *inputs):
        raise refusal(component, hook, wanted, problem)


def check_attached(component: Component, total: Tensor) -> None:
    """Raise `HookError` if `total`, the component's `loss` plus penalties, has no gradient in the weights."""
    if not total.requires_grad:
        problem = "its loss has none (detach(), item(), argmax and torch.tensor(...) cut it off)"
        raise refusal(component, "loss", "a loss with a gradient in the weights", problem)


def check_weights(component: Component, weights: Tensor) -> None:
    """Raise `HookError` if `weights` [m] cannot average clients; this depends on values, so check every round."""
    wrong = [value for value in weights.tolist() if not (math.isfinite(value) and value >= 0)]
    if wrong or not weights.sum() > 0:
        problem = f"one is {wrong[0]:g}" if wrong else "all of them are 0"
        raise refusal(component, "weights", "finite weights, none negative and not all 0", problem)


def check_message(component: Component, message: Mapping[str, Tensor], broadcast: Mapping[str, Tensor]) -> None:
    """Raise `HookError` if a client would receive two leaves under one name."""
    if twice := sorted(set(message) & set(broadcast)):
        raise refusal(component, "message", "names that `broadcast` does not have", f"both have '{twice[0]}'")


def blame(error: BaseException) -> str | None:
    """Return one line on which plugin's hook raised `error`, where, and what it should do; None if no hook did."""
    frames = [one for one in list(traceback.walk_tb(error.__traceback__)) if one[0].f_code.co_filename != GENERATED]
    calls = [(frame, plugin) for frame, _ in frames if isinstance(plugin := frame.f_locals.get("self"), Plugin)]
    theirs = [(frame, plugin) for frame, plugin in calls if not frame.f_globals.get("__name__", "").startswith(ENGINE)]
    if isinstance(error, NotImplementedError) and not str(error) and calls and not theirs:
        hook = calls[-1][0].f_code.co_name
        return f"{_called(calls[-1][1], hook)} is missing; expected: {_about(calls[-1][1], hook)}"
    if not theirs:
        return None
    frame, plugin = theirs[0]
    hook = frame.f_code.co_name
    file = frame.f_code.co_filename
    line = [number for other, number in frames if other.f_code.co_filename == file][-1]
    said = " ".join(f"{type(error).__name__}: {str(error) or linecache.getline(file, line)}".split())
    expected = f"; expected: {about}" if (about := _about(plugin, hook)) else ""
    said += _hint(error, plugin, hook)
    return f"{_called(plugin, hook)} ({file}, line {line}): {said}{expected}"


def _called(plugin: Plugin, hook: str) -> str:
    return f"{plugin.kind} '{plugin.name}', {hook}"


def _about(plugin: Plugin, hook: str) -> str:
    """Return the first line of a hook's docstring in the base class."""
    if hook == "__post_init__":
        return f'require(condition, "{prefix_of(plugin)}.FIELD", "must ...", value) of fedspan.benchmark.errors'
    base = base_of(type(plugin))
    return (inspect.getdoc(getattr(base, hook, None)) or "").split("\n")[0].rstrip(".")


def _hint(error: BaseException, plugin: Plugin, hook: str) -> str:
    """Return a likely cause of a common beginner's error, or an empty string."""
    if isinstance(error, dataclasses.FrozenInstanceError):
        return " (`self` holds settings only; a method keeps its state in the trees that `init` returns)"
    if isinstance(error, RuntimeError) and any(said in str(error) for said in BRANCHED):
        return " (costs are counted without values, so a hook must not branch on a tensor: use torch.where or clamp)"
    if not isinstance(error, KeyError) or not isinstance(plugin, Component):
        return ""
    base = getattr(Component, hook, None)
    given = set(inspect.signature(base).parameters) if callable(base) else set()
    if base is not None and not {"step", "local"} & given:  # the hook sees the whole server tree, or none
        return ""
    if type(plugin).broadcast is Component.broadcast and type(plugin).message is Component.message:
        return " (clients see only those server leaves that `broadcast` returns; there is no `broadcast`)"
    return ""


# rules: each returns what is wrong with a returned value, or an empty string ---------------------------

CLIENT_TREE = "the client tree (its names come from init)"


def _scalar(returned: Any, *inputs: Any) -> str:
    return "" if isinstance(returned, Tensor) and returned.ndim == 0 else shown(returned)


def _truth(returned: Any, *inputs: Any) -> str:
    return "" if isinstance(returned, bool) else shown(returned)


def _net(returned: Any, *inputs: Any) -> str:
    return "" if isinstance(returned, Net) else shown(returned)


def _tree(value: Any, name: str = "it") -> str:
    if not isinstance(value, Mapping):
        return shown(value) if name == "it" else f"{name} is {shown(value).removeprefix('it returned ')}"
    wrong = next((path for path, leaf in value.items() if not isinstance(leaf, Tensor)), None)
    return "" if wrong is None else f"{name} holds {value[wrong]!r:.60} under '{wrong}', which is not a tensor"


def _like(value: Any, model: Mapping[str, Tensor], name: str, part: bool = False) -> str:
    """Return how a tree's names and shapes differ from those of a model; with `part` it may lack some."""
    if problem := _tree(value, name):
        return problem
    if strange := [path for path in value if path not in model]:
        return f"{name} has '{min(strange)}', which is not among {_listed(model)}"
    if not part and (missing := [path for path in model if path not in value]):
        return f"{name} lacks '{min(missing)}'"
    if wrong := [path for path, leaf in value.items() if leaf.shape != model[path].shape]:
        path = min(wrong)
        return f"{name} has the shape {list(value[path].shape)} under '{path}', not {list(model[path].shape)}"
    if wrong := [path for path, leaf in value.items() if leaf.dtype != model[path].dtype]:
        path = min(wrong)
        return f"{name} has {value[path].dtype} under '{path}', not {model[path].dtype}"
    return ""


def _listed(names: Mapping[str, Any]) -> str:
    some = ", ".join(sorted(names)[:3])
    return f"{some}{', ...' if len(names) > 3 else ''}" if names else "its names, which are none"


def _tuple_of(number: int, returned: Any) -> str:
    return "" if isinstance(returned, tuple) and len(returned) == number else shown(returned)


def _init(returned: Any, *inputs: Any) -> str:
    return _tuple_of(2, returned) or _tree(returned[0], "the server tree") or _tree(returned[1], "the client tree")


def _phases(returned: Any, *inputs: Any) -> str:
    if not isinstance(returned, (list, tuple)) or not returned:
        return shown(returned)
    for phase in returned:
        if _tuple_of(2, phase) or not isinstance(phase[0], int) or not callable(phase[1]):
            return f"one phase is {phase!r:.60}"
    return ""


def _grads(returned: Any, grads: Mapping[str, Tensor], *inputs: Any) -> str:
    if problem := _tree(returned):
        return problem
    return _like({path: leaf for path, leaf in returned.items() if path in grads}, grads, "the tree")


def _client_end(returned: Any, delta: Mapping[str, Tensor], local: Any) -> str:
    if problem := _tuple_of(3, returned):
        return problem
    moved, upload, tree = returned
    if not isinstance(upload, Mapping):
        return f"the upload is {shown(upload).removeprefix('it returned ')}"
    if wrong := [name for name, leaf in upload.items() if not isinstance(leaf, (Tensor, int, float))]:
        return f"the upload holds {upload[wrong[0]]!r:.60} under '{wrong[0]}', which is neither a tensor nor a number"
    return _like(moved, delta, "delta") or _like(tree, local.client, CLIENT_TREE)


def _server(returned: Any, delta: Mapping[str, Tensor], agg: Any) -> str:
    if problem := _tuple_of(2, returned):
        return problem
    moved, tree = returned
    return _like(moved, delta, "delta") or _like(tree, agg.server, "the server tree (its names come from init)")


def _client_start(returned: Any, params: Mapping[str, Tensor], local: Any) -> str:
    if problem := _tuple_of(2, returned):
        return problem
    weights, tree = returned
    return _like(weights, params, "the tree") or _like(tree, local.client, CLIENT_TREE)


def _carry(returned: Any, grads: Any, step: Any) -> str:
    return _like(returned, step.client, CLIENT_TREE)


def _weights(returned: Any, counts: Tensor, *inputs: Any) -> str:
    return "" if isinstance(returned, Tensor) and returned.shape == counts.shape[:1] else shown(returned)


def _wire(returned: Any, *inputs: Any) -> str:
    if not isinstance(returned, Wire):
        return shown(returned)
    return "" if min(returned.numbers, returned.bits, returned.extra) >= 0 else f"it returned {returned}"


def _aggregate(returned: Any, updates: Mapping[int, Mapping[str, Tensor]], agg: Any) -> str:
    return _like(returned, next(iter(updates.values())), "delta")


def _own(returned: Any, params: Mapping[str, Tensor], local: Any) -> str:
    return _like(returned, {**params, **local.buffers}, "the tree", part=True)


def _cost(returned: Any, *inputs: Any) -> str:
    if returned is None or (not _tuple_of(2, returned) and all(isinstance(number, int) for number in returned)):
        return ""
    return shown(returned)


def _privacy(returned: Any, *inputs: Any) -> str:
    if problem := _tuple_of(2, returned):
        return problem
    epsilon, delta = returned
    return "" if epsilon >= 0 and math.isfinite(epsilon) and 0 < delta < 1 else f"it returned {returned}"


Rule = Callable[..., str]
RULES: dict[str, tuple[str, Rule]] = {
    "net": ("a Net", _net),
    "init": ("(server tree, client tree)", _init),
    "trainable": ("True or False", _truth),
    "shared": ("True or False", _truth),
    "phases": ("a list of (epochs, predicate)", _phases),
    "loss": ("a scalar tensor", _scalar),
    "penalty": ("a scalar tensor", _scalar),
    "grads": ("a tree with the gradient of every weight that moves", _grads),
    "shift": ("a tree over weights", lambda returned, step: _like(returned, step.params, "the tree", part=True)),
    "broadcast": ("a tree", lambda returned, server: _tree(returned)),
    "message": ("a tree", lambda returned, download: _tree(returned)),
    "carry": ("the client tree", _carry),
    "weights": ("a tensor of one weight for each participant", _weights),
    "client_start": ("(weights, client tree)", _client_start),
    "wire": ("a Wire whose numbers and bits are not negative", _wire),
    "aggregate": ("a tree with the delta of every weight", _aggregate),
    "own": ("a tree over weights and statistics", _own),
    "client_end": ("(delta, upload, client tree)", _client_end),
    "server": ("(delta, server tree)", _server),
    "privacy": ("(epsilon, delta), finite, delta between 0 and 1", _privacy),
    "stats": ("a tree", lambda returned, *inputs: _tree(returned)),
    "calibration_cost": ("(numbers sent, FLOPs), whole numbers, or None", _cost),
    "calibrate": ("a tree with every weight", lambda returned, params, *inputs: _like(returned, params, "the tree")),
    "personalise": (
        "a tree over weights",
        lambda returned, params, *inputs: _like(returned, params, "the tree", part=True),
    ),
}
