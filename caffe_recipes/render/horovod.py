"""Render the TensorFlow and Horovod run of a recipe: three scripts, and its rate as a module and as JSON.

The scripts need only bash and the programs that they name; the module needs TensorFlow.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.render.headers import header_line
from caffe_recipes.render.scripts import templates
from caffe_recipes.tensorflow.run import (
    HorovodRun,
    evaluate_argv,
    evaluate_environment,
    prepare_argv,
    train_argv,
)
from caffe_recipes.wording import describe_count


@dataclass(frozen=True)
class _Path:
    """A path that the user sets in a variable, where the source has `<path-to-...>`."""

    name: str
    what: str
    kind: str = "DIR"


@dataclass(frozen=True)
class _Script:
    """A command as a script; the first `head` words of its argv end in the program, which is a file."""

    file: str
    title: str
    paths: tuple[_Path, ...]
    argv: tuple[str, ...]
    head: int
    notes: tuple[str, ...] = ()
    settings: str = ""
    imports: bool = False


_MODELS = _Path("MODEL_DIR", "parent folder of models; this run uses {model}")
_RESNET = _Path(
    "RESNET_DIR",
    "tensorflow_programs of caffe-recipes, or models/official/resnet of a modified tensorflow/tpu",
)


def render_horovod(recipe: AnyRecipe) -> dict[str, str]:
    """Return the files of a recipe's TensorFlow run as {path: text}; empty if it has none."""
    run = recipe.tensorflow
    if run is None:
        return {}
    folder, header = f"jobs/{recipe.name}", header_line(recipe)
    files = {}
    scripts = [_train(recipe, run), _evaluate(recipe, run)]
    if not (run.data and run.data.prepare):
        scripts.append(_prepare())
    for script in scripts:
        values = {
            **vars(script),
            "recipe": recipe,
            "header": header,
            "words": _words(script),
            "program": _quote(script.argv[script.head - 1]),
            "width": max(len(path.name) for path in script.paths),
        }
        files[f"{folder}/{script.file}"] = templates().get_template("tf_command.sh.j2").render(values)
    module = templates().get_template("tf_rates.py.j2")
    files[f"{folder}/tf_rates.py"] = module.render(
        recipe=recipe, header=header, run=run.schedule, batch=recipe.cluster.global_batch
    )
    files[f"{folder}/tf_rates.json"] = _render_rates(run, header)
    return files


def _prepare() -> _Script:
    paths = (
        _Path(
            "IMAGENET_TO_GCS",
            "path of imagenet_to_gcs.py, from the same source as resnet_main.py",
            "FILE",
        ),
        _Path("RAW_IMAGE_DIR", "folder of ImageNet's raw images"),
        _Path("TF_RECORDS_DIR", "folder for the TFRecords"),
    )
    notes = (
        "imagenet_to_gcs.py shuffles the classes across its files; the source lost 2 to 3% without that.",
        "`caffe-recipes data check` measures it; `caffe-recipes data tfrecords` writes such files.",
    )
    argv = prepare_argv(*(_var(path.name) for path in paths))
    return _Script(
        "tf_prepare.sh",
        "Write TFRecords from ImageNet's raw images.",
        paths,
        argv,
        3,
        notes,
    )


def _train(recipe: AnyRecipe, run: HorovodRun) -> _Script:
    cluster = recipe.cluster
    paths = (
        _RESNET,
        _Path("TRAIN_DIR", "training TFRecords on a local disk of every node"),
        _Path(_MODELS.name, _MODELS.what.format(model=run.model)),
    )
    argv = train_argv(
        run,
        workers=cluster.ranks,
        per_node=cluster.ranks_per_node,
        batch=cluster.global_batch,
        images=recipe.train_images,
        script=f"{_var('RESNET_DIR')}/resnet_main.py",
        data_dir=_var("TRAIN_DIR"),
        model_dir=f"{_var('MODEL_DIR')}/{run.model}",
    )
    hosts = describe_count(cluster.nodes, "host")
    notes = (
        f"mpirun takes the {hosts} from the job; elsewhere list them in a file, and set HYDRA_HOST_FILE",
        "(MPICH) or I_MPI_HYDRA_HOST_FILE (Intel MPI) to its path. resnet_main.py sets the variables of MKL",
        "and OpenMP (KMP_*, OMP_*) by its flags: "
        f"{describe_count(run.inter_threads, 'operation')} at a time, "
        f"{describe_count(run.intra_threads, 'thread')} in each.",
    )
    title = f"Train on {cluster.ranks} workers, {cluster.global_batch:,} images per step."
    # MPICH's hydra binds no rank by default, Intel's does; the variable keeps the source's arguments.
    settings = 'HYDRA_BINDING="${HYDRA_BINDING-socket}"' if cluster.ranks_per_node > 1 else ""
    return _Script("tf_train.sh", title, paths, argv, 8, notes, settings, imports=True)


def _evaluate(recipe: AnyRecipe, run: HorovodRun) -> _Script:
    testing, images = run.evaluation, recipe.tested_images
    paths = (
        _RESNET,
        _Path("VALIDATION_DIR", "validation TFRecords"),
        _Path(_MODELS.name, _MODELS.what.format(model=run.model)),
    )
    argv = evaluate_argv(
        run,
        images=images,
        script=f"{_var('RESNET_DIR')}/resnet_eval.py",
        data_dir=_var("VALIDATION_DIR"),
        model_dir=f"{_var('MODEL_DIR')}/{run.model}",
    )
    settings = " ".join(f"{name}={value}" for name, value in evaluate_environment(run).items())
    batches = -(-images // testing.batch_size)
    title = f"Test the model on one node: {batches} batches of {testing.batch_size}, {images:,} images."
    notes = ("`caffe-recipes tf log FILE` reads its output.",)
    return _Script("tf_evaluate.sh", title, paths, argv, 3, notes, settings)


def _var(name: str) -> str:
    """Return a marked shell variable, for a word of an argv."""
    return f"\0{name}\0"


# Flags that are written on the line of the flag before.
_BESIDE = (
    *("--train_steps", "--num_intra_threads", "--num_inter_threads"),
    *("--use_tpu=False", "--kmp_blocktime", "--local_scratch_dir"),
)


def _words(script: _Script) -> str:
    """Return an argv as shell text in a few lines: the program first, then the flags."""
    lines = [[*script.argv[: script.head]]]
    for word in script.argv[script.head :]:
        if word.startswith("--") and word not in _BESIDE:
            lines.append([])
        lines[-1].append(word)
    return " \\\n  ".join(" ".join(map(_quote, line)) for line in lines)


def _quote(word: str) -> str:
    """Return a word quoted for the shell, with its variable, if any, in double quotes.

    >>> _quote(f"--data_dir={_var('TRAIN_DIR')}/a b")
    '--data_dir="$TRAIN_DIR"\\'/a b\\''
    """
    before, *rest = word.split("\0")
    if not rest:
        return shlex.quote(word)
    name, after = rest
    return f'{before and shlex.quote(before)}"${name}"{after and shlex.quote(after)}'


def _render_rates(run: HorovodRun, header: str) -> str:
    """Return the breakpoints as JSON; the header is the first key."""
    points = [{"step": step, "learning_rate": rate} for step, rate in run.schedule.breakpoints]
    values = {"generated": header, "between": "linear", "points": points}
    lines = ",\n ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items())
    return f"{{{lines}}}\n"
