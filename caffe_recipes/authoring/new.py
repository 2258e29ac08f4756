"""Write a new recipe by the paper's rules; comments in its YAML name the source of each number.

The learning rate is continuous: each phase starts at the rate at which the previous one ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from caffe_recipes.authoring.cluster_shape import (
    check_batch,
    check_batch_per_rank,
    check_classes,
    divide_batch,
    find_uncopied,
    find_warnings,
    node_values,
)
from caffe_recipes.authoring.phase_scaling import MOST_ITERATIONS, join
from caffe_recipes.authoring.recipe_yaml import NewRecipe, clean_name, make_recipe, write_recipe
from caffe_recipes.cluster.profiles import THIS_MACHINE, Profile
from caffe_recipes.config import Location
from caffe_recipes.errors import InputError
from caffe_recipes.recipe import paper_rules
from caffe_recipes.recipe.graph import epochs_of, find_leaves, model_epochs, total_epochs
from caffe_recipes.recipe.model import OUR_TRAINER, Phase, Recipe
from caffe_recipes.recipe.paper_rules import Cycles, PlannedPhase, Schedule, plan_phases
from caffe_recipes.render.prototxts import build_net
from caffe_recipes.wording import describe_count, join_names

_NET_FROM = "zero_init: section II; batch_norm_fraction: the default 0.95, section IV-C."
_HORIZON = "lr_iter: where the rate would reach 0; the last update uses the first rate of the next phase."
_COLLAPSED = "with power 2 to 0, without augmentation, at twice the weight decay (V-B, VI)."
_LINEAR = "Our choice: this share, and the end at 2/3 of the epochs before the cycles (the paper: 30 of 45)."
_LARGE_WARMUP = "7 to 10 from 16K on (section V-C); the choice by batch size is ours"
_LARGEST_SCALED = 12_288  # batch size whose rate follows the linear rule in the paper's own runs

_Place = tuple[str, ...]


def no_warmup(start: float = paper_rules.WARMUP_START_LR) -> str:
    """Return the note that explains why a recipe does not warm up.

    >>> no_warmup()
    'no warm-up: the peak rate is not above 0.1, where a warm-up would start'
    """
    return f"no warm-up: the peak rate is not above {start:g}, where a warm-up would start"


def rate_lines(recipe: Recipe, joins: int) -> list[str]:
    """Return comments that explain why rises are separate phases, or why none warms up, and the cost."""
    updates = 1 / (1 - paper_rules.MOMENTUM)
    iterations = sum(phase.max_iter for phase in recipe.phases)
    continuous = "The rate is continuous between phases; the published one jumps."
    if any(phase.warmup_iter for phase in recipe.phases):
        continuous = (
            "Each rise is a separate phase: in this Caffe the iterations of a warm-up count as iterations "
            "of the policy, so that a solver's rate drops where its warm-up ends. Here it is continuous "
            "between phases; the published one jumps."
        )
    where = "the start of the second phase" if joins == 1 else f"the start of each of {joins} phases"
    cost = (
        f"The cost: the momentum history is 0 at {where}, and recovers within about "
        f"{updates:.0f} updates (of {iterations:,} in total)."
    )
    none = [] if recipe.phases[0].warmup_iter else [f"{no_warmup().capitalize()}."]
    return [*none, f"{continuous} {cost}"]


def branch_lines(recipe: Recipe) -> list[str]:
    """Return comments that explain the collapses that branch off, and their cost."""
    model, more = model_epochs(recipe), total_epochs(recipe) - model_epochs(recipe)
    return [
        f"c1 to {recipe.phases[-1].name} branch off at the end of the decay and of each cycle (section VI):",
        f"the last model is trained for {model:.2f} epochs; the other collapses take {more:.2f} epochs more.",
        "`caffe-recipes ensemble` averages the predictions of all the models.",
    ]


def collapse_lines() -> list[str]:
    """Return comments that explain the default length of a collapse."""
    share, (least, most) = f"{paper_rules.COLLAPSE_SHARE:.0%}", paper_rules.COLLAPSE_EPOCHS
    return [
        f"A collapse is {share} of the run, at least {least} and at most {most} epochs: section V-B says",
        f"5 to 7%, and VI says {least} to {most} epochs; {share} is our choice.",
    ]


def phase_lines(recipe: Recipe, phase: Phase, schedule: Schedule) -> dict[_Place, list[str]]:
    """Return comments on a phase and its keys: the rules behind their values."""
    batch, images = recipe.cluster.global_batch, recipe.data.train.images
    epochs = f"{epochs_of(phase.max_iter, batch, images):.2f} epochs"
    peak: dict[_Place, list[str]] = {("base_lr",): _peak_lines(batch)}
    name = phase.name.rstrip("0123456789")
    about: dict[_Place, list[str]] = {}
    if name == "warmup":
        rule = "5 (section IV-D)" if batch < paper_rules.LARGE_BATCH else _LARGE_WARMUP
        about[()] = [f"{epochs} of warm-up; the rule is {rule}."]
        about[("warmup_start_lr",)] = ["As in both published recipes, after Goyal et al., arXiv:1706.02677."]
        return about | peak
    cycles = schedule.cycles
    texts = {
        "main": ["with power 1 (section IV-D).", _HORIZON],
        "init": [f"with power 1 (section VI), to {cycles.linear_to:g} of the peak.", _LINEAR, _HORIZON],
        "decay": [f"with power 2, to {cycles.square_to:g} of the peak (section VI).", _HORIZON],
        "rise": [
            f"in which the rate rises {cycles.rise_times:g}-fold "
            f"(section VI: over {cycles.rise_epochs:g} epochs)."
        ],
        "cyc": [
            f"in which the rate falls {cycles.fall_times:g}-fold with power 2 "
            f"(section VI: over {cycles.fall_epochs:g} epochs)."
        ],
        "c": [f"from the end of {phase.weights}, {_COLLAPSED}"],
        "collapse": [_COLLAPSED],
    }[name]
    is_first = recipe.phases[0] is phase
    about[()] = [f"{epochs} {texts[0]}", *texts[1:]]
    return about | (peak if is_first else {})


def _peak_lines(batch: int) -> list[str]:
    """Return comments that explain the peak rate, and where the sources deviate from its rule."""
    linear, highest, large = paper_rules.scaled_lr(batch), paper_rules.HIGHEST_LR, paper_rules.LARGE_BATCH
    rule = "0.1 per 256 images: section IV-D, after Goyal et al., arXiv:1706.02677."
    if batch <= _LARGEST_SCALED:
        return [rule]
    if batch < large:
        return [
            rule,
            "The published 448-node recipe has less: 4.8 for 14,336 images, where this rule gives 5.6.",
        ]
    return [
        f"{highest:g} from {large:,} images on: section V-C; 0.1 per 256 would be {linear:g}.",
        "The TensorFlow run of 24,576 images instead halved the scaled rate, from 9.6 to 4.8.",
    ]


_LEAST_EPOCHS = 1.0  # per part of the schedule
_LINEAR_SHARE = 2 / 3  # of the epochs before the cycles: 30 of the paper's 45
_MOST_CYCLES = 100
_TEST_BATCH = 50
_DISPLAY = 40  # iterations from one loss in the log to the next, as in the published solvers
_SLOW_DISPLAYS = (10, 5, 2, 1)  # the same for caffe-torch, whose iterations take seconds on a CPU
_LEAST_DISPLAYS = 20  # of a phase that caffe-torch trains
PAPERS_DEPTH = 50
DEFAULT_CLASSES = 1000  # ImageNet's
_MOST_OF_ONE_NODE = paper_rules.REFERENCE_BATCH  # images per rank, up to which one node is the default


@dataclass(frozen=True)
class ImageKeys:
    """The transformation of a recipe's images: keys shared, for TRAIN, for TEST, and the augmentation.

    `why` is the comment that says where it comes from.
    """

    shared: Mapping[str, Any]
    train: Mapping[str, Any]
    test: Mapping[str, Any]
    augmented: Mapping[str, Any]
    why: str


PUBLISHED = ImageKeys(
    {"crop_size": 224, "mirror": True, "mean_value": [104, 117, 123], "scale": 0.0078125},
    {},
    {"shorter_side_px": 256},
    {"random_aspect_ratio": {"min_area_ratio": 0.08, "aspect_ratio_change": 0.75}},
    "The transformation is the one of the published nets.",
)


def builder_net(builder: str = f"resnet{PAPERS_DEPTH}", classes: int = DEFAULT_CLASSES) -> dict[str, Any]:
    """Return the keys of the net of a builder.

    >>> builder_net("resnet_small", 10)["name"], builder_net()["name"]
    ('ResNet-small', 'ResNet-50')
    """
    title = builder.replace("resnet_", "ResNet-").replace("resnet", "ResNet-")
    return {"name": title, "classes": classes, "builder": builder, "zero_init": "every-block"}


@dataclass(frozen=True)
class RecipeRequest:
    """A request for a new recipe; what is None follows from the rules or from the profile.

    A `collapse` follows the last cycle, or each of them. `epochs` counts those of the last model; the other
    collapses are extra. `net` holds the keys of a recipe's net. `notes` are printed.
    """

    images: int
    batch: int
    epochs: float
    nodes: int | None = None
    ranks_per_node: int | None = None
    batch_per_rank: int | None = None
    cycles: int = 0
    collapse: Literal["last", "each"] = "last"
    collapse_epochs: float | None = None
    test_images: int = 50_000
    lmdb: str = "/tmp/ilsvrc12_train_lmdb"
    test_lmdb: str = "examples/imagenet/ilsvrc12_val_lmdb"
    name: str | None = None
    profile: Profile | None = None
    net: Mapping[str, Any] = field(default_factory=builder_net)
    transform: ImageKeys = PUBLISHED
    trainer: str | None = None
    size_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        """The depth of a ResNet, which the rules depend on; 0 for another net."""
        depth = str(self.net.get("builder", "")).removeprefix("resnet")
        return int(depth) if depth.isdigit() else 0


def make_new(request: RecipeRequest, home: Path = Path()) -> NewRecipe:
    """Return a recipe by the rules, with a continuous rate; its YAML will be in the folder `home`.

    Raises InputError if the batch has more images than the data set or cannot be divided among the nodes, and
    if the parts of the schedule are longer than the run.
    """
    check_batch(request.batch, request.images)
    if request.collapse == "each" and not request.cycles:
        raise InputError("--collapse", "there are no cycles to branch off from", "give --cycles too")
    sockets = request.profile.node.sockets if request.profile else None
    ranks_per_node = request.ranks_per_node or sockets or 1
    nodes, batch_per_rank = divide_batch(
        request.batch, _nodes(request, ranks_per_node), ranks_per_node, request.batch_per_rank
    )
    if request.depth:
        check_batch_per_rank(batch_per_rank)
        check_classes(request.net["classes"], batch_per_rank, request.depth)
    schedule = find_schedule(request)
    planned = _plan(request, schedule)
    name = request.name or f"{_prefix(request)}-{request.batch}-{request.epochs:g}ep"
    settings = join([one.settings for one in planned], _starts(planned))
    node, node_notes = node_values(request.profile, nodes, ranks_per_node)
    cluster = {"nodes": nodes, "ranks_per_node": ranks_per_node, "batch_per_rank": batch_per_rank, **node}
    phases = _phases(name, planned, settings)
    values = _values(request, name, cluster, phases)
    where = "--name" if request.name else "new"
    draft = make_recipe(values, where, home, {"trainer": "--trainer"})
    _check_nets(request, draft)
    title = f"{draft.title}, {model_epochs(draft):.4g} epochs"
    if request.collapse == "each":
        title += f", {len(find_leaves(draft))} collapses for an ensemble"
    recipe = make_recipe(values | {"title": title}, name, home)
    warnings = tuple(_warnings(request, recipe))
    comments = _comments(request, recipe, schedule, node_notes, warnings)
    notes = () if recipe.phases[0].warmup_iter else (no_warmup(),)
    messages = (
        *request.notes,
        *notes,
        *(f"warning: {one}" for one in warnings),
        *find_uncopied(request.profile, nodes),
    )
    return NewRecipe(recipe, write_recipe(recipe, comments), messages)


def _phases(
    name: str, planned: Sequence[PlannedPhase], settings: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    return [
        {
            "name": one.name,
            "net": _net(one),
            **_weights(one),
            **each,
            "snapshot_prefix": f"/tmp/{name}_{one.name}",
        }
        for one, each in zip(planned, settings, strict=True)
    ]


def _check_nets(request: RecipeRequest, draft: Recipe) -> None:
    """Raise an error for a net that does not fit the images; a function is not run here."""
    if "function" not in request.net:
        for net in draft.nets:
            build_net(draft, net)


def _prefix(request: RecipeRequest) -> str:
    """Return the first part of the default recipe name, which names the net."""
    if request.depth:
        return f"resnet{request.depth}"
    return clean_name(request.net["name"]).lower() or "net"


def _nodes(request: RecipeRequest, ranks_per_node: int) -> int | None:
    """Return the given number of nodes, or 1 if none is given and the batch is small enough for one node."""
    is_small = request.batch <= _MOST_OF_ONE_NODE * ranks_per_node and request.batch % ranks_per_node == 0
    return 1 if request.nodes is None and request.batch_per_rank is None and is_small else request.nodes


def _plan(request: RecipeRequest, schedule: Schedule) -> Sequence[PlannedPhase]:
    """Return the phases by the rules; raises InputError for too few or too many epochs."""
    try:
        planned = plan_phases(schedule, request.batch, request.images).phases
    except ValueError as error:
        raise InputError("--epochs", str(error), "use more, or a smaller batch") from None
    longest = max(one.settings.get("lr_iter", one.settings["max_iter"]) for one in planned)
    if longest > MOST_ITERATIONS:
        what = f"a phase has {longest:,} iterations, more than Caffe's maximum of {MOST_ITERATIONS:,}"
        raise InputError("--epochs", what, "use fewer, or a larger batch")
    return planned


def _warnings(request: RecipeRequest, recipe: Recipe) -> Iterator[str]:
    is_papers = request.depth == PAPERS_DEPTH
    if not is_papers:
        net = request.net["name"]
        yield f"the rules and known accuracies are for ResNet-{PAPERS_DEPTH}; {net} may need other settings"
    # The sources do not say how many epochs another net needs.
    yield from find_warnings(request.batch, model_epochs(recipe), request.images if is_papers else 0)


def find_schedule(request: RecipeRequest) -> Schedule:
    """Divide the epochs into a warm-up, a linear decay, and a collapse.

    With cycles, a quadratic decay and the cycles come before the collapse. Raises InputError for too few
    epochs.
    """
    collapse = request.collapse_epochs or paper_rules.collapse_epochs(request.epochs)
    # A warm-up starts at 0.1, so a peak rate that is not higher needs none.
    warmup = (
        paper_rules.warmup_epochs(request.batch)
        if paper_rules.peak_lr(request.batch) > paper_rules.WARMUP_START_LR
        else 0.0
    )
    cycle = Cycles()
    in_cycles = request.cycles * (cycle.rise_epochs + cycle.fall_epochs)
    before = request.epochs - in_cycles - collapse
    linear = before * _LINEAR_SHARE if request.cycles else before
    square = before - linear if request.cycles else _LEAST_EPOCHS
    if request.cycles > _MOST_CYCLES:
        raise InputError("--cycles", f"{request.cycles:,} is too many", f"use {_MOST_CYCLES} or fewer")
    if linear < warmup + _LEAST_EPOCHS or square < _LEAST_EPOCHS:
        _refuse(request, warmup, collapse, in_cycles)
    if not request.cycles:
        return Schedule(
            epochs=request.epochs,
            warmup_epochs=warmup,
            warmup="own-phase",
            collapse=True,
            collapse_epochs=collapse,
            weight_decay_steps=paper_rules.weight_decay_steps(request.batch),
        )
    # As in the paper's 120 epochs, a branch starts at the end of the decay and of each cycle.
    branches = {"collapse_epochs": (collapse,) * (request.cycles + 1)}
    line = {"last_collapse_epochs": collapse}
    cycles = Cycles(
        count=request.cycles,
        linear_epochs=linear,
        square_epochs=square,
        **(branches if request.collapse == "each" else line),
    )
    return Schedule(decay="cycles", warmup="own-phase", warmup_epochs=warmup, cycles=cycles)


def _refuse(request: RecipeRequest, warmup: float, collapse: float, in_cycles: float) -> None:
    """Raise InputError for too few epochs; the hint gives the smallest number that is enough."""
    parts = [
        f"{epochs:g} of {what}" for epochs, what in ((warmup, "warm-up"), (collapse, "collapse")) if epochs
    ]
    if request.cycles:
        parts.insert(-1, f"{in_cycles:g} of {request.cycles} cycles")
    least = warmup + _LEAST_EPOCHS
    if request.cycles:
        least = max(least / _LINEAR_SHARE, _LEAST_EPOCHS / (1 - _LINEAR_SHARE))
    needed = math.ceil(least + in_cycles + collapse)
    while needed < least + in_cycles + (request.collapse_epochs or paper_rules.collapse_epochs(needed)):
        needed += 1
    what = f"{request.epochs:g} epochs are too few for {', '.join(parts)}, and a decay"
    hint = f"use --epochs {needed}" + (
        ", or fewer --cycles" if request.cycles else ", or fewer --collapse-epochs"
    )
    raise InputError("--cycles" if request.cycles else "--epochs", what, hint)


def _net(planned: PlannedPhase) -> str:
    return "train_val" if planned.is_augmented else "train_val_noaug"


def _weights(planned: PlannedPhase) -> dict[str, str]:
    return {"weights": planned.weights} if planned.weights else {}


def _starts(planned: Sequence[PlannedPhase]) -> list[int | None]:
    """Return the index of the phase that each phase starts from; None for the first."""
    names = [one.name for one in planned]
    starts = [names.index(one.weights) if one.weights else index - 1 for index, one in enumerate(planned)]
    return [None, *starts[1:]]


def _values(
    request: RecipeRequest, name: str, cluster: dict[str, Any], phases: list[dict[str, Any]]
) -> dict[str, Any]:
    test_batch = _divisor(request.test_images)
    transform = request.transform
    trainer = request.trainer or _default_trainer(request.profile, cluster["nodes"])
    test_iter, epoch_iter = math.ceil(request.test_images / test_batch), request.images / request.batch
    # Each rank tests all of the test images, so a cluster's recipe tests only its models.
    is_watched = trainer == OUR_TRAINER
    tests = {"test_iter": test_iter, "test_interval": max(round(epoch_iter), 1)} if is_watched else {}
    device = {} if is_watched and cluster["nodes"] == 1 else {"solver_mode": "CPU"}
    train = {
        "lmdb": request.lmdb,
        "images": request.images,
        **({"size_gb": float(f"{request.size_bytes / 1e9:.3g}")} if request.size_bytes else {}),
        "shuffle": True,
        "prefetch": 2,
        **transform.train,
    }
    test = {
        "lmdb": request.test_lmdb,
        "images": request.test_images,
        "batch_size": test_batch,
        **transform.test,
    }
    values: dict[str, Any] = {
        "name": name,
        "title": f"{request.net['name']}, batch {request.batch:,} of {request.images:,} images",
        "source": "caffe-recipes new: the rules of arXiv:1711.04291",
        "trainer": trainer,
        "prototxt_dir": f"prototxt/{name}",
        "net": request.net,
        "nets": {
            "train_val": dict(transform.augmented),
            "train_val_noaug": {} if trainer == OUR_TRAINER else {"test": False},
        },
        "data": {"train": train, "test": test, **transform.shared},
        "cluster": cluster,
        "solver": {"momentum": paper_rules.MOMENTUM, "display": _DISPLAY, **device, **tests},
        "phases": [{**phase, **_slow_display(trainer, phase["max_iter"])} for phase in phases],
        "evaluation": {"net": "train_val", "iterations": test_iter},
    }
    accept = list(_accept(phases))
    return values | ({"accept": accept} if accept else {})


def _default_trainer(profile: Profile | None, nodes: int) -> str:
    """Return caffe-torch for one node that is not a cluster's, else the Caffe in the Caffe root."""
    is_this_machine = nodes == 1 and (profile is None or profile.name == THIS_MACHINE)
    return OUR_TRAINER if is_this_machine else "./build/tools/caffe"


