"""Pictures of sweeps: their contents, and that they are the same anywhere."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from caffe_recipes.cluster.profiles import load_profile
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.estimate import Estimate
from caffe_recipes.recipe.pace import RunSize
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.review.inspect.sweep import SpeedInputs, add_speedups, estimate_shapes
from caffe_recipes.review.inspect.sweep_plot import find_ticks, render_sweep_plot
from tests.extras import needs

pytestmark = needs("plot", "matplotlib")


def sweep(*shapes: RunSize) -> tuple[Estimate, ...]:
    known = SpeedInputs(profile=load_profile("stampede2-knl"), by="measured")
    return estimate_shapes(load_recipe("stampede2-64n-72ep"), shapes, known)


def texts_in(svg: bytes) -> set[str]:
    ElementTree.fromstring(svg)
    return set(re.findall(r"<!-- (.*?) -->", svg.decode()))


def test_a_picture_names_its_recipe_axes_nodes_and_batches() -> None:
    shapes = [RunSize(nodes, 1, batch) for nodes in (256, 512) for batch in (16, 32)]
    texts = texts_in(render_sweep_plot(sweep(*shapes), "svg"))
    assert {"stampede2-64n-72ep", "nodes", "minutes", "node-hours", "256", "512"} <= texts
    assert {
        "16 images per rank",
        "32 images per rank",
        "training only, first line",
        "linear scaling",
    } <= texts


def test_speed_ups_are_drawn_over_the_ranks_as_in_the_paper_s_figures() -> None:
    known, recipe = SpeedInputs(by="measured"), load_recipe("paper-t2-8192-256n")
    shapes = [RunSize(nodes, 1, 32) for nodes in (4, 64, 256)]
    estimates = add_speedups(recipe, estimate_shapes(recipe, shapes, known), known)
    texts = texts_in(render_sweep_plot(estimates, "svg"))
    assert {"speed-up over 4 ranks", "ranks", "linear scaling", "32 images per rank", "extrapolated"} <= texts
    assert "node-hours" not in texts


def test_a_shared_global_batch_is_one_line() -> None:
    texts = texts_in(render_sweep_plot(sweep(RunSize(256, 1, 32), RunSize(512, 1, 16)), "svg"))
    assert {"8,192 images per iteration", "training only"} <= texts


def test_batches_that_take_the_same_time_share_a_line() -> None:
    shapes = [RunSize(nodes, 1, batch) for nodes in (1, 2) for batch in range(1, 10)]
    known = SpeedInputs(images_per_s=100)
    svg = render_sweep_plot(estimate_shapes(load_recipe("digits-local"), shapes, known), "svg")
    assert "1, 2, 3, 4, 5, 6, 7, 8, 9 images per rank" in texts_in(svg)


@pytest.mark.parametrize(
    ("key", "title"), [("batch_per_rank", "images per rank"), ("global_batch", "images per iteration")]
)
def test_the_swept_quantity_is_on_the_axis(key: str, title: str) -> None:
    shapes = [RunSize(256, 1, batch) for batch in (8, 16, 32)]
    texts = texts_in(render_sweep_plot(sweep(*shapes), "svg", (key,)))
    ticks = {"8", "16", "32"} if key == "batch_per_rank" else {"2,048", "4,096", "8,192"}
    assert {title, "256 nodes", *ticks} <= texts
    assert "nodes" not in texts


def test_a_node_that_was_measured_to_be_faster_among_more_is_explained_below_the_picture() -> None:
    estimates = sweep(*(RunSize(nodes, 1, 16) for nodes in (512, 640, 768, 1024)))
    texts = texts_in(render_sweep_plot(estimates, "svg"))
    found = [text for text in texts if text.startswith("with ")]
    assert found == [
        "with 16 images per node, each node is faster among 768 nodes than among 512, as the paper measured"
    ]
    alone = sweep(*(RunSize(nodes, 1, 32) for nodes in (256, 512, 1024, 1536)))
    assert not any(text.startswith("with ") for text in texts_in(render_sweep_plot(alone, "svg")))


def test_open_marks_are_explained_if_present() -> None:
    known, beyond = (
        render_sweep_plot(sweep(RunSize(256, 1, 32), RunSize(n, 1, 32)), "svg") for n in (512, 2048)
    )
    assert "extrapolated" not in texts_in(known)
    assert "extrapolated" in texts_in(beyond)


def test_a_training_that_scales_linearly_is_one_line_with_that() -> None:
    shapes, known = [RunSize(1, 2, 32), RunSize(2, 2, 32)], SpeedInputs(images_per_s=100)
    texts = texts_in(render_sweep_plot(estimate_shapes(load_recipe("digits-local"), shapes, known), "svg"))
    assert "training only: linear scaling" in texts
    assert not {"training only", "linear scaling"} & texts


def test_overlapping_labels_of_node_counts_are_omitted() -> None:
    texts = texts_in(render_sweep_plot(sweep(*(RunSize(n, 1, 16) for n in (64, 65, 66, 1000))), "svg"))
    assert {"64", "1,000"} <= texts
    assert not {"65", "66"} & texts
    assert find_ticks([7]) == [7]
    ticks = find_ticks(range(1, 1001))
    assert (ticks[0], ticks[-1]) == (1, 1000)
    assert 10 < len(ticks) < 25


def test_long_times_are_drawn_in_longer_units() -> None:
    slow = estimate_shapes(
        load_recipe("stampede2-64n-72ep"), [RunSize(64, 2, 32)], SpeedInputs(images_per_s=1)
    )
    assert "days" in texts_in(render_sweep_plot(slow, "svg"))


def test_one_shape_alone_can_be_drawn_twice_to_the_same_bytes() -> None:
    one = sweep(RunSize(256, 1, 32))
    first = render_sweep_plot(one, "png")
    assert first[:4] == b"\x89PNG"
    assert first == render_sweep_plot(one, "png")


def test_more_lines_than_can_be_distinguished_are_refused() -> None:
    with pytest.raises(InputError, match="9 local batches to draw; sweep 8 at most"):
        render_sweep_plot(sweep(*(RunSize(256, 1, batch) for batch in range(16, 25))), "svg")
