"""Train one phase of a run: launch it, or take over the launch of a killed run; follow, judge and fetch it.

A launch that has ended is judged by its log and its snapshots, never by its exit code.

Also: evaluate a phase's model, with one process on this machine.
"""

from __future__ import annotations

import math
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from caffe_recipes.caffe.logs import LogSummary
from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hostfile import fold_hosts
from caffe_recipes.cluster.hosts import AT_ONCE, file_bytes, first_error, try_each
from caffe_recipes.cluster.ranks import LAUNCH_VARIABLE, names_host
from caffe_recipes.cluster.remote import own_file_stamp
from caffe_recipes.cluster.slurm.steps import end_given_up
from caffe_recipes.cluster.slurm.waiting import wait_for_slurm
from caffe_recipes.errors import DiskFailed, RunFailed, WeightsError
from caffe_recipes.files.atomic_writes import write_whole
from caffe_recipes.files.disk_space import release
from caffe_recipes.run.context import LaunchFailed, Run, SnapshotNotKept, SnapshotOutOfReach
from caffe_recipes.run.events import Evaluated, Evaluating, Failed, Finish, Launch, RunState, Stopped
from caffe_recipes.run.failures.diagnosis import Diagnosis
from caffe_recipes.run.failures.signatures import DIVERGED
from caffe_recipes.run.folders import write_hostfile
from caffe_recipes.run.launch import Followed, end_everywhere, follow
from caffe_recipes.run.prepare import check_hosts_read, ensure_files, ensure_weights
from caffe_recipes.run.process import TrainerProcess, make_room
from caffe_recipes.run.signals import Interrupted
from caffe_recipes.run.slurm_job import started_before
from caffe_recipes.run.snapshots import (
    BadSnapshot,
    HostAway,
    check_places,
    choose_interval,
    drop_checkpoints,
    fetch_snapshot,
    is_whole,
    place_checkpoint,
)
from caffe_recipes.run.staging import ask_about_data
from caffe_recipes.run.trainer import Checkpoint, Testing, Training
from caffe_recipes.run.trainer_log import (
    LogPace,
    LogTail,
    describe_last_words,
    find_divergence,
    find_failure,
    images_per_s,
    last_value,
    losses_until,
)

_ANSWER_S = 15.0
# A host that refuses connections for a moment, as while sshd restarts, must not cost a phase.
_AGAIN_S = 60.0
_PAUSE_S = 2.0


def check_trained(run: Run, training: Training, launch: Launch, followed: Followed) -> None:
    """Raise LaunchFailed unless the log shows a complete training that loaded all of its weights."""
    tail, trouble = followed.tail, followed.trouble
    failure = find_failure(tail, training, followed.killed_by)
    if failure and tail.ends.cause and trouble and trouble.is_spoilt:  # found while a rank was killed
        killed = _name_suspects(failure, launch.hosts) if tail.ends.is_unsure else failure
        raise LaunchFailed(f"{killed}; and {trouble}", host=trouble.host)
    reason = trouble.what if trouble and trouble.is_spoilt else failure
    if reason:
        if followed.was_full and trouble is None:
            folder = run.path(launch.log).parent
            raise LaunchFailed(f"the disk of {folder} was full; {reason}", "free space on it")
        # A dead host is the cause, whatever the launcher reports.
        host = trouble.host if trouble else next(iter(followed.unreachable), None)
        if host is None and not tail.has_begun:  # a launcher that gave up by itself
            for name, line in ((name, line) for line in tail.ends.not_started for name in launch.hosts):
                if names_host(line, name):
                    raise LaunchFailed(f"{name}: no rank has started there: {tail.shorten(line)}", host=name)
        if host is None and trouble is None and tail.ends.is_unsure:
            reason = _name_suspects(reason, launch.hosts)
        raise LaunchFailed(_blame(trouble.what if trouble else reason, host, is_dead=not trouble), host=host)
    omitted = run.setting.trainer.find_omission(tail.summary, training, run.setting.root)
    if omitted:
        raise LaunchFailed(omitted, "give the layers of the net the names that they have in the weights")


