"""Which models an ensemble has: those that the recipe says, phases that are named, or caffemodels."""

from __future__ import annotations

import difflib
import hashlib
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.chain.journal import RunState
from caffe_recipes.errors import InputError, WeightsError
from caffe_recipes.recipe.graph import find_averaged
from caffe_recipes.recipe.model import Recipe

_MODEL = ".caffemodel"


@dataclass(frozen=True)
class Member:
    """A model: the phase, or the file, that it is called by; and the digest that its file has to have."""

    name: str
    path: Path
    sha256: str


def find_members(
    folder: Path, recipe: Recipe, state: RunState, named: Sequence[str] | None
) -> tuple[Member, ...]:
    """Return the members that are named; without names, those of the recipe that are finished.

    Raises InputError for fewer than two, one model named twice, a name that nothing has, an unfinished phase.
    """
    if named is None:
        names = [name for name in find_averaged(recipe) if name in state.finished]
    else:
        names = list(named)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError("--members", f"'{twice}' is named twice", "name each member once")
    members = tuple(_find_member(folder, recipe, state, name) for name in names)
    if named is not None:
        _check_different(members)
    if len(members) < 2:
        finished = ", ".join(state.finished) or "none yet"
        what = f"one member, {names[0]}" if names else "no finished member"
        hint = f"an ensemble has two or more: name them with --members; finished are {finished}"
        raise InputError(folder, what, hint)
    return members


def unfinished_members(recipe: Recipe, state: RunState) -> tuple[str, ...]:
    """Return the names of the recipe's members that are still to be trained."""
    return tuple(name for name in find_averaged(recipe) if name not in state.finished)


def _find_member(folder: Path, recipe: Recipe, state: RunState, name: str) -> Member:
    finish = state.finished.get(name)
    if finish is not None:  # wherever the run's folder lies now
        return Member(name, folder / "snapshots" / posixpath.basename(finish.snapshot), finish.sha256)
    if name.endswith(_MODEL):
        return Member(name, Path(name).absolute(), _digest_of(Path(name)))
    names = [phase.name for phase in recipe.phases]
    if name in names:
        what = f"phase {name} of {folder.name} is not finished"
        raise InputError("--members", what, "let it finish, or leave it out")
    near = difflib.get_close_matches(name, names, n=1)
    meant = f"did you mean '{near[0]}'? " if near else ""
    what = f"no phase '{name[:80]}' in {recipe.name}"
    raise InputError("--members", what, f"{meant}there are {', '.join(names)}; or give a {_MODEL}")


def _check_different(members: Sequence[Member]) -> None:
    """Refuse a model that is named twice, by its phase and as a file."""
    seen: dict[str, str] = {}
    for member in members:
        other = seen.setdefault(member.sha256, member.name)
        if other != member.name:
            what = f"'{other}' and '{member.name}' are the same model"
            raise InputError("--members", what, "leave one of them out")


def _digest_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise WeightsError(path, f"cannot be read: {reason}", "give a trained caffemodel") from None
