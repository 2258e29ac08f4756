"""All rules over one chain, and findings in the order in which a reader goes through the files.

What is wrong with one net: its layers, blobs, shapes, data and weights, in each phase.

What another Caffe would refuse in a prototxt, ignore, or read otherwise, at its place in the file.

A rule at length: what it judges, what happens to what it finds, and what to do about it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from caffe_recipes.caffe.dialects import OURS, find_dialect, load_dialects
from caffe_recipes.caffe.dialects.check import DIFFERENCE_RULES, check_message
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.review.lint import data_rules, layer_rules, net_view, weight_rules, wiring_rules
from caffe_recipes.review.lint.chain import batch_per_rank, stop_phases
from caffe_recipes.review.lint.chain_rules import check_changes, check_handovers, check_joins, check_steps
from caffe_recipes.review.lint.net_view import NetView, select_phases, upgrade_old
from caffe_recipes.review.lint.recipe_rules import check_epochs, check_tests
from caffe_recipes.review.lint.rules import RULES, SEVERITIES, Finding
from caffe_recipes.review.lint.snapshot_rules import check_snapshots
from caffe_recipes.review.lint.solver_rules import check_schedule, check_solver_values

if TYPE_CHECKING:
    from caffe_recipes.caffe import pb
    from caffe_recipes.caffe.dialects import Dialect
    from caffe_recipes.caffe.dialects.check import DialectDifference
    from caffe_recipes.caffe.prototxt import Document
    from caffe_recipes.review.lint.chain import Chain
    from caffe_recipes.review.lint.net_view import DatumOf, Draft, PhaseNet
    from caffe_recipes.review.lint.rules import Severity

_PLACE = re.compile(r"(.*?)(?::(\d+))?(?::(\d+))?", re.DOTALL)


def check_chain(chain: Chain) -> Iterator[Finding]:
    """Find what is wrong with a chain of phases and its parts, but for what is a net's own."""
    if not chain.links:
        return
    chain = stop_phases(chain)
    for link in chain.links:
        is_last = chain.is_whole and link is chain.links[-1]
        batch = (batch_per_rank(link) or 0) * (link.ranks or chain.setting.ranks or 0)
        yield from check_schedule(link, is_last=is_last, is_alone=len(chain.links) == 1, batch=batch)
        yield from check_solver_values(link)
    yield from check_joins(chain)
    yield from check_epochs(chain)
    yield from check_tests(chain)
    yield from check_snapshots(chain)
    yield from check_steps(chain)
    yield from check_handovers(chain)
    yield from check_changes(chain)


def sort_findings(findings: Iterable[Finding], paths: Iterable[str]) -> list[Finding]:
    """Order findings by file and line, files as in `paths` after what is in none of them; give each once."""
    files = {path: index for index, path in enumerate(dict.fromkeys(paths))}
    placed: dict[tuple[str, str, str], tuple[tuple[int, int, int], Finding]] = {}
    for found in findings:
        path, line, column = split_place(found.where)
        order = (files.get(path, -1), line, column)
        placed.setdefault((found.id, found.where, found.what), (order, found))
    return [found for _, found in sorted(placed.values(), key=lambda pair: pair[0])]


def split_place(where: str) -> tuple[str, int, int]:
    """Split `file:line:column`; what is not there is 0.

    >>> split_place("a:b.prototxt:12:3"), split_place("net.prototxt")
    (('a:b.prototxt', 12, 3), ('net.prototxt', 0, 0))
    """
    match = _PLACE.fullmatch(where)
    assert match
    return match[1], int(match[2] or 0), int(match[3] or 0)


# What rules are on; of each its severity, and what it finds.
NET_SUBJECTS: Mapping[str, Mapping[str, tuple[Severity, str]]] = MappingProxyType(
    {
        "Nets of `layers`: what Caffe makes of them, with each field in its "
        "place in the old text": net_view.RULES,
        "phases: which layers are in which, and what must be the same in both": layer_rules.PHASE_RULES,
        "a net's blobs and names: what nothing makes, what nothing reads, what "
        "is made or named twice": wiring_rules.BLOB_RULES,
        "shapes: layers that do not fit together, and the blobs that they "
        "learn or share": wiring_rules.SIZE_RULES,
        "outputs and labels: what losses and accuracies compare": data_rules.LABEL_RULES,
        "what a net learns, and is measured by: rates of its weights, weights "
        "of its losses, accuracies": weight_rules.LEARNING_RULES,
        "data layers: where records come from, how many, and in which order": data_rules.DATA_RULES,
        "`transform_param`: resizing, cropping, mirroring, means": data_rules.TRANSFORM_RULES,
        "batch normalization, and on the blocks of a residual net that start "
        "at zero": weight_rules.NORM_RULES,
        "where weights start": weight_rules.FILLER_RULES,
        "what Caffe checks when it sets a layer up, and stops at: the table is "
        "`caffe/refusals.py`": layer_rules.REFUSAL_RULES,
        "fields that are set and never read: blocks of other types, and fields "
        "without effect": layer_rules.READ_RULES,
    }
)
NET_RULES: Mapping[str, tuple[Severity, str]] = MappingProxyType(
    {name: rule for rules in NET_SUBJECTS.values() for name, rule in rules.items()}
)

