"""A new recipe follows the paper's rules, its rates are continuous at joins, and lint has no warnings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from caffe_recipes.authoring.cluster_shape import find_threads
from caffe_recipes.authoring.new import RecipeRequest, builder_net, make_new
from caffe_recipes.authoring.recipe_yaml import NewRecipe
from caffe_recipes.caffe.nets import DEPTHS
from caffe_recipes.caffe.rates import lr_at
from caffe_recipes.cluster.profiles import load_profile, shipped_profiles
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.graph import find_evaluated, find_leaves, model_epochs
from caffe_recipes.recipe.model import Phase, Recipe
from caffe_recipes.render.prototxts import build_solver
from caffe_recipes.review.lint.recipe_lint import lint_recipe

IMAGENET = 1_281_167
NAMES = [None, *shipped_profiles()]

# The whole range: sets of 1 to 10^8 images, batches up to all of them, from hardly long enough to very long.
WISHES = st.builds(
    RecipeRequest,
    images=st.integers(1, 10**8) | st.sampled_from([10, 1000, 50_000, IMAGENET]),
    batch=st.integers(1, 10**6) | st.sampled_from([32, 256, 4096, 8192, 14_336, 16_384, 65_536]),
    epochs=st.floats(1, 400) | st.sampled_from([9, 14, 45, 60, 72, 90, 120]),
    cycles=st.sampled_from([0, 0, 1, 2, 5]),
    collapse=st.sampled_from(["last", "last", "each"]),
    collapse_epochs=st.none() | st.floats(1, 12),
    nodes=st.none() | st.just(1),
    test_images=st.integers(1, 100_000) | st.just(50_000),
    net=st.builds(
        builder_net,
        st.sampled_from([50, 50, *DEPTHS]).map("resnet{}".format),
        st.sampled_from([1, 2, 5, 10, 1000, 21_841]),
    ),
    profile=st.sampled_from(NAMES).map(lambda name: load_profile(name) if name else None),
)


def rates(recipe: Recipe) -> list[list[float]]:
    """Give the rates of each phase's first and last update."""
    solvers = [build_solver(recipe, phase) for phase in recipe.phases]
    return [[lr_at(solver, at) for at in (0, solver.max_iter - 1)] for solver in solvers]


def lint(text: str, folder: Path) -> list[str]:
    """Return lint's warnings about a recipe file, and the findings that it accepts."""
    file = folder / "new.yaml"
    file.write_text(text)
    found = lint_recipe(str(file), "surfsara")
    assert {one.id for one in found if one.accepted} <= {*("collapse-weight-decay", "weights-of-other-phase")}
    return [f"{one.id}: {one.what}" for one in found if one.severity != "note" and not one.accepted]


@settings(max_examples=150)
@given(WISHES)
def test_whatever_fits_continues_at_every_join_for_so_many_epochs(wish: RecipeRequest) -> None:
    try:
        recipe = make_new(wish).recipe
    except InputError as error:
        assert "\n" not in str(error)
        return
    by_name = dict(zip([phase.name for phase in recipe.phases], rates(recipe), strict=True))
    for phase in recipe.phases[1:]:
        start = recipe.starts_from(phase)
        assert isinstance(start, Phase)
        assert by_name[phase.name][0] == pytest.approx(by_name[start.name][1], rel=1e-5)
    parts, iteration = len(recipe.phases), wish.batch / wish.images
    assert model_epochs(recipe) == pytest.approx(wish.epochs, abs=parts * iteration)
    assert len(find_leaves(recipe)) == (wish.cycles + 1 if wish.collapse == "each" else 1)
    assert recipe.cluster.global_batch == wish.batch
    for leaf in find_leaves(recipe):
        assert leaf.weight_decay == 2 * (recipe.phases[0].weight_decay or 0) == 0.0001
        assert (leaf.net, leaf.lr_policy, leaf.power) == ("train_val_noaug", "poly", 2)


@pytest.mark.parametrize(("batch", "decays"), [(8192, [5e-5]), (32_768, [5e-5, 6.3e-5, 7.9e-5])])
def test_the_weight_decay_of_a_very_large_batch_grows_in_steps_as_the_paper_advises(
    batch: int, decays: list[float], tmp_path: Path
) -> None:
    made = make_new(RecipeRequest(1_281_167, batch, 100))
    *line, collapse = made.recipe.phases
    grown = dict.fromkeys(phase.weight_decay or made.recipe.solver.weight_decay for phase in line)
    assert [*grown] == decays
    assert collapse.weight_decay == 0.0001
    assert ("It grows in 3 steps before" in made.text) == (len(decays) > 1)
    assert lint_made(made, tmp_path) == []


