"""The operators of the engine by family."""

from __future__ import annotations

from caffe_recipes.caffe import layer_types
from caffe_recipes.engine.operators import FAMILIES, OPERATORS, data


def test_each_operator_stands_in_the_family_of_its_type() -> None:
    types = {family.__name__.rpartition(".")[2]: family.TYPES for family in layer_types.FAMILIES}
    operators = {family.__name__.rpartition(".")[2]: family.OPERATORS.keys() for family in FAMILIES}
    operators["data"] = data.SOURCES.keys() | data.OUTPUTS.keys()
    for family, names in operators.items():
        assert names <= {entry.name for entry in types[family]}, family
    assert len(OPERATORS) == sum(len(family.OPERATORS) for family in FAMILIES)


def test_the_table_of_layer_types_says_which_of_them_have_an_operator() -> None:
    run = {name for name, entry in layer_types.LAYER_TYPES.items() if entry.is_run}
    assert run == {*OPERATORS, *data.SOURCES, *data.OUTPUTS}
