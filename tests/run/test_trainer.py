"""A trainer is a value: nothing else of a run knows which program trains."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import caffe_recipes.run
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.training_plan import find_trainer

RUN = Path(caffe_recipes.run.__file__).parent
OWN = {*RUN.glob("caffe*.py"), *RUN.glob("tensorflow*.py")}
# What a failure means is a table of the lines of every program.
OTHERS = sorted(set(RUN.rglob("*.py")) - OWN - {*RUN.glob("failures/*.py")})
NAMES = {"trainer", "title", "Caffe", "OUR_TRAINER", "TENSORFLOW", "TensorFlow", "model_suffix", "is_ours"}
NAMES |= {"Recipe", "TensorFlowRecipe"}
# Freezing a recipe goes through its keys, whichever they are; LMDBs and records are checked in one place.
RECORDS = {"tensorflow", "caffe_recipes.run.tensorflow_data", "caffe_recipes.tensorflow.run"}
KEYS = {"folders.py": {"tensorflow"}, "preflight/tensorflow_records.py": RECORDS}
KEYS |= {"preflight/checks.py": {"caffe_recipes.run.preflight.tensorflow_records"}}
# The interface has a type of the flags in it. One function chooses the trainer of a recipe.
KEYS |= {"trainer.py": {"caffe_recipes.tensorflow.run"}}
KEYS |= {"training_plan.py": {"TensorFlow", "TensorFlowRecipe", "caffe_recipes.run.tensorflow"}}
CHOICES = {"training_plan.py": ["TensorFlowRecipe"]}


def words_of(tree: ast.AST) -> Iterator[str]:
    """Yield every name and every text of a module, with its docstrings and what it imports."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname", "module", "value"):
            word = getattr(node, field, None)
            if isinstance(word, str):
                yield word


def decisions_in(tree: ast.AST) -> Iterator[str]:
    """Yield code that branches on the trainer: a comparison, a lookup, a class, a match, an if."""
    asserted = {each for node in ast.walk(tree) if isinstance(node, ast.Assert) for each in ast.walk(node)}
    for node in ast.walk(tree):
        names, asked = NAMES, list[ast.AST]()
        if isinstance(node, ast.If | ast.IfExp):
            names, asked = {"is_ours"}, [each for each in ast.walk(node.test) if "trainer" in ast.dump(each)]
        elif isinstance(node, ast.Compare | ast.Match | ast.Subscript):
            asked = [node.subject] if isinstance(node, ast.Match) else [*ast.iter_child_nodes(node)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            # A class may be one of several: `isinstance(x, A | B)` and `isinstance(x, (A, B))`.
            asked = [part for each in node.args for part in ast.walk(each)]
        for each in asked if node not in asserted else ():
            name = getattr(each, "attr", getattr(each, "id", ""))
            if name in names:
                yield name


def test_no_other_module_of_a_run_knows_which_program_trains() -> None:
    named, decisions = {}, {}
    for path in OTHERS:
        tree, name = ast.parse(path.read_text()), str(path.relative_to(RUN))
        words = {word for word in words_of(tree) if re.search("tensorflow|horovod", word, re.IGNORECASE)}
        named[name] = words - KEYS.get(name, set())
        decisions[name] = list(decisions_in(tree))
    assert not {name: words for name, words in named.items() if words}
    assert {name: found for name, found in decisions.items() if found} == CHOICES


@pytest.mark.parametrize(
    "text",
    [
        "if recipe.trainer == 'x': pass",
        "value = WAYS[setting.trainer]",
        "match trainer:\n case 1: pass",
        "isinstance(setting.trainer, Caffe)",
        "x = find_trainer(recipe).words.title in known",
        "x = find_trainer(recipe).models.model_suffix == '.caffemodel'",
        "isinstance(recipe, Recipe)",
        "isinstance(recipe, (str, TensorFlowRecipe))",
        "if setting.trainer.is_ours: pass",
        "x = 1 if find_trainer(recipe).is_ours else 2",
    ],
)
def test_a_decision_by_the_trainer_is_seen(text: str) -> None:
    assert list(decisions_in(ast.parse(text)))


def test_a_recipe_names_its_trainer() -> None:
    recipe = load_recipe("digits-local")
    assert find_trainer(recipe).is_ours
    assert not find_trainer(recipe.model_copy(update={"trainer": "./build/tools/caffe"})).is_ours
