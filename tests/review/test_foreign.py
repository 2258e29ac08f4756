"""What is reported about names in prototxts that our Caffe does not have."""

from __future__ import annotations

import pytest

from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.review.foreign import describe_foreign, recognize_dialect

NO_GAMA = "SolverParameter has no field 'gama' in any known Caffe; did you mean 'gamma'?"


@pytest.mark.parametrize(
    ("text", "dialect", "lines"),
    [
        ("base_lr: 1", None, []),
        ("rampup_interval: 1 min_lr: 1", None, ["a:1:1: read as a file of nvcaffe; it has rampup_interval"]),
        ("rampup_interval: 1", "nvcaffe", []),
        ("gama: 1 base_lr: 1", None, [f"a:1:1: {NO_GAMA}"]),
        (
            "layer { pooling_param { round_mode: CEIL } }",
            "intel",
            [
                "a:1:25: PoolingParameter has no field 'round_mode' in Intel's Caffe; it belongs to bvlc; "
                "here pooling always rounds its output size up, as with round_mode: CEIL"
            ],
        ),
        (
            "layer { center_loss_param { x: 1 } }",
            None,
            [
                "a:1:9: LayerParameter has no field 'center_loss_param' in any known Caffe; "
                "it is a field of ydwen/caffe-face, not in this Caffe"
            ],
        ),
    ],
)
def test_each_foreign_name_is_described_once(text: str, dialect: str | None, lines: list[str]) -> None:
    assert [
        line for line in describe_foreign([parse_lenient(text, "a")], dialect) if "RoundMode" not in line
    ] == lines


def test_files_with_the_same_names_are_counted() -> None:
    files = [parse_lenient("gama: 1 base_lr: 1", name) for name in "abc"]
    assert describe_foreign(files) == [f"a:1:1: {NO_GAMA.replace(';', ' (and in 2 other files);')}"]


def test_several_files_are_read_as_those_of_the_caffe_with_most_of_their_names() -> None:
    texts = {
        "a": "base_lr: 1 gama: 1",
        "b": "layer { pooling_param { round_mode: CEIL } }",
        "c": "larc: true min_lr: 1",
    }
    documents = [parse_lenient(text, path) for path, text in texts.items()]
    assert recognize_dialect(documents) == ("nvcaffe", "c:1:1: read as a file of nvcaffe; it has larc")
    assert recognize_dialect(documents[:1]) is None
