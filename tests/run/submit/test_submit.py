from __future__ import annotations

import os
import re
import shlex
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.cluster.commands import Completed
from caffe_recipes.errors import ClusterError, InputError, RunFailed
from caffe_recipes.run.journal import Journal
from tests.run.conftest import NO_LOSS
from tests.run.recorded_run import WHOLE, failed, finished, launched, started, write_run
from tests.run.submit.fake_slurm import FakeJob, FakeSlurm

if TYPE_CHECKING:
    from tests.run.submit.conftest import Desk


def options_of(call: tuple[str, ...]) -> dict[str, str]:
    found = [word.partition("=") for word in call if word.startswith("--")]
    return {name: value for name, _, value in found}


def test_a_chain_is_submitted_once_under_a_name_of_its_own(desk: Desk) -> None:
    (job,) = desk.submit(time_s=3600.0)
    assert (job.outcome, job.job_id) == ("submitted", 12)
    (call,) = desk.slurm.submitted()
    options = options_of(call)
    assert re.fullmatch(r"small-[0-9a-f]{6}", options["--job-name"])
    assert options["--time"] == "01:00:00"
    assert options["--output"] == str(desk.root / "runs" / f"{job.name}.out").replace("%", "%%")
    assert call[-1] == str(desk.root / "jobs/small/chain.sbatch")
    assert desk.messages[-1] == f"submitted as job 12 ({job.name})"


def test_a_job_finds_caffe_recipes_through_its_environment(desk: Desk) -> None:
    (job,) = desk.submit(time_s=3600.0)
    assert f"CAFFE_ROOT={desk.root}" in job.argv
    assert f"RECIPE_FILE={desk.recipe}" in job.argv
    assert any(word.startswith("CAFFE_RECIPES=/") for word in job.argv)


def test_a_second_submit_names_the_job_that_waits(desk: Desk) -> None:
    desk.submit(time_s=3600.0)
    with pytest.raises(InputError, match=r"already submitted: job 12 waits: its nodes are still in use"):
        desk.submit(time_s=3600.0)
    assert len(desk.slurm.submitted()) == 1


def test_once_a_job_is_over_the_chain_is_submitted_again(desk: Desk) -> None:
    desk.submit(time_s=3600.0)
    desk.slurm.jobs[12].state = "TIMEOUT"
    desk.submit(time_s=3600.0)
    assert [each.job_id for each in desk.journal().all] == [12, 13]


def test_a_submit_killed_after_sbatch_is_not_repeated(desk: Desk) -> None:
    desk.slurm.is_mute = True
    (job,) = desk.submit(time_s=3600.0)
    path = desk.root / "runs/small.submissions.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]))  # killed before the second line
    assert not all(each.is_settled for each in desk.journal().all)
    (adopted,) = desk.submit(time_s=3600.0)
    assert (adopted.name, adopted.job_id, adopted.outcome) == (job.name, 12, "submitted")
    assert f"job 12 was already submitted ({job.name}); it waits: " in desk.messages[-1]
    assert len(desk.slurm.submitted()) == 1


def test_a_submit_killed_before_sbatch_is_repeated(desk: Desk) -> None:
    desk.submit(time_s=3600.0)
    path = desk.root / "runs/small.submissions.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]))
    desk.slurm.jobs.clear()
    desk.submit(time_s=3600.0)
    assert [each.outcome for each in desk.journal().all] == ["submitting", "submitted"]


def test_a_job_whose_sbatch_did_not_answer_is_looked_up_by_name(desk: Desk) -> None:
    desk.slurm.is_mute = True
    (job,) = desk.submit(time_s=3600.0)
    assert (job.job_id, desk.paused) == (12, [1.0])


