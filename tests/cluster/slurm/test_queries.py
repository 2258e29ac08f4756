"""Queries to Slurm and how its answers are read; accounting is tested on recorded answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caffe_recipes.cluster.commands import Completed
from caffe_recipes.cluster.slurm.answers import parse_scontrol_jobs
from caffe_recipes.cluster.slurm.calls import NoCommand, SchedulerAway, check_sbatch
from caffe_recipes.cluster.slurm.jobs import JobState
from caffe_recipes.cluster.slurm.queries import ask_node_groups, ask_partitions, find_jobs
from caffe_recipes.errors import ClusterError, CommandTimedOut
from tests.stand_in_host import StandInHost

Recorded = Callable[[str], str]
DISABLED = Completed(1, "", "Slurm accounting storage is disabled\n")
NO_JOB = Completed(1, "", "slurm_load_jobs error: Invalid job id specified\n")
AWAY = Completed(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")


class Answers:
    """The answers of Slurm's commands; `asked` holds the commands that were called."""

    def __init__(self, **answers: Completed | Callable[[tuple[str, ...]], Completed]) -> None:
        self.answers = {
            "id": Completed(0, "1000\n", ""),
            "sacct": DISABLED,
            "scontrol": NO_JOB,
            "squeue": Completed(0, "", ""),
            **answers,
        }
        self.asked: list[tuple[str, ...]] = []
        self.host = StandInHost("login1", self.answer)

    def answer(self, argv: tuple[str, ...], _: bytes) -> Completed:
        assert argv[0] == "env"
        assert "LC_ALL=C" in argv and "SLURM_TIME_FORMAT=standard" in argv
        command = argv[argv.index("SLURM_TIME_FORMAT=standard") + 1 :]
        if command[0] != "id":
            self.asked.append(command)
        answer = self.answers[command[0]]
        return answer if isinstance(answer, Completed) else answer(command)


def answer_by_job(recorded: str) -> Callable[[tuple[str, ...]], Completed]:
    """Answer as scontrol does, one job at a time."""

    def answer(argv: tuple[str, ...]) -> Completed:
        line = next((line for line in recorded.splitlines() if f"JobId={argv[-1]} " in line), None)
        return NO_JOB if line is None else Completed(0, line + "\n", "")

    return answer


def test_jobs_are_found_by_number_in_their_longest_form_the_last_first(recorded: Recorded) -> None:
    slurm = Answers(scontrol=answer_by_job(recorded("scontrol_jobs")), squeue=rows_of(recorded))
    jobs = find_jobs(slurm.host, ids=[4714, 4717, 99])
    assert [(job.job_id, job.state) for job in jobs] == [(4717, JobState.PENDING), (4714, JobState.TIMEOUT)]
    assert jobs[0].dependency == "afterok:4715(failed)"


def rows_of(recorded: Recorded) -> Callable[[tuple[str, ...]], Completed]:
    """Answer as squeue does for a list of job ids, by the jobs that scontrol knows."""

    def answer(argv: tuple[str, ...]) -> Completed:
        asked = next(word.partition("=")[2] for word in argv if word.startswith("--jobs=")).split(",")
        known = [job.job_id for job in parse_scontrol_jobs(recorded("scontrol_jobs"))]
        rows = [f"{each}|{each}|PENDING|1|p|1:00|N/A|N/A|N/A||None|a" for each in known if str(each) in asked]
        return Completed(0, "\n".join(rows), "")

    return answer


def test_many_jobs_take_one_call_and_one_more_for_each_that_slurm_still_knows(recorded: Recorded) -> None:
    slurm = Answers(scontrol=answer_by_job(recorded("scontrol_jobs")), squeue=rows_of(recorded))
    jobs = find_jobs(slurm.host, ids=[4714, 4717, *range(100, 250)])
    assert {job.job_id for job in jobs} == {4717, 4714}
    assert [command[0] for command in slurm.asked] == ["squeue", "scontrol", "scontrol", "sacct"]