def explain_failure(followed: Followed, training: Training) -> Diagnosis | None:
    """Return what the log of a failed launch says about the cause; None if that is not known.

    A host that no longer answers is a cause of its own, and what a launch prints while it is ended is none.
    """
    tail, trouble = followed.tail, followed.trouble
    is_other = followed.unreachable or (trouble is not None and (trouble.is_lost or trouble.is_spoilt))
    if is_other or find_failure(tail, training, followed.killed_by) is None:
        return None
    if not tail.summary.fatal and find_divergence(losses_until(tail.summary, training.last_iter)):
        return DIVERGED
    return tail.failures.best


def judge(run: Run, training: Training, launch: Launch, followed: Followed, spent_s: float = 0.0) -> Finish:
    """Fetch and verify the snapshots of a launch that has ended.

    `spent_s` is the time that the phase took before the launch was followed, earlier launches included.

    Raises LaunchFailed if the launch did not train to the end, or left a snapshot that is missing, old,
    damaged, or does not fit the net; SnapshotOutOfReach if it cannot be fetched now; and SnapshotNotKept if
    the local disk cannot store it.
    """
    check_trained(run, training, launch, followed)
    tail, lead = followed.tail, followed.lead
    run.notify(f"fetching and verifying {training.snapshot}", training.phase)

    def fetch(path: str, stamp: str | None, to: str) -> str:
        return _fetch(run, lead, training.net, run.setting.path(path), stamp, to)

    try:
        sha256 = fetch(training.snapshot, launch.stamp, training.fetched)
        needed = {to: fetch(path, launch.needed.get(path), to) for path, to in training.needed}
        _read_back(run, training)
        return Finish(
            phase=training.phase,
            snapshot=training.fetched,
            sha256=sha256,
            seconds=spent_s + followed.seconds,
            images_per_s=images_per_s(_summaries(run, launch, tail), training.images_per_iter),
            loss=last_value(losses_until(tail.summary, training.last_iter).values()),
            needed=needed,
        )
    except SnapshotNotKept:
        raise
    except RunFailed as error:
        kind = LaunchFailed if isinstance(error, BadSnapshot) else SnapshotOutOfReach
        raise kind(error.without_hint, error.hint, next(iter(find_dead([lead])), None)) from None


def _read_back(run: Run, training: Training) -> None:
    """Let the trainer itself load the fetched files, if it asks for that. Raises BadSnapshot if it cannot."""
    reading = run.setting.trainer.read_back(training)
    if reading is None:
        return
    log = _next_log(run, "read-back")
    tail, stalled = _run_test(run, reading, log)
    if tail.summary.fatal or not tail.summary.done:
        words = describe_last_words(tail, ", saying: ")
        reason = tail.summary.fatal or stalled or f"could not be read back{words}"
        raise BadSnapshot(training.fetched, reason, f"log: {log}")


def _summaries(run: Run, launch: Launch, tail: LogTail) -> Iterator[LogSummary]:
    """Yield the log summaries of all launches of a phase; `tail` is the log of the last one."""
    for attempt in range(1, launch.attempt):
        earlier = run.read_log(_log_of(run, launch.phase, attempt))
        with suppress(OSError):
            earlier.read(to_end=True)
        yield earlier.summary
    yield tail.summary


def _fetch(run: Run, lead: Host, net: str, path: str, stamp: str | None, to: str) -> str:
    """Fetch a snapshot; retry for a while if its host does not answer, and once after any other error."""
    until, tries = time.monotonic() + _AGAIN_S, 0

    def check(part: Path) -> None:
        run.setting.trainer.models.check_model(run.plan.files, net, part)

    while True:
        try:
            return fetch_snapshot(lead, run.setting.root, path, stamp, run.path(to), check)
        except DiskFailed as error:
            if time.monotonic() > until or not _lacks_room(lead, path, run.path(to)):
                raise SnapshotNotKept(error.where, error.what, f"{error.hint}, and run again") from None
            run.notify(f"{error.without_hint}; waiting for free space")
            time.sleep(_PAUSE_S)
        except RunFailed as error:
            tries += 1
            is_away = isinstance(error, HostAway)
            if time.monotonic() > until or (tries > 1 and not is_away):
                raise
            if is_away:
                run.notify(f"{error.without_hint}; fetching again")
                time.sleep(_PAUSE_S)


