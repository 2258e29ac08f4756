from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.launchers import DEFAULT_LAUNCHER, LAUNCHERS
from caffe_recipes.cluster.launchers.hydra import FABRIC_OPTIONS
from caffe_recipes.cluster.launchers.launcher import (
    RankLaunch,
    mlsl_environment,
    thread_environment,
    with_modules,
)
from caffe_recipes.cluster.profiles import load_profile, parse_profile
from caffe_recipes.errors import ClusterError, InputError

PUBLISHED = [
    *("mpiexec.hydra", "-PSM2", "-l", "-n", "128", "-ppn", "2", "-f", "hostfile"),
    *("-genv", "OMP_NUM_THREADS", "22", "-genv", "KMP_AFFINITY", "granularity=fine,compact,1,0"),
    *("./build/tools/caffe", "train", "--solver=solver_init.prototxt"),
]


def test_the_published_shape_gives_the_published_argv() -> None:
    launch = RankLaunch(
        DEFAULT_LAUNCHER,
        hosts=("",) * 64,
        ranks_per_node=2,
        variables=thread_environment(22, "granularity=fine,compact,1,0"),
        options=FABRIC_OPTIONS["psm2"],
    )
    assert list(launch.argv(PUBLISHED[-3:])) == PUBLISHED


def test_without_a_fabric_no_option_is_passed_that_other_hydras_refuse() -> None:
    argv = RankLaunch(DEFAULT_LAUNCHER, ranks_per_node=3).argv(["true"])
    assert argv == ("mpiexec.hydra", "-l", "-n", "3", "-ppn", "3", "-f", "hostfile", "true")


def test_values_stay_single_words_whatever_they_hold() -> None:
    value = "a b'$(c)\" é"
    launch = RankLaunch(DEFAULT_LAUNCHER, variables={"K": value}, hostfile="my hosts")
    argv = launch.argv(["./my caffe"])
    assert value in argv
    assert "my hosts" in argv
    assert argv[-1] == "./my caffe"


def test_no_affinity_sets_no_variable() -> None:
    assert "KMP_AFFINITY" not in thread_environment(1)


def test_mlsl_cores_keep_their_order() -> None:
    assert mlsl_environment(2, (39, 38, 43, 42)) == {
        "MLSL_NUM_SERVERS": "2",
        "MLSL_SERVER_AFFINITY": "39,38,43,42",
    }


def test_no_mlsl_server_or_core_is_invented() -> None:
    assert mlsl_environment(None, (64, 65)) == {"MLSL_SERVER_AFFINITY": "64,65"}
    assert mlsl_environment(4, ()) == {"MLSL_NUM_SERVERS": "4"}


def test_the_step_that_srun_starts_has_a_name() -> None:
    argv = RankLaunch(LAUNCHERS["srun"], ("c1",), options=("--mem=0",), step="0123456789abcdef/init-1").argv(
        ["caffe"]
    )
    assert argv[5:8] == ("--cpu-bind=none", "--job-name=0123456789abcdef/init-1", "--mem=0")


def test_a_profile_names_a_launcher_that_has_a_module() -> None:
    for program, launcher in LAUNCHERS.items():
        profile = parse_profile(f"{{name: p, title: p, launcher: {{program: {program}}}}}", "p.yaml")
        assert profile.rank_launcher is launcher
    with pytest.raises(
        InputError, match=r"p\.yaml:1: launcher\.program: must be 'mpiexec\.hydra', .*, not 'sr'"
    ):
        parse_profile("{name: p, title: p, launcher: {program: sr}}", "p.yaml")


def test_ibrun_gets_what_the_hydra_below_it_needs() -> None:
    ibrun, hydra = LAUNCHERS["ibrun"], DEFAULT_LAUNCHER
    assert ibrun.environment({}) == hydra.environment({})
    assert ibrun.step_environment("a/init-1", {}) == hydra.step_environment("a/init-1", {})
    assert not ibrun.chooses_hosts
    assert ibrun.accepts(LocalHost("here"), "no-ibrun", "--x")  # it cannot be asked


@pytest.mark.parametrize(
    ("profile", "argv"),
    [
        ("mpich", "mpiexec.hydra -l -n 4 -ppn 2 -f runs/h -genv A b,c caffe train"),
        ("intel-mpi", "mpiexec.hydra -l -n 4 -ppn 2 -f runs/h -genv A b,c caffe train"),
        ("local", "mpiexec.hydra -l -n 4 -ppn 2 -f runs/h -genv A b,c caffe train"),
        ("stampede2-skx", "mpiexec.hydra -PSM2 -l -n 4 -ppn 2 -f runs/h -genv A b,c caffe train"),
        ("stampede2-knl", "mpiexec.hydra -l -n 4 -ppn 2 -f runs/h -genv A b,c caffe train"),
        ("marenostrum4", "mpiexec.hydra -l -n 4 -ppn 2 -f runs/h -genv A b,c caffe train"),
        (
            "slurm",
            "srun --mpi=pmi2 --label --export=ALL --disable-status --cpu-bind=none --ntasks=4 --nodes=2 "
            "--distribution=arbitrary --nodelist=c2,c2,c1,c1 caffe train",
        ),
    ],
)
def test_a_shipped_profile_has_its_launcher_start_two_ranks_on_each_host(profile: str, argv: str) -> None:
    loaded = load_profile(profile)
    variables = {"A": "b,c"}
    launch = RankLaunch(loaded.rank_launcher, ("c2", "c1"), 2, "runs/h", loaded.launcher.options, variables)
    assert " ".join(launch.argv(["caffe", "train"])) == argv


