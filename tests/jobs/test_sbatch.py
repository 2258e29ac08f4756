"""A recipe's Slurm jobs, as bash runs them; `caffe-recipes` and the commands of Slurm are stand-ins."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from caffe_recipes.generate.jobs import render_jobs
from caffe_recipes.recipe.source import load_recipe
from tests.jobs.conftest import write

# Writes down how it was called, and then does what the test says, in `hook.NAME`.
STAND_IN = r"""#!/bin/bash
tool=${0##*/}
{ printf '%s' "$tool"; printf ' <%s>' "$@"; printf '\n'; } >>"$PLAY/calls"
pwd >"$PLAY/cwd"
[ ! -e "$PLAY/hook.$tool" ] || . "$PLAY/hook.$tool"
"""
# The run: tells what it is told, keeps a snapshot, and ends with 128 and the number of the last signal.
WAITS = r"""
trap 'echo USR1 >>"$PLAY/told"; mkdir -p runs/digits-local-1/snapshots; code=138
      touch runs/digits-local-1/snapshots/init_iter_3.caffemodel' USR1
trap 'echo TERM >>"$PLAY/told"; code=143' TERM
touch "$PLAY/runs"
until [ -n "${code-}" ]; do sleep 0.05; done
sleep 0.3
exit "$code"
"""
JOB = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "c[1-2],d3"}


@dataclass
class Play:
    """A folder to submit from, the jobs of a recipe, and stand-ins on PATH."""

    folder: Path
    jobs: Path

    def hook(self, tool: str, text: str) -> None:
        write(self.folder / f"hook.{tool}", text)

    def start(self, file: str, *words: str, **environment: str) -> subprocess.Popen[str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.Popen(
            ["bash", self.jobs / file, *words],
            cwd=self.folder / "submit dir",
            env={"PATH": path, "HOME": str(self.folder), "PLAY": str(self.folder), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, file: str, *words: str, **environment: str) -> tuple[int, str, str]:
        process = self.start(file, *words, **environment)
        return self.end(process)

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        try:
            said, complained = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, said, complained

    def warned(self, number: signal.Signals, **environment: str) -> tuple[int, str, str]:
        """Run the chain, and send it a signal once it trains."""
        process = self.start("chain.sbatch", **{**JOB, **environment})
        self.wait_for("runs")
        process.send_signal(number)
        return self.end(process)

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + 30
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, f"{name} never came"
            time.sleep(0.02)

    def calls(self, tool: str = "") -> list[str]:
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(tool)]

    def told(self) -> list[str]:
        return (self.folder / "told").read_text().split()


@pytest.fixture
def play(tmp_path: Path) -> Play:
    for tool in ("caffe-recipes", "scontrol", "sbatch", "scancel"):
        write(tmp_path / "bin" / tool, STAND_IN, 0o755)
    for path, text in render_jobs(load_recipe("digits-local")).items():
        write(tmp_path / "jobs of mine" / Path(path).name, text)
    (tmp_path / "submit dir").mkdir()
    return Play(tmp_path, tmp_path / "jobs of mine")


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


def test_warned_the_run_stops_in_order_and_the_job_is_queued_again(play: Play) -> None:
    play.hook("caffe-recipes", WAITS)
    code, _, complained = play.warned(signal.SIGUSR1, SLURM_RESTART_COUNT="2")
    assert (code, play.told()) == (138, ["USR1"])
    assert play.calls("scontrol") == ["scontrol <requeue> <12>"]
    assert complained == (
        "digits-local: the time is over; job 12 is to be queued again to go on (restart 3 of 10)\n"
    )


def test_a_run_that_ends_well_after_the_warning_is_not_queued_again(play: Play) -> None:
    play.hook("caffe-recipes", WAITS.replace("code=138", "code=0"))
    assert play.warned(signal.SIGUSR1) == (0, "", "")
    assert play.calls("scontrol") == []


@pytest.mark.parametrize("code", [1, 2, 3, 143])
def test_a_run_that_fails_after_the_warning_is_not_queued_again(play: Play, code: int) -> None:
    play.hook("caffe-recipes", WAITS.replace("code=138", f"code={code}"))
    assert play.warned(signal.SIGUSR1)[0] == code
    assert play.calls("scontrol") == []


@pytest.mark.parametrize("kept", ["", "runs/digits-local-1/snapshots/old.caffemodel"])
def test_warned_at_its_start_with_nothing_new_to_go_on_from_it_is_not_queued_again(
    play: Play, kept: str
) -> None:
    if kept:
        write(play.folder / "submit dir" / kept, "")
        time.sleep(0.05)
    play.hook("caffe-recipes", WAITS.replace("touch runs", ": touch runs"))
    code, _, complained = play.warned(signal.SIGUSR1)
    assert (code, play.calls("scontrol")) == (3, [])
    assert re.fullmatch(
        r"digits-local: warned of the end \d+ s after its start, before it had snapshotted anything; "
        r"give it more time \(sbatch --time\), or a later warning \(sbatch --signal=B:USR1@60\)\n",
        complained,
    )


def test_warned_later_it_is_queued_again_whether_or_not_it_has_snapshotted(play: Play) -> None:
    play.hook("caffe-recipes", WAITS.replace("touch runs", ": touch runs"))
    code, _, _ = play.warned(signal.SIGUSR1, SECONDS="120")
    assert (code, play.calls("scontrol")) == (138, ["scontrol <requeue> <12>"])


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGUSR1), (signal.SIGUSR1, signal.SIGTERM)])
def test_cancelled_it_is_not_queued_again_whenever_it_is_warned(
    play: Play, numbers: tuple[signal.Signals, ...]
) -> None:
    last = 'until [ -e "$PLAY/enough" ]; do sleep 0.05; done; code=138'
    play.hook("caffe-recipes", WAITS.replace("sleep 0.3", last))
    process = play.start("chain.sbatch", **JOB)
    play.wait_for("runs")
    for count, number in enumerate(numbers, 1):
        process.send_signal(number)
        while len(play.told() if (play.folder / "told").exists() else []) < count:
            time.sleep(0.02)
    (play.folder / "enough").touch()
    assert play.end(process) == (138, "", "")
    assert play.calls("scontrol") == []


def test_cancelled_while_it_asks_to_be_queued_again_it_asks_no_more(play: Play) -> None:
    play.hook("caffe-recipes", WAITS)
    play.hook("scontrol", FAILS.format(times=99).replace("tries=", 'touch "$PLAY/asked"; sleep 0.3; tries='))
    process = play.start("chain.sbatch", **JOB)
    play.wait_for("runs")
    process.send_signal(signal.SIGUSR1)
    play.wait_for("asked")
    process.send_signal(signal.SIGTERM)
    code, _, complained = play.end(process)
    assert (code, len(play.calls("scontrol"))) == (143, 1)
    assert complained.endswith("told to end; job 12 is not queued again\n")


def test_told_to_end_the_run_is_waited_for_and_the_job_is_not_queued_again(play: Play) -> None:
    play.hook("caffe-recipes", WAITS)
    assert play.warned(signal.SIGTERM) == (143, "", "")
    assert (play.told(), play.calls("scontrol")) == (["TERM"], [])


def test_warned_twice_the_run_is_told_twice(play: Play) -> None:
    play.hook("caffe-recipes", WAITS.replace("sleep 0.3", 'until [ -e "$PLAY/enough" ]; do sleep 0.05; done'))
    process = play.start("chain.sbatch", **JOB)
    play.wait_for("runs")
    for count in (1, 2):
        process.send_signal(signal.SIGUSR1)
        while len(play.told() if (play.folder / "told").exists() else []) < count:
            time.sleep(0.02)
    (play.folder / "enough").touch()
    assert play.end(process)[0] == 138
    assert len(play.calls("scontrol")) == 1


@pytest.mark.parametrize(
    ("number", "seconds", "code", "calls"),
    [
        (signal.SIGUSR1, "120", 138, ["scontrol <requeue> <12>"]),
        (signal.SIGUSR1, "0", 3, []),
        (signal.SIGTERM, "120", 143, []),
    ],
)
def test_told_to_stop_before_there_is_a_run_none_is_started(
    play: Play, number: signal.Signals, seconds: str, code: int, calls: list[str]
) -> None:
    # `mkdir` is called before the run is started, and waits for the signal to be there.
    slow = '#!/bin/bash\ntouch "$PLAY/begun"\nsleep 0.5\nexec /bin/mkdir "$@"\n'
    write(play.folder / "bin/mkdir", slow, 0o755)
    process = play.start("chain.sbatch", **JOB, SECONDS=seconds)
    play.wait_for("begun")
    process.send_signal(number)
    assert play.end(process)[0] == code
    assert play.calls() == calls


def test_a_job_is_queued_again_so_often_and_no_more(play: Play) -> None:
    play.hook("caffe-recipes", WAITS)
    code, _, complained = play.warned(signal.SIGUSR1, SLURM_RESTART_COUNT="3", MAX_REQUEUES="3")
    assert (code, play.calls("scontrol")) == (3, [])
    assert complained == (
        "digits-local: the time is over, and job 12 was queued again 3 times already; "
        "sbatch it again to go on\n"
    )


FAILS = """
echo "Unable to contact slurm controller (connect failure)" >&2
tries=$(grep -c ^scontrol "$PLAY/calls")
[ "$tries" -gt {times} ] || exit 1
"""


@pytest.mark.parametrize(("times", "code"), [(2, 138), (99, 3)])
def test_a_busy_controller_is_asked_some_times(play: Play, times: int, code: int) -> None:
    play.hook("scontrol", FAILS.format(times=times))
    write(play.folder / "bin/sleep", '#!/bin/bash\nexec /bin/sleep "0.$1"\n', 0o755)
    play.hook("caffe-recipes", WAITS.replace("sleep 0.", "/bin/sleep 0."))
    ended, _, complained = play.warned(signal.SIGUSR1)
    assert ended == code
    if code == 3:
        assert len(play.calls("scontrol")) > 5
        assert complained.endswith(
            "\ndigits-local: job 12 is not queued again "
            "(Unable to contact slurm controller (connect failure)); sbatch it again to go on\n"
        )


def test_outside_of_any_job_it_is_a_run_like_another(play: Play) -> None:
    play.hook("caffe-recipes", WAITS)
    process = play.start("chain.sbatch")
    play.wait_for("runs")
    process.send_signal(signal.SIGUSR1)
    code, _, complained = play.end(process)
    assert (code, play.calls("scontrol")) == (138, [])
    assert "in no job that could be queued again" in complained


NUMBERS = 'echo "Welcome to the cluster"; echo "$((100 + $(grep -c ^sbatch "$PLAY/calls")));north"'


def test_the_phases_are_submitted_in_order_each_behind_the_one_before(play: Play) -> None:
    play.hook("sbatch", NUMBERS)
    code, said, complained = play.run("submit.sh", "--partition", "a b", "--", "--profile", "slurm")
    assert (code, complained) == (0, "")
    assert said.splitlines() == [
        "phase-1-init 101",
        "phase-2-cyc1 102",
        "phase-3-cyc2 103",
        "phase-4-cyc3 104",
        "phase-5-collapse 105",
    ]
    first, second, *_ = play.calls("sbatch")
    given = "<--parsable> <--partition> <a b>"
    assert first == f"sbatch {given} <{play.jobs}/phase-1-init.sbatch> <--profile> <slurm>"
    behind = "<--dependency=afterok:101> <--kill-on-invalid-dep=yes>"
    assert second == f"sbatch {given} {behind} <{play.jobs}/phase-2-cyc1.sbatch> <--profile> <slurm>"


def test_a_job_inherits_nothing_of_the_one_that_it_is_submitted_in(play: Play) -> None:
    play.hook("sbatch", 'env | grep ^SLURM_ >>"$PLAY/inherited"; ' + NUMBERS)
    around = {"SLURM_RESTART_COUNT": "10", "SLURM_CPUS_PER_TASK": "7", "SLURM_EXPORT_ENV": "NONE"}
    assert play.run("submit.sh", SLURM_CONF="/etc/here", **around)[0] == 0
    assert {*(play.folder / "inherited").read_text().splitlines()} == {"SLURM_CONF=/etc/here"}


@pytest.mark.parametrize("after", ["Good luck", "See job 12 at https://example.org", "  "])
def test_the_number_is_found_between_what_a_site_prints(play: Play, after: str) -> None:
    play.hook("sbatch", f'{NUMBERS}; echo "{after}"')
    code, said, complained = play.run("submit.sh")
    assert (code, complained) == (0, "")
    assert said.splitlines()[::4] == ["phase-1-init 101", "phase-5-collapse 105"]
    assert "<--dependency=afterok:101>" in play.calls("sbatch")[1]


def refuses(after: int) -> str:
    return (
        f'[ "$(grep -c ^sbatch "$PLAY/calls")" -le {after} ] || {{ echo "sbatch: error: no" >&2; exit 1; }}\n'
    )


def test_where_one_is_refused_those_before_are_cancelled(play: Play) -> None:
    play.hook("sbatch", refuses(2) + NUMBERS)
    code, _, complained = play.run("submit.sh")
    assert (code, play.calls("scancel")) == (3, ["scancel <101> <102>"])
    assert complained.splitlines() == [
        "sbatch: error: no",
        "digits-local: phase-3-cyc2: sbatch returned 1; cancelled what was submitted before: 101 102",
    ]


@pytest.mark.parametrize(
    ("sbatch", "scancel", "said"),
    [
        (refuses(0) + NUMBERS, "", "phase-1-init: sbatch returned 1"),
        (
            "echo Welcome; echo to us",
            "",
            "phase-1-init: sbatch named no job, but 'Welcome to us'; see squeue --me for it",
        ),
        (
            refuses(1) + NUMBERS,
            "exit 1",
            "phase-2-cyc1: sbatch returned 1; still submitted, cancel them yourself: scancel 101",
        ),
    ],
)
def test_a_refusal_says_what_is_left(play: Play, sbatch: str, scancel: str, said: str) -> None:
    play.hook("sbatch", sbatch)
    play.hook("scancel", scancel)
    code, _, complained = play.run("submit.sh")
    assert code == 3
    assert complained.endswith(f"digits-local: {said}\n")


def test_stopped_while_it_submits_it_forgets_no_job(play: Play) -> None:
    slow = '[ "$(grep -c ^sbatch "$PLAY/calls")" -lt 2 ] || { touch "$PLAY/second"; sleep 0.5; }\n'
    play.hook("sbatch", slow + NUMBERS)
    process = play.start("submit.sh")
    play.wait_for("second")
    process.send_signal(signal.SIGTERM)
    code, _, complained = play.end(process)
    assert (code, play.calls("scancel")) == (3, ["scancel <101> <102>"])
    assert "stopped by a signal; cancelled what was submitted before: 101 102" in complained


def test_without_slurm_or_a_job_s_file_nothing_is_submitted(play: Play) -> None:
    (play.jobs / "phase-3-cyc2.sbatch").unlink()
    code, _, complained = play.run("submit.sh")
    assert (code, play.calls("sbatch")) == (2, [])
    assert "phase-3-cyc2.sbatch: cannot be read; generate it again" in complained
    tools = play.folder / "no slurm"
    tools.mkdir()
    for tool in ("bash", "dirname", "readlink"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    code, _, complained = play.run("submit.sh", PATH=str(tools))
    assert (code, complained) == (
        2,
        "digits-local: sbatch: not found on PATH; submit on a machine of the Slurm cluster\n",
    )


def test_help_is_the_text_at_the_top(play: Play) -> None:
    code, said, complained = play.run("submit.sh", "--help")
    assert (code, complained) == (0, "")
    assert "\nUsage: jobs/digits-local/submit.sh [OPTION OF sbatch]" in said
    assert play.calls() == []
