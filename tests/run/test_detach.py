from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.run.detach import Detached, describe_detached

if TYPE_CHECKING:
    from tests.run.conftest import Place


def detach(place: Place) -> tuple[int, str, str]:
    starter = place.start("--detach")
    stdout, stderr = starter.communicate(timeout=600)
    return starter.returncode, stdout, stderr


def process_of(output: str) -> int:
    found = re.search(r"continues as process (\d+) on ", output)
    assert found, output
    return int(found[1])


def wait_for_end(place: Place) -> None:
    """Wait for the end of a run that is not a child of this process."""
    deadline = time.monotonic() + 600
    while place.processes():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_detached_run_trains_in_its_own_session_and_prints_how_to_watch_it(place: Place) -> None:
    place.behave(cyc1="waits")
    code, stdout, stderr = detach(place)
    assert (code, stderr) == (0, "")
    pid = process_of(stdout)
    first, watch, stop = stdout.splitlines()[-3:]
    on = f"process {pid} on {socket.gethostname()}"
    assert first.startswith(f"runs/small-1: continues as {on}; its output is in logs/small/detached-")
    assert (watch, stop) == (
        "watch it: caffe-recipes attach small-1", "stop it:  caffe-recipes cancel small-1"
    )  # fmt: skip
    assert stdout.startswith("checking 1 host ...\nok      "), "the preflight is seen"
    assert os.getsid(pid) == pid
    assert place.state().pid == pid
    (place.root / "release").touch()
    wait_for_end(place)
    assert place.state().outputs
    (output,) = (place.root / "logs/small").glob("detached-*.log")
    assert output.read_text().endswith("model: runs/small-1/snapshots/small_last_iter_4.caffemodel\n")


def test_a_detached_run_inherits_no_open_file_of_its_starter(place: Place) -> None:
    place.behave(init="waits")
    read, write = os.pipe()
    os.set_inheritable(write, True)
    code = "from caffe_recipes.cli.main import main; main()"
    argv = [sys.executable, "-c", code, "run", str(place.recipe), "--detach"]
    starter = subprocess.Popen(
        ["sh", "-c", '"$@" >/dev/null & wait', "sh", *argv], cwd=place.root, pass_fds=[write]
    )
    os.close(write)
    assert starter.wait(timeout=600) == 0
    assert os.read(read, 1) == b"", "nobody holds the other end any more"
    os.close(read)
    pid = place.state().pid
    assert pid is not None
    os.kill(pid, signal.SIGINT)  # which sh has what it starts with & ignore
    wait_for_end(place)
    assert place.events()[-1]["event"] == "interrupted"


def test_a_preflight_error_is_shown_to_the_starter_and_leaves_nothing(place: Place) -> None:
    (place.root / "caffe").unlink()
    before = place.tree()
    code, _, stderr = detach(place)
    assert (code, stderr.count("\n")) == (2, 1)
    assert stderr.startswith("Error: ")
    assert "no such Caffe binary" in stderr
    assert place.tree() == before


def test_a_run_that_ends_before_it_trains_gives_its_exit_code(place: Place) -> None:
    place.run()
    before = place.tree()
    code, stdout, stderr = detach(place)
    assert (code, stderr) == (0, "")
    assert "runs/small-1 is finished" in stdout
    assert place.tree() == before


def test_ctrl_c_before_it_trains_stops_the_run(place: Place) -> None:
    slow, asked, go = place.root / "caffe", place.root / "asked", place.root / "go"
    wait = f"touch '{asked}'; until test -e '{go}'; do sleep 0.1; done"
    slow.write_text(slow.read_text().replace("\n", f"\n{wait}\n", 1))
    starter = place.start("--detach")
    deadline = time.monotonic() + 600
    while not asked.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    starter.send_signal(signal.SIGINT)
    _, stderr = starter.communicate(timeout=600)
    assert starter.returncode == 130
    assert stderr == "interrupted by SIGINT; run the same command again to resume\n"
    assert not (place.root / "logs").exists()
    go.touch()


def test_a_killed_run_s_trainer_is_taken_over_and_is_enough(place: Place) -> None:
    place.behave(init="waits")
    killed = place.start()
    log = place.root / "runs/small-1/logs/init-1.log"
    while not log.exists() or "Iteration 4, lr" not in log.read_text():
        time.sleep(0.05)
    killed.kill()
    killed.communicate()
    code, stdout, _ = detach(place)
    assert code == 0
    (place.root / "release").touch()
    assert "runs/small-1: continues as process" in stdout
    wait_for_end(place)
    assert place.trained() == ["init", "cyc1", "last"]


@pytest.mark.parametrize("root", [".", "a root"])
def test_the_watch_and_stop_commands_name_the_caffe_root_if_it_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    (tmp_path / "a root").mkdir()
    monkeypatch.chdir(tmp_path)
    lines = describe_detached(Detached(7, Path("out.log"), Path("runs/x-1")), Path(root))
    where = "" if root == "." else " --caffe-root 'a root'"
    assert lines[1:] == [
        f"watch it: caffe-recipes attach x-1{where}",
        f"stop it:  caffe-recipes cancel x-1{where}",
    ]
