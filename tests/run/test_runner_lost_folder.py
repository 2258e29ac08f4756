"""A run whose folder is moved or removed while it is active."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.run.test_runner_interruptions import wait_until_trained

if TYPE_CHECKING:
    from tests.run.conftest import Place

MESSAGE = "runs/small-1: was removed or moved while the run used it; put it back, and run again"


@pytest.mark.parametrize("words", [(), ("--on-failure", "retry")])
def test_a_run_whose_folder_is_moved_fails_and_resumes_once_it_is_back(
    place: Place, words: tuple[str, ...]
) -> None:
    place.behave(cyc1="waits")
    run = place.start(*words)
    wait_until_trained(place, "cyc1")
    folder, aside = place.root / "runs/small-1", place.root / "runs/aside"
    folder.rename(aside)
    stdout, stderr = run.communicate(timeout=600)
    assert (run.returncode, stderr.splitlines()[-1]) == (3, f"Error: {MESSAGE}")
    assert "retrying" not in stdout
    assert not folder.exists(), "nothing is made in its place"
    place.wait_for_no_process()
    aside.rename(folder)
    place.behave()
    assert place.call()[0] == 0
    assert place.trained() == ["init", "cyc1", "cyc1", "last"]


def test_a_run_whose_folder_is_removed_ends_with_its_ranks(place: Place) -> None:
    place.behave(init="waits")
    run = place.start()
    wait_until_trained(place, "init")
    shutil.rmtree(place.root / "runs/small-1")
    _, stderr = run.communicate(timeout=600)
    assert (run.returncode, stderr.splitlines()[-1]) == (3, f"Error: {MESSAGE}")
    assert "Traceback" not in stderr
    place.wait_for_no_process()
