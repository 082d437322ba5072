"""Small images, and folders and archives of them."""

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image


def pixels(seed: int, size: tuple[int, int] = (4, 4)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


def encode(image: Image.Image, format: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def png(seed: int, size: tuple[int, int] = (4, 4)) -> bytes:
    return encode(Image.fromarray(pixels(seed, size)))


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def pack(path: Path, files: dict[str, bytes], *more: tarfile.TarInfo, top: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, f"w:{path.suffix[1:] if path.suffix != '.tar' else ''}") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(top + name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in more:
            tar.addfile(member)
    return path


def zipped(path: Path, files: dict[str, bytes], top: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(
                zipfile.ZipInfo(top + name), content, zipfile.ZIP_DEFLATED
            )  # no time of writing: same files, same bytes
    return path
