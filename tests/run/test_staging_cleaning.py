"""Removing a staged LMDB that no process reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from caffe_recipes.cluster.commands import COMMAND_S, Completed
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.staging.stage import Cleaned
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.context import StageOptions
from caffe_recipes.run.staging import clean_recipe


@dataclass(frozen=True)
class Distant(LocalHost):
    """This machine, as one of the cluster; `ranks` are running there."""

    is_local: bool = False
    ranks: str = ""

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        done = super().run(argv, timeout_s)
        if "facts" not in argv:
            return done
        others = re.sub(r"^\S+: rank .*\n", "", done.stdout, flags=re.MULTILINE)
        return replace(done, stdout=f"{argv[4]} {self.ranks}{others}" if self.ranks else others)


def test_a_host_with_running_ranks_is_not_cleaned_but_the_others_are(tmp_path: Path) -> None:
    recipe = load_recipe("digits-local")
    lmdb = str(tmp_path / "node/lmdb")
    data = recipe.data.model_copy(update={"train": recipe.data.train.model_copy(update={"lmdb": lmdb})})
    (tmp_path / "hostfile").write_text("c1\nc2\n")
    ranks = {"c1": "rank 0 95 0123456789abcdef/init-1 alice\n", "c2": ""}
    cleaned = clean_recipe(
        recipe.model_copy(update={"data": data}),
        StageOptions(tmp_path),
        lambda name, copy_with: Distant(name, ranks=ranks[name]),
    )
    assert cleaned == [
        Cleaned("c1", "not cleaned: in use by a launch", failed=True),
        Cleaned("c2", "nothing to remove"),
    ]
