"""What a chain keeps from phase to phase, and a later phase has otherwise: updates and data."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shapes import select_layers
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.chains.chain import Chain, Link, Net, plan_starts
from caffe_recipes.review.lint.chains.joins import is_collapse
from caffe_recipes.review.lint.chains.states import State, select_sources, test_states
from caffe_recipes.review.lint.nets.view import SOURCE_BLOCKS, number, same_path, show_names
from caffe_recipes.review.lint.rules import finding

_MOST_DECAY_TIMES = 4
_ROUNDING = 0.01


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
    _Setting("regularization_type", lambda solver: solver.regularization_type, "weights decay otherwise"),
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
        yield from _momentum(earlier, link)
        is_last = index == len(chain.links) - 1
        if not (is_last and chain.is_whole and is_collapse(earlier[-1], link)):
            yield from _decay(earlier, link)
        yield from _transforms(earlier, link)
        yield from _source(earlier, link)
        yield from _norms(earlier, link)
    yield from _tested(chain)


def _settings(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
    before = earlier[-1]
    for setting in _SETTINGS:
        new, old = setting.read(link.solver.message), setting.read(before.solver.message)
        values = [setting.read(one.solver.message) for one in earlier]
        if new in values or None in (new, old) or str(new).upper() == str(old).upper():
            continue
        what = f"{setting.field} is {new} in {link.name}, and {old} in {before.name}"
        place, write = (
            link.solver.where(setting.field),
            f"{setting.field} of {before.name}, unless it is meant",
        )
        yield finding("solver-changes", place, what, setting.effect, write, link.name, field=setting.field)


def _momentum(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
    before, solver = earlier[-1].solver.message, link.solver.message
    new, old = solver.momentum, before.momentum
    if any(new == one.solver.message.momentum for one in earlier):
        return
    if solver_type(solver).upper() != solver_type(before).upper():
        return
    said = number(new) if solver.HasField("momentum") else "not given, which means 0,"
    what = f"momentum is {said} in {link.name}, and {number(old)} in {earlier[-1].name}"
    effect = "the weights move otherwise at the same rate"
    if 0 <= new < 1 and 0 <= old < 1:
        times = (1 - old) / (1 - new)
        effect = f"updates add up to rate / (1 - momentum): {times:.3g} times as far at the same rate"
    place, write = link.solver.where("momentum"), f"momentum: {number(old)}"
    yield finding("solver-changes", place, what, effect, write, link.name, field="momentum")


def _decay(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
    old, new = earlier[-1].solver.message.weight_decay, link.solver.message.weight_decay
    if any(new == one.solver.message.weight_decay for one in earlier) or min(old, new) < 0:
        return
    low, high = sorted((old, new))
    if low and high / low <= _MOST_DECAY_TIMES + _ROUNDING:
        return
    is_given = link.solver.message.HasField("weight_decay")
    said = f"{new:.4g}" if is_given else "not given, which means 0,"
    what = f"weight_decay is {said} in {link.name}, and {old:.4g} in {earlier[-1].name}"
    effect = "the weights shrink towards another balance, and with them the effect of the rate"
    if not new:
        effect = "the weights no longer shrink: they grow, and the rate has less and less effect"
    place, write = link.solver.where("weight_decay"), f"weight_decay: {old:.4g}, unless the change is meant"
    yield finding("weight-decay-changes", place, what, effect, write, link.name, before=old, after=new)


def _transforms(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
    kinds = {
        "transforms-change": (
            ("mean_value", "mean_file", "scale", "force_color", "force_gray"),
            "the weights, and the statistics of batch norms, were made with other numbers: the loss jumps",
        ),
        "crop-changes": (("crop_size",), "objects are of another size than the weights were trained with"),
    }
    for rule, (fields, effect) in kinds.items():
        for field in fields:
            seen = [_values(one, field) for one in earlier]
            new, old = _values(link, field), seen[-1]
            if not new or not old or new in seen:
                continue
            other = earlier[-1].name
            what = f"{field} is {new} in the training data of {link.name}, and {old} in that of {other}"
            write = f"the same {field} in both nets, unless it is meant"
            place = _data_place(link, f"transform_param.{field}")
            if rule == "crop-changes":
                yield finding("crop-changes", place, what, effect, write, link.name)
            else:
                yield finding("transforms-change", place, what, effect, write, link.name, field=field)


def _values(link: Link, field: str) -> str:
    """Show a field of the transforms that make training data, equal values once; empty if none does."""
    shown = (_show(layer.transform_param, field) for layer in link.sources if layer.type in SOURCE_BLOCKS)
    return "; ".join(dict.fromkeys(shown))


def _show(param: pb.TransformationParameter, field: str) -> str:
    value = getattr(param, field)
    if field == "mean_value":
        return ", ".join(map(number, value)) or "none"
    if isinstance(value, str):
        return f"'{value}'" if value else "none"
    return str(value).lower() if isinstance(value, bool) else number(value)


def _source(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
    known = [_sources(one.sources) for one in earlier]
    new, old = _sources(link.sources), known[-1]
    if new and old and _same(new) not in map(_same, known):
        what = f"{link.name} trains on {', '.join(new)}, and {earlier[-1].name} on {', '.join(old)}"
        effect = "epochs, classes and their order may be others"
        write = "one source, unless it is meant"
        place = _data_place(link, "data_param.source")
        yield finding("train-source-changes", place, what, effect, write, link.name)


def _tested(chain: Chain) -> Iterator[Finding]:
    """Find training on what another net is tested with; of the same net, a rule of the net's own says so."""
    tests: list[tuple[Net, str]] = []
    for link in chain.links:
        solver = link.solver.message
        for net in ([link.net] if link.net else []) + [*link.test_nets]:
            for state in test_states(solver, net.message):
                tests += [(net, one) for one in _sources(select_sources(net.message, state))]
    for net in chain.tested:
        tests += [(net, one) for one in _sources(select_sources(net.message, State(pb.TEST)))]
    for link in chain.links:
        trained = _same(_sources(link.sources))
        others = [(net, one) for net, one in tests if link.net and net.path != link.net.path]
        for net, source in others:
            if same_path(source) in trained:
                what = f"{link.name} trains on '{source}', on which {net.path} is tested"
                effect = "the accuracy is of images that the net was trained on"
                place = _data_place(link, "data_param.source")
                yield finding("train-on-test", place, what, effect, "the training LMDB", link.name)
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


