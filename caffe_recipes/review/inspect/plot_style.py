"""How all plots look: colours, line styles and fonts, the axis of rates, and the formats of picture files.

Line styles distinguish lines even without colour. The files are the same, byte for byte, on any machine.
"""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caffe_recipes.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Metadata that would record the machine and the date, so it is left out.
_METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_STYLES = ("solid", (0, (5, 1.5)), (0, (5, 1.2, 1, 1.2)), (0, (1, 1)), (0, (8, 2, 1, 2, 1, 2)))
# Distinguishable by colour-blind readers, dark enough for text, and as far apart in grey as possible.
_COLOURS = ("black", "#d55e00", "#0072b2", "#009e73", "#882255")
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "caffe-recipes",
    "font.size": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a $ in a path is a literal
}


def format_of(path: Path, known: str = ".svg, .png or .pdf") -> str:
    """Return the image format of a file name. Raises InputError, which names the `known` extensions."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _METADATA:
        raise InputError(path, "is not a picture file", f"end it in {known}")
    return kind


def require_matplotlib(what: str = "plot") -> None:
    """Import matplotlib; raise InputError if it is not installed. `what` names what needs it."""
    if find_spec("matplotlib") is None:
        raise InputError("", f"{what} needs matplotlib", "pip install 'caffe-recipes[plot]'")
    here = os.open(".", os.O_PATH)
    try:
        os.chdir("/")  # it reads the `matplotlibrc` of the current folder, of any size and by anybody
        import matplotlib as mpl  # noqa: F401
    finally:
        os.fchdir(here)
        os.close(here)


def render_figure(draw: Callable[[], Figure], kind: str, dpi: float = 200) -> bytes:
    """Return a figure in the project's style as svg, png or pdf, the same bytes on any machine."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        figure = draw()
        picture = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a box stands for a letter that the font lacks
            figure.savefig(picture, format=kind, dpi=dpi, metadata=_METADATA[kind])
    return picture.getvalue()


def line_style(index: int) -> dict[str, Any]:
    """Return the colour and dashes of the n-th line; the dashes alone are enough to tell lines apart."""
    return {"color": line_colour(index), "linestyle": _STYLES[index % len(_STYLES)]}


def line_colour(index: int) -> str:
    """Return the colour of the n-th line."""
    # There are as many colours as styles, so the second round must pair them differently.
    return _COLOURS[(index + index // len(_STYLES)) % len(_COLOURS)]


def scale_rates(axes: Axes, rates: Iterable[float], *, log: bool) -> None:
    """Scale an axis of rates from 0 or, with `log`, over four decades at most."""
    shown = [rate for rate in rates if 0 < rate < math.inf]
    highest = max(shown, default=1.0)
    bottom, top = 0.0, highest * 1.12
    if log and shown:
        # A rate that falls to 0 would need an infinite axis; four decades cover every rate that matters.
        bottom, top = max(min(shown), highest * 1e-4) * 0.8, highest * 2.5
    axes.set_ylim(bottom, top)
    if bottom:
        axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda rate, _: f"{rate:g}")
