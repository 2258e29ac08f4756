"""Rules for what each phase needs from its solver and net: TRAIN data, TEST data, a solver_mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.net_states import NetState, has_data, misses_test_nets, test_states, train_state
from caffe_recipes.review.lint.registry import Explanation, finding, link_finding
from caffe_recipes.review.lint.subjects import path_rule

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Chain, Link, NetDocument
    from caffe_recipes.review.lint.findings import Finding


_UNKNOWN_BLOB = "`Unknown bottom blob 'data'` (or the name of another blob)"


def _can_be_tested(link: Link, net: NetDocument) -> bool:
    """Return whether a net has TEST data in any state of the solver, or another net is tested."""
    solver = link.solver.message
    states = (NetState(pb.TEST), *test_states(solver, net.message))
    return _has_test_nets(solver) or any(has_data(net.message, state) for state in states)


def _has_test_nets(solver: pb.SolverParameter) -> bool:
    return bool(solver.test_net or solver.test_net_param)


@path_rule(
    "solver-mode-absent",
    "warning",
    "no solver_mode: the default is GPU",
    what="solver_mode is not set, and the default is GPU",
    effect="a build without GPUs aborts with `Cannot use GPU in CPU-only Caffe`",
    write="solver_mode: CPU",
    explanation=Explanation(
        "Caffe's default is GPU, and a CPU-only build aborts. Not reported for dialects that are built "
        "for GPUs (--dialect bvlc).",
        "Set solver_mode: CPU.",
    ),
)
@path_rule(
    "test-interval-alone",
    "warning",
    "a test_interval without test_iter: the solver never tests",
    what="test_interval {test_interval} without test_iter",
    effect="Caffe creates no test net and never tests",
    write="test_iter: the number of test images / the test batch_size",
)
@path_rule(
    "test-iter-alone",
    "error",
    "a test_iter without test_interval: Caffe aborts",
    what="test_iter without test_interval",
    effect="Caffe aborts with `Check failed: param_.test_interval() > 0`",
    write="test_interval: the number of iterations between tests",
)
def _check_solver_fields(chain: Chain) -> Iterator[Finding]:
    for link in chain.links:
        yield from _check_fields(link, has_gpus=chain.facts.has_gpus)


def _check_fields(link: Link, *, has_gpus: bool) -> Iterator[Finding]:
    solver = link.solver.message
    if not has_gpus and not solver.HasField("solver_mode"):
        yield finding("solver-mode-absent", link.solver.path, phase=link.name)
    if solver.test_interval and not solver.test_iter:
        yield link_finding("test-interval-alone", link, "test_interval", test_interval=solver.test_interval)
    if solver.test_iter and not solver.test_interval and not misses_test_nets(solver):
        yield link_finding("test-iter-alone", link, "test_iter")


@path_rule(
    "no-train-net",
    "error",
    "a net without a data layer for TRAIN",
    what="{net} has no data layer for TRAIN{state}",
    effect=f"Caffe aborts with {_UNKNOWN_BLOB}",
    write="add a data layer with include {{ phase: TRAIN }}",
)
def _check_data_layers(chain: Chain) -> Iterator[Finding]:
    for link in chain.links:
        yield from _check_phase_data(link)


def _check_phase_data(link: Link) -> Iterator[Finding]:
    solver, net = link.solver.message, link.net
    if net is None:
        return
    if not has_data(net.message, train_state(solver, net.message)):
        yield finding(
            "no-train-net",
            net.path,
            phase=link.name,
            net=net.path,
            state=_show_state(solver.train_state),
        )
    if not (solver.test_iter or solver.test_interval):
        return
    for tested in link.test_nets if _has_test_nets(solver) else (net,):
        for state, given in _states_to_test(solver, tested):
            if not has_data(tested.message, state):
                yield _missing_test_data(link, tested, given)


@path_rule(
    "last-net-without-test",
    "warning",
    "a last phase whose net cannot be tested",
    what="the last phase's net {net} has no data layer for TEST",
    effect=f"`caffe test` on it fails with {_UNKNOWN_BLOB}",
    write="add a data layer with include {{ phase: TEST }} to it, or test with a net that has one",
    explanation=Explanation(
        "`caffe test` needs a data layer for TEST. This net lacks one, so it cannot test the model.",
        "Add a data layer with include { phase: TEST }, or give --script a file with a command "
        "that tests with another net.",
    ),
)
@path_rule("no-test-net", "error", "a test, during or after training, of a net without a data layer for TEST")
def _check_tested_nets(chain: Chain) -> Iterator[Finding]:
    last = chain.links[-1]
    for net in chain.tested:
        if not has_data(net.message, NetState(pb.TEST)):
            what = f"the chain is tested with {net.path}, which has no data layer for TEST"
            yield finding(
                "no-test-net",
                net.path,
                what,
                effect=f"Caffe aborts with {_UNKNOWN_BLOB}",
                write="add a data layer with include { phase: TEST }",
            )
    if chain.is_whole and not chain.tested and last.net and not _can_be_tested(last, last.net):
        yield link_finding("last-net-without-test", last, "net", net=last.net.path)


def _states_to_test(solver: pb.SolverParameter, net: NetDocument) -> Iterator[tuple[NetState, pb.NetState]]:
    """Return the states that a net is tested in; none if several test nets have states of their own."""
    states = test_states(solver, net.message)
    if _has_test_nets(solver) and len(states) > 1:
        return iter(())
    return zip(states, solver.test_state or (pb.NetState(),), strict=True)


def _missing_test_data(link: Link, net: NetDocument, state: pb.NetState) -> Finding:
    solver = link.solver
    tests = bool(solver.message.test_iter)
    what = f"{link.name} tests while it trains, but {net.path} has no data layer for TEST{_show_state(state)}"
    field = "test_iter[0]" if tests else "test_interval"
    return finding(
        "no-test-net",
        solver.where(field),
        what,
        link.name,
        effect=f"Caffe aborts with {_UNKNOWN_BLOB}"
        if tests
        else f"it never tests; with test_iter, it would abort with {_UNKNOWN_BLOB}",
        write="add a data layer with include { phase: TEST }, or remove test_iter and test_interval",
    )


def _show_state(state: pb.NetState) -> str:
    """Describe the stages and level that a solver sets; empty if it sets none."""
    parts = [f"stage '{stage}'" for stage in state.stage]
    if state.HasField("level"):
        parts.append(f"level {state.level}")
    return f" in {' and '.join(parts)}" if parts else ""
