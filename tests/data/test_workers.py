"""What the processes that convert images hear of a Ctrl-C, which is their parent's."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

from caffe_recipes.data.workers import deaf_children


def tell(path: str) -> None:
    Path(path).write_text(str(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])))


def test_a_worker_hears_no_ctrl_c_from_its_very_beginning_and_its_parent_still_does(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=tell, args=(str(tmp_path / "said"),))
    with deaf_children():
        process.start()
    process.join()
    assert (tmp_path / "said").read_text() == "True"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
