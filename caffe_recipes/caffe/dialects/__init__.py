"""The differences between our Caffe and others: fields, enum values, layer types, lr policies, solver types.

Our Caffe is the dialect `surfsara`, whose messages are in `caffe.proto`. `dialects.json` describes the others
by their differences from it. An owner is a message (`SolverParameter`) or an enum
(`PoolingParameter.RoundMode`).

A counterpart is what one Caffe has in place of a field, value or type of another: a clause to put after
"here" or "there". Anything that is not listed has no counterpart.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from caffe_recipes.caffe.dialects.unsupported_names import TYPES
from caffe_recipes.errors import InputError
from caffe_recipes.wording import did_you_mean, find_slip

# The dialect of our Caffe, whose messages are in `caffe.proto`.
OURS = "surfsara"
# What caffe-torch runs, which `dialects/engine.py` describes as a dialect.
ENGINE = "caffe-torch"
TITLES: Mapping[str, str] = {
    "surfsara": "SURFsara's Caffe",
    "intel": "Intel's Caffe",
    "bvlc": "BVLC's Caffe",
    "nvcaffe": "nvcaffe",
    ENGINE: ENGINE,
}


class Definition(NamedTuple):
    """A field as a dialect defines it; `default` is None if it has no explicit default."""

    number: int
    label: str
    type: str
    default: str | None


@dataclass(frozen=True, slots=True)
class Dialect:
    """One Caffe, with the fields and enum values that it adds, lacks (`missing`), or defines differently.

    `added` and `changed` map each owner to {name: definition of the field, or number of the enum value}.
    `missing` maps it to the missing names, or to None if the whole owner is missing.
    """

    name: str
    layer_types: frozenset[str]
    lr_policies: frozenset[str]
    solver_types: frozenset[str]
    added: Mapping[str, Mapping[str, Definition | int]]
    missing: Mapping[str, frozenset[str] | None]
    changed: Mapping[str, Mapping[str, Definition | int]]

    @property
    def is_intels(self) -> bool:
        """Whether it is Intel's Caffe or a descendant, with the faults of its TEST nets and threads."""
        return self.name != ENGINE and self.knows("NetParameter", "engine")

    def knows(self, owner: str, name: str) -> bool:
        """Return whether this Caffe has the field or enum value."""
        if name in self.added.get(owner, ()):
            return True
        missing = self.missing.get(owner, frozenset())
        return missing is not None and name not in missing and name in names_of(owner)


@functools.cache
def load_dialects() -> Mapping[str, Dialect]:
    """Return all dialects by name, ours first."""
    data = json.loads(Path(__file__).with_name("dialects.json").read_bytes())
    return MappingProxyType({name: _dialect(name, entry) for name, entry in data.items()})


def find_dialect(name: str) -> Dialect:
    """Return the dialect with a given name. Raises InputError for an unknown name.

    >>> sorted(find_dialect("bvlc").layer_types - find_dialect("surfsara").layer_types)
    ['Clip', 'Swish']
    """
    known = load_dialects()
    if name not in known:
        hint = did_you_mean(name, known, f"choose from {', '.join(known)}")
        raise InputError("", f"unknown dialect '{name}'", hint)
    return known[name]


def field_dialects(owner: str, name: str) -> tuple[str, ...]:
    """Return the names of the dialects that have a field of a message, or a value of an enum.

    >>> field_dialects("SolverParameter", "rampup_interval"), field_dialects("SolverParameter", "lr_iter")
    (('nvcaffe',), ('surfsara',))
    """
    return tuple(dialect.name for dialect in load_dialects().values() if dialect.knows(owner, name))


def layer_type_dialects(name: str) -> tuple[str, ...]:
    """Return the names of the dialects that have a layer type.

    >>> layer_type_dialects("Clip")
    ('bvlc',)
    """
    return tuple(dialect.name for dialect in load_dialects().values() if name in dialect.layer_types)


