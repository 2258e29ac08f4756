"""Several hosts on one machine, each with its own network, /tmp, name, host key and OpenSSH server.

    with Cluster.up(nodes=4) as cluster:
        cluster.run("head", ["ssh", "node1", "hostname"])
        with cluster.inside("head"):
            ...  # sockets that this thread, or one that it starts, opens are the head's

Needs root. Nothing but a folder in /var/tmp is written; it and all processes go when the cluster is taken
down, or when the process that brought it up ends, even by SIGKILL. Clusters do not see each other.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.cluster.harness import keeper
from tests.cluster.harness.files import make_folder, sweep, write_files
from tests.cluster.harness.keeper import NEWNET, Node, sshd_argv

ROOT = Path(__file__).resolve().parents[3]


class NoCluster(Exception):
    """No cluster can be created here; one line gives the reason."""


def why_not() -> str | None:
    """Return what this machine or user lacks for a cluster, in one line; None if nothing."""
    if os.geteuid() != 0:
        return "a test cluster needs root, to make network namespaces: run `sudo make test-cluster`"
    lacking = [
        name for name in ("/usr/sbin/sshd", "ssh", "ip", "tc", "nsenter") if shutil.which(name) is None
    ]
    if lacking:
        return f"a test cluster needs {', '.join(lacking)}: run `make test-cluster`, which installs them"
    return None


@dataclass
class Cluster:
    """A head and its nodes; `shared` is a folder that all of them see under one path."""

    folder: Path
    pids: dict[str, int]
    addresses: dict[str, str]
    nodes: tuple[str, ...]
    tmp: str
    _keeper: subprocess.Popen[str]
    _log: IO[str]
    _lock: int
    _running: list[subprocess.Popen[Any]] = field(default_factory=list)

    @classmethod
    @contextmanager
    def up(
        cls,
        nodes: int | Sequence[str] = 4,
        *,
        tmp: str = "4g",
        sshd: Mapping[str, str] | None = None,
    ) -> Iterator[Cluster]:
        """Bring up a head and `nodes`, given as a number or names, and take them down at the end."""
        cluster = start_cluster(nodes, tmp, sshd or {})
        try:
            yield cluster
        finally:
            cluster.down()

    @property
    def ssh(self) -> Path:
        """The folder that is a client's ~/.ssh: config, known_hosts and key."""
        return self.folder / "ssh"

    @property
    def shared(self) -> Path:
        """The folder that all hosts, and this process, see under one path."""
        return self.folder / "shared"

    def popen(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:  # noqa: ANN401
        """Start a command on a host."""
        started: subprocess.Popen[Any] = subprocess.Popen(self._enter(host, *argv), **options)
        self._running.append(started)
        return started

    def run(
        self,
        host: str,
        argv: Sequence[str],
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float = 120,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end; an AssertionError shows its output if it fails."""
        done = subprocess.run(
            self._enter(host, *argv),
            input=stdin,
            env={**os.environ, **(env or {})},
            timeout=timeout_s,
            capture_output=True,
            text=True,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{host}: {argv}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    @contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """Let sockets that this thread, or one that it starts, opens be those of a host."""
        with Path("/proc/thread-self/ns/net").open() as before:
            with Path(f"/proc/{self.pids[host]}/ns/net").open() as there:
                _enter_network(there.fileno())
            try:
                yield
            finally:
                _enter_network(before.fileno())

    def write_hostfile(self, *, ppn: int | None = None) -> Path:
        """Write the nodes, one a line, where all hosts see it."""
        path = self.shared / "hostfile"
        path.write_text("".join(f"{name}:{ppn}\n" if ppn else f"{name}\n" for name in self.nodes))
        return path

    def crash(self, host: str) -> None:
        """Kill all of a host at once; its peers see closed connections."""
        os.kill(self.pids.pop(host), signal.SIGKILL)

    def boot(self, host: str, *, tmp: str | None = None) -> None:
        """Start a host that has crashed, with an empty /tmp."""
        self._boot([Node(host, self.addresses[host], tmp or self.tmp)])

    def cut(self, host: str) -> None:
        """Disconnect a host: its peers see silence."""
        self._switch("ip", "link", "set", self._cable(host), "down")

    def reconnect(self, host: str) -> None:
        """Reconnect a host."""
        self._switch("ip", "link", "set", self._cable(host), "up")

    def rate(self, rate: str | None) -> None:
        """Limit both directions of every link, as in `100mbit`; None takes the limit away."""
        for host in self.pids:
            for enter, device in (
                (self._enter_switch, self._cable(host)),
                (lambda *argv, host=host: ["nsenter", "-t", str(self.pids[host]), "-n", "--", *argv], "eth0"),
            ):
                qdisc = ("tc", "qdisc", "replace" if rate else "del", "dev", device, "root")
                shape = ("tbf", "rate", rate, "burst", "256kb", "latency", "50ms") if rate else ()
                subprocess.run(enter(*qdisc, *shape), check=rate is not None, stderr=subprocess.DEVNULL)

    def stop_sshd(self, host: str) -> None:
        """Stop a host's sshd from accepting; established sessions continue."""
        self.run(
            host,
            ["sh", "-c", "kill $(cat /run/sshd.pid) && while test -e /run/sshd.pid; do sleep 0.01; done"],
        )

    def start_sshd(self, host: str) -> None:
        """Start a host's sshd again; it becomes a daemon under the host's first process."""
        argv = [word for word in sshd_argv(host, self.addresses[host], self.folder) if word != "-D"]
        self.run(host, argv)

    def replace(self, host: str, path: str, text: str) -> None:
        """Put other text in a file's place, on one host only, until that host ends; it can be run."""
        made, name = tempfile.mkstemp(dir=self.folder)
        os.write(made, text.encode())
        os.fchmod(made, 0o755)
        os.close(made)
        self.run(host, ["mount", "--bind", name, path])

    def restore(self, host: str, path: str) -> None:
        """Undo `replace` for a file."""
        self.run(host, ["umount", path])

    def processes(self) -> dict[str, list[str]]:
        """Return the command lines on each host but process 1, sshd, and what `popen` has running."""
        host_of = {_namespace(Path(f"/proc/{pid}")): name for name, pid in self.pids.items()}
        found: dict[str, list[str]] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in self.pids.values():
                continue
            try:
                host = host_of.get(_namespace(entry))
                cmdline = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                )
            except OSError:  # has ended
                continue
            if host is not None and not cmdline.startswith(("sshd:", "/usr/sbin/sshd")):
                found.setdefault(host, []).append(cmdline or "(zombie)")
        return found

    def leftovers(self, within_s: float = 2.0) -> dict[str, list[str]]:
        """Return the processes that are still there after a while."""
        deadline = time.monotonic() + within_s
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def down(self) -> None:
        """Take the cluster down."""
        for started in self._running:
            if started.poll() is None:
                started.kill()
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()
        for started in self._running:
            started.wait()
        os.close(self._lock)
        assert self._keeper.stdout is not None
        self._keeper.stdout.close()
        self._log.close()

    def _boot(self, nodes: list[Node]) -> None:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write(json.dumps([asdict(node) for node in nodes]) + "\n")
        self._keeper.stdin.flush()
        answer = self._keeper.stdout.readline()
        if not answer:
            self._log.seek(0)
            raise NoCluster(" ".join(self._log.read().split()) or "its keeper died without a word")
        self.pids.update(json.loads(answer))

    def _cable(self, host: str) -> str:
        return Node(host, self.addresses[host], self.tmp).cable

    def _enter(self, host: str, *argv: str) -> list[str]:
        return [
            "nsenter",
            "-t",
            str(self.pids[host]),
            "-m",
            "-u",
            "-i",
            "-n",
            "-p",
            f"--wd={self.shared}",
            "--",
            *argv,
        ]

    def _enter_switch(self, *argv: str) -> list[str]:
        return ["nsenter", "-t", str(self._keeper.pid), "-n", "--", *argv]

    def _switch(self, *argv: str) -> None:
        subprocess.run(self._enter_switch(*argv), check=True)


def start_cluster(nodes: int | Sequence[str], tmp: str, sshd: Mapping[str, str]) -> Cluster:
    """Bring up a cluster that lives until `down`, or until this process ends."""
    reason = why_not()
    if reason:
        raise NoCluster(reason)
    names = (
        tuple(f"node{number}" for number in range(1, nodes + 1)) if isinstance(nodes, int) else tuple(nodes)
    )
    addresses = {
        name: f"10.77.{number // 250}.{number % 250 + 1}" for number, name in enumerate(("head", *names))
    }
    sweep()
    folder, lock = make_folder()
    write_files(folder, addresses, sshd)
    kept = [str(ROOT), sys.prefix, sys.base_prefix, str(folder)]
    log = (folder / "keeper.log").open("w+")
    process = subprocess.Popen(
        [sys.executable, "-I", keeper.__file__, str(folder), *kept],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        pass_fds=[lock],
        start_new_session=True,  # a Ctrl-C is pytest's: the keeper goes when pytest has gone
    )
    cluster = Cluster(folder, {}, addresses, names, tmp, process, log, lock)
    try:
        cluster._boot([Node(name, address, tmp) for name, address in addresses.items()])
    except BaseException:
        cluster.down()
        raise
    return cluster


def _namespace(process: Path) -> str:
    return str((process / "ns" / "pid").readlink())


def _enter_network(namespace: int) -> None:
    if keeper.libc.setns(namespace, NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
