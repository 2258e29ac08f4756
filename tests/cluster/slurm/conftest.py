from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.harness.slurm import Slurm
from tests.cluster.slurm.submitted_chain import SubmittedChain


@pytest.fixture
def make_chain(slurm4: Slurm, tmp_path: Path) -> Iterator[Callable[..., SubmittedChain]]:
    """Give a function that makes a chain for a number of nodes, in its own root."""
    made: list[SubmittedChain] = []

    def make(nodes: int = 2) -> SubmittedChain:
        chain = SubmittedChain(slurm4, slurm4.cluster.shared / f"{tmp_path.name}-{len(made)}", nodes)
        made.append(chain)
        return chain

    yield make
    slurm4.clear()
    for chain in made:
        for host in chain.cluster.nodes:
            shutil.rmtree(chain.of(host), ignore_errors=True)


@pytest.fixture
def chain(make_chain: Callable[..., SubmittedChain]) -> SubmittedChain:
    """Make a chain for two of the four nodes."""
    return make_chain()
