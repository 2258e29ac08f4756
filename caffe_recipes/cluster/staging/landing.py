"""Where a file lands on a node: written under a name of its own, verified, and only then called `data.mdb`.

The folder and the empty file were made by `node.sh`; here they are opened without following a link, and
checked again to be ours. Runs on nodes, by `relay.py`: the standard library only.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from concurrent.futures import Future, ThreadPoolExecutor

from caffe_recipes.cluster.staging.digests import BLOCK_BYTES, block_digest, combine_blocks, count_blocks
from caffe_recipes.cluster.staging.stamps import DATA, STAMP, parse_stamp, render_stamp, stamp_file

# So often what is written is synced behind the writer: little is left to sync at the end.
_BLOCKS_A_SYNC = 8
_LOCK_S = 5.0


class Landing:
    """A part of an LMDB's folder that is being filled, in order; blocks are hashed behind the writer.

    Raises OSError, with what is wrong as its text, where the folder or the part is not ours alone.
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
                raise OSError(f"{part} is no file of its own")
            _lock(self._file)
        except OSError:
            self.close()
            raise
        # What an attempt before this one has written; whether it is right is told by the digest at the end.
        self.held_blocks = min(status.st_size, size_bytes) // BLOCK_BYTES

    def start(self, block: int) -> None:
        """Begin to write at a block; those before it are there, and are hashed now."""
        os.ftruncate(self._file, block * BLOCK_BYTES)
        for held in range(block):
            self._hash(held)

    def write(self, data: memoryview, at: int) -> None:
        """Write the next bytes; raises OSError, as for a full disk."""
        end = at + len(data)
        while data:
            written = os.pwrite(self._file, data, at)
            at, data = at + written, data[written:]
        whole = count_blocks(end) if end == self._size_bytes else end // BLOCK_BYTES
        for block in range(len(self._hashes), whole):
            self._hash(block)

    def finish(self, digest: str) -> None:
        """Verify, stamp, and give the file its name; raises OSError."""
        found = combine_blocks(future.result() for future in self._hashes)
        if found != digest:
            raise OSError("what arrived is not what was sent: its digest differs")
        os.fsync(self._file)
        made = self._folders_made()
        line = render_stamp(stamp_file(made, digest, os.fstat(self._file)))
        self._write_stamp(line)
        os.link(self._part, DATA, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)
        os.unlink(self._part, dir_fd=self._folder)
        os.fsync(self._folder)

    def close(self) -> None:
        """Let go of the file, finished or not."""
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
        if block % _BLOCKS_A_SYNC == _BLOCKS_A_SYNC - 1:
            os.fdatasync(self._file)
        return digest

    def _folders_made(self) -> int:
        with os.fdopen(os.open(STAMP, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._folder)) as file:
            stamp = parse_stamp(file.read(1000))
        if stamp is None:
            raise OSError(f"{STAMP} is none of ours")
        return stamp.folders_made

    def _write_stamp(self, line: str) -> None:
        beside = f"{STAMP}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(beside, flags, 0o600, dir_fd=self._folder), "w") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, STAMP, src_dir_fd=self._folder, dst_dir_fd=self._folder)


def _check_ours(status: os.stat_result, what: str) -> None:
    if status.st_uid != os.geteuid():
        raise OSError(f"{what} belongs to user {status.st_uid}")
    if status.st_mode & stat.S_IWOTH:
        raise OSError(f"others can write in {what}")


def _lock(file: int) -> None:
    """Hold a part for this process alone; one of a chain that has just been ended may still be going."""
    until = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise OSError("another process of this host stages the same LMDB") from None
            time.sleep(0.1)
        else:
            return
