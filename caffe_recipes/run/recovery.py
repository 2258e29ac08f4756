"""Recover from a failed launch as the policy says: with the same hosts, or with spares in their place."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from caffe_recipes.cluster.hosts import CONNECT_ALL_S, try_each
from caffe_recipes.errors import ClusterError
from caffe_recipes.run.context import LaunchFailed, Run, RunSetup, SnapshotOutOfReach, Spares
from caffe_recipes.run.events import Failed, Replaced, Retrying
from caffe_recipes.run.phase import find_dead
from caffe_recipes.run.prepare import prepare

# A host boots within minutes; an allocation should not wait longer.
_BOOT_S = 600.0
_FETCH_S = 120.0
_ASK_S = 5.0


def with_retries(run: Run, act: Callable[[Run], None]) -> Run:
    """Call `act`, and again after each recovery, until it succeeds or the policy allows no more retries.

    Returns the run with its present hosts. Raises LaunchFailed and Interrupted.
    """
    failures = 0
    while True:
        try:
            if failures:  # a rebooted host or a spare may lack any file
                prepare(run)
            act(run)
            return run
        except LaunchFailed as error:
            failure = error
        except ClusterError as error:
            run.emit(Failed(str(error)))
            failure = LaunchFailed(error.what, error.hint, None, error.where)
        failures += 1
        run.interrupts.raise_asked()
        run = recover(run, failure, failures)


def recover(run: Run, failure: LaunchFailed, tries: int) -> Run:
    """Prepare for another launch as the policy says; return the run with its present hosts.

    Raises `failure` if the policy allows no retry, or LaunchFailed if hosts stay dead and no spare is left.
    """
    policy = run.setting.policy
    if policy.on_failure == "stop":
        raise failure
    if tries > policy.retries:
        retries = f"{policy.retries} {'retry' if policy.retries == 1 else 'retries'}"
        raise LaunchFailed(failure.what, f"{failure.hint}; after {retries}", failure.host, failure.where)
    run.reporter.say(str(failure))  # watchers have read it from the journal
    run.emit(Retrying(tries, policy.retries))
    run.notify("checking which hosts answer")
    if policy.on_failure == "replace":
        if isinstance(failure, SnapshotOutOfReach):  # waiting is quicker than training again
            dead = {*_await_hosts(run, _FETCH_S)}
        else:
            dead = {*find_dead(run.setting.hosts), *([failure.host] if failure.host else [])}
            run.interrupts.raise_asked()
        run = replace(run, setting=replace_hosts(run.setting, dead, run))
    else:
        for host in _await_hosts(run, _BOOT_S)[:1]:
            run.emit(Failed(f"{host} still does not respond", host=host))
            raise LaunchFailed(f"{host} still does not respond", failure.hint, host, failure.where)
    return run


def replace_hosts(setting: RunSetup, bad: Collection[str], run: Run | None = None) -> RunSetup:
    """Return a setting with spares in place of bad hosts. Raises LaunchFailed if there are too few."""
    hosts, spares = list(setting.hosts), run.spares if run is not None else Spares(setting.spares)
    rejected: list[str] = []
    for index, host in enumerate(hosts):
        if host.name not in bad:
            continue
        while (name := spares.take()) is not None:
            spare = setting.connect(name)
            reason = try_each([spare], lambda host: host.connect(), CONNECT_ALL_S).get(spare.name)
            if reason is None:
                break
            rejected.append(f"{spare.name}: {reason}")
            if run is not None:
                run.interrupts.raise_asked()
                run.notify(f"{spare.name} cannot be used as a spare: {reason}")
        else:
            raise _no_spare(host.name, rejected, run)
        hosts[index] = spare
        if run is not None:
            run.emit(Replaced(host.name, spare.name))
    return replace(setting, hosts=tuple(hosts), spares=spares.left)


def _no_spare(host: str, rejected: Sequence[str], run: Run | None) -> LaunchFailed:
    """Return the error for a host that cannot be replaced; journal it if there is a run."""
    what = f"no spare answers ({'; '.join(rejected)})" if rejected else "no spare is left"
    if run is not None:
        run.emit(Failed(f"{host}: {what}", host=host))
    return LaunchFailed(what, "add hosts to the hostfile", None, host)


def _await_hosts(run: Run, patience_s: float) -> tuple[str, ...]:
    """Wait up to `patience_s` for all hosts to answer, as one may be rebooting; return those that do not."""
    until = time.monotonic() + patience_s
    reported: tuple[str, ...] = ()
    while dead := find_dead(run.setting.hosts):
        if dead != reported:
            reported = dead
            run.notify(f"waiting for {', '.join(dead)} to respond")
        run.interrupts.raise_asked()
        if time.monotonic() > until:
            return dead
        time.sleep(_ASK_S)
    return ()
