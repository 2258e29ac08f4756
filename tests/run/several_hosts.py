"""Several hosts that are all this machine under different names; and a run on them as a process.

Hydra reaches them by an `ssh` that starts its command here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from caffe_recipes.cluster.commands import COMMAND_S, Completed, Host
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.errors import CaffeRecipesError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.context import RunOptions
from caffe_recipes.run.policy import Policy
from caffe_recipes.run.runner import run_chain
from caffe_recipes.run.signals import Interrupted

_SSH = """\
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
shift
exec sh -c "$*"
"""


@dataclass(frozen=True)
class NamedHost(LocalHost):
    """This machine, which calls itself by another name."""

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        done = super().run(argv, timeout_s)
        mine = f": name {os.uname().nodename}\n"
        return Completed(done.returncode, done.stdout.replace(mine, f": name {self.name}\n"), "")


def connect(name: str, copy_with: Literal["ssh", "auto"] = "auto") -> Host:
    return LocalHost() if name == "localhost" else NamedHost(name)


def place_ssh(folder: Path) -> None:
    """Write the `ssh` that reaches them."""
    folder.mkdir()
    (folder / "ssh").write_text(_SSH)
    (folder / "ssh").chmod(0o755)


def main(recipe: str, *words: str) -> int:
    """Run a recipe as the command does, with its exit codes."""
    options = RunOptions(
        root=Path(),
        hostfile=Path("hosts"),
        side_by_side="--side-by-side" in words,
        policy=Policy("retry", retries=1) if "--retry" in words else Policy(),
    )
    try:
        run_chain(load_recipe(Path(recipe)), options, Reporter(), connect=connect)
    except Interrupted as stop:
        return 128 + stop.number
    except CaffeRecipesError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
