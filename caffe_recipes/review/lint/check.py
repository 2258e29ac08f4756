"""Apply all rules to a chain or to a net, and sort the findings in the order of the files.

Report what this Caffe or another one would refuse, ignore or read differently in a prototxt.

Explain a rule: what it checks, what will happen, and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import batch_per_rank, stop_phases
from caffe_recipes.caffe.dialects import OURS, find_dialect, load_dialects
from caffe_recipes.caffe.dialects.check import DIFFERENCE_RULES, check_message
from caffe_recipes.caffe.dialects.forks import FIELDS
from caffe_recipes.caffe.dialects.schema import (
    describe_name,
    foreign_values,
    is_known,
    outer_foreign,
    parse_lenient,
    rounds_down,
    to_ours,
)
from caffe_recipes.caffe.prototxt import LAYER
from caffe_recipes.caffe.text.parser import V1_TYPE
from caffe_recipes.errors import InputError
from caffe_recipes.review.columns import align_columns
from caffe_recipes.review.lint import data_rules, layer_rules, weight_rules, wiring_rules
from caffe_recipes.review.lint.chain_rules import check_changes, check_handovers, check_joins, check_steps
from caffe_recipes.review.lint.large_batch_rules import check_moving_averages, check_warmups
from caffe_recipes.review.lint.net_view import (
    DocumentWithData,
    NetView,
    add_data,
    select_phases,
    upgrade_old,
)
from caffe_recipes.review.lint.recipe_rules import check_epochs, check_norms, check_tests
from caffe_recipes.review.lint.rules import (
    RULES,
    SEVERITIES,
    Finding,
    Fix,
    dialect_rule,
    file_rule,
    finding,
    split_place,
)
from caffe_recipes.review.lint.snapshot_rules import check_snapshots
from caffe_recipes.review.lint.solver_rules import check_solver
from caffe_recipes.review.lint.start_rules import check_starts

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Chain
    from caffe_recipes.caffe.prototxt import Document
    from caffe_recipes.caffe.text.parser import ForeignName
    from caffe_recipes.review.lint.net_view import DatumOf, LabelsOf, PhaseNet


def check_chain(chain: Chain) -> Iterator[Finding]:
    """Find the mistakes in a chain of phases, except those in each net by itself."""
    if not chain.links:
        return
    chain = stop_phases(chain)
    for link in chain.links:
        is_last = chain.is_whole and link is chain.links[-1]
        batch = (batch_per_rank(link) or 0) * (link.ranks or chain.facts.ranks or 0)
        yield from check_solver(link, is_last=is_last, is_alone=len(chain.links) == 1, batch=batch)
    yield from check_joins(chain)
    yield from check_epochs(chain)
    yield from check_norms(chain)
    yield from check_warmups(chain)
    yield from check_moving_averages(chain)
    yield from check_tests(chain)
    yield from check_snapshots(chain)
    yield from check_starts(chain)
    yield from check_steps(chain)
    yield from check_handovers(chain)
    yield from check_changes(chain)


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

_FILE_CHECKS: tuple[Callable[[NetView], Iterator[Finding]], ...] = (
    layer_rules.check_include_rules,
    layer_rules.check_phases,
    data_rules.check_data,
    data_rules.check_transforms,
    weight_rules.check_fillers,
    weight_rules.check_multipliers,
    layer_rules.check_refusals,
    layer_rules.check_reads,
)
_PHASE_CHECKS: tuple[Callable[[PhaseNet], Iterator[Finding]], ...] = (
    wiring_rules.check_blobs,
    wiring_rules.check_learned,
    data_rules.check_test_transforms,
    weight_rules.check_zero_weights,
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
    phases = [replace(phase, given=document.given) for phase in select_phases(document.message)]
    inferred = [wiring_rules.infer_phase(phase, datum_of) for phase in phases]
    view = NetView(
        document.message,
        tuple(phase for phase, _ in inferred),
        classes,
        datum_of,
        load_dialects()[dialect],
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
    for check in _FILE_CHECKS:
        yield from check(view)
    for phase, misfits in zip(view.phases, misfits_of, strict=True):
        yield from misfits
        yield from layer_rules.check_rounding(view, phase)
        yield from data_rules.check_labels(view, phase)
        yield from data_rules.check_train_data(view, phase)
        yield from weight_rules.check_norms(view, phase)
        yield from weight_rules.check_learning(view, phase)
        for check_phase in _PHASE_CHECKS:
            yield from check_phase(phase)


# `caffe.dialects.check` defines the rules of dialects.
for _name, _rule in DIFFERENCE_RULES.items():
    dialect_rule(_name, _rule.severity, _rule.what, values=("name", "count"))


def check_dialect(path: str | Path, text: str, dialect: str) -> list[Finding]:
    """Report what a dialect's Caffe would not read as SURFsara's does; repeats only at their first place.

    The text may be a net, a solver that contains nets, several solvers, or a label map. Raises PrototxtError
    for text that no Caffe can read, and InputError for an unknown dialect.
    """
    judge = find_dialect(dialect)
    document = parse_lenient(text, path)
    return [
        finding(
            each.rule,
            document.where(each.field),
            f"{each.what} ({each.count} times in this file; this is the first)"
            if each.count > 1
            else each.what,
            effect=each.effect,
            write=each.write,
            name=each.name,
            count=each.count,
        )
        for each in check_message(document.message, judge, document)
    ]


def check_foreign(document: Document[Any], dialect: str) -> Iterator[Finding]:
    """Find the names that a document's Caffe does not have, each once, at its first place.

    Those that another known Caffe has are left to the rules of dialects, if `dialect` is not ours.
    """
    values: dict[tuple[str, str], list[tuple[str, object]]] = {}
    for path, owner, field, value in foreign_values(document.message):
        values.setdefault((owner, field), []).append((path, value))
    for name in outer_foreign(document):
        if name.owner != V1_TYPE and (dialect == OURS or not is_known(name)):
            yield _unknown_field(document, name, values.get((name.owner, name.name), []))
    if dialect == OURS and isinstance(ours := to_ours(document.message), pb.NetParameter):
        yield from _check_sizes(document, ours)


def _check_sizes(document: Document[Any], ours: pb.NetParameter) -> Iterator[Finding]:
    """Find pooling that another Caffe than ours rounds down, in a net with the fields of all Caffes."""
    given: Any = document.message
    if not any(layer.type == "Pooling" and rounds_down(layer.pooling_param) for layer in given.layer):
        return
    for phase in select_phases(ours):
        inferred, _ = wiring_rules.infer_phase(replace(phase, given=given), lambda source: None)
        view = NetView(ours, (inferred,), None, lambda source: None, load_dialects()[OURS])
        yield from (one.located(document.where) for one in layer_rules.check_rounding(view, inferred))


@file_rule(
    "unknown-field",
    "error",
    "a field or an enum value that this Caffe does not have",
    effect="Caffe aborts when it reads the file; lint checked the rest of it",
    values=("name", "count"),
    fix="removes the field, if it has no effect here",
)
def _unknown_field(document: Document[Any], name: ForeignName, values: list[tuple[str, object]]) -> Finding:
    what, write = describe_name(name)
    fork = FIELDS.get((name.owner, name.name))
    idle = [path for path, value in values if fork and fork.default and value == fork.default]
    others = [path for path, _ in values if path not in idle]
    if idle and fork and not others:
        write = f"remove it; here {fork.here}"
    if len(values) > 1:
        what = f"{what}, which is given {len(values)} times"
    return finding(
        "unknown-field",
        document.where(others[0]) if others and idle else document.place(name.offset),
        what,
        write=write,
        fixes=tuple(Fix(document.where(path), name.name) for path in idle),
        name=f"{name.owner}.{name.name}",
        count=max(1, len(values)),
    )


_WIDTH = 100


def explain_rule(name: str, width: int | None = None) -> list[str]:
    """Explain a rule: the problem, what is checked, the effect, what to write, and how to accept a finding.

    Raises InputError, with the nearest id, for an unknown one.

    >>> print(*explain_rule("weights-missing"), sep="\\n")
    weights-missing: an error
    problem  a later phase that starts without weights
    checks   a chain of solvers, and the weights that each starts from
    effect   it starts from the net's fillers, so what the earlier phases learned is lost
    help     --weights=<folder><final>
    fix      by hand
    exit     1, unless accepted or with --fail-on never
    accept   in a recipe: {finding: weights-missing, reason: WHY IT IS INTENDED}
    """
    if name not in RULES:
        near = difflib.get_close_matches(name, RULES, n=1)
        raise InputError(
            "", f"no rule '{name}'", f"did you mean '{near[0]}'?" if near else "--rules lists them"
        )
    rule = RULES[name]
    effect, write = rule.explanation or map(_generalize, (rule.effect, rule.write))
    exits = {
        "error": "1, unless accepted or with --fail-on never",
        "warning": "1, unless accepted or with --fail-on error",
        "note": "0, or 1 with --fail-on note",
    }
    rows = {
        "problem": rule.summary,
        "checks": rule.subject,
        "effect": effect,
        "help": write,
        "fix": rule.fix or "by hand",
        "exit": exits[rule.severity],
        "accept": f"in a recipe: {{finding: {name}, reason: WHY IT IS INTENDED}}",
    }
    article = "an" if rule.severity == "error" else "a"
    table = align_columns([*rows.items()], width=min(width or _WIDTH, _WIDTH))
    return [f"{name}: {article} {rule.severity}", *table]


def _generalize(template: str) -> str:
    """Return a text of a rule with the names of its values in their places.

    >>> _generalize("power: {power:.4g}, or {{}}")
    'power: <power>, or {}'
    """
    parts = Formatter().parse(template)
    return "".join(f"{text}<{name}>" if name else text for text, name, _, _ in parts) or "see each finding"
