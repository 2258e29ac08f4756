"""The frozen recipe of a run: every command reads back any recipe unchanged."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from caffe_recipes.authoring.new import RecipeRequest, make_new
from caffe_recipes.authoring.recipe_yaml import render_yaml
from caffe_recipes.errors import CaffeRecipesError, InputError
from caffe_recipes.recipe.model import AnyRecipe, Recipe
from caffe_recipes.recipe.source import load_any_recipe, load_recipe, parse_recipe
from caffe_recipes.recipe.translate import translate
from caffe_recipes.run.folders import create_run, freeze_recipe, thaw_recipe
from caffe_recipes.run.monitor.run_files import LocalFiles, load_frozen
from tests.cli.command_line import call_main
from tests.run.conftest import RECIPE
from tests.run.recorded_run import WHOLE, launched, started, write_run
from tests.shipped import OF_CAFFE

PROTOTXT = """name: "mine"
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 10 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
NETS: dict[str, dict[str, Any]] = {
    "a builder's": {"builder": "resnet_small"},
    "a builder's with fillers": {
        "builder": "resnet50",
        "batch_norm_fraction": 0.9,
        "zero_init": "every-block",
        "fillers": {"conv": {"type": "gaussian", "std": 0.01}, "classifier": {"type": "constant"}},
    },
    "a prototxt": {"prototxt": "my_net.prototxt"},
    "a function's": {"function": "my_nets:build"},
}
kinds_of_nets = pytest.mark.parametrize("net", list(NETS.values()), ids=list(NETS))


def round_trip(recipe: Recipe) -> AnyRecipe:
    return thaw_recipe(json.loads(json.dumps(freeze_recipe(recipe))))


def values(recipe: AnyRecipe) -> dict[str, Any]:
    """All fields, as values; its folder and family are the file's, and not frozen."""
    return {name: getattr(recipe, name) for name in Recipe.model_fields}


def write_recipe(folder: Path, net: dict[str, Any]) -> Path:
    raw = yaml.safe_load(RECIPE)
    raw["net"] = {"name": "Mine", "classes": 10, **net}
    (folder / "my_net.prototxt").write_text(PROTOTXT)
    (folder / "my_nets.py").write_text(f"def build(net):\n    return {PROTOTXT!r}\n")
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


@pytest.mark.parametrize("name", OF_CAFFE)
def test_each_recipe_that_ships_is_read_back_as_it_was(name: str) -> None:
    recipe = load_recipe(name)
    assert values(round_trip(recipe)) == values(recipe)


def test_a_recipe_that_tensorflow_trains_is_frozen_whole() -> None:
    recipe = load_any_recipe("tf-digits-local")
    frozen = freeze_recipe(recipe)
    assert frozen["tensorflow"]["data"]["train"]["images"] == 1438
    assert frozen == json.loads(recipe.model_dump_json())


@pytest.mark.parametrize("dialect", ["intel", "bvlc", "nvcaffe"])
def test_a_translated_recipe_is_read_back_as_it_was(dialect: str) -> None:
    recipe = parse_recipe(RECIPE.replace("ranks_per_node: 2", "ranks_per_node: 1"), "small.yaml", Path())
    translated = translate(recipe, dialect)
    assert values(round_trip(translated)) == values(translated)


@kinds_of_nets
def test_a_recipe_of_each_kind_of_net_is_read_back_as_it_was(tmp_path: Path, net: dict[str, Any]) -> None:
    recipe = load_recipe(write_recipe(tmp_path, net))
    assert values(round_trip(recipe)) == values(recipe)


# Any text that is one line: what YAML and JSON must quote among it.
texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12).filter(str.strip)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)
rates = st.floats(1e-30, 1e30)
base_rates = st.floats(1e-30, 1e28)  # a warm-up multiplies them by an iteration, in float32
factors = st.floats(1e-9, 1)  # by which a rate stays finite
counts = st.integers(1, 2**31 - 1)


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


reported = optional(table=texts, row=counts, epochs=rates, minutes=rates, top1_percent=st.floats(0.1, 100))
phases = st.builds(
    lambda required, others, steps: {**required, **others, **steps},
    st.fixed_dictionaries({"net": st.just("train_val"), "base_lr": base_rates, "max_iter": counts}),
    optional(
        momentum=st.floats(0, 0.999),
        weight_decay=st.floats(0, 1e3),
        warmup_iter=counts,
        test_initialization=st.booleans(),
        comment=texts,
        reported=reported,
    ),
    st.one_of(
        st.fixed_dictionaries({"lr_policy": st.just("fixed")}),
        st.fixed_dictionaries({"lr_policy": st.just("poly"), "power": st.floats(0, 4)}),
        st.fixed_dictionaries(
            {
                "lr_policy": st.just("multistep"),
                "gamma": factors,
                "stepvalue": st.lists(counts, min_size=1, max_size=3),
            }
        ),
    ),
)
raws = st.fixed_dictionaries(
    {
        "title": texts,
        "trainer": st.just("./caffe"),
        "prototxt_dir": st.just("prototxt/some"),
        "net": st.sampled_from([{"name": "Some", "classes": 10, **net} for net in NETS.values()]),
        "solver": optional(display=counts, momentum2=st.floats(0, 0.99), snapshot=counts),
        "phases": st.lists(phases, min_size=1, max_size=3),
        "reported": reported,
        "differences": st.lists(
            st.fixed_dictionaries({"key": texts, "printed": texts | rates, "ours": rates, "why": texts}),
            max_size=2,
        ),
        "accept": st.lists(st.fixed_dictionaries({"finding": texts, "reason": texts}), max_size=2),
    }
)


