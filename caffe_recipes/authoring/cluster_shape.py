"""Divide a global batch among nodes and ranks, and warn if published runs lost accuracy at such a batch.

The warnings use the accuracies in the paper, and the epochs of MLPerf's runs with LARS.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from caffe_recipes.cluster.profiles import Profile
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.paper_rules import ACCURACY, HIGHEST_LR, LARGE_BATCH, LARS_EPOCHS, lars_epochs
from caffe_recipes.wording import describe_count

_USUAL_BATCH = 32
_FITTING = range(64, 7, -1)
# Values in the output of a ResNet's first convolution per image; a Caffe blob has at most 2^31 - 1.
_NUMBERS_AN_IMAGE = 64 * 112 * 112
_MOST_NUMBERS = 2**31 - 1
_MOST_PER_RANK = _MOST_NUMBERS // _NUMBERS_AN_IMAGE
_LEAST_CLASSES = 2
_BOTTLENECKS_FROM = 50  # depth; the last blocks of such nets have four times the features


def check_batch(batch: int, images: int, option: str = "--batch") -> None:
    """Raise InputError if a batch has more images than the data set."""
    if batch > images:
        what = f"a batch of {batch:,} is larger than the data set ({describe_count(images, 'image')})"
        raise InputError(option, what, "use a smaller batch")


def divide_batch(
    batch: int,
    nodes: int | None,
    ranks_per_node: int,
    batch_per_rank: int | None,
    *,
    option: str | None = None,
) -> tuple[int, int]:
    """Return the number of nodes and the batch per rank that give a global batch.

    If one of them is None, it follows from the other. If both are None, a rank gets 32 images as in the
    64-node recipe, or another number up to 64 that fits, or else there is one node. Raises InputError, which
    names `option`, if the batch cannot be divided this way.

    >>> divide_batch(4096, None, 2, None), divide_batch(4096, 16, 2, None), divide_batch(100, None, 2, None)
    ((64, 32), (16, 128), (1, 50))
    """
    option = option or ("--nodes" if nodes else "--batch-per-rank" if batch_per_rank else "--batch")
    if nodes is None and batch_per_rank is None:
        sizes = (_USUAL_BATCH, *_FITTING)
        batch_per_rank = next((size for size in sizes if batch % (ranks_per_node * size) == 0), None)
        nodes = 1 if batch_per_rank is None else None
    if nodes is None and batch_per_rank is not None:
        if batch % (ranks_per_node * batch_per_rank):
            per_node = f"{describe_count(ranks_per_node, 'rank')} x {batch_per_rank:,} images per node"
            what = f"a batch of {batch:,} is not a multiple of {per_node}"
            sizes_of = "" if option == "--batch-per-rank" else "--batch-per-rank "
            raise InputError(option, what, _hint_divisors(batch, ranks_per_node, batch_per_rank, sizes_of))
        nodes = batch // (ranks_per_node * batch_per_rank)
    nodes = nodes or 1
    ranks = nodes * ranks_per_node
    each = batch_per_rank or batch // ranks
    if not each or each * ranks != batch:
        shared = f"{describe_count(nodes, 'node')} x {describe_count(ranks_per_node, 'rank')}"
        if batch_per_rank:
            what = f"{shared} x {batch_per_rank:,} images do not give a batch of {batch:,}"
            raise InputError(option, what, "omit one of these options")
        near = _hint_divisors(batch, ranks_per_node, nodes, "" if option == "--nodes" else "--nodes ")
        raise InputError(option, f"a batch of {batch:,} cannot be divided among {shared}", near)
    return nodes, each


def check_batch_per_rank(each: int, option: str = "--nodes") -> None:
    """Raise InputError if the batch per rank makes a ResNet's blobs too large for Caffe."""
    if each > _MOST_PER_RANK:
        what = f"{each:,} images per rank need a blob in the ResNet of more than 2^31 - 1 values"
        raise InputError(option, what, f"use {_MOST_PER_RANK:,} or fewer")


def check_classes(classes: int, batch_per_rank: int, depth: int) -> None:
    """Raise InputError for fewer than two classes, or more than Caffe's blobs can hold.

    The last layer has a score for each image and class, and a weight for each feature and class.
    """
    if classes < _LEAST_CLASSES:
        raise InputError("--classes", f"{classes} is too few", f"give {_LEAST_CLASSES} or more")
    features = 2048 if depth >= _BOTTLENECKS_FROM else 512
    most = _MOST_NUMBERS // max(batch_per_rank, features)
    if classes > most:
        what = f"{classes:,} classes need a blob of more than 2^31 - 1 values in the ResNet's last layer"
        raise InputError("--classes", what, f"give {most:,} or fewer")


def _hint_divisors(batch: int, ranks_per_node: int, wanted: int, of: str) -> str:
    """Return a hint with the numbers nearest to `wanted` that divide the batch evenly.

    `of` is the option that takes them, if it is not the one that the error names.
    """
    whole = batch // ranks_per_node if batch % ranks_per_node == 0 else 0
    below = next((number for number in range(min(wanted, whole), 0, -1) if whole % number == 0), 0)
    if not below:
        return "use another --batch or --ranks-per-node"
    above = next(
        (number for number in range(wanted + 1, min(2 * wanted, whole) + 1) if whole % number == 0), 0
    )
    return f"use {of}{below:,}" + (f" or {above:,}" if above else "")


