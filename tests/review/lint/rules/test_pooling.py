"""Pooling that another Caffe rounds down, in a net of either format."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.review.lint.folders import lint_targets
from caffe_recipes.review.lint.inputs import LintOptions

INPUT = 'input: "x" input_shape { dim: 1 dim: 3 dim: 6 dim: 6 }\n'
NEW = 'layer { name: "p" type: "Pooling" bottom: "x" top: "p" pooling_param {\n PARAM } }'
OLD = 'layers { name: "p" type: POOLING bottom: "x" top: "p" pooling_param {\n PARAM } }'


@pytest.mark.parametrize("layer", [NEW, OLD])
@pytest.mark.parametrize(
    ("param", "count"),
    [
        ("kernel_size: 3 stride: 2 round_mode: FLOOR", 1),
        ("kernel_size: 3 stride: 2 ceil_mode: false", 1),
        ("kernel_size: 2 stride: 2 round_mode: FLOOR", 0),
        ("kernel_size: 3 stride: 2", 0),
    ],
)
def test_a_size_that_is_rounded_down_elsewhere_is_found(
    tmp_path: Path, layer: str, param: str, count: int
) -> None:
    file = tmp_path / "net.prototxt"
    file.write_text(INPUT + layer.replace("PARAM", param))
    found = [one for one in lint_targets([str(file)], LintOptions()) if one.id == "pooling-size-changes"]
    assert [one.values for one in found] == [{"down": "1x3x2x2", "up": "1x3x3x3"}] * count
    assert all(one.where.startswith(f"{file}:2:") for one in found)
