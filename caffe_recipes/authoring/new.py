"""Make a new recipe by the authors' rules, with the source of each number in the comments of its YAML.

The learning rate is continuous: each phase starts at the rate at which the one before ended.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from caffe_recipes.authoring.recipe_yaml import NewRecipe, make_recipe, write_recipe
from caffe_recipes.authoring.scale import join
from caffe_recipes.authoring.shape import (
    check_batch,
    check_batch_per_rank,
    check_classes,
    find_shape,
    find_unstated,
    find_warnings,
    node_values,
)
from caffe_recipes.cluster.profiles import Profile
from caffe_recipes.config import Location
from caffe_recipes.errors import InputError
from caffe_recipes.recipe import rules
from caffe_recipes.recipe.graph import epochs_of, find_leaves, model_epochs, total_epochs
from caffe_recipes.recipe.model import Phase, Recipe
from caffe_recipes.recipe.rules import Cycles, PlannedPhase, Schedule, plan_phases
from caffe_recipes.render.nets import build_net
from caffe_recipes.wording import describe_count

_NET_FROM = "zero_init: section II; batch_norm_fraction: the default 0.95, section IV-C."
_HORIZON = "lr_iter: where the rate would be 0; the last update has the first rate of the next phase."
_COLLAPSED = "with power 2 to 0, without augmentation, at twice the weight decay (V-B, VI)."
_LINEAR = "Ours: this share, and the end at 2/3 of the epochs before the cycles, like the paper's 30 of 45."
_LARGE_WARMUP = "7 to 10 from 16K on (section V-C); the choice by batch is ours"
_LARGEST_SCALED = 12_288  # of the paper's own runs

_Place = tuple[str, ...]


def no_warmup(start: float = rules.WARMUP_START_LR) -> str:
    """Say why a recipe does not warm up.

    >>> no_warmup()
    'no warm-up: it would start at 0.1, and the peak rate is not higher'
    """
    return f"no warm-up: it would start at {start:g}, and the peak rate is not higher"


def rate_lines(recipe: Recipe, joins: int) -> list[str]:
    """Explain why rises are phases of their own, or why there is no warm-up, and what joins cost."""
    updates = 1 / (1 - rules.MOMENTUM)
    iterations = sum(phase.max_iter for phase in recipe.phases)
    continuous = "The rate is continuous at every join; the published one jumps."
    if any(phase.warmup_iter for phase in recipe.phases):
        continuous = (
            "Each rise is a phase of its own: in this Caffe the iterations of a warm-up count as those of "
            "the policy, so that a solver's rate drops where its warm-up ends. Here it is continuous at "
            "every join; the published one jumps."
        )
    where = "the join" if joins == 1 else f"each of the {joins} joins"
    cost = (
        f"The cost: the momentum history starts at 0 at {where}, and recovers within about "
        f"{updates:.0f} updates, of {iterations:,} in all."
    )
    none = [] if recipe.phases[0].warmup_iter else [f"{no_warmup().capitalize()}."]
    return [*none, f"{continuous} {cost}"]


def branch_lines(recipe: Recipe) -> list[str]:
    """Explain the collapses that branch off, and their cost."""
    model, more = model_epochs(recipe), total_epochs(recipe) - model_epochs(recipe)
    return [
        f"c1 to {recipe.phases[-1].name} branch off the end of the decay and of each cycle (section VI):",
        f"the last model is trained for {model:.2f} epochs, and the other collapses take {more:.2f} more.",
        "`caffe-recipes ensemble` averages the predictions of all the models.",
    ]


def collapse_lines() -> list[str]:
    """Explain the length of a collapse if none was given."""
    share, (least, most) = f"{rules.COLLAPSE_SHARE:.0%}".replace("%", " %"), rules.COLLAPSE_EPOCHS
    return [
        f"A collapse is {share} of the run, but {least} to {most} epochs: section V-B says 5 to 7 %, VI says",
        f"{least} to {most} epochs; choosing {share} is ours.",
    ]


def phase_lines(recipe: Recipe, phase: Phase, schedule: Schedule) -> dict[_Place, list[str]]:
    """Return comments on a phase and its keys: the rules that they follow."""
    batch, images = recipe.cluster.global_batch, recipe.data.train.images
    epochs = f"{epochs_of(phase.max_iter, batch, images):.2f} epochs"
    peak: dict[_Place, list[str]] = {("base_lr",): _peak_lines(batch)}
    name = phase.name.rstrip("0123456789")
    about: dict[_Place, list[str]] = {}
    if name == "warmup":
        rule = "5 (section IV-D)" if batch < rules.LARGE_BATCH else _LARGE_WARMUP
        about[()] = [f"{epochs} of warm-up: the rule is {rule}."]
        about[("warmup_start_lr",)] = ["As in both published recipes, after Goyal et al., arXiv:1706.02677."]
        return about | peak
    cycles = schedule.cycles
    texts = {
        "main": ["with power 1 (section IV-D).", _HORIZON],
        "init": [f"with power 1 (section VI), to {cycles.linear_to:g} of the peak.", _LINEAR, _HORIZON],
        "decay": [f"with power 2, to {cycles.square_to:g} of the peak (section VI).", _HORIZON],
        "rise": [f"up {cycles.rise_times:g}-fold over {cycles.rise_epochs:g} (section VI)."],
        "cyc": [f"down {cycles.fall_times:g}-fold over {cycles.fall_epochs:g} with power 2 (section VI)."],
        "c": [f"off the end of {phase.weights}, {_COLLAPSED}"],
        "collapse": [_COLLAPSED],
    }[name]
    is_first = recipe.phases[0] is phase
    about[()] = [f"{epochs} {texts[0]}", *texts[1:]]
    return about | (peak if is_first else {})


def _peak_lines(batch: int) -> list[str]:
    """Explain the highest rate, and where the sources depart from its rule."""
    linear, highest = rules.scaled_lr(batch), rules.HIGHEST_LR
    rule = "0.1 for each 256 images: section IV-D, after Goyal et al., arXiv:1706.02677."
    if batch <= _LARGEST_SCALED:
        return [rule]
    if batch < rules.LARGE_BATCH:
        return [
            rule,
            "The published 448-node recipe has less: 4.8 for 14,336 images, where this rule says 5.6.",
        ]
    return [
        f"{highest:g} from {rules.LARGE_BATCH:,} images on: section V-C; 0.1 for each 256 is {linear:g}.",
        "The TensorFlow run of 24,576 images instead halved the scaled rate, from 9.6 to 4.8.",
    ]


_LEAST_EPOCHS = 1.0  # of any part of the schedule
_LINEAR_SHARE = 2 / 3  # of the epochs before the cycles: 30 of the paper's 45
_MOST_CYCLES = 100
_TEST_BATCH = 50
_MOST_ITERATIONS = 2**31 - 1
_PAPERS_DEPTH = 50
_MOST_OF_ONE_NODE = rules.REFERENCE_BATCH  # images of a rank
_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Images:
    """The transformation of a recipe's images: shared, of TRAIN, of TEST, and a net's augmentation.

    `why` is the comment on where it comes from.
    """

    shared: Mapping[str, Any]
    train: Mapping[str, Any]
    test: Mapping[str, Any]
    augmented: Mapping[str, Any]
    why: str


PUBLISHED = Images(
    {"crop_size": 224, "mirror": True, "mean_value": [104, 117, 123], "scale": 0.0078125},
    {},
    {"shorter_side_px": 256},
    {"random_aspect_ratio": {"min_area_ratio": 0.08, "aspect_ratio_change": 0.75}},
    "The transformation is that of the published nets.",
)


@dataclass(frozen=True)
class Wish:
    """What the user wants to train; options that are None follow from the rules, or from the profile.

    A `collapse` follows the last cycle, or each of them: `epochs` are those of the last model, and the other
    collapses are extra. `net` holds the keys of a recipe's net; without it, the net is a ResNet of `depth`.
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
    classes: int = 1000
    test_images: int = 50_000
    lmdb: str = "/tmp/ilsvrc12_train_lmdb"
    test_lmdb: str = "examples/imagenet/ilsvrc12_val_lmdb"
    name: str | None = None
    profile: Profile | None = None
    depth: int = _PAPERS_DEPTH
    net: Mapping[str, Any] | None = None
    transform: Images = PUBLISHED

    @property
    def net_name(self) -> str:
        """The name of the net, in titles."""
        return str(self.net["name"]) if self.net else f"ResNet-{self.depth}"


