"""Files of an earlier version, kept in `earlier/`: a run, its journal, its jobs, a staged LMDB."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.staging.file_sets import find_source, hash_source
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.monitor.follow import AttachOptions, FollowEnv, RunInterrupted, attach
from caffe_recipes.run.submit.submissions import load_submissions
from tests.cluster.staging.conftest import probe_node

if TYPE_CHECKING:
    from tests.run.conftest import Place

EARLIER = Path(__file__).parent / "earlier"
INIT = "runs/small-1/snapshots/small_init_iter_8.caffemodel"


@pytest.fixture
def begun(place: Place) -> Place:
    """A Caffe root with a run of an earlier version, interrupted in its second phase."""
    shutil.copytree(EARLIER / "small-1", place.root / "runs/small-1")
    return place


def test_a_run_of_an_earlier_version_is_resumed(begun: Place) -> None:
    code, stdout, stderr = begun.call()
    assert (code, stderr) == (0, "")
    assert f"init: already finished; {INIT}" in stdout
    assert begun.trained() == ["cyc1", "last"]
    assert [event["event"] for event in begun.events()].count("created") == 1


def test_the_journal_of_an_earlier_version_is_shown_with_the_lines_of_this_one(begun: Place) -> None:
    output = io.StringIO()
    reporter = Reporter(Console(file=output, soft_wrap=True, highlight=False))
    env = FollowEnv(lambda name, copy_with: LocalHost(name))
    with pytest.raises(RunInterrupted, match="interrupted by SIGINT"):
        attach("small", AttachOptions(str(begun.root)), reporter, env)
    assert output.getvalue().splitlines() == [
        "runs/small-1: log and state of this run; process 6676 on login1",
        "wrote 5 prototxts to prototxt/small",
        "staged 537 kB to /scratch/caffe/tmp/train_lmdb on localhost",
        "init: 8 iterations from the nets' fillers",
        f"init: finished in 0 s, 6,808 images/s; {INIT}",
        f"cyc1: 6 iterations from {INIT}",
    ]


def test_jobs_submitted_by_an_earlier_version_are_known(tmp_path: Path) -> None:
    path = tmp_path / "small.submissions.jsonl"
    shutil.copy(EARLIER / path.name, path)
    latest = load_submissions(path).latest
    assert [(each.name, each.phase, each.job_id) for each in latest] == [
        ("small-3fa210-init", "init", 101),
        ("small-3fa210-cyc1", "cyc1", 102),
        ("small-3fa210-last", "last", 103),
    ]


def test_an_lmdb_staged_by_an_earlier_version_is_used(begun: Place) -> None:
    source, staged = begun.root / "data/train_lmdb/data.mdb", begun.root / "tmp/train_lmdb"
    staged.mkdir(parents=True, mode=0o700)
    shutil.copy(source, staged)
    seen = (staged / "data.mdb").stat()
    seconds, nanoseconds = divmod(seen.st_mtime_ns, 10**9)
    identity = f"{seen.st_size} {seconds}.{nanoseconds:09} {seen.st_ino}"
    digest = hash_source(find_source(source.parent), begun.root / "cache")
    (staged / ".caffe-recipes-staged").write_text(f"caffe-recipes-1 2 {digest} {identity}\n")
    found = probe_node(LocalHost("here"), str(staged), str(source), source.stat().st_size)
    assert (found.kind, found.digest) == ("present", digest)
    code, stdout, _ = begun.call()
    assert code == 0
    assert "staged " not in stdout
