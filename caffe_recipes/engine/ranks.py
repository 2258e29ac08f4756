"""The ranks of a run under mpiexec, and their communication.

hydra gives each process its rank in PMI_RANK and PMI_SIZE. MPI is used for failures and for the addresses of
ranks; tensors go through gloo of torch.distributed, since torch's wheels have no MPI backend. MPI messages
are bytes and JSON: mpi4py's lower-case calls would unpickle, and so execute, whatever arrives.
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
from caffe_recipes.files import wait_until_read

if TYPE_CHECKING:
    from torch import Tensor


class AgreedFailure(Exception):
    """A failure of one rank that all ranks raise, so that all end; rank 0 prints the reason."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


def place_of(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return this process's rank and the number of ranks, from the launcher's variables.

    >>> place_of({"PMI_RANK": "3", "PMI_SIZE": "8"}), place_of({})
    ((3, 8), (0, 1))
    """
    return int(environment.get("PMI_RANK", 0)), int(environment.get("PMI_SIZE", 1))


class Ranks:
    """A run of a single process, which needs no communication; `entropy` is a random number for all ranks."""

    rank, ranks = 0, 1

    def __init__(self) -> None:
        self.entropy = SystemRandom().randrange(2**31)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Context for a block that all ranks run; if it fails on one, all raise AgreedFailure at its end."""
        failure = None
        try:
            yield
        except CaffeRecipesError as error:
            failure = error
        self.settle(failure)

    def settle(self, failure: CaffeRecipesError | None) -> None:
        """Raise AgreedFailure on all ranks if any has a failure; the lowest rank's counts."""
        if failure is not None:
            raise AgreedFailure(failure.exit_code, str(failure))

    def connect(self) -> None:
        """Connect the ranks, so that they can exchange tensors."""

    def broadcast(self, tensor: Tensor) -> None:
        """Copy rank 0's values to every rank, in place."""

    def sum(self, tensor: Tensor) -> Callable[[], object]:
        """Start to sum `tensor` over the ranks, in place; return a function that waits for the result."""
        return lambda: None

    def abort(self, code: int) -> None:
        """End the other ranks too, since they may be waiting for this one."""


class MpiRanks(Ranks):
    """The ranks of one mpiexec. Raises RunFailed if MPI does not see those that the launcher started."""

    def __init__(self, rank: int, ranks: int) -> None:
        super().__init__()
        from mpi4py import MPI  # calls MPI_Init, which a single process does not need

        self.rank, self.ranks = rank, ranks
        self._world: Any = MPI.COMM_WORLD
        if self._world.size != ranks:
            what = f"MPI sees {self._world.size} ranks, but the launcher started {ranks}"
            raise RunFailed("mpiexec", what, "use the mpiexec.hydra that is installed beside mpi4py")
        self.entropy = int(self._gather(str(self.entropy))[0])

    def settle(self, failure: CaffeRecipesError | None) -> None:
        """Raise AgreedFailure on all ranks if any has a failure; the lowest rank's counts."""
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
        """Start to sum `tensor` over the ranks, in place; return a function that waits for the result."""
        from torch.distributed import all_reduce

        work = all_reduce(tensor, async_op=True)

        def wait() -> None:
            try:
                if work is not None:
                    work.wait()
            except RuntimeError as error:
                what = str(error).partition("\n")[0]
                raise RunFailed(f"rank {self.rank}", f"has lost the other ranks: {what}") from None

        return wait

    def abort(self, code: int) -> None:
        """End the other ranks too, after the launcher has read our error message."""
        try:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, AttributeError):  # closed, or without a reader
                    stream.flush()
                    wait_until_read(stream.fileno())
        finally:
            self._world.Abort(code)

    def _gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, in the order of ranks."""
        from mpi4py import MPI

        data = text.encode()
        sizes = array("i", [0] * self.ranks)
        self._world.Allgather([array("i", [len(data)]), MPI.INT], [sizes, MPI.INT])
        whole = bytearray(sum(sizes))
        self._world.Allgatherv([data, MPI.BYTE], [whole, sizes, MPI.BYTE])
        parts = zip(sizes, accumulate(sizes), strict=True)
        return [whole[end - size : end].decode() for size, end in parts]


def join_ranks(environment: Mapping[str, str]) -> Ranks:
    """Return the ranks of this mpiexec, or of a single process."""
    rank, ranks = place_of(environment)
    return MpiRanks(rank, ranks) if ranks > 1 else Ranks()
