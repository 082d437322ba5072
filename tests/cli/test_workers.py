"""Worker processes of a grid know what its command knows: plugins of files, and the numerics that it chose."""

import json
from pathlib import Path

import pytest

from fedspan.benchmark import numerics
from tests.cli.conftest import QUICK
from tests.cli.test_plugins import MINE


def made(folder="results"):
    """Return numerics and digests of the records of a folder, by algorithm."""
    records = [json.loads(path.read_text()) for path in Path(folder, "records").glob("*.json")]
    return {one["spec"]["algorithm"]["name"]: (one["provenance"]["numerics"], one["digests"]) for one in records}


@pytest.mark.slow
@pytest.mark.skipif(bool(numerics.missing_features()), reason=f"portable {numerics.missing_features()}")
def test_workers_know_the_plugins_of_a_file_and_are_portable_without_a_word_about_it(unprepared, here):
    (here / "my.py").write_text(MINE)
    assert unprepared("run", "-m", *QUICK, "algorithm=fedavg,mine", "plugins=my.py", "workers=2").status == 0
    grid = made()
    assert {name: mode for name, (mode, _) in grid.items()} == {"fedavg": "portable", "mine": "portable"}
    assert unprepared("run", *QUICK, "paths.results=one").status == 0
    assert made("one") == {"fedavg": grid["fedavg"]}
