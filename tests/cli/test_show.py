"""`fedspan show partition`: who holds what, in a figure and in the terminal."""

import dataclasses
import io
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedspan.benchmark.data.shares import shares
from fedspan.benchmark.report.partition_figure import figure, terminal
from fedspan.tasks.partitions.dirichlet import Dirichlet
from fedspan.tasks.partitions.domain import Domain
from tests.benchmark.test_split import DOMAINS, DomainBlobs, OwnTests
from tests.cli.conftest import QUICK
from tests.helpers import toy_cell
from tests.toys import Blobs

SVG = "{http://www.w3.org/2000/svg}"


def circles(svg):
    """Return what is drawn in the groups of circles."""
    groups = [group for group in ET.fromstring(svg).iter(f"{SVG}g") if group.get("id") == "circles"]
    return [shape for group in groups for shape in (*group.findall(f"{SVG}path"), *group.iter(f"{SVG}use"))]


def test_the_partition_of_a_run_is_shown_and_drawn(fedspan):
    settings = ("partition=dirichlet", "partition.alpha=0.05", "dataset=digits", "clients=10", "seed=3")
    ran = fedspan("show", "partition", *settings)
    assert (ran.status, ran.err) == (0, "")
    assert "Digits, 10 clients, alpha 0.05, seed 3" in ran.out
    rows = re.findall(r"^ +(\d+) +(\d+) +([·▁▂▃▄▅▆▇█]{10}) *$", ran.out, re.MULTILINE)
    assert [int(client) for client, _, _ in rows] == list(range(10))
    sizes = [int(size) for _, size, _ in rows]
    assert f"{sum(sizes):,} of {sum(sizes):,} images are held for training" in ran.out
    path = Path(ran.out.splitlines()[-1])
    assert path.parent == Path("results/partitions")
    nonzero = sum(10 - bars.count("·") for _, _, bars in rows)
    assert len(circles(path.read_bytes())) == nonzero


def test_it_is_the_partition_that_a_run_uses(fedspan):
    ran = fedspan("show", "partition", *QUICK)
    fedspan("run", *QUICK)
    [path] = Path("results/records").glob("*.json")
    digest = json.loads(path.read_text())["provenance"]["partition_digest"]
    assert digest[:8] in ran.out.splitlines()[-1]


def test_clients_that_never_train_are_counted_apart(fedspan):
    words = ("partition=personal", "clients=10", "unseen=0.5", "protocol.validation=0.2")
    ran = fedspan("show", "partition", *words)
    assert "5 more clients never train" in ran.out
    sizes = [int(size) for size in re.findall(r"^ +\d+ +(\d+) +\d+ +[·▁▂▃▄▅▆▇█]{10} *$", ran.out, re.MULTILINE)]
    assert len(sizes) == 5
    assert f"{sum(sizes):,} of 1,797 images are held for training" in ran.out


def test_each_share_of_clients_that_never_train_has_a_file_of_its_own(fedspan):
    words = ("partition=personal", "clients=10")
    files = {fedspan("show", "partition", *words, f"unseen={share}").out.splitlines()[-1] for share in (0, 0.5)}
    assert len(files) == 2
    both = fedspan("show", "partition", *words, "unseen=0,0.5")
    assert (both.status, "2 partitions" in both.complaint) == (2, True)


def test_the_figure_goes_where_it_is_asked_to(fedspan, here):
    ran = fedspan("show", "partition", "--out", "figures/mine.svg", "partition=iid")
    assert ran.out.splitlines()[-1] == "figures/mine.svg"
    assert [path.name for path in here.iterdir()] == ["figures"]
    ET.parse("figures/mine.svg")


@pytest.mark.parametrize(("name", "beginning"), [("a.png", b"\x89PNG"), ("a.PDF", b"%PDF"), ("a.svg", b"<?xml")])
def test_the_file_is_what_its_name_says(fedspan, name, beginning):
    fedspan("show", "partition", "--out", name, "clients=4")
    assert Path(name).read_bytes().startswith(beginning)


@pytest.mark.parametrize("suffix", ["svg", "pdf", "png"])
def test_the_same_partition_is_the_same_file(fedspan, suffix):
    for name in ("a", "b"):
        fedspan("show", "partition", "--out", f"{name}.{suffix}", "clients=4")
    assert Path(f"a.{suffix}").read_bytes() == Path(f"b.{suffix}").read_bytes()