def test_each_task_of_an_array_that_slurm_lists_is_found() -> None:
    row = "13|12_1|RUNNING|1|p|1:00|N/A|N/A|N/A||None|a\n"
    task = "JobId=13 ArrayJobId=12 ArrayTaskId=1 JobName=a UserId=b(1)"
    shown = f"{task} JobState=RUNNING Reason=None ExitCode=0:0\n"
    slurm = Answers(squeue=Completed(0, row, ""), scontrol=Completed(0, shown, ""))
    assert [job.label for job in find_jobs(slurm.host, ids=[12, 99])] == ["12_1"]


def test_names_are_matched_exactly(recorded: Recorded) -> None:
    squeue = recorded("squeue")
    slurm = Answers(squeue=Completed(0, squeue, ""))
    (job,) = find_jobs(slurm.host, names=["a name | with a bar"])
    assert job.reason == "ReqNodeNotAvail, UnavailableNodes:c401-003"
    assert "--name=a name | with a bar" in slurm.asked[0]
    assert "--states=all" in slurm.asked[0]
    assert find_jobs(slurm.host, names=["chain"]) == ()


@pytest.mark.promise("only our own jobs are ours")
@pytest.mark.parametrize("name", ["chain", "a,b"])
@pytest.mark.parametrize("where", ["squeue", "sacct"])
def test_another_users_job_of_that_name_is_not_ours(name: str, where: str) -> None:
    rows = {
        "squeue": f"{{}}|7|RUNNING|1|p|1:00|N/A|N/A|N/A||None|{name}\n",
        "sacct": f"{{}}|7|COMPLETED|0:0|1|p|01:00:00|Unknown|Unknown|Unknown|n1|None|{name}\n",
    }

    def answer(argv: tuple[str, ...]) -> Completed:
        jobs = {"7": "1000", "8": "1002"}
        user = next((word.partition("=")[2] for word in argv if word.startswith("--user=")), "")
        shown = (rows[where].format(job) for job, owner in jobs.items() if user in ("", owner))
        return Completed(0, "".join(shown), "")

    slurm = Answers(**{where: answer})
    assert [job.job_id for job in find_jobs(slurm.host, names=[name])] == [7]


def test_a_job_of_another_user_is_found_by_its_number() -> None:
    shown = "JobId=8 JobName=theirs UserId=b(1002) JobState=RUNNING Reason=None ExitCode=0:0\n"
    slurm = Answers(scontrol=Completed(0, shown, ""))
    (job,) = find_jobs(slurm.host, ids=[8])
    assert job.name == "theirs"
    assert not any(word.startswith("--user") for command in slurm.asked for word in command)


def test_a_name_with_a_comma_is_not_split() -> None:
    row = "7|7|RUNNING|1|p|1:00|N/A|N/A|N/A||None|a,b\n8|8|RUNNING|1|p|1:00|N/A|N/A|N/A||None|a\n"
    slurm = Answers(squeue=Completed(0, row, ""))
    (job,) = find_jobs(slurm.host, names=["a,b"])
    assert job.job_id == 7
    assert not any(word.startswith("--name") for command in slurm.asked for word in command)


def test_another_cluster_is_queried_by_name() -> None:
    row = "CLUSTER: cm4\n4717|4717|PENDING|1|p|1:00|N/A|N/A|N/A||None|chain\n"
    slurm = Answers(squeue=Completed(0, row, ""))
    (job,) = find_jobs(slurm.host, ids=[9], names=["chain"], cluster="cm4")
    assert (job.job_id, job.cluster) == (4717, "cm4")
    assert {command[0] for command in slurm.asked} == {"squeue", "scontrol", "sacct"}
    assert {command[1] for command in slurm.asked} == {"--clusters=cm4"}


