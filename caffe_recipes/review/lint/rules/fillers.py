"""Rules for fillers, which initialize the weights of a net."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.review.lint.layer_blocks import FILLERS, filler_fields, is_filler_used
from caffe_recipes.review.lint.net_text import layer_finding, layers_finding
from caffe_recipes.review.lint.net_view import is_loss
from caffe_recipes.review.lint.subjects import filler_rule, start_filler_rule

if TYPE_CHECKING:
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.net_view import NetView, PhaseNet


_INTEL_FILLERS = ("gabor",)
# For each filler whose default is useless for training: the field, its default, and what to write.
_SPREADS = {
    "gaussian": ("std", "std 1", 'type: "msra", or std: 0.01'),
    "uniform": ("min", "0 to 1, all above 0", "min: -0.1 max: 0.1"),
}


@filler_rule(
    "unknown-filler",
    "error",
    "a filler type that Caffe does not have",
    what="{layer} has a filler of type '{type}'",
    effect="Caffe aborts: Unknown filler name: {type}",
    write='type: "{nearest}"',
)
@filler_rule(
    "filler-misfit",
    "error",
    "a bilinear or sparse filler that does not fit its blob",
    what="{layer} has {fault}",
)
@filler_rule(
    "filler-default-spread",
    "warning",
    "a gaussian filler without std, or a uniform one without range",
    what="{layer} has a {type} filler without {field}",
    effect="the default is {default}, so the loss is huge or NaN from the start",
)
def check_fillers(view: NetView) -> Iterator[Finding]:
    """Check the fillers of each layer."""
    known = (*FILLERS, *(_INTEL_FILLERS if view.dialect.knows("FillerParameter", "scale") else ()))
    for index, layer in enumerate(view.net.layer):
        for path, filler in filler_fields(layer):
            if not is_filler_used(view, layer, path):
                continue
            if filler.type not in known:
                near = difflib.get_close_matches(filler.type, known, n=1, cutoff=0)
                yield layer_finding(
                    "unknown-filler", view, index, f"{path}.type", type=filler.type, nearest=near[0]
                )
            elif path.endswith("weight_filler") and filler.type in _SPREADS:
                field, default, write = _SPREADS[filler.type]
                if not filler.HasField(field) and not (filler.type == "uniform" and filler.HasField("max")):
                    yield layer_finding(
                        "filler-default-spread",
                        view,
                        index,
                        path,
                        write=write,
                        type=filler.type,
                        field=field,
                        default=default,
                    )
            misfit = _filler_misfit(layer, path, filler)
            if misfit:
                field, what, effect, write = misfit
                yield layer_finding(
                    "filler-misfit", view, index, f"{path}.{field}", effect=effect, write=write, fault=what
                )


def _filler_misfit(
    layer: pb.LayerParameter, path: str, filler: pb.FillerParameter
) -> tuple[str, str, str, str] | None:
    """Return why a filler does not fit its blob: the field, what is wrong, the effect, and what to write."""
    has_outputs = type_of(layer).is_linear and path.endswith("weight_filler")
    outputs = getattr(layer, type_of(layer).block).num_output if has_outputs else 0
    # Caffe divides by the blob's first axis. For these two that is the number of inputs, which no field
    # contains.
    is_transposed = layer.type == "Deconvolution" or layer.inner_product_param.transpose
    if filler.type == "gaussian" and 0 < outputs < filler.sparse and not is_transposed:
        what = f"a filler with sparse: {filler.sparse}, but {outputs} outputs"
        return (
            "sparse",
            what,
            "Caffe aborts: the share of non-zero weights must be between 0 and 1",
            f"sparse: below {outputs}",
        )
    if filler.type != "bilinear" or layer.type == "DummyData":  # their blobs may have any shape
        return None
    if path != "convolution_param.weight_filler":
        what = "a bilinear filler for a blob that does not have 4 axes"
        return "type", what, "Caffe aborts: Blob must be 4 dim", 'type: "xavier"'
    param = layer.convolution_param
    sides = list(param.kernel_size) or [param.kernel_h, param.kernel_w]
    if len(sides) == 2 and sides[0] != sides[1]:
        what = f"a bilinear filler for a {sides[0]}x{sides[1]} kernel"
        return "type", what, "Caffe aborts: Filter must be square", "use a square kernel"
    return None


@start_filler_rule(
    "zero-weights",
    "warning",
    "a few layers without a weight_filler, whose weights start at 0",
    what="{names} without a weight_filler, while others have one",
    effect="their weights start at 0 unless --weights sets them; all outputs stay equal, and the "
    "layers below get no gradient",
    write='weight_filler {{ type: "msra" }}',
    values=("layers",),
)
@start_filler_rule(
    "no-fillers",
    "note",
    "a net that needs --weights, because most layers have no weight_filler",
    what="{names} without a weight_filler, out of {weighted} with weights",
    effect="without --weights these layers start at 0 and learn nothing",
    write='add weight_filler {{ type: "msra" }} to each to train from scratch',
    values=("layers",),
)
def check_zero_weights(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Check that the weights that are trained have a filler."""
    if phase.phase != pb.TRAIN or phase.is_fed_by_code or not any(map(is_loss, phase.layers)):
        return
    empty, weighted = find_unfilled(phase.layers)
    if not empty:
        return
    are_most = 2 * len(empty) > weighted
    yield layers_finding(
        "no-fillers" if are_most else "zero-weights", phase, empty, "type", weighted=weighted
    )


def find_unfilled(layers: Sequence[pb.LayerParameter]) -> tuple[list[int], int]:
    """Return the indexes of the learned layers without a filler, and the number of layers with weights."""
    weighted = [i for i, layer in enumerate(layers) if type_of(layer).is_linear]
    return [i for i in weighted if _is_learned(layers[i]) and not _has_filler(layers[i])], len(weighted)


def _is_learned(layer: pb.LayerParameter) -> bool:
    return not layer.param or (layer.param[0].lr_mult != 0 and not layer.param[0].name)


def _has_filler(layer: pb.LayerParameter) -> bool:
    block = getattr(layer, type_of(layer).block)
    filler: pb.FillerParameter = block.weight_filler
    if filler.type == "uniform":
        return bool(filler.min or filler.max)
    # `sparse` is the number of non-zero weights that the filler keeps for each output.
    return filler.sparse != 0 if filler.type == "gaussian" else filler.type != "constant" or filler.value != 0
