"""Where the numbers of a new recipe's phases are from, in the comments of its YAML."""

from __future__ import annotations

from caffe_recipes.recipe import rules
from caffe_recipes.recipe.arithmetic import epochs_of, model_epochs, total_epochs
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.phases import Phase
from caffe_recipes.recipe.schedule import Schedule

_HORIZON = "lr_iter: where the rate would be 0, so that the last update is at the next phase's first rate."
_COLLAPSED = "with power 2 to 0, without augmentation, at twice the weight decay (V-B, VI)."
_LINEAR = "Ours: that share, and an end at 2/3 of the epochs before the cycles, as is 30 of the paper's 45."
_LARGE_WARMUP = "7 to 10 from 16K on (section V-C), which of them for which batch is ours"
_LARGEST_SCALED = 12_288  # of the paper's own runs

_Place = tuple[str, ...]


def no_warmup(start: float = rules.WARMUP_START_LR) -> str:
    """Say why a recipe does not warm up.

    >>> no_warmup()
    'no warm-up: the peak is no higher than 0.1, where it would start'
    """
    return f"no warm-up: the peak is no higher than {start:g}, where it would start"


def rate_lines(recipe: Recipe, joins: int) -> list[str]:
    """Say why rises are phases of their own, or that there is no warm-up, and what joins cost."""
    updates = 1 / (1 - rules.MOMENTUM)
    iterations = sum(phase.max_iter for phase in recipe.phases)
    goes_on = "The rate goes on at every join; the published one jumps."
    if any(phase.warmup_iter for phase in recipe.phases):
        goes_on = (
            "Each rise is a phase of its own: in this Caffe the iterations of a warm-up count as its "
            "policy's, so that a solver's rate drops where its warm-up ends. Here it goes on at every join; "
            "the published one jumps."
        )
    where = "the join" if joins == 1 else f"each of the {joins} joins"
    cost = (
        f"What it costs: the history of momentum starts at 0 at {where}, and is back after some "
        f"{updates:.0f} updates, of {iterations:,} in all."
    )
    none = [] if recipe.phases[0].warmup_iter else [f"{no_warmup().capitalize()}."]
    return [*none, f"{goes_on} {cost}"]


def branch_lines(recipe: Recipe) -> list[str]:
    """Say what the collapses are that branch off, and what they cost."""
    model, more = model_epochs(recipe), total_epochs(recipe) - model_epochs(recipe)
    return [
        f"c1 to {recipe.phases[-1].name} branch off the end of the decay and of each cycle (section VI):",
        f"{model:.2f} epochs are behind the last model, and the other collapses are {more:.2f} more.",
        "What all of the models predict, `caffe-recipes ensemble` averages.",
    ]


def collapse_lines() -> list[str]:
    """Say how long a collapse is that nobody asked for."""
    share, (least, most) = f"{rules.COLLAPSE_SHARE:.0%}".replace("%", " %"), rules.COLLAPSE_EPOCHS
    return [
        f"A collapse is {share} of the run, but {least} to {most} epochs: section V-B has 5 to 7 %, and VI",
        f"{least} to {most} epochs; the {share} are ours.",
    ]


def said_of_phase(recipe: Recipe, phase: Phase, schedule: Schedule) -> dict[_Place, list[str]]:
    """Say of a phase, and of its keys, by which rule they are so."""
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
    said = {
        "main": ["with power 1 (section IV-D).", _HORIZON],
        "init": [f"with power 1 (section VI), to {cycles.linear_to:g} of the peak.", _LINEAR, _HORIZON],
        "decay": [f"with power 2, to {cycles.square_to:g} of the peak (section VI).", _HORIZON],
        "rise": [f"up {cycles.rise_times:g}-fold over {cycles.rise_epochs:g} (section VI)."],
        "cyc": [f"down {cycles.fall_times:g}-fold over {cycles.fall_epochs:g} with power 2 (section VI)."],
        "c": [f"off the end of {phase.weights}, {_COLLAPSED}"],
        "collapse": [_COLLAPSED],
    }[name]
    is_first = recipe.phases[0] is phase
    about[()] = [f"{epochs} {said[0]}", *said[1:]]
    return about | (peak if is_first else {})


def _peak_lines(batch: int) -> list[str]:
    """Say where the highest rate is from, and where the sources depart from it."""
    linear, highest = rules.scaled_lr(batch), rules.HIGHEST_LR
    rule = "0.1 for each 256 images: section IV-D, after Goyal et al., arXiv:1706.02677."
    if batch <= _LARGEST_SCALED:
        return [rule]
    if batch < rules.LARGE_BATCH:
        return [
            rule,
            "The published 448-node recipe has less, 4.8 for 14,336 images, where this would be 5.6.",
        ]
    return [
        f"{highest:g} from {rules.LARGE_BATCH:,} images on: section V-C; 0.1 for each 256 is {linear:g}.",
        "The TensorFlow run of 24,576 images halved that, 9.6, instead, to 4.8.",
    ]
