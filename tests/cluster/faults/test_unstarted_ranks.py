"""Hosts that we reach but where the launcher can start nothing: named within a minute, and replaced."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.cluster.faults.faulty_chain import FaultyChain
from tests.cluster.harness.keys import write_key

pytestmark = pytest.mark.cluster

MakeChain = Callable[..., FaultyChain]


def replace_host_key(chain: FaultyChain) -> None:
    """Put another key of node2 into known_hosts; our established connections continue."""
    known, address = chain.cluster.ssh / "known_hosts", chain.cluster.addresses["node2"]
    lines = [line for line in known.read_text().splitlines() if not line.startswith("node2,")]
    other = f"node2,{address} {write_key(chain.root / 'other')}"
    known.write_text("\n".join([*lines, other]) + "\n")


def deny_keys(chain: FaultyChain) -> None:
    chain.cluster.replace("node2", str(chain.cluster.ssh / "authorized_keys"), "")


def stop_sshd(chain: FaultyChain) -> None:
    chain.cluster.stop_sshd("node2")


def break_proxy(chain: FaultyChain) -> None:
    for proxy in chain.proxies():
        chain.cluster.replace("node2", proxy, "#!/bin/sh\nexit 127\n")


BREAKS = {
    "host key replaced": replace_host_key,
    "key denied": deny_keys,
    "sshd down": stop_sshd,
    "proxy unusable": break_proxy,
}


@pytest.mark.parametrize("fault", BREAKS)
def test_a_host_where_no_rank_starts_is_named_within_a_minute_and_a_spare_takes_its_place(
    make_chain: MakeChain, fault: str
) -> None:
    chain = make_chain(3)
    run = chain.start_amid("init", "--on-failure", "replace")
    BREAKS[fault](chain)
    chain.release()
    run.wait_until(lambda: chain.has_event("launched", "cyc1"))
    launched = time.monotonic()
    run.wait_until(lambda: chain.has_event("replaced"))
    assert time.monotonic() - launched < 60
    output = run.finish()
    assert "cyc1: node2: no rank has started there" in output
    assert "node3 replaces node2" in output
    assert chain.trained() == ["init", "cyc1", "last"]
    chain.check_files()
