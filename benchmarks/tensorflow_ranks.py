"""Time five steps of ResNet-50 by resnet_main.py on JPEGs of 256 pixels: two ranks against one.

Both train on the same images, eight a step, in .venv-tf of `make install-tensorflow`: two ranks of one thread
under mpiexec.hydra, with Horovod between, and one rank of two threads.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

import cv2
import numpy as np

from caffe_recipes.data.images import Picture, Pictures
from caffe_recipes.data.tfrecords import write_picture_tfrecords

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv-tf" / "bin" / "python"
STEPS, BATCH = 5, 8
IMAGES = BATCH * (STEPS + 1)


def make_records(folder: Path) -> None:
    """Write a batch for each step and for the first, which is not timed, as two files of TFRecords."""
    raw, draw = folder / "raw", np.random.default_rng(1)
    raw.mkdir()
    pictures = []
    for number in range(IMAGES):
        coarse = draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        path = raw / f"{number}.jpg"
        cv2.imwrite(str(path), cv2.resize(coarse, (256, 256), interpolation=cv2.INTER_CUBIC))
        pictures.append(Picture(path.name, number, path.stat().st_size, str(path)))
    write_picture_tfrecords(Pictures(raw, pictures, None), folder / "train", shards=2)


def step_s(folder: Path, ranks: int, threads: int) -> float:
    """Return the seconds of a step, the mean of all but the first."""
    program = [str(PYTHON), str(ROOT / "tensorflow_programs" / "resnet_main.py")]
    flags = {
        "use_tpu": False,
        "data_dir": folder / "train",
        "model_dir": folder / f"model-{ranks}",
        "num_train_images": IMAGES,
        "train_batch_size": BATCH,
        "train_steps": STEPS + 1,
        "log_step_count_steps": 1,
        "num_intra_threads": threads,
        "num_inter_threads": 1,
    }
    launcher = [str(Path(sys.executable).with_name("mpiexec.hydra")), "-n", str(ranks)]
    done = subprocess.run(
        [*launcher, *program, *(f"--{name}={value}" for name, value in flags.items())],
        env={**os.environ, "PYTHONPATH": str(folder), "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    found = re.findall(r"^I\d+ (\S+) .*\] step (\d+): loss", done.stderr, re.MULTILINE)
    times = {int(step): datetime.strptime(clock, "%H:%M:%S.%f") for clock, step in found}
    return (times[STEPS] - times[0]).total_seconds() / STEPS


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_known_args()
    if not PYTHON.exists():
        print(f"{PYTHON} not found; run make install-tensorflow")
        return
    rates = (ROOT / "jobs" / "tf-256n-90ep" / "tf_rates.py").read_text()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_records(folder)
        (folder / "tf_rates.py").write_text(re.sub(r"(?m)^WARMUP_STEPS = .*$", "WARMUP_STEPS = 1", rates))
        two, one = step_s(folder, 2, 1), step_s(folder, 1, 2)
    print(f"ResNet-50, {BATCH} images of 224 pixels a step, {STEPS} steps, {os.cpu_count()} cores")
    print(f"two ranks of one thread: {two:.2f} s a step, {BATCH / two:.2f} images/s")
    print(f"one rank of two threads: {one:.2f} s a step, {BATCH / one:.2f} images/s")
    print(f"two ranks have {one / two:.2f} of the images/s of one rank")


if __name__ == "__main__":
    main()
