"""Training on ranks: the same numbers as alone, resumed as if never killed, and refused in one line."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from caffe_recipes.tensorflow.records import deal_files
from tests.tensorflow_programs.launch import (
    PROGRAMS,
    PYTHON,
    RATES,
    Digits,
    ask,
    environment,
    fork,
    read_steps,
    refuse,
    run,
    train,
    train_command,
)

pytestmark = pytest.mark.tensorflow

STEPS = 20
SHORT = (f"--train_steps={STEPS}", "--frozen_batch_norm")

RATE = """
import json
import sys
import tensorflow.compat.v1 as tf
sys.argv = ["resnet_main.py", "--data_dir=.", "--model_dir=.", "--train_steps=4680"]
import resnet_main, tf_rates

resnet_main.FLAGS(sys.argv)
tf.disable_eager_execution()
step = tf.placeholder(tf.int64, [])
rate = resnet_main.build_learning_rate(step)
with tf.Session() as session:
    found = [float(session.run(rate, {step: number})) for number in range(4681)]
arguments = tf_rates.LEARNING_RATE, tf_rates.WARMUP_STEPS, tf_rates.END_LEARNING_RATE
wanted = [tf_rates.gradual_warmup_then_dec(*arguments, number, 4680) for number in range(4681)]
print(json.dumps([found, wanted]))
"""


def test_the_rate_of_each_step_is_that_of_the_generated_module() -> None:
    found, wanted = ask(RATE)
    assert len(found) == 4681
    assert found == pytest.approx(wanted, rel=1e-6)


@pytest.mark.promise("ranks meet over no open door")
def test_horovod_is_built_over_mpi_alone() -> None:
    code = "import json, horovod.tensorflow as hvd; print(json.dumps([hvd.mpi_built(), hvd.gloo_built()]))"
    is_mpi, is_gloo = ask(code)
    assert is_mpi
    assert not is_gloo


def differ(ours: dict[int, float], theirs: dict[int, float]) -> float:
    """Return by how much the losses of any step differ at most; the steps are the same."""
    assert list(ours) == list(theirs)
    return max(abs(loss - theirs[step]) for step, loss in ours.items())


@pytest.fixture(scope="module")
def alone(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    return train(1, digits, tmp_path_factory.mktemp("alone"), *SHORT)


def test_two_ranks_have_the_losses_of_one(digits: Digits, alone: dict[int, float], tmp_path: Path) -> None:
    losses = train(2, digits, tmp_path / "model", *SHORT)
    assert len(losses) == STEPS
    assert differ(losses, alone) < 1e-4


BREAKS = {
    "sharding": ("resnet_main.py", "rank=hvd.rank(),", "rank=0,"),
    "splitting": (
        "record_files.py",
        "return self.batch // self.ranks",
        "return self.batch // self.ranks // 2",
    ),
    "broadcast": ("resnet_main.py", "hooks=[broadcast],", "hooks=[],"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_two_ranks_differ_from_one_when_a_part_of_them_is_broken(
    digits: Digits, alone: dict[int, float], tmp_path: Path, name: str
) -> None:
    file, sound, broken = BREAKS[name]
    programs = tmp_path / "programs"
    shutil.copytree(PROGRAMS, programs)
    text = (programs / file).read_text()
    assert text.count(sound) == 1
    (programs / file).write_text(text.replace(sound, broken))
    losses = train(2, digits, tmp_path / "model", *SHORT, programs=programs)
    assert differ(losses, alone) > 1e-3


@contextmanager
def started(command: Sequence[str], digits: Digits, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a launcher that writes to a log; its ranks end with it."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            env=environment(digits.rates),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def wait_for_steps(count: int, log: Path, process: subprocess.Popen[bytes], timeout_s: float = 900) -> None:
    end = time.monotonic() + timeout_s
    while len(read_steps(log.read_text())) < count:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)


# The program, which also writes down the images that its ranks read, in files beside the model.
NOTING = f"""
import sys
sys.path[0] = {str(PROGRAMS)!r}
import tensorflow.compat.v1 as tf
import imagenet_input, resnet_main

read_records = imagenet_input.train_records

def note_records(share, first_step, train_steps):
    path = f"{{resnet_main.FLAGS.model_dir}}.{{share.rank}}.{{first_step}}"
    file = open(path, "w", buffering=1)

    def note(record):
        feature = tf.train.Example.FromString(record.numpy()).features.feature
        print(feature["image/filename"].bytes_list.value[0].decode(), file=file)
        return record

    records = read_records(share, first_step, train_steps)
    return records.map(lambda record: tf.ensure_shape(tf.py_function(note, [record], tf.string), []))

