"""A chain of phases: solvers, nets, and the snapshot that each phase starts from.

The comments of generated solvers say which phases are stopped before max_iter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layers import batch_size
from caffe_recipes.caffe.net_states import select_data_layers, train_state
from caffe_recipes.caffe.prototxt import Document
from caffe_recipes.caffe.rates import check_rates, lr_at
from caffe_recipes.caffe.upgrade import SOLVER_TYPES

SolverDocument = Document[pb.SolverParameter]
NetDocument = Document[pb.NetParameter]
M = TypeVar("M", bound=Message)
_MAX_SNAPSHOTS = 1000


@dataclass(frozen=True)
class Link:
    """A phase of a chain. `weights` is the value of `--weights`, None if unknown, empty if absent.

    `weights_where` is the place of the command that trains the phase, and `resumes` the solverstate of its
    `--snapshot`. `last_iter` is the last iteration: max_iter, unless the phase is stopped earlier. `ranks` is
    the number of ranks of this phase, None if it is that of the chain. `test_nets` are the nets that the
    solver tests besides its own. `tested_images` is the size of the test set, 0 if unknown. `part` is the
    path of the solver's field in a file of several solvers.
    """

    name: str
    solver: SolverDocument
    net: NetDocument | None
    last_iter: int
    weights: str | None = None
    weights_where: str = ""
    resumes: str = ""
    ranks: int | None = None
    test_nets: tuple[NetDocument, ...] = ()
    tested_images: int = 0
    part: str = ""

    @cached_property
    def data_layers(self) -> tuple[pb.LayerParameter, ...]:
        """The data layers of the training net; cached, because later phases are compared with this one."""
        if self.net is None:
            return ()
        state = train_state(self.solver.message, self.net.message)
        return tuple(select_data_layers(self.net.message, state))


@dataclass(frozen=True)
class ChainFacts:
    """Facts about a chain that its files do not contain; None means unknown."""

    ranks: int | None = None
    images: int | None = None
    test_images: int | None = None
    ranks_per_node: int | None = None
    omp_num_threads: int | None = None
    mlsl_cores: tuple[int, ...] = ()
    sockets_per_node: int | None = None
    cores_per_socket: int | None = None
    has_gpus: bool = False

    @property
    def threads_per_node(self) -> int:
        """The OpenMP threads of all ranks on a node; 0 if unknown."""
        return (self.ranks_per_node or 0) * (self.omp_num_threads or 0)

    @property
    def cores_per_node(self) -> int:
        """The cores of a node; 0 if unknown."""
        return (self.sockets_per_node or 0) * (self.cores_per_socket or 0)


@dataclass(frozen=True)
class Chain:
    """Phases in order. `is_whole` is false for a single solver of a chain whose other solvers are unknown.

    `tested` are the nets that the final model is evaluated with; empty if unknown.
    """

    links: tuple[Link, ...]
    facts: ChainFacts = ChainFacts()
    is_whole: bool = True
    tested: tuple[NetDocument, ...] = ()


def read_links(document: Document[Any], name: str) -> list[Link]:
    """Return a phase for each solver in a document, without its nets; empty if the document has no solver.

    `name` is the name of the phase. Of several solvers, each starts from the last snapshot of the previous
    one.
    """
    if isinstance(document.message, pb.SolverParameter):
        # BVLC's solvers may name the weights that they start from.
        link = Link(name, document, None, max(document.message.max_iter, 0))
        own = getattr(document.given, "weights", None)
        return [replace(link, weights=own[-1], weights_where=document.where("weights[0]")) if own else link]
    links: list[Link] = []
    several = isinstance(document.message, pb.MultiPhaseSolverParameter)
    for index, pair in enumerate(document.message.params_pair if several else ()):
        part = f"params_pair[{index}]"
        solver = sub_document(document, f"{part}.solver_params", pair.solver_params)
        weights = None
        if links:
            weights = f"{links[-1].solver.message.snapshot_prefix}_iter_{links[-1].last_iter}.caffemodel"
        last_iter = max(solver.message.max_iter, 0)
        links.append(Link(f"{name} {index + 1}", solver, None, last_iter, weights, part=part))
    return links


def sub_document(document: Document[Any], field: str, message: M) -> Document[M]:
    """Return the message at a field path of a document as a document of its own, with places and comments."""
    start = f"{field}."
    offsets = {
        path.removeprefix(start): at for path, at in document.offsets.items() if path.startswith(start)
    }
    comments = {
        path.removeprefix(start): c for path, c in document.comments.items() if path.startswith(start)
    }
    return Document(document.path, document.text, message, comments, offsets)


@dataclass(frozen=True)
class Start:
    """The snapshot that a phase starts from: the index of the phase that writes it, and its iteration.

    `candidates` is the number of snapshots that were considered, if the snapshot is a guess.
    """

    index: int
    iteration: int
    candidates: int = 1
    is_guess: bool = False


@dataclass(frozen=True)
class Snapshots:
    """The iterations at which a phase writes snapshots, in order. Computed on access, not stored."""

    every: range
    last: int | None

    def __len__(self) -> int:
        return len(self.every) + (self.last is not None)

    def __contains__(self, iteration: object) -> bool:
        return iteration in self.every or (self.last is not None and iteration == self.last)

    def __iter__(self) -> Iterator[int]:
        yield from self.every
        if self.last is not None:
            yield self.last

    def __getitem__(self, index: int) -> int:
        if self.last is not None and index in (-1, len(self.every)):
            return self.last
        return self.every[index + 1 if index < 0 and self.last is not None else index]

    def nearest(self, iteration: int) -> int | None:
        """Return the snapshot iteration nearest to an iteration; None if there is none."""
        below = iteration // self.every.step * self.every.step
        ends = (self[0], self[-1]) if self else ()
        near = [number for number in (below, below + self.every.step, *ends) if number in self]
        return min(near, key=lambda number: abs(number - iteration), default=None)


def planned_snapshots(link: Link) -> Snapshots:
    """Return the iterations at which a phase writes snapshots, after the one that it resumes from, if any.

    >>> solver = pb.SolverParameter(max_iter=1000, snapshot=400)
    >>> list(planned_snapshots(Link("a", Document("", "", solver, {}, {}), None, 1000)))
    [400, 800, 1000]
    """
    solver, first, last = link.solver.message, first_iter(link), link.last_iter
    step = solver.snapshot
    every = range((first // step + 1) * step, last + 1, step) if step > 0 else range(0)
    is_stopped = last != solver.max_iter
    is_written = solver.snapshot_after_train and not is_stopped and last > first
    return Snapshots(every, last if is_written and not (every and every[-1] == last) else None)


def first_iter(link: Link) -> int:
    """Return the iteration at which a phase starts: that of the solverstate if it resumes one, else 0."""
    return split_weights(link.resumes)[1] or 0


RATE_OF_LOSSES = "the rate of lr_policy plateau depends on the losses"


def find_rate_problem(solver: pb.SolverParameter) -> str:
    """Return why a solver's rate is not known or finite at every iteration, or an empty string."""
    if solver.lr_policy == "plateau":
        return RATE_OF_LOSSES
    return next(map(str, check_rates(solver)), "")


