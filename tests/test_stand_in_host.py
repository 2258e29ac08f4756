from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.cluster.commands import Completed, Host
from caffe_recipes.cluster.hosts import LocalHost, file_bytes
from caffe_recipes.cluster.ssh import SshHost
from caffe_recipes.errors import ClusterError, HostFailed
from tests.stand_in_host import StandInHost


def test_all_three_are_hosts_to_a_type_checker() -> None:
    hosts: list[Host] = [LocalHost(), SshHost("node1"), StandInHost()]
    assert [host.is_local for host in hosts] == [True, False, False]


def test_a_stand_in_answers_and_records_the_commands() -> None:
    host = StandInHost(answer=lambda argv, stdin: Completed(3, f"{len(argv)} words\n", stdin.decode()))
    assert host.run(["a", "b"]) == Completed(3, "2 words\n", "")
    assert host.start(["cat"]).finish(5, b"in") == Completed(3, "1 words\n", "in")
    assert host.asked == [(("a", "b"), b""), (("cat",), b"in")]


def test_a_stand_in_serves_questions_about_files() -> None:
    host = StandInHost(answer=lambda argv, _: Completed(0, "81a4 345\n", ""))
    assert file_bytes(host, "/tmp/x") == 345


def test_files_go_in_and_out_of_a_dict(tmp_path: Path) -> None:
    host = StandInHost("n1", files={"/a": b"1"})
    host.fetch("/a", tmp_path / "a")
    host.put(tmp_path / "a", "/b")
    assert host.files == {"/a": b"1", "/b": b"1"}
    with pytest.raises(ClusterError, match="n1:/none: cannot be copied"):
        host.fetch("/none", tmp_path / "none")


def test_a_fault_is_raised_by_everything(tmp_path: Path) -> None:
    host = StandInHost(fault=HostFailed("n1", "is gone", "wait"))
    for act in (host.connect, lambda: host.run(["true"]), lambda: host.fetch("/a", tmp_path / "a")):
        with pytest.raises(ClusterError, match="n1: is gone; wait"):
            act()
