"""install-tensorflow.sh, with stand-ins for the compiler, MPI and Python: nothing is downloaded or built."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("bash", "cat", "cp", "dirname", "env", "mkdir", "rm", "sed", "sha256sum", "tail")
# As a venv has it: the same program at bin/python, in a folder that was emptied before.
PYTHON = """#!/bin/bash
[[ -n ${FAILS-} && "$*" == *"$FAILS"* ]] && { echo "no network" >&2; exit 1; }
case "$*" in
  -VV) echo "Python 3.11.9 ${BUILD-}" ;;
  "-m venv --clear "*) rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; echo venv >>calls ;;
  *"-m pip install"*) echo pip >>calls ;;
esac
"""
MPICXX = """#!/bin/bash
[[ $1 == -show ]] && echo "g++ -l${LIBRARY-mpich}" || cat
"""


class Checkout:
    """A checkout of its own with the script, and a PATH of stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkout"
        self.bin = folder / "bin"
        self.folder.mkdir()
        self.bin.mkdir()
        for name in ("install-tensorflow.sh", "requirements-tensorflow.lock"):
            shutil.copy(ROOT / name, self.folder)
        for name in NEEDED:
            (self.bin / name).symlink_to(shutil.which(name) or name)
        for name, text in {"python3.11": PYTHON, "mpicxx": MPICXX, "g++": "", "make": ""}.items():
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)

    def install(self, **more: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHON311"}
        return subprocess.run(
            ["bash", str(self.folder / "install-tensorflow.sh")],
            env={**kept, "PATH": str(self.bin), **more},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def builds(self, **more: str) -> bool:
        """Run the script to its end; return whether it built the environment."""
        calls = self.folder / "calls"
        calls.unlink(missing_ok=True)
        done = self.install(**more)
        assert done.returncode == 0, done.stderr
        made = calls.read_text().split() if calls.exists() else []
        assert made in ([], ["venv", "pip", "pip"])
        return bool(made)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_an_active_venv_changes_nothing(checkout: Checkout) -> None:
    assert checkout.builds()
    own = checkout.folder / ".venv" / "bin"
    own.mkdir(parents=True)
    for name, text in {
        "mpicxx": MPICXX.replace("mpich", "other"),
        "python3.11": "#!/bin/sh\nexit 1\n",
    }.items():
        (own / name).write_text(text)
        (own / name).chmod(0o755)
    assert not checkout.builds(PATH=f"{own}:{checkout.bin}")


def test_why_it_builds_again_is_reported(checkout: Checkout) -> None:
    assert checkout.install().stdout == "building .venv-tf (about five minutes)\n"
    assert checkout.install(BUILD="2").stdout.startswith(
        ".venv-tf was built with other requirements, another MPI"
    )


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("python3.11", "Python 3.11 (set PYTHON311 to its path), its venv and headers (Debian: "),
        ("g++", "g++ (Debian: g++)"),
        ("make", "make (Debian: make)"),
        ("mpicxx", "MPI's headers (Debian: libmpich-dev)"),
    ],
)
def test_missing_requirements_are_named_and_nothing_is_built(
    checkout: Checkout, name: str, missing: str
) -> None:
    (checkout.bin / name).unlink()
    done = checkout.install()
    assert done.returncode == 2
    assert done.stderr.startswith(f"install-tensorflow.sh: missing: {missing}")
    assert done.stderr.count("\n") == 1
    assert not (checkout.folder / ".venv-tf").exists()


def test_all_missing_requirements_are_named_at_once(checkout: Checkout) -> None:
    for name in ("python3.11", "g++", "make", "mpicxx"):
        (checkout.bin / name).unlink()
    done = checkout.install()
    assert done.returncode == 2
    assert done.stderr.count("Debian: ") == 4


def test_a_python_of_another_version_or_without_venv_is_missing(checkout: Checkout) -> None:
    assert "missing: Python 3.11 (" in checkout.install(FAILS="version_info").stderr
    assert "missing: its venv and headers (" in checkout.install(FAILS="ensurepip").stderr


def test_a_second_call_builds_nothing_until_mpi_python_or_requirements_change(checkout: Checkout) -> None:
    assert checkout.builds()
    assert not checkout.builds()
    for more in ({"LIBRARY": "mpi"}, {"BUILD": "[GCC 15]"}, {}):
        assert checkout.builds(**more)
        assert not checkout.builds(**more)
    with (checkout.folder / "requirements-tensorflow.lock").open("a") as lock:
        lock.write("# another\n")
    assert checkout.builds()
    assert not checkout.builds()


@pytest.mark.parametrize("step", ["--only-binary", "--no-build-isolation", "import horovod.tensorflow"])
def test_a_download_or_build_that_failed_is_red_until_it_succeeds(checkout: Checkout, step: str) -> None:
    for _ in range(2):
        done = checkout.install(FAILS=step)
        assert done.returncode == 1
        assert "no network" in done.stderr
    assert checkout.builds()
    assert checkout.install(FAILS=step, LIBRARY="mpi").returncode == 1
    assert checkout.builds(LIBRARY="mpi")
