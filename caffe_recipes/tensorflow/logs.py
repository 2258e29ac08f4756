"""Read steps and evaluation results from the logs of TensorFlow's estimators.

The lines, with or without glog's prefix, are those of the published Horovod run:
`Evaluation [25/250]`, `Saving dict for global step 14075: Top-1 accuracy = 0.75232, ..., loss = 1.9024274`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.errors import InputError
from caffe_recipes.files.bounded_reads import load_within

_RESULT = re.compile(r"Saving dict for global step (\d{1,18}): (.*\S)")
_BATCHES = re.compile(r"Evaluation \[(\d{1,18})/(\d{1,18})\]")
_TOP = re.compile(r"top.?([15])\b|top.?([15])[_ ]accuracy", re.IGNORECASE)


# The lines of resnet_main.py, and those of the estimators' own hook: `loss = 7.1, step = 100 (12.3 sec)`.
_NUMBER = r"([-+]?(?:nan|inf|\d+(?:\.\d*)?(?:e[-+]?\d+)?))"
STEP_LINE = re.compile(rf"step (\d{{1,18}}): loss = {_NUMBER}, learning_rate = {_NUMBER}")
_HOOK = re.compile(rf"loss = {_NUMBER}, step = (\d{{1,18}})(?: \([\d.]+ sec\))?")
# What Python's logging, or glog, writes before the text.
_PREFIX = re.compile(r"(?:INFO:tensorflow:|[IWE]\d{4,8} \S+ +\d+ \S+\] )")


@dataclass(frozen=True)
class StepRecord:
    """The loss before a global step, and the rate of it, None if not printed."""

    step: int
    loss: float
    rate: float | None


def parse_step(line: str) -> StepRecord | None:
    """Return the step of a line; None if it has none.

    >>> parse_step("INFO:tensorflow:loss = 7.25, step = 100 (12.3 sec)")
    StepRecord(step=100, loss=7.25, rate=None)
    """
    prefix = _PREFIX.match(line)
    text = line[prefix.end() :] if prefix else line
    if own := STEP_LINE.fullmatch(text):
        return StepRecord(int(own[1]), float(own[2]), float(own[3]))
    if hook := _HOOK.fullmatch(text):
        return StepRecord(int(hook[2]), float(hook[1]), None)
    return None


@dataclass(frozen=True)
class EvaluationRecord:
    """The evaluation of the model at a global step; accuracies are from 0 to 1, None if not printed.

    `batches` of `batches_total` is the last progress printed; `line` is the line number of the result.
    """

    line: int
    step: int
    top1: float | None
    top5: float | None
    loss: float | None
    batches: int | None = None
    batches_total: int | None = None

    @property
    def has_diverged(self) -> bool:
        """Whether the loss is not a finite number."""
        return self.loss is not None and not math.isfinite(self.loss)


@dataclass(frozen=True)
class EvaluationLog:
    """All evaluations in a log; `unfinished` is the (batches, total) of a last one without a result."""

    evaluations: tuple[EvaluationRecord, ...]
    unfinished: tuple[int, int] | None = None


def parse_evaluations(text: str) -> EvaluationLog:
    """Return the evaluations in the text of a log; other lines are ignored.

    >>> log = parse_evaluations("Saving dict for global step 9: Top-1 accuracy = 0.5, loss = 2")
    >>> log.evaluations[0].top1, log.evaluations[0].top5, log.evaluations[0].loss
    (0.5, None, 2.0)
    """
    found: list[EvaluationRecord] = []
    batches: tuple[int, int] | None = None
    for number, line in enumerate(text.split("\n"), 1):
        progress = _BATCHES.search(line)
        if progress:
            batches = int(progress[1]), int(progress[2])
        result = _RESULT.search(line)
        if result:
            values = _parse_values(result[2])
            done, total = batches or (None, None)
            found.append(
                EvaluationRecord(
                    line=number,
                    step=int(result[1]),
                    top1=values.get("1"),
                    top5=values.get("5"),
                    loss=values.get("loss"),
                    batches=done,
                    batches_total=total,
                )
            )
            batches = None
    return EvaluationLog(tuple(found), batches)


def _parse_values(text: str) -> dict[str, float]:
    """Return the values of `name = number, ...`; names of accuracies become `1` or `5`.

    >>> _parse_values("global_step = 9, loss = nan, top_5_accuracy = 0.9, what = tf.Tensor")
    {'global_step': 9.0, 'loss': nan, '5': 0.9}
    """
    values = {}
    for part in text.split(", "):
        name, _, value = part.partition(" = ")
        top = _TOP.match(name)
        try:
            values[next(filter(None, top.groups())) if top else name] = float(value)
        except ValueError:
            continue
    return values


def load_evaluations(path: Path) -> tuple[EvaluationRecord, ...]:
    """Return the evaluations in a log file.

    Raises InputError if the file cannot be read, has no finished evaluation, or has an accuracy outside of
    0 to 1.
    """
    data = load_within(path, "list-bytes", InputError, "give the log of an evaluation")
    log = parse_evaluations(data.decode(errors="replace"))
    if not log.evaluations:
        how_far = f"; it ends at batch {log.unfinished[0]} of {log.unfinished[1]}" if log.unfinished else ""
        hint = "give the complete output of the evaluation"
        raise InputError(path, f"has no line 'Saving dict for global step'{how_far}", hint)
    for one in log.evaluations:
        for rank, top in ((1, one.top1), (5, one.top5)):
            if top is not None and not 0 <= top <= 1:
                what = f"top-{rank} accuracy {top:g} is not between 0 and 1"
                raise InputError(f"{path}:{one.line}", what, "write it as a fraction, e.g. 0.75 for 75%")
    return log.evaluations
