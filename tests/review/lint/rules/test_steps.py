"""What a step needs of solver and net: TRAIN data, TEST data, a mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.review.conftest import LintSolvers, net_text

TESTS = {"test_iter": 5, "test_interval": 100}


@pytest.fixture
def lint_without_test(lint_solvers: LintSolvers, tmp_path: Path) -> LintSolvers:
    """Give a function that lints solvers beside a net without a data layer for TEST."""
    (tmp_path / "own" / "train_val.prototxt").write_text(net_text("TRAIN"))
    return lint_solvers


def test_solver_mode_is_given(lint_solvers: LintSolvers) -> None:
    (found,) = lint_solvers({"a": {"solver_mode": None}})
    assert (found.id, found.severity) == ("solver-mode-absent", "warning")
    assert lint_solvers({"a": {"solver_mode": "GPU"}}) == []


@pytest.mark.parametrize(("dialect", "count"), [("bvlc", 0), ("nvcaffe", 0), ("intel", 1)])
def test_a_default_of_gpu_is_what_caffes_for_gpus_mean(
    lint_solvers: LintSolvers, dialect: str, count: int
) -> None:
    found = lint_solvers({"a": {"solver_mode": None}}, dialect=dialect)
    assert [one.id for one in found].count("solver-mode-absent") == count


def test_a_last_phase_can_be_tested(lint_without_test: LintSolvers) -> None:
    (found,) = lint_without_test({"a": {}})
    assert (found.id, found.severity) == ("last-net-without-test", "warning")
    assert found.where.endswith("solver_a.prototxt:1:1")


def test_an_earlier_phase_need_not_be_tested(lint_without_test: LintSolvers, tmp_path: Path) -> None:
    (tmp_path / "own" / "tested.prototxt").write_text(net_text("TRAIN", "TEST"))
    first = {"lr_policy": '"fixed"', "power": None}
    assert lint_without_test({"a": first, "b": {"net": '"own/tested.prototxt"'}}) == []


def test_a_test_during_training_needs_data_for_it(lint_without_test: LintSolvers) -> None:
    found = {one.id: one for one in lint_without_test({"a": TESTS})}
    assert found["no-test-net"].severity == "error"
    assert "Unknown bottom blob 'data'" in found["no-test-net"].effect
    assert found["no-test-net"].where.endswith("solver_a.prototxt:9:1")


@pytest.mark.parametrize(("text", "rules"), [(net_text("TEST"), []), (net_text("TRAIN"), ["no-test-net"])])
def test_a_separate_test_net_is_sufficient(
    lint_without_test: LintSolvers, tmp_path: Path, text: str, rules: list[str]
) -> None:
    (tmp_path / "own" / "test.prototxt").write_text(text)
    found = lint_without_test({"a": {**TESTS, "test_net": '"own/test.prototxt"'}})
    assert [one.id for one in found] == rules


def test_a_solver_s_stages_choose_the_data(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    """As in BVLC's mnist_autoencoder: one net, tested on two sources by stages."""
    net = tmp_path / "own" / "train_val.prototxt"
    stages = {"test_state": "{ stage: 'on-train' } test_state: { stage: 'on-test' }"}
    tests = {"test_iter": "5 test_iter: 5", "test_interval": 100}
    text = net_text("TRAIN", "TEST").replace("phase: TEST", 'phase: TEST stage: "on-test"')
    net.write_text(text)
    found = lint_solvers({"a": {**tests, **stages}})
    assert [one.id for one in found] == ["no-test-net"]
    assert found[0].what.endswith("has no data layer for TEST in stage 'on-train'")
    both = (
        net_text("TEST")
        .replace("phase: TEST", 'phase: TEST stage: "on-train"')
        .partition('layer {\n  name: "ip')
    )
    net.write_text(both[0] + text)
    assert lint_solvers({"a": {**tests, **stages}}) == []
    assert "no-test-net" in [one.id for one in lint_solvers({"a": TESTS})]


def test_a_stage_of_the_training_net_chooses_its_data(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    net = tmp_path / "own" / "train_val.prototxt"
    net.write_text(net_text("TRAIN", "TEST").replace("phase: TRAIN", "phase: TRAIN stage: 'x' min_level: 1"))
    (found,) = [one for one in lint_solvers({"a": {}}) if one.id == "no-train-net"]
    assert found.what.endswith("has no data layer for TRAIN")
    state = {"train_state": "{ stage: 'x' level: 1 }"}
    assert "no-train-net" not in [one.id for one in lint_solvers({"a": state})]


def test_data_without_rules_are_for_both_phases(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    text = net_text("TRAIN").replace("include { phase: TRAIN }", "")
    (tmp_path / "own" / "train_val.prototxt").write_text(text)
    found = {one.id for one in lint_solvers({"a": TESTS})}
    assert not found & {"no-test-net", "no-train-net", "last-net-without-test"}


def test_a_net_without_training_data_is_an_error(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    (tmp_path / "own" / "train_val.prototxt").write_text(net_text("TEST"))
    assert "no-train-net" in {one.id for one in lint_solvers({"a": {}})}


def test_half_of_what_a_test_needs_is_found(lint_solvers: LintSolvers) -> None:
    (alone,) = lint_solvers({"a": {"test_interval": 10}})
    assert (alone.id, alone.severity) == ("test-interval-alone", "warning")
    (iterations,) = lint_solvers({"a": {"test_iter": 10}})
    assert (iterations.id, iterations.severity) == ("test-iter-alone", "error")


@pytest.mark.parametrize(("tested", "rule"), [("tested", None), ("train_val", "no-test-net")])
def test_a_script_that_tests_names_the_net_it_uses(
    lint_without_test: LintSolvers, tmp_path: Path, tested: str, rule: str | None
) -> None:
    (tmp_path / "own" / "tested.prototxt").write_text(net_text("TRAIN", "TEST"))
    script = tmp_path / "run.sh"
    script.write_text(
        "caffe train --solver=own/solver_a.prototxt\n"
        f"caffe test --model=own/{tested}.prototxt --weights=own_a_iter_1000.caffemodel --iterations=5\n"
    )
    found = lint_without_test({"a": {}}, script=script)
    assert [one.id for one in found] == ([rule] if rule else [])
