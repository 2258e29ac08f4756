"""What another Caffe's own fields mean is known to the rules: its makers' files give no false error."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.caffe.dialects import TITLES
from caffe_recipes.review.lint.findings import Finding
from caffe_recipes.review.lint.folders import lint_targets
from caffe_recipes.review.lint.inputs import LintOptions
from tests.review.conftest import LintSolvers, net_text

DATA = """layer { name: "d" type: "Data" top: "data" top: "label"
  transform_param { crop_size: 8 mean_value: 1 mean_value: 2 mean_value: 3 }
  data_param { source: "lm" batch_size: %s backend: LMDB prefetch: 4 } }
"""
CONV = """layer { name: "c" type: "Convolution" bottom: "data" top: "c"
  convolution_param { num_output: 4 kernel_size: 3 bias_term: false weight_filler { type: "xavier" } } }
"""
NORM = 'layer { name: "bn" type: "BatchNorm" bottom: "c" top: "bn" %s }\n'
END = """layer { name: "ip" type: "InnerProduct" bottom: "%s" top: "ip"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def check(tmp_path: Path, text: str, dialect: str) -> dict[str, Finding]:
    """Lint a net for another Caffe, and give its findings by id."""
    path = tmp_path / "net.prototxt"
    path.write_text(text)
    return {one.id: one for one in lint_targets([str(path)], LintOptions(dialect=dialect))}


def norm_net(norm: str) -> str:
    return DATA % 4 + CONV + NORM % norm + END % "bn"


PARAMS = "param { lr_mult: 1 } param { lr_mult: 1 }"


@pytest.mark.parametrize("params", ["", PARAMS, f"{PARAMS} {PARAMS} param {{ lr_mult: 1 }}"])
@pytest.mark.parametrize(
    "scale", ["scale_filler { value: 1 }", "bias_filler { value: 0 }", "scale_bias: true"]
)
def test_batch_norm_of_nvcaffe_masks_its_statistics_and_scales_by_itself(
    tmp_path: Path, params: str, scale: str
) -> None:
    found = check(tmp_path, norm_net(f"{params} batch_norm_param {{ {scale} }}"), "nvcaffe")
    assert not {"batch-norm-learned", "batch-norm-unscaled", "too-many-params"} & found.keys()


def test_batch_norm_of_nvcaffe_without_scale_is_unscaled_and_that_of_bvlc_still_refuses_its_rates(
    tmp_path: Path,
) -> None:
    assert "batch-norm-unscaled" in check(tmp_path, norm_net(PARAMS), "nvcaffe")
    assert "batch-norm-learned" in check(tmp_path, norm_net(PARAMS), "bvlc")


def test_frozen_layers_beside_a_scaling_batch_norm_of_nvcaffe_are_not_all(tmp_path: Path) -> None:
    frozen = norm_net("batch_norm_param { scale_bias: true }")
    for block in ("convolution_param {", "inner_product_param {"):
        frozen = frozen.replace(block, f"param {{ lr_mult: 0 }} param {{ lr_mult: 0 }} {block}")
    frozen = frozen.replace("bias_term: false ", "")
    assert "nothing-learns" not in check(tmp_path, frozen, "nvcaffe")
    assert "nothing-learns" in check(tmp_path, frozen.replace("scale_bias: true", ""), "nvcaffe")


def test_the_batch_of_nvcaffe_is_divided_among_gpus(tmp_path: Path) -> None:
    wide = CONV.replace("num_output: 4", "num_output: 9000")
    net = DATA.replace("crop_size: 8", "crop_size: 64") % 8192 + wide + END % "c"
    found = check(tmp_path, net, "nvcaffe")
    assert "blob-too-large" not in found
    assert found["dialect-meaning"].what.startswith("nvcaffe's batch_size is that of all GPUs of a host")
    assert "blob-too-large" in check(tmp_path, net, "bvlc")


SUMMED = "convolution_param { num_output: 6 kernel_size: 1 fusion_type: SUM_FUSION }"
UNSUMMED = SUMMED.replace("SUM_FUSION", "NONE_FUSION")
FUSED = "concat_param { per_fla_fuse: true }"


@pytest.mark.parametrize(
    ("layers", "dialect", "is_refused"),
    [
        (("a 2 4 3 3", "b 2 6 1 1", "Concat", FUSED, "2 42 1 1"), "intel", False),
        (("a 2 4 3 3", "b 2 6 1 1", "Concat", FUSED, "2 10 1 1"), "intel", True),
        (("a 2 4 3 3", "b 2 6 1 1", "Concat", "concat_param { }", "2 42 1 1"), "intel", True),
        (("a 2 4 3 3", "b 2 6 3 3", "Convolution", SUMMED, "2 6 3 3"), "intel", False),
        (("a 2 4 3 3", "b 2 6 3 3", "Convolution", UNSUMMED, "2 6 3 3"), "intel", True),
        (("a 2 4 3 3", "", "Reshape", "reshape_param { pixelshuffler: 2 }", "2 1 6 6"), "intel", False),
        (
            ("a 1 2 5 8 8", "", "Pooling", "pooling_param { kernel_size_3d: 5 kernel_size_3d: 2 "
             "kernel_size_3d: 2 stride_3d: 1 stride_3d: 2 stride_3d: 2 }", "1 2 1 4 4"), "intel", False,
        ),
        (
            ("a 2 4 6 6", "", "Pooling", "pooling_param { kernel_size: 3 stride: 2 round_mode: FLOOR }",
             "2 4 2 2"), "bvlc", False,
        ),
        (("a 2 4 6 6", "", "Pooling", "pooling_param { kernel_size: 3 stride: 2 }", "2 4 2 2"), "bvlc", True),
    ],
)  # fmt: skip
def test_shapes_follow_the_fields_of_the_dialect(
    tmp_path: Path, layers: tuple[str, ...], dialect: str, is_refused: bool
) -> None:
    *inputs, kind, block, wanted = layers
    blobs = [one.split() for one in (*inputs, f"want {wanted}") if one]
    text = "".join(
        f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ '
        f"{' '.join(f'dim: {dim}' for dim in dims)} }} }} }}\n"
        for name, *dims in blobs
    )
    bottoms = " ".join(f'bottom: "{name}"' for name, *_ in blobs[:-1])
    text += f'layer {{ name: "x" type: "{kind}" {bottoms} top: "x" {block} }}\n'
    text += 'layer { name: "sum" type: "Eltwise" bottom: "x" bottom: "want" top: "sum" }\n'
    assert ("shape-misfit" in check(tmp_path, text, dialect)) == is_refused


def test_a_quantized_net_and_data_layers_alone_are_not_missing_a_loss(tmp_path: Path) -> None:
    data = (DATA % 4).replace('type: "Data"', 'type: "Data" include { phase: TRAIN }')
    learned = CONV + 'layer { name: "q" type: "Silence" bottom: "c" bottom: "label" }\n'
    assert "no-loss" not in check(tmp_path, data, "intel")
    assert "no-loss" in check(tmp_path, data + learned, "intel")
    quantized = learned.replace(
        "convolution_param", "quantization_param { bw_layer_in: 8 } convolution_param"
    )
    assert "no-loss" not in check(tmp_path, data + quantized, "intel")


@pytest.mark.parametrize(
    ("dialect", "solver", "absent", "present"),
    [
        (
            "intel",
            {"base_lr": None, "lr_policy": '"multifixed"', "power": None, "stagelr": 0.1, "stageiter": 9},
            "base-lr-missing",
            "rates-not-judged",
        ),
        ("intel", {"snapshot_prefix": None}, "snapshot-prefix-missing", "snapshot-unnamed"),
        (
            "nvcaffe",
            {"snapshot_after_train": "false", "snapshot": 5000},
            "no-final-snapshot",
            "no-snapshot",
        ),
        (
            "nvcaffe",
            {"snapshot_after_train": "false", "test_and_snapshot_last_epochs": 1},
            "no-snapshot",
            "",
        ),
        ("nvcaffe", {"base_lr": 10, "larc": "true"}, "base-lr-large", ""),
        (
            "nvcaffe",
            {"solver_type": "ADAM", "momentum2": 0.99, "delta": 1},
            "solver-field-unread",
            "",
        ),
        ("surfsara", {"solver_type": "ADAM", "momentum2": 0.99}, "solver-field-unread", ""),
        ("surfsara", {"solver_type": "SGD", "momentum2": 0.99}, "", "solver-field-unread"),
        ("nvcaffe", {"base_lr": 10}, "", "base-lr-large"),
        ("nvcaffe", {"snapshot_after_train": "false", "snapshot": 300}, "no-snapshot", "no-final-snapshot"),
        ("intel", {"snapshot_prefix": None, "snapshot": 9}, "snapshot-unnamed", "snapshot-prefix-missing"),
        ("surfsara", {"snapshot_prefix": None}, "snapshot-unnamed", "snapshot-prefix-missing"),
        ("surfsara", {"snapshot_after_train": "false"}, "no-snapshot", "no-final-snapshot"),
    ],
)
def test_solvers_follow_the_fields_of_the_dialect(
    lint_solvers: LintSolvers, dialect: str, solver: dict[str, object], absent: str, present: str
) -> None:
    found = {one.id for one in lint_solvers({"a": solver}, dialect=dialect)}
    assert absent not in found
    assert not present or present in found


def test_a_solver_of_bvlc_names_the_weights_that_it_starts_from(
    lint_solvers: LintSolvers, tmp_path: Path
) -> None:
    script = tmp_path / "run.sh"
    commands = [f"caffe train -solver own/solver_{name}.prototxt\n" for name in "ab"]
    script.write_text("".join(commands))
    own = {"weights": '"/tmp/own_a_iter_1000.caffemodel"'}
    missing = lint_solvers({"a": {}, "b": {}}, dialect="bvlc", script=script)
    assert "weights-missing" in {one.id for one in missing}
    named = lint_solvers({"a": {}, "b": own}, dialect="bvlc", script=script)
    assert "weights-missing" not in {one.id for one in named}


@pytest.mark.parametrize(
    ("dialect", "kind"), [("nvcaffe", "DetectNetTransformation"), ("intel", "DetectionOutput")]
)
def test_layers_that_read_transform_param_are_known(tmp_path: Path, dialect: str, kind: str) -> None:
    layer = f'layer {{ name: "t" type: "{kind}" bottom: "data" top: "t" transform_param {{ scale: 2 }} }}\n'
    assert "block-unread" not in check(tmp_path, net_text("TRAIN") + layer, dialect)


def pooled(tmp_path: Path, size: int, fields: str, dialect: str) -> tuple[str, str]:
    """Give what lint says of a pooling layer's size, and its advice on a field that a dialect lacks."""
    text = (
        f'input: "data" input_shape {{ dim: 1 dim: 3 dim: {size} dim: {size} }}\n'
        f'layer {{ name: "p" type: "Pooling" bottom: "data" top: "p" pooling_param {{ {fields} }} }}'
    )
    found = check(tmp_path, text, dialect)
    size_finding = found.pop("pooling-size-changes", None)
    advice = " ".join(one.write for one in found.values())
    return f"{size_finding.what}; {size_finding.write}" if size_finding else "", advice


@pytest.mark.parametrize("field", ["round_mode: FLOOR", "ceil_mode: false"])
@pytest.mark.parametrize("dialect", ["intel", "nvcaffe", "surfsara"])
def test_a_pooled_size_that_was_rounded_down_is_named_with_what_it_becomes(
    tmp_path: Path, dialect: str, field: str
) -> None:
    for size, fields, down, up, write in (
        (112, "kernel_size: 3 stride: 2 pad: 1", "1x3x56x56", "1x3x57x57", "pad: 0"),
        (224, "kernel_size: 3 stride: 2", "1x3x111x111", "1x3x112x112", "kernel_size: 4"),
    ):
        found, advice = pooled(tmp_path, size, f"{fields} {field}", dialect)
        what = (
            f"layer 'p' (Pooling) gives {down} where the size is rounded down, and {up} in {TITLES[dialect]}"
        )
        assert found == f"{what}; {write} gives {down} too, from windows at other places"
        assert advice and "remove it" not in advice
    apart = f"kernel_h: 3 kernel_w: 3 stride: 2 {field}"
    assert "no pad or kernel_size gives 1x3x111x111" in pooled(tmp_path, 224, apart, dialect)[0]
    assert pooled(tmp_path, 225, f"kernel_size: 3 stride: 2 {field}", dialect)[0] == "", "the same size"


def test_a_field_for_rounding_is_removed_where_it_has_the_default(tmp_path: Path) -> None:
    assert pooled(tmp_path, 224, "kernel_size: 3 stride: 2 round_mode: FLOOR", "bvlc") == ("", "")
    advice = pooled(tmp_path, 224, "kernel_size: 3 stride: 2 round_mode: CEIL", "nvcaffe")[1]
    assert advice == "remove it; there pooling always rounds its output size up, as with round_mode: CEIL"
