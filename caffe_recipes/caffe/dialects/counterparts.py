"""What each Caffe has in place of what another has: fields, enum values, layers, solvers and lr policies.

A counterpart is a clause that follows "here" or "there". What is not listed has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from caffe_recipes.caffe.dialects import load_dialects

_SAME_RATE = "poly with max_iter at lr_iter's iteration, stopped early, has the same rate"
_NO_WARMUP = "no warm-up is known"
_RELU_LAYER = "a ReLU layer after it does this"
_SCALE_LAYER = "the Scale layer after it holds scale and shift, with their fillers"
_RESIZED_BEFORE = "images are resized when the LMDB is built (convert_imageset -resize_height -resize_width)"
_NO_ENGINE = "the engine is CAFFE, or is left out"
_ARGUMENT = "weights are an argument, -weights"
_VALUE_PER_AXIS = "kernel_size, pad and stride take one value per axis"

_Fields = dict[tuple[str, str], str]

_RELU: _Fields = {
    (f"{layer}Parameter", field): _RELU_LAYER
    for layer in ("Convolution", "InnerProduct", "BatchNorm")
    for field in ("relu", "negative_slope")
}

# Of both Caffes of Intel's line.
_INTELS: _Fields = {
    ("SolverParameter", "rampup_interval"): "the warm-up is warmup_iter, linear and not quadratic",
    ("SolverParameter", "rampup_lr"): "the warm-up starts at warmup_start_lr",
    ("SolverParameter", "weights"): _ARGUMENT,
    ("SolverParameter", "larc"): "the rate by layer is local_lr_auto",
    ("SolverParameter", "larc_eta"): "the rate by layer takes local_gw_ratio",
    ("BatchNormParameter", "scale_filler"): "the scale's filler is filler",
    ("BatchNormParameter", "scale_bias"): "the own scale and shift are use_weight_bias",
    ("PoolingParameter", "round_mode"): "pooling rounds its output size up",
    ("TransformationParameter", "img_rand_resize_lower"): "this is random_resize_param's min_size",
    ("TransformationParameter", "img_rand_resize_upper"): "this is random_resize_param's max_size",
    ("ImageDataParameter", "short_side"): "both sides are given, new_height and new_width",
}

COUNTERPARTS: Mapping[str, _Fields] = {
    "surfsara": _RELU
    | _INTELS
    | {
        ("SolverParameter", "stagelr"): "a chain of solvers with lr_policy fixed has the same rates",
        ("SolverParameter", "stageiter"): "each solver of a chain has its max_iter",
        ("PoolingParameter", "kernel_size_3d"): _VALUE_PER_AXIS,
        ("PoolingParameter", "pad_3d"): _VALUE_PER_AXIS,
        ("PoolingParameter", "stride_3d"): _VALUE_PER_AXIS,
    },
    "intel": _RELU | _INTELS | {("SolverParameter", "lr_iter"): _SAME_RATE},
    "bvlc": _RELU
    | {
        ("SolverParameter", "lr_iter"): _SAME_RATE,
        ("SolverParameter", "warmup_iter"): _NO_WARMUP,
        ("SolverParameter", "warmup_start_lr"): _NO_WARMUP,
        ("SolverParameter", "rampup_interval"): _NO_WARMUP,
        ("SolverParameter", "rampup_lr"): _NO_WARMUP,
        ("SolverParameter", "plateau_winsize"): "multistep takes its steps from stepvalue",
        ("BatchNormParameter", "filler"): _SCALE_LAYER,
        ("BatchNormParameter", "bias_filler"): _SCALE_LAYER,
        ("BatchNormParameter", "bias_term"): _SCALE_LAYER,
        ("BatchNormParameter", "use_weight_bias"): _SCALE_LAYER,
        ("BatchNormParameter", "scale_filler"): _SCALE_LAYER,
        ("BatchNormParameter", "scale_bias"): _SCALE_LAYER,
        (
            "DataParameter",
            "shuffle",
        ): "records are shuffled when the LMDB is built (convert_imageset -shuffle)",
        ("TransformationParameter", "random_resize_param"): _RESIZED_BEFORE,
        ("TransformationParameter", "random_aspect_ratio_param"): _RESIZED_BEFORE,
        ("TransformationParameter", "resize_param"): _RESIZED_BEFORE,
        ("TransformationParameter", "img_rand_resize_lower"): _RESIZED_BEFORE,
        ("TransformationParameter", "img_rand_resize_upper"): _RESIZED_BEFORE,
        ("TransformationParameter", "crop_h"): "the crop is square, crop_size",
        ("TransformationParameter", "crop_w"): "the crop is square, crop_size",
        ("ImageDataParameter", "short_side"): "both sides are given, new_height and new_width",
    },
    "nvcaffe": _RELU
    | {
        ("SolverParameter", "lr_iter"): _SAME_RATE,
        ("SolverParameter", "warmup_iter"): "the warm-up is rampup_interval, quadratic and not linear",
        ("SolverParameter", "warmup_start_lr"): "the warm-up starts at rampup_lr",
        ("SolverParameter", "local_lr_auto"): "the rate by layer is larc",
        ("SolverParameter", "local_gw_ratio"): "the rate by layer takes larc_eta",
        ("SolverParameter", "weights"): _ARGUMENT,
        ("BatchNormParameter", "filler"): "the Scale layer after it holds the scale's filler",
        ("BatchNormParameter", "use_weight_bias"): "the own scale and shift are scale_bias",
        ("TransformationParameter", "random_resize_param"): (
            "the shorter side is drawn by img_rand_resize_lower and img_rand_resize_upper"
        ),
        ("TransformationParameter", "random_aspect_ratio_param"): (
            "the nearest are rand_resize_ratio_lower and _upper with the stretches"
        ),
    },
}

LAYER_TYPES: Mapping[str, str] = {
    "MKLBatchNorm": "BatchNorm",
    "SmoothL1LossOHEM": "SmoothL1Loss",
    "SoftmaxWithLossOHEM": "SoftmaxWithLoss",
    "SpatialDropout": "Dropout",
}


class _Policy(NamedTuple):
    uses: str
    clause: str


LR_POLICIES: Mapping[str, _Policy] = {
    "poly_cyc": _Policy("poly", _SAME_RATE),
    "plateau": _Policy("multistep", "multistep steps down at iterations of your choice"),
    "multifixed": _Policy("fixed", "a chain of solvers with lr_policy fixed has the same rates"),
}


def find_counterpart(dialect: str, owner: str, name: str) -> str:
    """Say what a dialect has in place of a field or an enum value that it lacks; empty if it has nothing.

    >>> find_counterpart("bvlc", "SolverParameter", "warmup_iter")
    'no warm-up is known'
    >>> find_counterpart("nvcaffe", "ConvolutionParameter.Engine", "MKLDNN")
    'the engine is CAFFE, or is left out'
    """
    if owner.endswith(".Engine"):
        return _NO_ENGINE
    return COUNTERPARTS[dialect].get((owner, name), "")


def find_layer_counterpart(dialect: str, layer_type: str) -> str:
    """Name the layer type that a dialect has in place of one that it lacks; empty if it has none.

    >>> find_layer_counterpart("bvlc", "SpatialDropout"), find_layer_counterpart("bvlc", "PriorBox")
    ('Dropout', '')
    """
    other = LAYER_TYPES.get(layer_type, "")
    return other if other in load_dialects()[dialect].layer_types else ""
