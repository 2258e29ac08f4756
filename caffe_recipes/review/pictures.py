"""Pictures of matplotlib's for screen and print: one look, and the same bytes anywhere."""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caffe_recipes.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What each format would say of the machine and the day.
_METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_STYLES = ("solid", (0, (5, 1.5)), (0, (5, 1.2, 1, 1.2)), (0, (1, 1)), (0, (8, 2, 1, 2, 1, 2)))
_COLOURS = ("black", "#b3331d", "#1f5a9c", "#3f7d20", "#7a4a9e")
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "caffe-recipes",
    "font.size": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a $ in a path is meant
    "axes.formatter.limits": (-5, 7),
}


def format_of(path: Path) -> str:
    """Return the picture format that a file's name asks for; InputError for one that we do not write."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _METADATA:
        raise InputError(path, "no picture's name", "end it in .svg, .png or .pdf")
    return kind


def need_matplotlib() -> None:
    """Raise InputError where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise InputError("", "plot needs matplotlib", "pip install 'caffe-recipes[plot]'")


def render_figure(draw: Callable[[], Figure], kind: str) -> bytes:
    """Draw a figure in our look; `kind` is svg, png or pdf, and the bytes are the same anywhere."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        figure = draw()
        picture = io.BytesIO()
        figure.savefig(picture, format=kind, dpi=200, metadata=_METADATA[kind])
    return picture.getvalue()


def line_style(index: int) -> dict[str, Any]:
    """Return the colour and dashes of the n-th line, which are told apart without colour."""
    return {"color": line_colour(index), "linestyle": _STYLES[index % len(_STYLES)]}


def line_colour(index: int) -> str:
    """Return the colour of the n-th line."""
    # With as many colours as styles, the second round pairs them anew.
    return _COLOURS[(index + index // len(_STYLES)) % len(_COLOURS)]
