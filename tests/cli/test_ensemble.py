from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import call_main
from tests.run.conftest import RECIPE
from tests.run.recorded_run import WHOLE, write_run


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return call_main("ensemble", *words, cwd=folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none",), "Error: runs: no run or recipe is named 'none'"),
        (
            ("digits-local",),
            "Error: runs: no run of digits-local found; start one with `caffe-recipes run digits-local`",
        ),
        (
            ("other.yaml",),
            "Error: runs: no run of other found; start one with `caffe-recipes run other.yaml`",
        ),
        (
            ("small",),
            "one member, last; an ensemble needs two or more: name them with --members; finished:",
        ),
        (("small", "--members", "init,lsat"), "no phase 'lsat' in small; did you mean 'last'"),
        (("small", "--members", "init,cyc1"), "prototxt/small/train_val.prototxt: cannot be read"),
    ],
)
def test_members_that_cannot_be_averaged_get_one_line_and_exit_2(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "small.yaml").write_text(RECIPE)
    (tmp_path / "other.yaml").write_text(RECIPE.replace("name: small\n", "name: other\n"))
    write_run(tmp_path, tmp_path / "small.yaml", *WHOLE)
    before = sorted(tmp_path.rglob("*"))
    done = call(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_name_is_not_a_member(tmp_path: Path) -> None:
    done = call(tmp_path, "small", "--members", "a,,b")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "Error: Invalid value for '--members': a name is empty; write A,B"


def test_without_numpy_the_extra_is_named_and_the_help_is_shown(tmp_path: Path) -> None:
    code = "import sys; sys.modules['numpy'] = None; from caffe_recipes.cli.main import main; main()"
    for word, exit_code in (("small", 2), ("--help", 0)):
        argv = [sys.executable, "-c", code, "ensemble", word]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (exit_code, False)
        hint = "install the extra 'engine' of caffe-recipes (see its README)"
        assert done.stderr == (f"Error: ensemble: needs numpy; {hint}\n" if exit_code else "")
