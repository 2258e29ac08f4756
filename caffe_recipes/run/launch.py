"""Follow a launch to its end: watch its log and hosts, keep its checkpoints, and act on the user's signals.

The launcher's log is authoritative. The log files of single ranks can be recreated from it, and no run fails
because they cannot be written.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from caffe_recipes.caffe.log_files import LogFile
from caffe_recipes.caffe.logs import SATURATED_LOSS, split_rank
from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.ranks import PulseMonitor, end_ranks, request_snapshot
from caffe_recipes.cluster.slurm.steps import describe_steps
from caffe_recipes.errors import CaffeRecipesError
from caffe_recipes.files.disk_space import release, reserve
from caffe_recipes.run.context import LaunchFailed, Run
from caffe_recipes.run.events import Checkpointed, Ending, Launch, Stopping
from caffe_recipes.run.prepare import check_hosts_read, ensure_weights
from caffe_recipes.run.process import AHEAD_BYTES, TrainerProcess
from caffe_recipes.run.snapshots import drop_checkpoints, is_whole
from caffe_recipes.run.trainer import Training
from caffe_recipes.run.trainer_log import (
    LogTail,
    StepWait,
    Trouble,
    Watchdog,
    find_divergence,
    find_failure,
    find_guessing,
    find_unread,
    has_passed,
    is_ending,
    last_value,
    losses_until,
    measure_step,
)
from caffe_recipes.run.training_plan import plan_steps

# The file for the launcher's own output, and for any other line without a rank's label.
LAUNCHER = "launcher.log"
_MOST_RANKS = 10_000
# Open files: several launches may be followed at once, and a login node's limit can be 256.
_MOST_OPEN = 16
# Bytes to split at a time, so that watching the launch is not delayed for long.
_MOST_BYTES = 8 << 20


class RankLogs:
    """Splits a launcher's log into one file per rank in `folder`; a context manager that closes them.

    A new object starts each file anew, so create one whenever the log is read from its beginning. After the
    first failed write, `complain` is called once and nothing more is written.
    """

    def __init__(
        self, folder: Path, ranks: int = _MOST_RANKS, complain: Callable[[str], None] = lambda text: None
    ) -> None:
        """Create no files yet. A label of `ranks` or more is taken for a part of the program's own output."""
        self.folder = folder
        self._ranks = ranks
        self._digits = len(str(ranks - 1))
        self._complain = complain
        self._open: OrderedDict[str, FileIO] = OrderedDict()
        self._begun: set[str] = set()
        self._gave_up = False

    def __enter__(self) -> RankLogs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, log: LogFile, *, to_end: bool = False) -> None:
        """Split the next complete lines of a log; with `to_end` all lines, even an incomplete last one."""
        for lines in log.read(None if to_end else _MOST_BYTES, to_end=to_end):
            self.feed(lines)

    def feed(self, lines: Iterable[str]) -> None:
        """Append lines to the files of their ranks; they are written when this returns."""
        if self._gave_up:
            return
        by_file: dict[str, list[str]] = {}
        for line in lines:
            name, text = self._sort(line.rstrip("\r\n"))
            by_file.setdefault(name, []).append(f"{text}\n")
        try:
            for name, texts in by_file.items():
                _write_all(self._file(name), "".join(texts))
        except OSError as error:
            self._gave_up = True
            self.close()
            what = f"nothing more is written: {error.strerror}; the launcher's log is complete"
            self._complain(f"{self.folder}: {what}")

    def close(self) -> None:
        """Close the open files."""
        while self._open:
            self._open.popitem()[1].close()

    def _sort(self, line: str) -> tuple[str, str]:
        """Return the name of the file for a line, and the line without its label."""
        rank, text = split_rank(line)
        if rank is None or rank >= self._ranks:
            return LAUNCHER, line
        return f"{rank:0{self._digits}}.log", text

    def _file(self, name: str) -> FileIO:
        """Return an open file; close the least recently used one if too many are open."""
        if name not in self._open:
            if not self._begun:
                self.folder.mkdir(parents=True, exist_ok=True)
            if len(self._open) >= _MOST_OPEN:
                self._open.popitem(last=False)[1].close()
            self._open[name] = FileIO(self.folder / name, "a" if name in self._begun else "w")
            self._begun.add(name)
        self._open.move_to_end(name)
        return self._open[name]


def _write_all(file: FileIO, text: str) -> None:
    left = memoryview(text.encode(errors="replace"))
    while left:
        left = left[file.write(left) or 0 :]


