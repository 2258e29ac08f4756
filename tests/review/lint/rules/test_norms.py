"""Each rule on batch normalization and residual blocks: a wrong net, and its fixed twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caffe_recipes.review.lint.findings import Finding
from tests.review.lint.conftest import ids_judging

CheckText = Callable[..., dict[str, Finding]]

DATA = """
layer { name: "data" type: "Data" top: "data" top: "label"
  transform_param { mean_value: 1 mean_value: 2 mean_value: 3 crop_size: 8 }
  data_param { source: "a" batch_size: 2 backend: LMDB } }
"""
FC = """
layer { name: "fc" type: "InnerProduct" bottom: "%s" top: "fc"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
"""


def conv(name: str, bottom: str, norm: str = "", scale: str = "") -> str:
    """Give a convolution with its BatchNorm and Scale in place."""
    return f"""
    layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}"
      convolution_param {{ num_output: 3 kernel_size: 3 pad: 1 bias_term: false
        weight_filler {{ type: "msra" }} }} }}
    layer {{ name: "bn_{name}" type: "BatchNorm" bottom: "{name}" top: "{name}" batch_norm_param {{ {norm} }}
      }}
    layer {{ name: "scale_{name}" type: "Scale" bottom: "{name}" top: "{name}"
      scale_param {{ bias_term: true {scale} }} }}
    """


def block(name: str, bottom: str, norm: str = "", scale: str = "") -> str:
    """Give a residual block of two convolutions; `norm` and `scale` are of the last."""
    add = f'layer {{ name: "{name}" type: "Eltwise" bottom: "{bottom}" bottom: "{name}b" top: "{name}" }}\n'
    return conv(f"{name}a", bottom) + conv(f"{name}b", f"{name}a", norm, scale) + add


ZERO = "filler { value: 0 }"
RIGHT = DATA + conv("x", "data") + conv("y", "x") + FC % "y"
TWO_BLOCKS = DATA + block("r1", "data", ZERO) + block("r2", "r1", ZERO) + FC % "r2"
SIX = DATA + "".join(conv(f"c{i}", f"c{i - 1}" if i else "data") for i in range(6)) + FC % "c5"
PARAMS = RIGHT.replace('top: "x" batch', 'top: "x" param { lr_mult: 0 } param { lr_mult: 0 } batch')
ENGINE = 'engine: "MKLDNN"\n'
# In TRAIN alone another layer reads what the BatchNorm of x makes.
APART = RIGHT.replace('bottom: "x" top: "x" batch', 'bottom: "x" top: "bn" batch').replace(
    'type: "Scale" bottom: "x" top: "x"', 'type: "Scale" bottom: "bn" top: "sx"'
)
APART = APART.replace('bottom: "x" top: "y"', 'bottom: "sx" top: "y"')
SIDE = """
layer { name: "quiet" type: "Silence" bottom: "bn" include { phase: TRAIN } }
"""

CASES: dict[str, tuple[str, str]] = {
    "batch-norm-learned": (
        ENGINE + PARAMS.replace("param { lr_mult: 0 }", "param { decay_mult: 0 }", 1),
        ENGINE + PARAMS,
    ),
    "batch-norm-multipliers": (PARAMS.replace("param { lr_mult: 0 }", "param { }", 1), PARAMS),
    "fold-refused": (RIGHT.replace("bias_term: true", "bias_term: true axis: 0 num_axes: 2", 1), RIGHT),
    "folds-differ": (APART + SIDE, APART + SIDE.replace('"bn"', '"y"')),
    "batch-norm-frozen": (
        RIGHT.replace("batch_norm_param {", "batch_norm_param { use_global_stats: true"),
        RIGHT,
    ),
    "batch-norm-per-batch": (
        RIGHT.replace("batch_norm_param {", "batch_norm_param { use_global_stats: false"),
        RIGHT,
    ),
    "batch-norm-unscaled": (RIGHT.replace('"Scale" bottom: "x"', '"ReLU" bottom: "x"'), RIGHT),
    "batch-norm-scale-missing": (SIX.replace('"Scale" bottom: "c3"', '"ReLU" bottom: "c3"'), SIX),
    "scale-bias-missing": (SIX.replace("bias_term: true", "bias_term: false", 1), SIX),
    "moving-average-range": (
        RIGHT.replace("batch_norm_param {", "batch_norm_param { moving_average_fraction: 1.5"),
        RIGHT.replace("batch_norm_param {", "batch_norm_param { moving_average_fraction: 1"),
    ),
    "batch-norms-differ": (RIGHT.replace("batch_norm_param { ", "batch_norm_param { eps: 0.001 ", 1), RIGHT),
    "bias-before-norm": (RIGHT.replace("bias_term: false", "", 1), RIGHT),
    "zero-start-partly": (TWO_BLOCKS.replace(ZERO, "filler { value: 1 }", 1), TWO_BLOCKS),
}


def test_every_rule_has_a_case() -> None:
    assert CASES.keys() == ids_judging("the batch normalization of a net")


@pytest.mark.parametrize("rule", CASES)
def test_a_wrong_net_is_found_and_its_fixed_twin_is_not(rule: str, check_text: CheckText) -> None:
    wrong, fixed = CASES[rule]
    assert rule in check_text(wrong)
    assert check_text(fixed) == {}


def test_three_params_of_a_batch_norm_become_0_in_bvlcs_caffe_alone(check_text: CheckText) -> None:
    three = PARAMS.replace("} batch", "} param { } batch", 1)
    assert check_text(three, dialect="bvlc") == {}
    assert list(check_text(three)) == ["batch-norm-multipliers"]
    assert "batch-norm-learned" in check_text(ENGINE + three)


@pytest.mark.parametrize(
    ("scale", "is_found"),
    [
        ("bias_term: false", True),
        ("bias_term: true axis: 0", True),
        ("bias_term: true num_axes: -1", True),
        ("bias_term: true axis: -3", False),
    ],
)
def test_a_scale_is_folded_if_it_has_a_factor_and_a_summand_for_each_channel(
    check_text: CheckText, scale: str, is_found: bool
) -> None:
    net = RIGHT.replace("scale_param { bias_term: true", f"scale_param {{ {scale}", 1)
    assert ("fold-refused" in check_text(net)) is is_found
    assert "fold-refused" not in check_text(net, dialect="bvlc")
    kept = net.replace("batch_norm_param {", "batch_norm_param { use_global_stats: false")
    assert "fold-refused" not in check_text(kept)


def test_many_layers_are_one_finding_with_their_number_and_names(check_text: CheckText) -> None:
    found = check_text(RIGHT.replace("bias_term: false", ""))["bias-before-norm"]
    assert found.what.startswith("2 layers (x, y) with a bias before BatchNorm")
    assert found.values == {"layers": 2}


def test_a_bias_that_another_layer_reads_before_the_norm_counts(check_text: CheckText) -> None:
    net = DATA + conv("x", "data") + conv("y", "x") + FC % "y"
    apart = net.replace('bottom: "x" top: "x" batch', 'bottom: "x" top: "n" batch').replace(
        "bias_term: false", ""
    )
    apart = apart.replace('type: "Scale" bottom: "x" top: "x"', 'type: "Scale" bottom: "n" top: "n"')
    both = apart.replace('bottom: "y"\n', 'bottom: "y"\n') + (
        'layer { name: "n2" type: "Eltwise" bottom: "x" bottom: "n" top: "n2" }\n'
        'layer { name: "q" type: "Silence" bottom: "n2" }'
    )
    assert check_text(both)["bias-before-norm"].what.startswith("1 layer (y)")


def test_zero_started_blocks_are_named_with_those_that_are_not(check_text: CheckText) -> None:
    found = check_text(TWO_BLOCKS.replace(ZERO, "filler { value: 1 }", 1))["zero-start-partly"]
    assert found.what.startswith(
        "1 of 2 residual blocks end in a BatchNorm or Scale whose filler is 0: r2; not r1"
    )


def test_a_scale_that_starts_at_0_counts_as_well(check_text: CheckText) -> None:
    net = DATA + block("r1", "data", scale=ZERO) + block("r2", "r1") + FC % "r2"
    assert "0: r1; not r2" in check_text(net)["zero-start-partly"].what
    assert check_text(net.replace(ZERO, "")) == {}


def test_a_product_and_a_sum_without_norms_are_not_residual_blocks(check_text: CheckText) -> None:
    add = 'layer { name: "s" type: "Eltwise" bottom: "data" bottom: "p" top: "s" }\n'
    plain = 'layer { name: "p" type: "Power" bottom: "data" top: "p" }\n' + add
    assert check_text(DATA + plain + block("r1", "s", ZERO) + FC % "r1") == {}


def test_a_deviation_is_reported_only_if_most_layers_agree(check_text: CheckText) -> None:
    plain = SIX.replace("bias_term: true", "bias_term: false")
    for text in (plain, plain.replace("bias_term: false }", "bias_term: true }", 1)):
        assert "scale-bias-missing" not in check_text(text)


@pytest.mark.parametrize(
    ("fraction", "effect"), [(1.5, "without bound"), (0, "last batch"), (-0.5, "change sign")]
)
def test_an_average_needs_a_share(check_text: CheckText, fraction: float, effect: str) -> None:
    net = RIGHT.replace("batch_norm_param {", f"batch_norm_param {{ moving_average_fraction: {fraction}")
    found = check_text(net)["moving-average-range"]
    assert (found.severity, found.values) == ("error", {"layers": 2})
    assert effect in found.effect


NORMED = """layer { name: "c" type: "Convolution" bottom: "data" top: "c"
  convolution_param { num_output: 4 kernel_size: 3 bias_term: false weight_filler { type: "msra" } } }