REFUSED = {
    "": "cannot show ''; known: partition",
    "partitoin": "cannot show 'partitoin'; did you mean 'partition'?",
    "partition seed=0,1": "these settings make 2 partitions; give each setting one value",
    "partition partition.alfa=1": "did you mean 'partition.alpha'?",
    "partition clients=0": "clients must be at least 1, got 0",
    "partition participation=1.5": "participation must lie in (0, 1], got 1.5",
    "partition clients=2000": "clients=2000 is more than the 1438 training images",
    "partition partition=domain": "partition=domain needs a dataset with domains",
    "partition partition=pathological partition.classes_per_client=11": "classes_per_client=11 is more than the 10",
    "partition partition=pathological clients=4": "hold 8 of 10 classes at most; raise one of them",
    "partition --out x.jpg": "--out x.jpg: a figure is a file that ends in .svg, .pdf, .png",
    "partition --out figure": "--out figure: a figure is a file that ends in .svg, .pdf, .png",
    "partition --oout=x.svg": "unknown option '--oout=x.svg'; did you mean '--out'?",
}


@pytest.mark.parametrize(("words", "message"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_shown_is_said_in_one_line_and_nothing_is_written(fedspan, here, words, message):
    ran = fedspan("show", *words.split())
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.complaint
    assert list(here.iterdir()) == []


# what is counted and drawn ----------------------------------------------------------------------------


def test_counts_are_those_of_the_split():
    cell = toy_cell(dataset=DomainBlobs(), partition=Domain(), clients=3)
    found = shares(cell, Path())
    data = cell.dataset.prepare(None)
    domain = data.train.domain.numpy()
    assert found.sizes.tolist() == np.bincount(domain).tolist()
    for name, own in found.domains.items():
        assert own.tolist() == [found.sizes[DOMAINS.index(name)] * (DOMAINS[k] == name) for k in range(3)]
    for label, own in enumerate(found.classes.values()):
        assert own.tolist() == [int(((data.train.y.numpy() == label) & (domain == k)).sum()) for k in range(3)]
    assert found.tested.tolist() == np.bincount(data.test.domain).tolist()


def test_the_area_of_a_circle_is_its_number_of_images():
    found = shares(toy_cell(), Path())
    counts = np.array(list(found.classes.values()))
    widths = []
    for shape in circles(figure(found)):
        x, _ = np.array(re.findall(r"[\d.]+", shape.get("d")), dtype=float).reshape(-1, 2).T
        widths.append(x.max() - x.min())
    areas = np.square(widths) / max(widths) ** 2
    np.testing.assert_allclose(areas, counts[counts > 0] / counts.max(), rtol=1e-3)


def test_own_test_images_and_domains_are_drawn_where_there_are_any():
    texts = {}
    for name, cell in {
        "domain": toy_cell(dataset=DomainBlobs(), partition=Domain(), clients=3),
        "tests": toy_cell(partition=OwnTests()),
        "plain": toy_cell(),
    }.items():
        found = shares(cell, Path())
        rows = [*found.classes.values(), *found.domains.values()]
        assert len(circles(figure(found))) == np.count_nonzero(rows)
        texts[name] = figure(found).decode()
    # Text is drawn as outlines; matplotlib keeps the words in comments.
    drawn = {"own test": {"domain", "tests"}, "noisy": {"domain"}, "client": {"domain", "tests", "plain"}}
    for word, where in drawn.items():
        assert {name for name, text in texts.items() if f"<!-- {word} -->" in text} == where


def test_classes_whose_names_cannot_be_drawn_are_drawn_by_their_codes():
    """A folder's name need not be UTF-8."""
    found = shares(toy_cell(), Path())
    named = dict(zip(["caf\udce9", *list(found.classes)[1:]], found.classes.values(), strict=True))
    assert "<!-- caf\\udce9 -->" in figure(dataclasses.replace(found, classes=named)).decode()


def test_hundreds_of_clients_are_cut_to_what_can_be_read_and_it_says_so():
    cell = toy_cell(dataset=Blobs(train=1200), partition=Dirichlet(5.0, min_size=1), clients=150)
    found = shares(cell, Path())
    assert "the first 100 of 150 clients are drawn" in figure(found).decode()
    console = Console(width=100, file=io.StringIO())
    console.print(terminal(found))
    text = console.file.getvalue()
    assert "and 130 more clients" in text
    assert len(re.findall(r"[·▁▂▃▄▅▆▇█]{3}", text)) == 20


def test_a_trial_says_how_many_images_are_held_out():
    found = shares(toy_cell(protocol={"validation": 0.15}), Path())
    assert found.held_out.tolist() == [0, 1, 1, 2, 4, 6]
    assert found.facts[-1] == "14 images are held out for validation, 0 to 6 per client"
    assert shares(toy_cell(), Path()).held_out is None
