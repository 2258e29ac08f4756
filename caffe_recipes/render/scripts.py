"""Render a recipe's scripts: run.sh, and the Slurm jobs with their submit.sh.

run.sh is bash and does not need caffe-recipes. The jobs, one for the whole chain or one per phase, handle
Slurm's directives, the signal before the time limit, and the requeue; they call `caffe-recipes run` to train.
"""

from __future__ import annotations

import posixpath
import shlex
from functools import cache
from importlib import resources
from typing import Any

import jinja2

from caffe_recipes.cluster.launcher import FABRIC_OPTIONS, RankLaunch, mlsl_environment, thread_environment
from caffe_recipes.cluster.slurm_jobs import render_limit
from caffe_recipes.cluster.staging import How
from caffe_recipes.limits import STOP_GRACE_S
from caffe_recipes.recipe.estimate import estimate_duration
from caffe_recipes.recipe.graph import find_evaluated, find_leaves, images_of
from caffe_recipes.recipe.model import (
    OUR_TRAINER,
    TENSORFLOW,
    AnyRecipe,
    Phase,
    Recipe,
    TensorFlowRecipe,
    train_by_tensorflow,
)
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.translate import original_name
from caffe_recipes.render.headers import above_job, above_script, header_line, recipe_word


def render_run_script(recipe: Recipe) -> str:
    """Return the text of `jobs/<recipe>/run.sh`: the chain as a resumable script, without caffe-recipes."""
    cluster = recipe.cluster
    threads = thread_environment(cluster.omp_num_threads, cluster.kmp_affinity)
    phases = [_phase_values(recipe, phase) for phase in recipe.phases]
    values = {
        "recipe": recipe,
        "cluster": cluster,
        "header": header_line(recipe),
        "derived": above_script(recipe),
        "threads": " ".join(_thread_words(recipe, threads)),
        "mlsl": mlsl_environment(cluster.mlsl.num_servers, cluster.mlsl.server_affinity)
        if cluster.mlsl
        else {},
        "launch": _plan_launch(recipe, threads).shell_lines(),
        "nets_dir": recipe.nets_dir or recipe.prototxt_dir,
        "our_nets": posixpath.basename(recipe.nets_dir) if recipe.nets_dir else recipe.name,
        "phases": phases,
        "stops": any(phase["stop_iter"] for phase in phases),
        "keeps": any(phase["needed"] for phase in phases),
        "means": recipe.data.mean_files,
        "models": [_model_file(phase) for phase in find_evaluated(recipe) or find_leaves(recipe)],
        "lmdb_hint": lmdb_hint(recipe, recipe.data.train.source),
    }
    return templates().get_template("run.sh.j2").render(values)


def _thread_words(recipe: Recipe, threads: dict[str, str]) -> list[str]:
    """Return the variables of a rank as words for bash, which divides the cores if no threads are given."""
    words, ranks = [f"{name}={shlex.quote(value)}" for name, value in threads.items()], recipe.cluster.ranks
    if recipe.cluster.omp_num_threads is None:
        cores = f"$(nproc) / {ranks}"
        words.append("OMP_NUM_THREADS=" + (f"$(({cores} ? {cores} : 1))" if ranks > 1 else "$(nproc)"))
    return words


def _plan_launch(recipe: Recipe, threads: dict[str, str]) -> RankLaunch:
    cluster = recipe.cluster
    return RankLaunch(
        hosts=("",) * cluster.nodes,  # the user's hostfile gives their names
        ranks_per_node=cluster.ranks_per_node,
        variables=threads,
        options=FABRIC_OPTIONS[cluster.fabric] if cluster.fabric else (),
    )


def _phase_values(recipe: Recipe, phase: Phase) -> dict[str, Any]:
    start = recipe.starts_from(phase)
    return {
        "name": phase.name,
        "net": phase.net,
        "weights": _model_file(start, phase.weights_iter) if isinstance(start, Phase) else start or "",
        "prefix": phase.snapshot_prefix,
        "stop_iter": phase.stop_iter,
        "needed": recipe.needed_iters(phase),
        "iterations": phase.last_iter,
        "max_iter": phase.max_iter,
        "epochs": images_of(recipe, phase) / recipe.data.train.images,
        "comment": phase.comment,
    }


def _model_file(phase: Phase, iteration: int | None = None) -> str:
    """Return the name of a phase's fetched snapshot in the Caffe root: of an iteration, or else its last."""
    return posixpath.basename(phase.snapshot_at(iteration or phase.last_iter))


def lmdb_hint(recipe: Recipe, source: str | None) -> str:
    """Return the hint for an error about a recipe's missing LMDB, which is expected at `source`."""
    if recipe.data.prepare and source:
        folder = shlex.quote(posixpath.dirname(source) or ".")
        return f"build it: caffe-recipes data build {recipe.data.prepare} --out {folder}"
    program = "caffe-recipes data build" if recipe.trainer == OUR_TRAINER else "convert_imageset"
    return f"build it with {program}"


