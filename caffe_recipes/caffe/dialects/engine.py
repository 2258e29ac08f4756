"""What caffe-torch runs of our Caffe and of others: the dialect by which its recipes and nets are judged.

The fields of other Caffes that it runs are the tables here; its layer types are those of the layer table.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import (
    ENGINE,
    OURS,
    Definition,
    Dialect,
    find_dialect,
    load_dialects,
    names_of,
)
from caffe_recipes.caffe.dialects.convert import convert_document
from caffe_recipes.caffe.dialects.schema import (
    foreign_values,
    is_known,
    is_of_fork,
    list_unknown_names,
    name_error,
    outer_foreign,
)
from caffe_recipes.caffe.dialects.unsupported_names import FIELDS, find_fork_type
from caffe_recipes.caffe.layer_types import LAYER_TYPES
from caffe_recipes.caffe.prototxt import Document, is_kind
from caffe_recipes.caffe.text.parser import ForeignName
from caffe_recipes.caffe.upgrade import SOLVER_TYPES
from caffe_recipes.errors import InputError, PrototxtError, join_errors

_WAYS = ("forward", "backward")
_V1_TYPES = "V1LayerParameter.LayerType"

# Fields of other Caffes that operators read.
_RUN_FIELDS = frozenset(
    (
        ("ConvolutionParameter", "filter_group"),
        ("ConvolutionParameter", "kernel_depth"),
        ("ConvolutionParameter", "temporal_pad"),
        ("ConvolutionParameter", "temporal_stride"),
        ("LayerParameter", "bn_param"),
        ("LayerParameter", "center_loss_param"),
        ("LayerParameter", "clip_param"),
        ("LayerParameter", "convolution3d_param"),
        ("LayerParameter", "interp_param"),
        ("LayerParameter", "pooling3d_param"),
        ("LayerParameter", "seg_accuracy_param"),
        ("LayerParameter", "shuffle_channel_param"),
        ("LayerParameter", "swish_param"),
        ("LayerParameter", "upsample_param"),
        ("LossParameter", "class_weighting"),
        ("LossParameter", "weight_by_label_freqs"),
        ("PoolingParameter", "ceil_mode"),
        ("PoolingParameter", "kernel_depth"),
        ("PoolingParameter", "round_mode"),
        ("PoolingParameter", "temporal_stride"),
    )
)


# Fields of NVIDIA's that choose number types, and scale gradients against underflow in half precision. The
# engine computes in float32, and says so in the log.
_PRECISION_FIELDS = frozenset(
    (
        *(("NetParameter", f"default_{way}_{what}") for way in _WAYS for what in ("type", "math")),
        *(("LayerParameter", f"{way}_{what}") for way in _WAYS for what in ("type", "math")),
        ("NetParameter", "global_grad_scale"),
        ("NetParameter", "global_grad_scale_adaptive"),
    )
)


def _is_idle(owner: str, name: str, value: object) -> bool:
    """Return whether a field of a fork has the value with which it changes nothing."""
    fork = FIELDS.get((owner, name))
    return fork is not None and value == fork.default


@functools.cache
def engine_dialect() -> Dialect:
    """Return what caffe-torch runs, as a dialect: our fields, and those that it runs of others."""
    ours, others = load_dialects()[OURS], load_dialects().values()
    # The blocks of other Caffes, whose fields are reached only through one that it runs.
    added = {
        owner: dict(names) for each in others for owner, names in each.added.items() if not names_of(owner)
    }
    for owner, name in _RUN_FIELDS | _PRECISION_FIELDS:
        added.setdefault(owner, {})[name] = Definition(0, "optional", "string", None)
    return replace(
        ours,
        name=ENGINE,
        layer_types=frozenset(name for name, entry in LAYER_TYPES.items() if entry.is_run),
        solver_types=frozenset(SOLVER_TYPES.values()),
        added={**ours.added, **added},
    )


def find_judge(name: str) -> Dialect:
    """Return caffe-torch's dialect, or the one that `find_dialect` finds. Raises InputError."""
    return engine_dialect() if name == ENGINE else find_dialect(name)


def find_unrun(document: Document[Any]) -> list[ForeignName]:
    """Return the fields of other Caffes in a document that caffe-torch neither runs nor converts to ours."""
    if not is_kind(document.message, pb.NetParameter):
        return outer_foreign(document)
    refused: list[PrototxtError] = []
    unrun = _not_as_they_are(document)
    if unrun and (source := _find_source(unrun)):
        convert_document(_without_precision(document), source, refused=refused)
        return unrun if refused else []
    return unrun


def to_engine_net(document: Document[Any]) -> pb.NetParameter:
    """Return a net of any Caffe as caffe-torch runs it. Raises InputError that names all fields it does not.

    Those of no known Caffe come first, as PrototxtError, each with its place and the likely name.
    Fields that it runs as they are stay. If there are others, the net is converted from the one dialect that
    has all of them.
    """
    net: pb.NetParameter = document.message
    unrun = _not_as_they_are(document)
    if not unrun:
        return net
    if source := _find_source(unrun):
        converted: pb.NetParameter = convert_document(_without_precision(document), source)[0].message
        return converted
    raise join_errors(_unrun_errors(document, unrun))


def _unrun_errors(document: Document[Any], unrun: Sequence[ForeignName]) -> list[InputError]:
    errors: list[InputError] = [name_error(document, name) for name in list_unknown_names(document)]
    others = [f"{name.owner}.{name.name}" for name in unrun if is_known(name) or is_of_fork(name)]
    if others:
        names = ", ".join(dict.fromkeys(others))
        what = f"has fields of another Caffe that the engine does not run: {names}"
        errors.append(InputError(document.path, what, "docs/engine.md lists what it runs"))
    return errors


def _not_as_they_are(document: Document[Any]) -> list[ForeignName]:
    """Return the names of other Caffes that are not run as they are.

    The type of a fork in an old net is not among them: the net is upgraded before its types are checked.
    """
    values = list(foreign_values(document.message))
    used = {(owner, name) for _, owner, name, value in values if not _is_idle(owner, name, value)}
    idle = {(owner, name) for _, owner, name, _ in values} - used
    run = _RUN_FIELDS | _PRECISION_FIELDS | idle
    return [
        name
        for name in outer_foreign(document)
        if (name.owner, name.name) not in run and not (name.owner == _V1_TYPES and find_fork_type(name.name))
    ]


def _find_source(names: Iterable[ForeignName]) -> str:
    """Return the dialect that has all names; "" if none has."""
    known = load_dialects().values()
    return next((one.name for one in known if all(one.knows(each.owner, each.name) for each in names)), "")


def _without_precision(document: Document[Any]) -> Document[Any]:
    message = deepcopy(document.message)
    for part in (message, *message.layer):
        for _, name in _PRECISION_FIELDS:
            if name in part.DESCRIPTOR.fields_by_name:
                part.ClearField(name)
    foreign = [name for name in document.foreign if (name.owner, name.name) not in _PRECISION_FIELDS]
    return replace(document, message=message, foreign=(*foreign,))
