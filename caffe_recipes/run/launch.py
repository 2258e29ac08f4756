"""Follow a launch to its end: its log, its hosts, its snapshots, and what the user asks meanwhile.

The launcher's log is the truth. The files of each rank's lines beside it can be made from it again, and no
run fails for want of them.
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

from caffe_recipes.caffe.logs import LogFile, split_rank
from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.health import Pulses
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.ranks import ask_snapshot, end_ranks
from caffe_recipes.errors import CaffeRecipesError
from caffe_recipes.files import release, reserve
from caffe_recipes.run.context import LaunchFailed, Run
from caffe_recipes.run.events import Checkpointed, Ending, Launch, Stopping
from caffe_recipes.run.plan import plan_steps
from caffe_recipes.run.prepare import check_read, secure_weights
from caffe_recipes.run.process import AHEAD_BYTES, POLL_S, TrainerProcess
from caffe_recipes.run.snapshots import drop_checkpoints, is_whole
from caffe_recipes.run.steps import Training
from caffe_recipes.run.trainer_log import (
    SATURATED_LOSS,
    LogTail,
    Trouble,
    Watchdog,
    find_divergence,
    find_failure,
    find_guessing,
    has_passed,
    last_value,
    losses_until,
    measure,
)

# Of what no rank says: the launcher's own words, and lines that came without a label.
LAUNCHER = "launcher.log"
_MOST_RANKS = 10_000
# Several launches may be followed at once, and a login node's limit can be 256.
_MOST_OPEN = 16
# So much is sorted at a time, so that whoever watches a launch is not kept from it for long.
_MOST_BYTES = 8 << 20


class RankLogs:
    """Splits a launcher's log into `folder`, a file per rank; leaving its `with` block closes them.

    Whoever reads the log from its beginning again makes a new one of these, and each file begins anew.
    `complain` is called once, and then no more is written, if a disk does not take it.
    """

    def __init__(
        self, folder: Path, ranks: int = _MOST_RANKS, complain: Callable[[str], None] = lambda text: None
    ) -> None:
        """Write nothing yet; a label beyond `ranks` is no rank's, but a program's own."""
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

    def take(self, log: LogFile, *, to_end: bool = False) -> None:
        """Feed the whole lines that have come, the first of many; with `to_end` all, and one cut short."""
        for lines in log.read(None if to_end else _MOST_BYTES, to_end=to_end):
            self.feed(lines)

    def feed(self, lines: Iterable[str]) -> None:
        """Take the lines that have come; they are in their files when this returns."""
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
            what = f"no more is written, {error.strerror}; the launcher's log has it all"
            self._complain(f"{self.folder}: {what}")

    def close(self) -> None:
        """Close what is open."""
        while self._open:
            self._open.popitem()[1].close()

    def _sort(self, line: str) -> tuple[str, str]:
        """Return the file that a line belongs into, and the line as it stands there."""
        rank, text = split_rank(line)
        if rank is None or rank >= self._ranks:
            return LAUNCHER, line
        return f"{rank:0{self._digits}}.log", text

    def _file(self, name: str) -> FileIO:
        """Return an open file, the one longest unused being closed for it."""
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


class Keeper:
    """Keeps the checkpoints of one launch, those that are worth going on from; `is_wanted` by policy or wish.

    `lead` gives the host of rank 0 when there is something to fetch.
    """

    def __init__(self, run: Run, training: Training, tail: LogTail, lead: Callable[[], Host]) -> None:
        """Begin with the log's first snapshot."""
        policy, trainer = run.setting.policy, run.setting.trainer
        self.is_wanted = policy.checkpoint_every is not None or trainer.always_checkpoints
        self._run, self._training, self._tail, self._lead = run, training, tail, lead
        self._seen = 0
        # Of a launch that is taken over, these are kept already.
        self._kept = set(run.journal.state().kept)

    def skip(self) -> None:
        """Leave alone what the log holds until now."""
        self._seen = len(self._tail.summary.solverstates)

    def take(self) -> bool:
        """Keep what has been snapshotted on the way, if that is wanted; tell whether anything was there."""
        if not self.is_wanted:
            return False
        summary, trainer, taken = self._tail.summary, self._run.setting.trainer, False
        while self._seen < len(summary.solverstates):
            path = summary.solverstates[self._seen]
            iteration = trainer.checkpoint_iter(path)
            if iteration is not None and iteration < self._training.last_iter:
                if not has_passed(summary, trainer.model_beside(path), iteration):
                    break
                if str(self._run.path(path)) not in self._kept and self._is_sound():
                    self._keep(path)
                taken = True
            self._seen += 1
        return taken

    def _is_sound(self) -> bool:
        """Tell whether to go on from here later: all weights were taken, and the last loss is not lost."""
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
            kept = setting.trainer.fetch_checkpoint(self._lead(), setting.root, training, path, folder)
            run.emit(Checkpointed(kept))
        except CaffeRecipesError as error:  # the training goes on, and the checkpoint before still serves
            run.notify(f"no checkpoint: {error}", training.phase)
            return
        drop_checkpoints(run.setting.hosts, run.setting.root, kept, before[:-1], training.left)