@settings(max_examples=100)
@example(
    "0E0",
    {"title": "0E0", "phases": [{"net": "train_val", "base_lr": 1.0, "max_iter": 1, "lr_policy": "fixed"}]},
)
@given(names, raws)
def test_any_recipe_is_read_back_as_it_was(name: str, raw: dict[str, Any]) -> None:
    small = yaml.safe_load(RECIPE)
    for index, phase in enumerate(raw["phases"]):
        phase |= {"name": f"p{index}", "snapshot_prefix": f"tmp/p{index}"}
    whole = {**small, "evaluation": {"net": "train_val", "iterations": 1}, **raw, "name": name}
    # Not PyYAML's writer, which leaves out the quotes of a text such as 0E0, a number in YAML 1.2.
    recipe = parse_recipe(render_yaml(whole, {}), "some.yaml", Path())
    assert values(round_trip(recipe)) == values(recipe)


@settings(max_examples=20)
@given(nodes=st.integers(1, 512), batch=st.integers(8, 14), epochs=st.integers(10, 120))
def test_a_recipe_that_new_makes_is_read_back_as_it_was(nodes: int, batch: int, epochs: int) -> None:
    try:
        wish = RecipeRequest(name="mine", images=1_281_167, nodes=nodes, batch=2**batch, epochs=epochs)
        made = make_new(wish)
    except CaffeRecipesError:
        return
    recipe = parse_recipe(made.text, "mine.yaml", Path())
    assert values(round_trip(recipe)) == values(recipe)


def test_builder_options_without_a_builder_are_refused_in_a_recipe(tmp_path: Path) -> None:
    path = write_recipe(tmp_path, {"prototxt": "my_net.prototxt", "zero_init": "none"})
    with pytest.raises(CaffeRecipesError, match="zero_init: only builders use it"):
        load_recipe(path)


def test_a_frozen_recipe_is_checked_as_any_other() -> None:
    frozen = freeze_recipe(load_recipe("digits-local"))
    with pytest.raises(ValidationError, match="exactly one of builder, prototxt and function"):
        thaw_recipe({**frozen, "net": {**frozen["net"], "builder": None}})


@pytest.mark.parametrize("kind", ["a builder's", "a prototxt", "a function's"])
def test_every_command_reads_a_run_of_each_kind_of_net(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAFFE_RECIPES_RUN_CODE", "1")  # its prototxts are planned here
    recipe = write_recipe(tmp_path, NETS[kind])
    folder = write_run(tmp_path, recipe, *WHOLE, log="[0] a line\n")
    write_run(tmp_path, recipe, started(), launched(), number=2, log="[0] another\n")
    recipe.unlink()  # the run's own copy is what is read
    frozen = load_frozen(LocalFiles(), str(folder))
    assert isinstance(frozen, Recipe)
    assert frozen.net.name == "Mine"
    call_in = partial(call_main, cwd=tmp_path)
    done = call_in("status", "small-1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "state    finished" in done.stdout
    done = call_in("attach", "small-1", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("runs/small-1: ")
    done = call_in("logs", "small-2")
    assert (done.returncode, done.stdout) == (0, "[0] another\n")
    done = call_in("cancel", "small-1")
    assert (done.returncode, done.stderr) == (2, "Error: small-1: nothing to cancel: it is finished\n")
    done = call_in("ensemble", "small-1", "--members", "init,cyc1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "prototxt/small/train_val.prototxt: cannot be read" in done.stderr


@pytest.mark.parametrize("error", [InputError("journal", "is in use"), KeyboardInterrupt(), OSError(5, "no")])
def test_a_run_that_cannot_be_created_leaves_nothing_behind(tmp_path: Path, error: BaseException) -> None:
    def clock() -> float:
        raise error

    with pytest.raises((InputError, KeyboardInterrupt)):
        create_run(tmp_path / "runs" / "digits-local-1", load_recipe("digits-local"), {}, clock)
    assert list((tmp_path / "runs").iterdir()) == []
    links = Path("/proc/self/fd").glob("*")
    assert not [link for link in links if os.path.realpath(link).startswith(str(tmp_path))]
