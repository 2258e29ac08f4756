"""What each rank of a chain runs: bytes come from the rank before, go to the next, and land here meanwhile.

`python -m caffe_recipes.cluster.staging.relay`, one rank a host, in the order of the chain. Rank 0 reads.
Buffers go round: one is received into while others are sent and written, so that neither the wire nor the
disk waits for the other. A rank that cannot write goes on passing: the rest finish. Nothing blocks inside
MPI, whose waiting takes a whole core; and who sees no progress for `--stall-s` ends: MPI itself never notices
a silent link.

Each rank says at its end, on a line of its own, `relay: RANK HOST landed` or `relay: RANK HOST failed: why`.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from caffe_recipes.cluster.staging.digests import BLOCK_BYTES, hasher_count
from caffe_recipes.cluster.staging.landing import Landing
from caffe_recipes.cluster.staging.relay_ends import Sink, Source, explain

if TYPE_CHECKING:
    from mpi4py import MPI

BUFFERS = 16
_DIGEST_BYTES = 64
_LONGEST_NAP_S = 0.002
_ABORT_S = 10
# The launcher loses what a rank has said just before it aborts.
_SAID_S = 0.5


class Stalled(Exception):
    """Nothing has moved for too long; says what was waited for."""


class Waiter:
    """Waits for whatever moves, napping a fraction of what the last step took; raises Stalled."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._moved = time.monotonic()
        self._nap_s = 0.0

    def moved(self) -> None:
        """Note progress."""
        now = time.monotonic()
        self._nap_s = min(_LONGEST_NAP_S, (now - self._moved) / 4)
        self._moved = now

    def nap(self, waiting_for: Callable[[], str]) -> None:
        """Sleep a little; MPI would spin."""
        if time.monotonic() - self._moved > self._stall_s:
            raise Stalled(waiting_for())
        time.sleep(self._nap_s)

    def wait(self, request: MPI.Request, waiting_for: str) -> None:
        """Wait for one request."""
        self.moved()
        self._nap_s = _LONGEST_NAP_S
        while not request.Test():
            self.nap(lambda: waiting_for)
        self.moved()


