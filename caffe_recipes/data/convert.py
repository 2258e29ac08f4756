"""Images converted by several processes at once, and given back in order.

From an image's bytes to its Datum, by OpenCV and as convert_imageset makes it.

What converting images needs, and not everybody has installed.
"""

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

_MOST_BYTES = 2**31 - 1 - 64  # protobuf's most of a message, less what a Datum's other fields take
_TOO_MUCH = f"more than a Datum holds ({_MOST_BYTES / 1e9:.1f} GB)"

Pixels = NDArray[np.uint8]  # (height, width, 3) in BGR, or (height, width)


@dataclass(frozen=True)
class Settings:
    """What is done to each image; convert_imageset's flags of these names do the same.

    `encode_type` is jpg or png; an encoded image has its file's own if it is None. `shorter_side_px` keeps
    the ratio of the sides, and is no flag of Caffe's.
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
        """Whether any image is."""
        return bool(self.resize_height_px or self.shorter_side_px)


def use_one_thread() -> None:
    """Keep OpenCV to the calling thread: images are converted side by side, each by one."""
    cv2.setNumThreads(1)


def keep_memory() -> None:
    """Keep an image's memory for the next one: to ask the system for it anew takes up to a fifth of the time.

    glibc gives back what is free at its heap's end once that is twice the largest block that was mapped for
    itself and freed, of those up to 32 MB (mallopt(3), M_MMAP_THRESHOLD). This one is not written to.
    """
    np.empty(31 << 20, np.uint8)


@contextmanager
def quiet_decoders() -> Iterator[None]:
    """Let libjpeg and libpng say nothing on standard error: what is wrong is said once, with a name."""
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
    """Tell if images can be written as, say, `jpg`, grey ones as grey: a WebP has colours, and a PGM none."""
    pixels = np.zeros((64, 64) if is_gray else (64, 64, 3), np.uint8)
    try:
        with quiet_decoders():
            if not suffix or not cv2.haveImageWriter(f"x.{suffix}"):
                return False
            return decode(encode(pixels, suffix), cv2.IMREAD_UNCHANGED).shape == pixels.shape
    except (ValueError, cv2.error):  # an EXR's writer is there, and refuses to be asked
        return False


def suffix_of(name: str) -> str:
    """Give a name's suffix in lower case.

    >>> suffix_of("a.b/c.JPEG"), suffix_of("a.b/c")
    ('jpeg', '')
    """
    return PurePath(name).suffix[1:].lower()


def tell_excess(height: int, width: int, settings: Settings) -> str:
    """Say why no Datum can be of an image of this size in pixels; say nothing if one can."""
    size = f"{height} x {width} pixels are"
    if settings.is_encoded:
        most = limit("image-pixels")
        return "" if height * width <= most else f"{size} more than are read again ({most:,})"
    made_bytes = height * width * (1 if settings.is_gray else 3)
    return "" if made_bytes <= _MOST_BYTES else f"{size} {made_bytes / 1e9:.1f} GB raw, {_TOO_MUCH}"


def convert(data: bytes, name: str, label: int, settings: Settings) -> tuple[pb.Datum, tuple[int, ...]]:
    """Make a Datum of an image's file, and give the image's (height, width[, channels]).

    An encoded image that needs no change is kept byte by byte. What is encoded states no size, as Caffe's;
    what is not is (channels, height, width), in BGR. Raises ValueError, saying what is wrong.
    """
    own = suffix_of(name)
    wanted = settings.encode_type or own
    is_same = wanted == own or (wanted, own) == ("jpg", "jpeg")
    if settings.is_encoded and not settings.resizes and is_same:
        seen = _look(data, settings)
        is_bytes = seen.dtype == np.uint8
        if not is_bytes and not settings.is_gray and settings.encode_type is None:
            # Of floats OpenCV makes no bytes: they have no white.
            way = " (--encode-type makes them 8)" if seen.dtype == np.uint16 else ""
            raise ValueError(f"has {8 * seen.itemsize} bits per channel, and Caffe reads 8{way}")
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
    """Decode an image; raises ValueError. Unlike imread, imdecode refuses a file that is cut short.

    OpenCV reads GIFs since 4.11 only, and a trainer's is older.
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
    """Give a Datum's image as the trainer has it, (height, width, channels); raises ValueError."""
    if datum.encoded:
        pixels: NDArray[Any] = decode(datum.data, cv2.IMREAD_UNCHANGED)
        if pixels.dtype != np.uint8:
            raise ValueError("has more than 8 bits per channel")
        return pixels if pixels.ndim == 3 else pixels[:, :, None]
    shape = (datum.channels, datum.height, datum.width)
    values = np.frombuffer(datum.data, np.uint8) if datum.data else np.array(datum.float_data, np.float32)
    return values.reshape(shape).transpose(1, 2, 0)


