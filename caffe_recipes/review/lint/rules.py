"""Every rule of lint: its id, how grave it is, and what it looks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from caffe_recipes.review.findings import Finding, Severity


class Rule(NamedTuple):
    """What a finding's id stands for."""

    severity: Severity
    looks_for: str


RULES: Mapping[str, Rule] = {
    # A file
    "byte-order-mark": Rule("error", "a byte-order mark at the start of a file: Caffe's parser refuses it"),
    "unreadable": Rule("error", "a prototxt of a folder that Caffe could not read"),
    "label-twice": Rule("warning", "a label map that gives one label, or one name, twice"),
    # The rate of one solver
    "base-lr-missing": Rule("error", "no base_lr, or base_lr 0: nothing is learned"),
    "lr-policy-unknown": Rule("error", "an lr_policy that Caffe does not have"),
    "lr-policy-incomplete": Rule("error", "an lr_policy without a field that it needs"),
    "lr-iter-missing": Rule("error", "poly_cyc without lr_iter: the rate is NaN"),
    "lr-iter-passed": Rule("error", "poly_cyc that runs past its lr_iter"),
    "rate-not-finite": Rule("error", "a rate that becomes negative, infinite or NaN"),
    "rate-zero": Rule("warning", "a rate that is 0 when half of the iterations are done"),
    "max-iter-missing": Rule("error", "no max_iter: nothing is trained"),
    "power-missing": Rule("warning", "poly, poly_cyc or inv without power: a constant rate"),
    "warmup-never-ends": Rule("warning", "a warmup_iter beyond max_iter"),
    "warmup-end-jump": Rule("warning", "a jump of the rate of more than 2 % where the warm-up ends"),
    "final-rate-high": Rule("warning", "a last phase that ends above 1e-5 of its base_lr"),
    "final-rate-kept": Rule(
        "note", "the same of a lone solver, or one resumed, whose lr_policy never goes to 0"
    ),
    "rates-not-judged": Rule("note", "a rate that only the dialect's Caffe makes so: it is not judged"),
    # The values of one solver
    "solver-type-unknown": Rule("error", "a type that no Caffe has"),
    "regularization-unknown": Rule("error", "a regularization_type other than L1 and L2"),
    "solver-value-refused": Rule(
        "error", "a value that Caffe stops at, or divides by: iter_size, average_loss, test_iter and others"
    ),
    "solver-value-negative": Rule("warning", "a negative display or snapshot"),
    "solver-share-range": Rule("error", "momentum, momentum2 or rms_decay below 0, or 1 and more"),
    "weight-decay-negative": Rule("error", "a weight_decay below 0"),
    "weight-decay-large": Rule("warning", "a weight_decay above 0.1"),
    "rate-grows": Rule("warning", "a gamma above 1, or a power below 0"),
    "rate-constant": Rule(
        "warning", "a policy whose rate never changes: power 0, gamma 1, no step before max_iter"
    ),
    "steps-disordered": Rule("warning", "stepvalues that do not rise"),
    "step-never-taken": Rule("warning", "a stepvalue beyond max_iter"),
    "solver-field-unread": Rule("warning", "a field that the lr_policy, or the type, never reads"),
    "snapshot-prefix-missing": Rule("error", "a snapshot without snapshot_prefix"),
    "snapshot-folder-missing": Rule(
        "warning", "a snapshot_prefix in a folder that is not under the Caffe root"
    ),
    # The chain
    "join-jump": Rule("warning", "a jump of the rate of more than 2 % from one phase to the next"),
    "resume-jump": Rule("note", "a jump of the rate of more than 2 % where a phase resumes a solverstate"),
    "collapse-weight-decay": Rule("warning", "a collapse with other than twice the weight decay before it"),
    "epochs-claim": Rule("warning", "a comment that claims a number of epochs more than 2 % off"),
    "title-epochs": Rule("warning", "a recipe's title that claims a number of epochs more than 2 % off"),
    "global-batch": Rule("warning", "a global batch other than the one that the schedule was made for"),
    "images-differ": Rule("warning", "a number of images other than the one that the schedule was made for"),
    # Snapshots
    "no-final-snapshot": Rule("error", "snapshot_after_train: false, and no snapshot at max_iter"),
    "snapshot-never-fires": Rule("error", "starting weights of an iteration at which no snapshot fires"),
    "snapshots-collide": Rule("warning", "two phases that write snapshots of the same names"),
    "weights-unknown": Rule("warning", "starting weights that no earlier phase writes"),
    "weights-no-caffemodel": Rule("error", "starting weights that are no caffemodel by their name"),
    "weights-missing": Rule("error", "a later phase that starts without weights"),
    "weights-and-snapshot": Rule("error", "a command with both --weights and --snapshot: Caffe stops"),
    "snapshot-no-solverstate": Rule("error", "a --snapshot that is no solverstate by its name"),
    "snapshot-unknown": Rule("warning", "a --snapshot that no phase up to it writes"),
    "resumed-at-end": Rule("error", "a solverstate at max_iter or past it: nothing is trained"),
    "weights-of-other-phase": Rule("warning", "starting weights of another phase than the one before"),
    # From one net, or one solver, to the next
    "handover-misfit": Rule(
        "error", "a layer whose weights have another shape in the phase that they are from"
    ),
    "handover-missing": Rule(
        "warning", "a layer that learns, and is not in the net that its weights are from"
    ),
    "handover-unused": Rule("note", "a layer that has learned, and is not in the next phase's net"),
    "solver-changes": Rule(
        "warning", "momentum, type, solver_mode or regularization_type other than in the phase before"
    ),
    "weight-decay-changes": Rule(
        "warning", "a weight decay gone, or changed more than 4 times, in a phase that is no collapse"
    ),
    "transforms-change": Rule("warning", "training data with another mean or scale than in the phase before"),
    "crop-changes": Rule("note", "training data with another crop_size than in the phase before"),
    "norms-change": Rule("warning", "BatchNorm with another moving_average_fraction or eps than before"),
    "train-source-changes": Rule("note", "training data from another source than in the phase before"),
    "train-on-test": Rule("warning", "training on the records that another net of the chain is tested on"),
    # Nets and paths
    "net-missing": Rule("error", "a net that is not at its path under the Caffe root"),
    "net-folder": Rule("warning", "a net in another folder than the solver's own"),
    "net-not-found": Rule("note", "a net that is not there to be looked at"),
    "lmdb-unreadable": Rule("warning", "an LMDB that is here, and is empty or damaged"),
    "net-not-named": Rule("error", "a solver that names no net"),
    "solver-untold": Rule("note", "a command of a script whose solver takes a shell to tell"),
    "not-started": Rule("warning", "a solver that no command of the script given with it trains"),
    "test-without-weights": Rule("error", "a `caffe test` without --weights: Caffe stops"),
    "test-weights-unknown": Rule("warning", "a `caffe test` of weights that no phase writes"),
    "test-weights-not-final": Rule(
        "warning", "a `caffe test` of other weights than the last phase's, and none of those"
    ),
    "solver-path": Rule("warning", "a command that gives --solver another folder than the file's"),
    "no-train-net": Rule("error", "a net without a data layer for TRAIN"),
    "no-test-net": Rule(
        "error", "a test during training, or after it, on a net without a data layer for TEST"
    ),
    "last-net-without-test": Rule("warning", "a last phase whose net cannot be tested"),
    "test-interval-alone": Rule("warning", "a test_interval without test_iter: it never tests"),
    "test-iter-alone": Rule("error", "a test_iter without test_interval: Caffe refuses it"),
    "solver-mode-absent": Rule("warning", "no solver_mode: the default is GPU"),
    # Folders and recipes
    "order-guessed": Rule("note", "the order in which a folder's solvers were taken as one chain"),
    "order-unknown": Rule("note", "a folder's solvers whose order cannot be told"),
    "evaluation-partial": Rule("warning", "an evaluation that leaves test images out"),
    "evaluation-repeats": Rule("note", "an evaluation that counts test images twice"),
    "classes-below-labels": Rule("error", "fewer classes than `prepare` builds"),
    "classes-above-labels": Rule("note", "more classes than `prepare` builds"),
    "crop-above-records": Rule("error", "a crop_size larger than the images that `prepare` builds"),
    "threads-above-cores": Rule("warning", "more OpenMP threads on a node than it has cores"),
    "mlsl-on-openmp-cores": Rule("note", "MLSL servers on cores that OpenMP threads also use"),
    "tmp-too-small": Rule("error", "an LMDB and snapshots that do not fit into the node's /tmp"),
    "accept-unknown": Rule("error", "an acceptance in a recipe of a rule, or a phase, that there is not"),
    "unused-accept": Rule("warning", "an acceptance in a recipe that no finding needs"),
}


def finding(
    rule: str, where: str, what: str, effect: str, write: str, phase: str = "", **values: float | str
) -> Finding:
    """Make a finding of a rule, as grave as the table says."""
    return Finding(rule, RULES[rule].severity, where, what, effect, write, values, phase)
