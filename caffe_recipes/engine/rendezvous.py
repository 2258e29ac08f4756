"""Connect the ranks of one mpiexec through gloo of torch.distributed, on one network interface.

The stores of torch listen on a port that any user of the node or network can read and change. Here each rank
sends its address to the others as an MPI message, so that no further port is open.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import Store, init_process_group  # type: ignore[attr-defined]

from caffe_recipes.errors import RunFailed

Gather = Callable[[str], list[str]]

# A rank that receives nothing for this long gives up, since mpiexec never notices a dead connection.
_TIMEOUT = timedelta(minutes=30)
_POLL_S = 0.001
_SIOCGIFADDR = 0x8915  # ask Linux for an interface's address


class MpiStore(Store):
    """A key-value store over an MPI communicator; each key that is set is sent to every other rank."""

    def __init__(self, world: Any) -> None:  # noqa: ANN401 - mpi4py has no types
        super().__init__()
        self._world = world.Dup()  # so that our messages do not mix with others
        self._known: dict[str, bytes] = {}
        self._sending: list[Any] = []  # keeps messages alive until they have arrived

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key, without waiting for the other ranks."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._known[key] = data
        message = key.encode() + b"\0" + data
        others = (rank for rank in range(self._world.size) if rank != self._world.rank)
        self._sending += [self._world.Isend(message, rank) for rank in others]

    def get(self, key: str) -> bytes:
        """Return a key's value; waits until a rank has set it."""
        self.wait([key])
        return self._known[key]

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all the keys are set by now."""
        from mpi4py import MPI

        status = MPI.Status()
        while self._world.Iprobe(status=status):
            data = bytearray(status.Get_count(MPI.BYTE))
            self._world.Recv(data, status.Get_source())
            key, _, value = bytes(data).partition(b"\0")
            self._known[key.decode()] = value
        return all(key in self._known for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta = _TIMEOUT) -> None:
        """Wait until all the keys are set; raises TimeoutError."""
        until = time.monotonic() + timeout.total_seconds()
        while not self.check(keys):
            if time.monotonic() > until:
                raise TimeoutError(f"no rank has set {', '.join(keys)}")
            time.sleep(_POLL_S)


def join_gloo(world: Any, gather: Gather) -> None:  # noqa: ANN401 - mpi4py has no types
    """Connect to the other ranks of an MPI communicator through gloo, over the interface to rank 0.

    `gather` returns the texts of all ranks. GLOO_SOCKET_IFNAME, if set, names another interface. Raises
    RunFailed.
    """
    here = socket.gethostname()
    name = _find_interface(here, world.rank, gather)
    try:
        init_process_group(
            "gloo", store=MpiStore(world), rank=world.rank, world_size=world.size, timeout=_TIMEOUT
        )
    except (RuntimeError, TimeoutError) as error:
        what = f"cannot reach the other ranks over {name}: {str(error).partition(chr(10))[0]}"
        hint = "name the interface that leads to them in GLOO_SOCKET_IFNAME"
        raise RunFailed(here, what, hint) from None


def _find_interface(here: str, rank: int, gather: Gather) -> str:
    """Return the network interface for gloo; the loopback if all ranks are on one host."""
    hosts = gather(here)
    far = next((host for host in hosts if host != hosts[0]), "")
    address = gather(_address_towards(far) if rank == 0 else "")[0]
    own = _address_towards(address) if here != hosts[0] else address
    name = os.environ.setdefault("GLOO_SOCKET_IFNAME", _interface(own))
    if "," in name:
        hint = "name the one that leads to the other hosts"
        raise RunFailed(here, f"GLOO_SOCKET_IFNAME is {name}, several network interfaces", hint)
    return name


def _address_towards(host: str) -> str:
    """Return this host's own address on the route to `host`; for an empty name, that of the loopback."""
    if not host:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # for a datagram socket this looks up the route, and sends nothing
        except OSError as error:
            raise RunFailed(host, f"cannot be reached from {socket.gethostname()}: {error}") from None
        return str(probe.getsockname()[0])


def _interface(address: str) -> str:
    """Return the name of the network interface with `address`; raises RunFailed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # an interface without an address
                continue
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    raise RunFailed(socket.gethostname(), f"no network interface has the address {address}")
