"""The folders of the Caffe root that a run writes to on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from caffe_recipes.chain.folder import RUNS
from caffe_recipes.chain.lock import RecipeLock
from caffe_recipes.chain.preflight.findings import Finding
from caffe_recipes.chain.preflight.look import Look
from caffe_recipes.errors import InputError
from caffe_recipes.generate.tree import find_differences

MayWrite = Callable[[Path], bool]


def may_write(folder: Path) -> bool:
    """Tell whether files can be made in a folder; on a read-only file system root cannot, either."""
    return os.access(folder, os.W_OK | os.X_OK)


def check_folders(look: Look, writes: MayWrite = may_write) -> list[Finding]:
    """Name where no run, no lock, or none of the prototxts that are still lacking could be written."""
    setting = look.setting
    lacking = [one for one in find_differences(look.plan.prototxts, setting.root) if one.what != "stale"]
    folders = [RUNS, setting.show(RecipeLock(setting.root, setting.recipe.name).folder)]
    folders += setting.recipe.prototxt_dirs if lacking else []
    nearest: dict[Path, list[str]] = {}
    for name in folders:
        nearest.setdefault(_nearest(setting.root / name), []).append(name)
    errors = [error for near, names in nearest.items() if (error := _judge(near, names, writes))]
    if errors:
        return [Finding("folders", str(error), error) for error in errors]
    return [Finding("folders", f"{', '.join(folders)} can be written to")]


def _nearest(folder: Path) -> Path:
    """Return the nearest thing above a folder, or the folder itself, that is there."""
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


def _judge(near: Path, names: Sequence[str], writes: MayWrite) -> InputError | None:
    needed = f"a run writes in {', '.join(names)}"
    if not near.is_dir():
        return InputError(near, f"is no folder, and {needed}", "move it away")
    if not writes(near):
        return InputError(near, f"cannot be written to, and {needed}", "mend its mode, owner or mount")
    return None
