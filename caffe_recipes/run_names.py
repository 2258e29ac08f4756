"""The names of runs, `<recipe>-<n>`, and of what `runs/` holds of a recipe; imports nothing slow."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

RUNS = "runs"
SUBMISSIONS = ".submissions.jsonl"  # after the name of a recipe


def parse_run_name(name: str) -> tuple[str, int] | None:
    """Return the recipe and the number in the name of a run; None if it is not the name of a run.

    >>> parse_run_name("digits-local-12"), parse_run_name("digits-local")
    (('digits-local', 12), None)
    """
    found = re.fullmatch(r"(.+)-([0-9]{1,9})", name)
    return (found[1], int(found[2])) if found else None


def sort_runs(names: Iterable[str], recipe_name: str) -> list[str]:
    """Return the names that belong to a recipe's runs, oldest first."""
    found = ((parse_run_name(name), name) for name in names)
    numbered = [(run, name) for run, name in found if run and run[0] == recipe_name]
    return [name for _, name in sorted(numbered)]


def run_folders(root: Path, recipe_name: str) -> list[Path]:
    """Return the folders of a recipe's runs under the Caffe root, oldest first."""
    runs = root / RUNS
    names = [path.name for path in runs.iterdir()] if runs.is_dir() else []
    return [runs / name for name in sort_runs(names, recipe_name)]
