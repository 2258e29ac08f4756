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
from caffe_recipes.caffe.image_headers import describe_scans
from caffe_recipes.data.images import ConversionSettings, Picture, picture_reader
from caffe_recipes.limits import limit

cv2.utils.logging.setLogLevel(0)  # our errors say what is wrong with an image, in one line

_MAX_BYTES = 2**31 - 1 - 64  # protobuf's limit for a message, less the Datum's other fields
_TOO_MUCH = f"more than a Datum can hold ({_MAX_BYTES / 1e9:.1f} GB)"

ImagePixels = NDArray[np.uint8]  # (height, width, 3) in BGR, or (height, width)


def use_one_thread() -> None:
    """Restrict OpenCV to the calling thread, since several processes convert images at the same time."""
    cv2.setNumThreads(1)


def keep_freed_memory() -> None:
    """Make malloc keep freed memory for the next image, which saves up to 20% of the time.

    glibc returns free memory at the top of its heap once it exceeds twice the size of the largest mmapped
    block that was freed, up to 32 MB (mallopt(3), M_MMAP_THRESHOLD). This array is such a block; it is never
    written.
    """
    np.empty(31 << 20, np.uint8)


@contextmanager
def quiet_decoders() -> Iterator[None]:
    """Silence what libjpeg and libpng print on standard error; our own errors name the image."""
    try:
        stderr = os.dup(2)
    except OSError:  # stderr is closed
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
    """Return whether images can be encoded in the format of a suffix such as `jpg`, in grey with `is_gray`.

    A WebP is always in colour, a PGM never.
    """
    pixels = np.zeros((64, 64) if is_gray else (64, 64, 3), np.uint8)
    try:
        with quiet_decoders():
            if not suffix or not cv2.haveImageWriter(f"x.{suffix}"):
                return False
            return decode_image(encode(pixels, suffix), cv2.IMREAD_UNCHANGED).shape == pixels.shape
    except (ValueError, cv2.error):  # OpenCV lists a writer for EXR, but disables it
        return False


def suffix_of(name: str) -> str:
    """Return the suffix of a name in lower case, without the dot.

    >>> suffix_of("a.b/c.JPEG"), suffix_of("a.b/c")
    ('jpeg', '')
    """
    return PurePath(name).suffix[1:].lower()


def describe_excess(height: int, width: int, settings: ConversionSettings) -> str:
    """Return why an image of this size in pixels is too large for a Datum, or "" if it is not."""
    size = f"{height} x {width} pixels are"
    if settings.is_encoded:
        most = limit("image-pixels")
        return "" if height * width <= most else f"{size} more than can be decoded ({most:,})"
    made_bytes = height * width * (1 if settings.is_gray else 3)
    return "" if made_bytes <= _MAX_BYTES else f"{size} {made_bytes / 1e9:.1f} GB raw, {_TOO_MUCH}"


