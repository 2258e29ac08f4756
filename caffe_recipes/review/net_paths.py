"""Where the net of a solver lies: at its path from the folder that Caffe is started in, or beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def find_at_path(solver: str | Path, given: str, caffe_root: Path | None) -> Path | None:
    """Find the net that a solver's file gives by its path; None if it is not there.

    The path counts from `caffe_root`. Without one it may count from the current folder or from one above the
    solver: within its git repository, the folder next above, and those whose own path to the solver begins
    as the net's. Files in folders further up are somebody else's.
    """
    roots = _roots(Path(solver).absolute().parent, given) if caffe_root is None else [caffe_root]
    return next((root / given for root in roots if is_file(root / given)), None)


def find_beside(solver: str | Path, given: str) -> Path | None:
    """Find a file of the net's name beside the solver; None if there is none."""
    beside = Path(solver).parent / PurePosixPath(given).name
    return beside if is_file(beside) else None


def find_shared(solver: str | Path, given: str) -> Path | None:
    """Find a net in a folder beside the solver's, where `generate` writes those that recipes share."""
    net = PurePosixPath(given)
    if net.parent.name in ("", ".."):
        return None
    shared = Path(solver).absolute().parent.parent / net.parent.name / net.name
    return shared if is_file(shared) else None


def is_file(path: Path) -> bool:
    """Whether there is such a file; no path is too odd to ask for."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a path with a NUL, or too long
        return False


def real_path(path: str | Path) -> Path:
    """Follow the links of a path, as far as they lead: `Path.resolve` raises RuntimeError where they loop."""
    return Path(os.path.realpath(path))


def _roots(home: Path, given: str) -> Iterator[Path]:
    folders = PurePosixPath(given).parts[:-1]
    if not folders:  # Caffe is started beside the solver
        yield home
        yield Path()
        return
    yield Path()
    yield home
    above = (home, *home.parents)
    repository = next((index for index, folder in enumerate(above) if (folder / ".git").exists()), 0)
    for index, folder in enumerate(above[1:], 1):
        if index <= max(repository, 1) or above[index - 1].name == folders[0]:
            yield folder
