"""Keeping what a launch snapshots on its way: as checkpoints, while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import PurePosixPath

from caffe_recipes.chain.checkpoints import STATE_NAME, drop_checkpoints, fetch_checkpoint
from caffe_recipes.chain.plan import Training
from caffe_recipes.chain.run import Run
from caffe_recipes.chain.watch import (
    SATURATED_LOSS,
    LogTail,
    find_ignored,
    has_passed,
    last_value,
    losses_until,
)
from caffe_recipes.cluster.hosts import Host
from caffe_recipes.errors import CaffeRecipesError
from caffe_recipes.generate.nets import build_net


class Keeper:
    """Keeps the checkpoints of one launch, those that are worth going on from; `is_wanted` by policy or wish.

    `lead` gives the host of rank 0 when there is something to fetch.
    """

    def __init__(self, run: Run, training: Training, tail: LogTail, lead: Callable[[], Host]) -> None:
        """Begin with the log's first snapshot."""
        self.is_wanted = run.setting.policy.checkpoint_every is not None
        self._run, self._training, self._tail, self._lead = run, training, tail, lead
        self._seen = 0
        # Of a launch that is taken over, these are kept already.
        self._kept = set(run.journal.state().kept)

    def skip(self) -> None:
        """Leave alone what the log has told of until now."""
        self._seen = len(self._tail.summary.solverstates)

    def take(self) -> bool:
        """Keep what has been snapshotted on the way, if that is wanted; tell whether anything was there."""
        if not self.is_wanted:
            return False
        summary, taken = self._tail.summary, False
        while self._seen < len(summary.solverstates):
            path = summary.solverstates[self._seen]
            found = STATE_NAME.fullmatch(path)
            iteration = int(found[1]) if found else self._training.last_iter
            if iteration < self._training.last_iter:
                if not has_passed(summary, str(PurePosixPath(path).with_suffix(".caffemodel")), iteration):
                    break
                if str(self._run.path(path)) not in self._kept and self._is_sound():
                    self._keep(path)
                taken = True
            self._seen += 1
        return taken

    def _is_sound(self) -> bool:
        """Tell whether to go on from here later: Caffe took all weights, and the last loss is not lost."""
        if find_ignored(self._tail, self._training, self._run.setting.root):
            return False
        loss = last_value(losses_until(self._tail.summary, self._training.last_iter).values())
        return loss is None or loss < SATURATED_LOSS

    def _keep(self, path: str) -> None:
        run, training = self._run, self._training
        net = build_net(run.setting.recipe, training.net)
        folder = f"{run.folder}/checkpoints"
        before = run.journal.state().checkpoints.get(training.phase, ())
        try:
            kept = fetch_checkpoint(
                self._lead(), run.setting.root, training.phase, path, folder, net, training.last_iter
            )
            run.journal.append("checkpointed", **asdict(kept))
        except CaffeRecipesError as error:  # the training goes on, and the checkpoint before still serves
            run.reporter.say(f"{training.phase}: no checkpoint: {error}")
            return
        run.reporter.say(f"{training.phase}: checkpoint at iteration {kept.iteration:,}")
        drop_checkpoints(run.setting.hosts, run.setting.root, kept, before[:-1], training.left)
