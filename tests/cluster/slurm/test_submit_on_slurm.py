"""A chain submitted to a real Slurm of four nodes, as its users do that: by the installed program."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest

from caffe_recipes.cluster.slurm.jobs import JobState
from tests.cluster.faults.faulty_chain import PHASES
from tests.cluster.slurm.submitted_chain import COMMAND, SubmittedChain

pytestmark = pytest.mark.cluster

# Accepts a job, but returns to its caller only once a file `go` exists.
SLOW_SBATCH = """\
#!/bin/sh
case $* in *--test-only*|--version) exec /usr/bin/sbatch "$@" ;; esac
/usr/bin/sbatch "$@" >answer
touch taken
until test -e go; do sleep 0.1; done
cat answer
"""


def test_a_chain_trains_in_one_allocation_to_the_models_of_an_undisturbed_run(
    make_chain: Callable[..., SubmittedChain],
) -> None:
    chain = make_chain(4)
    job_id = chain.submit("--how", "sbcast")
    chain.finish_job(job_id)
    assert chain.launched() == list(PHASES)
    assert "sbcast" in chain.job_output()
    assert (chain.run_folder / "hostfile").read_text() == "node1\nnode2\nnode3\nnode4\n"
    assert all(chain.of(node, "lmdb/data.mdb").exists() for node in chain.cluster.nodes)
    chain.check_files()
    output = chain.call("status", "recipe.yaml")
    assert re.search(r"state +finished", output)
    assert re.search(rf"job +{job_id} has completed", output)
    assert "loss3/top-1" in output
    output = chain.call("submit", "recipe.yaml", "--profile", "site.yaml", code=2)
    assert output.splitlines()[-1].endswith(
        "move its folder away to train again, or use caffe-recipes run --new"
    )
    assert chain.call("cancel", "recipe.yaml", code=2).startswith("Error: ")


def test_each_phase_trains_in_a_job_of_its_own_and_the_one_that_fails_takes_the_rest_with_it(
    chain: SubmittedChain,
) -> None:
    chain.behave(cyc1="nan")
    last = chain.submit("--split")
    assert chain.wait_for_end(last).state is JobState.CANCELLED
    first, second, _ = [each.job_id for each in chain.submissions()]
    assert chain.launched() == ["init", "cyc1"]
    output = chain.call("status", "recipe.yaml")
    assert f"{first} (init) has completed" in output
    assert f"{second} (cyc1) has failed with exit code 3" in output
    assert f"{last} (last) was cancelled by Slurm because a job that it depends on failed" in output
    assert re.search(r"failure +phase cyc1: failed: the loss is nan at iteration 2", output)

    chain.behave()
    last = chain.submit("--split")
    assert [each.phase for each in chain.submissions()] == [*PHASES, "cyc1", "last"]
    chain.finish_job(last)
    assert chain.launched() == ["init", "cyc1", "cyc1", "last"]
    chain.check_files()
    assert chain.status()["state"] == "finished"


def test_a_chain_submitted_again_after_scancel_resumes_at_the_third_phase(chain: SubmittedChain) -> None:
    job_id = chain.submit_amid("last")
    kept = {path: path.stat().st_mtime_ns for path in (chain.run_folder / "snapshots").iterdir()}
    chain.slurm.cluster.run("head", ["scancel", str(job_id)])
    assert chain.wait_for_end(job_id).state is JobState.CANCELLED
    assert f"{job_id} was cancelled" in chain.call("status", "recipe.yaml")
    chain.behave()
    again = chain.submit()
    chain.finish_job(again)
    assert chain.launched() == ["init", "cyc1", "last", "last"]
    assert chain.trained() == ["init", "cyc1", "last", "last"]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    started = [event.get("job") for event in chain.events() if event["event"] == "started"]
    assert started == [str(job_id), str(again)]
    chain.check_files()


def test_a_job_is_watched_from_the_queue_to_its_end(chain: SubmittedChain) -> None:
    blocking = chain.block()
    job_id = chain.submit()
    assert chain.status()["state"] == "waiting"
    watching = chain.start_call("attach", "recipe.yaml")
    watching.wait_until(lambda: f"job {job_id} waits: " in watching.read_output())
    output = chain.call("submit", "recipe.yaml", "--profile", "site.yaml", code=2)
    assert f"already submitted: job {job_id} waits: " in output
    chain.behave(init={"does": "waits", "at": 4})
    chain.slurm.cluster.run("head", ["scancel", str(blocking)])
    chain.wait_until(lambda: "Iteration 4, lr" in chain.log("init"))
    following = chain.start_call("logs", "-f", "recipe.yaml")
    following.wait_until(lambda: "Iteration 4, lr" in following.read_output())
    chain.release()
    assert "model: runs/small-1/snapshots/last_iter_6.caffemodel" in watching.finish()
    assert following.finish().count("Optimization Done.") == 2 * len(PHASES)
    chain.wait_for_end(job_id)
    assert chain.call("logs", "--job", "recipe.yaml").count("finished in") == len(PHASES)
    assert [each.job_id for each in chain.submissions()] == [job_id]


def test_cancel_removes_pending_jobs_and_the_running_one_keeps_a_snapshot(
    chain: SubmittedChain,
) -> None:
    running, *waiting = chain.submit_split_amid("init", stays_at=6)
    cancelling = chain.start_call("cancel", "recipe.yaml")
    chain.wait_until(lambda: "asked Caffe for a snapshot" in chain.job_output())
    chain.release()
    cancelling.finish()
    ends = {chain.wait_for_end(job_id).state for job_id in (running, *waiting)}
    assert ends <= {JobState.CANCELLED, JobState.FAILED}
    assert {each.outcome for each in chain.submissions()} == {"cancelled"}
    output = chain.call("status", "recipe.yaml")
    assert re.search(r"state +interrupted", output)
    assert output.count("was cancelled before it started") == 2
    assert [event["iteration"] for event in chain.events() if event["event"] == "checkpointed"] == [5]


def test_a_job_of_the_user_s_own_sbatch_is_watched_not_doubled_and_cancelled(chain: SubmittedChain) -> None:
    (chain.root / "runs").mkdir()
    chain.behave(init=[{"does": "waits", "at": 4}])
    argv = ["sbatch", "--parsable", "--exclusive", "--job-name=mine", "--output=runs/mine.out"]
    words = ["jobs/small/chain.sbatch", "--profile", "site.yaml"]
    variables = {"CAFFE_RECIPES": COMMAND, "RECIPE_FILE": str(chain.root / "recipe.yaml")}
    started = chain.begin([*argv, *words], **variables)
    job_id = int(started.finish(0))
    chain.wait_until(lambda: "Iteration 4, lr" in chain.log("init"))
    assert f"job      {job_id} is running" in chain.call("status", "recipe.yaml")
    output = chain.call("submit", "recipe.yaml", "--profile", "site.yaml", code=2)
    assert f"already submitted: job {job_id} is running" in output
    cancelling = chain.start_call("cancel", "recipe.yaml")
    chain.wait_until(lambda: "asked Caffe for a snapshot" in chain.job_output())
    chain.release()
    cancelling.finish()
    chain.wait_for_end(job_id)
    assert chain.submissions() == ()
    assert [event["iteration"] for event in chain.events() if event["event"] == "checkpointed"] == [5]


def test_a_submit_killed_after_sbatch_submits_nothing_twice(
    chain: SubmittedChain,
) -> None:
    (chain.root / "bin").mkdir()
    (chain.root / "bin/sbatch").write_text(SLOW_SBATCH)
    (chain.root / "bin/sbatch").chmod(0o755)
    words = ("submit", "recipe.yaml", "--profile", "site.yaml")
    before = {job.job_id for job in chain.slurm.jobs()}
    killed = chain.start_call(*words, PATH=f"{chain.root}/bin:/usr/bin:/bin")
    killed.wait_until((chain.root / "taken").exists)
    killed.kill()
    (chain.root / "go").touch()
    (submission,) = chain.submissions()
    assert submission.outcome == "submitting"
    output = chain.call(*words)
    (job_id,) = {job.job_id for job in chain.slurm.jobs()} - before
    assert f"job {job_id} was already submitted ({submission.name})" in output
    assert [(each.name, each.job_id) for each in chain.submissions()] == [(submission.name, job_id)]
    chain.finish_job(job_id)
    chain.check_files()


def test_a_dry_run_prints_commands_and_scripts_without_slurm(chain: SubmittedChain) -> None:
    words = ("submit", "recipe.yaml", "--profile", "site.yaml", "--dry-run", "--time", "90", "--split")
    output = chain.call(*words, "--show-scripts", PATH="/nowhere")
    lines = output.replace("\\\n", "").splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith(("sbatch ", "env "))]
    assert [argv[argv.index("--") + 1 :][:2] for argv in commands] == [
        ["jobs/small/phase.sbatch", phase] for phase in PHASES
    ]
    for argv in commands:
        assert f"CAFFE_RECIPES={COMMAND}" in argv
        assert {"--exclusive", "--time=01:30:00", "--parsable"} < set(argv)
    assert output.count((chain.root / "jobs/small/phase.sbatch").read_text().rstrip()) == 1
    assert not (chain.root / "runs").exists()
