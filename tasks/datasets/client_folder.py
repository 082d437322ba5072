"""Labelled images in a folder or an archive, grouped by client."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from fedspan.benchmark.data.archives import Root, open_root
from fedspan.benchmark.data.image_files import SPLITS, Labelled, Sample, load_labelled, some
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.task import Data, dataset
from fedspan.tasks.datasets.image_folder import ImageFolder

log = logging.getLogger("fedspan")

LAYOUT = (
    "train/<client>/<class>/* and test/<client>/<class>/* (or test/<class>/*) in a folder or a .tar, .tar.gz, .tar.xz "
    "or .zip archive"
)


@dataset("client_folder")
class ClientFolder(ImageFolder):
    """Images in one folder per client and, inside it, one per class, for ``partition=natural`` (ours 2026).

    `root` is a folder or an archive (zip; tar, plain or compressed) of ``train/<client>/<class>/*``. Test images belong
    either to clients, ``test/<client>/<class>/*``, each then tested on its own, or to everybody, ``test/<class>/*``.
    Folders in ``test/`` are clients if all have names of clients and any holds a folder. Clients and classes are
    numbered in the alphabetical order of their names. Everything else is as in ``image_folder``: images are decoded
    once to RGB of `size` x `size`, the content of `root` enters a record's key, and ``unreadable=skip`` skips images
    that cannot be decoded.
    """

    title = "Client folder"
    summary = "Your own images, one folder per client and class."
    papers = ("deng2009",)

    def _open(self) -> Root:
        return open_root(self.root, SPLITS, LAYOUT, levels=2)

    def load(self, cache: Path) -> Data:
        root = self._open()
        key = f"{self.name}-v{self.version}-{root.digest()[:32]}-{self.size}-{self.unreadable}"
        return load_labelled(cache, key, self.size, self.unreadable, lambda: client_folders(root))


def client_folders(root: Root) -> Labelled:
    """Return the files of ``train/<client>/<class>/*`` and of the test images; raise `UserError` for another layout."""
    content = root.digest()
    train = list(_files(root, "train", 2))
    clients, classes = (sorted({folders[depth] for folders, _ in train}) for depth in (0, 1))
    if not train:
        raise UserError(f"{root.where} has no images below train/<client>/<class>/; it must name {root.layout}")
    tested = [name.split("/")[1:-1] for name in root.entries() if name.startswith("test/") and name[-1] != "/"]
    apart = {folders[0] for folders in tested if folders} <= set(clients) and max(map(len, tested), default=0) > 1
    test = list(_files(root, "test", 2 if apart else 1))
    if not test:
        raise UserError(f"{root.where} has no images below test/; it must name {root.layout}")
    if unknown := {folders[-1] for folders, _ in test} - set(classes):
        strange = some(unknown - set(clients) or unknown)
        raise UserError(f"{root.where} has folders in test/ that are neither clients nor classes of train/: {strange}")
    number, owner = ({name: place for place, name in enumerate(names)} for names in (classes, clients))
    held = {"train": train, "test": test} if apart else {"train": train}
    return Labelled(
        where=root.where,
        classes=tuple(classes),
        train=[Sample(file, number[folders[-1]]) for folders, file in train],
        test=[Sample(file, number[folders[-1]]) for folders, file in test],
        read=root.read,
        unchanged=lambda: root.digest_now() == content,
        clients=tuple(clients),
        owners={split: [owner[folders[0]] for folders, _ in files] for split, files in held.items()},
    )


def _files(root: Root, split: str, depth: int) -> Iterator[tuple[list[str], str]]:
    """Yield, for each file of a split, its first `depth` folders below the split, and its name; warn of other files."""
    outside = []
    for name in root.entries():
        top, *folders = name.split("/")
        if top != split or name.endswith("/"):
            continue
        if len(folders) <= depth:
            outside.append(name)
        else:
            yield folders[:depth], name
    if outside:
        log.warning("%s: %s in no class folder: ignored", root.where, some(outside))
