"""`fedspan data`: fetch, verify and locate the published files of datasets."""

from __future__ import annotations

import argparse

from fedspan.benchmark.cli.accepted import accepted
from fedspan.benchmark.cli.main import tell
from fedspan.benchmark.data.download import fetch, verify, where
from fedspan.benchmark.data.published import Published
from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.fields import from_values
from fedspan.benchmark.registry import find, plugins
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.task import Dataset

ACTIONS = ("fetch", "verify", "where")
PLACES = ("paths.data", "plugins")


def manage(arguments: argparse.Namespace) -> int:
    """Fetch, verify or locate datasets."""
    words = arguments.words
    names = [word for word in words if "=" not in word]
    if not names or names[0] not in ACTIONS:
        hint = did_you_mean(names[0], ACTIONS) if names else ""
        raise UserError(f"write: fedspan data fetch NAME, fedspan data verify NAME, or fedspan data where{hint}")
    action, *names = names
    settings = [word for word in words if "=" in word]
    if action == "where":
        if names:
            raise UserError("write: fedspan data where, without a name")
        return where(How.of(accepted(settings, PLACES, "one folder holds the data")).data)
    if not names:
        raise UserError(f"name a dataset: fedspan data {action} {'|'.join(_published())}")
    if any(word.startswith("dataset=") for word in settings):
        raise UserError(f"name the dataset by itself: fedspan data {action} NAME, without dataset=")
    status = 0
    for name in names:
        known = ("dataset", "dataset.*", *PLACES)
        config = accepted([*settings, f"dataset={name}"], known, "this command manages the files of a dataset")
        values = {key: value for key, value in config["dataset"].items() if key != "name"}
        dataset = from_values(find("dataset", name), values, "dataset")
        assert isinstance(dataset, Dataset)
        data = How.of(config).data
        try:
            status = max(status, fetch(dataset, data) if action == "fetch" else verify(dataset, data))
        except UserError as error:
            if len(names) == 1:
                raise
            tell(str(error))
            status = 2
    return status


def _published() -> list[str]:
    return [name for name, cls in plugins("dataset").items() if issubclass(cls, Published)]
