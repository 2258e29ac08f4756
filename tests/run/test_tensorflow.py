"""The command lines of TensorFlow's programs, and reading their logs and files; none is started."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.profiles import load_profile
from caffe_recipes.cluster.slurm.this_job import SLURM_VARIABLES
from caffe_recipes.errors import ClusterError, InputError, RecipeError, WeightsError
from caffe_recipes.recipe.source import load_recipe, load_tensorflow_run
from caffe_recipes.run.context import RunOptions, find_setting
from caffe_recipes.run.events import RunState
from caffe_recipes.run.folders import freeze_recipe, thaw_recipe
from caffe_recipes.run.preflight.nodes import look_at_nodes
from caffe_recipes.run.preflight.trials import check_ranks
from caffe_recipes.run.tensorflow import ProgramLog, TensorFlow
from caffe_recipes.run.trainer import Attempt, Checkpoint
from caffe_recipes.run.trainer_log import LogTail, find_failure, images_per_s
from caffe_recipes.run.training_plan import plan_training
from caffe_recipes.trust import VARIABLE, trusting

DIGITS = TensorFlow(load_tensorflow_run("tf-digits-local"))
PLAN = plan_training(DIGITS.recipe, "runs/x-1")
STEP, TESTING = PLAN.trainings[0], PLAN.testings[0]
MODEL = "runs/x-1/model/model.ckpt"


OLD = "Unknown option: -P"  # of an older Python


def line(text: str, second: int = 0, file: str = "resnet_main.py", rank: str = "[0] ") -> str:
    return f"{rank}I1124 05:07:{second:02}.426261 140408266914688 {file}:294] {text}"


def step_line(step: int, loss: float, second: int = 0) -> str:
    return line(f"step {step}: loss = {loss}, learning_rate = 0.02", second)


def saving(step: int) -> list[str]:
    """Write what a whole checkpoint prints."""
    return [
        line(f"Calling checkpoint listeners before saving checkpoint {step}..."),
        line(f"Saving checkpoints for {step} into {MODEL}."),
        line(f"Calling checkpoint listeners after saving checkpoint {step}..."),
    ]


def tail_of(tmp_path: Path, *lines: str) -> LogTail:
    (tmp_path / "log").write_text("".join(f"{each}\n" for each in lines))
    tail = LogTail(tmp_path / "log", DIGITS.new_log_summary())
    tail.read(to_end=True)
    return tail


def test_the_run_is_one_step_that_starts_the_program_with_the_recipe_s_flags() -> None:
    assert [step.phase for step in PLAN.trainings] == ["train"]
    _, program, *flags = STEP.arguments
    assert program == "tensorflow/tf-digits-local/resnet_main.py"
    assert program in PLAN.files
    assert "tensorflow/tf-digits-local/tf_rates.py" in PLAN.files
    assert flags[flags.index("--train_steps") + 1] == "660"
    assert {"--data_dir=tmp/digits_records/train", "--deterministic=True"} <= set(flags)
    assert (STEP.last_iter, STEP.images_per_iter) == (660, 64)
    assert STEP.kept == tuple(
        f"runs/x-1/snapshots/model.ckpt-660.{end}" for end in ("index", "data-00000-of-00001")
    )


def test_the_evaluation_reads_what_was_kept() -> None:
    assert "--model_dir=runs/x-1/snapshots" in TESTING.arguments
    assert TESTING.files["runs/x-1/snapshots/checkpoint"].startswith(
        'model_checkpoint_path: "model.ckpt-660"\n'
    )
    assert (TESTING.weights, *TESTING.needed) == STEP.kept
    assert TESTING.iterations == 8
    assert TESTING.environment == {"OMP_NUM_THREADS": "1"}


def test_a_recipe_for_caffe_has_its_run_of_tensorflow_under_a_name_of_its_own() -> None:
    recipe = load_tensorflow_run("tf-256n-90ep")
    assert (recipe.name, recipe.trainer) == ("tf-256n-90ep-tensorflow", "tensorflow")
    (step,) = plan_training(recipe, "runs/x-1").trainings
    assert (step.last_iter, step.images_per_iter) == (4680, 24576)
    assert thaw_recipe(freeze_recipe(recipe)) == recipe
    with pytest.raises(RecipeError, match="has no `tensorflow`"):
        load_tensorflow_run("digits-local")


def test_a_line_of_the_log_becomes_progress_rate_and_speed() -> None:
    log = ProgramLog()
    for each in (step_line(0, 2.5), step_line(10, 2.25, second=2)):
        log.feed(each)
    assert (log.losses, log.rates) == ({0: 2.5, 10: 2.25}, {0: 0.02, 10: 0.02})
    assert images_per_s([log], 64) == pytest.approx(320)


def test_a_checkpoint_is_complete_once_the_log_reports_it() -> None:
    log = ProgramLog()
    for each in (*saving(0), *saving(110)[:2]):
        log.feed(each)
    assert (log.solverstates, log.whole_snapshots) == ([f"{MODEL}-110.index"], [])
    log.feed(saving(110)[2])
    assert log.whole_snapshots == [DIGITS.models.model_beside(f"{MODEL}-110.index")]
    assert DIGITS.models.checkpoint_iter(f"{MODEL}-110.index") == 110
    assert DIGITS.models.checkpoint_iter(f"{MODEL}-110.meta") is None


def test_a_training_is_complete_only_with_the_last_line_of_the_program(tmp_path: Path) -> None:
    done = line("Finished training up to step 660.")
    assert find_failure(tail_of(tmp_path, step_line(650, 0.5), done), STEP) is None
    assert find_failure(tail_of(tmp_path, step_line(650, 0.5)), STEP) == "it ended after iteration 650 of 660"
    complaint = "[1] resnet_main.py: --train_batch_size 65 is not divisible by 2 ranks"
    assert find_failure(tail_of(tmp_path, complaint), STEP) == complaint.removeprefix("[1] resnet_main.py: ")
    lost = find_failure(tail_of(tmp_path, step_line(10, float("nan"))), STEP)
    assert lost == "the loss is nan at iteration 10"


RESULT = "Top-1 accuracy = 0.98, Top-5 accuracy = 1.0, global_step = {step}, loss = 0.14"


@pytest.mark.parametrize(
    ("step", "batches", "has_result"), [(660, 8, True), (550, 8, False), (660, 7, False)]
)
def test_an_evaluation_counts_if_it_is_of_the_last_step_and_of_all_images(
    tmp_path: Path, step: int, batches: int, has_result: bool
) -> None:
    tail = tail_of(
        tmp_path,
        line(f"Evaluation [{batches}/8]", file="evaluation.py", rank=""),
        line(f"Saving dict for global step {step}: {RESULT.format(step=step)}", rank=""),
    )
    found = DIGITS.outputs(tail.summary, TESTING)
    assert found == ({"top-1": 0.98, "top-5": 1.0, "loss": 0.14} if has_result else {})


def write_checkpoints(root: Path, *steps: int) -> None:
    folder = root / "runs/x-1/model"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "checkpoint").write_text("all")
    for step in steps:
        for end in ("index", "data-00000-of-00001", "meta"):
            (folder / f"model.ckpt-{step}.{end}").write_text(f"{step} {end}")


def checkpoint_of(root: Path, step: int) -> Checkpoint:
    return DIGITS.models.fetch_checkpoint(LocalHost("n1"), root, {}, STEP, f"{MODEL}-{step}.index", "unused")


def test_a_damaged_newest_checkpoint_is_set_aside_as_a_set_before_the_start(tmp_path: Path) -> None:
    write_checkpoints(tmp_path, 110, 220)
    older, newer = checkpoint_of(tmp_path, 110), checkpoint_of(tmp_path, 220)
    assert newer.state_sha256 == hashlib.sha256(b"220 index").hexdigest()
    (tmp_path / newer.model).write_text("damaged")
    with pytest.raises(WeightsError, match="is no longer the checkpoint at step 220"):
        DIGITS.models.verify_checkpoint(tmp_path, {}, "train", newer)
    DIGITS.models.verify_checkpoint(tmp_path, {}, "train", older)
    assert list(DIGITS.set_aside(tmp_path, STEP, older)) == ["model.ckpt-220"]
    folder = tmp_path / "runs/x-1/model"
    assert {path.name for path in folder.glob("model.ckpt-*")} == {
        f"model.ckpt-110.{end}" for end in ("index", "data-00000-of-00001", "meta")
    }
    assert (folder / "set-aside/model.ckpt-220.index").read_text() == "220 index"
    arguments, files = DIGITS.launch_arguments(STEP, older, 50, PLAN.files, "unused")
    assert arguments == (*STEP.arguments, "--save_checkpoints_steps=50")
    assert files == {
        "runs/x-1/model/checkpoint": 'model_checkpoint_path: "model.ckpt-110"\n'
        'all_model_checkpoint_paths: "model.ckpt-110"\n'
    }


def test_a_start_from_nothing_finds_nothing_to_resume(tmp_path: Path) -> None:
    assert list(DIGITS.set_aside(tmp_path, STEP, None)) == []
    write_checkpoints(tmp_path, 110)
    assert list(DIGITS.set_aside(tmp_path, STEP, None)) == ["model.ckpt-110"]
    assert [path.name for path in (tmp_path / "runs/x-1/model").iterdir()] == ["set-aside"]


def test_only_a_change_of_the_schedule_makes_it_another_run() -> None:
    path = "tensorflow/tf-digits-local/tf_rates.py"
    digests = DIGITS.digest_files(PLAN.files)
    assert list(digests) == [path]
    commented = {path: f"# a comment\n{PLAN.files[path]}"}
    assert DIGITS.digest_files(commented) == digests
    changed = {path: PLAN.files[path].replace("STEPS = 660", "STEPS = 661")}
    assert DIGITS.digest_files(changed) != digests


@pytest.mark.promise("nothing is imported from the current folder")
@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        (Attempt(0, "caffe-recipes: TensorFlow 2.12.1, Horovod 0.28.1"), None),
        (
            Attempt(1, "Traceback\nModuleNotFoundError: No module named 'horovod'"),
            "No module named 'horovod'",
        ),
        (Attempt(1, "Horovod was built without MPI; build it with HOROVOD_WITH_MPI=1"), "without MPI"),
        (Attempt(124, ""), "within 120 s"),
        (Attempt(2, f"{OLD}\nusage: python [option]\nTry `python -h' for more"), "is older than Python 3.11"),
    ],
)
def test_a_host_without_the_libraries_is_reported_in_one_line(attempt: Attempt, expected: str | None) -> None:
    found = DIGITS.trial().judge(attempt, 120)
    assert found is None if expected is None else expected in (found or "")


# What the trial needs from the libraries, with flags as absl reads them.
LIBRARIES = {
    "horovod/__init__.py": "__version__ = '0.28.1'",
    "horovod/tensorflow.py": "def mpi_built():\n    return True",
    "tensorflow.py": "__version__ = '2.12.1'",
    "absl/__init__.py": "",
    "absl/flags.py": """
