"""What a git repository holds at a revision, read without a checkout."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.errors import InputError

_FILES = ("100644", "100755", "100664")  # not links, not submodules


@dataclass(frozen=True)
class Blob:
    """A file of a revision: its object's name, and its size."""

    oid: str
    size_bytes: int


def find_object(spec: str) -> tuple[str, str] | None:
    """Give the name and type (blob, tree, commit) of what `REV` or `REV:path` is here, or None."""
    if spec.startswith("-") or not spec.isprintable():
        return None
    oid = _try("rev-parse", "--verify", "--quiet", spec)
    if oid is None:
        return None
    kind = _try("cat-file", "-t", oid) or ""
    if kind == "tag":
        oid = _try("rev-parse", "--verify", "--quiet", f"{oid}^{{}}") or oid
        kind = _try("cat-file", "-t", oid) or ""
    return (oid, kind) if kind else None


def find_merge_base(old: str, new: str) -> str | None:
    """Give the commit that two revisions have in common, or None."""
    return _try("merge-base", old, new)


def why_no_repository() -> str:
    """Say why git finds no repository here, or nothing if it does."""
    try:
        done = _call("rev-parse", "--git-dir")
    except InputError as error:
        return str(error)
    lines = done.stderr.decode(errors="replace").splitlines()
    return lines[0].removeprefix("fatal: ") if done.returncode and lines else ""


def top_folder() -> Path:
    """Give the folder that the working tree starts at; InputError where there is none."""
    top = _try("rev-parse", "--show-toplevel")
    if not top:
        raise InputError("", "this repository has no working tree", "give a second revision")
    return Path(top)


def inner_folder() -> str:
    """Give the current folder from the top of the working tree: empty, or with a `/` at its end."""
    return _try("rev-parse", "--show-prefix") or ""


def list_files(tree: str) -> dict[str, Blob]:
    """Give the files of a commit or tree by path."""
    found = {}
    for line in _need("ls-tree", "-r", "-l", "-z", "--full-tree", tree).split(b"\0"):
        if line:
            about, path = line.split(b"\t", 1)
            mode, _, oid, size = about.split()
            if mode.decode() in _FILES:
                found[os.fsdecode(path)] = Blob(oid.decode(), int(size))
    return found


def list_tracked(top: Path) -> list[str]:
    """Give the files of the working tree that git tracks, by path from its top."""
    return sorted(
        {os.fsdecode(path) for path in _need("-C", str(top), "ls-files", "-z").split(b"\0") if path}
    )


def read_blobs(oids: Collection[str]) -> dict[str, bytes]:
    """Read objects by name, all in one go."""
    if not oids:
        return {}
    names = list(dict.fromkeys(oids))
    data = _need("cat-file", "--batch", stdin="".join(f"{oid}\n" for oid in names).encode())
    found, start = {}, 0
    for oid in names:
        end = data.index(b"\n", start)
        size = int(data[start:end].rsplit(b" ", 1)[1])
        found[oid] = data[end + 1 : end + 1 + size]
        start = end + size + 2
    return found


def diff_as_text(old: str, new: str) -> str:
    """Compare two files line by line, as git does; the hunks only."""
    done = _call("diff", "--no-index", "--no-ext-diff", "--no-textconv", "--no-color", "--", old, new)
    text = done.stdout.decode(errors="replace")
    start = text.find("\n@@")
    return text[start + 1 :] if start >= 0 else "".join(text.splitlines(keepends=True)[-1:])


def _try(*words: str) -> str | None:
    """Give what git says on one line, or None if it has nothing to say, or is not there."""
    try:
        done = _call(*words)
    except InputError:
        return None
    return None if done.returncode else os.fsdecode(done.stdout).removesuffix("\n")


def _need(*words: str, stdin: bytes = b"") -> bytes:
    done = _call(*words, stdin=stdin)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").splitlines() or [f"exit {done.returncode}"]
        raise InputError(f"git {words[0]}", lines[-1].removeprefix("fatal: "), "is the repository whole?")
    return done.stdout


def _call(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *words], input=stdin, capture_output=True, check=False)
    except OSError as error:
        raise InputError("", f"git cannot be started: {error.strerror}", "install git") from error