@pytest.mark.promise("only our own jobs are ours")
@pytest.mark.parametrize("is_taken", [True, False])
def test_another_users_job_of_that_name_is_never_recorded_as_ours(desk: Desk, is_taken: bool) -> None:
    real = desk.slurm._sbatch

    def mimic(call: tuple[str, ...]) -> object:
        done = real(call)
        if "--test-only" not in call:
            if not is_taken:
                desk.slurm.jobs.popitem()
            name = next(word.removeprefix("--job-name=") for word in call if word.startswith("--job-name="))
            desk.slurm.jobs[99] = FakeJob(99, name, user_id=1002)
        return done

    desk.slurm.is_mute = True
    desk.slurm._sbatch = mimic  # type: ignore[method-assign, assignment]
    if is_taken:
        assert [job.job_id for job in desk.submit(time_s=3600.0)] == [12]
    else:
        with pytest.raises(RunFailed, match="the job was not submitted"):
            desk.submit(time_s=3600.0)
    assert 99 not in [job.job_id for job in desk.journal().all]


def test_if_slurm_stops_answering_during_sbatch_the_next_submit_looks_for_the_job(desk: Desk) -> None:
    real = desk.slurm._sbatch

    def vanish(call: tuple[str, ...]) -> object:
        done = real(call)
        if "--test-only" not in call:
            desk.slurm.is_away, desk.slurm.is_mute = True, False
        return done

    desk.slurm.is_mute = True
    desk.slurm._sbatch = vanish  # type: ignore[method-assign, assignment]
    with pytest.raises(RunFailed, match="it first checks what was submitted"):
        desk.submit(time_s=3600.0)
    assert len(desk.paused) == 5
    with pytest.raises(RunFailed, match=r"cannot tell whether .*nothing was submitted"):
        desk.submit(time_s=3600.0)
    desk.slurm.is_away = False
    assert [job.job_id for job in desk.submit(time_s=3600.0)] == [12]
    assert len(desk.slurm.submitted()) == 1


class ThreePauses(list[float]):
    """After the third, Slurm answers again."""

    def __init__(self, slurm: FakeSlurm) -> None:
        super().__init__()
        self._slurm = slurm

    def append(self, seconds: float) -> None:
        super().append(seconds)
        self._slurm.is_away = len(self) < 3


def test_a_slurm_that_does_not_answer_for_a_moment_is_asked_again(desk: Desk) -> None:
    desk.slurm.is_away, desk.paused = True, ThreePauses(desk.slurm)
    assert [job.job_id for job in desk.submit(time_s=3600.0)] == [12]
    assert len(desk.slurm.submitted()) == 1
    assert [line for line in desk.messages if line.endswith("retrying")] != []


def test_a_job_that_slurm_did_not_take_before_it_went_away_is_submitted_again(desk: Desk) -> None:
    real, lost = desk.slurm._sbatch, list[tuple[str, ...]]()

    def lose(call: tuple[str, ...]) -> object:
        if "--test-only" in call or lost:
            return real(call)
        lost.append(call)
        return Completed(1, "", "sbatch: error: Unable to contact slurm controller (connect failure)\n")

    desk.slurm._sbatch = lose  # type: ignore[method-assign, assignment]
    assert [job.job_id for job in desk.submit(time_s=3600.0)] == [12]
    assert len(desk.slurm.submitted()) == 2
    assert len(desk.slurm.jobs) == 1


def test_if_slurm_does_not_answer_nothing_is_submitted_or_written(desk: Desk) -> None:
    desk.slurm.is_away = True
    before = desk.files()
    with pytest.raises(RunFailed, match="nothing was submitted"):
        desk.submit(time_s=3600.0)
    assert (desk.files(), desk.slurm.submitted()) == (before, [])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"partition": "lnog"}, r"Slurm has no partition 'lnog'; the partitions are debug, long"),
        ({"spares": 4}, r"debug has 4 nodes, and the job needs 5; it would never start"),
        ({"time_s": 7260.0}, r"debug runs a job for at most 2 h 00 min, and this job needs 2 h 01 min"),
        ({"profile": "none"}, "unknown profile 'none'"),
    ],
)
def test_a_job_that_slurm_would_not_run_is_one_line_before_anything_is_written(
    desk: Desk, given: dict[str, object], message: str
) -> None:
    before = desk.files()
    with pytest.raises(InputError, match=message) as caught:
        desk.submit(**{"time_s": 3600.0, **given})
    assert "\n" not in str(caught.value)
    assert (desk.files(), desk.slurm.submitted()) == (before, [])


