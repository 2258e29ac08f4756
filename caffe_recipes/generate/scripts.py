"""The standalone job script of a recipe: bash text that needs no Python of ours."""

from __future__ import annotations

import posixpath
import shlex
from functools import cache
from importlib import resources
from typing import Any

import jinja2

from caffe_recipes.cluster.launcher import hydra_argv, mlsl_environment, thread_environment
from caffe_recipes.generate.derived import above_script
from caffe_recipes.generate.header import header_line
from caffe_recipes.recipe.arithmetic import images_of
from caffe_recipes.recipe.graph import find_evaluated, find_leaves
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.phases import Phase


def render_run_script(recipe: Recipe) -> str:
    """Render `jobs/<recipe>/run.sh`: the published chain, resumable, needing no Python of ours."""
    cluster = recipe.cluster
    threads = thread_environment(cluster.omp_num_threads, cluster.kmp_affinity)
    phases = [_phase_values(recipe, phase) for phase in recipe.phases]
    stops, keeps = any(phase["stop_iter"] for phase in phases), any(phase["needed"] for phase in phases)
    values = {
        "recipe": recipe,
        "cluster": cluster,
        "header": header_line(recipe),
        "derived": above_script(recipe),
        "threads": " ".join(f"{name}={shlex.quote(value)}" for name, value in threads.items()),
        "mlsl": mlsl_environment(cluster.mlsl.num_servers, cluster.mlsl.server_affinity)
        if cluster.mlsl
        else {},
        "launch": _launch_lines(recipe, threads),
        "solvers": [f"solver_{phase.name}" for phase in recipe.phases],
        "nets_dir": recipe.nets_dir or recipe.prototxt_dir,
        "our_nets": posixpath.basename(recipe.nets_dir) if recipe.nets_dir else recipe.name,
        "phases": phases,
        "stops": stops,
        "keeps": keeps,
        "more": " STOP_ITER NEEDED..." if keeps else " STOP_ITER" if stops else "",
        "given_weights": _given_weights(recipe),
        "models": [_model_file(phase) for phase in find_evaluated(recipe) or find_leaves(recipe)],
        "lmdb_hint": lmdb_hint(recipe, recipe.data.train.source),
    }
    return templates().get_template("run.sh.j2").render(values)


def _launch_lines(recipe: Recipe, threads: dict[str, str]) -> list[str]:
    """Return the launcher's words for the shell, up to the trainer: its shape, then one variable a line."""
    cluster = recipe.cluster
    argv = hydra_argv(
        (),
        nodes=cluster.nodes,
        ranks_per_node=cluster.ranks_per_node,
        environment=threads,
        fabric=cluster.fabric,
    )
    variables_at = len(argv) - 3 * len(threads)
    starts = [0, *range(variables_at, len(argv), 3)]
    return [shlex.join(argv[start:end]) for start, end in zip(starts, [*starts[1:], None], strict=True)]


def _phase_values(recipe: Recipe, phase: Phase) -> dict[str, Any]:
    start = recipe.starts_from(phase)
    return {
        "name": phase.name,
        "net": phase.net,
        "weights": _model_file(start, phase.weights_iter) if isinstance(start, Phase) else start or "",
        "snapshot": phase.final_snapshot,
        "stop_iter": phase.stop_iter,
        "needed": [phase.snapshot_at(iteration) for iteration in recipe.needed_iters(phase)],
        "iterations": phase.last_iter,
        "max_iter": phase.max_iter,
        "epochs": images_of(recipe, phase) / recipe.data.train.images,
        "comment": phase.comment,
    }


def _model_file(phase: Phase, iteration: int | None = None) -> str:
    """Name a phase's fetched snapshot in the Caffe root: its last, or that of an iteration."""
    return posixpath.basename(phase.snapshot_at(iteration or phase.last_iter))


def _given_weights(recipe: Recipe) -> list[str]:
    """List the weights that no phase makes."""
    starts = (recipe.starts_from(phase) for phase in recipe.phases)
    return list(dict.fromkeys(start for start in starts if isinstance(start, str)))


def lmdb_hint(recipe: Recipe, source: str | None) -> str:
    """Say what to do about a recipe's missing LMDB, which is looked for at `source`."""
    if recipe.data.prepare and source:
        folder = shlex.quote(posixpath.dirname(source) or ".")
        return f"build it: caffe-recipes data build {recipe.data.prepare} --out {folder}"
    return "build it with convert_imageset"


@cache
def templates() -> jinja2.Environment:
    """Return the templates, with `sh`: a value as one word of the shell, plain where it may be."""
    folder = resources.files("caffe_recipes.templates")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: folder.joinpath(name).read_text("utf-8")),
        undefined=jinja2.StrictUndefined,
        # bash's ${#array[@]} is no comment
        comment_start_string="{%#",
        comment_end_string="#%}",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["sh"] = shlex.quote
    return environment
