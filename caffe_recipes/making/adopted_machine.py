"""The machine of adopted files: its ranks, threads and images, by what is given, the script and comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caffe_recipes.caffe.datums import open_datums
from caffe_recipes.errors import DataError, InputError
from caffe_recipes.making.adopted_files import Adopted
from caffe_recipes.review.lint.chains.epochs import find_basis
from caffe_recipes.review.net_paths import is_file

_TRAINER = re.compile(r"(\S*\bcaffe(?:\.bin|-torch)?)\s+train\b")
_AFFINITY = re.compile(r"""KMP_AFFINITY(?:=|\s+)("[^"]+"|'[^']+'|[^\s;]+)""")
_SERVERS = re.compile(r"MLSL_NUM_SERVERS(?:=|\s+)(\d{1,4})\b")
_PSM2 = re.compile(r"(?:^|\s)-PSM2\b")
_IMAGENET = re.compile(r"ilsvrc12|imagenet", re.IGNORECASE)
_IMAGENET_IMAGES = {"training": 1_281_167, "test": 50_000}


@dataclass(frozen=True)
class Said:
    """What the user says of the machine and the data; None is not said."""

    ranks: int | None = None
    ranks_per_node: int | None = None
    images: int | None = None
    test_images: int | None = None
    classes: int | None = None
    caffe_root: Path | None = None


NOTHING = Said()


def find_trainer(found: Adopted) -> tuple[str, str]:
    """Return the trainer, and where it is from."""
    match = _TRAINER.search(found.script_text)
    if match and "$" not in match[1]:
        return match[1], f"by {found.script_name}"
    return "./build/tools/caffe", "a guess: the path of the published scripts"


def find_cluster(found: Adopted, said: Said, batch_per_rank: int) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of the cluster, and where they are from. InputError for ranks of no whole nodes."""
    script, notes = found.script, []
    basis = find_basis(found.links)
    counted = round(basis.batch / batch_per_rank) if basis else 0
    if said.ranks:
        ranks, origin = said.ranks, "as given"
    elif script.ranks:
        ranks, origin = script.ranks, f"by {found.script_name}"
    elif basis and counted * batch_per_rank == basis.batch:
        ranks = counted
        origin = f"by the comments: {basis.batch:,.0f} images an iteration, {batch_per_rank} of each rank"
    else:
        ranks, origin = 1, "a guess: nothing says how many (--ranks)"
    notes.append(f"{ranks} rank{'s' if ranks > 1 else ''}: {origin}")
    times = {max(link.solver.message.iter_size, 1) for link in found.links}
    if basis and round(basis.batch) not in {ranks * batch_per_rank * each for each in times}:
        notes.append(_contradiction(basis.batch, ranks, batch_per_rank))
    each = said.ranks_per_node or script.ranks_per_node
    if each is None:
        each = 1
        if ranks > 1:
            notes.append("1 rank on each node: a guess (--ranks-per-node)")
    if ranks % each:
        given, other = ("--ranks", "--ranks-per-node") if said.ranks else ("--ranks-per-node", "--ranks")
        what = f"{ranks:,} ranks are no whole nodes of {each:,}"
        raise InputError(given, what, f"give another, or another {other}")
    if script.omp_num_threads is None:
        notes.append("1 OpenMP thread a rank: a guess, nothing says how many")
    values: dict[str, Any] = {
        "nodes": ranks // each,
        "ranks_per_node": each,
        "batch_per_rank": batch_per_rank,
        "omp_num_threads": script.omp_num_threads or 1,
        **dict(_variables(found)),
    }
    return values, notes


def _contradiction(batch: float, ranks: int, batch_per_rank: int) -> str:
    """Say what the comments tell of an iteration, and what the ranks make of it.

    >>> _contradiction(4096.0, 3, 32)
    'warning: the comments say 4,096 images an iteration, that is 128 ranks of 32; 3 make 96'
    """
    counted = round(batch / batch_per_rank)
    are = f", that is {counted:,} rank{'s' if counted > 1 else ''} of {batch_per_rank:,}"
    said = f"the comments say {batch:,.0f} images an iteration"
    made = f"{ranks:,} make{'s' if ranks == 1 else ''} {ranks * batch_per_rank:,}"
    return f"warning: {said}{are if counted * batch_per_rank == batch else ''}; {made}"


def find_images(
    found: Adopted, said: Said, train: str, test: str, test_batch: int
) -> tuple[int, int, list[str]]:
    """Return the training and test images, and where the numbers are from. InputError where none is known."""
    basis = find_basis(found.links)
    counts: list[int] = []
    notes: list[str] = []
    tested = next(
        (link.solver.message.test_iter[0] for link in found.links if link.solver.message.test_iter), 0
    )
    commented = round(basis.images) if basis else 0
    rows = (
        ("training", said.images, train, commented, "by the comments"),
        ("test", said.test_images, test, tested * test_batch, "by test_iter x batch_size"),
    )
    for word, given, source, other, why in rows:
        origins = (
            (given, "as given"),
            (_count(source, said.caffe_root), f"counted in {source}"),
            (other, why),
            (_IMAGENET_IMAGES[word] if _IMAGENET.search(source) else 0, f"a guess: ImageNet's, by {source}"),
            (test_batch if word == "test" else 0, "a guess: one batch (--test-images)"),
        )
        count, origin = next(((count, origin) for count, origin in origins if count), (0, ""))
        if not count:
            raise InputError(source, "nothing says how many images it holds", "give --images N")
        counts.append(count)
        if source:
            notes.append(f"{count:,} {word} images: {origin}")
    return counts[0], counts[1], notes


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


def _count(source: str, root: Path | None) -> int:
    """Count the records of an LMDB that is here, else 0."""
    folder = (root or Path()) / source
    if not source or not is_file(folder / "data.mdb"):
        return 0
    try:
        with open_datums(folder) as datums:
            return len(datums)
    except DataError:
        return 0
