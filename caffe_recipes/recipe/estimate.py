"""What a recipe costs in time: an estimate by one pace, its parts, node-hours, and the traffic it makes.

How long a chain takes on its machine, by what the recipe's source reports of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from caffe_recipes.cluster.staging.plan import CopyRates, chain_s, copy_s
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.graph import find_evaluated, images_of, total_images
from caffe_recipes.recipe.model import AnyRecipe, Recipe, TensorFlowRecipe
from caffe_recipes.recipe.pace import Pace, Shape, reported_pace, shape_of

# Of the time that is worked out: machines are not always as fast as in a paper.
_MARGIN = 0.2
# The preflight, starting the ranks, fetching and verifying snapshots: for the job, and for each phase.
_JOB_S, _PHASE_S = 300.0, 120.0
_ROUND_TO_S = 600


@dataclass(frozen=True)
class Duration:
    """The parts of a chain's time, or of one phase's, without any margin."""

    training_s: float
    staging_s: float
    evaluation_s: float
    phases: int

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.training_s + self.staging_s + self.evaluation_s

    @property
    def joins_s(self) -> float:
        """What starting, fetching and verifying is given: 5 minutes for the job, 2 for each phase."""
        return _JOB_S + _PHASE_S * self.phases

    @property
    def limit_s(self) -> int:
        """The time to ask a batch system for, in seconds.

        A fifth more than the total, and the joins; rounded up to 10 minutes.

        >>> Duration(training_s=14_692, staging_s=538, evaluation_s=1015, phases=5).limit_s / 3600
        5.666666666666667
        """
        asked = (1 + _MARGIN) * self.total_s + self.joins_s
        return _ROUND_TO_S * math.ceil(asked / _ROUND_TO_S)


def estimate_duration(
    recipe: AnyRecipe, phase: str | None = None, rates: CopyRates | None = None
) -> Duration | None:
    """Return how long the chain, or one phase of it, takes; None where the source says nothing of its speed.

    For TFRecords, whose size a recipe does not say, no staging is counted.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> recipe = load_recipe("stampede2-64n-72ep")
    >>> round(estimate_duration(recipe).training_s), round(estimate_duration(recipe, "init").total_s)
    (14693, 5606)
    """
    pace = reported_pace(recipe)
    if pace is None:
        return None
    if isinstance(recipe, TensorFlowRecipe):
        images = (total_images(recipe), recipe.test_images * recipe.cluster.ranks)
        training_s, evaluation_s = (number / pace.images_per_s for number in images)
        return Duration(training_s, 0.0, evaluation_s, phases=1)
    return duration_at(recipe, pace.images_per_s, phase, rates)


def duration_at(
    recipe: Recipe,
    images_per_s: float,
    phase: str | None = None,
    rates: CopyRates | None = None,
    *,
    nodes: int | None = None,
) -> Duration:
    """Return how long the chain, or one phase, takes at a rate; `nodes` may be others than the recipe's.

    training_s = iterations x global batch / images per second. staging_s: every node reads the training LMDB
    from the shared file system (`costs.copy_s`), which is the slowest of the ways to be had anywhere; whoever
    knows the machine's `rates` gives them. evaluation_s: one process tests at the rate at which one rank
    trains, an upper bound, since it goes forward only; it comes with the last phase.
    """
    nodes = nodes or recipe.cluster.nodes
    phases = recipe.phases if phase is None else (recipe.phase(phase),)
    train, tested = recipe.data.train, 0
    if recipe.evaluation is not None and recipe.phases[-1] in phases:
        tested = recipe.evaluation.iterations * recipe.data.test.batch_size * len(find_evaluated(recipe))
    size_bytes = math.ceil((train.size_gb or 0) * 1e9)
    return Duration(
        training_s=sum(images_of(recipe, each) for each in phases) / images_per_s,
        staging_s=copy_s(size_bytes, nodes, rates or CopyRates()),
        evaluation_s=tested / (images_per_s / (nodes * recipe.cluster.ranks_per_node)),
        phases=len(phases),
    )


# Of a phase on one node, where nothing is fetched: starting the ranks, verifying the snapshot.
ONE_NODE_PHASE_S = 5.0
# Of an image's training: going backward takes two products, weights' and data's, for each of forward.
_FORWARD = 1 / 3
# Epochs to a top-1 accuracy in percent. Source: arXiv:1711.04291, VI: "as demonstrated by the learning rate
# schedule from Figure 4".
EPOCHS_TO_ACCURACY = {75.5: 48, 76.0: 64, 76.5: 78}
_IMAGENET_IMAGES = 1_281_167
# Section VI: "for batch sizes of up to 8K/12K".
_TO_ACCURACY_IMAGES = 12 * 1024


@dataclass(frozen=True)
class PhaseTime:
    """One phase's training."""

    name: str
    iterations: int
    epochs: float
    training_s: float


