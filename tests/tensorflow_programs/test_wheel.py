"""The programs that a wheel ships start without any other file of ours."""

from __future__ import annotations

import ast
import zipfile
from pathlib import Path

import pytest

from tests.tensorflow_programs.launch import PROGRAMS, PYTHON, environment, fork, run
from tests.test_wheel import build_wheel

pytestmark = pytest.mark.tensorflow


def test_the_wheels_programs_start(tmp_path: Path) -> None:
    zipfile.ZipFile(build_wheel(tmp_path)).extractall(tmp_path / "site")
    copies = tmp_path / "site" / "caffe_recipes" / "tensorflow_programs"
    for name in ("resnet_main.py", "resnet_eval.py", "resnet_check.py"):
        text = (copies / name).read_text()
        assert text == (PROGRAMS / name).read_text()
        done = run(fork([str(PYTHON), str(copies / name), "--help"]), environment(tmp_path))
        first_line = (ast.get_docstring(ast.parse(text)) or "").splitlines()[0]
        assert done.stdout.lstrip().startswith(first_line)
        assert f"{copies / name}:\n" in done.stdout
