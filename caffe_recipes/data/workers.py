"""Images converted by several processes at once, and given back in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection

from caffe_recipes.data.pictures import Picture, reading
from caffe_recipes.data.pixels import Settings, convert, keep_memory, quiet_decoders, use_one_thread

_AT_ONCE = 16  # images of a task: some MB of records, so that none waits long
_AHEAD = 3  # tasks of each worker that may wait
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


@dataclass(frozen=True)
class Made:
    """A record's value and its image's shape, or what is `wrong` with the image."""

    value: bytes
    shape: tuple[int, ...]
    wrong: str = ""


class WorkerKilled(Exception):
    """A worker ended before its work did: it was killed, by the system or by an image."""


def convert_all(pictures: Sequence[Picture], settings: Settings, workers: int) -> Generator[Made, None, None]:
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
    waiting: deque[Future[list[Made]]] = deque()
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
        self.given: deque[tuple[str, Future[list[Made]]]] = deque()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def give(self, task: Sequence[Picture]) -> Future[list[Made]]:
        """Have a task done after those given before; raises WorkerKilled."""
        result: Future[list[Made]] = Future()
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
