"""Rules for chains: jumps in the rate between phases, and the weight decay of a collapse.

Weights that are passed from one net to the next by layer name: which fit, and which are missing.

Solver and data settings that change from one phase to the next.

What each phase needs from its solver and net: TRAIN data, TEST data, a solver_mode.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import batch_per_rank, first_iter, has_known_rates, plan_starts, snapshot_rate
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.layer_types.dimensions import Shape
from caffe_recipes.caffe.net_states import NetState, has_data, select_data_layers, test_states, train_state
from caffe_recipes.caffe.rates import lr_at
from caffe_recipes.caffe.shapes import infer_shapes, select_layers, show_shape
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.lint.links import link_finding
from caffe_recipes.review.lint.net_view import (
    is_deploy_net,
    is_loss,
    normalize_path,
    select_phases,
    shapes_fit,
    show_layers,
    show_names,
    show_number,
    show_transform,
)
from caffe_recipes.review.lint.rules import Explanation, chain_rule, finding, handover_rule, path_rule
from caffe_recipes.review.lint.solver_rules import compare_rates, is_jump, misses_test_nets
from caffe_recipes.wording import find_similar

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Chain, Link, Net, Start
    from caffe_recipes.review.lint.net_view import (
        PhaseNet,
    )
    from caffe_recipes.review.lint.rules import Finding

_COLLAPSE_DECAY_RATIO = 2
_ROUNDING = 0.01


def check_joins(chain: Chain) -> Iterator[Finding]:
    """Find jumps in the rate between phases, and a collapse whose weight decay is not doubled."""
    starts = plan_starts(chain)
    for link, start in zip(chain.links, starts, strict=True):
        if start is not None:
            yield from _check_join(chain.links[start.index], link, start)
    # Several collapses may branch off one phase; each is the last phase of a model.
    continued = {start.index for start in starts if start is not None}
    for index, (link, start) in enumerate(zip(chain.links, starts, strict=True)):
        if index and chain.is_whole and index not in continued:
            is_known = start is not None or index == len(chain.links) - 1
            before = chain.links[start.index if start is not None else index - 1]
            yield from _check_collapse(before, link) if is_known else ()


def is_collapse(before: Link, link: Link) -> bool:
    """Return whether a last phase is a collapse: by its name, or because it drops the augmentation."""
    named = link.name, link.solver.message.snapshot_prefix.rpartition("/")[2]
    if any("coll" in name.lower() for name in named):
        return True
    return (
        before.net is not None and link.net is not None and _is_augmented(before) and not _is_augmented(link)
    )


def _is_augmented(link: Link) -> bool:
    return any(
        layer.transform_param.HasField("random_aspect_ratio_param")
        or layer.transform_param.HasField("random_resize_param")
        for layer in link.data_layers
    )


_RISES = "the momentum history also starts at 0 here, so the loss is unstable for a while"
_DROPS = "the momentum history also starts at 0 here, so the first updates are smaller still"


@chain_rule(
    "resume-jump",
    "note",
    "a rate that jumps by more than 2% where a phase resumes from a solverstate",
    write="no change needed if the jump is intended",
    values=("before", "after", "iteration"),
)
@chain_rule(
    "join-jump",
    "warning",
    "a rate that jumps by more than 2% from one phase to the next",
    effect=_RISES,
    values=("before", "after", "iteration"),
    explanation=Explanation(
        "A phase starts from the weights of the previous phase, but with its own rate and an empty "
        "momentum history. A jump between the two rates makes the loss unstable; a rise can undo "
        "what was learned.",
        "Set base_lr to the previous phase's last rate, or warmup_start_lr if there is a "
        "warm-up. The rate of a warm restart rises on purpose: accept that.",
    ),
)
def _check_join(before: Link, link: Link, start: Start) -> Iterator[Finding]:
    if not (has_known_rates(before.solver.message) and has_known_rates(link.solver.message)):
        return
    at_iter = first_iter(link)
    if not 0 < start.iteration <= before.last_iter or not at_iter < link.last_iter:
        return
    last, first = snapshot_rate(before, start.iteration), lr_at(link.solver.message, at_iter)
    if not is_jump(last, first):
        return
    is_shown = start.candidates > 1 or start.iteration != before.last_iter
    change = f"{last:.4g}{f' (at iteration {start.iteration})' if is_shown else ''} to {first:.4g}"
    what = f"the rate {compare_rates(last, first)} from {before.name} to {link.name}, {change}"
    if start.is_guess:
        what += f" (the nearest of {start.candidates} snapshots)"
    key = "warmup_start_lr" if link.solver.message.warmup_iter > at_iter else "base_lr"
    if link.resumes:
        yield link_finding(
            "resume-jump",
            link,
            key,
            what,
            effect=_resume_effect(link),
            before=last,
            after=first,
            iteration=start.iteration,
        )
    else:
        yield link_finding(
            "join-jump",
            link,
            key,
            what,
            effect=_RISES if first > last else _DROPS,
            write=f"{key}: {last:.4g}, if the jump is not intended",
            before=last,
            after=first,
            iteration=start.iteration,
        )


def _resume_effect(link: Link) -> str:
    momentum = link.solver.message.momentum
    if not 0 < momentum < 1:
        return "the momentum history is restored from the solverstate"
    updates = 1 / (1 - momentum)
    return (
        f"the momentum history is restored: the effect of the old rate fades over about {updates:.3g} updates"
    )


@chain_rule(
    "collapse-weight-decay",
    "warning",
    "a collapse whose weight decay is not twice that of the previous phase",
    what="the collapse has {ratio:.4g} times the weight decay of {previous}, {before:.4g} to {after:.4g}",
    effect="the paper doubles it, so the results are not comparable with the paper's",
    write="weight_decay: {least:.4g}",
    values=("before", "after"),
    explanation=Explanation(
        "The collapse is the last phase, with a rate that decays fast and little augmentation. The paper "
        "doubles its weight decay.",
        "Set weight_decay to twice that of the previous phase, or accept the finding.",
    ),
)
def _check_collapse(before: Link, link: Link) -> Iterator[Finding]:
    old, new = before.solver.message.weight_decay, link.solver.message.weight_decay
    if not is_collapse(before, link) or not old or abs(new / old / _COLLAPSE_DECAY_RATIO - 1) <= _ROUNDING:
        return
    yield link_finding(
        "collapse-weight-decay",
        link,
        "weight_decay",
        before=old,
        after=new,
        ratio=new / old,
        previous=before.name,
        least=_COLLAPSE_DECAY_RATIO * old,
    )


# The shapes of the blobs that each layer learns, by layer name; None if unknown.
_Learned = Mapping[str, tuple[Shape, ...] | None]


def check_handovers(chain: Chain) -> Iterator[Finding]:
    """Find layers that cannot use the weights that their phase starts from."""
    nets = {link.net.path: link.net for link in chain.links if link.net}
    learned_in = cache(lambda path, state: _learned_blobs(nets[path], state))  # phases share their nets

    def learned(link: Link) -> _Learned | None:
        return (
            learned_in(link.net.path, train_state(link.solver.message, link.net.message))
            if link.net
            else None
        )

    for index, start in enumerate(plan_starts(chain)):
        if start is None:
            continue
        before, link = chain.links[start.index], chain.links[index]
        theirs, ours = learned(before), learned(link)
        if theirs is not None and ours is not None and link.net and before.net:
            yield from _check_misfits(before, link, link.net, theirs, ours)
            yield from _check_missing(before, link, link.net, theirs, ours)
            yield from _check_unused(before, link, before.net, theirs, ours)


def check_deploys(nets: Sequence[Net]) -> Iterator[Finding]:
    """Find deploy nets whose layers differ from those of the train_val net in the same folder."""
    views = [(net, select_phases(net.message)) for net in nets]
    trained = [
        (net, phase)
        for net, phases in views
        for phase in phases
        if phase.phase == pb.TRAIN and any(map(is_loss, phase.layers))
    ]
    for net, phases in views:
        if any(phase.phase == pb.TRAIN for phase in phases) or not phases or not is_deploy_net(phases[0]):
            continue
        ours = _learned_blobs(net, NetState(pb.TEST)) or {}
        beside = [one for one in trained if Path(one[0].path).parent == Path(net.path).parent]
        known = [(other, phase, _learned_blobs(other, NetState(pb.TRAIN)) or {}) for other, phase in beside]
        alike = [one for one in known if ours and 2 * len(ours.keys() & one[2].keys()) >= len(ours)]
        if alike:
            other, phase, theirs = max(alike, key=lambda one: len(ours.keys() & one[2].keys()))
            yield from _check_deploy(net, other, phase, ours, theirs)


@path_rule(
    "deploy-missing",
    "warning",
    "a deploy net with layers that its train_val net lacks, or without some of its layers",
)
@path_rule(
    "deploy-misfit",
    "error",
    "a deploy net whose layers do not fit the weights of its train_val net",
    what="layer '{name}' does not fit the weights of {trained}: {misfit}",
    write="the layer as in {trained}",
)
def _check_deploy(
    net: Net, other: Net, phase: PhaseNet, ours: _Learned, theirs: _Learned
) -> Iterator[Finding]:
    norms = {layer.name for layer in phase.layers if layer.type == "BatchNorm"}
    if norms and not norms & ours.keys():  # the batch norms are folded into the weights
        return
    trained = Path(other.path).name
    for name, misfit in _misfits(ours, theirs).items():
        yield finding(
            "deploy-misfit",
            _layer_place(net, name),
            effect=_quote_refusal(name, ours, theirs),
            name=name,
            trained=trained,
            misfit=misfit,
        )
    new = _only_in(ours, theirs)
    if new:
        verb = "is" if len(new) == 1 else "are"
        what = f"{_name_layers(new)} of the deploy net {verb} not in {trained}"
        yield finding(
            "deploy-missing",
            _layer_place(net, new[0]),
            what,
            effect="Caffe initializes its weights from the fillers, as if untrained, and prints no warning",
            write=f"the layer names of {trained}",
        )
    lost = [name for name in _layers_before_last(phase, ours) if theirs.get(name) and name not in ours]
    if lost:
        what = f"{_name_layers(lost)} of {trained} {'is' if len(lost) == 1 else 'are'} not in the deploy net"
        yield finding(
            "deploy-missing",
            net.path,
            what,
            effect=f"Caffe prints `Ignoring source layer {lost[0]}`, and the scores are those of a "
            "different net",
            write=f"the layers of {trained}",
        )


def _misfits(ours: _Learned, theirs: _Learned) -> dict[str, str]:
    """Return why the weights of layers of one name do not fit, by that name."""
    return {
        name: misfit
        for name, shapes in ours.items()
        if shapes and (given := theirs.get(name)) and (misfit := show_misfit(shapes, given))
    }


def _only_in(ours: _Learned, theirs: _Learned) -> list[str]:
    """Return the names of the layers with weights that the other net lacks."""
    return [name for name, shapes in ours.items() if shapes and name not in theirs]


def _layers_before_last(phase: PhaseNet, ours: _Learned) -> list[str]:
    """Return the names of the layers that the last layer shared with the deploy net is computed from."""
    common = [i for i, layer in enumerate(phase.layers) if ours.get(layer.name)]
    layers = {layer for one in common[-1:] for layer, _ in phase.ancestors((one, 0)) if layer >= 0}
    return [phase.layers[i].name for i in sorted(layers)]


def _learned_blobs(net: Net, state: NetState) -> _Learned | None:
    """Return the blobs that a net learns; None if its shapes do not fit, which another rule reports."""
    try:
        layers = infer_shapes(net.message, state.phase, level=state.level, stages=state.stages).layers
    except PrototxtError:
        return None
    return {each.layer.name: each.learned for each in layers if each.learned is None or each.learned}


def show_misfit(ours: tuple[Shape, ...], theirs: tuple[Shape, ...]) -> str:
    """Describe the first blob that does not fit; empty if all fit. Unknown sizes always fit.

    >>> show_misfit(((10, 64), (10,)), ((20, 64), (20,)))
    '10x64, not 20x64'
    >>> show_misfit(((10, None),), ((10, 64),)), show_misfit(((10, 64),), ((10, 64), (10,)))
    ('', '1 blob, not 2')
    """
    if len(ours) != len(theirs):
        return f"{len(ours)} blob{'' if len(ours) == 1 else 's'}, not {len(theirs)}"
    index = _first_misfit(ours, theirs)
    return "" if index is None else f"{show_shape(ours[index])}, not {show_shape(theirs[index])}"


def _first_misfit(ours: tuple[Shape, ...], theirs: tuple[Shape, ...]) -> int | None:
    fits = [shapes_fit(one, other) for one, other in zip(ours, theirs, strict=True)]
    return None if all(fits) else fits.index(False)


def _quote_refusal(name: str, ours: _Learned, theirs: _Learned) -> str:
    """Quote the check of Net::CopyTrainedLayersFrom at which Caffe aborts for a layer that does not fit.

    It compares the number of blobs first, then their shapes in order (BVLC Caffe, src/caffe/net.cpp).
    """
    own, given = ours[name] or (), theirs[name] or ()
    if len(own) != len(given):
        return f"Caffe aborts with `Incompatible number of blobs for layer {name}`"
    param = _first_misfit(own, given)
    return f"Caffe aborts with `Cannot copy param {param} weights from layer '{name}'; shape mismatch`"


@handover_rule(
    "handover-misfit",
    "error",
    "a layer whose weights have a different shape in the net of the previous phase",
    write="use the same shape in both nets, or another layer name to initialize it from its fillers",
    values=("count",),
)
def _check_misfits(before: Link, link: Link, net: Net, theirs: _Learned, ours: _Learned) -> Iterator[Finding]:
    unfit = _misfits(ours, theirs)
    if unfit:
        (first, misfit), *others = unfit.items()
        more = f"; neither do {show_names([name for name, _ in others])}" if others else ""
        what = f"layer '{first}' of {link.name} does not fit the weights of {before.name}: {misfit}{more}"
        effect = _quote_refusal(first, ours, theirs)
        yield finding(
            "handover-misfit", _layer_place(net, first), what, link.name, effect=effect, count=len(unfit)
        )


@handover_rule(
    "handover-missing",
    "warning",
    "a layer with weights that is missing from the net of the previous phase",
    what="{names} of {phase} {verb} not in the net of {previous}",
    effect="{they_start} from the fillers, as if untrained, and Caffe prints no warning",
    values=("count",),
)
def _check_missing(before: Link, link: Link, net: Net, theirs: _Learned, ours: _Learned) -> Iterator[Finding]:
    new = _only_in(ours, theirs)
    if new:
        left = [name for name in theirs if name not in ours]
        near = find_similar(new[0], left, 0.3)
        verb = "has weights but is" if len(new) == 1 else "have weights but are"
        they_start = "it starts" if len(new) == 1 else "they start"
        yield finding(
            "handover-missing",
            _layer_place(net, new[0]),
            phase=link.name,
            write=f'name: "{near}", as in {before.name}' if near else "no change needed if this is intended",
            count=len(new),
            names=_name_layers(new),
            verb=verb,
            previous=before.name,
            they_start=they_start,
        )


@handover_rule(
    "handover-unused",
    "note",
    "a trained layer that is missing from the next phase's net",
    what="{names} of {previous} {verb} not in the net of {phase}",
    effect="Caffe prints `Ignoring source layer {first}` and drops its weights",
    write="use the same layer names in both nets to keep the weights",
    values=("count",),
)
def _check_unused(before: Link, link: Link, net: Net, theirs: _Learned, ours: _Learned) -> Iterator[Finding]:
    left = _only_in(theirs, ours)
    if left:
        verb = "has weights but is" if len(left) == 1 else "have weights but are"
        yield finding(
            "handover-unused",
            _layer_place(net, left[0]),
            phase=link.name,
            count=len(left),
            names=_name_layers(left),
            previous=before.name,
            verb=verb,
            first=left[0],
        )


def _name_layers(names: list[str]) -> str:
    return f"layer '{names[0]}'" if len(names) == 1 else show_layers(names)


def _layer_place(net: Net, name: str, field: str = "name") -> str:
    index = next(index for index, layer in enumerate(net.message.layer) if layer.name == name)
    return net.where(f"layer[{index}].{field}")


_MAX_DECAY_RATIO = 4


class _Setting(NamedTuple):
    """A solver field that phases should share: how to read it, and the effect of a change."""

    field: str
    read: Callable[[pb.SolverParameter], Hashable]
    effect: str


def solver_type(solver: pb.SolverParameter) -> str:
    """Return a solver's type, from the old field `solver_type` if only that is set.

    >>> solver_type(pb.SolverParameter()), solver_type(pb.SolverParameter(solver_type="ADAM"))
    ('SGD', 'ADAM')
    """
    is_old = solver.HasField("solver_type") and not solver.HasField("type")
    return pb.SolverParameter.SolverType.Name(solver.solver_type) if is_old else solver.type


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


def check_changes(chain: Chain) -> Iterator[Finding]:
    """Find settings that differ between a phase and the phases that it builds on."""
    for index, start in enumerate(plan_starts(chain)):
        if start is None:
            continue
        earlier, link = chain.links[: start.index + 1], chain.links[index]
        yield from _check_settings(earlier, link)
        yield from _check_batch(earlier, link, start)
        yield from _check_momentum(earlier, link)
        is_last = index == len(chain.links) - 1
        if not (is_last and chain.is_whole and is_collapse(earlier[-1], link)):
            yield from _check_weight_decay(earlier, link)
        yield from _check_transforms(earlier, link)
        yield from _check_source(earlier, link)
        yield from _check_norms(earlier, link)
    yield from _check_test_sources(chain)


solver_changes = handover_rule(
    "solver-changes",
    "warning",
    "a momentum, type, solver_mode or regularization_type that differs from the previous phase",
    what="{field} is {new} in {phase}, but {old} in {previous}",
    write="{field} as in {previous}, unless the change is intended",
    values=("field",),
)


@solver_changes
def _check_settings(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
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


@handover_rule(
    "batch-changes",
    "warning",
    "an iter_size or batch_size that differs from the previous phase while the rate does not",
    what="{phase} uses {after} images per rank per update, but {previous} {before}, at the same rate",
    effect="the rate was chosen for another batch size, and the same iterations make a different number of "
    "epochs",
    write="a rate {ratio:.3g} times as high, or {field} as in {previous}",
    values=("before", "after"),
)
def _check_batch(earlier: Sequence[Link], link: Link, start: Start) -> Iterator[Finding]:
    """Find phases that change the number of images per iteration but not the rate."""
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


@solver_changes
def _check_momentum(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
    before, solver = earlier[-1].solver.message, link.solver.message
    new, old = solver.momentum, before.momentum
    if any(new == one.solver.message.momentum for one in earlier):
        return
    if solver_type(solver).upper() != solver_type(before).upper():
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


@handover_rule(
    "weight-decay-changes",
    "warning",
    "weight decay removed, or changed by a factor above 4, in a phase that is not a collapse",
    what="weight_decay is {shown} in {phase}, but {before:.4g} in {previous}",
    write="weight_decay: {before:.4g}, unless the change is intended",
    values=("before", "after"),
)
def _check_weight_decay(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
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


@handover_rule(
    "crop-changes",
    "note",
    "a crop_size of the training data that differs from the previous phase",
    effect="objects appear at a different size than the one that the weights were trained on",
    write="use the same {field} in both nets, unless the change is intended",
)
@handover_rule(
    "transforms-change",
    "warning",
    "a mean or scale of the training data that differs from the previous phase",
    effect="weights and batch norm statistics come from differently scaled inputs, so the loss jumps",
    write="use the same {field} in both nets, unless the change is intended",
    values=("field",),
)
def _check_transforms(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
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


@handover_rule(
    "train-source-changes",
    "note",
    "a source of the training data that differs from the previous phase",
    what="{phase} trains on {new}, but {previous} on {old}",
    effect="the length of an epoch, the classes and their order may differ",
    write="use the same source, unless the change is intended",
)
def _check_source(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
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
    tests: list[tuple[Net, str]] = []
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


@handover_rule(
    "norms-change",
    "warning",
    "a BatchNorm moving_average_fraction or eps that differs from the previous phase",
    what="{field} of {names} is {change}",
    write="{field}: {old}",
    values=("field", "count"),
)
def _check_norms(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
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
            _layer_place(link.net, name, f"batch_norm_param.{field}"),
            phase=link.name,
            effect=effect,
            field=field,
            count=len(changed),
            names=_name_layers(changed),
            change=change,
            old=show_number(old[name]),
        )


def _norm_values(net: Net, field: str) -> dict[str, float]:
    """Return a field of each BatchNorm in TRAIN, by layer name."""
    norms = [layer for layer in select_layers(net.message, pb.TRAIN) if layer.type == "BatchNorm"]
    return {layer.name: getattr(layer.batch_norm_param, field) for layer in norms}


_UNKNOWN_BLOB = "`Unknown bottom blob 'data'` (or the name of another blob)"

no_test_net = path_rule(
    "no-test-net", "error", "a test, during or after training, of a net without a data layer for TEST"
)


@path_rule(
    "last-net-without-test",
    "warning",
    "a last phase whose net cannot be tested",
    what="the last phase's net {net} has no data layer for TEST",
    effect=f"`caffe test` on it fails with {_UNKNOWN_BLOB}",
    write="add a data layer with include {{ phase: TEST }} to it, or test with a net that has one",
    explanation=Explanation(
        "`caffe test` needs a data layer for TEST. This net lacks one, so it cannot test the model.",
        "Add a data layer with include { phase: TEST }, or give --script a file with a command "
        "that tests with another net.",
    ),
)
@no_test_net
def check_steps(chain: Chain) -> Iterator[Finding]:
    """Find phases that Caffe cannot run or test, because their net or solver lacks something."""
    for link in chain.links:
        yield from _check_solver_fields(link, has_gpus=chain.facts.has_gpus)
        yield from _check_data_layers(link)
    last = chain.links[-1]
    for net in chain.tested:
        if not has_data(net.message, NetState(pb.TEST)):
            what = f"the chain is tested with {net.path}, which has no data layer for TEST"
            yield finding(
                "no-test-net",
                net.path,
                what,
                effect=f"Caffe aborts with {_UNKNOWN_BLOB}",
                write="add a data layer with include { phase: TEST }",
            )
    if chain.is_whole and not chain.tested and last.net and not _can_be_tested(last, last.net):
        yield link_finding("last-net-without-test", last, "net", net=last.net.path)


def _can_be_tested(link: Link, net: Net) -> bool:
    """Return whether a net has TEST data in any state of the solver, or another net is tested."""
    solver = link.solver.message
    states = (NetState(pb.TEST), *test_states(solver, net.message))
    return _has_test_nets(solver) or any(has_data(net.message, state) for state in states)


def _has_test_nets(solver: pb.SolverParameter) -> bool:
    return bool(solver.test_net or solver.test_net_param)


@path_rule(
    "solver-mode-absent",
    "warning",
    "no solver_mode: the default is GPU",
    what="solver_mode is not set, and the default is GPU",
    effect="a build without GPUs aborts with `Cannot use GPU in CPU-only Caffe`",
    write="solver_mode: CPU",
    explanation=Explanation(
        "Caffe's default is GPU, and a CPU-only build aborts. Not reported for dialects that are built "
        "for GPUs (--dialect bvlc).",
        "Set solver_mode: CPU.",
    ),
)
@path_rule(
    "test-interval-alone",
    "warning",
    "a test_interval without test_iter: the solver never tests",
    what="test_interval {test_interval} without test_iter",
    effect="Caffe creates no test net and never tests",
    write="test_iter: the number of test images / the test batch_size",
)
@path_rule(
    "test-iter-alone",
    "error",
    "a test_iter without test_interval: Caffe aborts",
    what="test_iter without test_interval",
    effect="Caffe aborts with `Check failed: param_.test_interval() > 0`",
    write="test_interval: the number of iterations between tests",
)
def _check_solver_fields(link: Link, *, has_gpus: bool) -> Iterator[Finding]:
    solver = link.solver.message
    if not has_gpus and not solver.HasField("solver_mode"):
        yield finding("solver-mode-absent", link.solver.path, phase=link.name)
    if solver.test_interval and not solver.test_iter:
        yield link_finding("test-interval-alone", link, "test_interval", test_interval=solver.test_interval)
    if solver.test_iter and not solver.test_interval and not misses_test_nets(solver):
        yield link_finding("test-iter-alone", link, "test_iter")


@path_rule(
    "no-train-net",
    "error",
    "a net without a data layer for TRAIN",
    what="{net} has no data layer for TRAIN{state}",
    effect=f"Caffe aborts with {_UNKNOWN_BLOB}",
    write="add a data layer with include {{ phase: TRAIN }}",
)
def _check_data_layers(link: Link) -> Iterator[Finding]:
    solver, net = link.solver.message, link.net
    if net is None:
        return
    if not has_data(net.message, train_state(solver, net.message)):
        yield finding(
            "no-train-net",
            net.path,
            phase=link.name,
            net=net.path,
            state=_show_state(solver.train_state),
        )
    if not (solver.test_iter or solver.test_interval):
        return
    for tested in link.test_nets if _has_test_nets(solver) else (net,):
        for state, given in _states_to_test(solver, tested):
            if not has_data(tested.message, state):
                yield _missing_test_data(link, tested, given)


def _states_to_test(solver: pb.SolverParameter, net: Net) -> Iterator[tuple[NetState, pb.NetState]]:
    """Return the states that a net is tested in; none if several test nets have states of their own."""
    states = test_states(solver, net.message)
    if _has_test_nets(solver) and len(states) > 1:
        return iter(())
    return zip(states, solver.test_state or (pb.NetState(),), strict=True)


@no_test_net
def _missing_test_data(link: Link, net: Net, state: pb.NetState) -> Finding:
    solver = link.solver
    tests = bool(solver.message.test_iter)
    what = f"{link.name} tests while it trains, but {net.path} has no data layer for TEST{_show_state(state)}"
    field = "test_iter[0]" if tests else "test_interval"
    return finding(
        "no-test-net",
        solver.where(field),
        what,
        link.name,
        effect=f"Caffe aborts with {_UNKNOWN_BLOB}"
        if tests
        else f"it never tests; with test_iter, it would abort with {_UNKNOWN_BLOB}",
        write="add a data layer with include { phase: TEST }, or remove test_iter and test_interval",
    )


def _show_state(state: pb.NetState) -> str:
    """Describe the stages and level that a solver sets; empty if it sets none."""
    parts = [f"stage '{stage}'" for stage in state.stage]
    if state.HasField("level"):
        parts.append(f"level {state.level}")
    return f" in {' and '.join(parts)}" if parts else ""
