"""The NAME arguments of commands, and what a shell completes them with."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

import click
from click.shell_completion import CompletionItem


class RecipeName(click.types.StringParamType):
    """The name of a recipe that ships, or the path of a file with one of `suffixes`."""

    name = "recipe"

    def __init__(self, *suffixes: str) -> None:
        self.suffixes = suffixes or (".yaml", ".yml")

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete names and files; where neither begins so, let the shell complete any path."""
        given = set(ctx.params.get(param.name or "") or ())
        known = [
            name for name in (*_shipped_names(), *self._files(incomplete)) if name.startswith(incomplete)
        ]
        items = [CompletionItem(name) for name in known if name not in given]
        return items or [CompletionItem(incomplete, type="file")]

    def _files(self, incomplete: str) -> list[str]:
        folder = os.path.dirname(incomplete)  # noqa: PTH120 - the path as it was typed
        try:
            names = sorted(entry.name for entry in Path(folder or ".").iterdir() if not entry.is_dir())
        except OSError:
            return []
        return [os.path.join(folder, name) for name in names if name.endswith(self.suffixes)]  # noqa: PTH118


RECIPE = RecipeName()
RECIPE_OR_PROTOTXT = RecipeName(".yaml", ".yml", ".prototxt")


def _shipped_names() -> list[str]:
    """List the recipes that ship without reading them: a shell waits for this."""
    files = resources.files("caffe_recipes").joinpath("recipes").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))
