"""Ten kinds of damage to a field, ten to a whole file, and writers that put a damaged value where a good one was."""

import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml
from safetensors.torch import load_file

from fedspan.benchmark.records import checkpoint
from fedspan.benchmark.records.record import digest_of

FIELD = {
    "removed": ...,
    "null": None,
    "text": "x\x1b[2J<b>=1+1",
    "number": 17,
    "negative": -1e300,
    "huge": 10**400,
    "list": [[]],
    "object": {"a": {"b": [None]}},
    "deep": json.loads("[" * 500 + "]" * 500),
    "other": "other",  # a value of the same type
}


@dataclass(frozen=True)
class Mutation:
    """One field of one kind of file, damaged in one way, and how the file is then written."""

    kind: str
    where: tuple[Any, ...]
    damage: str
    write: Callable

    @property
    def forged(self):
        """Whether the file is sealed anew, so that its digest says nothing of the damage."""
        return self.write in (sealed, sealed_header)

    @property
    def later(self):
        """Whether it makes a record say that a later version wrote it."""
        return (self.kind, self.where) == ("record", ("schema",)) and self.damage in ("number", "huge", "other")

    def __str__(self):
        return f"{self.kind} {'.'.join(map(str, self.where)) or '(whole)'}: {self.damage} ({self.write.__name__})"


def damaged(content, where, damage):
    """Return a copy of `content` with what lies at the path `where` damaged."""
    root = {"root": json.loads(json.dumps(content))}
    path, node = ("root", *where), root
    for key in path[:-1]:
        node = node[key]
    if damage == "removed":
        del node[path[-1]]
    else:
        node[path[-1]] = another(node[path[-1]]) if damage == "other" else FIELD[damage]
    return root.get("root")


def another(value):
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return f"{value[:-1]}{'0' if value[-1:] != '0' else '1'}"
    if isinstance(value, list):
        return [*value, *value[-1:]]
    return {**value, "more": 1} if isinstance(value, dict) else 1


def paths_in(value, path=(), most=3):
    """Return the paths of all fields; of a list or the tensors of a file only those of the first ones."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    tensors = [item for item in items if isinstance(item[1], dict) and "data_offsets" in item[1]]
    alike = items[:most] if isinstance(value, list) else [item for item in items if item not in tensors[most:]]
    return [path, *(found for key, item in alike for found in paths_in(item, (*path, key), most))]


# writers ------------------------------------------------------------------------------------------------------------


def as_json(path, value):
    path.write_text(json.dumps(value))


def as_yaml(path, value):
    """Write a board or a protocol; what is too deep for YAML's writer becomes JSON, which is YAML too."""
    try:
        path.write_text(yaml.safe_dump(value))
    except RecursionError:
        as_json(path, value)


def sealed(path, value):
    """Write a record or a summary whose digest is that of the damaged content, as a forger would."""
    if isinstance(value, dict) and "digest" in value:
        content = {name: item for name, item in value.items() if name != "digest"}
        value = {**content, "digest": digest_of(content)}
    as_json(path, value)


def header_of(path):
    """Return the header of a file of tensors, with what the writer said of them."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"]["meta"] = json.loads(header["__metadata__"]["meta"])
    return header


def with_header(path, header):
    """Replace the header of a file of tensors."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    if isinstance(header, dict) and isinstance(about := header.get("__metadata__"), dict) and "meta" in about:
        about["meta"] = json.dumps(about["meta"])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])


def sealed_header(path, header):
    """Replace the header of a file of tensors, with the digest that fits, as a forger would."""
    if isinstance(header, dict) and isinstance(about := header.get("__metadata__"), dict) and "digest" in about:
        about["digest"] = checkpoint._digest(load_file(path), json.dumps(about.get("meta")))
    with_header(path, header)


# whole files --------------------------------------------------------------------------------------------------------

WHOLE = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "no text": lambda path: path.write_bytes(bytes(range(256))),
    "deep": lambda path: path.write_bytes(b"[" * 50_000),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link to itself": lambda path: (path.unlink(), path.symlink_to(path.name)),
    "an endless device": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
    "sparse": lambda path: os.truncate(path, 2**40),
}
