"""What a run refuses before it has started any process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.faults.faulty_chain import FaultyChain
from tests.cluster.harness.keys import write_key

pytestmark = pytest.mark.cluster

MakeChain = Callable[..., FaultyChain]


def test_a_changed_or_an_unknown_host_key_is_refused_before_anything_is_started(
    make_chain: MakeChain,
) -> None:
    chain = make_chain()
    known = chain.cluster.ssh / "known_hosts"
    before = known.read_text()
    address = chain.cluster.addresses["node2"]
    lines = [line for line in before.splitlines() if not line.startswith("node2,")]
    other = write_key(chain.root / "other")
    for line, what in (
        (f"node2,{address} {other}", "its host key has CHANGED"),
        ("", "its host key is not in known_hosts"),
    ):
        spoilt = "\n".join([*lines, line]) + "\n"
        known.write_text(spoilt)
        printed = chain.run(code=2).splitlines()
        assert f"Error: node2: {what}" in printed[-1]
        assert known.read_text() == spoilt
        assert not chain.run_folder.exists()
        assert not any(chain.of(host).exists() for host in chain.cluster.nodes)
        assert chain.cluster.leftovers() == {}
    known.write_text(before)
    chain.run()
    chain.check_finished()


def test_a_second_run_of_a_recipe_is_refused_with_the_first_ones_process(chain: FaultyChain) -> None:
    chain.behave(init={"does": "waits", "at": 2})
    first = chain.start()
    first.wait_until(lambda: "Iteration 2, lr" in chain.log("init"))
    started = next(event for event in chain.events() if event["event"] == "started")
    for words in ((), ("--new",)):
        lines = chain.run(*words, code=2).splitlines()
        assert f"is in use by process {started['pid']} on head" in lines[-1]
    chain.release()
    first.finish()
    chain.check_finished()
    assert chain.trained() == ["init", "cyc1", "last"]


def test_two_runs_of_a_recipe_on_the_same_hosts_from_two_roots_do_not_interfere(
    chain: FaultyChain, make_beside: Callable[[FaultyChain], FaultyChain]
) -> None:
    other = make_beside(chain)
    runs = [each.start() for each in (chain, other)]
    for run in runs:
        run.finish()
    for each in (chain, other):
        each.check_finished()
