"""What changes from one phase to the next: the rate, and the weight decay of a collapse."""

from __future__ import annotations

from collections.abc import Iterator

from caffe_recipes.caffe.rates import lr_at
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.chains.chain import (
    Chain,
    Link,
    Start,
    first_iter,
    has_rates,
    plan_starts,
    snapshot_rate,
)
from caffe_recipes.review.lint.chains.schedule import compare_rates, is_jump
from caffe_recipes.review.lint.rules import finding

_RULED_TIMES = 2
_ROUNDING = 0.01


def check_joins(chain: Chain) -> Iterator[Finding]:
    """Find jumps of the rate where phases meet, and a collapse whose weight decay is not doubled."""
    starts = plan_starts(chain)
    for link, start in zip(chain.links, starts, strict=True):
        if start is not None:
            yield from _join(chain.links[start.index], link, start)
    # Collapses may branch off: each is the last phase of a model.
    gone_on_from = {start.index for start in starts if start is not None}
    for index, (link, start) in enumerate(zip(chain.links, starts, strict=True)):
        if index and chain.is_whole and index not in gone_on_from:
            is_known = start is not None or index == len(chain.links) - 1
            before = chain.links[start.index if start is not None else index - 1]
            yield from _collapse(before, link) if is_known else ()


def is_collapse(before: Link, link: Link) -> bool:
    """Whether a model's last phase is a collapse: called so, or without the augmentation before it."""
    named = link.name, link.solver.message.snapshot_prefix.rpartition("/")[2]
    if any("coll" in name.lower() for name in named):
        return True
    return (
        before.net is not None and link.net is not None and _is_augmented(before) and not _is_augmented(link)
    )


def _is_augmented(link: Link) -> bool:
    return any(
        layer.transform_param.HasField("random_aspect_ratio_param")
        or layer.transform_param.HasField("random_resize_param")
        for layer in link.sources
    )


def _join(before: Link, link: Link, start: Start) -> Iterator[Finding]:
    if not (has_rates(before.solver.message) and has_rates(link.solver.message)):
        return
    at_iter = first_iter(link)
    if not 0 < start.iteration <= before.last_iter or not at_iter < link.last_iter:
        return
    last, first = snapshot_rate(before, start.iteration), lr_at(link.solver.message, at_iter)
    if not is_jump(last, first):
        return
    is_said = start.choices > 1 or start.iteration != before.last_iter
    change = f"{last:.4g}{f' (at iteration {start.iteration})' if is_said else ''} to {first:.4g}"
    what = f"the rate {compare_rates(last, first)} from {before.name} to {link.name}, {change}"
    if start.is_guess:
        what += f": of {start.choices} snapshots the one whose rate is nearest"
    key = "warmup_start_lr" if link.solver.message.warmup_iter > at_iter else "base_lr"
    place = link.solver.where(key)
    values = {"before": last, "after": first, "iteration": start.iteration}
    if link.resumes:
        write = "nothing, if the step is meant"
        yield finding("resume-jump", place, what, _resumed(link), write, link.name, **values)
    else:
        effect = "the history of momentum starts at 0 here too: the loss is unsteady for a while"
        write = f"{key}: {last:.4g}, if the jump is not meant"
        yield finding("join-jump", place, what, effect, write, link.name, **values)


def _resumed(link: Link) -> str:
    momentum = link.solver.message.momentum
    if not 0 < momentum < 1:
        return "the history goes on in its solverstate"
    updates = 1 / (1 - momentum)
    return f"the history of momentum goes on: that of the old rate fades over some {updates:.3g} updates"


def _collapse(before: Link, link: Link) -> Iterator[Finding]:
    old, new = before.solver.message.weight_decay, link.solver.message.weight_decay
    if not is_collapse(before, link) or not old or abs(new / old / _RULED_TIMES - 1) <= _ROUNDING:
        return
    what = f"the collapse has {new / old:.4g} times the weight decay of {before.name}, {old:.4g} to {new:.4g}"
    effect = "the rule of the paper is to double it: results are not to be compared with its own"
    place = link.solver.where("weight_decay")
    write = f"weight_decay: {_RULED_TIMES * old:.4g}"
    yield finding("collapse-weight-decay", place, what, effect, write, link.name, before=old, after=new)
