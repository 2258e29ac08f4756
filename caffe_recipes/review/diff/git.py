"""Read files of git revisions, object by object.

Nothing is checked out, so filters, attributes, hooks and symbolic links have no effect. Nothing that the
repository's own configuration names is started.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from caffe_recipes.caffe.prototxt import MOST_BYTES
from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.limits import MOST_GIT_S, hint_at_limit
from caffe_recipes.limits import limit as bound
from caffe_recipes.quoting import real_path
from caffe_recipes.recipe.shipped import RECIPE_SUFFIXES

_WORD_BYTES = 1_000_000  # of git's answer to a question about one object, and of its messages
_ENTRY_BYTES = 200  # of an entry in a list, on average
_UNTRACKED_S = 10.0  # to look for files that are only mentioned
_FILES = ("100644", "100755", "100664")  # modes of regular files, not of symbolic links or submodules


@dataclass(frozen=True)
class GitBlob:
    """A file in a revision: its object name and size."""

    oid: str
    size_bytes: int


def find_object(spec: str) -> tuple[str, str] | None:
    """Return the name and type (blob, tree, commit) of the object `REV` or `REV:path`; None if not found."""
    if spec.startswith("-") or not spec.isprintable():
        return None
    oid = try_git("rev-parse", "--verify", "--quiet", spec)
    if oid is None:
        return None
    kind = try_git("cat-file", "-t", oid) or ""
    if kind == "tag":
        oid = try_git("rev-parse", "--verify", "--quiet", f"{oid}^{{}}") or oid
        kind = try_git("cat-file", "-t", oid) or ""
    return (oid, kind) if kind else None


def find_merge_base(old: str, new: str) -> str | None:
    """Return the merge base of two revisions; None if they have none."""
    return try_git("merge-base", old, new)


def explain_no_repository() -> str:
    """Return why git finds no repository in the current folder, or an empty string if it finds one."""
    try:
        done = _start_git("rev-parse", "--git-dir")
    except InputError as error:
        return str(error)
    lines = done.stderr.decode(errors="replace").splitlines()
    return lines[0].removeprefix("fatal: ") if done.returncode and lines else ""


def top_folder() -> Path:
    """Return the top folder of the working tree. Raises InputError if there is no working tree."""
    top = try_git("rev-parse", "--show-toplevel")
    if not top:
        raise InputError("", "this repository has no working tree", "give a second revision")
    # The configuration of a repository that came with its .git can name any other folder.
    is_own = (Path(top) / ".git").exists() or "GIT_DIR" in os.environ or "GIT_WORK_TREE" in os.environ
    if not is_own or not real_path(Path.cwd()).is_relative_to(real_path(Path(top))):
        what = "is configured as the working tree, but does not contain this repository and this folder"
        raise InputError(top, what, "check core.worktree, or give a second revision")
    return Path(top)


def inner_folder() -> str:
    """Return the current folder relative to the top of the working tree: empty, or ending in `/`."""
    return try_git("rev-parse", "--show-prefix") or ""


def list_files(tree: str, limits: Sequence[str]) -> dict[str, GitBlob]:
    """Return the files to compare in a commit or tree, by path. Raises InputError for too large a tree."""
    wanted = {}
    # Trees are listed and counted too: a small repository can have one that holds another 10^9 times.
    for line in _list_entries("ls-tree", "-r", "-t", "-z", "--full-tree", tree):
        about, path = line.split(b"\t", 1)
        mode, _, oid = about.decode().split()
        if mode in _FILES and is_wanted(os.fsdecode(path), limits):
            wanted[os.fsdecode(path)] = oid
    sizes = _read_sizes(wanted.values())
    return {path: GitBlob(oid, sizes[oid]) for path, oid in wanted.items()}


def list_tracked() -> list[str]:
    """Return the paths, from the top of the working tree, of the files that git tracks."""
    return sorted({os.fsdecode(path) for path in _list_entries("ls-files", "-z", "--full-name", ":/")})


def list_untracked(limits: Sequence[str]) -> list[str]:
    """Return the prototxts and YAML files that git neither tracks nor ignores.

    They are only mentioned, so there are none if there are too many, or too many folders to look through.
    """
    patterns = [f":(top,literal){limit}" for limit in limits]
    if not limits or "." in limits:
        patterns = [f":/*{suffix}" for suffix in (*SUFFIXES, *RECIPE_SUFFIXES)]
    words = ("ls-files", "-z", "--full-name", "--others", "--exclude-standard", "--", *patterns)
    with suppress(InputError):
        return sorted(map(os.fsdecode, _list_entries(*words, most_s=_UNTRACKED_S)))
    return []


def _list_entries(*arguments: str, most_s: float = math.inf) -> list[bytes]:
    """Return what git lists, each with a null byte at its end. Raises InputError for too many."""
    most = bound("git-entries")
    data = _run_git(*arguments, max_bytes=_ENTRY_BYTES * most, max_entries=most, most_s=most_s)
    return data.split(b"\0")[:-1]


def _read_sizes(oids: Iterable[str]) -> dict[str, int]:
    """Return the sizes of objects by name; raises InputError if one is missing."""
    names = list(dict.fromkeys(oids))
    if not names:
        return {}
    stdin = "".join(f"{oid}\n" for oid in names).encode()
    lines = _run_git("cat-file", "--batch-check", stdin=stdin, max_bytes=_ENTRY_BYTES * len(names))
    sizes = [line.rpartition(" ")[2] for line in lines.decode().splitlines()]
    for oid, size in zip(names, sizes, strict=True):
        if not size.isdigit():
            raise _missing(oid)
    return dict(zip(names, map(int, sizes), strict=True))


def read_blobs(sizes: Mapping[str, int]) -> dict[str, bytes]:
    """Return the contents of objects, given their sizes by name; raises InputError if one is missing."""
    if not sizes:
        return {}
    stdin = "".join(f"{oid}\n" for oid in sizes).encode()
    most = sum(sizes.values()) + _ENTRY_BYTES * len(sizes)
    data = _run_git("cat-file", "--batch", stdin=stdin, max_bytes=most)
    found, start = {}, 0
    for oid in sizes:
        end = data.find(b"\n", start)
        size = data[start : max(start, end)].rpartition(b" ")[2]
        if not size.isdigit():
            raise _missing(oid)
        found[oid] = data[end + 1 : end + 1 + int(size)]
        start = end + int(size) + 2
    return found


def _missing(oid: str) -> InputError:
    return InputError(oid, "is missing from the repository", "fetch it with git first")


def read_blob(oid: str, name: str, max_bytes: int) -> bytes:
    """Return the contents of one object. Raises PrototxtError for more than `max_bytes`."""
    sizes = _read_sizes([oid])
    if sizes[oid] > max_bytes:
        raise blob_too_large(name, max_bytes)
    return read_blobs(sizes)[oid]


def blob_too_large(name: str, max_bytes: int) -> PrototxtError:
    """Return the error for a file that is larger than the bound."""
    return PrototxtError(name, f"is over {max_bytes:,} bytes", "is it a prototxt?")


def diff_as_text(old: str, new: str) -> str:
    """Return the hunks of git's line-by-line diff of two files, or why there is none."""
    # Without a repository, which could configure filters for these files.
    words = ("diff", "--no-index", "--no-ext-diff", "--no-textconv", "--no-color", "--", old, new)
    try:
        done = _start_git(*words, environment={"GIT_DIR": os.devnull}, max_bytes=4 * MOST_BYTES)
    except InputError as error:
        return f"{error}\n"
    text = done.stdout.decode(errors="replace")
    start = text.find("\n@@")
    return text[start + 1 :] if start >= 0 else "".join(text.splitlines(keepends=True)[-1:])