def library() -> dict[str, str]:
    """Return the files of `jobs/lib`, which are the same for every recipe, as {path: text}.

    node.sh is identical to the text that `run` sends to nodes.
    """
    folder = resources.files("caffe_recipes.templates")
    names = ("chain.sh", "submit.sh")
    ours = {f"jobs/lib/{name}": folder.joinpath(name).read_text("utf-8") for name in names}
    node = resources.files("caffe_recipes.cluster").joinpath("sh", "node.sh")
    return ours | {"jobs/lib/node.sh": node.read_text("utf-8")}


@cache
def templates() -> jinja2.Environment:
    """Return the template environment, with a filter `sh` that quotes a value for the shell if necessary."""
    folder = resources.files("caffe_recipes.templates")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: folder.joinpath(name).read_text("utf-8")),
        undefined=jinja2.StrictUndefined,
        # bash's ${#array[@]} must not start a Jinja comment
        comment_start_string="{%#",
        comment_end_string="#%}",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["sh"] = shlex.quote
    return environment


# From Slurm's warning to the time limit: an iteration, a snapshot, its copy, and the requeue.
_WARNING_S, _SHORTEST_WARNING_S = 600, 60
# For jobs of unknown length; a short one must not get the signal right at its start.
_UNKNOWN_WARNING_S = 120


def render_jobs(recipe: AnyRecipe) -> dict[str, str]:
    """Return the jobs of a recipe, for the whole chain and for any phase, and submit.sh, as {path: text}.

    A TensorFlow recipe, which has a single step, has only the job for the whole chain.
    """
    if not isinstance(recipe, Recipe):
        return {f"jobs/{recipe.name}/chain.sbatch": _render_job(recipe, "chain.sbatch", limit_s(recipe))}
    folder, limits = f"jobs/{recipe.name}", [limit_s(recipe, phase.name) for phase in recipe.phases]
    longest = None if None in limits else max(limit for limit in limits if limit is not None)
    jobs = {"chain.sbatch": limit_s(recipe), "phase.sbatch": longest}
    files = {f"{folder}/{name}": _render_job(recipe, name, limit) for name, limit in jobs.items()}
    steps = [
        {"name": phase.name, "time_limit": _render_time(limit), "warning_s": find_warning_s(limit)}
        for phase, limit in zip(recipe.phases, limits, strict=True)
    ]
    values = {"recipe": recipe, "header": header_line(recipe), "steps": steps}
    files[f"{folder}/submit.sh"] = templates().get_template("submit.sh.j2").render(values)
    if recipe.tensorflow and recipe.tensorflow.data:
        # TensorFlow's run is the same beside solvers of any dialect.
        run = train_by_tensorflow(recipe.model_copy(update={"name": original_name(recipe)}))
        files[f"{folder}/{TRAINING_JOB}"] = _render_job(recipe, TRAINING_JOB, limit_s(run), run)
    return files


# The job of the TensorFlow run of a recipe for Caffe.
TRAINING_JOB = "tf_train.sbatch"


def limit_s(recipe: AnyRecipe, phase: str | None = None, how: How | None = None) -> int | None:
    """Return the time limit in seconds for the chain or a phase; None if its speed is unknown.

    `how` is the method of staging that the user has chosen, if any.
    """
    duration = estimate_duration(recipe, phase, how)
    return duration.limit_s if duration else None


def _render_time(limit: float | None) -> str | None:
    return None if limit is None else render_limit(limit)


def _render_job(
    recipe: AnyRecipe, file: str, limit: float | None, run: TensorFlowRecipe | None = None
) -> str:
    """Render one job of a recipe, or of the TensorFlow run that it has beside its phases."""
    warning_s = find_warning_s(limit)
    name, trained = original_name(recipe), run or recipe
    translated = "" if name == recipe.name else f" --dialect {shlex.quote(recipe.dialect)}"
    values: dict[str, Any] = {
        "recipe": trained,
        "folder": recipe.name,
        "cluster": trained.cluster,
        "header": header_line(recipe),
        "derived": above_job(recipe),
        "file": file,
        "of_phase": file == "phase.sbatch",
        "phases": ", ".join(phase.name for phase in recipe.phases) if isinstance(recipe, Recipe) else "",
        # The path of TFRecords is in the recipe, or in an option of `run`.
        "source": recipe.data.train.source or ""
        if isinstance(recipe, Recipe) and recipe.reads_lmdb and not run
        else None,
        "time_limit": _render_time(limit),
        "warning_s": warning_s,
        "stop_grace_s": warning_s // 2 if warning_s // 2 < STOP_GRACE_S else None,
        "given": recipe_word(recipe),
        "is_shipped": name in shipped_recipes(),
        "options": f" --trainer {TENSORFLOW}" if run else translated,
    }
    return templates().get_template("job.sbatch.j2").render(values)


def find_warning_s(limit_s: float | None) -> int:
    """Return the seconds before its time limit at which Slurm signals a job: a tenth of it, in whole minutes.

    It is at least one minute, the precision of Slurm's signal, and at most ten.

    >>> [find_warning_s(seconds) for seconds in (20_400, 3600, 600, None)]
    [600, 360, 60, 120]
    """
    if limit_s is None:
        return _UNKNOWN_WARNING_S
    return int(min(_WARNING_S, max(_SHORTEST_WARNING_S, limit_s / 10 // 60 * 60)))
