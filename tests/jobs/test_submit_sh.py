"""submit.sh of a recipe's jobs, with a stand-in for sbatch."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess

import pytest

from caffe_recipes.cluster.slurm.calls import SBATCH_UNSET
from tests.jobs.job_play import Play

NUMBERS = 'echo "Welcome to the cluster"; echo "$((100 + $(grep -c ^sbatch "$PLAY/calls")));north"'


def test_the_phases_are_submitted_in_order_each_after_the_previous_one(play: Play) -> None:
    play.hook("sbatch", NUMBERS)
    code, stdout, stderr = play.run("submit.sh", "--partition", "a b", "--", "--profile", "slurm")
    assert (code, stderr) == (0, "")
    assert stdout.splitlines() == [
        "init 101",
        "cyc1 102",
        "cyc2 103",
        "cyc3 104",
        "collapse 105",
    ]
    first, second, *_ = play.calls("sbatch")
    given = "<--parsable> <--job-name=digits-local-{}> <--signal=B:USR1@120> <--partition> <a b>"
    script = f"<{play.jobs}/phase.sbatch>"
    assert first == f"sbatch {given.format('init')} {script} <init> <--profile> <slurm>"
    behind = "<--dependency=afterok:101> <--kill-on-invalid-dep=yes>"
    assert second == f"sbatch {given.format('cyc1')} {behind} {script} <cyc1> <--profile> <slurm>"


def test_each_phase_has_its_own_time_and_warning(play: Play) -> None:
    script = play.jobs / "submit.sh"
    script.write_text(script.read_text().replace("\nsubmit cyc2 120\n", "\nsubmit cyc2 60 00:09:00\n"))
    play.hook("sbatch", 'echo "$STOP_GRACE_S" >>"$PLAY/graces"; ' + NUMBERS)
    assert play.run("submit.sh")[0] == 0
    assert "<--job-name=digits-local-cyc2> <--signal=B:USR1@60> <--time=00:09:00>" in play.calls("sbatch")[2]
    assert (play.folder / "graces").read_text().split() == ["60", "60", "30", "60", "60"]


def test_a_job_inherits_nothing_of_the_one_that_it_is_submitted_in(play: Play) -> None:
    play.hook("sbatch", 'env | grep ^SLURM_ >>"$PLAY/inherited"; ' + NUMBERS)
    around = {"SLURM_RESTART_COUNT": "10", "SLURM_CPUS_PER_TASK": "7", "SLURM_EXPORT_ENV": "NONE"}
    assert play.run("submit.sh", SLURM_CONF="/etc/here", **around)[0] == 0
    assert {*(play.folder / "inherited").read_text().splitlines()} == {"SLURM_CONF=/etc/here"}


def test_the_environment_s_time_name_and_warning_count_for_each_phase(play: Play) -> None:
    play.hook("sbatch", NUMBERS)
    assert play.run("submit.sh", SBATCH_TIMELIMIT="12:00:00", SBATCH_JOB_NAME="mine")[0] == 0
    assert play.calls("sbatch")[0] == f"sbatch <--parsable> <{play.jobs}/phase.sbatch> <init>"


def test_the_script_unsets_the_same_variables_as_submit(play: Play) -> None:
    text = (play.jobs / "submit.sh").read_text().replace("\\\n", " ")
    (words,) = re.findall(r"^unset (.*)$", text, re.MULTILINE)
    argv = ["bash", "-c", f"echo {words}"]
    names = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert names == list(SBATCH_UNSET)


@pytest.mark.parametrize("after", ["Good luck", "See job 12 at https://example.org", "  "])
def test_the_job_id_is_found_among_other_output_of_a_site(play: Play, after: str) -> None:
    play.hook("sbatch", f'{NUMBERS}; echo "{after}"')
    code, stdout, stderr = play.run("submit.sh")
    assert (code, stderr) == (0, "")
    assert stdout.splitlines()[::4] == ["init 101", "collapse 105"]
    assert "<--dependency=afterok:101>" in play.calls("sbatch")[1]


def refuses(after: int) -> str:
    return (
        f'[ "$(grep -c ^sbatch "$PLAY/calls")" -le {after} ] || {{ echo "sbatch: error: no" >&2; exit 1; }}\n'
    )


def test_if_one_job_is_refused_the_previous_ones_are_cancelled(play: Play) -> None:
    play.hook("sbatch", refuses(2) + NUMBERS)
    code, _, stderr = play.run("submit.sh")
    assert (code, play.calls("scancel")) == (3, ["scancel <101> <102>"])
    assert stderr.splitlines() == [
        "sbatch: error: no",
        "digits-local: cyc2: sbatch returned 1; cancelled the jobs submitted before: 101 102",
    ]


@pytest.mark.parametrize(
    ("sbatch", "scancel", "exit_code", "message"),
    [
        (refuses(0) + NUMBERS, "", 2, "init: sbatch returned 1"),
        (
            "echo Welcome; echo to us",
            "",
            3,
            "init: sbatch printed no job id, but 'Welcome to us'; check squeue --me",
        ),
        (
            refuses(1) + NUMBERS,
            "exit 1",
            3,
            "cyc1: sbatch returned 1; earlier jobs are still submitted; cancel them: scancel 101",
        ),
    ],
)
def test_a_refused_submission_reports_which_jobs_remain(
    play: Play, sbatch: str, scancel: str, exit_code: int, message: str
) -> None:
    play.hook("sbatch", sbatch)
    play.hook("scancel", scancel)
    code, _, stderr = play.run("submit.sh")
    assert code == exit_code
    assert stderr.endswith(f"digits-local: {message}\n")


def test_a_script_stopped_while_it_submits_cancels_its_jobs(play: Play) -> None:
    slow = '[ "$(grep -c ^sbatch "$PLAY/calls")" -lt 2 ] || { touch "$PLAY/second"; sleep 0.5; }\n'
    play.hook("sbatch", slow + NUMBERS)
    process = play.start("submit.sh")
    play.wait_for("second")
    process.send_signal(signal.SIGTERM)
    code, _, stderr = play.end(process)
    assert (code, play.calls("scancel")) == (3, ["scancel <101> <102>"])
    assert "stopped by a signal; cancelled the jobs submitted before: 101 102" in stderr


def test_a_reader_that_leaves_keeps_no_job_from_its_submission(play: Play) -> None:
    play.hook("sbatch", NUMBERS)
    with play.start("submit.sh") as process:
        assert process.stdout
        process.stdout.close()
        assert process.wait(timeout=600) == 0
    assert len(play.calls("sbatch")) == 5


def test_without_slurm_or_a_job_s_file_nothing_is_submitted(play: Play) -> None:
    (play.jobs / "phase.sbatch").unlink()
    code, _, stderr = play.run("submit.sh")
    assert (code, play.calls("sbatch")) == (2, [])
    assert "phase.sbatch: cannot be read; generate it again" in stderr
    tools = play.folder / "no slurm"
    tools.mkdir()
    for tool in ("bash", "dirname", "readlink"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    code, _, stderr = play.run("submit.sh", PATH=str(tools))
    assert (code, stderr) == (
        2,
        "digits-local: sbatch: not found on PATH; submit on a machine of the Slurm cluster\n",
    )


def test_help_is_the_text_at_the_top(play: Play) -> None:
    code, stdout, stderr = play.run("submit.sh", "--help")
    assert (code, stderr) == (0, "")
    assert "\nUsage: jobs/digits-local/submit.sh [SBATCH_OPTION]" in stdout
    assert play.calls() == []
