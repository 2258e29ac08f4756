from __future__ import annotations

import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from caffe_recipes.cluster.commands import COMMAND_S, Completed, Host
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.errors import ClusterError, HostFailed, InputError, RunFailed
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.journal import Journal
from caffe_recipes.run.monitor.follow import AttachOptions, FollowEnv, attach
from caffe_recipes.run.monitor.followed_run import FollowedRun
from caffe_recipes.run.monitor.run_files import FilePiece
from tests.cli.command_line import call_main
from tests.run.recorded_run import (
    HERE,
    LOG,
    WHOLE,
    Event,
    finished,
    interrupted,
    launched,
    started,
    write_run,
)
from tests.stand_in_host import StandInHost, answer_call

if TYPE_CHECKING:
    from tests.run.conftest import Place


class Watcher:
    """Watches as attach does; its clock advances when it pauses, and `meanwhile` is called then."""

    def __init__(self, place: Place, connect: Callable[[str], Host] = LocalHost) -> None:
        self.place, self.output, self.now_s = place, io.StringIO(), 0.0
        self.connect = connect
        self.meanwhile: Callable[[str], object] = lambda output: None
        self.rests_s = 0.02
        self.until = time.monotonic() + 600

    def watch(self, run: str = "small", on: str | None = None, *, once: bool = False) -> str:
        """Attach, and return its output."""
        ticks = itertools.count(0, 60)  # each line of progress is due
        reporter = Reporter(Console(file=self.output, soft_wrap=True, highlight=False), lambda: next(ticks))
        env = FollowEnv(lambda name, copy_with: self.connect(name), self._pause, lambda: self.now_s)
        attach(run, AttachOptions(str(self.place.root), on, once), reporter, env)
        return self.output.getvalue()

    def _pause(self, seconds: float) -> None:
        assert time.monotonic() < self.until, self.output.getvalue()
        self.now_s += seconds
        self.meanwhile(self.output.getvalue())
        time.sleep(self.rests_s)


def make_run(place: Place, *events: Event, log: str = "") -> Path:
    """Write a run without a process, up to these events."""
    folder = write_run(place.root, place.recipe, *events, log=log)
    (folder / "snapshots" / "last.caffemodel").write_bytes(b"weights")
    return folder


@pytest.mark.parametrize("on", [None, "localhost"])
def test_attach_prints_the_lines_of_the_run_up_to_its_table(place: Place, on: str | None) -> None:
    place.behave(cyc1="waits")
    run, watcher = place.start(), Watcher(place)
    while not (place.root / "runs/small-1/journal.jsonl").exists():
        time.sleep(0.02)

    def release(output: str) -> None:
        if "cyc1 2/3  4/6" in output:
            (place.root / "release").touch()

    watcher.meanwhile = release
    lines = watcher.watch(on=on).splitlines()
    ours, _ = run.communicate(timeout=600)
    assert run.returncode == 0
    table = next(index for index, line in enumerate(lines) if line.startswith("phase "))
    assert lines[table:] == ours.splitlines()[-len(lines[table:]) :]
    begins = f"runs/small-1: log and state of this run; process {run.pid} on {HERE}"
    whole = ours.splitlines()
    run_s = [line for line in whole[whole.index(begins) :] if not line.startswith("  ")]
    assert [line for line in lines if not line.startswith("  ")] == run_s  # all but progress


def test_attach_writes_and_locks_nothing(place: Place) -> None:
    folder = make_run(place, started(), launched(), log=LOG)
    holder, watcher = Journal(folder / "journal.jsonl"), Watcher(place)
    holder.write("started", pid=os.getpid(), host=HERE)
    before = place.tree()

    def finish_run(output: str) -> None:
        assert place.tree() == before
        holder.close()
        journal = Journal(folder / "journal.jsonl")  # and so can a run
        for event, details in WHOLE[2:]:
            journal.write(event, **details)
        journal.close()

    watcher.meanwhile = finish_run
    assert "model: runs/small-1/snapshots/last.caffemodel" in watcher.watch()


