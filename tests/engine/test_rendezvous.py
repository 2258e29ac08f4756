"""The store in which ranks meet, and the backend through which they exchange tensors."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from caffe_recipes.engine import rendezvous
from caffe_recipes.engine.rendezvous import choose_backend, connect_texts, find_store
from caffe_recipes.errors import RunFailed


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [
        (["GPU-1", "GPU-2"], "cpu:gloo,cuda:nccl"),
        (["GPU-1", "GPU-2", "GPU-1"], "gloo"),
        (["GPU-1", ""], "gloo"),
        (["", ""], "gloo"),
    ],
    ids=["a GPU each", "two ranks on one GPU", "one rank without a GPU", "the CPU"],
)
def test_tensors_go_through_nccl_only_if_each_rank_has_a_gpu_of_its_own(
    gpus: list[str], backend: str
) -> None:
    assert choose_backend(gpus) == backend


def meet_at(monkeypatch: pytest.MonkeyPatch, address: str) -> int:
    """Set the address of the store and a free port, and return the port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    monkeypatch.setenv("MASTER_ADDR", address)
    monkeypatch.setenv("MASTER_PORT", str(port))
    return port


@pytest.mark.parametrize(
    ("address", "rank", "what"),
    [
        ("127.0.0.1", 1, "refused"),
        ("127.0.0.1", 0, "1/2 clients joined"),
        ("no such host", 1, "not known"),
        ("no such host", 0, "not known"),
        ("a..b", 1, "idna"),
    ],
)
def test_a_rank_does_not_wait_forever_for_the_others(
    monkeypatch: pytest.MonkeyPatch, address: str, rank: int, what: str
) -> None:
    port = meet_at(monkeypatch, address)
    with pytest.raises(RunFailed) as caught:
        find_store(rank, 2, timedelta(seconds=1))
    assert caught.value.what.startswith(f"cannot reach the store at {address}, port {port}: ")
    assert what in caught.value.what and caught.value.hint == "check MASTER_ADDR and MASTER_PORT"


def test_a_rank_does_not_wait_forever_for_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(other.getsockname()[1]))
        with pytest.raises(RunFailed, match="another program listens there"):
            find_store(1, 2, timedelta(seconds=0.5))


def test_two_jobs_at_one_port_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    port = meet_at(monkeypatch, "127.0.0.1")
    with ThreadPoolExecutor(2) as threads:
        stores = list(threads.map(find_store, (0, 1), (2, 2)))
    assert len(stores) == 2
    whats = {
        (0, 2): f"port {port} of {socket.gethostname()}, for the store, is in use",
        (1, 2): f"the store at 127.0.0.1, port {port}, belongs to another job",
        (2, 3): f"the store at 127.0.0.1, port {port}, belongs to another job",
    }
    for (rank, size), what in whats.items():
        with pytest.raises(RunFailed) as caught:
            find_store(rank, size, timedelta(seconds=5))
        assert str(caught.value) == f"rank {rank}: {what}; give each job a MASTER_PORT of its own"


def test_a_rank_of_another_job_that_comes_first_does_not_end_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    meet_at(monkeypatch, "127.0.0.1")
    with ThreadPoolExecutor(2) as threads:
        stranger = threads.submit(find_store, 1, 3, timedelta(seconds=20))
        store = find_store(0, 2, timedelta(seconds=20))
        with pytest.raises(RunFailed, match="belongs to another job"):
            stranger.result()
        assert store.get("rank-0") == b"1"


def test_the_name_of_rank_0s_host_may_be_that_of_its_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's installer writes 127.0.1.1 beside the host's name into /etc/hosts."""
    routes = {"here": "127.0.1.1", "there": "10.0.0.1"}
    monkeypatch.setattr(rendezvous, "_address_towards", routes.__getitem__)
    monkeypatch.setattr(rendezvous, "_interface", {"127.0.1.1": "lo", "10.0.0.1": "eth0"}.__getitem__)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    assert rendezvous._find_interface(0, lambda text: [text, "there"], "here") == "eth0"


def on_all_ranks(size: int, work: Callable[[int, HashStore], object]) -> list[object]:
    """Call `work` in a thread for each rank, with a store that they share, and return what it returns."""
    store = HashStore()
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(work, range(size), [store] * size))


def test_ranks_gather_texts_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")  # to have it removed at the end
    texts = ["", "e\u0301" * 3000, "c"]

    def work(rank: int, store: HashStore) -> list[list[str]]:
        gather = connect_texts(store, rank, 3)
        return [gather(texts[rank]), gather(""), gather(str(rank))]

    assert on_all_ranks(3, work) == [[texts, [""] * 3, ["0", "1", "2"]]] * 3
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"  # of ranks on one host


@pytest.mark.parametrize("ended", [0, 1])
def test_ranks_do_not_wait_for_one_that_has_ended(monkeypatch: pytest.MonkeyPatch, ended: int) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    def work(rank: int, store: HashStore) -> str:
        gather = connect_texts(store, rank, 3)
        gather("here")
        if rank == ended:
            return ""  # closes its connections, as the end of a process does
        with pytest.raises(RunFailed) as caught:
            gather("still here")
        return str(caught.value)

    others = [message for message in on_all_ranks(3, work) if message]
    assert len(others) == 2
    assert all(": lost the connection to the other ranks: " in str(message) for message in others)
