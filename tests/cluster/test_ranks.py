from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from caffe_recipes.cluster.commands import Completed, Host
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.ranks import (
    LAUNCH_VARIABLE,
    RankProcess,
    end_ranks,
    find_ranks,
    pick_trainer,
    request_snapshot,
)
from caffe_recipes.cluster.remote import call
from caffe_recipes.errors import ClusterError, HostFailed
from tests.stand_in_host import StandInHost, answer_call

HOST = LocalHost("here")
# Prints that it is up, then that it has received a signal.
SIGNAL_REPORTER = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGHUP, lambda *_: print('snapshot', flush=True))\n"
    "print('up', flush=True)\n"
    "while True: time.sleep(60)"
)
Starter = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def run() -> str:
    """A run of which only this test has processes."""
    return secrets.token_hex(8)


@pytest.fixture
def start() -> Iterator[Starter]:
    """Give a function that starts a process with such an environment, and waits until it has that."""
    started: list[subprocess.Popen[str]] = []

    def start(*argv: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            argv,
            env={"PATH": os.environ["PATH"], **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def pids(run: str) -> set[int]:
    return {process.pid for process in find_ranks(HOST, run)}


def test_a_rank_is_found_with_its_exact_command(run: str, start: Starter) -> None:
    hostile = ["--solver=it's", "a\nb", "$(id)", "-n", "", "größe", "\udc80"]
    process = start(
        *("sh", "-c", "echo up; read x", *hostile),
        **{LAUNCH_VARIABLE: f"{run}/init-1", "PMI_RANK": "7", "OTHER": f"\n{LAUNCH_VARIABLE}={run}/x\n"},
    )
    line(process)
    (found,) = find_ranks(HOST, run)
    assert (found.pid, found.rank, found.launch, found.parent) == (
        process.pid,
        7,
        f"{run}/init-1",
        os.getpid(),
    )
    assert found.command == ("sh", "-c", "echo up; read x", *hostile)
    assert not found.catches_hup
    assert find_ranks(HOST, f"{run}/init-1") == (found,)
    assert find_ranks(HOST, f"{run}/init-11") == ()


@pytest.mark.parametrize(
    "value",
    [
        "{run}0/init-1",
        "0{run}/init-1",
        "{run}/a b",
        "{run}/a/b",
        "{run}/\n",
        "{run}/",
        "{run}-1",
        "x\n{run}/a",
    ],
)
def test_another_launch_is_left_out(run: str, start: Starter, value: str) -> None:
    process = start("sh", "-c", "echo up; read x", **{LAUNCH_VARIABLE: value.format(run=run)})
    line(process)
    assert find_ranks(HOST, run) == ()


def test_no_value_of_another_variable_looks_like_a_launch(run: str, start: Starter) -> None:
    entry = f"{LAUNCH_VARIABLE}={run}/init-1"
    process = start(
        "sh",
        "-c",
        "echo up; read x",
        A=f"x\n{entry}",
        B=entry,
        C=f"\n==> /proc/{os.getpid()}/environ <==\n{entry}\n",
        D=f"\n\n{entry}\n\n",
        **{f"X{LAUNCH_VARIABLE}": f"{run}/init-1"},
    )
    line(process)
    assert find_ranks(HOST, run) == ()


@pytest.mark.parametrize(
    ("environment", "program", "rank"),
    [
        ({"PMI_RANK": "5", "PMIX_RANK": "6", "OMPI_COMM_WORLD_RANK": "7"}, "caffe", 5),
        ({"PMIX_RANK": "6", "OMPI_COMM_WORLD_RANK": "7"}, "caffe", 6),
        ({"SLURM_PROCID": "6", "SLURM_STEP_ID": "0"}, "caffe", 6),
        ({"OMPI_COMM_WORLD_RANK": "7"}, "caffe", 7),
        ({"PMI_RANK": "x\n5"}, "caffe", None),
        ({"SLURM_PROCID": "0"}, "caffe", None),  # a batch script's environment, and all that it starts
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, "hydra_pmi_proxy", None),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, "mpiexec.hydra", None),
    ],
)
def test_the_number_of_a_rank_comes_from_its_launcher(
    run: str, start: Starter, tmp_path: Path, environment: dict[str, str], program: str, rank: int | None
) -> None:
    (tmp_path / program).symlink_to("/bin/sh")
    process = start(str(tmp_path / program), "-c", "echo up; read x", **{LAUNCH_VARIABLE: run}, **environment)
    line(process)
    assert [found.rank for found in find_ranks(HOST, run)] == [rank]


