"""Define upper bounds on input, so that an oversized or malicious file cannot exhaust time or memory.

Each bound is far above what real files need. `caffe-recipes --limit NAME=N COMMAND` raises one in LIMITS, and
so does the variable `CAFFE_RECIPES_LIMITS=NAME=N,NAME=N`, which `caffe-torch` reads too. The others cannot be
raised. docs/reviewing.md lists all bounds. This module also limits the permissions of new files, and says how
much memory there is.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from contextlib import suppress
from types import MappingProxyType

LIMITS_VARIABLE = "CAFFE_RECIPES_LIMITS"
_OPENCV = "OPENCV_IO_MAX_IMAGE_PIXELS"

LIMITS = MappingProxyType(
    {
        "yaml-bytes": 1_000_000,
        "yaml-depth": 50,
        "yaml-values": 20_000,
        "yaml-rows": 500,
        "prototxt-values": 500_000,
        "prototxt-layers": 10_000,
        "weights-fields": 200_000,
        "record-bytes": 256_000_000,
        "image-pixels": 100_000_000,
        "tar-members": 2_000_000,
        "list-bytes": 256_000_000,
        "json-bytes": 16_000_000,
        "git-entries": 500_000,
        "answer-bytes": 100_000_000,
        "journal-bytes": 64_000_000,
        "predictions-bytes": 2_000_000_000,
    }
)

MOST_YAML_DEPTH = 300  # levels that the recursion of libyaml and of our own reader can take
MOST_TAR_HEADER_BYTES = 1 << 16  # of a PAX header, too, which tarfile searches quadratically
MOST_LINTED_FILES = 10_000  # in a folder
MOST_SCRIPT_BYTES, MOST_SCRIPT_LINES = 1_000_000, 20_000
MOST_COMPARED_FILES = 10_000  # of one side of a diff
MOST_GIT_S = 600.0
PROTOTXT_BYTES = 16_000_000  # by default; a caffemodel or a log that is given by mistake is often larger
STOP_GRACE_S = 120  # by default, after SIGINT: the time for an iteration and its snapshot
JOB_GRACE_S = 300.0  # by default, for a job: the same, and for the copy of the snapshot
MOST_RECORD_FILES = 100_000  # of a set of TFRecords; a manifest could claim any number of names
MOST_HOSTS = 100_000
MOST_STATUS_RUNS = 1_000  # that one `status` reads
MOST_ASKED_JOBS = 100  # of a submission, of which those that Slurm still knows take a call each
MOST_HOSTFILE_BYTES = 10_000_000
MOST_NODELIST_BYTES = 1_000_000  # of a line of a hostfile, too


def limit(name: str) -> int:
    """Return a bound, from the environment or its default; raises ValueError for a malformed variable."""
    return parse_limits(os.environ.get(LIMITS_VARIABLE, "")).get(name, LIMITS[name])


def parse_limits(text: str) -> dict[str, int]:
    """Parse `NAME=N,NAME=N` into {name: N}; raises ValueError, whose text says what is wrong.

    >>> parse_limits("yaml-depth=70,image-pixels=200000000")
    {'yaml-depth': 70, 'image-pixels': 200000000}
    """
    found = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.strip().partition("=")
        if name not in LIMITS:
            raise ValueError(f"unknown limit {name[:60]!r}; the limits are {', '.join(LIMITS)}")
        if not (number.isascii() and number.isdigit() and 0 < len(number) < 19 and int(number)):
            raise ValueError(f"{part[:60]!r} does not give a positive integer; write {name}={LIMITS[name]}")
        found[name] = int(number)
    return found


def raise_limits(texts: Sequence[str]) -> None:
    """Set bounds from `NAME=N` texts, for this process and its children.

    They override the environment. Raises ValueError for a malformed text or environment variable.
    """
    found = {**parse_limits(os.environ.get(LIMITS_VARIABLE, "")), **parse_limits(",".join(texts))}
    if texts:
        os.environ[LIMITS_VARIABLE] = ",".join(f"{name}={most}" for name, most in found.items())
    bound_opencv()


def host_memory_bytes() -> int:
    """Return the bytes of memory that this process can have at most on this host."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return there if limit == resource.RLIM_INFINITY else min(there, limit)


def close_umask() -> None:
    """Make new files unwritable for others and, if the umask let others write, also for the group."""
    umask = os.umask(0o022)
    os.umask(umask if umask & 0o002 else umask | 0o022)


def hint_at_limit(name: str) -> str:
    """Return the hint for an error about a file that exceeds a bound."""
    return f"if you trust it, raise the limit with {LIMITS_VARIABLE}={name}=N"


def bound_opencv() -> None:
    """Set OpenCV's own bound on an image's pixels; OpenCV reads the variable only when it is loaded."""
    os.environ[_OPENCV] = str(limit("image-pixels"))


with suppress(ValueError):  # the command line reports a malformed variable
    bound_opencv()
