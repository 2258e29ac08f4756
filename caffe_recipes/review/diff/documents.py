"""Read prototxts as Caffe reads them, and compare two of the same kind.

Of solvers, compare the fields and the learning rate of every iteration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import Link, find_rate_problem, read_links
from caffe_recipes.caffe.dialects.schema import parse_lenient, share_schema
from caffe_recipes.caffe.prototxt import (
    KINDS,
    MOST_BYTES,
    Document,
    decode_prototxt,
    empty_file_error,
    is_kind,
)
from caffe_recipes.caffe.rates import key_iters, lr_at, step_iters
from caffe_recipes.caffe.upgrade import upgrade_document
from caffe_recipes.review.diff.changes import Change, FileDiff, RateChange
from caffe_recipes.review.diff.messages import diff_messages
from caffe_recipes.review.diff.nets import diff_nets

_RATE_UNKNOWN = "rates are not compared: fields of another Caffe may change them"
_RATE_UNCHANGED = "the rate of every iteration is unchanged"

# The number of points at which long schedules are sampled before the search is refined.
_GRID = 2_000

_NETS = ("net_param", "train_net_param")


@dataclass(frozen=True)
class EpochScale:
    """Numbers that are not in a solver file: images per epoch, images per iteration, and iterations.

    `iterations` is the number trained, if Caffe is stopped before `max_iter`.
    """

    images: int | None = None
    batch: int | None = None
    iterations: int | None = None


def read_document(data: bytes, path: str, max_bytes: int = MOST_BYTES) -> Document[Message]:
    """Return the bytes of a prototxt of any Caffe as a document, whose message is upgraded as Caffe does.

    Raises PrototxtError if they are not a prototxt, or hold no field.
    """
    document = parse_lenient(decode_prototxt(data, path, max_bytes), path)
    if not document.message.ListFields():
        raise empty_file_error(path)
    document = replace(document, comments={})  # moving comments takes time
    return replace(document, message=upgrade_document(document).message)


def kind_of(message: Message) -> str:
    """Return the kind of a message: net, solver, ..."""
    return next(name for name, cls in KINDS.items() if is_kind(message, cls))


def diff_documents(
    old: Message,
    new: Message,
    path: str,
    defaults: bool = False,
    scales: tuple[EpochScale, EpochScale] = (EpochScale(), EpochScale()),
    note: str = "",
) -> FileDiff | None:
    """Return the difference of two messages of the same kind; None if they have the same meaning."""
    changes: list[Change]
    old, new = share_schema(old, new)
    rates = _diff_phase_rates(_read_phases(old, path), _read_phases(new, path), scales)
    if is_kind(old, pb.NetParameter) and is_kind(new, pb.NetParameter):
        changes = diff_nets(old, new, defaults=defaults)
    elif is_kind(old, pb.SolverParameter) and is_kind(new, pb.SolverParameter):
        changes = diff_solvers(old, new, defaults=defaults)
        if isinstance(old, pb.SolverParameter):
            problems = _rate_problems(old, new, bool(changes))
            kept = _RATE_UNCHANGED if changes and not rates and keeps_rate(old, new, scales) else ""
        else:
            problems, kept = [], _RATE_UNKNOWN
        note = "; ".join(filter(None, [*problems, kept, note]))
    else:
        changes = diff_messages(old, new, defaults=defaults)
    if not changes:
        rates = [rate for rate in rates if rate.old != rate.new]  # only the scale differs
    if not changes and not rates:
        return None
    return FileDiff(path, "changed", kind_of(new), tuple(changes), tuple(rates), note=note)


def _read_phases(message: Message, path: str) -> list[Link]:
    """Return the solvers of a file, in order; none if it is a net, or if another Caffe's fields are in it.

    Such fields may change the rate.
    """
    return read_links(Document(path, "", message, {}, {}), path)


def _diff_phase_rates(
    old: Sequence[Link], new: Sequence[Link], scales: tuple[EpochScale, EpochScale]
) -> list[RateChange]:
    """Return the rate changes of each solver that both sides have."""
    return [
        replace(rate, part=after.part)
        for before, after in zip(old, new, strict=False)
        for rate in diff_rates(before.solver.message, after.solver.message, scales)
    ]


def _rate_problems(old: pb.SolverParameter, new: pb.SolverParameter, is_changed: bool) -> list[str]:
    found = find_rate_problem(old), find_rate_problem(new)
    if not is_changed or found[0] == found[1]:
        return []
    return [f"{side}: {what}" for side, what in zip(("before", "after"), found, strict=True) if what]


@dataclass(frozen=True)
class _Schedule:
    """A solver's learning rate over the iterations that it trains."""

    solver: pb.SolverParameter
    scale: EpochScale

    @property
    def iterations(self) -> int:
        return max(0, self.scale.iterations or self.solver.max_iter)

    @property
    def epochs(self) -> float | None:
        images, batch = self.scale.images, self.scale.batch
        return self.iterations * self.solver.iter_size * batch / images if images and batch else None

    def rate(self, iteration: int) -> float:
        return lr_at(self.solver, iteration)


