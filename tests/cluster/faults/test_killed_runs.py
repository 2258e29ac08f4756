"""The orchestrator killed at any point: the same command ends with the same files."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.faults.faulty_chain import FaultyChain

pytestmark = pytest.mark.cluster

Point = Callable[[FaultyChain], bool]


def event(name: str, phase: str | None = None) -> Point:
    return lambda chain: chain.has_event(name, phase)


def logged(phase: str, text: str) -> Point:
    return lambda chain: text in chain.log(phase)


def here(pattern: str) -> Point:
    return lambda chain: any(chain.run_folder.glob(pattern))


def on_node(pattern: str) -> Point:
    return lambda chain: any(chain.of("node2").glob(pattern))


POINTS: dict[str, Point] = {
    "created": event("created"),
    "started": event("started"),
    "placed": event("placed"),
    "staging begun": on_node("*"),
    "staged": event("staged"),
    "init launched": event("launched", "init"),
    "init's log begun": logged("init", "Solving"),
    "amid init": logged("init", "Iteration 4, lr"),
    "init writes its snapshot": logged("init", "Snapshot begin"),
    "init done": logged("init", "Optimization Done."),
    "init being fetched": here("snapshots/*init*.part"),
    "init fetched": here("snapshots/init_iter_8.caffemodel"),
    "init finished": event("finished", "init"),
    "cyc1 launched": event("launched", "cyc1"),
    "amid cyc1": logged("cyc1", "Iteration 2, lr"),
    "cyc1 done": logged("cyc1", "Optimization Done."),
    "cyc1 being fetched": here("snapshots/*cyc1*.part"),
    "amid the last phase": logged("last", "Iteration 4, lr"),
    "the last phase finished": event("finished", "last"),
    "evaluation begun": here("logs/evaluation-1*"),
    "evaluated": event("evaluated"),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_run_killed_at_any_point_continues_to_the_same_snapshots(chain: FaultyChain, point: str) -> None:
    first = chain.start()
    first.wait_until(lambda: POINTS[point](chain))
    first.kill()
    before = {path.name: path.stat().st_ino for path in (chain.run_folder / "snapshots").glob("*.caffemodel")}
    finished = [event["phase"] for event in chain.events() if event["event"] == "finished"]
    chain.run()
    chain.check_finished()
    assert chain.trained() == ["init", "cyc1", "last"], "a trainer that lives on is gone on with"
    after = {path.name: path.stat().st_ino for path in (chain.run_folder / "snapshots").glob("*.caffemodel")}
    kept = [name for name in before if name.partition("_")[0] in finished]
    assert [after[name] for name in kept] == [before[name] for name in kept], "none is fetched again"
