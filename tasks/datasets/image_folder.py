"""Any labelled images in a folder or an archive."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from fedspan.benchmark.data.archives import Root, open_root
from fedspan.benchmark.data.image_files import SPLITS, Labelled, Sample, load_labelled, some
from fedspan.benchmark.errors import UserError, require
from fedspan.benchmark.registry import how
from fedspan.benchmark.task import Data, Dataset, dataset

log = logging.getLogger("fedspan")

LAYOUT = "train/<class>/* and test/<class>/* in a folder or a .tar, .tar.gz, .tar.xz or .zip archive"


@dataset("image_folder")
class ImageFolder(Dataset):
    """Images in one folder per class, the layout of ImageNet (Deng et al. 2009) and of torchvision's ImageFolder.

    `root` is a folder or an archive (zip; tar, plain or compressed with xz, gzip or bzip2) of ``train/<class>/*`` and
    ``test/<class>/*``, directly or below one top folder. Classes are numbered in the alphabetical order of their names.
    Images of any format and mode are decoded once to RGB of `size` x `size` (`fedspan.benchmark.data.decoding`) and
    cached under the digest of the root's content. So a record's key depends on that content, not on the location or
    packing of `root`. `mean` and `std` are those of the training images. ``unreadable=skip`` skips images that cannot
    be decoded, and reports how many.
    """

    title = "Image folder"
    summary = "Your own images, one folder per class."
    papers = ("deng2009",)
    wording = {"size": "{0}x{0} pixels"}

    root: str = how("")
    size: int = 32
    unreadable: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        require(self.size >= 1, "dataset.size", "must be at least 1", self.size)

    def what(self) -> dict[str, Any]:
        return super().what() | {"content": self._open().digest()}

    def _open(self) -> Root:
        return open_root(self.root, SPLITS, LAYOUT)

    def load(self, cache: Path) -> Data:
        root = self._open()
        key = f"{self.name}-v{self.version}-{root.digest()[:32]}-{self.size}-{self.unreadable}"
        return load_labelled(cache, key, self.size, self.unreadable, lambda: class_folders(root))


def class_folders(root: Root) -> Labelled:
    """Return the files of ``train/<class>/*`` and ``test/<class>/*``, classes and files in alphabetical order."""
    content = root.digest()
    members = {split: _members(root, split) for split in SPLITS}
    classes = sorted(members["train"])
    _check_classes(root, members)
    train, test = (
        [Sample(file, label) for label, cls in enumerate(classes) for file in members[split].get(cls, [])]
        for split in SPLITS
    )
    return Labelled(root.where, tuple(classes), train, test, root.read, lambda: root.digest_now() == content)


def _members(root: Root, split: str) -> dict[str, list[str]]:
    """Return the file names of each class folder of a split, in order."""
    classes: dict[str, list[str]] = {}
    outside = []
    for name in root.entries():
        top, _, rest = name.partition("/")
        if top != split or not rest:
            continue
        cls, slash, inner = rest.partition("/")
        if not slash:
            outside.append(name)
            continue
        files = classes.setdefault(cls, [])
        if inner and not inner.endswith("/"):
            files.append(name)
    if outside:
        log.warning("%s: %s in no class folder: ignored", root.where, some(outside))
    return classes


def _check_classes(root: Root, members: Mapping[str, Mapping[str, list[str]]]) -> None:
    for split in SPLITS:
        if not any(members[split].values()):
            raise UserError(f"{root.where} has no images below {split}/; it must name {root.layout}")
    empty = [f"train/{cls}/" for cls, files in members["train"].items() if not files]
    if empty:
        raise UserError(f"{root.where} has class folders without images: {some(empty)}; fill or remove them")
    unknown = [cls for cls, files in members["test"].items() if files and cls not in members["train"]]
    if unknown:
        raise UserError(f"{root.where} has classes in test/ that are not in train/: {some(unknown)}")
    untested = [cls for cls in sorted(members["train"]) if not members["test"].get(cls)]
    if untested:
        log.warning("%s has no test images of %s", root.where, some(untested))
