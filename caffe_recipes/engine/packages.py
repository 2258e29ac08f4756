"""The optional packages that the engine's commands need, imported only by those."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from caffe_recipes.errors import InputError
from caffe_recipes.wording import describe_names

# The name and the extra of each module.
_PACKAGES = {
    "torch": ("PyTorch", "engine"),
    "cv2": ("OpenCV", "engine"),
    "onnx": ("onnx", "onnx"),
    "onnxruntime": ("onnxruntime", "onnx"),
}


def require_packages(where: str, *modules: str, find: Callable[[str], object] = find_spec) -> None:
    """Raise InputError, with the command that installs them, if `find` does not find all of these modules.

    >>> require_packages("export")
    """
    lacking = [_PACKAGES[module] for module in modules if find(module) is None]
    if lacking:
        names = describe_names([name for name, _ in lacking])
        extras = ",".join(dict.fromkeys(extra for _, extra in lacking))
        what = f"needs {names}, which {'are' if len(lacking) > 1 else 'is'} not installed"
        raise InputError(where, what, f"pip install 'caffe-recipes[{extras}]'")
