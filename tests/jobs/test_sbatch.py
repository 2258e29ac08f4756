"""What a recipe's Slurm job runs, and with which arguments."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.jobs.conftest import write
from tests.jobs.job_play import JOB, STAND_IN, Play

REQUEUES = "<--max-requeues> <10>"


def test_the_job_hands_the_chain_to_the_run(play: Play) -> None:
    code, stdout, stderr = play.run("chain.sbatch", "--profile", "slurm", "--how", "sbcast", **JOB)
    assert (code, stdout, stderr) == (0, "", "")
    assert play.calls() == [
        f"caffe-recipes <run> <digits-local> {REQUEUES} <--profile> <slurm> <--how> <sbcast>"
    ]


def test_a_phase_s_job_runs_up_to_that_phase(play: Play) -> None:
    assert play.run("phase.sbatch", "cyc1", "--how", "copy", MAX_REQUEUES="3")[0] == 0
    assert play.calls() == [
        "caffe-recipes <run> <digits-local> <--until> <cyc1> <--max-requeues> <3> <--how> <copy>"
    ]


@pytest.mark.parametrize("words", [(), ("--how", "copy"), ("",)])
def test_a_phase_job_without_a_phase_lists_the_phases(play: Play, words: tuple[str, ...]) -> None:
    message = "give a phase as the first argument: init, cyc1, cyc2, cyc3, collapse\n"
    assert play.run("phase.sbatch", *words) == (2, "", message)
    assert play.calls() == []


def test_the_job_runs_in_the_caffe_root_or_where_it_was_submitted(play: Play) -> None:
    for name in ("root of Caffe", "elsewhere"):
        (play.folder / name).mkdir()
    elsewhere = str(play.folder / "elsewhere")
    play.run("chain.sbatch", SLURM_SUBMIT_DIR=elsewhere)
    assert (play.folder / "cwd").read_text() == f"{elsewhere}\n"
    play.hook("caffe-recipes", 'echo "$CAFFE_ROOT"')
    _, stdout, _ = play.run("chain.sbatch", SLURM_SUBMIT_DIR=elsewhere, CAFFE_ROOT="../root of Caffe")
    assert stdout == (play.folder / "cwd").read_text() == f"{play.folder / 'root of Caffe'}\n"


def test_a_recipe_file_and_a_program_are_used_under_their_given_names(play: Play) -> None:
    program = play.folder / "my programs" / "cr"
    write(program, STAND_IN, 0o755)
    play.run("chain.sbatch", RECIPE_FILE="my $(own).yaml", CAFFE_RECIPES=str(program), CAFFE_ROOT="..")
    assert play.calls() == [f"cr <run> <{play.folder}/submit dir/my $(own).yaml> {REQUEUES}"]


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        (
            {"CAFFE_RECIPES": "caffe-recipse"},
            "caffe-recipse: not found on the PATH of this node; load its environment, or set CAFFE_RECIPES\n",
        ),
        (
            {"CAFFE_ROOT": "nowhere"},
            f"nowhere: no such folder on {os.uname().nodename}; set CAFFE_ROOT to one that all nodes share\n",
        ),
    ],
)
def test_a_program_or_folder_that_is_missing_is_one_line_and_exit_2(
    play: Play, environment: dict[str, str], line: str
) -> None:
    assert play.run("chain.sbatch", **JOB, **environment) == (2, "", line)
    assert play.calls() == []


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"MAX_REQUEUES": "many"}, "Invalid value for '--max-requeues': 'many' is no"),
        ({"RECIPE_FILE": "mine.yaml"}, ""),
    ],
)
def test_a_recipe_that_cannot_run_is_one_line_from_run_and_exit_2(
    play: Play, environment: dict[str, str], message: str
) -> None:
    program = str(Path(sys.executable).with_name("caffe-recipes"))
    code, out, stderr = play.run("chain.sbatch", CAFFE_RECIPES=program, **environment)
    assert (code, out) == (2, "")
    assert stderr.startswith(f"Error: {message}")
    assert stderr.count("\n") == 1


@pytest.mark.parametrize("code", [1, 2, 3, 138])
def test_the_exit_code_of_run_is_returned_and_nothing_is_requeued(play: Play, code: int) -> None:
    play.hook("caffe-recipes", f"exit {code}")
    assert play.run("chain.sbatch", **JOB)[0] == code
    assert play.calls("scontrol") == []


def test_slurm_s_warning_waits_until_the_run_can_take_it(play: Play) -> None:
    program = play.folder / "program.py"
    write(
        program,
        f"#!{sys.executable}\nimport os, signal, time\n"
        f"open({str(play.folder / 'runs')!r}, 'w').close()\n"
        f"while not os.path.exists({str(play.folder / 'warned')!r}): time.sleep(0.02)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('taken', flush=True))\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])\n",
        0o755,
    )
    process = play.start("chain.sbatch", CAFFE_RECIPES=str(program))
    play.wait_for("runs")
    process.send_signal(signal.SIGUSR1)
    (play.folder / "warned").touch()
    assert play.end(process) == (0, "taken\n", "")


def test_an_old_env_that_cannot_block_signals_is_sufficient(play: Play) -> None:
    old = '#!/bin/sh\ncase $1 in --*) exit 125 ;; esac\nexec /usr/bin/env "$@"\n'
    write(play.folder / "bin/env", old, 0o755)
    assert play.run("chain.sbatch")[0] == 0
    assert len(play.calls()) == 1