def _norms(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
    before = earlier[-1]
    if link.net is None or before.net is None or link.net.path == before.net.path:
        return
    for field, effect in (
        ("moving_average_fraction", "the running statistics go on with another memory of the batches before"),
        ("eps", "the same statistics normalize otherwise: the outputs shift"),
    ):
        values, old = _of_norms(link.net, field), _of_norms(before.net, field)
        changed = [name for name in values if name in old and values[name] != old[name]]
        if not changed or any(values == _of_norms(one.net, field) for one in earlier if one.net):
            continue
        name, count = changed[0], len(changed)
        layers = f"layer '{name}'" if count == 1 else f"{count} layers ({show_names(changed)})"
        change = f"{number(values[name])} in {link.name}, and {number(old[name])} in {before.name}"
        what = f"{field} of {layers} is {change}"
        index = next(i for i, layer in enumerate(link.net.message.layer) if layer.name == name)
        place = link.net.where(f"layer[{index}].batch_norm_param.{field}")
        write = f"{field}: {number(old[name])}"
        yield finding("norms-change", place, what, effect, write, link.name, field=field, count=count)


def _of_norms(net: Net, field: str) -> dict[str, float]:
    return {name: getattr(param, field) for name, param in _batch_norms(net).items()}


def _batch_norms(net: Net) -> dict[str, pb.BatchNormParameter]:
    layers = select_layers(net.message, pb.TRAIN)
    return {layer.name: layer.batch_norm_param for layer in layers if layer.type == "BatchNorm"}
