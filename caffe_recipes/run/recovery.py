"""Going on after a launch that failed, by policy: with the same hosts, or spares in their place."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from caffe_recipes.cluster.hosts import CONNECT_ALL_S, try_each
from caffe_recipes.errors import ClusterError
from caffe_recipes.run.context import LaunchFailed, Run, Setting, SnapshotOutOfReach, Spares
from caffe_recipes.run.events import Failed, Replaced, Retrying
from caffe_recipes.run.phase import find_dead
from caffe_recipes.run.prepare import prepare

# A host boots in minutes; an allocation is not to wait longer for one that does not.
_BACK_S = 600.0
_FETCH_S = 120.0
_ASK_S = 5.0


def with_retries(run: Run, act: Callable[[Run], None]) -> Run:
    """Do something, and again behind each recovery, until it is done or the policy says that it is enough.

    Returns the run with the hosts that it then has. Raises LaunchFailed, and Interrupted.
    """
    failures = 0
    while True:
        try:
            if failures:  # a host that was booted, or a spare, may lack anything
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
    """Make ready for another launch, as the policy says; return the run with the hosts that it then has.

    Raises the failure itself if there is to be none, LaunchFailed where hosts stay dead or are no more.
    """
    policy = run.setting.policy
    if policy.on_failure == "stop":
        raise failure
    if tries > policy.retries:
        retries = f"{policy.retries} {'retry' if policy.retries == 1 else 'retries'}"
        raise LaunchFailed(failure.what, f"{failure.hint}; after {retries}", failure.host, failure.where)
    run.reporter.say(str(failure))  # who watches reads it from the event that was journaled
    run.emit(Retrying(tries, policy.retries))
    run.notify("looking which hosts answer")
    if policy.on_failure == "replace":
        if isinstance(failure, SnapshotOutOfReach):  # to fetch it later is quicker than to train it again
            dead = {*_await_hosts(run, _FETCH_S)}
        else:
            dead = {*find_dead(run.setting.hosts), *([failure.host] if failure.host else [])}
            run.interrupts.raise_asked()
        run = replace(run, setting=replace_hosts(run.setting, dead, run))
    else:
        for host in _await_hosts(run, _BACK_S)[:1]:
            run.emit(Failed(f"{host} stays dead", host=host))
            raise LaunchFailed(f"{host} stays dead", failure.hint, host, failure.where)
    return run


def replace_hosts(setting: Setting, bad: Collection[str], run: Run | None = None) -> Setting:
    """Return a setting with spares in the place of bad hosts; raises LaunchFailed if there are too few."""
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
                run.notify(f"{spare.name} cannot be a spare: {reason}")
        else:
            raise _no_spare(host.name, rejected, run)
        hosts[index] = spare
        if run is not None:
            run.emit(Replaced(host.name, spare.name))
    return replace(setting, hosts=tuple(hosts), spares=spares.left)


def _no_spare(host: str, rejected: Sequence[str], run: Run | None) -> LaunchFailed:
    """Return the failure of a host in whose place none can be put, in the journal of a run under way."""
    what = f"no spare answers ({'; '.join(rejected)})" if rejected else "no spare is left"
    if run is not None:
        run.emit(Failed(f"{host}: {what}", host=host))
    return LaunchFailed(what, "put more hosts into the hostfile", None, host)


def _await_hosts(run: Run, patience_s: float) -> tuple[str, ...]:
    """Wait until all hosts answer, or for so long, as one that has crashed may be booting; who does not."""
    until = time.monotonic() + patience_s
    waits_for: tuple[str, ...] = ()
    while dead := find_dead(run.setting.hosts):
        if dead != waits_for:
            waits_for = dead
            run.notify(f"waiting for {', '.join(dead)}")
        run.interrupts.raise_asked()
        if time.monotonic() > until:
            return dead
        time.sleep(_ASK_S)
    return ()