layer { name: "bn" type: "BatchNorm" bottom: "c" top: "bn" }
"""
NEGATIVE = 'layer { name: "neg" type: "Power" bottom: "bn" top: "neg" power_param { scale: -1 } }'
PATHS = {
    "C.ReLU": NEGATIVE + """
layer { name: "cat" type: "Concat" bottom: "bn" bottom: "neg" top: "cat" }""",
    "the other way round": NEGATIVE + """
layer { name: "cat" type: "Concat" bottom: "neg" bottom: "bn" top: "cat" }""",
    "an activation in place": 'layer { name: "r" type: "ReLU" bottom: "bn" top: "bn" }',
    "maxout": """layer { name: "cut" type: "Slice" bottom: "bn" top: "a" top: "b" }
layer { name: "max" type: "Eltwise" bottom: "a" bottom: "b" top: "cat" eltwise_param { operation: MAX } }""",
    "a split": """layer { name: "cut" type: "Split" bottom: "bn" top: "a" top: "cat" }
layer { name: "quiet" type: "Silence" bottom: "a" }""",
    "a shape": 'layer { name: "flat" type: "Flatten" bottom: "bn" top: "cat" }',
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_a_scale_is_found_behind_layers_that_keep_the_values(check_text: CheckText, path: str) -> None:
    end = "cat" if '"cat"' in path else "bn"
    scale = (
        f'layer {{ name: "s" type: "Scale" bottom: "{end}" top: "s" scale_param {{ bias_term: true }} }}\n'
    )
    assert "batch-norm-unscaled" not in check_text(DATA + NORMED + path + scale + FC % "s")
    assert "batch-norm-unscaled" in check_text(DATA + NORMED + path + FC % end)


def test_a_scale_behind_a_layer_with_weights_or_another_norm_is_not_that_of_the_first(
    check_text: CheckText,
) -> None:
    second = NORMED.replace("data", "bn").replace('"c"', '"c2"').replace('top: "bn"', 'top: "bn2"')
    second = second.replace('name: "bn"', 'name: "bn2"')
    scale = 'layer { name: "s" type: "Scale" bottom: "bn2" top: "s" scale_param { bias_term: true } }\n'
    found = check_text(DATA + NORMED + second + scale + FC % "s")["batch-norm-unscaled"]
    assert found.what == "1 BatchNorm layer (bn) without a Scale after it"


def test_a_block_starts_as_the_identity_through_a_dropout(check_text: CheckText) -> None:
    drop = 'layer {{ name: "d{0}" type: "Dropout" bottom: "r{0}b" top: "r{0}b" }}\n'
    net = DATA + block("r1", "data", scale=ZERO) + block("r2", "r1") + FC % "r2"
    for name in ("r1", "r2"):
        add = f'layer {{ name: "{name}" type: "Eltwise"'
        net = net.replace(add, drop.format(name[1]) + add)
    assert "0: r1; not r2" in check_text(net)["zero-start-partly"].what
