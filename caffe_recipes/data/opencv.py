"""Check that numpy and OpenCV are installed, without importing them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from caffe_recipes.errors import DataError


def require_opencv(where: str | Path) -> None:
    """Raise DataError unless numpy and OpenCV are installed, without the slow import of them."""
    for name in ("numpy", "cv2"):
        if find_spec(name) is None:
            hint = "install the extra 'data' of caffe-recipes (see its README)"
            raise DataError(where, f"images cannot be read without {name}", hint)