def test_a_machine_without_slurm_is_an_error(desk: Desk) -> None:
    desk.slurm.is_there = False
    with pytest.raises(ClusterError, match="sbatch: not found on PATH; submit on a login node of the"):
        desk.submit()


@pytest.mark.parametrize("was_submitted", [False, True])
def test_a_machine_without_a_slurm_configuration_is_an_error_at_once(
    desk: Desk, *, was_submitted: bool
) -> None:
    if was_submitted:
        desk.submit(time_s=3600.0)
    desk.slurm.is_configured = False
    message = (
        r"login1: Slurm is not configured here \(Could not establish a configuration source\); submit on a "
        "login node of the Slurm cluster; --dry-run shows what would be submitted"
    )
    with pytest.raises(ClusterError, match=message) as caught:
        desk.submit(time_s=3600.0)
    assert (caught.value.exit_code, desk.paused) == (2, [])


def test_a_job_that_sbatch_would_refuse_is_reported_before_anything_is_written(desk: Desk) -> None:
    desk.slurm.refuses_tests = "Batch job submission failed: Invalid account"
    before = desk.files()
    with pytest.raises(ClusterError, match="sbatch: Batch job submission failed: Invalid account; nothing"):
        desk.submit(time_s=3600.0)
    assert desk.files() == before


def test_nodes_that_are_drained_now_are_waited_for(desk: Desk) -> None:
    desk.slurm.nodes = "debug|up|2:00:00|4|drained|n[1-4]\n"
    desk.slurm.refuses_tests = "allocation failure: Requested node configuration is not available"
    assert desk.submit(time_s=3600.0)
    assert desk.messages[0] == (
        "debug has 0 working nodes now, but the job needs 1; "
        "it will wait until more nodes are up; see sinfo -R"
    )
    desk.slurm.jobs[12].state = "FAILED"
    desk.slurm.refuses_tests = "Invalid account"
    with pytest.raises(ClusterError, match="Invalid account"):
        desk.submit(time_s=3600.0)


def test_without_an_estimate_the_partition_s_own_time_is_reported(desk: Desk) -> None:
    desk.submit()
    assert "time: not known, using the default of debug, 30 min; give --time to change it" in desk.messages
    assert "--time" not in options_of(desk.slurm.submitted()[0])


def test_options_required_by_the_site_must_be_given(desk: Desk) -> None:
    profile = desk.root / "site.yaml"
    profile.write_text("name: site\ntitle: A site\nslurm: {qos: normal, requires: [account, qos]}\n")
    with pytest.raises(
        InputError, match="site: jobs need --account on this machine; give --account, or write"
    ):
        desk.submit(profile=str(profile), time_s=3600.0)
    desk.submit(profile=str(profile), time_s=3600.0, account="a b")
    call = desk.slurm.submitted()[0]
    assert (options_of(call)["--account"], options_of(call)["--qos"]) == ("a b", "normal")
    assert call[-2:] == ("--profile", str(profile))


def test_sbatch_options_in_a_profile_count_as_well(desk: Desk) -> None:
    profile = desk.root / "site.yaml"
    options = "[--partition=long, -A, physics, -qbig, --exclusive]"
    profile.write_text(
        f"name: site\ntitle: A site\nslurm: {{requires: [account, qos], options: {options}}}\n"
    )
    desk.submit(profile=str(profile), time_s=3 * 3600.0)  # debug gives two hours
    sbatch_options = options_of(desk.slurm.submitted()[0])
    assert (sbatch_options["--partition"], sbatch_options["--account"], sbatch_options["--qos"]) == (
        "long",
        "physics",
        "big",
    )
    assert "--exclusive" in sbatch_options
    desk.slurm.jobs[12].state = "FAILED"
    with pytest.raises(InputError, match="debug runs a job for at most 2 h 00 min"):
        desk.submit(profile=str(profile), time_s=3 * 3600.0, partition="debug")