def convert_image(
    data: bytes, name: str, label: int, settings: ConversionSettings
) -> tuple[pb.Datum, tuple[int, ...], tuple[int, int] | None]:
    """Return the Datum of an image file, its (height, width[, channels]), and its size before enlarging.

    The last is None for an image that was not enlarged. `data` is the content of the file, and `name` its
    name. The bytes of an encoded image that needs no change are kept. As in Caffe, an encoded Datum has no
    size fields; a raw one is (channels, height, width) in BGR. Raises ValueError if the image cannot be
    converted.
    """
    own = suffix_of(name)
    wanted = settings.encode_type or own
    is_same = wanted == own or (wanted, own) == ("jpg", "jpeg")
    if settings.is_encoded and not settings.resizes and is_same:
        seen = _decode_unchanged(data, settings)
        is_bytes = seen.dtype == np.uint8
        if not is_bytes and not settings.is_gray and settings.encode_type is None:
            # OpenCV cannot convert floats to bytes: there is no defined value for white.
            way = " (--encode-type converts them)" if seen.dtype == np.uint16 else ""
            raise ValueError(f"has {8 * seen.itemsize} bits per channel, but Caffe reads only 8{way}")
        if is_bytes and (not settings.is_gray or seen.ndim == 2):
            return _encoded_datum(data, label), seen.shape, None
    source = decode_image(data, cv2.IMREAD_GRAYSCALE if settings.is_gray else cv2.IMREAD_COLOR)
    pixels = _resize(source, settings)
    (old_height, old_width), (height, width) = source.shape[:2], pixels.shape[:2]
    enlarged = (old_height, old_width) if height > old_height or width > old_width else None
    if settings.is_encoded:
        return _encoded_datum(encode(pixels, wanted), label), pixels.shape, enlarged
    planes = pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    datum = pb.Datum(channels=pixels.size // (height * width), height=height, width=width)
    datum.data, datum.label, datum.encoded = planes.tobytes(), label, False
    return datum, pixels.shape, enlarged


def _encoded_datum(data: bytes, label: int) -> pb.Datum:
    if len(data) > _MAX_BYTES:
        raise ValueError(f"is {len(data) / 1e9:.1f} GB, {_TOO_MUCH}")
    return pb.Datum(data=data, label=label, encoded=True)


def decode_image(data: bytes, flag: int) -> ImagePixels:
    """Return the pixels of an encoded image, read with OpenCV's imread `flag`. Raises ValueError.

    imdecode rejects truncated files, unlike imread. GIFs are rejected since OpenCV reads them only from 4.11
    on, and trainers use older versions.
    """
    if data[:4] == b"GIF8":
        raise ValueError("is a GIF, which Caffe's OpenCV cannot read")
    if excess := describe_scans(data):
        raise ValueError(excess)
    try:
        pixels: NDArray[Any] | None = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error:
        raise ValueError(f"has over {limit('image-pixels'):,} pixels" if data else "is empty") from None
    if pixels is None:
        raise ValueError("is not an image that OpenCV can decode, or is truncated")
    return pixels


def load_pixels(datum: pb.Datum) -> NDArray[Any]:
    """Return a Datum's image as the trainer sees it, (height, width, channels). Raises ValueError."""
    if datum.encoded:
        pixels: NDArray[Any] = decode_image(datum.data, cv2.IMREAD_UNCHANGED)
        if pixels.dtype != np.uint8:
            raise ValueError("has more than 8 bits per channel")
        return pixels if pixels.ndim == 3 else pixels[:, :, None]
    shape = (datum.channels, datum.height, datum.width)
    values = np.frombuffer(datum.data, np.uint8) if datum.data else np.array(datum.float_data, np.float32)
    return values.reshape(shape).transpose(1, 2, 0)


def encode(pixels: ImagePixels, suffix: str, settings: Sequence[int] = ()) -> bytes:
    """Return encoded pixels, by default with OpenCV's default settings (JPEG quality 95).

    Raises ValueError if the format cannot hold them: a JPEG has at most 65,500 pixels per side.
    """
    try:
        is_done, data = cv2.imencode(f".{suffix}", pixels, settings)
    except cv2.error:  # newer versions return False instead
        is_done = False
    if not is_done:
        size = " x ".join(map(str, pixels.shape[:2]))
        raise ValueError(f"is {size} pixels and cannot be encoded as {suffix}")
    return bytes(data)


def shorter_side(height: int, width: int, shorter_px: int) -> tuple[int, int]:
    """Return (height, width) for a shorter side of `shorter_px`. The longer one is rounded down in float32.

    Caffe computes the same size when it resizes by the shorter side.

    >>> shorter_side(375, 500, 256), shorter_side(500, 375, 256), shorter_side(7, 7, 3)
    ((256, 341), (341, 256), (3, 3))
    """
    low, high = sorted((height, width))
    longer = int(np.float32(high) / np.float32(low) * np.float32(shorter_px))
    return (shorter_px, longer) if height < width else (longer, shorter_px)


def _resize(pixels: ImagePixels, settings: ConversionSettings) -> ImagePixels:
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


def _decode_unchanged(data: bytes, settings: ConversionSettings) -> NDArray[Any]:
    """Decode an image whose bytes are kept, to check it and to get its shape and depth.

    A JPEG whose shape is not needed is decoded at an eighth of its size, which takes half the time.
    """
    is_jpeg = data[:2] == b"\xff\xd8"
    if is_jpeg and not settings.is_gray and not settings.check_size:
        return decode_image(data, cv2.IMREAD_REDUCED_COLOR_8)
    return decode_image(data, cv2.IMREAD_UNCHANGED)


_TASK_IMAGES = 16  # images per task: a few MB of records, converted in a short time
_TASKS_AHEAD = 3  # queued tasks per worker
# Each worker has one BLAS thread, or N workers would have N^2. Python runs a worker and its resource tracker
# with -c, and would first search the current folder, where another user may have put a multiprocessing.py.
_WORKER_VARIABLES = {"OPENBLAS_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}


@dataclass(frozen=True)
class Converted:
    """A record's value and the shape of its image, or the `error` in the image.

    `enlarged` is the (height, width) of an image that was enlarged, before that.
    """

    value: bytes
    shape: tuple[int, ...]
    error: str = ""
    enlarged: tuple[int, int] | None = None


class WorkerKilled(Exception):
    """Raised if a worker process was killed by the system or by a crash on an image."""


def convert_all(
    pictures: Sequence[Picture], settings: ConversionSettings, workers: int
) -> Generator[Converted, None, None]:
    """Yield the converted pictures in order. With one worker, this process converts them.

    Closing the generator stops the workers. Raises WorkerKilled, with the name of the image it had reached.
    """
    tasks = (pictures[start : start + _TASK_IMAGES] for start in range(0, len(pictures), _TASK_IMAGES))
    if workers == 1:
        keep_freed_memory()
        for task in tasks:
            yield from convert_batch(task, settings)
        return
    pool: list[_Worker] = []
    waiting: deque[Future[list[Converted]]] = deque()
    try:
        for task in tasks:
            if len(pool) < workers:
                pool.append(_Worker(settings))
            waiting.append(min(pool, key=lambda worker: len(worker.pending)).submit(task))
            if len(waiting) >= _TASKS_AHEAD * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        for worker in pool:
            worker.stop()


class _Worker:
    """A process that converts tasks in the order in which they are submitted.

    Each worker has a separate connection, so its death is noticed even in the middle of a result. The workers
    of a ProcessPoolExecutor share a pipe, on which it would wait forever for the rest of such a result.
    """

    def __init__(self, settings: ConversionSettings) -> None:
        context = multiprocessing.get_context("spawn")  # not fork: OpenCV has threads in this process
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, settings), daemon=True)
        with _worker_environment(), children_ignoring_sigint():
            self._process.start()
        theirs.close()
        self.pending: deque[tuple[str, Future[list[Converted]]]] = deque()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def submit(self, task: Sequence[Picture]) -> Future[list[Converted]]:
        """Queue a task, and return a future for its result. Raises WorkerKilled."""
        result: Future[list[Converted]] = Future()
        self.pending.append((task[0].name, result))
        try:
            self._connection.send(task)
        except OSError:
            raise WorkerKilled(self.pending[0][0]) from None
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
                self.pending.popleft()[1].set_result(made)
        except (EOFError, OSError):
            pass
        finally:
            for _, result in list(self.pending):
                result.set_exception(WorkerKilled(self.pending[0][0]))


