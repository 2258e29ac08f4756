"""What a rescaled recipe has otherwise than its source, and than the rules, in words."""

from __future__ import annotations

from collections.abc import Iterator

from caffe_recipes.making.scaled import warmup_epochs
from caffe_recipes.making.warnings import IMAGENET_IMAGES
from caffe_recipes.making.words import no_warmup
from caffe_recipes.recipe import rules
from caffe_recipes.recipe.arithmetic import model_epochs
from caffe_recipes.recipe.model import Recipe

_SAME_EPOCHS = 0.1  # as two iterations of the largest batch may make
_SAME_RATE = 0.001  # relative: rates are written in six digits
_ROUNDED = 0.01  # relative: epochs that rounded iterations take away or add unnoticed


def tell_changes(source: Recipe, made: Recipe, epochs: float) -> Iterator[str]:
    """Say what is other, and what the source had that this has not; `epochs` are those that were wanted."""
    told = [*_machine(source, made), *_schedule(source, made)]
    if told:
        yield ", ".join(told)
    yield from _against_rules(source, made)
    yield from _rounding(source, made, epochs)
    if source.tensorflow:
        yield f"tensorflow is left out: it is the run of {source.name}"
    if len(made.phases) != len(source.phases):
        yield f"{len(source.phases)} phases -> {len(made.phases)}: a warm-up is one where the rate dropped"


def _machine(source: Recipe, made: Recipe) -> Iterator[str]:
    old, new = source.cluster, made.cluster
    pairs = (
        ("batch", old.global_batch, new.global_batch),
        ("nodes", old.nodes, new.nodes),
        ("ranks on each", old.ranks_per_node, new.ranks_per_node),
        ("images of each", old.batch_per_rank, new.batch_per_rank),
    )
    for what, before, after in pairs:
        if before != after:
            yield f"{what} {before:,} -> {after:,}"


def _schedule(source: Recipe, made: Recipe) -> Iterator[str]:
    epochs, rates = (model_epochs(source), model_epochs(made)), (_highest(source), _highest(made))
    warmup = warmup_epochs(source), warmup_epochs(made)
    if abs(epochs[0] - epochs[1]) >= 0.01:
        yield f"epochs {epochs[0]:.2f} -> {epochs[1]:.2f}"
    if rates[0] != rates[1]:
        yield f"highest rate {rates[0]:g} -> {rates[1]:g}"
    if not _is_warmup_kept(source, made):
        yield f"warm-up {warmup[0]:.2f} -> {warmup[1]:.2f} epochs"


def _against_rules(source: Recipe, made: Recipe) -> Iterator[str]:
    """Say where the source departs from the rules of its batch, or the same has become another departure."""
    old, new = source.cluster.global_batch, made.cluster.global_batch
    warmup, rule = warmup_epochs(made), rules.warmup_epochs(new)
    if warmup_epochs(source) and not warmup:
        yield no_warmup(source.phases[0].warmup_start_lr or 0.0)
    elif not warmup and _highest(made) > max(_highest(source), rules.WARMUP_START_LR):
        what = f"nothing warms up to {_highest(made):g}, as {source.name} has no warm-up"
        yield f"warning: {what}; for such a batch the rule is {rule:.3g} epochs of it"
    elif _is_warmup_kept(source, made) and warmup and rule != rules.warmup_epochs(old):
        yield f"the warm-up stays at {warmup:.2f} epochs; for such a batch the rule is {rule:.3g}"
    rate, peak = _highest(made), rules.peak_lr(new)
    if old == new or made.data.train.images not in IMAGENET_IMAGES or abs(rate - peak) <= _SAME_RATE * peak:
        return
    own = f"{source.name} has {_highest(source):g} where it is {rules.peak_lr(old):g}"
    yield f"the highest rate is {rate:g}; for such a batch the rule is {peak:g}, and {own}"


def _rounding(source: Recipe, made: Recipe, epochs: float) -> Iterator[str]:
    """Say why a run has other epochs than are wanted: iterations are whole, and so are snapshots."""
    trained = model_epochs(made)
    if abs(trained - epochs) <= _ROUNDED * epochs:
        return
    snapshots = [
        f"those of {phase.name} to {phase.last_iter // phase.snapshot} times its snapshot of {phase.snapshot}"
        for phase in made.phases
        if phase.snapshot and phase.snapshot < phase.last_iter and phase.last_iter % phase.snapshot == 0
    ]
    how = ", ".join(["iterations are rounded", *snapshots])
    yield f"{trained:.2f} epochs instead of {epochs:.2f}: {how}"


def _is_warmup_kept(source: Recipe, made: Recipe) -> bool:
    return abs(warmup_epochs(source) - warmup_epochs(made)) < _SAME_EPOCHS


def _highest(recipe: Recipe) -> float:
    return max(phase.base_lr for phase in recipe.phases)
