"""What changes from one phase to the next: the rate, and the weight decay of a collapse.

Weights handed from one net of a chain to the next, by the names of layers: what fits, what is left out.

What a chain keeps from phase to phase, and a later phase has otherwise: updates and data.

What each step of a chain needs of its solver and net: TRAIN data, TEST data, a mode to run in.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.rates import lr_at
from caffe_recipes.caffe.shape_rules import Shape
from caffe_recipes.caffe.shapes import infer_shapes, select_layers, show_shape
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.lint.chain import (
    NetState,
    batch_per_rank,
    first_iter,
    has_rates,
    has_source,
    plan_starts,
    select_sources,
    snapshot_rate,
    test_states,
    train_state,
)
from caffe_recipes.review.lint.net_view import (
    SOURCE_BLOCKS,
    is_deployed,
    is_loss,
    same_path,
    select_phases,
    shapes_fit,
    show_layers,
    show_names,
    show_number,
    show_transform,
)
from caffe_recipes.review.lint.rules import Explanation, chain_rule, finding, handover_rule, path_rule
from caffe_recipes.review.lint.solver_rules import compare_rates, is_jump

if TYPE_CHECKING:
    from caffe_recipes.review.lint.chain import (
        Chain,
        Link,
        Net,
        Start,
    )
    from caffe_recipes.review.lint.net_view import (
        PhaseNet,
    )
    from caffe_recipes.review.lint.rules import Finding

_RULED_TIMES = 2
_ROUNDING = 0.01


def check_joins(chain: Chain) -> Iterator[Finding]:
    """Find jumps of the rate where phases meet, and a collapse whose weight decay is not doubled."""
    starts = plan_starts(chain)
    for link, start in zip(chain.links, starts, strict=True):
        if start is not None:
            yield from _join(chain.links[start.index], link, start)
    # Collapses may branch off: each is the last phase of a model.
    gone_on_from = {start.index for start in starts if start is not None}
    for index, (link, start) in enumerate(zip(chain.links, starts, strict=True)):
        if index and chain.is_whole and index not in gone_on_from:
            is_known = start is not None or index == len(chain.links) - 1
            before = chain.links[start.index if start is not None else index - 1]
            yield from _collapse(before, link) if is_known else ()


def is_collapse(before: Link, link: Link) -> bool:
    """Whether a model's last phase is a collapse: called so, or without the augmentation before it."""
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
        for layer in link.sources
    )


@chain_rule(
    "resume-jump",
    "note",
    "a jump of the rate of more than 2 % where a phase resumes a solverstate",
    write="nothing, if the step is intended",
)
@chain_rule(
    "join-jump",
    "warning",
    "a jump of the rate of more than 2 % from one phase to the next",
    effect="the history of momentum starts at 0 here too: the loss is unsteady for a while",
    explanation=Explanation(
        "A phase starts from the weights of the one before, at a rate of its own. A step between "
        "the two rates, with an empty history of momentum, makes the loss unsteady; a rise can "
        "undo what was learned.",
        "The rate before as base_lr, or warmup_start_lr where there is a warm-up. Warm restarts "
        "rise on purpose: accept those.",
    ),
)
def _join(before: Link, link: Link, start: Start) -> Iterator[Finding]:
    if not (has_rates(before.solver.message) and has_rates(link.solver.message)):
        return
    at_iter = first_iter(link)
    if not 0 < start.iteration <= before.last_iter or not at_iter < link.last_iter:
        return
    last, first = snapshot_rate(before, start.iteration), lr_at(link.solver.message, at_iter)
    if not is_jump(last, first):
        return
    is_shown = start.choices > 1 or start.iteration != before.last_iter
    change = f"{last:.4g}{f' (at iteration {start.iteration})' if is_shown else ''} to {first:.4g}"
    what = f"the rate {compare_rates(last, first)} from {before.name} to {link.name}, {change}"
    if start.is_guess:
        what += f": of {start.choices} snapshots the one whose rate is nearest"
    key = "warmup_start_lr" if link.solver.message.warmup_iter > at_iter else "base_lr"
    place = link.solver.where(key)
    if link.resumes:
        yield finding(
            "resume-jump",
            place,
            what,
            link.name,
            effect=_resumed(link),
            before=last,
            after=first,
            iteration=start.iteration,
        )
    else:
        yield finding(
            "join-jump",
            place,
            what,
            link.name,
            write=f"{key}: {last:.4g}, if the jump is not intended",
            before=last,
            after=first,
            iteration=start.iteration,
        )