_ONE_THREAD = "omp_num_threads: 1, since no profile gives the cores; set it to the cores per rank"


def find_threads(profile: Profile | None) -> int | None:
    """Return the OpenMP threads of all ranks on a node, excluding MLSL's cores; None if unknown."""
    if profile is None:
        return None
    if profile.omp_num_threads:  # per rank, with one rank per socket
        return profile.omp_num_threads * (profile.node.sockets or 1)
    taken = set(profile.mlsl.server_affinity) if profile.mlsl else ()
    return max(profile.node.cores - len(taken), 1) if profile.node.cores else None


def node_values(profile: Profile | None, nodes: int, ranks_per_node: int) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of `cluster` that the machine determines, and notes on them."""
    threads = find_threads(profile)
    values: dict[str, Any] = {"omp_num_threads": max((threads or 1) // ranks_per_node, 1)}
    if threads is None and nodes == 1:
        threads_note = "omp_num_threads: not set, so `run` divides the cores of its machine by the ranks."
        values = {}
    elif threads is None:
        threads_note = f"{_ONE_THREAD}."
    else:
        threads_note = f"omp_num_threads: the profile's {threads} per node / {ranks_per_node} ranks."
    if profile is None:
        return values, [threads_note]
    node, notes = profile.node, [f"The nodes are those of the profile {profile.name}.", threads_note]
    if profile.kmp_affinity:
        values["kmp_affinity"] = profile.kmp_affinity
    if profile.mlsl and profile.mlsl.num_servers is not None:
        values["mlsl"] = profile.mlsl.model_dump(exclude_defaults=True)
    pairs = (
        ("sockets_per_node", node.sockets),
        ("cores_per_socket", node.cores_per_socket),
        ("tmp_gb", node.tmp_gb),
    )
    values |= {key: value for key, value in pairs if value is not None}
    return values | {"copy_with": profile.copy_with}, notes


def find_uncopied(profile: Profile | None, nodes: int) -> Iterator[str]:
    """Yield notes on settings of the machine that are not copied to the recipe or its run.sh."""
    if find_threads(profile) is None and nodes > 1:
        yield f"warning: {_ONE_THREAD}"
    if profile is None:
        return
    left = {
        f"launcher.environment ({', '.join(profile.launcher.environment)})": profile.launcher.environment,
        "modules": profile.modules,
        "container": profile.container,
    }
    named = " and ".join(name for name, value in left.items() if value)
    if named:
        hint = "pass --profile to `run` and `submit`"
        yield f"{named} of the profile: not copied to the recipe or its run.sh; {hint}"


_FALLS_ABOVE = ACCURACY[0][0]
_LARGEST = ACCURACY[-1][0]
# Sizes of data sets whose epochs can be compared with published epochs on ImageNet-1K.
IMAGENET_IMAGES = range(1_000_000, 1_500_000)


def find_warnings(batch: int, epochs: float, images: int) -> Iterator[str]:
    """Yield warnings about accuracy known to be lost at a batch size, and on ImageNet about too few epochs.

    >>> [line.partition(":")[0] for line in find_warnings(16384, 40, 1281167)]
    ['batch 16,384', '40 epochs may be too few']
    """
    if batch > _FALLS_ABOVE:
        table = ", ".join(f"{top1:g}% at {size:,}" for size, top1 in ACCURACY)
        what = f"batch {batch:,}: the paper's accuracy falls above 8K (section V-B): {table} (Table X)"
        yield f"{what}; {_papers_measures(batch)}"
    needed = lars_epochs(batch)
    if images not in IMAGENET_IMAGES:
        return
    if needed is None:
        size, most = LARS_EPOCHS[-1]
        known = f"above {size:,}, where runs with LARS take {most:g} epochs"
        yield f"batch {batch:,}: no published results {known}"
    elif epochs < needed * 0.995:
        what = f"MLPerf's runs with LARS take {_lars(batch, needed)}"
        yield f"{epochs:.4g} epochs may be too few: {what}, and plain SGD does not need fewer"


def _lars(batch: int, needed: float) -> str:
    """Return the published epochs for a batch, or those for the nearest batches and an interpolation.

    >>> _lars(8192, 42), _lars(16384, 49)
    ('42 to 75.9% at a batch of 8,192', '42 to 75.9% at 8,192 and 56 at 32,768, interpolated 49 at 16,384')
    """
    least = LARS_EPOCHS[0][0]
    if batch <= least or batch in dict(LARS_EPOCHS):
        return f"{needed:.3g} to 75.9% at a batch of {max(batch, least):,}"
    (low, before), (high, after) = next(pair for pair in pairwise(LARS_EPOCHS) if batch <= pair[1][0])
    published = f"{before:g} to 75.9% at {low:,} and {after:g} at {high:,}"
    return f"{published}, interpolated {needed:.3g} at {batch:,}"


def _papers_measures(batch: int) -> str:
    """Describe what the paper did against the loss of accuracy at a batch size."""
    did = "the paper halved the weight decay and ended with a collapse"
    if batch >= LARGE_BATCH:
        did += f", limited the rate to {HIGHEST_LR:g} and warmed up for 7 to 10 epochs (section V-C)"
    if batch >= _LARGEST:
        did += ", and increased the weight decay in steps, as paper-t9-65536-128n does"
    return did