def test_with_cycles_a_very_large_batch_is_told_how_the_weight_decay_could_grow() -> None:
    made = make_new(RecipeRequest(1_281_167, 32_768, 100, cycles=2))
    assert "V-C and VI advise more steps: a `weight_decay` in each phase" in made.text
    assert "such as 0.00005 before the cycles, then 0.000063 and 0.000079 in them." in made.text


def lint_made(made: NewRecipe, folder: Path) -> list[str]:
    """Return the findings of lint in a new recipe, except for BatchNorms of one image if requested."""
    is_alone = made.recipe.cluster.batch_per_rank == 1
    return [one for one in lint(made.text, folder) if not (is_alone and one.startswith("batch-norm-alone: "))]


# Many requests in the whole range are refused, as tested above.
@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
@given(wish=WISHES)
def test_lint_finds_nothing_above_a_note(wish: RecipeRequest, tmp_path: Path) -> None:
    try:
        made = make_new(wish)
    except InputError:
        assume(False)
    assert lint_made(made, tmp_path) == []


@pytest.mark.parametrize(
    "wish",
    [
        RecipeRequest(IMAGENET, 8192, 90),
        RecipeRequest(IMAGENET, 65_536, 107, profile=load_profile("vlab")),
        RecipeRequest(IMAGENET, 4096, 125, cycles=5, profile=load_profile("stampede2-skx")),
        RecipeRequest(IMAGENET, 4096, 125, cycles=5, collapse="each"),
        RecipeRequest(100, 10, 30, cycles=1, collapse="each"),
        RecipeRequest(IMAGENET, 4096, 90, net=builder_net("resnet18")),
        RecipeRequest(IMAGENET, 4096, 90, net=builder_net("resnet101")),
        RecipeRequest(1438, 64, 29, net=builder_net(classes=10), test_images=359),
        RecipeRequest(1, 1, 5),
        RecipeRequest(3, 2, 40, cycles=1),
    ],
)
def test_lint_finds_nothing_above_a_note_for_common_requests(wish: RecipeRequest, tmp_path: Path) -> None:
    made = make_new(wish)
    assert lint_made(made, tmp_path) == []


def test_the_parts_of_a_linear_run_are_warm_up_decay_and_collapse() -> None:
    recipe = make_new(RecipeRequest(IMAGENET, 8192, 90)).recipe
    assert [phase.name for phase in recipe.phases] == ["warmup", "main", "collapse"]
    warmup, main, collapse = recipe.phases
    assert (warmup.base_lr, warmup.warmup_start_lr, warmup.max_iter) == (3.2, 0.1, 782)
    assert (main.power, collapse.power, collapse.lr_policy) == (1, 2, "poly")
    assert (main.net, collapse.net) == ("train_val", "train_val_noaug")
    assert sum(phase.max_iter for phase in recipe.phases) == round(90 * IMAGENET / 8192)


def test_cycles_rise_three_fold_over_3_epochs_and_fall_four_fold_over_12() -> None:
    recipe = make_new(RecipeRequest(IMAGENET, 4096, 127, cycles=5)).recipe
    by_name = dict(zip([phase.name for phase in recipe.phases], rates(recipe), strict=True))
    assert by_name["decay"][1] == pytest.approx(0.22 * 1.6, rel=1e-4)
    for number in range(1, 6):
        rise, fall = by_name[f"rise{number}"], by_name[f"cyc{number}"]
        assert rise[1] / rise[0] == pytest.approx(3, rel=1e-3)
        assert fall[0] / fall[1] == pytest.approx(4, rel=1e-3)
        assert recipe.phase(f"rise{number}").max_iter * 4096 / IMAGENET == pytest.approx(3, abs=0.01)
        assert recipe.phase(f"cyc{number}").max_iter * 4096 / IMAGENET == pytest.approx(12, abs=0.01)


def test_a_collapse_off_each_end_leaves_the_line_as_it_is_and_makes_an_ensemble() -> None:
    line, made = (
        make_new(RecipeRequest(IMAGENET, 4096, 123, cycles=5, collapse=how)) for how in ("last", "each")
    )
    assert made.recipe.phases[:13] == line.recipe.phases[:-1]
    collapses = made.recipe.phases[13:]
    ends = ["decay", "cyc1", "cyc2", "cyc3", "cyc4", "cyc5"]
    assert [(one.name, one.weights) for one in collapses] == [(f"c{n}", end) for n, end in enumerate(ends, 1)]
    assert find_evaluated(made.recipe) == collapses
    assert (collapses[-1].base_lr, collapses[-1].max_iter) == (
        line.recipe.phases[-1].base_lr,
        line.recipe.phases[-1].max_iter,
    )
    assert "123 epochs, 6 collapses for an ensemble" in made.recipe.title
    more = sum(one.max_iter for one in collapses[:-1]) * 4096 / IMAGENET
    assert more == pytest.approx(5 * 0.06 * 123, rel=1e-3)
    assert f"the other collapses take {more:.2f} epochs more" in made.text


