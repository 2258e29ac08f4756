"""The store in which ranks meet, and the backend through which they exchange tensors."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest

from caffe_recipes.engine.rendezvous import choose_backend, find_store
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


@pytest.mark.parametrize(
    ("address", "rank", "what"),
    [
        ("127.0.0.1", 1, "refused"),
        ("127.0.0.1", 0, "1/2 clients joined"),
        ("no such host", 1, "not known"),
        ("no such host", 0, "not known"),
    ],
)
def test_a_rank_does_not_wait_forever_for_the_others(
    monkeypatch: pytest.MonkeyPatch, address: str, rank: int, what: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", address)
    monkeypatch.setenv("MASTER_PORT", str(port))
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
