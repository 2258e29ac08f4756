"""Rules for what Caffe checks when it sets up a layer; each type's are in `caffe/layer_types/`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.layer_types.entry import Refusal
from caffe_recipes.caffe.refusals import find_filler_refusals, find_refusals
from caffe_recipes.review.lint.layer_blocks import filler_fields, is_filler_used
from caffe_recipes.review.lint.net_text import show_number, title
from caffe_recipes.review.lint.net_view import layer_field
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.subjects import refusal_rule

if TYPE_CHECKING:
    from caffe_recipes.caffe import pb
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.net_view import NetView


# Rules that do not apply to a Caffe that is built for GPUs.
_CPU_ONLY_REFUSALS = frozenset(("engine-unknown", "pooling-stochastic"))


@refusal_rule("size-given-twice", "error", "kernel_size, pad, stride or a shape set in two ways")
@refusal_rule("size-half-given", "error", "kernel, pad, stride or new size set for only one axis")
@refusal_rule("axis-given-twice", "error", "axis together with slice_dim or concat_dim")
@refusal_rule("global-pooling-sized", "error", "global_pooling with kernel_size, pad or stride")
@refusal_rule("pooling-stochastic", "error", "pool: STOCHASTIC, which Caffe implements for GPUs only")
@refusal_rule("tops-count", "error", "a layer with too few or too many tops for its type")
@refusal_rule("dummy-shapes", "error", "DummyData whose number of sizes is neither 1 nor the number of tops")
@refusal_rule("infogain-source", "error", "InfogainLoss without a matrix (neither source nor a third bottom)")
@refusal_rule("dropout-ratio", "error", "dropout_ratio below 0, or 1 or above")
@refusal_rule("eltwise-coeff", "error", "Eltwise coeff with operation PROD, or not one per bottom")
@refusal_rule(
    "layer-value-refused", "error", "a value that the layer rejects, or that makes its output NaN or empty"
)
@refusal_rule("value-not-finite", "error", "an infinite or NaN number in a layer")
@refusal_rule("value-overflows", "error", "a number above 2,147,483,647 in a layer")
@refusal_rule(
    "loss-weight-count", "error", "a number of loss_weight fields that differs from the number of tops"
)
@refusal_rule(
    "propagate-down-count",
    "error",
    "a number of propagate_down fields that differs from the number of bottoms",
)
@refusal_rule("engine-unknown", "error", "an engine that this Caffe does not have, or has for GPUs only")
@refusal_rule(
    "filler-range", "error", "a filler whose std or scale is not above 0, or whose min is above its max"
)
@refusal_rule("filler-sparse", "error", "sparse below 0, or in a filler that is not gaussian")
def check_refusals(view: NetView) -> Iterator[Finding]:
    """Check each layer in the file for errors at which Caffe would abort."""
    is_intels = view.dialect.knows("NetParameter", "engine")
    for index, layer in enumerate(view.net.layer):
        unweighted = _check_loss_weight_missing(layer) if is_intels else ()
        own = (*_check_loss_weight(layer), *_check_input_ignored(layer), *_check_large_values(layer))
        for refusal in (*find_refusals(layer, view.net.engine), *own, *unweighted):
            if is_intels or refusal.rule not in _CPU_ONLY_REFUSALS:
                yield _refusal_finding(index, layer, refusal)
        for path, filler in filler_fields(layer):
            if not is_filler_used(view, layer, path):
                continue
            for refusal in find_filler_refusals(filler):
                yield _refusal_finding(index, layer, refusal._replace(field=f"{path}.{refusal.field}"))


def _refusal_finding(index: int, layer: pb.LayerParameter, refusal: Refusal) -> Finding:
    place, what = layer_field(index, refusal.field), f"{title(layer)} {refusal.what}"
    return finding(refusal.rule, place, what, effect=refusal.effect, write=refusal.write)


@refusal_rule.also("loss-weight-odd", "warning", "loss_weight on a layer that is not a loss")
def _check_loss_weight(layer: pb.LayerParameter) -> Iterator[Refusal]:
    if type_of(layer).is_never_loss and any(layer.loss_weight):
        yield Refusal(
            "loss-weight-odd",
            "loss_weight[0]",
            "has a loss_weight, but is not a loss",
            "training minimizes the sum of all its outputs; Caffe aborts if it has no gradient",
            "set loss_weight in the loss",
        )


@refusal_rule.also("input-ignored", "warning", "a layer whose output does not depend on its input")
def _check_input_ignored(layer: pb.LayerParameter) -> Iterator[Refusal]:
    """Find factors of 0, which make a layer ignore its input."""
    transform = ("transform_param.scale",) if layer.HasField("transform_param") else ()
    for path in type_of(layer).zeroing_fields or transform:
        block, _, field = path.partition(".")
        if getattr(getattr(layer, block), field) == 0:
            effect = "its output does not depend on its input, so nothing is learned from it"
            yield Refusal("input-ignored", path, f"has {field} 0", effect, f"write for example {field}: 1")


# At least 100 times the largest values in published nets.
_MAX_MULTIPLIER, _MAX_WEIGHT, _MAX_SPREAD, _MAX_SCALE = 1e3, 1e6, 1e2, 1e3


@refusal_rule.also(
    "value-large", "warning", "a multiplier, loss weight or filler range far above any useful value"
)
def _check_large_values(layer: pb.LayerParameter) -> Iterator[Refusal]:
    """Find numbers so large that the first pass or update overflows."""
    given: list[tuple[str, float, float]] = [
        (f"param[{p}].{name}", getattr(param, name), _MAX_MULTIPLIER)
        for p, param in enumerate(layer.param)
        for name in ("lr_mult", "decay_mult")
    ]
    given += [(f"loss_weight[{t}]", weight, _MAX_WEIGHT) for t, weight in enumerate(layer.loss_weight)]
    given.append(("transform_param.scale", layer.transform_param.scale, _MAX_SCALE))
    if layer.type != "DummyData":
        given += [
            (f"{path}.{name}", getattr(filler, name), _MAX_SPREAD)
            for path, filler in filler_fields(layer)
            for name in ("mean", "std", "min", "max", "value")
        ]
    for path, value, limit in given:
        if limit < abs(value) < math.inf:
            name = path.rpartition(".")[2].partition("[")[0]
            effect = "the loss becomes NaN or saturates, but Caffe trains to the end"
            yield Refusal(
                "value-large",
                path,
                f"has {name} {show_number(value)}",
                effect,
                f"write e.g. {name}: 1",
            )


@refusal_rule.also("loss-weight-missing", "error", "a loss without loss_weight, of a type whose default is 0")
def _check_loss_weight_missing(layer: pb.LayerParameter) -> Iterator[Refusal]:
    if type_of(layer).loss_weight == 0 and not layer.loss_weight:
        yield Refusal(
            "loss-weight-missing",
            "type",
            "has no loss_weight, and the default of its type is 0",
            "Caffe prints loss = 0, and nothing is learned from this loss",
            "write loss_weight: 1",
        )
