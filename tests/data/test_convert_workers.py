"""The processes that convert images ignore Ctrl-C, which is for their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from caffe_recipes.data.convert import children_ignoring_sigint, convert_all
from caffe_recipes.data.images import ConversionSettings, Picture
from tests.data.conftest import encode


def write_whether_sigint_is_blocked(path: str) -> None:
    Path(path).write_text(str(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])))


def test_a_worker_ignores_ctrl_c_from_its_start_but_its_parent_does_not(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=write_whether_sigint_is_blocked, args=(str(tmp_path / "said"),)
    )
    with children_ignoring_sigint():
        process.start()
    process.join()
    assert (tmp_path / "said").read_text() == "True"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_workers_have_one_thread_each_and_end_with_their_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    (tmp_path / "a.jpg").write_bytes(encode(".jpg"))
    pictures = [Picture("a.jpg", 0, 1, str(tmp_path / "a.jpg"))] * 200
    before = dict(os.environ)
    with closing(convert_all(pictures, ConversionSettings(8, 8), 2)) as converted:
        assert not next(converted).error
        workers = multiprocessing.active_children()
        assert len(workers) == 2
        assert [len(list(Path(f"/proc/{worker.pid}/task").iterdir())) for worker in workers] == [1, 1]
    assert multiprocessing.active_children() == []
    assert dict(os.environ) == before


@pytest.mark.promise("nothing is imported from the current folder")
@pytest.mark.parametrize(
    "program", ["caffe-recipes data build --images raw/train --out lmdb --workers 2", "imagenet_to_gcs.py"]
)
def test_a_worker_runs_no_module_of_the_current_folder(tmp_path: Path, program: str) -> None:
    for name in ("train/a/1.jpg", "train/b/1.jpg", "validation/v1.jpg"):
        picture = tmp_path / "raw" / name
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(encode(".jpg"))
    (tmp_path / "raw/synset_labels.txt").write_text("a\n")
    (tmp_path / "multiprocessing.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    if program.endswith(".py"):
        script = Path(__file__).parents[2] / "tensorflow_programs" / program
        words = [
            "--raw_data_dir",
            "raw",
            "--local_scratch_dir",
            "out",
            "--workers",
            "2",
            "--train_shards",
            "2",
        ]
        argv = [sys.executable, str(script), *words, "--validation_shards", "1"]
    else:
        argv = [str(Path(sys.executable).with_name("caffe-recipes")), *program.split()[1:]]
    plain = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")
    }
    done = subprocess.run(
        argv, cwd=tmp_path, env=plain, capture_output=True, text=True, timeout=120, check=False
    )
    assert not (tmp_path / "ran").exists()
    assert done.returncode == 0, done.stderr
