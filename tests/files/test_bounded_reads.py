"""Reading files, pipes and other paths."""

from __future__ import annotations

import io
import os
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from caffe_recipes.errors import DataError
from caffe_recipes.files.bounded_reads import load_within, read_bytes, read_pieces, read_trusted
from caffe_recipes.limits import limit
from caffe_recipes.trust import UntrustedPathError, trusting
from tests.trust_cases import STRANGER, as_root, plant


def test_a_file_is_read_up_to_the_most(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert [read_bytes(path, most) for most in (0, 3, 5, 10**15)] == [b"", b"123", b"12345", b"12345"]


def test_a_stream_is_read_to_its_end_or_to_the_most() -> None:
    assert read_pieces(io.BytesIO(b"x" * 3_000_000), 10**15) == b"x" * 3_000_000
    assert read_pieces(io.BytesIO(b"x" * 3_000_000), 2_500_000) == b"x" * 2_500_000


def test_a_pipe_is_read_to_its_end_however_slowly_it_comes(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = 'exec > "$0"; printf a; sleep 0.2; printf b'
    with subprocess.Popen(["sh", "-c", f"sleep 0.1; {script}", str(pipe)]):
        assert read_bytes(pipe, 100) == b"ab"
    with subprocess.Popen(["sh", "-c", script, str(pipe)]):
        assert read_bytes(pipe, 1) == b"a"


def test_text_written_before_the_pipe_closed_is_read() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"all of it")
    os.close(writer)
    assert read_bytes(f"/dev/fd/{reader}", 100) == b"all of it"
    os.close(reader)


def test_reading_a_pipe_without_a_writer_times_out(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(TimeoutError, match="it is a pipe without a writer"):
        read_bytes(pipe, 100)


@pytest.mark.promise("a pipe keeps nobody waiting")
def test_reading_a_named_pipe_times_out_after_a_silence_of_its_writer(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for sent in (b"", b"a"):
        writer = os.open(pipe, os.O_RDWR)
        os.write(writer, sent)
        with pytest.raises(TimeoutError, match="it is a pipe whose writer does not finish"):
            read_bytes(pipe, 100, silence_s=0.05)
        os.close(writer)


@pytest.mark.promise("a pipe keeps nobody waiting")
def test_reading_a_named_pipe_times_out_although_its_writer_trickles(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", 'while printf a; do sleep 0.02; done > "$0"', str(pipe)]) as writer:
        with pytest.raises(TimeoutError, match="it is a pipe whose writer does not finish"):
            read_bytes(pipe, 10**6, silence_s=0.1)
        writer.terminate()


def test_a_named_pipe_may_take_longer_than_the_silence(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(
        ["sh", "-c", 'for i in 1 2 3 4 5 6; do printf a; sleep 0.1; done > "$0"', str(pipe)]
    ):
        assert read_bytes(pipe, 100, silence_s=0.4) == b"aaaaaa"


def test_a_process_substitution_may_be_silent(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with subprocess.Popen(["sh", "-c", "sleep 0.2; printf a; sleep 0.2; printf b"], stdout=writer):
        os.close(writer)
        assert read_bytes(f"/dev/fd/{reader}", 100, silence_s=0.01) == b"ab"
    os.close(reader)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_not_a_file(device: str) -> None:
    with pytest.raises(OSError, match="it is a device, not a file"):
        read_bytes(device, 100)


def test_a_terminal_is_read() -> None:
    terminal, side = os.openpty()
    os.write(terminal, b"base_lr: 1\n\x04")
    assert read_bytes(os.ttyname(side), 100) == b"base_lr: 1\n"
    os.close(terminal)
    os.close(side)


@pytest.mark.promise("a colleague's folder is used")
@as_root
def test_what_is_run_is_read_where_only_trusted_users_could_have_put_it(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `check_read` in `node.sh` decides."""
    for folder, owner in {"tmp/users": 0, "tmp/users/bob": STRANGER, "project": STRANGER}.items():
        (tmp_path / folder).mkdir()
        os.chown(tmp_path / folder, owner, owner)
        (tmp_path / folder / "theirs").write_bytes(b"recipe")
        os.chown(tmp_path / folder / "theirs", STRANGER, STRANGER)
    (shared / "mine").write_bytes(b"recipe")
    (shared / "link").symlink_to("users/bob/../bob/theirs")
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    for path in ("project/theirs", "tmp/users/theirs", "tmp/users/bob/theirs", "tmp/mine", "tmp/link"):
        assert read_trusted(tmp_path / path, 100) == b"recipe"


@pytest.mark.promise("a colleague's folder is used")
@as_root
def test_what_is_run_is_not_read_where_another_user_could_have_put_it(tmp_path: Path, shared: Path) -> None:
    for folder, owner in {"own": 0, "eve": STRANGER}.items():
        (shared / folder).mkdir()
        (shared / folder / "file").write_bytes(b"recipe")
        for path in (shared / folder, shared / folder / "file"):
            os.chown(path, owner if path.name == folder else STRANGER, owner)
    plant(shared / "link", tmp_path / "profile")
    os.mkfifo(shared / "pipe")
    os.chown(shared / "pipe", STRANGER, STRANGER)
    (shared / "open").touch()
    (shared / "open").chmod(0o666)
    (tmp_path / "free").mkdir()
    (tmp_path / "free/file").touch()
    (tmp_path / "free").chmod(0o777)
    for name, why in {
        "tmp/own/file": f"it belongs to user {STRANGER}",
        "tmp/eve/file": f"its folder {shared}/eve belongs to user {STRANGER}",
        "tmp/link": f"is a symbolic link of user {STRANGER}",
        "tmp/pipe": f"it belongs to user {STRANGER}",
        "tmp/open": "it can be changed by anybody",
        "free/file": f"its folder {tmp_path}/free can be changed by anybody",
    }.items():
        with pytest.raises(UntrustedPathError, match=why):
            read_trusted(tmp_path / name, 100)
    with trusting((STRANGER,)):
        assert read_trusted(shared / "eve/file", 100) == b"recipe"


@pytest.mark.promise("nothing is run or obeyed that others could change")
@pytest.mark.promise("a check cannot be evaded")
def test_what_is_run_is_read_from_an_own_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(b"named"))
    writer.start()
    assert read_trusted(tmp_path / "pipe", 100) == b"named"
    writer.join()
    reader, end = os.pipe()
    (tmp_path / "link").symlink_to(f"/dev/fd/{reader}")
    for path in (Path(f"/dev/fd/{reader}"), tmp_path / "link"):
        os.write(end, b"unnamed")
        assert read_trusted(path, 7) == b"unnamed"
    os.close(reader)
    os.close(end)


def test_what_is_run_is_read_from_a_here_document() -> None:
    with tempfile.TemporaryFile() as removed:
        removed.write(b"here")
        removed.seek(0)
        assert read_trusted(Path(f"/proc/self/fd/{removed.fileno()}"), 100) == b"here"


@pytest.mark.promise("nothing is run or obeyed that others could change")
@pytest.mark.promise("a check cannot be evaded")
@as_root
def test_a_file_that_is_exchanged_while_it_is_opened_is_not_read(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shared / "theirs").write_bytes(b"theirs")
    os.chown(shared / "theirs", STRANGER, STRANGER)
    (shared / "own").write_bytes(b"own")
    original = os.open

    def exchange(path: str, *words: int, **options: Any) -> int:  # noqa: ANN401
        if path == "theirs" and (shared / "own").exists():
            (shared / "own").rename(shared / "theirs")
        return original(path, *words, **options)

    monkeypatch.setattr(os, "open", exchange)
    with pytest.raises(UntrustedPathError, match="it was exchanged while it was opened"):
        read_trusted(shared / "theirs", 100)


def test_the_hint_for_a_file_above_a_limit_of_ours_is_not_about_ulimit(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    os.truncate(tmp_path / "x", limit("list-bytes") + 1)
    with pytest.raises(DataError) as caught:
        load_within(tmp_path / "x", "list-bytes", DataError, "give a list")
    assert caught.value.what.endswith("(CAFFE_RECIPES_LIMITS=list-bytes=N raises this limit)")
    assert caught.value.hint == ""
