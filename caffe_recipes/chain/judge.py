"""Judging a launch that has ended: by its log and its snapshots, never by its exit code."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from caffe_recipes.caffe import pb
from caffe_recipes.chain.follow import Followed
from caffe_recipes.chain.journal import Finish, Launch
from caffe_recipes.chain.plan import Training
from caffe_recipes.chain.policy import LaunchFailed, SnapshotNotKept, SnapshotOutOfReach
from caffe_recipes.chain.run import Run
from caffe_recipes.chain.snapshots import BadSnapshot, fetch_snapshot
from caffe_recipes.chain.watch import find_failure, find_ignored, images_per_s, last_value, losses_until
from caffe_recipes.cluster.hosts import Host
from caffe_recipes.cluster.parallel import AT_ONCE, try_each
from caffe_recipes.errors import RunFailed
from caffe_recipes.generate.nets import build_net

_ANSWER_S = 15.0
# A host that refuses for a moment, as its sshd is started again, is not to cost a phase.
_AGAIN_S = 60.0
_PAUSE_S = 2.0


def judge(run: Run, training: Training, launch: Launch, followed: Followed) -> Finish:
    """Fetch what a launch has trained; raises LaunchFailed for one that did not train to the end.

    The log must say that it did, from all of its weights; the snapshot must be there, new, whole, and fit.
    Raises SnapshotNotKept where our own disk does not take it.
    """
    tail, lead = followed.tail, followed.lead
    reason = find_failure(tail, training)
    if reason:
        trouble = followed.trouble
        # Whatever the launcher said of a host that is dead, that is why.
        host = trouble.host if trouble else next(iter(followed.unheard), None)
        raise LaunchFailed(_blame(trouble.what if trouble else reason, host, is_dead=not trouble), host=host)
    ignored = find_ignored(tail, training, run.setting.root)
    if ignored:
        raise LaunchFailed(ignored, "name the layers of the net as the weights do")
    net = build_net(run.setting.recipe, training.net)

    def fetch(path: str, stamp: str | None, to: str) -> str:
        return _fetch(run, lead, net, run.setting.path(path), stamp, to)

    ended = run.path(launch.log).stat().st_mtime
    try:
        return Finish(
            phase=training.phase,
            snapshot=training.fetched,
            sha256=fetch(training.snapshot, launch.stamp, training.fetched),
            seconds=ended - launch.time_s,
            images_per_s=images_per_s(tail.summary, training.images_per_iter),
            loss=last_value(losses_until(tail.summary, training.last_iter).values()),
            needed={to: fetch(path, launch.needed.get(path), to) for path, to in training.needed},
        )
    except SnapshotNotKept:
        raise
    except RunFailed as error:
        what = f"{error.where}: {error.what}" if error.where else error.what
        kind = LaunchFailed if isinstance(error, BadSnapshot) else SnapshotOutOfReach
        raise kind(what, error.hint, next(iter(find_dead([lead])), None)) from None


def _fetch(run: Run, lead: Host, net: pb.NetParameter, path: str, stamp: str | None, to: str) -> str:
    """Fetch a snapshot; again, for a while, where its host does not answer, and once whatever is wrong."""
    until, tries = time.monotonic() + _AGAIN_S, 0
    while True:
        try:
            return fetch_snapshot(lead, path, stamp, run.path(to), net, run.setting.root)
        except RunFailed as error:
            if error.where.removeprefix(f"{lead.name}:").startswith(str(run.path(to))):
                hint = "make room, or mend what ails the disk here, and run again"
                raise SnapshotNotKept(error.where, error.what, hint) from None
            tries += 1
            is_host = error.where.partition(":")[0] == lead.name and not isinstance(error, BadSnapshot)
            if time.monotonic() > until or (tries > 1 and not is_host):
                raise
            if is_host:
                run.reporter.say(f"{error.where}: {error.what}; fetching again")
                time.sleep(_PAUSE_S)


def find_dead(hosts: Sequence[Host]) -> tuple[str, ...]:
    """Return the names of the hosts that do not answer."""
    rounds = math.ceil(len(hosts) / AT_ONCE)  # logins take their time where all are to be made again

    def ask(host: Host) -> None:
        host.run(["true"], _ANSWER_S)

    failed = try_each(hosts, ask, _ANSWER_S * rounds)
    dead = [host for host in hosts if host.name in failed]
    for host in dead:  # whoever waits for it wakes
        host.close()
    return tuple(host.name for host in dead)


def _blame(what: str, host: str | None, *, is_dead: bool) -> str:
    if host is None:
        return what
    return f"{host} no longer answers; {what}" if is_dead else f"{host}: {what}"
