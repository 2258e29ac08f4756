"""Every rule of lint: its id, how grave it is, and what it looks for.

Findings as text for people and logs, and as JSON.

A finding: what lint has to say about one place.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from caffe_recipes.wording import printable

Severity = Literal["error", "warning", "note"]

# Gravest first: an error trains nothing or the wrong thing, a warning likely does, a note is to be known.
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: where (`file:line:column`), what, what will happen, and what to write.

    `values` are the numbers it speaks of by name, unrounded. `phase` is the phase of a chain that it belongs
    to, if any. `accepted` is the reason for which a recipe accepts it, empty if it does not.
    """

    id: str
    severity: Severity
    where: str
    what: str
    effect: str
    write: str
    values: Mapping[str, float | str] = field(default_factory=lambda: MappingProxyType({}))
    phase: str = ""
    accepted: str = ""


class LintRule(NamedTuple):
    """What a finding's id stands for."""

    severity: Severity
    looks_for: str


RULES: Mapping[str, LintRule] = {
    # A file
    "byte-order-mark": LintRule(
        "error", "a byte-order mark at the start of a file: Caffe's parser refuses it"
    ),
    "newer-text": LintRule("note", "text that a Caffe built with an old protobuf cannot read"),
    "unreadable": LintRule("error", "a prototxt of a folder that Caffe could not read"),
    "label-twice": LintRule("warning", "a label map that gives one label, or one name, twice"),
    # The rate of one solver
    "base-lr-missing": LintRule("error", "no base_lr, or base_lr 0: nothing is learned"),
    "base-lr-large": LintRule("warning", "a base_lr that no batch of this size trains with"),
    "lr-policy-unknown": LintRule("error", "an lr_policy that Caffe does not have"),
    "lr-policy-incomplete": LintRule("error", "an lr_policy without a field that it needs"),
    "lr-iter-missing": LintRule("error", "poly_cyc without lr_iter: the rate is NaN"),
    "lr-iter-passed": LintRule("error", "poly_cyc that runs past its lr_iter"),
    "rate-not-finite": LintRule("error", "a rate that becomes negative, infinite or NaN"),
    "rate-zero": LintRule("warning", "a rate that is 0 when half of the iterations are done"),
    "max-iter-missing": LintRule("warning", "no max_iter, or one of 0: nothing is trained"),
    "power-missing": LintRule("warning", "poly, poly_cyc or inv without power: a constant rate"),
    "warmup-never-ends": LintRule("warning", "a warmup_iter beyond max_iter"),
    "warmup-falls": LintRule("warning", "a warm-up that starts above base_lr"),
    "warmup-end-jump": LintRule("warning", "a jump of the rate of more than 2 % where the warm-up ends"),
    "final-rate-high": LintRule("warning", "a last phase that ends above 1e-5 of its base_lr"),
    "final-rate-kept": LintRule(
        "note", "the same of a lone solver, or one resumed, whose lr_policy never goes to 0"
    ),
    "rates-not-judged": LintRule("note", "a rate that only the dialect's Caffe makes so: it is not judged"),
    # The values of one solver
    "solver-type-unknown": LintRule("error", "a type that no Caffe has"),
    "regularization-unknown": LintRule("error", "a regularization_type other than L1 and L2"),
    "solver-value-refused": LintRule(
        "error", "a value that Caffe stops at, or divides by: iter_size, average_loss, test_iter and others"
    ),
    "solver-value-negative": LintRule("warning", "a negative display, snapshot or clip_gradients"),
    "solver-share-range": LintRule("error", "momentum, momentum2 or rms_decay below 0, or 1 and more"),
    "weight-decay-negative": LintRule("error", "a weight_decay below 0"),
    "weight-decay-large": LintRule("warning", "a weight_decay above 0.1"),
    "rate-grows": LintRule("warning", "a gamma above 1, or a power below 0"),
    "rate-constant": LintRule(
        "warning", "a policy whose rate never changes: power 0, gamma 1, no step before max_iter"
    ),
    "steps-disordered": LintRule("warning", "stepvalues that do not rise"),
    "step-never-taken": LintRule("warning", "a stepvalue beyond max_iter"),
    "solver-field-unread": LintRule("warning", "a field that the lr_policy, or the type, never reads"),
    "snapshot-prefix-missing": LintRule("error", "a snapshot without snapshot_prefix"),
    "snapshot-folder-missing": LintRule(
        "warning", "a snapshot_prefix in a folder that is not under the Caffe root"
    ),
    # The chain
    "join-jump": LintRule("warning", "a jump of the rate of more than 2 % from one phase to the next"),
    "resume-jump": LintRule(
        "note", "a jump of the rate of more than 2 % where a phase resumes a solverstate"
    ),
    "collapse-weight-decay": LintRule(
        "warning", "a collapse with other than twice the weight decay before it"
    ),
    "epochs-claim": LintRule("warning", "a comment that claims a number of epochs more than 2 % off"),
    "title-epochs": LintRule("warning", "a recipe's title that claims a number of epochs more than 2 % off"),
    "global-batch": LintRule("warning", "a global batch other than the one that the schedule was made for"),
    "images-differ": LintRule(
        "warning", "a number of images other than the one that the schedule was made for"
    ),
    # Snapshots
    "no-final-snapshot": LintRule("error", "snapshot_after_train: false, and no snapshot at max_iter"),
    "snapshot-never-fires": LintRule("error", "starting weights of an iteration at which no snapshot fires"),
    "snapshots-collide": LintRule("warning", "two phases that write snapshots of the same names"),
    "weights-unknown": LintRule("warning", "starting weights that no earlier phase writes"),
    "weights-no-caffemodel": LintRule("error", "starting weights that are no caffemodel by their name"),
    "weights-missing": LintRule("error", "a later phase that starts without weights"),
    "weights-and-snapshot": LintRule("error", "a command with both --weights and --snapshot: Caffe stops"),
    "snapshot-no-solverstate": LintRule("error", "a --snapshot that is no solverstate by its name"),
    "snapshot-unknown": LintRule("warning", "a --snapshot that no phase up to it writes"),
    "resumed-at-end": LintRule("error", "a solverstate at max_iter or past it: nothing is trained"),
    "weights-of-other-phase": LintRule("warning", "starting weights of another phase than the one before"),
    # From one net, or one solver, to the next
    "handover-misfit": LintRule(
        "error", "a layer whose weights have another shape in the phase that they are from"
    ),
    "handover-missing": LintRule(
        "warning", "a layer that learns, and is not in the net that its weights are from"
    ),
    "handover-unused": LintRule("note", "a layer that has learned, and is not in the next phase's net"),
    "solver-changes": LintRule(
        "warning", "momentum, type, solver_mode or regularization_type other than in the phase before"
    ),
    "weight-decay-changes": LintRule(
        "warning", "a weight decay gone, or changed more than 4 times, in a phase that is no collapse"
    ),
    "batch-changes": LintRule(
        "warning", "iter_size or batch_size other than in the phase before, and the rate not"
    ),
    "transforms-change": LintRule(
        "warning", "training data with another mean or scale than in the phase before"
    ),
    "crop-changes": LintRule("note", "training data with another crop_size than in the phase before"),
    "norms-change": LintRule("warning", "BatchNorm with another moving_average_fraction or eps than before"),
    "train-source-changes": LintRule("note", "training data from another source than in the phase before"),
    "train-on-test": LintRule(
        "warning", "training on the records that another net of the chain is tested on"
    ),
    # Nets and paths
    "net-missing": LintRule("error", "a net that is not at its path under the Caffe root"),
    "net-folder": LintRule("warning", "a net in another folder than the solver's own"),
    "net-not-found": LintRule("note", "a net that is not there to be looked at"),
    "lmdb-unreadable": LintRule("warning", "an LMDB that is here, and is empty or damaged"),
    "inline-net-old": LintRule(
        "error", "a net inside a solver that Caffe would have to upgrade, and does not"
    ),
    "net-not-named": LintRule("error", "a solver that names no net"),
    "solver-untold": LintRule("note", "a command of a script whose solver takes a shell to tell"),
    "not-started": LintRule("warning", "a solver that no command of the script given with it trains"),
    "test-without-weights": LintRule("error", "a `caffe test` without --weights: Caffe stops"),
    "test-weights-unknown": LintRule("warning", "a `caffe test` of weights that no phase writes"),
    "test-weights-not-final": LintRule(
        "warning", "a `caffe test` of other weights than the last phase's, and none of those"
    ),
    "solver-path": LintRule("warning", "a command that gives --solver another folder than the file's"),
    "no-train-net": LintRule("error", "a net without a data layer for TRAIN"),
    "no-test-net": LintRule(
        "error", "a test during training, or after it, on a net without a data layer for TEST"
    ),
    "last-net-without-test": LintRule("warning", "a last phase whose net cannot be tested"),
    "test-never-fires": LintRule("warning", "a test_interval beyond max_iter"),
    "tested-twice": LintRule("warning", "several test_iter for one net, in one state"),
    "test-images-left": LintRule("warning", "a test_iter whose images are not those of the test set"),
    "test-interval-alone": LintRule("warning", "a test_interval without test_iter: it never tests"),
    "test-iter-alone": LintRule("error", "a test_iter without test_interval: Caffe refuses it"),
    "solver-mode-absent": LintRule("warning", "no solver_mode: the default is GPU"),
    # Folders and recipes
    "taken-alone": LintRule("note", "solvers given together that are not one chain"),
    "deploy-misfit": LintRule(
        "error", "a deploy net whose layers do not fit the weights of its train_val net"
    ),
    "deploy-missing": LintRule("warning", "a deploy net with layers that its train_val net does not have"),
    "order-guessed": LintRule("note", "the order in which a folder's solvers were taken as one chain"),
    "order-unknown": LintRule("note", "a folder's solvers whose order cannot be told"),
    "evaluation-partial": LintRule("warning", "an evaluation that leaves test images out"),
    "evaluation-repeats": LintRule("note", "an evaluation that counts test images twice"),
    "classes-below-labels": LintRule("error", "fewer classes than `prepare` builds"),
    "classes-above-labels": LintRule("note", "more classes than `prepare` builds"),
    "crop-above-records": LintRule("error", "a crop_size larger than the images that `prepare` builds"),
    "threads-above-cores": LintRule("warning", "more OpenMP threads on a node than it has cores"),
    "mlsl-on-openmp-cores": LintRule("note", "MLSL servers on cores that OpenMP threads also use"),
    "tmp-too-small": LintRule("error", "an LMDB and snapshots that do not fit into the node's /tmp"),
    "accept-unknown": LintRule("error", "an acceptance in a recipe of a rule, or a phase, that there is not"),
    "unused-accept": LintRule("warning", "an acceptance in a recipe that no finding needs"),
}


