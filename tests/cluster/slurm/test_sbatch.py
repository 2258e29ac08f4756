from __future__ import annotations

from itertools import pairwise

import pytest

from caffe_recipes.cluster.commands import Completed
from caffe_recipes.cluster.slurm import sbatch as slurm_sbatch
from caffe_recipes.cluster.slurm.calls import SchedulerAway
from caffe_recipes.cluster.slurm.sbatch import (
    Refused,
    Submitted,
    Unsure,
    cancel_jobs,
    find_submission,
    submit_job,
)
from caffe_recipes.cluster.slurm.sbatch_options import JobRequest, sbatch_argv
from caffe_recipes.errors import ClusterError, HostFailed
from tests.stand_in_host import StandInHost

REQUEST = JobRequest("jobs/digits/chain.sbatch", "chain-0123456789abcdef")
HOSTILE = ["a b", "'", '"', "$(reboot)", "`reboot`", "; reboot", "-n", "--wrap=reboot", "*", "\\", "é", "a,b"]


def answering(code: int, stdout: str = "", stderr: str = "") -> StandInHost:
    return StandInHost("login1", lambda argv, stdin: Completed(code, stdout, stderr))


def test_every_setting_is_one_word_before_the_script() -> None:
    request = JobRequest(
        script="chain.sbatch",
        name="chain-1",
        partition="normal",
        account="physics",
        qos="long",
        constraint="skx&ib",
        time_s=7200,
        nodes=64,
        exclude=("c401-001", "c401-002"),
        dependency=4711,
        mail_user="anna@example.org",
        options=("--reservation", "course"),
        environment={"RUN": "runs/a b, c"},
        arguments=("--resume",),
    )
    assert sbatch_argv(request) == (
        *("env", "RUN=runs/a b, c", "sbatch", "--parsable", "--job-name=chain-1", "--partition=normal"),
        *("--account=physics", "--qos=long", "--constraint=skx&ib", "--time=02:00:00", "--nodes=64"),
        *("--exclude=c401-001,c401-002", "--dependency=afterok:4711", "--kill-on-invalid-dep=yes"),
        *("--mail-user=anna@example.org", "--mail-type=END,FAIL,REQUEUE", "--export=ALL"),
        *("--reservation", "course", "--", "chain.sbatch", "--resume"),
    )


def test_a_test_submits_nothing() -> None:
    assert sbatch_argv(REQUEST, test_only=True)[:2] == ("sbatch", "--test-only")


def test_a_job_inherits_nothing_of_the_one_that_it_is_submitted_in() -> None:
    host = StandInHost("login1", lambda argv, stdin: Completed(0, "12\n", ""))
    submit_job(host, REQUEST)
    slurm_sbatch.try_submission(host, REQUEST)
    for argv, _ in host.asked:
        before = argv[: argv.index("sbatch")]
        unset = {name for option, name in pairwise(before) if option == "-u"}
        assert {"SLURM_RESTART_COUNT", "SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_NODE", "SLURM_CPU_BIND"} < unset
        assert not {"SLURM_CONF", "SLURM_CLUSTERS"} & unset, "these are the user's own"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_strings_stay_one_word_each(text: str) -> None:
    request = JobRequest(
        text, text, text, text, text, text, mail_user=text, environment={"A": text}, arguments=(text,)
    )
    argv = sbatch_argv(request)
    assert argv[-3:] == ("--", text, text)
    for option in ("job-name", "partition", "account", "qos", "constraint", "mail-user"):
        assert f"--{option}={text}" in argv
    assert argv[1] == f"A={text}"


@pytest.mark.parametrize(
    "request_",
    [
        JobRequest("", "chain"),
        JobRequest("chain.sbatch", ""),
        JobRequest("chain.sbatch", "two\nlines"),
        JobRequest("chain.sbatch", "chain", options=("other.sbatch",)),
        JobRequest("chain.sbatch", "chain", environment={"A B": ""}),
        JobRequest("chain.sbatch", "chain", environment={"-u": ""}),
        JobRequest("chain.sbatch", "chain", exclude=("node1,node2",)),
        JobRequest("chain.sbatch", "chain", time_s=0),
    ],
)
def test_ambiguous_settings_are_refused_before_anything_is_run(request_: JobRequest) -> None:
    host = answering(0, "7\n")
    with pytest.raises(ClusterError):
        submit_job(host, request_)
    assert host.asked == []


def test_the_cluster_that_took_a_job_is_known() -> None:
    assert submit_job(answering(0, "4711;cm4\n"), REQUEST) == Submitted(4711, "cm4")


@pytest.mark.parametrize("stdout", ["4711\n", "Welcome to the machine\n--> ok\n4711\n"])
def test_a_number_alone_on_its_line_is_a_job(stdout: str) -> None:
    assert submit_job(answering(0, stdout), REQUEST) == Submitted(4711)