def _resumed(link: Link) -> str:
    momentum = link.solver.message.momentum
    if not 0 < momentum < 1:
        return "the history continues in its solverstate"
    updates = 1 / (1 - momentum)
    return f"the history of momentum continues: that of the old rate fades over some {updates:.3g} updates"


@chain_rule(
    "collapse-weight-decay",
    "warning",
    "a collapse with other than twice the weight decay before it",
    effect="the rule of the paper is to double it: results are not to be compared with its own",
    explanation=Explanation(
        "The collapse, the last phase at a fast falling rate and with little augmentation, has by "
        "the paper's rule twice the weight decay of the phase before.",
        "weight_decay: twice the one before, or accept it.",
    ),
)
def _collapse(before: Link, link: Link) -> Iterator[Finding]:
    old, new = before.solver.message.weight_decay, link.solver.message.weight_decay
    if not is_collapse(before, link) or not old or abs(new / old / _RULED_TIMES - 1) <= _ROUNDING:
        return
    what = f"the collapse has {new / old:.4g} times the weight decay of {before.name}, {old:.4g} to {new:.4g}"
    place = link.solver.where("weight_decay")
    yield finding(
        "collapse-weight-decay",
        place,
        what,
        link.name,
        write=f"weight_decay: {_RULED_TIMES * old:.4g}",
        before=old,
        after=new,
    )


# The blobs that each layer learns, by its name; None where their shapes are not known.
_Learned = Mapping[str, tuple[Shape, ...] | None]


def check_handovers(chain: Chain) -> Iterator[Finding]:
    """Find layers that do not take over what the net that a phase starts from has learned."""
    known: dict[int, _Learned | None] = {}
    for index, start in enumerate(plan_starts(chain)):
        if start is None:
            continue
        before, link = chain.links[start.index], chain.links[index]
        for number in (start.index, index):
            if number not in known:
                known[number] = _learned(chain.links[number])
        theirs, ours = known[start.index], known[index]
        if theirs is not None and ours is not None and link.net and before.net:
            yield from _misfits(before, link, link.net, theirs, ours)
            yield from _missing(before, link, link.net, theirs, ours)
            yield from _unused(before, link, before.net, theirs, ours)


def check_deploys(nets: Sequence[Net]) -> Iterator[Finding]:
    """Find deploy nets that do not fit the train_val net beside them: their layers are no longer the same."""
    views = [(net, select_phases(net.message)) for net in nets]
    trained = [
        (net, phase)
        for net, phases in views
        for phase in phases
        if phase.phase == pb.TRAIN and any(map(is_loss, phase.layers))
    ]
    for net, phases in views:
        if any(phase.phase == pb.TRAIN for phase in phases) or not phases or not is_deployed(phases[0]):
            continue
        ours = _learned_in(net, NetState(pb.TEST))
        beside = [one for one in trained if Path(one[0].path).parent == Path(net.path).parent]
        known = [(other, phase, _learned_in(other, NetState(pb.TRAIN))) for other, phase in beside]
        alike = [
            one for one in known if ours and one[2] and 2 * len(ours.keys() & one[2].keys()) >= len(ours)
        ]
        if ours and alike:
            other, phase, theirs = max(
                alike, key=lambda one: len((ours or {}).keys() & (one[2] or {}).keys())
            )
            yield from _deploy(net, other, phase, ours, theirs or {})