@pytest.mark.parametrize("on", [None, "localhost"])
def test_attach_once_prints_the_state_of_a_run(place: Place, on: str | None) -> None:
    start = "runs/small-1/snapshots/small_init_iter_8.caffemodel"
    folder = make_run(place, started(), launched(), finished("init"), launched("cyc1", starts_from=start))
    (folder / "logs" / "cyc1-1.log").write_text(LOG)
    journal = folder / "journal.jsonl"
    journal.write_text(journal.read_text().replace(str(2**22 + 1), str(os.getpid())))
    with closing(Journal(journal)):
        output = Watcher(place).watch(on=on, once=True)
    assert output.splitlines()[1:] == [
        "init: 8 iterations from the nets' fillers",
        "init: finished in 3 s, 1,234 images/s; runs/small-1/snapshots/init.caffemodel",
        f"cyc1: 6 iterations from {start}",
        "  cyc1 2/3  2/6  lr 0.1         loss 1.250       128 images/s  "
        "phase    0:02 left  run     0:04 left",
    ]


@pytest.mark.parametrize("given", ["runs/small-1", "runs/small-1/", "small-1", "small", "YAML", "folder"])
def test_a_run_is_found_by_its_folder_its_name_and_its_recipe(place: Place, given: str) -> None:
    folder = make_run(place, *WHOLE)
    output = Watcher(place).watch({"YAML": str(place.recipe), "folder": str(folder)}.get(given, given))
    assert output.splitlines()[-2:] == [
        "loss3/top-1: 75.00% (reported: 76.3%)",
        "model: runs/small-1/snapshots/last.caffemodel",
    ]


@pytest.mark.parametrize("on", [None, "localhost"])
def test_a_finished_run_with_a_missing_model_is_reported(place: Place, on: str | None) -> None:
    folder = make_run(place, *WHOLE)
    model, named = folder / "snapshots/last.caffemodel", "model: runs/small-1/snapshots/last.caffemodel"
    assert Watcher(place).watch(on=on, once=True).splitlines()[-1] == named
    model.unlink()
    gone = f"{model}: the model is missing; restore it, or train again with --new"
    assert Watcher(place).watch(on=on, once=True).splitlines()[-2:] == [named, gone]


def test_for_a_recipe_the_latest_run_is_watched(place: Place) -> None:
    first = make_run(place, *WHOLE)
    for number in (9, 10):
        (first.parent / f"small-{number}").mkdir()
        for name in ("journal.jsonl", "recipe.json"):
            (first.parent / f"small-{number}" / name).write_text((first / name).read_text())
    assert Watcher(place).watch("small").startswith("runs/small-10: ")


def test_a_missing_run_is_reported_with_the_existing_ones(place: Place) -> None:
    make_run(place)
    with pytest.raises(InputError, match=r"no run or recipe is named 'smal-1'; did you mean 'small-1'\?"):
        Watcher(place).watch("smal-1")


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not JSON"), ("[]", "valid"), ('{"format": 1, "name": "x"}', "title: Field required")],
)
def test_a_damaged_recipe_is_named(place: Place, text: str, message: str) -> None:
    (make_run(place) / "recipe.json").write_text(text)
    with pytest.raises(InputError, match=rf"small-1/recipe\.json: is not the recipe of a run: .*{message}"):
        Watcher(place).watch()


@pytest.mark.parametrize("once", [True, False])
def test_a_failed_run_ends_as_the_run_did(place: Place, once: bool) -> None:
    make_run(place, started(), launched(), ("failed", {"phase": "init", "reason": "the loss is nan"}))
    with pytest.raises(RunFailed) as caught:
        Watcher(place).watch(once=once)
    assert str(caught.value) == "phase init: failed: the loss is nan; log: runs/small-1/logs/init-1.log"


def test_an_interrupted_run_is_reported_with_the_command_that_resumes_it(place: Place) -> None:
    make_run(place, started(), launched(), interrupted())
    with pytest.raises(RunFailed, match="interrupted by SIGINT; `caffe-recipes run` with its recipe resumes"):
        Watcher(place).watch()


def test_a_process_that_died_silently_is_not_waited_for(place: Place) -> None:
    place.behave(init="waits")
    run = place.start()
    log = place.root / "runs/small-1/logs/init-1.log"
    while not log.exists() or "Iteration 4, lr" not in log.read_text():
        time.sleep(0.02)
    watcher = Watcher(place)

    def kill(output: str) -> None:
        run.kill()
        run.wait()

    watcher.meanwhile = kill
    with pytest.raises(RunFailed) as caught:
        watcher.watch(str(place.recipe))
    command = f"`caffe-recipes run '{place.recipe}'`"
    assert (
        str(caught.value) == f"runs/small-1: process {run.pid} on {HERE} has ended unexpectedly, "
        f"but 1 rank on {HERE} still trains; {command} resumes it"
    )
    assert "init 1/3  4/8" in watcher.output.getvalue()
    run.communicate()
    (place.root / "release").touch()


