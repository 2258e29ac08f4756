"""A recipe's job scripts on a real Slurm: what sbatch reads, and the warning before the end of the time.

A stand-in for `caffe-recipes` tells how it was called; what it would train does not matter here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from caffe_recipes.cluster.slurm_jobs import State
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.scripts import render_jobs
from tests.cluster.harness.slurm import Slurm

pytestmark = pytest.mark.cluster

# Waits for a signal when it is first started, and ends well when it is started again.
PROGRAM = r"""#!/bin/bash
echo "$* after ${SLURM_RESTART_COUNT:-0}" >>"$PWD/called"
[ -z "${SLURM_RESTART_COUNT-}" ] || exit 0
case $* in *"${FAIL_AT-none}"*) exit 3 ;; *"${WAIT_AT-none}"*) ;; *) exit 0 ;; esac
kept=runs/digits-local-1/snapshots
trap 'echo USR1 >>"$PWD/called"; mkdir -p $kept; touch $kept/init_iter_3.caffemodel; exit 138' USR1
while :; do sleep 0.1; done
"""


class Place:
    """A folder that all hosts see, with a recipe's jobs and the stand-in."""

    def __init__(self, slurm: Slurm, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder
        for path, text in render_jobs(load_recipe("digits-local")).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        self.program = folder / "program"
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)

    def call(self, *argv: str, **environment: str) -> str:
        given: Mapping[str, str] = {"CAFFE_RECIPES": str(self.program), **environment}
        there = ["env", "-C", str(self.folder), *argv]
        return self.slurm.cluster.run("head", there, env=given).stdout

    def called(self) -> list[str]:
        return (self.folder / "called").read_text().splitlines()


@pytest.fixture
def place(slurm4: Slurm, tmp_path: Path) -> Place:
    folder = slurm4.cluster.shared / tmp_path.name
    folder.mkdir()
    return Place(slurm4, folder)


def test_before_the_end_of_its_time_the_chain_is_stopped_and_queued_again(place: Place) -> None:
    script = "jobs/digits-local/chain.sbatch"
    said = place.call("sbatch", "--parsable", "--time=10", script, "--profile", "a b", WAIT_AT="run")
    job_id = int(said)
    job = place.slurm.wait_for(job_id, State.RUNNING)
    assert (job.name, job.nodes, job.limit_s, job.may_requeue) == ("digits-local", 1, 600, True)
    assert job.stdout == f"{place.folder}/digits-local-{job_id}.out"
    place.slurm.end_soon(job_id, 100)  # it is warned two minutes before
    place.slurm.wait_for(job_id, State.PENDING, 90)
    job = place.slurm.wait_for(job_id, State.COMPLETED)
    assert job.restarts == 1
    nodes = place.folder / f"logs/digits-local/job-{job_id}-nodes"
    line = f"run digits-local --hostfile {nodes} --profile a b after"
    assert place.called() == [f"{line} 0", "USR1", f"{line} 1"]
    assert nodes.read_text() == f"{job.node_list}\n"
    assert Path(job.stdout).read_text().splitlines()[0] == (
        f"digits-local: the time is over; job {job_id} is to be queued again to go on (restart 1 of 10)"
    )


def test_a_phase_that_fails_takes_the_later_ones_with_it(place: Place) -> None:
    said = place.call("bash", "jobs/digits-local/submit.sh", "--nodelist=node2", FAIL_AT="cyc2")
    jobs = dict(line.split() for line in said.splitlines())
    ends = (State.COMPLETED, State.COMPLETED, State.FAILED, State.CANCELLED, State.CANCELLED)
    for name, end in zip(jobs, ends, strict=True):
        place.slurm.wait_for(int(jobs[name]), end)
    assert [line.split()[3] for line in place.called()] == ["init", "cyc1", "cyc2"]
    assert list(jobs)[0::4] == ["phase-1-init", "phase-5-collapse"]
