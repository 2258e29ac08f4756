"""The command line, called in the process of the test: starting another would take most of its time."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from caffe_recipes.cli.main import main


def call_main(
    *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None, together: bool = False
) -> subprocess.CompletedProcess[str]:
    """Return what `caffe-recipes WORDS` prints, and its exit code; `together` is the shell's `2>&1`."""
    argv = ["caffe-recipes", *map(str, words)]
    output, errors = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    umask = os.umask(0o022)
    try:
        with pytest.MonkeyPatch.context() as patch, chdir(cwd or Path.cwd()):
            patch.setattr("sys.argv", argv)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            with (
                redirect_stdout(output),
                redirect_stderr(output if together else errors),
                pytest.raises(SystemExit) as end,
            ):
                main()
    finally:
        os.umask(umask)
    printed = []
    for stream in (output, errors):
        stream.flush()
        stream.seek(0)
        printed.append(stream.read())
    return subprocess.CompletedProcess(argv, int(end.value.code or 0), *printed)