@pytest.mark.parametrize(
    ("batch", "rate", "expected"),
    [
        (4096, 1.6, "0.1 per 256 images: section IV-D"),
        (14_336, 5.6, "The published 448-node recipe has less: 4.8 for 14,336 images"),
        (24_576, 6.4, "The TensorFlow run of 24,576 images instead halved the scaled rate, from 9.6 to 4.8."),
        (65_536, 6.4, "6.4 from 16,384 images on: section V-C; 0.1 per 256 would be 25.6."),
    ],
)
def test_the_peak_is_scaled_linearly_and_departures_are_reported(
    batch: int, rate: float, expected: str
) -> None:
    made = make_new(RecipeRequest(IMAGENET, batch, 100))
    assert made.recipe.phases[0].base_lr == rate
    assert expected in made.text


def test_no_warm_up_leads_to_the_rate_where_it_would_begin_and_that_is_reported() -> None:
    made = make_new(RecipeRequest(50_000, 256, 30, profile=load_profile("stampede2-knl")))
    assert [phase.name for phase in made.recipe.phases] == ["main", "collapse"]
    assert made.notes == ("no warm-up: the peak rate is not above 0.1, where a warm-up would start",)
    assert "# No warm-up: the peak rate is not above 0.1, where a warm-up would start.\n" in made.text
    assert "Each rise" not in made.text
    assert "the momentum history is 0 at the start of the second phase, and" in made.text.replace("\n# ", " ")
    cyclic = make_new(RecipeRequest(50_000, 256, 60, cycles=1)).text
    assert "# No warm-up: " in cyclic
    assert "# Each rise is a separate phase" in cyclic


def test_the_cost_of_separate_warm_ups_is_reported() -> None:
    text = make_new(RecipeRequest(IMAGENET, 8192, 90)).text.replace("\n# ", " ")
    assert "the momentum history is 0 at the start of each of 2 phases" in text


