"""Convert image files to Datums with OpenCV, as convert_imageset does, in several processes at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import PurePath
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from caffe_recipes.caffe import pb
from caffe_recipes.data.images import Picture, picture_reader
from caffe_recipes.limits import limit

_MOST_BYTES = 2**31 - 1 - 64  # protobuf's limit of a message, less the Datum's other fields
_TOO_MUCH = f"more than a Datum holds ({_MOST_BYTES / 1e9:.1f} GB)"

Pixels = NDArray[np.uint8]  # (height, width, 3) in BGR, or (height, width)


@dataclass(frozen=True)
class Settings:
    """How each image is converted; convert_imageset has flags of the same names, except `shorter_side`.

    `encode_type` is jpg or png; None keeps the type of each file. `shorter_side_px` keeps the aspect ratio. A
    size of 0 does not resize.
    """

    resize_height_px: int = 0
    resize_width_px: int = 0
    shorter_side_px: int = 0
    is_gray: bool = False
    is_encoded: bool = True
    encode_type: str | None = None
    check_size: bool = False

    @property
    def resizes(self) -> bool:
        """Whether images are resized."""
        return bool(self.resize_height_px or self.shorter_side_px)


def use_one_thread() -> None:
    """Keep OpenCV to the calling thread, since several processes convert images at the same time."""
    cv2.setNumThreads(1)


def keep_memory() -> None:
    """Make malloc keep freed memory for the next image, which saves up to a fifth of the time.

    glibc returns free memory at the end of its heap once it exceeds twice the largest separately mapped block
    that was freed, up to 32 MB (mallopt(3), M_MMAP_THRESHOLD). This array is such a block; it is never
    written.
    """
    np.empty(31 << 20, np.uint8)


@contextmanager
def quiet_decoders() -> Iterator[None]:
    """Silence libjpeg and libpng on standard error: our own errors name the image."""
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    silent = os.open(os.devnull, os.O_WRONLY)
    try:
        sys.stderr.flush()
        os.dup2(silent, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(silent)


def can_encode(suffix: str, *, is_gray: bool) -> bool:
    """Return whether images can be encoded in the format of a suffix, e.g. `jpg`; with `is_gray` as grey.

    A WebP is always in colour, and a PGM never.
    """
    pixels = np.zeros((64, 64) if is_gray else (64, 64, 3), np.uint8)
    try:
        with quiet_decoders():
            if not suffix or not cv2.haveImageWriter(f"x.{suffix}"):
                return False
            return decode(encode(pixels, suffix), cv2.IMREAD_UNCHANGED).shape == pixels.shape
    except (ValueError, cv2.error):  # OpenCV lists a writer for EXR, but it is disabled
        return False


def suffix_of(name: str) -> str:
    """Return a name's suffix in lower case, without the dot.

    >>> suffix_of("a.b/c.JPEG"), suffix_of("a.b/c")
    ('jpeg', '')
    """
    return PurePath(name).suffix[1:].lower()


def describe_excess(height: int, width: int, settings: Settings) -> str:
    """Return why an image of this size in pixels is too large for a Datum; "" if it is not."""
    size = f"{height} x {width} pixels are"
    if settings.is_encoded:
        most = limit("image-pixels")
        return "" if height * width <= most else f"{size} more than can be decoded ({most:,})"
    made_bytes = height * width * (1 if settings.is_gray else 3)
    return "" if made_bytes <= _MOST_BYTES else f"{size} {made_bytes / 1e9:.1f} GB raw, {_TOO_MUCH}"


def convert(data: bytes, name: str, label: int, settings: Settings) -> tuple[pb.Datum, tuple[int, ...]]:
    """Return the Datum of an image file, and the image's (height, width[, channels]).

    `data` are the bytes of the file, and `name` its name. An encoded image that needs no change is kept byte
    by byte. As in Caffe, an encoded Datum has no size fields; a raw one is (channels, height, width) in BGR.
    Raises ValueError with what is wrong.
    """
    own = suffix_of(name)
    wanted = settings.encode_type or own
    is_same = wanted == own or (wanted, own) == ("jpg", "jpeg")
    if settings.is_encoded and not settings.resizes and is_same:
        seen = _look(data, settings)
        is_bytes = seen.dtype == np.uint8
        if not is_bytes and not settings.is_gray and settings.encode_type is None:
            # OpenCV cannot convert floats to bytes, since their white is undefined.
            way = " (--encode-type converts them)" if seen.dtype == np.uint16 else ""
            raise ValueError(f"has {8 * seen.itemsize} bits per channel, but Caffe reads only 8{way}")
        if is_bytes and (not settings.is_gray or seen.ndim == 2):
            return _encoded_datum(data, label), seen.shape
    pixels = decode(data, cv2.IMREAD_GRAYSCALE if settings.is_gray else cv2.IMREAD_COLOR)
    pixels = _resize(pixels, settings)
    if settings.is_encoded:
        return _encoded_datum(encode(pixels, wanted), label), pixels.shape
    planes = pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    height, width = pixels.shape[:2]
    datum = pb.Datum(channels=pixels.size // (height * width), height=height, width=width)
    datum.data, datum.label, datum.encoded = planes.tobytes(), label, False
    return datum, pixels.shape


def _encoded_datum(data: bytes, label: int) -> pb.Datum:
    if len(data) > _MOST_BYTES:
        raise ValueError(f"is {len(data) / 1e9:.1f} GB, {_TOO_MUCH}")
    return pb.Datum(data=data, label=label, encoded=True)


def decode(data: bytes, flag: int) -> Pixels:
    """Return the pixels of an encoded image, read with OpenCV's imread `flag`; raises ValueError.

    Unlike imread, imdecode refuses truncated files. OpenCV reads GIFs only since 4.11, and trainers use older
    versions, so a GIF is refused.
    """
    if data[:4] == b"GIF8":
        raise ValueError("is a GIF, which Caffe's OpenCV does not read")
    try:
        pixels: NDArray[Any] | None = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error:
        raise ValueError(f"has over {limit('image-pixels'):,} pixels" if data else "is empty") from None
    if pixels is None:
        raise ValueError("is not an image that OpenCV decodes, or is cut short")
    return pixels


def load_pixels(datum: pb.Datum) -> NDArray[Any]:
    """Return a Datum's image as the trainer sees it, (height, width, channels); raises ValueError."""
    if datum.encoded:
        pixels: NDArray[Any] = decode(datum.data, cv2.IMREAD_UNCHANGED)
        if pixels.dtype != np.uint8:
            raise ValueError("has more than 8 bits per channel")
        return pixels if pixels.ndim == 3 else pixels[:, :, None]
    shape = (datum.channels, datum.height, datum.width)
    values = np.frombuffer(datum.data, np.uint8) if datum.data else np.array(datum.float_data, np.float32)
    return values.reshape(shape).transpose(1, 2, 0)


