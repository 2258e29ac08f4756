"""A rule at length: what it judges, what happens to what it finds, and what to do about it."""

from __future__ import annotations

import textwrap
from itertools import takewhile
from types import ModuleType
from typing import NamedTuple

from caffe_recipes.review.lint.rules import RULES

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
        "Loops over plain words and calls of the script's functions are followed; another variable, or "
        "the output of a command, is not. What such a command trains, and from which weights, is not "
        "judged. Its ranks are.",
        "The solver's path, or a loop over the phases' names.",
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
    from caffe_recipes.review.lint.nets import NET_RULES

    if name not in NET_RULES:
        return "any prototxt, for the Caffe of --dialect"
    about = next(_subject(module) for module in _net_modules() if name in module.RULES)
    return f"a net: {about}"


def _net_modules() -> list[ModuleType]:
    from caffe_recipes.review.lint import nets

    return [
        module
        for module in vars(nets).values()
        if isinstance(module, ModuleType) and hasattr(module, "RULES")
    ]


def _subject(module: ModuleType) -> str:
    """Give what the first line of a module's docstring says that its rules are on."""
    line = (module.__doc__ or "").partition("\n")[0]
    return line.removeprefix("Rules on ").rstrip(".")
