"""The TensorFlow and Horovod run: its commands against the source's text, and its rate against Caffe's."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import caffe_recipes as cr
from caffe_recipes.caffe.rates import lr_at
from caffe_recipes.recipe.source import load_any_recipe
from caffe_recipes.render.horovod import render_horovod
from caffe_recipes.render.prototxts import build_net, build_solver
from caffe_recipes.render.recipe_files import generate_all
from tests.render.test_scripts import check_bash
from tests.shipped import rates_of

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT.parent / "shared" / "seeds" / "001_7bab8357854a84d6.txt"
RECIPE = cr.load_recipe("tf-256n-90ep")
FOLDER = "jobs/tf-256n-90ep"
FILES = render_horovod(RECIPE)

# As the source has them, <path-to-...> and all; what stands before `python` as a setting comes first.
COMMANDS = {
    "tf_prepare.sh": "python imagenet_to_gcs.py --raw_data_dir <path-to-raw-image-dir>"
    " --local_scratch_dir <path-to-tf-records-dir>",
    "tf_train.sh": "mpirun -np 512 -ppn 2 python <path-to>/resnet_main.py --train_batch_size 24576"
    " --train_steps 4680 --num_intra_threads 22 --num_inter_threads 2"
    " --data_dir=<path-to-local-scratch-train-dir>"
    " --model_dir <path-to-model-dir>/model_batch_24k_90ep --use_tpu=False --kmp_blocktime 1",
    "tf_evaluate.sh": "OMP_NUM_THREADS=46 python <path-to>/resnet_eval.py --eval_batch_size 200"
    " --num_intra_threads 46 --num_inter_threads 2 --data_dir=<path-to-local-scratch-validation-dir>"
    " --model_dir=<path-to-model-dir>/model_batch_24k_90ep --use_tpu=False --kmp_blocktime 1",
}
PATHS = {
    "IMAGENET_TO_GCS": "imagenet_to_gcs.py",
    "RAW_IMAGE_DIR": "<path-to-raw-image-dir>",
    "TF_RECORDS_DIR": "<path-to-tf-records-dir>",
    "RESNET_DIR": "<path-to>",
    "TRAIN_DIR": "<path-to-local-scratch-train-dir>",
    "VALIDATION_DIR": "<path-to-local-scratch-validation-dir>",
    "MODEL_DIR": "<path-to-model-dir>",
}
PROGRAMS = {
    "imagenet_to_gcs.py": "IMAGENET_TO_GCS",
    "resnet_main.py": "RESNET_DIR",
    "resnet_eval.py": "RESNET_DIR",
}
# Stands in for both programs: writes down its settings, its name and its words, one a line.
RECORDER = """#!/bin/bash
exec >"$RECORD"
[[ -z ${OMP_NUM_THREADS-} ]] || printf 'OMP_NUM_THREADS=%s\\n' "$OMP_NUM_THREADS"
printf '%s\\n' "${0##*/}" "$@"
printf '%s' "${PYTHONPATH-}" >"$RECORD.path"
"""


def run_script(
    folder: Path, name: str, paths: dict[str, str], *, has_program: bool = True, **more: str
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run a generated script from another folder, with recorders in place of its programs."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for program in ("python", "mpirun"):
        if not (programs / program).exists():
            (programs / program).write_text(RECORDER)
            (programs / program).chmod(0o755)
    for needed, variable in PROGRAMS.items() if has_program else ():
        file = programs / paths[variable]
        file = file if variable == "IMAGENET_TO_GCS" else file / needed
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.touch()
    script = folder / FOLDER / name
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(FILES[f"{FOLDER}/{name}"])
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "RECORD": str(folder / "record"), **paths, **more}
    done = subprocess.run(
        ["bash", str(script)], cwd=programs, env=environment, capture_output=True, text=True, timeout=600
    )
    return done, folder / "record"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_script_gives_its_programs_the_arguments_of_the_source(tmp_path: Path, name: str) -> None:
    done, record = run_script(tmp_path, name, PATHS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert record.read_text().splitlines() == shlex.split(COMMANDS[name].replace("python ", "python -P "))


@pytest.mark.skipif(not SOURCE.is_file(), reason="the source's text is not here; its words are held above")
@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_quoted_from_the_source(name: str) -> None:
    text = re.sub(r"\s+", " ", SOURCE.read_text("utf-8").replace("\\\n", " "))
    assert COMMANDS[name] in text


@pytest.mark.parametrize("name", COMMANDS)
def test_paths_with_blanks_and_quotes_stay_whole(tmp_path: Path, name: str) -> None:
    odd = {variable: f'a b/it\'s "{variable}" $HOME *' for variable in PATHS}
    _, record = run_script(tmp_path, name, odd)
    expected = COMMANDS[name]
    for variable, path in sorted(PATHS.items(), key=lambda item: -len(item[1])):
        expected = expected.replace(path, f"\0{variable}\0")
    words = [
        re.sub("\0(\\w+)\0", lambda match: odd[match[1]], word)
        for word in expected.replace("python ", "python -P ").split()
    ]
    assert record.read_text().splitlines() == words


@pytest.mark.parametrize("name", COMMANDS)
def test_a_path_that_is_not_set_is_named(tmp_path: Path, name: str) -> None:
    paths = {key: path for key, path in PATHS.items() if f"{key}=" in FILES[f"{FOLDER}/{name}"]}
    missing = list(paths)[1]
    done, record = run_script(tmp_path, name, {**paths, missing: ""}, has_program=False)
    assert done.returncode == 2
    assert done.stderr == f"tf-256n-90ep: {missing} is not set; see the comment at the top of {name}\n"
    assert not record.exists()


def test_no_rank_is_started_where_the_program_is_missing(tmp_path: Path) -> None:
    done, record = run_script(tmp_path, "tf_train.sh", PATHS, has_program=False)
    assert done.returncode == 2
    assert done.stderr == "tf-256n-90ep: <path-to>/resnet_main.py not found; check RESNET_DIR\n"
    assert not record.exists()


def test_the_hosts_are_named_in_either_hydra_s_variable() -> None:
    text = FILES[f"{FOLDER}/tf_train.sh"]
    assert "I_MPI_HYDRA_HOST_FILE (Intel MPI)" in text


def test_two_ranks_a_node_are_bound_to_sockets_by_mpich_unless_the_user_says_how() -> None:
    script = FILES[f"{FOLDER}/tf_train.sh"]
    assert '\nHYDRA_BINDING="${HYDRA_BINDING-socket}" exec mpirun -np 512 -ppn 2 ' in script
    recipe = load_any_recipe("tf-256n-90ep")
    cluster = recipe.cluster.model_copy(update={"ranks_per_node": 1})
    alone = render_horovod(recipe.model_copy(update={"cluster": cluster}))[f"{FOLDER}/tf_train.sh"]
    assert "HYDRA_BINDING" not in alone


def test_training_finds_the_schedule_beside_its_script(tmp_path: Path) -> None:
    _, record = run_script(tmp_path, "tf_train.sh", PATHS)
    assert str(tmp_path / FOLDER) in record.with_suffix(".path").read_text().split(":")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_scripts_pass_bash_and_shellcheck(name: str) -> None:
    check_bash(FILES[f"{FOLDER}/{name}"])


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    path = tmp_path_factory.mktemp("rates") / "tf_rates.py"
    path.write_text(FILES[f"{FOLDER}/tf_rates.py"])
    spec = importlib.util.spec_from_file_location("tf_rates", path)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_the_module_s_numbers_are_the_source_s(module: ModuleType) -> None:
    numbers = (module.LEARNING_RATE, module.WARMUP_STEPS, module.END_LEARNING_RATE, module.STEPS)
    assert numbers == (0.1, 260, 4.8, 4680)


def test_module_data_and_caffe_s_phases_agree_to_6_decimals_at_every_step(module: ModuleType) -> None:
    caffe = [
        lr_at(build_solver(RECIPE, phase), iteration)
        for phase in RECIPE.phases
        for iteration in range(phase.max_iter)
    ]
    rates = [module.gradual_warmup_then_dec(0.1, 260, 4.8, step, 4680) for step in range(4680)]
    assert len(caffe) == 4680
    # Caffe's float32 has about 7 digits of the highest rate, 4.8; of the last, 0.001, that leaves 66 ppm.
    assert max(abs(ours - theirs) for ours, theirs in zip(caffe, rates, strict=True)) < 1e-6
    assert RECIPE.tensorflow
    assert rates == pytest.approx(rates_of(RECIPE.tensorflow.schedule))
    points = json.loads(FILES[f"{FOLDER}/tf_rates.json"])["points"]
    read = [
        low["learning_rate"]
        + (high["learning_rate"] - low["learning_rate"]) * (step - low["step"]) / (high["step"] - low["step"])
        for low, high in pairwise(points)
        for step in range(low["step"], high["step"])
    ]
    assert read == pytest.approx(rates)


def test_the_run_of_the_printed_log_has_its_steps_and_its_rate_in_caffe_too() -> None:
    recipe = cr.load_recipe("tf-256n-8k-90ep")
    run = recipe.tensorflow
    assert run
    assert (recipe.cluster.global_batch, run.schedule.steps) == (8192, 14_075)
    assert "--train_batch_size 8192" in render_horovod(recipe)["jobs/tf-256n-8k-90ep/tf_train.sh"]
    caffe = [
        lr_at(build_solver(recipe, phase), iteration)
        for phase in recipe.phases
        for iteration in range(phase.max_iter)
    ]
    assert len(caffe) == 14_075
    rates = rates_of(run.schedule)
    assert max(abs(ours - theirs) for ours, theirs in zip(caffe, rates, strict=True)) < 1e-6


def test_the_module_has_the_rates_of_the_public_function_of_its_name(module: ModuleType) -> None:
    # A public version of DeepSpeech.py for Horovod: the rise, then tf.train.polynomial_decay with power 1.
    def public_rate(step: int) -> float:
        if step < 260:
            return 0.1 + (4.8 - 0.1) * (step / 260)
        return 4.8 * (1 - min(step - 260, 4680 - 260) / (4680 - 260))

    for step in range(4700):
        found = module.gradual_warmup_then_dec(0.1, 260, 4.8, step, 4680)
        assert found == pytest.approx(public_rate(step), abs=1e-12)


def test_the_rates_carry_the_batch_that_they_are_for(module: ModuleType) -> None:
    assert module.BATCH == RECIPE.cluster.global_batch == 24_576


def test_past_its_end_the_module_s_rate_is_0(module: ModuleType) -> None:
    assert [module.gradual_warmup_then_dec(0.1, 260, 4.8, step, 4680) for step in (4680, 9999)] == [0, 0]


def test_a_warm_up_that_never_ends_is_refused_by_the_module(module: ModuleType) -> None:
    with pytest.raises(ValueError, match="warmup_steps is 300"):
        module.gradual_warmup_then_dec(0.1, 300, 4.8, 0, 300)


# The few operations that the module asks of TensorFlow, in float32 on numpy's arrays.
STAND_IN = """
import contextlib
import numpy as np
float32 = np.float32
cast = lambda tensor, dtype: tensor.astype(dtype)
maximum = np.maximum
where = lambda condition, yes, no: np.where(condition, yes, no).astype(np.float32)
names = []
@contextlib.contextmanager
def name_scope(name):
    names.append(name)
    yield
