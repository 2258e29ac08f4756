"""Time `caffe-recipes stage --how chain` on hosts behind limited links, against one scp of the same file.

Needs root: every host is a network namespace with its own /tmp and sshd, every link is limited to 100 Mbit/s
both ways, so that the wire is the bound and not this machine's cores. Timed is the whole command, from its
start to its exit: logins, the launcher, the transfer, and the digest of every copy.

    python benchmarks/staging.py [HOSTS ...]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.cluster.harness.cluster import Cluster, why_not  # noqa: E402
from tests.cluster.harness.lmdbs import make_data  # noqa: E402

RATE = "100mbit"
FILE_BYTES = 256 * 10**6
HOSTS = (4, 8, 32)
GOALS = {4: 1.2, 8: 1.25, 32: 1.5}
# Debian's and PyPI's MPICH alike: one thread a rank, plain TCP.
MPI = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
LMDB = "/tmp/train_lmdb"


def file_bytes(hosts: int) -> int:
    """Return the size of the file: every host's /tmp is in this machine's memory."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(FILE_BYTES, int(0.7 * free / (hosts + 1)) // 10**6 * 10**6)


def prepare(cluster: Cluster, size_bytes: int) -> Path:
    """Write the source and a recipe where all hosts see them."""
    source = cluster.shared / "source"
    source.mkdir()
    (source / "data.mdb").write_bytes(make_data(size_bytes))
    text = (ROOT / "caffe_recipes" / "recipes" / "digits-local.yaml").read_text()
    text = text.replace("lmdb: tmp/digits_train_lmdb", f"lmdb: {LMDB}")
    (cluster.shared / "recipe.yaml").write_text(text)
    cluster.write_hostfile()
    return source / "data.mdb"


def time_scp(cluster: Cluster, data: Path) -> float:
    start = time.perf_counter()
    cluster.run("head", ["scp", "-q", str(data), "node1:/tmp/scp"], timeout_s=600)
    took_s = time.perf_counter() - start
    cluster.run("node1", ["rm", "/tmp/scp"])
    return took_s


def time_chain(cluster: Cluster, data: Path) -> float:
    """Stage to every host; each copy is compared with the source afterwards."""
    command = Path(sys.executable).parent / "caffe-recipes"
    words = ["stage", str(cluster.shared / "recipe.yaml"), "--hostfile", str(cluster.shared / "hostfile")]
    words += ["--lmdb-source", str(data.parent), "--how", "chain"]
    environment = {**MPI, "XDG_CACHE_HOME": str(cluster.shared / "cache")}
    start = time.perf_counter()
    cluster.run("head", [str(command), *words], env=environment, timeout_s=900)
    took_s = time.perf_counter() - start
    for node in cluster.nodes:
        cluster.run(node, ["cmp", str(data), f"{LMDB}/data.mdb"])
    return took_s


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_known_args()
    lacking = why_not()
    if lacking:
        print(f"not measured: {lacking}")
        return
    for hosts in [int(word) for word in sys.argv[1:] if word.isdigit()] or HOSTS:
        size_bytes = file_bytes(hosts)
        with Cluster.up(hosts) as cluster:
            data = prepare(cluster, size_bytes)
            cluster.rate(RATE)
            scp_s, chain_s = time_scp(cluster, data), time_chain(cluster, data)
        ratio, goal = chain_s / scp_s, GOALS.get(hosts)
        print(
            f"{hosts:3} hosts, {size_bytes / 1e6:.0f} MB at {RATE}: one scp {scp_s:.1f} s, "
            f"chain {chain_s:.1f} s, ratio {ratio:.2f}" + (f" (goal {goal})" if goal else ""),
            flush=True,
        )


if __name__ == "__main__":
    main()
