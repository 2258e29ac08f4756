"""Connect the ranks of a run through torch.distributed's gloo or NCCL, on one network interface.

torch's own stores listen on a port that any user of the node or network can connect to. Under mpiexec, ranks
exchange their addresses as MPI messages instead, so no additional port is open. Without MPI, they meet in
torchrun's store, or in one that rank 0 opens.
A store would not notice that a rank has died, so it holds only addresses: all else goes through connections.
NCCL's ranks find each other by a random number and an address, which rank 0 puts into the same store.
"""

from __future__ import annotations

import errno
import fcntl
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    ProcessGroupGloo,
    Store,
    init_process_group,
    is_nccl_available,
    rendezvous,
)
from torch.distributed.distributed_c10d import AllgatherOptions  # type: ignore[attr-defined]

from caffe_recipes.errors import RunFailed

Gather = Callable[[str], list[str]]

# A rank that receives nothing for this long fails, since mpiexec never notices a dead connection.
_TIMEOUT = timedelta(minutes=30)
_STORE_TIMEOUT = timedelta(minutes=5)  # of ranks that meet in a store
_NAME_INTERFACE = "name the interface that leads to them in GLOO_SOCKET_IFNAME"
_OWN_PORT = "give each job a MASTER_PORT of its own"
_GREETING_S = 5.0
_CONNECT_S = 5.0  # for one attempt: a name may also have an address that does not answer
_CONNECT_POLL_S = 0.2
_POLL_S = 0.001
_SIOCGIFADDR = 0x8915  # the Linux ioctl for an interface's address


class MpiStore(Store):
    """A key-value store over an MPI communicator. Setting a key sends it to every other rank."""

    def __init__(self, world: Any) -> None:  # noqa: ANN401 - mpi4py has no types
        super().__init__()
        self._world = world.Dup()  # keeps our messages apart from others
        self._known: dict[str, bytes] = {}
        self._sending: list[Any] = []  # keeps message buffers alive until they are sent

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key without waiting for the other ranks."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._known[key] = data
        message = key.encode() + b"\0" + data
        others = (rank for rank in range(self._world.size) if rank != self._world.rank)
        self._sending += [self._world.Isend(message, rank) for rank in others]

    def get(self, key: str) -> bytes:
        """Wait until a rank has set a key, and return its value."""
        self.wait([key])
        return self._known[key]

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys have been set."""
        from mpi4py import MPI

        status = MPI.Status()
        while self._world.Iprobe(status=status):
            data = bytearray(status.Get_count(MPI.BYTE))
            self._world.Recv(data, status.Get_source())
            key, _, value = bytes(data).partition(b"\0")
            self._known[key.decode()] = value
        return all(key in self._known for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta = _TIMEOUT) -> None:
        """Wait until all keys have been set. Raises TimeoutError."""
        until = time.monotonic() + timeout.total_seconds()
        while not self.check(keys):
            if time.monotonic() > until:
                raise TimeoutError(f"no rank has set {', '.join(keys)}")
            time.sleep(_POLL_S)


def find_store(rank: int, size: int, timeout: timedelta = _STORE_TIMEOUT) -> Store:
    """Return the store at MASTER_ADDR, which torchrun or rank 0 opens.

    Raises RunFailed after `timeout`, and at once if rank 0's port is in use, or if the store belongs to
    another number of ranks or already has this rank.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        if rank or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
            _await_listener(address, port, timeout.total_seconds())
        else:
            socket.getaddrinfo(address, port)  # torch would look for a wrong name again and again
            _check_unused(port)
        store = _join_store(rank, size, timeout)
        store.set_timeout(timeout)
        if rank == 0:
            store.set("size", str(size))
        is_ours = store.get("size") == str(size).encode() and store.add(f"rank-{rank}", 1) == 1
    except (OSError, RuntimeError, ValueError) as error:  # ValueError: a name that no host can have
        what = f"cannot reach the store at {address}, port {port}: {str(error).partition(chr(10))[0]}"
        raise RunFailed(f"rank {rank}", what, "check MASTER_ADDR and MASTER_PORT") from None
    if not is_ours:
        what = f"the store at {address}, port {port}, belongs to another job"
        raise RunFailed(f"rank {rank}", what, _OWN_PORT)
    return store