@path_rule("deploy-missing", "warning", "a deploy net with layers that its train_val net does not have")
@path_rule("deploy-misfit", "error", "a deploy net whose layers do not fit the weights of its train_val net")
def _deploy(net: Net, other: Net, phase: PhaseNet, ours: _Learned, theirs: _Learned) -> Iterator[Finding]:
    norms = {layer.name for layer in phase.layers if layer.type == "BatchNorm"}
    if norms and not norms & ours.keys():  # its batch norms were folded: its weights are others
        return
    trained = Path(other.path).name
    for name, shapes in ours.items():
        given = theirs.get(name)
        misfit = show_misfit(shapes, given) if shapes and given else ""
        if misfit:
            what = f"layer '{name}' does not fit the weights of {trained}: {misfit}"
            yield finding(
                "deploy-misfit",
                _place(net, name),
                what,
                effect=f"Caffe stops with `Cannot copy param 0 weights from layer '{name}'; shape mismatch`",
                write=f"the layer as in {trained}",
            )
    new = [name for name, shapes in ours.items() if shapes and name not in theirs]
    if new:
        verb = "is" if len(new) == 1 else "are"
        what = f"{_layers(new)} of the deploy net {verb} not in {trained}"
        yield finding(
            "deploy-missing",
            _place(net, new[0]),
            what,
            effect="its weights are its fillers', as if never trained; Caffe says nothing of it",
            write=f"the names of {trained}",
        )
    lost = [name for name in _before_last(phase, ours) if theirs.get(name) and name not in ours]
    if lost:
        what = f"{_layers(lost)} of {trained} {'is' if len(lost) == 1 else 'are'} not in the deploy net"
        yield finding(
            "deploy-missing",
            net.path,
            what,
            effect=f"Caffe says `Ignoring source layer {lost[0]}`: the scores are those of another net",
            write=f"the layers of {trained}",
        )


def _before_last(phase: PhaseNet, ours: _Learned) -> list[str]:
    """Name the layers from which the last that a deploy net has too is computed."""
    common = [i for i, layer in enumerate(phase.layers) if ours.get(layer.name)]
    layers = {layer for one in common[-1:] for layer, _ in phase.behind((one, 0)) if layer >= 0}
    return [phase.layers[i].name for i in sorted(layers)]


def _learned_in(net: Net, state: NetState) -> _Learned | None:
    """Give what a net learns; None where its shapes do not fit, which is a rule of the net's own."""
    try:
        layers = infer_shapes(net.message, state.phase, level=state.level, stages=state.stages).layers
    except PrototxtError:
        return None
    return {each.layer.name: each.learned for each in layers if each.learned is None or each.learned}


def show_misfit(ours: tuple[Shape, ...], theirs: tuple[Shape, ...]) -> str:
    """Say how the first blob that does not fit differs; empty if all fit, what is not known included.

    >>> show_misfit(((10, 64), (10,)), ((20, 64), (20,)))
    '10x64, not 20x64'
    >>> show_misfit(((10, None),), ((10, 64),)), show_misfit(((10, 64),), ((10, 64), (10,)))
    ('', '1 blob, not 2')
    """
    if len(ours) != len(theirs):
        return f"{len(ours)} blob{'' if len(ours) == 1 else 's'}, not {len(theirs)}"
    for one, other in zip(ours, theirs, strict=True):
        if not shapes_fit(one, other):
            return f"{show_shape(one)}, not {show_shape(other)}"
    return ""


def _learned(link: Link) -> _Learned | None:
    if link.net is None:
        return None
    return _learned_in(link.net, train_state(link.solver.message, link.net.message))


