from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = "from caffe_recipes.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "run", *words], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["digits-locl"], "Error: unknown recipe 'digits-locl'; did you mean 'digits-local'?"),
        (["none.yaml"], "Error: none.yaml: cannot be read: No such file or directory"),
        (["digits-local", "--caffe-root", "none"], "Error: none: no such folder; give the Caffe root"),
        (["digits-local", "--hostfile", "none"], "Error: none: cannot be read: No such file or directory"),
        (["stampede2-64n-72ep"], "hostfile: no such file; write 64 hosts there, or give --hostfile"),
        (
            ["digits-local", "--profile", "mpihc"],
            "Error: unknown profile 'mpihc'; did you mean 'mpich'? there",
        ),
        (["digits-local", "--profile", "none.yaml"], "Error: none.yaml: cannot be read: No such file or"),
        (["digits-local", "--caffe", "./none"], "none: no such Caffe binary"),
    ],
)
def test_what_cannot_be_run_is_one_line_exit_2_and_leaves_nothing(
    tmp_path: Path, words: list[str], said: str
) -> None:
    done = call(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_option_and_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from caffe_recipes.cli.run import run; run.main(['--help'], standalone_mode=False);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'cv2', 'paramiko', 'matplotlib', 'sklearn')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    for option in ("--hostfile", "--caffe", "--caffe-root", "--lmdb-source", "--new", "--profile", "--how"):
        assert option in done.stdout
