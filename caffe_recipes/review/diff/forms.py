"""Normalize different spellings that mean the same to Caffe, to the most common one.

`diff` normalizes a spelling only if one side has it, so that what both sides have is shown as written; a
fingerprint normalizes all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from caffe_recipes.caffe import pb


@dataclass(frozen=True)
class Form:
    """One spelling: `key` identifies it, `turn` replaces it in place.

    The key is false if a message does not have this spelling. It needs one of `fields` to be set; `fits` says
    whether replacing it can make a message equal to another.
    """

    fields: frozenset[str]
    key: Callable[[Any], object]
    turn: Callable[[Any], None]
    fits: Callable[[Any], bool] = lambda other: True

    def take_out(self, message: Any) -> None:  # noqa: ANN401 - a message
        """Replace this spelling in a message, in place, if it has it."""
        if self.key(message):
            self.turn(message)


def _without(*names: str) -> Callable[[Any], bool]:
    return lambda message: not any(message.HasField(name) for name in names)


def _sides(name: str) -> Form:
    """Build the form `pad_h: 3 pad_w: 5` of `pad: 3 pad: 5` (base_conv_layer, pooling_layer)."""
    high, wide = f"{name.removesuffix('_size')}_h", f"{name.removesuffix('_size')}_w"

    def is_used(message: Any) -> bool:  # noqa: ANN401 - a message
        return bool(message.HasField(high) and message.HasField(wide) and not getattr(message, name))

    def turn(message: Any) -> None:  # noqa: ANN401
        getattr(message, name).extend([getattr(message, high), getattr(message, wide)])
        message.ClearField(high)
        message.ClearField(wide)

    return Form(frozenset({high, wide}), is_used, turn, _without(high, wide))


def _repeats(name: str) -> Form:
    """Build the form `kernel_size: 3 kernel_size: 3` of `kernel_size: 3` (base_conv_layer, pooling_layer)."""

    def turn(message: Any) -> None:  # noqa: ANN401
        values = getattr(message, name)
        if len(set(values)) == 1:
            del values[1:]

    return Form(frozenset({name}), lambda message: len(getattr(message, name)), turn)


def _square(name: str) -> Form:
    """Build the form `step_h: 8 step_w: 8` of `step: 8` (prior_box_layer)."""
    high, wide = f"{name.removesuffix('_size')}_h", f"{name.removesuffix('_size')}_w"

    def is_used(message: Any) -> bool:  # noqa: ANN401
        both = message.HasField(high) and message.HasField(wide) and not message.HasField(name)
        return bool(both and getattr(message, high) == getattr(message, wide))

    def turn(message: Any) -> None:  # noqa: ANN401
        setattr(message, name, getattr(message, high))
        message.ClearField(high)
        message.ClearField(wide)

    return Form(frozenset({high, wide}), is_used, turn, _without(high, wide))


def _legacy(name: str) -> Form:
    """Build the form `concat_dim: 2` of `axis: 2` (concat_layer, slice_layer)."""

    def is_used(message: Any) -> bool:  # noqa: ANN401
        return bool(message.HasField(name) and not message.HasField("axis"))

    def turn(message: Any) -> None:  # noqa: ANN401
        message.axis = getattr(message, name)
        message.ClearField(name)

    return Form(frozenset({name}), is_used, turn, _without(name))


def _excludes(layer: Any) -> bool:  # noqa: ANN401
    """Whether a layer's only rule excludes it from one phase."""
    if len(layer.exclude) != 1 or layer.include:
        return False
    return [field.name for field, _ in layer.exclude[0].ListFields()] == ["phase"]


def _include(layer: Any) -> None:  # noqa: ANN401
    other = pb.TEST if layer.exclude[0].phase == pb.TRAIN else pb.TRAIN
    layer.ClearField("exclude")
    layer.include.add(phase=other)


def _names_net_twice(solver: Any) -> bool:  # noqa: ANN401
    """Whether training and all tests use the same net file (solver: InitTrainNet, InitTestNets)."""
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


_FORMS: Mapping[str, tuple[Form, ...]] = {
    "ConcatParameter": (_legacy("concat_dim"),),
    "ConvolutionParameter": (
        *(_sides(name) for name in ("kernel_size", "pad", "stride")),
        *(_repeats(name) for name in ("kernel_size", "pad", "stride", "dilation")),
    ),
    "LayerParameter": (
        Form(frozenset({"exclude"}), _excludes, _include, lambda other: len(other.include) > 0),
    ),
    "PoolingParameter": (
        *(_sides(name) for name in ("kernel_size", "pad", "stride")),
        *(_repeats(name) for name in ("kernel_size", "pad", "stride")),
    ),
    "PriorBoxParameter": (_square("img_size"), _square("step")),
    "SliceParameter": (_legacy("slice_dim"),),
    "SolverParameter": (
        Form(frozenset({"train_net"}), _names_net_twice, _name_net_once, lambda other: other.HasField("net")),
    ),
}


def turn_all(message: Any) -> None:  # noqa: ANN401 - a message
    """Normalize all spellings of a message in place, but not those in its blocks."""
    for form in _FORMS.get(message.DESCRIPTOR.name, ()) if _has_form(message) else ():
        form.take_out(message)


def turn_apart(old: Any, new: Any) -> tuple[Any, Any]:  # noqa: ANN401 - messages
    """Return copies of two messages, with spellings that only one of them has normalized.

    >>> old = pb.ConvolutionParameter(kernel_size=[11])
    >>> _, new = turn_apart(old, pb.ConvolutionParameter(kernel_h=11, kernel_w=11))
    >>> new == old
    True
    """
    is_copied = False
    has_form = _has_form(old) or _has_form(new)
    for form in _FORMS.get(old.DESCRIPTOR.name, ()) if has_form else ():
        if form.key(old) != form.key(new) and (form.fits(old) or form.fits(new)):
            if not is_copied:
                old, new, is_copied = _copy(old), _copy(new), True
            form.take_out(old)
            form.take_out(new)
    return old, new


def _has_form(message: Any) -> bool:  # noqa: ANN401
    forms = _FORMS.get(message.DESCRIPTOR.name, ())
    # Reading an unset list allocates memory for as long as the message lives.
    given = {field.name for field, _ in message.ListFields()} if forms else set()
    return any(form.fields & given for form in forms)


def _copy(message: Any) -> Any:  # noqa: ANN401
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
