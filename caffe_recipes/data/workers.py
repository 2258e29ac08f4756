"""Images converted by several processes at once, and given back in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker

from caffe_recipes.data.pictures import Picture, reading
from caffe_recipes.data.pixels import Settings, convert, keep_memory, quiet_decoders, use_one_thread

_AT_ONCE = 16  # images of a task: some MB of records, so that none waits long
_AHEAD = 3  # tasks of each worker that may wait


@dataclass(frozen=True)
class Made:
    """A record's value and its image's shape, or what is `wrong` with the image."""

    value: bytes
    shape: tuple[int, ...]
    wrong: str = ""


def convert_all(pictures: Sequence[Picture], settings: Settings, workers: int) -> Generator[Made, None, None]:
    """Convert pictures, in their order; one worker is this process.

    Close it, to end the workers before its end. Raises BrokenProcessPool if one was killed.
    """
    tasks = (pictures[start : start + _AT_ONCE] for start in range(0, len(pictures), _AT_ONCE))
    if workers == 1:
        keep_memory()
        for task in tasks:
            yield from convert_some(task, settings)
        return
    # Not by fork: OpenCV has threads of its own here.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_begin)
    waiting: deque[Future[list[Made]]] = deque()
    try:
        for task in tasks:
            with deaf_children():
                waiting.append(pool.submit(convert_some, task, settings))
            if len(waiting) >= _AHEAD * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def convert_some(pictures: Sequence[Picture], settings: Settings) -> list[Made]:
    """Convert pictures, in this process."""
    use_one_thread()
    with reading() as read, quiet_decoders():
        made = []
        for picture in pictures:
            try:
                datum, shape = convert(read(picture), picture.name, picture.label, settings)
                made.append(Made(datum.SerializeToString(deterministic=True), shape))
            except ValueError as error:
                made.append(Made(b"", (), str(error)))
            except OSError as error:
                made.append(Made(b"", (), f"cannot be read: {error.strerror}"))
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


def _begin() -> None:
    """Leave Ctrl-C to the parent, and end when it does, even if it was killed; see to memory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
