"""The process that keeps one cluster of network namespaces alive, and takes it away with itself.

Run as `python -I keeper.py FOLDER LOCK_FD`, as root. Orders come on standard input, answers leave on standard
output, one JSON value a line. When standard input ends, however its writer died, every host dies and the
folder goes; when this process is killed, the kernel kills the hosts and only the folder stays, unlocked.

A host is its own network, mount, UTS, IPC and PID namespace. Its process 1 is a fork of this one that reaps
orphans, and beneath it runs a real sshd. It needs the standard library only: it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

NEWNS, NEWUTS, NEWIPC, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG = 1
_SSHD = "/usr/sbin/sshd"
_LISTEN_S = 60.0
libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Node:
    """A host to be: its name, its address in 10.77.0.0/16, and the size of its /tmp as mount takes it."""

    name: str
    address: str
    tmp: str

    @property
    def cable(self) -> str:
        """The switch's end of the host's cable; the kernel allows 15 letters."""
        return "p" + "-".join(self.address.split(".")[2:])

    @property
    def hardware(self) -> str:
        """The address of its network card: the same when it comes back, or its peers would not find it."""
        return "02:00:" + ":".join(f"{int(part):02x}" for part in self.address.split("."))


def call(done: int, what: str) -> None:
    """Raise OSError if a call of the C library failed."""
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "none", flags: int = 0, options: str = "") -> None:
    """Mount by the system call itself: a process for each mount would cost more than all the rest."""
    done = libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode())
    call(done, f"mount {source} on {target}")


def furnish(node: Node, folder: Path, keep: list[str]) -> None:
    """Give this process, a host's first, its own file systems; `keep` are folders that stay seen in /tmp."""
    mount("none", "/", flags=_MS_REC | _MS_PRIVATE)
    mount("proc", "/proc", "proc")
    mount("tmpfs", "/dev/shm", "tmpfs", options="mode=1777")
    mount("tmpfs", "/run", "tmpfs", options="mode=755")
    Path("/run/sshd").mkdir()
    mount(str(folder / "hosts"), "/etc/hosts", flags=_MS_BIND)
    own = Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".ssh"
    if own.is_dir():  # hide the user's own keys and configuration
        mount("tmpfs", str(own), "tmpfs", options="mode=700")
    for name in (".bashrc", ".zshenv", ".tcshrc", ".cshrc"):  # a shell that sshd starts reads them each time
        if own.with_name(name).is_file():
            mount(os.devnull, str(own.with_name(name)), flags=_MS_BIND)
    mount(str(folder / "ssh"), "/etc/ssh", flags=_MS_BIND)
    hidden = [path for path in keep if Path(path).is_relative_to("/tmp")]
    for number, path in enumerate(hidden):
        Path(f"/run/keep{number}").mkdir()
        mount(path, f"/run/keep{number}", flags=_MS_BIND | _MS_REC)
    mount("tmpfs", "/tmp", "tmpfs", options=f"mode=1777,size={node.tmp}")
    for number, path in enumerate(hidden):
        Path(path).mkdir(parents=True, exist_ok=True)
        mount(f"/run/keep{number}", path, flags=_MS_BIND | _MS_REC)


def batch(lines: list[str]) -> None:
    """Run many commands in one `ip` process."""
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)


def live(node: Node, folder: Path, keep: list[str], ready: int, go: int) -> None:
    """Act as process 1 of a host until it is killed."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    os.setsid()
    call(libc.unshare(NEWNS | NEWNET | NEWUTS | NEWIPC), "unshare")
    socket.sethostname(node.name)
    furnish(node, folder, keep)
    os.write(ready, b".")
    if not os.read(go, 1):
        os._exit(1)
    batch(["link set lo up", f"addr add {node.address}/16 dev eth0", "link set eth0 up"])
    subprocess.Popen(sshd_argv(node.name, node.address, folder), stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.05)  # sshd is down: wait for one to be started from outside


def sshd_argv(name: str, address: str, folder: Path) -> list[str]:
    """Return how a host's sshd is started."""
    return [
        *(_SSHD, "-D", "-f", str(folder / "sshd_config"), "-E", str(folder / "logs" / name)),
        *("-h", str(folder / "hostkeys" / name)),
        *("-o", f"ListenAddress={address}", "-o", "PidFile=/run/sshd.pid"),
    ]


