"""A rescaled recipe follows the same rules; lint finds nothing that its source did not have."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caffe_recipes.authoring.new import RecipeRequest, builder_net, make_new
from caffe_recipes.authoring.phase_scaling import find_scale, first_warmup_epochs, scale_phases
from caffe_recipes.authoring.rescale import RescaleTarget, rescale
from caffe_recipes.caffe.rates import lr_at
from caffe_recipes.errors import CaffeRecipesError, InputError
from caffe_recipes.recipe.graph import model_epochs
from caffe_recipes.recipe.model import Ensemble, Phase, Recipe
from caffe_recipes.recipe.source import load_recipe, parse_recipe
from caffe_recipes.render.prototxts import build_net, build_solver
from caffe_recipes.render.recipe_files import generate
from caffe_recipes.review.lint.findings import Finding
from caffe_recipes.review.lint.recipe_lint import lint_recipe
from tests.shipped import OF_CAFFE, rates_of

SHIPPED = Path(__file__).parents[2] / "caffe_recipes/recipes"
SMALL = "stampede2-64n-72ep"
LARGE = "stampede2-448n-90ep"
CHANGES = st.builds(
    RescaleTarget,
    nodes=st.none() | st.sampled_from([1, 32, 128, 1536]) | st.integers(1, 4000),
    batch=st.none() | st.integers(1, 300_000) | st.integers(5, 17).map(lambda power: 2**power),
    epochs=st.none() | st.floats(0.1, 500) | st.sampled_from([30, 90]),
    smooth=st.booleans(),
)


@cache
def found_in(name: str) -> frozenset[str]:
    return frozenset(one.id for one in lint_recipe(name, "surfsara"))


def lint(text: str, folder: Path) -> list[Finding]:
    file = folder / "rescaled.yaml"
    file.write_text(text)
    return [one for one in lint_recipe(str(file), "surfsara") if one.severity != "note"]


def joins(recipe: Recipe) -> list[tuple[float, float]]:
    """Return, per phase, the last rate of the phase it starts from and its own first rate."""
    pairs = []
    for phase in recipe.phases:
        start = recipe.starts_from(phase)
        if isinstance(start, Phase):
            last = lr_at(build_solver(recipe, start), (phase.weights_iter or start.last_iter) - 1)
            pairs.append((last, lr_at(build_solver(recipe, phase), 0)))
    return pairs


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(OF_CAFFE), CHANGES)
def test_lint_finds_nothing_that_the_source_lacks(tmp_path: Path, name: str, change: RescaleTarget) -> None:
    try:
        made = rescale(load_recipe(name), change, tmp_path)
    except CaffeRecipesError as error:
        assert "\n" not in str(error)
        assert error.exit_code == 2
        return
    found = lint(made.text, tmp_path)
    new = {one.id for one in found if not one.accepted} - found_in(name)
    assert new <= {"batch-norm-alone"}, found
    assert new == set() or any("one image per rank" in note for note in made.notes)
    assert {one.id for one in found if one.accepted} <= found_in(name)
    if change.smooth:
        assert not {"join-jump", "warmup-end-jump"} & {one.id for one in found}


@pytest.mark.parametrize(("batch", "count"), [(128, 1), (256, 0)])
def test_a_rank_that_is_left_with_one_image_is_a_warning(batch: int, count: int) -> None:
    made = rescale(load_recipe(SMALL), RescaleTarget(nodes=64, batch=batch))
    warnings = [note for note in made.notes if "BatchNorms with one image per rank" in note]
    assert [note.startswith("warning: 53 BatchNorms") for note in warnings] == [True] * count


@settings(max_examples=30)
@given(st.sampled_from([SMALL, LARGE, "digits-local", "paper-t2-8192-256n"]), CHANGES)
def test_batch_epochs_and_joins_are_as_requested(name: str, change: RescaleTarget) -> None:
    source = load_recipe(name)
    try:
        recipe = rescale(source, change).recipe
    except CaffeRecipesError:
        return
    batch = recipe.cluster.global_batch
    assert batch == (change.batch or source.cluster.global_batch)
    assert recipe.cluster.nodes == (change.nodes or recipe.cluster.nodes)
    iteration = batch / source.data.train.images
    # Snapshots of the 448-node recipe stay 20 to the phase, and each may be half an iteration off.
    assert model_epochs(recipe) == pytest.approx(change.epochs or model_epochs(source), abs=25 * iteration)
    if change.smooth:
        assert all(first == pytest.approx(last, rel=1e-5) for last, first in joins(recipe))


def test_twice_the_batch_has_twice_the_rate_and_half_the_iterations() -> None:
    source, recipe = load_recipe(SMALL), rescale(load_recipe(SMALL), RescaleTarget(batch=8192)).recipe
    assert (recipe.cluster.nodes, recipe.cluster.batch_per_rank) == (128, 32)
    for old, new in zip(source.phases, recipe.phases, strict=True):
        assert new.base_lr == pytest.approx(2 * old.base_lr)
        assert abs(2 * new.max_iter - old.max_iter) <= 1
    assert (recipe.phases[0].warmup_iter, recipe.phases[0].warmup_start_lr) == (780, 0.1)
    assert recipe.phases[2].warmup_start_lr == pytest.approx(0.51)


def test_from_16k_on_the_rate_stays_at_6_4_and_the_warm_up_is_longer() -> None:
    made = rescale(load_recipe(SMALL), RescaleTarget(batch=65_536))
    first = made.recipe.phases[0]
    assert first.base_lr == 6.4
    assert (first.warmup_iter or 0) * 65_536 / 1_281_167 == pytest.approx(10, abs=0.1)
    notes = "\n".join(made.notes)
    assert "the paper's accuracy falls above 8K (section V-B): 76.6% at 8,192" in notes
    assert "limited the rate to 6.4 and warmed up for 7 to 10 epochs" in notes
    assert (
        "72.33 epochs may be too few: MLPerf's runs with LARS take 84.5 to 75.9% at a batch of 65,536"
        in notes
    )


@pytest.mark.parametrize("smooth", [False, True])
def test_a_warm_up_with_nothing_to_rise_to_is_dropped(smooth: bool) -> None:
    made = rescale(load_recipe(SMALL), RescaleTarget(batch=256, smooth=smooth))
    first = made.recipe.phases[0]
    assert (first.name, first.base_lr, first.warmup_iter, first.warmup_start_lr) == ("init", 0.1, None, None)
    assert "no warm-up: the peak rate is not above 0.1, where a warm-up would start" in made.notes
    assert model_epochs(made.recipe) == pytest.approx(model_epochs(load_recipe(SMALL)), abs=0.01)


def test_a_warm_up_that_is_missing_for_a_higher_rate_is_reported() -> None:
    down = rescale(load_recipe(SMALL), RescaleTarget(batch=128, nodes=2))
    up = rescale(down.recipe, RescaleTarget(batch=4096, nodes=64))
    message = f"warning: no warm-up to 1.6, since {down.recipe.name} has none; "
    assert any(note == f"{message}the rule for this batch size is 5 epochs" for note in up.notes), up.notes


@pytest.mark.parametrize(
    ("name", "batch", "expected"),
    [
        (
            "tf-256n-90ep",
            8192,
            "the peak rate is 1.6; the rule for this batch size gives 3.2 (tf-256n-90ep has 4.8",
        ),
        (
            LARGE,
            28_672,
            f"the peak rate is 5.48571; the rule for this batch size gives 6.4 ({LARGE} has 4.8",
        ),
        (SMALL, 8192, None),
        ("digits-local", 128, None),  # the rule is of ImageNet
    ],
)
def test_a_rate_that_is_not_the_rules_is_reported(name: str, batch: int, expected: str | None) -> None:
    found = [
        note
        for note in rescale(load_recipe(name), RescaleTarget(batch=batch)).notes
        if "for this batch size" in note
    ]
    rates = [note for note in found if "peak rate" in note]
    assert len(rates) == (expected is not None)
    assert all(note.startswith(expected or "") for note in rates)


def test_epochs_that_rounding_takes_away_are_explained() -> None:
    notes = rescale(load_recipe(LARGE), RescaleTarget(batch=917_504)).notes
    message = "iterations are rounded, those of main to 20 x 6 (its snapshots)"
    assert f"85.94 epochs instead of 89.97: {message}" in notes
    for change in (RescaleTarget(batch=28_672), RescaleTarget(epochs=60)):
        assert "rounded" not in "".join(rescale(load_recipe(LARGE), change).notes)


def test_other_nodes_alone_keep_the_batch_and_the_schedule() -> None:
    source, recipe = load_recipe(SMALL), rescale(load_recipe(SMALL), RescaleTarget(nodes=32)).recipe
    assert (recipe.cluster.nodes, recipe.cluster.batch_per_rank) == (32, 64)
    assert [(one.base_lr, one.max_iter) for one in recipe.phases] == [
        (one.base_lr, one.max_iter) for one in source.phases
    ]


def test_fewer_epochs_keep_those_of_the_first_warm_up() -> None:
    recipe = rescale(load_recipe(LARGE), RescaleTarget(epochs=45)).recipe
    main, collapse = recipe.phases
    assert (main.warmup_iter, main.max_iter, main.snapshot) == (446, 4020, 201)
    assert (collapse.weights_iter, collapse.max_iter) == (19 * 201, 201)


def test_a_smaller_batch_leaves_the_rules_five_epochs_of_warm_up() -> None:
    source = load_recipe("tf-256n-90ep")
    made = rescale(source, RescaleTarget(batch=8192))
    assert first_warmup_epochs(made.recipe) == pytest.approx(first_warmup_epochs(source), abs=0.01)
    assert "the warm-up stays at 4.99 epochs; the rule for this batch size is 5" in made.notes
    made = rescale(load_recipe("paper-t9-65536-128n"), RescaleTarget(batch=8192))
    assert first_warmup_epochs(made.recipe) == pytest.approx(5, abs=0.1)
    assert "warm-up 9.97 -> 5.00 epochs" in made.notes[0]


@pytest.mark.parametrize("epochs", [2, 5, 7])
def test_a_warm_up_shorter_than_the_rules_stays_so(epochs: float) -> None:
    text = (SHIPPED / "tf-256n-90ep.yaml").read_text().replace("260", str(52 * epochs))
    text = re.sub(r"(?ms)^differences:.*?^(?=\w)|^tensorflow:.*?^(?=\w)", "", text)
    source = parse_recipe(text, "source.yaml", SHIPPED)
    recipe = rescale(source, RescaleTarget(batch=8192)).recipe
    assert first_warmup_epochs(recipe) == pytest.approx(min(epochs, 5), abs=0.02)


@pytest.mark.parametrize("name", OF_CAFFE)
def test_the_epochs_that_a_refusal_suggests_are_enough(name: str) -> None:
    source = load_recipe(name)
    for epochs in (1, 4, 12):
        for batch in (source.cluster.global_batch, 4 * source.cluster.global_batch):
            try:
                scale_phases(source, find_scale(source, batch, epochs))
            except CaffeRecipesError as error:
                found = re.search(r"use (\d+) or more", str(error))
                assert found, error
                scale_phases(source, find_scale(source, batch, float(found[1])))


@pytest.mark.parametrize("smooth", [False, True])
def test_collapses_and_cycles_that_become_too_short_are_warnings(smooth: bool) -> None:
    made = rescale(load_recipe("paper-f4-4096-120ep"), RescaleTarget(epochs=60, smooth=smooth))
    assert [note for note in made.notes if "shortest" in note] == [
        "warning: the shortest collapse is now 1.46 epochs instead of 3; the paper uses 3 to 10 "
        "(section VI), and so does `new`",
        "warning: the shortest cycle is now 7.31 epochs instead of 15; the paper uses 15 "
        "(section VI), and so does `new`",
        "warning: the shortest rise is now 1.46 epochs instead of 3; the paper uses 3 (section VI), "
        "and so does `new`",
    ]
    (note,) = (
        note for note in rescale(load_recipe(LARGE), RescaleTarget(epochs=30)).notes if "shortest" in note
    )
    assert "collapse is now 1.5 epochs instead of 4.5" in note


@pytest.mark.parametrize("smooth", [False, True])
def test_collapses_cycles_and_rises_that_become_too_long_are_warnings(smooth: bool) -> None:
    made = rescale(load_recipe(SMALL), RescaleTarget(epochs=300, smooth=smooth))
    messages = [note.partition(" instead of ")[0] for note in made.notes if "longest" in note]
    assert messages == [
        "warning: the longest collapse is now 20.7 epochs",
        "warning: the longest cycle is now 63 epochs",
        "warning: the longest rise is now 13.3 epochs",
    ]
    notes = rescale(load_recipe(LARGE), RescaleTarget(epochs=150)).notes
    assert not [note for note in notes if "longest" in note]  # 7.8 epochs are within 3 to 10


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("name", ["paper-f4-4096-120ep", LARGE, SMALL, "digits-cyclic"])
def test_a_phase_that_keeps_its_length_gives_no_warning(name: str, smooth: bool) -> None:
    source = load_recipe(name)
    made = rescale(source, RescaleTarget(batch=2 * source.cluster.global_batch, smooth=smooth))
    assert not [note for note in made.notes if "shortest" in note or "longest" in note]


def test_smooth_has_the_decays_end_where_the_published_next_phases_start() -> None:
    recipe = rescale(load_recipe(SMALL), RescaleTarget(smooth=True)).recipe
    assert [phase.name for phase in recipe.phases] == [
        "init-warmup", "init", "cyc1", "cyc2-warmup", "cyc2", "cyc3-warmup", "cyc3", "collapse",
    ]  # fmt: skip
    starts = [lr_at(build_solver(recipe, phase), 0) for phase in recipe.phases]
    assert starts == pytest.approx([0.1, 1.6, 1.02, 0.255, 0.764, 0.19, 0.572, 0.143], rel=1e-3)
    assert sum(phase.max_iter for phase in recipe.phases) == 22_610
    assert {one.finding for one in recipe.accept} == {
        "collapse-weight-decay", "zero-start-partly", "mlsl-on-openmp-cores",
    }  # fmt: skip


def test_smooth_ends_a_phase_where_it_is_left() -> None:
    recipe = rescale(load_recipe(LARGE), RescaleTarget(smooth=True)).recipe
    assert [(phase.name, phase.max_iter) for phase in recipe.phases] == [
        ("main-warmup", 446), ("main", 7638 - 446), ("collapse", 402),
    ]  # fmt: skip
    assert recipe.phases[-1].weights_iter is None
    assert model_epochs(recipe) == pytest.approx(model_epochs(load_recipe(LARGE)))


def test_branches_meet_what_they_branch_off() -> None:
    recipe = rescale(load_recipe("paper-f4-4096-120ep"), RescaleTarget(smooth=True)).recipe
    assert recipe.phase("c2").weights == "cyc1"
    assert all(first == pytest.approx(last, rel=1e-5) for last, first in joins(recipe))


@pytest.mark.parametrize("smooth", [False, True])
def test_an_ensemble_keeps_its_members_and_not_what_is_reported_of_them(smooth: bool) -> None:
    recipe = rescale(load_recipe("paper-f4-4096-120ep"), RescaleTarget(batch=8192, smooth=smooth)).recipe
    assert recipe.ensemble == Ensemble(members=("c2", "c3", "c4", "c5", "c6"))


def test_a_rescaled_row_of_a_family_has_its_own_nets() -> None:
    row = load_recipe("paper-t2-8192-256n")
    recipe = rescale(row, RescaleTarget(batch_per_rank=16)).recipe
    assert row.nets_dir is not None
    assert recipe.prototxt_dirs == (recipe.prototxt_dir,)
    assert not set(generate(recipe)) & set(generate(row))


@pytest.mark.parametrize(
    ("name", "own", "place"),
    [
        (SMALL, SMALL, "jobs/stampede2-64n-72ep"),
        (SMALL, "resnet50_custom_lr", "models/intel_optimized_models/multinode/resnet50_custom_lr"),
        (SMALL, "resnet_50_64nodes", "/tmp/resnet_50_64nodes_init"),
        (
            "paper-t9-16384-512n",
            "paper-stampede2-knl-batch-32",
            "models/intel_optimized_models/multinode/paper-stampede2-knl-batch-32",
        ),
    ],
)
def test_a_name_that_would_overwrite_files_of_the_source_is_refused(name: str, own: str, place: str) -> None:
    with pytest.raises(
        CaffeRecipesError, match=f"--name: '{own}' and '{name}' would both use {place}; give anot"
    ):
        rescale(load_recipe(name), RescaleTarget(epochs=60, name=own))


@pytest.mark.parametrize("depth", [18, 50, 152])
def test_a_rank_s_batch_has_the_blobs_limit_at_any_depth(depth: int) -> None:
    recipe = make_new(RecipeRequest(1_281_167, 4096, 90, net=builder_net(f"resnet{depth}"))).recipe
    with pytest.raises(InputError, match="4,096 images per rank need a blob in the ResNet of more than"):
        rescale(recipe, RescaleTarget(nodes=1))


def test_a_run_of_tensorflow_is_rescaled_by_its_source_s_arithmetic() -> None:
    source = load_recipe("tf-256n-90ep")
    made = rescale(source, RescaleTarget(batch=8192, epochs=90, name="mine"))
    run, old = made.recipe.tensorflow, source.tensorflow
    assert run and old
    # 7 b ii: 5 epochs of warm-up, 90 of all, 0.1 for each 256 images, and half of that.
    # 1,280,000 / 8,192 = 156.25 steps an epoch; parts of a step are left out.
    assert (run.schedule.warmup_steps, run.schedule.steps) == (781, 14_062)
    alone = rescale(source, RescaleTarget(batch=8192)).recipe.tensorflow
    assert alone
    assert alone.schedule == run.schedule
    assert (run.schedule.learning_rate, run.schedule.end_learning_rate) == (0.1, 1.6)
    assert (run.model, run.linear_share, run.evaluation) == ("mine", None, old.evaluation)
    rates = [
        lr_at(build_solver(made.recipe, phase), iteration)
        for phase in made.recipe.phases
        for iteration in range(phase.max_iter)
    ]
    assert rates == pytest.approx(rates_of(run.schedule), abs=1e-6)
    warning = "the rate is 0.5 of the linear rule's 3.2, as in tf-256n-90ep, which was tuned for a batch of"
    (found,) = [note for note in made.notes if warning in note]
    assert "24,576 only; end_learning_rate: 3.2 is the whole rule, which tf-256n-8k-90ep follows" in found


def test_differences_in_net_and_data_from_the_source_are_kept_by_rescale() -> None:
    source = load_recipe("tf-256n-90ep")
    made = rescale(source, RescaleTarget(batch=8192)).recipe
    assert made.differences == source.differences[:3]
    keys = ["net.fillers", "data.scale", "nets.train_val.random_aspect_ratio"]
    assert [one.key for one in made.differences] == keys


def test_a_run_of_tensorflow_on_other_nodes_keeps_its_schedule() -> None:
    source = load_recipe("tf-256n-90ep")
    made = rescale(source, RescaleTarget(nodes=128, ranks_per_node=4))
    assert made.recipe.tensorflow and source.tensorflow
    assert made.recipe.tensorflow.schedule == source.tensorflow.schedule
    assert made.recipe.tensorflow.intra_threads == made.recipe.cluster.omp_num_threads == 11
    assert not any("linear rule" in note for note in made.notes)


def test_a_run_of_tensorflow_needs_a_rate_to_rise_to() -> None:
    with pytest.raises(InputError, match="a TensorFlow run needs a warm-up"):
        rescale(load_recipe("tf-256n-90ep"), RescaleTarget(batch=256, nodes=4))


def test_a_net_of_the_user_s_own_is_found_from_the_new_place(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "caffe_recipes/recipes/digits-local.yaml").read_text()
    text = text.replace(
        "builder: resnet_small", "prototxt: nets/own.prototxt\n  test_prototxt: test.prototxt"
    )
    text = text.replace("  batch_norm_fraction: 0.95\n  zero_init: last-block\n", "")
    own = Path(__file__).parents[2] / "prototxt/digits-local/train_val.prototxt"
    (tmp_path / "nets").mkdir()
    for file in ("nets/own.prototxt", "test.prototxt"):
        (tmp_path / file).write_text(own.read_text())
    recipe = parse_recipe(text, "own.yaml", tmp_path)
    here = ("nets/own.prototxt", "test.prototxt")
    assert rescale(recipe, RescaleTarget(batch=128), tmp_path).recipe.net.files == here
    (tmp_path / "there").mkdir()
    there = ("../nets/own.prototxt", "../test.prototxt")
    assert rescale(recipe, RescaleTarget(batch=128), tmp_path / "there").recipe.net.files == there


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            SMALL,
            RescaleTarget(),
            "nothing to change; give --nodes, --batch, --epochs, --ranks-per-node, --batch-per-rank or",
        ),
        (SMALL, RescaleTarget(name="other"), "nothing to change"),
        (SMALL, RescaleTarget(nodes=64, batch=4096), "already has batch 4,096, 64 nodes and 72.29 ep"),
        (SMALL, RescaleTarget(epochs=72.29), "already has"),
        ("digits-local", RescaleTarget(batch_per_rank=32), "already has batch 64, 1 node and"),
        (
            SMALL,
            RescaleTarget(ranks_per_node=3),
            "--ranks-per-node: a batch of 4,096 cannot be divided among 64 nodes x 3 ranks",
        ),
        (SMALL, RescaleTarget(64, 4096, batch_per_rank=9), "x 2 ranks x 9 images do not .*; omit one"),
        (
            SMALL,
            RescaleTarget(nodes=7),
            "cannot be divided among 7 nodes x 2 ranks; use 4 or 8",
        ),
        (
            SMALL,
            RescaleTarget(batch=2_000_000),
            "--batch: a batch of 2,000,000 is larger than the data set",
        ),
        (SMALL, RescaleTarget(nodes=100_000, batch_per_rank=32), "--nodes: a batch of 6,400,000 is larger"),
        (SMALL, RescaleTarget(nodes=1, batch_per_rank=4096), "4,096 images per rank need a blob"),
        (
            LARGE,
            RescaleTarget(epochs=4),
            "phase 'main' would end at 360, within its warm-up of 446 .*; use 6 or m",
        ),
        (
            "paper-t1-7680-240n-3step",
            RescaleTarget(batch=131_072, epochs=30),
            "phase 'main' would step down at 98, within its warm-up of 98 iterations; use 31 or more",
        ),
        (
            "tf-256n-90ep",
            RescaleTarget(epochs=4),
            "--epochs: 4 epochs are too few for 5 epochs of warm-up; use 6 or more",
        ),
        (
            SMALL,
            RescaleTarget(epochs=10**9),
            "--epochs: phase 'init': 107,.* iterations exceed Caffe's maximum, 2,147",
        ),
        (SMALL, RescaleTarget(batch=8192, name="a/b"), "name: must start with a letter"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, change: RescaleTarget, message: str) -> None:
    with pytest.raises(CaffeRecipesError, match=message) as raised:
        rescale(load_recipe(name), change)
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)


IN_NET = """\
name: mine
title: mine
trainer: ./caffe
prototxt_dir: .
net: {name: mine, classes: 4, prototxt: net.prototxt}
nets: {net: {test: false}}
images: 60
data: as-in-net
cluster: {nodes: 1, ranks_per_node: 1, batch_per_rank: 8, omp_num_threads: 1}
phases:
  - {name: a, net: net, base_lr: 0.1, lr_policy: fixed, max_iter: 40, snapshot_prefix: a}