@handover_rule(
    "handover-misfit",
    "error",
    "a layer whose weights have another shape in the phase that they are from",
    write="the same shape in both nets, or another name for the layer, so that it starts anew",
)
def _misfits(before: Link, link: Link, net: Net, theirs: _Learned, ours: _Learned) -> Iterator[Finding]:
    unfit = {}
    for name, shapes in ours.items():
        given = theirs.get(name)
        misfit = show_misfit(shapes, given) if shapes and given else ""
        if misfit:
            unfit[name] = misfit
    if unfit:
        (first, misfit), *others = unfit.items()
        more = f"; nor do {show_names([name for name, _ in others])}" if others else ""
        what = f"layer '{first}' of {link.name} does not fit the weights of {before.name}: {misfit}{more}"
        effect = f"Caffe stops with `Cannot copy param 0 weights from layer '{first}'; shape mismatch`"
        if "blob" in misfit:
            effect = f"Caffe stops with `Incompatible number of blobs for layer {first}`"
        yield finding("handover-misfit", _place(net, first), what, link.name, effect=effect, count=len(unfit))


@handover_rule(
    "handover-missing", "warning", "a layer that learns, and is not in the net that its weights are from"
)
def _missing(before: Link, link: Link, net: Net, theirs: _Learned, ours: _Learned) -> Iterator[Finding]:
    new = [name for name, shapes in ours.items() if shapes and name not in theirs]
    if new:
        left = [name for name in theirs if name not in ours]
        near = difflib.get_close_matches(new[0], left, n=1, cutoff=0.3)
        verb = "learns, and is" if len(new) == 1 else "learn, and are"
        what = f"{_layers(new)} of {link.name} {verb} not in the net of {before.name}"
        pronoun = "it starts" if len(new) == 1 else "they start"
        yield finding(
            "handover-missing",
            _place(net, new[0]),
            what,
            link.name,
            effect=f"{pronoun} from the fillers, as if never trained; Caffe says nothing of it",
            write=f'name: "{near[0]}", as in {before.name}' if near else "nothing, if it is intended",
            count=len(new),
        )


@handover_rule(
    "handover-unused",
    "note",
    "a layer that has learned, and is not in the next phase's net",
    write="the same names in both nets, if it is to be kept",
)
def _unused(before: Link, link: Link, net: Net, theirs: _Learned, ours: _Learned) -> Iterator[Finding]:
    left = [name for name, shapes in theirs.items() if shapes and name not in ours]
    if left:
        verb = "learns, and is" if len(left) == 1 else "learn, and are"
        what = f"{_layers(left)} of {before.name} {verb} not in the net of {link.name}"
        yield finding(
            "handover-unused",
            _place(net, left[0]),
            what,
            link.name,
            effect=f"Caffe says `Ignoring source layer {left[0]}`, and what was learned there is lost",
            count=len(left),
        )


def _layers(names: list[str]) -> str:
    return f"layer '{names[0]}'" if len(names) == 1 else show_layers(names)


def _place(net: Net, name: str) -> str:
    index = next(index for index, layer in enumerate(net.message.layer) if layer.name == name)
    return net.where(f"layer[{index}].name")


_MOST_DECAY_TIMES = 4


class _Setting(NamedTuple):
    """A field of a solver that phases share: how it is read, and what it does where it changes."""

    field: str
    read: Callable[[pb.SolverParameter], Hashable]
    effect: str


def solver_type(solver: pb.SolverParameter) -> str:
    """Give a solver's type, by its older field where only that is given.

    >>> solver_type(pb.SolverParameter()), solver_type(pb.SolverParameter(solver_type="ADAM"))
    ('SGD', 'ADAM')
    """
    is_old = solver.HasField("solver_type") and not solver.HasField("type")
    return pb.SolverParameter.SolverType.Name(solver.solver_type) if is_old else solver.type


_SETTINGS = (
    _Setting(
        "type",
        solver_type,
        "the same rate makes other updates, and the history does not fit",
    ),
    _Setting("regularization_type", lambda solver: solver.regularization_type, "weight decay differs"),
    # Where it is absent, another rule says so.
    _Setting(
        "solver_mode",
        lambda solver: (
            pb.SolverParameter.SolverMode.Name(solver.solver_mode) if solver.HasField("solver_mode") else None
        ),
        "one of both is not what the machine has: a build without GPUs stops at GPU",
    ),
)


