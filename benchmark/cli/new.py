"""`fedspan new`: a working plugin and its test, or a board, in this checkout or in its own distribution."""

from __future__ import annotations

import argparse
import builtins
import contextlib
import datetime
import keyword
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedspan.benchmark.cli import skeletons
from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.registry import choice, plugins
from fedspan.benchmark.spec.board import SITE_FOLDERS
from fedspan.benchmark.spec.overrides import override_text, settings_of
from fedspan.benchmark.spec.presets import yaml_files


@dataclass(frozen=True)
class Skeleton:
    """Templates of a kind of plugin and of its test, and their folders in a checkout."""

    text: str
    folder: str
    test: str = ""
    test_folder: str = ""


SKELETONS = {
    "algorithm": Skeleton(skeletons.ALGORITHM, "methods/algorithms", skeletons.ALGORITHM_TEST, "tests/methods"),
    "addon": Skeleton(skeletons.ADDON, "methods/addons", skeletons.ADDON_TEST, "tests/methods"),
    "dataset": Skeleton(skeletons.DATASET, "tasks/datasets", skeletons.DATASET_TEST, "tests/tasks"),
    "partition": Skeleton(skeletons.PARTITION, "tasks/partitions", skeletons.PARTITION_TEST, "tests/tasks"),
    "fleet": Skeleton(skeletons.FLEET, "tasks/fleets", skeletons.FLEET_TEST, "tests/tasks"),
    "model": Skeleton(skeletons.MODEL, "tasks/models", skeletons.MODEL_TEST, "tests/tasks"),
    "board": Skeleton(skeletons.BOARD, "leaderboards/boards"),
}


def create(kind: str, name: str, checkout: Path, package: Path | None = None) -> list[Path]:
    """Write the plugin or board `name`, and a plugin's test; return the paths, the plugin's or board's first.

    They go into the folders of `checkout`, or all into the folder `package` as an installable distribution.
    Raises `UserError` for an unknown kind, an invalid or taken name, a folder that is no checkout, or an existing file.
    """
    _check_name(kind, name)
    skeleton = SKELETONS[kind]
    texts = _in_package(kind, name, skeleton, package) if package else _in_checkout(kind, name, skeleton, checkout)
    for path in texts:
        if package is None and not path.parent.is_dir():
            raise UserError(
                f"there is no {path.parent}; run this in a checkout of FedSpan, or add --package DIR "
                "for a folder of your own"
            )
        if path.exists():
            raise UserError(f"{path} already exists; choose another {'name' if package is None else 'folder'}")
    words = {"name": name, "title": _title(name), "cls": _class_name(kind, name), "year": datetime.date.today().year}
    words["dashed"] = name.replace("_", "-").strip("-")
    for path, (text, module) in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(**words, module=module), encoding="utf-8")
    return list(texts)


def _title(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _class_name(kind: str, name: str) -> str:
    """Return a class name that shadows no word of the skeleton and no builtin, and that pytest does not collect."""
    title, skeleton = _title(name), SKELETONS[kind]
    words = {*re.findall(r"\w+", skeleton.text + skeleton.test), *dir(builtins)}
    return kind.capitalize() + title if title in words or title.startswith("Test") else title


def _check_name(kind: str, name: str) -> None:
    if kind not in SKELETONS:
        raise UserError(f"cannot make a new '{kind}'{did_you_mean(kind, SKELETONS)}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(f"'{name}' must be lower case letters, digits and _, beginning with a letter")
    if keyword.iskeyword(name):
        raise UserError(f"'{name}' is a Python keyword; choose another name")
    if _read(name) != name:
        raise UserError(f"'{name}' is read as {_read(name)!r} in a setting or in a board; choose another name")
    if kind == "board" and name in SITE_FOLDERS:
        raise UserError(f"'{name}' is a folder of the site, so no board; choose another name")
    boards, others = (yaml_files("boards"), {}) if kind == "board" else ({}, plugins(kind))
    if name in boards or name in others:
        raise UserError(f"{kind} '{name}' already exists: {boards.get(name) or others[name].__module__}")


def _read(name: str) -> Any:
    """Return the value that a command line or YAML reads from a name; for ``null`` or ``on`` it is not a string."""
    written = settings_of([f"algorithm={name}"])["algorithm"]
    return yaml.safe_load(name) if written == name else written


def _in_checkout(kind: str, name: str, skeleton: Skeleton, root: Path) -> dict[Path, tuple[str, str]]:
    if kind == "board":
        return {root / skeleton.folder / f"{name}.yaml": (skeleton.text, "")}
    module = ".".join(["fedspan", *skeleton.folder.split("/"), name])
    test = root / skeleton.test_folder / f"test_{name}.py"
    return {root / skeleton.folder / f"{name}.py": (skeleton.text, module), test: (skeleton.test, module)}


def _in_package(kind: str, name: str, skeleton: Skeleton, folder: Path) -> dict[Path, tuple[str, str]]:
    if kind == "board":
        return {folder / f"{name}.yaml": (skeleton.text, "")}
    module = f"fedspan_{name}"
    return {
        folder / f"{module}.py": (skeleton.text, module),
        folder / f"test_{module}.py": (skeleton.test, module),
        folder / "pyproject.toml": (skeletons.PROJECT, module),
    }


def make(arguments: argparse.Namespace) -> int:
    """Write a plugin and its test, or a board, into the checkout in the working folder or into its own folder."""
    if len(arguments.words) != 2:
        raise UserError(f"write: fedspan new {'|'.join(SKELETONS)} NAME [--package DIR]")
    kind, name = arguments.words
    package = Path(arguments.package) if arguments.package else None
    first, *others = (os.path.relpath(path) for path in create(kind, name, Path.cwd(), package))
    given = [_setting("plugins", first)] if package else []
    if kind == "board":
        board = _setting("board", first) if package else f"board={name}"
        print(f"{first}  try it: {shlex.join(['fedspan', 'run', board, 'scale=smoke'])}")
        return 0
    print(f"{first}  try it: {shlex.join(['fedspan', 'run', *given, choice(kind, name), 'protocol.rounds=2'])}")
    tests = f"{shlex.join(['pytest', others[0]])}; {shlex.join(['fedspan', 'test', name, *given])}"
    print(f"{others[0]}  run it, and the contract tests: {tests}")
    if package:
        print(f"{others[1]}  install it: pip install {shlex.quote(os.path.join('.', os.path.relpath(package)))}")
    return 0


def _setting(name: str, value: str) -> str:
    """Return ``name=value``, quoted where Hydra needs it."""
    with contextlib.suppress(UserError):
        if settings_of([f"{name}={value}"]) == {name: value}:
            return f"{name}={value}"
    return override_text(name, value)
