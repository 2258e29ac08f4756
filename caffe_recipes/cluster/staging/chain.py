"""The chain's launch: the relay on each of its hosts, by the cluster's launcher; watched, and ended."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

from caffe_recipes.cluster.hydra_ssh import ssh_environment
from caffe_recipes.cluster.staging.nodes import SLOWEST_BYTES_PER_S
from caffe_recipes.cluster.staging.plan import ChainOrder
from caffe_recipes.errors import ClusterError

# Hosts, hostfile and command to argv: one rank a host, rank 0 on the first line's.
Launcher = Callable[[Sequence[str], str, Sequence[str]], Sequence[str]]

RELAY = "caffe_recipes.cluster.staging.relay"
STALL_S = 60.0
# Logins, and Python from a shared file system on every host.
START_S = 180.0
_END_S = 10.0
_LOGOUT_S = 2.0
# Hydra labels a rank's line `[0] `, srun `0: `.
_LINE = re.compile(r"(?:\[\d+\] |\d+: )?relay: (\d+) \S+ (landed|failed|stopped)(?:: (.*))?")
# A rank that has said so never joins the others.
_HOPELESS = re.compile(r"(ModuleNotFound|Import)Error: |error while loading shared|execvp error|: not found$")
_AT = re.compile(r"(?:\[\d+\] |\d+: )?relay: at (\d+)")


@dataclass
class ChainEnd:
    """What a launch said: by rank, why it could not write; which rank gave up; the launcher's last words.

    `moved` tells whether any byte went through.
    """

    failed: dict[int, str] = field(default_factory=dict)
    stopped: dict[int, str] = field(default_factory=dict)
    said: str = ""
    moved: bool = False


@dataclass(frozen=True)
class ChainMeans:
    """What a chain is started with; `environment` is the launcher's.

    `python` is where every node sees it, as it must see all of `needs`: a rank that never starts is not
    missed by hydra, whose other ranks wait for it.
    """

    launcher: Launcher
    environment: Mapping[str, str]
    python: str = sys.executable
    needs: tuple[str, ...] = ()
    stall_s: float = STALL_S
    start_s: float = START_S


def relay_command(
    order: ChainOrder, means: ChainMeans, *, lmdb: str, part: str, size_bytes: int, digest: str | None
) -> tuple[str, ...]:
    """Return what each rank of a chain runs."""
    words = [
        means.python,
        "-P",
        "-m",
        RELAY,
        f"--folder={lmdb}",
        f"--part={part}",
        f"--source={order.source}",
    ]
    words += [
        f"--ranks={len(order.hosts)}",
        f"--bytes={size_bytes}",
        f"--chunk={order.chunk_bytes}",
        f"--stall-s={means.stall_s:g}",
    ]
    words += [f"--digest={digest}"] if digest else []
    return (*words, "--read-only") if order.read_only else tuple(words)


def run_chain(order: ChainOrder, means: ChainMeans, command: Sequence[str], size_bytes: int) -> ChainEnd:
    """Start a chain and wait for its end.

    Ends it where nothing moves; what has arrived is for the nodes to say. Raises ClusterError where the
    launcher does not start.
    """
    with tempfile.TemporaryDirectory(prefix="caffe-recipes-") as folder:
        hostfile = Path(folder) / "hostfile"
        hostfile.write_text("".join(f"{host}\n" for host in order.hosts))
        argv = list(means.launcher(order.hosts, str(hostfile), command))
        environment = {**os.environ, **means.environment}
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,  # and a session without a terminal: no ssh can ask for a password
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",  # the one folder that every host has
                env={**environment, **ssh_environment(environment)},
            )
        except OSError as error:
            raise ClusterError(argv[0], f"does not start: {error.strerror}", "load an MPI") from None
        logins = _Logins(process.pid)
        try:
            return _watch(process, logins, means, size_bytes)
        finally:
            _end(process, logins)


class _Logins:
    """What the launcher has started here: ssh in sessions of their own, which outlive a silent link."""

    def __init__(self, launcher: int) -> None:
        self._launcher = launcher
        self._found: dict[int, int] = {}

    def note(self) -> None:
        """Keep hold of those that are there now: by descriptors, since numbers come round again."""
        with contextlib.suppress(OSError):
            listed = Path(f"/proc/{self._launcher}/task/{self._launcher}/children").read_text()
            for pid in map(int, listed.split()):
                if pid not in self._found:
                    self._found[pid] = os.pidfd_open(pid)

    def end(self) -> None:
        """Let them end by themselves for a moment; then kill them."""
        until = time.monotonic() + _LOGOUT_S
        for descriptor in self._found.values():
            select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
        self._found = {}


def _watch(process: subprocess.Popen[bytes], logins: _Logins, means: ChainMeans, size_bytes: int) -> ChainEnd:
    lines: SimpleQueue[str | None] = SimpleQueue()
    threading.Thread(target=_read, args=(process, lines), daemon=True).start()
    end, patience_s, last = ChainEnd(), means.start_s, time.monotonic()
    while True:
        try:
            line = lines.get(timeout=max(0.1, last + patience_s - time.monotonic()))
        except Empty:
            end.said = f"nothing has moved for {patience_s:.0f} s"
            return end
        if line is None:
            return end
        logins.note()
        at = _AT.fullmatch(line)
        if at:
            # The ranks' own limit comes first; once all is sent, only disks are waited for.
            whole = int(at[1]) >= size_bytes
            patience_s = size_bytes / SLOWEST_BYTES_PER_S + means.start_s if whole else 2 * means.stall_s
            end.moved = True
        if at or _note(line, end):
            last = time.monotonic()
        elif not end.moved and _HOPELESS.search(line):
            return end


def _read(process: subprocess.Popen[bytes], lines: SimpleQueue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line.decode(errors="replace").strip())
    lines.put(None)


def _note(line: str, end: ChainEnd) -> bool:
    """Keep what a rank or the launcher said; return whether it was a rank's word."""
    found = _LINE.fullmatch(line)
    if found is None:
        if line.strip("= |"):
            end.said = line[:300]
        return False
    if found[2] != "landed":
        (end.failed if found[2] == "failed" else end.stopped)[int(found[1])] = found[3] or ""
    return True


def _end(process: subprocess.Popen[bytes], logins: _Logins) -> None:
    """End the launcher, which ends its ranks; then all that it has started here."""
    logins.note()
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    logins.end()
