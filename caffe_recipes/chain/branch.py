"""A branch that trains beside its run's main line: a run in the run.

It has a journal, logs and checkpoints of its own, in `branches/<phase>/` of the run's folder, and its ranks
go by a name of their own. When it is finished the run's own journal says so, too, and nobody who reads that
needs to know of branches.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, replace
from functools import partial

from caffe_recipes.chain.journal import name_branch
from caffe_recipes.chain.phase import note_stop, train
from caffe_recipes.chain.plan import Plan, Training
from caffe_recipes.chain.prepare import prepare
from caffe_recipes.chain.recovery import insist
from caffe_recipes.chain.run import Run
from caffe_recipes.chain.setting import Setting
from caffe_recipes.chain.signals import Interrupted
from caffe_recipes.chain.snapshots import verify_kept
from caffe_recipes.chain.units import describe_names
from caffe_recipes.errors import RunFailed


def train_branch(run: Run, training: Training, setting: Setting) -> None:
    """Train a branch of a run on the hosts of a setting, to its end, and tell the run's journal of it.

    Raises RunFailed, or Interrupted when told to stop before it is finished.
    """
    branch = _open_branch(run, training, setting)
    with closing(branch.journal) as journal:
        finish = journal.state().finished.get(training.phase)
        if finish is not None:  # the run was killed before it could write that down
            verify_kept(branch.path(finish.snapshot), finish.sha256, finish.phase, training.snapshot)
        else:
            try:
                insist(insist(branch, prepare), partial(train, training=training))
            except Interrupted as stop:
                note_stop(branch, stop)
                if training.phase not in journal.state().finished:
                    raise
        run.journal.append("finished", **asdict(journal.state().finished[training.phase]))


def _open_branch(run: Run, training: Training, setting: Setting) -> Run:
    """Return the run that a branch is, told of in the journal of the whole."""
    phase, state = training.phase, run.journal.state()
    folder = f"{run.folder}/branches/{phase}"
    hosts = [host.name for host in setting.hosts]
    run.journal.append("branched", phase=phase, folder=folder, hosts=hosts)
    try:
        for name in ("logs", "checkpoints"):
            run.path(f"{folder}/{name}").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFailed(run.path(folder), f"cannot be made: {error.strerror}", "check the disk") from None
    journal = run.journal.open_beside(run.path(folder) / "journal.jsonl")
    name = name_branch(run.id, phase)
    if not journal.state().id:
        journal.append("created", recipe=setting.recipe.name, id=name)
    journal.start(state.job, state.restarts)
    reporter = run.reporter.beside(phase)
    reporter.say(f"a branch, on {describe_names(hosts)}; log: {folder}/logs")
    return replace(
        run,
        id=name,
        setting=setting,
        plan=Plan(run.plan.prototxts, (training,)),
        folder=folder,
        journal=journal,
        reporter=reporter,
    )
