import csv
import gzip
import io
import json
import os
from pathlib import Path

import pytest

from tests.cli.command_line import call_main

LOG = """\
I1120 11:49:33.000000  7 solver.cpp:397] Solving TinyNet
I1120 11:49:34.000000  7 solver.cpp:474] Iteration 0, Testing net (#0)
I1120 11:49:35.000000  7 solver.cpp:562]     Test net output #0: accuracy = 0.25
I1120 11:49:36.500000  7 solver.cpp:312] Iteration 0, loss = nan
I1120 11:49:37.000000  7 sgd_solver.cpp:219] Iteration 0, lr = 0.001
a line of a wrapper
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(LOG)
    return path


def test_csv_has_a_row_for_each_measurement(log: Path) -> None:
    done = call_main("parse-log", log, log, "--csv")
    rows = list(csv.reader(io.StringIO(done.stdout)))
    assert rows[0] == ["file", "run", "iteration", "seconds", "phase", "net", "output", "value"]
    assert rows[1:4] == [
        [str(log), "1", "0", "2.0", "test", "0", "accuracy", "0.25"],
        [str(log), "1", "0", "3.5", "train", "0", "average loss", "nan"],
        [str(log), "1", "0", "4.0", "train", "0", "lr", "0.001"],
    ]
    assert (len(rows), done.stderr, done.returncode) == (7, "", 0)


def test_json_has_the_measurements_and_the_counts(log: Path) -> None:
    found = json.loads(call_main("parse-log", log, "--json").stdout)
    assert [row["value"] for row in found["measurements"]] == [0.25, "nan", 0.001]
    (counts,) = found["files"]
    assert (counts["lines"], counts["unknown"], counts["unreadable"], counts["incomplete"]) == (6, 1, 0, 0)
    assert counts["runs"][0]["net"] == "TinyNet"


def test_logs_are_printed_beside_one_that_cannot_be_read(log: Path) -> None:
    text, rows = (call_main("parse-log", log, *words).stdout for words in ((), ("--csv",)))
    log.with_name("bad.log").write_text("epoch 1: all good\n")
    for words, expected in (((), f"{text}\n{text}"), (("--csv",), rows + rows.partition("\n")[2])):
        done = call_main("parse-log", "bad.log", log, "none.log", log, *words, cwd=log.parent)
        assert (done.returncode, done.stdout) == (2, expected)
        assert [line.split(": ")[1] for line in done.stderr.splitlines()] == ["bad.log", "none.log"]


def test_json_is_whole_whatever_cannot_be_read(log: Path) -> None:
    bad = log.with_name("bad.log.gz")
    packed = gzip.compress(LOG.encode() * 20_000)
    bad.write_bytes(packed[: len(packed) // 2] + b"x" * 9000)
    done = call_main("parse-log", log, bad, log.with_name("none"), log, "--json")
    assert (done.returncode, done.stderr.count("\n")) == (2, 2)
    found = json.loads(done.stdout)
    assert [row["file"] for row in found["measurements"]] == [str(log)] * 6
    assert [counts["file"] for counts in found["files"]] == [str(log)] * 2


def test_the_summary_says_what_was_read_and_what_was_not(log: Path) -> None:
    log.write_text(LOG + "I1120 11:49:38.000000  7 solver.cpp:312] Iteration 1, lo\nI1120 11:4")
    assert call_main("parse-log", log).stdout.splitlines() == [
        f"{log}: 8 lines, 3 measurements, 1 not about the training",
        "  not read: 1 line torn or without an iteration, first line 7",
        "  not read: the last line, which is incomplete",
        "  run 1: TinyNet, iterations 0 to 0, in 2 s",
        "    test accuracy: 0.25 at 0, best 0.25 at 0",
        "    train average loss: nan at 0",
        "    train lr: 0.001 at 0",
    ]
    assert call_main("parse-log", log, "--csv").stderr.splitlines()[1:] == [
        "  not read: 1 line torn or without an iteration, first line 7",
        "  not read: the last line, which is incomplete",
    ]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty"),
        (b"\x7fELF\0\0\1\n\0", "is binary, not a log"),
        (b"epoch 1: all good\n", "shows no loss, rate or output, in 1 line"),
        (
            gzip.compress(b"epoch 1\nepoch 2")[:-8],
            "shows no loss, rate or output, in 2 lines, the last one incomplete",
        ),
        (
            b"[3] I1120 11:49:36.500000  7 solver.cpp:312] Iteration 0, loss = 2\n",
            "shows measurements only of ranks other than 0, in 1 line",
        ),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_without_measurements_is_one_clear_line(log: Path, data: bytes | None, what: str) -> None:
    log.unlink() if data is None else log.write_bytes(data)
    done = call_main("parse-log", log, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Error: {log}: {what}; give the log of a training run\n"


def test_control_characters_of_a_log_do_not_reach_the_terminal(log: Path) -> None:
    log.write_text(LOG.replace("accuracy", "acc\x1b[31m").replace("TinyNet", "\x1b]0;x\x07"))
    for options in ((), ("--csv",), ("--json",)):
        assert "\x1b" not in call_main("parse-log", log, *options).stdout


def test_tensorboard_writes_event_files_or_nothing(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "curves"
    done = call_main("parse-log", log, "--csv", "--tensorboard", out)
    assert (done.returncode, done.stderr.count("\n"), out.exists()) == (2, 1, False)
    assert call_main("parse-log", log, tmp_path / "none.log", "--tensorboard", out).returncode == 2
    assert not out.exists()
    done = call_main("parse-log", log, "--tensorboard", out)
    files = sorted(path for path in out.rglob("*") if path.is_file())
    assert sorted(done.stdout.splitlines()) == [f"wrote {path}" for path in files]
    assert [str(path.parent.relative_to(out)) for path in files] == ["train"]
    log.write_text("")
    out.joinpath("file").write_text("")
    assert call_main("parse-log", log, "--tensorboard", out / "file").returncode == 2


def test_a_folder_or_a_named_pipe_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for command in ("parse-log", "explain"):
        done = call_main(command, "logs", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.endswith("; give the logs in it, e.g. logs/*.log\n")
        done = call_main(command, "pipe", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert (
            "it is a pipe or a device, not a file; read it with another program (`cat pipe`)" in done.stderr
        )


def test_standard_input_and_a_compressed_log_are_read_as_a_file_is(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = log.with_name("train.log.gz")
    packed.write_bytes(gzip.compress(log.read_bytes()))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(packed.read_bytes())))
    expected = call_main("parse-log", log).stdout.replace(str(log), "")
    assert call_main("parse-log", packed).stdout.replace(str(packed), "") == expected
    assert call_main("parse-log", "-").stdout.removeprefix("-") == expected
    for name in (packed, "-"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(packed.read_bytes())))
        assert call_main("plot", name, "-o", tmp_path / "a.csv").returncode == 0
        assert (tmp_path / "a.csv").read_text().count("\n") > 1