CHECKPOINT = dict.fromkeys(
    ("state", "state_sha256", "model", "model_sha256", "state_path", "model_path"), "x"
)


def test_a_run_that_continues_after_a_failure_is_followed(place: Place) -> None:
    failed: Event = ("failed", {"phase": "init", "reason": "node3 is dead"})
    more: tuple[Event, ...] = (
        ("retrying", {"number": 1, "retries": 3}),
        ("replaced", {"host": "node3", "spare": "node9"}),
        ("checkpointed", {**CHECKPOINT, "phase": "init", "iteration": 4000}),
    )
    make_run(place, started(), launched(), failed, *more, launched("init", 2), *WHOLE[2:])
    lines = Watcher(place).watch().splitlines()
    assert lines[2:7] == [
        "phase init: failed: node3 is dead; log: runs/small-1/logs/init-1.log",
        "retrying (1 of 3)",
        "node9 replaces node3",
        "init: checkpoint at iteration 4,000",
        "init: 8 iterations from the nets' fillers",
    ]


def test_the_work_of_earlier_processes_is_summarised(place: Place) -> None:
    failed: Event = ("failed", {"phase": "cyc1", "reason": "x"})
    make_run(place, *WHOLE[:3], launched("cyc1"), failed, started(77), launched("cyc1", 2), *WHOLE[3:])
    lines = Watcher(place).watch().splitlines()
    assert lines[0].endswith(f"; process 77 on {HERE}")
    assert lines[1] == "init: already finished; runs/small-1/snapshots/small_init_iter_8.caffemodel"
    assert not any("failed" in line for line in lines)


def test_a_notice_is_shown_and_does_not_count_as_a_resume(place: Place) -> None:
    failed: Event = ("failed", {"phase": "init", "reason": "x"})
    remark: Event = ("notice", {"message": "first the end of side is waited for, which trains"})
    of_phase: Event = ("notice", {"message": "no checkpoint: the disk is full", "phase": "init"})
    make_run(place, started(), launched(), of_phase, failed, remark)
    watcher = Watcher(place)
    with pytest.raises(RunFailed, match=r"^phase init: failed: x; log: "):
        watcher.watch()
    lines = [line for line in watcher.output.getvalue().splitlines() if not line.startswith("  ")]
    assert lines[2:] == [
        "init: no checkpoint: the disk is full",
        "first the end of side is waited for, which trains",
    ]


def test_the_end_of_a_long_log_is_read(place: Place) -> None:
    noise = "[0] " + "x" * 4091 + "\n"
    folder = make_run(place, started(), launched(), log=noise * 600 + LOG)
    with closing(Journal(folder / "journal.jsonl")) as held:
        held.write("started", pid=os.getpid(), host=HERE)
        assert "  init 1/3  2/8  lr 0.1" in Watcher(place).watch(once=True)


class LosesTouch(LocalHost):
    """A host whose connection is lost for a while, after a few commands."""

    commands = 0

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        LosesTouch.commands += 1
        if 4 < LosesTouch.commands < 9:
            raise HostFailed(self.name, "the connection was lost", "check the host")
        return super().run(argv, timeout_s)


def test_a_lost_connection_is_reported_once_and_opened_again(place: Place) -> None:
    folder = make_run(place, started(), launched(), log=LOG)
    holder, watcher = Journal(folder / "journal.jsonl"), Watcher(place, LosesTouch)
    holder.write("started", pid=os.getpid(), host=HERE)
    LosesTouch.commands = 0

    def finish_once_connected(output: str) -> None:
        if "connected again" in output:
            for event, details in WHOLE[2:]:
                holder.write(event, **details)

    watcher.meanwhile = finish_once_connected
    lines = watcher.watch(on="login1").splitlines()
    holder.close()
    assert lines.count("login1: the connection was lost; check the host; retrying") == 1
    assert lines.count("login1: connected again") == 1
    assert watcher.now_s > 10, "it is not tried all the time"
    assert lines[-1].startswith("model: ")


def test_a_host_that_cannot_be_reached_at_first_is_an_error(place: Place) -> None:
    fault = HostFailed("login1", "is not known", "add its key")
    with pytest.raises(ClusterError, match="login1: is not known; add its key"):
        Watcher(place, lambda name: StandInHost(name, fault=fault)).watch(on="login1")


