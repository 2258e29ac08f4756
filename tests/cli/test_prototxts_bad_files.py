"""Files that are not prototxts: one line with position and reason, exit 2, no hang, little memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from caffe_recipes.cli.main import commands, main
from caffe_recipes.errors import InputError

Call = Callable[..., subprocess.CompletedProcess[str]]
PROGRAM = "import sys; from caffe_recipes.cli.main import main; sys.argv[0] = 'caffe-recipes'; main()"
COMMANDS = (("fmt",), ("fmt", "--check"), ("upgrade",), ("upgrade", "-w"))
PATIENCE_S = 240  # a busy machine takes over a minute for a file of 15 MB

SOLVER = 'net: "n"\nbase_lr: 0.1\n'
BAD = {
    "only a wrong field": (b"gama: 2", ":1:1: NetParameter has no field 'gama'; "),
    "field of another block": (b"layer {\n num_output: 3\n layer { }",
                               ":2:2: LayerParameter has no field 'num_output'; it is a field of "),
    "wrong enum value": (f"{SOLVER}solver_mode: CUP".encode(),
                         ":3:14: 'solver_mode' takes a value of SolverParameter.SolverMode, not 'CUP'; "
                         "did you mean 'CPU'?"),
    "wrong type": (f"{SOLVER}max_iter: 1e5".encode(), ":3:11: 'max_iter' takes an int32, "),
    "too large": (f"{SOLVER}max_iter: {10**30}".encode(), ":3:11: 'max_iter' takes an int32, "),
    "block for a scalar": (b"base_lr { }", ":1:9: expected ':' after 'base_lr', not '{'"),
    "scalar for a block": (b"layer: 3", ":1:8: expected '{' after 'layer', not '3'"),
    "open brace": (b"layer {\n include {\n }", ":1:7: this block is never closed; add a '}'"),
    "closing brace": (b"layer { }\n}",
                      ":2:1: expected a field of NetParameter, not '}'; no block is open here"),
    "field twice": (f"{SOLVER}base_lr: 1".encode(), ":3:1: 'base_lr' is given twice; "),
    "open string": (b'net: "a\nbase_lr: 1',
                    ":1:6: 'net' takes a string in quotes, not a string that does not end"),
    "binary": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
               ": is a binary file, such as the weights of a model, and not the text of a prototxt; "),
    "not UTF-8": (b"net: 'caf\xe9'", ":1:10: byte 0xe9 is not UTF-8; "),
    "UTF-16": ("net: 'n'".encode("utf-16"), ":1:1: byte 0xff is not UTF-8; "),
    "lone surrogate": (b"net: '\xed\xa0\x80'", ":1:7: byte 0xed is not UTF-8; "),
    "escaped surrogate": (rb"net: '\ud800'", ":1:6: 'net' contains the invalid escape \\ud800"),
    "NUL": (b"net: 'n'\n\0", ":2:1: expected a field of SolverParameter, not '\\x00'"),
    "NUL in a string": (b"net: 'n\0'", ":1:6: 'net' takes a string in quotes"),
    "NUL in a comment": (b"net: 'n' # a\0b", ":1:13: expected a field of SolverParameter, not '\\x00'"),
    "second BOM": (b"\xef\xbb\xbf\xef\xbb\xbfnet: 'n'", ":1:1: expected a field of "),
    "empty": (b"", ": is empty: it has no fields; check that it was copied completely"),
    "comments only": (b"# nothing\n", ": is empty: it has no fields; check that it was copied completely"),
    "BOM only": (b"\xef\xbb\xbf", ": is empty: it has no fields; check that it was copied completely"),
    "nested deep": (b"layer {" * 10_000, ":1:8: LayerParameter has no field 'layer'; "),
    "brackets deep": (b"layer: " + b"[" * 10_000, ":1:9: expected '{' after 'layer', not '['"),
    "nested deep where it fits": (b"a{" * 10_000, ":1:1: NetParameter has no field 'a'"),
    "HTML": (b"<!DOCTYPE html>\n<html>", ":1:1: expected a field of NetParameter, not '<'"),
    "a log": (b"I1120 11:49:33.581089  6374 solver.cpp:397] Solving",
              ":1:1: NetParameter has no field 'I1120'"),
}  # fmt: skip


def call(
    *words: str, memory_bytes: int | None = None, given: bytes = b""
) -> subprocess.CompletedProcess[str]:
    limit = (memory_bytes or resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        input=given,
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
        preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_AS, limit)) if memory_bytes else None,
    )
    return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line of a command that refused its input."""
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert done.returncode == 2
    assert done.stdout == ""
    return line.removeprefix("Error: ")