def check_changes(chain: Chain) -> Iterator[Finding]:
    """Find what a phase has otherwise than the phase that it starts from, and than all before that."""
    for index, start in enumerate(plan_starts(chain)):
        if start is None:
            continue
        earlier, link = chain.links[: start.index + 1], chain.links[index]
        yield from _settings(earlier, link)
        yield from _batch(earlier, link, start)
        yield from _momentum(earlier, link)
        is_last = index == len(chain.links) - 1
        if not (is_last and chain.is_whole and is_collapse(earlier[-1], link)):
            yield from _decay(earlier, link)
        yield from _transforms(earlier, link)
        yield from _source(earlier, link)
        yield from _norms(earlier, link)
    yield from _tested(chain)


solver_changes = handover_rule(
    "solver-changes",
    "warning",
    "momentum, type, solver_mode or regularization_type other than in the phase before",
)


@solver_changes
def _settings(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
    before = earlier[-1]
    for setting in _SETTINGS:
        new, old = setting.read(link.solver.message), setting.read(before.solver.message)
        values = [setting.read(one.solver.message) for one in earlier]
        if new in values or None in (new, old) or str(new).upper() == str(old).upper():
            continue
        what = f"{setting.field} is {new} in {link.name}, and {old} in {before.name}"
        place = link.solver.where(setting.field)
        yield finding(
            "solver-changes",
            place,
            what,
            link.name,
            effect=setting.effect,
            write=f"{setting.field} of {before.name}, unless it is intended",
            field=setting.field,
        )


@handover_rule(
    "batch-changes",
    "warning",
    "iter_size or batch_size other than in the phase before, and the rate not",
    effect="the rate is that of another batch, and the iterations are other epochs",
)
def _batch(earlier: Sequence[Link], link: Link, start: Start) -> Iterator[Finding]:
    """Find images in an iteration that are other than before, where the rate goes on as it was."""
    before = earlier[-1]
    ours, theirs = batch_per_rank(link), batch_per_rank(before)
    if not ours or not theirs or ours == theirs or link.ranks != before.ranks:
        return
    if not has_rates(before.solver.message) or not has_rates(link.solver.message):
        return
    last, first = snapshot_rate(before, start.iteration), lr_at(link.solver.message, first_iter(link))
    if is_jump(last, first) or link.solver.message.warmup_iter:
        return
    is_sub = link.solver.message.iter_size != before.solver.message.iter_size
    field = "iter_size" if is_sub else "batch_size"
    what = f"an update of {link.name} is of {ours} images a rank, {before.name}'s of {theirs}, at one rate"
    place = link.solver.where("iter_size" if is_sub else "base_lr")
    yield finding(
        "batch-changes",
        place,
        what,
        link.name,
        write=f"a rate {ours / theirs:.3g} times as high, or the {field} of {before.name}",
        before=theirs,
        after=ours,
    )


@solver_changes
def _momentum(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
    before, solver = earlier[-1].solver.message, link.solver.message
    new, old = solver.momentum, before.momentum
    if any(new == one.solver.message.momentum for one in earlier):
        return
    if solver_type(solver).upper() != solver_type(before).upper():
        return
    shown = show_number(new) if solver.HasField("momentum") else "not given, which means 0,"
    what = f"momentum is {shown} in {link.name}, and {show_number(old)} in {earlier[-1].name}"
    effect = "the weights move differently at the same rate"
    if 0 <= new < 1 and 0 <= old < 1:
        times = (1 - old) / (1 - new)
        effect = f"updates add up to rate / (1 - momentum): {times:.3g} times as far at the same rate"
    place = link.solver.where("momentum")
    yield finding(
        "solver-changes",
        place,
        what,
        link.name,
        effect=effect,
        write=f"momentum: {show_number(old)}",
        field="momentum",
    )


@handover_rule(
    "weight-decay-changes",
    "warning",
    "a weight decay gone, or changed more than 4 times, in a phase that is not a collapse",
)
def _decay(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
    old, new = earlier[-1].solver.message.weight_decay, link.solver.message.weight_decay
    if any(new == one.solver.message.weight_decay for one in earlier) or min(old, new) < 0:
        return
    low, high = sorted((old, new))
    if low and high / low <= _MOST_DECAY_TIMES + _ROUNDING:
        return
    is_given = link.solver.message.HasField("weight_decay")
    shown = f"{new:.4g}" if is_given else "not given, which means 0,"
    what = f"weight_decay is {shown} in {link.name}, and {old:.4g} in {earlier[-1].name}"
    effect = "the weights shrink towards another balance, and with them the effect of the rate"
    if not new:
        effect = "the weights no longer shrink: they grow, and the rate has less and less effect"
    place = link.solver.where("weight_decay")
    yield finding(
        "weight-decay-changes",
        place,
        what,
        link.name,
        effect=effect,
        write=f"weight_decay: {old:.4g}, unless the change is intended",
        before=old,
        after=new,
    )


@handover_rule(
    "crop-changes",
    "note",
    "training data with another crop_size than in the phase before",
    effect="objects are of another size than the weights were trained with",
)
@handover_rule(
    "transforms-change",
    "warning",
    "training data with another mean or scale than in the phase before",
    effect="the weights, and the statistics of batch norms, were made with other numbers: the loss jumps",
)
def _transforms(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
    for field in ("mean_value", "mean_file", "scale", "force_color", "force_gray", "crop_size"):
        seen = [_values(one, field) for one in earlier]
        new, old = _values(link, field), seen[-1]
        if not new or not old or new in seen:
            continue
        other = earlier[-1].name
        what = f"{field} is {new} in the training data of {link.name}, and {old} in that of {other}"
        write = f"the same {field} in both nets, unless it is intended"
        place = _data_place(link, f"transform_param.{field}")
        if field == "crop_size":
            yield finding("crop-changes", place, what, link.name, write=write)
        else:
            yield finding("transforms-change", place, what, link.name, write=write, field=field)


def _values(link: Link, field: str) -> str:
    """Show a field of the transforms that make training data, equal values once; empty if none does."""
    shown = [show_transform(one.transform_param, field) for one in link.sources if one.type in SOURCE_BLOCKS]
    return "; ".join(dict.fromkeys(shown))


@handover_rule(
    "train-source-changes",
    "note",
    "training data from another source than in the phase before",
    effect="epochs, classes and their order may be others",
    write="one source, unless it is intended",
)
def _source(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
    known = [_sources(one.sources) for one in earlier]
    new, old = _sources(link.sources), known[-1]
    if new and old and _same(new) not in map(_same, known):
        what = f"{link.name} trains on {', '.join(new)}, and {earlier[-1].name} on {', '.join(old)}"
        place = _data_place(link, "data_param.source")
        yield finding("train-source-changes", place, what, link.name)


@handover_rule(
    "train-on-test",
    "warning",
    "training on the records that another net of the chain is tested on",
    effect="the accuracy is of images that the net was trained on",
    write="the training LMDB",
)
def _tested(chain: Chain) -> Iterator[Finding]:
    """Find training on what another net is tested with; of the same net, a rule of the net's own says so."""
    tests: list[tuple[Net, str]] = []
    for link in chain.links:
        solver = link.solver.message
        for net in ([link.net] if link.net else []) + [*link.test_nets]:
            for state in test_states(solver, net.message):
                tests += [(net, one) for one in _sources(select_sources(net.message, state))]
    for net in chain.tested:
        tests += [(net, one) for one in _sources(select_sources(net.message, NetState(pb.TEST)))]
    for link in chain.links:
        trained = _same(_sources(link.sources))
        others = [(net, one) for net, one in tests if link.net and net.path != link.net.path]
        for net, source in others:
            if same_path(source) in trained:
                what = f"{link.name} trains on '{source}', on which {net.path} is tested"
                place = _data_place(link, "data_param.source")
                yield finding("train-on-test", place, what, link.name)
                break


def _same(sources: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(same_path, sources))


def _sources(layers: Iterable[pb.LayerParameter]) -> tuple[str, ...]:
    blocks = [getattr(layer, SOURCE_BLOCKS[layer.type]) for layer in layers if layer.type in SOURCE_BLOCKS]
    return tuple(block.source for block in blocks if getattr(block, "source", ""))


def _data_place(link: Link, field: str) -> str:
    """Give the place of a field of the first layer that makes training data."""
    if link.net is None:
        return link.solver.path
    made = next(layer for layer in link.sources if layer.type in SOURCE_BLOCKS)
    layers = enumerate(link.net.message.layer)
    # A NaN equals nothing: a layer that holds one is found by its file.
    index = next((index for index, layer in layers if layer is made or layer == made), None)
    return link.net.path if index is None else link.net.where(f"layer[{index}].{field}")


@handover_rule("norms-change", "warning", "BatchNorm with another moving_average_fraction or eps than before")
def _norms(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
    before = earlier[-1]
    if link.net is None or before.net is None or link.net.path == before.net.path:
        return
    for field, effect in (
        (
            "moving_average_fraction",
            "the running statistics continue with another memory of earlier batches",
        ),
        ("eps", "the same statistics normalize differently: the outputs shift"),
    ):
        values, old = _of_norms(link.net, field), _of_norms(before.net, field)
        changed = [name for name in values if name in old and values[name] != old[name]]
        if not changed or any(values == _of_norms(one.net, field) for one in earlier if one.net):
            continue
        name, count = changed[0], len(changed)
        change = f"{show_number(values[name])} in {link.name}, and {show_number(old[name])} in {before.name}"
        what = f"{field} of {_layers(changed)} is {change}"
        index = next(i for i, layer in enumerate(link.net.message.layer) if layer.name == name)
        place = link.net.where(f"layer[{index}].batch_norm_param.{field}")
        yield finding(
            "norms-change",
            place,
            what,
            link.name,
            effect=effect,
            write=f"{field}: {show_number(old[name])}",
            field=field,
            count=count,
        )


def _of_norms(net: Net, field: str) -> dict[str, float]:
    """Give a field of each BatchNorm of TRAIN, by the layer's name."""
    norms = [layer for layer in select_layers(net.message, pb.TRAIN) if layer.type == "BatchNorm"]
    return {layer.name: getattr(layer.batch_norm_param, field) for layer in norms}


_REFUSED = "Caffe stops with `Unknown bottom blob 'data'`, or another's name"

no_test_net = path_rule(
    "no-test-net", "error", "a test during training, or after it, on a net without a data layer for TEST"
)


@path_rule(
    "last-net-without-test",
    "warning",
    "a last phase whose net cannot be tested",
    write="a data layer with include { phase: TEST } in it, or test with a net that has one",
    explanation=Explanation(
        "`caffe test` needs a data layer for TEST, which this net lacks: the model cannot be tested with it.",
        "A data layer with include { phase: TEST }, or --script with the command that tests another net.",
    ),
)
@no_test_net
def check_steps(chain: Chain) -> Iterator[Finding]:
    """Find steps that their nets, or their solvers, do not allow."""
    for link in chain.links:
        yield from _solver(link, has_gpus=chain.setting.has_gpus)
        yield from _data(link)
    last = chain.links[-1]
    for net in chain.tested:
        if not has_source(net.message, NetState(pb.TEST)):
            what = f"the chain's test uses {net.path}, which has no data layer for TEST"
            yield finding(
                "no-test-net",
                net.path,
                what,
                effect=_REFUSED,
                write="a data layer with include { phase: TEST }",
            )
    if chain.is_whole and not chain.tested and last.net and not _can_be_tested(last, last.net):
        what = f"the last phase's net {last.net.path} has no data layer for TEST"
        yield finding(
            "last-net-without-test",
            last.solver.where("net"),
            what,
            last.name,
            effect=f"`caffe test` on it fails with {_REFUSED.partition('with ')[2]}",
        )


def _can_be_tested(link: Link, net: Net) -> bool:
    """Whether the last phase's net has data for TEST, in any state of the solver's; or another is tested."""
    solver = link.solver.message
    states = (NetState(pb.TEST), *test_states(solver, net.message))
    return _has_own(solver) or any(has_source(net.message, state) for state in states)


def _has_own(solver: pb.SolverParameter) -> bool:
    return bool(solver.test_net or solver.test_net_param)


@path_rule(
    "solver-mode-absent",
    "warning",
    "no solver_mode: the default is GPU",
    effect="a build without GPUs stops with `Cannot use GPU in CPU-only Caffe`",
    write="solver_mode: CPU",
    explanation=Explanation(
        "Caffe's default is GPU: a build for CPUs stops. For Caffes that are built for GPUs, as "
        "with --dialect bvlc, it is not a finding.",
        "solver_mode: CPU.",
    ),
)
@path_rule(
    "test-interval-alone",
    "warning",
    "a test_interval without test_iter: it never tests",
    effect="Caffe makes no test net, and never tests",
    write="test_iter: the test images / the test batch_size",
)
@path_rule(
    "test-iter-alone",
    "error",
    "a test_iter without test_interval: Caffe refuses it",
    effect="Caffe stops with `Check failed: param_.test_interval() > 0`",
    write="test_interval: the iterations between tests",
)
def _solver(link: Link, *, has_gpus: bool) -> Iterator[Finding]:
    solver, where = link.solver.message, link.solver.where
    if not has_gpus and not solver.HasField("solver_mode"):
        what = "solver_mode is absent, and the default is GPU"
        yield finding("solver-mode-absent", link.solver.path, what, link.name)
    if solver.test_interval and not solver.test_iter:
        what = f"test_interval {solver.test_interval} without test_iter"
        yield finding("test-interval-alone", where("test_interval"), what, link.name)
    if solver.test_iter and not solver.test_interval:
        what = "test_iter without test_interval"
        yield finding("test-iter-alone", where("test_iter"), what, link.name)


@path_rule(
    "no-train-net",
    "error",
    "a net without a data layer for TRAIN",
    write="a data layer with include { phase: TRAIN }",
)
def _data(link: Link) -> Iterator[Finding]:
    solver, net = link.solver.message, link.net
    if net is None:
        return
    if not has_source(net.message, train_state(solver, net.message)):
        what = f"{net.path} has no data layer for TRAIN{_staged(solver.train_state)}"
        yield finding("no-train-net", net.path, what, link.name, effect=_REFUSED)
    if not (solver.test_iter or solver.test_interval):
        return
    for tested in link.test_nets if _has_own(solver) else (net,):
        for state, given in _given_states(solver, tested):
            if not has_source(tested.message, state):
                yield _no_test(link, tested, given)


def _given_states(solver: pb.SolverParameter, net: Net) -> Iterator[tuple[NetState, pb.NetState]]:
    """Give each state in which a net may be tested; of several test nets it is not told which has which."""
    states = test_states(solver, net.message)
    if _has_own(solver) and len(states) > 1:
        return iter(())
    return zip(states, solver.test_state or (pb.NetState(),), strict=True)


@no_test_net
def _no_test(link: Link, net: Net, state: pb.NetState) -> Finding:
    solver = link.solver
    tests = bool(solver.message.test_iter)
    what = f"{link.name} tests while it trains, and {net.path} has no data layer for TEST{_staged(state)}"
    field = "test_iter[0]" if tests else "test_interval"
    return finding(
        "no-test-net",
        solver.where(field),
        what,
        link.name,
        effect=_REFUSED if tests else f"it never tests; once test_iter is given {_REFUSED}",
        write="a data layer with include { phase: TEST }, or no test_iter and test_interval",
    )


def _staged(state: pb.NetState) -> str:
    """Say the stages and level that a solver asks for, if it does."""
    parts = [f"stage '{stage}'" for stage in state.stage]
    if state.HasField("level"):
        parts.append(f"level {state.level}")
    return f" in {' and '.join(parts)}" if parts else ""
