"""The ranks of a run: who we are under mpiexec, and what the ranks tell each other.

hydra tells each process its rank in PMI_RANK and PMI_SIZE. MPI passes on failures and where rank 0 listens;
tensors go through torch.distributed's gloo, for torch's wheels have no mpi backend.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from caffe_recipes.errors import CaffeRecipesError, RunFailed

if TYPE_CHECKING:
    from torch import Tensor

# A rank that hears nothing of the others for so long gives up: mpiexec never notices a silent link.
_TIMEOUT = timedelta(minutes=30)
# hydra ends all at once when a rank aborts, and drops what it has not read yet.
_HEARD_S = 0.5
_SIOCGIFADDR = 0x8915  # ask Linux for an interface's address


class AgreedFailure(Exception):
    """A failure of one rank that all ranks raise, so that all end; rank 0 says why."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


def place_of(environment: Mapping[str, str]) -> tuple[int, int]:
    """Read this process's rank and the number of ranks from the launcher's variables.

    >>> place_of({"PMI_RANK": "3", "PMI_SIZE": "8"}), place_of({})
    ((3, 8), (0, 1))
    """
    return int(environment.get("PMI_RANK", 0)), int(environment.get("PMI_SIZE", 1))


class Ranks:
    """One process alone: there is nobody to tell anything.

    `entropy` is a random number that all ranks share.
    """

    rank, ranks = 0, 1

    def __init__(self) -> None:
        self.entropy = SystemRandom().randrange(2**31)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Run a block that all ranks run; if it fails on one, all raise AgreedFailure at its end."""
        failure = None
        try:
            yield
        except CaffeRecipesError as error:
            failure = error
        self.settle(failure)

    def settle(self, failure: CaffeRecipesError | None) -> None:
        """Raise AgreedFailure on all ranks if one has a failure: that of the lowest rank."""
        if failure is not None:
            raise AgreedFailure(failure.exit_code, str(failure))

    def connect(self) -> None:
        """Get ready to send tensors."""

    def broadcast(self, tensor: Tensor) -> None:
        """Give every rank rank 0's values."""

    def sum(self, tensor: Tensor) -> Callable[[], object]:
        """Start summing `tensor` over the ranks, in place; the function given waits for it."""
        return lambda: None

    def abort(self, code: int) -> None:
        """End the other ranks too, who may be waiting for this one."""


class MpiRanks(Ranks):
    """The ranks of one mpiexec. Raises RunFailed if MPI does not see those that the launcher started."""

    def __init__(self, rank: int, ranks: int) -> None:
        super().__init__()
        from mpi4py import MPI  # calls MPI_Init, which a process alone has no need of

        self.rank, self.ranks = rank, ranks
        self._world: Any = MPI.COMM_WORLD
        if self._world.size != ranks:
            what = f"MPI sees {self._world.size} ranks, and the launcher started {ranks}"
            raise RunFailed("mpiexec", what, "use the mpiexec.hydra that is installed beside mpi4py")
        self.entropy = int(self._world.bcast(self.entropy, 0))

    def settle(self, failure: CaffeRecipesError | None) -> None:
        """Raise AgreedFailure on all ranks if one has a failure: that of the lowest rank."""
        mine = None if failure is None else (failure.exit_code, str(failure))
        first = next((found for found in self._world.allgather(mine) if found), None)
        if first is not None:
            raise AgreedFailure(*first)

    def connect(self) -> None:
        """Join the others through gloo, over the interface that leads to rank 0."""
        from torch.distributed import TCPStore, init_process_group  # type: ignore[attr-defined]

        hosts = self._world.allgather(socket.gethostname())
        peer = next((host for host in hosts if host != hosts[0]), "")
        address = self._world.bcast(_address_towards(peer) if self.rank == 0 else "", 0)
        own = _address_towards(address) if hosts[self.rank] != hosts[0] else address
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _interface(own))
        leads = self.rank == 0
        port = 0 if leads else self._world.bcast(None, 0)
        # Port 0 lets the system choose, so that two runs on one host never meet.
        store = TCPStore(address, port, is_master=leads, timeout=_TIMEOUT, wait_for_workers=False)
        if leads:
            self._world.bcast(store.port, 0)
        init_process_group("gloo", store=store, rank=self.rank, world_size=self.ranks, timeout=_TIMEOUT)

    def broadcast(self, tensor: Tensor) -> None:
        """Give every rank rank 0's values."""
        from torch.distributed import broadcast

        broadcast(tensor, 0)

    def sum(self, tensor: Tensor) -> Callable[[], object]:
        """Start summing `tensor` over the ranks, in place; the function given waits for it."""
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
        """End the other ranks too, who may be waiting for this one, once the launcher has read why."""
        time.sleep(_HEARD_S)
        self._world.Abort(code)


def join_ranks(environment: Mapping[str, str]) -> Ranks:
    """Meet the other ranks of this mpiexec, if there are any."""
    rank, ranks = place_of(environment)
    return MpiRanks(rank, ranks) if ranks > 1 else Ranks()


def _address_towards(host: str) -> str:
    """Give this host's own address on the way to `host`; without a host, the loopback's."""
    if not host:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # of a datagram socket: asks the routes, sends nothing
        except OSError as error:
            raise RunFailed(host, f"cannot be reached from {socket.gethostname()}: {error}") from None
        return str(probe.getsockname()[0])


def _interface(address: str) -> str:
    """Give the name of the network interface that has `address`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # an interface without an address
                continue
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    raise RunFailed(socket.gethostname(), f"no network interface has the address {address}")
