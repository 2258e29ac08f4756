"""Start the TensorFlow programs in their own environment, under the hydra of ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tensorflow_programs"
PYTHON = ROOT / ".venv-tf" / "bin" / "python"
FORK_SERVER = Path(__file__).with_name("fork_server.py")
MPIEXEC = Path(sys.executable).with_name("mpiexec.hydra")
RATES = ROOT / "jobs" / "tf-256n-90ep"
TRAIN_COUNT, VAL_COUNT = 1438, 359
# A network of 14 layers for digits of 32 pixels, on one thread a rank.
SMALL = [
    *("--use_tpu=False", "--num_label_classes=10", "--image_size=32", "--resnet_depth=14"),
    *("--num_intra_threads=1", "--num_inter_threads=1"),
]
_STEP = re.compile(r"step (\d+): loss = (\S+), learning_rate = (\S+)")


class Digits(NamedTuple):
    """Folders of digits as TFRecords, and of a tf_rates.py for a short run on them."""

    train: Path
    val: Path
    rates: Path


def write_rates(folder: Path, start: float, warmup: int, end: float, steps: int) -> Path:
    """Write the generated tf_rates.py with other values into a folder; return the folder."""
    text = (RATES / "tf_rates.py").read_text()
    values = {"BATCH": 64, "LEARNING_RATE": start, "WARMUP_STEPS": warmup}
    values |= {"END_LEARNING_RATE": end, "STEPS": steps}
    for name, value in values.items():
        text = re.sub(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
    folder.mkdir(exist_ok=True)
    (folder / "tf_rates.py").write_text(text)
    return folder


def environment(rates: Path, **more: str) -> dict[str, str]:
    """Return the environment of a program: tf_rates.py is found in `rates`, and TensorFlow is quiet."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMP"))}
    return {**kept, "PYTHONPATH": str(rates), "TF_CPP_MIN_LOG_LEVEL": "2", **more}


def train_command(
    ranks: int, digits: Digits, model: Path, *more: str, programs: Path = PROGRAMS
) -> list[str]:
    """Return the argv of a training run on digits, 64 images a step, every step in the log."""
    return [
        *(str(MPIEXEC), "-n", str(ranks), str(PYTHON), str(programs / "resnet_main.py"), *SMALL),
        *(f"--data_dir={digits.train}", f"--model_dir={model}", f"--num_train_images={TRAIN_COUNT}"),
        *("--train_batch_size=64", "--log_step_count_steps=1", *more),
    ]


def evaluate_command(digits: Digits, model: Path) -> list[str]:
    """Return the argv of an evaluation on digits, 50 at a time."""
    return [
        *(str(PYTHON), str(PROGRAMS / "resnet_eval.py"), *SMALL, "--eval_batch_size=50"),
        *(f"--data_dir={digits.val}", f"--model_dir={model}", f"--num_eval_images={VAL_COUNT}"),
    ]


@cache
def forking_python() -> list[str]:
    """Return words that stand for a Python that has imported TensorFlow and Horovod, which takes 3 s of CPU.

    Its programs are forks of a server that starts here and ends with the tests. Those that train are started
    anew: what TensorFlow's threads do at the end of one is part of what is tested.
    """
    path = f"{tempfile.mkdtemp(prefix='caffe-recipes-fork-', dir='/tmp')}/socket"
    server = subprocess.Popen(
        [str(PYTHON), str(FORK_SERVER), path],
        env=environment(RATES),
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    _kept.append(server)
    return [str(PYTHON), "-IS", str(FORK_SERVER), path]


_kept: list[subprocess.Popen[str]] = []  # the server ends as its stdin does


def fork(command: Sequence[str]) -> list[str]:
    """Return a command whose programs are forks of a server; their launcher, flags and files are as given."""
    at = command.index(str(PYTHON))
    return [*command[:at], *forking_python(), *command[at + 1 :]]


def run(command: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, stdout and stderr in one."""
    return subprocess.run(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=900,
    )


def refuse(command: Sequence[str], env: dict[str, str], status: int = 2) -> str:
    """Return the one line of our own that a refused program prints, on one rank of them."""
    done = run(command, env)
    assert done.returncode == status, done.stdout
    assert "Traceback" not in done.stdout
    lines = [line for line in done.stdout.splitlines() if re.match(r"resnet_\w+\.py: ", line)]
    assert len(lines) == 1, done.stdout
    return lines[0]


def read_steps(log: str) -> dict[int, tuple[float, float]]:
    """Return the loss and the rate of each step in a log."""
    return {int(step): (float(loss), float(rate)) for step, loss, rate in _STEP.findall(log)}


def train(ranks: int, digits: Digits, model: Path, *more: str, programs: Path = PROGRAMS) -> dict[int, float]:
    """Train without random crops; return the loss of each step."""
    command = train_command(ranks, digits, model, "--deterministic", *more, programs=programs)
    done = run(command, environment(digits.rates))
    assert done.returncode == 0, done.stdout
    return {step: loss for step, (loss, _) in read_steps(done.stdout).items()}


def ask(code: str, *arguments: object) -> Any:  # noqa: ANN401 - JSON
    """Run code of TensorFlow beside the programs; return what it prints last, which is JSON."""
    done = subprocess.run(
        [*forking_python(), "-c", code, *map(str, arguments)],
        env=environment(RATES, PYTHONPATH=f"{PROGRAMS}{os.pathsep}{RATES}"),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
