"""Rules for the tests of a solver while it trains: how many, and of which nets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe.net_states import misses_test_nets
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.rules.solver_values import solver_value_refused
from caffe_recipes.review.lint.subjects import SolverView, path_rule
from caffe_recipes.wording import describe_count

if TYPE_CHECKING:
    from caffe_recipes.review.lint.findings import Finding


@solver_value_refused
@path_rule.also(
    "test-never-fires",
    "warning",
    "a test_interval beyond max_iter",
    what="test_interval {test_interval} is beyond max_iter {max_iter}",
    effect="Caffe tests before the first iteration and never again",
    write="test_interval: {max_iter}, or less",
)
def _check_tests(view: SolverView) -> Iterator[Finding]:
    solver = view.message
    for index, count in enumerate(solver.test_iter):
        if count < 1:
            yield finding(
                "solver-value-refused",
                f"test_iter[{index}]",
                f"test_iter is {count}",
                effect="the sums of the test are divided by it: the results are NaN or missing",
                write="test_iter: the number of test images / the test batch_size",
            )
    if solver.test_iter and solver.test_interval > solver.max_iter > 0:
        yield finding(
            "test-never-fires", "test_interval", test_interval=solver.test_interval, max_iter=solver.max_iter
        )


@solver_value_refused
@path_rule.also(
    "tested-twice",
    "warning",
    "several test_iter fields for one net in the same state",
    what="test_iter is set {count}, for {nets} and the net itself",
    effect="Caffe sets up the net {times} times and repeats the same test",
    write="keep {keep} test_iter, or add a test_state for each",
)
def _check_test_nets(view: SolverView) -> Iterator[Finding]:
    solver = view.message
    tests, named = len(solver.test_iter), len(solver.test_net) + len(solver.test_net_param)
    if tests - named > 1 and not solver.test_state:
        count = describe_count(tests, "time")
        yield finding(
            "tested-twice",
            f"test_iter[{named + 1}]",
            count=count,
            nets=describe_count(named, "test net"),
            times=tests - named,
            keep=named + 1,
        )
    if misses_test_nets(solver):
        what = f"test_iter is set {describe_count(tests, 'time')}, for {describe_count(named, 'test net')}"
        field = "test_iter[0]" if tests else "test_net[0]" if solver.test_net else "test_net_param[0]"
        yield finding(
            "solver-value-refused",
            field,
            what,
            effect="Caffe aborts with `test_iter must be specified for each test network`",
            write="add a test_net, write `net` instead of train_net, or remove test_iter and test_interval"
            if not named
            else "set one test_iter for each test net",
        )
    states = len(solver.test_state)
    if states not in (0, tests):
        what = f"test_state is set {describe_count(states, 'time')}, for {describe_count(tests, 'test net')}"
        yield finding(
            "solver-value-refused",
            "test_state[0]",
            what,
            effect="Caffe aborts with `test_state must be unspecified or specified once per test net`",
            write="set one test_state for each test net, or none",
        )