# What TRAIN and TEST, or a loss and an accuracy, tell in other words.
_ONCE_A_PLACE = frozenset(
    ("blob-too-large", "outputs-above-classes", "outputs-below-classes", "shape-misfit")
)

_OF_FILE: tuple[Callable[[NetView], Iterator[Draft]], ...] = (
    layer_rules.check_rules_of_layers,
    layer_rules.check_phases,
    data_rules.check_data,
    data_rules.check_transforms,
    weight_rules.check_fillers,
    weight_rules.check_multipliers,
    layer_rules.check_refusals,
    layer_rules.check_reads,
)
_OF_PHASE: tuple[Callable[[PhaseNet], Iterator[Draft]], ...] = (
    wiring_rules.check_blobs,
    wiring_rules.check_learned,
    weight_rules.check_learning,
    data_rules.check_test_transforms,
    weight_rules.check_zero_weights,
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
    inferred = [wiring_rules.infer_phase(phase, datum_of) for phase in select_phases(net)]
    view = NetView(net, tuple(phase for phase, _ in inferred), classes, datum_of, dialect)
    for check in _OF_FILE:
        yield from check(view)
    for phase, unfit in inferred:
        yield from unfit
        yield from data_rules.check_labels(view, phase)
        yield from data_rules.check_train_data(view, phase)
        yield from weight_rules.check_norms(view, phase)
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


# Each finding's severity, and what it is about in one line.
DIALECT_RULES: Mapping[str, tuple[Severity, str]] = MappingProxyType(
    {rule: (found.severity, found.what) for rule, found in DIFFERENCE_RULES.items()}
)


def check_dialect(path: str | Path, text: str, dialect: str) -> list[Finding]:
    """Say what a dialect's Caffe would not take as SURFsara's does, each thing once, where it comes first.

    The text may be any Caffe's: nets, solvers with the nets in them, multi-phase solvers, label maps. Raises
    PrototxtError for text that no Caffe reads, InputError for an unknown dialect.
    """
    judge = find_dialect(dialect)
    document = parse_lenient(text, path)
    return [
        _finding(difference, document.where(difference.field))
        for difference in check_message(document.message, judge, document)
    ]


def _finding(difference: DialectDifference, where: str) -> Finding:
    times = f" ({difference.count} times in this file, here first)" if difference.count > 1 else ""
    return Finding(
        difference.rule,
        DIFFERENCE_RULES[difference.rule].severity,
        where,
        f"{difference.what}{times}",
        difference.effect,
        difference.write,
        MappingProxyType({"name": difference.name, "count": difference.count}),
    )


_WIDTH = 100
# The first rule of each part of the table, and what is judged there.
_PARTS = {
    "byte-order-mark": "a file by itself",
    "base-lr-missing": "the rate of one solver",
    "solver-type-unknown": "the values of one solver",
    "join-jump": "a chain of solvers, or a recipe",
    "no-final-snapshot": "a chain of solvers, and what each starts from",
    "handover-misfit": "a chain of solvers with their nets",
    "net-missing": "a solver, its net, and their paths",
    "order-guessed": "a folder, or a recipe",
}


class Explanation(NamedTuple):
    """What happens in general, and what to do."""

    happens: str
    write: str


# Where a finding alone leaves a newcomer wondering; all others say it themselves.
_EXPLAINED = {
    "join-jump": Explanation(
        "A phase starts from the weights of the one before, at a rate of its own. A step between the "
        "two rates, with an empty history of momentum, makes the loss unsteady; a rise can undo what "
        "was learned.",
        "The rate before as base_lr, or warmup_start_lr where there is a warm-up. Warm restarts rise "
        "on purpose: accept those.",
    ),
    "warmup-end-jump": Explanation(
        "Iterations of the warm-up count as iterations of the lr_policy. When the warm-up has reached"
        " base_lr, a decaying policy is further on already, and the rate drops to it in one "
        "iteration.",
        'A phase of its own for the warm-up, of lr_policy "fixed" and max_iter: warmup_iter, and a '
        "next one from base_lr; or accept it, as published recipes do.",
    ),
    "final-rate-high": Explanation(
        "At a rate that is not near 0 the last updates are those of single batches, and their noise "
        "stays in the model that is evaluated.",
        'A last phase whose rate goes to 0, as lr_policy "poly" with power 2 does.',
    ),
    "epochs-claim": Explanation(
        "The epochs in a comment are those of other iterations, images or batches than the solver's: "
        "whoever plans by them plans wrongly. Images over batch in a comment, a generated header, or "
        "--images with --ranks, say what an epoch is.",
        "The iterations that the finding gives, or the epochs.",
    ),
    "collapse-weight-decay": Explanation(
        "The collapse, the last phase at a fast falling rate and with little augmentation, has by the"
        " paper's rule twice the weight decay of the phase before.",
        "weight_decay: twice the one before, or accept it.",
    ),
    "global-batch": Explanation(
        "Rates are made for a global batch: batch_size x ranks x iter_size. Another one has other "
        "epochs in the same iterations, and another best rate.",
        "As many ranks as the comment counts on, or iterations and rates for these.",
    ),
    "net-folder": Explanation(
        "`net:` is a path from the folder that Caffe is started in, mostly its root. Lint has no root"
        " to look under, and the folder's name differs from the solver's own, as after a rename.",
        "The right path, or --caffe-root DIR to have it looked for.",
    ),
    "solver-untold": Explanation(
        "Nothing of a script runs: its loops and functions are not followed, nor the output of a command. "
        "What such a command trains, and from which weights, is not judged. Its ranks are.",
        "A command for each phase, with its solver's path; or the run.sh that `generate` writes.",
    ),
    "not-started": Explanation(
        "The other solvers are judged as the chain that the script trains, this one alone.",
        "The command that trains it; or lint without this file.",
    ),
    "last-net-without-test": Explanation(
        "`caffe test` needs a data layer for TEST, which this net lacks: the model cannot be tested with it.",
        "A data layer with include { phase: TEST }, or --script with the command that tests another net.",
    ),
    "zero-start-partly": Explanation(
        "A residual block whose last normalization starts at 0 starts as if it were not there, which "
        "helps large batches. The paper does so in every block; the published files in the last of "
        "each stage.",
        "The filler in the last BatchNorm, or Scale, of every block; or accept it.",
    ),
    "mlsl-on-openmp-cores": Explanation(
        "MLSL's servers run on the cores of MLSL_SERVER_AFFINITY, and OpenMP's threads may be placed "
        "there too.",
        "Cores that no thread uses, or fewer threads.",
    ),
    "solver-mode-absent": Explanation(
        "Caffe's default is GPU: a build for CPUs stops. For Caffes that are built for GPUs, as with "
        "--dialect bvlc, it is no finding.",
        "solver_mode: CPU.",
    ),
    "train-unshuffled": Explanation(
        "Records come in the order of the LMDB, and in the same one in every epoch: batches never "
        "change, and are of one class if the LMDB was built so.",
        "shuffle: true where the Caffe has it and TRAIN has one data layer; else build in random order.",
    ),
    "solver-field-unread": Explanation(
        "Each lr_policy, and each type, reads its own fields and ignores the others: a value was "
        "given that changes nothing, often left over from another policy.",
        "Take it out, or choose the policy that reads it.",
    ),
}


def explain(name: str, severity: str, looks_for: str) -> str:
    """Write what is known of a rule: what it finds, in what, what happens, what to write, how to accept it.

    >>> print(explain("label-twice", "warning", "a label map that gives one label twice"))
    label-twice: a warning
    finds    a label map that gives one label twice
    judges   a file by itself
    happens  each finding says it, with its own values
    write    each finding says it
    exit     1, unless it is accepted, or with --fail-on error
    accept   in a recipe: {finding: label-twice, reason: WHY IT IS MEANT}
    """
    told = _EXPLAINED.get(name)
    exits = {
        "error": "1, unless it is accepted, or with --fail-on never",
        "warning": "1, unless it is accepted, or with --fail-on error",
        "note": "0, unless with --fail-on note",
    }
    rows = {
        "finds": looks_for,
        "judges": judged_by(name),
        "happens": told.happens if told else "each finding says it, with its own values",
        "write": told.write if told else "each finding says it",
        "exit": exits[severity],
        "accept": f"in a recipe: {{finding: {name}, reason: WHY IT IS MEANT}}",
    }
    article = "an" if severity == "error" else "a"
    lines = [f"{name}: {article} {severity}"]
    for head, text in rows.items():
        lines += textwrap.wrap(text, _WIDTH, initial_indent=f"{head:9}", subsequent_indent=" " * 9)
    return "\n".join(lines)


def judged_by(name: str) -> str:
    """Say what kind of input a rule judges.

    >>> judged_by("warmup-end-jump"), judged_by("unknown-filler")
    ('the rate of one solver', 'a net: where weights start')
    """
    if name in RULES:
        before = [*takewhile(lambda other: other != name, RULES), name]
        return next(_PARTS[one] for one in reversed(before) if one in _PARTS)

    if name not in NET_RULES:
        return "any prototxt, for the Caffe of --dialect"
    about = next(subject for subject, rules in NET_SUBJECTS.items() if name in rules)
    return f"a net: {about}"
