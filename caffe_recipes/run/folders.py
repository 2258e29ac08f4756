"""The folder of a run, `runs/<recipe>-<n>/`: journal, frozen recipe, logs, fetched snapshots."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from caffe_recipes.cluster.hostfile import render_hostfile
from caffe_recipes.config import with_tuples
from caffe_recipes.errors import InputError, RunFailed, hint_for
from caffe_recipes.file_format import FORMAT, take_format
from caffe_recipes.files.atomic_writes import name_beside, write_whole
from caffe_recipes.files.bounded_reads import read_within
from caffe_recipes.recipe.model import AnyRecipe, validate_frozen
from caffe_recipes.run.events import Created, RunState
from caffe_recipes.run.journal import JOURNAL, Clock, Journal, empty_journal_error
from caffe_recipes.run.training_plan import find_trainer, plan_files
from caffe_recipes.run_names import RUNS, parse_run_name, run_folders
from caffe_recipes.wording import describe_names, shorten

RECIPE_JSON = "recipe.json"
# A recipe only names a net of the user's own; the digests show whether that net has changed.
_DIGESTS = "prototxts.json"
# Keys that only describe the training or its machine, so that no phase depends on them; `*` is any phase.
_DESCRIPTIVE = {
    "title",
    "source",
    "reported",
    "derived",
    "differences",
    "notes",
    "ensemble",
    "accept",
    "phases[*].comment",
    "phases[*].reported",
    "data.train.size_gb",
    "cluster.sockets_per_node",
    "cluster.cores_per_socket",
    "cluster.tmp_gb",
}
# The largest number of changed values that a message lists.
_MOST_LISTED = 5


def check_root(root: Path) -> None:
    """Raise InputError if the Caffe root is not a folder."""
    if not root.is_dir():
        raise InputError(root, "no such folder", "give the Caffe root with --caffe-root")


def root_words(root: Path) -> list[str]:
    """Return the words of a command that name the Caffe root; none if it is the current folder."""
    return [] if root.resolve() == Path.cwd() else ["--caffe-root", str(root)]


# At most this many entries of the folder of a run are checked.
_MOST_ENTRIES = 64


def own_paths(root: Path, recipe: AnyRecipe) -> list[Path]:
    """Return what a run of a recipe runs, reads or obeys in the Caffe root, which others must not write."""
    trainer = find_trainer(recipe)
    paths = (*trainer.landmarks, *trainer.inputs, "hostfile")
    return [root / path for path in dict.fromkeys(paths)] + own_run_paths(root, recipe.name)


def own_run_paths(root: Path, name: str) -> list[Path]:
    """Return the paths of a run, or of the latest run of a recipe, which others must not write."""
    run, runs = parse_run_name(name), root / RUNS
    recipe_name = run[0] if run and (runs / name).is_dir() else name
    paths = [runs, root / "logs", root / "logs" / recipe_name]
    with suppress(OSError):  # then nothing can be read there
        latest = [runs / name] if recipe_name != name else run_folders(root, name)[-1:]
        paths += runs.glob(f"{glob.escape(recipe_name)}.*")
        paths += (path for folder in latest for path in run_entries(folder))
    return paths


def run_entries(folder: Path) -> list[Path]:
    """Return the folder of a run and what is in it; raises OSError."""
    return [folder, *islice(folder.iterdir(), _MOST_ENTRIES)]


def next_folder(root: Path, recipe_name: str) -> Path:
    """Return the path for a recipe's next run, without creating it."""
    before = run_folders(root, recipe_name)
    number = int(before[-1].name.rpartition("-")[2]) + 1 if before else 1
    return root / RUNS / f"{recipe_name}-{number}"


def create_run(
    folder: Path, recipe: AnyRecipe, files: Mapping[str, str], clock: Clock = time.time
) -> Journal:
    """Create the folder of a run, completely or not at all, and return its journal, open and locked.

    Raises InputError if the folder cannot be created, or if another process has just created it.
    """
    part = name_beside(folder)
    digests = find_trainer(recipe).digest_files(files)
    frozen = {RECIPE_JSON: freeze_recipe(recipe), _DIGESTS: digests}
    try:
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, part, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            part.mkdir()
            for name in ("logs", "snapshots", "checkpoints"):
                (part / name).mkdir()
            for name, values in frozen.items():
                (part / name).write_text(json.dumps({"format": FORMAT, **values}, indent=1) + "\n")
            journal = Journal(part / JOURNAL, clock, create=True)
            undo.callback(journal.close)
            journal.append(Created(recipe.name, secrets.token_hex(8)))
            part.rename(folder)
            undo.pop_all()
    except OSError as error:
        what = f"cannot be created: {error.strerror}"
        # Only another run creates a folder with that name.
        exists = error.errno in (errno.EEXIST, errno.ENOTEMPTY)
        hint = "another run has just created it" if exists else hint_for(error, "check the disk")
        raise InputError(folder, what, hint) from None
    journal.path = folder / JOURNAL
    return journal