def _lacks_room(lead: Host, path: str, to: Path) -> bool:
    """Return whether the local disk has less free space than a snapshot needs."""
    size = file_bytes(lead, path)
    return size is not None and shutil.disk_usage(to.parent).free <= size


def find_dead(hosts: Sequence[Host]) -> tuple[str, ...]:
    """Return the names of the hosts that do not answer."""
    rounds = math.ceil(len(hosts) / AT_ONCE)  # logging in takes a while if all connections are gone

    def ask(host: Host) -> None:
        host.run(["true"], _ANSWER_S)

    failed = try_each(hosts, ask, _ANSWER_S * rounds)
    dead = [host for host in hosts if host.name in failed]
    for host in dead:  # wakes any thread that waits for it
        host.close()
    return tuple(host.name for host in dead)


def _blame(what: str, host: str | None, *, is_dead: bool) -> str:
    if host is None:
        return what
    return f"{host} no longer answers; {what}" if is_dead else f"{host}: {what}"


def _name_suspects(reason: str, hosts: Sequence[str]) -> str:
    """Return why a launch failed, with the hosts where that may have been.

    >>> _name_suspects("a rank was killed", ["node1"])
    'node1: a rank was killed'
    """
    if len(hosts) == 1:
        return f"{hosts[0]}: {reason}"
    return f"{reason}; on which of {fold_hosts(hosts)} is not known: the launcher ends the others at once"


def train(run: Run, training: Training) -> None:
    """Train a phase up to its verified snapshot: launch it, or take over the launch of a killed run.

    Raises LaunchFailed or Interrupted, after stopping the trainer.
    """
    state = run.journal.state()
    leftover = _find_leftover(run, training, state)
    if leftover is not None and _take_over(run, training, leftover):
        return
    ensure_files(run)
    checkpoint = _find_checkpoint(run, training, state)
    weights: dict[str, str] = {}
    if checkpoint is not None:
        place_checkpoint(run.setting.hosts, run.setting.root, checkpoint)
    elif training.weights is not None:
        weights = {training.weights: _ensure_everywhere(run, training.weights, training.net)}
    for name in run.setting.trainer.set_aside(run.setting.root, training, checkpoint):
        run.notify(f"moved {name} away, since the run does not resume from it", training.phase)
    check_places(run.setting.hosts[0], _checkpoint_paths(run, training), run.setting.root)
    launcher = run.setting.profile.rank_launcher
    by_slurm = bool(state.job) and launcher.asks_slurm(run.setting.environment)
    if by_slurm:
        wait_for_slurm(state.job, say=run.notify)
    launch = _plan_launch(run, training, state, checkpoint, weights)
    names = (host.name for host in run.setting.hosts)
    if launch.attempt > 1:  # a host that was unreachable when the last one ended may still run ranks
        end_everywhere(_with_hosts(run, tuple(dict.fromkeys((*names, *state.hosts)))))
        if by_slurm:
            end_given_up(state.job, f"{run.id}/{training.phase}", run.notify)
    write_hostfile(run.path(run.folder), launch.hosts)
    log = run.path(launch.log)
    make_room(log, run.notify)
    inherited = run.lock.acquire_trainer()
    # Journal the launch first: if this process dies now, the trainer is found by the log that it names.
    run.emit(launch)
    argv = run.setting.training_argv(launch.arguments, f"{run.folder}/hostfile", launch.id)
    environment = {**run.setting.environment, LAUNCH_VARIABLE: launch.id}
    if by_slurm:
        environment |= launcher.step_environment(launch.id, {**os.environ, **run.setting.environment})
    _follow_to_end(
        run, training, launch, lambda: run.setting.start(argv, run.setting.root, environment, log, inherited)
    )


def _log_of(run: Run, phase: str, attempt: int) -> str:
    return f"{run.folder}/logs/{phase}-{attempt}.log"


def has_trained(run: Run, launch: Launch | None) -> bool:
    """Return whether a launch's log shows that it has trained to the end."""
    training = {step.phase: step for step in run.plan.trainings}.get(launch.phase if launch else "")
    if launch is None or training is None:
        return False
    tail = run.read_log(launch.log)
    tail.read(to_end=True)
    return find_failure(tail, training) is None