def diff_solvers(old: pb.SolverParameter, new: pb.SolverParameter, *, defaults: bool = False) -> list[Change]:
    """Return the fields in which two solvers differ; nets inside them are compared layer by layer."""
    both = [name for name in _NETS if old.HasField(name) and new.HasField(name)]
    found = diff_messages(old, new, defaults=defaults, skip=both)
    for name in both:
        for change in diff_nets(getattr(old, name), getattr(new, name), defaults=defaults):
            layer = f"{name}: {change.layer}" if change.layer else name
            found.append(Change(change.kind, change.field, change.old, change.new, layer, change.note))
    return found


def diff_rates(
    old: pb.SolverParameter,
    new: pb.SolverParameter,
    scales: tuple[EpochScale, EpochScale] = (EpochScale(), EpochScale()),
) -> list[RateChange]:
    """Return the numbers of two schedules, or an empty list if they are the same.

    The numbers are the rate at the start, on both sides of the end of the warm-up, and at the end; the
    iterations; the epochs if the scale is known; and the greatest ratio of the two rates. A side without a
    rate (see `find_rate_problem`) has None.

    >>> def solver(policy):
    ...     return pb.SolverParameter(lr_policy=policy, power=1, base_lr=1, max_iter=100)
    >>> [(rate.name, rate.old, round(rate.new, 2)) for rate in diff_rates(solver("fixed"), solver("poly"))]
    [('start', 1.0, 1.0), ('end', 1.0, 0.01), ('iterations', 100, 100), ('greatest ratio', 1.0, 0.01)]
    """
    both = _Schedule(old, scales[0]), _Schedule(new, scales[1])
    problems = find_rate_problem(old), find_rate_problem(new)
    found = []
    places = [key_iters(schedule.solver, schedule.iterations) for schedule in both]
    for key, name in _NAMES.items():
        at = [place[key] for place in places]
        rates = [
            None if problem or iteration is None else schedule.rate(iteration)
            for schedule, iteration, problem in zip(both, at, problems, strict=True)
        ]
        if rates != [None, None]:
            found.append(RateChange(name, rates[0], rates[1], (at[0], at[1])))
    found.append(RateChange("iterations", both[0].iterations, both[1].iterations))
    if any(schedule.epochs for schedule in both):
        found.append(RateChange("epochs", both[0].epochs, both[1].epochs))
    ratio = None if any(problems) else _greatest_ratio(*both)
    if ratio is None:
        return found if any(change.old != change.new for change in found) else []
    return [*found, ratio]


def keeps_rate(
    old: pb.SolverParameter,
    new: pb.SolverParameter,
    scales: tuple[EpochScale, EpochScale] = (EpochScale(), EpochScale()),
) -> bool:
    """Return whether two solvers specify the rate differently but train with the same rate throughout.

    >>> step = pb.SolverParameter(lr_policy="step", base_lr=1, gamma=0.1, stepsize=2, max_iter=4)
    >>> steps = pb.SolverParameter(lr_policy="multistep", base_lr=1, gamma=0.1, stepvalue=[2], max_iter=4)
    >>> keeps_rate(step, steps), keeps_rate(step, step)
    (True, False)
    """
    has_change = any(change.field.partition("[")[0] in _RATE_FIELDS for change in diff_messages(old, new))
    has_problem = find_rate_problem(old) or find_rate_problem(new)
    trains = _Schedule(old, scales[0]).iterations and _Schedule(new, scales[1]).iterations
    return bool(has_change and trains and not has_problem and not diff_rates(old, new, scales))


_RATE_FIELDS = frozenset({
    "base_lr", "lr_policy", "gamma", "power", "stepsize", "stepvalue", "max_iter", "lr_iter",
    "warmup_iter", "warmup_start_lr",
})  # fmt: skip

_NAMES = {
    "first": "start",
    "warmup_end": "end of warm-up",
    "after_warmup": "after warm-up",
    "last": "end",
}


def _greatest_ratio(old: _Schedule, new: _Schedule) -> RateChange | None:
    """Return the rates at the iteration where they differ by the greatest factor; None if they never differ.

    Only iterations that both train count. Up to 2,000 are all compared. Beyond that, an even grid and both
    sides of every jump are compared, and then the search is refined around the best point, which is exact for
    rates that change smoothly in between.
    """
    last = min(old.iterations, new.iterations) - 1

    def factor(iteration: int) -> float:
        a, b = old.rate(iteration), new.rate(iteration)
        return abs(math.log(b / a)) if a > 0 and b > 0 else 0.0

    step = max(1, last // _GRID)
    places = {*range(0, last + 1, step), *_jumps(old.solver, last), *_jumps(new.solver, last), last}
    best = max(sorted(place for place in places if 0 <= place <= last), key=factor, default=0)
    while step > 1:
        low, high = max(0, best - step), min(last, best + step)
        step = max(1, (high - low) // _GRID)
        best = max(best, *range(low, high + 1, step), key=factor)
    if last < 0 or factor(best) == 0:
        return None
    return RateChange("greatest ratio", old.rate(best), new.rate(best), (best, best))


def _jumps(solver: pb.SolverParameter, last: int) -> Iterator[int]:
    """Yield the iterations on both sides of each jump of the rate."""
    for jump in (solver.warmup_iter, *step_iters(solver, last)[:_GRID]):
        yield from (jump - 1, jump)
