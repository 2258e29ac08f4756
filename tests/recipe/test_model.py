"""The JSON schema of a recipe is sound, and shipped recipes match it as editors check it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from caffe_recipes.config import Loader
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import recipe_schema

SCHEMA = recipe_schema()
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "null": type(None),
    "boolean": bool,
}  # fmt: skip


def is_of(value: object, name: str) -> bool:
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def mistakes(value: Any, rule: dict[str, Any], at: str) -> Iterator[str]:  # noqa: ANN401 - any YAML
    """Validate a value with the parts of JSON Schema that a recipe's schema uses."""
    if "if" in rule:
        branch = "else" if list(mistakes(value, rule["if"], at)) else "then"
        yield from mistakes(value, rule[branch], at)
    if "$ref" in rule:
        yield from mistakes(value, SCHEMA["$defs"][rule["$ref"].removeprefix("#/$defs/")], at)
    if "anyOf" in rule and all(list(mistakes(value, each, at)) for each in rule["anyOf"]):
        yield f"{at}: none of {rule['anyOf']}"
    if "enum" in rule and value not in rule["enum"]:
        yield f"{at}: {value!r} is none of {rule['enum']}"
    if "const" in rule and value != rule["const"]:
        yield f"{at}: {value!r} is not {rule['const']!r}"
    if "type" in rule and not is_of(value, rule["type"]):
        yield f"{at}: {value!r} is no {rule['type']}"
    elif isinstance(value, dict):
        yield from mistakes_inside(value, rule, at)
    elif isinstance(value, list) and "items" in rule:
        for index, item in enumerate(value):
            yield from mistakes(item, rule["items"], f"{at}[{index}]")
    elif isinstance(value, str) and "pattern" in rule and not re.search(rule["pattern"], value):
        yield f"{at}: {value!r} does not match {rule['pattern']}"
    elif is_of(value, "number"):
        yield from (f"{at}: {value} is under the minimum" for _ in [0] if value < rule.get("minimum", value))
        low = rule.get("exclusiveMinimum")
        yield from (f"{at}: {value} is not above {low}" for _ in [0] if low is not None and value <= low)


def mistakes_inside(value: dict[str, Any], rule: dict[str, Any], at: str) -> Iterator[str]:
    known, patterns = rule.get("properties", {}), rule.get("patternProperties", {})
    yield from (f"{at}: no {key}" for key in rule.get("required", ()) if key not in value)
    for key, item in value.items():
        rules = [known[key]] if key in known else [r for p, r in patterns.items() if re.search(p, key)]
        if not rules and rule.get("additionalProperties") is False:
            yield f"{at}: unknown key {key}"
        for each in rules:
            yield from mistakes(item, each, f"{at}.{key}")


def read(name: str) -> Any:  # noqa: ANN401 - any YAML
    return yaml.load(shipped_recipes()[name].file.read_text("utf-8"), Loader=Loader)


# Of a family any one of its rows, which all stand in one file.
FILES = {one.file.name: name for name, one in shipped_recipes().items()}
FAMILY = "paper-f4-4096-120ep"


@pytest.mark.parametrize("name", FILES.values(), ids=list(FILES))
def test_every_shipped_file_matches_the_schema(name: str) -> None:
    assert list(mistakes(read(name), SCHEMA, name)) == []


def test_the_shipped_files_include_families() -> None:
    assert sum("family" in read(name) for name in FILES.values()) >= 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda family: family.pop("title"), "a: no title"),
        (lambda family: family.update(bases={}), "a: unknown key bases"),
        (lambda family: family["base"].update(titel="x"), "a.base: unknown key titel"),
        (lambda family: family["base"]["cluster"].update(node=1), "a.base.cluster: unknown key node"),
        (lambda family: family["base"]["cluster"].update(nodes=0), "a.base.cluster.nodes: 0 is under"),
        (lambda family: family["base"]["derived"].append({"key": "x"}), "no rule"),
        (lambda family: family["rows"][FAMILY].update(name="x"), f"a.rows.{FAMILY}: unknown key name"),
        (lambda family: family["rows"][FAMILY]["schedule"].update(dekay="x"), "unknown key dekay"),
        (lambda family: family["rows"][FAMILY]["schedule"]["cycles"].update(counts=5), "unknown key counts"),
        (lambda family: family["rows"][FAMILY]["reported_by_phase"]["c1"].update(top1=1), "unknown key top1"),
        (lambda family: family["rows"][FAMILY].update(nets={"a": {"tests": True}}), "unknown key tests"),
        (lambda family: family["rows"].update({"../x": {}}), "a.rows: unknown key ../x"),
    ],
)
def test_a_mistake_in_a_family_is_marked_by_the_schema(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    family = read(FAMILY)
    change(family)
    assert any(message in mistake for mistake in mistakes(family, SCHEMA, "a"))


def test_a_recipe_that_leaves_a_rate_to_its_solver_block_matches_the_schema() -> None:
    recipe = read("digits-local")
    for phase in recipe["phases"]:
        recipe["solver"] |= {key: phase.pop(key) for key in ("base_lr", "lr_policy", "max_iter")}
    assert list(mistakes(recipe, SCHEMA, "a")) == []


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("titel", "x", "unknown key titel"),
        ("cluster", {"nodes": 0}, "0 is under the minimum"),
        ("phases", [{"lr_policy": "polly"}], "none of"),
        ("name", "../x", "does not match"),
        ("net", [], "is no object"),
        ("data", "as-in-lmdb", "none of"),
    ],
)
def test_values_that_the_loader_refuses_are_marked_by_the_schema(
    key: str, value: object, message: str
) -> None:
    assert any(message in mistake for mistake in mistakes(read("digits-local") | {key: value}, SCHEMA, "a"))


def test_every_reference_leads_somewhere() -> None:
    names = set(re.findall(r"#/\$defs/(\w+)", str(SCHEMA)))
    assert names == set(SCHEMA["$defs"])


def test_every_key_of_a_phase_and_of_a_row_is_offered() -> None:
    defs = SCHEMA["$defs"]
    assert {"weights_iter", "stop_iter", "reported", "base_lr"} <= set(defs["Phase"]["properties"])
    assert {*Recipe.model_fields, "schedule", "reported_by_phase"} - {"name"} == {
        *defs["PartOfRecipe"]["properties"]
    }
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
