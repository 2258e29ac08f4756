"""The meaning of the words of a sweep, and which are refused."""

from __future__ import annotations

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.recipe.pace import RunSize
from caffe_recipes.review.inspect.sweep import parse_sweep, sweep_shapes

OWN = RunSize(64, 2, 32)


def nodes_of(*sweeps: str) -> list[int]:
    return [shape.nodes for shape in sweep_shapes(OWN, sweeps)]


def test_numbers_steps_and_factors_can_be_mixed() -> None:
    assert nodes_of("nodes=512,1..3,64..256:64,100..900:x3") == [
        1,
        2,
        3,
        64,
        100,
        128,
        192,
        256,
        300,
        512,
        900,
    ]


def test_without_a_sweep_only_the_recipe_s_own_shape_is_estimated() -> None:
    assert sweep_shapes(OWN, []) == (OWN,)


def test_two_keys_are_combined() -> None:
    shapes = sweep_shapes(OWN, ["batch_per_rank=16,32", "nodes=64,128"])
    assert shapes == (RunSize(64, 2, 16), RunSize(128, 2, 16), RunSize(64, 2, 32), RunSize(128, 2, 32))


def test_a_global_batch_is_shared_by_the_ranks() -> None:
    shapes = sweep_shapes(OWN, ["global_batch=4096"], nodes=[128, 64])
    assert shapes == (RunSize(64, 2, 32), RunSize(128, 2, 16))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "nods=1",
            "unknown key 'nods'; did you mean 'nodes'? the keys are nodes, batch_per_rank, global_batch",
        ),
        ("", "unknown key ''"),
        ("nodes", "has no values"),
        ("nodes=", "has no values"),
        ("nodes=0", "'0' is not an integer of 1 or more"),
        ("nodes=1,,2", "'' is not an integer of 1 or more"),
        ("nodes=-4", "'-4' is not an integer of 1 or more"),
        ("nodes=1.5", "'1.5' is not an integer of 1 or more"),
        ("nodes=٣", "'٣' is not an integer of 1 or more"),
        ("nodes=9999999999", "'9999999999' is not an integer of 1 or more"),
        ("nodes=9..3", "'9..3' is descending"),
        ("nodes=1..2000", "'1..2000' has over 1000 values"),
        ("nodes=1..900,1001..1900", "has 1800 values"),
        ("nodes=1..9:0", "'0' is not an integer of 1 or more"),
        ("nodes=1..9:x1", "'1..9:x1' has the factor 1"),
    ],
)
def test_an_invalid_sweep_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_sweep(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sweeps", "message"),
    [
        (["nodes=1", "nodes=2"], "--sweep nodes: is given twice"),
        (["global_batch=8", "batch_per_rank=8"], "cannot be given with batch_per_rank"),
        (["global_batch=100"], "100 images cannot be shared evenly by the 128 ranks of 64 nodes"),
        (["nodes=1..100", "batch_per_rank=1..100"], "asks for 10,000 estimates"),
    ],
)
def test_sweeps_that_contradict_are_refused(sweeps: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sweep_shapes(OWN, sweeps)