imagenet_input.train_records = note_records
resnet_main.run("resnet_main.py", resnet_main.train)
"""
LOCAL_BATCH = 32


def read_images(model: Path, start: int, steps: range) -> list[list[str]]:
    """Return the images that each of two ranks read for some steps, in a run that started at a step."""
    files = [model.with_name(f"{model.name}.{rank}.{start}") for rank in range(2)]
    part = slice((steps.start - start) * LOCAL_BATCH, (steps.stop - start) * LOCAL_BATCH)
    return [file.read_text().splitlines()[part] for file in files]


def test_killed_at_three_steps_a_run_has_the_losses_rates_and_images_of_one_that_was_not(
    digits: Digits, tmp_path: Path
) -> None:
    # Each resume has 10 steps at least before the next kill, or before the end.
    kills = [random.randint(5, 12), random.randint(10, 14), random.randint(10, 14)]
    print(f"killed after {kills} steps of each start")  # pytest shows it if the test fails
    end = 50
    (tmp_path / "resnet_main.py").write_text(NOTING)
    options = (f"--train_steps={end}", "--deterministic", "--save_checkpoints_steps=4")
    whole = train_command(2, digits, tmp_path / "whole", *options, programs=tmp_path)
    done = run(whole, environment(digits.rates))
    assert done.returncode == 0, done.stdout
    wanted = read_steps(done.stdout)
    assert list(wanted) == list(range(end))
    command = train_command(2, digits, tmp_path / "killed", *options, programs=tmp_path)
    for number, count in enumerate((*kills, 0)):
        log = tmp_path / f"{number}.log"
        with started(command, digits, log) as process:
            if count:
                wait_for_steps(count, log, process)
                for rank in ranks_of(process):
                    os.kill(rank, signal.SIGKILL)
            process.wait(900)
        found = read_steps(log.read_text())
        steps = range(min(found), max(found) + 1)
        assert list(found) == list(steps)
        assert steps.start % 4 == 0
        assert (steps.start > 0) == (number > 0)
        assert number == 0 or len(steps) >= 10
        for step, (loss, rate) in found.items():
            assert (loss, rate) == pytest.approx(wanted[step], abs=1e-5), step
        images = read_images(tmp_path / "killed", steps.start, steps)
        assert images == read_images(tmp_path / "whole", 0, steps)
        assert [len(rank) for rank in images] == [len(steps) * LOCAL_BATCH] * 2
    assert process.returncode == 0, log.read_text()


def ranks_of(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the ranks that a launcher's proxy started, in whatever order."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return [pid for pid, parent in parents.items() if parents.get(parent) == process.pid]


def test_a_killed_rank_ends_the_run_within_30_s_and_is_named(digits: Digits, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with started(train_command(2, digits, tmp_path / "model", "--train_steps=4000"), digits, log) as process:
        wait_for_steps(3, log, process)
        ranks = ranks_of(process)
        assert len(ranks) == 2
        os.kill(ranks[-1], signal.SIGKILL)
        assert process.wait(30) != 0
        assert f"PID {ranks[-1]} RUNNING AT" in log.read_text()
        assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--train_batch_size=63", "--train_batch_size 63 is not divisible by 2 ranks"),
        (
            "--train_batch_size=128",
            "--train_batch_size 128: the rates of tf_rates.py are for 64; `caffe-recipes rescale",
        ),
        ("--train_batch_size=1440", "--train_batch_size 1440 exceeds the 1438 images"),
        ("--use_tpu=True", "give --use_tpu=False"),
        ("--train_steps=10", "--train_steps 10 must be more than the 10 steps of warm-up"),
        ("--data_dir=nowhere", "nowhere.manifest.json: cannot be read"),
        ("--file_groups=3", "--file_groups 3 does not divide 2 ranks"),
        ("--file_groups=2 --deterministic", "--deterministic with --file_groups 2"),
        ("--train_stesp=30", "Unknown command line flag 'train_stesp'"),
        ("--resnet_depth=18", "--resnet_depth=18: value should be one of <14|50|101|152|200>"),
        ("30", "'30' is not a flag"),
    ],
)
def test_an_untrainable_setting_is_refused_before_the_first_step(
    digits: Digits, tmp_path: Path, option: str, message: str
) -> None:
    command = train_command(2, digits, tmp_path / "model", "--train_steps=20", *option.split())
    assert message in refuse(fork(command), environment(digits.rates))
    assert not (tmp_path / "model").exists()


def test_two_groups_train_on_their_own_files_and_the_reader_of_a_missing_one_names_it(
    digits: Digits, tmp_path: Path
) -> None:
    data = tmp_path / "train"
    shutil.copytree(digits.train, data)
    shutil.copy(digits.train.with_name("train.manifest.json"), data / ".manifest.json")
    command = train_command(2, digits, tmp_path / "model", "--train_steps=24", "--file_groups=2")
    command = [word.replace(f"--data_dir={digits.train}", f"--data_dir={data}") for word in command]
    done = run(command, environment(digits.rates))
    assert done.returncode == 0, done.stdout
    assert list(read_steps(done.stdout)) == list(range(24))
    assert (
        "dealt whole files of 2 groups of files; an epoch has 22 steps and leaves out 30 of 1438"
        in done.stdout
    )
    seed = json.loads((data / ".manifest.json").read_text())["seed"]
    file = data / deal_files(sorted(path.name for path in data.glob("train-*")), 2, 1, seed)[0]
    file.unlink()
    line = refuse(fork(command), environment(digits.rates))
    assert f"{file}: missing on " in line
    assert line.endswith("; group 1 of 2 reads it; copy the records again")


def test_a_horovod_of_another_mpi_is_found_before_training(digits: Digits, tmp_path: Path) -> None:
    # Its launcher starts two ranks, each of which sees itself alone.
    command = train_command(2, digits, tmp_path / "model")[3:]
    env = environment(digits.rates, OMPI_COMM_WORLD_SIZE="2")
    assert "the launcher started 2 ranks, but Horovod sees 1" in refuse(fork(command), env)


def test_a_python_without_horovod_or_rates_is_named(digits: Digits, tmp_path: Path) -> None:
    command = train_command(1, digits, tmp_path / "model")[3:]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "tf_rates.py not found" in refuse(command, environment(empty))
    (empty / "horovod.py").touch()
    assert "horovod" in refuse(command, environment(empty))


def test_a_label_that_is_out_of_range_ends_the_run(digits: Digits, tmp_path: Path) -> None:
    command = train_command(1, digits, tmp_path / "model", "--train_steps=20", "--num_label_classes=5")
    line = refuse(command[3:], environment(digits.rates), status=3)
    assert re.fullmatch(
        r"resnet_main.py: label out of range: ([6-9]|10) is not from 1 to 5; "
        r"check --label_offset and --num_label_classes",
        line,
    )


def test_a_checkpoint_of_another_model_or_one_that_is_missing_or_truncated_is_refused(
    digits: Digits, tmp_path: Path
) -> None:
    model, env = tmp_path / "model", environment(digits.rates)
    command = train_command(1, digits, model)[3:]
    assert run([*command, "--train_steps=11"], env).returncode == 0
    before = {path: path.stat().st_mtime_ns for path in model.iterdir()}
    command = fork(command)
    line = refuse([*command, "--train_steps=20", "--num_label_classes=11"], env)
    assert "dense/kernel has shape [512, 10], but the model needs shape [512, 11]" in line
    model.joinpath("model.ckpt-11.index").rename(tmp_path / "index")
    assert "model.ckpt-11 is missing" in refuse([*command, "--train_steps=20"], env)
    (tmp_path / "index").rename(model / "model.ckpt-11.index")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    data = model / "model.ckpt-11.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-100])
    assert "model.ckpt-11: cannot be read" in refuse([*command, "--train_steps=20"], env)


def test_the_generated_script_starts_the_program_as_it_stands(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text('#!/bin/bash\n[[ ${*:1:5} == "-np 512 -ppn 2 python" ]] && exec python "${@:6}"\n')
    mpirun.chmod(0o755)
    folders = {"RESNET_DIR": PROGRAMS, "TRAIN_DIR": tmp_path / "train", "MODEL_DIR": tmp_path}
    env = environment(tmp_path, PATH=f"{tmp_path}:{PYTHON.parent}:{os.environ['PATH']}")
    script = [str(RATES / "tf_train.sh")]
    line = refuse(script, env | {name: str(folder) for name, folder in folders.items()})
    # All flags are known, the schedule was found beside the script: only the records are missing.
    assert line.startswith(f"resnet_main.py: {tmp_path}/train.manifest.json: cannot be read")
