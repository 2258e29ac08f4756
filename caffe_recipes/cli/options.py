"""Define types of arguments and options that several commands share: names, numbers, paths.

Names are completed by the shell. Numbers are written in ASCII digits, as in a recipe's YAML, although Python
also accepts `6_0`. A path must not be empty: `"$DIR"` with DIR unset would be the current folder.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from caffe_recipes.errors import CaffeRecipesError, InputError
from caffe_recipes.run_names import RUNS, SUBMISSIONS, parse_run_name


class GivenPath(click.Path):
    """A path, as a Path, or as text if `as_text`; with `is_folder` it must be an existing folder.

    The code that reads the file reports errors.
    """

    def __init__(self, *, is_folder: bool = False, as_text: bool = False) -> None:
        kind = None if as_text else Path
        super().__init__(exists=is_folder, file_okay=not is_folder, readable=False, path_type=kind)

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        context: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        """Return the converted value; raises InputError if it is empty."""
        return super().convert(refuse_empty("path", value, param), param, context)


def refuse_empty(
    kind: str, value: str | os.PathLike[str], param: click.Parameter | None
) -> str | os.PathLike[str]:
    """Return a path or name unchanged; raises InputError, with the option or argument, if it is blank."""
    if not str(value).strip():
        where = (
            param.opts[-1] if isinstance(param, click.Option) else param.human_readable_name if param else ""
        )
        raise InputError(where, f"'{value}' is not a {kind}", "is a variable unset?")
    return value


PATH = GivenPath()
PATH_TEXT = GivenPath(as_text=True)
FOLDER = GivenPath(is_folder=True)


# bash inserts what click offers without quotes, so another user's file `a$(cmd).yaml` would run a command.
_NEEDS_NO_QUOTES = re.compile(r"[A-Za-z0-9._/+=@%:,-]+")


def complete_names(names: Iterable[str], typed: str) -> list[CompletionItem]:
    """Return the names that begin as typed and that no shell interprets."""
    known = (name for name in names if name.startswith(typed))
    return [CompletionItem(name) for name in known if _NEEDS_NO_QUOTES.fullmatch(name)]


class Name(click.types.StringParamType):
    """The name of a shipped recipe (unless `shipped` is False), or a file with one of these suffixes."""

    name = "name"

    def __init__(self, *suffixes: str, shipped: bool = True) -> None:
        self.suffixes = suffixes
        self.shipped = shipped
        if not shipped:
            self.name = "path"

    def convert(self, value: str, param: click.Parameter | None, context: click.Context | None) -> str:
        """Return the converted value; raises InputError if it is empty."""
        return str(super().convert(refuse_empty(self.name, value, param), param, context))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the matching names and files; if there are none, let the shell complete any path."""
        from caffe_recipes.review.naming import shipped_names  # slow, and needed only for completion

        given = ctx.params.get(param.name or "") if param.nargs == -1 else None
        names = [*self._runs(ctx), *(shipped_names() if self.shipped else []), *self._files(incomplete)]
        items = complete_names((name for name in names if name not in (given or ())), incomplete)
        return items or [CompletionItem(incomplete, type="file")]

    def _runs(self, ctx: click.Context) -> list[str]:
        return []

    def _files(self, incomplete: str) -> list[str]:
        folder = os.path.dirname(incomplete)  # noqa: PTH120 - the path as it was typed
        try:
            names = sorted(entry.name for entry in Path(folder or ".").iterdir() if not entry.is_dir())
        except OSError:
            return []
        return [os.path.join(folder, name) for name in names if name.endswith(self.suffixes)]  # noqa: PTH118


class RunName(Name):
    """The name of a run under `--caffe-root`, or of its recipe."""

    name = "run"

    def _runs(self, ctx: click.Context) -> list[str]:
        if ctx.params.get("on") is not None:
            return []
        runs = Path(ctx.params.get("caffe_root") or ".") / RUNS
        submitted = (path.name.removesuffix(SUBMISSIONS) for path in runs.glob(f"*{SUBMISSIONS}"))
        return sorted({*submitted, *(path.parent.name for path in runs.glob("*/journal.jsonl"))})