class CheckpointKeeper:
    """Keeps the checkpoints of a launch that are worth resuming from, while `is_wanted`.

    `lead` is called for the host of rank 0 when there is something to fetch.
    """

    def __init__(self, run: Run, training: Training, tail: LogTail, lead: Callable[[], Host]) -> None:
        """Begin at the first snapshot in the log."""
        policy, trainer = run.setting.policy, run.setting.trainer
        self.is_wanted = policy.checkpoint_every is not None or trainer.always_checkpoints
        self._run, self._training, self._tail, self._lead = run, training, tail, lead
        self._seen = 0
        # If the launch is taken over, some may have been kept before.
        self._kept = set(run.journal.state().kept)

    def skip(self) -> None:
        """Skip everything that is already in the log."""
        self._seen = len(self._tail.summary.solverstates)

    def keep_new(self) -> bool:
        """Keep the new snapshots from inside the phase, if wanted; return whether there were any."""
        if not self.is_wanted:
            return False
        summary, trainer, taken = self._tail.summary, self._run.setting.trainer, False
        while self._seen < len(summary.solverstates):
            path = summary.solverstates[self._seen]
            iteration = trainer.models.checkpoint_iter(path)
            if iteration is not None and iteration < self._training.last_iter:
                if not has_passed(summary, trainer.models.model_beside(path), iteration):
                    break
                if str(self._run.path(path)) not in self._kept and self._is_sound():
                    self._keep(path)
                taken = True
            self._seen += 1
        return taken

    def _is_sound(self) -> bool:
        """Return whether resuming is worthwhile: all weights were loaded, and the loss has not diverged."""
        summary, setting = self._tail.summary, self._run.setting
        if setting.trainer.find_omission(summary, self._training, setting.root):
            return False
        loss = last_value(losses_until(summary, self._training.last_iter).values())
        return loss is None or loss < SATURATED_LOSS

    def _keep(self, path: str) -> None:
        run, training = self._run, self._training
        folder, setting = f"{run.folder}/checkpoints", run.setting
        before = run.journal.state().checkpoints.get(training.phase, ())
        try:
            kept = setting.trainer.models.fetch_checkpoint(
                self._lead(), setting.root, run.plan.files, training, path, folder
            )
            run.emit(Checkpointed(kept))
        except CaffeRecipesError as error:  # training continues, and the previous checkpoint is still good
            run.notify(f"no checkpoint: {error}", training.phase)
            return
        drop_checkpoints(run.setting.hosts, run.setting.root, kept, before[:-1], training.snapshot_paths)


# Hydra ends all ranks if a signal killed one, but if one has merely exited it waits for the others.
_DYING_S = 5.0
# Seconds between two checks of the hosts; the log is read at every poll.
_CHECK_S = 1.0


@dataclass(frozen=True)
class Followed:
    """The outcome of a launch: its log, the host of rank 0, and what was wrong with it or a host.

    `unreachable` are the hosts that did not answer when the ranks of a failed launch were ended. If the disk
    of the log `was_full`, the launcher may have exited because of that. `killed_by` is the signal that killed
    the launcher. `seconds` is for how long it was followed.
    """

    tail: LogTail
    lead: Host
    trouble: Trouble | None = None
    unreachable: tuple[str, ...] = ()
    was_full: bool = False
    seconds: float = 0.0
    killed_by: int | None = None


def follow(run: Run, training: Training, launch: Launch, start: Callable[[], TrainerProcess]) -> Followed:
    """Follow a launch until it ends, fails, or reaches the iteration after which it is to be stopped.

    Whatever goes wrong here, no rank is left behind on any host that can be reached. If the user has asked to
    stop, raises Interrupted after a snapshot was requested and kept as a checkpoint.
    """
    folder = run.path(launch.log).with_suffix(".ranks")
    ranks = RankLogs(folder, run.setting.recipe.cluster.ranks, run.notify)
    tail, log = run.read_log(launch.log), LogFile(run.path(launch.log))
    with ExitStack() as stack:
        stack.enter_context(ranks)
        stack.callback(ranks.read, log, to_end=True)
        trouble: Trouble | None = None
        unreachable: list[str] = []
        trainer = TrainerProcess(run.path(launch.log))
        stack.callback(lambda: unreachable.extend(_end(run, training, trainer, tail, trouble)))
        stack.enter_context(run.interrupts.noted())
        tail.read()
        is_read = tail.has_begun  # a trainer that is taken over may have loaded its weights long ago
        begun = time.monotonic()
        with run.interrupts.held():
            trainer = start()
        pulses = stack.enter_context(PulseMonitor(run.setting.hosts, launch.id))
        monitor = _LaunchMonitor(run, training, launch, tail, trainer, pulses, is_read=is_read)
        while trainer.is_running() and not monitor.poll():
            ranks.read(log)
            run.interrupts.raise_urgent()
            run.check_folder()
            trainer.wait()
        run.check_folder()
        monitor.finish()
        lead, trouble = monitor.lead(), monitor.trouble
        if trouble is not None:
            run.emit(Ending(training.phase, trouble.what, trouble.host))
        seconds = time.monotonic() - begun
    tail.read(to_end=True)
    if find_failure(tail, training) is not None:
        run.interrupts.raise_asked()
    return Followed(
        tail, lead, trouble, tuple(unreachable), monitor.was_full, seconds, killed_by=trainer.killed_by
    )


