"""Call the checks of all rules on a chain or on a net, and sort the findings in the order of the files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from caffe_recipes.caffe.chain import batch_per_rank, plan_starts, solver_type, stop_phases
from caffe_recipes.caffe.dialects import OURS
from caffe_recipes.caffe.dialects.engine import find_judge
from caffe_recipes.caffe.net_states import train_state
from caffe_recipes.caffe.prototxt import LAYER
from caffe_recipes.review.lint.findings import SEVERITIES, split_place
from caffe_recipes.review.lint.inference import infer_phase
from caffe_recipes.review.lint.learned_blobs import find_learned
from caffe_recipes.review.lint.net_view import NetView, select_phases
from caffe_recipes.review.lint.old_nets import DocumentWithData, add_data, upgrade_old
from caffe_recipes.review.lint.subjects import (
    CHAIN_SUBJECTS,
    JOIN_SUBJECTS,
    LAYER_SUBJECTS,
    NET_SUBJECTS,
    PHASE_SUBJECTS,
    SOLVER_SUBJECTS,
    Join,
    SolverView,
    phase_rule,
)

if TYPE_CHECKING:
    from caffe_recipes.caffe import pb
    from caffe_recipes.caffe.chain import Chain, Link
    from caffe_recipes.caffe.prototxt import Document
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.learned_blobs import Learned
    from caffe_recipes.review.lint.net_view import DatumOf, LabelsOf


def check_chain(chain: Chain) -> Iterator[Finding]:
    """Find the mistakes in a chain of phases, except those in each net by itself."""
    if not chain.links:
        return
    chain = stop_phases(chain)
    for link in chain.links:
        view = SolverView(
            link,
            _upgrade_type(link.solver.message),
            is_last=chain.is_whole and link is chain.links[-1],
            is_alone=len(chain.links) == 1,
            batch=(batch_per_rank(link) or 0) * (link.ranks or chain.facts.ranks or 0),
        )
        # The checks return the field as the place of a finding.
        for of_solver in SOLVER_SUBJECTS:
            yield from (found.located(link.solver.where, link.name) for found in of_solver.run(view))
    for of_chain in CHAIN_SUBJECTS:
        yield from of_chain.run(chain)
    for join in _plan_joins(chain):
        for of_join in JOIN_SUBJECTS:
            yield from of_join.run(join)


def _plan_joins(chain: Chain) -> Iterator[Join]:
    nets = {link.net.path: link.net for link in chain.links if link.net}
    learned_in = cache(lambda path, state: find_learned(nets[path], state))  # phases share their nets

    def learned(link: Link) -> Learned | None:
        net = link.net
        return learned_in(net.path, train_state(link.solver.message, net.message)) if net else None

    for link, start in zip(chain.links, plan_starts(chain), strict=True):
        if start is not None:
            yield Join(chain, chain.links[: start.index + 1], link, start, learned)


def sort_findings(findings: Iterable[Finding], paths: Iterable[str]) -> list[Finding]:
    """Sort findings by file, in the order of `paths`, and by line, without duplicates; other files first."""
    files = {path: index for index, path in enumerate(dict.fromkeys(paths))}
    placed: dict[tuple[str, str, str], tuple[tuple[int, int, int], Finding]] = {}
    for found in findings:
        path, line, column = split_place(found.where)
        order = (files.get(path, -1), line, column)
        placed.setdefault((found.id, found.where, found.what), (order, found))
    return [found for _, found in sorted(placed.values(), key=lambda pair: pair[0])]


# Rules that may report one mistake twice in different words: for TRAIN and TEST, or a loss and an accuracy.
_ONCE_PER_PLACE = frozenset(
    ("blob-too-large", "outputs-above-classes", "outputs-below-classes", "shape-misfit")
)


def check_net(
    document: Document[pb.NetParameter],
    *,
    classes: int | None = None,
    datum_of: DatumOf = lambda source: None,
    labels_of: LabelsOf = lambda source: None,
    dialect: str = OURS,
) -> list[Finding]:
    """Check a net in each phase that it has data for; most severe findings first, then in file order.

    `classes` is the number of classes of the labels. `datum_of` returns the first Datum of a source, or None,
    and `labels_of` its smallest and largest label.
    `dialect` is the Caffe whose layer types and fields are valid. A finding of both phases is reported once.
    """
    old: list[Finding] = []
    if document.message.layers:
        document, old = upgrade_old(document)
    if not document.message.input and not select_phases(document.message):
        document, without_data = add_data(document)
        old += without_data
    datum_of = cache(datum_of)
    phases = [replace(phase, given=document.given) for phase in select_phases(document.message)]
    inferred = [infer_phase(phase, datum_of) for phase in phases]
    view = NetView(
        document.message,
        tuple(phase for phase, _ in inferred),
        classes,
        datum_of,
        find_judge(dialect),
        labels_of,
    )
    found = [*old, *_check_layers(view, [misfits for _, misfits in inferred])]
    if isinstance(document, DocumentWithData):
        found = [one for one in found if not one.where.startswith(document.added)]
    once: dict[tuple[str, ...], Finding] = {}
    for one in found:
        of_place = one.id in _ONCE_PER_PLACE and one.where
        once.setdefault((one.id, one.where) if of_place else (one.id, one.where, one.what), one)
    return [one.located(document.where) for one in sorted(once.values(), key=_finding_order)]


def _finding_order(found: Finding) -> tuple[int, int]:
    """Return a sort key for a net's findings: by severity, then by layer; the whole net comes first."""
    layer = LAYER.match(found.where)
    return SEVERITIES.index(found.severity), int(layer[1]) if layer else -1


def _check_layers(view: NetView, misfits_of: Sequence[Sequence[Finding]]) -> Iterator[Finding]:
    yield from phase_rule.run(view)
    for of_layer in LAYER_SUBJECTS:
        for index, layer in enumerate(view.net.layer):
            yield from of_layer.run(view, index, layer)
    for of_net in NET_SUBJECTS:
        yield from of_net.run(view)
    for phase, misfits in zip(view.phases, misfits_of, strict=True):
        yield from misfits
        for of_phase in PHASE_SUBJECTS:
            yield from of_phase.run(view, phase)


def _upgrade_type(solver: pb.SolverParameter) -> pb.SolverParameter:
    """Return the solver with the type that the old field `solver_type` stands for, if only that is set."""
    if solver.HasField("type") or not solver.HasField("solver_type"):
        return solver
    upgraded = deepcopy(solver)
    upgraded.type = solver_type(solver)
    upgraded.ClearField("solver_type")
    return upgraded