def _check_unused(port: int) -> None:
    """Raise RunFailed if another program listens on a port of this host."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        what = f"port {port} of {socket.gethostname()}, for the store, is in use"
        raise RunFailed("rank 0", what, _OWN_PORT) from None


def _join_store(rank: int, size: int, timeout: timedelta) -> Store:
    """Return the store whose port is open, or open it. Raises OSError or RuntimeError.

    torch waits without end for the greeting of another program that listens on the port.
    """
    found: queue.Queue[Store | OSError | RuntimeError] = queue.Queue()

    def join() -> None:
        try:
            found.put(next(iter(rendezvous("env://", rank, size, timeout=timeout)))[0])
        except (OSError, RuntimeError) as error:
            found.put(error)

    threading.Thread(target=join, daemon=True).start()
    try:
        store = found.get(timeout=timeout.total_seconds() + _GREETING_S)
    except queue.Empty:
        raise OSError("another program listens there") from None
    if isinstance(store, Exception):
        raise store
    return store


def _await_listener(address: str, port: int, timeout_s: float) -> None:
    """Wait until a port is open. Raises OSError.

    torch's own wait is tried again after its end, with a stack trace on stderr.
    """
    until = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((address, port), timeout=_CONNECT_S).close()
            return
        except OSError as error:
            is_wrong = isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN
            if is_wrong or time.monotonic() > until:
                raise
        time.sleep(_CONNECT_POLL_S)


def connect_texts(store: Store, rank: int, size: int) -> Gather:
    """Connect the ranks that have met in a store, and return a function that gathers the texts of all.

    Raises RunFailed, also from that function, if a rank has ended.
    """
    numbers = count()

    def gather_in_store(text: str) -> list[str]:
        number = next(numbers)
        store.set(f"text-{number}-{rank}", text)
        return [store.get(f"text-{number}-{other}").decode() for other in range(size)]

    try:
        _find_interface(rank, gather_in_store, os.environ["MASTER_ADDR"])
        group = ProcessGroupGloo(PrefixStore("texts", store), rank, size, _STORE_TIMEOUT)
    except RuntimeError as error:
        what = f"cannot connect to the other ranks: {str(error).partition(chr(10))[0]}"
        raise RunFailed(f"rank {rank}", what, f"see what they say, or {_NAME_INTERFACE}") from None
    options = AllgatherOptions()
    options.timeout = _TIMEOUT

    def exchange(own: Tensor) -> list[Tensor]:
        every = [torch.empty_like(own) for _ in range(size)]
        group.allgather([every], [own], options).wait()  # type: ignore[attr-defined]
        return every

    def gather(text: str) -> list[str]:
        data = torch.from_numpy(np.frombuffer(text.encode(), np.uint8).copy())
        try:
            sizes = [int(length) for length in exchange(torch.tensor(len(data)))]
            padded = data.new_zeros(max(1, *sizes))
            padded[: len(data)] = data
            parts = exchange(padded)
        except RuntimeError as error:
            raise lost_connection(rank, error) from None
        return [bytes(part[:length].numpy()).decode() for part, length in zip(parts, sizes, strict=True)]

    return gather


def lost_connection(rank: int, error: RuntimeError) -> RunFailed:
    """Return the failure of a rank whose exchange with the others has failed with `error` of torch's."""
    why = str(error).partition("\n")[0].partition(". ")[0]  # without gloo's advice to its developers
    return RunFailed(f"rank {rank}", f"lost the connection to the other ranks: {why}")


def join_group(store: Store, rank: int, size: int, gather: Gather, device: str) -> None:
    """Connect to the other ranks over the interface to rank 0, through the backend for their devices.

    `gather` returns the texts of all ranks. GLOO_SOCKET_IFNAME, if set, overrides the interface. Raises
    RunFailed.
    """
    name = _find_interface(rank, gather)
    backend = choose_backend(gather(_gpu_id(device)))
    if "nccl" in backend:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # a failure is an exception of `wait`
        # Otherwise a thread of torch's would call MpiStore.check while another thread does.
        os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    try:
        init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_TIMEOUT)
    except (RuntimeError, TimeoutError) as error:
        what = f"cannot reach the other ranks over {name}: {str(error).partition(chr(10))[0]}"
        raise RunFailed(socket.gethostname(), what, _NAME_INTERFACE) from None


def choose_backend(gpus: Sequence[str]) -> str:
    """Return torch's backend for ranks with these GPUs: NCCL, which takes one rank a GPU, or gloo.

    A rank without a GPU, or without NCCL, is "". Tensors in the host's memory always go through gloo.

    >>> choose_backend(["a", "b"]), choose_backend(["a", "a"]), choose_backend(["a", ""])
    ('cpu:gloo,cuda:nccl', 'gloo', 'gloo')
    """
    has_own = all(gpus) and len(set(gpus)) == len(gpus)
    return "cpu:gloo,cuda:nccl" if has_own else "gloo"


def _gpu_id(device: str) -> str:
    """Return the UUID of a GPU, whose number may be the same for all ranks, or "" if NCCL cannot use it."""
    if device == "cpu" or not is_nccl_available():
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def _find_interface(rank: int, gather: Gather, meeting: str = "") -> str:
    """Return the network interface of the ranks, which GLOO_SOCKET_IFNAME overrides, and set it there.

    It is the loopback if all ranks are on one host, else that on the route to the host `meeting`, where the
    ranks have met, or between rank 0's host and another one.
    """
    here, name = socket.gethostname(), os.environ.get("GLOO_SOCKET_IFNAME", "")
    hosts = gather(here)
    far = next((host for host in hosts if host != hosts[0]), "")
    if not meeting:
        meeting = gather(_address_towards(far) if rank == 0 and not name else "")[0] or hosts[0]
    if not name:
        own = _address_towards(meeting if far else "")
        if far and own.startswith("127."):  # on rank 0's host, whose /etc/hosts may map its name to 127.0.1.1
            own = _address_towards(far)
        name = os.environ["GLOO_SOCKET_IFNAME"] = _interface(own)
    if "," in name:
        hint = "name the one that leads to the other hosts"
        raise RunFailed(here, f"GLOO_SOCKET_IFNAME lists several network interfaces, {name}", hint)
    return name


def _address_towards(host: str) -> str:
    """Return this host's address on the route to `host`, or the loopback address if `host` is empty."""
    if not host:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # looks up the route; a datagram socket sends nothing
        except OSError as error:
            what = f"cannot be reached from {socket.gethostname()}: {error}"
            raise RunFailed(host, what, _NAME_INTERFACE) from None
        return str(probe.getsockname()[0])


def _interface(address: str) -> str:
    """Return the name of the network interface that has `address`. Raises RunFailed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # an interface without an address
                continue
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    what = f"no network interface has the address {address}"
    raise RunFailed(socket.gethostname(), what, _NAME_INTERFACE)