def has_known_rates(solver: pb.SolverParameter) -> bool:
    """Return whether the learning rate is known and finite at every iteration of the run."""
    return solver.max_iter > 0 and not find_rate_problem(solver)


def snapshot_rate(link: Link, iteration: int) -> float:
    """Return the rate at a snapshot's iteration; at the end of the run, the rate of the last update."""
    return lr_at(link.solver.message, min(iteration, link.last_iter - 1))


def plan_starts(chain: Chain) -> list[Start | None]:
    """Return what each phase starts from; None for the first, and for weights that no earlier phase writes.

    It is also None for a phase that resumes its own solverstate. If the weights are unknown, the start is the
    snapshot of the previous phase whose rate is nearest to this phase's first rate.
    """
    starts: list[Start | None] = []
    for index, link in enumerate(chain.links):
        if link.weights is not None or link.resumes:
            starts.append(_named_start(chain.links[:index], link.weights or link.resumes))
        else:
            starts.append(_guessed_start(chain.links[index - 1], link, index - 1) if index else None)
    return starts


def split_weights(weights: str) -> tuple[str, int | None]:
    """Split a snapshot's path into its prefix without folders, and its iteration (None if absent).

    >>> split_weights("/tmp/resnet_50_iter_7638.caffemodel")
    ('resnet_50', 7638)
    """
    name = weights.rpartition("/")[2]
    stem = name.partition(".")[0] if "_iter_" not in name else name
    prefix, mark, rest = stem.rpartition("_iter_")
    number = rest.partition(".")[0]
    if not mark or not (number.isascii() and number.isdigit()) or len(number) > 10:
        return stem, None
    return prefix, int(number)


