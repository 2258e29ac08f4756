"""A missing package is one line with the command that installs it."""

from __future__ import annotations

import pytest

from caffe_recipes.engine.packages import require_packages
from caffe_recipes.errors import InputError


def test_missing_packages_are_named_with_their_extras() -> None:
    require_packages("export", "torch", "cv2")
    with pytest.raises(InputError) as caught:
        modules = ("torch", "cv2", "onnx", "onnxruntime")
        require_packages("export", *modules, find=lambda name: None if name != "cv2" else name)
    assert caught.value.what == "needs PyTorch, onnx, onnxruntime, which are not installed"
    assert caught.value.hint == "pip install 'caffe-recipes[engine,onnx]'"
