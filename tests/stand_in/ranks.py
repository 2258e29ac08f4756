"""Ranks in step: each iteration begins once every rank has ended the one before, as synchronous SGD does.

They find each other as MPI's do, by the launcher's key-value space (PMI-1), and talk over one TCP connection
each to rank 0. No time limit anywhere: a link that goes silent makes all wait for ever, as MPI does.
"""

# pathlib costs a rank that only goes along as much as all else.
# ruff: noqa: PTH113, PTH123, SIM115
from __future__ import annotations

import os
import signal
import socket
import time

FATAL = 134  # what SIGABRT makes of an exit code


def my_rank() -> int:
    """Return this process's rank; 0 of one started without a launcher."""
    return int(os.environ.get("PMI_RANK", "0"))


def say(source: str, text: str, severity: str = "I") -> None:
    """Log a line as glog does: in one write, since a launcher labels each."""
    now = time.time()  # read once: the second and its fraction must agree
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now))
    os.write(2, f"{severity}{stamp}.{int(now % 1 * 10**6):06} {os.getpid():5} {source}] {text}\n".encode())


def digest_of(paths: list[str]) -> str:
    """Return what changes with the content of any of some files; raises OSError."""
    import hashlib

    digest = hashlib.sha256()
    for path in paths:
        try:
            with open(path, "rb") as file:
                digest.update(hashlib.sha256(file.read()).digest())
        except IsADirectoryError:  # which Caffe takes for an empty file
            digest.update(b"")
    return digest.hexdigest()


class Space:
    """The launcher's key-value space: what one rank puts there, all get after the next barrier."""

    def __init__(self) -> None:
        """Join; without a launcher there is nothing to join."""
        number = os.environ.get("PMI_FD")
        self._wire = None if number is None else open(int(number), "r+b", buffering=0)
        self._call("init pmi_version=1 pmi_subversion=1")
        self._name = self._call("get_my_kvsname").get("kvsname", "")

    def put(self, key: str, value: str) -> None:
        """Leave a value that holds no space."""
        self._call(f"put kvsname={self._name} key={key} value={value}")

    def get(self, key: str) -> str:
        """Return what was put before the last barrier."""
        return self._call(f"get kvsname={self._name} key={key}")["value"]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._call("barrier_in")

    def leave(self) -> None:
        """Announce that this rank ends cleanly: if one merely exits, hydra kills all the others."""
        self._call("finalize")

    def _call(self, command: str) -> dict[str, str]:
        if self._wire is None:
            return {}
        self._wire.write(f"cmd={command}\n".encode())
        answer = b""
        while not answer.endswith(b"\n"):
            more = self._wire.read(4096)
            if not more:
                os._exit(1)  # the launcher has gone
            answer += more
        return dict(word.split("=", 1) for word in answer.decode().split() if "=" in word)


class Followers:
    """The other ranks, as rank 0 knows them."""

    def __init__(self, starts_from: str, lmdb: str, faults: dict[int, str]) -> None:
        """Accept all of them; each gets the training data and the fault that it is to have.

        A fault is written `hangs 4` or `dies 4`.
        """
        self._space, size = Space(), int(os.environ.get("PMI_SIZE", "1"))
        self._ranks: dict[int, socket.socket] = {}
        if size > 1:
            with socket.create_server(("", 0), backlog=size) as server:
                alone = os.environ.get("MPI_LOCALNRANKS") == str(size)
                address = "127.0.0.1" if alone else socket.gethostbyname(socket.gethostname())
                self._space.put("rank0", f"{address}:{server.getsockname()[1]}")
                self._space.barrier()
                while len(self._ranks) < size - 1:
                    connection = server.accept()[0]
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    number, digest = _line(connection).split()
                    self._ranks[int(number)] = connection
                    if digest != starts_from:
                        say("standin.cpp:1", f"Check failed: rank {number} starts from other files", "F")
                        os._exit(FATAL)
        for rank, connection in self._ranks.items():
            connection.sendall(f"{faults.get(rank, 'well 0')} {lmdb}\n".encode())
        self.wait()

    def wait(self) -> None:
        """Wait until every rank has ended its iteration."""
        for connection in self._ranks.values():
            _byte(connection)

    def go(self, *, on: bool) -> None:
        """Let all ranks begin the next iteration, or end."""
        for connection in self._ranks.values():
            connection.sendall(b"g" if on else b"s")

    def leave(self) -> None:
        """End them and leave the launcher cleanly."""
        self.go(on=False)
        self._space.leave()


def follow(flags: dict[str, str]) -> int:
    """Act as a rank other than 0: read what all ranks read, then iterate in step until the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides after which iteration all end
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    space = Space()
    space.barrier()
    host, _, port = space.get("rank0").rpartition(":")
    try:
        starts_from = digest_of(files_of(flags))
    except OSError as error:
        say("io.cpp:54", f"Check failed: fd != -1 (-1 vs. -1) File not found: {error.filename}", "F")
        return FATAL
    with socket.create_connection((host, int(port))) as leader:
        leader.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        leader.sendall(f"{my_rank()} {starts_from}\n".encode())
        fault, at, lmdb = _line(leader).split(" ", 2)
        if not has_lmdb(lmdb):
            return FATAL
        iteration = 0
        leader.sendall(b".")
        while _byte(leader) == b"g":
            if iteration == int(at):
                misbehave(fault)
            iteration += 1
            leader.sendall(b".")
    space.leave()
    return 0


def misbehave(fault: str) -> None:
    """Carry out the fault of a rank, if it has one."""
    if fault == "hangs":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "dies":
        say("blocking_queue.cpp:50", "Check failed: a rank is to die", "F")
        os._exit(FATAL)


def has_lmdb(path: str) -> bool:
    """Return whether the training LMDB exists, if one is needed; fail as Caffe does."""
    if path == "-" or os.path.isfile(f"{path}/data.mdb"):
        return True
    say("db_lmdb.hpp:15", "Check failed: mdb_status == 0 (2 vs. 0) No such file or directory", "F")
    return False


def files_of(flags: dict[str, str]) -> list[str]:
    """Return the files that every rank reads at the start: weights, or a solverstate and its caffemodel."""
    if "snapshot" in flags:
        state = flags["snapshot"]
        return [state, learned_net(state)]
    return [flags["weights"]] if "weights" in flags else []


def learned_net(state: str) -> str:
    """Return the caffemodel that a solverstate names: its second field, after the iteration."""
    with open(state, "rb") as file:
        head = file.read(4096)
    at = 1
    while head[at] & 0x80:
        at += 1
    length, shift, at = 0, 0, at + 2
    while True:
        length |= (head[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not head[at - 1] & 0x80:
            return os.fsdecode(head[at : at + length])


def _line(connection: socket.socket) -> str:
    line = b""
    while not line.endswith(b"\n"):
        line += _byte(connection)
    return line.decode().strip()


def _byte(connection: socket.socket) -> bytes:
    """Read one byte; a rank whose peer has gone ends as MPI's do."""
    try:
        byte = connection.recv(1)
    except OSError:
        byte = b""
    if not byte:
        os.write(2, b"Fatal error in PMPI_Allreduce: Other MPI error, communication error with a rank\n")
        os._exit(1)
    return byte