def test_the_only_fitting_partition_of_a_profile_is_chosen(desk: Desk) -> None:
    profile = desk.root / "site.yaml"
    partitions = "{short: {hours: 0.5}, debug: {hours: 2}}"
    profile.write_text(f"name: site\ntitle: A site\npartitions: {partitions}\n")
    desk.submit(profile=str(profile), time_s=3600.0)
    assert options_of(desk.slurm.submitted()[0])["--partition"] == "debug"
    with pytest.raises(InputError, match=r"short runs a job for at most 0\.5 h"):
        desk.submit(profile=str(profile), time_s=3600.0, partition="short")


@pytest.mark.parametrize("change", ["missing", "edited"])
def test_only_scripts_that_the_recipe_generates_are_submitted(desk: Desk, change: str) -> None:
    script = desk.root / "jobs/small/chain.sbatch"
    script.unlink() if change == "missing" else script.write_text(f"{script.read_text()}\n")
    with pytest.raises(InputError, match=r"chain\.sbatch: .*; run: caffe-recipes generate .*small\.yaml"):
        desk.submit()


def test_phases_are_submitted_each_after_the_previous_one(desk: Desk) -> None:
    desk.slurm.jobs[7] = FakeJob(7, "data", state="RUNNING")
    jobs = desk.submit(split=True, after=7, time_s=600.0)
    assert [(job.phase, job.job_id) for job in jobs] == [("init", 13), ("cyc1", 14), ("last", 15)]
    after = [options_of(call)["--dependency"] for call in desk.slurm.submitted()]
    assert after == ["afterok:7", "afterok:13", "afterok:14"]
    assert all("--kill-on-invalid-dep=yes" in call for call in desk.slurm.submitted())
    assert len({job.group for job in jobs}) == 1


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("", r"--after: job 7 is unknown to Slurm; leave out --after if it has completed"),
        ("FAILED", "--after: a job after job 7 would never start: it "),
        ("CANCELLED", "--after: a job after job 7 would never start: it was cancelled"),
    ],
)
def test_a_job_that_cannot_be_waited_for_is_reported_before_anything_is_written(
    desk: Desk, state: str, message: str
) -> None:
    if state:
        desk.slurm.jobs[7] = FakeJob(7, "data", state=state)
    before = desk.files()
    with pytest.raises(InputError, match=message) as caught:
        desk.submit(after=7, time_s=600.0)
    assert "\n" not in str(caught.value)
    assert (desk.files(), desk.slurm.submitted()) == (before, [])


def test_a_job_that_has_ended_well_may_be_waited_for(desk: Desk) -> None:
    desk.slurm.jobs[7] = FakeJob(7, "data", state="COMPLETED")
    assert desk.submit(after=7, time_s=600.0)


def test_phases_that_are_finished_are_not_submitted(desk: Desk) -> None:
    write_run(desk.root, desk.recipe, started(), launched(), finished("init"), failed("cyc1", "x"))
    assert [job.phase for job in desk.submit(split=True, time_s=600.0)] == ["cyc1", "last"]


def test_if_a_phase_is_refused_the_previous_ones_are_cancelled(desk: Desk) -> None:
    desk.slurm.refuses = {"-cyc1": "Batch job submission failed: too many jobs"}
    with pytest.raises(ClusterError, match=r"too many jobs; the previous jobs were cancelled: 12"):
        desk.submit(split=True, time_s=600.0)
    assert desk.slurm.jobs[12].state == "CANCELLED"
    assert [each.outcome for each in desk.journal().all] == ["cancelled", "refused"]


def test_a_killed_submit_by_phases_continues_after_its_last_job(desk: Desk) -> None:
    desk.submit(split=True, time_s=600.0)
    path = desk.root / "runs/small.submissions.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))  # cyc1's number is not written
    del desk.slurm.jobs[14]
    jobs = desk.submit(split=True, time_s=600.0)
    assert [(job.phase, job.job_id) for job in jobs] == [("last", 14)]
    assert options_of(desk.slurm.submitted()[-1])["--dependency"] == "afterok:13"
    assert [(each.phase, each.job_id) for each in desk.journal().latest] == [
        ("init", 12),
        ("cyc1", 13),
        ("last", 14),
    ]
    with pytest.raises(InputError, match="already submitted"):
        desk.submit(split=True, time_s=600.0)


