"""Put the model that a run hands on into `runs/NAME/model/`: weights, deploy net, transform, and a readme.

A finished run never fails for it: a model that cannot be deployed gets one line that says why.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from caffe_recipes.caffe.model_folder import WEIGHTS, load_model
from caffe_recipes.errors import InputError, describe_setback
from caffe_recipes.files.atomic_writes import name_beside, write_whole
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.run.events import RunState
from caffe_recipes.run.folders import digest_recipe
from caffe_recipes.run.trainer import HandedOn, ModelFiles
from caffe_recipes.run.training_plan import plan_steps


def hand_on(
    folder: Path,
    recipe: AnyRecipe,
    models: ModelFiles,
    state: RunState,
    files: Callable[[], Mapping[str, str]],
    say: Callable[[str], None],
) -> None:
    """Write the model of a finished run into `folder`/model, unless it is there.

    It is that of the last main phase that no other phase starts from. `files` returns those of the run's
    plan, which may need the recipe's own code. `say` gets a line only if that fails, as `attach`, which
    repeats the journal, cannot show it.
    """
    steps = plan_steps(recipe)
    last = [step for step in steps if step.is_end and step.is_main] or list(steps)
    done = state.finished.get(last[-1].phase)
    if done is None:
        return
    root, model = folder.parent.parent, folder / "model"
    try:
        if is_handed_on(model, done.sha256):
            return
        source = root / done.snapshot
        accuracy = state.evaluations.get(done.phase) or {}
        handed = HandedOn(recipe.name, digest_recipe(recipe), accuracy, done.sha256, _sha1(source))
        made = models.hand_on(files(), last[-1].net, root, handed)
        if not made:
            return
        model.mkdir(exist_ok=True)
        _link(source, model / WEIGHTS)
        write_whole({model / name: data for name, data in made.items()}, is_synced=True)
    except Exception as error:
        say(f"no model was put into {folder.name}/model: {describe_setback(error)}")


def is_handed_on(model: Path, sha256: str) -> bool:
    """Return whether a folder holds the model with these weights."""
    try:
        return (model / WEIGHTS).is_file() and load_model(model).weights_sha256 == sha256
    except InputError:
        return False


def _sha1(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha1").hexdigest()


def _link(source: Path, path: Path) -> None:
    """Give a file a second name, or copy it where the file system has no hard links."""
    part = name_beside(path)
    try:
        os.link(source, part)
    except OSError:
        shutil.copyfile(source, part)
    part.replace(path)
