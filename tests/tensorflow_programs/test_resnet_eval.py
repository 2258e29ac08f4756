"""Evaluation prints the lines of the source, of every image."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from caffe_recipes.tensorflow.logs import parse_evaluations
from tests.tensorflow_programs.launch import (
    PROGRAMS,
    PYTHON,
    RATES,
    VAL_COUNT,
    Digits,
    environment,
    evaluate_command,
    run,
    train_command,
    write_rates,
)

pytestmark = pytest.mark.tensorflow


def test_two_ranks_learn_97_percent_of_the_digits(digits: Digits, tmp_path: Path) -> None:
    env = environment(write_rates(tmp_path / "rates", 0.02, 33, 0.1, 330))
    options = ("--train_steps=330", "--deterministic", "--log_step_count_steps=20")
    trained = run(train_command(2, digits, tmp_path / "model", *options), env)
    assert trained.returncode == 0, trained.stdout
    done = run(evaluate_command(digits, tmp_path / "model"), env)
    assert done.returncode == 0, done.stdout
    (found,) = parse_evaluations(done.stdout).evaluations
    assert (found.step, found.batches, found.batches_total) == (330, 8, 8)
    assert found.top1 is not None
    assert found.top1 >= 0.97
    # The last batch has 9 images, not 50, and each counts as much as any other.
    assert found.top1 * VAL_COUNT == pytest.approx(round(found.top1 * VAL_COUNT), abs=1e-3)
    assert f"Eval results: {{'Top-1 accuracy': {found.top1}" in done.stdout
    whole = run([*evaluate_command(digits, tmp_path / "model"), f"--eval_batch_size={VAL_COUNT}"], env)
    assert whole.returncode == 0, whole.stdout
    (in_one,) = parse_evaluations(whole.stdout).evaluations
    assert found.loss == pytest.approx(in_one.loss, rel=1e-4)


def test_the_generated_script_starts_the_program_as_it_stands(tmp_path: Path) -> None:
    folders = {"RESNET_DIR": PROGRAMS, "VALIDATION_DIR": tmp_path / "validation", "MODEL_DIR": tmp_path}
    env = environment(tmp_path, PATH=f"{PYTHON.parent}:{os.environ['PATH']}")
    script = [str(RATES / "tf_evaluate.sh")]
    done = run(script, env | {name: str(folder) for name, folder in folders.items()})
    assert done.returncode == 2, done.stdout
    # All flags are known: only the model is missing.
    assert f"resnet_eval.py: {tmp_path}/model_batch_24k_90ep: no checkpoint" in done.stdout
