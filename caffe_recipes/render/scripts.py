"""Render a recipe's scripts: run.sh, and the Slurm jobs with their submit.sh.

run.sh is bash and does not need caffe-recipes. The jobs, one for the whole chain or one per phase, handle
Slurm's directives, the signal before the time limit, and the requeue; they call `caffe-recipes run` to train.
"""

from __future__ import annotations

import posixpath
import re
import shlex
import textwrap
from functools import cache
from importlib import resources
from typing import Any

import jinja2

from caffe_recipes.cluster.launchers import DEFAULT_LAUNCHER
from caffe_recipes.cluster.launchers.hydra import FABRIC_OPTIONS, STRICT_SSH
from caffe_recipes.cluster.launchers.launcher import RankLaunch, mlsl_environment, thread_environment
from caffe_recipes.cluster.slurm.calls import SBATCH_UNSET
from caffe_recipes.cluster.slurm.times import render_limit
from caffe_recipes.cluster.staging import Way
from caffe_recipes.limits import STOP_GRACE_S
from caffe_recipes.recipe.estimate import estimate_duration
from caffe_recipes.recipe.graph import find_evaluated, images_of
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

# Characters of a line of file names.
_WIDTH = 110
_PLAIN = re.compile(r"[A-Za-z0-9/._+=,@%-]+")


def render_run_script(recipe: Recipe) -> str:
    """Return the text of `jobs/<recipe>/run.sh`: the chain as one plain script, without caffe-recipes."""
    cluster, test = recipe.cluster, recipe.evaluation
    phases = [_phase_values(recipe, phase) for phase in recipe.phases]
    evaluated = find_evaluated(recipe)
    lmdb, source = (recipe.data.train.lmdb, recipe.data.train.source) if recipe.reads_lmdb else (None, None)
    has_scp = any(_is_on_node(recipe, phase.snapshot_prefix) for phase in recipe.phases)
    lmdb_is_on_nodes = bool(lmdb and _is_on_node(recipe, lmdb))
    values = {
        "recipe": recipe,
        "cluster": cluster,
        "header": header_line(recipe),
        "derived": above_script(recipe),
        "exports": _exports(recipe),
        "strict": STRICT_SSH,
        "launch": shlex.join(_plan_launch(recipe).argv(())),
        "prototxts": _placed(recipe),
        "phases": phases,
        "stops": any(phase["stop_iter"] for phase in phases),
        "has_scp": has_scp,
        "has_ssh": has_scp or lmdb_is_on_nodes,
        "lmdb": lmdb,
        "source": source,
        "lmdb_is_on_nodes": lmdb_is_on_nodes,
        "hint": lmdb_hint(recipe, source),
        "tested": recipe.net_path(test.net) if test else "",
        "evaluated": [
            (f"evaluation-{phase.name}" if evaluated[1:] else "evaluation", _model_file(phase))
            for phase in evaluated
        ],
    }
    return templates().get_template("run.sh.j2").render(values)


def _exports(recipe: Recipe) -> str:
    """Return the variables of all ranks as words for bash, which divides the cores if no number is given."""
    cluster = recipe.cluster
    words = []
    if cluster.omp_num_threads is None:
        cores = f"$(nproc) / {cluster.ranks}"
        words.append(f"OMP_NUM_THREADS=$(({cores} ? {cores} : 1))")
    variables = thread_environment(cluster.omp_num_threads, cluster.kmp_affinity)
    if cluster.mlsl:
        variables |= mlsl_environment(cluster.mlsl.num_servers, cluster.mlsl.server_affinity)
    return " ".join([*words, *(f"{name}={shlex.quote(value)}" for name, value in variables.items())])


def _plan_launch(recipe: Recipe) -> RankLaunch:
    cluster = recipe.cluster
    return RankLaunch(
        DEFAULT_LAUNCHER,
        hosts=("",) * cluster.nodes,  # the user's hostfile gives their names
        ranks_per_node=cluster.ranks_per_node,
        variables=thread_environment(cluster.omp_num_threads, cluster.kmp_affinity),
        options=FABRIC_OPTIONS[cluster.fabric] if cluster.fabric else (),
    )


