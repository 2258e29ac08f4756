"""A run under way: what is done where, and who is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.chain.journal import Journal
from caffe_recipes.chain.lock import RecipeLock
from caffe_recipes.chain.plan import Plan
from caffe_recipes.chain.report import Reporter
from caffe_recipes.chain.setting import Setting
from caffe_recipes.chain.signals import Interrupts
from caffe_recipes.errors import RunFailed


@dataclass(frozen=True)
class Run:
    """A run under way; `id` is what its ranks are known by, `folder` its folder from the Caffe root."""

    id: str
    setting: Setting
    plan: Plan
    folder: str
    journal: Journal
    reporter: Reporter
    interrupts: Interrupts
    lock: RecipeLock

    def path(self, path: str) -> Path:
        """Return a path from the Caffe root as one from here."""
        return self.setting.root / path

    def check_folder(self) -> None:
        """Raise RunFailed if the run's folder is no longer there: nothing of what it does would be kept."""
        if not self.journal.is_there():
            what = "was removed or moved while the run used it"
            raise RunFailed(self.folder, what, "put it back, and run again")
