from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.command_line import call_main

MISSING = "F0707 16:48:46.336623 16692 db_lmdb.hpp:15] Check failed: mdb_status == 0 (2 vs. 0) No such file"
FINE = "I0707 16:48:46.336623 16692 solver.cpp:312] Iteration 0, loss = 2.3"


def test_the_explanation_is_printed_beneath_the_line(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(f"[17] {FINE}\n[17] {MISSING}\n")
    done = call_main("explain", "a.log", cwd=tmp_path)
    line, cause, remedy, source = done.stdout.splitlines()
    assert done.returncode == 0
    assert line == f"a.log:2: [17] {MISSING}"
    assert cause.startswith("  cause: the `source` of a data layer is not the folder of an LMDB")
    assert remedy.startswith("  do:    run `ls` on the `source`")
    assert source == "  from:  BVLC/caffe#5748, BVLC/caffe#3639, BVLC/caffe#6236"


def test_a_log_without_a_known_failure_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(f"{FINE}\n")
    done = call_main("explain", "a.log", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("a.log: no known failure in 1 line\n", 0)


def test_logs_that_cannot_be_read_do_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(f"{MISSING}\n")
    (tmp_path / "b.log").write_text(f"{FINE}\n")
    (tmp_path / "empty").write_text("")
    done = call_main("explain", "none", "a.log", "empty", "b.log", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout.startswith(f"a.log:1: {MISSING}\n  cause: ")
    assert done.stdout.endswith("\nb.log: no known failure in 1 line\n")
    assert done.stderr == (
        "Error: none: cannot be read: No such file or directory; give the log of a training, as text\n"
        "Error: empty: is empty; give the log of a training, as text\n"
    )


def test_a_run_that_cannot_be_read_does_not_hide_the_logs(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(f"{FINE}\n")
    (tmp_path / "runs/small-1").mkdir(parents=True)
    (tmp_path / "runs/small-1/journal.jsonl").write_text("")
    done = call_main("explain", "small-1", "a.log", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("a.log: no known failure in 1 line\n", 2)
    assert done.stderr.startswith("Error: runs/small-1") and done.stderr.count("\n") == 1


def test_a_log_cannot_command_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("\x1b[2JHost key verification failed.\n")
    assert "\x1b" not in call_main("explain", "a.log", cwd=tmp_path).stdout


def test_json_has_the_line_the_diagnosis_and_the_ranks_of_each_log(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(f"[17] {FINE}\n[17] {MISSING}\n")
    done = call_main("explain", "a.log", "none", "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: none: cannot be read")
    data = json.loads(done.stdout)
    assert list(data) == ["a.log"]
    assert data["a.log"]["lines"] == 2
    (found,) = data["a.log"]["found"]
    assert (found["line"], found["ranks"], found["count"], found["is_guess"]) == (2, [17], 1, False)
    assert found["cause"].startswith("the `source` of a data layer is not the folder of an LMDB")


def test_a_log_is_read_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def explain(text: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return call_main("explain", "-", cwd=tmp_path)

    done = explain(f"{FINE}\n{MISSING}")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"-:2: {MISSING}")
    done = explain("hello\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: standard input: has no line of Caffe, TensorFlow")
