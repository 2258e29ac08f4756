"""The ranks of a run under mpiexec, torchrun or srun, and their communication.

Failures and the addresses of ranks go by MPI, or else through gloo and a store; tensors go through
torch.distributed, by NCCL where each rank has a GPU of its own, and by gloo elsewhere, since torch's wheels
have no MPI backend.
Messages are bytes and JSON: mpi4py's lower-case calls, and torch's for objects, would unpickle, and so
execute, whatever arrives.
"""

from __future__ import annotations

import json
import sys
import warnings
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import accumulate
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from caffe_recipes.engine.launch_variables import find_place
from caffe_recipes.errors import CaffeRecipesError, RunFailed
from caffe_recipes.files.pipes import wait_until_read
from caffe_recipes.wording import describe_count

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Store  # type: ignore[attr-defined]


class AgreedFailure(Exception):
    """Raised on all ranks when one rank has failed, so that all of them end. Rank 0 prints the reason."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


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

    def gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, in rank order."""
        return [text]

    def connect(self, device: str) -> None:
        """Connect the ranks, so that they can exchange tensors of the CPU and of this rank's device."""

    def broadcast(self, tensor: Tensor) -> None:
        """Copy rank 0's values to every rank, in place."""

    def sum(self, tensor: Tensor) -> Callable[[], object]:
        """Start an in-place sum of `tensor` over the ranks, and return a function that waits for it."""
        return lambda: None

    def abort(self, code: int) -> None:
        """Abort the other ranks too, since they may be waiting for this one."""

    def leave(self) -> None:
        """Wait until the other ranks have printed all they have to say, too."""


class JoinedRanks(Ranks, ABC):
    """Several ranks, which gather texts in a way that a subclass implements, and tensors through torch."""

    @abstractmethod
    def gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, in rank order."""

    @abstractmethod
    def make_store(self) -> Store:
        """Return the store through which the ranks exchange their addresses."""

    def raise_if_any_failed(self, failure: CaffeRecipesError | None) -> None:
        """Raise AgreedFailure on all ranks if any rank has a failure, with that of the lowest rank."""
        mine = None if failure is None else [failure.exit_code, str(failure)]
        code, text = next(filter(None, map(json.loads, self.gather(json.dumps(mine)))), (0, ""))
        if code:
            raise AgreedFailure(code, text)

    def connect(self, device: str) -> None:
        """Connect to the other ranks through NCCL or gloo."""
        from caffe_recipes.engine.rendezvous import join_group  # imports torch

        join_group(self.make_store(), self.rank, self.size, self.gather, device)

    def broadcast(self, tensor: Tensor) -> None:
        """Copy rank 0's values to every rank, in place."""
        from torch.distributed import broadcast

        from caffe_recipes.engine.rendezvous import lost_connection

        try:
            broadcast(tensor, 0)
        except RuntimeError as error:
            raise lost_connection(self.rank, error) from None

    def sum(self, tensor: Tensor) -> Callable[[], object]:
        """Start an in-place sum of `tensor` over the ranks, and return a function that waits for it."""
        from torch.distributed import all_reduce

        from caffe_recipes.engine.rendezvous import lost_connection

        work = all_reduce(tensor, async_op=True)

        def wait() -> None:
            try:
                if work is not None:
                    work.wait()
            except RuntimeError as error:
                raise lost_connection(self.rank, error) from None

        return wait

    def leave(self) -> None:
        """Wait until every rank has printed all it has to say: the first to end may end the others.

        torchrun ends the others if one fails, and mpiexec.hydra if one ends by os._exit, which skips MPI's
        exit handler. A rank that has been lost is not waited for, and changes no exit code.
        """
        with suppress(Exception):
            self.gather("")


class MpiRanks(JoinedRanks):
    """The ranks of one mpiexec.

    Raises AgreedFailure if MPI sees a different number than the launcher started, as all of them do.
    """

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of another MPI's launcher: we say it below
            from mpi4py import MPI  # calls MPI_Init, which a single process does not need

        self.rank, self.size = rank, size
        self._world: Any = MPI.COMM_WORLD
        if self._world.size != size:
            what = f"MPI sees {describe_count(self._world.size, 'rank')}, but the launcher started {size}"
            error = RunFailed("mpiexec", what, "use the mpiexec.hydra that was installed with mpi4py")
            raise AgreedFailure(error.exit_code, str(error))
        self.entropy = int(self.gather(str(self.entropy))[0])

    def gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, in rank order."""
        from mpi4py import MPI

        data = text.encode()
        sizes = array("i", [0] * self.size)
        self._world.Allgather([array("i", [len(data)]), MPI.INT], [sizes, MPI.INT])
        whole = bytearray(sum(sizes))
        self._world.Allgatherv([data, MPI.BYTE], [whole, sizes, MPI.BYTE])
        parts = zip(sizes, accumulate(sizes), strict=True)
        return [whole[end - size : end].decode() for size, end in parts]

    def make_store(self) -> Store:
        """Return a store over MPI, so that no port is opened for one."""
        from caffe_recipes.engine.rendezvous import MpiStore  # imports torch

        return MpiStore(self._world)

    def abort(self, code: int) -> None:
        """Abort the other ranks too, after the launcher has read our error message."""
        try:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, AttributeError):  # closed, or without a reader
                    stream.flush()
                    wait_until_read(stream.fileno())
        finally:
            self._world.Abort(code)


class TorchRanks(JoinedRanks):
    """The ranks that torchrun, srun or a user started, which meet in a store."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        from caffe_recipes.engine.rendezvous import connect_texts, find_store  # imports torch

        self.rank, self.size = rank, size
        self._store = find_store(rank, size)
        self._gather = connect_texts(self._store, rank, size)
        self.entropy = int(self.gather(str(self.entropy))[0])

    def gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, in rank order. Raises RunFailed if a rank has ended."""
        return self._gather(text)

    def make_store(self) -> Store:
        """Return the store in which the ranks have met."""
        return self._store


def join_ranks(environment: Mapping[str, str]) -> Ranks:
    """Return the ranks of this mpiexec or torchrun, or the single rank of a process without one."""
    place = find_place(environment)
    if place.size < 2:
        return Ranks()
    return (MpiRanks if place.by_mpi else TorchRanks)(place.rank, place.size)
