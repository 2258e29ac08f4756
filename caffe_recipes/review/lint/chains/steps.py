"""What each step of a chain needs of its solver and net: TRAIN data, TEST data, a mode to run in."""

from __future__ import annotations

from collections.abc import Iterator

from caffe_recipes.caffe import pb
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.chains.chain import Chain, Link, Net
from caffe_recipes.review.lint.chains.states import State, has_source, test_states, train_state
from caffe_recipes.review.lint.rules import finding

_REFUSED = "Caffe stops with `Unknown bottom blob 'data'`, or another's name"


def check_steps(chain: Chain) -> Iterator[Finding]:
    """Find steps that their nets, or their solvers, do not allow."""
    for link in chain.links:
        yield from _solver(link, has_gpus=chain.setting.has_gpus)
        yield from _data(link)
    last = chain.links[-1]
    for net in chain.tested:
        if not has_source(net.message, State(pb.TEST)):
            what = f"the chain's test uses {net.path}, which has no data layer for TEST"
            yield finding(
                "no-test-net", net.path, what, _REFUSED, "a data layer with include { phase: TEST }"
            )
    if chain.is_whole and not chain.tested and last.net and not _can_be_tested(last, last.net):
        what = f"the last phase's net {last.net.path} has no data layer for TEST"
        effect = f"`caffe test` on it fails with {_REFUSED.partition('with ')[2]}"
        write = "a data layer with include { phase: TEST } in it, or test with a net that has one"
        yield finding("last-net-without-test", last.solver.where("net"), what, effect, write, last.name)


def _can_be_tested(link: Link, net: Net) -> bool:
    """Whether the last phase's net has data for TEST, in any state of the solver's; or another is tested."""
    solver = link.solver.message
    states = (State(pb.TEST), *test_states(solver, net.message))
    return _has_own(solver) or any(has_source(net.message, state) for state in states)


def _has_own(solver: pb.SolverParameter) -> bool:
    return bool(solver.test_net or solver.test_net_param)


def _solver(link: Link, *, has_gpus: bool) -> Iterator[Finding]:
    solver, where = link.solver.message, link.solver.where
    if not has_gpus and not solver.HasField("solver_mode"):
        effect = "a build without GPUs stops with `Cannot use GPU in CPU-only Caffe`"
        what = "solver_mode is absent, and the default is GPU"
        yield finding("solver-mode-absent", link.solver.path, what, effect, "solver_mode: CPU", link.name)
    if solver.test_interval and not solver.test_iter:
        what = f"test_interval {solver.test_interval} without test_iter"
        yield finding(
            "test-interval-alone",
            where("test_interval"),
            what,
            "Caffe makes no test net, and never tests",
            "test_iter: the test images / the test batch_size",
            link.name,
        )
    if solver.test_iter and not solver.test_interval:
        what = "test_iter without test_interval"
        effect = "Caffe stops with `Check failed: param_.test_interval() > 0`"
        write = "test_interval: the iterations between tests"
        yield finding("test-iter-alone", where("test_iter"), what, effect, write, link.name)


def _data(link: Link) -> Iterator[Finding]:
    solver, net = link.solver.message, link.net
    if net is None:
        return
    if not has_source(net.message, train_state(solver, net.message)):
        what = f"{net.path} has no data layer for TRAIN{_staged(solver.train_state)}"
        write = "a data layer with include { phase: TRAIN }"
        yield finding("no-train-net", net.path, what, _REFUSED, write, link.name)
    if not (solver.test_iter or solver.test_interval):
        return
    for tested in link.test_nets if _has_own(solver) else (net,):
        for state, given in _given_states(solver, tested):
            if not has_source(tested.message, state):
                yield _no_test(link, tested, given)


def _given_states(solver: pb.SolverParameter, net: Net) -> Iterator[tuple[State, pb.NetState]]:
    """Give each state in which a net may be tested; of several test nets it is not told which has which."""
    states = test_states(solver, net.message)
    if _has_own(solver) and len(states) > 1:
        return iter(())
    return zip(states, solver.test_state or (pb.NetState(),), strict=True)


def _no_test(link: Link, net: Net, state: pb.NetState) -> Finding:
    solver = link.solver
    tests = bool(solver.message.test_iter)
    what = f"{link.name} tests while it trains, and {net.path} has no data layer for TEST{_staged(state)}"
    write = "a data layer with include { phase: TEST }, or no test_iter and test_interval"
    field = "test_iter[0]" if tests else "test_interval"
    effect = _REFUSED if tests else f"it never tests; once test_iter is given {_REFUSED}"
    return finding("no-test-net", solver.where(field), what, effect, write, link.name)


def _staged(state: pb.NetState) -> str:
    """Say the stages and level that a solver asks for, if it does."""
    parts = [f"stage '{stage}'" for stage in state.stage]
    if state.HasField("level"):
        parts.append(f"level {state.level}")
    return f" in {' and '.join(parts)}" if parts else ""