def _placed(recipe: Recipe) -> list[tuple[str, str, str]]:
    """Return where prototxts are copied from and to, as text for bash, with the names of the files."""
    names = [shlex.quote(phase.name) for phase in recipe.phases]
    solvers = f"solver_{{{','.join(names)}}}" if len(names) > 1 else f"solver_{names[0]}"
    nets = shlex.join(recipe.nets)
    if recipe.nets_dir:
        shared = posixpath.basename(recipe.nets_dir)
        return [(recipe.name, "$models", solvers), (shared, "$nets", nets)]
    return [(recipe.name, "$models", f"{solvers} {nets}")]


def _is_on_node(recipe: Recipe, path: str) -> bool:
    """Return whether a path is on the disk of another machine: not in the Caffe root, nor with all here."""
    cluster = recipe.cluster
    return path.startswith("/") and (cluster.nodes > 1 or cluster.copy_with == "ssh")


def _phase_values(recipe: Recipe, phase: Phase) -> dict[str, Any]:
    start = recipe.starts_from(phase)
    snapshots = [phase.snapshot_at(iteration) for iteration in (*recipe.needed_iters(phase), phase.last_iter)]
    return {
        "name": phase.name,
        "net": phase.net,
        "solver": recipe.solver_path(phase.name),
        "weights": _model_file(start, phase.weights_iter) if isinstance(start, Phase) else start or "",
        "snapshots": snapshots,
        "fetches": list(filter(None, (_fetch_line(recipe, snapshot) for snapshot in snapshots))),
        "stop_iter": phase.stop_iter,
        "epochs": images_of(recipe, phase) / recipe.data.train.images,
        "comment": phase.comment,
    }


def _fetch_line(recipe: Recipe, snapshot: str) -> str:
    """Return the command that copies a snapshot to the Caffe root; empty if it is written there."""
    if _is_on_node(recipe, snapshot):
        if _PLAIN.fullmatch(snapshot):
            return f'scp "$result":{snapshot} .'
        # scp, or the shell of the host, would expand other characters.
        name = posixpath.basename(snapshot)
        return f'(on "$result" cat -- {shlex.quote(snapshot)}) >{shlex.quote(name)}'
    return f"cp -- {shlex.quote(snapshot)} ." if posixpath.dirname(snapshot) not in ("", ".") else ""


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
    values = {
        "recipe": recipe,
        "header": header_line(recipe),
        "steps": steps,
        "unset": _unset_words(),
        "grace_s": STOP_GRACE_S,
    }
    files[f"{folder}/submit.sh"] = templates().get_template("submit.sh.j2").render(values)
    if recipe.tensorflow and recipe.tensorflow.data:
        # TensorFlow's run is the same beside solvers of any dialect.
        run = train_by_tensorflow(recipe.model_copy(update={"name": original_name(recipe)}))
        files[f"{folder}/{TRAINING_JOB}"] = _render_job(recipe, TRAINING_JOB, limit_s(run), run)
    return files


def _unset_words() -> str:
    """Return the variables that submit.sh unsets, as words for bash in a few lines."""
    prefix = "SLURM_"
    others = [name for name in SBATCH_UNSET if not name.startswith(prefix)]
    names = " ".join(name.removeprefix(prefix) for name in SBATCH_UNSET if name.startswith(prefix))
    lines = [f"{prefix}{{{line.replace(' ', ',')}}}" for line in textwrap.wrap(names, _WIDTH)]
    return " ".join([*others, " \\\n  ".join(lines)])


# The job of the TensorFlow run of a recipe for Caffe.
TRAINING_JOB = "tf_train.sbatch"


def limit_s(recipe: AnyRecipe, phase: str | None = None, how: Way | None = None) -> int | None:
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