"""
ON_TENSORS = """
import sys
import numpy as np
import tf_rates
assert "tensorflow" not in sys.modules, "imported before it is needed"
steps = np.arange(4800, dtype=np.int64)
rates = tf_rates.gradual_warmup_then_dec(0.1, 260, 4.8, steps, 4680, name="rate")
assert rates.dtype == np.float32
plain = [tf_rates.gradual_warmup_then_dec(0.1, 260, 4.8, int(step), 4680) for step in steps]
assert np.allclose(rates, plain, rtol=1e-6, atol=0), abs(rates - plain).max()
import tensorflow
assert tensorflow.names == ["rate"], tensorflow.names
"""


def test_a_tensor_s_rate_is_made_by_tensorflow_s_operations(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    (tmp_path / "tensorflow.py").write_text(STAND_IN)
    (tmp_path / "tf_rates.py").write_text(FILES[f"{FOLDER}/tf_rates.py"])
    done = subprocess.run(
        [sys.executable, "-c", ON_TENSORS], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_recipe_without_tensorflow_has_none_of_these_files() -> None:
    assert render_horovod(cr.load_recipe("digits-local")) == {}


def test_a_solver_notes_that_momentum_is_lost_at_the_join() -> None:
    text = generate_all([RECIPE])["prototxt/tf-256n-90ep/solver_main.prototxt"]
    assert "Momentum is lost where this phase starts" in text


def test_caffe_follows_the_named_program_where_it_can() -> None:
    solvers = [build_solver(RECIPE, phase) for phase in RECIPE.phases]
    assert {(solver.type, round(solver.momentum, 6)) for solver in solvers} == {("Nesterov", 0.9)}
    net = build_net(RECIPE, "train_val")
    transform = net.layer[0].transform_param
    change = transform.random_aspect_ratio_param.aspect_ratio_change
    assert change**2 == pytest.approx(3 / 4)
    means = [255 * mean for mean in (0.406, 0.456, 0.485)]
    assert list(transform.mean_value) == pytest.approx(means)
    assert transform.scale == pytest.approx(3 / 255 / (0.229 + 0.224 + 0.225), rel=1e-4)
    (classifier,) = (layer for layer in net.layer if layer.type == "InnerProduct")
    # A parameter that is not mentioned has the solver's weight decay.
    assert [param.decay_mult for param in classifier.param] in ([], [1, 1])
    for layer in net.layer:
        if layer.type == "Scale":
            assert [param.decay_mult for param in layer.param] == [0, 0]


def test_the_published_chain_keeps_its_own_update_and_crops() -> None:
    recipe = cr.load_recipe("stampede2-64n-72ep")
    assert not build_solver(recipe, recipe.phases[0]).HasField("type")
    transform = build_net(recipe, "train_val").layer[0].transform_param
    assert transform.random_aspect_ratio_param.aspect_ratio_change == 0.75


@pytest.mark.parametrize("key", ["net.fillers", "data.scale", "nets.train_val.random_aspect_ratio"])
def test_settings_of_the_program_that_caffe_cannot_express_are_listed(key: str) -> None:
    assert any(one.key == key and "tensorflow/tpu" in str(one.printed) for one in RECIPE.differences)


def test_weight_decay_and_batch_norm_are_the_run_s() -> None:
    assert {phase.weight_decay for phase in RECIPE.phases} == {0.00005}
    text = generate_all([RECIPE])["prototxt/tf-256n-90ep/train_val.prototxt"]
    assert set(re.findall(r"moving_average_fraction: (\S+)", text)) == {"0.95"}


def test_a_recipe_that_tensorflow_trains_has_its_scripts() -> None:
    files = generate_all([load_any_recipe("tf-digits-local")])
    names = ("chain.sbatch", "tf_evaluate.sh", "tf_rates.json", "tf_rates.py", "tf_train.sh")
    own = [f"jobs/tf-digits-local/{name}" for name in names]
    assert sorted(files) == own
    for text in map(files.__getitem__, own):
        assert "Generated by `caffe-recipes generate tf-digits-local`" in text


def test_options_that_the_source_lacks_follow_its_arguments() -> None:
    files = render_horovod(load_any_recipe("tf-digits-local"))
    train, test = (files[f"jobs/tf-digits-local/tf_{name}.sh"] for name in ("train", "evaluate"))
    model = ["--resnet_depth=14", "--num_label_classes=10", "--image_size=32"]
    more = ["--num_train_images=1438", "--deterministic=True", "--save_checkpoints_steps=110"]
    assert [word for word in train.split() if word.startswith("--") and "=" in word][2:] == [*model, *more]
    assert [word for word in test.split() if word.startswith("--") and "=" in word][3:] == [
        *model,
        "--num_eval_images=359",
    ]
    assert "mpirun -np 2 -ppn 2 python" in train


@pytest.mark.parametrize("name", COMMANDS)
def test_python_imports_from_beside_the_program_before_the_user_s_folders(tmp_path: Path, name: str) -> None:
    _, record = run_script(tmp_path, name, PATHS, PYTHONPATH="/theirs:/a b")
    own = tmp_path / "bin" if name == "tf_prepare.sh" else tmp_path / "bin/<path-to>"
    rates = [str(tmp_path / FOLDER)] if name == "tf_train.sh" else []
    assert Path(f"{record}.path").read_text().split(":") == [str(own), *rates, "/theirs", "/a b"]