def encode(pixels: Pixels, suffix: str, settings: Sequence[int] = ()) -> bytes:
    """Return encoded pixels, by default with OpenCV's own settings: JPEG quality is 95.

    Raises ValueError if the format cannot hold them: a JPEG has at most 65,500 pixels a side.
    """
    try:
        is_done, data = cv2.imencode(f".{suffix}", pixels, settings)
    except cv2.error:  # newer versions return False instead
        is_done = False
    if not is_done:
        size = " x ".join(map(str, pixels.shape[:2]))
        raise ValueError(f"is {size} pixels, and cannot be encoded as {suffix}")
    return bytes(data)


def shorter_side(height: int, width: int, shorter_px: int) -> tuple[int, int]:
    """Return (height, width) with a shorter side of `shorter_px`; the longer one is rounded down in float32.

    Caffe's own resizing by the shorter side does the same.

    >>> shorter_side(375, 500, 256), shorter_side(500, 375, 256), shorter_side(7, 7, 3)
    ((256, 341), (341, 256), (3, 3))
    """
    low, high = sorted((height, width))
    longer = int(np.float32(high) / np.float32(low) * np.float32(shorter_px))
    return (shorter_px, longer) if height < width else (longer, shorter_px)


def _resize(pixels: Pixels, settings: Settings) -> Pixels:
    height, width = settings.resize_height_px, settings.resize_width_px
    if settings.shorter_side_px:
        height, width = shorter_side(pixels.shape[0], pixels.shape[1], settings.shorter_side_px)
    is_resized = bool(height)
    if not is_resized:
        height, width = pixels.shape[:2]
    excess = describe_excess(height, width, settings)
    if excess:
        raise ValueError(excess)
    if not is_resized:
        return pixels
    try:
        resized: NDArray[Any] = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)
    except cv2.error:
        raise ValueError(f"cannot be resized to {height} x {width}") from None
    return resized