def note_stop(run: Run, stop: Interrupted) -> None:
    """Stop the run's trainer, if any, and journal that the run was stopped."""
    run.check_folder()
    launch = run.journal.state().launch
    if launch:
        TrainerProcess(run.path(launch.log)).stop()
    trained, seconds = has_trained(run, launch), round(stop.launch_s, 3)
    run.emit(Stopped(str(stop), trained, seconds))
    stop.launch_s = 0.0


def _plan_launch(
    run: Run,
    training: Training,
    state: RunState,
    checkpoint: Checkpoint | None,
    weights: Mapping[str, str],
) -> Launch:
    attempt = state.attempts.get(training.phase, 0) + 1
    return Launch(
        phase=training.phase,
        attempt=attempt,
        log=_log_of(run, training.phase, attempt),
        host=socket.gethostname(),
        stamp=_stamp(run, training.snapshot),
        time_s=time.time(),
        needed={snapshot: _stamp(run, snapshot) for snapshot, _ in training.needed},
        id=f"{run.id}/{training.phase}-{attempt}",
        arguments=_arguments(run, training, checkpoint),
        weights=weights,
        starts_from=None if checkpoint else training.weights,
        resumed=checkpoint.iteration if checkpoint else None,
        hosts=tuple(host.name for host in run.setting.hosts),
        job=state.job,
        restarts=state.restarts,
    )


def _ensure_everywhere(run: Run, path: str, net: str) -> str:
    """Return the SHA-256 of weights. Raises LaunchFailed unless they are undamaged here and on every host."""
    sha256 = ensure_weights(run, path, net)
    try:
        check_hosts_read(run, path, sha256, net)
    except LaunchFailed as failure:
        run.emit(Failed(failure.what, host=failure.host))
        raise
    return sha256


def _arguments(run: Run, training: Training, checkpoint: Checkpoint | None) -> tuple[str, ...]:
    """Return the trainer's arguments, including the checkpoint to resume and the interval of new ones."""
    every, folder = run.setting.policy.checkpoint_every, f"{run.folder}/checkpoints"
    every = None if every is None else choose_interval(every, training.snapshots_at)
    arguments, files = run.setting.trainer.launch_arguments(
        training, checkpoint, every, run.plan.files, folder
    )
    _write(run, files)
    return _avoid_locks(run, arguments, files)


def _avoid_locks(run: Run, arguments: tuple[str, ...], files: Mapping[str, str]) -> tuple[str, ...]:
    """Write what a trainer needs to open no lock file of another user; return its arguments."""
    setting, placed = run.setting, {**run.plan.files, **files}
    avoided = setting.trainer.avoid_locks(arguments, placed, setting.root, f"{run.folder}/data")
    for path, target in avoided.links.items():
        run.path(path).parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # of an earlier launch; its folder is named after the target
            run.path(path).symlink_to(target)
    _write(run, avoided.files)
    return avoided.arguments


def _write(run: Run, files: Mapping[str, str]) -> None:
    """Write files that only one launch or evaluation reads."""
    texts = {run.path(path): text.encode() for path, text in files.items()}
    for path in texts:
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(texts)


def _checkpoint_paths(run: Run, training: Training) -> Iterator[str]:
    """Yield the paths where the trainer will write checkpoints; it would write through links there."""
    every = run.setting.policy.checkpoint_every
    if every is None:
        return
    step = choose_interval(every, training.snapshots_at)
    for iteration in range(step, training.last_iter, step):
        yield from map(run.setting.path, run.setting.trainer.models.written_at(training, iteration))


def _find_checkpoint(run: Run, training: Training, state: RunState) -> Checkpoint | None:
    """Return the newest undamaged checkpoint; report those that are damaged."""
    setting = run.setting
    beyond = min(training.snapshots_at, default=training.last_iter)  # the snapshot there must be written
    for checkpoint in reversed(state.checkpoints.get(training.phase, ())):
        if checkpoint.iteration >= beyond:
            continue
        try:
            setting.trainer.models.verify_checkpoint(setting.root, run.plan.files, training.net, checkpoint)
        except WeightsError as error:
            run.notify(f"skipping a checkpoint: {error}", training.phase)
        else:
            return checkpoint
    return None


