"""The NAME arguments of commands, and what a shell completes them with."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from caffe_recipes.cli.paths import refuse_empty

# As chain/submitting/submissions.py has it, which a shell that completes is not to wait for.
SUBMITTED = ".submissions.jsonl"


class Name(click.types.StringParamType):
    """The name of a recipe that ships, unless `shipped` is False, or the path of a file that ends so."""

    name = "name"

    def __init__(self, *suffixes: str, shipped: bool = True) -> None:
        self.suffixes = suffixes
        self.shipped = shipped
        if not shipped:
            self.name = "path"

    def convert(self, value: str, param: click.Parameter | None, context: click.Context | None) -> str:
        """Read it; raises InputError if it is empty."""
        return str(super().convert(refuse_empty(self.name, value, param), param, context))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete names and files; where neither begins so, let the shell complete any path."""
        from caffe_recipes.review.naming import shipped_names  # only a shell that completes waits for it

        given = ctx.params.get(param.name or "") if param.nargs == -1 else None
        names = [*self._runs(ctx), *(shipped_names() if self.shipped else []), *self._files(incomplete)]
        known = [name for name in names if name.startswith(incomplete)]
        items = [CompletionItem(name) for name in known if name not in (given or ())]
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


class Run(Name):
    """A run's name, of those under `--caffe-root`; or its recipe, as above."""

    name = "run"

    def _runs(self, ctx: click.Context) -> list[str]:
        if ctx.params.get("on") is not None:
            return []
        runs = Path(ctx.params.get("caffe_root") or ".") / "runs"
        submitted = (path.name.removesuffix(SUBMITTED) for path in runs.glob(f"*{SUBMITTED}"))
        return sorted({*submitted, *(path.parent.name for path in runs.glob("*/journal.jsonl"))})


RECIPE = Name(".yaml", ".yml")
RECIPE_OR_PROTOTXT = Name(".yaml", ".yml", ".prototxt")
PROTOTXT = Name(".prototxt", shipped=False)
RUN = Run(".yaml", ".yml")