"""


def test_a_net_that_keeps_its_data_keeps_its_batch(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(
        'layer { name: "d" type: "ImageData" top: "x" top: "y"\n'
        '  image_data_param { source: "l" batch_size: 8 new_height: 8 new_width: 8 } }\n'
        'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "v" inner_product_param {num_output: 4} }\n'
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "v" bottom: "y" }\n'
    )
    (tmp_path / "mine.yaml").write_text(IN_NET)
    recipe = load_recipe(tmp_path / "mine.yaml")
    with pytest.raises(InputError) as caught:
        rescale(recipe, RescaleTarget(nodes=2), tmp_path)
    assert str(caught.value) == (
        f"{net}:1:1: layer 'd' reads batches of 8, which `data: as-in-net` keeps, but 2 ranks would need 4 "
        "each; give --nodes and --batch with 8 images per rank, such as --batch 16 here"
    )
    with pytest.raises(InputError, match=r"such as --nodes 2 --batch 16$"):
        rescale(recipe, RescaleTarget(batch=4), tmp_path)
    assert rescale(recipe, RescaleTarget(nodes=2, batch=16), tmp_path).recipe.cluster.nodes == 2


def test_one_node_of_gpus_keeps_the_schedule_and_the_images_of_a_norm(tmp_path: Path) -> None:
    source = load_recipe(SMALL)
    change = RescaleTarget(nodes=1, ranks_per_node=8, trainer="caffe-torch")
    made = rescale(source, change, tmp_path)
    recipe = made.recipe
    assert (recipe.trainer, recipe.cluster.batch_per_rank, recipe.cluster.global_batch) == (
        "caffe-torch",
        512,
        4096,
    )
    assert recipe.chooses_device
    assert (recipe.cluster.mlsl, recipe.cluster.fabric, recipe.cluster.omp_num_threads) == (None, None, None)
    for old, new in zip(source.phases, recipe.phases, strict=True):
        kept = {"solver_mode": None, "snapshot_prefix": new.snapshot_prefix}
        assert new == old.model_copy(update=kept)
    net = build_net(recipe, "train_val")
    assert net.bn_stats_batch_size == 32
    assert any("16 parts of a rank's 512" in note and "0.95^16 = 0.44" in note for note in made.notes)
    assert not any("BatchNorm" in note for note in rescale(source, RescaleTarget(nodes=1)).notes)


@pytest.mark.parametrize("trainer", [None, "caffe-torch"])
def test_larger_ranks_of_the_same_trainer_keep_the_images_of_a_norm(trainer: str | None) -> None:
    source = load_recipe("digits-local")
    made = rescale(source, RescaleTarget(nodes=1, ranks_per_node=1, trainer=trainer))
    assert (made.recipe.cluster.batch_per_rank, made.recipe.net.batch_norm_images) == (64, 32)
    assert any("2 parts of a rank's 64" in note for note in made.notes)
    again = rescale(made.recipe, RescaleTarget(batch_per_rank=1024, nodes=1, trainer=trainer))
    assert again.recipe.net.batch_norm_images == 32
    assert any("32 parts of a rank's 1,024" in note for note in again.notes)
    assert rescale(load_recipe(SMALL), RescaleTarget(nodes=32)).recipe.net.batch_norm_images is None


def test_a_norm_of_the_source_is_kept_by_a_larger_rank_only_if_it_divides_the_batch() -> None:
    change = RescaleTarget(batch_per_rank=80, trainer="caffe-torch")
    assert rescale(load_recipe(SMALL), change).recipe.net.batch_norm_images is None
    with pytest.raises(InputError, match="nothing to change"):
        rescale(load_recipe(SMALL), RescaleTarget(trainer="caffe-torch"))


@pytest.mark.parametrize("trainer", [None, "caffe-torch", "caffe/build/tools/caffe"])
@pytest.mark.parametrize("each", [8, 16, 32, 80])
def test_ranks_that_the_images_of_a_norm_do_not_divide_lose_the_key(each: int, trainer: str | None) -> None:
    source = load_recipe("digits-local")
    wide = rescale(source, RescaleTarget(nodes=1, ranks_per_node=1)).recipe
    assert wide.net.batch_norm_images == 32
    made = rescale(wide, RescaleTarget(ranks_per_node=2, batch_per_rank=each, trainer=trainer))
    assert made.recipe.net == source.net
    line = f"net.batch_norm_images: 32 is removed: BatchNorms normalize the {each} images of a rank together"
    assert line in made.notes