def make_new(wish: Wish, home: Path = Path()) -> NewRecipe:
    """Make a recipe by the rules, with a continuous rate; its YAML will be in the folder `home`.

    Raises InputError for a batch of more images than there are, for nodes that do not divide it, and for a
    schedule whose parts are longer than the run.
    """
    check_batch(wish.batch, wish.images)
    if wish.collapse == "each" and not wish.cycles:
        raise InputError("--collapse", "there are no cycles to branch off from", "give --cycles too")
    sockets = wish.profile.node.sockets if wish.profile else None
    ranks_per_node = wish.ranks_per_node or sockets or 1
    nodes, batch_per_rank = find_shape(
        wish.batch, _nodes(wish, ranks_per_node), ranks_per_node, wish.batch_per_rank
    )
    if wish.depth:
        check_batch_per_rank(batch_per_rank)
        check_classes(wish.classes, batch_per_rank, wish.depth)
    schedule = find_schedule(wish)
    planned = _plan(wish, schedule)
    prefix = (
        f"resnet{wish.depth}" if wish.depth else _NAME.sub("-", wish.net_name).strip("._-").lower() or "net"
    )
    name = wish.name or f"{prefix}-{wish.batch}-{wish.epochs:g}ep"
    settings = join([one.settings for one in planned], _starts(planned))
    node, node_notes = node_values(wish.profile, ranks_per_node)
    cluster = {"nodes": nodes, "ranks_per_node": ranks_per_node, "batch_per_rank": batch_per_rank, **node}
    phases = _phases(name, planned, settings)
    values = _values(wish, name, cluster, phases)
    draft = make_recipe(values, "--name" if wish.name else "new", home)
    _check_nets(wish, draft)
    title = f"{draft.title}, {model_epochs(draft):.4g} epochs"
    if wish.collapse == "each":
        title += f", {len(find_leaves(draft))} collapses for an ensemble"
    recipe = make_recipe(values | {"title": title}, name, home)
    warnings = tuple(_warnings(wish, recipe))
    comments = _comments(wish, recipe, schedule, node_notes, warnings)
    notes = () if recipe.phases[0].warmup_iter else (no_warmup(),)
    messages = (*notes, *(f"warning: {one}" for one in warnings), *find_unstated(wish.profile))
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