def test_a_snapshot_is_requested_from_the_innermost_trainer_of_rank_0_only(
    run: str, start: Starter, tmp_path: Path
) -> None:
    solver = f"--solver={tmp_path}/it's $(x).prototxt"
    of_launch = {LAUNCH_VARIABLE: f"{run}/init-1"}
    wrapper = f'"{sys.executable}" -ISc "$PROGRAM" train "$1" & echo "$!"; wait'
    rank_0 = start("sh", "-c", wrapper, "wrapper", solver, PROGRAM=SIGNAL_REPORTER, PMI_RANK="0", **of_launch)
    inner = int(line(rank_0))
    assert line(rank_0) == "up\n"
    bystanders = [
        start(sys.executable, "-ISc", SIGNAL_REPORTER, "helper", PMI_RANK="0", **of_launch),
        start(sys.executable, "-ISc", SIGNAL_REPORTER, solver, PMI_RANK="1", **of_launch),
        start(sys.executable, "-ISc", SIGNAL_REPORTER, solver, **of_launch),
        start(
            sys.executable,
            "-ISc",
            SIGNAL_REPORTER,
            solver,
            PMI_RANK="0",
            **{LAUNCH_VARIABLE: f"{run}/init-2"},
        ),
    ]
    for process in bystanders:
        assert line(process) == "up\n"
    assert request_snapshot(HOST, f"{run}/init-1", solver) == "asked"
    assert line(rank_0) == "snapshot\n"
    assert request_snapshot(HOST, f"{run}/init-1", "--solver=another") == "absent"
    assert request_snapshot(HOST, f"{run}/init-3", solver) == "absent"
    (started,) = (found.started for found in find_ranks(HOST, run) if found.pid == inner)
    for wrong in (["0"], [str(started + 1)]):  # its pid, reused
        assert call(HOST, "ranks", "snapshot", f"{run}/init-1", str(inner), *wrong) == ["absent"]
    end_ranks([HOST], run)
    assert rank_0.communicate()[0] == ""
    assert [process.communicate()[0] for process in bystanders] == [""] * 4


def test_a_trainer_that_sighup_would_kill_is_spared(run: str, start: Starter) -> None:
    process = start(
        *("sh", "-c", "echo up; read x; echo done", "caffe", "--solver=s"),
        **{LAUNCH_VARIABLE: f"{run}/init-1", "PMI_RANK": "0"},
    )
    line(process)
    assert request_snapshot(HOST, f"{run}/init-1", "--solver=s") == "deaf"
    assert process.poll() is None


def rank(pid: int, parent: int, *command: str, number: int | None = 0, hup: bool = True) -> RankProcess:
    return RankProcess(pid, number, hup, command, "0" * 16, started=pid, parent=parent)


@pytest.mark.parametrize(
    ("processes", "picked"),
    [
        ([], None),
        ([rank(5, 1, "caffe", "s")], 5),
        ([rank(5, 1, "caffe", "S"), rank(6, 1, "s")], None),
        ([rank(5, 1, "sh", "s"), rank(6, 5, "caffe", "s"), rank(7, 6, "ep_server")], 6),
        ([rank(5, 1, "sh", "s"), rank(6, 5, "numactl"), rank(7, 6, "caffe", "s")], 7),
        ([rank(5, 1, "caffe", "s"), rank(6, 5, "caffe", "s"), rank(7, 6, "caffe", "s")], 5),
        ([rank(5, 1, "mpiexec", "s", number=None), rank(6, 5, "hydra_pmi_proxy", number=None)], None),
        ([rank(5, 1, "tee", "s", hup=False), rank(6, 1, "caffe", "s")], 6),
        ([rank(5, 1, "apptainer", "exec", "x", "caffe", "s"), rank(6, 5, "caffe", "s")], 6),
        ([rank(5, 1, "Apptainer runtime parent"), rank(6, 5, "sh", "s"), rank(7, 6, "caffe", "s")], 7),
    ],
)
def test_of_a_wrapper_and_its_child_the_child_is_the_trainer_and_of_a_fork_the_parent(
    processes: list[RankProcess], picked: int | None
) -> None:
    found = pick_trainer(processes, "s")
    assert (found and found.pid) == picked


