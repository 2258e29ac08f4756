"""What changes from one phase to the next: the rate, and the weight decay of a collapse."""

from __future__ import annotations

from collections.abc import Iterator

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.rates import lr_at
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.chain import (
    Chain,
    Link,
    Start,
    has_rates,
    plan_starts,
    snapshot_rate,
    source_layers,
)
from caffe_recipes.review.lint.rules import finding
from caffe_recipes.review.lint.schedule import compare_rates, is_jump

_RULED_TIMES = 2
_ROUNDING = 0.01


def check_joins(chain: Chain) -> Iterator[Finding]:
    """Find jumps of the rate where phases meet, and a collapse whose weight decay is not doubled."""
    for link, start in zip(chain.links, plan_starts(chain), strict=True):
        if start is not None:
            yield from _join(chain.links[start.index], link, start)
    if len(chain.links) > 1 and chain.is_whole:
        yield from _collapse(chain.links[-2], chain.links[-1])


def is_collapse(before: Link, link: Link) -> bool:
    """Whether a last phase is a collapse: it is called so, or trains without the augmentation before it."""
    named = link.name, link.solver.message.snapshot_prefix.rpartition("/")[2]
    if any("coll" in name.lower() for name in named):
        return True
    return (
        before.net is not None and link.net is not None and _is_augmented(before) and not _is_augmented(link)
    )


def _is_augmented(link: Link) -> bool:
    layers = source_layers(link.net.message, pb.TRAIN) if link.net else []
    return any(
        layer.transform_param.HasField("random_aspect_ratio_param")
        or layer.transform_param.HasField("random_resize_param")
        for layer in layers
    )


def _join(before: Link, link: Link, start: Start) -> Iterator[Finding]:
    if not (has_rates(before.solver.message) and has_rates(link.solver.message)):
        return
    if not 0 < start.iteration <= before.last_iter:
        return
    last, first = snapshot_rate(before, start.iteration), lr_at(link.solver.message, 0)
    if not is_jump(last, first):
        return
    at = (
        f" (at iteration {start.iteration})"
        if start.choices > 1 or start.iteration != before.last_iter
        else ""
    )
    change = f"{last:.4g}{at} to {first:.4g}"
    what = f"the rate {compare_rates(last, first)} from {before.name} to {link.name}, {change}"
    if start.is_guess:
        what += f": of {start.choices} snapshots the one whose rate is nearest"
    effect = "the history of momentum starts at 0 here too: the loss is unsteady for a while"
    key = "warmup_start_lr" if link.solver.message.warmup_iter > 0 else "base_lr"
    place = link.solver.where(key)
    write = f"{key}: {last:.4g}, if the jump is not meant"
    values = {"before": last, "after": first, "iteration": start.iteration}
    yield finding("join-jump", place, what, effect, write, link.name, **values)


def _collapse(before: Link, link: Link) -> Iterator[Finding]:
    old, new = before.solver.message.weight_decay, link.solver.message.weight_decay
    if not is_collapse(before, link) or not old or abs(new / old / _RULED_TIMES - 1) <= _ROUNDING:
        return
    what = f"the collapse has {new / old:.4g} times the weight decay of {before.name}, {old:.4g} to {new:.4g}"
    effect = "the rule of the paper is to double it: results are not to be compared with its own"
    place = link.solver.where("weight_decay")
    write = f"weight_decay: {_RULED_TIMES * old:.4g}"
    yield finding("collapse-weight-decay", place, what, effect, write, link.name, before=old, after=new)
