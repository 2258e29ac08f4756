"""How long a chain takes on its machine, by what the recipe's source reports of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from caffe_recipes.cluster.staging.costs import Rates, copy_s
from caffe_recipes.recipe.arithmetic import images_of, total_images
from caffe_recipes.recipe.model import Recipe

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
    def limit_s(self) -> int:
        """The time to ask a batch system for, in seconds.

        A fifth more than the total, 5 minutes for the job and 2 for each phase; rounded up to 10 minutes.

        >>> Duration(training_s=14_692, staging_s=538, evaluation_s=1015, phases=5).limit_s / 3600
        5.666666666666667
        """
        asked = (1 + _MARGIN) * self.total_s + _JOB_S + _PHASE_S * self.phases
        return _ROUND_TO_S * math.ceil(asked / _ROUND_TO_S)


def estimate_duration(
    recipe: Recipe, phase: str | None = None, rates: Rates | None = None
) -> Duration | None:
    """Return how long the chain, or one phase of it, takes; None where the source says nothing of its speed.

    training_s = iterations x global batch / images per second; the rate is `reported`'s, else that of a node
    times the nodes, else all images over the reported minutes. staging_s: every node reads the training LMDB
    from the shared file system (`costs.copy_s`), which is the slowest of the ways to be had anywhere; whoever
    knows the machine's `rates` gives them. evaluation_s: one process tests at the rate at which one rank
    trains, an upper bound, since it goes forward only; it comes with the last phase.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> recipe = load_recipe("stampede2-64n-72ep")
    >>> round(estimate_duration(recipe).training_s), round(estimate_duration(recipe, "init").total_s)
    (14693, 5606)
    """
    images_per_s = _find_rate(recipe)
    if images_per_s is None:
        return None
    phases = recipe.phases if phase is None else (recipe.phase(phase),)
    train, tested = recipe.data.train, 0
    if recipe.evaluation is not None and recipe.phases[-1] in phases:
        tested = recipe.evaluation.iterations * recipe.data.test.batch_size
    size_bytes = math.ceil((train.size_gb or 0) * 1e9)
    return Duration(
        training_s=sum(images_of(recipe, each) for each in phases) / images_per_s,
        staging_s=copy_s(size_bytes, recipe.cluster.nodes, rates or Rates()),
        evaluation_s=tested / (images_per_s / recipe.cluster.ranks),
        phases=len(phases),
    )


def _find_rate(recipe: Recipe) -> float | None:
    said = recipe.reported
    if said.images_per_s is not None:
        return said.images_per_s
    if said.images_per_s_per_node is not None:
        return said.images_per_s_per_node * recipe.cluster.nodes
    return total_images(recipe) / (60 * said.minutes) if said.minutes is not None else None
