"""What a submit refuses before anything is submitted: one line each, from the answers of a real Slurm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.slurm.submitted_chain import PROFILE, SubmittedChain

pytestmark = pytest.mark.cluster

PROGRAMS = ("sh", "env", "sleep", "timeout")
# Options of a chain for four nodes, and the expected message.
REFUSED = [
    (("--partition", "nope"), "Slurm has no partition 'nope'; the partitions are debug, short"),
    (("--spares", "1"), "debug has 4 nodes, and the job needs 5; it would never start"),
    (("--partition", "short"), "short allows at most 2 nodes per job, and this job needs 4"),
    (
        ("--partition", "short", "--time", "11"),
        "short runs a job for at most 10 min, and this job needs 11 min",
    ),
    (("--constraint", "gpu"), "Invalid feature specification"),
    (("--time", "soon"), "'soon' is not a Slurm time"),
    (("--profile", "demanding.yaml"), "site: jobs need --account on this machine; give --account"),
    (("--profile", "small.yaml"), "few allows at most 3 nodes, and the recipe needs 4"),
]


def make_path(chain: SubmittedChain) -> Path:
    """Make a folder of what any machine has, but for Slurm's commands."""
    (folder := chain.root / "bin").mkdir()
    for name in PROGRAMS:
        (folder / name).symlink_to(f"/usr/bin/{name}")
    return folder


def test_a_request_that_slurm_would_refuse_or_never_start_is_refused_in_one_line(
    make_chain: Callable[..., SubmittedChain],
) -> None:
    chain = make_chain(4)
    (chain.root / "demanding.yaml").write_text(PROFILE.replace("slurm: {", "slurm: {requires: [account], "))
    (chain.root / "small.yaml").write_text(f"{PROFILE}partitions: {{few: {{nodes: 3}}}}\n")
    before = chain.slurm.jobs()
    asked = [(chain.start_call("submit", "recipe.yaml", *words), reason) for words, reason in REFUSED]
    bare = chain.start_call("submit", "recipe.yaml", PATH=str(make_path(chain)))
    asked.append((bare, "sbatch: not found on PATH"))
    for started, reason in asked:
        *notes, line = started.finish(2).splitlines()
        assert line.startswith("Error: ")
        assert reason in line
        assert [note for note in notes if not note.startswith("time: not known")] == []
    (chain.root / "jobs/small/chain.sbatch").open("a").write("\n# changed by hand\n")
    assert "differs from what the recipe generates" in chain.call("submit", "recipe.yaml", code=2)
    assert chain.slurm.jobs() == before
    assert not (chain.root / "runs").exists()


def test_without_a_submission_there_is_nothing_to_show(chain: SubmittedChain) -> None:
    asked = [chain.start_call(word, "recipe.yaml") for word in ("status", "logs", "attach", "cancel")]
    assert chain.call("status").startswith("no runs in ")
    for started in asked:
        (line,) = started.finish(2).splitlines()
        assert "no run of small found; start one with `caffe-recipes run recipe.yaml`" in line
