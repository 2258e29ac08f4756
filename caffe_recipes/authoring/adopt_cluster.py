"""Find what no prototxt says: the trainer, the keys of `cluster`, and the numbers of images.

They come from the options, the script, and the comments of the solvers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caffe_recipes.authoring.adopt_files import Adopted
from caffe_recipes.caffe.epoch_comments import find_epoch_size
from caffe_recipes.errors import InputError
from caffe_recipes.review.lint.records import count_images
from caffe_recipes.wording import describe_count

_TRAINER = re.compile(r"(?<!\S)(\S*\bcaffe(?:\.bin|-torch)?)\s+train\b")
_AFFINITY = re.compile(r"""KMP_AFFINITY(?:=|\s+)("[^"]+"|'[^']+'|[^\s;]+)""")
_SERVERS = re.compile(r"MLSL_NUM_SERVERS(?:=|\s+)(\d{1,4})\b")
_PSM2 = re.compile(r"(?:^|\s)-PSM2\b")
# Public data sets: the usual names of their LMDBs, and their numbers of images.
_PUBLIC_SETS = (
    ("ImageNet", re.compile(r"ilsvrc12|imagenet", re.IGNORECASE), {"training": 1_281_167, "test": 50_000}),
    ("CIFAR-10", re.compile(r"cifar-?10(?!\d)", re.IGNORECASE), {"training": 50_000, "test": 10_000}),
    ("MNIST", re.compile(r"mnist", re.IGNORECASE), {"training": 60_000, "test": 10_000}),
)


@dataclass(frozen=True)
class AdoptOptions:
    """The options about the machine and the data; None if not given."""

    ranks: int | None = None
    ranks_per_node: int | None = None
    images: int | None = None
    test_images: int | None = None
    classes: int | None = None
    caffe_root: Path | None = None
    trainer: str | None = None
    dialect: str | None = None


def find_trainer_path(found: Adopted, options: AdoptOptions) -> tuple[str, str]:
    """Return the trainer, and a note on where it comes from."""
    if options.trainer is not None:
        return options.trainer, "as given"
    match = _TRAINER.search(found.script_text)
    if match and "$" not in match[1]:
        return match[1], f"from {found.script_name}"
    return "./build/tools/caffe", "guessed: the path in the published scripts"


def find_cluster(
    found: Adopted, options: AdoptOptions, batch_per_rank: int
) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of `cluster`, and notes on where they come from.

    Raises InputError if the ranks do not fill whole nodes.
    """
    script, notes = found.script, []
    basis = find_epoch_size(found.links)
    counted = round(basis.batch / batch_per_rank) if basis else 0
    if options.ranks:
        ranks, origin = options.ranks, "as given"
    elif script.ranks:
        ranks, origin = script.ranks, f"from {found.script_name}"
    elif basis and counted * batch_per_rank == basis.batch:
        ranks = counted
        origin = f"from the comments: {basis.batch:,.0f} images per iteration, {batch_per_rank} per rank"
    else:
        ranks, origin = 1, "guessed, since no file gives the number (set it with --ranks)"
    notes.append(f"{describe_count(ranks, 'rank')}: {origin}")
    times = {max(link.solver.message.iter_size, 1) for link in found.links}
    if basis and round(basis.batch) not in {ranks * batch_per_rank * each for each in times}:
        notes.append(_contradiction(basis.batch, ranks, batch_per_rank))
    each = options.ranks_per_node or script.ranks_per_node
    if each is None:
        each = 1
        if ranks > 1:
            notes.append("1 rank per node: guessed (set it with --ranks-per-node)")
    if ranks % each:
        given, other = ("--ranks", "--ranks-per-node") if options.ranks else ("--ranks-per-node", "--ranks")
        what = f"{ranks:,} ranks do not fill whole nodes of {each:,}"
        raise InputError(given, what, f"use another value, or another {other}")
    if script.omp_num_threads is None:
        notes.append("1 OpenMP thread per rank: guessed, since no file gives the number")
    values: dict[str, Any] = {
        "nodes": ranks // each,
        "ranks_per_node": each,
        "batch_per_rank": batch_per_rank,
        "omp_num_threads": script.omp_num_threads or 1,
        **dict(_variables(found)),
    }
    return values, notes


def _contradiction(batch: float, ranks: int, batch_per_rank: int) -> str:
    """Return a warning that the comments and the ranks give different numbers of images per iteration.

    >>> _contradiction(4096.0, 3, 32)
    'warning: the comments say 4,096 images per iteration, which is 128 ranks x 32; 3 ranks give 96'
    """
    counted = round(batch / batch_per_rank)
    are = f", which is {describe_count(counted, 'rank')} x {batch_per_rank:,}"
    commented = f"the comments say {batch:,.0f} images per iteration"
    made = f"{describe_count(ranks, 'rank')} give{'s' if ranks == 1 else ''} {ranks * batch_per_rank:,}"
    return f"warning: {commented}{are if counted * batch_per_rank == batch else ''}; {made}"


def find_images(
    found: Adopted, options: AdoptOptions, train: str, test: str, test_batch: int
) -> tuple[int, int, list[str]]:
    """Return the numbers of training and test images, and notes; raises InputError for an unknown number."""
    basis = find_epoch_size(found.links)
    counts: list[int] = []
    notes: list[str] = []
    tested = next(
        (link.solver.message.test_iter[0] for link in found.links if link.solver.message.test_iter), 0
    )
    commented = round(basis.images) if basis else 0
    rows = (
        ("training", options.images, train, commented, "from the comments"),
        ("test", options.test_images, test, tested * test_batch, "test_iter x batch_size"),
    )
    for word, given, source, other, why in rows:
        origins = (
            (given, "as given"),
            (_count_images(found, source, options.caffe_root), f"counted in {source}"),
            (other, why),
            *(
                (sizes[word], f"guessed ({name}) from the name of {source}")
                for name, like, sizes in _PUBLIC_SETS
                if like.search(source)
            ),
            (test_batch if word == "test" else 0, "guessed: one batch (set it with --test-images)"),
        )
        count, origin = next(((count, origin) for count, origin in origins if count), (0, ""))
        if not count:
            raise InputError(source or found.target, "the number of images is unknown", "give --images N")
        counts.append(count)
        if source:
            notes.append(f"{count:,} {word} images: {origin}")
    return counts[0], counts[1], notes


def _count_images(found: Adopted, source: str, root: Path | None) -> int:
    """Return the number of images of an LMDB or a list that a data layer names; 0 if unknown."""
    layers = (layer for net in found.nets.values() for layer in net.message.layer)
    named = (one for one in layers if source in (one.data_param.source, one.image_data_param.source))
    return next((count_images(layer, root) for layer in named), 0) if source else 0


def _variables(found: Adopted) -> Iterator[tuple[str, Any]]:
    text = found.script_text
    affinity, servers = _AFFINITY.search(text), _SERVERS.search(text)
    if affinity and "$" not in affinity[1]:
        yield "kmp_affinity", affinity[1].strip("\"'")
    if servers:
        cores = found.script.mlsl_cores
        yield "mlsl", {"num_servers": int(servers[1]), **({"server_affinity": cores} if cores else {})}
    if _PSM2.search(text):
        yield "fabric", "psm2"
