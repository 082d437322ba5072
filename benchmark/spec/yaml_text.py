"""Text of a YAML file, refused if parsing it could take unbounded memory or time."""

from __future__ import annotations

from pathlib import Path

import yaml

MOST_BYTES = 2**20
MOST_DEPTH = 30
MOST_VALUES = 100_000  # with every repetition of an anchor expanded


def checked(path: Path) -> str:
    """Return the text of a file; raise `ValueError` with what is wrong, `OSError` or `yaml.YAMLError`."""
    if not path.is_file():  # a pipe never ends
        raise ValueError("it is not a regular file")
    if (size := path.stat().st_size) > MOST_BYTES:
        raise ValueError(f"it has {size} bytes, more than {MOST_BYTES}")
    text = path.read_text(encoding="utf-8")
    sizes: dict[str, int] = {}  # values below each anchor, repetitions included
    open_nodes: list[tuple[str | None, int]] = [(None, 0)]  # anchor and values so far

    def count(values: int, anchor: str | None, line: int) -> None:
        """Add values to the innermost open node; `anchor` is their name, if any."""
        if anchor:
            sizes[anchor] = values
        outer, so_far = open_nodes[-1]
        open_nodes[-1] = outer, so_far + values
        if so_far + values > MOST_VALUES:
            raise ValueError(f"line {line} brings it to more than {MOST_VALUES} values")

    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise ValueError(f"line {line} repeats *{event.anchor}, which is not complete there")
            count(sizes[event.anchor], None, line)
        elif isinstance(event, yaml.ScalarEvent):
            count(1, event.anchor, line)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, 1))
            if len(open_nodes) > MOST_DEPTH:
                raise ValueError(f"line {line} is nested more than {MOST_DEPTH} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values = open_nodes.pop()
            count(values, anchor, line)
    return text
