from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import resource
import stat
import threading
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest

from caffe_recipes.errors import InputError, RunFailed
from caffe_recipes.run.events import Notice, RunState, StateDraft
from caffe_recipes.run.journal import Journal, JournalError, find_open_launches, fold_journal, load_journal
from tests.run.recorded_run import finished, interrupted, launched

LAUNCH, FINISH = launched()[1], finished("init")[1]


def open_journal(folder: Path) -> Journal:
    return Journal(folder / "journal.jsonl", lambda: 1_000_000_000.25, create=True)


def test_each_event_is_a_line_of_json_with_the_time_in_utc(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.write("staged", lmdb="/tmp/größe", hosts=["a"])
    journal.close()
    line = json.loads((tmp_path / "journal.jsonl").read_text())
    assert line == {
        "format": 1,
        "time": "2001-09-09T01:46:40.250+00:00",
        "event": "staged",
        "lmdb": "/tmp/größe",
        "hosts": ["a"],
    }


def test_the_state_is_a_fold_over_the_events(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.write("started", pid=7, host="login1")
    journal.write("launched", **LAUNCH)
    running = journal.state()
    assert running.launch is not None
    assert (running.pid, running.launch.time_s, running.attempts) == (7, 1_000_000_000.25, {"init": 1})
    journal.write("failed", reason="hosts: one is down")
    assert journal.state().launch is not None
    journal.write("interrupted", signal="SIGINT", trained=False, seconds=0.0)
    assert journal.state().launch is None
    journal.write("launched", **{**LAUNCH, "attempt": 2})
    journal.write("finished", **FINISH)
    journal.write("evaluated", phase="init", outputs={"top-1": 0.5}, log="evaluation-1.log")
    state = journal.state()
    journal.close()
    assert (state.launch, state.attempts, state.outputs) == (None, {"init": 2}, {"top-1": 0.5})
    assert state.finished["init"].loss == 0.25


def test_events_that_only_people_read_do_not_change_the_state(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    before = journal.state()
    journal.write("built", lmdbs=["x"])
    assert journal.state() == before
    journal.close()


@pytest.mark.parametrize("torn", ['{"time": "2026', "\x00\x00\x00", '{"time": "2026-11-20T12:00:00+00:00"}'])
def test_a_torn_line_is_not_read_and_gives_way_to_the_next(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "journal.jsonl"
    journal = open_journal(tmp_path)
    journal.write("started", pid=7, host="login1")
    journal.close()
    with path.open("a") as file:
        file.write(torn)
    assert load_journal(path).pid == 7
    again = open_journal(tmp_path)
    again.write("started", pid=8, host="login1")
    again.close()
    assert load_journal(path).pid == 8
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "line",
    [
        "",
        "what",
        "[]",
        "null",
        '{"event": "started"}',
        '{"time": 5, "event": "started"}',
        '{"time": "2026-11-20T12:00:00+00:00", "event": "launched", "phase": "init"}',
        '{"time": "2026-11-20T12:00:00+00:00", "event": "evaluated", "phase": "", "log": "", "outputs": 3}',
        '{"time": "2026-11-20T12:00:00+00:00", "event": "retrying", "number": "x", "retries": 1}',
        '{"time": "2026-11-20T12:00:00+00:00", "event": "retrying", "number": 1, "retries": 1, "by": 2}',
        '{"time": "2026-11-20T12:00:00+00:00", "event": "foreseen"}',
        '{"time": "2026-11-20T12:00:00+00:00", "event": ["started"]}',
        "[" * 100_000,
    ],
)
def test_a_whole_line_that_no_journal_holds_is_named(line: str) -> None:
    good = '{"format": 1, "time": "2026-11-20T12:00:00+00:00", "event": "built", "lmdbs": []}\n'
    with pytest.raises(JournalError, match=r"^journal.jsonl:2: is not a journal line; .*--new"):
        fold_journal(f"{good}{line}\n", "journal.jsonl")


@pytest.mark.parametrize("number", ['"format": 2, ', ""])
def test_a_journal_of_another_format_is_not_read_and_says_so(tmp_path: Path, number: str) -> None:
    with closing(open_journal(tmp_path)) as journal:
        journal.write("built", lmdbs=["x"])
    path = tmp_path / "journal.jsonl"
    path.write_text(path.read_text().replace('"format": 1, ', number))
    seen = "format 2" if number else "no format number"
    with pytest.raises(JournalError) as caught:
        load_journal(path)
    what = f"written by another version of caffe-recipes ({seen}; this version reads format 1)"
    assert str(caught.value) == f"{path}: {what}; start over with --new"


def test_a_torn_first_line_gives_way_to_one_with_the_format(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"format": 1, "time": "2026')
    assert load_journal(path) == RunState()
    with closing(open_journal(tmp_path)) as journal:
        assert journal.state() == RunState()
        journal.write("started", pid=7, host="login1")
        journal.write("started", pid=8, host="login1")
        assert journal.state().pid == 8
    first, second = map(json.loads, path.read_text().splitlines())
    assert (next(iter(first)), first["format"], "format" in second) == ("format", 1, False)
    assert load_journal(path).pid == 8


def test_a_journal_is_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    first = open_journal(tmp_path)
    first.write("started", pid=os.getpid(), host="here")
    with pytest.raises(
        InputError, match=r"is in use by process \d+ on .*; watch it with `caffe-recipes attach"
    ):
        open_journal(tmp_path)
    first.close()
    open_journal(tmp_path).close()


@pytest.mark.promise("nobody else holds our locks, and we open none of theirs")
def test_nobody_else_can_open_what_a_journal_is_locked_by(tmp_path: Path) -> None:
    with closing(open_journal(tmp_path)):
        assert stat.S_IMODE((tmp_path / "journal.lock").stat().st_mode) == 0o600


@pytest.mark.promise("nobody else holds our locks, and we open none of theirs")
def test_a_reader_of_a_journal_cannot_keep_a_run_from_resuming(tmp_path: Path) -> None:
    open_journal(tmp_path).close()
    with (tmp_path / "journal.jsonl").open("rb") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_SH)
        with closing(open_journal(tmp_path)) as journal:
            journal.write("started", pid=os.getpid(), host="here")
            with pytest.raises(InputError, match=r"is in use by process \d+ on "):
                open_journal(tmp_path)
        assert journal.state().pid == os.getpid()


def test_a_journal_s_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "journal.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JournalError, match=r"journal\.lock: cannot be opened: "):
        open_journal(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_journal_that_is_missing_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be opened"):
        Journal(tmp_path / "journal.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_reported_and_leaves_no_half_line(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.write("staged", lmdb="a")
    before = journal.path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:  # the limit lets a write be short, as a full disk does
        with pytest.raises(
            RunFailed, match=r"journal.jsonl: cannot be written: .*; raise the limit .*, then run the same"
        ):
            journal.write("staged", lmdb="b")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert journal.path.read_bytes() == before
    journal.write("staged", lmdb="c")
    assert [json.loads(line)["lmdb"] for line in journal.path.read_text().splitlines()] == ["a", "c"]


def test_a_branch_that_ends_first_leaves_the_launch_of_the_main_line(tmp_path: Path) -> None:
    with closing(open_journal(tmp_path)) as journal:
        journal.write("branched", phase="side", folder="runs/x/branches/side", hosts=["n2"])
        journal.write("launched", **LAUNCH)
        journal.write("finished", **{**FINISH, "phase": "side"})
        journal.write("failed", phase="other", reason="it ended early")
        state = journal.state()
    assert state.launch is not None
    assert list(state.finished) == ["side"]
    assert state.branches == {"side": "runs/x/branches/side"}


def test_lines_that_several_threads_append_are_all_whole(tmp_path: Path) -> None:
    with closing(open_journal(tmp_path)) as journal:

        def work() -> None:
            for _ in range(20):
                journal.write("built", lmdbs=["n"] * 50)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        journal.state()
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 80


def test_the_launch_of_a_branch_is_found_by_its_own_journal_until_the_run_knows_its_end(
    tmp_path: Path,
) -> None:
    beside = tmp_path / "branches/side"
    beside.mkdir(parents=True)
    with closing(open_journal(tmp_path)) as journal:
        journal.write("branched", phase="side", folder="branches/side", hosts=["n2"])
        assert find_open_launches(tmp_path, journal.state()) == ()
        with closing(Journal(beside / "journal.jsonl", create=True)) as branch:
            branch.write("launched", **{**LAUNCH, "phase": "side"})
        (launch,) = find_open_launches(tmp_path, journal.state())
        assert launch.phase == "side"
        journal.write("finished", **{**FINISH, "phase": "side"})
        assert find_open_launches(tmp_path, journal.state()) == ()


class FullDisk:
    """A file on a disk that accepts a part of the next write, and then nothing until space is freed."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.is_full = file, True

    def write(self, data: bytes) -> int:
        if not self.is_full:
            return self.file.write(data)
        if self.file.seek(0, os.SEEK_END) == 0:
            return self.file.write(data[:5])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def __getattr__(self, name: str) -> object:
        return getattr(self.file, name)


def test_a_disk_that_is_full_for_four_seconds_is_waited_for(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "journal.jsonl", lambda: 0.0, create=True)) as journal:
        disk = FullDisk(journal._file)
        waited: list[float] = []

        def pause(seconds: float) -> None:
            waited.append(seconds)
            disk.is_full = sum(waited) < 4

        journal._file, journal._pause = disk, pause  # type: ignore[assignment]
        journal.write("created", recipe="small", id="a")
        assert journal.state().id == "a"
        assert sum(waited) == 4


def fold(*events: tuple[str, dict[str, object]]) -> RunState:
    time = "2001-09-09T01:46:40.250+00:00"
    lines = [json.dumps({"time": time, "event": event, **fields}) for event, fields in events]
    return fold_journal("".join(f"{line}\n" for line in lines), "journal.jsonl", RunState())


def checkpointed(iteration: int) -> tuple[str, dict[str, object]]:
    state, model = f"init_iter_{iteration}.solverstate", f"init_iter_{iteration}.caffemodel"
    kept = {"state": state, "state_sha256": "0", "model": model, "model_sha256": "1"}
    paths = {"state_path": f"tmp/{state}", "model_path": f"tmp/{model}"}
    return "checkpointed", {"phase": "init", "iteration": iteration, **kept, **paths}


def test_a_draft_has_each_field_of_a_state() -> None:
    filled: dict[str, object] = {}
    for each in dataclasses.fields(RunState):
        filled[each.name] = (
            {"a": "b"} if each.default is dataclasses.MISSING else ("a",) if each.default == () else "x"
        )
    state = RunState(**filled)  # type: ignore[arg-type]
    assert StateDraft(state).freeze() == state


def test_a_state_that_was_handed_out_does_not_change() -> None:
    events: list[tuple[str, dict[str, object]]] = [
        ("started", {"pid": 7, "host": "login1", "job": "12"}),
        launched(hosts=["n1"], weights={"a": "0"}),
        checkpointed(10),
        ("branched", {"phase": "side", "folder": "x", "hosts": []}),
        ("failed", {"phase": "init", "reason": "x", "seconds": 3.0}),
        launched(attempt=2, hosts=["n2"], weights={"a": "1", "b": "1"}),
        finished("init"),
        ("evaluated", {"phase": "init", "outputs": {"top-1": 0.5}, "log": "x"}),
        ("started", {"pid": 8, "host": "login1", "job": "13"}),
    ]
    states = [fold(*events[:number]) for number in range(len(events) + 1)]
    state = RunState()
    kept = [state]
    for name, fields in events:
        line = json.dumps({"time": "2001-09-09T01:46:40.250+00:00", "event": name, **fields})
        state = fold_journal(f"{line}\n", "journal.jsonl", state)
        kept.append(state)
    assert kept == states
    assert kept[6].hosts == ("n1", "n2") and kept[6].weights == {"a": "0", "b": "1"}
    assert kept[-1].hosts == () and kept[-1].kept == () and kept[-1].spent == {"init": 3.0}


def test_a_checkpoint_reported_twice_drops_no_other() -> None:
    state = fold(checkpointed(10), checkpointed(20), checkpointed(20))
    assert [each.iteration for each in state.checkpoints["init"]] == [10, 20]
    again = fold(checkpointed(10), checkpointed(20), checkpointed(10))
    assert [each.iteration for each in again.checkpoints["init"]] == [20, 10]


def test_launches_that_did_not_finish_their_phase_are_counted() -> None:
    failed = ("failed", {"phase": "init", "reason": "x", "seconds": 2.5})
    state = fold(launched(), failed, launched(), interrupted(seconds=4.0))
    assert state.spent == {"init": 6.5}
    # A training that has ended is judged, and counted, by the run that resumes.
    trained = ("interrupted", {"signal": "SIGINT", "trained": True, "seconds": 4.0})
    assert fold(launched(), trained).spent == {}


def test_a_remark_changes_nothing() -> None:
    remark: tuple[str, dict[str, object]] = ("notice", {"message": "waiting for n1", "phase": "init"})
    assert fold(launched(), remark) == fold(launched())


@pytest.mark.parametrize("wrong", [{"pid": [1]}, {"pid": None}, {"host": 7, "restarts": "two"}])
def test_a_field_of_another_type_is_not_a_journal_s(wrong: dict[str, object]) -> None:
    with pytest.raises(JournalError, match=r"^journal.jsonl:1: is not a journal line"):
        fold(("started", {"pid": 7, "host": "login1", **wrong}))


def test_a_remark_does_not_wait_for_room_on_a_full_disk(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "journal.jsonl", lambda: 0.0, create=True)) as journal:
        journal._file = FullDisk(journal._file)  # type: ignore[assignment]
        journal._pause = lambda seconds: pytest.fail("it waits")
        with pytest.raises(RunFailed, match="cannot be written: No space left on device"):
            journal.append(Notice("its disk is full"), patience_s=0.0)