def test_a_process_on_another_host_is_looked_up_there(place: Place) -> None:
    make_run(place, started(77, "login7"), launched(), log=LOG)
    records = ("node login7", "lives no", "end")
    host = StandInHost("login7", answer=lambda argv, stdin: answer_call(argv, *records))
    with pytest.raises(RunFailed, match="process 77 on login7 has ended unexpectedly"):
        Watcher(place, lambda name: host).watch()
    assert host.asked[0][0][5:] == ("look", "77", "login7", str(place.root / "runs/small-1/journal.jsonl"))


def be_dead(name: str) -> Host:
    return StandInHost(name, fault=HostFailed(name, "does not answer", "check it"))


def be_no_host(name: str) -> Host:
    raise InputError("", f"{name!r} does not answer", "write a name or an address")


@pytest.mark.parametrize("reach", [be_dead, be_no_host])
def test_if_the_host_does_not_answer_the_process_is_unknown_and_not_ended(
    place: Place, reach: Callable[[str], Host]
) -> None:
    folder = make_run(place, started(77, "login7"), launched(), log=LOG)
    watcher = Watcher(place, reach)

    watcher.rests_s = 0

    def fail_after_a_minute(output: str) -> None:
        if watcher.now_s > 60:
            make_failed(folder)

    watcher.meanwhile = fail_after_a_minute
    with pytest.raises(RunFailed, match="phase init: failed: at last"):
        watcher.watch()
    output = watcher.output.getvalue()
    assert (
        output.count("cannot tell whether process 77 on login7 is alive: ")
        == output.count("does not answer")
        == 1
    )


def make_failed(folder: Path) -> None:
    text = (folder / "journal.jsonl").read_text()
    if "at last" not in text:
        line = {
            "time": "2026-11-20T12:00:00.000+00:00",
            "event": "failed",
            "phase": "init",
            "reason": "at last",
        }
        (folder / "journal.jsonl").write_text(f"{text}{json.dumps(line)}\n")


def call(place: Place, *words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", "from caffe_recipes.cli.main import main; main()", "attach", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        argv, cwd=place.root, stdout=pipe, stderr=pipe, text=True, preexec_fn=_listen, start_new_session=True
    )


def _listen() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_attach_but_not_the_run(place: Place) -> None:
    place.behave(init="waits")
    run = place.start()
    while not (place.root / "runs/small-1/journal.jsonl").exists():
        time.sleep(0.02)
    watching = call(place, "small")
    assert watching.stdout
    while "init 1/3  4/8" not in (line := watching.stdout.readline()):
        assert line
    watching.send_signal(signal.SIGINT)
    _, stderr = watching.communicate(timeout=600)
    assert (watching.returncode, stderr) == (130, "detached; the run continues\n")
    (place.root / "release").touch()
    run.communicate(timeout=600)
    assert run.returncode == 0
    done = call(place, "small-1", "--once")
    assert "loss3/top-1: 75.00%" in done.communicate(timeout=600)[0]
    assert done.returncode == 0


def test_a_run_that_cannot_be_watched_is_one_line_with_its_exit_code(place: Place) -> None:
    make_run(place, started(), launched())
    for words, code in ((["small", "--on", "a;b"], 2), (["small"], 3)):
        done = call_main("attach", *words, cwd=place.root)
        assert (done.returncode, done.stderr.count("\n")) == (code, 1)
        assert done.stderr.startswith("Error: ")


@pytest.mark.promise("another user's journal leads nowhere")
def test_a_state_that_was_shown_does_not_change_and_only_branches_of_the_recipe_are_followed(
    place: Place,
) -> None:
    def line(event: str, **fields: object) -> bytes:
        time = "2026-11-20T12:00:00+00:00"
        values = {"time": time, "event": event, "hosts": [], **fields}
        return json.dumps(values).encode() + b"\n"

    run = FollowedRun("x", "runs/small-1", load_recipe(place.recipe), with_branches=True)
    run.update([FilePiece(0, line("branched", format=1, phase="../../other", folder="x"))])
    before = run.state
    assert [each.path for each in run.requests()] == ["runs/small-1/journal.jsonl"]
    run.update([FilePiece(0, line("branched", phase="cyc1", folder="y"))])
    assert (before.branches, [*run.state.branches]) == ({"../../other": "x"}, ["../../other", "cyc1"])
    assert [each.path for each in run.requests()][1:] == ["runs/small-1/branches/cyc1/journal.jsonl"]