def _check_nets(wish: Wish, draft: Recipe) -> None:
    """Refuse a net that does not fit the images; only `generate` and `run` run the code of a function."""
    if wish.net and "function" not in wish.net:
        for net in draft.nets:
            build_net(draft, net)


def _nodes(wish: Wish, ranks_per_node: int) -> int | None:
    """Return the given nodes, or 1 if nothing is given and the batch is small enough for one node."""
    is_small = wish.batch <= _MOST_OF_ONE_NODE * ranks_per_node and wish.batch % ranks_per_node == 0
    return 1 if wish.nodes is None and wish.batch_per_rank is None and is_small else wish.nodes


def _plan(wish: Wish, schedule: Schedule) -> Sequence[PlannedPhase]:
    """Return the phases by the rules; raises InputError for epochs that are too few or too many."""
    try:
        planned = plan_phases(schedule, wish.batch, wish.images).phases
    except ValueError as error:
        raise InputError("--epochs", str(error), "use more, or a smaller batch") from None
    longest = max(one.settings.get("lr_iter", one.settings["max_iter"]) for one in planned)
    if longest > _MOST_ITERATIONS:
        what = f"a phase has {longest:,} iterations, but Caffe counts only to {_MOST_ITERATIONS:,}"
        raise InputError("--epochs", what, "use fewer, or a larger batch")
    return planned


