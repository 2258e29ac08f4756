from __future__ import annotations

import sys
from pathlib import Path

import pytest

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.launcher import launcher_accepts
from caffe_recipes.errors import ClusterError

HYDRA = str(Path(sys.executable).parent / "mpiexec.hydra")


def stand_in(folder: Path, body: str) -> str:
    path = folder / "mpiexec.hydra"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_the_hydra_that_is_here_knows_its_own_options_and_not_psm2() -> None:
    host = LocalHost("here")
    assert launcher_accepts(host, HYDRA, "-l")
    assert launcher_accepts(host, HYDRA, "-ppn 2")
    assert not launcher_accepts(host, HYDRA, "-PSM2")


def test_a_hydra_of_2018_knows_psm2(tmp_path: Path) -> None:
    old = stand_in(tmp_path, 'test "$1" = -PSM2 && shift; test "$1" = -version && echo Version 2018 Update 2')
    assert launcher_accepts(LocalHost("here"), old, "-PSM2")


def test_a_launcher_that_fails_for_another_reason_is_an_error(tmp_path: Path) -> None:
    broken = stand_in(tmp_path, "echo 'libmpi.so: cannot open shared object file' >&2; exit 127")
    with pytest.raises(ClusterError, match=r"here: .*-PSM2 failed: libmpi\.so: cannot open"):
        launcher_accepts(LocalHost("here"), broken, "-PSM2")
    with pytest.raises(ClusterError, match="here: no-hydra does not start: No such file or directory"):
        launcher_accepts(LocalHost("here"), "no-hydra", "-l")


def test_srun_takes_and_refuses_options_as_getopt_does(tmp_path: Path) -> None:
    """As Slurm 22.05 of Debian answers."""
    srun = stand_in(
        tmp_path,
        "case $1 in -P*) echo \"srun: invalid option -- 'P'\" >&2; exit 255;; esac; echo slurm-wlm 22.05.8",
    )
    srun = str(Path(srun).rename(tmp_path / "srun"))
    assert launcher_accepts(LocalHost("here"), srun, "--cpu-bind=none")
    assert not launcher_accepts(LocalHost("here"), srun, "-PSM2")
