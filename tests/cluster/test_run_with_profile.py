"""`caffe-recipes run --profile` on hosts of their own, with a stand-in for Caffe."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.faults.faulty_chain import FaultyChain
from tests.cluster.harness.cluster import Cluster

pytestmark = pytest.mark.cluster

PROFILE = """\
name: mine
title: four hosts, of which two are spares
launcher: {options: [-PSM2], environment: {OF_RANKS: "a b'$(c)"}}
kmp_affinity: granularity=fine,compact,1,0
copy_with: ssh
"""


def test_a_run_starts_and_stages_as_the_profile_and_the_command_line_say(
    cluster: Cluster, shared: Path
) -> None:
    chain = FaultyChain(cluster, shared / f"profiled-{shared.name}")
    (chain.root / "mine.yaml").write_text(PROFILE)
    noting = 'echo "$(uname -n) $OF_RANKS $KMP_AFFINITY" >>ranks; exec'
    (chain.root / "caffe").write_text((chain.root / "caffe").read_text().replace("exec", noting))
    try:
        said = chain.run("--profile", "mine.yaml", "--how", "copy")
        chain.check_finished()
    finally:
        for node in cluster.nodes:
            cluster.run(node, ["rm", "-rf", "--one-file-system", chain.tmp])
    assert "without -PSM2, which it does not know" in said
    assert "2 of 2 hosts by copy" in said
    ranks = [line for line in (chain.root / "ranks").read_text().splitlines() if line.startswith("node")]
    assert set(ranks) == {f"node{number} a b'$(c) granularity=fine,compact,1,0" for number in (1, 2)}
    assert (chain.run_folder / "hostfile").read_text() == "node1\nnode2\n"