class Keeper:
    """The switch and the hosts on it."""

    def __init__(self, folder: Path, keep: list[str]) -> None:
        """Make the switch: a bridge in this process's own network namespace."""
        self.folder, self.keep = folder, keep
        self.pids: dict[str, int] = {}
        self.cables: set[str] = set()
        self.own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY)
        call(libc.unshare(NEWNET), "unshare")
        batch(
            [
                "link set lo up",
                "link add br0 type bridge",
                "addr add 10.77.255.254/16 dev br0",
                "link set br0 up",
            ]
        )

    def boot(self, nodes: list[Node]) -> dict[str, int]:
        """Start hosts, all at once; return their first processes' numbers once every sshd listens."""
        started = [self._fork(node) for node in nodes]
        for ready, _ in started:
            if not os.read(ready, 1):
                raise OSError("a host did not start; see what it wrote above")
        for node in (node for node in nodes if node.cable in self.cables):
            # A host that has crashed leaves its cable for a moment.
            subprocess.run(["ip", "link", "del", node.cable], stderr=subprocess.DEVNULL, check=False)
        self.cables |= {node.cable for node in nodes}
        cables = (
            f"link add {node.cable} type veth "
            f"peer name eth0 address {node.hardware} netns {self.pids[node.name]}\n"
            f"link set {node.cable} master br0 up"
            for node in nodes
        )
        batch(list(cables))
        for ready, go in started:
            os.write(go, b".")
            os.close(go)
            os.close(ready)
        self._wait_for_sshd(nodes)
        return {node.name: self.pids[node.name] for node in nodes}

    def _fork(self, node: Node) -> tuple[int, int]:
        (ready, ready_end), (go_end, go) = os.pipe(), os.pipe()
        # Only children enter the new PID namespace; setns takes us out again, for the next child.
        call(libc.unshare(NEWPID), "unshare")
        pid = os.fork()
        if pid == 0:
            try:
                os.close(go)
                os.close(ready)
                live(node, self.folder, self.keep, ready_end, go_end)
            except BaseException as error:
                os.write(2, f"{node.name}: {error}\n".encode())
            os._exit(1)
        call(libc.setns(self.own_pids, NEWPID), "setns")
        os.close(ready_end)
        os.close(go_end)
        self.pids[node.name] = pid
        return ready, go

    def _wait_for_sshd(self, nodes: list[Node]) -> None:
        deadline = time.monotonic() + _LISTEN_S
        for node in nodes:
            while True:
                try:
                    socket.create_connection((node.address, 22), timeout=0.1).close()
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise OSError(
                            f"{node.name}: its sshd does not listen; see logs/{node.name}"
                        ) from None
                    time.sleep(0.01)

    def reap(self) -> None:
        """Reap the hosts that were crashed."""
        for name, pid in list(self.pids.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self.pids[name]

    def end(self) -> None:
        """Kill what lives; the kernel takes each host's processes, mounts and links with it."""
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids.values():
            os.waitpid(pid, 0)


def main(folder: Path, keep: list[str]) -> None:
    """Handle requests until standard input ends."""
    try:
        keeper = Keeper(folder, keep)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            for line in sys.stdin:
                keeper.reap()
                nodes = [Node(**fields) for fields in json.loads(line)]
                print(json.dumps(keeper.boot(nodes)), flush=True)
        finally:
            keeper.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2:])
    except (OSError, subprocess.CalledProcessError) as failed:
        sys.exit(f"keeper: {failed}")
