"""What looks at a recipe's jobs while a run is watched: now and then, and says what is new."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from caffe_recipes.chain.run_files import RunFiles
from caffe_recipes.chain.submitting.seen import Ask, SeenJob, describe_job, name_seen, read_latest, see_jobs

# Slurm serves many; its users are asked not to ask more often.
_EVERY_S = 10.0


@dataclass
class JobEyes:
    """Looks at what the last submit of a recipe has submitted, in the folder `runs` of some files."""

    files: RunFiles
    runs: str
    ask: Ask
    say: Callable[[str], None]
    clock: Callable[[], float]
    _asked_s: float = float("-inf")
    _seen: tuple[SeenJob, ...] = ()
    _said: str = ""
    _last: dict[str, tuple[float, str]] = field(default_factory=dict)

    def look(self, recipe: str) -> tuple[SeenJob, ...]:
        """Return the jobs as they were seen last, having looked if that is due; raises InputError."""
        if self.clock() - self._asked_s < _EVERY_S:
            return self._seen
        self._asked_s = self.clock()
        self._seen = see_jobs(read_latest(self.files, self.runs, recipe), self.ask)
        telling = next((job for job in self._seen if job.standing != "over"), None)
        if telling is None and self._seen:
            telling = self._seen[-1]
        if telling is not None:
            self._tell(telling)
        return self._seen

    def may_go_on(self, recipe: str) -> bool:
        """Tell whether a job waits or runs, or may, for all that is known."""
        return any(job.is_live or job.away or job.is_elsewhere for job in self.look(recipe))

    def describe(self, recipe: str) -> str:
        """Say what has become of the jobs, which have all ended."""
        return "; ".join(f"{name_seen(job)} {describe_job(job)}" for job in self.look(recipe)[-1:])

    def _tell(self, job: SeenJob) -> None:
        name = job.submission.name
        if not job.away:
            self._last[name] = (time.time(), describe_job(job))
        last_s, last = self._last.get(name, (None, ""))
        said = f"{name_seen(job)} {describe_job(job, last_s, f'it {last}' if last else '')}"
        if said != self._said:
            self._said = said
            self.say(said)