@functools.cache
def nearest_layer_type(name: str, types: frozenset[str] = frozenset()) -> str | None:
    """Return the one of these layer types, or of all, that a name is a slip of the keyboard for, or None.

    A fork's own type is not a slip.

    >>> nearest_layer_type("Relu"), nearest_layer_type("Convolutoin"), nearest_layer_type("Attention")
    ('ReLU', 'Convolution', None)
    """
    if name.lower() in (fork.lower() for fork in TYPES):
        return None
    every = (each.layer_types for each in load_dialects().values())
    return find_slip(name, sorted(types or frozenset().union(*every)))


def lr_policy_dialects(name: str) -> tuple[str, ...]:
    """Return the names of the dialects that have an lr policy.

    >>> lr_policy_dialects("poly_cyc"), lr_policy_dialects("multifixed")
    (('surfsara',), ('intel',))
    """
    return tuple(dialect.name for dialect in load_dialects().values() if name in dialect.lr_policies)


def solver_type_dialects(name: str) -> tuple[str, ...]:
    """Return the names of the dialects that have a solver type.

    >>> solver_type_dialects("SAG")
    ('nvcaffe',)
    """
    return tuple(dialect.name for dialect in load_dialects().values() if name in dialect.solver_types)


def _dialect(name: str, entry: dict[str, Any]) -> Dialect:
    missing = {
        owner: None if names is None else frozenset(names) for owner, names in entry["missing"].items()
    }
    return Dialect(
        name,
        frozenset(entry["layer_types"]),
        frozenset(entry["lr_policies"]),
        frozenset(entry["solver_types"]),
        _definitions(entry["added"]),
        missing,
        _definitions(entry["changed"]),
    )


def _definitions(
    owners: dict[str, dict[str, list[Any] | int]],
) -> dict[str, dict[str, Definition | int]]:
    return {
        owner: {
            name: value if isinstance(value, int) else Definition(*value) for name, value in names.items()
        }
        for owner, names in owners.items()
    }


def names_of(owner: str) -> Collection[str]:
    """Return the names of a message's fields or an enum's values in our schema."""
    from caffe_recipes.caffe import pb  # slow, and `--help`, which lists the dialects, does without it

    outer, _, inner = owner.partition(".")
    message = pb.DESCRIPTOR.message_types_by_name.get(outer)
    if message is None:
        enum = pb.DESCRIPTOR.enum_types_by_name.get(outer)
        return enum.values_by_name if enum else ()
    if not inner:
        return message.fields_by_name
    enum = message.enum_types_by_name.get(inner)
    return enum.values_by_name if enum else ()


_SAME_RATE = "poly with max_iter set to lr_iter, stopped early, has the same rate"
_NO_WARMUP = "no rate warms up"
_RELU_LAYER = "a ReLU layer after it does this"
_SCALE_LAYER = "the Scale layer after it holds scale and shift, with their fillers"
_RESIZED_BEFORE = "images are resized when the LMDB is built (convert_imageset -resize_height -resize_width)"
_NO_ENGINE = "the engine is CAFFE or unset"
_ARGUMENT = "weights are given on the command line, by -weights"
_VALUE_PER_AXIS = "kernel_size, pad and stride take one value per axis"

_FLOAT = "every number is a FLOAT"

_Fields = dict[tuple[str, str], str]

_RELU: _Fields = {
    (f"{layer}Parameter", field): _RELU_LAYER
    for layer in ("Convolution", "InnerProduct", "BatchNorm")
    for field in ("relu", "negative_slope")
}

# Fields of NVIDIA's for half precision.
_TYPES: _Fields = {("SolverParameter", "solver_data_type"): _FLOAT} | {
    (owner, f"{prefix}{way}_{what}"): _FLOAT
    for owner, prefix in (("NetParameter", "default_"), ("LayerParameter", ""))
    for way in ("forward", "backward")
    for what in ("type", "math")
}

