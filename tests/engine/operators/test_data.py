"""Which images each rank sees, and what a data layer makes of bad records."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import open_datums, write_datums
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.operators.data import DataContext, RecordReader, record_order
from caffe_recipes.engine.transform import Transform, decode_datum
from caffe_recipes.errors import InputError

QUIET = Log(enabled=False)


def make_net(text: str, context: DataContext | None = None, phase: pb.Phase = pb.TRAIN) -> RunnableNet:
    param = parse_prototxt(text, pb.NetParameter)
    param.state.phase = phase
    own = context or DataContext(0, 1, 0, 0, QUIET)
    return RunnableNet(param, "net.prototxt", own, torch.Generator().manual_seed(0))


def data(param: str, transform: str = "", source: str = "lmdb") -> str:
    return (
        f'layer {{ name: "data" type: "Data" top: "data" top: "label" transform_param {{ {transform} }} '
        f'data_param {{ source: "{source}" backend: LMDB {param} }} }}'
    )


def labels(net: RunnableNet, batches: int) -> list[list[int]]:
    """Read batches; give their labels."""
    result = []
    for _ in range(batches):
        net.forward()
        result.append([int(v) for output, v in net.scores() if output.name == "label"])
    net.close()
    return result


def test_a_reader_starts_at_record_0_and_wraps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)
    raw(tmp_path / "lmdb", [0, 1, 2, 3, 4])
    assert labels(make_net(data("batch_size: 3")), 4) == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]]


@pytest.mark.parametrize("shuffle", [None, 7])
@pytest.mark.parametrize(("count", "ranks"), [(12, 2), (10, 4), (5, 3), (3, 4)])
def test_ranks_together_read_what_one_rank_would(count: int, ranks: int, shuffle: int | None) -> None:
    alone = list(islice(record_order(count, 0, 1, shuffle), 40 * ranks))
    each = [list(islice(record_order(count, rank, ranks, shuffle), 40)) for rank in range(ranks)]
    assert [record for step in zip(*each, strict=True) for record in step] == alone


def test_shuffling_visits_every_record_once_in_each_pass_and_in_another_order() -> None:
    order = record_order(50, 0, 1, 3)
    first, second = list(islice(order, 50)), list(islice(order, 50))
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert first != list(range(50))


def test_two_ranks_of_half_a_batch_see_the_images_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)
    raw(tmp_path / "lmdb", list(range(9)))
    shuffled = "shuffle: true"
    whole = labels(make_net(data(f"batch_size: 4 {shuffled}"), DataContext(0, 1, 5, 1, QUIET)), 6)
    halves = [
        labels(make_net(data(f"batch_size: 2 {shuffled}"), DataContext(rank, 2, 5, rank, QUIET)), 6)
        for rank in range(2)
    ]
    for together, first, second in zip(whole, *halves, strict=True):
        assert together == [first[0], second[0], first[1], second[1]]


def test_augmentation_differs_between_ranks_and_repeats_with_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)
    images(tmp_path / "lmdb", [(16, 16)] * 2)
    text = data("batch_size: 2", "crop_size: 8 mirror: true")

    def first(seed: int) -> list[float]:
        net = make_net(text, DataContext(0, 1, 0, seed, QUIET))
        net.forward()
        net.close()
        return [v for output, v in net.scores() if output.name == "data"]

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_images_keep_blue_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)
    images(tmp_path / "lmdb", [(4, 4)])
    net = make_net(data("batch_size: 1", "mean_value: 1000 mean_value: 2000 mean_value: 3000"))
    net.forward()
    net.close()
    values = torch.tensor([v for output, v in net.scores() if output.name == "data"]).reshape(3, -1)
    assert [round(float(-row.mean()) / 1000) for row in values] == [1, 2, 3]


def test_images_of_several_sizes_in_a_batch_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)
    images(tmp_path / "lmdb", [(8, 8), (8, 9)])
    net = make_net(data("batch_size: 2"))
    with pytest.raises(InputError, match=r"record '00000001_i1' is 3 x 8 x 9, .* 3 x 8 x 8; give crop_size"):
        net.forward()
    net.close()


def test_images_and_labels_of_two_lmdbs_change_their_sizes_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)
    images(tmp_path / "lmdb", [(4, 5), (8, 3)])
    images(tmp_path / "labels", [(4, 5), (8, 3)])
    other = data("batch_size: 1", source="labels").replace('"data"', '"other"').replace('"label"', '"unread"')
    both = 'layer { name: "l" type: "EuclideanLoss" bottom: "data" bottom: "other" top: "l" }'
    fixed = 'layer { name: "z" type: "Input" top: "z" input_param { shape { dim: 2 } } }'
    net = make_net(data("batch_size: 1") + other + fixed + both)
    place = {node.param.name: node.tops[0] for node in net.nodes}
    for shape in [(4, 5), (8, 3)]:
        net.forward()
        assert net.shape(place["other"]) == net.shape(place["data"]) == (1, 3, *shape)
    net.close()


IP = """layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 2 } }"""


def test_images_of_several_sizes_are_taken_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)
    images(tmp_path / "lmdb", [(4, 5), (8, 3), (2, 2), (4, 5)])
    pool = """
        layer { name: "odd" type: "Pooling" bottom: "data" top: "odd"
          pooling_param { kernel_size: 2 stride: 2 } }
        layer { name: "all" type: "Pooling" bottom: "odd" top: "all" pooling_param { global_pooling: true } }
        """ + IP.replace("data", "all")
    net = make_net(data("batch_size: 1") + pool)
    net.keeps_blobs = True
    place = {node.param.name: node.tops[0] for node in net.nodes}
    for shape in [(4, 5), (8, 3), (2, 2), (4, 5)]:
        net.forward()
        image, odd = net.value(place["data"]), net.value(place["odd"])
        assert image.shape == (1, 3, *shape)
        assert torch.equal(net.value(place["all"]), odd.amax((2, 3), keepdim=True))
        assert net.shape(place["odd"]) == tuple(odd.shape)
    net.close()
    net = make_net(data("batch_size: 1") + IP)
    net.forward()
    with pytest.raises(InputError, match="record '00000001_i1': layer 'ip' was set up for a different size"):
        net.forward()
    net.close()


def test_resizing_without_a_crop_is_refused_where_the_size_would_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)
    images(tmp_path / "lmdb", [(8, 8)])
    with pytest.raises(InputError, match="3 x 6 x 6 after the transform, but the net expects 3 x 8 x 8"):
        make_net(data("batch_size: 1", "random_resize_param { min_size: 6 max_size: 6 }"))


def test_a_broken_image_is_named_when_its_batch_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = pb.Datum(channels=1, height=2, width=2, data=b"1234")
    bad = pb.Datum(encoded=True, data=b"no image")
    write_datums(tmp_path / "lmdb", [("a", good), ("b", good), ("c", bad)])
    net = make_net(data("batch_size: 2"))
    net.forward()
    with pytest.raises(InputError, match="record '00000002_c' is not an image"):
        net.forward()
    net.close()


def test_any_error_while_reading_ahead_reaches_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)
    raw(tmp_path / "lmdb", [0, 1, 2])
    layer = parse_prototxt(data("batch_size: 2"), pb.NetParameter).layer[0]
    datums = open_datums("lmdb")
    transform = Transform(layer.transform_param, pb.TEST)
    context = DataContext(0, 1, 0, 0, QUIET)
    as_is = partial(decode_datum, param=layer.transform_param)
    reader = RecordReader(datums, as_is, layer.data_param, transform, context)
    datums.close()
    with pytest.raises(ValueError, match="is closed"):
        reader.next()
    reader.close()


def test_dummy_data_is_filled_and_input_is_zero() -> None:
    net = make_net(
        'layer { name: "d" type: "DummyData" top: "a" top: "b" dummy_data_param { '
        'shape { dim: 2 dim: 3 } data_filler { value: 5 } data_filler { type: "uniform" } } }'
        'layer { name: "i" type: "Input" top: "c" input_param { shape { dim: 2 } } }'
    )
    net.forward()
    values: dict[str, list[float]] = {}
    for output, value in net.scores():
        values.setdefault(output.name, []).append(value)
    assert values["a"] == [5.0] * 6
    assert len(set(values["b"])) == 6
    assert values["c"] == [0.0, 0.0]
