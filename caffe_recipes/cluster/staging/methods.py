"""The methods to send files to nodes; each fills a reserved part, verifies it, and gives it its final name.

`copy`, `ssh` and `sbcast` are simple commands. For `chain`, the cluster's launcher starts the relay on all
hosts, and this module monitors and ends it. `sbcast` and `chain` send one file to all hosts: that of an LMDB.
"""

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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue

from caffe_recipes.cluster.commands import MAX_TRANSFER_S, Host
from caffe_recipes.cluster.hostfile import render_hostfile
from caffe_recipes.cluster.hosts import ask_all
from caffe_recipes.cluster.launchers.launcher import RankLaunch
from caffe_recipes.cluster.remote import SLOWEST_BYTES_PER_S, seconds_for
from caffe_recipes.cluster.staging.file_sets import (
    NodeState,
    SetFile,
    abandon_parts,
    ask_parts,
    part_name,
    survey_hosts,
)
from caffe_recipes.cluster.staging.method_choice import ChainOrder, StagingPlan, lacking_files, order_chain
from caffe_recipes.errors import ClusterError
from caffe_recipes.wording import describe_count, shorten_without

RELAY = "caffe_recipes.cluster.staging.relay"
STALL_S = 60.0
# Seconds for the logins, and for loading Python from a shared file system on every host.
START_S = 180.0
_END_S = 10.0
_LOGOUT_S = 2.0
# A rank's line begins with the label of its launcher, such as `[0] `, `0: ` or `[1,0]<stdout>:`.
_LABEL = r"(?:\S{1,120}? ?)?"
_LINE = re.compile(rf"{_LABEL}relay: (\d{{1,9}}) \S+ (landed|failed|stopped)(?:: (.*))?")
# A rank with such an error never joins the others.
_FATAL = re.compile(r"(ModuleNotFound|Import)Error: |error while loading shared|execvp error|: not found$")
_AT = re.compile(rf"{_LABEL}relay: at (\d{{1,18}})")


@dataclass
class ChainEnd:
    """How a chain ended: reasons by rank that could not write or gave up, and the last line of its output.

    `moved` is true if any data was passed on.
    """

    failed: dict[int, str] = field(default_factory=dict)
    stopped: dict[int, str] = field(default_factory=dict)
    last_line: str = ""
    moved: bool = False


@dataclass(frozen=True)
class ChainEnv:
    """How a chain is started: by `launch`, with the hosts and the hostfile of the chain.

    `python` and all files in `needs` must exist at these paths on every node: hydra does not notice if a rank
    never starts, and the other ranks would wait for it.
    """

    launch: RankLaunch
    python: str = sys.executable
    needs: tuple[str, ...] = ()
    stall_s: float = STALL_S
    start_s: float = START_S


def send_along_chain(order: ChainOrder, env: ChainEnv, command: Sequence[str], size_bytes: int) -> ChainEnd:
    """Start a chain, and wait until it ends; end it if there is no progress.

    The result does not say which hosts have the file; probe the nodes for that. Raises ClusterError if the
    launcher does not start.
    """
    with tempfile.TemporaryDirectory(prefix="caffe-recipes-") as folder:
        hostfile = Path(folder) / "hostfile"
        hostfile.write_text(render_hostfile(order.hosts))
        launch = replace(env.launch, hosts=tuple(order.hosts), hostfile=str(hostfile))
        argv = launch.argv(command)
        environment = {**os.environ, **launch.process_environment()}
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,  # and no terminal, so that ssh cannot prompt for a password
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",  # a folder that every host has
                env={**environment, **launch.launcher.environment(environment)},
            )
        except OSError as error:
            raise ClusterError(argv[0], f"does not start: {error.strerror}", "load an MPI") from None
        logins = _Logins(process.pid)
        try:
            return _watch(process, logins, env, size_bytes)
        finally:
            _end(process, logins)


class _Logins:
    """The ssh processes started by the launcher on this machine; they would survive a dead connection."""

    def __init__(self, launcher: int) -> None:
        self._launcher = launcher
        self._found: dict[int, int] = {}

    def note(self) -> None:
        """Record the processes that exist now, by pidfd, since process ids are reused."""
        with contextlib.suppress(OSError):
            listed = Path(f"/proc/{self._launcher}/task/{self._launcher}/children").read_text()
            for pid in map(int, listed.split()):
                if pid not in self._found:
                    self._found[pid] = os.pidfd_open(pid)

    def end(self) -> None:
        """Give the processes a moment to exit by themselves, and then kill them."""
        until = time.monotonic() + _LOGOUT_S
        for descriptor in self._found.values():
            select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
        self._found = {}


