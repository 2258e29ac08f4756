"""The paths of commands. None is empty, as `"$DIR"` is while DIR is not set: that would be this folder."""

from __future__ import annotations

import os
from pathlib import Path

import click

from caffe_recipes.errors import InputError


class GivenPath(click.Path):
    """A path, as a Path, or as it was typed if `as_text`; `is_folder` asks for a folder that is there.

    Whether what is there can be read is for its reader to say, on one line.
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
        """Read it; raises InputError if it is empty."""
        return super().convert(refuse_empty("path", value, param), param, context)


def refuse_empty(
    kind: str, value: str | os.PathLike[str], param: click.Parameter | None
) -> str | os.PathLike[str]:
    """Give a path or name back; raises InputError, naming the option or argument, if nothing is in it."""
    if not str(value).strip():
        where = (
            param.opts[-1] if isinstance(param, click.Option) else param.human_readable_name if param else ""
        )
        raise InputError(where, f"'{value}' is no {kind}", "is a variable unset?")
    return value


PATH = GivenPath()
PATH_TEXT = GivenPath(as_text=True)
FOLDER = GivenPath(is_folder=True)