def test_an_option_may_be_several_words_and_ibrun_gets_only_the_number_of_ranks() -> None:
    launch = RankLaunch(LAUNCHERS["ibrun"], ("c1", "c2"), 3, options=("--x y",), variables={"A": "1"})
    assert launch.argv(["caffe"]) == ("ibrun", "--x", "y", "-n", "6", "-o", "0", "caffe")
    assert launch.process_environment() == {"A": "1", "MY_MPIRUN_OPTIONS": "-l"}


def test_modules_are_loaded_before_the_launcher_and_nothing_is_read_by_the_shell(tmp_path: Path) -> None:
    hostile = ["$(touch oops)", "a b'\"", "-n\nx", "`x`;*"]
    (tmp_path / "loaded").mkdir()
    (tmp_path / "loaded" / "show").write_text('#!/bin/sh\nprintf "<%s>" "$@"; echo "$PATH"\n')
    (tmp_path / "loaded" / "show").chmod(0o755)
    (tmp_path / ".bash_profile").write_text(
        'module() { printf "(%s)" "$@"; PATH=$HOME/loaded:/bin; [ "$2" != none ]; }\n'
    )
    environment = {**os.environ, "HOME": str(tmp_path)}

    def call(*modules: str) -> subprocess.CompletedProcess[str]:
        argv = with_modules(["show", *hostile], modules, "/given")
        return subprocess.run(
            argv, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    done = call("intel/18", "$(touch oops)")
    assert done.stdout == (
        "(load)(intel/18)($(touch oops))"
        + "".join(f"<{word}>" for word in hostile)
        + f"{tmp_path}/loaded:/bin:/given\n"
    )
    assert call("none").returncode == 126
    assert not (tmp_path / "oops").exists()


def test_settings_of_the_profile_override_a_login_and_its_modules(tmp_path: Path) -> None:
    (tmp_path / ".bash_profile").write_text("module() { export FABRIC=theirs OTHER=theirs; }; FABRIC=login\n")
    launch = RankLaunch(
        LAUNCHERS["srun"], environment={"FABRIC": "a 'b'"}, modules=("intel",), path="/usr/bin:/bin"
    )
    done = subprocess.run(
        launch.argv_without_launcher(["env"]),
        env={**os.environ, "HOME": str(tmp_path), **launch.process_environment()},
        capture_output=True,
        text=True,
        check=True,
    )
    assert {"FABRIC=a 'b'", "OTHER=theirs"} <= set(done.stdout.splitlines())
    assert "AFTER_MODULES" not in done.stdout


HYDRA = str(Path(sys.executable).parent / "mpiexec.hydra")


def stand_in(folder: Path, body: str) -> str:
    path = folder / "mpiexec.hydra"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_the_hydra_that_is_here_knows_its_own_options_and_not_psm2() -> None:
    host = LocalHost("here")
    assert DEFAULT_LAUNCHER.accepts(host, HYDRA, "-l")
    assert DEFAULT_LAUNCHER.accepts(host, HYDRA, "-ppn 2")
    assert not DEFAULT_LAUNCHER.accepts(host, HYDRA, "-PSM2")


def test_a_hydra_of_2018_knows_psm2(tmp_path: Path) -> None:
    old = stand_in(tmp_path, 'test "$1" = -PSM2 && shift; test "$1" = -version && echo Version 2018 Update 2')
    assert DEFAULT_LAUNCHER.accepts(LocalHost("here"), old, "-PSM2")


def test_a_launcher_that_fails_for_another_reason_is_an_error(tmp_path: Path) -> None:
    broken = stand_in(tmp_path, "echo 'libmpi.so: cannot open shared object file' >&2; exit 127")
    with pytest.raises(ClusterError, match=r"here: .*-PSM2 failed: libmpi\.so: cannot open"):
        DEFAULT_LAUNCHER.accepts(LocalHost("here"), broken, "-PSM2")
    with pytest.raises(ClusterError, match="here: no-hydra does not start: No such file or directory"):
        DEFAULT_LAUNCHER.accepts(LocalHost("here"), "no-hydra", "-l")


def test_srun_takes_and_refuses_options_as_getopt_does(tmp_path: Path) -> None:
    """As Slurm 22.05 of Debian answers."""
    srun = stand_in(
        tmp_path,
        "case $1 in -P*) echo \"srun: invalid option -- 'P'\" >&2; exit 255;; esac; echo slurm-wlm 22.05.8",
    )
    srun = str(Path(srun).rename(tmp_path / "srun"))
    assert LAUNCHERS["srun"].accepts(LocalHost("here"), srun, "--cpu-bind=none")
    assert not LAUNCHERS["srun"].accepts(LocalHost("here"), srun, "-PSM2")


@pytest.mark.parametrize(
    ("program", "environment", "asks"),
    [
        ("srun", {}, True),
        ("ibrun", {}, True),
        ("mpiexec.hydra", {}, True),
        ("mpiexec.hydra", {"HYDRA_LAUNCHER_EXTRA_ARGS": "-oBatchMode=yes"}, False),
    ],
)
def test_hydra_needs_no_slurm_where_it_starts_its_proxies_by_ssh(
    program: str, environment: dict[str, str], asks: bool
) -> None:
    assert LAUNCHERS[program].asks_slurm(environment) is asks
