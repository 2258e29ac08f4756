"""Snapshots: which are written, and whether the next phase finds the one that it is to start from."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from itertools import islice

from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.chain import (
    Chain,
    Link,
    fired_snapshots,
    plan_starts,
    prefix_name,
    split_weights,
)
from caffe_recipes.review.lint.rules import finding

_MOST_COMPARED = 10_000
_MODELS = (".caffemodel", ".caffemodel.h5")


def check_snapshots(chain: Chain) -> Iterator[Finding]:
    """Find snapshots that are not written, written over, or not those that a later phase asks for."""
    used = {start.index for start in plan_starts(chain) if start is not None and not start.is_guess}
    for index, link in enumerate(chain.links):
        is_last = index == len(chain.links) - 1
        yield from _final(link, is_needed=is_last or index not in used)
        yield from _collisions(chain.links[:index], link)
        if link.weights is not None and (index or link.weights):
            yield from _weights(chain.links[:index], link, link.weights)


def _final(link: Link, *, is_needed: bool) -> Iterator[Finding]:
    solver = link.solver.message
    fired = fired_snapshots(link)
    if solver.snapshot_after_train or not is_needed or solver.max_iter <= 0:
        return
    if fired and fired[-1] == link.last_iter:
        return
    last = f"the last is of iteration {fired[-1]}" if fired else "there is none at all"
    what = f"snapshot_after_train is false, and no snapshot fires at max_iter {solver.max_iter}: {last}"
    effect = "what is trained after it is lost" if fired else "the whole training is lost"
    write = f"snapshot_after_train: true, or a snapshot that divides {solver.max_iter}"
    yield finding(
        "no-final-snapshot", link.solver.where("snapshot_after_train"), what, effect, write, link.name
    )


def _collisions(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
    prefix = link.solver.message.snapshot_prefix
    for other in earlier:
        if not prefix or other.solver.message.snapshot_prefix != prefix:
            continue
        fired = fired_snapshots(other)
        shared = next(
            (number for number in islice(fired_snapshots(link), _MOST_COMPARED) if number in fired), 0
        )
        if shared:
            name = f"{prefix}_iter_{shared}.caffemodel"
            what = f"{other.name} and {link.name} both write {name}"
            effect = f"{link.name} overwrites the snapshot of {other.name}"
            where = link.solver.where("snapshot_prefix")
            write = "a snapshot_prefix of each phase's own"
            yield finding("snapshots-collide", where, what, effect, write, link.name)


def _weights(earlier: Sequence[Link], link: Link, weights: str) -> Iterator[Finding]:
    where = link.weights_where or link.solver.path
    if not weights:
        what = f"{link.name} starts without --weights"
        effect = "it starts from the net's fillers, and the phases before it were for nothing"
        write = f"--weights={_final_name(earlier[-1])}"
        yield finding("weights-missing", where, what, effect, write, link.name)
        return
    if not weights.endswith(_MODELS):
        what = f"{link.name} starts from {weights}, which is no caffemodel by its name"
        effect = "Caffe stops with `Failed to parse NetParameter file`, or `File not found`"
        write = f"--weights={weights.rpartition('.')[0] or weights}.caffemodel"
        yield finding("weights-no-caffemodel", where, what, effect, write, link.name)
    if earlier:
        yield from _unwritten(earlier, link, weights)


def _unwritten(earlier: Sequence[Link], link: Link, weights: str) -> Iterator[Finding]:
    where, (prefix, iteration) = link.weights_where or link.solver.path, split_weights(weights)
    writers = [other for other in earlier if prefix_name(other) == prefix]
    if not writers or iteration is None:
        names = [_final_name(other) for other in earlier]
        alike = difflib.get_close_matches(weights.rpartition("/")[2], names, n=1)
        what = f"{link.name} starts from {weights}, which no phase before it writes"
        effect = "Caffe stops with `File not found`, or trains on from what another run left there"
        write = f"--weights={alike[0] if alike else names[-1]}"
        yield finding("weights-unknown", where, what, effect, write, link.name)
        return
    writer = writers[-1]
    fired = fired_snapshots(writer)
    if iteration not in fired:
        what = (
            f"{link.name} starts from iteration {iteration} of {writer.name}, which writes no snapshot there"
        )
        near = fired.nearest(iteration)
        effect = "Caffe stops with `File not found` once the phases before it are trained"
        write = f"iteration {near}, or another snapshot interval" if near else "snapshot: above 0"
        yield finding("snapshot-never-fires", where, what, effect, write, link.name, iteration=iteration)
    elif writer is not earlier[-1]:
        what = f"{link.name} starts from {writer.name}, and {earlier[-1].name} lies between them"
        effect = f"what {earlier[-1].name} trains is not in the model"
        write = f"--weights={_final_name(earlier[-1])}"
        yield finding("weights-of-other-phase", where, what, effect, write, link.name)


def _final_name(link: Link) -> str:
    fired = fired_snapshots(link)
    return f"{prefix_name(link)}_iter_{fired[-1] if fired else link.last_iter}.caffemodel"
