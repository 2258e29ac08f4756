"""Pictures of sweeps: what is in them, and that they are the same anywhere."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from caffe_recipes.cluster.profiles import load_profile
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.estimate import Estimate
from caffe_recipes.recipe.pace import Shape
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.review.estimate.estimates import Known, estimate_shapes
from caffe_recipes.review.estimate.plot import render_sweep_plot

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


def sweep(*shapes: Shape) -> tuple[Estimate, ...]:
    return estimate_shapes(
        load_recipe("stampede2-64n-72ep"), shapes, Known(profile=load_profile("stampede2-knl"))
    )


def texts_in(svg: bytes) -> set[str]:
    ElementTree.fromstring(svg)
    return set(re.findall(r"<!-- (.*?) -->", svg.decode()))


def test_a_picture_names_its_recipe_axes_nodes_and_batches() -> None:
    shapes = [Shape(nodes, 1, batch) for nodes in (256, 512) for batch in (16, 32)]
    texts = texts_in(render_sweep_plot(sweep(*shapes), "svg"))
    assert {"stampede2-64n-72ep", "nodes", "minutes", "node-hours", "256", "512"} <= texts
    assert {"16 images a rank", "32 images a rank", "of it training", "linear scaling"} <= texts


def test_a_shared_global_batch_is_one_line() -> None:
    texts = texts_in(render_sweep_plot(sweep(Shape(256, 1, 32), Shape(512, 1, 16)), "svg"))
    assert "8,192 images an iteration" in texts


def test_one_shape_alone_can_be_drawn_twice_to_the_same_bytes() -> None:
    one = sweep(Shape(256, 1, 32))
    first = render_sweep_plot(one, "png")
    assert first[:4] == b"\x89PNG"
    assert first == render_sweep_plot(one, "png")


def test_more_lines_than_can_be_told_apart_are_refused() -> None:
    with pytest.raises(InputError, match="9 local batches to draw; sweep 8 at most"):
        render_sweep_plot(sweep(*(Shape(64, 1, batch) for batch in range(1, 10))), "svg")
