"""Office-Caltech10."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fedspan.benchmark.data.archives import Root, open_root
from fedspan.benchmark.data.image_files import ONLY_SCALED, Labelled, Sample, load_labelled, some, warn_of_other_counts
from fedspan.benchmark.data.published import Published, PublishedFile
from fedspan.benchmark.errors import UserError, did_you_mean, require
from fedspan.benchmark.registry import later
from fedspan.benchmark.rng import numpy_generator
from fedspan.benchmark.task import Data, Extent, dataset

log = logging.getLogger("fedspan")

DOMAINS = ("amazon", "caltech", "dslr", "webcam")
CLASSES = (
    "backpack", "bike", "calculator", "headphones", "keyboard",
    "laptop_computer", "monitor", "mouse", "mug", "projector",
)  # fmt: skip
COUNTS = {"train": 2025, "test": 508}
TEST_SHARE = 5  # one image in five
# Spellings found in copies, reduced to lower-case letters and digits.
DOMAIN_SPELLINGS = {**{name: name for name in DOMAINS}, "caltech10": "caltech", "caltech256": "caltech"}
CLASS_SPELLINGS = {
    **{re.sub("_", "", name): name for name in CLASSES},
    "touringbike": "bike", "headphone": "headphones", "computerkeyboard": "keyboard", "laptop": "laptop_computer",
    "laptop101": "laptop_computer", "computermonitor": "monitor", "computermouse": "mouse", "coffeemug": "mug",
    "videoprojector": "projector",
}  # fmt: skip
FOLDERS = tuple(
    cased
    for spelling in (*DOMAINS, "caltech10", "caltech_10", "caltech256", "caltech_256")
    for cased in (spelling, spelling.capitalize(), spelling.upper())
)
LAYOUT = "<domain>/<class>/* of the domains amazon, caltech, dslr and webcam in a folder or a .tar or .zip archive"
ARCHIVES = tuple(f"office-caltech10{suffix}" for suffix in (".tar", ".tar.gz", ".tar.xz", ".zip"))
# `Root.digest` of the original 2,533 images under canonical names.
ORIGINAL = "ed9c6905484b8e9c27458e7c751dacebafa566b8603d130f2a66f060456803ce"


@dataset("office_caltech10")
class OfficeCaltech10(Published):
    """Office-Caltech10 (Gong, Shi, Sha and Grauman 2012): photographs of 10 objects in four domains.

    2,533 images: Amazon 958, Caltech 1,123, DSLR 157, Webcam 295, of very different sizes. The lists of training and
    test images that come with FedBN's public code were not available; here a fixed random fifth of each domain is the
    test set: 192, 225, 32 and 59 images, which fit the accuracies printed in the FedDecorr journal version.

    `root` is a folder or an archive of ``<domain>/<class>/*``, in the spellings of common copies; the default is the
    data root. Images are squeezed to `size` x `size`, by default the 256 of FedBN's public code (Li et al. 2021), whose
    setup the journal follows; 64 takes a sixteenth of the work. Pixels are normalised by the mean and standard
    deviation of the training images of all domains; ``normalise=false`` only scales them to [0, 1], as in FedBN's code.
    Content other than the original images enters the record's key. ``unreadable=skip`` skips images that cannot be
    decoded, and reports how many.
    """

    title = "Office-Caltech10"
    summary = "2,533 photographs of 10 objects in four domains."
    papers = ("gong2012",)
    wording = {"size": "{0}x{0} pixels", "normalise": {False: "not normalised", True: "normalised"}}

    size: int = 256
    unreadable: Literal["error", "skip"] = "error"
    normalise: bool = later(True)

    def __post_init__(self) -> None:
        require(self.size >= 1, "dataset.size", "must be at least 1", self.size)

    def extent(self) -> Extent | None:
        """Return the extent of the original images."""
        size = self.size
        return None if self.root else Extent((3, size, size), len(CLASSES), **COUNTS).cut(self.limit)

    def files(self) -> tuple[PublishedFile, ...]:
        return ()  # no download address works without a browser

    def absent(self, missing: Sequence[PublishedFile], cache: Path) -> str:
        return (
            f"dataset '{self.name}' is not here: put the folders {', '.join(DOMAINS)}, or an archive of them named "
            f"{ARCHIVES[0]}, into {self.folder(cache)}, or name their place with dataset.root"
        )

    def what(self) -> dict[str, Any]:
        content = open_root(self.root, FOLDERS, LAYOUT).digest(canonical) if self.root else ORIGINAL
        return super().what() | ({} if content == ORIGINAL else {"content": content})

    def present(self, cache: Path) -> list[Path]:
        folder = self.folder(cache)
        archives = [folder / name for name in ARCHIVES if (folder / name).is_file()]
        if self.root:
            return [folder]
        return archives[:1] or ([folder] if folder.is_dir() else [])

    def _open(self, cache: Path) -> Root:
        if self.root:
            return open_root(self.root, FOLDERS, LAYOUT)
        places = self.present(cache)
        if not places:
            raise UserError(self.absent((), cache))
        root = open_root(places[0], FOLDERS, LAYOUT)
        if root.digest(canonical) != ORIGINAL:
            raise UserError(
                f"{root.path} does not hold the original images; to use them all the same set "
                f"dataset.root={root.path}, which makes their content part of the records' keys"
            )
        return root

    def load(self, cache: Path) -> Data:
        content = open_root(self.root, FOLDERS, LAYOUT).digest(canonical) if self.root else ORIGINAL
        key = f"{self.name}-v{self.version}-{content[:32]}-{self.size}-{self.unreadable}"
        statistics = None if self.normalise else ONLY_SCALED
        return load_labelled(cache, key, self.size, self.unreadable, lambda: _labelled(self._open(cache)), statistics)


def canonical(name: str) -> str:
    """Return the name of a file with the canonical spelling of its domain and class; other names unchanged."""
    domain, _, rest = name.partition("/")
    cls, _, file = rest.partition("/")
    return f"{_spelled(domain, DOMAIN_SPELLINGS) or domain}/{_spelled(cls, CLASS_SPELLINGS) or cls}/{file}"


def _spelled(name: str, spellings: dict[str, str]) -> str | None:
    return spellings.get(re.sub("[^a-z0-9]", "", name.lower()))


def _labelled(root: Root) -> Labelled:
    """Return the images of the four domains, split into training and test images."""
    content = root.digest(canonical)
    places: dict[tuple[int, int], dict[str, str]] = {}  # (domain, class) -> name in its folder -> file
    folders: dict[tuple[int, int], str] = {}
    outside = []
    for file in root.entries():
        if file.endswith("/"):
            continue
        given_domain, given_class, *rest = file.split("/")
        if not rest:
            outside.append(file)
            continue
        domain, cls = _spelled(given_domain, DOMAIN_SPELLINGS), _spelled(given_class, CLASS_SPELLINGS)
        if domain is None or cls is None:
            raise UserError(
                f"{root.where} has the unknown class {given_domain}/{given_class}{did_you_mean(given_class, CLASSES)}"
            )
        place = DOMAINS.index(domain), CLASSES.index(cls)
        folder = f"{given_domain}/{given_class}"
        if folders.setdefault(place, folder) != folder:
            raise UserError(f"{root.where} has two folders of {domain}/{cls}: {folders[place]} and {folder}")
        places.setdefault(place, {})["/".join(rest)] = file
    if outside:
        log.warning("%s: %s in no class folder: ignored", root.where, some(outside))
    if absent := [
        f"{domain}/{cls}" for i, domain in enumerate(DOMAINS) for j, cls in enumerate(CLASSES) if (i, j) not in places
    ]:
        raise UserError(f"{root.where} has no images of {some(absent)}; it must name {LAYOUT}")
    train: list[Sample] = []
    test: list[Sample] = []
    for number, domain in enumerate(DOMAINS):
        samples = [
            Sample(file, label, number)
            for label in range(len(CLASSES))
            for _, file in sorted(places[number, label].items())
        ]
        order = numpy_generator(0, "office_caltech10 test split", domain).permutation(len(samples))
        tested = set(order[: math.ceil(len(samples) / TEST_SHARE)].tolist())
        for place_in_domain, sample in enumerate(samples):
            (test if place_in_domain in tested else train).append(sample)
    found = Labelled(
        root.where, CLASSES, train, test, root.read, lambda: root.digest_now(canonical) == content, DOMAINS
    )
    warn_of_other_counts("office_caltech10", found, COUNTS)
    return found
