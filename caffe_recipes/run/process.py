"""Start the trainer's process in its own session, find it again after a crash of the run, and stop it.

Its output goes straight into a log file, so that it survives the run. The trainer is the session leader whose
standard output is that file. A process number alone identifies nothing, since numbers are reused.

Also: describe what is already training, beside which the preflight tries nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from caffe_recipes.cluster.rank_exits import ENDED_BY_US
from caffe_recipes.errors import InputError, RunFailed, hint_for
from caffe_recipes.files.disk_space import reserve
from caffe_recipes.run.events import RunState
from caffe_recipes.run.journal import FULL_DISK_WAIT_S, JOURNAL, find_open_launches, name_process
from caffe_recipes.run.lock import RecipeLock, is_held
from caffe_recipes.run_names import run_folders

POLL_S = 0.1
# Reserved for a log in case the disk fills up: some minutes of the output of a hundred ranks.
AHEAD_BYTES = 4 << 20
# Hydra passes SIGTERM on to its ranks, and Caffe exits at once. A rank that does not is killed after this.
GRACE_S = 10.0
# Launchers and MPI libraries recognize a rank by these variables.
_RANKS = {"PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"}


class TrainerProcess:
    """A launcher with its ranks, identified by the log that it writes to."""

    def __init__(self, log: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        """Refer to the trainer that writes to `log`: our child, or one that a killed run left behind."""
        self.log = log
        self._process = process
        self._is_stopped = False

    def is_running(self) -> bool:
        """Return whether the launcher is running."""
        return self.pid() is not None

    def pid(self) -> int | None:
        """Return the launcher's process ID; None if it has ended.

        If it is not our child, whose ID cannot be reused yet, it is found by its standard output.
        """
        if self._process is not None:
            return self._process.pid if self._process.poll() is None else None
        try:
            log = self.log.stat()
        except OSError:
            return None
        pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return next((pid for pid in pids if _is_trainer_of(pid, log)), None)

    @property
    def killed_by(self) -> int | None:
        """The signal that has killed the launcher; None if there was none, or ours, or if it is not known."""
        code = None if self._process is None or self._is_stopped else self._process.poll()
        return -code if code is not None and code < 0 else None

    def wait(self) -> None:
        """Wait until the launcher has ended, for POLL_S at most."""
        if self._process is None:
            time.sleep(POLL_S)
        else:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(POLL_S)

    def interrupt(self) -> None:
        """Ask Caffe to stop after the current iteration, as Ctrl-C does: hydra passes SIGINT to all ranks."""
        self._signal(signal.SIGINT)

    def stop(self) -> None:
        """Ask the launcher to end its ranks; kill it after GRACE_S. Returns when it has ended.

        When the launcher is gone, hydra's proxies kill their ranks, even those that ignore signals.
        """
        deadline = time.monotonic() + GRACE_S
        if self.is_running():  # whoever reads the log later must not take us for the cause
            self._is_stopped = True
            with suppress(OSError), open_log(self.log) as log:
                log.write(f"\n{ENDED_BY_US}\n".encode())
        try:
            self._signal(signal.SIGTERM)
            while self.is_running() and time.monotonic() < deadline:
                self.wait()
        finally:
            while self.is_running():
                self._signal(signal.SIGKILL)
                self.wait()

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
    """Start `argv` in the Caffe root with its output appended to `log`.

    It inherits the file descriptors `inherited`. Raises RunFailed if it does not start.
    """
    with open_log(log) as output:
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


# Starts a trainer as `launch_trainer` does.
StartTrainer = Callable[[Sequence[str], Path, Mapping[str, str], Path, Sequence[int]], TrainerProcess]


def make_room(log: Path, say: Callable[[str], None]) -> None:
    """Create a log and reserve space for it, since a launcher that cannot write its log exits.

    Creates the folder if it has been deleted. Waits while the disk is full, and raises RunFailed if it stays
    so.
    """
    until, is_reported = time.monotonic() + FULL_DISK_WAIT_S, False
    try:
        log.parent.mkdir(exist_ok=True)
        open_log(log).close()
    except OSError as error:
        hint = f"{hint_for(error, 'check the disk')}, and run again"
        raise RunFailed(log, f"cannot be created: {error.strerror}", hint) from None
    while reserve(log, AHEAD_BYTES):
        if time.monotonic() > until:
            raise RunFailed(log.parent, "its disk is full", "free space on it, and run again")
        if not is_reported:
            say(f"{log.parent}: its disk is full; waiting for free space")
            is_reported = True
        time.sleep(POLL_S)


def open_log(log: Path) -> BinaryIO:
    """Open a log to append to it, created if missing; raises OSError for a symbolic link."""
    return open(log, "ab", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666))


def own_environment() -> dict[str, str]:
    """Return our environment without the variables that would make a child look like a rank of a launch."""
    return {name: value for name, value in os.environ.items() if name not in _RANKS}


def _is_trainer_of(pid: int, log: os.stat_result) -> bool:
    """Return whether a process leads its session and has `log` as its standard output."""
    try:
        output = Path(f"/proc/{pid}/fd/1").stat()
        return os.path.samestat(output, log) and os.getsid(pid) == pid
    except OSError:  # it has ended, is a zombie, or belongs to another user
        return False


def find_running(root: Path, recipe_name: str) -> Path | None:
    """Return the folder of a recipe's run that a process is running; None if there is none."""
    folders = reversed(run_folders(root, recipe_name))
    return next((folder for folder in folders if is_held(folder / "journal.lock")), None)


def check_nothing_trains(folder: Path) -> None:
    """Raise InputError if a trainer of a killed run is still running; `folder` is the run's."""
    for log in (*folder.glob("logs/*.log"), *folder.glob("branches/*/logs/*.log")):
        pid = TrainerProcess(log).pid()
        if pid is not None:
            what = f"process {pid} of a killed run is still training"
            raise InputError(log, what, "resume that run without --new, or stop the process first")


def describe_launch(root: Path, state: RunState) -> str:
    """Return a message if a launch of this run is still running on this machine; else ""."""
    lives = any(TrainerProcess(root / each.log).is_running() for each in find_open_launches(root, state))
    return "a launch of this run is under way" if lives else ""


def describe_work(root: Path, recipe_name: str, state: RunState) -> str:
    """Return a message if the recipe is being trained on this machine, by another run or a leftover launcher.

    Else "".
    """
    lock = RecipeLock(root, recipe_name)
    if lock.is_run_active():
        folder = find_running(root, recipe_name)
        if folder is None:
            return "run.sh, or another caffe-recipes run, of this recipe is running here"
        return f"{folder.name} is running ({name_process(folder / JOURNAL)})"
    left = "the mpiexec of a killed run is still running" if lock.is_trainer_active() else ""
    return describe_launch(root, state) or left
