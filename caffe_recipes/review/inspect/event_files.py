"""The event files of training logs, for TensorBoard: a folder for each run in a log and phase."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from caffe_recipes.errors import InputError
from caffe_recipes.review.inspect.curves import Piece, load_pieces
from caffe_recipes.tensorflow.event_files import EVENT_FILE, Scalar, render_event_file


def render_event_files(logs: Sequence[Path], folder: Path) -> dict[Path, bytes]:
    """Return the event files of logs, by their paths below a folder.

    Raises InputError if a log cannot be read or shows no measurement, or if two logs have the same name.
    """
    files: dict[Path, bytes] = {}
    for log in logs:
        if len({other for other in logs if other.stem == log.stem}) > 1:
            hint = "write each to another folder"
            raise InputError(log, "has the name of another log, and so would its curves", hint)
        pieces = load_pieces(log)
        for piece in pieces:
            name = f"{log.stem}-run{piece.run.number}" if len(pieces) > 1 else log.stem
            for phase in dict.fromkeys(phase for phase, _, _ in piece.series):
                files[folder / name / phase / EVENT_FILE] = render_event_file(_scalars(piece, phase))
    return files


def _scalars(piece: Piece, phase: str) -> list[Scalar]:
    """Return the values of a phase by iteration; the tags of TEST nets after the first have its number."""
    scalars = [
        Scalar(f"net{net}/{output}" if net else output, iteration, 0.0 if math.isnan(time) else time, value)
        for (of, net, output), series in piece.series.items()
        if of == phase
        for iteration, time, value in zip(series.iterations, series.seconds, series.values, strict=True)
    ]
    return sorted(scalars, key=lambda scalar: scalar.iteration)