def write_hostfile(folder: Path, hosts: Sequence[str]) -> None:
    """Write the hostfile for the launcher, with the hosts that get ranks; raises RunFailed."""
    try:
        write_whole({folder / "hostfile": render_hostfile(hosts).encode()})
    except OSError as error:
        what = f"its hostfile cannot be written: {error.strerror}"
        raise RunFailed(folder, what, hint_for(error, "check the disk")) from None


def freeze_recipe(recipe: AnyRecipe) -> dict[str, Any]:
    """Return the recipe as JSON values, including all defaults; `thaw_recipe` reads them."""
    frozen: dict[str, Any] = json.loads(recipe.model_dump_json())
    return frozen


def thaw_recipe(frozen: object) -> AnyRecipe:
    """Return the recipe for the JSON values from `freeze_recipe`, without its folder and family.

    Raises pydantic's ValidationError for any other values.
    """
    return validate_frozen(with_tuples(frozen))


def digest_recipe(recipe: AnyRecipe) -> str:
    """Return the SHA-256 of a recipe without the keys that only describe it, such as the title."""
    values = _without_descriptive(freeze_recipe(recipe), "")
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def describe_changes(folder: Path, recipe: AnyRecipe) -> str | None:
    """Return what has changed in the recipe and its nets since a run was started; None if nothing has.

    Keys that only describe the training, such as the title, may change. Raises InputError if the run's copy
    of the recipe cannot be read.
    """
    changed = dict(_differences(_load(folder / RECIPE_JSON), freeze_recipe(recipe), ""))
    values = [f"{at}: {what}" for at, what in changed.items() if what != changed.get(_inherited(at))]
    if values:
        more = "; ..." if len(values) > _MOST_LISTED else ""
        return f"the recipe has changed since the run started: {'; '.join(values[:_MOST_LISTED])}{more}"
    before = _load(folder / _DIGESTS)
    now = find_trainer(recipe).digest_files(plan_files(recipe))
    files = [path for path in {**before, **now} if before.get(path) != now.get(path)]
    if not files:
        return None
    return f"the recipe now generates {'a ' if len(files) == 1 else ''}different {describe_names(files)}"


def check_resumable(folder: Path, state: RunState, recipe: AnyRecipe) -> None:
    """Raise InputError for a run that cannot be resumed: without events, or if its recipe has changed."""
    if state == RunState():
        raise empty_journal_error(folder / JOURNAL)
    if changes := describe_changes(folder, recipe):
        raise InputError(folder, changes, "undo that to resume this run, or start another with --new")


def load_digests(folder: Path) -> dict[str, Any]:
    """Return the digest of each file that a run was started with, by path; raises InputError."""
    return _load(folder / _DIGESTS)


def _load(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_within(path, "json-bytes"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "not JSON"
        raise InputError(path, f"cannot be read: {reason}", "start over with --new") from None
    if not isinstance(values, dict):
        raise InputError(path, "cannot be read: not a JSON object", "start over with --new")
    take_format(values, path, "start over with --new")
    return values


def _without_descriptive(values: object, at: str) -> object:
    if isinstance(values, dict):
        inner = {key: f"{at}.{key}" if at else str(key) for key in values}
        return {
            key: _without_descriptive(values[key], inner[key])
            for key in values
            if inner[key] not in _DESCRIPTIVE
        }
    if isinstance(values, list):
        return [_without_descriptive(value, f"{at}[*]") for value in values]
    return values


def _inherited(at: str) -> str:
    """Return the key of `solver:` that a phase's key is inherited from.

    >>> _inherited("phases[1].momentum"), _inherited("solver.momentum")
    ('solver.momentum', '')
    """
    return re.sub(r"^phases\[\d+\]\.", "solver.", at) if at.startswith("phases[") else ""


def _differences(before: object, now: object, at: str) -> Iterator[tuple[str, str]]:
    """Yield (`phases[1].base_lr`, `1.02 -> 1.0`) for each value that differs and does not only describe."""
    if re.sub(r"\[\d+\]", "[*]", at) in _DESCRIPTIVE:
        return
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            yield from _differences(before.get(key), now.get(key), f"{at}.{key}" if at else str(key))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _differences(old, new, f"{at}[{index}]")
    elif before != now:
        yield at, f"{_short(before)} -> {_short(now)}"


def _short(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"{len(value)} entries"
    return shorten(json.dumps(value), 60)