# Hydra ends all ranks where a signal ended one, but waits for the others where one has merely exited.
_DYING_S = 5.0
# Hosts are looked at so often; the log at every poll.
_LOOK_S = 1.0


@dataclass(frozen=True)
class Followed:
    """What a launch left: its log, the host of its rank 0, and what was wrong with it or its hosts.

    `unheard` are hosts that did not answer when the ranks of a failed launch were ended. Where the disk of
    its log `was_full`, a launcher may have ended for that. It was followed for so many `seconds`.
    """

    tail: LogTail
    lead: Host
    trouble: Trouble | None = None
    unheard: tuple[str, ...] = ()
    was_full: bool = False
    seconds: float = 0.0


def follow(run: Run, training: Training, launch: Launch, start: Callable[[], TrainerProcess]) -> Followed:
    """Follow a launch until it ends, is lost, or has done what it is to be stopped after.

    Whatever goes wrong here, no rank is left behind on any host that can be reached. Raises Interrupted if
    the user has asked to stop, with the snapshot that was then asked for kept as a checkpoint.
    """
    folder = run.path(launch.log).with_suffix(".ranks")
    ranks = RankLogs(folder, run.setting.recipe.cluster.ranks, run.notify)
    tail, log = run.read_log(launch.log), LogFile(run.path(launch.log))
    with ExitStack() as stack:
        stack.callback(ranks.close)
        stack.callback(ranks.take, log, to_end=True)
        trouble: Trouble | None = None
        unheard: list[str] = []
        trainer = TrainerProcess(run.path(launch.log))
        stack.callback(lambda: unheard.extend(_end(run, training, trainer, tail, trouble)))
        stack.enter_context(run.interrupts.noted())
        tail.read()
        is_read = tail.has_begun  # a trainer that is taken over may have read its weights long ago
        begun = time.monotonic()
        with run.interrupts.held():
            trainer = start()
        # A journal of an earlier version names no launch: its ranks are heard of nowhere.
        pulses = stack.enter_context(Pulses(run.setting.hosts, launch.id or run.id))
        attendant = _Attendant(run, training, launch, tail, trainer, pulses, is_read=is_read)
        while trainer.is_running() and not attendant.attend():
            ranks.take(log)
            run.interrupts.raise_urgent()
            run.check_folder()
            time.sleep(POLL_S)
        run.check_folder()
        attendant.take_last()
        lead, trouble = attendant.lead(), attendant.trouble
        if trouble is not None:
            run.emit(Ending(training.phase, trouble.what, trouble.host))
        seconds = time.monotonic() - begun
    tail.read(to_end=True)
    if find_failure(tail, training) is not None:
        run.interrupts.raise_asked()
    return Followed(tail, lead, trouble, tuple(unheard), attendant.was_full, seconds)