def try_git(*arguments: str) -> str | None:
    """Return git's output without its final newline; None if git fails or is not installed."""
    if shutil.which("git") is None:
        return None
    done = _start_git(*arguments)
    return None if done.returncode else os.fsdecode(done.stdout).removesuffix("\n")


def _run_git(
    *arguments: str,
    stdin: bytes = b"",
    max_bytes: int = _WORD_BYTES,
    max_entries: int = sys.maxsize,
    most_s: float = math.inf,
) -> bytes:
    done = _start_git(*arguments, stdin=stdin, max_bytes=max_bytes, max_entries=max_entries, most_s=most_s)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").splitlines() or [f"exit {done.returncode}"]
        raise InputError(
            f"git {arguments[0]}", lines[-1].removeprefix("fatal: "), "check the repository with git fsck"
        )
    return done.stdout


# A repository can configure programs to be started: a monitor of its files, or one that fetches a missing
# object; and so can a folder of a clone that is a bare repository itself.
_HARMLESS = ("-c", "core.fsmonitor=false", "-c", "safe.bareRepository=explicit")
# A small compressed object can unpack to any size, which git reads as a whole.
_BOUNDED = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "GIT_ALLOC_LIMIT": "512m"}


def _start_git(
    *arguments: str,
    stdin: bytes = b"",
    environment: Mapping[str, str] = {},
    max_bytes: int = _WORD_BYTES,
    max_entries: int = sys.maxsize,
    most_s: float = math.inf,
) -> subprocess.CompletedProcess[bytes]:
    """Run git to its end. Raises InputError, and ends it, if it prints too much or takes too long."""
    most_s = min(most_s, MOST_GIT_S)
    command, git = f"git {arguments[0]}", _open_git(arguments, environment)
    assert git.stdin is not None and git.stdout is not None and git.stderr is not None
    end = partial(os.killpg, git.pid, signal.SIGKILL)
    timer, begun = threading.Timer(most_s, end), time.monotonic()
    with git, ThreadPoolExecutor(2) as pool:
        try:
            timer.start()
            output = pool.submit(_read_bounded, git.stdout, max_bytes, max_entries)
            errors = pool.submit(_read_bounded, git.stderr, _WORD_BYTES, sys.maxsize)
            for read in (output, errors):
                read.add_done_callback(lambda done: end() if done.exception() else None)
            with suppress(BrokenPipeError), git.stdin:
                git.stdin.write(stdin)
            stdout, stderr = output.result(), errors.result()
        except _TooMuch as error:
            hint = hint_at_limit("git-entries") if max_entries < sys.maxsize else "compare less at a time"
            raise InputError(command, str(error), hint) from None
        except BaseException:  # such as Ctrl-C
            end()
            raise
        finally:
            timer.cancel()
    if git.returncode == -signal.SIGKILL and time.monotonic() >= begun + most_s:
        raise InputError(command, f"did not end within {most_s:.0f} s", "compare less, or check the disk")
    return subprocess.CompletedProcess(arguments, git.returncode, stdout, stderr)


def _open_git(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            ["git", *_HARMLESS, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **_BOUNDED, **environment},
            start_new_session=True,  # since `git` may be a script, whose processes are to end with it
        )
    except OSError as error:
        raise InputError("", f"git cannot be started: {error.strerror}", "install git") from error


class _TooMuch(Exception):
    """Raised for output over its bound."""


def _read_bounded(stream: IO[bytes], max_bytes: int, max_entries: int) -> bytes:
    data, entries = bytearray(), 0
    while piece := os.read(stream.fileno(), 1 << 16):
        data += piece
        entries += piece.count(b"\0")
        if entries > max_entries:
            raise _TooMuch(f"lists over {max_entries:,} entries")
        if len(data) > max_bytes:
            raise _TooMuch(f"prints over {max_bytes:,} bytes")
    return bytes(data)


SUFFIXES = (".prototxt", ".pt")


def is_wanted(path: str, limits: Sequence[str]) -> bool:
    """Return whether to compare a file: a prototxt or YAML below a limit, or a file that a limit names."""
    is_below = not limits or any(limit == "." or path.startswith(f"{limit}/") for limit in limits)
    return path in limits or (is_below and path.endswith((*SUFFIXES, *RECIPE_SUFFIXES)))
