"""Each type that the engine runs can be exported, or is listed here."""

from __future__ import annotations

from caffe_recipes.engine.operators import FAMILIES, OPERATORS
from tests.extras import needs_onnx

pytestmark = needs_onnx

# Losses and metrics need labels, recurrent layers keep a state between batches, no deploy net has Filter or
# Im2col, and ONNX has no layer as SegNet's Upsample is.
NOT_EXPORTED = {
    "Accuracy",
    "CenterLoss",
    "ContrastiveLoss",
    "EuclideanLoss",
    "Filter",
    "HingeLoss",
    "Im2col",
    "InfogainLoss",
    "LSTM",
    "LSTMUnit",
    "MultinomialLogisticLoss",
    "RNN",
    "SegAccuracy",
    "SigmoidCrossEntropyLoss",
    "SmoothL1Loss",
    "SoftmaxWithLoss",
    "Upsample",
}


def test_each_type_that_runs_is_exported_or_listed() -> None:
    from caffe_recipes.engine.onnx_operators import CONVERTERS

    assert OPERATORS.keys() - CONVERTERS.keys() == NOT_EXPORTED
    assert CONVERTERS.keys() <= OPERATORS.keys()


def test_each_converter_stands_in_the_family_of_its_operator() -> None:
    from caffe_recipes.engine import onnx_operators

    operators = {family.__name__.rpartition(".")[2]: family.OPERATORS.keys() for family in FAMILIES}
    for family in onnx_operators.FAMILIES:
        assert family.CONVERTERS.keys() <= operators[family.__name__.rpartition(".")[2]]