def end_everywhere(run: Run, lost: str | None = None) -> list[str]:
    """End every rank of the run on every host but one that is lost; say, and return, where that failed."""
    hosts = [host for host in run.setting.hosts if host.name != lost]
    here = () if any(host.is_local for host in hosts) else (LocalHost(),)  # hydra's logins are left here
    if lost:
        run.notify(f"{lost}: its ranks, if it lives, end with their connection or with the next launch")
    failed = end_ranks((*hosts, *here), run.id, launcher=True)
    for host, reason in failed.items():
        run.notify(f"{host}: its ranks could not be ended: {reason}")
    return list(failed)


def _end(
    run: Run, training: Training, trainer: TrainerProcess, tail: LogTail, trouble: Trouble | None
) -> list[str]:
    try:
        trainer.stop()
    finally:
        release(tail.path)
        tail.read(to_end=True)
        unheard: list[str] = []
        if trouble is not None or find_failure(tail, training) is not None:
            unheard = end_everywhere(run, trouble.host if trouble and trouble.is_lost else None)
        run.reporter.end_progress()
    return unheard


class _Attendant:
    """Acts on what a launch's log and hosts tell; `attend` is called again and again while it runs."""

    def __init__(
        self,
        run: Run,
        training: Training,
        launch: Launch,
        tail: LogTail,
        trainer: TrainerProcess,
        pulses: Pulses,
        *,
        is_read: bool,
    ) -> None:
        self.trouble: Trouble | None = None
        self._run, self._training, self._launch = run, training, launch
        self._tail, self._trainer, self._pulses = tail, trainer, pulses
        self._watchdog = Watchdog(pulses, run.setting.policy.stall_s)
        self._look_at = 0.0
        self._end_at: float | None = None
        self._keeper = Keeper(run, training, tail, self.lead)
        self._ignored = 0
        self._is_asked = self._is_warned = False
        self._is_read = is_read
        self._damaged: Future[Trouble | None] | None = None
        self.was_full = False
        self._suspects: set[str] = set()

    def lead(self) -> Host:
        """Return the host of rank 0: the hostfile's first, unless it has been heard of on another."""
        heard = self._pulses.latest()
        leads = {name for name, pulse in heard.items() for rank in pulse.ranks if rank.rank == 0}
        hosts = self._run.setting.hosts
        return next((host for host in hosts if host.name in leads), hosts[0])

    def attend(self) -> bool:
        """Act on what is new; tell whether the launch is to be ended."""
        run, training, tail = self._run, self._training, self._tail
        known = len(tail.summary.losses), len(tail.summary.rates)
        tail.read()
        if (len(tail.summary.losses), len(tail.summary.rates)) != known:
            self._show()
            self._warn_of_guessing()
        if find_divergence(losses_until(tail.summary, training.last_iter)):
            return True
        self.trouble = self._find_ignored() or self._find_damaged()
        if self.trouble is not None:
            return True
        if run.interrupts.asked is not None and not self._is_asked and not self._ask():
            return True
        if self._keeper.take() and self._is_asked:  # whether it could be kept or not
            return True
        if self._end_at is None and (tail.summary.fatal or tail.no_step):
            self._end_at = time.monotonic() + _DYING_S
        elif self._end_at is None and _is_to_stop(tail, training):
            run.emit(Stopping(training.phase, training.last_iter))
            self._trainer.interrupt()
            self._end_at = time.monotonic() + run.setting.stop_grace_s
        self.trouble = self._look()
        return self.trouble is not None or (self._end_at is not None and time.monotonic() >= self._end_at)

    def _find_ignored(self) -> Trouble | None:
        summary, setting = self._tail.summary, self._run.setting
        known, self._ignored = self._ignored, len(summary.ignored)
        if self._ignored == known:
            return None
        reason = setting.trainer.find_omission(summary, self._training, setting.root)
        return Trouble(reason) if reason else None

    def _find_damaged(self, *, waits: bool = False) -> Trouble | None:
        """Look, once the ranks have read their weights, whether these are still what they were.

        A thread does: behind a link that is cut no host answers for a minute, and the others are looked after
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
            damaged.set_result(self._find_difference())
        except BaseException as error:  # whoever asks for it raises it
            damaged.set_exception(error)

    def _find_difference(self) -> Trouble | None:
        run, net = self._run, self._training.net
        for path, sha256 in self._launch.weights.items():
            try:
                was_whole = is_whole(run.path(path), sha256)
                secure_weights(run, path, net)
                check_read(run, path, sha256, net, is_launched=True)
            except LaunchFailed as failure:
                return Trouble(failure.what, failure.host, is_spoilt=True)
            except CaffeRecipesError as error:
                return Trouble(str(error), is_spoilt=True)
            if not was_whole:
                return Trouble(f"{path} was damaged while the ranks read it", is_spoilt=True)
        return None

    def take_last(self) -> None:
        """Keep what was snapshotted just before the launch ended, if rank 0's host can still be asked."""
        self._tail.read(to_end=True)
        self._reserve()
        # It may have ended before it was looked at.
        damaged = self._find_damaged(waits=self.trouble is None)
        self.trouble = self.trouble or damaged
        if (
            damaged is None
            and self._pulses.is_well(self.lead().name)
            and find_failure(self._tail, self._training) is not None
        ):
            self._keeper.take()

    def _show(self) -> None:
        steps = self._run.plan.trainings
        later = [step.phase for step in steps].index(self._training.phase) + 1
        self._run.reporter.show_progress(
            measure(
                self._tail.summary,
                self._training.phase,
                {step.phase: step.last_iter for step in plan_steps(self._run.setting.recipe)},
                self._training.images_per_iter,
                sum(step.last_iter for step in steps[later:]),
            )
        )

    def _warn_of_guessing(self) -> None:
        """Report once that the net has learned nothing for an epoch."""
        setting, training = self._run.setting, self._training
        if self._is_warned:
            return
        epoch_iter = setting.recipe.train_images / training.images_per_iter
        found = find_guessing(self._tail.summary, setting.trainer.classes(), epoch_iter)
        if found is not None:
            self._is_warned = True
            self._run.notify(f"warning: {found}", training.phase)

    def _ask(self) -> bool:
        """Ask rank 0 for a snapshot; tell whether one is to be waited for."""
        run, self._is_asked, self._keeper.is_wanted = self._run, True, True
        word = run.setting.trainer.snapshot_argument(self._launch.arguments)
        if word is None:
            run.notify(f"{run.setting.trainer.title} writes no checkpoint when it is asked for one")
            return False
        try:
            answer = ask_snapshot(self.lead(), self._launch.id or run.id, word)
        except CaffeRecipesError as error:
            run.notify(f"no snapshot can be asked for: {error}")
            return False
        if answer != "asked":
            title = run.setting.trainer.title
            run.notify(f"no snapshot can be asked for: {title} is not there yet, or no more")
            return False
        self._keeper.skip()
        self._end_at = time.monotonic() + run.setting.stop_grace_s
        run.notify(f"asked {run.setting.trainer.title} for a snapshot; once more stops at once")
        return True

    def _look(self) -> Trouble | None:
        if time.monotonic() < self._look_at:
            return None
        self._look_at = time.monotonic() + _LOOK_S
        self._reserve()
        trouble, suspect = self._watchdog.look(self._tail), self._watchdog.suspect
        if suspect is not None and suspect.host not in self._suspects:
            self._suspects.add(suspect.host)
            self._run.notify(f"{suspect.host} may hold the others up: {suspect.reason}")
        return trouble

    def _reserve(self) -> None:
        """Keep room for the log on our own disk, and note where that has none."""
        log = self._run.path(self._launch.log)
        is_full = reserve(log, AHEAD_BYTES)
        if is_full and not self.was_full:
            self._run.notify(f"{log.parent}: its disk is full; make room")
        self.was_full = self.was_full or is_full


def _is_to_stop(tail: LogTail, training: Training) -> bool:
    return training.is_stopped and has_passed(tail.summary, training.snapshot, training.last_iter)
