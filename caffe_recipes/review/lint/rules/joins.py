"""Rules for jumps in the rate between phases, and the weight decay of a collapse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe.chain import first_iter, has_known_rates, is_collapse, plan_starts, snapshot_rate
from caffe_recipes.caffe.rates import compare_rates, is_jump, lr_at
from caffe_recipes.review.lint.registry import Explanation, link_finding
from caffe_recipes.review.lint.subjects import Join, chain_rule, join_rule

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Chain, Link
    from caffe_recipes.review.lint.findings import Finding


_COLLAPSE_DECAY_RATIO = 2
_ROUNDING = 0.01


_RISES = "the momentum history also starts at 0 here, so the loss is unstable for a while"
_DROPS = "the momentum history also starts at 0 here, so the first updates are smaller still"


@join_rule(
    "resume-jump",
    "note",
    "a rate that jumps by more than 2% where a phase resumes from a solverstate",
    write="no change needed if the jump is intended",
    values=("before", "after", "iteration"),
)
@join_rule(
    "join-jump",
    "warning",
    "a rate that jumps by more than 2% from one phase to the next",
    effect=_RISES,
    values=("before", "after", "iteration"),
    explanation=Explanation(
        "A phase starts from the weights of the previous phase, but with its own rate and an empty "
        "momentum history. A jump between the two rates makes the loss unstable; a rise can undo "
        "what was learned.",
        "Set base_lr to the previous phase's last rate, or warmup_start_lr if there is a "
        "warm-up. The rate of a warm restart rises on purpose: accept that.",
    ),
)
def _check_join(join: Join) -> Iterator[Finding]:
    before, link, start = join.before, join.link, join.start
    if not (has_known_rates(before.solver.message) and has_known_rates(link.solver.message)):
        return
    at_iter = first_iter(link)
    if not 0 < start.iteration <= before.last_iter or not at_iter < link.last_iter:
        return
    last, first = snapshot_rate(before, start.iteration), lr_at(link.solver.message, at_iter)
    if not is_jump(last, first):
        return
    is_shown = start.candidates > 1 or start.iteration != before.last_iter
    change = f"{last:.4g}{f' (at iteration {start.iteration})' if is_shown else ''} to {first:.4g}"
    what = f"the rate {compare_rates(last, first)} from {before.name} to {link.name}, {change}"
    if start.is_guess:
        what += f" (the nearest of {start.candidates} snapshots)"
    key = "warmup_start_lr" if link.solver.message.warmup_iter > at_iter else "base_lr"
    if link.resumes:
        yield link_finding(
            "resume-jump",
            link,
            key,
            what,
            effect=_resume_effect(link),
            before=last,
            after=first,
            iteration=start.iteration,
        )
    else:
        yield link_finding(
            "join-jump",
            link,
            key,
            what,
            effect=_RISES if first > last else _DROPS,
            write=f"{key}: {last:.4g}, if the jump is not intended",
            before=last,
            after=first,
            iteration=start.iteration,
        )


def _resume_effect(link: Link) -> str:
    momentum = link.solver.message.momentum
    if not 0 < momentum < 1:
        return "the momentum history is restored from the solverstate"
    updates = 1 / (1 - momentum)
    return (
        f"the momentum history is restored: the effect of the old rate fades over about {updates:.3g} updates"
    )


@chain_rule(
    "collapse-weight-decay",
    "warning",
    "a collapse whose weight decay is not twice that of the previous phase",
    what="the collapse has {ratio:.4g} times the weight decay of {previous}, {before:.4g} to {after:.4g}",
    effect="the paper doubles it, so the results are not comparable with the paper's",
    write="weight_decay: {least:.4g}",
    values=("before", "after"),
    explanation=Explanation(
        "The collapse is the last phase, with a rate that decays fast and little augmentation. The paper "
        "doubles its weight decay.",
        "Set weight_decay to twice that of the previous phase, or accept the finding.",
    ),
)
def _check_collapses(chain: Chain) -> Iterator[Finding]:
    starts = plan_starts(chain)
    # Several collapses may branch off one phase; each is the last phase of a model.
    continued = {start.index for start in starts if start is not None}
    for index, (link, start) in enumerate(zip(chain.links, starts, strict=True)):
        if index and chain.is_whole and index not in continued:
            is_known = start is not None or index == len(chain.links) - 1
            before = chain.links[start.index if start is not None else index - 1]
            yield from _check_collapse(before, link) if is_known else ()


def _check_collapse(before: Link, link: Link) -> Iterator[Finding]:
    old, new = before.solver.message.weight_decay, link.solver.message.weight_decay
    if not is_collapse(before, link) or not old or abs(new / old / _COLLAPSE_DECAY_RATIO - 1) <= _ROUNDING:
        return
    yield link_finding(
        "collapse-weight-decay",
        link,
        "weight_decay",
        before=old,
        after=new,
        ratio=new / old,
        previous=before.name,
        least=_COLLAPSE_DECAY_RATIO * old,
    )
