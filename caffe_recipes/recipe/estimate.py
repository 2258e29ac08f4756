"""Estimate a recipe's time, its parts, node-hours and network traffic.

`estimate_duration` uses the speed that the recipe's source reports; `estimate_recipe` takes any speed. Both
add the same parts (`Duration`), from which a job's time limit follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from caffe_recipes.cluster.staging import Way
from caffe_recipes.cluster.staging.method_choice import STAGING_S, CopyRates
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.accuracy import Target, describe_target
from caffe_recipes.recipe.graph import find_evaluated, images_of, total_images
from caffe_recipes.recipe.model import AnyRecipe, Recipe, TensorFlowRecipe
from caffe_recipes.recipe.pace import Pace, RunSize, measured_pace, order_paces, reported_pace, shape_of
from caffe_recipes.units import describe_duration

# Added to the computed time, since machines are not always as fast as in a paper.
_MARGIN = 0.2
# Preflight, starting the ranks, fetching and verifying snapshots: per job and per phase.
_JOB_S, _PHASE_S = 300.0, 120.0
# Per phase on one node, where nothing is fetched: starting the ranks, verifying the snapshot.
ONE_NODE_PHASE_S = 5.0
# Share of the forward pass in training: the backward pass takes two products per forward product.
_FORWARD = 1 / 3
_ROUND_TO_S = 600


@dataclass(frozen=True)
class Duration:
    """The parts of the time of a chain or a phase; `joins_s` is for starting, fetching and verifying."""

    training_s: float
    staging_s: float
    evaluation_s: float
    joins_s: float

    @property
    def total_s(self) -> float:
        """The sum of all parts."""
        return self.training_s + self.staging_s + self.evaluation_s + self.joins_s

    @property
    def limit_s(self) -> int:
        """The time limit to request from a batch system: the total plus a fifth, in whole tens of minutes.

        >>> Duration(training_s=14_692, staging_s=93, evaluation_s=339, joins_s=900).limit_s / 3600
        5.5
        """
        return _ROUND_TO_S * math.ceil((1 + _MARGIN) * self.total_s / _ROUND_TO_S)


def estimate_duration(recipe: AnyRecipe, phase: str | None = None, how: Way | None = None) -> Duration | None:
    """Return the time of the chain, or of one phase; None if the source does not report the speed.

    The data are staged by the method `how`, or by the quicker one, as in `find_staging`. For TFRecords, whose
    size a recipe does not say, no staging is counted.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> recipe = load_recipe("stampede2-64n-72ep")
    >>> round(estimate_duration(recipe).training_s), round(estimate_duration(recipe, "init").total_s)
    (14693, 5581)
    """
    pace = _source_pace(recipe)
    if pace is None:
        return None
    if isinstance(recipe, TensorFlowRecipe):
        images = (total_images(recipe), _FORWARD * recipe.tested_images * recipe.cluster.ranks)
        training_s, evaluation_s = (number / pace.images_per_s for number in images)
        return Duration(training_s, 0.0, evaluation_s, _joins_s(recipe.cluster.nodes, phases=1))
    return duration_at(recipe, pace.images_per_s, phase, how=how)


def describe_limits(recipe: AnyRecipe, phases: Sequence[str | None], how: Way | None = None) -> str:
    """Return what the time limits of some jobs assume, one for each phase, or one for the chain (None)."""
    pace = _source_pace(recipe)
    found = [one for phase in phases if (one := estimate_duration(recipe, phase, how))]
    if pace is None or not found:
        return ""
    each = " for each job" if len(found) > 1 else ""
    nodes = recipe.cluster.nodes
    staging = find_staging(recipe, nodes, CopyRates(), how) if isinstance(recipe, Recipe) else ()
    parts = [f"training {_sum(found, 'training_s')} at {pace.images_per_s:,.0f} images/s ({pace.source})"]
    if staging:
        first, *others = (f"by {way.how}{each} {describe_duration(way.seconds)}" for way in staging)
        parts.append(f"staging {first} ({', '.join(others)})")
    parts.append(f"starts and snapshots {_sum(found, 'joins_s')}")
    parts.append(f"evaluation {_sum(found, 'evaluation_s')}")
    return f"{'; '.join(parts)}; and a fifth more"


def _sum(durations: Sequence[Duration], part: str) -> str:
    return describe_duration(sum(getattr(one, part) for one in durations))


def _source_pace(recipe: AnyRecipe) -> Pace | None:
    """Return the speed that `estimate` would use first, if the source reports any; None if it does not."""
    reported = reported_pace(recipe)
    if reported is None or isinstance(recipe, TensorFlowRecipe):
        return reported
    measured = measured_pace(recipe, None, shape_of(recipe))
    return order_paces([reported, *([measured] if measured else [])])[0]


def duration_at(
    recipe: Recipe,
    images_per_s: float,
    phase: str | None = None,
    rates: CopyRates | None = None,
    *,
    nodes: int | None = None,
    how: Way | None = None,
) -> Duration:
    """Return the time of the chain, or of one phase, at a speed; `nodes` may differ from the recipe's.

    training_s = iterations x global batch / images per second. staging_s: by the method `how`, by default the
    quicker of `chain` and `copy`, as `stage` chooses, at the machine's `rates` if known. evaluation_s: one
    process tests in a third of the time in which one rank trains, since it only computes the forward pass; it
    counts with the last phase.
    """
    nodes = nodes or recipe.cluster.nodes
    phases = recipe.phases if phase is None else (recipe.phase(phase),)
    tested = 0
    if recipe.evaluation is not None and recipe.phases[-1] in phases:
        test = recipe.data.test  # if the data are as in the net, so is the batch size
        each = test.images if recipe.data.is_in_net else recipe.evaluation.iterations * test.batch_size
        tested = each * len(find_evaluated(recipe))
    staging = find_staging(recipe, nodes, rates or CopyRates(), how)
    return Duration(
        training_s=sum(images_of(recipe, each) for each in phases) / images_per_s,
        staging_s=staging[0].seconds if staging else 0.0,
        evaluation_s=_FORWARD * tested / (images_per_s / (nodes * recipe.cluster.ranks_per_node)),
        joins_s=_joins_s(nodes, len(phases)),
    )


def _joins_s(nodes: int, phases: int) -> float:
    """Return the allowance for starting, fetching and verifying: less on one node than for several."""
    return ONE_NODE_PHASE_S * phases if nodes == 1 else _JOB_S + _PHASE_S * phases


@dataclass(frozen=True)
class PhaseTime:
    """The training time of one phase."""

    name: str
    iterations: int
    epochs: float
    training_s: float


@dataclass(frozen=True)
class Staging:
    """A method of staging the training LMDB, and its time in seconds."""

    how: str
    seconds: float


@dataclass(frozen=True)
class Traffic:
    """The traffic of several ranks per iteration: each sends and receives a complete model."""

    each_way_bytes: int
    all_bytes: int
    bytes_per_s: float


@dataclass(frozen=True)
class Estimate:
    """A recipe's time on a shape at a speed (`pace`); `others` are known speeds that were not used.

    `staging` starts with the fastest method, which is the one that counts; it is empty if the LMDB's size is
    unknown. `speedup` is that over four ranks with as many images each, if requested.
    """

    recipe: str
    shape: RunSize
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
    speedup: float | None = None

    @property
    def total_s(self) -> float:
        """The sum of all parts, in seconds."""
        return self.duration.total_s

    @property
    def node_hours(self) -> float:
        """The node-hours of all parts."""
        return self.shape.nodes * self.total_s / 3600


def estimate_recipe(
    recipe: Recipe,
    paces: Sequence[Pace],
    *,
    shape: RunSize | None = None,
    rates: CopyRates | None = None,
    model_bytes: int | None = None,
    target: Target | None = None,
) -> Estimate:
    """Estimate a recipe at the first of some speeds, which are for `shape`, by default the recipe's own.

    With a `target`, its epochs replace the phases. On another shape the iterations change, and the epochs by
    less than one iteration per phase. Raises InputError without a speed, and for a batch larger
    than the data set.
    """
    shape, rates = shape or shape_of(recipe), rates or CopyRates()
    _check_estimable(recipe, paces, shape)
    pace, train = paces[0], recipe.data.train
    duration = duration_at(recipe, pace.images_per_s, rates=rates, nodes=shape.nodes)
    phases = tuple(_phases(recipe, shape, pace.images_per_s, target))
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
            evaluation_s=duration.evaluation_s / (len(find_evaluated(recipe)) if target else 1),
            joins_s=_joins_s(shape.nodes, len(phases)),
        ),
        staging=find_staging(recipe, shape.nodes, rates),
        traffic=traffic_of(exchanged, shape, pace.images_per_s) if exchanged else None,
        notes=(*_tensorflow_notes(recipe, pace), *_notes(recipe, shape, target)),
    )


def _check_estimable(recipe: Recipe, paces: Sequence[Pace], shape: RunSize) -> None:
    if not paces:
        measured = "stampede2-knl, stampede2-skx or marenostrum4"
        by_log = f"--log runs/{recipe.name}-1 after a first run"
        hint = f"give {by_log}, or --images-per-s, or for ResNet-50 --profile {measured}"
        raise InputError(recipe.name, "its speed is unknown", hint)
    images = recipe.data.train.images
    if shape.global_batch > images:
        what = f"a batch of {shape.global_batch:,} is larger than the data set of {images:,} images"
        raise InputError(recipe.name, what, "use fewer nodes, or a smaller batch")


def traffic_of(model_bytes: int, shape: RunSize, images_per_s: float) -> Traffic:
    """Return the traffic between the ranks.

    Source: arXiv:1711.04291, V-A: after each iteration 256 nodes with one rank each send and receive 98 MB,
    49 GB in total; both units are powers of 1024.

    >>> round(traffic_of(98 << 20, RunSize(256, 1, 32), 15000).all_bytes / 2**30)
    49
    """
    in_all = 2 * model_bytes * shape.ranks
    return Traffic(model_bytes, in_all, in_all * images_per_s / shape.global_batch)


def _phases(
    recipe: Recipe, shape: RunSize, images_per_s: float, target: Target | None
) -> Iterator[PhaseTime]:
    all_images = recipe.data.train.images
    trained = [
        (phase.name, images_of(recipe, phase), shape.global_batch * (phase.iter_size or 1))
        for phase in recipe.phases
    ]
    if target is not None:
        trained = [(f"to {target.percent:g}%", target.epochs * all_images, shape.global_batch)]
    for name, images, of_each in trained:
        iterations = max(round(images / of_each), 1)
        images = iterations * of_each
        yield PhaseTime(name, iterations, images / all_images, images / images_per_s)


def find_staging(recipe: Recipe, nodes: int, rates: CopyRates, how: Way | None = None) -> tuple[Staging, ...]:
    """Return the ways of staging that work everywhere, the quickest first; none if the size is unknown.

    Before them, the method `how`, if the user has chosen one.
    """
    train = recipe.data.train
    if train.size_gb is None:
        return ()
    size = math.ceil(train.size_gb * 1e9)
    # A path below the Caffe root is one folder that all nodes share.
    hosts = nodes if PurePosixPath(train.lmdb).is_absolute() else 1
    methods: list[Way] = ["chain", "copy", *([how] if how else [])]
    ways = (Staging(way, STAGING_S[way](size, hosts, rates)) for way in dict.fromkeys(methods))
    return tuple(sorted(ways, key=lambda way: (way.how != how, way.seconds)))


def _tensorflow_notes(recipe: Recipe, pace: Pace) -> Iterator[str]:
    """Yield whose speed it is that is used for a recipe that both Caffe and TensorFlow can train."""
    if recipe.tensorflow is None:
        return
    if pace.kind == "measured":
        yield "the paper measured Caffe: TensorFlow's speed is unknown; for that, give --images-per-s"
    elif pace.kind in ("reported", "minutes"):
        yield "the reported speed is that of the TensorFlow run; Caffe's is unknown"


def _notes(recipe: Recipe, shape: RunSize, target: Target | None) -> Iterator[str]:
    if target is not None:
        yield from describe_target(target, shape.global_batch)
    if recipe.data.train.size_gb is None:
        unknown = "does not give the training LMDB's size_gb" if recipe.reads_lmdb else "stages no data"
        yield f"staging is not included: the recipe {unknown}"
    tested = [phase.name for phase in recipe.phases if phase.test_interval]
    if tested:
        yield f"tests during {', '.join(tested)} are not included, unless the speed is from a log with them"
    own = shape_of(recipe)
    if shape.global_batch != own.global_batch:
        yield (
            f"{shape.global_batch:,} images per iteration instead of the recipe's {own.global_batch:,}: the "
            "epochs stay the same to half an iteration per phase; learning rates and accuracy are not "
            "considered"
        )
