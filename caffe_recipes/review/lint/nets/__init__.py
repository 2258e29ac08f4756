"""What is wrong with one net: its layers, blobs, shapes, data and weights, in each phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import OURS, Dialect, load_dialects
from caffe_recipes.caffe.documents import Document
from caffe_recipes.review.findings import SEVERITIES, Finding, Severity
from caffe_recipes.review.lint.nets import (
    blobs,
    data,
    fillers,
    labels,
    learning,
    norms,
    old,
    phases,
    reads,
    refusals,
    shapes,
    transforms,
)
from caffe_recipes.review.lint.nets.old import upgrade_old
from caffe_recipes.review.lint.nets.view import DatumOf, Draft, NetView, PhaseNet, select_phases

# Each rule's severity, and what it finds.
NET_RULES: Mapping[str, tuple[Severity, str]] = MappingProxyType(
    {
        **old.RULES,
        **phases.RULES,
        **blobs.RULES,
        **shapes.RULES,
        **labels.RULES,
        **learning.RULES,
        **data.RULES,
        **transforms.RULES,
        **norms.RULES,
        **fillers.RULES,
        **refusals.RULES,
        **reads.RULES,
    }
)

# What TRAIN and TEST, or a loss and an accuracy, tell in other words.
_ONCE_A_PLACE = frozenset(
    ("blob-too-large", "outputs-above-classes", "outputs-below-classes", "shape-misfit")
)

_OF_FILE: tuple[Callable[[NetView], Iterator[Draft]], ...] = (
    phases.check_rules_of_layers,
    phases.check_phases,
    data.check_data,
    transforms.check_transforms,
    fillers.check_fillers,
    learning.check_multipliers,
    refusals.check_refusals,
    reads.check_reads,
)
_OF_PHASE: tuple[Callable[[PhaseNet], Iterator[Draft]], ...] = (
    blobs.check_blobs,
    shapes.check_learned,
    learning.check_learning,
    transforms.check_test_transforms,
    norms.check_norms,
    fillers.check_zero_weights,
)


def check_net(
    document: Document[pb.NetParameter],
    *,
    classes: int | None = None,
    datum_of: DatumOf = lambda source: None,
    dialect: str = OURS,
) -> list[Finding]:
    """Check one net, in each phase for which it makes data; gravest first, then as in the file.

    `classes` is how many classes the labels count, `datum_of` gives the first Datum of a source, or None,
    `dialect` names the Caffe whose layer types and fields there are. A finding of both phases is given once.
    """
    old: list[Draft] = []
    if document.message.layers:
        document, old = upgrade_old(document)
    drafts = [*old, *_drafts(document.message, classes, datum_of, load_dialects()[dialect])]
    merged: dict[object, Draft] = {}
    for draft in drafts:
        of_place = draft.rule in _ONCE_A_PLACE and draft.layer is not None
        merged.setdefault(draft[:3] if of_place else draft, draft)
    ordered = sorted(
        merged.values(), key=lambda draft: (_gravity(draft), -1 if draft.layer is None else draft.layer)
    )
    return [_place(document, draft) for draft in ordered]


def _drafts(
    net: pb.NetParameter, classes: int | None, datum_of: DatumOf, dialect: Dialect
) -> Iterator[Draft]:
    inferred = [shapes.infer_phase(phase, datum_of) for phase in select_phases(net)]
    view = NetView(net, tuple(phase for phase, _ in inferred), classes, datum_of, dialect)
    for check in _OF_FILE:
        yield from check(view)
    for phase, unfit in inferred:
        yield from unfit
        yield from labels.check_labels(view, phase)
        yield from data.check_train_data(view, phase)
        for check_phase in _OF_PHASE:
            yield from check_phase(phase)


def _gravity(draft: Draft) -> int:
    return SEVERITIES.index(NET_RULES[draft.rule][0])


def _place(document: Document[pb.NetParameter], draft: Draft) -> Finding:
    path = draft.field
    if draft.layer is not None:
        path = f"layer[{draft.layer}].{draft.field}"
    return Finding(
        id=draft.rule,
        severity=NET_RULES[draft.rule][0],
        where=document.where(path),
        what=draft.what,
        effect=draft.effect,
        write=draft.write,
        values=MappingProxyType(dict(draft.values)),
    )
