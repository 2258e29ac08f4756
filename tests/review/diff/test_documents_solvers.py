"""Two solvers, and what the change does to the rate."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import find_rate_problem
from caffe_recipes.caffe.prototxt import load_prototxt, parse_prototxt
from caffe_recipes.caffe.rates import lr_at
from caffe_recipes.review.diff.changes import RateChange
from caffe_recipes.review.diff.documents import EpochScale, diff_documents, diff_rates, diff_solvers

AUTHORS = Path(__file__).resolve().parents[4] / "shared" / "reference" / "surfsara" / "resnet50_custom_lr"
INIT = (
    'lr_policy: "poly_cyc" base_lr: 1.6 power: 1 max_iter: 7800 lr_iter: 18720 '
    "warmup_iter: 1560 warmup_start_lr: 0.1"
)


def solver(text: str) -> pb.SolverParameter:
    return parse_prototxt(text, pb.SolverParameter)


def rates(old: str, new: str, *scales: EpochScale) -> dict[str, RateChange]:
    found = diff_rates(
        solver(old), solver(new), (scales[0], scales[1]) if scales else (EpochScale(), EpochScale())
    )
    return {rate.name: rate for rate in found}


@pytest.mark.skipif(not AUTHORS.is_dir(), reason="the published files are not beside this checkout")
def test_the_published_phases_show_their_rates_and_epochs() -> None:
    old, new = (
        load_prototxt(AUTHORS / f"solver_{name}.prototxt", pb.SolverParameter) for name in ("init", "cyc2")
    )
    found = {rate.name: rate for rate in diff_rates(old, new, (EpochScale(1281167, 4096),) * 2)}
    shown = {name: (f"{rate.old:.6g}", f"{rate.new:.6g}") for name, rate in found.items()}
    assert shown["start"] == ("0.1", "0.255")
    assert shown["end of warm-up"] == ("1.59904", "0.763491")
    assert shown["after warm-up"] == ("1.46667", "0.573849")
    assert shown["end"] == ("0.933419", "0.10279")
    assert shown["iterations"] == ("7800", "4750")
    assert shown["epochs"] == ("24.9373", "15.1862")


def test_a_change_that_leaves_the_rate_alone_does_not_mention_it() -> None:
    assert rates(INIT, f"{INIT} weight_decay: 1") == {}
    assert [change.field for change in diff_solvers(solver(INIT), solver(f"{INIT} weight_decay: 1"))] == [
        "weight_decay"
    ]


def test_rates_that_differ_only_between_start_and_end_show_where_most() -> None:
    old = 'lr_policy: "multistep" gamma: 0.5 base_lr: 1 max_iter: 50000 stepvalue: 20000 stepvalue: 40000'
    found = rates(old, old.replace("20000", "20007"))
    assert (found["start"].old, found["end"].old) == (found["start"].new, found["end"].new)
    assert found["greatest ratio"] == RateChange("greatest ratio", 0.5, 1.0, (20000, 20000))


def test_the_greatest_ratio_of_a_long_run_is_that_of_every_iteration() -> None:
    old = 'lr_policy: "poly" power: 2 base_lr: 1 max_iter: 9000 warmup_iter: 77 warmup_start_lr: 0.01'
    new = old.replace("0.01", "0.02").replace("power: 2", "power: 1.9").replace("77", "78")
    a, b = solver(old), solver(new)
    best = max(range(9000), key=lambda i: abs(math.log(lr_at(b, i) / lr_at(a, i))))
    assert rates(old, new)["greatest ratio"].iterations == (best, best)


def test_epochs_count_what_iter_size_and_an_early_stop_make_of_them() -> None:
    text = 'lr_policy: "fixed" base_lr: 1 max_iter: 100 iter_size: 2'
    found = rates(text, text, EpochScale(1000, 10), EpochScale(1000, 10, iterations=50))
    assert (found["epochs"].old, found["epochs"].new) == (2.0, 1.0)
    assert (found["iterations"].new, found["end"].iterations) == (50, (99, 49))


def test_a_schedule_without_a_rate_gives_the_reason_and_the_other_side_is_still_shown() -> None:
    broken = INIT.replace("lr_iter: 18720 ", "")
    assert "needs lr_iter" in find_rate_problem(solver(broken))
    found = rates(INIT, broken)
    assert (found["end"].new, "greatest ratio" in found) == (None, False)
    assert "depends on the losses" in find_rate_problem(solver('lr_policy: "plateau" base_lr: 1'))


@pytest.mark.parametrize("text", ["", "max_iter: -5", 'lr_policy: "step" base_lr: 1 max_iter: 9 gamma: 0.1'])
def test_solvers_that_train_nothing_are_not_an_error(text: str) -> None:
    assert rates(text, text) == {}
    assert diff_rates(solver(text), solver(INIT)) != []


def test_a_run_of_two_billion_iterations_is_compared_quickly() -> None:
    text = 'lr_policy: "poly" power: 1 base_lr: 1 max_iter: 2147483647'
    assert rates(text, text.replace("power: 1", "power: 2"))["greatest ratio"].iterations[0]


def test_nets_within_a_solver_are_compared_layer_by_layer() -> None:
    old = 'net_param { layer { name: "a" type: "ReLU" } layer { name: "b" type: "ReLU" } }'
    new = old.replace('name: "a" type: "ReLU"', 'name: "a" type: "TanH"')
    [change] = diff_solvers(solver(old), solver(new))
    assert (change.layer, change.field) == ("net_param: a", "type")


def test_a_rate_written_differently_is_reported_as_unchanged() -> None:
    step = "base_lr: 1 gamma: 0.1 max_iter: 100000 lr_policy: 'step' stepsize: 40000"
    multistep = "base_lr: 1 gamma: 0.1 max_iter: 100000 lr_policy: 'multistep' stepvalue: [40000, 80000]"
    notes = []
    for other in (multistep, multistep.replace("80000", "80001"), f"{step} display: 3"):
        old, new = parse_prototxt(step, pb.SolverParameter), parse_prototxt(other, pb.SolverParameter)
        found = diff_documents(old, new, "solver.prototxt")
        assert found is not None
        notes.append(found.note)
    assert notes == ["the rate of every iteration is unchanged", "", ""]
