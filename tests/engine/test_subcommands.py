"""What `train` refuses before it sets up a net."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.engine.communication import Ranks
from caffe_recipes.engine.signal_requests import SignalRequests
from caffe_recipes.engine.subcommands import StartPoint, TrainingOptions, prepare_solver
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
    """The first of two ranks."""

    size = 2


def test_ranks_that_share_statistics_have_batches_of_one_size(tmp_path: Path) -> None:
    text = (
        f'{FILTERED} max_iter: 1 base_lr: 0.1 lr_policy: "fixed" type: "SGD" snapshot_prefix: "{tmp_path}/a"'
    )
    solver = parse_prototxt(text, pb.SolverParameter)

    def prepare(ranks: Ranks, options: TrainingOptions) -> None:
        prepare_solver(solver, "s", StartPoint(), ranks, SignalRequests(), QUIET, "cpu", options)

    with pytest.raises(InputError, match=r"s: layer 'f' \(Filter\): selects .* but --sync-bn needs the same"):
        prepare(TwoRanks(), TrainingOptions(synchronises=True))
    prepare(TwoRanks(), TrainingOptions())
    prepare(Ranks(), TrainingOptions(synchronises=True))
