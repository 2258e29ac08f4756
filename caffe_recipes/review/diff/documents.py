"""Read prototxts as Caffe reads them, and compare two of the same kind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import (
    KINDS,
    MOST_BYTES,
    Document,
    decode_prototxt,
    empty_file_error,
    parse_document,
)
from caffe_recipes.caffe.upgrade import upgrade_document
from caffe_recipes.review.diff.changes import Change, FileDiff
from caffe_recipes.review.diff.messages import diff_messages
from caffe_recipes.review.diff.nets import diff_nets
from caffe_recipes.review.diff.solvers import (
    EpochScale,
    diff_rates,
    diff_solvers,
    keeps_rate,
)
from caffe_recipes.review.lint.chain import Chain, find_rate_problem, read_links

if TYPE_CHECKING:
    from caffe_recipes.review.diff.changes import RateChange

_RATE_UNCHANGED = "the rate of every iteration is unchanged"


def read_message(data: bytes, path: str, max_bytes: int = MOST_BYTES) -> Message:
    """Return the message in the bytes of a prototxt, upgraded as Caffe does.

    Raises PrototxtError if they are not a prototxt, or hold no field.
    """
    document: Document[Message] = parse_document(decode_prototxt(data, path, max_bytes), path)
    if not document.message.ListFields():
        raise empty_file_error(path)
    return upgrade_document(document).message


def kind_of(message: Message) -> str:
    """Return the kind of a message: net, solver, ..."""
    return next(name for name, cls in KINDS.items() if isinstance(message, cls))


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
    rates = _diff_phase_rates(_read_chain(old, path), _read_chain(new, path), scales)
    if isinstance(old, pb.NetParameter) and isinstance(new, pb.NetParameter):
        changes = diff_nets(old, new, defaults=defaults)
    elif isinstance(old, pb.SolverParameter) and isinstance(new, pb.SolverParameter):
        changes = diff_solvers(old, new, defaults=defaults)
        problems = _rate_problems(old, new, bool(changes))
        kept = _RATE_UNCHANGED if changes and not rates and keeps_rate(old, new, scales) else ""
        note = "; ".join(filter(None, [*problems, kept, note]))
    else:
        changes = diff_messages(old, new, defaults=defaults)
    if not changes:
        rates = [rate for rate in rates if rate.old != rate.new]  # only the scale differs
    if not changes and not rates:
        return None
    return FileDiff(path, "changed", kind_of(new), tuple(changes), tuple(rates), note=note)


def _read_chain(message: Message, path: str) -> Chain:
    """Return the solvers of a file, in order; none if it is a net."""
    return Chain(tuple(read_links(Document(path, "", message, {}, {}), path)))


def _diff_phase_rates(old: Chain, new: Chain, scales: tuple[EpochScale, EpochScale]) -> list[RateChange]:
    """Return the rate changes of each solver that both sides have."""
    return [
        replace(rate, part=after.part)
        for before, after in zip(old.links, new.links, strict=False)
        for rate in diff_rates(before.solver.message, after.solver.message, scales)
    ]


def _rate_problems(old: pb.SolverParameter, new: pb.SolverParameter, is_changed: bool) -> list[str]:
    found = find_rate_problem(old), find_rate_problem(new)
    if not is_changed or found[0] == found[1]:
        return []
    return [f"{side}: {what}" for side, what in zip(("before", "after"), found, strict=True) if what]
