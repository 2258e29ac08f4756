"""How long a chain takes on its machine, by what the recipe's source reports of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from caffe_recipes.cluster.staging.costs import Rates, copy_s
from caffe_recipes.recipe.arithmetic import images_of
from caffe_recipes.recipe.graph import find_evaluated
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.pace import reported_pace

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
    recipe: Recipe, phase: str | None = None, rates: Rates | None = None
) -> Duration | None:
    """Return how long the chain, or one phase of it, takes; None where the source says nothing of its speed.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> recipe = load_recipe("stampede2-64n-72ep")
    >>> round(estimate_duration(recipe).training_s), round(estimate_duration(recipe, "init").total_s)
    (14693, 5606)
    """
    pace = reported_pace(recipe)
    return duration_at(recipe, pace.images_per_s, phase, rates) if pace else None


def duration_at(
    recipe: Recipe,
    images_per_s: float,
    phase: str | None = None,
    rates: Rates | None = None,
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
        staging_s=copy_s(size_bytes, nodes, rates or Rates()),
        evaluation_s=tested / (images_per_s / (nodes * recipe.cluster.ranks_per_node)),
        phases=len(phases),
    )
