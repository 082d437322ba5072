"""README shows what the records and the plugins say: `nox -s readme` renews it."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def readme():
    spec = importlib.util.spec_from_file_location("readme", ROOT / "docs" / "readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_tables_are_those_of_the_plugins(readme):
    assert readme.with_catalogue(TEXT) == TEXT, "run nox -s readme"


def test_its_pictures_lie_in_the_repository_and_its_anchors_in_its_files():
    for target in re.findall(r"\]\(((?!http)[^)]+)\)", TEXT):
        file, _, anchor = target.partition("#")
        path = ROOT / file if file else ROOT / "README.md"
        assert path.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}, target


@pytest.mark.docs
def test_its_picture_and_its_first_finding_are_the_numbers_of_the_records(readme):
    view = readme.ranking()
    said = re.search(r"<dc:description>(.*?)</dc:description>", readme.PICTURE.read_text(encoding="utf-8"), re.DOTALL)
    assert " ".join(said[1].split()) == readme.words(view), "run nox -s readme"
    assert len(readme.spectra().lines) == 4  # two methods at two learning rates
    assert view.tuned
    for value in view.lines[0].gain:
        assert f"{value:.1f}" in TEXT.partition("[All numbers]")[0]
