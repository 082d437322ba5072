"""DomainNet."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal

from fedspan.benchmark.data.archives import Root, open_root
from fedspan.benchmark.data.checksums import checksum
from fedspan.benchmark.data.image_files import ONLY_SCALED, Labelled, Sample, load_labelled, some
from fedspan.benchmark.data.published import Published, PublishedFile
from fedspan.benchmark.errors import UserError, did_you_mean, require
from fedspan.benchmark.registry import later
from fedspan.benchmark.task import Data, dataset

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
ALL_CLASSES = 345
TEN_CLASSES = (
    "bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra",
)  # fmt: skip
SPLITS = ("train", "test")
ADDRESS = "http://csr.bu.edu/ftp/visda/2019/multi-source"
SUMS = {  # sha256 of the cleaned version, from TensorFlow Datasets
    "clipart.zip": "f8f248a3e8bbc9868c523ae24e6601b4c2ad102afc60c0efeb4f3255df22354d",
    "clipart_train.txt": "affdadf5f95a7583e6b98030a3d35007e2613ee4dd942393c5a705ec2b429312",
    "clipart_test.txt": "62c8e36aaba1c41ad9e249099739707220a44c08f167b37ef420f34a31628a6b",
    "infograph.zip": "891e14f476317e97b6f06d6498c11d0a5b8d0c8b57210765ed9beb072da611fa",
    "infograph_train.txt": "36b44cbd41a2915e0dc73b4f4be8862a6f3c220f93c8d63fb2439beeae3aefda",
    "infograph_test.txt": "413cfa54ac92e7e6b242f4f09fbd9c8ace85c4deaf3cb6c81ff6b68264460136",
    "painting.zip": "fa47e6d405503ea0286cabd767f176bd30e988b63ddd7b9db16cf030c9770015",
    "painting_train.txt": "f1da38d50a702fddf1329f85bc607d7a2abcae7e6aec75e1fd49cc1bd340d47b",
    "painting_test.txt": "11472b13b5188e09f06918b12eebb660588c97a20e43e268d9b02e3e37eb8f97",
    "quickdraw.zip": "9f37df2a8c3733703dbb35ad9964202a65f675ca30137756457537536b485d84",
    "quickdraw_train.txt": "3a5edd3bc215772010eebc87f158707703dd7e48091d13b816af81326a9d1c0f",
    "quickdraw_test.txt": "2a00a60650a453c65c356da748fec54084a197272137c440e7d52d08947357bf",
    "real.zip": "d7fe010b430c5b510f85d657d38c4a1924822695fabea4fef57bd00dba251d63",
    "real_train.txt": "19d483256d24aef19e581b65eda8333fd918aef3eb733fe499ff384120e3a289",
    "real_test.txt": "2b3f75bcde309aeb5931292084b2162e936b5f189e3bb1ad716f0f74c460864c",
    "sketch.zip": "23a7dbae7016b343e934399beaa8a68728fb5e570ebe2c71df9b75cf91c499fc",
    "sketch_train.txt": "72f4bc6afa5702a1ccba800d0053c1427de87439dfaf246dbc9a2e71abfec54f",
    "sketch_test.txt": "3fb48fca18c507c4321f007c3f62b308ec232ff6928cbfe2af64e76ec366e840",
}
LINE = re.compile(r"(?P<file>(?P<domain>[^/]+)/(?P<cls>[^/]+)/[^/]+) (?P<label>-?\d+)")


@dataset("domainnet")
class DomainNet(Published):
    """DomainNet (Peng et al. 2019), cleaned version: 586,575 images of 345 classes in six domains.

    The default is the ten classes of FedBN (Li et al. 2021); `classes` names others, and an empty list means all 345.
    The split is that of Peng et al., about 70% of each domain for training: the lists ``<domain>_train.txt`` and
    ``<domain>_test.txt`` beside the six archives ``<domain>.zip``, all in the folder `root`. (FedBN's public code
    has lists of its own, which were not available: for some domains the accuracies printed in the FedDecorr journal
    version fit smaller test sets than Peng et al.'s.)

    Images are squeezed to `size` x `size`, by default the 256 of FedBN's public code; 64 takes a sixteenth of the work.
    Pixels are normalised by the mean and standard deviation of the training images of all domains; ``normalise=false``
    only scales them to [0, 1], as in FedBN's code. If files in `root` differ from the published ones, their content
    enters the record's key. ``unreadable=skip`` skips images that cannot be decoded, and reports how many.
    """

    title = "DomainNet"
    summary = "Photographs, paintings and drawings in six domains; by default the ten classes of FedBN."
    papers = ("peng2019", "li2021fedbn")
    wording = {
        "size": "{0}x{0} pixels",
        "classes": "other classes",
        "normalise": {False: "not normalised", True: "normalised"},
    }

    classes: tuple[str, ...] = TEN_CLASSES
    size: int = 256
    unreadable: Literal["error", "skip"] = "error"
    normalise: bool = later(True)

    def __post_init__(self) -> None:
        require(self.size >= 1, "dataset.size", "must be at least 1", self.size)
        require(len(set(self.classes)) == len(self.classes), "dataset.classes", "names a class twice", self.classes)
        require(
            len(self.classes) != 1, "dataset.classes", "must name two classes or more, or none for all", self.classes
        )

    def files(self) -> tuple[PublishedFile, ...]:
        return tuple(PublishedFile(name, f"sha256:{sha256}", (_url(name),)) for name, sha256 in SUMS.items())

    def what(self) -> dict[str, Any]:
        return super().what() | ({"content": content} if self.root and (content := self._own_content()) else {})

    def _own_content(self) -> str:
        """Return a digest of the files in `root`, or an empty string if they are the published files."""
        places = self.places(Path())
        if missing := [file for file, path in places if not path.is_file()]:
            raise UserError(self.absent(missing, Path()))
        if all(file.is_at(path) for file, path in places):
            return ""
        return hashlib.sha256("".join(checksum(path, "sha256") for _, path in places).encode()).hexdigest()

    def load(self, cache: Path) -> Data:
        own = self._own_content() if self.root else ""
        chosen = hashlib.sha256(" ".join(self.classes).encode()).hexdigest()[:16]
        key = f"{self.name}-v{self.version}-{own[:32] or 'published'}-{chosen}-{self.size}-{self.unreadable}"

        def labelled() -> Labelled:
            folder = self.folder(cache)
            if not own:
                self.whole(cache)
            return _labelled(folder, self.classes)

        statistics = None if self.normalise else ONLY_SCALED
        return load_labelled(cache, key, self.size, self.unreadable, labelled, statistics)


def _url(name: str) -> str:
    if name.endswith(".txt"):
        return f"{ADDRESS}/domainnet/txt/{name}"
    return f"{ADDRESS}/groundtruth/{name}" if name in ("clipart.zip", "painting.zip") else f"{ADDRESS}/{name}"


def _labelled(folder: Path, wanted: tuple[str, ...]) -> Labelled:
    """Return the listed images of the `wanted` classes."""
    lists = {(domain, split): _listed(folder, domain, split) for domain in DOMAINS for split in SPLITS}
    known: dict[str, int] = {}
    for (domain, split), lines in lists.items():
        for cls, label, _ in lines:
            if known.setdefault(cls, label) != label:
                raise UserError(f"{folder / f'{domain}_{split}.txt'} gives {cls} the label {label}, not {known[cls]}")
    classes = wanted or tuple(sorted(known, key=known.__getitem__))
    for cls in classes:
        if cls not in known:
            raise UserError(f"dataset.classes: DomainNet has no class '{cls}'{did_you_mean(cls, known)}")
    if not wanted and len(classes) != ALL_CLASSES:
        raise UserError(f"the lists in {folder} name {len(classes)} classes, domainnet has {ALL_CLASSES}")
    numbers = {cls: number for number, cls in enumerate(classes)}
    samples = {
        split: [
            Sample(file, numbers[cls], domain)
            for domain, name in enumerate(DOMAINS)
            for cls, _, file in lists[name, split]
            if cls in numbers
        ]
        for split in SPLITS
    }
    roots = {domain: open_root(folder / f"{domain}.zip", (domain,), f"{domain}/<class>/*") for domain in DOMAINS}
    for domain, root in roots.items():
        listed = {one.file for split in SPLITS for one in samples[split] if DOMAINS[one.domain] == domain}
        if absent := listed - set(root.entries()):
            raise UserError(f"{root.path} lacks {len(absent)} images that its lists name: {some(absent)}")
        for split in SPLITS:
            held = {one.label for one in samples[split] if DOMAINS[one.domain] == domain}
            if lacking := [cls for cls in classes if numbers[cls] not in held]:
                raise UserError(f"{folder / f'{domain}_{split}.txt'} lists no images of {some(lacking)}")
    before = {domain: root.signature() for domain, root in roots.items()}
    return Labelled(
        str(folder), classes, samples["train"], samples["test"], lambda names: _read(roots, names),
        lambda: before == {domain: root.signature() for domain, root in roots.items()}, DOMAINS,
    )  # fmt: skip


def _listed(folder: Path, domain: str, split: str) -> list[tuple[str, int, str]]:
    """Return (class, label, file) of every line of a list."""
    path = folder / f"{domain}_{split}.txt"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        match = LINE.fullmatch(line.strip())
        if match is None or match["domain"] != domain:
            raise UserError(f"{path} line {number} is not '{domain}/<class>/<file> <label>': {line[:80]!r}")
        label = int(match["label"])
        if not 0 <= label < ALL_CLASSES:
            raise UserError(f"{path} line {number} has the label {label}, outside 0..{ALL_CLASSES - 1}")
        found.append((match["cls"], label, match["file"]))
    return found


def _read(roots: dict[str, Root], names: Collection[str]) -> Iterator[tuple[str, bytes]]:
    for domain, root in roots.items():
        yield from root.read([name for name in names if name.startswith(f"{domain}/")])
