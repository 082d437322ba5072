"""Decoding: encoded images of any format to uint8 RGB arrays of one size."""

from __future__ import annotations

import io
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fedspan.benchmark.places import usable_cores

# Pillow supports more formats, but some run other programs, such as EPS.
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")
MOST_PIXELS = 2**26  # per image
CHUNK_BYTES = 256 * 1024  # of encoded images that a thread decodes at a time
STATISTICS_CHUNK = 1024  # images


class Unreadable(Exception):
    """An image that cannot be decoded; the message is the reason."""


def decode(content: bytes, size: int) -> np.ndarray:
    """Return an encoded image as uint8 [size, size, 3], upright according to its EXIF orientation.

    Images of other sizes are resized to the square, ignoring their aspect ratio, with Pillow's bilinear filter, which
    averages over all pixels when it shrinks. Only the first frame of an animation is decoded. Raises `Unreadable` if
    the content is not an image, or truncated or too large.
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if (pixels := math.prod(image.size)) > MOST_PIXELS:
                raise Unreadable(f"it has {pixels} pixels, more than {MOST_PIXELS}")
            image.load()
            if min(image.size) < 1:
                raise Unreadable("it has no pixels")
            ImageOps.exif_transpose(image, in_place=True)
            rgb = to_rgb(image)
            if rgb.size != (size, size):
                rgb = rgb.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(rgb)
    except (Unreadable, MemoryError):
        raise
    except UnidentifiedImageError:
        raise Unreadable("it is not an image of a known format") from None
    except Exception as error:  # Pillow's decoders raise anything from OSError to SyntaxError and struct.error
        raise Unreadable((str(error) or type(error).__name__).splitlines()[0]) from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an image of any mode as RGB.

    Transparent images are composited onto black. 16-bit grey values are divided by 257, so that 65535 becomes 255;
    so are 32-bit integers (which Pillow also uses for 16-bit files). Floats are taken as 0..255. Values out of range
    are clipped. All other modes use Pillow's own conversion. Raises `Unreadable` for pixels that are not finite.
    """
    if image.mode == "F" or image.mode.startswith("I"):
        values = np.asarray(image)
        if not np.isfinite(values).all():
            raise Unreadable("it has pixels that are not finite")
        grey = np.empty(values.shape, np.uint8)
        for row, line in zip(grey, values, strict=True):  # by row: all at once as floats take eight times the memory
            row[:] = np.rint((line if image.mode == "F" else line / 257).clip(0, 255))
        return Image.fromarray(grey).convert("RGB")
    if image.has_transparency_data:
        black = Image.new("RGBA", image.size, (0, 0, 0, 255))
        return Image.alpha_composite(black, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def decode_all(
    files: Iterable[tuple[str, bytes]],
    rows: Mapping[str, int],
    out: np.ndarray,
    on_unreadable: Callable[[str, Unreadable], None],
) -> None:
    """Decode `files`, pairs (name, content), into rows ``rows[name]`` of `out` uint8 [len(rows), size, size, 3].

    Decodes on all cores while `files` is read; only a few encoded images are in memory at a time.
    `on_unreadable` is called in the order of `files`, and may raise; rows of unreadable images stay unchanged.
    """
    size = out.shape[1]

    def work(chunk: list[tuple[str, bytes]]) -> list[tuple[str, Unreadable]]:
        unreadable = []
        for name, content in chunk:
            try:
                out[rows[name]] = decode(content, size)
            except Unreadable as reason:
                unreadable.append((name, reason))
        return unreadable

    def report(done: Future[list[tuple[str, Unreadable]]]) -> None:
        for name, reason in done.result():
            on_unreadable(name, reason)

    threads = usable_cores()
    pending: deque[Future[list[tuple[str, Unreadable]]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for chunk in _chunks(files):
            pending.append(pool.submit(work, chunk))
            if len(pending) > 2 * threads:
                report(pending.popleft())
        while pending:
            report(pending.popleft())


def _chunks(files: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """Yield `files` in lists of about CHUNK_BYTES: hundreds of small images, or one photograph."""
    chunk: list[tuple[str, bytes]] = []
    held = 0
    for name, content in files:
        chunk.append((name, content))
        held += len(content)
        if held >= CHUNK_BYTES:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def mean_and_std(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel of uint8 [N, H, W, C] scaled to [0, 1].

    Both are exact, over all pixels. A constant channel gets the standard deviation 1, because it is divided by.
    """
    levels = np.arange(256)
    means, stds = [], []
    for channel in range(x.shape[3]):
        counts = np.zeros(256, dtype=np.int64)
        for start in range(0, len(x), STATISTICS_CHUNK):
            counts += np.bincount(x[start : start + STATISTICS_CHUNK, ..., channel].ravel(), minlength=256)
        total, first, second = int(counts.sum()), int(counts @ levels), int(counts @ levels**2)
        means.append(first / total / 255)
        stds.append((total * second - first**2) ** 0.5 / total / 255 or 1.0)
    return tuple(means), tuple(stds)
