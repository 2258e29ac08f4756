"""Parts of a recipe that contradict each other: the snapshot that a phase starts from."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.errors import RecipeError
from caffe_recipes.recipe.model import Phase, validate_frozen
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import parse_any_recipe, parse_recipe

BRANCHED = shipped_recipes()["stampede2-448n-90ep"].file.read_text("utf-8")
DIGITS = shipped_recipes()["digits-local"].file.read_text("utf-8")


def refuse(text: str) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "mine.yaml", Path())
    return caught.value


def changed(old: str, new: str) -> str:
    assert BRANCHED.count(old) == 1
    return BRANCHED.replace(old, new)


def test_a_phase_may_start_from_any_snapshot_of_an_earlier_one_and_from_its_last() -> None:
    for iteration in (402, 7638, 8040):
        recipe = parse_recipe(changed("weights_iter: 7638", f"weights_iter: {iteration}"), "a.yaml", Path())
        assert recipe.phases[1].weights_iter == iteration
    odd_end = changed("weights_iter: 7638", "weights_iter: 8100").replace("max_iter: 8040", "max_iter: 8100")
    assert parse_recipe(odd_end, "a.yaml", Path()).phases[0].last_iter == 8100


@pytest.mark.parametrize(
    ("iteration", "what", "hint"),
    [
        (7650, "phase 'main' writes a snapshot every 402 iterations, not at 7650", "use 7638"),
        (7900, "phase 'main' writes a snapshot every 402 iterations, not at 7900", "use 8040"),
        (1, "phase 'main' writes a snapshot every 402 iterations, not at 1", "use 402"),
        (8442, "phase 'main' ends at iteration 8040, before 8442", "use 8040"),
    ],
)
def test_an_iteration_without_a_snapshot_is_refused_with_the_nearest_that_has_one(
    iteration: int, what: str, hint: str
) -> None:
    error = refuse(changed("weights_iter: 7638", f"weights_iter: {iteration}"))
    line = BRANCHED[: BRANCHED.index("weights_iter:")].count("\n") + 1
    assert str(error) == f"mine.yaml:{line}: phases[1].weights_iter: {what}; {hint}"


def test_a_phase_that_is_stopped_has_no_snapshots_past_its_stop() -> None:
    text = changed("max_iter: 8040", "max_iter: 8040\n    stop_iter: 4020")
    assert "phase 'main' ends at iteration 4020, before 7638; use 4020" in str(refuse(text))


@pytest.mark.parametrize("weights", ["none", "given.caffemodel"])
def test_an_iteration_of_an_unknown_phase_is_refused(weights: str) -> None:
    error = refuse(changed("weights_iter: 7638", f"weights: {weights}\n    weights_iter: 7638"))
    assert f"phase 'collapse' starts from '{weights}', not from an earlier phase; remove it" in str(error)


def test_the_first_phase_has_no_iteration_to_start_from() -> None:
    error = refuse(changed("  - name: main\n", "  - name: main\n    weights_iter: 402\n"))
    assert "phases[0].weights_iter: phase 'main' starts from its fillers, not from an earlier phase" in str(
        error
    )


@pytest.mark.parametrize("stop", [8040, 9000, 403])
def test_a_stop_is_before_the_end_and_has_a_snapshot(stop: int) -> None:
    error = refuse(changed("max_iter: 8040", f"max_iter: 8040\n    stop_iter: {stop}"))
    assert "stop_iter must be below max_iter and a multiple of snapshot" in str(error)


def test_two_snapshots_that_the_chain_keeps_never_share_a_name() -> None:
    one = changed("/tmp/resnet_50_448nodes_coll", "/scratch/resnet_50_448nodes").replace(
        "max_iter: 402", "max_iter: 7638"
    )
    what = (
        "phases[1].snapshot_prefix: a snapshot of another phase is also called resnet_50_448nodes_iter_7638"
    )
    assert what in str(refuse(one))


def test_a_phase_inherits_the_fields_it_needs_from_the_solver_block() -> None:
    recipe = parse_recipe(BRANCHED, "mine.yaml", Path())
    assert [phase.snapshot_every_iter for phase in recipe.phases] == [402, 402]
    assert all(isinstance(phase, Phase) for phase in recipe.phases)


def test_the_steps_of_tensorflow_are_the_iterations_of_the_phases() -> None:
    text = shipped_recipes()["tf-256n-90ep"].file.read_text("utf-8").replace("steps: 4680", "steps: 4681")
    what = "schedule.steps: 4,681 steps, but the phases have 4,680 iterations; make them equal"
    with pytest.raises(RecipeError, match=what):
        parse_recipe(text, "tf.yaml", Path())


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (
            "  mean_value:",
            "  mean_file: mean.binaryproto\n  mean_value:",
            "data.mean_file: train has a mean_file and a mean_value, but Caffe subtracts only one mean; "
            "remove one, or move each to `train` or `test`",
        ),
        (
            "  test:\n",
            "  test:\n    mean_file: mean.binaryproto\n",
            "data.test.mean_file: test has a mean_file and a mean_value",
        ),
        (
            "  mean_value:",
            "  force_color: true\n  force_gray: true\n  mean_value:",
            "data.force_color: train has force_color and force_gray; remove one",
        ),
        (
            "  test:\n",
            "  test:\n    mean_value: [1, 2]\n",
            "data.test.mean_value: has 2 values; give one value, or three: blue, green and red",
        ),
        (
            "  test:\n",
            "  test:\n    crop_size: 20\n",
            "data.test.crop_size: train has 224 and test has 20, but the net of a builder has "
            "one input size; give one crop_size under `data`",
        ),
    ],
)
def test_transformations_that_caffe_would_stop_at_are_refused(old: str, new: str, what: str) -> None:
    assert what in str(refuse(changed(old, new)))


@pytest.mark.parametrize(
    ("crop", "message"),
    [
        ("  crop_size: 1", "34: data.crop_size: 1 is too small for net.builder resnet_small; give 2 or more"),
        ("  # no crop", "20: data.crop_size: net.builder resnet_small needs it; give it in pixels"),
    ],
)
def test_a_crop_that_a_builders_net_cannot_take_is_named_with_its_line(crop: str, message: str) -> None:
    assert DIGITS.splitlines()[33] == "  crop_size: 28"
    assert str(refuse(DIGITS.replace("  crop_size: 28", crop))) == f"mine.yaml:{message}"


def test_a_crop_of_training_is_named_there_and_the_smallest_is_taken() -> None:
    of_parts = DIGITS.replace("  crop_size: 28\n", "")
    for key in ("    shuffle: true\n", "    batch_size: 359\n"):
        of_parts = of_parts.replace(key, f"{key}    crop_size: 1\n")
    what = "mine.yaml:27: data.train.crop_size: 1 is too small for net.builder resnet_small; give 2 or more"
    assert str(refuse(of_parts)) == what
    parse_recipe(of_parts.replace("crop_size: 1", "crop_size: 2"), "mine.yaml", Path())


RECORDS = shipped_recipes()["tf-digits-local"].file.read_text("utf-8")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (
            "trainer: tensorflow",
            "trainer: TensorFlow",
            "trainer: TensorFlow is not a Caffe; write tensorflow",
        ),
        (
            "cluster:\n",
            "phases: []\ncluster:\n",
            "phases: is not allowed if TensorFlow trains; remove it, or use a Caffe as the trainer",
        ),
        ("  data:\n", "  dato:\n", "tensorflow.dato: unknown key; did you mean 'data'?"),
        (
            "batch_per_rank: 32",
            "batch_per_rank: 720",
            "cluster.batch_per_rank: the global batch is 1440 images, but there are only 1438; use",
        ),
        (
            "omp_num_threads: 1\n",
            "omp_num_threads: 2\n",
            "cluster.omp_num_threads: 2, but tensorflow.intra_threads is 1; make them equal",
        ),
        (
            "cluster:\n",
            "cluster:\n  mlsl: {num_servers: 2}\n",
            "cluster.mlsl: TensorFlow does not use MLSL servers; remove it",
        ),
        (
            "      files: 8\n      images: 359",
            "      files: 360\n      images: 359",
            "tensorflow.data.validation.files: 360 files are too many for 359 images",
        ),
        (
            "folder: tmp/digits_records/train",
            "folder: examples/digits/validation",
            "validation.folder: examples/digits/validation is also the folder of the training images",
        ),
        (
            "source: examples/digits/train",
            "source: examples/numbers/train",
            "tensorflow.data.prepare: digits are built as FOLDER/train and FOLDER/validation",
        ),
        (
            "  data:\n",
            "  data:\n    label_offset: 2\n",
            "tensorflow.data.label_offset: must be 0 or 1, not 2",
        ),
        (
            "flags: {deterministic: true,",
            "flags: {file_groups: 3,",
            "tensorflow.flags.file_groups: 2 ranks cannot be divided into 3 groups; give",
        ),
        (
            "flags: {deterministic: true,",
            "flags: {file_groups: true,",
            "tensorflow.flags.file_groups: 2 ranks cannot be divided into True groups; give",
        ),
        (
            "flags: {deterministic: true,",
            "flags: {deterministic: true, file_groups: 2,",
            "tensorflow.flags.file_groups: with file groups, the images of a step depend on the",
        ),
        (
            "flags: {deterministic: true,",
            "flags: {train_steps: 9,",
            "tensorflow: flags: train_steps is derived from other keys of the recipe; remove it",
        ),
        (
            "kmp_blocktime: 1}",
            "kmp_blocktime: 1, flags: {num_eval_images: 9}}",
            "tensorflow: evaluation.flags: num_eval_images is derived from other keys of the recipe; remove",
        ),
    ],
)
def test_contradictions_of_a_recipe_that_tensorflow_trains_are_one_line(
    old: str, new: str, what: str
) -> None:
    text = RECORDS.replace(old, new, 1)
    with pytest.raises(RecipeError) as caught:
        parse_any_recipe(text, "tf.yaml", Path())
    assert str(caught.value).startswith("tf.yaml:")
    assert "\n" not in str(caught.value)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (
            "tensorflow:\n",
            "tensorflow:\n  classes: 10\n",
            "tensorflow.classes: 10, but net.classes is 1,000; make them equal",
        ),
        (
            "files: 1024, images: 1281167",
            "files: 1024, images: 1281166",
            "tensorflow.data.train.images: 1,281,166, but the LMDB has 1,281,167; make them equal",
        ),
    ],
)
def test_both_sides_of_a_recipe_train_on_the_same_images(old: str, new: str, what: str) -> None:
    text = shipped_recipes()["tf-256n-90ep"].file.read_text("utf-8")
    assert old in text
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text.replace(old, new, 1), "tf.yaml", Path())
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "power: 2\n    max_iter: 270",
            "power: 0.5\n    max_iter: 700",
            "66: phases[1].lr_policy: the rate of lr_policy poly_cyc is nan at iteration 541; correct the",
        ),
        ("base_lr: 0.064", "base_lr: 1e60", "65: phases[1].base_lr: invalid value 1e+60; expected a number"),
    ],
)
def test_a_schedule_that_cannot_be_trained_is_named_with_its_line(old: str, new: str, message: str) -> None:
    assert DIGITS.count(old) == 1
    assert str(refuse(DIGITS.replace(old, new))).startswith(f"mine.yaml:{message}")


AS_IN_NET = """
name: mine
title: Mine
trainer: caffe-torch
prototxt_dir: models/mine
net: {name: Mine, classes: 3, prototxt: mine.prototxt}
nets: {train_val: {}}
images: 50
test_images: 25
data: as-in-net
cluster: {nodes: 1, ranks_per_node: 2, batch_per_rank: 10}
phases:
  - {name: main, net: train_val, base_lr: 0.1, lr_policy: fixed, max_iter: 20, snapshot_prefix: mine/main}