@pytest.mark.parametrize(
    ("code", "stderr", "text"),
    [
        (
            1,
            "sbatch: error: invalid partition: nope\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified\n",
            "invalid partition: nope; Batch job submission failed: Invalid partition name specified",
        ),
        (1, "sbatch: error: Unable to open file no.sbatch\n", "Unable to open file no.sbatch"),
        (
            255,
            "sbatch: unrecognized option '--nosuch'\nTry \"sbatch --help\" for more information\n",
            "unrecognized option '--nosuch'; Try \"sbatch --help\" for more information",
        ),
    ],
)
def test_a_refusal_of_slurm_is_reported_in_one_line(code: int, stderr: str, text: str) -> None:
    assert submit_job(answering(code, "", stderr), REQUEST) == Refused(text)


@pytest.mark.parametrize(
    ("code", "stdout", "stderr"),
    [
        (1, "", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"),
        (1, "", "sbatch: error: Batch job submission failed: Unable to contact slurm controller (x)\n"),
        (1, "", "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received\n"),
        (1, "", ""),
        (0, "", ""),
        (137, "", "sbatch: error: a plugin complains\n"),
        (143, "", ""),
        (1, "4711\n", "sbatch: error: write error\n"),
    ],
)
def test_anything_else_without_a_number_may_have_been_submitted(code: int, stdout: str, stderr: str) -> None:
    answer = submit_job(answering(code, stdout, stderr), REQUEST)
    assert isinstance(answer, Unsure)
    assert answer.text
    assert "\n" not in answer.text


def test_a_submission_is_never_tried_twice() -> None:
    host = answering(1, "", "sbatch: error: Batch job submission failed: Socket timed out\n")
    submit_job(host, REQUEST)
    assert len(host.asked) == 1


def test_a_host_that_was_never_reached_submitted_nothing() -> None:
    gone = HostFailed("login1", "does not answer", "check it")
    assert submit_job(StandInHost("login1", fault=gone), REQUEST) == Refused(str(gone))
    lacking = answering(127, "", "env: 'sbatch': No such file or directory\n")
    answer = submit_job(lacking, REQUEST)
    assert isinstance(answer, Refused)
    assert "sbatch not found on its PATH" in answer.text


def test_the_reason_of_slurm_against_a_job_is_reported_if_there_is_one() -> None:
    assert slurm_sbatch.try_submission(answering(0, "", "sbatch: Job 6 to start at ...\n"), REQUEST) is None
    refusing = answering(1, "", "allocation failure: Requested node configuration is not available\n")
    reason = slurm_sbatch.try_submission(refusing, REQUEST)
    assert reason == "allocation failure: Requested node configuration is not available"
    away = answering(1, "", "allocation failure: Unable to contact slurm controller (connect failure)\n")
    with pytest.raises(SchedulerAway):
        slurm_sbatch.try_submission(away, REQUEST)


def test_a_submission_is_looked_up_by_name() -> None:
    row = "7|7|PENDING|1|p|1:00|N/A|N/A|N/A||Priority|chain-1\n"

    def answer(argv: tuple[str, ...], _: bytes) -> Completed:
        if "id" in argv:
            return Completed(0, "1000\n", "")
        if "squeue" in argv:
            return Completed(0, row, "")
        return Completed(1, "", "Invalid job id specified; Slurm accounting storage is disabled")

    host = StandInHost("login1", answer)
    found = find_submission(host, "chain-1")
    assert found is not None
    assert found.job_id == 7
    assert find_submission(host, "chain-2") is None


def test_cancelling_what_has_ended_is_not_an_error() -> None:
    cancel_jobs(answering(0), [7])
    ended = answering(1, "", "scancel: error: Kill job error on job id 7: Invalid job id specified\n")
    cancel_jobs(ended, [7], signal="USR1", batch=True)
    assert ended.asked[0][0][-4:] == ("scancel", "--signal=USR1", "--batch", "7")


def test_a_job_of_another_cluster_is_cancelled_there() -> None:
    host = answering(0)
    cancel_jobs(host, [7], cluster="cm4")
    assert host.asked[0][0][-3:] == ("scancel", "--clusters=cm4", "7")


def test_cancelling_nothing_does_not_cancel_all() -> None:
    host = answering(0)
    cancel_jobs(host, [])
    assert host.asked == []


def test_a_denied_cancellation_and_an_unreachable_scheduler_are_reported() -> None:
    denied = answering(1, "", "scancel: error: Kill job error on job id 7: Access/permission denied\n")
    with pytest.raises(ClusterError, match="Access/permission denied"):
        cancel_jobs(denied, [7])
    away = answering(
        8,
        "",
        "scancel: error: Kill job error on job id 7: Unable to contact slurm controller (connect failure)\n",
    )
    with pytest.raises(SchedulerAway):
        cancel_jobs(away, [7])
