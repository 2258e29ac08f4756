"""The alarms of a watched run: each is one function of what is known of its training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from caffe_recipes.caffe.logs import LogSummary
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.run.trainer import Training
from caffe_recipes.run.trainer_log import accuracies, find_divergence, find_guessing
from caffe_recipes.units import describe_duration
from caffe_recipes.wording import describe_names

# The log is stalled after this many times its usual pause, and its longest, as for a test, but not before so
# many seconds; nor, before the first loss, while nets are built and weights are read.
_STALL_TIMES, _LONGEST_TIMES, _STALL_S, _START_S = 5, 2, 60.0, 600.0
# A rank is behind if it lacks this many displays that others have shown.
_BEHIND_DISPLAYS = 3
# The speed has fallen if a display took this many times its median, in so many of the last displays.
_SLOW_TIMES, _SLOW_DISPLAYS, _FEWEST_DISPLAYS = 1.5, 3, 10
# The accuracy of a test varies by about this much, in percent.
_NEAR_PERCENT = 0.5


@dataclass(frozen=True)
class WatchedTraining:
    """The training of a phase as a watcher sees it.

    `quiet_s` is for how long the log has shown no new loss. `shown` has the last iteration that each rank has
    shown, if lines name their ranks, and `hosts` are those of the ranks, in their order. `blamed` are the
    hosts because of which launches have ended.
    """

    recipe: AnyRecipe
    step: Training
    summary: LogSummary
    quiet_s: float = 0.0
    shown: Mapping[int, int] = field(default_factory=dict)
    hosts: Sequence[str] = ()
    blamed: Sequence[str] = ()

    def host_of(self, rank: int) -> str:
        """Return the host of a rank; "" if it is not known."""
        place = rank // self.recipe.cluster.ranks_per_node
        return self.hosts[place] if place < len(self.hosts) else ""

    def late_ranks(self) -> dict[int, int]:
        """Return the ranks that others are waiting for, and the last iteration that each has shown.

        None is late where most are: then most ranks print only some iterations.
        """
        display = self.step.display_iter or 1
        lead = max(self.shown.values(), default=0)
        late = {rank: at for rank, at in self.shown.items() if lead - at >= _BEHIND_DISPLAYS * display}
        return late if 2 * len(late) < len(self.shown) else {}


Alarm = Callable[[WatchedTraining], str | None]


def _find_stall(seen: WatchedTraining) -> str | None:
    pauses = [(after - before).total_seconds() for before, after in pairwise(seen.summary.times.values())]
    usual_s = median(pauses) if pauses else 0.0
    limit_s = _START_S
    if seen.summary.losses:
        limit_s = max(_STALL_S, _STALL_TIMES * usual_s, _LONGEST_TIMES * max(pauses, default=0.0))
    has_ended = seen.summary.done or max(seen.summary.losses, default=-1) >= seen.step.last_iter
    if has_ended or seen.quiet_s < limit_s:
        return None
    usual = f"; usually there is one every {describe_duration(usual_s)}" if usual_s else ""
    return f"stalled: no loss in the log for {describe_duration(seen.quiet_s)}{usual}"


def _find_divergence(seen: WatchedTraining) -> str | None:
    return find_divergence(seen.summary.losses)


def _find_guessing(seen: WatchedTraining) -> str | None:
    epoch_iter = seen.recipe.train_images / seen.step.images_per_iter
    return find_guessing(seen.summary, seen.recipe.classes, epoch_iter)


def _find_late_rank(seen: WatchedTraining) -> str | None:
    late = seen.late_ranks()
    if not late:
        return None
    rank = min(late, key=lambda one: late[one])
    host = seen.host_of(rank)
    more = f", and {len(late) - 1} more" if len(late) > 1 else ""
    lead = max(seen.shown.values())
    return (
        f"rank {rank}{f' on {host}' if host else ''} is late{more}: at iteration {late[rank]:,} when others"
        f" are at {lead:,}"
    )


def _find_slowdown(seen: WatchedTraining) -> str | None:
    times = list(seen.summary.times.items())
    paces = [
        (later - earlier).total_seconds() / (last - first)
        for (first, earlier), (last, later) in pairwise(times)
        if last > first
    ]
    usual_s = median(paces) if len(paces) >= _FEWEST_DISPLAYS else 0.0
    recent = paces[-_SLOW_DISPLAYS:]
    if not usual_s or min(recent) <= _SLOW_TIMES * usual_s:
        return None
    images = seen.step.images_per_iter
    return (
        f"throughput fell: {images / median(recent):,.0f} images/s, and usually"
        f" {images / usual_s:,.0f} in this phase"
    )


def _find_low_accuracy(seen: WatchedTraining) -> str | None:
    reported = seen.step.reported if seen.step.reported.top1_percent else seen.recipe.reported
    tested = list(accuracies(seen.summary))
    if reported.top1_percent is None or not tested or not seen.step.is_end:
        return None
    iteration, accuracy = tested[-1]
    epochs = (seen.step.images_before + iteration * seen.step.images_per_iter) / seen.recipe.train_images
    whole = (seen.step.images_before + seen.step.images) / seen.recipe.train_images
    if (
        epochs < min(reported.epochs or whole, whole)
        or 100 * accuracy + _NEAR_PERCENT >= reported.top1_percent
    ):
        return None
    return (
        f"top-1 is {100 * accuracy:.2f}% after {epochs:.1f} epochs; the source reports"
        f" {reported.top1_percent:g}%"
    )


def _find_blamed(seen: WatchedTraining) -> str | None:
    return f"launches ended because of {describe_names(seen.blamed)}" if seen.blamed else None


# In the order in which they are shown: what ends the training, before what only slows it down.
ALARMS: tuple[Alarm, ...] = (
    _find_divergence,
    _find_stall,
    _find_guessing,
    _find_late_rank,
    _find_slowdown,
    _find_blamed,
    _find_low_accuracy,
)


def find_alarms(seen: WatchedTraining) -> tuple[str, ...]:
    """Return a sentence for each alarm that rings."""
    return tuple(text for text in (alarm(seen) for alarm in ALARMS) if text is not None)
