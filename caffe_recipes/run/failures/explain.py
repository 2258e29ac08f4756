"""Explain the failures that a log shows, whatever program wrote it; the log is read once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from caffe_recipes.caffe.log_files import hint_for_log, name_log, read_whole_log
from caffe_recipes.caffe.logs import (
    ROUTINE_LINE,
    SATURATED_LOSS,
    Fatal,
    Loss,
    parse_line,
    split_rank,
)
from caffe_recipes.errors import InputError
from caffe_recipes.files.bounded_reads import reading
from caffe_recipes.run.failures.diagnosis import Diagnosis, Signature
from caffe_recipes.run.failures.rank_comparison import MOST_RANKS, RankComparison
from caffe_recipes.run.failures.signatures import DIVERGED, find_signature, select_signatures
from caffe_recipes.run.trainer_log import find_divergence
from caffe_recipes.wording import describe_count, shorten

_HINT = "give the log of a training, as text"
# Lines by which a log of one of the known programs is recognized, even if nothing in it is a failure.
_KNOWN = re.compile(
    r"[IWEF]\d{4,8} [\d:.]+ +\d+ \S+\] |(?:INFO|WARNING|ERROR):tensorflow:|: [IWEF] tensorflow/|"
    r"\[libprotobuf |srun: |slurmstepd: |\[(?:mpiexec|proxy:[\d:]+)@|=+ +BAD TERMINATION|"
    r"caffe-torch: |.{0,40}horovod"
)
_SHOWN_CHARACTERS = 300
_CONTROL = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
_STUCK = Diagnosis(
    "stuck-at-start",
    "the ranks hang in their first exchange: they wait for each other, for a server of MLSL, or on a network"
    " that does not connect all hosts",
    "if the run is still young, wait for the first display; else test with MLSL_NUM_SERVERS=0, with mlsl_test"
    " on the same hosts, and with the interface between them named (I_MPI_TCP_NETMASK, FI_PROVIDER=tcp)",
    "intel/MLSL#19, intel/MLSL#7, intel/caffe#98",
    is_guess=True,
)


@dataclass
class ExplainedLine:
    """A line and its diagnosis; `count` lines of the log are like it, of these ranks, or MOST_RANKS of them.

    `number` is 0, and `text` empty, if it takes more than one line to see the failure.
    """

    number: int
    text: str
    diagnosis: Diagnosis
    count: int = 1
    ranks: set[int] = field(default_factory=set)

    def describe_more(self) -> str:
        """Return how often the line came, and on which ranks; "" if only once."""
        if self.count < 2:
            return ""
        shown = ", ".join(map(str, sorted(self.ranks)[:8]))
        more = ", ..." if len(self.ranks) > 8 else ""
        who = f" of rank{'s' if len(self.ranks) > 1 else ''} {shown}{more}" if self.ranks else ""
        return f"the first of {describe_count(self.count, 'such line')}{who}"


class _LogExplainer:
    """Collects what explains a log, line by line; `hide` leaves out of a line what must not be shown."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        self.hide = hide
        self.lines = 0
        self.is_known = False
        self.fatal = ""  # the first fatal line, known or not
        self._found: dict[str, tuple[ExplainedLine, int]] = {}
        self._ranks = RankComparison()
        self._saturated: dict[int | None, Loss] = {}  # the last of each rank, if it was saturated
        self._last = ""
        self._has_started_ranks = False

    def feed(self, lines: Sequence[str]) -> None:
        signatures = select_signatures("\n".join(lines))
        for line in lines:
            self._feed_line(line, signatures)

    def _feed_line(self, line: str, signatures: Sequence[Signature]) -> None:
        self.lines += 1
        if ROUTINE_LINE.match(line):
            self.is_known, self._last = True, ""
            return
        entry = parse_line(line)
        if entry is not None:
            self._ranks.feed(entry)
            if isinstance(entry.event, Loss):
                self.is_known, self._last = True, ""
                self._look_for_divergence(line, entry.rank, entry.event)
                return
        rank, text = split_rank(line)
        text = text.strip()
        if not text:
            return
        self.is_known = self.is_known or _KNOWN.match(text) is not None
        self._has_started_ranks = self._has_started_ranks or "Multi-node Optimization" in text
        self._last = ""
        signature = find_signature(text, signatures)
        if signature is not None:
            self._last = signature.diagnosis.name
            self._add(line, rank, signature.diagnosis, signature.times)
        if entry is not None and isinstance(entry.event, Fatal) and not text.startswith("*** "):
            self.fatal = self.fatal or text

    def _look_for_divergence(self, line: str, rank: int | None, shown: Loss) -> None:
        if abs(shown.loss) < SATURATED_LOSS:
            self._saturated.pop(rank, None)
            return
        before = self._saturated.get(rank, shown)
        if find_divergence({before.iteration: before.loss, shown.iteration: shown.loss}) is not None:
            self._add(line, rank, DIVERGED, 1)
        if rank in self._saturated or len(self._saturated) < MOST_RANKS:
            self._saturated[rank] = shown

    def _add(self, line: str, rank: int | None, diagnosis: Diagnosis, times: int) -> None:
        name = diagnosis.name
        if name not in self._found:
            shown = shorten(self.hide(line.strip()), _SHOWN_CHARACTERS)
            self._found[name] = ExplainedLine(self.lines, shown, diagnosis, 0), times
        found = self._found[name][0]
        found.count += 1
        if rank is not None and len(found.ranks) < MOST_RANKS:
            found.ranks.add(rank)

    def finish(self) -> list[ExplainedLine]:
        """Return what explains the log, in its order; consequences only if nothing else does."""
        found = [
            one
            for one, times in self._found.values()
            if (one.count >= times and not (times > 1 and self._ranks.is_done))
            or one.diagnosis.name == self._last
        ]
        has_failed = bool(found or self.fatal)
        whole = self._ranks.explain(has_failed=has_failed)
        is_multiple = len(self._ranks.ranks) > 1 or self._has_started_ranks
        is_stuck = self._ranks.last_iteration == 0 and is_multiple and not self._ranks.is_done
        if is_stuck and not has_failed and not whole:
            whole.append(_STUCK)
        found += [ExplainedLine(0, "", each) for each in whole]
        causes = [one for one in found if not one.diagnosis.is_consequence]
        return causes or found


