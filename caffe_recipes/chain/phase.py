"""One phase of a run: launched, or taken over from a killed run; followed, judged, and kept."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace

from caffe_recipes.chain.checkpoints import (
    Checkpoint,
    choose_interval,
    drop_checkpoints,
    place_checkpoint,
    render_checkpoint_solver,
    verify_checkpoint,
)
from caffe_recipes.chain.folder import write_hostfile
from caffe_recipes.chain.follow import end_everywhere, follow
from caffe_recipes.chain.journal import Launch, RunState
from caffe_recipes.chain.judge import judge
from caffe_recipes.chain.plan import SOLVER, Training
from caffe_recipes.chain.policy import LaunchFailed, SnapshotNotKept, SnapshotOutOfReach
from caffe_recipes.chain.run import Run
from caffe_recipes.chain.signals import Interrupted
from caffe_recipes.chain.slurm_job import asks_slurm, started_before, wait_for_slurm
from caffe_recipes.chain.snapshots import check_places
from caffe_recipes.chain.trainer import Trainer, launch_trainer
from caffe_recipes.chain.units import describe_duration
from caffe_recipes.chain.watch import LogTail, find_failure
from caffe_recipes.cluster.placing import look_at
from caffe_recipes.cluster.ranks import LAUNCH_VARIABLE
from caffe_recipes.errors import RunFailed, WeightsError
from caffe_recipes.files import write_whole
from caffe_recipes.generate.nets import build_net


def train(run: Run, training: Training) -> None:
    """Launch a phase, or go on with what a killed run has left, to its verified snapshot.

    Raises LaunchFailed, and Interrupted, with the trainer stopped.
    """
    state = run.journal.state()
    left = _find_left(run, training, state)
    if left is not None and _resume(run, training, left):
        return
    checkpoint = _find_checkpoint(run, training, state)
    if checkpoint is not None:
        place_checkpoint(run.setting.hosts, run.setting.root, checkpoint)
    check_places(run.setting.hosts[0], _checkpoint_paths(run, training), run.setting.root)
    if state.job and asks_slurm(run.setting.profile.launcher.program, run.setting.environment):
        wait_for_slurm(state.job, say=run.reporter.say)
    launch = _plan_launch(run, training, state, checkpoint)
    run.reporter.say(f"{training.phase}: {_describe_start(training, checkpoint)}")
    names = (host.name for host in run.setting.hosts)
    if launch.attempt > 1:  # a host that was out of reach when the last one ended may hold ranks of it
        end_everywhere(_with_hosts(run, tuple(dict.fromkeys((*names, *state.hosts)))))
    write_hostfile(run.path(run.folder), launch.hosts)
    inherited = run.lock.take_trainer()
    # The journal comes first: whoever finds the launch there finds the trainer by its log.
    run.journal.append("launched", **{key: value for key, value in asdict(launch).items() if key != "time_s"})
    argv = run.setting.training_argv(launch.arguments, f"{run.folder}/hostfile")
    environment = {**run.setting.environment, LAUNCH_VARIABLE: launch.id}
    log = run.path(launch.log)
    _carry(run, training, launch, lambda: launch_trainer(argv, run.setting.root, environment, log, inherited))


def has_trained(run: Run, launch: Launch | None) -> bool:
    """Tell whether a trainer's log says that it has done all it was to do."""
    training = {step.phase: step for step in run.plan.trainings}.get(launch.phase if launch else "")
    if launch is None or training is None:
        return False
    tail = LogTail(run.path(launch.log))
    tail.read(to_end=True)
    return find_failure(tail, training) is None


def note_stop(run: Run, stop: Interrupted) -> None:
    """Journal that a run was told to stop, with no trainer of it left."""
    run.check_folder()
    launch = run.journal.state().launch
    if launch:
        Trainer(run.path(launch.log)).stop()
    run.journal.append("interrupted", signal=str(stop), trained=has_trained(run, launch))


def _plan_launch(run: Run, training: Training, state: RunState, checkpoint: Checkpoint | None) -> Launch:
    attempt = state.attempts.get(training.phase, 0) + 1
    return Launch(
        phase=training.phase,
        attempt=attempt,
        log=f"{run.folder}/logs/{training.phase}-{attempt}.log",
        host=socket.gethostname(),
        stamp=_stamp(run, training.snapshot),
        time_s=time.time(),
        needed={snapshot: _stamp(run, snapshot) for snapshot, _ in training.needed},
        id=f"{run.id}/{training.phase}-{attempt}",
        arguments=_arguments(run, training, checkpoint),
        hosts=tuple(host.name for host in run.setting.hosts),
        job=state.job,
        restarts=state.restarts,
    )


def _arguments(run: Run, training: Training, checkpoint: Checkpoint | None) -> tuple[str, ...]:
    """Return the trainer's arguments: those of the plan, but for a checkpoint to start from or to write."""
    arguments = training.arguments
    every = run.setting.policy.checkpoint_every
    if every is not None:
        every = choose_interval(every, training.snapshots_at)
        solver = f"{run.folder}/checkpoints/solver_{training.phase}.prototxt"
        text = render_checkpoint_solver(run.plan.prototxts[training.solver], every)
        run.path(solver).parent.mkdir(exist_ok=True)
        write_whole({run.path(solver): text.encode()})
        arguments = tuple(f"{SOLVER}{solver}" if word.startswith(SOLVER) else word for word in arguments)
    if checkpoint is not None:
        arguments = (
            *(word for word in arguments if not word.startswith("--weights=")),
            f"--snapshot={checkpoint.state_path}",
        )
    return arguments


