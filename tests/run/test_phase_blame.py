"""Which host a failed launch blames: never a healthy one on a guess."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from caffe_recipes.caffe.logs import LogSummary
from caffe_recipes.cluster.rank_exits import ENDED_BY_US
from caffe_recipes.run.context import LaunchFailed
from caffe_recipes.run.launch import Followed
from caffe_recipes.run.phase import check_trained, explain_failure
from caffe_recipes.run.trainer_log import LogTail, Trouble
from tests.run.recorded_run import launch_of
from tests.stand_in_host import StandInHost

TRAINING = Mock(last_iter=8, is_stopped=False)
KILLED = ["=   PID 3556 RUNNING AT node2", "=   EXIT CODE: 9"]


def verdict(
    folder: Path,
    *lines: str,
    hosts: tuple[str, ...] = ("node1", "node2"),
    trouble: Trouble | None = None,
    unreachable: tuple[str, ...] = (),
    was_full: bool = False,
) -> LaunchFailed:
    (folder / "log").write_text("".join(f"{line}\n" for line in lines))
    tail = LogTail(folder / "log", LogSummary())
    tail.read(to_end=True)
    followed = Followed(tail, StandInHost("node1"), trouble, unreachable, was_full)
    run = Mock(path=lambda path: folder / path)
    with pytest.raises(LaunchFailed) as caught:
        check_trained(run, TRAINING, launch_of(hosts=hosts), followed)
    return caught.value


def test_of_several_hosts_none_is_blamed_for_a_rank_that_was_killed(tmp_path: Path) -> None:
    failure = verdict(tmp_path, *KILLED)
    killed = "a rank was killed by signal 9 (out of memory?) before the first iteration"
    assert failure.what == (
        f"{killed}; on which of node[1-2] is not known: the launcher ends the others at once"
    )
    assert failure.host is None  # so that no spare replaces it


def test_the_only_host_of_a_launch_is_named(tmp_path: Path) -> None:
    failure = verdict(tmp_path, *KILLED, hosts=("node2",))
    assert failure.what.startswith("node2: a rank was killed by signal 9")


def test_a_host_that_no_longer_answers_is_blamed_for_the_ranks_that_ended(tmp_path: Path) -> None:
    failure = verdict(tmp_path, *KILLED, unreachable=("node1",))
    assert failure.what.startswith("node1 no longer answers; a rank was killed by signal 9")
    assert failure.host == "node1"


def test_weights_that_are_found_damaged_while_a_rank_is_killed_do_not_hide_that_it_was(
    tmp_path: Path,
) -> None:
    spoilt = Trouble("init.caffemodel was damaged while the ranks read it", is_spoilt=True)
    failure = verdict(tmp_path, *KILLED, trouble=spoilt)
    assert failure.what.startswith(
        "a rank was killed by signal 9 (out of memory?) before the first iteration; "
    )
    assert failure.what.endswith(
        "ends the others at once; and init.caffemodel was damaged while the ranks read it"
    )
    ended_by_us = verdict(tmp_path, ENDED_BY_US, *KILLED, trouble=spoilt)
    assert ended_by_us.what == spoilt.what


def test_for_ranks_that_the_run_ended_because_its_disk_was_full_the_disk_is_named(tmp_path: Path) -> None:
    failure = verdict(tmp_path, ENDED_BY_US, *KILLED, was_full=True)
    log = launch_of().log
    assert failure.what == (
        f"the disk of {(tmp_path / log).parent} was full; the run ended it before the first iteration"
    )


MISSING = "[1] F1120 11:49:33.000000 7 db_lmdb.hpp:15] Check failed: mdb_status == 0 (2 vs. 0) No such file"


def explanation(folder: Path, *lines: str, trouble: Trouble | None = None, gone: str = "") -> str:
    (folder / "log").write_text("".join(f"{line}\n" for line in lines))
    tail = LogTail(folder / "log", LogSummary())
    tail.read(to_end=True)
    unreachable = (gone,) if gone else ()
    known = explain_failure(Followed(tail, StandInHost("node1"), trouble, unreachable), TRAINING)
    return known.name if known else ""


def test_the_line_that_is_behind_a_failure_is_explained(tmp_path: Path) -> None:
    assert explanation(tmp_path, MISSING, *KILLED) == "lmdb-missing"
    assert explanation(tmp_path, *KILLED) == "killed"
    assert explanation(tmp_path, "[0] I am of another program") == ""


def test_a_loss_that_is_not_a_number_is_explained(tmp_path: Path) -> None:
    lost = "[0] I1120 11:49:33.000000 7 solver.cpp:312] Iteration 2, loss = nan"
    assert explanation(tmp_path, lost, *KILLED) == "diverged"


def test_what_is_printed_because_a_host_is_gone_or_the_run_ends_the_ranks_is_no_cause(tmp_path: Path) -> None:
    assert explanation(tmp_path, *KILLED, gone="node2") == ""
    assert explanation(tmp_path, *KILLED, trouble=Trouble("is gone", "node2", is_lost=True)) == ""
    assert explanation(tmp_path, ENDED_BY_US, *KILLED) == ""
