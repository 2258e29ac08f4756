"""The short chain of the faults' tests, submitted to a real Slurm by the program that users call."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from caffe_recipes.cluster.slurm.jobs import Job, JobState
from caffe_recipes.run.submit.submissions import Submission, load_submissions, submissions_path
from tests.cluster.faults.faulty_chain import FaultyChain, Started
from tests.cluster.harness.slurm import Slurm

COMMAND = str(Path(sys.executable).with_name("caffe-recipes"))
# A node for itself, as on most machines: other chains' ranks beside its own would be found, and refused.
PROFILE = "name: site\ntitle: Nodes of its own\ncopy_with: ssh\nslurm: {options: [--exclusive]}\n"
_PATIENCE_S = 90.0


class SubmittedChain(FaultyChain):
    """A chain in a root with its scripts and a profile; all is done from the head, in the root."""

    def __init__(self, slurm: Slurm, root: Path, nodes: int = 2) -> None:
        """Make the root and generate the scripts."""
        super().__init__(slurm.cluster, root, nodes)
        self.slurm = slurm
        # An outdated hostfile: the hosts of a job are its own.
        (root / "hostfile").write_text("".join(f"node9{number}\n" for number in range(nodes)))
        (root / "site.yaml").write_text(PROFILE)
        self.call("generate", "recipe.yaml")

    def call(self, *words: str, code: int = 0, **variables: str) -> str:
        """Call caffe-recipes; return its output once it has exited with `code`."""
        return self.start_call(*words, **variables).finish(code)

    def start_call(self, *words: str, **variables: str) -> Started:
        """Start the installed caffe-recipes, without waiting for it."""
        return self.begin([COMMAND, *words], **variables)

    def submit(self, *words: str) -> int:
        """Submit, and return the last job's number."""
        self.call("submit", "recipe.yaml", "--profile", "site.yaml", *words)
        job_id = self.submissions()[-1].job_id
        assert job_id is not None
        return job_id

    def submit_amid(self, phase: str, *words: str, stays_at: int | None = None) -> int:
        """Submit, and return the last job's number once a phase waits at iteration 4 for `release`.

        Once released it gets no further than `stays_at`, until a file `doomsday` exists.
        """
        behaviour: list[dict[str, object]] = [{"does": "waits", "at": 4}]
        if stays_at is not None:
            behaviour.append({"does": "waits", "at": stays_at, "until": "doomsday"})
        self.behave(**{phase: behaviour})
        job_id = self.submit(*words)
        self.wait_until(lambda: "Iteration 4, lr" in self.log(phase))
        return job_id

    def submit_split_amid(self, phase: str, stays_at: int) -> list[int]:
        """Submit a job for each phase so, and return their numbers."""
        self.submit_amid(phase, "--split", stays_at=stays_at)
        return [each.job_id for each in self.submissions() if each.job_id is not None]

    def block(self) -> int:
        """Submit another user's job that takes all nodes; return its number once it has them."""
        argv = ["sbatch", "--parsable", "--exclusive", f"-N{len(self.cluster.nodes)}", "--output=/dev/null"]
        job_id = int(self.cluster.run("head", [*argv, "--wrap", "exec sleep 600"]).stdout)
        self.slurm.wait_for(job_id, JobState.RUNNING)
        return job_id

    def submissions(self) -> Sequence[Submission]:
        """Return what the journal of submissions holds."""
        return load_submissions(submissions_path(self.root, "small")).all

    def status(self) -> Mapping[str, Any]:
        """Return the status of the chain as JSON."""
        status: Mapping[str, Any] = json.loads(self.call("status", "recipe.yaml", "--json"))
        return status

    def wait_for_end(self, job_id: int) -> Job:
        """Wait until a job has ended, in any state, and return it."""
        self.wait_until(lambda: self.slurm.job(job_id).state.is_over)
        return self.slurm.job(job_id)

    def finish_job(self, job_id: int) -> Job:
        """Wait until a job has completed successfully, and return it."""
        job = self.wait_for_end(job_id)
        assert job.state is JobState.COMPLETED, f"{job}\n{self.job_output()[-4000:]}"
        return job

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Poll until a condition holds."""
        until = time.monotonic() + _PATIENCE_S
        while not condition():
            assert time.monotonic() < until, f"it never came to that:\n{self.job_output()[-4000:]}"
            time.sleep(0.05)

    def job_output(self) -> str:
        """Return the output of the job scripts and runs so far."""
        return "\n".join(path.read_text() for path in sorted((self.root / "runs").glob("*.out"), key=_age))

    def launched(self) -> list[str]:
        """Return the phases in the order in which they were launched."""
        return [str(event["phase"]) for event in self.events() if event["event"] == "launched"]


def _age(path: Path) -> int:
    return path.stat().st_mtime_ns
