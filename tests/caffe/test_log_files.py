import gzip
import io
import os
import threading
import tracemalloc
from pathlib import Path

import pytest

from caffe_recipes.caffe.log_files import LONGEST_LINE_BYTES, LogFile, read_whole_log
from caffe_recipes.files.bounded_reads import NotAFileError


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        ("a\fb\nc\x1cd\ne\u2028f\x85g\n", ["a\fb", "c\x1cd", "e\u2028f\x85g"]),
        ("a\r\n\r\nb\r\r\nc", ["a", "", "b", "c"]),
        (" 5%\r 10%\rI1120 a\n\r 15%\r\n\n", ["I1120 a", " 15%", ""]),
        ("[3]  5%\r 10%\rI1120 a\n1: x\ry\r\n", ["[3] I1120 a", "1: y"]),
    ],
)
def test_lines_are_what_a_terminal_shows_of_each(tmp_path: Path, data: str, lines: list[str]) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(data.encode())
    assert [line for group in LogFile(path).read(to_end=True) for line in group] == lines


def test_a_line_of_carriage_returns_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes((b"[0] " + b"\r" * (1 << 20) + b"x\n" + b"5%\r" * (1 << 20) + b"\n[1] " * (1 << 18)) * 2)
    lines = [line for group in LogFile(path).read() for line in group]
    assert lines[:3] == ["[0] x", "5%", "[1] "] and len(lines) == 4 + 2 * ((1 << 18) - 1)


@pytest.mark.parametrize("before", [0, 1, LONGEST_LINE_BYTES // 2 - 1, 3 * LONGEST_LINE_BYTES])
@pytest.mark.parametrize("more", [0, 1, 100_000])
def test_only_a_line_that_is_too_long_is_truncated(tmp_path: Path, before: int, more: int) -> None:
    path = tmp_path / "x.log"
    short, longest = b"y" * 99 + b"\n", b"x" * LONGEST_LINE_BYTES
    path.write_bytes(b"y" * before + b"\n" + short * 700 + longest + b"x" * more + b"\n" + short)
    lines = [line.encode() for group in LogFile(path).read() for line in group]
    assert lines == [b"y" * min(before, LONGEST_LINE_BYTES), *[short[:-1]] * 700, longest, short[:-1]]


def text_of(path: Path) -> str:
    return "".join(text for text, _ in read_whole_log(path))


TEXT = "".join(f"line {number} {'y' * (number % 300)}\n" for number in range(3000))


def test_a_whole_log_is_read_from_a_file_a_pipe_or_standard_input_compressed_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = TEXT.index("\n", len(TEXT) // 2) + 1
    appended = gzip.compress(TEXT[:half].encode()) + gzip.compress(TEXT[half:].encode())
    for data in (TEXT.encode(), appended, appended + bytes(70_000)):
        (tmp_path / "x.log").write_bytes(data)
        assert text_of(tmp_path / "x.log") == TEXT
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert text_of(Path("-")) == TEXT
        read_end, write_end = os.pipe()
        with os.fdopen(read_end, "rb"), os.fdopen(write_end, "wb") as file:
            threading.Thread(target=lambda data=data, file=file: (file.write(data), file.close())).start()
            assert text_of(Path(f"/proc/self/fd/{read_end}")) == TEXT


def test_the_last_line_of_a_log_may_be_incomplete_and_that_of_a_compressed_one_missing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.log"
    path.write_text("a\nb")
    assert list(read_whole_log(path)) == [("a\n", True), ("b\n", False)]
    packed = gzip.compress(TEXT.encode())
    path.write_bytes(packed[: len(packed) // 2])
    *_, (last, is_whole) = read_whole_log(path)
    assert not is_whole and last[:-1] in TEXT
    path.write_bytes(packed[:10] + b"\xff" * 99)
    with pytest.raises(OSError, match="its compressed data is damaged"):
        text_of(path)


def test_memory_does_not_grow_with_what_a_compressed_log_unpacks_to(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    with gzip.open(path, "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
        file.write(b"\nend\n")
    tracemalloc.start()
    assert text_of(path) == "\0" * LONGEST_LINE_BYTES + "\nend\n"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20


def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.log")
    with pytest.raises(NotAFileError):
        text_of(tmp_path / "x.log")