def _checkpoint_paths(run: Run, training: Training) -> Iterator[str]:
    """Yield where Caffe will write on its way: through a link, if one lay there."""
    every = run.setting.policy.checkpoint_every
    if every is None:
        return
    step = choose_interval(every, training.snapshots_at)
    prefix = training.snapshot.rpartition("_iter_")[0]
    for iteration in range(step, training.last_iter, step):
        for suffix in (".caffemodel", ".solverstate"):
            yield run.setting.path(f"{prefix}_iter_{iteration}{suffix}")


def _find_checkpoint(run: Run, training: Training, state: RunState) -> Checkpoint | None:
    """Return the newest checkpoint that is still whole; say why of those that are not."""
    beyond = min(training.snapshots_at, default=training.last_iter)  # what is to be left there is to be made
    for checkpoint in reversed(state.checkpoints.get(training.phase, ())):
        if checkpoint.iteration >= beyond:
            continue
        try:
            verify_checkpoint(run.setting.root, checkpoint, build_net(run.setting.recipe, training.net))
        except WeightsError as error:
            run.reporter.say(f"{training.phase}: a checkpoint is left out: {error}")
        else:
            return checkpoint
    return None


def _describe_start(training: Training, checkpoint: Checkpoint | None) -> str:
    if checkpoint is not None:
        left = training.last_iter - checkpoint.iteration
        return f"{left:,} iterations from the checkpoint at {checkpoint.iteration:,}"
    start = f"from {training.weights}" if training.weights else "from the nets' fillers"
    return f"{training.last_iter:,} iterations {start}"


def _find_left(run: Run, training: Training, state: RunState) -> Launch | None:
    """Return the launch that a killed run left, if anything of it can be seen from here.

    With a Slurm job its nodes have gone. Of those that are ours again only rank 0's can hold a snapshot.
    """
    left = state.launch
    if left is None or not started_before(left, state) or Trainer(run.path(left.log)).is_running():
        return left
    ours = {host.name for host in run.setting.hosts}
    if left.hosts[:1] and left.hosts[0] in ours:
        return replace(left, hosts=tuple(name for name in left.hosts if name in ours))
    reason = f"Slurm has ended it with job {left.job}"
    run.journal.append("failed", phase=training.phase, reason=reason, host=None)
    run.reporter.say(f"{training.phase}: {reason}")
    return None


def _resume(run: Run, training: Training, left: Launch) -> bool:
    """Take over what a killed run left: wait for its trainer, judge what it leaves; tell if it finished."""
    run = _with_hosts(run, left.hosts)
    trainer = Trainer(run.path(left.log))
    lives = trainer.is_running()
    doing = "is still training; going on with it" if lives else "has ended since; looking at what it left"
    run.reporter.say(f"{training.phase}: the trainer of a killed run {doing}")
    try:
        _carry(run, training, left, lambda: trainer)
    except LaunchFailed as failure:
        out_of_reach = isinstance(failure, SnapshotOutOfReach) and run.setting.policy.on_failure != "replace"
        if lives or out_of_reach:
            raise
        run.reporter.say(f"{training.phase}: {failure.what}; starting it over")
        return False
    return True


def _with_hosts(run: Run, names: tuple[str, ...]) -> Run:
    """Return the run on the hosts that a launch was started on: some of them may be spares."""
    known = {host.name: host for host in run.setting.hosts}
    if not names or names == tuple(known):
        return run
    hosts = tuple(known.get(name) or run.setting.connect(name) for name in names)
    return replace(run, setting=replace(run.setting, hosts=hosts))


def _carry(run: Run, training: Training, launch: Launch, start: Callable[[], Trainer]) -> None:
    """Follow a trainer to its end and judge it; journal what became of it."""
    try:
        finish = judge(run, training, launch, follow(run, training, launch, start))
    except SnapshotNotKept as failure:  # the launch stays, as its snapshot is still to be fetched
        run.check_folder()
        with suppress(RunFailed):  # the same disk
            run.journal.append("failed", reason=f"{training.phase}: {failure}")
        raise
    except RunFailed as failure:
        run.check_folder()
        host = failure.host if isinstance(failure, LaunchFailed) else None
        where, what, hint = f"phase {training.phase}", f"failed: {failure.what}", f"log: {launch.log}"
        if isinstance(failure, SnapshotOutOfReach):  # the launch stays, for whoever goes on to judge it
            run.journal.append("failed", reason=f"{training.phase}: {failure.what}", host=host)
            hint = f"{hint}; run again to fetch it, or with --on-failure replace to train it again"
            raise SnapshotOutOfReach(what, hint, host, where) from None
        run.journal.append("failed", phase=training.phase, reason=failure.what, host=host)
        raise LaunchFailed(what, hint, host, where) from None
    old = run.journal.state().checkpoints.get(training.phase, ())
    run.journal.append("finished", **asdict(finish))
    speed = f", {finish.images_per_s:,.0f} images/s" if finish.images_per_s else ""
    took = describe_duration(finish.seconds)
    run.reporter.say(f"{training.phase}: finished in {took}{speed}; {finish.snapshot}")
    drop_checkpoints(run.setting.hosts, run.setting.root, None, old, training.left)
    run.interrupts.raise_asked()


def _stamp(run: Run, snapshot: str) -> str | None:
    """Return what lies where a snapshot is to be; raises ClusterError for what others could exchange."""
    return look_at(run.setting.hosts[0], run.setting.path(snapshot), run.setting.root)
