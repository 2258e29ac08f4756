"""Rules on where weights start."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from caffe_recipes.caffe import pb
from caffe_recipes.review.findings import Severity
from caffe_recipes.review.lint.nets.blocks import filler_fields
from caffe_recipes.review.lint.nets.view import Draft, NetView, PhaseNet, is_loss, show_names, title

RULES: dict[str, tuple[Severity, str]] = {
    "unknown-filler": ("error", "a filler type that Caffe has not"),
    "filler-default-spread": ("warning", "a gaussian filler without std, or a uniform one without range"),
    "zero-weights": ("warning", "a few weights without a filler, which start at 0"),
    "no-fillers": ("note", "most weights without a filler: a net to go on from --weights"),
}

_TYPES = ("bilinear", "constant", "gaussian", "msra", "positive_unitball", "uniform", "xavier")
_WEIGHTS = {
    "Convolution": "convolution_param",
    "Deconvolution": "convolution_param",
    "InnerProduct": "inner_product_param",
}
# What must be written, or the default is far from what anybody trains with.
_SPREADS = {
    "gaussian": ("std", "std 1", 'type: "msra", or std: 0.01'),
    "uniform": ("min", "0 to 1, all above 0", "min: -0.1 max: 0.1"),
}


def check_fillers(view: NetView) -> Iterator[Draft]:
    """Check the fillers of each layer of the file."""
    for index, layer in enumerate(view.net.layer):
        for path, filler in filler_fields(layer):
            if filler.type not in _TYPES:
                near = difflib.get_close_matches(filler.type, _TYPES, n=1, cutoff=0)
                yield Draft(
                    "unknown-filler",
                    index,
                    f"{path}.type",
                    f"{title(layer)} has a filler of type '{filler.type}'",
                    f"Caffe stops: Unknown filler name: {filler.type}",
                    f'type: "{near[0]}"',
                )
            elif path.endswith("weight_filler") and filler.type in _SPREADS:
                field, default, write = _SPREADS[filler.type]
                if not filler.HasField(field) and not (filler.type == "uniform" and filler.HasField("max")):
                    yield Draft(
                        "filler-default-spread",
                        index,
                        path,
                        f"{title(layer)} has a {filler.type} filler without {field}",
                        f"its weights start with {default}: the loss starts huge, or NaN",
                        write,
                    )


def check_zero_weights(phase: PhaseNet) -> Iterator[Draft]:
    """Check that weights which are trained have a filler."""
    if phase.phase != pb.TRAIN or phase.is_fed or not any(map(is_loss, phase.layers)):
        return
    weighted = [i for i, layer in enumerate(phase.layers) if layer.type in _WEIGHTS]
    empty = [i for i in weighted if _learns(phase.layers[i]) and not _has_filler(phase.layers[i])]
    if not empty:
        return
    names = _names(phase, empty)
    if 2 * len(empty) > len(weighted):
        yield Draft(
            "no-fillers",
            phase.where(empty[0]),
            "type",
            f"{names} without weight_filler, of {len(weighted)} with weights",
            "the net serves to go on from weights: without --weights these start at 0 and learn nothing",
            'weight_filler { type: "msra" } in each, to train from the start',
            (("layers", len(empty)),),
        )
        return
    yield Draft(
        "zero-weights",
        phase.where(empty[0]),
        "type",
        f"{names} without weight_filler, while others have one",
        "their weights start at 0, unless --weights hold them: all outputs stay alike, and the layers below "
        "get no gradient",
        'weight_filler { type: "msra" }',
        (("layers", len(empty)),),
    )


def _learns(layer: pb.LayerParameter) -> bool:
    return not layer.param or (layer.param[0].lr_mult != 0 and not layer.param[0].name)


def _has_filler(layer: pb.LayerParameter) -> bool:
    block = getattr(layer, _WEIGHTS[layer.type])
    filler: pb.FillerParameter = block.weight_filler
    return filler.type != "constant" or filler.value != 0


def _names(phase: PhaseNet, layers: Sequence[int]) -> str:
    names = show_names([phase.layers[i].name for i in layers])
    return f"{len(layers)} {'layer' if len(layers) == 1 else 'layers'} ({names})"
