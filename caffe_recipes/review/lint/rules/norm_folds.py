"""Rules for the BatchNorms and Scales that Caffe folds into Convolutions in TEST."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.review.lint.net_text import layer_finding, title
from caffe_recipes.review.lint.net_view import is_loss
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.subjects import norm_rule

if TYPE_CHECKING:
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.net_view import NetView, PhaseNet


# For each folded Convolution: its BatchNorm, and the Scale if that is folded too.
_Folds = dict[int, tuple[int, int | None]]


def _find_folds(phase: PhaseNet, kept: Collection[str] | None = None) -> _Folds:
    """Return what Caffe folds into Convolutions when it sets up a TEST net, along only readers.

    BatchNorms in `kept` are not folded; without `kept`, those with use_global_stats: false are not.
    """
    found: _Folds = {}
    for i, layer in enumerate(phase.layers):
        norm = _only_reader(phase, i) if layer.type == "Convolution" else None
        if norm is None or phase.layers[norm].type != "BatchNorm":
            continue
        layer, param = phase.layers[norm], phase.layers[norm].batch_norm_param
        own = param.HasField("use_global_stats") and not param.use_global_stats
        # Caffe searches for the BatchNorm's reader from the second layer on, and may find the BatchNorm
        # itself.
        is_itself = norm != i + 1 and layer.top[:1] == layer.bottom[:1]
        if is_itself or (own if kept is None else layer.name in kept):
            continue
        after = _only_reader(phase, norm)
        if after is not None or phase.flow.readers.get((norm, 0)):
            is_scale = after is not None and phase.layers[after].type == "Scale"
            found[i] = norm, after if is_scale else None
    return found


def _only_reader(phase: PhaseNet, i: int) -> int | None:
    """Return the only layer that reads a layer's first top. With several, Caffe inserts a Split: None."""
    readers = phase.flow.readers.get((i, 0), ())
    return readers[0][0] if len(readers) == 1 else None


@norm_rule(
    "fold-refused",
    "error",
    "a Scale that Caffe cannot fold into the Convolution before its BatchNorm",
    what="{scale}, after {layer} and its BatchNorm, {fault}",
    effect="Caffe folds the three layers into one in TEST, and crashes (SIGSEGV) when it loads the weights",
)
@norm_rule(
    "folds-differ",
    "error",
    "a Convolution that Caffe folds differently in TEST and in TRAIN",
    what="{layer} has a BatchNorm{scale} after it in TEST, but not in TRAIN",
    effect="the folded TEST net does not match the weights of TRAIN: the test is wrong, or Caffe aborts",
    write="put the same layers, with the same readers, after it in both phases",
)
def check_folds(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Find what Intel's Caffe folds in TEST, but cannot, or folds differently in TRAIN."""
    if not view.dialect.is_intels or phase.phase != pb.TEST:
        return
    folds = _find_folds(phase)
    for i, (_, scale) in folds.items():
        wrong = None if scale is None else _why_unfoldable(phase, scale)
        if scale is not None and wrong:
            field, fault, write = wrong
            yield finding(
                "fold-refused",
                phase.where(scale, field),
                write=write,
                scale=title(phase.layers[scale]),
                layer=title(phase.layers[i]),
                fault=fault,
            )
    train = next((one for one in view.phases if one.phase == pb.TRAIN and one.stages == phase.stages), None)
    if train is None or not any(map(is_loss, train.layers)):
        return
    trained = {layer.name: i for i, layer in enumerate(train.layers)}
    gone = {norm for norm, _ in folds.values()}
    norms = {i for i, layer in enumerate(phase.layers) if layer.type == "BatchNorm"}
    theirs = _find_folds(train, kept={phase.layers[i].name for i in norms - gone})
    for i, (_, scale) in folds.items():
        name = phase.layers[i].name
        if name not in trained:
            continue
        other = theirs.get(trained[name])
        if other is None or (other[1] is None) != (scale is None):
            yield layer_finding(
                "folds-differ", phase, i, "name", scale=" and a Scale" if scale is not None else ""
            )


def _why_unfoldable(phase: PhaseNet, scale: int) -> tuple[str, str, str] | None:
    """Return a Scale's field, why Caffe cannot fold it, and what to write; None if it can.

    Caffe needs a factor and a bias per channel.
    """
    layer = phase.layers[scale]
    param = layer.scale_param
    if len(layer.bottom) > 1:
        return "bottom[1]", "reads its factor from a bottom", "do not put it directly after the BatchNorm"
    if not param.bias_term:
        at = "scale_param.bias_term" if param.HasField("bias_term") else "type"
        return at, "has no bias", "scale_param { bias_term: true }"
    bottom = phase.bottom_shape(scale)
    axes = len(bottom) if bottom else 4
    if param.axis not in (1, 1 - axes):
        return "scale_param.axis", f"has axis {param.axis}", "axis: 1"
    if param.num_axes != 1:
        return "scale_param.num_axes", f"has num_axes {param.num_axes}", "num_axes: 1"
    return None