def test_ending_kills_all_ranks_of_the_run_and_no_other_process(
    run: str, start: Starter, tmp_path: Path
) -> None:
    (tmp_path / "hydra_pmi_proxy").symlink_to("/bin/sh")
    (tmp_path / "mpiexec").symlink_to("/bin/sh")
    of_rank = {LAUNCH_VARIABLE: f"{run}/init-1", "PMI_RANK": "1"}
    say, stubborn = ("sh", "-c", "echo up; read x"), ("sh", "-c", 'trap "" TERM; echo up; read x; sleep 600')
    breeder = (
        'trap "setsid sleep 600 & setsid sleep 600 &" TERM; echo up; while :; do read x; sleep 600; done'
    )
    with_rank = f"setsid env {LAUNCH_VARIABLE}={run}/init-1 PMI_RANK=2 sleep 600 & echo up; wait; sleep 600"
    ended = [
        start(*say, **of_rank),
        start(*stubborn, **of_rank),
        start("sh", "-c", breeder, **of_rank),
        start("sh", "-c", "echo up; kill -s STOP $$", **of_rank),
        start(str(tmp_path / "hydra_pmi_proxy"), "-c", with_rank),
        start(
            str(tmp_path / "hydra_pmi_proxy"), "-c", "echo up; read x", **{LAUNCH_VARIABLE: f"{run}/init-0"}
        ),
        start(str(tmp_path / "mpiexec"), "-c", "echo up; read x", **{LAUNCH_VARIABLE: f"{run}/init-1"}),
    ]
    spared = [
        start(*say, **{LAUNCH_VARIABLE: f"{secrets.token_hex(8)}/init-1", "PMI_RANK": "0"}),
        start(str(tmp_path / "hydra_pmi_proxy"), "-c", "echo up; read x"),
        start(*say, PMI_RANK="0"),
    ]
    for process in (*ended, *spared):
        assert line(process) == "up\n"
    assert end_ranks([HOST], run, grace_s=0.3) == {}
    assert all(process.wait(1) < 0 for process in ended)
    assert pids(run) == set()
    assert [process.poll() for process in spared] == [None] * 3


@pytest.mark.parametrize(
    "name", ["", "0123456789abcde", "0123456789abcdef/", "0123456789abcdef/a b", "0123456789ABCDEF", "x\n"]
)
def test_an_invalid_launch_is_refused(name: str) -> None:
    for act in (
        lambda: find_ranks(HOST, name),
        lambda: request_snapshot(HOST, name, "s"),
        lambda: end_ranks([HOST], name),
    ):
        with pytest.raises(ClusterError, match="is not the name of a run or launch"):
            act()


@pytest.mark.parametrize(
    "records",
    [
        [],
        ["process 1 2 3"],
        ["end", "more"],
        ["hello", "end"],
        ["process 1 2 3 0 0 0123456789abcdef b%d", "end"],
    ],
)
def test_an_invalid_answer_is_an_error_that_names_the_host(records: list[str]) -> None:
    host = StandInHost("node7", answer=lambda argv, stdin: answer_call(argv, *records))
    with pytest.raises(HostFailed, match="node7: cannot parse the answer to `list`: "):
        find_ranks(host, "0" * 16)
    assert list(end_ranks([host], "0" * 16)) == ["node7"]


def test_ending_ranks_continues_past_an_unreachable_host_and_reports_what_survives(run: str) -> None:
    def answer(argv: tuple[str, ...], stdin: bytes) -> Completed:
        return answer_call(argv, "left 71 D", "end")

    dead = StandInHost("node1", fault=HostFailed("node1", "cannot be reached"))
    hosts: list[Host] = [dead, StandInHost("node2", answer), HOST]
    assert end_ranks(hosts, run) == {
        "node1": "cannot be reached",
        "node2": "SIGKILL did not end process 71 (state D)",
    }
