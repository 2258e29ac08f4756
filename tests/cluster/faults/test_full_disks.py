"""A disk that fills up: while staging, where rank 0 writes its snapshot, and where the logs lie."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster.faults.faulty_chain import FaultyChain

pytestmark = pytest.mark.cluster

MakeChain = Callable[..., FaultyChain]


def test_a_full_tmp_during_a_snapshot_fails_the_phase_and_keeps_no_partial_file(
    make_chain: MakeChain,
) -> None:
    chain = make_chain(tmp="64m")
    run = chain.start_amid("cyc1")
    chain.fill("node1", leave_bytes=20_000)
    chain.release()
    output = run.finish(3)
    assert "phase cyc1: failed: Check failed: proto.SerializeToOstream" in output.splitlines()[-1]
    assert chain.cluster.leftovers() == {}
    assert sorted(chain.models()) == ["init_iter_8.caffemodel"]
    chain.behave()
    output = chain.run(code=2)
    assert "node1" in output.splitlines()[-1]
    chain.unfill("node1")
    chain.run()
    chain.check_finished()


def test_a_tmp_that_fills_up_during_staging_is_named(make_chain: MakeChain) -> None:
    chain = make_chain(4, nodes=4, tmp="64m", records=10_000)
    chain.fill("node3", leave_bytes=2_000_000)
    output = chain.run(code=2)
    assert "node3" in output.splitlines()[-1]
    assert "not enough space" in output.splitlines()[-1]
    chain.unfill("node3")
    run = chain.start("--how", "ssh")
    run.wait_until(lambda: chain.of("node3").is_dir() and any(chain.of("node3").glob("**/*")))
    chain.fill("node3", leave_bytes=0)
    output = run.finish(3)
    assert "node3" in output.splitlines()[-1]
    assert not chain.has_event("launched")
    chain.unfill("node3")
    chain.run()
    chain.check_finished()


def test_a_temporarily_full_disk_of_ours_ends_no_launch(make_chain: MakeChain) -> None:
    chain = make_chain()
    chain.run("--until", "init")
    logs = chain.run_folder / "logs"
    mount = 'cp -a "$0" /tmp/logs && mount -t tmpfs -o size=6m tmpfs "$0" && cp -a /tmp/logs/. "$0"'
    chain.cluster.run("head", ["sh", "-c", mount, str(logs)])
    there = Path(f"/proc/{chain.cluster.pids['head']}/root{logs}")
    chain.behave(cyc1={"does": "waits", "at": 4})
    run = chain.start()
    run.wait_until(lambda: (there / "cyc1-1.log").exists())
    run.wait_until(lambda: "Iteration 4, lr" in (there / "cyc1-1.log").read_text())
    with (there / "full").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    assert os.statvfs(there).f_bavail == 0
    chain.release()
    run.wait_until(lambda: "Optimization Done." in (there / "cyc1-1.log").read_text())
    run.wait_until(lambda: "its disk is full; free space on it" in run.read_output())
    (there / "full").unlink()
    run.finish()
    assert chain.trained() == ["init", "cyc1", "last"]
    chain.cluster.run("head", ["umount", str(logs)])
    chain.check_finished()
