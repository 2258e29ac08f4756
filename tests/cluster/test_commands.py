from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caffe_recipes.cluster.commands import Running, fetch_file, quote_command, supervise
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.errors import ClusterError, DiskFailed
from tests.stand_in_host import StandInHost

HOST = LocalHost("here")
SHELLS = [shell for shell in ("sh", "bash", "dash", "zsh", "tcsh", "fish", "ksh") if shutil.which(shell)]
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=30)
@given(st.lists(words, max_size=5))
def test_any_arguments_arrive_unchanged(given_words: list[str]) -> None:
    done = subprocess.run(
        ["sh", "-c", quote_command(["printf", "<%s>", *given_words])], capture_output=True, check=True
    )
    assert done.stdout.decode() == "".join(f"<{word}>" for word in given_words) or not given_words


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_reads_the_command_line_the_same_way(shell: str) -> None:
    hostile = ["it's", "!x", "$(id)", "`id`", "a\nb", "\\", '"', "*", "~", "-n", ""]
    done = subprocess.run(
        [shell, "-c", quote_command(["printf", "<%s>", *hostile])], capture_output=True, text=True, check=True
    )
    assert done.stdout == "".join(f"<{word}>" for word in hostile)


def test_a_zero_byte_is_refused() -> None:
    with pytest.raises(ClusterError, match="an argument contains a null byte"):
        supervise(["a", "b\0c"], None)


def test_input_reaches_a_command_and_one_that_reads_none_of_it_still_ends() -> None:
    assert HOST.start(["cat"]).finish(10, b"in\xff").stdout == "in�"
    assert HOST.start(["true"]).finish(10, bytes(10_000_000)).returncode == 0


def test_a_command_may_print_what_looks_like_nothing_or_a_lot() -> None:
    assert HOST.run(["printf", "no newline"]).stdout == "no newline"
    assert HOST.run(["true"]).stdout == ""
    assert len(HOST.run(["head", "-c", "3000000", "/dev/zero"]).stdout) == 3_000_000


class EndlessWire:
    """A hostile host: sends `head`, then `piece` forever, on both streams; counts what was read."""

    def __init__(self, head: bytes, piece: bytes) -> None:
        self.head, self.piece, self.errors = head, piece, head
        self.sent_bytes = 0
        self.ended = threading.Event()

    def read(self, most: int) -> bytes:
        piece, self.head = self.head or self.piece, b""
        self.sent_bytes += len(piece)
        return b"" if self.ended.is_set() else piece

    def read_errors(self, most: int) -> bytes:
        piece, self.errors = self.errors or self.piece, b""
        return b"" if self.ended.is_set() else piece

    def send(self, data: bytes) -> None:
        pass

    def end_input(self) -> None:
        pass

    def code(self) -> int:
        return 0

    def end(self, pid: int | None) -> None:
        self.ended.set()

    def close(self) -> None:
        self.ended.set()


@pytest.mark.promise("a host cannot fill memory or disk")
@pytest.mark.parametrize("piece", [b"x", b"mark 1", b"x" * (1 << 16)])
def test_a_login_shell_with_an_endless_greeting_times_out(piece: bytes) -> None:
    wire = EndlessWire(b"Welcome\n", piece)
    with pytest.raises(ClusterError, match=r"^evil: its login shell printed over 1,000,000 bytes before ls"):
        Running("evil", ["ls"], "mark", wire).finish(600)
    assert wire.ended.is_set() and wire.sent_bytes < 1_100_000


@pytest.mark.promise("a host cannot fill memory or disk")
def test_an_answer_is_read_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAFFE_RECIPES_LIMITS", "answer-bytes=3000000")
    wire = EndlessWire(b"mark 1\n", b"x" * (1 << 16))
    command = Running("evil", ["ls"], "mark", wire)
    with pytest.raises(ClusterError, match=r"^evil: ls printed over 3,000,000 bytes; .*answer-bytes=N"):
        command.finish(600)
    assert wire.ended.is_set() and wire.sent_bytes < 3_100_000
    assert len(command.errors()) <= 1_000_000


def test_both_ends_of_a_long_error_are_kept() -> None:
    script = "echo first >&2; head -c 3000000 /dev/zero | tr '\\0' x >&2; echo >&2; echo last >&2"
    lines = HOST.run(["sh", "-c", script]).stderr.splitlines()
    assert (lines[0], lines[-1]) == ("first", "last")
    assert 900_000 < sum(map(len, lines)) <= 1_000_000


def test_a_mark_may_arrive_in_pieces_after_a_long_greeting() -> None:
    pieces = [b"x" * 900_000, b"ma", b"rk ", b"1", b"2\nanswer", b""]
    wire = EndlessWire(b"", b"")
    wire.read = lambda most: pieces.pop(0)  # type: ignore[method-assign]
    assert Running("n1", ["ls"], "mark", wire).read() == b"answer"