def test_caffe_torch_shows_a_loss_at_least_twenty_times_in_a_phase() -> None:
    for images in (100, 1438, 100_000):
        slow = make_new(RecipeRequest(images=images, batch=32, epochs=20, trainer="caffe-torch")).recipe
        assert all(phase.display in (1, 2, 5, 10) for phase in slow.phases)
        assert all(phase.max_iter // (phase.display or 0) >= min(20, phase.max_iter) for phase in slow.phases)
    assert {phase.display for phase in slow.phases} == {10}
    fast = make_new(RecipeRequest(images=100, batch=32, epochs=20, trainer="./caffe")).recipe
    assert {phase.display for phase in fast.phases} == {40}


def test_a_known_loss_of_accuracy_is_a_warning() -> None:
    knl = load_profile("stampede2-knl")
    assert make_new(RecipeRequest(IMAGENET, 8192, 90, profile=knl)).notes == ()
    large, short = make_new(RecipeRequest(IMAGENET, 32_768, 50, profile=knl)).notes
    assert "falls above 8K (section V-B): 76.6% at 8,192" in large
    assert "limited the rate to 6.4" in large
    assert short.startswith(
        "warning: 50 epochs may be too few: MLPerf's runs with LARS take 56 to 75.9% at a batch of 32,768"
    )
    assert make_new(RecipeRequest(50_000, 4096, 30, profile=knl)).notes == ()


@pytest.mark.parametrize("profile", [None, "intel-mpi"])
def test_a_machine_of_unknown_cores_gets_one_thread_and_that_is_reported(profile: str | None) -> None:
    made = make_new(RecipeRequest(IMAGENET, 8192, 90, profile=load_profile(profile) if profile else None))
    assert made.recipe.cluster.omp_num_threads == 1
    (note,) = made.notes
    assert note.startswith("warning: omp_num_threads: 1, since")


def test_a_recipe_for_one_machine_leaves_threads_and_device_to_it_and_is_tested_once_per_epoch() -> None:
    made = make_new(RecipeRequest(50_000, 100, 30))
    assert (made.recipe.cluster.nodes, made.recipe.cluster.omp_num_threads) == (1, None)
    assert {phase.solver_mode for phase in made.recipe.phases} == {None}
    assert {(phase.test_iter, phase.test_interval) for phase in made.recipe.phases} == {(1000, 500)}
    assert not [note for note in made.notes if "threads" in note]
    text = made.text.replace("\n", " ")
    assert "not set, so `run` divides the cores of its machine by the ranks" in text
    assert "not set, so `run` uses a GPU if PyTorch finds one, and else the CPU" in text
    cluster = make_new(RecipeRequest(50_000, 100, 30, trainer="./build/tools/caffe")).recipe
    assert {phase.solver_mode for phase in cluster.phases} == {"CPU"}
    assert {phase.test_interval for phase in cluster.phases} == {None}


def test_values_between_published_runs_are_reported_as_interpolated() -> None:
    profile = load_profile("stampede2-knl")
    _, short = make_new(RecipeRequest(IMAGENET, 16_384, 40, profile=profile)).notes
    assert "take 42 to 75.9% at 8,192 and 56 at 32,768, interpolated 49 at 16,384, and" in short


def test_values_that_are_our_choice_are_marked_as_such() -> None:
    text = " ".join(make_new(RecipeRequest(IMAGENET, 16_384, 90, cycles=2)).text.replace("#", " ").split())
    for phrase in (
        "to 0.5 of the peak. Our choice: this share, and the end at 2/3 of the epochs",
        "7 to 10 from 16K on (section V-C); the choice by batch size is ours",
        "section V-B says 5 to 7%, and VI says 3 to 10 epochs; 6% is our choice.",
    ):
        assert phrase in text
    assert "6% is our choice" not in make_new(RecipeRequest(IMAGENET, 16_384, 90, collapse_epochs=5)).text


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_recipe_of_a_depth_trains_that_net(depth: int) -> None:
    profile, resnet = load_profile("vlab"), builder_net(f"resnet{depth}")
    made = make_new(RecipeRequest(IMAGENET, 4096, 40, net=resnet, profile=profile))
    recipe = made.recipe
    assert (recipe.name, recipe.net.name) == (f"resnet{depth}-4096-40ep", f"ResNet-{depth}")
    assert recipe.net.builder == f"resnet{depth}"
    assert recipe.title.startswith(f"ResNet-{depth}, batch 4,096 of")
    # The known numbers of epochs are those of ResNet-50 only.
    short = make_new(RecipeRequest(IMAGENET, 4096, 30, net=resnet, profile=profile)).notes
    net = f"ResNet-{depth}"
    warnings = [f"warning: the rules and known accuracies are for ResNet-50; {net} may need other settings"]
    assert list(made.notes) == ([] if depth == 50 else warnings)
    assert [note.split(":")[1].strip() for note in short] == (
        ["30 epochs may be too few"] if depth == 50 else [warnings[0].split(": ")[1]]
    )


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (RecipeRequest(1000, 1001, 90), "--batch: a batch of 1,001 is larger than the data set"),
        (RecipeRequest(1, 1001, 90), "larger than the data set .1 image.; use a smaller batch"),
        (RecipeRequest(IMAGENET, 4096, 90, nodes=7), "cannot be divided among 7 nodes x 1 rank; use 4 or 8"),
        (RecipeRequest(IMAGENET, 4096, 90, nodes=8192), "--nodes: .* among 8,192 nodes x 1 rank; use 4,096"),
        (RecipeRequest(IMAGENET, 4095, 90, ranks_per_node=2), "--batch: .*; use another --batch or"),
        (
            RecipeRequest(IMAGENET, 4096, 90, batch_per_rank=48),
            "--batch-per-rank: .* x 48 images .*; use 32 or 64",
        ),
        (
            RecipeRequest(IMAGENET, 4096, 90, nodes=64, batch_per_rank=32),
            "rank x 32 images do not give a batch",
        ),
        (RecipeRequest(IMAGENET, 4096, 90, nodes=1), "4,096 images per rank need a blob .*; use 2,674"),
        (RecipeRequest(IMAGENET, 4096, 8), "5 of warm-up, 3 of collapse, and a decay; use --epochs 9"),
        (
            RecipeRequest(IMAGENET, 4096, 20, collapse_epochs=15),
            "use --epochs 21, or fewer --collapse-epochs",
        ),
        (
            RecipeRequest(IMAGENET, 4096, 80, cycles=5),
            "too few for 5 of warm-up, 75 of 5 cycles, 4.8 of coll",
        ),
        (
            RecipeRequest(IMAGENET, 4096, 90, collapse="each"),
            "--collapse: there are no cycles .*; give --cycles",
        ),
        (RecipeRequest(IMAGENET, 4096, 10**6, cycles=101), "--cycles: 101 is too many; use 100 or fewer"),
        (RecipeRequest(2**31 - 1, 1, 90), "a phase has 193,.* iterations, more than .* 2,147,483,647"),
        (
            RecipeRequest(IMAGENET, 4096, 90, net=builder_net(classes=1)),
            "--classes: 1 is too few; give 2 or more",
        ),
        (
            RecipeRequest(IMAGENET, 4096, 90, net=builder_net(classes=2**31 - 1)),
            "2,147,483,647 classes need .*; give 1,048,575 or",
        ),
        (
            RecipeRequest(IMAGENET, 4096, 90, net=builder_net("resnet18", 2**31 - 1)),
            "--classes: .*; give 4,194,303 or fewer",
        ),
        (
            RecipeRequest(IMAGENET, 5000, 90, net=builder_net(classes=10**6), batch_per_rank=2500),
            "--classes: .*; give 858,993 or",
        ),
        (RecipeRequest(IMAGENET, 4096, 90, name="a/b"), "name: must start with a letter"),
        (RecipeRequest(IMAGENET, 4096, 90, lmdb=""), "lmdb: must not be empty"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_with_one_that_would(
    wish: RecipeRequest, message: str
) -> None:
    with pytest.raises(InputError, match=message) as raised:
        make_new(wish)
    assert "\n" not in str(raised.value)


def test_the_request_that_a_refusal_suggests_is_accepted() -> None:
    make_new(RecipeRequest(IMAGENET, 4096, 9))
    make_new(RecipeRequest(IMAGENET, 4096, 21, collapse_epochs=15))
    with pytest.raises(InputError, match=r"use --epochs (\d+), or fewer") as raised:
        make_new(RecipeRequest(IMAGENET, 4096, 80, cycles=5))
    needed = int(str(raised.value).split("--epochs ")[1].split(",")[0])
    make_new(RecipeRequest(IMAGENET, 4096, needed, cycles=5))


@pytest.mark.parametrize("depth", [18, 50])
def test_the_most_classes_make_no_blob_that_is_too_large(depth: int, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        make_new(RecipeRequest(IMAGENET, 4096, 90, net=builder_net(f"resnet{depth}", 2**31 - 1)))
    most = int(str(caught.value).split("give ")[1].split(" ")[0].replace(",", ""))
    text = make_new(RecipeRequest(IMAGENET, 4096, 90, net=builder_net(f"resnet{depth}", most))).text
    assert not [line for line in lint(text, tmp_path) if line.startswith("blob-too-large")]


def test_profile_settings_that_run_sh_ignores_are_reported() -> None:
    profile = load_profile("stampede2-skx")
    launcher = profile.launcher.model_copy(update={"environment": {"FI_PROVIDER": "tcp"}})
    ours = profile.model_copy(update={"launcher": launcher, "modules": ("intel/18",)})
    (note,) = make_new(RecipeRequest(IMAGENET, 4096, 90, profile=ours)).notes
    assert note.startswith(
        "launcher.environment (FI_PROVIDER) and modules of the profile: not copied to the recipe"
    )
    assert make_new(RecipeRequest(IMAGENET, 4096, 90, profile=profile)).notes == ()


def test_a_profile_gives_the_machine() -> None:
    recipe = make_new(RecipeRequest(IMAGENET, 4096, 90, profile=load_profile("stampede2-skx"))).recipe
    cluster = recipe.cluster
    assert (cluster.nodes, cluster.ranks_per_node, cluster.batch_per_rank) == (64, 2, 32)
    assert (cluster.omp_num_threads, cluster.tmp_gb, cluster.copy_with) == (22, 144, "ssh")


@pytest.mark.parametrize(
    ("profile", "ranks", "threads"),
    [
        ("vlab", 1, 64),
        ("vlab", 4, 16),
        ("stampede2-knl", 4, 16),
        ("stampede2-skx", 1, 44),
        ("stampede2-skx", 4, 11),
        ("marenostrum4", 8, 5),
    ],
)
def test_ranks_share_the_profile_s_threads_and_leave_mlsl_its_cores(
    profile: str, ranks: int, threads: int
) -> None:
    machine = load_profile(profile)
    made = make_new(RecipeRequest(IMAGENET, 4096, 90, ranks_per_node=ranks, profile=machine))
    assert made.recipe.cluster.omp_num_threads == threads
    if machine.mlsl:  # its servers' cores are what the profile's threads leave
        assert find_threads(machine.model_copy(update={"omp_num_threads": None})) == find_threads(machine)
