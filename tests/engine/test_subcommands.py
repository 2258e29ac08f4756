"""What `train` refuses before it starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.engine.communication import AgreedFailure, Ranks
from caffe_recipes.engine.signal_requests import SignalRequests
from caffe_recipes.engine.subcommands import StartPoint, TrainingOptions, check_agreement, prepare_solver
from caffe_recipes.errors import InputError
from tests.engine.operators.test_data import QUIET

FILTERED = """net_param {
  layer { name: "d" type: "DummyData" top: "x" top: "keep" dummy_data_param {
    shape { dim: 4 dim: 2 } shape { dim: 4 } data_filler { type: "gaussian" } data_filler { value: 1 } } }
  layer { name: "f" type: "Filter" bottom: "x" bottom: "keep" top: "y" }
  layer { name: "bn" type: "BatchNorm" bottom: "y" top: "bn" }
  layer { name: "l" type: "Reduction" bottom: "bn" top: "l" loss_weight: 1 } }
"""


class TwoRanks(Ranks):
    """The first of two ranks, of which the other has said `text`, or the same as this one."""

    size = 2

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self.text, self.said = text, ""

    def gather(self, text: str) -> list[str]:
        self.said = text
        return [text, self.text or text]


def test_ranks_that_share_statistics_have_batches_of_one_size(tmp_path: Path) -> None:
    text = (
        f'{FILTERED} max_iter: 1 base_lr: 0.1 lr_policy: "fixed" type: "SGD" snapshot_prefix: "{tmp_path}/a"'
    )
    solver = parse_prototxt(text, pb.SolverParameter)

    def prepare(ranks: Ranks, options: TrainingOptions) -> None:
        prepare_solver(solver, "s", StartPoint(), ranks, SignalRequests(), QUIET, "cpu", options)

    with pytest.raises(InputError, match=r"s: layer 'f' \(Filter\): selects .* but -sync-bn needs the same"):
        prepare(TwoRanks(), TrainingOptions(synchronises=True))
    prepare(TwoRanks(), TrainingOptions())
    prepare(Ranks(), TrainingOptions(synchronises=True))


BATCH = """net_param {{
  layer {{ name: "d" type: "DummyData" top: "x" dummy_data_param {{ shape {{ dim: {batch} dim: 2 }} }} }}
  layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
    inner_product_param {{ num_output: {outputs} }} }}
  layer {{ name: "l" type: "Reduction" bottom: "ip" top: "l" loss_weight: 1 }} }}
type: "SGD" base_lr: 0.1 lr_policy: "fixed" max_iter: {iterations} snapshot_after_train: false
"""


@pytest.mark.parametrize(
    ("changed", "options", "what"),
    [
        ({"iterations": 6}, {}, "solver"),
        ({"outputs": 4}, {}, "net"),
        ({"batch": 3}, {"synchronises": True}, "batch size"),
        ({"batch": 3}, {}, ""),
        ({}, {"precision": "bf16"}, "-precision or -sync-bn"),
        ({}, {}, ""),
    ],
)
def test_ranks_that_would_wait_for_each_other_in_vain_are_named(
    changed: dict[str, int], options: dict[str, bool], what: str
) -> None:
    sizes, chosen = {"batch": 2, "outputs": 3, "iterations": 5}, TrainingOptions(**options)  # type: ignore[arg-type]

    def say(values: dict[str, int], ranks: TwoRanks, given: TrainingOptions) -> None:
        solver = parse_prototxt(BATCH.format(**values), pb.SolverParameter)
        made = prepare_solver(solver, "s", StartPoint(), ranks, SignalRequests(), QUIET, "cpu")
        check_agreement(made, ranks, given)

    other = TwoRanks()
    say(sizes | changed, other, chosen)
    first = TwoRanks(other.said)
    assert json.loads(other.said)
    if not what:
        say(sizes, first, chosen)
        return
    with pytest.raises(AgreedFailure) as caught:
        say(sizes, first, chosen if changed else TrainingOptions())
    message = f"rank 1: has another {what} than rank 0; give all ranks the same"
    assert (caught.value.code, caught.value.text) == (2, message)