@pytest.mark.promise("a host cannot fill memory or disk")
@pytest.mark.parametrize(
    ("head", "message"),
    [(b"mark 1\n", "no size arrived"), (b"mark 1\nx\n", "no size"), (b"mark 1\n9\n", "over 9 bytes arrived")],
)
def test_a_copy_is_no_longer_than_its_host_announced(tmp_path: Path, head: bytes, message: str) -> None:
    class Evil(StandInHost):
        def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
            return Running("evil", argv, "mark", wire)

    wire = EndlessWire(head, b"x" * 1000)
    with pytest.raises(ClusterError, match=message):
        fetch_file(Evil(), "/x", tmp_path / "x")
    assert wire.sent_bytes < 10_000 and not [*tmp_path.iterdir()]


@pytest.mark.promise("a host cannot fill memory or disk")
def test_a_copy_that_does_not_fit_on_the_disk_is_refused_before_it_arrives(tmp_path: Path) -> None:
    class Evil(StandInHost):
        def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
            return Running("evil", argv, "mark", wire)

    wire = EndlessWire(b"mark 1\n99999999999999999999\n", b"x" * 1000)
    with pytest.raises(
        DiskFailed, match=r"x: cannot be written: 99,999,.* bytes do not fit in the [\d,]+ that"
    ):
        fetch_file(Evil(), "/x", tmp_path / "x")
    assert wire.sent_bytes < 10_000 and not [*tmp_path.iterdir()]


@pytest.fixture
def length(tmp_path: Path) -> str:
    """How long this test's command sleeps: a number that identifies it among other sleeps."""
    return f"4242.{os.getpid()}{tmp_path.stat().st_ino}"


def alive(name: str) -> int | None:
    """Return the pid of a live process whose argv holds `name`, if there is one, from /proc."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and name.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                return int(entry.name)
        except OSError:
            continue
    return None


def appears(name: str, within_s: float = 600.0) -> bool:
    deadline = time.monotonic() + within_s
    while alive(name) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive(name) is not None


def gone(name: str, within_s: float = 600.0) -> bool:
    deadline = time.monotonic() + within_s
    while alive(name) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive(name) is None


def test_stopping_ends_the_children_too_even_those_that_ignore_sigterm(length: str) -> None:
    command = HOST.start(["sh", "-c", f'trap "" TERM; sleep {length} & echo up; wait; sleep {length}'])
    assert command.read() == b"up\n"
    assert appears(length)
    command.stop()
    assert gone(length)


def test_leaving_the_context_ends_a_command(length: str) -> None:
    with HOST.start(["sh", "-c", f"echo up; exec sleep {length}"]) as command:
        assert command.read() == b"up\n"
    assert gone(length)


def test_a_command_that_has_ended_may_leave_something_behind_on_purpose(length: str) -> None:
    assert HOST.run(["sh", "-c", f"sleep {length} >/dev/null 2>&1 & exit 4"]).returncode == 4
    left = alive(length)
    assert left is not None
    os.kill(left, signal.SIGKILL)


def test_the_host_ends_a_command_at_its_limit_without_us(length: str) -> None:
    started = time.monotonic()
    with HOST.start(["sleep", length], limit_s=-4.5) as command:
        assert command.read() == b""
        assert command.wait() == 124
    assert time.monotonic() - started < 4


def test_a_command_ends_when_we_are_killed(length: str) -> None:
    code = "from caffe_recipes.cluster.hosts import LocalHost;"
    code += f"c = LocalHost().start(['sh', '-c', 'echo up; sleep {length}']);"
    code += "print(c.read(), flush=True); c.read()"
    ours = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert ours.stdout is not None
    with ours.stdout:
        assert ours.stdout.readline() == b"b'up\\n'\n"
        assert appears(length)
        os.kill(ours.pid, signal.SIGKILL)
        ours.wait()
    assert gone(length)


def test_quick_commands_leave_no_watchdog_behind() -> None:
    marks = []
    for _ in range(50):
        with HOST.start(["true"]) as command:
            command.end_input()
            assert command.read() == b""
            assert command.wait() == 0
        marks.append(command.mark)
    assert all(gone(mark) for mark in marks)


def test_output_arrives_as_it_is_written() -> None:
    with HOST.start(["sh", "-c", "echo one; read x; echo $x"]) as command:
        assert command.read() == b"one\n"
        command.send(b"two\n")
        assert command.read() == b"two\n"
        assert command.wait() == 0


def test_a_command_whose_connection_broke_before_the_shell_started_does_not_run(tmp_path: Path) -> None:
    _, argv = supervise(["touch", str(tmp_path / "ran")], None)
    late = 'echo $$ >"$0/pid"; while ! test -e "$0/gone"; do sleep 0.05; done; exec "$@" >"$0/said" 2>&1'
    start = 'late=$1; shift; sh -c "$late" "$0" "$@" & while ! test -s "$0/pid"; do sleep 0.02; done'
    subprocess.run(["sh", "-c", start, str(tmp_path), late, *argv], check=True)
    orphan = Path("/proc") / (tmp_path / "pid").read_text().strip()
    if "\nPPid:\t1\n" not in (orphan / "status").read_text():
        (tmp_path / "gone").touch()
        pytest.skip("orphans go to another process than the first one here")
    (tmp_path / "gone").touch()
    deadline = time.monotonic() + 600
    while orphan.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (tmp_path / "said").read_text() == ""
    assert not (tmp_path / "ran").exists()