def end_everywhere(run: Run, lost: str | None = None) -> list[str]:
    """End all ranks of the run on all hosts except `lost`; report and return the hosts where that failed."""
    hosts = [host for host in run.setting.hosts if host.name != lost]
    here = () if any(host.is_local for host in hosts) else (LocalHost(),)  # hydra's ssh processes remain here
    if lost:
        how = "end when their connection closes, or are killed before the next launch"
        run.notify(f"{lost}: any ranks left there {how}")
    failed = end_ranks((*hosts, *here), run.id)
    for host, reason in failed.items():
        run.notify(f"{host}: its ranks could not be killed: {reason}")
    return list(failed)


def _end(
    run: Run, training: Training, trainer: TrainerProcess, tail: LogTail, trouble: Trouble | None
) -> list[str]:
    try:
        trainer.stop()
    finally:
        release(tail.path)
        tail.read(to_end=True)
        unreachable: list[str] = []
        if trouble is not None or find_failure(tail, training) is not None:
            unreachable = end_everywhere(run, trouble.host if trouble and trouble.is_lost else None)
        run.reporter.end_progress()
    return unreachable


class _LaunchMonitor:
    """Watches a launch's log and hosts, and acts on what they show; call `poll` repeatedly while it runs."""

    def __init__(
        self,
        run: Run,
        training: Training,
        launch: Launch,
        tail: LogTail,
        trainer: TrainerProcess,
        pulses: PulseMonitor,
        *,
        is_read: bool,
    ) -> None:
        self.trouble: Trouble | None = None
        self._run, self._training, self._launch = run, training, launch
        self._whole = plan_steps(run.setting.recipe)
        self._tail, self._trainer, self._pulses = tail, trainer, pulses
        self._watchdog = Watchdog(pulses, run.setting.policy.stall_s)
        self._check_at = 0.0
        self._end_at: float | None = None
        self._keeper = CheckpointKeeper(run, training, tail, self.lead)
        self._ignored = 0
        self._is_snapshot_requested = self._is_warned = False
        self._seen = (0, 0)
        self._is_read = is_read
        self._damaged: Future[Trouble | None] | None = None
        self.was_full = False
        self._suspects: set[str] = set()
        self._step_wait = StepWait(lambda: describe_steps(launch.job, launch.hosts))

    def lead(self) -> Host:
        """Return the host of rank 0: the first of the hostfile, unless pulses show rank 0 on another host."""
        heard = self._pulses.latest()
        leads = {name for name, pulse in heard.items() for rank in pulse.ranks if rank.rank == 0}
        hosts = self._run.setting.hosts
        return next((host for host in hosts if host.name in leads), hosts[0])

    def poll(self) -> bool:
        """Act on what is new; return whether to end the launch."""
        run, training, tail = self._run, self._training, self._tail
        before = len(tail.summary.losses), len(tail.summary.rates)
        tail.read()
        if (len(tail.summary.losses), len(tail.summary.rates)) != before:
            self._show_progress()
        self._warn()
        if find_divergence(losses_until(tail.summary, training.last_iter)):
            return True
        self.trouble = self._find_ignored() or self._find_damaged()
        if self.trouble is not None:
            return True
        if (
            run.interrupts.asked is not None
            and not self._is_snapshot_requested
            and not self._request_snapshot()
        ):
            return True
        if self._keeper.keep_new() and self._is_snapshot_requested:  # even if it could not be kept
            return True
        if self._end_at is None and (tail.summary.fatal or tail.no_step):
            self._end_at = time.monotonic() + _DYING_S
        elif self._end_at is None and _is_to_stop(tail, training):
            run.emit(Stopping(training.phase, training.last_iter))
            self._trainer.interrupt()
            self._end_at = time.monotonic() + run.setting.stop_grace_s
        self.trouble = self._check_hosts()
        return self.trouble is not None or (self._end_at is not None and time.monotonic() >= self._end_at)

    def _find_ignored(self) -> Trouble | None:
        summary, setting = self._tail.summary, self._run.setting
        before, self._ignored = self._ignored, len(summary.ignored)
        if self._ignored == before:
            return None
        reason = setting.trainer.find_omission(summary, self._training, setting.root)
        return Trouble(reason) if reason else None

    def _find_damaged(self, *, waits: bool = False) -> Trouble | None:
        """Verify the weights once the ranks have loaded them; return what is wrong as soon as that is known.

        A thread does so: a host behind a broken link takes a minute to fail, and the others must be watched
        meanwhile.
        """
        if not self._is_read and self._tail.has_begun:
            self._is_read, self._damaged = True, Future()
            threading.Thread(target=self._compare, args=(self._damaged,), daemon=True).start()
        if self._damaged is None or not (waits or self._damaged.done()):
            return None
        return self._damaged.result()

    def _compare(self, damaged: Future[Trouble | None]) -> None:
        try:
            damaged.set_result(self._verify_weights())
        except BaseException as error:  # raised where the result is read
            damaged.set_exception(error)

    def _verify_weights(self) -> Trouble | None:
        run, net = self._run, self._training.net
        for path, sha256 in self._launch.weights.items():
            try:
                was_whole = is_whole(run.path(path), sha256)
                ensure_weights(run, path, net)
                check_hosts_read(run, path, sha256, net, is_launched=True)
            except LaunchFailed as failure:
                return Trouble(failure.what, failure.host, is_spoilt=True)
            except CaffeRecipesError as error:
                return Trouble(str(error), is_spoilt=True)
            if not was_whole:
                return Trouble(f"{path} was damaged while the ranks read it", is_spoilt=True)
        return None

    def finish(self) -> None:
        """Keep what was written just before the launch ended, if rank 0's host still answers."""
        self._tail.read(to_end=True)
        self._warn()
        self._reserve_log()
        # The launch may have ended before the first poll.
        damaged = self._find_damaged(waits=self.trouble is None)
        self.trouble = self.trouble or damaged
        if (
            damaged is None
            and self._pulses.is_responding(self.lead().name)
            and find_failure(self._tail, self._training) is not None
        ):
            self._keeper.keep_new()

    def _show_progress(self) -> None:
        run, summary = self._run, self._tail.summary
        progress = measure_step(summary, self._training.phase, run.plan.trainings, self._whole)
        run.reporter.show_progress(progress)

    def _warn(self) -> None:
        """Warn once if the net has learned nothing for an epoch, or if the log's losses cannot be read."""
        setting, training, summary = self._run.setting, self._training, self._tail.summary
        seen = len(summary.losses), len(summary.snapshots)
        if self._is_warned or seen == self._seen:
            return
        self._seen = seen
        epoch_iter = setting.recipe.train_images / training.images_per_iter
        found = find_guessing(summary, setting.recipe.classes, epoch_iter) or find_unread(
            summary, training.display_iter, self._launch.resumed or 0
        )
        if found is not None:
            self._is_warned = True
            self._run.notify(f"warning: {found}", training.phase)

    def _request_snapshot(self) -> bool:
        """Ask rank 0 for a snapshot; return whether to wait for it."""
        run, self._is_snapshot_requested, self._keeper.is_wanted = self._run, True, True
        argument = run.setting.trainer.snapshot_argument(self._launch.arguments)
        if argument is None:
            run.notify(f"{run.setting.trainer.words.title} cannot write a checkpoint on request")
            return False
        try:
            answer = request_snapshot(self.lead(), self._launch.id, argument)
        except CaffeRecipesError as error:
            run.notify(f"cannot request a snapshot: {error}")
            return False
        if answer != "asked":
            title = run.setting.trainer.words.title
            run.notify(f"no snapshot: {title} has not started yet, or has ended; finished phases are kept")
            return False
        self._keeper.skip()
        self._end_at = time.monotonic() + run.setting.stop_grace_s
        run.notify(f"asked {run.setting.trainer.words.title} for a snapshot; interrupt again to stop at once")
        return True

    def _check_hosts(self) -> Trouble | None:
        if time.monotonic() < self._check_at:
            return None
        self._check_at = time.monotonic() + _CHECK_S
        self._reserve_log()
        before = self._step_wait.message
        blocked = self._step_wait.look(self._tail)
        if blocked is not None:
            return blocked
        if self._step_wait.message != before:
            self._run.notify(self._step_wait.message, self._training.phase)
        ending = self._end_at is not None or is_ending(self._tail, self._training)
        trouble, suspect = self._watchdog.look(self._tail, is_ending=ending), self._watchdog.suspect
        if suspect is not None and suspect.host not in self._suspects:
            self._suspects.add(suspect.host)
            self._run.notify(f"{suspect.host} may be slowing the others down: {suspect.reason}")
        return trouble

    def _reserve_log(self) -> None:
        """Reserve space for the log, and report once if its disk is full."""
        log = self._run.path(self._launch.log)
        is_full = reserve(log, AHEAD_BYTES)
        if is_full and not self.was_full:
            self._run.notify(f"{log.parent}: its disk is full; free space on it")
        self.was_full = self.was_full or is_full


def _is_to_stop(tail: LogTail, training: Training) -> bool:
    return training.is_stopped and has_passed(tail.summary, training.snapshot, training.last_iter)
