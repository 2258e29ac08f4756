from __future__ import annotations

from caffe_recipes.run.events import Event, decode_event
from caffe_recipes.run.report.timeline import find_spans, group_hosts
from tests.run.recorded_run import Event as Written
from tests.run.recorded_run import finished, interrupted, launched, started


def at(time_s: float, written: Written) -> tuple[float, Event]:
    """Return an event of a journal, at a time."""
    name, details = written
    return time_s, decode_event(name, details, time_s)


def test_each_launch_ends_as_the_journal_says() -> None:
    failure: Written = ("failed", {"phase": "init", "reason": "rank 3 died"})
    events = [
        at(100, started()),
        at(110, launched("init", 1, hosts=["a", "b"])),
        at(120, failure),
        at(130, launched("init", 2, hosts=["a", "c"])),
        at(150, finished("init")),
        at(151, launched("cyc1", 1, hosts=["a", "c"])),
        at(160, started()),
        at(161, launched("cyc1", 2, hosts=["a", "c"])),
        at(170, interrupted()),
        at(180, launched("cyc1", 3, hosts=["a", "c"])),
    ]
    spans = find_spans(events, 100)
    assert [(span.name, span.begin_s, span.end_s, span.outcome) for span in spans] == [
        ("init", 10, 20, "failed"),
        ("init", 30, 50, "finished"),
        ("cyc1", 51, 61, "lost"),
        ("cyc1", 61, 70, "interrupted"),
        ("cyc1", 80, 80, "open"),
    ]
    assert spans[0].detail == "attempt 1; rank 3 died"
    assert [(row.hosts, len(row.spans)) for row in group_hosts(spans)] == [
        (("a",), 5),
        (("b",), 1),
        (("c",), 4),
    ]


def test_an_evaluation_that_fails_is_shown_as_failed() -> None:
    failure: Written = ("failed", {"reason": "no such net"})
    (span,) = find_spans([at(0, started()), at(1, ("evaluating", {"weights": "w"})), at(3, failure)], 0)
    assert (span.kind, span.begin_s, span.end_s, span.outcome) == ("evaluation", 1, 3, "failed")
    assert span.detail == "w; no such net"


def test_hosts_that_did_the_same_share_a_row() -> None:
    hosts = [f"n{number}" for number in range(64)]
    rows = group_hosts(find_spans([at(0, launched(hosts=hosts)), at(9, finished("init"))], 0))
    assert [row.label for row in rows] == ["64 hosts: n0 ..."]
