"""Rules for the weights that a phase starts from: which of its layers cannot use them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.review.lint.learned_blobs import find_misfits, names_only_in, quote_refusal
from caffe_recipes.review.lint.net_text import layer_place, name_layers, show_names
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.subjects import Join, change_rule
from caffe_recipes.wording import find_similar, plural

if TYPE_CHECKING:
    from caffe_recipes.review.lint.findings import Finding


@change_rule(
    "handover-misfit",
    "error",
    "a layer whose weights have a different shape in the net of the previous phase",
    write="use the same shape in both nets, or another layer name to initialize it from its fillers",
    values=("count",),
)
def _check_misfits(join: Join) -> Iterator[Finding]:
    before, link, net = join.before, join.link, join.link.net
    theirs, ours = join.learned(before), join.learned(link)
    if net is None or theirs is None or ours is None:
        return
    unfit = find_misfits(ours, theirs)
    if unfit:
        (first, misfit), *others = unfit.items()
        more = f"; neither do {show_names([name for name, _ in others])}" if others else ""
        what = f"layer '{first}' of {link.name} does not fit the weights of {before.name}: {misfit}{more}"
        effect = quote_refusal(first, ours, theirs)
        yield finding(
            "handover-misfit", layer_place(net, first), what, link.name, effect=effect, count=len(unfit)
        )


@change_rule(
    "handover-missing",
    "warning",
    "a layer with weights that is missing from the net of the previous phase",
    what="{names} of {phase} {verb} not in the net of {previous}",
    effect="{they_start} from the fillers, as if untrained, and Caffe prints no warning",
    values=("count",),
)
@change_rule(
    "handover-unused",
    "note",
    "a trained layer that is missing from the next phase's net",
    what="{names} of {previous} {verb} not in the net of {phase}",
    effect="Caffe prints `Ignoring source layer {first}` and drops its weights",
    write="use the same layer names in both nets to keep the weights",
    values=("count",),
)
def _check_names(join: Join) -> Iterator[Finding]:
    """Find the layers with weights that only one of the two nets has."""
    before, link = join.before, join.link
    theirs, ours = join.learned(before), join.learned(link)
    if before.net is None or link.net is None or theirs is None or ours is None:
        return
    new, left = names_only_in(ours, theirs), names_only_in(theirs, ours)
    if new:
        near = find_similar(new[0], [name for name in theirs if name not in ours], 0.3)
        yield finding(
            "handover-missing",
            layer_place(link.net, new[0]),
            phase=link.name,
            write=f'name: "{near}", as in {before.name}' if near else "no change needed if this is intended",
            count=len(new),
            names=name_layers(new),
            verb=plural(len(new), *_VERBS),
            previous=before.name,
            they_start=plural(len(new), "it starts", "they start"),
        )
    if left:
        yield finding(
            "handover-unused",
            layer_place(before.net, left[0]),
            phase=link.name,
            count=len(left),
            names=name_layers(left),
            previous=before.name,
            verb=plural(len(left), *_VERBS),
            first=left[0],
        )


_VERBS = ("has weights but is", "have weights but are")
