"""A deploy net and its weights are written where they replace nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.errors import InputError
from caffe_recipes.review.deploy import write_deploy


def test_weights_beside_the_net_replace_no_other_weights(tmp_path: Path) -> None:
    out, beside = tmp_path / "a.prototxt", tmp_path / "a.caffemodel"
    for _ in range(2):  # the same command again
        assert write_deploy(out, "one", pb.NetParameter(name="one")) == [out, beside]
    before = beside.read_bytes()
    with pytest.raises(InputError, match=r"a\.caffemodel: holds other weights; remove it, or give another"):
        write_deploy(out, "two", pb.NetParameter(name="two"))
    assert (out.read_text(), beside.read_bytes()) == ("one", before)
    with pytest.raises(InputError, match=r"a\.caffemodel: is an input of this command"):
        write_deploy(out, "two", pb.NetParameter(name="two"), [beside])


@pytest.mark.parametrize("weights", [None, pb.NetParameter(name="n")])
def test_a_net_does_not_get_the_name_of_weights(tmp_path: Path, weights: pb.NetParameter | None) -> None:
    with pytest.raises(InputError, match=r"a\.caffemodel: is the name of weights, and a net is written"):
        write_deploy(tmp_path / "a.caffemodel", "net", weights)
    assert not any(tmp_path.iterdir())
