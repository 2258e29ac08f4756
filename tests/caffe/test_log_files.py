from pathlib import Path

import pytest

from caffe_recipes.caffe.log_files import LONGEST_LINE_BYTES, LogFile


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
