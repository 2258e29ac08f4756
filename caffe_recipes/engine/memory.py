"""How much memory a training pass needs, and what to do when a device has less."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from caffe_recipes.caffe import pb
from caffe_recipes.engine.calls import Call
from caffe_recipes.engine.operators.operator import TensorShape, TensorShapes, layer_error
from caffe_recipes.errors import RunFailed, is_host_full
from caffe_recipes.limits import host_memory_bytes
from caffe_recipes.wording import describe_count

_FLOAT = 4
_COPIES = 3  # of each weight: itself, its gradient, and its history


@dataclass(frozen=True)
class MemoryNeed:
    """The bytes that a training pass keeps: `fixed` ones, and those of each of `images`."""

    fixed_bytes: int
    image_bytes: int
    images: int

    @property
    def total_bytes(self) -> int:
        """The bytes of all images."""
        return self.fixed_bytes + self.images * self.image_bytes

    def largest_batch(self, there_bytes: int) -> int:
        """Return the images that fit into this memory, 0 if none does.

        >>> MemoryNeed(100, 30, 8).largest_batch(200), MemoryNeed(100, 30, 8).largest_batch(90)
        (3, 0)
        """
        return max(0, (there_bytes - self.fixed_bytes) // self.image_bytes)


def estimate_need(calls: Sequence[Call], shapes: Sequence[TensorShape], weights: int) -> MemoryNeed:
    """Return the need of a pass that keeps each blob, and of the gradient of the largest one.

    `shapes` are those of all blobs, and `weights` the number of learned values. Blobs that are computed in
    place, and those of Split layers, take no memory of their own.
    """
    own = [
        math.prod(shapes[index])
        for call in calls
        if call.overwriting is None and call.node.param.type != "Split"
        for index in call.tops
    ]
    source = next((call for call in calls if call.node.source is not None and shapes[call.tops[0]]), None)
    images = shapes[source.tops[0]][0] if source else 1
    values = sum(own) + max(own, default=0)
    return MemoryNeed(_FLOAT * _COPIES * weights, max(1, _FLOAT * values // images), images)


def check_blobs(layer: pb.LayerParameter, shapes: TensorShapes) -> None:
    """Raise InputError if the blobs of one layer exceed this host's memory."""
    needed, memory = _FLOAT * sum(map(math.prod, (*shapes.tops, *shapes.learned))), memory_of("cpu")
    if needed > memory:
        what = f"needs {needed / 2**30:,.0f} GiB for its blobs, but this host has {memory / 2**30:,.0f}"
        raise layer_error(layer, what, "check its sizes")


def memory_of(device: str) -> int:
    """Return the bytes of a device that this process can use: of a GPU, those that no other process has."""
    if device == "cpu":
        return host_memory_bytes()
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return free_bytes + torch.cuda.memory_reserved(device)


def is_full(error: Exception, device: str) -> bool:
    """Return whether an error says that the memory of a device is full."""
    return isinstance(error, torch.OutOfMemoryError) or (device == "cpu" and is_host_full(error))


def full_memory(where: str, need: MemoryNeed, device: str, *, keeps_blobs: bool) -> RunFailed:
    """Return the error for a pass that the memory of a device has no room for.

    `keeps_blobs` says whether the pass keeps them all for its gradient; -checkpoint-activations does not.
    """
    there_bytes = memory_of(device)
    whose = "this host" if device == "cpu" else "the GPU"
    batch, about = describe_count(need.images, "image"), "about" if keeps_blobs else "up to"
    what = f"the memory of {whose} is full: a batch of {batch} takes {about} {_gib(need.total_bytes)}"
    what += f", and there are {_gib(there_bytes)}"
    fits = min(need.largest_batch(there_bytes), max(0, need.images - 1))
    hint = f"a batch_size of {fits} may fit, with a larger iter_size" if fits else "use one with more memory"
    return RunFailed(where, what, f"{hint}; or use -checkpoint-activations" if keeps_blobs else hint)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.3g} GiB"