def complete_phase(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """Return the matching phases of the recipe or run that the command line names."""
    from caffe_recipes.recipe.source import load_recipe

    # While an option lacks its value, click has not read the arguments yet.
    words = [context.params.get("recipe"), context.params.get("run"), *context.args]
    given = next((str(word) for word in words if word), "")
    for name in (given, (parse_run_name(given) or (given, 0))[0]):
        try:
            phases = load_recipe(name).phases
        except CaffeRecipesError:
            continue
        return complete_names((phase.name for phase in phases), typed)
    return []


class NetName(Name):
    """A net for `summary`: the name of a recipe, optionally with a colon and a net, or a prototxt."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return a recipe's matching nets after a colon, else the matching names and files."""
        recipe, colon, _ = incomplete.rpartition(":")
        if not colon:
            return super().shell_complete(ctx, param, incomplete)
        from caffe_recipes.recipe.source import load_recipe

        try:
            nets = load_recipe(recipe).nets
        except CaffeRecipesError:
            return []
        return complete_names((f"{recipe}:{name}" for name in nets), incomplete)


RECIPE = Name(".yaml", ".yml")
RECIPE_OR_PROTOTXT = Name(*RECIPE.suffixes, ".prototxt")
NET = NetName(".prototxt")
PROTOTXT = Name(".prototxt", shipped=False)
RUN = RunName(*RECIPE.suffixes)


_MOST_DIGITS = 400
_WHOLE = re.compile(rf"[-+]?[0-9]{{1,{_MOST_DIGITS}}}")
_THOUSANDS = re.compile(r"[0-9]{1,3}(,[0-9]{3})+")
_NUMBER = re.compile(
    rf"[-+]?(?:[0-9]{{1,{_MOST_DIGITS}}}(?:\.[0-9]*)?|\.[0-9]+)(?:e[-+]?[0-9]+)?|[-+]?(?:nan|inf(?:inity)?)",
    re.IGNORECASE,
)


class Whole(click.types.IntParamType):
    """An integer, within a range if one is given. The range is shown in errors, not in the help.

    If it `takes_commas`, they may separate thousands.
    """

    def __init__(self, min: int | None = None, max: int | None = None, *, takes_commas: bool = False) -> None:
        self.min, self.max = min, max
        self.takes_commas = takes_commas

    def convert(
        self,
        value: Any,  # noqa: ANN401 - text, or a default
        param: click.Parameter | None,
        context: click.Context | None,
    ) -> int:
        """Return the converted value; click names the option in an error."""
        if self.takes_commas and isinstance(value, str) and _THOUSANDS.fullmatch(value):
            value = value.replace(",", "")
        if isinstance(value, str) and not _WHOLE.fullmatch(value.strip()):
            self.fail(f"'{value[:80]}' is not an integer; write digits only.", param, context)
        number = int(super().convert(int(value), param, context))
        if self.min is not None and number < self.min:
            self.fail(f"{number} is too small; give {self.min} or more.", param, context)
        if self.max is not None and number > self.max:
            self.fail(f"{number} is too large; give {self.max} or less.", param, context)
        return number


class Number(click.types.FloatParamType):
    """A number, also `nan` and `inf`, which a command may refuse."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - text, or a default
        param: click.Parameter | None,
        context: click.Context | None,
    ) -> float:
        """Return the converted value; click names the option in an error."""
        if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
            self.fail(f"'{value[:80]}' is not a number; write one such as 0.5.", param, context)
        return float(super().convert(value, param, context))


class Seconds(Number):
    """A finite time of `min` seconds or more."""

    def __init__(self, min: float) -> None:
        self.min = min

    def convert(
        self,
        value: Any,  # noqa: ANN401 - text, or a default
        param: click.Parameter | None,
        context: click.Context | None,
    ) -> float:
        """Return the converted value; click names the option in an error."""
        seconds = super().convert(value, param, context)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a time in seconds.", param, context)
        if seconds < self.min:
            self.fail(f"{value} is too small; give {self.min:g} or more.", param, context)
        return seconds


COUNT = Whole(1, 2**31 - 1, takes_commas=True)
NUMBER = Number()


def examples(*lines: str) -> str:
    """Return the examples for the end of a command's help; each line is a complete command."""
    return "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in lines)])


def gather(kind: type[Any] | str, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that passes a command's options as one dataclass `kind` in the parameter `name`.

    A kind that is slow to import is named, as `module:name`, and imported when the command is called. Put the
    decorator below the options. A field without an option, or whose option is None, keeps its default. A
    field can be a dataclass that is gathered under its name above.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(*words: object, **given: object) -> None:
            made = _import_kind(kind) if isinstance(kind, str) else kind
            known = {field.name for field in fields(made)}
            own = {option: given.pop(option) for option in list(given) if option in known}
            own = {option: value for option, value in own.items() if value is not None}
            command(*words, **given, **{name: made(**own)})

        return call

    return decorate


def _import_kind(place: str) -> type[Any]:
    module, _, name = place.partition(":")
    kind: type[Any] = getattr(import_module(module), name)
    return kind