def _watch(process: subprocess.Popen[bytes], logins: _Logins, env: ChainEnv, size_bytes: int) -> ChainEnd:
    lines: SimpleQueue[str | None] = SimpleQueue()
    threading.Thread(target=_read, args=(process, lines), daemon=True).start()
    end, patience_s, last = ChainEnd(), env.start_s, time.monotonic()
    while True:
        try:
            line = lines.get(timeout=max(0.1, last + patience_s - time.monotonic()))
        except Empty:
            end.last_line = f"no progress for {patience_s:.0f} s"
            return end
        if line is None:
            return end
        logins.note()
        at = _AT.fullmatch(line)
        if at:
            # The ranks' own limit is lower. Once all data is sent, only the disks can still take time.
            is_sent = int(at[1]) >= size_bytes
            patience_s = size_bytes / SLOWEST_BYTES_PER_S + env.start_s if is_sent else 2 * env.stall_s
            end.moved = True
        if at or _note(line, end, env.launch.environment.values()):
            last = time.monotonic()
        elif not end.moved and _FATAL.search(line):
            return end


def _read(process: subprocess.Popen[bytes], lines: SimpleQueue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line.decode(errors="replace").strip())
    lines.put(None)


def _note(line: str, end: ChainEnd, secrets: Collection[str]) -> bool:
    """Record a line of output, which is not cut within a secret; return whether it is a rank's report."""
    found = _LINE.fullmatch(line)
    if found is None:
        if line.strip("= |"):
            end.last_line = shorten_without(line, 300, secrets)
        return False
    if found[2] != "landed":
        (end.failed if found[2] == "failed" else end.stopped)[int(found[1])] = found[3] or ""
    return True


def _end(process: subprocess.Popen[bytes], logins: _Logins) -> None:
    """End the launcher, which ends its ranks, and then everything that it started on this machine."""
    logins.note()
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    logins.end()


_FIRST_MISSING = 'for file do test -r "$file" || { echo "$file"; exit 1; }; done'
# A chain that breaks although no host is dead or full is started once more.
_MAX_FRUITLESS = 2
# How long to wait for the answer of a host. On a dead host unfinished copies remain until the next staging.
_PROBE_S = 15.0
# Waiting this long for the digest may save a command per node. It is not worth waiting longer: hashing 42 GB
# takes as long as the copies.
_DIGEST_WAIT_S = 0.5


@dataclass(frozen=True)
class StagingJob:
    """A staging in progress: hosts by name, plan, token of the parts, this machine's name, and output.

    `hashing` holds the digests that are being computed.
    """

    hosts: Mapping[str, Host]
    plan: StagingPlan
    token: str
    here: str
    say: Callable[[str], None]
    hashing: Mapping[SetFile, Future[str]] = field(default_factory=dict)

    def lacking(self) -> list[Host]:
        """Return the hosts that lack a file, in the order of the hostfile."""
        return [self.hosts[state.host] for state in self.plan.missing]

    @property
    def lmdb(self) -> SetFile:
        """Return the file that all hosts get."""
        lmdb = self.plan.files.lmdb
        assert lmdb is not None  # other sets are sent by other ways
        return lmdb


@dataclass(frozen=True)
class Sent:
    """The result of sending: reasons by failed host, and the source's digest if any host has a copy now.

    `dead` holds the failed hosts that did not answer, and need not be contacted again. `unstarted` holds the
    failed hosts, with reasons, that no chain has reached, so that another way may still work.
    """

    failed: Mapping[str, str]
    digest: str | None = None
    dead: frozenset[str] = frozenset()
    unstarted: Mapping[str, str] = field(default_factory=dict)


def send_to_each(job: StagingJob) -> dict[str, str]:
    """Let every node copy the files that it lacks, or send them over ssh; return reasons by failed host."""
    lacking = {state.host: lacking_files(state, job.plan.files) for state in job.plan.missing}
    return _find_failures(job.lacking(), lambda host: _send_files(job, host, lacking[host.name]))


