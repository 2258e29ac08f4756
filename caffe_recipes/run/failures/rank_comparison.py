"""What only the log of all ranks shows: ranks that train alone, out of step, or differently from the others.

Training is synchronous, so that all ranks print an iteration at about the same time; each rank sees other
images, and with MLSL only rank 0 prints the results of a test (Intel Caffe, src/caffe/solver.cpp). Lines
without a rank are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from statistics import median

from caffe_recipes.caffe.logs import SATURATED_LOSS, Done, Entry, Loss, Started, TestOutput, TestStarted
from caffe_recipes.run.failures.diagnosis import Diagnosis
from caffe_recipes.units import describe_duration
from caffe_recipes.wording import describe_count

# The labels of a log can name any number of ranks; of more than these, nothing is kept.
MOST_RANKS = 2048
# A rank is out of step if it is this many displays behind, this often, while the first one continues.
_BEHIND_DISPLAYS, _BEHIND_TIMES = 5, 3
# The iterations whose losses are compared, and how many must agree.
_KEPT, _ENOUGH = 64, 5
_MOST_LOSSES = 16 * MOST_RANKS  # of many ranks, fewer iterations are kept
_FEWEST_RANKS = 4
# The loss of a rank is apart if it differs from the median of the others by this factor.
_APART = 2.0
# Lines of two ranks that follow each other are never this many seconds apart, if their clocks agree.
_CLOCKS_S, _CLOCK_LINES = 600.0, 3

_MULTINODE = (
    "check that Caffe was compiled with MLSL, that the ranks are started by the mpiexec of the MPI that it"
    " uses, and that all hosts have the same build"
)


class RankComparison:
    """Compares the ranks of a log, entry by entry; its memory does not grow with the log."""

    def __init__(self) -> None:
        """Start before the first line."""
        self.ranks: set[int] = set()
        self._offsets: dict[int, list[float]] = {}  # of each rank's clock: the number of lines, the smallest
        self._reference: tuple[int, datetime] | None = None
        self._start()

    def _start(self) -> None:
        """Forget an earlier phase or run in the same log; its ranks and their clocks are the same."""
        self.is_done = False
        self.last_iteration = -1  # of any rank, labelled or not
        self._active: set[int | None] = set()  # ranks that have shown an iteration, or the end
        self._begun: dict[int, int] = {}  # the tests that each rank has begun,
        self._tested: dict[int, int] = {}  # and those whose results it has printed
        self._shown: dict[int, int] = {}
        self._losses: dict[int, dict[int, float]] = {}
        self._display = 0
        self._lead = self._leads = 0
        self._counted: dict[int, int] = {}
        self._behind: dict[int, tuple[int, int, int]] = {}

    def feed(self, entry: Entry) -> None:
        """Add an entry of the log."""
        if not self._admits(entry.rank):
            return
        if self._is_next_start(entry):
            self._start()
        match entry.event:
            case Loss(iteration, _) | TestStarted(iteration, _):
                self.last_iteration = max(self.last_iteration, iteration)
                self._active.add(entry.rank)
            case Done():
                self.is_done = True
                self._active.add(entry.rank)
        if entry.rank is None:
            return
        if entry.time is not None:
            self._compare_clocks(entry.rank, entry.time)
        if isinstance(entry.event, TestStarted):
            self._begun[entry.rank] = self._begun.get(entry.rank, 0) + 1
        elif isinstance(entry.event, TestOutput) and entry.event.index == 0:
            self._tested[entry.rank] = self._tested.get(entry.rank, 0) + 1
        elif isinstance(entry.event, Loss):
            self._add_loss(entry.rank, entry.event)

    def _admits(self, rank: int | None) -> bool:
        if rank is not None and rank not in self.ranks:
            if len(self.ranks) >= MOST_RANKS:
                return False
            self.ranks.add(rank)
        return True

    def _is_next_start(self, entry: Entry) -> bool:
        """Return whether a rank that has trained before starts again; others may only be slow to start."""
        match entry.event:
            case Started():
                return entry.rank in self._active and (self.is_done or self.last_iteration > 0)
            case Loss(iteration, _) | TestStarted(iteration, _) if entry.rank is not None:
                return iteration < self._shown.get(entry.rank, -1)
        return False

    def _compare_clocks(self, rank: int, time: datetime) -> None:
        if self._reference is None or self._reference[0] == rank:
            self._reference = rank, time
            return
        offset = (time - self._reference[1]).total_seconds()
        before = self._offsets.get(rank, [0, math.inf])
        self._offsets[rank] = [before[0] + 1, min(before[1], offset, key=abs)]

    def _add_loss(self, rank: int, shown: Loss) -> None:
        iteration, before = shown.iteration, self._shown.get(rank, -1)
        if before >= 0 and iteration > before:
            step = iteration - before
            self._display = min(self._display or step, step)
        self._shown[rank] = iteration
        self._losses.setdefault(iteration, {})[rank] = shown.loss
        while len(self._losses) > min(_KEPT, _MOST_LOSSES // len(self._shown)):
            del self._losses[min(self._losses)]
        if iteration > self._lead:
            self._lead, self._leads = iteration, self._leads + 1
        gap = self._lead - iteration
        if (
            self._display
            and gap >= _BEHIND_DISPLAYS * self._display
            and self._counted.get(rank) != self._leads
        ):
            self._counted[rank] = self._leads
            self._behind[rank] = (self._behind.get(rank, (0, 0, 0))[0] + 1, iteration, self._lead)

    def explain(self, *, has_failed: bool) -> list[Diagnosis]:
        """Return what is wrong with the ranks; `has_failed` is whether the log shows that the run failed."""
        alone = self._find_alone() or self._find_out_of_step()
        found = [alone, *([] if alone else [self._find_apart(), self._find_stopped(has_failed)])]
        return [each for each in (*found, self._find_clock()) if each is not None]

    def _find_alone(self) -> Diagnosis | None:
        everyone_tests = all(
            0 <= self._begun.get(rank, 0) - self._tested.get(rank, 0) <= 1 for rank in self.ranks
        )
        if len(self.ranks) > 1 and everyone_tests and self._tested.keys() == self.ranks:
            return Diagnosis(
                "ranks-alone",
                f"all {describe_count(len(self.ranks), 'rank')} print the results of tests, which with MLSL"
                " only rank 0 does: each trains alone, in a world of one",
                _MULTINODE,
                "src/caffe/solver.cpp of Intel Caffe; intel/caffe#100, horovod/horovod#870",
                is_guess=True,
            )
        common = [set(losses.values()) for losses in self._losses.values() if len(losses) > 1]
        # A loss that has diverged, or that stays the same, is equal anyway.
        learning = [losses for losses in common if all(0 < loss < SATURATED_LOSS for loss in losses)]
        is_equal = all(len(losses) == 1 for losses in learning)
        if len(learning) >= _ENOUGH and is_equal and len(set.union(*learning)) > 1:
            return Diagnosis(
                "ranks-equal",
                "all ranks print the same losses: each trains alone on the same images",
                f"{_MULTINODE}; ranks that work together see different images",
                "src/caffe/data_reader.cpp of Intel Caffe; horovod/horovod#870",
                is_guess=True,
            )
        return None

    def _find_out_of_step(self) -> Diagnosis | None:
        late = {rank: each for rank, each in self._behind.items() if each[0] >= _BEHIND_TIMES}
        if not late:
            return None
        rank = max(late, key=lambda one: late[one][2] - late[one][1])
        _, iteration, lead = late[rank]
        return Diagnosis(
            "ranks-out-of-step",
            f"the ranks are out of step: rank {rank} was at iteration {iteration:,} when another was at"
            f" {lead:,}, and both continued, so they do not average their gradients",
            _MULTINODE,
            "intel/caffe#205, intel/caffe#96",
        )

    def _find_apart(self) -> Diagnosis | None:
        common = [losses for losses in self._losses.values() if len(losses) >= _FEWEST_RANKS]
        if len(common) < _ENOUGH:
            return None
        for rank in sorted(set.intersection(*(set(losses) for losses in common[-_ENOUGH:]))):
            if all(_is_apart(rank, losses) for losses in common[-_ENOUGH:]):
                losses = common[-1]
                typical = median(loss for other, loss in losses.items() if other != rank)
                return Diagnosis(
                    "rank-apart",
                    f"the loss of rank {rank} is apart from the others: {losses[rank]:g}, where these have"
                    f" {typical:g}",
                    "compare its copy of the LMDB and of the weights with those of the others"
                    " (`caffe-recipes stage` verifies copies), and the memory of its host",
                    "synchronous training: all ranks have the same weights",
                )
        return None

    def _find_stopped(self, has_failed: bool) -> Diagnosis | None:
        gap = self._display * (1 if has_failed else 2)
        first = sorted(rank for rank, at in self._shown.items() if gap and at <= self._lead - gap)
        if self.is_done or not first or 2 * len(first) > len(self._shown):
            return None
        if len(self._losses.get(self._lead, {})) < max(2, len(self._shown) - len(first)):
            return None  # not every rank prints every iteration
        at, others = self._shown[first[0]], self._lead
        return Diagnosis(
            "rank-stopped-first",
            f"rank {first[0]} stopped first: its last iteration is {at:,}, and others reached {others:,}",
            f"read the lines of rank {first[0]}, and what its host reports (dmesg)",
            "synchronous training: the others wait for it",
            repeats=False,
            is_guess=True,
        )

    def _find_clock(self) -> Diagnosis | None:
        wrong = {
            rank: offset
            for rank, (lines, offset) in self._offsets.items()
            if lines >= _CLOCK_LINES and abs(offset) > _CLOCKS_S
        }
        if not wrong or self._reference is None:
            return None
        rank = min(wrong)
        apart = describe_duration(round(abs(wrong[rank]), -2))
        way = "ahead of" if wrong[rank] > 0 else "behind"
        return Diagnosis(
            "clocks-apart",
            f"the clock of rank {rank} is about {apart} {way} that of rank {self._reference[0]}",
            "set one time zone on all hosts and in containers (mount /etc/localtime), and run NTP; training"
            " goes wrong only where times of files are compared, but no times of the log can be",
            "intel/caffe#205",
            repeats=False,
        )


def _is_apart(rank: int, losses: Mapping[int, float]) -> bool:
    """Return whether the loss of one rank differs from all others, which agree.

    >>> _is_apart(2, {0: 1.1, 1: 0.9, 2: 6.9, 3: 1.0}), _is_apart(1, {0: 1.1, 1: 0.9, 2: 6.9, 3: 1.0})
    (True, False)
    """
    others = [loss for other, loss in losses.items() if other != rank]
    if not all(math.isfinite(loss) and loss > 0 for loss in others):
        return False
    typical = median(others)
    if not all(typical / _APART < loss < typical * _APART for loss in others):
        return False
    return not typical / _APART < losses[rank] < typical * _APART
