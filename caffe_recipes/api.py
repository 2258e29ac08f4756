"""The functions of `import caffe_recipes` that join several modules; each imports them when it is called."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caffe_recipes.caffe.measurements import Measurement
    from caffe_recipes.engine.module import CaffeModule
    from caffe_recipes.recipe.model import AnyRecipe
    from caffe_recipes.review.diff.changes import Comparison
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.run.monitor.summary import RunSummary


def lint(*targets: str | Path) -> list[Finding]:
    """Return the mistakes in recipes, solvers, nets or folders, as `caffe-recipes lint` finds them.

    Raises InputError for a file that cannot be read.
    """
    from caffe_recipes.review.lint.folders import lint_targets
    from caffe_recipes.review.lint.inputs import LintOptions

    return lint_targets([str(target) for target in targets], LintOptions())


def diff(old: str | Path, new: str | Path) -> Comparison:
    """Return what differs in meaning between two prototxts, recipes, folders or git revisions.

    `equal` says whether anything does. Raises InputError if the two cannot be compared.
    """
    from caffe_recipes.review.diff.compare import compare_sides
    from caffe_recipes.review.diff.sources import open_sides

    return compare_sides(open_sides([str(old), str(new)]))


def read_log(path: str | Path) -> list[Measurement]:
    """Return the losses, rates and outputs in a training log, one row a value, as `parse-log` prints them.

    A row is a named tuple, so that `pandas.DataFrame(read_log(path))` has named columns. Raises InputError
    for a file without any.
    """
    from caffe_recipes.caffe.measurements import MeasuredLog
    from caffe_recipes.review.inspect.training_logs import load_measurements

    return [row for rows in load_measurements(Path(path), MeasuredLog()) for row in rows]


def run_recipe(
    recipe: str | Path | AnyRecipe,
    *,
    root: str | Path = ".",
    hostfile: str | Path | None = None,
    new: bool = False,
) -> RunSummary:
    """Train a recipe's chain, or resume its latest run, as `caffe-recipes run` does; return it in numbers.

    `recipe` is a name, a path or a loaded recipe, `root` the Caffe root, and `new` starts another run. The
    steps and the progress are printed. Raises InputError before anything on disk has changed, and RunFailed
    if the run fails; the same call resumes it.
    """
    from caffe_recipes.recipe.source import load_any_recipe
    from caffe_recipes.run.context import RunOptions
    from caffe_recipes.run.runner import run_chain

    loaded = load_any_recipe(recipe) if isinstance(recipe, str | Path) else recipe
    hosts = None if hostfile is None else Path(hostfile)
    run_chain(loaded, RunOptions(root=Path(root).absolute(), hostfile=hosts, new=new))
    return runs(loaded.name, root=root)[0]


def runs(*names: str, root: str | Path = ".", on: str | None = None) -> list[RunSummary]:
    """Return runs in numbers: state, epochs, hours, images/s, loss and accuracy; without names, all runs.

    `root` is the folder that contains `runs`, on this machine or on the host `on`. Raises InputError for a
    name that is not that of a run.
    """
    from caffe_recipes.run.monitor.follow import StatusOptions
    from caffe_recipes.run.monitor.summary import summarize_runs

    return summarize_runs(names, StatusOptions(str(root), on))


def torch_module(net: str | os.PathLike[str], weights: str | os.PathLike[str]) -> CaffeModule:
    """Return a deploy net with the weights of a caffemodel as a `torch.nn.Module`, in eval mode.

    Called with a tensor for each input, it returns the output, or a dict of the outputs if there are several;
    the batch may have any size. Its `state_dict` has the names that `caffe-recipes export` writes. Raises
    InputError if PyTorch is missing, or if the net and the weights do not fit.
    """
    from caffe_recipes.engine.packages import require_packages
    from caffe_recipes.errors import InputError

    for name, path in (("net", net), ("weights", weights)):
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
        if not text or not isinstance(text, str):
            raise InputError("torch_module", f"{name} is {path!r}, not a path", "give the path of a file")
    require_packages("torch_module", "torch", "cv2")
    from caffe_recipes.engine.module import load_module

    return load_module(Path(net), Path(weights))
