"""Messages of launchers about ranks that signals have killed, as recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.launcher import (
    ENDED_BY_US,
    FABRIC_OPTIONS,
    RankExitReader,
    RankLaunch,
    launcher_accepts,
    mlsl_environment,
    thread_environment,
    with_modules,
)
from caffe_recipes.cluster.profiles import load_profile
from caffe_recipes.errors import ClusterError

PUBLISHED = [
    *("mpiexec.hydra", "-PSM2", "-l", "-n", "128", "-ppn", "2", "-f", "hostfile"),
    *("-genv", "OMP_NUM_THREADS", "22", "-genv", "KMP_AFFINITY", "granularity=fine,compact,1,0"),
    *("./build/tools/caffe", "train", "--solver=solver_init.prototxt"),
]


def test_the_published_shape_gives_the_published_argv() -> None:
    launch = RankLaunch(
        hosts=("",) * 64,
        ranks_per_node=2,
        variables=thread_environment(22, "granularity=fine,compact,1,0"),
        options=FABRIC_OPTIONS["psm2"],
    )
    assert list(launch.argv(PUBLISHED[-3:])) == PUBLISHED


def test_without_a_fabric_no_option_is_passed_that_other_hydras_refuse() -> None:
    argv = RankLaunch(ranks_per_node=3).argv(["true"])
    assert argv == ("mpiexec.hydra", "-l", "-n", "3", "-ppn", "3", "-f", "hostfile", "true")


def test_values_stay_single_words_whatever_they_hold() -> None:
    value = "a b'$(c)\" é"
    launch = RankLaunch(variables={"K": value}, hostfile="my hosts")
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
    argv = RankLaunch("srun", ("c1",), options=("--mem=0",), step="0123456789abcdef/init-1").argv(["caffe"])
    assert argv[5:8] == ("--cpu-bind=none", "--job-name=0123456789abcdef/init-1", "--mem=0")


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
    launcher = load_profile(profile).launcher
    variables = {"A": "b,c"}
    launch = RankLaunch(launcher.program, ("c2", "c1"), 2, "runs/h", launcher.options, variables)
    assert " ".join(launch.argv(["caffe", "train"])) == argv


def test_an_option_may_be_several_words_and_ibrun_gets_only_the_number_of_ranks() -> None:
    launch = RankLaunch("ibrun", ("c1", "c2"), 3, options=("--x y",), variables={"A": "1"})
    assert launch.argv(["caffe"]) == ("ibrun", "--x", "y", "-n", "6", "-o", "0", "caffe")
    assert launch.process_environment()["A"] == "1"


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
    launch = RankLaunch("srun", environment={"FABRIC": "a 'b'"}, modules=("intel",), path="/usr/bin:/bin")
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


KILLED = "node2: a rank was killed by signal 9 (out of memory?)"
KILLED_3 = KILLED.replace("a rank", "rank 3")
AT = "=   PID 3556 RUNNING AT node2"


def read(*lines: str) -> RankExitReader:
    ends = RankExitReader()
    for line in lines:
        ends.feed(line)
    return ends


def cause_of(*lines: str) -> str:
    return read(*lines).cause


def hydra(code: int, string: str = "") -> list[str]:
    words = [f"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: {string}"] if string else []
    return ["=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", AT, f"=   EXIT CODE: {code}", *words]


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (hydra(11, "Segmentation fault (signal 11)"), "signal 11 (segmentation fault)"),
        (hydra(6, "Terminated (signal 15)"), "signal 6 (aborted)"),
        (hydra(9, "Segmentation fault (signal 11)"), "signal 11 (segmentation fault)"),
    ],
)
def test_hydra_s_block_names_the_host_and_the_signal(lines: list[str], what: str) -> None:
    ends = read(*lines)
    assert ends.cause == f"node2: a rank was killed by {what}"
    assert not ends.is_unsure


KILLED_SOMEWHERE = "a rank was killed by signal 9 (out of memory?)"


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (hydra(9, "Killed (signal 9)"), KILLED_SOMEWHERE),
        (hydra(9), KILLED_SOMEWHERE),
        (hydra(137), KILLED_SOMEWHERE),
        (hydra(143), "the launcher or a rank was killed by signal 15 (terminated)"),
        (
            hydra(9, "Terminated (signal 15)"),
            "a rank was killed by a signal (the launcher reported: Terminated)",
        ),
        (["=   RANK 3 PID 12 RUNNING AT node2", "=   KILLED BY SIGNAL: 9 (Killed)"], KILLED_SOMEWHERE),
    ],
)
def test_a_signal_that_hydra_itself_sends_to_all_ranks_blames_no_host(lines: list[str], cause: str) -> None:
    ends = read(*lines)
    assert ends.cause == cause
    assert ends.is_unsure


def test_what_the_launcher_reports_once_the_run_ends_the_ranks_is_not_a_cause() -> None:
    ends = read(ENDED_BY_US, *hydra(9, "Killed (signal 9)"))
    assert (ends.cause, ends.is_unsure, ends.is_over) == ("", False, True)
    ends = read(*hydra(6), ENDED_BY_US, AT.replace("2", "7"))
    assert ends.cause == "node2: a rank was killed by signal 6 (aborted)"


def test_intel_s_hydra_names_the_rank_too() -> None:
    lines = ("=   RANK 3 PID 12 RUNNING AT node2", "=   KILLED BY SIGNAL: 11 (Segmentation fault)")
    cause = "node2: rank 3 was killed by signal 11 (segmentation fault)"
    assert cause_of(*lines) == cause
    again = ("=   RANK 5 PID 13 RUNNING AT node4", "=   KILLED BY SIGNAL: 9 (Killed)")
    assert cause_of(*lines, *again) == cause


@pytest.mark.parametrize("code", [1, 255, 256, 0])
def test_a_rank_that_exited_on_its_own_is_not_reported_as_killed(code: int) -> None:
    assert cause_of(*hydra(code)) == ""


def test_the_first_host_that_is_named_is_the_cause() -> None:
    cause = "node2: a rank was killed by signal 6 (aborted)"
    assert cause_of(*hydra(6), AT.replace("2", "7"), "=   EXIT CODE: 11") == cause


def test_a_message_of_srun_names_the_host_and_what_ended_the_rank() -> None:
    assert (
        cause_of("srun: error: node2: task 3: Killed", "srun: error: node1: tasks 0-1: Terminated")
        == KILLED_3
    )
    assert cause_of("srun: error: node2: tasks 2-3: Killed") == KILLED
    oom = "srun: error: node2: tasks 2-3: Out Of Memory"
    assert cause_of(oom) == "node2: a rank was killed: out of memory"
    crash = "srun: error: node2: task 3: Segmentation fault (core dumped)"
    assert cause_of(crash) == "node2: rank 3 was killed by signal 11 (segmentation fault)"
    assert cause_of("srun: error: node2: task 3: Exited with exit code 1") == ""


def test_the_ranks_of_a_job_that_is_cancelled_are_not_the_cause() -> None:
    cancelled = "slurmstepd: error: *** STEP 12.0 ON node1 CANCELLED AT 2026-01-02T03:04:05 ***"
    assert cause_of(cancelled, "srun: error: node2: task 3: Killed") == ""


def test_other_lines_are_ignored() -> None:
    assert cause_of("", "Killed", "node2: task 3: Killed", "RUNNING AT node2") == ""