def test_a_submit_killed_before_the_sbatch_of_a_phase_continues_with_that_phase(desk: Desk) -> None:
    desk.submit(split=True, time_s=600.0)
    path = desk.root / "runs/small.submissions.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:5]))  # last was not yet submitted
    del desk.slurm.jobs[14]
    (job,) = desk.submit(split=True, time_s=600.0)
    assert (job.phase, options_of(desk.slurm.submitted()[-1])["--dependency"]) == ("last", "afterok:13")
    assert len(desk.slurm.submitted()) == 4
    with pytest.raises(InputError, match="already submitted"):
        desk.submit(split=True, time_s=600.0)


def test_a_prototxt_that_the_job_would_refuse_is_reported_before_it_waits(desk: Desk) -> None:
    solver = desk.root / "prototxt/small/solver_init.prototxt"
    solver.write_text(solver.read_text().replace("base_lr", "# mine\nbase_lr"))
    before = desk.files()
    with pytest.raises(InputError) as caught:
        desk.submit(time_s=3600.0)
    what = "differs from what the recipe generates, and the job would refuse it"
    command = f"caffe-recipes generate '{desk.recipe}' --out '{desk.root}' --overwrite"
    assert str(caught.value) == f"{solver}: {what}; move it away, or overwrite it: {command}"
    assert (desk.files(), desk.slurm.submitted()) == (before, [])


def test_an_error_of_lint_is_reported_before_a_job_waits(desk: Desk) -> None:
    (desk.root / "own.prototxt").write_text(NO_LOSS)
    desk.change("builder: resnet_small", "prototxt: own.prototxt")
    before = desk.files()
    with pytest.raises(InputError, match=r"\[no-loss\] .*lint --explain no-loss"):
        desk.submit(time_s=3600.0)
    assert (desk.files(), desk.slurm.submitted()) == (before, [])


def test_nodes_that_failed_are_not_tried_again(desk: Desk) -> None:
    desk.submit(time_s=3600.0)
    desk.slurm.jobs[12].state, desk.slurm.jobs[12].failed_node = "NODE_FAIL", "n2"
    write_run(
        desk.root,
        desk.recipe,
        started(job="12"),
        launched(),
        failed("init", "x"),
        ("ending", {"phase": "init", "reason": "x", "host": "n3"}),
    )
    desk.submit(time_s=3600.0)
    assert options_of(desk.slurm.submitted()[-1])["--exclude"] == "n2,n3"
    assert "excluding n2, n3, which failed before; --include-failed uses them again" in desk.messages


def test_nodes_that_failed_before_the_last_time_are_not_tried_again_either(desk: Desk) -> None:
    desk.submit(time_s=3600.0)
    desk.slurm.jobs[12].state, desk.slurm.jobs[12].failed_node = "NODE_FAIL", "n2"
    desk.submit(time_s=3600.0)
    desk.slurm.jobs[13].state = "FAILED"
    desk.submit(time_s=3600.0)
    assert options_of(desk.slurm.submitted()[-1])["--exclude"] == "n2"
    desk.slurm.jobs[14].state = "FAILED"
    desk.submit(time_s=3600.0, include_failed=True)
    assert "--exclude" not in options_of(desk.slurm.submitted()[-1])


def test_nodes_that_the_user_excluded_are_tried_again_without_a_message(desk: Desk) -> None:
    desk.submit(time_s=3600.0, sbatch_options=("--exclude=n2",))
    desk.slurm.jobs[12].state = "FAILED"
    desk.submit(time_s=3600.0)
    assert "--exclude" not in options_of(desk.slurm.submitted()[-1])
    assert not [line for line in desk.messages if "failed before" in line]


