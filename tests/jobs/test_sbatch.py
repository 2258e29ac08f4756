"""What a recipe's Slurm job has run, and with what."""

from __future__ import annotations

import os

import pytest

from tests.jobs.conftest import write
from tests.jobs.job_play import JOB, STAND_IN, Play


def test_the_job_hands_the_chain_to_the_run_with_the_job_s_nodes(play: Play) -> None:
    code, said, complained = play.run("chain.sbatch", "--profile", "slurm", "--how", "sbcast", **JOB)
    assert (code, said, complained) == (0, "", "")
    nodes = play.folder / "submit dir/logs/digits-local/job-12-nodes"
    assert play.calls() == [
        f"caffe-recipes <run> <digits-local> <--hostfile> <{nodes}> <--profile> <slurm> <--how> <sbcast>"
    ]
    assert nodes.read_text() == "c[1-2],d3\n"


def test_a_phase_s_job_runs_up_to_that_phase(play: Play) -> None:
    assert play.run("phase-2-cyc1.sbatch")[0] == 0
    assert play.calls() == ["caffe-recipes <run> <digits-local> <--until> <cyc1>"]


def test_it_runs_in_the_caffe_root_else_where_it_was_submitted(play: Play) -> None:
    for name in ("root of Caffe", "elsewhere"):
        (play.folder / name).mkdir()
    elsewhere = str(play.folder / "elsewhere")
    play.run("chain.sbatch", SLURM_SUBMIT_DIR=elsewhere)
    assert (play.folder / "cwd").read_text() == f"{elsewhere}\n"
    play.hook("caffe-recipes", 'echo "$CAFFE_ROOT"')
    _, said, _ = play.run("chain.sbatch", SLURM_SUBMIT_DIR=elsewhere, CAFFE_ROOT="../root of Caffe")
    assert said == (play.folder / "cwd").read_text() == f"{play.folder / 'root of Caffe'}\n"


def test_a_recipe_file_and_a_program_are_taken_as_they_are_called(play: Play) -> None:
    program = play.folder / "my programs" / "cr"
    write(program, STAND_IN, 0o755)
    play.run("chain.sbatch", RECIPE_FILE="my $(own).yaml", CAFFE_RECIPES=str(program), CAFFE_ROOT="..")
    assert play.calls() == [f"cr <run> <{play.folder}/submit dir/my $(own).yaml>"]


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            {"CAFFE_RECIPES": "caffe-recipse"},
            "caffe-recipse: not found on PATH of this node; load the environment in which caffe-recipes is "
            "installed, or set CAFFE_RECIPES",
        ),
        (
            {"CAFFE_ROOT": "nowhere"},
            f"nowhere: no such folder on {os.uname().nodename}; set CAFFE_ROOT to one",
        ),
        ({"MAX_REQUEUES": "many"}, "MAX_REQUEUES: 'many' is no number; write 10"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_exit_2(
    play: Play, environment: dict[str, str], said: str
) -> None:
    code, out, complained = play.run("chain.sbatch", **{**JOB, **environment})
    assert (code, out) == (2, "")
    assert complained.startswith(f"digits-local: {said}")
    assert complained.count("\n") == 1
    assert play.calls() == []


@pytest.mark.parametrize("code", [1, 2, 3, 138])
def test_what_the_run_returns_is_returned_and_nothing_is_queued_again(play: Play, code: int) -> None:
    play.hook("caffe-recipes", f"exit {code}")
    assert play.run("chain.sbatch", **JOB)[0] == code
    assert play.calls("scontrol") == []