def _work(connection: Connection, settings: ConversionSettings) -> None:
    """Convert tasks until the parent process ends. The parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed_memory()
    with suppress(EOFError, OSError):
        while True:
            connection.send(convert_batch(connection.recv(), settings))


def convert_batch(pictures: Sequence[Picture], settings: ConversionSettings) -> list[Converted]:
    """Convert pictures in this process."""
    use_one_thread()
    with picture_reader() as read, quiet_decoders():
        made = []
        for picture in pictures:
            try:
                datum, shape, old = convert_image(read(picture), picture.name, picture.label, settings)
                made.append(Converted(datum.SerializeToString(deterministic=True), shape, enlarged=old))
            except ValueError as error:
                made.append(Converted(b"", (), str(error)))
            except OSError as error:
                made.append(Converted(b"", (), f"cannot be read: {error.strerror}"))
        return made


@contextmanager
def children_ignoring_sigint() -> Iterator[None]:
    """Start processes with SIGINT blocked, until they ignore it after their imports."""
    resource_tracker.ensure_running()  # starting it unblocks SIGINT, so this must come first
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _worker_environment() -> Iterator[None]:
    """Start processes with the variables of workers, unless the user has set them."""
    before = {name: os.environ.get(name) for name in _WORKER_VARIABLES}
    os.environ.update({name: value for name, value in _WORKER_VARIABLES.items() if not before[name]})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