@dataclass(frozen=True)
class ExplainedLog:
    """What explains a log of so many lines; `fatal` is its first fatal line, "" without one."""

    lines: int
    found: tuple[ExplainedLine, ...]
    fatal: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the explanations; `line` is None for what only the whole log shows."""
        found = [
            {
                "line": one.number or None,
                "text": one.text,
                "count": one.count,
                "ranks": sorted(one.ranks),
                **asdict(one.diagnosis),
            }
            for one in self.found
        ]
        return {"lines": self.lines, "fatal": self.fatal or None, "found": found}


def explain_lines(groups: Iterable[Sequence[str]], hide: Callable[[str], str] = str) -> ExplainedLog | None:
    """Explain the lines of a log, in groups of any size; return None if they are of no known program.

    `hide` leaves out of a line what must not be shown.

    >>> (found,) = explain_lines([["[3] Host key verification failed."]]).found
    >>> found.number, found.diagnosis.name, found.ranks
    (1, 'ssh-host-key', {3})
    """
    explainer = _LogExplainer(hide)
    for lines in groups:
        explainer.feed(lines)
    found = explainer.finish()
    if not found and not explainer.is_known:
        return None
    return ExplainedLog(explainer.lines, tuple(found), shorten(hide(explainer.fatal), _SHOWN_CHARACTERS))


def explain_log(path: Path, hide: Callable[[str], str] = str) -> ExplainedLog:
    """Explain the failures that a log shows, which is read as by `read_whole_log`; `hide` as explain_lines.

    Raises InputError for a file that is empty, binary, unreadable, or the log of another program.
    """
    name = name_log(path)
    with reading(name, InputError, hint_for_log(path, _HINT)):
        found = explain_lines(_read_text(path), hide)
    if found is None:
        raise InputError(name, "has no line of Caffe, TensorFlow, MPI, ssh or Slurm", _HINT)
    return found


def _read_text(path: Path) -> Iterator[list[str]]:
    is_empty = True
    for text, _ in read_whole_log(path):
        # Terminals and PSM print a few control characters, too.
        if is_empty and len(_CONTROL.findall(text)) > len(text) // 50 + 8:
            raise InputError(name_log(path), "is binary", _HINT)
        is_empty = False
        yield text[:-1].split("\n")
    if is_empty:
        raise InputError(name_log(path), "is empty", _HINT)
