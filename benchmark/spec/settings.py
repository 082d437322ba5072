"""Every setting outside plugins, declared once: what a cell computes, and where and how it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from fedspan.benchmark.errors import UserError, did_you_mean, require
from fedspan.benchmark.fields import defaults_of, from_values
from fedspan.benchmark.places import data_root, usable_cores
from fedspan.benchmark.registry import how_settings

SCALES = ("paper", "own", "small", "smoke")
FULL = ("paper", "own")  # scales of a whole grid: a paper's recipe, or one from no paper


# Beyond what any machine has or anybody waits for: larger values are typos, and some crash libraries silently.
MOST = {
    "threads": (1024, ""),
    "workers": (10_000, ""),
    "gpus": (1024, ""),
    "checkpoint_seconds": (10**9, " seconds"),
    "timeout": (10**9, " seconds"),
}


def check_scale(name: object) -> None:
    """Raise `UserError` with a suggestion unless `name` is that of a scale."""
    if name not in SCALES:
        raise UserError(f"unknown scale '{name}'{did_you_mean(str(name), SCALES)}")


@dataclass(frozen=True)
class What:
    """What a cell computes, besides its plugins, protocol and diagnostics. All of it enters the key."""

    clients: int = 10
    participation: float = 1.0
    unseen: float = 0.0  # share of the clients that never train, and are scored as newcomers
    addons: tuple[str, ...] = ()
    seed: int = 0
    scale: str = "own"

    def __post_init__(self) -> None:
        check_scale(self.scale)


@dataclass(frozen=True)
class How:
    """Where and how cells run. Nothing here changes what is computed; nothing enters a key.

    `workers` is the number of processes that train in parallel: on cells of a grid (None: one per core), or on the
    clients of one cell (None: one process). `threads` and `gpus` are per cell. `timeout` (None: never) and
    `checkpoint_seconds` (between two checkpoints) are in seconds.
    """

    results: Path = field(default=Path("results"), metadata={"setting": "paths.results"})
    data: Path = field(default_factory=data_root, metadata={"setting": "paths.data"})
    pages: Path = field(default=Path("leaderboards/pages"), metadata={"setting": "paths.pages"})
    device: str = "cpu"
    executor: str = "loop"
    threads: int = 1
    numerics: str | None = None  # None: portable where possible
    workers: int | None = None
    launcher: str | None = None
    gpus: float | None = None
    checkpoint_seconds: float = 10.0
    timeout: float | None = None
    fresh: bool = False  # recompute cells whose records other sources made
    tracking: bool = True
    board: str | None = None
    plugins: tuple[str, ...] = ()  # files, or folders of files, with plugins
    traceback: bool = False  # print the traceback of a failed cell
    command: str = field(default="", metadata={"setting": None})  # as typed by the user; not a setting

    def __post_init__(self) -> None:
        for name, value in (("threads", self.threads), ("workers", self.workers)):
            require(value is None or value >= 1, name, "must be at least 1", value)
        require(self.checkpoint_seconds >= 0, "checkpoint_seconds", "must not be negative", self.checkpoint_seconds)
        require(self.gpus is None or self.gpus > 0, "gpus", "must be positive", self.gpus)
        require(self.timeout is None or self.timeout > 0, "timeout", "must be positive", self.timeout)
        for name, (most, unit) in MOST.items():
            value = getattr(self, name)
            require(value is None or value <= most, name, f"must be at most {most:,}{unit}", value)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> How:
        """Return the checked settings of a configuration; raise `UserError`."""
        known = repr(_nodes(config))  # the same for all cells of a grid
        if known not in _checked:
            values = {name: value_of(config, setting) for name, setting in _SETTINGS.items()}
            _checked[known] = from_values(cls, values | {"plugins": paths_of(values["plugins"])}, "")
        return _checked[known]

    @property
    def cells_at_a_time(self) -> int:
        """`workers`; by default the usable cores over `threads`, rounded down, at least 1; 1 if ``launcher=basic``."""
        return self.workers or (1 if self.launcher == "basic" else max(1, usable_cores() // self.threads))


_checked: dict[str, How] = {}  # by configuration
_SETTINGS: dict[str, str] = {
    item.name: setting
    for item in dataclasses.fields(How)
    if (setting := item.metadata.get("setting", item.name)) is not None
}
_NODES = frozenset(setting.split(".")[0] for setting in _SETTINGS.values())
_nodes = itemgetter(*sorted(_NODES))


def value_of(config: Mapping[str, Any], setting: str) -> Any:
    """Return a dotted setting of a composed configuration."""
    value: Any = config
    for part in setting.split("."):
        value = value[part]
    return value


def paths_of(value: Any) -> tuple[str, ...]:
    """Return the value of `plugins`, a path or a list of them, as a tuple; raise `UserError` for anything else."""
    paths = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(paths, (list, tuple)) or not all(isinstance(path, str) and path for path in paths):
        raise UserError(f"plugins must be the path of a Python file, or a list of paths, got {value!r}")
    return tuple(paths)


def labels_alone(axes: Mapping[str, list[Any]]) -> list[str]:
    """Return a sentence for each smaller scale of cells of no board: it is only a label in the record."""
    scales = () if "board" in axes else [scale for scale in axes.get("scale", ()) if scale not in FULL]
    said = (
        "is only a label without a board: the cell keeps its size; to run less, set protocol.rounds, dataset.limit, ..."
    )
    return [f"scale={scale} {said}" for scale in scales]


def several_ways(setting: str, values: Sequence[Any]) -> str:
    """Return why a setting of how to run cannot have these values; empty if it can."""
    several = len(values) > 1 and is_how(setting) and setting != "board"
    return f"{setting} says how to run, which takes one value for all cells" if several else ""


def is_how(setting: str) -> bool:
    """Return whether a setting is about where or how to run, not about what to compute."""
    return setting.split(".")[0] in _NODES


def is_place(setting: str) -> bool:
    """Return whether a setting is the place of a plugin's data, such as dataset.source."""
    return setting in how_settings()


def first_change(settings: Iterable[str]) -> str | None:
    """Return the first setting that changes a board's cells beyond their scale; None without one."""
    return next((name for name in settings if name != "scale" and not is_how(name) and not is_place(name)), None)


def what_defaults() -> dict[str, Any]:
    """Return the part of the configuration declared by `What`."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in defaults_of(What).items()}


def how_defaults() -> dict[str, Any]:
    """Return the part of the configuration declared by `How`."""
    config: dict[str, Any] = {}
    defaults = defaults_of(How)
    for name, setting in _SETTINGS.items():
        *parents, last = setting.split(".")
        node, value = config, defaults[name]
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
    return config