def _find_leftover(run: Run, training: Training, state: RunState) -> Launch | None:
    """Return the launch that a killed run left behind, if anything of it can be reached from here.

    If its Slurm job has ended, its nodes are gone, unless the present job got them too. Then only rank 0's
    host matters, which may hold a snapshot.
    """
    leftover = state.launch
    if (
        leftover is None
        or not started_before(leftover, state)
        or TrainerProcess(run.path(leftover.log)).is_running()
    ):
        return leftover
    ours = {host.name for host in run.setting.hosts}
    if leftover.hosts[:1] and leftover.hosts[0] in ours:
        return replace(leftover, hosts=tuple(name for name in leftover.hosts if name in ours))
    reason, seconds = f"its Slurm job, {leftover.job}, has ended", _unfollowed_s(run, leftover)
    failed = Failed(reason, training.phase, seconds=seconds)
    run.emit(failed)
    run.reporter.say(str(failed.error(leftover.log)))
    return None


def _take_over(run: Run, training: Training, leftover: Launch) -> bool:
    """Take over a launch of a killed run: follow and judge it. Return whether the phase has finished."""
    run = _with_hosts(run, leftover.hosts)
    trainer = TrainerProcess(run.path(leftover.log))
    is_running = trainer.is_running()
    doing = (
        "is still training; continuing with it" if is_running else "has since ended; checking its snapshot"
    )
    run.notify(f"the trainer of a killed run {doing}", training.phase)
    try:
        _follow_to_end(run, training, leftover, lambda: trainer, _unfollowed_s(run, leftover))
    except LaunchFailed as failure:
        out_of_reach = isinstance(failure, SnapshotOutOfReach) and run.setting.policy.on_failure != "replace"
        if is_running or out_of_reach:
            raise
        run.reporter.say(str(failure))
        run.notify("starting the phase over", training.phase)
        return False
    return True


def _fields_of(known: Diagnosis | None) -> dict[str, str]:
    """Return the fields of `Failed` with what is known of the cause; a guess is nothing to change first."""
    if known is None:
        return {}
    cause = f"{known.describe()} (known from {known.source})"
    if known.repeats and not known.is_guess:
        return {"cause": cause, "change": known.remedy}
    return {"cause": f"{cause}; {known.remedy}"}


def _with_hosts(run: Run, names: tuple[str, ...]) -> Run:
    """Return the run with the hosts of a launch, some of which may be spares."""
    known = {host.name: host for host in run.setting.hosts}
    if not names or names == tuple(known):
        return run
    hosts = tuple(known.get(name) or run.setting.connect(name) for name in names)
    return replace(run, setting=replace(run.setting, hosts=hosts))


def _unfollowed_s(run: Run, leftover: Launch) -> float:
    """Return for how many seconds a launch ran unfollowed, by the wall clock and the time of its log."""
    try:
        return round(max(0.0, run.path(leftover.log).stat().st_mtime - leftover.time_s), 3)
    except OSError:
        return 0.0


