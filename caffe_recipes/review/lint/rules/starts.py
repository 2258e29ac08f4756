"""Rules for phases that start from the fillers of their net, which cannot train a net that needs weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe.net_states import train_state
from caffe_recipes.caffe.shapes import select_layers, stats_images
from caffe_recipes.review.lint.net_text import show_layers
from caffe_recipes.review.lint.registry import link_finding
from caffe_recipes.review.lint.rules.fillers import find_unfilled
from caffe_recipes.review.lint.subjects import start_rule

if TYPE_CHECKING:
    from caffe_recipes.caffe import pb
    from caffe_recipes.caffe.chain import Chain, Link
    from caffe_recipes.review.lint.findings import Finding


# Source: BVLC Caffe, src/caffe/layers/batch_norm_layer.cpp: a factor of 0 makes mean and variance 0.
_EMPTY = (
    "the statistics are empty, so each of these layers multiplies by 1/sqrt(eps) = {factor:.4g}: the loss "
)
_EMPTY += "saturates or becomes NaN"


def _find_empty_starts(chain: Chain) -> Iterator[tuple[Link, int, list[pb.LayerParameter]]]:
    """Yield the links without known weights, with the phase and the layers of their training nets."""
    for index, link in enumerate(chain.links):
        starts_empty = not link.weights and not link.resumes and (link.weights is not None or not index)
        if link.net is None or not starts_empty:
            continue
        state = train_state(link.solver.message, link.net.message)
        yield link, state.phase, select_layers(link.net.message, state.phase, state.level, state.stages)


@start_rule(
    "statistics-empty",
    "error",
    "BatchNorms that use their stored statistics in TRAIN, in a phase that starts without weights",
    what="{phase} starts without --weights, but TRAIN has use_global_stats: true in {names}",
    effect=_EMPTY,
    write="give --weights with these layers, or remove use_global_stats to train from scratch",
    values=("layers", "factor"),
)
@start_rule(
    "statistics-unknown",
    "warning",
    "BatchNorms that use their stored statistics in TRAIN, in a solver whose weights lint does not know",
    what="TRAIN has use_global_stats: true in {names}, and no --weights are given for {phase}",
    effect="without --weights " + _EMPTY,
    write="give --script FILE with the command that trains it; remove use_global_stats to train from scratch",
    values=("layers", "factor"),
)
def _check_statistics(chain: Chain) -> Iterator[Finding]:
    for link, phase, layers in _find_empty_starts(chain):
        yield from _check_norms(link, layers, phase)


def _check_norms(link: Link, layers: list[pb.LayerParameter], phase: int) -> Iterator[Finding]:
    norms = [layer for layer in layers if layer.type == "BatchNorm" and stats_images(layer, phase) is None]
    factor = max(
        (layer.batch_norm_param.eps**-0.5 for layer in norms if layer.batch_norm_param.eps > 0), default=0.0
    )
    if factor <= 1:
        return
    is_known = link.weights is not None
    yield link_finding(
        "statistics-empty" if is_known else "statistics-unknown",
        link,
        names=show_layers([layer.name for layer in norms], "BatchNorm"),
        layers=len(norms),
        factor=factor,
    )


@start_rule(
    "fillers-missing",
    "error",
    "a net without any weight_filler, in a phase that starts without weights",
    what="{phase} starts without --weights, but none of the {layers} layers with weights has a weight_filler",
    effect="all of them start at 0, so that no gradient passes them: only the last bias learns",
    write='give --weights, or add weight_filler {{ type: "msra" }} to each layer',
    values=("layers",),
)
def _check_fillers(chain: Chain) -> Iterator[Finding]:
    for link, _, layers in _find_empty_starts(chain):
        empty, weighted = find_unfilled(layers)
        if link.weights is not None and len(empty) == weighted > 1:
            yield link_finding("fillers-missing", link, layers=weighted)