@pytest.fixture
def call_here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """Do as `call` does in this process: starting one takes far longer than reading a small file."""

    def call_main(*words: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["caffe-recipes", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return subprocess.CompletedProcess(words, end.value.code, *capfd.readouterr())

    return call_main


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_bad_text_gets_one_line_and_is_left_unchanged(
    command: tuple[str, ...], call_here: Call, tmp_path: Path
) -> None:
    for name, (content, message) in BAD.items():
        path = tmp_path / f"{name}.prototxt"
        path.write_bytes(content)
        done = call_here(*command, str(path))
        assert refusal(done).startswith(f"{path}{message}"), name
        assert len(done.stderr) < len(str(path)) + 1000, name
        assert path.read_bytes() == content
    assert len(list(tmp_path.iterdir())) == len(BAD)


@pytest.mark.parametrize(
    "command", [("lint",), ("summary",), ("diff", "good"), ("lr",), ("plot", "-o", "plot.svg")], ids=" ".join
)
def test_every_command_refuses_with_the_same_message(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good").write_text(SOLVER)
    reader = commands.get_command(click.Context(commands), command[0])
    assert reader is not None
    for name, (content, message) in BAD.items():
        Path(f"{name}.prototxt").write_bytes(content)
        done = CliRunner().invoke(reader, [*command[1:], f"{name}.prototxt"])
        assert isinstance(done.exception, InputError), name
        assert str(done.exception).startswith(f"{name}.prototxt{message}"), name
        assert done.stdout == ""
    assert len(list(tmp_path.iterdir())) == len(BAD) + 1


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_path_that_is_not_a_file_is_refused_without_waiting(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe.prototxt"
    os.mkfifo(pipe)
    for path, message in (
        (str(tmp_path / "missing"), "cannot be read: No such file or directory; check the path"),
        (
            str(pipe),
            "pipe without a writer"
            if "-w" not in command and command != ("fmt",)
            else "is not a regular file",
        ),
        (
            "/dev/zero",
            "is not a regular file"
            if "-w" in command or command == ("fmt",)
            else "it is a device, not a file",
        ),
        (
            str(tmp_path),
            "contains no prototxt"
            if "fmt" in command
            else "director"
            if command == ("upgrade",)
            else "is not a regular file",
        ),
    ):
        assert message in refusal(call(*command, path)), path


def test_a_pipe_that_somebody_writes_to_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.prototxt"
    os.mkfifo(pipe)
    writer = subprocess.Popen(["sh", "-c", 'sleep 0.2; printf "layers { }" > "$0"', str(pipe)])
    done = call("upgrade", str(pipe))
    assert writer.wait(PATIENCE_S) == 0
    assert (done.returncode, done.stdout) == (0, "layer { }\n")
    assert call("upgrade", "/dev/stdin", given=b"layers { }").stdout == "layer { }\n"


def test_over_16_mb_is_refused_unless_allowed(tmp_path: Path) -> None:
    path = tmp_path / "large.prototxt"
    path.write_bytes(b'name: "n" # ' + b"." * 16_000_000)
    message = f"{path}: is over 16,000,000 bytes; if it is a prototxt, raise the limit with --max-bytes"
    for command in COMMANDS:
        assert refusal(call(*command, str(path))) == message
    assert call("fmt", "--max-bytes", "17000000", str(path)).returncode == 0
    assert path.read_text() == f'name: "n" # {"." * 16_000_000}\n'


@pytest.mark.slow
@pytest.mark.parametrize("command", [("fmt",), ("upgrade", "-o", "new")], ids=" ".join)
def test_a_file_of_15_mb_takes_a_few_times_its_memory(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = (
        'layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { pad: 1 } }\n'
    )
    path = tmp_path / "large.prototxt"
    path.write_text(layer * (15_000_000 // len(layer)))
    path.write_text(path.read_text() + "layer { name: last }")
    monkeypatch.setenv("CAFFE_RECIPES_LIMITS", "prototxt-layers=1000000,prototxt-values=10000000")
    done = call(*command, str(path), memory_bytes=600_000_000)
    assert ": 'name' takes a string in quotes, not 'last'" in refusal(done)
