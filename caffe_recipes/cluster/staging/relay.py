"""The program that each rank of a chain runs: receive the file, pass it on, and write it to the local disk.

`python -m caffe_recipes.cluster.staging.relay` runs with one rank per host, in the order of the chain. Rank 0
reads the source. A ring of buffers lets a rank receive, send and write at the same time. A rank that cannot
write still passes the data on, so that the others finish. Nothing blocks inside MPI, which would busy-wait,
and a rank without progress for `--stall-s` exits, since MPI never notices a dead connection. At the end, each
rank prints a line `relay: RANK HOST landed` or `relay: RANK HOST failed: REASON`.

**The file** is written under a temporary name, verified, and only then renamed to `data.mdb`. `node.sh` has
created the folder and the empty file; this program opens them without following links, and checks again that
they are ours. This module runs on nodes, and uses only the standard library and mpi4py.

**The digest** of a staged file is the SHA-256 of the SHA-256 digests of its blocks. A plain SHA-256 uses one
core: at 0.1 GB/s, the 42 GB of ImageNet take seven minutes. Blocks are hashed by several cores, while the
rest of the file is still arriving. Coreutils can compute the digest as well, so a node does not need our
Python:

    split -b 16M --filter='sha256sum | cut -c 1-64' data.mdb | sha256sum

**The stamp** beside a staged file proves that the file is ours and complete. It is one line, `caffe-recipes-1
MADE DIGEST BYTES MTIME INODE`: the format number, the number of folders that staging made, and the state of
the file when it was verified. A file that still has this size, mtime and inode, in a folder where nobody else
can write, is not hashed again. During a copy, the last four words are `-`. `node.sh` reads and
writes the same line. A stamp of another format counts as absent.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from caffe_recipes.file_format import FORMAT
from caffe_recipes.files.locks import try_lock
from caffe_recipes.files.pipes import wait_until_read
from caffe_recipes.trust import find_other_writer
from caffe_recipes.wording import describe_count

if TYPE_CHECKING:
    from mpi4py import MPI


BLOCK_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20
# More readers do not make one disk faster.
MAX_HASHERS = 8


def combine_blocks(digests: Iterable[str]) -> str:
    """Return the digest of a file, given the digests of its blocks in order.

    >>> combine_blocks([hashlib.sha256(b"records").hexdigest()])[:16]
    'c477d56a6c8271a5'
    """
    return hashlib.sha256("".join(f"{digest}\n" for digest in digests).encode()).hexdigest()


def count_blocks(size_bytes: int) -> int:
    """Return the number of blocks of a file; the last may be short.

    >>> [count_blocks(n) for n in (0, 1, BLOCK_BYTES, BLOCK_BYTES + 1)]
    [0, 1, 1, 2]
    """
    return -(-size_bytes // BLOCK_BYTES)


def block_digest(file: int, block: int, size_bytes: int) -> str:
    """Return the SHA-256 of a block of an open file. Raises OSError, also if the file ends early."""
    digest, at = hashlib.sha256(), block * BLOCK_BYTES
    end = min(at + BLOCK_BYTES, size_bytes)
    while at < end:
        piece = os.pread(file, min(_PIECE_BYTES, end - at), at)
        if not piece:
            raise OSError(f"the file ends at byte {at} of {size_bytes}")
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()


def digest_open_file(file: int, size_bytes: int) -> str:
    """Return the digest of an open file, hashed by several threads. Raises OSError."""
    with ThreadPoolExecutor(hasher_count()) as pool:
        return combine_blocks(
            pool.map(lambda block: block_digest(file, block, size_bytes), range(count_blocks(size_bytes)))
        )


def digest_of(path: Path) -> str:
    """Return the digest of a file. Raises OSError."""
    with path.open("rb") as file:
        return digest_open_file(file.fileno(), os.fstat(file.fileno()).st_size)


def hasher_count() -> int:
    """Return the number of hashing threads: one per core that this process may use, at most eight."""
    return min(MAX_HASHERS, len(os.sched_getaffinity(0)))


DATA = "data.mdb"
STAMP = ".caffe-recipes-staged"
_FORMAT = f"caffe-recipes-{FORMAT}"


def parse_folders_made(stamp: str) -> int | None:
    """Return the number of folders that staging made, from a stamp; None if it is not one of our stamps.

    >>> parse_folders_made("caffe-recipes-1 2 - - - -")
    2
    """
    words = stamp.split()
    is_ours = len(words) == 6 and words[0] == _FORMAT and re.fullmatch("[0-9]{1,9}", words[1]) is not None
    return int(words[1]) if is_ours else None


def render_stamp(folders_made: int, digest: str, status: os.stat_result) -> str:
    """Return the stamp of a verified file, as one line."""
    state = f"{status.st_size} {render_mtime(status.st_mtime_ns)} {status.st_ino}"
    return f"{_FORMAT} {folders_made} {digest} {state}\n"


def render_mtime(mtime_ns: int) -> str:
    """Return a modification time as `stat -c %.9Y` prints it.

    >>> render_mtime(1_700_000_000_000_000_001)
    '1700000000.000000001'
    """
    return f"{mtime_ns // 10**9}.{mtime_ns % 10**9:09}"


# Data is synced once per this many blocks, so that little is left to sync at the end.
_BLOCKS_PER_SYNC = 8
_LOCK_S = 5.0


class Landing:
    """Writes the partial copy of an LMDB in its folder, in order, and hashes the written blocks.

    Raises OSError if other users could change the folder or the file.
    """

    def __init__(self, folder: str, part: str, size_bytes: int, pool: ThreadPoolExecutor) -> None:
        self._part, self._size_bytes, self._pool = part, size_bytes, pool
        self._hashes: list[Future[str]] = []
        self._folder = os.open(os.path.realpath(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        self._file = -1
        try:
            _check_ours(os.fstat(self._folder), "the folder")
            self._file = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
            status = os.fstat(self._file)
            _check_ours(status, part)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise OSError(f"{part} is not a regular file with a single link")
            _lock(self._file)
        except OSError:
            self.close()
            raise
        # Blocks from an earlier attempt; the digest at the end shows whether they are correct.
        self.held_blocks = min(status.st_size, size_bytes) // BLOCK_BYTES

    def start(self, block: int) -> None:
        """Start writing at a block; the earlier blocks exist, and are hashed now."""
        os.ftruncate(self._file, block * BLOCK_BYTES)
        for held in range(block):
            self._hash(held)

    def write(self, data: memoryview, at: int) -> None:
        """Write the next bytes. Raises OSError, e.g. if the disk is full."""
        end = at + len(data)
        while data:
            written = os.pwrite(self._file, data, at)
            at, data = at + written, data[written:]
        complete = count_blocks(end) if end == self._size_bytes else end // BLOCK_BYTES
        for block in range(len(self._hashes), complete):
            self._hash(block)

    def finish(self, digest: str) -> None:
        """Verify the file, write its stamp, and give it its final name. Raises OSError."""
        found = combine_blocks(future.result() for future in self._hashes)
        if found != digest:
            raise OSError("the digest of the copy differs from the source's")
        os.fsync(self._file)
        self._write_stamp(render_stamp(self._folders_made(), digest, os.fstat(self._file)))
        os.link(self._part, DATA, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)
        os.unlink(self._part, dir_fd=self._folder)
        os.fsync(self._folder)

    def close(self) -> None:
        """Close the file, finished or not."""
        for future in self._hashes:
            future.cancel()
        for descriptor in (self._file, self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._folder = -1

    def _hash(self, block: int) -> None:
        self._hashes.append(self._pool.submit(self._hash_block, block))

    def _hash_block(self, block: int) -> str:
        digest = block_digest(self._file, block, self._size_bytes)
        if block % _BLOCKS_PER_SYNC == _BLOCKS_PER_SYNC - 1:
            os.fdatasync(self._file)
        return digest

    def _folders_made(self) -> int:
        with os.fdopen(os.open(STAMP, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._folder)) as file:
            made = parse_folders_made(file.read(1000))
        if made is None:
            raise OSError(f"{STAMP} is not one of our stamps")
        return made

    def _write_stamp(self, stamp: str) -> None:
        beside = f"{STAMP}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(beside, flags, 0o600, dir_fd=self._folder), "w") as file:
            file.write(stamp)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, STAMP, src_dir_fd=self._folder, dst_dir_fd=self._folder)


def _check_ours(status: os.stat_result, what: str) -> None:
    if why := find_other_writer(status):
        raise OSError(f"{what} cannot be trusted: {why}")


def _lock(file: int) -> None:
    """Lock the partial copy; a process of a chain that was just ended may still hold the lock."""
    until = time.monotonic() + _LOCK_S
    while not try_lock(file):
        if time.monotonic() > until:
            raise OSError("another process on this host is staging the same LMDB")
        time.sleep(0.1)


class Sink:
    """A thread that writes buffers to disk in order; after an error it discards them."""

    def __init__(self, landing: Landing | None, error: str) -> None:
        self.landing, self.error = landing, error
        self.stored = 0
        self._queue: SimpleQueue[tuple[memoryview, int] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, data: memoryview, at: int) -> None:
        """Queue a buffer; `stored` counts the buffers written so far."""
        self._queue.put((data, at))

    def finish(self, digest: str) -> str:
        """Verify the file and give it its final name; return an error message, or ""."""
        self._queue.put(None)
        self._thread.join()
        if self.landing is not None and not self.error:
            try:
                self.landing.finish(digest)
            except OSError as error:
                self.error = describe_os_error(error)
        return self.error

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if self.landing is not None and not self.error:
                try:
                    self.landing.write(*item)
                except OSError as error:
                    self.error = describe_os_error(error)
            self.stored += 1


class RelayReader:
    """A thread of rank 0 that reads the source ahead into buffers and hashes it."""

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
        """Queue a buffer to be filled; `read` counts the buffers filled so far."""
        self._wanted.put((into, at))

    def digest(self) -> str:
        """Return the file's digest: the known one, or the digest of the data that was read."""
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
                self.error = describe_os_error(error)
                return
            self.read += 1
            if not self._known:  # right after reading, from the page cache
                self._hash(range(len(self._hashes), (at + done) // BLOCK_BYTES))


def describe_os_error(error: OSError) -> str:
    """Return the message of an error, without the number and path that Python adds."""
    return error.strerror or str(error)


BUFFERS = 16
_DIGEST_BYTES = 64
_MAX_NAP_S = 0.002
_ABORT_S = 10


class Stalled(Exception):
    """Raised after too long without progress; the text says what was waited for."""


class Waiter:
    """Waits for progress in short sleeps, each a fraction of the last step's duration. Raises Stalled."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._moved = time.monotonic()
        self._nap_s = 0.0

    def moved(self) -> None:
        """Record progress."""
        now = time.monotonic()
        self._nap_s = min(_MAX_NAP_S, (now - self._moved) / 4)
        self._moved = now

    def nap(self, waiting_for: Callable[[], str]) -> None:
        """Sleep briefly, whereas MPI's own wait would spin. Raises Stalled."""
        if time.monotonic() - self._moved > self._stall_s:
            raise Stalled(waiting_for())
        time.sleep(self._nap_s)

    def wait(self, request: MPI.Request, waiting_for: str) -> None:
        """Wait for one request."""
        self.moved()
        self._nap_s = _MAX_NAP_S
        while not request.Test():
            self.nap(lambda: waiting_for)
        self.moved()


class ChunkRelay:
    """Passes the chunks of the file through one rank."""

    def __init__(self, comm: MPI.Comm, size_bytes: int, chunk_bytes: int, waiter: Waiter) -> None:
        self._comm, self._waiter = comm, waiter
        self._size_bytes, self._chunk_bytes = size_bytes, chunk_bytes
        self._rank, self._last = comm.Get_rank(), comm.Get_size() - 1
        self._ring = [memoryview(bytearray(chunk_bytes)) for _ in range(BUFFERS)]

    def run(
        self, start: int, source: RelayReader | None, sink: Sink, on_progress: Callable[[int], None]
    ) -> None:
        """Pass on all bytes from `start`. Raises Stalled, and OSError if the source cannot be read."""
        chunks = -(-(self._size_bytes - start) // self._chunk_bytes)
        requested = received = sent = 0
        receiving: list[MPI.Request | None] = [None] * BUFFERS
        sending: list[MPI.Request | None] = [None] * BUFFERS
        while min(sent, sink.stored) < chunks:
            moved = False
            while requested < chunks and requested < min(sent, sink.stored) + BUFFERS:
                self._request(start, requested, source, receiving)
                requested += 1
            while received < requested and self._is_received(received, source, receiving):
                data, at = self._chunk(start, received)
                if self._rank < self._last:
                    sending[received % BUFFERS] = self._comm.Isend(data, self._rank + 1)
                sink.put(data, at)
                received += 1
                moved = True
            while sent < received and self._is_sent(sent, sending):
                sent += 1
                moved = True
            if source is not None and source.error:
                raise OSError(source.error)
            if moved:
                self._waiter.moved()
                on_progress(start + sent * self._chunk_bytes)
            else:
                self._waiter.nap(partial(self._waiting_for, received, sent, sink.stored))

    def _chunk(self, start: int, index: int) -> tuple[memoryview, int]:
        at = start + index * self._chunk_bytes
        return self._ring[index % BUFFERS][: min(self._chunk_bytes, self._size_bytes - at)], at

    def _request(
        self, start: int, index: int, source: RelayReader | None, receiving: list[MPI.Request | None]
    ) -> None:
        data, at = self._chunk(start, index)
        if source is not None:
            source.want(data, at)
        else:
            receiving[index % BUFFERS] = self._comm.Irecv(data, self._rank - 1)

    @staticmethod
    def _is_received(index: int, source: RelayReader | None, receiving: Sequence[MPI.Request | None]) -> bool:
        if source is not None:
            return index < source.read
        request = receiving[index % BUFFERS]
        return request is not None and bool(request.Test())

    @staticmethod
    def _is_sent(index: int, sending: Sequence[MPI.Request | None]) -> bool:
        request = sending[index % BUFFERS]
        return request is None or bool(request.Test())

    def _waiting_for(self, received: int, sent: int, stored: int) -> str:
        if sent < received and sent <= stored:
            return f"rank {self._rank + 1} receives nothing"
        if stored < received:
            return "nothing is written to its disk"
        return f"rank {self._rank - 1} sends nothing" if self._rank else "nothing can be read from the source"


def run_rank(comm: MPI.Comm, options: argparse.Namespace) -> str:
    """Run this rank's part of the chain; return its error message, or "". Raises Stalled, OSError."""
    waiter, rank = Waiter(options.stall_s), comm.Get_rank()
    if comm.Get_size() != options.ranks:
        what = f"started {describe_count(comm.Get_size(), 'rank')}, not {options.ranks}"
        raise OSError(f"{what}: mpi4py and the launcher use different MPIs")
    with ThreadPoolExecutor(hasher_count()) as pool:
        landing, error = None, ""
        if rank or not options.read_only:
            try:
                landing = Landing(options.folder, options.part, options.bytes, pool)
            except OSError as failure:
                error = describe_os_error(failure)
        held = landing.held_blocks if landing else options.bytes // BLOCK_BYTES
        start = _common_start(comm, held, waiter)
        if landing:
            landing.start(start)
        source = RelayReader(options.source, options.bytes, options.digest, pool) if rank == 0 else None
        sink = Sink(landing, error)
        report = _ProgressReport(rank, options.bytes)
        ChunkRelay(comm, options.bytes, options.chunk, waiter).run(start * BLOCK_BYTES, source, sink, report)
        error = sink.finish(_shared_digest(comm, source, waiter))
    if landing:
        landing.close()
    return error


class _ProgressReport:
    """Prints rank 0's progress once a second, so that the process that started the chain sees it is alive."""

    def __init__(self, rank: int, size_bytes: int) -> None:
        self._rank, self._size_bytes, self._next_s = rank, size_bytes, 0.0

    def __call__(self, at: int) -> None:
        now = time.monotonic()
        if self._rank == 0 and now >= self._next_s:
            self._next_s = now + 1
            print(f"relay: at {min(at, self._size_bytes)}", flush=True)


def _common_start(comm: MPI.Comm, held: int, waiter: Waiter) -> int:
    """Return the number of blocks that every rank already has; the chain continues from there."""
    from mpi4py import MPI

    mine, least = bytearray(held.to_bytes(8, sys.byteorder)), bytearray(8)
    waiter.wait(comm.Iallreduce([mine, MPI.INT64_T], [least, MPI.INT64_T], MPI.MIN), "a rank did not start")
    return int.from_bytes(least, sys.byteorder)


def _shared_digest(comm: MPI.Comm, source: RelayReader | None, waiter: Waiter) -> str:
    shared = bytearray(source.digest().encode() if source else _DIGEST_BYTES)
    waiter.wait(comm.Ibcast(shared, 0), "the digest of the source did not arrive")
    return shared.decode()


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="relay", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", required=True, help="the folder of the LMDB to write")
    parser.add_argument("--part", required=True, help="the name of the temporary file in that folder")
    parser.add_argument("--source", required=True, help="the file that rank 0 reads")
    parser.add_argument("--ranks", type=int, required=True, help="the number of hosts in the chain")
    parser.add_argument("--bytes", type=int, required=True, help="the size of the source")
    parser.add_argument("--chunk", type=int, required=True, help="bytes per message")
    parser.add_argument("--digest", default="", help="the digest of the source, if known")
    parser.add_argument("--read-only", action="store_true", help="rank 0 writes no copy")
    parser.add_argument(
        "--stall-s", type=float, default=60.0, help="seconds without progress after which to exit"
    )
    return parser.parse_args(words)


def main() -> None:
    """Run one rank; exit with 0 if the chain completed, even if this host could not write."""
    options = _parse(sys.argv[1:])
    try:
        import mpi4py

        mpi4py.rc.thread_level = "funneled"
        from mpi4py import MPI
    except ImportError as missing:
        # In a single write, so that hydra labels it; output just before the ranks are aborted may be lost.
        os.write(1, f"ImportError: {missing}\n".encode())
        wait_until_read(1)
        sys.exit(1)

    comm, host = MPI.COMM_WORLD, socket.gethostname()
    try:
        error = run_rank(comm, options)
    except (Stalled, OSError) as failure:
        print(f"relay: {comm.Get_rank()} {host} stopped: {failure}", flush=True)
        wait_until_read(1)
        signal.alarm(_ABORT_S)  # ends this rank even if the launcher cannot be reached
        comm.Abort(3)
    print(f"relay: {comm.Get_rank()} {host} {f'failed: {error}' if error else 'landed'}", flush=True)


if __name__ == "__main__":
    main()
