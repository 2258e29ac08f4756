"""The examples in docstrings print what they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "caffe_recipes"
PACKAGES = sorted({path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py")})


def run_examples(path: Path) -> doctest.TestResults:
    name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    return doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)


# pytest's own collection of doctests would import every module, and with it PyTorch, in each worker.
@pytest.mark.parametrize("package", PACKAGES)
def test_the_examples_of_a_package_hold(package: str) -> None:
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] == package]
    shown = [path for path in paths if ">>> " in path.read_text("utf-8")]
    assert not [str(path.relative_to(SOURCE)) for path in shown if run_examples(path).failed]


def test_the_examples_of_a_module_are_found() -> None:
    assert run_examples(SOURCE / "units.py").attempted > 3
