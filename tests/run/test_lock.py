"""One training of a recipe under one Caffe root, by run.sh or by caffe-recipes run."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.recipe_files import generate
from caffe_recipes.run.lock import RecipeLock

if TYPE_CHECKING:
    from tests.run.conftest import Place


@contextmanager
def held(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a lock as run.sh does, or with LOCK_SH as the trainer of a run does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, how)
        yield


def is_free(path: Path) -> bool:
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def wait_for_log(place: Place, text: str) -> None:
    log = place.root / "runs/small-1/logs/init-1.log"
    deadline = time.monotonic() + 600
    while not log.exists() or text not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def start_script(place: Place) -> subprocess.Popen[str]:
    for path, text in generate(load_recipe(place.recipe)).items():
        (place.root / path).parent.mkdir(parents=True, exist_ok=True)
        (place.root / path).write_text(text.replace("flock -w 5 9", "flock -n 9"), "utf-8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", "jobs/small/run.sh"],
        cwd=place.root,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def call_script(place: Place) -> subprocess.CompletedProcess[str]:
    with start_script(place) as script:
        _, errors = script.communicate(timeout=600)
    return subprocess.CompletedProcess(script.args, script.returncode, stderr=errors)


def test_while_run_sh_is_active_no_run_starts_and_nothing_changes(place: Place) -> None:
    with held(place.root / "logs/small/lock"):
        before = place.tree()
        what = (
            r"logs/small/lock: run\.sh, or the mpiexec of a killed one, is running; wait for it, or stop it"
        )
        with pytest.raises(InputError, match=what):
            place.run()
        assert place.tree() == before
        assert "trainer" not in place.output.getvalue()
    assert place.run().outputs


@pytest.mark.promise("nobody else holds our locks, and we open none of theirs")
def test_nobody_else_can_open_a_lock_to_hold_it(tmp_path: Path) -> None:
    folder, lock = tmp_path / "logs/small", RecipeLock(tmp_path, "small")
    lock.acquire()
    lock.acquire_trainer()
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        "lock": 0o600,
        "run.lock": 0o600,
    }
    lock.close()


@pytest.mark.parametrize("name", ["lock", "run.lock"])
def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "logs/small"
    folder.mkdir(parents=True)
    (tmp_path / "theirs").write_text("as it was")
    (tmp_path / "theirs").chmod(0o644)
    (folder / name).symlink_to(tmp_path / "theirs")
    lock = RecipeLock(tmp_path, "small")
    with pytest.raises(InputError, match=rf"{name}: cannot be opened: .*; it belongs to user {os.getuid()}"):
        lock.acquire() if name == "run.lock" else lock.acquire_trainer()
    assert (tmp_path / "theirs").stat().st_mode & 0o777 == 0o644
    lock.close()


def test_looking_up_the_holder_of_a_lock_takes_and_creates_nothing(tmp_path: Path) -> None:
    path, lock = tmp_path / "logs/small/lock", RecipeLock(tmp_path, "small")
    assert not lock.is_trainer_active()
    assert not path.exists()
    with held(path, fcntl.LOCK_SH):
        assert lock.is_trainer_active()
        assert not lock.is_run_active()
        lock.check()
    with held(path):
        assert lock.is_run_active()
        with pytest.raises(InputError, match=r"lock: run\.sh, or the mpiexec of a killed one, is running"):
            lock.check()
    assert not lock.is_trainer_active()
    assert is_free(path)


def test_a_lock_that_may_not_be_opened_is_found_held_in_the_list_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another user finds it, who may not open a lock of mode 600."""
    path, lock = tmp_path / "logs/small/lock", RecipeLock(tmp_path, "small")

    def refuse(*_: object) -> int:
        raise PermissionError

    for how, is_run in ((fcntl.LOCK_SH, False), (fcntl.LOCK_EX, True)):
        with held(path, how), monkeypatch.context() as patch:
            patch.setattr("caffe_recipes.run.lock.os.open", refuse)
            assert lock.is_trainer_active()
            assert lock.is_run_active() == is_run
    assert not lock.is_trainer_active()


def test_while_a_run_is_active_run_sh_does_not_start(place: Place) -> None:
    place.behave(init="waits")
    first = place.start()
    wait_for_log(place, "Iteration 4, lr")
    done = call_script(place)
    assert done.returncode == 2
    assert "logs/small/lock: held by a run.sh, its mpiexec, or caffe-recipes run; wait" in done.stderr
    (place.root / "release").touch()
    first.communicate(timeout=600)
    assert first.returncode == 0
    assert place.trained() == ["init", "cyc1", "last"]


def test_run_sh_does_not_train_beside_the_trainer_of_a_killed_run(place: Place) -> None:
    place.behave(init="waits")
    first = place.start()
    wait_for_log(place, "Iteration 4, lr")
    first.kill()
    first.communicate()
    assert call_script(place).returncode == 2
    (place.root / "release").touch()
    with (place.root / "logs/small/lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    assert place.trained() == ["init"]


def test_the_trainer_of_a_killed_run_sh_is_waited_for_a_moment_and_then_named(tmp_path: Path) -> None:
    path = tmp_path / "logs/small/lock"
    with held(path):
        lock = RecipeLock(tmp_path, "small", linger_s=0.2)
        with pytest.raises(InputError, match=r"small/lock: the mpiexec of a killed run is still running"):
            lock.acquire_trainer()
    assert lock.acquire_trainer()
    assert not is_free(path)
    lock.close()
    assert is_free(path)


def test_a_trainer_that_lingers_delays_a_run_and_does_not_stop_it(tmp_path: Path) -> None:
    path, lock = tmp_path / "logs/small/lock", RecipeLock(tmp_path, "small")
    with held(path):
        waiting = threading.Thread(target=lock.acquire_trainer)
        waiting.start()
        time.sleep(0.3)
        assert waiting.is_alive()
    waiting.join(timeout=600)
    assert not is_free(path)
    lock.close()


def test_a_folder_that_cannot_be_made_is_left_to_what_is_written_next(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    lock = RecipeLock(tmp_path, "small")
    lock.acquire()
    assert lock.acquire_trainer() == ()


def test_a_resumed_run_shares_the_lock_of_its_trainer_but_a_script_does_not(tmp_path: Path) -> None:
    path, killed = tmp_path / "logs/small/lock", RecipeLock(tmp_path, "small")
    (inherited,) = killed.acquire_trainer()
    (left,) = (os.dup(inherited),)  # what its trainer holds
    killed.close()
    lock = RecipeLock(tmp_path, "small", linger_s=0.1)
    assert lock.is_trainer_active()
    lock.share_trainer()
    assert lock.acquire_trainer()
    os.close(left)
    assert not is_free(path)
    lock.close()
    assert is_free(path)


def test_the_lock_held_by_the_trainer_of_a_script_is_not_shared(tmp_path: Path) -> None:
    lock = RecipeLock(tmp_path, "small", linger_s=0.1)
    with held(tmp_path / "logs/small/lock"):
        for acquire in (lock.share_trainer, lock.acquire_trainer):
            with pytest.raises(InputError, match="the mpiexec of a killed run is still running"):
                acquire()
