"""`caffe-recipes run --profile` on separate hosts, with a stand-in for Caffe."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cluster.faults.faulty_chain import FaultyChain
from tests.cluster.harness.cluster import Cluster

pytestmark = pytest.mark.cluster

PROFILE = """\
name: mine
title: four hosts, of which two are spares
launcher: {options: [-PSM2], environment: {OF_RANKS: "a b'$(c)", API_TOKEN: SECRET}}
mlsl: {num_servers: 1}
kmp_affinity: granularity=fine,compact,1,0
copy_with: ssh
"""


@contextmanager
def argvs_with(word: str) -> Iterator[set[bytes]]:
    """Collect the argvs of all hosts that hold a word, for as long as it takes: their processes are ours."""
    seen: set[bytes] = set()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.005):
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    argv = (process / "cmdline").read_bytes()
                    if word.encode() in argv:
                        seen.add(argv)

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield seen
    finally:
        is_over.set()
        watching.join()


@pytest.mark.promise("an argv gives nothing away")
def test_a_run_starts_and_stages_as_the_profile_and_the_options_require(
    cluster: Cluster, shared: Path
) -> None:
    chain = FaultyChain(cluster, shared / f"profiled-{shared.name}")
    secret = "not-for-others-4711"
    (chain.root / "mine.yaml").write_text(PROFILE.replace("SECRET", secret))
    noting = 'echo "$(uname -n) $OF_RANKS $KMP_AFFINITY $API_TOKEN $MLSL_NUM_SERVERS" >>ranks; exec'
    (chain.root / "caffe").write_text((chain.root / "caffe").read_text().replace("exec", noting))
    try:
        with argvs_with(secret) as seen:
            output = chain.run("--profile", "mine.yaml", "--how", "copy")
        chain.check_finished()
    finally:
        for node in cluster.nodes:
            cluster.run(node, ["rm", "-rf", "--one-file-system", chain.tmp])
    assert "without -PSM2, which it does not accept" in output
    assert "2 of 2 hosts by copy" in output
    ranks = [line for line in (chain.root / "ranks").read_text().splitlines() if line.startswith("node")]
    expected = f"a b'$(c) granularity=fine,compact,1,0 {secret} 1"
    assert set(ranks) == {f"node{number} {expected}" for number in (1, 2)}
    assert seen == set()
    kept = [path for path in chain.run_folder.rglob("*") if path.is_file()]
    assert chain.run_folder / "journal.jsonl" in kept
    assert [path for path in kept if secret.encode() in path.read_bytes()] == []
    assert secret not in output
    assert (chain.run_folder / "hostfile").read_text() == "node1\nnode2\n"
