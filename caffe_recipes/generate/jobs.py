"""The Slurm jobs of a recipe: one for the whole chain, or one a phase, and what submits those in order.

Their text does what is Slurm's: directives, the signal before the end, the requeue. In the allocation the
chain is carried by `caffe-recipes run`.
"""

from __future__ import annotations

import posixpath
import shlex
from typing import Any

from caffe_recipes.cluster.slurm.queries import SBATCH_UNSET
from caffe_recipes.cluster.slurm.times import render_limit
from caffe_recipes.generate.derived import above_job
from caffe_recipes.generate.header import header_line, recipe_word
from caffe_recipes.generate.scripts import templates
from caffe_recipes.recipe.duration import estimate_duration
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.phases import Phase
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.translate import original_name

# From Slurm's warning to the end of the time: an iteration, a snapshot, its copy, and the requeue.
_WARNING_S, _SHORTEST_WARNING_S = 600, 60
# Where nobody knows how long a job takes; short ones are not warned at their very start.
_UNKNOWN_WARNING_S = 120
# `run` gives Caffe this long from SIGINT, unless it is told otherwise: an iteration, and a snapshot of it.
STOP_GRACE_S = 120


def render_jobs(recipe: Recipe) -> dict[str, str]:
    """Return the text of each of a recipe's jobs, and of the script that submits them, by its path."""
    folder = f"jobs/{recipe.name}"
    width = len(str(len(recipe.phases)))
    names = [f"phase-{number:0{width}}-{phase.name}" for number, phase in enumerate(recipe.phases, 1)]
    files = {f"{folder}/chain.sbatch": _render_job(recipe, f"{folder}/chain.sbatch")}
    for number, (name, phase) in enumerate(zip(names, recipe.phases, strict=True), 1):
        path = f"{folder}/{name}.sbatch"
        files[path] = _render_job(recipe, path, phase, number)
    values = {"recipe": recipe, "header": header_line(recipe), "phases": names, "unset": SBATCH_UNSET}
    files[f"{folder}/submit.sh"] = templates().get_template("submit.sh.j2").render(values)
    return files


def _render_job(recipe: Recipe, path: str, phase: Phase | None = None, number: int = 0) -> str:
    duration = estimate_duration(recipe, phase.name if phase else None)
    warning_s = find_warning_s(duration.limit_s if duration else None)
    name = original_name(recipe)
    words = [] if name == recipe.name else ["--dialect", recipe.dialect]
    words += ["--until", phase.name] if phase else []
    values: dict[str, Any] = {
        "recipe": recipe,
        "cluster": recipe.cluster,
        "header": header_line(recipe),
        "derived": above_job(recipe),
        "file": posixpath.basename(path),
        "phase": phase,
        "number": number,
        "job_name": f"{recipe.name}-{phase.name}" if phase else recipe.name,
        "time_limit": render_limit(duration.limit_s) if duration else None,
        "warning_s": warning_s,
        "stop_grace_s": warning_s // 2 if warning_s // 2 < STOP_GRACE_S else None,
        "given": recipe_word(recipe),
        "is_shipped": name in shipped_recipes(),
        "options": "".join(f" {shlex.quote(word)}" for word in words),
    }
    return templates().get_template("job.sbatch.j2").render(values)


def find_warning_s(limit_s: float | None) -> int:
    """Return how many seconds before the end of its time a job is to be warned: a tenth, in whole minutes.

    At most ten of them, and at least one, which is as exactly as Slurm sends it.

    >>> [find_warning_s(seconds) for seconds in (20_400, 3600, 600, None)]
    [600, 360, 60, 120]
    """
    if limit_s is None:
        return _UNKNOWN_WARNING_S
    return int(min(_WARNING_S, max(_SHORTEST_WARNING_S, limit_s / 10 // 60 * 60)))