def _warnings(wish: Wish, recipe: Recipe) -> Iterator[str]:
    is_papers = wish.depth == _PAPERS_DEPTH
    if not is_papers:
        yield f"{wish.net_name}: the paper and the runs with LARS trained ResNet-{_PAPERS_DEPTH}"
    # They do not say how many epochs another net needs.
    yield from find_warnings(wish.batch, model_epochs(recipe), wish.images if is_papers else 0)


def find_schedule(wish: Wish) -> Schedule:
    """Divide the epochs: warm-up, decay of power 1, with cycles also one of power 2 and the cycles, collapse.

    Raises InputError for too few epochs.
    """
    collapse = wish.collapse_epochs or rules.collapse_epochs(wish.epochs)
    # A warm-up starts at 0.1; a peak rate that is not higher needs none.
    warmup = rules.warmup_epochs(wish.batch) if rules.peak_lr(wish.batch) > rules.WARMUP_START_LR else 0.0
    cycle = Cycles()
    in_cycles = wish.cycles * (cycle.rise_epochs + cycle.fall_epochs)
    before = wish.epochs - in_cycles - collapse
    linear = before * _LINEAR_SHARE if wish.cycles else before
    square = before - linear if wish.cycles else _LEAST_EPOCHS
    if wish.cycles > _MOST_CYCLES:
        raise InputError("--cycles", f"{wish.cycles:,} are too many", f"use {_MOST_CYCLES} or fewer")
    if linear < warmup + _LEAST_EPOCHS or square < _LEAST_EPOCHS:
        _refuse(wish, warmup, collapse, in_cycles)
    if not wish.cycles:
        return Schedule(
            epochs=wish.epochs,
            warmup_epochs=warmup,
            warmup="own-phase",
            collapse=True,
            collapse_epochs=collapse,
        )
    # As in the paper's 120 epochs: a branch from the end of the decay, and from that of each cycle.
    branches = {"collapse_epochs": (collapse,) * (wish.cycles + 1)}
    line = {"last_collapse_epochs": collapse}
    cycles = Cycles(
        count=wish.cycles,
        linear_epochs=linear,
        square_epochs=square,
        **(branches if wish.collapse == "each" else line),
    )
    return Schedule(decay="cycles", warmup="own-phase", warmup_epochs=warmup, cycles=cycles)


def _refuse(wish: Wish, warmup: float, collapse: float, in_cycles: float) -> None:
    """Raise InputError for too few epochs, with the least number that would do."""
    parts = [
        f"{epochs:g} of {what}" for epochs, what in ((warmup, "warm-up"), (collapse, "collapse")) if epochs
    ]
    if wish.cycles:
        parts.insert(-1, f"{in_cycles:g} of {wish.cycles} cycles")
    least = warmup + _LEAST_EPOCHS
    if wish.cycles:
        least = max(least / _LINEAR_SHARE, _LEAST_EPOCHS / (1 - _LINEAR_SHARE))
    needed = math.ceil(least + in_cycles + collapse)
    while needed < least + in_cycles + (wish.collapse_epochs or rules.collapse_epochs(needed)):
        needed += 1
    what = f"{wish.epochs:g} epochs are too few for {', '.join(parts)}, and a decay"
    hint = f"use --epochs {needed}" + (
        ", or fewer --cycles" if wish.cycles else ", or less --collapse-epochs"
    )
    raise InputError("--cycles" if wish.cycles else "--epochs", what, hint)


def _net(planned: PlannedPhase) -> str:
    return "train_val" if planned.is_augmented else "train_val_noaug"


def _weights(planned: PlannedPhase) -> dict[str, str]:
    return {"weights": planned.weights} if planned.weights else {}


def _starts(planned: Sequence[PlannedPhase]) -> list[int | None]:
    """Return the index of the phase that each phase starts from; None for the first."""
    names = [one.name for one in planned]
    starts = [names.index(one.weights) if one.weights else index - 1 for index, one in enumerate(planned)]
    return [None, *starts[1:]]


