"""The ranks of a run under mpiexec, and their communication.

hydra passes the rank of each process and their number in PMI_RANK and PMI_SIZE. MPI carries failures and the
addresses of ranks; tensors go through torch.distributed's gloo, since torch's wheels have no MPI backend. MPI
messages are bytes and JSON: mpi4py's lower-case calls would unpickle, and so execute, whatever arrives.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import accumulate
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from caffe_recipes.errors import CaffeRecipesError, RunFailed
from caffe_recipes.files.pipes import wait_until_read
from caffe_recipes.wording import describe_count

if TYPE_CHECKING:
    from torch import Tensor


class AgreedFailure(Exception):
    """Raised on all ranks when one rank has failed, so that all of them end. Rank 0 prints the reason."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


def rank_and_size(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return this process's rank and the number of ranks, from the launcher's environment variables.

    >>> rank_and_size({"PMI_RANK": "3", "PMI_SIZE": "8"}), rank_and_size({})
    ((3, 8), (0, 1))
    """
    return int(environment.get("PMI_RANK", 0)), int(environment.get("PMI_SIZE", 1))


class Ranks:
    """The single rank of a run without mpiexec. `entropy` is a random number that all ranks share."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.entropy = SystemRandom().randrange(2**31)

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Run a block on all ranks. If it fails on one, all ranks raise AgreedFailure at its end."""
        failure = None
        try:
            yield
        except CaffeRecipesError as error:
            failure = error
        self.raise_if_any_failed(failure)

    def raise_if_any_failed(self, failure: CaffeRecipesError | None) -> None:
        """Raise AgreedFailure on all ranks if any rank has a failure, with that of the lowest rank."""
        if failure is not None:
            raise AgreedFailure(failure.exit_code, str(failure))

    def connect(self) -> None:
        """Connect the ranks, so that they can exchange tensors."""

    def broadcast(self, tensor: Tensor) -> None:
        """Copy rank 0's values to every rank, in place."""

    def sum(self, tensor: Tensor) -> Callable[[], object]:
        """Start an in-place sum of `tensor` over the ranks, and return a function that waits for it."""
        return lambda: None

    def abort(self, code: int) -> None:
        """Abort the other ranks too, since they may be waiting for this one."""


class MpiRanks(Ranks):
    """The ranks of one mpiexec. Raises RunFailed if MPI sees a different number than the launcher started."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        from mpi4py import MPI  # calls MPI_Init, which a single process does not need

        self.rank, self.size = rank, size
        self._world: Any = MPI.COMM_WORLD
        if self._world.size != size:
            what = f"MPI sees {describe_count(self._world.size, 'rank')}, but the launcher started {size}"
            raise RunFailed("mpiexec", what, "use the mpiexec.hydra that was installed with mpi4py")
        self.entropy = int(self._gather(str(self.entropy))[0])

    def raise_if_any_failed(self, failure: CaffeRecipesError | None) -> None:
        """Raise AgreedFailure on all ranks if any rank has a failure, with that of the lowest rank."""
        mine = None if failure is None else [failure.exit_code, str(failure)]
        code, text = next(filter(None, map(json.loads, self._gather(json.dumps(mine)))), (0, ""))
        if code:
            raise AgreedFailure(code, text)

    def connect(self) -> None:
        """Connect to the other ranks through gloo."""
        from caffe_recipes.engine.rendezvous import join_gloo  # imports torch

        join_gloo(self._world, self._gather)

    def broadcast(self, tensor: Tensor) -> None:
        """Copy rank 0's values to every rank, in place."""
        from torch.distributed import broadcast

        broadcast(tensor, 0)

    def sum(self, tensor: Tensor) -> Callable[[], object]:
        """Start an in-place sum of `tensor` over the ranks, and return a function that waits for it."""
        from torch.distributed import all_reduce

        work = all_reduce(tensor, async_op=True)

        def wait() -> None:
            try:
                if work is not None:
                    work.wait()
            except RuntimeError as error:
                what = str(error).partition("\n")[0]
                raise RunFailed(
                    f"rank {self.rank}", f"lost the connection to the other ranks: {what}"
                ) from None

        return wait

    def abort(self, code: int) -> None:
        """Abort the other ranks too, after the launcher has read our error message."""
        try:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, AttributeError):  # closed, or without a reader
                    stream.flush()
                    wait_until_read(stream.fileno())
        finally:
            self._world.Abort(code)

    def _gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, in rank order."""
        from mpi4py import MPI

        data = text.encode()
        sizes = array("i", [0] * self.size)
        self._world.Allgather([array("i", [len(data)]), MPI.INT], [sizes, MPI.INT])
        whole = bytearray(sum(sizes))
        self._world.Allgatherv([data, MPI.BYTE], [whole, sizes, MPI.BYTE])
        parts = zip(sizes, accumulate(sizes), strict=True)
        return [whole[end - size : end].decode() for size, end in parts]


def join_ranks(environment: Mapping[str, str]) -> Ranks:
    """Return the ranks of this mpiexec, or the single rank of a process without one."""
    rank, size = rank_and_size(environment)
    return MpiRanks(rank, size) if size > 1 else Ranks()