def _slow_display(trainer: str, iterations: int) -> dict[str, int]:
    """Return a phase's own interval of displays for caffe-torch: the largest that gives at least 20 of them.

    >>> [_slow_display("caffe-torch", iterations) for iterations in (203, 100, 7)]
    [{'display': 10}, {'display': 5}, {'display': 1}]
    """
    if trainer != OUR_TRAINER:
        return {}
    return {"display": next((each for each in _SLOW_DISPLAYS if each * _LEAST_DISPLAYS <= iterations), 1)}


def _accept(phases: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield `accept:` entries for the lint findings that follow from the rules."""
    if any("weights" in phase for phase in phases):
        yield {"finding": "weights-of-other-phase", "reason": "a collapse branches off the end of each cycle"}
    if any(phase["name"] == "main2" for phase in phases):  # the weight decay grows
        reason = "twice the weight decay at the start; it has grown in steps since then"
        yield {"finding": "collapse-weight-decay", "phase": phases[-1]["name"], "reason": reason}


def _divisor(images: int) -> int:
    """Return the test batch size: the largest number from 10 to 50 that divides the images, else 50.

    >>> _divisor(50_000), _divisor(10_010), _divisor(7)
    (50, 35, 7)
    """
    sizes = range(min(_TEST_BATCH, images), min(_TEST_BATCH, images) // 5, -1)
    return next((size for size in sizes if images % size == 0), sizes[0])


def _solver_lines(recipe: Recipe) -> Iterator[str]:
    """Yield comments on the tests, and on what is left to the machine."""
    if recipe.solver.test_interval:
        yield "Tested once per epoch; `run` shows the accuracy of the last test."
    if recipe.chooses_device:
        yield "solver_mode: not set, so `run` uses a GPU if PyTorch finds one, and else the CPU."


def _decay_lines(batch: int, schedule: Schedule) -> Iterator[str]:
    """Yield comments on the weight decay, and on the steps in which it grows."""
    yield "Half of the standard 0.0001 (V-B); the collapse has twice this value."
    if schedule.weight_decay_steps > 1:
        steps = f"{schedule.weight_decay_steps} steps"
        yield f"It grows in {steps} before, as V-C and VI advise for very large batches. From"
        yield f"{paper_rules.LARGE_BATCH:,} images on, the number of steps and the factor are our choice."
    elif batch >= paper_rules.LARGE_BATCH:
        ends = paper_rules.SMALL_WEIGHT_DECAY, paper_rules.WEIGHT_DECAY
        first, *others = paper_rules.ramp_decays(*ends, schedule.cycles.count + 1)
        within = join_names([f"{decay:f}".rstrip("0") for decay in others])
        yield "For very large batches, V-C and VI advise more steps: a `weight_decay` in each phase,"
        before = f"{first:f}".rstrip("0")
        yield f"such as {before} before the cycles, then {within} in them."


def _comments(
    request: RecipeRequest,
    recipe: Recipe,
    schedule: Schedule,
    node_notes: list[str],
    warnings: tuple[str, ...],
) -> dict[Location, list[str]]:
    """Return the comments of the YAML, which say where each number comes from."""
    joins, leaves = len(recipe.phases) - 1, find_leaves(recipe)
    ranks = describe_count(recipe.cluster.ranks, "rank")
    comments: dict[Location, list[str]] = {
        (): [
            "Written by `caffe-recipes new` by the rules of arXiv:1711.04291; the sections are named below.",
            *warnings,
        ],
        ("net",): [_NET_FROM] if "builder" in request.net else ["As given."],
        ("nets",): ["As in the published nets; train_val_noaug is for the collapse (section V-B)."],
        ("solver",): [*_solver_lines(recipe)],
        ("data",): [request.transform.why],
        ("cluster",): [f"{ranks} x {recipe.cluster.batch_per_rank:,}.", *node_notes],
        ("solver", "momentum"): ["Section IV-B."],
        ("phases",): [
            *rate_lines(recipe, joins),
            *(branch_lines(recipe) if len(leaves) > 1 else []),
            *(collapse_lines() if request.collapse_epochs is None else []),
        ],
    }
    # With a weight decay that grows, each phase has its own.
    place: Location = ("phases", 0) if schedule.weight_decay_steps > 1 else ("solver",)
    comments[(*place, "weight_decay")] = [*_decay_lines(request.batch, schedule)]
    for index, phase in enumerate(recipe.phases):
        comments |= {
            ("phases", index, *at): lines for at, lines in phase_lines(recipe, phase, schedule).items()
        }
    return comments
