"""The backend through which ranks exchange tensors."""

from __future__ import annotations

import pytest

from caffe_recipes.engine.rendezvous import choose_backend


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