def send_by_sbcast(job: StagingJob) -> dict[str, str]:
    """Let sbcast send the LMDB to all nodes of the job, and verify it; return reasons by failed host."""
    plan, lmdb, hosts = job.plan, job.lmdb, job.lacking()
    failed = _reserve(job)
    limit_s = seconds_for(lmdb.size_bytes * len(job.hosts))
    target = f"{plan.files.folder}/{part_name(lmdb, job.token)}"
    stderr = _call(sbcast_argv(str(lmdb.source.data), target), limit_s)
    rest = [host for host in hosts if host.name not in failed]
    lost = _find_failures(rest, lambda host: _commit(job, host, [lmdb]))
    # sbcast sends to all nodes, so those that already had the LMDB got another copy.
    abandon(job, plan.present)
    return failed | {
        name: f"{why}; sbcast printed: {stderr}" if stderr else why for name, why in lost.items()
    }


def abandon(job: StagingJob, names: Iterable[str]) -> None:
    """Remove unfinished copies from hosts; errors are ignored."""
    ask_all([job.hosts[name] for name in names], lambda host: abandon_parts(host, job.plan.files), _PROBE_S)


def sbcast_argv(source: str, target: str) -> tuple[str, ...]:
    """Return the sbcast argv that copies a file to an existing part on every node of the allocation.

    >>> " ".join(sbcast_argv("/scratch/lmdb/data.mdb", "/tmp/lmdb/part"))
    'sbcast --force --size=8m /scratch/lmdb/data.mdb /tmp/lmdb/part'
    """
    return ("sbcast", "--force", "--size=8m", source, target)


def send_by_chain(job: StagingJob, env: ChainEnv, *, is_requested: bool = True) -> Sent:
    """Pass the file through all nodes; if one dies, a new chain continues where the old one stopped.

    If the user requested a chain (`is_requested`), one that does not start is tried again, and a launcher
    that does not start raises ClusterError.
    """
    failed, digest = _reserve(job), job.lmdb.digest
    unfit = _find_unfit(env, [job.hosts[name] for name in _all_hosts(job) if name not in failed])
    missing = [state for state in job.plan.missing if state.host not in failed and state.host not in unfit]
    landed, moved = [name for name in job.plan.present if name not in unfit], False
    unstarted = {state.host: unfit[state.host] for state in job.plan.missing if state.host in unfit}
    dead, fruitless = set[str](), 0
    while missing:
        order = order_chain(job.plan.files, job.lmdb, missing, landed, job.here)
        end = _launch(job, env, order, digest, is_requested=is_requested)
        moved = moved or end.moved
        states = survey_hosts([job.hosts[each.host] for each in missing], job.plan.files, _PROBE_S)
        copies = {state.host: state.found[job.lmdb.name].digest for state in states if state.found}
        digest = digest or next(filter(None, copies.values()), None)
        lost = _find_lost(states, order, end)
        dead |= {state.host for state in states if state.kind == "unreachable"}
        arrived = {host for host, found in copies.items() if found and found == digest}
        left = [state for state in missing if state.host not in arrived and state.host not in lost]
        fruitless = fruitless + 1 if len(left) == len(missing) else 0
        failed |= lost
        # If a chain made no progress, its reader may be at fault.
        landed = [host for host in landed if not (fruitless and host == order.hosts[0])] + sorted(arrived)
        missing = left
        if missing and fruitless == (_MAX_FRUITLESS if is_requested or moved else 1):
            names = [state.host for state in missing]
            failed |= dict.fromkeys(names, f"the chain broke: {_why(end, order)}")
            unstarted |= {} if moved else dict.fromkeys(names, _why(end, order))
            break
        if missing:
            without = f" without {', '.join(lost)}" if lost else ""
            hosts = describe_count(len(missing), "host")
            job.say(f"the chain broke ({_why(end, order)}); continuing{without} to {hosts}")
    return Sent({**unstarted, **failed}, digest, frozenset(dead), unstarted)


def _all_hosts(job: StagingJob) -> list[str]:
    return [*job.plan.present, *(state.host for state in job.plan.missing)]


def _find_unfit(env: ChainEnv, hosts: Sequence[Host]) -> dict[str, str]:
    """Return reasons by host that lacks a file needed by the ranks; unresponsive hosts are skipped."""
    if not env.needs:
        return {}
    argv = ["sh", "-c", _FIRST_MISSING, "sh", *env.needs]
    return {
        answer.host.name: f"{answer.host.name} lacks {' '.join(done.stdout.split())[-200:] or env.needs[0]}"
        for answer in ask_all(hosts, lambda host: host.run(argv), _PROBE_S)
        if (done := answer.value) and done.returncode != 0
    }


