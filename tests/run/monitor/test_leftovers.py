"""What is left of killed runs: the ranks of their launches, and the hosts that could not be asked."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from caffe_recipes.cluster.commands import Completed
from caffe_recipes.errors import HostFailed
from caffe_recipes.run.events import Launch, RunState
from caffe_recipes.run.journal import JOURNAL
from caffe_recipes.run.monitor.leftovers import Leftovers, find_leftovers
from caffe_recipes.run.monitor.run_files import LocalFiles
from tests.stand_in_host import StandInHost, answer_call

ID = "0123456789abcdef/{}-1"


@dataclass
class Killed:
    """A killed run in a folder of its own, with a launch on some hosts."""

    path: str
    state: RunState


@dataclass
class Hosts:
    """Hosts by name, on each of which some ranks run: (launch, rank)."""

    ranks: dict[str, list[tuple[str, str]]]
    down: tuple[str, ...] = ()
    opened: dict[str, StandInHost] = field(default_factory=dict)

    def connect(self, name: str, copy_with: str) -> StandInHost:
        """Reach a host; one that is unknown is refused by ssh."""
        if name not in self.ranks and name not in self.down:
            raise HostFailed(name, "host key verification failed")
        fault = HostFailed(name, "is down") if name in self.down else None
        self.opened[name] = StandInHost(name, lambda argv, stdin: self._answer(name, argv), fault=fault)
        return self.opened[name]

    def _answer(self, name: str, argv: tuple[str, ...]) -> Completed:
        command = base64.b64encode(b"caffe\0train\0").decode()
        records = [
            f"process {7 + index} 70 1 {rank} 1 {launch} {command}"
            for index, (launch, rank) in enumerate(self.ranks[name])
            if launch in argv
        ]
        return answer_call(argv, *records, "end")


def killed(folder: Path, name: str, hosts: tuple[str, ...]) -> Killed:
    """Create a run whose journal is empty, with a launch from login1 that has not ended."""
    path = folder / name
    path.mkdir()
    (path / JOURNAL).touch()
    launch = Launch(
        phase=name,
        attempt=1,
        log="a.log",
        host="login1",
        stamp=None,
        time_s=0.0,
        needed={},
        id=ID.format(name),
        arguments=(),
        hosts=hosts,
        job="",
        restarts=0,
        weights={},
        starts_from=None,
        resumed=None,
    )
    return Killed(str(path), replace(RunState(), launch=launch))


def test_the_ranks_of_a_launch_are_counted_on_all_its_hosts(tmp_path: Path) -> None:
    run, name = killed(tmp_path, "init", ("n1", "n2", "n3")), ID.format("init")
    hosts = Hosts({"n1": [(name, "0"), (name, "0"), (name, "-")], "n2": [(name, "1")], "n3": []})
    found = find_leftovers([run], LocalFiles(), hosts.connect)
    assert found == {run.path: Leftovers("2 ranks on n[1-2] still train", True)}
    assert [host.closed for host in hosts.opened.values()] == [1, 1, 1]


def test_each_host_is_asked_about_all_runs_by_one_connection(tmp_path: Path) -> None:
    one, other = killed(tmp_path, "init", ("n1",)), killed(tmp_path, "cyc1", ("n1",))
    hosts = Hosts({"n1": [(ID.format("cyc1"), "0")]})
    found = find_leftovers([one, other], LocalFiles(), hosts.connect)
    assert found == {other.path: Leftovers("1 rank on n1 still trains", True)}
    assert len(hosts.opened["n1"].asked) == 2


def test_hosts_that_do_not_answer_may_have_ranks(tmp_path: Path) -> None:
    run = killed(tmp_path, "init", ("n1", "n2", "n3"))
    found = find_leftovers([run], LocalFiles(), Hosts({"n1": []}, down=("n2",)).connect)
    assert found == {run.path: Leftovers("n[2-3] did not answer, and may have ranks of it", False)}


def test_a_launch_on_localhost_is_looked_for_where_it_was_started(tmp_path: Path) -> None:
    name = ID.format("init")
    for hosts in (("localhost",), ()):
        run = killed(tmp_path, "init", hosts)
        found = find_leftovers([run], LocalFiles(), Hosts({"login1": [(name, "0")]}).connect)
        assert found[run.path].text == "1 rank on login1 still trains"
        (Path(run.path) / JOURNAL).unlink()
        Path(run.path).rmdir()


def test_a_run_without_a_launch_has_nothing_left(tmp_path: Path) -> None:
    run = killed(tmp_path, "init", ("n1",))
    hosts = Hosts({"n1": []})
    assert find_leftovers([run], LocalFiles(), hosts.connect) == {}
    assert find_leftovers([Killed(run.path, RunState())], LocalFiles(), Hosts({}).connect) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_no_host_is_asked_that_only_another_user_s_journal_names(tmp_path: Path) -> None:
    run, hosts = killed(tmp_path, "init", ("n1",)), Hosts({"n1": []})
    os.chown(Path(run.path) / JOURNAL, 54321, 54321)
    assert find_leftovers([run], LocalFiles(), hosts.connect) == {}
    assert hosts.opened == {}
