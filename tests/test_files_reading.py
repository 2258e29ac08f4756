"""Reading files, pipes and other paths."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pytest

from caffe_recipes.files import read_bytes, read_pieces


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


def test_reading_a_named_pipe_times_out_after_a_silence_of_its_writer(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for sent in (b"", b"a"):
        writer = os.open(pipe, os.O_RDWR)
        os.write(writer, sent)
        with pytest.raises(TimeoutError, match="it is a pipe whose writer does not finish"):
            read_bytes(pipe, 100, silence_s=0.05)
        os.close(writer)


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
