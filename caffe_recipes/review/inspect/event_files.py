"""The event files of training logs and of runs, for TensorBoard: a folder for each run in a log, or phase."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from caffe_recipes.caffe.log_files import name_log
from caffe_recipes.errors import InputError
from caffe_recipes.review.inspect.curves import Piece, TrainingCurve, load_pieces, name_logs
from caffe_recipes.tensorflow.event_files import EVENT_FILE, Scalar, render_event_file
from caffe_recipes.tensorflow.records import require_crc32c


def require_checksums(where: str) -> None:
    """Raise DataError unless the checksums of event files can be computed, by google-crc32c."""
    require_crc32c(where)


def render_log_events(logs: Sequence[Path], folder: Path) -> dict[Path, bytes]:
    """Return the event files of logs, by their paths below a folder.

    Raises InputError if a log cannot be read or shows no measurement, or if a run in it is named as a log.
    """
    files: dict[Path, bytes] = {}
    for log, name in _name_folders(logs).items():
        pieces = load_pieces(log)
        for piece in pieces:
            shown = f"{name}-run{piece.run.number}" if len(pieces) > 1 else name
            path = folder / shown / EVENT_FILE
            if path in files:
                raise InputError(log, f"has a run of the name of another log, {shown}", "rename one of them")
            files[path] = _render(_scalars(piece))
    return files


def _name_folders(logs: Sequence[Path]) -> dict[Path, str]:
    """Return a folder for each log, named as its curve is, without `.log` if that still tells them apart.

    >>> list(_name_folders([Path("a/train.log"), Path("b/../b/train.log"), Path("a/train.log.gz")]).values())
    ['a/train.log', 'b/train.log', 'a/train.log.gz']
    """
    known = list(dict.fromkeys(logs))
    # Only what is below the folder is written: `..` and the root do not belong to a name.
    whole = [
        name.lstrip("/") for name in name_logs([Path(posixpath.abspath(name_log(log))) for log in known])
    ]
    short = [name.removesuffix(".gz").removesuffix(".log").removesuffix(".txt") for name in whole]
    return dict(zip(known, short if len(set(short)) == len(short) else whole, strict=True))


def render_run_events(curves: Iterable[TrainingCurve], folder: Path) -> dict[Path, bytes]:
    """Return the event files of a run, one for each of its phases; iterations count from the run's first."""
    phases: dict[str, list[Scalar]] = {}
    for curve in curves:
        for piece in curve.pieces:
            phases.setdefault(piece.name, []).extend(_scalars(piece, curve.began_s))
    return {folder / phase / EVENT_FILE: _render(scalars) for phase, scalars in phases.items()}


def _scalars(piece: Piece, began_s: float = 0.0) -> Iterator[Scalar]:
    """Yield the values of a piece; the tags of TEST nets after the first have its number."""

    def scalar(tag: str, iteration: int, seconds: float, value: float) -> Scalar:
        time_s = began_s + piece.begins_s + (0.0 if math.isnan(seconds) else seconds)
        return Scalar(tag, piece.begins_iter + iteration, time_s, value)

    for key in piece.series:
        phase, net, output = key
        for row in piece.values(key):
            yield scalar(f"{phase}{net or ''}/{output}", *row)
    for speed in piece.speeds():
        yield scalar("train/images per s", *speed)


def _render(scalars: Iterable[Scalar]) -> bytes:
    return render_event_file(sorted(scalars, key=lambda scalar: scalar.iteration))
