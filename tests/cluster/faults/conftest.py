"""Chains on separate hosts, one root for each test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.faults.faulty_chain import GRAPH, RECIPE, FaultyChain
from tests.cluster.harness.cluster import Cluster


@pytest.fixture
def chain(cluster: Cluster, shared: Path) -> Iterator[FaultyChain]:
    """Make a chain on the first two of the module's four hosts."""
    yield from _chain(cluster, shared)


@pytest.fixture
def graph(cluster: Cluster, shared: Path) -> Iterator[FaultyChain]:
    """Make one whose phase `side` branches off the first, before the last."""
    yield from _chain(cluster, shared, GRAPH)


def _chain(cluster: Cluster, shared: Path, recipe: str = RECIPE) -> Iterator[FaultyChain]:
    yield FaultyChain(cluster, shared / f"small-{shared.name}", recipe=recipe)
    for host in cluster.pids:
        for left in Path(f"/proc/{cluster.pids[host]}/root/tmp").glob(f"*-{shared.name}"):
            shutil.rmtree(left)


@pytest.fixture
def make_beside(shared: Path) -> Callable[[FaultyChain], FaultyChain]:
    """Give a function that makes another chain on the same hosts."""
    return lambda chain: FaultyChain(chain.cluster, shared / f"other-{shared.name}")


@pytest.fixture
def make_chain(make_cluster: Callable[..., Cluster]) -> Callable[..., FaultyChain]:
    """Give a function that makes a cluster for one test, with a chain on it."""

    def make(
        hosts: int = 2, nodes: int = 2, tmp: str = "4g", records: int = 128, recipe: str = RECIPE
    ) -> FaultyChain:
        cluster = make_cluster(hosts, tmp=tmp)
        return FaultyChain(cluster, cluster.shared / "small", nodes, records, recipe)

    return make