def test_accounting_knows_jobs_that_the_controller_has_forgotten_and_who_cancelled_them(
    recorded: Recorded,
) -> None:
    sacct = Completed(0, recorded("sacct"), "")
    slurm = Answers(scontrol=answer_by_job(recorded("scontrol_jobs")), sacct=sacct, squeue=rows_of(recorded))
    jobs = {job.job_id: job for job in find_jobs(slurm.host, ids=[4719, 4740, 4714])}
    assert jobs[4719].cancelled_by == 1000
    assert jobs[4719].exit_code == 0
    assert jobs[4740].state is JobState.PREEMPTED
    (asked,) = (command for command in slurm.asked if command[0] == "sacct")
    assert "--jobs=4719,4740" in asked, "one that is told whole needs no second asking"


def test_accounting_is_queried_for_the_last_30_days_of_a_name(recorded: Recorded) -> None:
    slurm = Answers(sacct=Completed(0, recorded("sacct"), ""))
    (job,) = find_jobs(slurm.host, names=["oom | with a bar"])
    assert job.state is JobState.OUT_OF_MEMORY
    assert "--starttime=now-30days" in slurm.asked[-1]


def test_without_accounting_jobs_forgotten_by_the_controller_are_not_found() -> None:
    assert find_jobs(Answers().host, ids=[7], names=["chain"]) == ()
    no_sacct = Completed(127, "", "env: 'sacct': No such file or directory\n")
    assert find_jobs(Answers(sacct=no_sacct).host, ids=[7]) == ()


def test_an_accounting_outage_matters_only_for_jobs_unknown_to_the_controller(recorded: Recorded) -> None:
    away = Completed(1, "", "sacct: error: Problem talking to the database: Connection refused\n")
    slurm = Answers(scontrol=answer_by_job(recorded("scontrol_jobs")), sacct=away, squeue=rows_of(recorded))
    (job,) = find_jobs(slurm.host, ids=[4719])
    assert (job.state, job.cancelled_by) == (JobState.CANCELLED, None)
    with pytest.raises(SchedulerAway, match="Problem talking to the database") as caught:
        find_jobs(slurm.host, ids=[4719, 99])
    assert caught.value.known == (job,), "what the controller tells is known nevertheless"


@pytest.mark.parametrize(
    "message",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "slurm_load_jobs error: Something that no version of ours says",
        "",
    ],
)
def test_a_missing_answer_is_never_reported_as_a_missing_job(message: str) -> None:
    slurm = Answers(scontrol=Completed(1, "", f"{message}\n"), squeue=Completed(1, "", f"{message}\n"))
    for asking in ({"ids": [7]}, {"names": ["chain"]}):
        with pytest.raises(SchedulerAway) as caught:
            find_jobs(slurm.host, **asking)
        assert "login1" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_unreachable_host_counts_as_an_unreachable_scheduler() -> None:
    host = StandInHost("login1", fault=CommandTimedOut("login1", "env", 20))
    with pytest.raises(SchedulerAway, match="scontrol did not finish within 20 s"):
        find_jobs(host, ids=[7])


def test_a_host_without_the_slurm_commands_is_an_error() -> None:
    lacking = Completed(127, "", "env: 'scontrol': No such file or directory\n")
    with pytest.raises(NoCommand, match="scontrol not found on its PATH"):
        ask_partitions(Answers(scontrol=lacking).host)
    with pytest.raises(ClusterError, match="sbatch: not found on PATH; submit on a login node"):
        check_sbatch(StandInHost(answer=lambda argv, stdin: Completed(127, "", "")))
    check_sbatch(StandInHost())


def test_partitions_and_nodes_are_queried(recorded: Recorded) -> None:
    slurm = Answers(
        scontrol=Completed(0, recorded("partitions"), ""), sinfo=Completed(0, recorded("sinfo"), "")
    )
    assert [partition.name for partition in ask_partitions(slurm.host)] == ["debug", "normal", "old"]
    assert ask_node_groups(slurm.host, "debug")[0].partition == "debug"
    assert slurm.asked[-1][-1] == "--partition=debug"
    assert "--all" not in slurm.asked[-1], "sinfo refuses both"


def test_an_empty_query_runs_no_command() -> None:
    slurm = Answers()
    assert find_jobs(slurm.host) == ()
    assert slurm.asked == []
