"""A recipe's Slurm job that is warned of its end, or cancelled: whether it is queued again."""

from __future__ import annotations

import re
import signal
import time

import pytest

from tests.jobs.conftest import write
from tests.jobs.job_play import JOB, Play

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
