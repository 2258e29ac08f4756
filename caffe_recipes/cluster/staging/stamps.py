"""The stamp that staging leaves beside what it puts on a node: proof that it is ours, and that it is whole.

One line, `caffe-recipes-1 MADE DIGEST BYTES MTIME INODE`: how many folders were made for it, and what the
file was when it had been verified. A file that still has this size, time and inode, in a folder that nobody
else can write in, is not hashed again. While a copy is under way the last four are `-`. `node.sh` knows the
same line.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

DATA = "data.mdb"
STAMP = ".caffe-recipes-staged"
_FORMAT = "caffe-recipes-1"


@dataclass(frozen=True)
class Stamp:
    """What is known of a staged file; `digest` is None while it is under way."""

    folders_made: int
    digest: str | None = None
    size_bytes: int = 0
    mtime: str = ""
    inode: int = 0


def stamp_file(folders_made: int, digest: str, status: os.stat_result) -> Stamp:
    """Return the stamp of a verified file."""
    return Stamp(folders_made, digest, status.st_size, render_mtime(status.st_mtime_ns), status.st_ino)


def parse_stamp(line: str) -> Stamp | None:
    """Return what a stamp says; None if it is none of ours.

    >>> parse_stamp("caffe-recipes-1 2 - - - -")
    Stamp(folders_made=2, digest=None, size_bytes=0, mtime='', inode=0)
    """
    words = line.split()
    if len(words) != 6 or words[0] != _FORMAT or not words[1].isdigit():
        return None
    if words[2:] == ["-"] * 4:
        return Stamp(int(words[1]))
    if not (words[3].isdigit() and words[5].isdigit()):
        return None
    return Stamp(int(words[1]), words[2], int(words[3]), words[4], int(words[5]))


def render_stamp(stamp: Stamp) -> str:
    """Write a stamp as its line.

    >>> render_stamp(Stamp(1))
    'caffe-recipes-1 1 - - - -'
    """
    if stamp.digest is None:
        return f"{_FORMAT} {stamp.folders_made} - - - -"
    return f"{_FORMAT} {stamp.folders_made} {stamp.digest} {stamp.size_bytes} {stamp.mtime} {stamp.inode}"


def render_mtime(mtime_ns: int) -> str:
    """Write a time of modification as `stat -c %.9Y` does.

    >>> render_mtime(1_700_000_000_000_000_001)
    '1700000000.000000001'
    """
    return f"{mtime_ns // 10**9}.{mtime_ns % 10**9:09}"
