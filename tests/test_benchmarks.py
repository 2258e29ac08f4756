"""`--help` of a benchmark prints what it measures, and measures nothing."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))
# Runs each file as a program in which nothing may be started, made or connected to.
ASK = """
import contextlib, io, json, runpy, sys

RUNS = ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.mkdir", "socket.connect", "socket.bind")
asked, done = [False], {}

def refuse(event, arguments):
    if asked[0] and event in RUNS:
        raise RuntimeError(event)

sys.addaudithook(refuse)
for path in sys.argv[1:]:
    sys.argv[:], said, how = [path, "--help"], io.StringIO(), "returned"
    asked[0] = True
    with contextlib.redirect_stdout(said):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            how = "exit %s" % end.code
        except BaseException as error:
            how = repr(error)
    asked[0] = False
    done[path] = [how, said.getvalue()]
print(json.dumps(done))
"""


def ask_for_help(paths: list[Path]) -> dict[str, tuple[str, str]]:
    """Return how each ended, and what it printed."""
    argv = [sys.executable, "-B", "-c", ASK, *map(str, paths)]  # without folders for bytecode
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return {path: (how, output) for path, (how, output) in json.loads(done.stdout).items()}


def test_help_of_every_benchmark_runs_nothing() -> None:
    asked = ask_for_help(BENCHMARKS)
    assert list(asked) == [str(path) for path in BENCHMARKS]
    for path, (how, output) in asked.items():
        assert (how, output.split()[:2]) == ("exit 0", ["usage:", Path(path).name]), path
        assert len(output.splitlines()) > 4, path


@pytest.mark.parametrize(
    ("does", "ends"),
    [
        ("print('3 ms')", "returned"),
        ("import subprocess; subprocess.run(['true'])", "RuntimeError('subprocess.Popen')"),
        ("import tempfile; tempfile.mkdtemp()", "RuntimeError('os.mkdir')"),
    ],
)
def test_a_benchmark_that_runs_is_noticed(tmp_path: Path, does: str, ends: str) -> None:
    path = tmp_path / "benchmark.py"
    path.write_text(does)
    assert ask_for_help([path])[str(path)][0] == ends


def test_a_row_that_engine_lacks_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (engine,) = (path for path in BENCHMARKS if path.name == "engine.py")
    monkeypatch.setattr("sys.argv", [str(engine), "--rows", "start", "stop"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(engine), run_name="__main__")
    assert ended.value.code == 2
    assert "argument --rows: invalid choice: 'stop'" in capsys.readouterr().err
