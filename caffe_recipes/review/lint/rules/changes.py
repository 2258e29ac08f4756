"""Rules for solver and data settings that change from one phase to the next."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import (
    batch_per_rank,
    first_iter,
    has_known_rates,
    is_collapse,
    snapshot_rate,
    solver_type,
)
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.net_states import NetState, select_data_layers, test_states
from caffe_recipes.caffe.rates import is_jump, lr_at
from caffe_recipes.caffe.shapes import select_layers
from caffe_recipes.review.lint.net_text import layer_place, name_layers, show_number, show_transform
from caffe_recipes.review.lint.net_view import normalize_path
from caffe_recipes.review.lint.registry import finding, link_finding
from caffe_recipes.review.lint.subjects import Join, change_rule, handover_rule

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Chain, Link, NetDocument
    from caffe_recipes.review.lint.findings import Finding


_MAX_DECAY_RATIO = 4
_ROUNDING = 0.01


class _Setting(NamedTuple):
    """A solver field that phases should share: how to read it, and the effect of a change."""

    field: str
    read: Callable[[pb.SolverParameter], Hashable]
    effect: str


_SETTINGS = (
    _Setting(
        "type",
        solver_type,
        "the same rate makes different updates, and the momentum history does not fit",
    ),
    _Setting("regularization_type", lambda solver: solver.regularization_type, "weight decay differs"),
    # Another rule reports a missing solver_mode.
    _Setting(
        "solver_mode",
        lambda solver: (
            pb.SolverParameter.SolverMode.Name(solver.solver_mode) if solver.HasField("solver_mode") else None
        ),
        "one of the two does not match the machine: a CPU-only build aborts at solver_mode: GPU",
    ),
)


_solver_changes = change_rule(
    "solver-changes",
    "warning",
    "a momentum, type, solver_mode or regularization_type that differs from the previous phase",
    what="{field} is {new} in {phase}, but {old} in {previous}",
    write="{field} as in {previous}, unless the change is intended",
    values=("field",),
)


@_solver_changes
def _check_settings(join: Join) -> Iterator[Finding]:
    earlier, link = join.earlier, join.link
    before = earlier[-1]
    for setting in _SETTINGS:
        new, old = setting.read(link.solver.message), setting.read(before.solver.message)
        values = [setting.read(one.solver.message) for one in earlier]
        if new in values or None in (new, old) or str(new).upper() == str(old).upper():
            continue
        yield link_finding(
            "solver-changes",
            link,
            setting.field,
            effect=setting.effect,
            field=setting.field,
            new=new,
            old=old,
            previous=before.name,
        )


@change_rule(
    "batch-changes",
    "warning",
    "an iter_size or batch_size that differs from the previous phase while the rate does not",
    what="{phase} uses {after} images per rank per update, but {previous} {before}, at the same rate",
    effect="the rate was chosen for another batch size, and the same iterations make a different number of "
    "epochs",
    write="a rate {ratio:.3g} times as high, or {field} as in {previous}",
    values=("before", "after"),
)
def _check_batch(join: Join) -> Iterator[Finding]:
    """Find phases that change the number of images per iteration but not the rate."""
    earlier, link, start = join.earlier, join.link, join.start
    before = earlier[-1]
    ours, theirs = batch_per_rank(link), batch_per_rank(before)
    if not ours or not theirs or ours == theirs or link.ranks != before.ranks:
        return
    if not has_known_rates(before.solver.message) or not has_known_rates(link.solver.message):
        return
    last, first = snapshot_rate(before, start.iteration), lr_at(link.solver.message, first_iter(link))
    if is_jump(last, first) or link.solver.message.warmup_iter:
        return
    is_sub = link.solver.message.iter_size != before.solver.message.iter_size
    field = "iter_size" if is_sub else "batch_size"
    yield link_finding(
        "batch-changes",
        link,
        "iter_size" if is_sub else "base_lr",
        before=theirs,
        after=ours,
        previous=before.name,
        ratio=ours / theirs,
        field=field,
    )


@_solver_changes
def _check_momentum(join: Join) -> Iterator[Finding]:
    earlier, link = join.earlier, join.link
    before, solver = earlier[-1].solver.message, link.solver.message
    new, old = solver.momentum, before.momentum
    if any(new == one.solver.message.momentum for one in earlier):
        return
    if solver_type(solver) != solver_type(before):
        return
    shown = show_number(new) if solver.HasField("momentum") else "not set (default 0)"
    effect = "the same rate makes different updates"
    if 0 <= new < 1 and 0 <= old < 1:
        times = (1 - old) / (1 - new)
        effect = f"the effective rate, rate / (1 - momentum), is {times:.3g} times as high at the same rate"
    yield link_finding(
        "solver-changes",
        link,
        "momentum",
        effect=effect,
        write=f"momentum: {show_number(old)}",
        field="momentum",
        new=shown,
        old=show_number(old),
        previous=earlier[-1].name,
    )


@change_rule(
    "weight-decay-changes",
    "warning",
    "weight decay removed, or changed by a factor above 4, in a phase that is not a collapse",
    what="weight_decay is {shown} in {phase}, but {before:.4g} in {previous}",
    write="weight_decay: {before:.4g}, unless the change is intended",
    values=("before", "after"),
)
def _check_weight_decay(join: Join) -> Iterator[Finding]:
    earlier, link = join.earlier, join.link
    if join.chain.is_whole and link is join.chain.links[-1] and is_collapse(earlier[-1], link):
        return
    old, new = earlier[-1].solver.message.weight_decay, link.solver.message.weight_decay
    if any(new == one.solver.message.weight_decay for one in earlier) or min(old, new) < 0:
        return
    low, high = sorted((old, new))
    if low and high / low <= _MAX_DECAY_RATIO + _ROUNDING:
        return
    is_given = link.solver.message.HasField("weight_decay")
    shown = f"{new:.4g}" if is_given else "not set (default 0)"
    effect = "the weights shrink or grow to a new equilibrium, which changes the effective rate"
    if not new:
        effect = "the weights no longer decay: they grow, and the rate has less and less effect"
    yield link_finding(
        "weight-decay-changes",
        link,
        "weight_decay",
        effect=effect,
        before=old,
        after=new,
        shown=shown,
        previous=earlier[-1].name,
    )


@change_rule(
    "crop-changes",
    "note",
    "a crop_size of the training data that differs from the previous phase",
    effect="objects appear at a different size than the one that the weights were trained on",
    write="use the same {field} in both nets, unless the change is intended",
)
@change_rule(
    "transforms-change",
    "warning",
    "a mean or scale of the training data that differs from the previous phase",
    effect="weights and batch norm statistics come from differently scaled inputs, so the loss jumps",
    write="use the same {field} in both nets, unless the change is intended",
    values=("field",),
)
def _check_transforms(join: Join) -> Iterator[Finding]:
    earlier, link = join.earlier, join.link
    for field in ("mean_value", "mean_file", "scale", "force_color", "force_gray", "crop_size"):
        seen = [_transform_values(one, field) for one in earlier]
        new, old = _transform_values(link, field), seen[-1]
        if not new or not old or new in seen:
            continue
        other = earlier[-1].name
        what = f"{field} is {new} in the training data of {link.name}, but {old} in that of {other}"
        place, is_crop = _data_place(link, f"transform_param.{field}"), field == "crop_size"
        yield finding("crop-changes" if is_crop else "transforms-change", place, what, link.name, field=field)


def _transform_values(link: Link, field: str) -> str:
    """Return the values of a transform field in the training data layers as text, each value once."""
    shown = [
        show_transform(one.transform_param, field) for one in link.data_layers if type_of(one).batch_block
    ]
    return "; ".join(dict.fromkeys(shown))


@change_rule(
    "train-source-changes",
    "note",
    "a source of the training data that differs from the previous phase",
    what="{phase} trains on {new}, but {previous} on {old}",
    effect="the length of an epoch, the classes and their order may differ",
    write="use the same source, unless the change is intended",
)
def _check_source(join: Join) -> Iterator[Finding]:
    earlier, link = join.earlier, join.link
    known = [_source_paths(one.data_layers) for one in earlier]
    new, old = _source_paths(link.data_layers), known[-1]
    if new and old and _normalize_paths(new) not in map(_normalize_paths, known):
        place = _data_place(link, "data_param.source")
        yield finding(
            "train-source-changes",
            place,
            phase=link.name,
            new=", ".join(new),
            previous=earlier[-1].name,
            old=", ".join(old),
        )


@handover_rule(
    "train-on-test",
    "warning",
    "a phase that trains on the records that another net of the chain is tested on",
    what="{phase} trains on '{source}', which {net} is tested on",
    effect="the accuracy is measured on images that the net was trained on",
    write="set source to the training LMDB",
)
def _check_test_sources(chain: Chain) -> Iterator[Finding]:
    """Find phases that train on the test data of another net; a net rule reports it within one net."""
    tests: list[tuple[NetDocument, str]] = []
    for link in chain.links:
        solver = link.solver.message
        for net in ([link.net] if link.net else []) + [*link.test_nets]:
            for state in test_states(solver, net.message):
                tests += [(net, one) for one in _source_paths(select_data_layers(net.message, state))]
    for net in chain.tested:
        tests += [(net, one) for one in _source_paths(select_data_layers(net.message, NetState(pb.TEST)))]
    for link in chain.links:
        trained = _normalize_paths(_source_paths(link.data_layers))
        others = [(net, one) for net, one in tests if link.net and net.path != link.net.path]
        for net, source in others:
            if normalize_path(source) in trained:
                place = _data_place(link, "data_param.source")
                yield finding("train-on-test", place, phase=link.name, source=source, net=net.path)
                break


def _normalize_paths(sources: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(normalize_path, sources))


def _source_paths(layers: Iterable[pb.LayerParameter]) -> tuple[str, ...]:
    blocks = [getattr(layer, block) for layer in layers if (block := type_of(layer).batch_block)]
    return tuple(block.source for block in blocks if getattr(block, "source", ""))


def _data_place(link: Link, field: str) -> str:
    """Return the place of a field of the first training data layer."""
    if link.net is None:
        return link.solver.path
    reader = next(layer for layer in link.data_layers if type_of(layer).batch_block)
    layers = enumerate(link.net.message.layer)
    # A layer that contains a NaN does not equal itself: return the file instead.
    index = next((index for index, layer in layers if layer is reader or layer == reader), None)
    return link.net.path if index is None else link.net.where(f"layer[{index}].{field}")


@change_rule(
    "norms-change",
    "warning",
    "a BatchNorm moving_average_fraction or eps that differs from the previous phase",
    what="{field} of {names} is {change}",
    write="{field}: {old}",
    values=("field", "count"),
)
def _check_norms(join: Join) -> Iterator[Finding]:
    earlier, link = join.earlier, join.link
    before = earlier[-1]
    if link.net is None or before.net is None or link.net.path == before.net.path:
        return
    for field, effect in (
        (
            "moving_average_fraction",
            "the running statistics now weight earlier batches differently",
        ),
        ("eps", "the same statistics normalize differently: the outputs shift"),
    ):
        values, old = _norm_values(link.net, field), _norm_values(before.net, field)
        changed = [name for name in values if name in old and values[name] != old[name]]
        if not changed or any(values == _norm_values(one.net, field) for one in earlier if one.net):
            continue
        name = changed[0]
        change = f"{show_number(values[name])} in {link.name}, but {show_number(old[name])} in {before.name}"
        yield finding(
            "norms-change",
            layer_place(link.net, name, f"batch_norm_param.{field}"),
            phase=link.name,
            effect=effect,
            field=field,
            count=len(changed),
            names=name_layers(changed),
            change=change,
            old=show_number(old[name]),
        )


def _norm_values(net: NetDocument, field: str) -> dict[str, float]:
    """Return a field of each BatchNorm in TRAIN, by layer name."""
    norms = [layer for layer in select_layers(net.message, pb.TRAIN) if layer.type == "BatchNorm"]
    return {layer.name: getattr(layer.batch_norm_param, field) for layer in norms}