def finding(
    rule: str, where: str, what: str, effect: str, write: str, phase: str = "", **values: float | str
) -> Finding:
    """Make a finding of a rule, as grave as the table says."""
    return Finding(rule, RULES[rule].severity, where, what, effect, write, values, phase)


def render_findings(findings: Sequence[Finding]) -> str:
    """Write a block for each finding, in their order, and a line that counts them.

    >>> from caffe_recipes.review.lint.rules import finding
    >>> one = finding("solver-mode-absent", "s.prototxt", "what", "effect", "solver_mode: CPU")
    >>> print(render_findings([one]))
    s.prototxt: warning [solver-mode-absent] what
        effect
        write: solver_mode: CPU
    <BLANKLINE>
    0 errors, 1 warning, 0 notes
    """
    blocks = [_block(found) for found in findings]
    return "\n\n".join([*blocks, _counts(findings)])


def render_json(findings: Sequence[Finding]) -> str:
    """Write findings as a JSON array of objects; values that JSON has no number for are text."""
    return json.dumps([_plain(found) for found in findings], indent=2)


def render_rules(rules: Mapping[str, LintRule]) -> str:
    """List rules, gravest first, each on a line."""
    ordered = sorted(rules, key=lambda name: (SEVERITIES.index(rules[name].severity), name))
    width = max(map(len, ordered), default=0)
    return "\n".join(f"{name:{width}}  {rules[name].severity:7}  {rules[name].looks_for}" for name in ordered)


def _block(found: Finding) -> str:
    state = f"{found.severity}, accepted" if found.accepted else found.severity
    is_named = not found.phase or re.search(rf"\b{re.escape(found.phase)}\b", found.what)
    phase = "" if is_named else f"{found.phase}: "
    lines = [f"{found.where}: {state} [{found.id}] {phase}{found.what}", f"    {found.effect}"]
    lines.append(f"    accepted: {found.accepted}" if found.accepted else f"    write: {found.write}")
    return "\n".join(printable(line) for line in lines if line.strip())


def _counts(findings: Sequence[Finding]) -> str:
    counts = dict.fromkeys(SEVERITIES, 0)
    for found in findings:
        counts[found.severity] += not found.accepted
    accepted = sum(bool(found.accepted) for found in findings)
    parts = [f"{count} {severity}{'s' if count != 1 else ''}" for severity, count in counts.items()]
    return ", ".join(parts) + (f"; {accepted} accepted" if accepted else "")


def _plain(found: Finding) -> dict[str, Any]:
    values = {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in found.values.items()
    }
    return {name: getattr(found, name) for name in Finding.__slots__} | {"values": values}