@dataclass(frozen=True)
class Staging:
    """A way of staging the training LMDB, and its seconds."""

    how: str
    seconds: float


@dataclass(frozen=True)
class Traffic:
    """What several ranks exchange in an iteration: each sends and receives a complete model."""

    each_way_bytes: int
    all_bytes: int
    bytes_per_s: float


@dataclass(frozen=True)
class Estimate:
    """A recipe's time on a shape at a pace; `others` are the paces that were known and not taken.

    `staging` begins with the quickest way, which counts; it is empty where the LMDB's size is not known.
    """

    recipe: str
    shape: Shape
    images: int
    epochs: float
    pace: Pace
    others: tuple[Pace, ...]
    epoch_s: float
    phases: tuple[PhaseTime, ...]
    duration: Duration
    staging: tuple[Staging, ...]
    traffic: Traffic | None
    notes: tuple[str, ...]

    @property
    def joins_s(self) -> float:
        """What starting, fetching and verifying is given: on one node less than to a job of several."""
        is_one = self.shape.nodes == 1
        return ONE_NODE_PHASE_S * self.duration.phases if is_one else self.duration.joins_s

    @property
    def total_s(self) -> float:
        """All parts."""
        return self.duration.total_s + self.joins_s

    @property
    def node_hours(self) -> float:
        """What the whole of it costs on all nodes."""
        return self.shape.nodes * self.total_s / 3600


def estimate_recipe(
    recipe: Recipe,
    paces: Sequence[Pace],
    *,
    shape: Shape | None = None,
    rates: CopyRates | None = None,
    model_bytes: int | None = None,
    to_accuracy: float | None = None,
) -> Estimate:
    """Estimate a recipe by the first of some paces, each of `shape`, by default the recipe's own.

    With `to_accuracy`, one of EPOCHS_TO_ACCURACY, its phases give way to these epochs. On another shape the
    iterations change, and the epochs by less than one iteration of each phase. Staging takes the quickest of
    `copy` and `chain`, and the evaluation a third of the time of training its images; a job's limit is more
    careful with both. Raises InputError where there is no pace, and for more images an iteration than exist.
    """
    shape, rates = shape or shape_of(recipe), rates or CopyRates()
    _check_estimable(recipe, paces, shape)
    pace, train = paces[0], recipe.data.train
    duration = duration_at(recipe, pace.images_per_s, rates=rates, nodes=shape.nodes)
    phases = tuple(_phases(recipe, shape, pace.images_per_s, to_accuracy))
    staging = _staging(recipe, shape.nodes, rates)
    exchanged = model_bytes if shape.ranks > 1 else None
    return Estimate(
        recipe=recipe.name,
        shape=shape,
        images=train.images,
        epochs=sum(phase.epochs for phase in phases),
        pace=pace,
        others=tuple(paces[1:]),
        epoch_s=train.images / pace.images_per_s,
        phases=phases,
        duration=replace(
            duration,
            training_s=sum(phase.training_s for phase in phases),
            staging_s=staging[0].seconds if staging else 0.0,
            evaluation_s=duration.evaluation_s
            * _FORWARD
            / (len(find_evaluated(recipe)) if to_accuracy else 1),
            phases=len(phases),
        ),
        staging=staging,
        traffic=traffic_of(exchanged, shape, pace.images_per_s) if exchanged else None,
        notes=tuple(_notes(recipe, shape, to_accuracy)),
    )


