"""Chains that break: ranks on this machine, each in the folder of its host."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from caffe_recipes.cluster.launchers import DEFAULT_LAUNCHER
from caffe_recipes.cluster.staging.method_choice import CopyRates
from caffe_recipes.cluster.staging.methods import ChainEnv
from caffe_recipes.cluster.staging.relay import STAMP
from caffe_recipes.cluster.staging.stage import StagedHost
from caffe_recipes.errors import ClusterError
from tests.cluster.staging.conftest import CONTENT, LMDB, LocalLaunch, World, local_chain, stage_lmdb

# On such a cluster a chain is the quickest, and sending from here the slowest.
QUICK = CopyRates(link=1e7, shared=1e7, disk=1e9)
# What a rank is started through: it does this to rank 2, and to the others nothing.
_ON_RANK_2 = 'if [ "$PMI_RANK" = 2 ]; then {}; fi; exec "$@"'


def through(world: World, script: str, start_s: float = 20) -> World:
    chain = local_chain(world.source.parent, ["/bin/sh", "-c", _ON_RANK_2.format(script), "sh"])
    return replace(world, env=replace(world.env, chain=replace(chain, start_s=start_s), how="chain"))


def staged(world: World) -> list[str]:
    return [
        host.name
        for host in world.hosts
        if (host.lmdb / "data.mdb").exists() and (host.lmdb / "data.mdb").read_bytes() == CONTENT
    ]


def test_a_full_disk_on_one_host_does_not_stop_the_others(world: World) -> None:
    world = through(world, "ulimit -f 20000")  # blocks of 512 bytes
    placed = stage_lmdb(world.hosts, LMDB, world.source, world.env)
    assert placed[2] == StagedHost("n2", "failed", "File too large")
    assert staged(world) == ["n0", "n1", "n3"]
    assert list((world.hosts[2].folder / "node").iterdir()) == []


def test_a_chain_that_breaks_once_continues(world: World, tmp_path: Path) -> None:
    world = through(world, f"mkdir {tmp_path}/broke 2>/dev/null && kill -9 $$")
    messages: list[str] = []
    placed = stage_lmdb(world.hosts, LMDB, world.source, world.env, messages.append)
    assert {each.outcome for each in placed} == {"sent"}
    assert "the chain broke" in messages[-1]
    assert staged(world) == ["n0", "n1", "n2", "n3"]


def test_a_chain_that_always_breaks_is_abandoned_without_leftovers(world: World) -> None:
    world = through(world, "kill -9 $$")
    placed = stage_lmdb(world.hosts, LMDB, world.source, world.env)
    assert {each.outcome for each in placed} == {"failed"}
    assert all(each.reason.startswith("the chain broke: ") for each in placed)
    assert [list((host.folder / "node").iterdir()) for host in world.hosts] == [[]] * 4


def test_a_hanging_rank_is_not_waited_for_forever(world: World) -> None:
    world = through(world, "sleep 600", start_s=3)
    placed = stage_lmdb(world.hosts, LMDB, world.source, world.env)
    assert {each.outcome for each in placed} == {"failed"}
    assert placed[0].reason == "the chain broke: no progress for 3 s"


def test_a_source_that_gets_shorter_is_reported_by_the_one_who_reads(world: World) -> None:
    cut = f"truncate -s 1000 {world.source}/data.mdb"
    chain = local_chain(world.source.parent, ["/bin/sh", "-c", f'{cut}; exec "$@"', "sh"])
    placed = stage_lmdb(world.hosts, LMDB, world.source, replace(world.env, chain=chain, how="chain"))
    assert {each.outcome for each in placed} == {"failed"}
    assert "data.mdb has 1000 bytes" in placed[0].reason


def test_a_launcher_of_another_mpi_is_named(world: World) -> None:
    def alone(hosts: Sequence[str], hostfile: str, words: Sequence[str]) -> Sequence[str]:
        return [word.replace("=/node/", f"={world.hosts[0].folder}/node/") for word in words]

    env = replace(world.env, chain=ChainEnv(LocalLaunch(DEFAULT_LAUNCHER, start=alone)), how="chain")
    placed = stage_lmdb(world.hosts, LMDB, world.source, env)
    assert placed[0].reason.endswith("started 1 rank, not 4: mpi4py and the launcher use different MPIs")


def test_a_launcher_that_does_not_start_is_one_line_and_leaves_nothing(world: World) -> None:
    env = replace(
        world.env,
        chain=ChainEnv(LocalLaunch(DEFAULT_LAUNCHER, start=lambda *a: ["/none/mpiexec"])),
        how="chain",
    )
    with pytest.raises(ClusterError, match="/none/mpiexec: does not start: No such file or directory"):
        stage_lmdb(world.hosts, LMDB, world.source, env)
    assert [list((host.folder / "node").iterdir()) for host in world.hosts] == [[]] * 4


def test_a_chain_that_does_not_start_falls_back_to_the_next_best_way(world: World) -> None:
    """The chain was not requested explicitly; the reason is printed once, and it is not tried again."""
    world = through(world, "exec /none/python")
    messages: list[str] = []
    placed = stage_lmdb(
        world.hosts, LMDB, world.source, replace(world.env, how=None, rates=QUICK), messages.append
    )
    assert {each.outcome for each in placed} == {"sent"}
    assert staged(world) == ["n0", "n1", "n2", "n3"]
    (line,) = [line for line in messages if "did not start" in line]
    assert "/none/python" in line
    assert line.endswith("; using copy for 4 hosts")
    for host in world.hosts:
        assert sorted(path.name for path in host.lmdb.iterdir()) == [STAMP, "data.mdb"]


def test_a_host_without_our_python_gets_it_another_way_and_the_rest_by_the_chain(world: World) -> None:
    chain = replace(local_chain(world.source.parent), needs=(sys.executable, "/node/lib/mpi4py"))
    for host in world.hosts[1:]:
        (host.folder / "node/lib").mkdir()
        (host.folder / "node/lib/mpi4py").touch()
    messages: list[str] = []
    env = replace(world.env, chain=chain, rates=QUICK)
    assert {each.outcome for each in stage_lmdb(world.hosts, LMDB, world.source, env, messages.append)} == {
        "sent"
    }
    assert staged(world) == ["n0", "n1", "n2", "n3"]
    lacks = f"n0 lacks {world.hosts[0].folder}/node/lib/mpi4py"
    assert messages[-1] == f"the chain did not start ({lacks}); using copy for 1 host"

    (world.hosts[0].lmdb / "data.mdb").unlink()
    placed = stage_lmdb(world.hosts, LMDB, world.source, replace(env, how="chain"))
    assert placed[0] == StagedHost("n0", "failed", lacks)


def test_a_launcher_that_does_not_start_falls_back_too(world: World) -> None:
    env = replace(
        world.env,
        chain=ChainEnv(LocalLaunch(DEFAULT_LAUNCHER, start=lambda *a: ["/none/mpiexec"])),
        rates=QUICK,
    )
    messages: list[str] = []
    placed = stage_lmdb(world.hosts, LMDB, world.source, env, messages.append)
    assert {each.outcome for each in placed} == {"sent"}
    assert messages[-1] == (
        "the chain did not start (/none/mpiexec: does not start: No such file or directory); "
        "using copy for 4 hosts"
    )


def test_the_relay_starts_without_what_only_the_head_needs() -> None:
    import subprocess

    code = (
        "import sys, caffe_recipes.cluster.staging.relay;"
        "sys.exit(any(n in sys.modules for n in ('paramiko', 'pydantic', 'numpy', 'click', 'mpi4py')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