def encode(pixels: Pixels, suffix: str, settings: Sequence[int] = ()) -> bytes:
    """Encode, by default with OpenCV's own settings: JPEG's quality is 95.

    Raises ValueError for what a type cannot hold: a JPEG has 65,500 pixels a side at most.
    """
    try:
        is_done, data = cv2.imencode(f".{suffix}", pixels, settings)
    except cv2.error:  # of what a newer one gives back as undone
        is_done = False
    if not is_done:
        size = " x ".join(map(str, pixels.shape[:2]))
        raise ValueError(f"is {size} pixels, and cannot be encoded as {suffix}")
    return bytes(data)


def shorter_side(height: int, width: int, shorter_px: int) -> tuple[int, int]:
    """Give (height, width) with the shorter side at `shorter_px`, the longer rounded down in float32.

    As Caffe's own resize by the shorter side does.

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
    excess = tell_excess(height, width, settings)
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
    """Decode what is kept as it is, only to see that it can be, in what shape and with what depth.

    A JPEG's pixels are left out where nobody asks for the shape: an eighth of a side takes half the time.
    """
    is_jpeg = data[:2] == b"\xff\xd8"
    if is_jpeg and not settings.is_gray and not settings.check_size:
        return decode(data, cv2.IMREAD_REDUCED_COLOR_8)
    return decode(data, cv2.IMREAD_UNCHANGED)


_AT_ONCE = 16  # images of a task: some MB of records, so that none waits long
_AHEAD = 3  # tasks of each worker that may wait
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


@dataclass(frozen=True)
class Converted:
    """A record's value and its image's shape, or what is `wrong` with the image."""

    value: bytes
    shape: tuple[int, ...]
    wrong: str = ""


class WorkerKilled(Exception):
    """A worker ended before its work did: it was killed, by the system or by an image."""


def convert_all(
    pictures: Sequence[Picture], settings: Settings, workers: int
) -> Generator[Converted, None, None]:
    """Convert pictures, in their order; one worker is this process.

    Close it, to end the workers before its end. Raises WorkerKilled, with the image that it had come to.
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
    """A process that converts what it is given, in that order.

    Its connection is its own, and so its end is heard even amid a result, whereas ProcessPoolExecutor, whose
    workers share one, would wait for the rest for ever.
    """

    def __init__(self, settings: Settings) -> None:
        context = multiprocessing.get_context("spawn")  # not by fork: OpenCV has threads of its own here
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, settings), daemon=True)
        with deaf_children(), _one_blas_thread():
            self._process.start()
        theirs.close()
        self.given: deque[tuple[str, Future[list[Converted]]]] = deque()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def give(self, task: Sequence[Picture]) -> Future[list[Converted]]:
        """Have a task done after those given before; raises WorkerKilled."""
        result: Future[list[Converted]] = Future()
        self.given.append((task[0].name, result))
        try:
            self._connection.send(task)
        except OSError:
            raise WorkerKilled(self.given[0][0]) from None
        return result

    def stop(self) -> None:
        """End the process, whatever it is at."""
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
    """Convert until the parent is gone, even if it was killed; Ctrl-C is left to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_memory()
    with suppress(EOFError, OSError):
        while True:
            connection.send(convert_some(connection.recv(), settings))


def convert_some(pictures: Sequence[Picture], settings: Settings) -> list[Converted]:
    """Convert pictures, in this process."""
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
def deaf_children() -> Iterator[None]:
    """Have processes started inside begin without SIGINT, which would catch them at their imports."""
    resource_tracker.ensure_running()  # the first child would start it, and it unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Have processes started inside import numpy without a thread for each core: N workers would have N^2."""
    before = os.environ.get(_BLAS_THREADS)
    os.environ.setdefault(_BLAS_THREADS, "1")
    try:
        yield
    finally:
        if before is None:
            del os.environ[_BLAS_THREADS]