def test_nodes_that_the_user_excludes_do_not_count_as_left(desk: Desk) -> None:
    desk.submit(time_s=3600.0, spares=2)
    desk.slurm.jobs[12].state, desk.slurm.jobs[12].failed_node = "NODE_FAIL", "n3"
    desk.submit(time_s=3600.0, spares=2, sbatch_options=("--exclude=n2",))
    assert "n3 failed before, but too few nodes are left without it: retrying" in desk.messages


def test_as_many_failed_nodes_as_the_job_needs_are_tried_again(desk: Desk) -> None:
    desk.submit(time_s=3600.0, spares=2)
    desk.slurm.jobs[12].state, desk.slurm.jobs[12].failed_node = "NODE_FAIL", "n[2-3]"
    desk.submit(time_s=3600.0, spares=2)
    assert options_of(desk.slurm.submitted()[-1])["--exclude"] == "n2"
    assert "n3 failed before, but too few nodes are left without it: retrying" in desk.messages


def test_failed_nodes_are_tried_again_if_slurm_has_too_few_others(desk: Desk) -> None:
    desk.submit(time_s=3600.0)
    desk.slurm.jobs[12].state, desk.slurm.jobs[12].failed_node = "NODE_FAIL", "n[2-3]"
    desk.slurm.refuses_excluding = "allocation failure: Requested node configuration is not available"
    desk.submit(time_s=3600.0)
    assert "--exclude" not in options_of(desk.slurm.submitted()[-1])
    assert "n2, n3 failed before, but too few nodes are left without them: retrying" in desk.messages


def test_a_finished_run_is_reported_and_nothing_submitted(desk: Desk) -> None:
    write_run(desk.root, desk.recipe, *WHOLE)
    with pytest.raises(InputError, match="runs/small-1: is finished: a job would have nothing to do"):
        desk.submit(time_s=3600.0)


def test_a_recipe_that_its_run_would_refuse_is_not_submitted(desk: Desk) -> None:
    write_run(desk.root, desk.recipe, started(), launched(), finished("init"), failed("cyc1", "x"))
    desk.change("base_lr: 0.05", "base_lr: 0.04")
    before = desk.files()
    with pytest.raises(InputError, match=r"base_lr: 0\.05 -> 0\.04; undo the change to resume this run, or "):
        desk.submit(time_s=3600.0)
    assert (desk.files(), desk.slurm.submitted()) == (before, [])


def test_phases_after_live_ones_are_not_submitted_if_the_run_would_refuse_them(desk: Desk) -> None:
    desk.submit(split=True, time_s=600.0)
    path = desk.root / "runs/small.submissions.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
    del desk.slurm.jobs[14]
    write_run(desk.root, desk.recipe, started(host="node7", job="12"), launched())
    desk.change("base_lr: 0.05", "base_lr: 0.04")
    with pytest.raises(InputError, match=r"base_lr: 0\.05 -> 0\.04; undo the change"):
        desk.submit(split=True, time_s=600.0)
    assert len(desk.slurm.submitted()) == 3


def test_a_trainer_that_a_killed_run_may_have_left_is_reported(desk: Desk) -> None:
    write_run(desk.root, desk.recipe, started(), launched())
    with pytest.raises(InputError, match=r"phase init was started on .*, and its outcome is unknown"):
        desk.submit(time_s=3600.0)
    assert desk.slurm.submitted() == []


def test_an_active_local_run_is_not_submitted(desk: Desk) -> None:
    folder = write_run(desk.root, desk.recipe, started(os.getpid()), launched())
    with (
        closing(Journal(folder / "journal.jsonl")),
        pytest.raises(InputError, match=f"is in use by process {os.getpid()} on .*; wait for it, or"),
    ):
        desk.submit(time_s=3600.0)


def test_while_a_job_of_the_user_s_own_sbatch_lives_nothing_is_submitted(desk: Desk) -> None:
    write_run(desk.root, desk.recipe, started(host="node7", job="50"), launched())
    desk.slurm.jobs[50] = FakeJob(50, "mine", state="RUNNING")
    with pytest.raises(InputError, match="already submitted: job 50 is running; cancel it first"):
        desk.submit(time_s=3600.0)
    assert desk.slurm.submitted() == []


