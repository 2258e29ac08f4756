"""Normalize alternative spellings that mean the same to Caffe to the most common one.

`diff` normalizes a spelling only if one side has it, so that a spelling on both sides is shown as written;
fingerprints normalize all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from caffe_recipes.caffe import pb


@dataclass(frozen=True)
class Spelling:
    """An alternative spelling: `key` identifies it in a message, `normalize` replaces it in place.

    The key is false if a message does not use the spelling. Only messages that set one of `fields` can use
    it. `can_equal` returns whether a normalized message could equal the given one.
    """

    fields: frozenset[str]
    key: Callable[[Any], object]
    normalize: Callable[[Any], None]
    can_equal: Callable[[Any], bool] = lambda other: True

    def apply(self, message: Any) -> None:  # noqa: ANN401 - a message
        """Replace this spelling in a message, in place, if the message uses it."""
        if self.key(message):
            self.normalize(message)


def _without(*names: str) -> Callable[[Any], bool]:
    return lambda message: not any(message.HasField(name) for name in names)


def _height_width(name: str, *, is_list: bool) -> Spelling:
    """Return the spelling of a field by two others: its height and its width.

    Of a list, it is `pad_h: 3 pad_w: 5` for `pad: 3 pad: 5` (base_conv_layer, pooling_layer); of a number,
    `step_h: 8 step_w: 8` for `step: 8` (prior_box_layer).
    """
    high, wide = f"{name.removesuffix('_size')}_h", f"{name.removesuffix('_size')}_w"

    def is_used(message: Any) -> bool:  # noqa: ANN401 - a message
        both = message.HasField(high) and message.HasField(wide)
        if is_list:
            return bool(both and not getattr(message, name))
        return bool(both and not message.HasField(name) and getattr(message, high) == getattr(message, wide))

    def normalize(message: Any) -> None:  # noqa: ANN401
        if is_list:
            getattr(message, name).extend([getattr(message, high), getattr(message, wide)])
        else:
            setattr(message, name, getattr(message, high))
        message.ClearField(high)
        message.ClearField(wide)

    return Spelling(frozenset({high, wide}), is_used, normalize, _without(high, wide))


def _repeated(name: str) -> Spelling:
    """Return the spelling `pad: 3 pad: 3` of `pad: 3` (base_conv_layer, pooling_layer)."""

    def normalize(message: Any) -> None:  # noqa: ANN401
        values = getattr(message, name)
        if len(set(values)) == 1:
            del values[1:]

    return Spelling(frozenset({name}), lambda message: len(getattr(message, name)), normalize)


def _legacy(name: str) -> Spelling:
    """Return the spelling `concat_dim: 2` of `axis: 2` (concat_layer, slice_layer)."""

    def is_used(message: Any) -> bool:  # noqa: ANN401
        return bool(message.HasField(name) and not message.HasField("axis"))

    def normalize(message: Any) -> None:  # noqa: ANN401
        message.axis = getattr(message, name)
        message.ClearField(name)

    return Spelling(frozenset({name}), is_used, normalize, _without(name))


def _excludes_one_phase(layer: Any) -> bool:  # noqa: ANN401
    """Return whether a layer's only rule excludes it from one phase."""
    if len(layer.exclude) != 1 or layer.include:
        return False
    return [field.name for field, _ in layer.exclude[0].ListFields()] == ["phase"]


def _include_other_phase(layer: Any) -> None:  # noqa: ANN401
    other = pb.TEST if layer.exclude[0].phase == pb.TRAIN else pb.TRAIN
    layer.ClearField("exclude")
    layer.include.add(phase=other)


def _names_net_twice(solver: Any) -> bool:  # noqa: ANN401
    """Return whether training and all tests use the same net file (solver: InitTrainNet, InitTestNets)."""
    nets = {field.name for field, _ in solver.ListFields()} & {
        "net", "net_param", "train_net", "train_net_param", "test_net_param",
    }  # fmt: skip
    return (
        nets == {"train_net"}
        and len(solver.test_net) == len(solver.test_iter)
        and set(solver.test_net) <= {solver.train_net}
    )


def _name_net_once(solver: Any) -> None:  # noqa: ANN401
    solver.net = solver.train_net
    solver.ClearField("train_net")
    solver.ClearField("test_net")


_SPELLINGS: Mapping[str, tuple[Spelling, ...]] = {
    "ConcatParameter": (_legacy("concat_dim"),),
    "ConvolutionParameter": (
        *(_height_width(name, is_list=True) for name in ("kernel_size", "pad", "stride")),
        *(_repeated(name) for name in ("kernel_size", "pad", "stride", "dilation")),
    ),
    "LayerParameter": (
        Spelling(
            frozenset({"exclude"}),
            _excludes_one_phase,
            _include_other_phase,
            lambda other: len(other.include) > 0,
        ),
    ),
    "PoolingParameter": (
        *(_height_width(name, is_list=True) for name in ("kernel_size", "pad", "stride")),
        *(_repeated(name) for name in ("kernel_size", "pad", "stride")),
    ),
    "PriorBoxParameter": tuple(_height_width(name, is_list=False) for name in ("img_size", "step")),
    "SliceParameter": (_legacy("slice_dim"),),
    "SolverParameter": (
        Spelling(
            frozenset({"train_net"}), _names_net_twice, _name_net_once, lambda other: other.HasField("net")
        ),
    ),
}


def normalize_all(message: Any) -> None:  # noqa: ANN401 - a message
    """Normalize all spellings of a message in place, except those in its blocks."""
    for spelling in _SPELLINGS.get(message.DESCRIPTOR.name, ()) if _has_spelling(message) else ():
        spelling.apply(message)


def normalize_differing(old: Any, new: Any) -> tuple[Any, Any]:  # noqa: ANN401 - messages
    """Return two messages, copied if needed, in which spellings that only one of them uses are normalized.

    >>> old = pb.ConvolutionParameter(kernel_size=[11])
    >>> _, new = normalize_differing(old, pb.ConvolutionParameter(kernel_h=11, kernel_w=11))
    >>> new == old
    True
    """
    is_copied = False
    has_spelling = _has_spelling(old) or _has_spelling(new)
    for spelling in _SPELLINGS.get(old.DESCRIPTOR.name, ()) if has_spelling else ():
        if spelling.key(old) != spelling.key(new) and (spelling.can_equal(old) or spelling.can_equal(new)):
            if not is_copied:
                old, new, is_copied = deepcopy(old), deepcopy(new), True
            spelling.apply(old)
            spelling.apply(new)
    return old, new


def _has_spelling(message: Any) -> bool:  # noqa: ANN401
    forms = _SPELLINGS.get(message.DESCRIPTOR.name, ())
    # Reading an unset list would allocate memory for the lifetime of the message.
    given = {field.name for field, _ in message.ListFields()} if forms else set()
    return any(spelling.fields & given for spelling in forms)
