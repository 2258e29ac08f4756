"""A recipe's job scripts on a real Slurm: what sbatch reads, and the warning before the end of the time.

A stand-in for `caffe-recipes` records how it was called; what it would train does not matter here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from caffe_recipes.cluster.slurm.jobs import JobState
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.recipe_files import generate
from tests.cluster.harness.slurm import Slurm

pytestmark = pytest.mark.cluster

# Unlike bash, Python can take a signal that it was started with as blocked.
PROGRAM = rf"""#!{sys.executable}
import os, signal, sys, time
words = " ".join(sys.argv[1:])
print(words, file=open("called", "a"))
if os.environ.get("FAIL_AT", "none") in words:
    sys.exit(3)
if os.environ.get("WAIT_AT", "none") not in words:
    sys.exit(0)
def warned(*_):
    print("USR1", file=open("called", "a"))
    sys.exit(0)
signal.signal(signal.SIGUSR1, warned)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
while True:
    time.sleep(0.1)
"""


class Place:
    """A folder that all hosts see, with a recipe's jobs and the stand-in."""

    def __init__(self, slurm: Slurm, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder
        for path, text in generate(load_recipe("digits-local")).items():
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


def test_the_chain_runs_where_it_is_submitted_and_gets_a_signal_before_its_time_limit(place: Place) -> None:
    script = "jobs/digits-local/chain.sbatch"
    output = place.call("sbatch", "--parsable", "--time=10", script, "--profile", "a b", WAIT_AT="run")
    job_id = int(output)
    job = place.slurm.wait_for(job_id, JobState.RUNNING)
    assert (job.name, job.nodes, job.limit_s) == ("digits-local", 1, 600)
    assert job.stdout == f"{place.folder}/digits-local-{job_id}.out"
    place.slurm.end_soon(job_id, 100)  # it is warned two minutes before
    place.slurm.wait_for(job_id, JobState.COMPLETED, 90)
    assert place.called() == ["run digits-local --max-requeues 10 --profile a b", "USR1"]


def test_a_phase_that_fails_takes_the_later_ones_with_it(place: Place) -> None:
    output = place.call("bash", "jobs/digits-local/submit.sh", "--nodelist=node2", FAIL_AT="cyc2")
    jobs = dict(line.split() for line in output.splitlines())
    ends = (JobState.COMPLETED, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.CANCELLED)
    for name, end in zip(jobs, ends, strict=True):
        place.slurm.wait_for(int(jobs[name]), end)
    assert [line.split()[3] for line in place.called()] == ["init", "cyc1", "cyc2"]
    assert list(jobs)[0::4] == ["init", "collapse"]