def check_accuracy(recipe: Recipe, percent: float) -> None:
    """Raise InputError unless the paper says in how many epochs a recipe's net gets to an accuracy."""
    if percent not in EPOCHS_TO_ACCURACY:
        known = ", ".join(f"{one:g} ({epochs} epochs)" for one, epochs in EPOCHS_TO_ACCURACY.items())
        what = f"the epochs to {percent:g} % top-1 are not known"
        raise InputError("--to-accuracy", what, f"the paper has them for {known}")
    if recipe.net.builder != "resnet50" or recipe.data.train.images != _IMAGENET_IMAGES:
        what = f"{recipe.name} trains another net, or on other images, than the paper"
        raise InputError("--to-accuracy", what, "give a recipe of ResNet-50 on ImageNet-1K")


def _check_estimable(recipe: Recipe, paces: Sequence[Pace], shape: Shape) -> None:
    if not paces:
        measured = "stampede2-knl, stampede2-skx or marenostrum4"
        hint = f"give --log, --images-per-s, or for ResNet-50 --profile {measured}"
        raise InputError(recipe.name, "nothing is known of its speed", hint)
    images = recipe.data.train.images
    if shape.global_batch > images:
        what = f"{shape.global_batch:,} images an iteration are more than the {images:,} to train on"
        raise InputError(recipe.name, what, "use fewer nodes, or a smaller batch")


def traffic_of(model_bytes: int, shape: Shape, images_per_s: float) -> Traffic:
    """Return what the ranks exchange.

    Source: arXiv:1711.04291, V-A: after each iteration 256 nodes, of a rank each, send and receive 98 MB,
    49 GB in all; both are multiples of 1024.

    >>> round(traffic_of(98 << 20, Shape(256, 1, 32), 15000).all_bytes / 2**30)
    49
    """
    in_all = 2 * model_bytes * shape.ranks
    return Traffic(model_bytes, in_all, in_all * images_per_s / shape.global_batch)


def _phases(
    recipe: Recipe, shape: Shape, images_per_s: float, to_accuracy: float | None
) -> Iterator[PhaseTime]:
    all_images = recipe.data.train.images
    trained = [
        (phase.name, images_of(recipe, phase), shape.global_batch * (phase.iter_size or 1))
        for phase in recipe.phases
    ]
    if to_accuracy is not None:
        epochs = EPOCHS_TO_ACCURACY[to_accuracy]
        trained = [(f"to {to_accuracy:g} %", epochs * all_images, shape.global_batch)]
    for name, images, of_each in trained:
        iterations = max(round(images / of_each), 1)
        images = iterations * of_each
        yield PhaseTime(name, iterations, images / all_images, images / images_per_s)


def _staging(recipe: Recipe, nodes: int, rates: CopyRates) -> tuple[Staging, ...]:
    train = recipe.data.train
    if train.size_gb is None:
        return ()
    size = math.ceil(train.size_gb * 1e9)
    # A path from the Caffe root is one folder, which all nodes see.
    hosts = nodes if PurePosixPath(train.lmdb).is_absolute() else 1
    ways = (Staging("chain", chain_s(size, hosts, rates)), Staging("copy", copy_s(size, hosts, rates)))
    return tuple(sorted(ways, key=lambda way: way.seconds))


def _notes(recipe: Recipe, shape: Shape, to_accuracy: float | None) -> Iterator[str]:
    if to_accuracy is not None:
        takes = f"{to_accuracy:g} % top-1 takes {EPOCHS_TO_ACCURACY[to_accuracy]} epochs"
        yield f"{takes} of Figure 4's cycles and a collapse, says the paper; not the recipe's own phases"
        if shape.global_batch > _TO_ACCURACY_IMAGES:
            what = f"{shape.global_batch:,} images an iteration: it trained with 4,096"
            yield f"{what}, and says that the same seems to hold up to 8K to 12K"
    if recipe.data.train.size_gb is None:
        yield "staging is left out: the recipe does not say the training LMDB's size_gb"
    tested = [phase.name for phase in recipe.phases if phase.test_interval]
    if tested:
        yield f"tests during {', '.join(tested)} are left out, unless the pace is that of a log with them"
    own = shape_of(recipe)
    if shape.global_batch != own.global_batch:
        yield (
            f"{shape.global_batch:,} images an iteration, not the recipe's {own.global_batch:,}: "
            "the same epochs, to half an iteration of each phase; rates and accuracy are another matter"
        )
