"""Skip tests that need optional packages, which are looked for and not imported: every worker reads this."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(extra: str, *modules: str) -> pytest.MarkDecorator:
    """Return the mark that skips a test unless the modules of an extra are installed."""
    is_missing = any(find_spec(module) is None for module in modules)
    return pytest.mark.skipif(is_missing, reason=f"the extra `{extra}` is not installed")


needs_engine = needs("engine", "torch", "cv2", "mpi4py")
needs_local = needs("local", "torch", "cv2", "sklearn", "mpi4py")
needs_onnx = needs("onnx", "torch", "cv2", "onnx", "onnxruntime")
