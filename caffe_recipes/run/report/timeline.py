"""What a run's events say happened when, and on which hosts: spans of time, and incidents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.run.events import (
    Built,
    Ending,
    Evaluated,
    Evaluating,
    Event,
    Failed,
    Finish,
    Launch,
    Replaced,
    Restored,
    Retrying,
    RunStarted,
    Staged,
    Stopped,
)
from caffe_recipes.run.folded_events import describe_event
from caffe_recipes.units import describe_bytes, describe_duration
from caffe_recipes.wording import describe_count, shorten

TimedEvent = tuple[float, Event]
# What is kept of the texts in a journal, which may be of any length.
_LONGEST_TEXT = 1000
_MOST_INCIDENTS = 500


@dataclass(frozen=True)
class TimelineSpan:
    """Something that took time on some hosts; times are seconds since the first event of the run.

    `kind` is data, training or evaluation. `outcome` is finished, failed, interrupted, lost (the process of
    the run ended first) or open (nothing in the journal ends it).
    """

    kind: str
    name: str
    hosts: tuple[str, ...]
    begin_s: float
    end_s: float
    outcome: str
    detail: str = ""


@dataclass(frozen=True)
class Incident:
    """Something that went wrong, or what was done about it: `is_action`."""

    at_s: float
    phase: str
    host: str
    what: str
    is_action: bool = False
    cause: str = ""
    change: str = ""
    log: str = ""


@dataclass
class _OpenSpans:
    """The spans that have begun, while the events pass by."""

    spans: list[TimelineSpan] = field(default_factory=list)
    launches: dict[str, TimelineSpan] = field(default_factory=dict)  # by phase
    evaluation: TimelineSpan | None = None

    def end(self, phase: str | None, at_s: float, outcome: str, detail: str = "") -> None:
        """End the launch of a phase; of all phases if it is None."""
        for name in [phase] if phase is not None else list(self.launches):
            span = self.launches.pop(name, None)
            if span is not None:
                text = "; ".join(filter(None, (span.detail, detail)))
                self.spans.append(replace(span, end_s=at_s, outcome=outcome, detail=text))

    def end_evaluation(self, at_s: float, outcome: str, detail: str = "") -> None:
        """End the evaluation, if there is one."""
        if self.evaluation is not None:
            detail = "; ".join(filter(None, (self.evaluation.detail, detail)))
            self.spans.append(replace(self.evaluation, end_s=at_s, outcome=outcome, detail=detail))
        self.evaluation = None


def find_spans(events: Sequence[TimedEvent], begin_s: float) -> list[TimelineSpan]:
    """Return what took time in a run or a branch, in the order of its beginning."""
    found, host, before_s = _OpenSpans(), "", 0.0
    for time_s, event in events:
        at_s = max(0.0, time_s - begin_s)
        if isinstance(event, RunStarted):
            host = event.host
        elif isinstance(event, Staged):
            detail = f"{describe_bytes(event.bytes)} from {event.source} to {event.lmdb}"
            found.spans.append(
                TimelineSpan("data", "staging", tuple(event.hosts), before_s, at_s, "finished", detail)
            )
        elif isinstance(event, Built):
            detail = ", ".join(event.lmdbs)
            found.spans.append(TimelineSpan("data", "building", (host,), before_s, at_s, "finished", detail))
        else:
            _follow_launches(event, at_s, host, found)
        before_s = at_s
    found.end_evaluation(before_s, "open")
    found.end(None, before_s, "open")
    return sorted(found.spans, key=lambda span: span.begin_s)


def _follow_launches(event: Event, at_s: float, host: str, found: _OpenSpans) -> None:
    if isinstance(event, Launch):
        found.end(event.phase, at_s, "lost")
        detail = f"attempt {event.attempt}"
        if event.resumed is not None:
            detail += f", from the checkpoint at {event.resumed:,}"
        hosts = event.hosts or (event.host,)
        found.launches[event.phase] = TimelineSpan("training", event.phase, hosts, at_s, at_s, "open", detail)
    elif isinstance(event, Finish):
        speed = f"{event.images_per_s:,.0f} images/s" if event.images_per_s else ""
        found.end(event.phase, at_s, "finished", speed)
    elif isinstance(event, Failed):
        reason = shorten(event.reason, _LONGEST_TEXT)
        if event.phase is not None:
            found.end(event.phase, at_s, "failed", reason)
        else:
            found.end_evaluation(at_s, "failed", reason)
    elif isinstance(event, Stopped):
        found.end(None, at_s, "interrupted", event.signal)
        found.end_evaluation(at_s, "interrupted", event.signal)
    elif isinstance(event, Evaluating):
        found.end_evaluation(at_s, "lost")
        found.evaluation = TimelineSpan(
            "evaluation", "evaluation", (host,), at_s, at_s, "open", event.weights
        )
    elif isinstance(event, Evaluated):
        found.end_evaluation(at_s, "finished")


def find_incidents(
    events: Sequence[TimedEvent], begin_s: float, recipe: AnyRecipe, folder: str
) -> tuple[list[Incident], int]:
    """Return what failed in a run and what was done about it, and how many further ones are left out."""
    found = list(_find_incidents(events, begin_s, recipe, folder))
    return found[:_MOST_INCIDENTS], max(0, len(found) - _MOST_INCIDENTS)


def _find_incidents(
    events: Sequence[TimedEvent], begin_s: float, recipe: AnyRecipe, folder: str
) -> Iterator[Incident]:
    logs: dict[str, str] = {}
    has_ended, is_first = False, True
    for time_s, event in events:
        at_s = max(0.0, time_s - begin_s)
        if isinstance(event, Launch):
            logs[event.phase] = event.log
        elif isinstance(event, RunStarted) and not is_first:
            earlier = "" if has_ended else "the process before it ended without a word; "
            what = f"{earlier}resumed by process {event.pid} on {event.host}"
            yield Incident(at_s, "", event.host, what, is_action=True)
        elif isinstance(event, Failed):
            texts = (shorten(text or "", _LONGEST_TEXT) for text in (event.reason, event.cause, event.change))
            what, cause, change = texts
            log = event.log or logs.get(event.phase or "", "")
            yield Incident(
                at_s, event.phase or "", event.host or "", what, cause=cause, change=change, log=log
            )
        elif isinstance(event, Ending):
            what = f"{shorten(event.reason, _LONGEST_TEXT)}; the launch was ended on every host"
            yield Incident(at_s, event.phase, event.host or "", what)
        elif isinstance(event, Stopped):
            what = f"interrupted by {event.signal}"
            if event.seconds:
                what += f", {describe_duration(event.seconds)} into a launch"
            yield Incident(at_s, "", "", what)
        elif isinstance(event, Retrying | Replaced | Restored):
            host = "" if isinstance(event, Retrying) else event.host
            yield Incident(at_s, "", host, describe_event(event, recipe, folder), is_action=True)
        is_first = is_first and not isinstance(event, RunStarted)
        has_ended = isinstance(event, Failed | Stopped)


@dataclass(frozen=True)
class HostRow:
    """The hosts that did the same at the same times, and what they did."""

    hosts: tuple[str, ...]
    spans: tuple[TimelineSpan, ...]

    @property
    def label(self) -> str:
        """The name of the host, or how many they are."""
        if len(self.hosts) == 1:
            return self.hosts[0]
        return f"{describe_count(len(self.hosts), 'host')}: {self.hosts[0]} ..."


def group_hosts(spans: Sequence[TimelineSpan]) -> list[HostRow]:
    """Return a row for each group of hosts that did the same, in the order in which they first did anything.

    >>> one = TimelineSpan("training", "init", ("a", "b"), 0, 9, "failed")
    >>> other = TimelineSpan("training", "init", ("a", "c"), 9, 20, "finished")
    >>> [row.label for row in group_hosts([one, other])]
    ['a', 'b', 'c']
    """
    done: dict[str, list[int]] = {}
    for index, span in enumerate(spans):
        for host in dict.fromkeys(span.hosts):
            done.setdefault(host, []).append(index)
    groups: dict[tuple[int, ...], list[str]] = {}
    for host, indices in done.items():
        groups.setdefault(tuple(indices), []).append(host)
    return [
        HostRow(tuple(hosts), tuple(spans[index] for index in indices)) for indices, hosts in groups.items()
    ]