def prefix_name(link: Link) -> str:
    """Return a phase's snapshot_prefix without its folders."""
    return link.solver.message.snapshot_prefix.rpartition("/")[2]


def find_writer(links: Sequence[Link], name: str) -> int | None:
    """Return the last phase that writes a snapshot of this name, if possible at its iteration, or None."""
    prefix, iteration = split_weights(name)
    if iteration is None:
        return None
    writers = [index for index, link in enumerate(links) if prefix_name(link) == prefix]
    firing = [index for index in writers if iteration in planned_snapshots(links[index])]
    return max(firing or writers, default=None)


def batch_per_rank(link: Link) -> int | None:
    """Return the images per rank per iteration, over all iter_size passes; None if unknown."""
    for layer in link.data_layers:
        if size := batch_size(layer):
            return size * max(link.solver.message.iter_size, 1)
    return None


def _named_start(earlier: Sequence[Link], weights: str) -> Start | None:
    index, iteration = find_writer(earlier, weights), split_weights(weights)[1]
    return None if index is None or iteration is None else Start(index, iteration)


def _guessed_start(before: Link, link: Link, index: int) -> Start | None:
    fired = planned_snapshots(before)
    if not fired:
        return None
    iteration = fired[-1]
    if len(fired) > 1 and has_known_rates(before.solver.message) and has_known_rates(link.solver.message):
        iteration = _nearest_rate(before, fired, lr_at(link.solver.message, 0))
    return Start(index, iteration, len(fired), is_guess=len(fired) > 1)