def _relay_command(job: StagingJob, env: ChainEnv, order: ChainOrder, digest: str | None) -> tuple[str, ...]:
    """Return the command that each rank of a chain runs."""
    words = [
        env.python,
        "-P",
        "-m",
        RELAY,
        f"--folder={job.plan.files.folder}",
        f"--part={part_name(job.lmdb, job.token)}",
        f"--source={order.source}",
        f"--ranks={len(order.hosts)}",
        f"--bytes={job.lmdb.size_bytes}",
        f"--chunk={order.chunk_bytes}",
        f"--stall-s={env.stall_s:g}",
    ]
    words += [f"--digest={digest}"] if digest else []
    return (*words, "--read-only") if order.read_only else tuple(words)


def _launch(
    job: StagingJob, env: ChainEnv, order: ChainOrder, digest: str | None, *, is_requested: bool
) -> ChainEnd:
    try:
        return send_along_chain(order, env, _relay_command(job, env, order, digest), job.lmdb.size_bytes)
    except ClusterError as error:
        if is_requested:
            raise
        return ChainEnd(last_line=error.without_hint)


def _find_lost(states: Sequence[NodeState], order: ChainOrder, end: ChainEnd) -> dict[str, str]:
    """Return reasons by host that the next chain must exclude: dead hosts, and those that could not write."""
    reasons = {order.hosts[rank]: why for rank, why in end.failed.items() if rank < len(order.hosts)}
    lost = {state.host: reasons[state.host] for state in states if state.host in reasons}
    for state in states:
        if state.kind == "unreachable":
            lost[state.host] = f"failed during chain staging: {state.reason}"
        elif state.kind == "refused":
            lost[state.host] = state.reason
    return lost


def _why(end: ChainEnd, order: ChainOrder) -> str:
    """Return which host broke a chain, and why: the first one that saw no progress."""
    names = dict(enumerate(order.hosts))
    if not end.stopped:
        labelled = re.fullmatch(r"\[?(\d{1,9})(?:\]|:) (.+)", end.last_line)
        words = f"{names.get(int(labelled[1]), labelled[1])}: {labelled[2]}" if labelled else end.last_line
        return words or "the launcher ended"
    rank = min(end.stopped)
    reason = re.sub(
        r"\brank (\d{1,9})\b", lambda found: names.get(int(found[1]), found[0]), end.stopped[rank]
    )
    return f"{names.get(rank, rank)}: {reason}"


def _reserve(job: StagingJob) -> dict[str, str]:
    """Reserve space for the LMDB on all hosts that lack it; return reasons by failed host."""
    return _find_failures(
        job.lacking(), lambda host: ask_parts(host, "reserve", job.plan.files, [job.lmdb], job.token)
    )


def _send_files(job: StagingJob, host: Host, lacking: Sequence[SetFile]) -> None:
    """Let a host copy the files that it can read, and send it the others. Raises ClusterError."""
    files, pulled, pushed = job.plan.files, list[SetFile](), list[SetFile]()
    for file in lacking:
        is_pulled = job.plan.how == "copy" and files.is_read_by_nodes(file)
        (pulled if is_pulled else pushed).append(file)
    wait(job.hashing.values(), _DIGEST_WAIT_S)
    known = {file: future.result() for file, future in job.hashing.items() if future.done()}
    ask_parts(host, "take", files, [replace(f, digest=f.digest or known.get(f)) for f in pulled], job.token)
    _commit(job, host, [file for file in pulled if not (file.digest or file in known)])
    for file in pushed:
        ask_parts(host, "reserve", files, [file], job.token)
        host.put(file.source.data, f"{files.folder}/{part_name(file, job.token)}")
        _commit(job, host, [file])


def _commit(job: StagingJob, host: Host, some: Sequence[SetFile]) -> None:
    """Verify parts, and give them their final names, once their digests are known. Raises ClusterError."""
    known = [replace(file, digest=file.digest or job.hashing[file].result()) for file in some]
    ask_parts(host, "commit", job.plan.files, known, job.token)


def _find_failures(hosts: Sequence[Host], act: Callable[[Host], None]) -> dict[str, str]:
    """Call `act` on all hosts; return reasons by name of the hosts where it failed."""
    return {
        answer.host.name: answer.error.what
        for answer in ask_all(hosts, act, MAX_TRANSFER_S)
        if answer.error is not None
    }


def _call(argv: Sequence[str], timeout_s: float) -> str:
    """Run a command on this machine; return its error output, or ""."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"did not finish within {timeout_s:.0f} s"
    except OSError as error:
        return error.strerror or str(error)
    return "" if done.returncode == 0 else " ".join(done.stderr.decode(errors="replace").split())[:300]
