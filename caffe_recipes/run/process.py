"""The process that trains: started in its own session, found again after a crash of ours, stopped in order.

Its output goes straight into a file, so that it survives us; whoever has that file as standard output and
leads a session is the trainer. No number of a process is ever trusted: numbers come round again.

What trains already: nothing is tried beside it, which would cost it time, and perhaps its memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from caffe_recipes.errors import RunFailed
from caffe_recipes.files import reserve
from caffe_recipes.run.events import RunState
from caffe_recipes.run.journal import FULL_DISK_WAIT_S, branch_launches
from caffe_recipes.run.lock import RecipeLock

POLL_S = 0.1
# What a log can grow by on a full disk: minutes of a hundred ranks.
AHEAD_BYTES = 4 << 20
# Hydra passes SIGTERM on to its ranks; Caffe ends at once. A rank that does not is killed after this.
GRACE_S = 10.0
# By these a process is known as a rank.
_RANKS = {"PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"}


class TrainerProcess:
    """A launcher with its ranks, known by the log that it writes to."""

    def __init__(self, log: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        """Know the trainer that writes to `log`: our child, or, without one, what another run left behind."""
        self.log = log
        self._process = process

    def is_running(self) -> bool:
        """Tell whether the launcher lives."""
        return self.pid() is not None

    def pid(self) -> int | None:
        """Return the launcher's process number; None if it has ended.

        One that is not our child, whose number nobody else can get, is found by its standard output.
        """
        if self._process is not None:
            return self._process.pid if self._process.poll() is None else None
        try:
            log = self.log.stat()
        except OSError:
            return None
        everyone = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return next((pid for pid in everyone if _leads_and_writes(pid, log)), None)

    def interrupt(self) -> None:
        """Have Caffe stop after its iteration, as Ctrl-C would: hydra hands SIGINT on to all ranks."""
        self._signal(signal.SIGINT)

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Ask the launcher to end its ranks, and kill it if it does not; returns when it has ended.

        Hydra's proxies kill their ranks when the launcher is gone, whatever signals those ignore.
        """
        deadline = time.monotonic() + grace_s
        try:
            self._signal(signal.SIGTERM)
            while self.is_running() and time.monotonic() < deadline:
                time.sleep(POLL_S)
        finally:
            while self.is_running():
                self._signal(signal.SIGKILL)
                time.sleep(POLL_S)

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid()
        if pid is not None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return


def launch_trainer(
    argv: Sequence[str],
    root: Path,
    environment: Mapping[str, str],
    log: Path,
    inherited: Sequence[int] = (),
) -> TrainerProcess:
    """Start `argv` in the Caffe root, output to `log`; raises RunFailed if it does not start.

    `inherited` are open files that it keeps.
    """
    with log.open("ab") as output:
        try:
            process = subprocess.Popen(
                argv,
                cwd=root,
                env={**own_environment(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=inherited,
            )
        except OSError as error:
            raise RunFailed(argv[0], f"does not start: {error.strerror}", "check its installation") from None
    return TrainerProcess(log, process)


def make_room(log: Path, say: Callable[[str], None]) -> None:
    """Make a log with room to grow, since a launcher that cannot write its log ends.

    Its folder is made again where somebody has cleared it away. On a full disk room is waited for; raises
    RunFailed where none comes.
    """
    until, is_told = time.monotonic() + FULL_DISK_WAIT_S, False
    try:
        log.parent.mkdir(exist_ok=True)
        log.touch()
    except OSError as error:
        raise RunFailed(log, f"cannot be made: {error.strerror}", "check the disk, and run again") from None
    while reserve(log, AHEAD_BYTES):
        if time.monotonic() > until:
            raise RunFailed(log.parent, "its disk is full", "make room, and run again")
        if not is_told:
            say(f"{log.parent}: its disk is full; waiting for room")
            is_told = True
        time.sleep(POLL_S)


def own_environment() -> dict[str, str]:
    """Return our environment without what would make all that we start look like a rank of another launch."""
    return {name: value for name, value in os.environ.items() if name not in _RANKS}


def _leads_and_writes(pid: int, log: os.stat_result) -> bool:
    """Tell whether a process leads its session and has the log as standard output."""
    try:
        output = Path(f"/proc/{pid}/fd/1").stat()
        return os.path.samestat(output, log) and os.getsid(pid) == pid
    except OSError:  # ended, a zombie, or another user's
        return False


def describe_launch(root: Path, state: RunState) -> str:
    """Say that a run's launch, which it is to go on with, lives on this machine; else nothing."""
    own = (state.launch,) if state.launch else ()
    lives = any(
        TrainerProcess(root / each.log).is_running() for each in (*own, *branch_launches(root, state))
    )
    return "a launch of this run is under way" if lives else ""


def describe_work(root: Path, recipe_name: str, state: RunState) -> str:
    """Say that another carries the recipe on, or what a killed run has left behind; else nothing."""
    lock = RecipeLock(root, recipe_name)
    if lock.is_carried():
        return "another run of this recipe is at work here"
    left = "the mpiexec of a killed run is still at work" if lock.is_trained() else ""
    return describe_launch(root, state) or left