evaluation: {net: train_val, iterations: 3}
"""


def test_with_data_as_in_the_net_the_epochs_follow_from_the_images() -> None:
    recipe = parse_recipe(AS_IN_NET, "mine.yaml", Path())
    assert (recipe.train_images, recipe.tested_images, recipe.reads_lmdb) == (50, 25, False)
    assert validate_frozen(recipe.model_dump()) == recipe


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("images: 50\n", "", "mine.yaml:9: data: as-in-net needs `images: N`"),
        ("as-in-net", "as_in_net", "mine.yaml:10: data: must be a mapping of keys, or as-in-net, not"),
        ("images: 50", "images: 0", "mine.yaml:8: images: must be 1 or more, not 0"),
        ("test_images: 25\n", "", "evaluation: the number of its images is unknown; write `test_images: N`"),
        ("images: 50", "images: 19", "the global batch is 20 images, but there are only 19"),
        ("prototxt: mine.prototxt", "builder: resnet_small", "has no data layers of its own"),
        ("{train_val: {}}",
         "{train_val: {random_aspect_ratio: {min_area_ratio: 0.1, aspect_ratio_change: 0.7}}}",
         "nets.train_val.random_aspect_ratio: is for the data layers of a recipe"),
    ],
)  # fmt: skip
def test_what_contradicts_data_as_in_the_net_is_named(old: str, new: str, error: str) -> None:
    assert old in AS_IN_NET
    assert error in str(refuse(AS_IN_NET.replace(old, new, 1)))


def test_an_lmdb_is_not_called_as_in_net() -> None:
    lmdb = "data: {train: {lmdb: as-in-net, images: 5}, test: {lmdb: a, images: 5, batch_size: 5}}"
    error = refuse(AS_IN_NET.replace("data: as-in-net", lmdb))
    assert "data: write `data: as-in-net` instead of keys, or another path of the LMDB" in str(error)


def test_the_images_of_other_recipes_belong_to_their_parts() -> None:
    assert "images: belongs to `data: as-in-net`; write it as data.train.images" in str(
        refuse(DIGITS + "\nimages: 5\n")
    )


def test_images_of_a_norm_divide_the_batch_of_a_rank() -> None:
    text = DIGITS.replace("batch_norm_fraction: 0.95", "batch_norm_images: 7")
    assert text != DIGITS
    assert "net.batch_norm_images: 7 images do not divide a rank's batch of 32" in str(refuse(text))