def _look(data: bytes, settings: Settings) -> NDArray[Any]:
    """Decode an image that is kept unchanged, to check it and to find its shape and depth.

    If the shape is not needed, a JPEG is decoded at an eighth of its size, in half the time.
    """
    is_jpeg = data[:2] == b"\xff\xd8"
    if is_jpeg and not settings.is_gray and not settings.check_size:
        return decode(data, cv2.IMREAD_REDUCED_COLOR_8)
    return decode(data, cv2.IMREAD_UNCHANGED)


_AT_ONCE = 16  # images per task: some MB of records, which are converted in a short time
_AHEAD = 3  # waiting tasks per worker
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


@dataclass(frozen=True)
class Converted:
    """A record's value and the shape of its image, or what is `wrong` with the image."""

    value: bytes
    shape: tuple[int, ...]
    wrong: str = ""


class WorkerKilled(Exception):
    """A worker process was killed, by the system or by a crash on an image."""


def convert_all(
    pictures: Sequence[Picture], settings: Settings, workers: int
) -> Generator[Converted, None, None]:
    """Yield the converted pictures, in their order; with one worker this process converts them.

    Close the generator to end the workers early. Raises WorkerKilled with the name of the image reached.
    """
    tasks = (pictures[start : start + _AT_ONCE] for start in range(0, len(pictures), _AT_ONCE))
    if workers == 1:
        keep_memory()
        for task in tasks:
            yield from convert_some(task, settings)
        return
    hired: list[_Worker] = []
    waiting: deque[Future[list[Converted]]] = deque()
    try:
        for task in tasks:
            if len(hired) < workers:
                hired.append(_Worker(settings))
            waiting.append(min(hired, key=lambda worker: len(worker.given)).give(task))
            if len(waiting) >= _AHEAD * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        for worker in hired:
            worker.stop()


class _Worker:
    """A process that converts tasks in the order in which they are given.

    It has a connection of its own, so its death is noticed even in the middle of a result. The workers of
    ProcessPoolExecutor share a pipe, and it would wait for ever for the rest of such a result.
    """

    def __init__(self, settings: Settings) -> None:
        context = multiprocessing.get_context("spawn")  # not fork, since OpenCV has threads in this process
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, settings), daemon=True)
        with children_ignoring_sigint(), _one_blas_thread():
            self._process.start()
        theirs.close()
        self.given: deque[tuple[str, Future[list[Converted]]]] = deque()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def give(self, task: Sequence[Picture]) -> Future[list[Converted]]:
        """Queue a task and return its future result; raises WorkerKilled."""
        result: Future[list[Converted]] = Future()
        self.given.append((task[0].name, result))
        try:
            self._connection.send(task)
        except OSError:
            raise WorkerKilled(self.given[0][0]) from None
        return result

    def stop(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join()
        self._listener.join()
        self._connection.close()

    def _listen(self) -> None:
        try:
            while True:
                made = self._connection.recv()
                self.given.popleft()[1].set_result(made)
        except (EOFError, OSError):
            pass
        finally:
            for _, result in list(self.given):
                result.set_exception(WorkerKilled(self.given[0][0]))


def _work(connection: Connection, settings: Settings) -> None:
    """Convert tasks until the parent process has ended; Ctrl-C is left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_memory()
    with suppress(EOFError, OSError):
        while True:
            connection.send(convert_some(connection.recv(), settings))


def convert_some(pictures: Sequence[Picture], settings: Settings) -> list[Converted]:
    """Return the converted pictures; this process converts them."""
    use_one_thread()
    with picture_reader() as read, quiet_decoders():
        made = []
        for picture in pictures:
            try:
                datum, shape = convert(read(picture), picture.name, picture.label, settings)
                made.append(Converted(datum.SerializeToString(deterministic=True), shape))
            except ValueError as error:
                made.append(Converted(b"", (), str(error)))
            except OSError as error:
                made.append(Converted(b"", (), f"cannot be read: {error.strerror}"))
        return made


@contextmanager
def children_ignoring_sigint() -> Iterator[None]:
    """Block SIGINT in processes that are started inside, until they ignore it after their imports."""
    resource_tracker.ensure_running()  # its start unblocks SIGINT, so it must come first
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Let processes started inside import numpy with one BLAS thread; N workers would have N^2 threads."""
    before = os.environ.get(_BLAS_THREADS)
    os.environ.setdefault(_BLAS_THREADS, "1")
    try:
        yield
    finally:
        if before is None:
            del os.environ[_BLAS_THREADS]