def test_after_a_job_of_the_user_s_own_has_ended_the_run_is_resumed(desk: Desk) -> None:
    write_run(desk.root, desk.recipe, started(host="node7", job="50"), failed("init", "x"))
    desk.slurm.jobs[50] = FakeJob(50, "small", state="TIMEOUT")
    assert desk.submit(time_s=3600.0)


def test_a_job_of_another_cluster_is_queried_there(desk: Desk) -> None:
    desk.slurm.cluster = "cm4"
    jobs = desk.submit(time_s=600.0, split=True)
    assert [job.cluster for job in jobs] == ["cm4"] * 3
    assert ["--clusters=cm4" in call for call in desk.slurm.submitted()] == [False, True, True]
    assert "init: submitted as job 12 on cm4" in desk.messages[-3]
    with pytest.raises(InputError, match="already submitted: job 12 \\(init\\) waits"):
        desk.submit(time_s=600.0, split=True)


def test_a_job_without_an_answer_is_looked_up_on_all_possible_clusters(desk: Desk) -> None:
    profile = desk.root / "site.yaml"
    profile.write_text("name: site\ntitle: A site\nslurm: {options: [-M, 'cm2,cm4']}\n")
    desk.slurm.cluster, desk.slurm.is_mute = "cm4", True
    (job,) = desk.submit(time_s=600.0, profile=str(profile))
    assert (job.job_id, job.cluster) == (12, "cm4")


def test_a_job_that_another_cluster_of_the_federation_has_is_not_over(desk: Desk) -> None:
    desk.submit(time_s=600.0)
    desk.slurm.jobs[12].state = "REVOKED"
    with pytest.raises(
        RunFailed, match="cannot tell whether job 12 is queued or running: it was moved to another"
    ):
        desk.submit(time_s=600.0)
    assert len(desk.slurm.submitted()) == 1


def test_a_dry_run_shows_commands_and_scripts_and_writes_nothing(desk: Desk) -> None:
    desk.slurm.is_there = False
    before = desk.files()
    text = desk.describe(split=True, time_s=600.0, mail_user="me@x.org", arguments=("--how", "sbcast"))
    lines = text.replace("\\\n", "").splitlines()
    assert lines[0] == "jobs:         3 jobs, one for each phase, each after the one before"
    commands = [shlex.split(line) for line in lines if line.startswith(("sbatch ", "env "))]
    assert ["--dependency=afterok:<job of init>" in words for words in commands] == [False, True, False]
    assert all("--mail-user=me@x.org" in words and words[-2:] == ["--how", "sbcast"] for words in commands)
    assert "#!" not in text
    shown = desk.describe(split=True, time_s=600.0, with_scripts=True)
    assert shown.count("#!/usr/bin/env bash") == 1
    assert (desk.files(), desk.slurm.calls) == (before, [])


@pytest.mark.promise("nothing is run or obeyed that others could change")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_no_script_is_submitted_that_another_user_can_exchange(desk: Desk, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    shutil.copytree(desk.root / "jobs", shared / "theirs/jobs")
    for path in (shared / "theirs", *(shared / "theirs").rglob("*")):
        os.chown(path, 54321, 54321)
    with pytest.raises(InputError, match=rf"is used with {shared}/theirs, which belongs to user 54321"):
        desk.submit(time_s=3600.0, out=shared / "theirs")
    assert desk.slurm.submitted() == []


@pytest.mark.promise("nothing is run or obeyed that others could change")
def test_nothing_is_submitted_from_a_root_where_another_user_can_put_journals(desk: Desk) -> None:
    victim = desk.root.parent / "profile"
    victim.write_text("mine")
    (desk.root / "runs").mkdir(exist_ok=True)
    (desk.root / "runs/small.submissions.jsonl").symlink_to(victim)
    desk.root.chmod(0o1777)
    with pytest.raises(InputError, match="can be changed by anybody; make it writable only by you"):
        desk.submit(time_s=3600.0)
    assert (victim.read_text(), desk.slurm.submitted()) == ("mine", [])
