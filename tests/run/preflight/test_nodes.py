"""The facts of a node: probed here with the same shell code that a node runs, and read from answers."""

from __future__ import annotations

import os
import platform
import pwd
import secrets
import shutil
import subprocess
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import pytest

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.errors import HostFailed
from caffe_recipes.run.preflight.findings import as_findings, as_problem
from caffe_recipes.run.preflight.nodes import RankOwner, ask_facts, parse_cpuinfo
from tests.cluster.machines import cpuinfo
from tests.stand_in_host import StandInHost, answer_call

HOSTILE = 'it\'s $(touch hacked) `touch hacked`\n-n "two"; touch hacked'


def test_the_probe_of_this_machine_reports_its_facts_and_paths(tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE
    folder.mkdir()
    (folder / "text").write_text("a line\n")
    (folder / "program").write_text("#!/bin/sh\n")
    (folder / "program").chmod(0o755)
    (folder / "theirs_iter_4.caffemodel").symlink_to("/nowhere")
    (folder / "theirs_iter_8.solverstate").mkdir()
    (folder / "theirs_iter_8.caffemodel").write_text("ours")
    facts = ask_facts(
        LocalHost(),
        [
            ("root", str(folder)),
            ("program", str(folder / "program")),
            ("file", str(folder / "text")),
            ("file", str(folder / "absent")),
            ("text", str(folder / "text")),
            ("text", str(folder / "absent")),
            ("folder", str(folder / "new" / "newer")),
            ("snapshots", str(folder / "theirs")),
        ],
    )
    assert (facts.node_name, facts.host) == (platform.node(), "localhost")
    assert abs(facts.skew_s) <= facts.doubt_s + 0.5
    assert facts.usable == len(os.sched_getaffinity(0))
    assert facts.processors.numbers >= os.sched_getaffinity(0)
    assert (facts.available_bytes or 0) < (facts.memory_bytes or 0)
    assert facts.tmp_bytes == shutil.disk_usage("/tmp").total
    assert (facts.root_inode, facts.program) == (str(folder.stat().st_ino), "program")
    assert facts.sizes == {str(folder / "text"): (7, True), str(folder / "absent"): (None, False)}
    assert list(facts.digests.values()) == [sha256(b"a line\n").hexdigest(), None]
    place = facts.folders[str(folder / "new" / "newer")]
    assert (place.writable, place.open_to_all, place.disk) == (True, False, str(folder.stat().st_dev))
    assert [(stray.kind, Path(stray.path).name) for stray in facts.strays] == [
        ("link", "theirs_iter_4.caffemodel"),
        ("other", "theirs_iter_8.solverstate"),
    ]
    assert not Path("hacked").exists()
    assert not list(tmp_path.rglob("hacked"))


def test_a_folder_that_anybody_can_change_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert ask_facts(LocalHost(), [("folder", str(tmp_path))]).folders[str(tmp_path)].open_to_all
    tmp_path.chmod(0o1777)
    assert not ask_facts(LocalHost(), [("folder", str(tmp_path))]).folders[str(tmp_path)].open_to_all


HUGE = ["clock 1", "name n1", "boot -", "usable 9999999999", "tmp ", "end"]


@pytest.mark.parametrize("records", [[], ["clock 1"], ["end"], ["clock x", "name n1", "end"], HUGE])
def test_an_answer_that_is_truncated_is_an_error_of_its_host(records: list[str]) -> None:
    host = StandInHost("n1", lambda argv, stdin: answer_call(argv, *records))
    with pytest.raises(HostFailed, match=r"^n1: cannot parse the answer to `facts`: "):
        ask_facts(host, [])


def test_a_clock_is_compared_with_the_middle_of_the_question() -> None:
    records = ("clock 1005.5", "name n1", "boot -", "usable 2", "tmp ", "end")
    host = StandInHost("n1", lambda argv, stdin: answer_call(argv, *records))
    times = iter([1000.0, 1001.0])
    facts = ask_facts(host, [], clock=lambda: next(times))
    assert (facts.skew_s, facts.doubt_s) == (5.0, 0.5)
    assert (str(facts.processors), facts.memory_bytes) == ("2 cores", None)
    assert (facts.boot_id, facts.ranks, facts.tmp_bytes) == (None, {}, None)


def test_ranks_are_reported_once_each_and_launchers_are_not_ranks(tmp_path: Path) -> None:
    launch, other = f"{secrets.token_hex(8)}/init-1", f"{secrets.token_hex(8)}/last-2"
    mpiexec = tmp_path / "mpiexec"
    mpiexec.symlink_to(shutil.which("sleep") or "")
    environments = [
        {"CAFFE_RECIPES_LAUNCH": launch, "PMI_RANK": "0"},
        {"CAFFE_RECIPES_LAUNCH": launch, "PMI_RANK": "0"},  # what a rank has started
        {"CAFFE_RECIPES_LAUNCH": launch, "PMI_RANK": "1"},
        {"CAFFE_RECIPES_LAUNCH": other, "SLURM_PROCID": "7", "SLURM_STEP_ID": "0"},
        {"CAFFE_RECIPES_LAUNCH": other, "SLURM_PROCID": "0"},  # the batch script
        {"NOTE": f"\nCAFFE_RECIPES_LAUNCH={other}", "PMI_RANK": "5"},
        {"CAFFE_RECIPES_LAUNCH": f"{other}\nend", "PMI_RANK": "6"},
    ]
    pids = []
    with ExitStack() as stack:
        for environment in environments:
            process = subprocess.Popen(["sleep", "600"], env=environment)
            stack.callback(end, process)
            pids.append(process.pid)
        stack.callback(end, subprocess.Popen([str(mpiexec), "600"], env={**environments[0], "PMI_RANK": "9"}))
        facts = ask_facts(LocalHost(), [])
    user = pwd.getpwuid(os.getuid()).pw_name
    assert {one: owner for one, owner in facts.ranks.items() if one[0] in (launch, other)} == {
        (launch, 0): RankOwner(min(pids[:2]), user),
        (launch, 1): RankOwner(pids[2], user),
        (other, 7): RankOwner(pids[3], user),
    }
    assert facts.boot_id


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_cores_are_reported_by_sockets_where_the_kernel_does() -> None:
    stampede2 = parse_cpuinfo(cpuinfo(2, 24).splitlines(), usable=48)
    assert (str(stampede2), stampede2.cores, max(stampede2.numbers)) == ("2 x 24 cores", 48, 47)
    assert [stampede2.socket_of[core] for core in (39, 38, 43, 42)] == [1, 0, 1, 0]
    hyperthreads = parse_cpuinfo([*cpuinfo(4, 24).splitlines(), "physical id: 0"], usable=96)
    assert hyperthreads.cores == 96
    arm = parse_cpuinfo(["processor\t: 0", "processor\t: 1", "BogoMIPS\t: 50"], usable=2)
    assert (str(arm), arm.sockets, arm.socket_of) == ("2 cores", None, {})


def test_a_failure_of_a_jump_host_is_not_attributed_to_the_host() -> None:
    (own,) = as_findings("hosts", [as_problem("c1", HostFailed("c1", "is full", "make room", "/tmp"))])
    (over,) = as_findings("hosts", [as_problem("c1", HostFailed("gate", "its host key is revoked"))])
    assert (own.message, over.message) == ("c1:/tmp: is full; make room", "c1:gate: its host key is revoked")


@pytest.mark.promise("snapshots and staged copies are ours alone")
def test_at_most_a_hundred_files_of_others_are_listed(tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"a_iter_{number}.caffemodel").symlink_to("/nowhere")
    facts = ask_facts(LocalHost(), [("snapshots", f"{tmp_path}/a"), ("snapshots", f"{tmp_path}/b")])
    *listed, more = facts.strays
    assert (len(listed), {stray.kind for stray in listed}) == (100, {"link"})
    assert (more.kind, more.path) == ("more", f"{tmp_path}/a_iter_*")