class Relay:
    """The loop of one rank over the file's chunks."""

    def __init__(self, comm: MPI.Comm, size_bytes: int, chunk_bytes: int, waiter: Waiter) -> None:
        self._comm, self._waiter = comm, waiter
        self._size_bytes, self._chunk_bytes = size_bytes, chunk_bytes
        self._rank, self._last = comm.Get_rank(), comm.Get_size() - 1
        self._ring = [memoryview(bytearray(chunk_bytes)) for _ in range(BUFFERS)]

    def run(self, start: int, source: Source | None, sink: Sink, tell: Callable[[int], None]) -> None:
        """Pass everything from byte `start` on; raises Stalled, and OSError if the source cannot be read."""
        chunks = -(-(self._size_bytes - start) // self._chunk_bytes)
        asked = came = sent = 0
        receiving: list[MPI.Request | None] = [None] * BUFFERS
        sending: list[MPI.Request | None] = [None] * BUFFERS
        while min(sent, sink.stored) < chunks:
            moved = False
            while asked < chunks and asked < min(sent, sink.stored) + BUFFERS:
                self._ask(start, asked, source, receiving)
                asked += 1
            while came < asked and self._has_come(came, source, receiving):
                data, at = self._chunk(start, came)
                if self._rank < self._last:
                    sending[came % BUFFERS] = self._comm.Isend(data, self._rank + 1)
                sink.put(data, at)
                came += 1
                moved = True
            while sent < came and self._has_gone(sent, sending):
                sent += 1
                moved = True
            if source is not None and source.error:
                raise OSError(source.error)
            if moved:
                self._waiter.moved()
                tell(start + sent * self._chunk_bytes)
            else:
                self._waiter.nap(partial(self._waiting_for, came, sent, sink.stored))

    def _chunk(self, start: int, index: int) -> tuple[memoryview, int]:
        at = start + index * self._chunk_bytes
        return self._ring[index % BUFFERS][: min(self._chunk_bytes, self._size_bytes - at)], at

    def _ask(
        self, start: int, index: int, source: Source | None, receiving: list[MPI.Request | None]
    ) -> None:
        data, at = self._chunk(start, index)
        if source is not None:
            source.want(data, at)
        else:
            receiving[index % BUFFERS] = self._comm.Irecv(data, self._rank - 1)

    @staticmethod
    def _has_come(index: int, source: Source | None, receiving: Sequence[MPI.Request | None]) -> bool:
        if source is not None:
            return index < source.read
        request = receiving[index % BUFFERS]
        return request is not None and bool(request.Test())

    @staticmethod
    def _has_gone(index: int, sending: Sequence[MPI.Request | None]) -> bool:
        request = sending[index % BUFFERS]
        return request is None or bool(request.Test())

    def _waiting_for(self, came: int, sent: int, stored: int) -> str:
        if sent < came and sent <= stored:
            return f"rank {self._rank + 1} takes nothing"
        if stored < came:
            return "its disk writes nothing"
        return f"rank {self._rank - 1} sends nothing" if self._rank else "the source gives nothing"


def run_rank(comm: MPI.Comm, options: argparse.Namespace) -> str:
    """Take part in the chain; return what went wrong on this host, or nothing. Raises Stalled, OSError."""
    waiter, rank = Waiter(options.stall_s), comm.Get_rank()
    if comm.Get_size() != options.ranks:
        what = f"{comm.Get_size()} ranks were started, not {options.ranks}"
        raise OSError(f"{what}: mpi4py and the launcher are of different MPIs")
    with ThreadPoolExecutor(hasher_count()) as pool:
        landing, error = None, ""
        if rank or not options.read_only:
            try:
                landing = Landing(options.folder, options.part, options.bytes, pool)
            except OSError as failure:
                error = explain(failure)
        held = landing.held_blocks if landing else options.bytes // BLOCK_BYTES
        start = _least(comm, held, waiter)
        if landing:
            landing.start(start)
        source = Source(options.source, options.bytes, options.digest, pool) if rank == 0 else None
        sink = Sink(landing, error)
        tell = _Telling(rank, options.bytes).tell
        Relay(comm, options.bytes, options.chunk, waiter).run(start * BLOCK_BYTES, source, sink, tell)
        error = sink.finish(_shared_digest(comm, source, waiter))
    if landing:
        landing.close()
    return error


class _Telling:
    """Rank 0 tells how far it is, once a second: who started the chain sees that it moves."""

    def __init__(self, rank: int, size_bytes: int) -> None:
        self._rank, self._size_bytes, self._next_s = rank, size_bytes, 0.0

    def tell(self, at: int) -> None:
        now = time.monotonic()
        if self._rank == 0 and now >= self._next_s:
            self._next_s = now + 1
            print(f"relay: at {min(at, self._size_bytes)}", flush=True)


def _least(comm: MPI.Comm, held: int, waiter: Waiter) -> int:
    """Return the least of all ranks' numbers of blocks: there the chain goes on."""
    from mpi4py import MPI

    mine, least = bytearray(held.to_bytes(8, sys.byteorder)), bytearray(8)
    waiter.wait(
        comm.Iallreduce([mine, MPI.INT64_T], [least, MPI.INT64_T], MPI.MIN), "a rank that never started"
    )
    return int.from_bytes(least, sys.byteorder)


def _shared_digest(comm: MPI.Comm, source: Source | None, waiter: Waiter) -> str:
    shared = bytearray(source.digest().encode() if source else _DIGEST_BYTES)
    waiter.wait(comm.Ibcast(shared, 0), "the digest of the source")
    return shared.decode()


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="relay", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", required=True, help="where the LMDB is to be")
    parser.add_argument("--part", required=True, help="the file in it that is filled")
    parser.add_argument("--source", required=True, help="the file that rank 0 reads")
    parser.add_argument("--ranks", type=int, required=True, help="hosts of the chain")
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--chunk", type=int, required=True, help="bytes a message")
    parser.add_argument("--digest", default="", help="of the source, if it is known")
    parser.add_argument("--read-only", action="store_true", help="rank 0 has a copy, and writes none")
    parser.add_argument("--stall-s", type=float, default=60.0)
    return parser.parse_args(words)


def main() -> None:
    """Run one rank; exit 0 if the chain came to its end, whatever this host's own disk did."""
    options = _parse(sys.argv[1:])
    try:
        import mpi4py

        mpi4py.rc.thread_level = "funneled"
        from mpi4py import MPI
    except ImportError as lacking:
        # In one piece, and with a moment to be heard: hydra labels each write, and may lose the last one.
        os.write(1, f"ImportError: {lacking}\n".encode())
        time.sleep(_SAID_S)
        sys.exit(1)

    comm, host = MPI.COMM_WORLD, socket.gethostname()
    try:
        error = run_rank(comm, options)
    except (Stalled, OSError) as failure:
        print(f"relay: {comm.Get_rank()} {host} stopped: {failure}", flush=True)
        time.sleep(_SAID_S)
        signal.alarm(_ABORT_S)  # a launcher that is cut off cannot be told; the signal ends this rank
        comm.Abort(3)
    print(f"relay: {comm.Get_rank()} {host} {f'failed: {error}' if error else 'landed'}", flush=True)


if __name__ == "__main__":
    main()
