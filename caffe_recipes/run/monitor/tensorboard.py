"""Write the event files of runs and logs, for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from caffe_recipes.errors import InputError
from caffe_recipes.render.tree import write_all
from caffe_recipes.review.inspect.event_files import (
    render_log_events,
    render_run_events,
    require_checksums,
)
from caffe_recipes.run.monitor.curves import is_run, load_run_curves


def write_event_files(names: Sequence[str], root: str, folder: Path) -> list[Path]:
    """Write the event files of runs, by folder or name, and of logs below a folder; return their paths.

    A run has a folder for each phase, and a log one for each run in it. Nothing is written unless all of them
    could be read. Raises InputError, also if two have the same name, and JournalError for a damaged journal.
    """
    require_checksums("--tensorboard")
    files: dict[Path, bytes] = {}
    for name in names:
        if not is_run(name, root):
            continue
        curves = list(load_run_curves(name, root))
        found = render_run_events(curves, folder / curves[0].name)
        _add(files, found, name)
    logs = [Path(name) for name in names if not is_run(name, root)]
    if logs:
        _add(files, render_log_events(logs, folder), str(logs[0]))
    write_all(files)
    return list(files)


def _add(files: dict[Path, bytes], found: dict[Path, bytes], name: str) -> None:
    if not files.keys().isdisjoint(found):
        raise InputError(name, "has the name of another run", "write each to another folder")
    files.update(found)