def _follow_to_end(
    run: Run, training: Training, launch: Launch, start: Callable[[], TrainerProcess], launch_s: float = 0.0
) -> None:
    """Follow a trainer to its end, judge it, and journal the outcome.

    `launch_s` is for how many seconds it had run before. Durations do not depend on the wall clock.
    """
    begun = time.monotonic()
    spent_s = run.journal.state().spent.get(training.phase, 0.0)
    followed: Followed | None = None
    try:
        followed = follow(run, training, launch, start)
        finish = judge(run, training, launch, followed, spent_s + launch_s)
    except Interrupted as stop:
        stop.launch_s = launch_s + time.monotonic() - begun
        raise
    except SnapshotNotKept as failure:  # the launch stays open: its snapshot must still be fetched
        run.check_folder()
        with suppress(RunFailed):  # the journal is on the same disk
            run.emit(Failed(f"{training.phase}: {failure}"))
        raise
    except RunFailed as failure:
        run.check_folder()
        host = failure.host if isinstance(failure, LaunchFailed) else None
        seconds = round(launch_s + time.monotonic() - begun, 3)
        known = explain_failure(followed, training) if followed else None
        failed = Failed(failure.what, training.phase, host, seconds=seconds, **_fields_of(known))
        error = failed.error(launch.log)
        if isinstance(failure, SnapshotOutOfReach):  # the launch stays open, to be judged on resuming
            run.emit(Failed(f"{training.phase}: {failure.what}", host=host))
            hint = f"{error.hint}; run again to fetch it, or with --on-failure replace to train it again"
            raise SnapshotOutOfReach(error.what, hint, host, error.where) from None
        run.emit(failed)
        raise LaunchFailed(error.what, error.hint, host, error.where) from None
    old = run.journal.state().checkpoints.get(training.phase, ())
    run.emit(finish)
    drop_checkpoints(run.setting.hosts, run.setting.root, None, old, training.snapshot_paths)
    run.interrupts.raise_asked()


def _stamp(run: Run, snapshot: str) -> str | None:
    """Return the stamp of the file at a snapshot's path. Raises ClusterError if others could replace it."""
    return own_file_stamp(run.setting.hosts[0], run.setting.path(snapshot), run.setting.root)


# A retry is needed only if the disk damages the model again.
_TRIES = 3


def evaluate(run: Run, testing: Testing) -> None:
    """Evaluate a phase's model and journal the results. Raises RunFailed if it fails or its log stalls."""
    for _ in range(_TRIES):
        ensure_files(run)
        paths = (testing.weights, *testing.needed)
        digests = {path: ensure_weights(run, path, testing.net) for path in paths}
        _write(run, testing.files)
        _check_test_data(run)
        log = _next_log(run, "evaluation")
        run.emit(Evaluating(testing.weights))
        tail, stalled = _run_test(run, testing, log)
        if all(is_whole(run.path(path), sha256) for path, sha256 in digests.items()):
            break
        run.notify(f"{testing.weights} was damaged while it was evaluated; evaluating it again")
    else:
        what = "was damaged during each evaluation"
        raise RunFailed(testing.weights, what, "check the disk and run again")
    outputs = run.setting.trainer.outputs(tail.summary, testing)
    if tail.summary.fatal or not outputs:
        words = describe_last_words(tail, "; last output: ")
        reason = tail.summary.fatal or (f"{stalled}; ended the test" if stalled else f"no outputs{words}")
        run.emit(Failed(reason, log=log))
        raise RunFailed("evaluation", reason, f"log: {log}")
    run.emit(Evaluated(testing.phase, outputs, log))


def _check_test_data(run: Run) -> None:
    """Raise RunFailed if another user has put the test data there since the run was prepared."""
    error = first_error(ask_about_data(run.setting, "test", (), may_be_absent=False))  # only on this machine
    if error is not None:
        run.emit(Failed(str(error)))
        raise RunFailed(error.where, error.what, error.hint)


def _run_test(run: Run, testing: Testing, log: str) -> tuple[LogTail, str | None]:
    """Run a test process to its end, or end it if its log stalls; return the log, and how it stalled."""
    setting, tail, pace = run.setting, run.read_log(log), LogPace(run.setting.policy.stall_s)
    stalled: str | None = None
    arguments = _avoid_locks(run, testing.arguments, {})
    argv = setting.trainer_argv((*arguments, *setting.chosen.arguments))
    environment = {**setting.environment, **testing.environment}
    make_room(run.path(log), run.notify)
    trainer = TrainerProcess(run.path(log))
    try:
        with run.interrupts.held():
            trainer = setting.start(argv, setting.root, environment, run.path(log), ())
        while trainer.is_running() and stalled is None:
            trainer.wait()
            tail.read()
            stalled = pace.look(tail)
    finally:
        trainer.stop()
    release(run.path(log))
    tail.read(to_end=True)
    return tail, stalled


def _next_log(run: Run, what: str) -> str:
    names = (f"{run.folder}/logs/{what}-{number}.log" for number in range(1, 10**6))
    return next(name for name in names if not run.path(name).exists())
