"""TinyImageNet."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from fedspan.benchmark.data.archives import Root, open_root
from fedspan.benchmark.data.image_files import Labelled, Sample, load_labelled, some, warn_of_other_counts
from fedspan.benchmark.data.published import Published, PublishedFile
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.task import Data, Extent, dataset

SIZE = 64
CLASSES = 200
COUNTS = {"train": 100_000, "test": 10_000}
STATISTICS = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
WNIDS, ANNOTATIONS = "wnids.txt", "val/val_annotations.txt"
LAYOUT = (
    "wnids.txt, train/<wnid>/images/*, val/images/* and val/val_annotations.txt in a folder or a .zip or .tar archive"
)
ARCHIVE = PublishedFile(
    "tiny-imagenet-200.zip",
    "sha256:6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
    ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
)


@dataset("tiny_imagenet")
class TinyImageNet(Published):
    """TinyImageNet (Stanford's CS231n 2015; Le and Yang): 64x64 RGB images in 200 classes of ImageNet.

    100,000 images (500 of each class) for training; the test set is the official validation split, 10,000 images (50 of
    each class), because the official test images have no labels. `root` is the folder of the published zip, or a user's
    own copy in its layout: a folder, a tar or a zip of all or some of the images, whose content then enters the
    record's key. Classes are numbered in the alphabetical order of their WordNet ids. Pixels are normalised by mean and
    standard deviation 0.5, as in the FedDecorr code. ``unreadable=skip`` skips images that cannot be decoded, and
    reports how many.
    """

    title = "TinyImageNet"
    summary = "110,000 labelled photographs of 64x64 pixels in 200 classes of ImageNet."
    papers = ("le2015",)

    unreadable: Literal["error", "skip"] = "error"

    def files(self) -> tuple[PublishedFile, ...]:
        return () if self._is_own() else (ARCHIVE,)

    def _is_own(self) -> bool:
        """Return whether `root` is a user's own copy, not the published zip or a folder for it."""
        root = Path(self.root).expanduser()
        if not self.root or not root.exists() or (root / ARCHIVE.name).is_file():
            return False
        if root.is_file():
            return not ARCHIVE.is_at(root)
        return any(not path.name.startswith(ARCHIVE.name) for path in root.iterdir())  # else a download, or nothing

    def what(self) -> dict[str, Any]:
        return super().what() | ({"content": self._own().digest()} if self._is_own() else {})

    def extent(self) -> Extent | None:
        return None if self._is_own() else Extent((3, SIZE, SIZE), CLASSES, **COUNTS).cut(self.limit)

    def _own(self) -> Root:
        return open_root(self.root, ("train", "val"), LAYOUT, (WNIDS,))

    def load(self, cache: Path) -> Data:
        own = self._own() if self._is_own() else None
        content = own.digest() if own else ARCHIVE.checksum.partition(":")[2]
        key = f"{self.name}-v{self.version}-{content[:32]}-{self.unreadable}"

        def labelled() -> Labelled:
            return _labelled(own or open_root(self.whole(cache)[0], ("train", "val"), LAYOUT, (WNIDS,)))

        return load_labelled(cache, key, SIZE, self.unreadable, labelled, STATISTICS)


def _labelled(root: Root) -> Labelled:
    """Return the images of the official layout."""
    content = root.digest()
    names = root.entries()
    lists = [name for name in (WNIDS, ANNOTATIONS) if name in names]
    if absent := {WNIDS, ANNOTATIONS} - set(lists):
        raise UserError(f"{root.where} lacks {some(absent)}; it must name {LAYOUT}")
    texts = {name: text.decode(errors="replace") for name, text in root.read(lists)}
    classes = sorted(texts[WNIDS].split())
    if len(classes) != CLASSES:
        raise UserError(f"{WNIDS} of {root.where} lists {len(classes)} classes, tiny_imagenet has {CLASSES}")
    if len(set(classes)) != CLASSES:
        raise UserError(f"{WNIDS} of {root.where} lists a class twice")
    labels = {wnid: label for label, wnid in enumerate(classes)}
    files = [name for name in names if not name.endswith("/")]
    train = _train(root, [name for name in files if name.startswith("train/")], labels)
    test = _validation(root, [name for name in files if name.startswith("val/images/")], texts[ANNOTATIONS], labels)
    found = Labelled(root.where, tuple(classes), train, test, root.read, lambda: root.digest_now() == content)
    warn_of_other_counts("tiny_imagenet", found, COUNTS)
    return found


def _train(root: Root, files: list[str], labels: dict[str, int]) -> list[Sample]:
    samples = []
    for file in files:
        _, wnid, *rest = file.split("/")
        if len(rest) == 2 and rest[0] == "images":
            if wnid not in labels:
                raise UserError(f"{root.where} has train/{wnid}/, but {WNIDS} does not list {wnid}")
            samples.append(Sample(file, labels[wnid]))
    if absent := set(labels) - {file.split("/")[1] for file, *_ in samples}:
        raise UserError(f"{root.where} has no training images of {some(absent)}; it must name {LAYOUT}")
    return samples


def _validation(root: Root, files: list[str], annotations: str, labels: dict[str, int]) -> list[Sample]:
    """Return the images of the validation split with their labels from `annotations`."""
    known = {}
    for number, line in enumerate(annotations.splitlines(), start=1):
        if not line.strip():
            continue
        image, _, rest = line.partition("\t")
        wnid = rest.split("\t")[0].strip()
        if wnid not in labels:
            raise UserError(f"{ANNOTATIONS} line {number} of {root.where} gives {image} the unknown class {wnid!r}")
        known[f"val/images/{image}"] = labels[wnid]
    if unlabelled := set(files) - set(known):
        raise UserError(f"{ANNOTATIONS} of {root.where} has no line for {some(unlabelled)}")
    if absent := set(known) - set(files):
        raise UserError(f"{root.where} lacks {some(absent)}, which {ANNOTATIONS} names")
    return [Sample(file, known[file]) for file in files]