def _values(wish: Wish, name: str, cluster: dict[str, Any], phases: list[dict[str, Any]]) -> dict[str, Any]:
    test_batch = _divisor(wish.test_images)
    transform = wish.transform
    train = {"lmdb": wish.lmdb, "images": wish.images, "shuffle": True, "prefetch": 2, **transform.train}
    test = {"lmdb": wish.test_lmdb, "images": wish.test_images, "batch_size": test_batch, **transform.test}
    values: dict[str, Any] = {
        "name": name,
        "title": f"{wish.net_name}, batch {wish.batch:,} of {wish.images:,} images",
        "source": "caffe-recipes new: the rules of arXiv:1711.04291",
        "trainer": "./build/tools/caffe",
        "prototxt_dir": f"prototxt/{name}",
        "net": wish.net
        or {
            "name": wish.net_name,
            "classes": wish.classes,
            "builder": f"resnet{wish.depth}",
            "zero_init": "every-block",
        },
        "nets": {"train_val": dict(transform.augmented), "train_val_noaug": {"test": False}},
        "data": {
            "train": {**train, **wish.transform.train},
            "test": {**test, **wish.transform.test},
            **wish.transform.shared,
        },
        "cluster": cluster,
        "solver": {"momentum": rules.MOMENTUM, "display": 40, "solver_mode": "CPU"},
        "phases": phases,
        "evaluation": {"net": "train_val", "iterations": math.ceil(wish.test_images / test_batch)},
    }
    accept = list(_accept(phases))
    return values | ({"accept": accept} if accept else {})


def _accept(phases: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield the findings of lint that follow from the rules, as accepted."""
    if any("weights" in phase for phase in phases):
        yield {"finding": "weights-of-other-phase", "reason": "a collapse branches off the end of each cycle"}
    last = phases[-1]["max_iter"]
    if (1 / last) ** 2 > _END_IS_HIGH:
        reason = f"power 2 to 0 over only {last} iterations ends at 1 / {last}^2 of base_lr"
        yield {"finding": "final-rate-high", "phase": phases[-1]["name"], "reason": reason}


_END_IS_HIGH = 1e-5  # lint's own limit


def _divisor(images: int) -> int:
    """Return the test batch: 50, or the largest from 10 to 50 that divides the images.

    >>> _divisor(50_000), _divisor(10_010), _divisor(7)
    (50, 35, 7)
    """
    sizes = range(min(_TEST_BATCH, images), min(_TEST_BATCH, images) // 5, -1)
    return next((size for size in sizes if images % size == 0), sizes[0])


def _is_resnet(wish: Wish) -> bool:
    return wish.net is None or "builder" in wish.net


def _comments(
    wish: Wish, recipe: Recipe, schedule: Schedule, node_notes: list[str], warnings: tuple[str, ...]
) -> dict[Location, list[str]]:
    """Return the comments of the YAML: where each number comes from."""
    joins, leaves = len(recipe.phases) - 1, find_leaves(recipe)
    ranks = describe_count(recipe.cluster.ranks, "rank")
    comments: dict[Location, list[str]] = {
        (): [
            "Made by `caffe-recipes new` with the rules of arXiv:1711.04291; its sections are named below.",
            *warnings,
        ],
        ("net",): [_NET_FROM] if _is_resnet(wish) else ["As given."],
        ("nets",): ["As in the published nets; train_val_noaug is for the collapse (section V-B)."],
        ("data",): [wish.transform.why],
        ("cluster",): [f"{ranks} x {recipe.cluster.batch_per_rank:,}.", *node_notes],
        ("solver", "momentum"): ["Section IV-B."],
        ("solver", "weight_decay"): ["Half of the standard 0.0001 (V-B); the collapse has twice as much."],
        ("phases",): [
            *rate_lines(recipe, joins),
            *(branch_lines(recipe) if len(leaves) > 1 else []),
            *(collapse_lines() if wish.collapse_epochs is None else []),
        ],
    }
    for index, phase in enumerate(recipe.phases):
        comments |= {
            ("phases", index, *at): lines for at, lines in phase_lines(recipe, phase, schedule).items()
        }
    return comments
