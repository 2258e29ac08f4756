"""A Caffe root with the scripts of the small recipe, and a Slurm that is a dict."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.recipe_files import generate
from caffe_recipes.render.tree import write_files
from caffe_recipes.run.submit.planned_jobs import SubmitOptions
from caffe_recipes.run.submit.submissions import Submission, Submissions, load_submissions, submissions_path
from caffe_recipes.run.submit.submit import SubmitEnv, describe_submission, submit_chain
from tests.run.conftest import RECIPE
from tests.run.submit.fake_slurm import FakeSlurm


@dataclass
class Desk:
    """A user's place to submit from."""

    root: Path
    slurm: FakeSlurm = field(default_factory=FakeSlurm)
    messages: list[str] = field(default_factory=list)
    paused: list[float] = field(default_factory=list)

    @property
    def recipe(self) -> Path:
        return self.root / "small.yaml"

    def options(self, **more: object) -> SubmitOptions:
        return SubmitOptions(**{"given": str(self.recipe), "root": self.root, "out": self.root} | more)  # type: ignore[arg-type]

    def submit(self, **more: object) -> list[Submission]:
        env = SubmitEnv(self.slurm.host, self.paused.append, lambda: 1_700_000_000.0)
        return submit_chain(load_recipe(self.recipe), self.options(**more), self.messages.append, env)

    def describe(self, *, with_scripts: bool = False, **more: object) -> str:
        return "\n".join(
            describe_submission(load_recipe(self.recipe), self.options(**more), with_scripts=with_scripts)
        )

    def change(self, before: str, after: str) -> None:
        """Change the recipe, and regenerate its scripts."""
        text = self.recipe.read_text()
        assert before in text
        self.recipe.write_text(text.replace(before, after))
        write_files(generate(load_recipe(self.recipe)), self.root)

    def journal(self) -> Submissions:
        return load_submissions(submissions_path(self.root, "small"))

    def files(self) -> dict[str, bytes]:
        paths = sorted(path for path in self.root.rglob("*") if path.is_file())
        return {str(path.relative_to(self.root)): path.read_bytes() for path in paths}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Generate the small recipe's scripts."""
    root = tmp_path / "caffe root, 100%"
    root.mkdir()
    made = Desk(root)
    made.recipe.write_text(RECIPE)
    write_files(generate(load_recipe(made.recipe)), root)
    return made