class Error(Exception): pass
class Flags(dict):
    def __call__(self, words):
        for name in (word[2:].partition("=")[0] for word in words if word.startswith("--")):
            if name not in self: raise Error(f"Unknown command line flag '{name}'")
FLAGS = Flags()
""",
}


@pytest.mark.parametrize(
    ("defines", "found"),
    [
        ("flags.FLAGS.update(dict.fromkeys(KNOWN))", None),
        (
            "flags.FLAGS.update(dict.fromkeys(KNOWN - {'deterministic'}))",
            "resnet_main.py: Unknown command line flag 'deterministic'; correct tensorflow.flags, or",
        ),
        ("pass  # its flags are argparse's", None),
        ("import contrib", "does not import TensorFlow and Horovod: ModuleNotFoundError: No module named"),
    ],
)
def test_a_program_that_lacks_a_flag_is_named_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defines: str, found: str | None
) -> None:
    given = (*PLAN.trainings[0].arguments, *PLAN.testings[0].arguments)
    known = {word[2:].partition("=")[0] for word in given if word.startswith("--")}
    for path, text in LIBRARIES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    for name in ("resnet_main.py", "resnet_eval.py"):
        (tmp_path / name).write_text(f"from absl import flags\nKNOWN = {known}\n{defines}\n")
    monkeypatch.setenv("RESNET_DIR", str(tmp_path))
    trial = DIGITS.trial()
    (tmp_path / "trial.py").write_text(trial.files["trial.py"])
    argv = [sys.executable, *trial.attempts["the programs"]]
    more = {"PYTHONPATH": DIGITS.environment(tmp_path)["PYTHONPATH"]}
    done = subprocess.run(
        argv, cwd=tmp_path, capture_output=True, text=True, timeout=600, env={**os.environ, **more}
    )
    problem = DIGITS.trial().judge(Attempt(done.returncode, done.stdout + done.stderr), 120)
    assert problem is None if found is None else found in (problem or "")


def test_missing_programs_are_named_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESNET_DIR", str(tmp_path))
    (tmp_path / "resnet_main.py").touch()
    with pytest.raises(InputError, match=r"resnet_eval.py: no such program; correct or unset RESNET_DIR"):
        DIGITS.find_program(tmp_path, "", load_profile("mpich"))


def test_a_flag_that_a_program_does_not_know_is_the_run_s_failure() -> None:
    log = DIGITS.new_log_summary()
    log.feed("[1] FATAL Flags parsing error: Unknown command line flag 'nonsense'\n")
    assert log.fatal == "Flags parsing error: Unknown command line flag 'nonsense'"


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ("rank $PMI_RANK of 2", "2 ranks see each other"),
        ("rank 0 of 1", "2 of 2 ranks answered, and saw world size 1; build it with the MPI of"),
        ("nothing", "0 of 2 ranks answered, and saw nothing"),
    ],
)
def test_ranks_that_do_not_see_each_other_are_found_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, found: str
) -> None:
    for name in SLURM_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    python = tmp_path / "python"
    # Hydra dies of SIGPIPE if its ranks end before it has let them know that there is no standard input.
    python.write_text(f'#!/bin/sh\necho "caffe-recipes: {printed}"; sleep 0.3\n')
    python.chmod(0o755)
    (tmp_path / "mine.yaml").write_text(f"{{name: mine, title: mine, python: {python}}}")
    options = RunOptions(root=tmp_path, profile=str(tmp_path / "mine.yaml"))
    setting = find_setting(DIGITS.recipe, options, lambda name, copy_with: LocalHost(name))
    (row,) = check_ranks(look_at_nodes(setting, PLAN, RunState()))
    assert found in row.message
    assert (row.error is None) == (printed == "rank $PMI_RANK of 2")


def test_an_exception_of_a_rank_is_shown_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SLURM_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    python = tmp_path / "python"
    raised = "Traceback (most recent call last):\\n  File\\nOSError: no libmpi\\n"
    python.write_text(f"#!/bin/sh\nprintf '{raised}' >&2; sleep 0.3; exit 1\n")
    python.chmod(0o755)
    (tmp_path / "mine.yaml").write_text(f"{{name: mine, title: mine, python: {python}}}")
    options = RunOptions(root=tmp_path, profile=str(tmp_path / "mine.yaml"))
    setting = find_setting(DIGITS.recipe, options, lambda name, copy_with: LocalHost(name))
    with pytest.raises(ClusterError, match=r"fails on a rank: OSError: no libmpi; try `.*import horovod"):
        check_ranks(look_at_nodes(setting, PLAN, RunState()))


def test_the_python_is_the_profile_s_or_that_of_its_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mpich = load_profile("mpich")
    own = tmp_path / ".venv-tf/bin/python"
    own.parent.mkdir(parents=True)
    own.touch(mode=0o755)
    assert DIGITS.find_program(tmp_path, "", mpich) == str(own)
    named = mpich.model_copy(update={"python": "python-of-theirs"})
    with pytest.raises(InputError, match="python-of-theirs is not a program"):
        DIGITS.find_program(tmp_path, "", named)
    (tmp_path / "python-of-theirs").touch(mode=0o755)
    assert DIGITS.find_program(tmp_path, str(tmp_path), named) == str(tmp_path / "python-of-theirs")


def test_somebody_s_own_programs_are_started_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESNET_DIR", "/theirs")
    plan = plan_training(DIGITS.recipe, "runs/x-1")
    assert plan.trainings[0].arguments[:2] == ("-P", "/theirs/resnet_main.py")
    assert sorted(plan.files) == [
        f"tensorflow/tf-digits-local/{name}" for name in ("resnet_check.py", "tf_rates.py")
    ]
    assert "/theirs" in DIGITS.environment(Path("/root"))["PYTHONPATH"].split(":")


def test_the_ranks_trust_the_owners_that_are_named() -> None:
    assert VARIABLE not in DIGITS.environment(Path("/root"))
    with trusting((1234, 42)):
        assert DIGITS.environment(Path("/root"))[VARIABLE] == "42 1234"


@pytest.mark.promise("nothing is imported from the current folder")
def test_python_imports_nothing_from_beside_the_program_or_the_working_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", ":.:/theirs::relative:")
    assert DIGITS.environment(Path("/root"))["PYTHONPATH"] == "/root/tensorflow/tf-digits-local:/theirs"
    trial = DIGITS.trial()
    started = [
        *(each.arguments for each in (*PLAN.trainings, *PLAN.testings, DIGITS.read_back(STEP)) if each),
        *(DIGITS.launch_arguments(STEP, None, None, PLAN.files, "unused")[0], DIGITS.trial().world),
        *trial.attempts.values(),
    ]
    assert {arguments[0] for arguments in started} == {"-P"}


def test_an_older_python_is_the_run_s_failure_in_one_line() -> None:
    log = DIGITS.new_log_summary()
    log.feed(f"[1] {OLD}\n")
    assert log.fatal == "Python is older than Python 3.11, which the programs need"


@pytest.mark.promise("nothing is imported from the current folder")
def test_all_that_a_program_could_import_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESNET_DIR", str(tmp_path / "own"))
    expected = ["a.py", "pkg", "pkg/__pycache__", "pkg/__pycache__/b.pyc", "pkg/c.so", "pkg/inner", "link"]
    for name in ("a.py", "pkg/__pycache__/b.pyc", "pkg/c.so", "pkg/inner/d.txt", "no-package/e.py"):
        (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "own" / name).touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/f.py").touch()
    (tmp_path / "own/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "own")
    found = {str(Path(path).relative_to(tmp_path / "own")) for path in DIGITS.inputs if path.startswith("/")}
    assert found == {".", *expected, "link/f.py", "link/back"}


def test_a_recipe_for_caffe_is_not_mistaken_for_one_of_tensorflow() -> None:
    with pytest.raises(RecipeError):
        load_recipe("tf-digits-local")
