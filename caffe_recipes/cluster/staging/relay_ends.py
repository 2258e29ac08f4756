"""The two ends of a relay, each a thread: the file that is read, and the disk that is written."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

from caffe_recipes.cluster.staging.digests import BLOCK_BYTES, block_digest, combine_blocks, count_blocks
from caffe_recipes.cluster.staging.landing import Landing


class Sink:
    """The disk's end: a thread that writes buffers in order; after an error it only lets them go."""

    def __init__(self, landing: Landing | None, error: str) -> None:
        self.landing, self.error = landing, error
        self.stored = 0
        self._queue: SimpleQueue[tuple[memoryview, int] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, data: memoryview, at: int) -> None:
        """Have bytes written; `stored` counts them when they are."""
        self._queue.put((data, at))

    def finish(self, digest: str) -> str:
        """Verify and name what was written; return what went wrong, or nothing."""
        self._queue.put(None)
        self._thread.join()
        if self.landing is not None and not self.error:
            try:
                self.landing.finish(digest)
            except OSError as error:
                self.error = explain(error)
        return self.error

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if self.landing is not None and not self.error:
                try:
                    self.landing.write(*item)
                except OSError as error:
                    self.error = explain(error)
            self.stored += 1


class Source:
    """Rank 0's end: a thread that reads the file into buffers, ahead of the wire, and hashes it."""

    def __init__(self, path: str, size_bytes: int, known_digest: str, pool: ThreadPoolExecutor) -> None:
        self._file = os.open(path, os.O_RDONLY)
        if os.fstat(self._file).st_size != size_bytes:
            raise OSError(f"{path} has {os.fstat(self._file).st_size} bytes, not {size_bytes}")
        self._size_bytes, self._known, self._pool = size_bytes, known_digest, pool
        self.error = ""
        self._hashes: list[Future[str]] = []
        self._wanted: SimpleQueue[tuple[memoryview, int]] = SimpleQueue()
        self.read = 0
        threading.Thread(target=self._run, daemon=True).start()

    def want(self, into: memoryview, at: int) -> None:
        """Have a buffer filled; `read` counts those that are."""
        self._wanted.put((into, at))

    def digest(self) -> str:
        """Return the file's digest: the one that was known, or that of what has been read."""
        blocks = range(len(self._hashes), 0 if self._known else count_blocks(self._size_bytes))
        self._hash(blocks)
        return self._known or combine_blocks(future.result() for future in self._hashes)

    def _hash(self, blocks: range) -> None:
        for block in blocks:
            self._hashes.append(self._pool.submit(block_digest, self._file, block, self._size_bytes))

    def _run(self) -> None:
        while True:
            into, at = self._wanted.get()
            try:
                done = 0
                while done < len(into):
                    count = os.preadv(self._file, [into[done:]], at + done)
                    if count == 0:
                        raise OSError(f"the source ends at byte {at + done} of {self._size_bytes}")
                    done += count
            except OSError as error:
                self.error = explain(error)
                return
            self.read += 1
            if not self._known:  # behind the reader, out of the page cache
                self._hash(range(len(self._hashes), (at + done) // BLOCK_BYTES))


def explain(error: OSError) -> str:
    """Return an error's reason, without the number and the path that Python puts around it."""
    return error.strerror or str(error)
