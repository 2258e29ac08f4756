"""The rule on fields and enum values that our Caffe does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.review.lint.findings import Finding
from caffe_recipes.review.lint.folders import lint_targets
from caffe_recipes.review.lint.inputs import LintOptions
from caffe_recipes.review.rewrites import plan_fixes

INPUT = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 6 dim: 5 dim: 5 } } }'
POOLS = "\n".join(
    f'layer {{ name: "p{index}" type: "Pooling" bottom: "x" top: "p{index}" '
    f"pooling_param {{ kernel_size: 2 stride: 2 ceil_mode: {value} }} }}"
    for index, value in enumerate(("true", "false", "true"))
)


def found_in(path: Path, text: str, dialect: str = "surfsara") -> list[Finding]:
    path.write_text(text)
    findings = lint_targets([str(path)], LintOptions(dialect=dialect))
    return [one for one in findings if one.id in ("unknown-field", "unknown-layer-type")]


@pytest.mark.parametrize(
    ("text", "places", "write"),
    [
        (f"{INPUT}\n{POOLS}", ["3:"], "it is a field of several forks; here pooling always rounds"),
        ("gama: 1\nbase_lr: 1", ["1:1"], "did you mean 'gamma'?"),
        ("name: 'x'\nnet: 'y' base_lr: 1 max_iter: 1", ["1:1"], "it is a field of LabelMapItem"),
        (f"{INPUT} layer {{ name: 'r' type: 'ReLU' bottom: 'x' odd: 1 odd: 2 }}", ["1:"], "the fields of"),
        (f"{INPUT} layer {{ name: 'r' type: 'CenterLoss' bottom: 'x' }}", ["1:"], "it is a layer of ydwen/"),
        ("layers { name: 'b' type: BN bottom: 'x' } input: 'x'", ["1:"], "it is a layer of alexgkendall/"),
    ],
)
def test_each_name_is_found_once(tmp_path: Path, text: str, places: list[str], write: str) -> None:
    file = tmp_path / "n.prototxt"
    found = found_in(file, text)
    assert [one.where.startswith(f"{file}:{place}") for one, place in zip(found, places, strict=True)] == [
        True
    ] * len(places)
    assert found[0].write.startswith(write)


def test_the_rest_of_a_net_with_foreign_fields_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "n.prototxt"
    file.write_text(f'{INPUT} layer {{ name: "r" type: "ReLU" bottom: "y" top: "z" odd: 1 }}')
    assert {one.id for one in lint_targets([str(file)], LintOptions())} >= {"unknown-field", "unknown-bottom"}


def test_a_field_with_the_value_that_our_caffe_has_is_removed(tmp_path: Path) -> None:
    found = found_in(tmp_path / "n.prototxt", f"{INPUT}\n{POOLS}")
    (rewrite,), fixed, _ = plan_fixes(found, [tmp_path])
    assert rewrite.after == rewrite.before.replace(" ceil_mode: true", "")
    assert [one.id for one in fixed] == ["unknown-field"]


def test_a_field_that_a_dialect_has_is_left_to_the_rules_of_dialects(tmp_path: Path) -> None:
    text = "rampup_interval: 1 base_lr: 1 gama: 1"
    assert [one.values["name"] for one in found_in(tmp_path / "s.prototxt", text, "nvcaffe")] == [
        "SolverParameter.gama"
    ]
    assert len(found_in(tmp_path / "s.prototxt", text)) == 2


@pytest.mark.parametrize("type_", ["DepthwiseConvolution", "ConvolutionDepthwise"])
@pytest.mark.parametrize(
    ("given", "fixed"),
    [
        ("num_output: 6", "num_output: 6 group: 6"),
        ("num_output: 6 group: 6", "num_output: 6 group: 6"),
        ("num_output: 6 group: 1", "num_output: 6 group: 6"),
        ("num_output: 12", None),
    ],
)
def test_a_depthwise_convolution_becomes_a_convolution_with_a_group_per_channel(
    tmp_path: Path, type_: str, given: str, fixed: str | None
) -> None:
    layer = 'layer { name: "d" type: "TYPE" bottom: "x" top: "d" convolution_param { kernel_size: 3 GIVEN } }'
    text = f"{INPUT}\n{layer}\n"
    found = found_in(tmp_path / "n.prototxt", text.replace("TYPE", type_).replace("GIVEN", given))
    assert [one.id for one in found] == ["unknown-layer-type"]
    rewrites = plan_fixes(found, [tmp_path])[0]
    assert found[0].write.startswith('type: "Convolution" with group: ')
    assert [each.after for each in rewrites] == (
        [text.replace("TYPE", "Convolution").replace("GIVEN", fixed)] if fixed else []
    )