def _nearest_rate(link: Link, fired: Snapshots, rate: float) -> int:
    """Return the last snapshot with the nearest rate; among very many, search in ever smaller steps."""
    # The time to compute a `multistep` rate grows with the number of steps.
    limit = max(_MAX_SNAPSHOTS // (1 + len(link.solver.message.stepvalue) // 100), 4)
    low, high = 0, len(fired)
    while True:
        step = max((high - low) // limit, 1)
        best: int = min(
            {*range(low, high, step), high - 1},
            key=lambda index: (_rate_distance(link, fired[index], rate), -index),
        )
        if step == 1:
            return fired[best]
        low, high = max(best - step, low), min(best + step + 1, high)


def _rate_distance(link: Link, iteration: int, rate: float) -> float:
    """Return how far the rate at an iteration is from another rate, by their ratio."""
    other = snapshot_rate(link, iteration)
    return abs(math.log(other / rate)) if other > 0 and rate > 0 else abs(other - rate) + 1e9


_STOP = re.compile(r"\bstopped at (?:iteration )?(\d[\d,]{0,12})", re.IGNORECASE)


def parse_stop(text: str) -> int | None:
    """Return the iteration at which a phase is stopped, according to a comment; None if it names none.

    >>> parse_stop("stopped at 7800, 24.94 epochs"), parse_stop("24.94 epochs")
    (7800, None)
    """
    match = _STOP.search(text)
    return int(match[1].replace(",", "")) if match else None


def stop_phases(chain: Chain) -> Chain:
    """Return the chain with each last_iter that is not set yet taken from the comment beside max_iter."""
    return replace(chain, links=tuple(map(_apply_stop, chain.links)))


def _apply_stop(link: Link) -> Link:
    max_iter, comment = link.solver.message.max_iter, link.solver.comments.get("max_iter")
    if link.last_iter != max_iter or comment is None:
        return link
    texts = [*filter(None, comment.texts)]
    stops = [stop for text in texts if (stop := parse_stop(text)) is not None and 0 < stop < max_iter]
    return replace(link, last_iter=stops[0]) if stops else link


_FIRST_WORDS = {
    "": 0,
    "solver": 0,
    "init": 0,
    "initial": 0,
    "start": 0,
    "warmup": 0,
    "first": 0,
    "base": 0,
    "main": 0,
}
_LAST_WORDS = {"coll": 10**9, "collapse": 10**9, "finetune": 10**9, "final": 10**9 + 1, "last": 10**9 + 1}


def phase_name_from_path(path: str | Path) -> str:
    """Return the name of a phase, from the file name of its solver.

    >>> paths = ["a/solver_cyc1.prototxt", "solver.prototxt", "lenet_solver_adam.prototxt"]
    >>> [phase_name_from_path(path) for path in paths]
    ['cyc1', 'solver', 'lenet_adam']
    """
    stem = PurePosixPath(path).stem
    return re.sub(r"solver[_. -]*", "", stem).strip("_-. ") or stem


def phase_order(name: str) -> int | None:
    """Return a sort key for a phase's place in its chain, from its name; None if the name gives no hint.

    >>> names = ["collapse", "cyc10", "cyc2", "init"]
    >>> sorted(names, key=phase_order)
    ['init', 'cyc2', 'cyc10', 'collapse']
    >>> phase_order("quick"), phase_order("phase_3")
    (None, 3)
    """
    word = name.lower()
    ends = _FIRST_WORDS | _LAST_WORDS
    if word in ends:
        return ends[word]
    last = re.split(r"[_.-]", word)[-1]
    if last in ends:
        return ends[last]
    number = re.fullmatch(r"(?:phase|stage|step|part|cyc|cycle|run|p|s)?[_-]?(\d{1,6})(?:st|nd|rd|th)?", last)
    return int(number[1]) if number else None


def final_name(link: Link, kind: str = "caffemodel") -> str:
    """Return the file name of the last snapshot that a phase writes."""
    fired = planned_snapshots(link)
    end = ".h5" if link.solver.message.snapshot_format == pb.SolverParameter.HDF5 else ""
    return f"{prefix_name(link)}_iter_{fired[-1] if fired else link.last_iter}.{kind}{end}"


def solver_type(solver: pb.SolverParameter) -> str:
    """Return a solver's type, from the old field `solver_type` if only that is set.

    >>> solver_type(pb.SolverParameter()), solver_type(pb.SolverParameter(solver_type="ADAM"))
    ('SGD', 'Adam')
    """
    is_old = solver.HasField("solver_type") and not solver.HasField("type")
    return SOLVER_TYPES[type(solver).SolverType.Name(solver.solver_type)] if is_old else solver.type


def is_collapse(before: Link, link: Link) -> bool:
    """Return whether a last phase is a collapse: by its name, or because it drops the augmentation."""
    named = link.name, link.solver.message.snapshot_prefix.rpartition("/")[2]
    if any("coll" in name.lower() for name in named):
        return True
    return (
        before.net is not None and link.net is not None and _is_augmented(before) and not _is_augmented(link)
    )


def _is_augmented(link: Link) -> bool:
    return any(
        layer.transform_param.HasField("random_aspect_ratio_param")
        or layer.transform_param.HasField("random_resize_param")
        for layer in link.data_layers
    )