# Source: pooling_layer.cpp of each, and Intel's mkldnn_pooling_layer.cpp.
_ROUNDED_UP: _Fields = {
    ("PoolingParameter", "round_mode"): "pooling always rounds its output size up, as with round_mode: CEIL"
}

# Counterparts in both Caffes that descend from Intel's.
_INTELS: _Fields = {
    ("SolverParameter", "rampup_interval"): "the warm-up is warmup_iter, which is linear, not quadratic",
    ("SolverParameter", "rampup_lr"): "the warm-up starts at warmup_start_lr",
    ("SolverParameter", "weights"): _ARGUMENT,
    ("SolverParameter", "larc"): "the per-layer rate is local_lr_auto",
    ("SolverParameter", "larc_eta"): "the per-layer rate uses local_gw_ratio",
    ("BatchNormParameter", "scale_filler"): "the filler of the scale is filler",
    ("BatchNormParameter", "scale_bias"): "use_weight_bias adds scale and shift to the layer",
    **_ROUNDED_UP,
    ("TransformationParameter", "img_rand_resize_lower"): "this is min_size of random_resize_param",
    ("TransformationParameter", "img_rand_resize_upper"): "this is max_size of random_resize_param",
    ("ImageDataParameter", "short_side"): "new_height and new_width give both sides",
}

COUNTERPARTS: Mapping[str, _Fields] = {
    "surfsara": _RELU
    | _INTELS
    | _TYPES
    | {
        ("SolverParameter", "stagelr"): "a chain of solvers with lr_policy fixed has the same rates",
        ("SolverParameter", "stageiter"): "each solver of a chain has its own max_iter",
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
        ("TransformationParameter", "crop_h"): "the crop is a square of crop_size",
        ("TransformationParameter", "crop_w"): "the crop is a square of crop_size",
        ("ImageDataParameter", "short_side"): "new_height and new_width give both sides",
    },
    "nvcaffe": _RELU
    | _ROUNDED_UP
    | {
        ("SolverParameter", "lr_iter"): _SAME_RATE,
        ("SolverParameter", "warmup_iter"): "the warm-up is rampup_interval, which is quadratic, not linear",
        ("SolverParameter", "warmup_start_lr"): "the warm-up starts at rampup_lr",
        ("SolverParameter", "local_lr_auto"): "the per-layer rate is larc",
        ("SolverParameter", "local_gw_ratio"): "the per-layer rate uses larc_eta",
        ("SolverParameter", "weights"): _ARGUMENT,
        ("BatchNormParameter", "filler"): "the Scale layer after it holds the filler of the scale",
        ("BatchNormParameter", "use_weight_bias"): "scale_bias adds scale and shift to the layer",
        ("TransformationParameter", "random_resize_param"): (
            "the shorter side is drawn between img_rand_resize_lower and img_rand_resize_upper"
        ),
        ("TransformationParameter", "random_aspect_ratio_param"): (
            "the closest are rand_resize_ratio_lower and _upper, and the stretch fields"
        ),
    },
}

TYPE_COUNTERPARTS: Mapping[str, str] = {
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
    """Return what a dialect has in place of a field or enum value that it lacks; "" if nothing.

    >>> find_counterpart("bvlc", "SolverParameter", "warmup_iter")
    'no rate warms up'
    >>> find_counterpart("nvcaffe", "ConvolutionParameter.Engine", "MKLDNN")
    'the engine is CAFFE or unset'
    """
    if owner.endswith(".Engine"):
        return _NO_ENGINE
    return COUNTERPARTS[OURS if dialect == ENGINE else dialect].get((owner, name), "")


def find_layer_counterpart(dialect: Dialect, layer_type: str) -> str:
    """Return the layer type that a dialect has in place of one that it lacks; "" if none.

    >>> bvlc = find_dialect("bvlc")
    >>> find_layer_counterpart(bvlc, "SpatialDropout"), find_layer_counterpart(bvlc, "PriorBox")
    ('Dropout', '')
    """
    other = TYPE_COUNTERPARTS.get(layer_type, "")
    return other if other in dialect.layer_types else ""
