"""Rules for snapshots: which are written, and whether the next phase finds the one that it starts from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import (
    final_name,
    find_writer,
    first_iter,
    plan_starts,
    planned_snapshots,
    prefix_name,
    split_weights,
)
from caffe_recipes.review.lint.registry import finding, link_finding
from caffe_recipes.review.lint.subjects import ReadFile, SolverView, file_value_rule, start_rule, value_rule
from caffe_recipes.wording import find_similar

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Chain, Link
    from caffe_recipes.review.lint.findings import Finding


_MAX_COMPARED = 10_000
_MODELS = (".caffemodel", ".caffemodel.h5")
_STATES = (".solverstate", ".solverstate.h5")


@start_rule.add
def check_snapshots(chain: Chain) -> Iterator[Finding]:
    """Find snapshots that are missing or overwritten, and weights that no phase or the wrong phase writes."""
    starts = zip(chain.links, plan_starts(chain), strict=True)
    used = {start.index for link, start in starts if start is not None and (link.weights or link.resumes)}
    for index, link in enumerate(chain.links):
        is_last = index == len(chain.links) - 1
        is_alone = len(chain.links) == 1
        yield from _check_final_snapshot(link, is_needed=is_last or index not in used, is_alone=is_alone)
        yield from _check_collisions(chain.links[:index], link)
        if link.resumes:
            yield from _check_resume(chain.links[: index + 1], link)
        elif link.weights is not None and (index or link.weights):
            yield from _check_start_weights(chain.links[:index], link, link.weights)


@start_rule.also(
    "no-final-snapshot",
    "error",
    "snapshot_after_train: false, and no snapshot at max_iter",
    what="snapshot_after_train is false, and no snapshot is written at max_iter {max_iter}: {last}",
    write="snapshot_after_train: true, or a `snapshot` that divides {max_iter}",
)
@start_rule.also(
    "no-snapshot",
    "warning",
    "a single solver for another Caffe (--dialect) that never writes a snapshot",
    what="snapshot_after_train is false, and no snapshot is written up to max_iter {max_iter}: {last}",
    write="snapshot_after_train: true, unless only the log is wanted",
)
def _check_final_snapshot(link: Link, *, is_needed: bool, is_alone: bool) -> Iterator[Finding]:
    solver = link.solver.message
    fired = planned_snapshots(link)
    if solver.snapshot_after_train or not is_needed or solver.max_iter <= 0:
        return
    if getattr(link.solver.given, "test_and_snapshot_last_epochs", 0) > 0:  # NVIDIA's
        return
    if fired and fired[-1] == link.last_iter:
        return
    last = f"the last one is at iteration {fired[-1]}" if fired else "none is ever written"
    # NVIDIA ships such solvers, whose result is the log.
    is_measurement = link.solver.given is not None and is_alone and not fired
    yield link_finding(
        "no-snapshot" if is_measurement else "no-final-snapshot",
        link,
        "snapshot_after_train",
        effect="the training after it is lost" if fired else "the result of the training is lost",
        max_iter=solver.max_iter,
        last=last,
    )


@start_rule.also(
    "snapshots-collide",
    "warning",
    "two phases that write snapshots with the same names",
    what="{other} and {phase} both write {name}",
    effect="{phase} overwrites the snapshot of {other}",
    write="set a different snapshot_prefix in each phase; if the phase resumes by --snapshot, give --script "
    "FILE",
)
def _check_collisions(earlier: Sequence[Link], link: Link) -> Iterator[Finding]:
    prefix = link.solver.message.snapshot_prefix
    for other in earlier:
        if not prefix or other.solver.message.snapshot_prefix != prefix:
            continue
        fired = planned_snapshots(other)
        shared = next(
            (number for number in islice(planned_snapshots(link), _MAX_COMPARED) if number in fired), 0
        )
        if shared:
            name = f"{prefix}_iter_{shared}.caffemodel"
            yield link_finding("snapshots-collide", link, "snapshot_prefix", other=other.name, name=name)


@start_rule.also(
    "weights-missing",
    "error",
    "a later phase that starts without weights",
    what="{phase} starts without --weights",
    effect="it starts from the net's fillers, so what the earlier phases learned is lost",
    write="--weights={folder}{final}",
)
@start_rule.also(
    "weights-no-caffemodel",
    "error",
    "initial weights whose file name does not end in .caffemodel",
    what="{phase} starts from {weights}, whose name does not end in .caffemodel",
    effect="Caffe aborts with `Failed to parse NetParameter file`, or `File not found`",
    write="--weights={stem}.caffemodel",
)
def _check_start_weights(earlier: Sequence[Link], link: Link, weights: str) -> Iterator[Finding]:
    if not weights:
        folder = _folder_prefix(earlier[-1].solver.message.snapshot_prefix)
        yield link_finding("weights-missing", link, folder=folder, final=final_name(earlier[-1]))
        return
    if not weights.endswith(_MODELS):
        yield link_finding(
            "weights-no-caffemodel", link, weights=weights, stem=weights.rpartition(".")[0] or weights
        )
    if earlier:
        yield from _check_weights_written(earlier, link, weights)


@start_rule.also(
    "weights-unknown",
    "warning",
    "initial weights that no earlier phase writes",
    what="{phase} starts from {weights}, which no earlier phase writes",
    effect="Caffe aborts with `File not found`, or continues from a file that another run left there",
    write="--weights={folder}{nearest}",
)
@start_rule.also(
    "weights-of-other-phase",
    "warning",
    "initial weights that are not those of the previous phase",
    what="{phase} starts from {writer}, and skips {previous}",
    effect="what {previous} learned is lost",
    write="--weights={folder}{final}",
)
def _check_weights_written(earlier: Sequence[Link], link: Link, weights: str) -> Iterator[Finding]:
    iteration = split_weights(weights)[1]
    index, folder = find_writer(earlier, weights), _folder_prefix(weights)
    if index is None or iteration is None or not _matches_format(earlier[index], weights):
        names = [final_name(other) for other in earlier]
        alike = find_similar(weights.rpartition("/")[2], names)
        yield link_finding(
            "weights-unknown", link, weights=weights, folder=folder, nearest=alike or names[-1]
        )
        return
    if iteration not in planned_snapshots(earlier[index]):
        yield from _snapshot_never_fires(earlier[index], link, iteration)
    elif index < len(earlier) - 1:
        writer = earlier[index].name
        yield link_finding(
            "weights-of-other-phase",
            link,
            writer=writer,
            previous=earlier[-1].name,
            folder=folder,
            final=final_name(earlier[-1]),
        )


@start_rule.also(
    "weights-and-snapshot",
    "error",
    "a command with both --weights and --snapshot: Caffe aborts",
    what="{phase} is given both --weights and --snapshot",
    effect="Caffe aborts with `Give a snapshot to resume training or weights to finetune but not both.`",
    write="give only --snapshot to resume with the momentum history, or only --weights to start without it",
)
@start_rule.also(
    "snapshot-no-solverstate",
    "error",
    "a --snapshot whose file name does not end in .solverstate",
    what="{phase} resumes {state}, whose name does not end in .solverstate",
    effect="Caffe aborts with `Failed to parse SolverState file`, or `File not found`",
    write="--snapshot={stem}.solverstate",
)
@start_rule.also(
    "resumed-at-end",
    "error",
    "a solverstate at or past max_iter: nothing is trained",
    what="{phase} resumes at iteration {iteration}, but its max_iter is {last_iter}",
    effect="Caffe trains nothing and exits 0: max_iter counts from iteration 0, not from the resumed "
    "iteration",
    write="max_iter: {extended}; or give --weights and the caffemodel to count from 0",
    values=("iteration",),
)
@start_rule.also(
    "snapshot-unknown",
    "warning",
    "a --snapshot that neither this nor an earlier phase writes",
    what="{phase} resumes {state}, which neither it nor an earlier phase writes",
    effect="Caffe aborts with `File not found`, or continues from a file that another run left there",
    write="--snapshot={folder}{latest}",
)
def _check_resume(links: Sequence[Link], link: Link) -> Iterator[Finding]:
    state = link.resumes
    if link.weights:
        yield link_finding("weights-and-snapshot", link)
        return
    if "$" in state:
        return
    if not state.endswith(_STATES):
        yield link_finding(
            "snapshot-no-solverstate", link, state=state, stem=state.partition(".caffemodel")[0]
        )
    index, iteration = _find_resumed_phase(links, state), split_weights(state)[1]
    if iteration is not None and _resumes_at_end(link):
        yield link_finding(
            "resumed-at-end",
            link,
            "max_iter",
            iteration=iteration,
            last_iter=link.last_iter,
            extended=iteration + link.last_iter,
        )
    if index is None or iteration is None or not _matches_format(links[index], state):
        # A first phase may resume any file: only earlier phases show which files exist.
        if len(links) > 1:
            yield link_finding(
                "snapshot-unknown",
                link,
                state=state,
                folder=_folder_prefix(state),
                latest=final_name(links[-2], "solverstate"),
            )
    # A phase that is stopped may write a snapshot at any iteration.
    elif index < len(links) - 1 and iteration not in planned_snapshots(links[index]):
        yield from _snapshot_never_fires(links[index], link, iteration)


def _find_resumed_phase(links: Sequence[Link], state: str) -> int | None:
    """Return the phase that writes a solverstate: an earlier one, or the last one, for its own iterations."""
    index, (prefix, iteration) = find_writer(links[:-1], state), split_weights(state)
    if iteration is None or prefix != prefix_name(links[-1]):
        return index
    return len(links) - 1 if index is None or iteration > links[index].last_iter else index


@start_rule.also(
    "snapshot-never-fires",
    "error",
    "initial weights from an iteration at which no snapshot is written",
    what="{phase} starts from iteration {iteration} of {writer}, at which no snapshot is written",
    effect="Caffe aborts with `File not found` after the earlier phases have been trained",
    values=("iteration",),
)
def _snapshot_never_fires(writer: Link, link: Link, iteration: int) -> Iterator[Finding]:
    if _resumes_at_end(writer):  # another rule reports it, and after the fix there may be such a snapshot
        return
    near = planned_snapshots(writer).nearest(iteration)
    yield link_finding(
        "snapshot-never-fires",
        link,
        write=f"start from iteration {near}, or change `snapshot`" if near else "snapshot: above 0",
        iteration=iteration,
        writer=writer.name,
    )


def _resumes_at_end(link: Link) -> bool:
    """Return whether a phase resumes at or past its last iteration, and so trains nothing."""
    return "$" not in link.resumes and first_iter(link) >= link.last_iter > 0


def _matches_format(link: Link, name: str) -> bool:
    """Return whether a snapshot's name fits the phase's snapshot_format; True for names of other files."""
    is_hdf5 = link.solver.message.snapshot_format == pb.SolverParameter.HDF5
    return not name.endswith((*_MODELS, *_STATES)) or name.endswith(".h5") == is_hdf5


def _folder_prefix(path: str) -> str:
    """Return a path up to its last slash.

    >>> _folder_prefix("/scratch/a_iter_5.caffemodel"), _folder_prefix("a_iter_5.caffemodel")
    ('/scratch/', '')
    """
    return path[: path.rfind("/") + 1]


@file_value_rule(
    "snapshot-folder-missing",
    "warning",
    "a snapshot_prefix in a folder that does not exist under the Caffe root",
    what="snapshot_prefix is in {folder}, which does not exist under the Caffe root",
    effect="Caffe does not create it: it aborts at the start, or with `snapshot: 0` at the end of the "
    "training",
    write="run `mkdir -p {folder}` before training",
)
def check_snapshot_folder(file: ReadFile) -> Iterator[Finding]:
    """Find a snapshot_prefix whose folder does not exist under the Caffe root."""
    solver, root = file.given, file.caffe_root
    if root is None or solver.message.DESCRIPTOR.name != pb.SolverParameter.DESCRIPTOR.name:
        return
    folder, slash, _ = solver.message.snapshot_prefix.rpartition("/")
    if not slash or not folder or folder.startswith("/"):
        return
    try:
        exists = (root / folder).is_dir()
    except (OSError, ValueError):  # a name that is too long, or contains a NUL
        exists = False
    if not exists:
        place = solver.where("snapshot_prefix")
        yield finding("snapshot-folder-missing", place, folder=folder)


@value_rule(
    "snapshot-prefix-missing",
    "error",
    "snapshots without a snapshot_prefix",
    what="a snapshot is written at iteration {first}, but there is no snapshot_prefix",
    write='snapshot_prefix: "{name}"',
)
@value_rule(
    "snapshot-unnamed",
    "warning",
    "a final snapshot without a snapshot_prefix, for another Caffe (--dialect)",
    what="a snapshot is written at iteration {first}, but there is no snapshot_prefix",
    write='snapshot_prefix: "{name}"',
)
def _check_prefix(view: SolverView) -> Iterator[Finding]:
    link = view.link
    solver, fired = link.solver.message, planned_snapshots(link)
    if solver.snapshot_prefix or not fired:
        return
    written = f"Caffe writes _iter_{fired[0]}.caffemodel into the current folder"
    is_foreign = link.solver.given is not None
    yield finding(
        "snapshot-unnamed" if is_foreign and not solver.snapshot else "snapshot-prefix-missing",
        "snapshot",
        effect="Caffe aborts with `snapshot is specified but snapshot_prefix is not`"
        if solver.snapshot > 0
        else written
        if is_foreign
        else f"{written}, and caffe-torch exits with an error",
        first=fired[0],
        name=link.name,
    )
