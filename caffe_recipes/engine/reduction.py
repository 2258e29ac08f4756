"""Averaging gradients over the ranks while the backward pass still makes others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from caffe_recipes.engine.net import Net
from caffe_recipes.engine.ranks import Ranks
from caffe_recipes.engine.updates import Group

_BUCKET = 2**20  # floats: large enough to fill the link, small enough that the first leaves early


@dataclass
class _Bucket:
    """Neighbours in a flat gradient, sent when the last of them is there."""

    grads: Tensor
    members: int
    missing: int
    wait: Callable[[], object] | None = None


class Reduction:
    """Sums the gradients of all ranks and divides by their number.

    Every rank runs the same graph, so every rank sends its buckets in the same order.
    """

    def __init__(self, ranks: Ranks, net: Net, groups: Sequence[Group]) -> None:
        self._ranks, self._buckets, self._last = ranks, list[_Bucket](), False
        for group in groups if ranks.ranks > 1 else ():
            if any(net.params[index].tensor.requires_grad for index, _, _ in group.places):
                self._divide(net, group)

    def _divide(self, net: Net, group: Group) -> None:
        """Cut a group's gradients into buckets, and count the gradients that arrive in each."""
        begin, members = 0, list[Tensor]()
        for place, (index, _, stop) in enumerate(group.places):
            members.append(net.params[index].tensor)
            if stop - begin >= _BUCKET or place == len(group.places) - 1:
                bucket = _Bucket(group.grads[begin:stop], len(members), len(members))
                self._buckets.append(bucket)
                for tensor in members:
                    tensor.register_post_accumulate_grad_hook(self._arrival(bucket))
                begin, members = stop, []

    def _arrival(self, bucket: _Bucket) -> Callable[[Tensor], None]:
        def arrived(_: Tensor) -> None:
            if self._last:
                bucket.missing -= 1
                if bucket.missing == 0:
                    bucket.wait = self._ranks.sum(bucket.grads)

        return arrived

    def begin(self, last: bool) -> None:
        """Get ready for a backward pass; only the last of an iteration is sent."""
        self._last = last
        for bucket in self._buckets:
            bucket.missing, bucket.wait = bucket.members, None

    def finish(self) -> None:
        """Wait until all gradients are averaged."""
        for bucket in self._buckets:
            if bucket.wait is None:  # a parameter had no part in the loss
                bucket.wait = self._ranks.sum(bucket.grads)
        for bucket in self._buckets:
            if bucket.wait is not None:
                bucket.wait()
            bucket.grads.mul_(1 / self._ranks.ranks)
