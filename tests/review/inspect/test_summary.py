"""The published counts of nets, and how a summary treats phases, inputs and sharing."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.caffe import layers as L  # noqa: N812 - as nets are written
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import render_prototxt
from caffe_recipes.errors import CaffeRecipesError, InputError, PrototxtError
from caffe_recipes.review.inspect.nets import load_given_net
from caffe_recipes.review.inspect.summary import Summary, SummaryOptions, read_net, render_table, summarize

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT.parent / "shared" / "reference"
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason="../shared/reference is not here")
RESNET50 = (25_557_096, 53_173, 4_089_184_256)


def summary_of(folder: Path, *layers: pb.LayerParameter, **options: object) -> Summary:
    path = folder / "net.prototxt"
    path.write_text(render_prototxt(L.net("n", *layers)))
    return summarize(read_net(str(path), SummaryOptions(**options)))  # type: ignore[arg-type]


def image(*dims: int) -> pb.LayerParameter:
    return L.layer("data", "Input", shape={"dim": dims})


def headline(summary: Summary) -> tuple[int, int, int]:
    batch = summary.batch or 0
    totals = summary.totals
    assert totals.unknown == ()
    assert totals.multiply_adds % batch == 0
    return totals.parameters, totals.statistics, totals.multiply_adds // batch


@needs_reference
@pytest.mark.parametrize("phase", [pb.TRAIN, pb.TEST])
@pytest.mark.parametrize("recipe", ["resnet50_custom_lr", "resnet50_448nodes"])
def test_the_published_resnet50_has_the_published_counts(recipe: str, phase: int) -> None:
    path = REFERENCE / "surfsara" / recipe / "train_val.prototxt"
    found = summarize(read_net(str(path), SummaryOptions(phase=phase)))
    assert headline(found) == RESNET50
    assert found.batch == (50 if phase == pb.TEST else 16 if "448" in recipe else 32)


@pytest.mark.parametrize(
    "given",
    [
        str(ROOT / "prototxt" / "stampede2-64n-72ep" / "train_val.prototxt"),
        str(ROOT / "prototxt" / "stampede2-64n-72ep" / "solver_init.prototxt"),
        "stampede2-64n-72ep",
        "stampede2-64n-72ep:train_val_noaug",
    ],
)
def test_our_resnet50_has_them_by_net_by_solver_and_by_recipe(given: str) -> None:
    assert headline(summarize(read_net(given, SummaryOptions()))) == RESNET50


@pytest.mark.parametrize(("frozen", "frozen_numbers"), [("", 0), ("frozen: true", 8)])
def test_the_averages_of_a_bn_are_statistics(tmp_path: Path, frozen: str, frozen_numbers: int) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        'layer { name: "d" type: "Input" top: "d" input_param { shape { dim: 2 dim: 4 dim: 3 dim: 3 } } }'
        'layer { name: "b" type: "BN" bottom: "d" top: "b" '
        f"bn_param {{ slope_filler {{ value: 1 }} {frozen} }} }}"
    )
    totals = summarize(read_net(str(path), SummaryOptions())).totals
    assert (totals.parameters, totals.frozen, totals.statistics) == (8, frozen_numbers, 8)


def lenet() -> list[pb.LayerParameter]:
    return [
        image(64, 1, 28, 28),
        L.conv("conv1", "data", num_output=20, kernel_size=5),
        L.pooling("pool1", "conv1", pool="MAX", kernel_size=2, stride=2),
        L.conv("conv2", "pool1", num_output=50, kernel_size=5),
        L.pooling("pool2", "conv2", pool="MAX", kernel_size=2, stride=2),
        L.inner_product("ip1", "pool2", num_output=500),
        L.relu("relu1", "ip1"),
        L.inner_product("ip2", "ip1", num_output=10),
    ]


def alexnet() -> list[pb.LayerParameter]:
    pool = {"pool": "MAX", "kernel_size": 3, "stride": 2}
    return [
        image(10, 3, 227, 227),
        L.conv("conv1", "data", num_output=96, kernel_size=11, stride=4),
        L.pooling("pool1", "conv1", **pool),  # type: ignore[arg-type]
        L.layer("norm1", "LRN", "pool1"),
        L.conv("conv2", "norm1", num_output=256, kernel_size=5, pad=2, group=2),
        L.pooling("pool2", "conv2", **pool),  # type: ignore[arg-type]
        L.layer("norm2", "LRN", "pool2"),
        L.conv("conv3", "norm2", num_output=384, kernel_size=3, pad=1),
        L.conv("conv4", "conv3", num_output=384, kernel_size=3, pad=1, group=2),
        L.conv("conv5", "conv4", num_output=256, kernel_size=3, pad=1, group=2),
        L.pooling("pool5", "conv5", **pool),  # type: ignore[arg-type]
        L.inner_product("fc6", "pool5", num_output=4096),
        L.inner_product("fc7", "fc6", num_output=4096),
        L.inner_product("fc8", "fc7", num_output=1000),
    ]


def vgg16() -> list[pb.LayerParameter]:
    layers, bottom = [image(1, 3, 224, 224)], "data"
    for stage, (convs, width) in enumerate([(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)], 1):
        for index in range(1, convs + 1):
            name = f"conv{stage}_{index}"
            layers.append(L.conv(name, bottom, num_output=width, kernel_size=3, pad=1))
            bottom = name
        layers.append(L.pooling(f"pool{stage}", bottom, pool="MAX", kernel_size=2, stride=2))
        bottom = f"pool{stage}"
    for name, width in (("fc6", 4096), ("fc7", 4096), ("fc8", 1000)):
        layers.append(L.inner_product(name, bottom, num_output=width))
        bottom = name
    return layers


INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def inception(name: str, bottom: str) -> list[pb.LayerParameter]:
    one, three_reduce, three, five_reduce, five, proj = INCEPTIONS[name]
    return [
        L.conv(f"{name}/1x1", bottom, num_output=one, kernel_size=1),
        L.conv(f"{name}/3x3_reduce", bottom, num_output=three_reduce, kernel_size=1),
        L.conv(f"{name}/3x3", f"{name}/3x3_reduce", num_output=three, kernel_size=3, pad=1),
        L.conv(f"{name}/5x5_reduce", bottom, num_output=five_reduce, kernel_size=1),
        L.conv(f"{name}/5x5", f"{name}/5x5_reduce", num_output=five, kernel_size=5, pad=2),
        L.pooling(f"{name}/pool", bottom, pool="MAX", kernel_size=3, stride=1, pad=1),
        L.conv(f"{name}/proj", f"{name}/pool", num_output=proj, kernel_size=1),
        L.layer(f"{name}/out", "Concat", [f"{name}/{end}" for end in ("1x1", "3x3", "5x5", "proj")]),
    ]


def googlenet() -> list[pb.LayerParameter]:
    """Give GoogLeNet without its two auxiliary classifiers."""

    def pool(name: str, bottom: str) -> pb.LayerParameter:
        return L.pooling(name, bottom, pool="MAX", kernel_size=3, stride=2)

    layers = [
        image(1, 3, 224, 224),
        L.conv("conv1", "data", num_output=64, kernel_size=7, stride=2, pad=3),
        pool("pool1", "conv1"),
        L.layer("norm1", "LRN", "pool1"),
        L.conv("conv2_reduce", "norm1", num_output=64, kernel_size=1),
        L.conv("conv2", "conv2_reduce", num_output=192, kernel_size=3, pad=1),
        L.layer("norm2", "LRN", "conv2"),
        pool("pool2", "norm2"),
    ]
    bottom = "pool2"
    for name in INCEPTIONS:
        layers += inception(name, bottom)
        bottom = f"{name}/out"
        if name in ("3b", "4e"):
            layers.append(pool(f"pool{name[0]}", bottom))
            bottom = f"pool{name[0]}"
    layers.append(L.pooling("pool5", bottom, pool="AVE", kernel_size=7, stride=1))
    return [*layers, L.inner_product("classifier", "pool5", num_output=1000)]


@pytest.mark.parametrize(
    ("layers", "counts"),
    [
        (lenet(), (431_080, 0, 2_293_000)),
        (alexnet(), (60_965_224, 0, 724_406_816)),
        (vgg16(), (138_357_544, 0, 15_470_264_320)),
        (googlenet(), (6_998_552, 0, 1_582_671_872)),
    ],
    ids=["lenet", "alexnet", "vgg16", "googlenet"],
)
def test_nets_of_the_field_have_the_counts_that_are_known_of_them(
    tmp_path: Path, layers: list[pb.LayerParameter], counts: tuple[int, int, int]
) -> None:
    found = summary_of(tmp_path, *layers)
    assert headline(found) == counts
    assert found.phase == "TEST"


DATA = L.data(source="lmdb", batch_size=8, phase="TRAIN", transform_param={"crop_size": 6})
CONV = L.conv("conv", "data", num_output=4, kernel_size=3)


def test_images_of_unknown_size_leave_question_marks_and_a_hint(tmp_path: Path) -> None:
    found = summary_of(tmp_path, DATA, CONV)
    assert found.layers[1].parameters is None
    assert found.layers[1].tops[0].shape == (8, 4, 4, 4)
    assert found.totals.unknown == ("data", "conv")
    assert "layer 'data' (Data)" in found.hint
    assert "--input C,H,W" in found.hint
    known = summary_of(tmp_path, DATA, CONV, image=(3, 9, 9))
    assert (known.totals.parameters, known.hint) == (4 * 3 * 9 + 4, "")


@pytest.mark.parametrize(
    ("type_", "hint"),
    [
        ("Relu", "layer 'r' (Relu) has an unknown type; did you mean 'ReLU'?: its output"),
        ("Attention", "layer 'r' (Attention) has an unknown type: its output"),
        (
            "CtcLoss",
            "layer 'r' (CtcLoss) is a layer of jolibrain/caffe, not in this Caffe: its",
        ),
        ("R" * 10_000, "layer 'r' (R"),
    ],
)
def test_a_type_that_no_caffe_has_is_shown_with_an_unknown_output(
    tmp_path: Path, type_: str, hint: str
) -> None:
    layer = pb.LayerParameter(name="r", type=type_, bottom=["data"], top=["r"])
    found = summary_of(tmp_path, DATA, layer, image=(3, 6, 6))
    assert found.hint.startswith(hint)
    assert found.layers[-1].tops[0].shape is None


def test_a_layer_without_a_type_is_refused(tmp_path: Path) -> None:
    layer = pb.LayerParameter(name="r", bottom=["data"], top=["r"])
    with pytest.raises(PrototxtError, match="layer 'r' has no type"):
        summary_of(tmp_path, DATA, layer)
    layer.include.add(phase=pb.TEST)
    assert summary_of(tmp_path, DATA, layer).layers[0].name == "data"


@pytest.mark.parametrize("type_", ["Python", "MKLBatchNorm"])
def test_a_type_without_a_shape_rule_is_reported(tmp_path: Path, type_: str) -> None:
    layer = pb.LayerParameter(name="p", type=type_, bottom=["data"], top=["p"])
    found = summary_of(tmp_path, DATA, layer, image=(3, 6, 6))
    assert found.hint.startswith(f"layer 'p' ({type_}) has no shape rule here")


def test_the_header_of_an_encoded_image_gives_its_channels(tmp_path: Path) -> None:
    from caffe_recipes.caffe.datums import write_datums

    write_datums(tmp_path / "lmdb", [("0", pb.Datum(data=b"P5 8 8 255 ", encoded=True))])
    found = summary_of(tmp_path, DATA, CONV, caffe_root=tmp_path)
    assert found.layers[0].tops[0].shape == (8, 1, 6, 6)


def test_an_lmdb_under_caffe_root_gives_the_size_of_its_images(tmp_path: Path) -> None:
    from caffe_recipes.caffe.datums import write_datums

    datum = pb.Datum(channels=2, height=7, width=7, data=bytes(98))
    write_datums(tmp_path / "root" / "lmdb", [("0", datum)])
    found = summary_of(tmp_path, DATA, CONV, caffe_root=tmp_path / "root")
    assert found.layers[0].tops[0].shape == (8, 2, 6, 6)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty: data.mdb has 0 bytes"), (b"x" * 8192, "is not an LMDB")],
    ids=["empty", "damaged"],
)
def test_an_unreadable_lmdb_is_named_but_does_not_stop_the_summary(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "root" / "lmdb").mkdir(parents=True)
    (tmp_path / "root" / "lmdb" / "data.mdb").write_bytes(content)
    found = summary_of(tmp_path, DATA, CONV, caffe_root=tmp_path / "root")
    assert found.totals.unknown == ("data", "conv")
    assert f"images, and {tmp_path}/root/lmdb {message}" in found.hint
    assert found.hint.endswith(": give --input C,H,W")
    known = summary_of(tmp_path, DATA, CONV, caffe_root=tmp_path / "root", image=(3, 9, 9))
    assert known.hint == ""


def test_a_first_record_without_an_image_is_named_but_does_not_stop_the_summary(tmp_path: Path) -> None:
    from caffe_recipes.caffe.datums import write_datums

    write_datums(tmp_path / "lmdb", [("0", pb.Datum(channels=1, height=2, width=2))])
    found = summary_of(tmp_path, DATA, CONV, caffe_root=tmp_path)
    assert "and lmdb begins with a record that holds no image: give --input" in found.hint


def test_another_batch_changes_the_cost_of_a_batch_but_not_of_an_image(tmp_path: Path) -> None:
    small, large = (summary_of(tmp_path, *lenet(), batch=batch) for batch in (1, 100))
    assert large.totals.activation_bytes == 100 * small.totals.activation_bytes
    assert headline(large) == headline(small)


def test_a_bottom_that_no_layer_makes_is_reported_before_an_input_that_changes_nothing(
    tmp_path: Path,
) -> None:
    for batch in (None, 2):
        with pytest.raises(PrototxtError, match="reads blob 'data', which no layer above it produces"):
            summary_of(tmp_path, CONV, image=(3, 9, 9), batch=batch)


def test_options_that_change_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="already has the size of all its inputs; remove --input"):
        summary_of(tmp_path, *lenet(), image=(1, 28, 28))
    with pytest.raises(InputError, match="no layer whose batch can be set"):
        summary_of(tmp_path, L.layer("p", "Parameter", shape={"dim": [3]}), batch=2)


def test_an_input_without_a_shape_takes_the_image_given(tmp_path: Path) -> None:
    path = tmp_path / "deploy.prototxt"
    path.write_text(
        "input: 'data' layer { name: 'c' type: 'Convolution' bottom: 'data' top: 'c'"
        " convolution_param { num_output: 4 kernel_size: 3 } }"
    )
    assert summarize(read_net(str(path), SummaryOptions())).totals.unknown == ("input", "c")
    found = summarize(read_net(str(path), SummaryOptions(image=(3, 9, 9), batch=5)))
    assert found.layers[-1].tops[0].shape == (5, 4, 7, 7)


def test_a_net_of_the_old_format_is_counted_in_todays_form(tmp_path: Path) -> None:
    path = tmp_path / "old.prototxt"
    path.write_text(
        "input: 'data' input_dim: 2 input_dim: 3 input_dim: 9 input_dim: 9"
        " layers { name: 'c' type: CONVOLUTION bottom: 'data' top: 'c'"
        " convolution_param { num_output: 4 kernel_size: 3 } }"
    )
    assert headline(summarize(read_net(str(path), SummaryOptions()))) == (112, 0, 4 * 27 * 49)


def test_a_batch_norm_of_a_part_of_the_batch_is_reported_in_training(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(
        """bn_stats_batch_size: 2
        layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 dim: 2 dim: 2 } } }
        layer { name: "bn" type: "BatchNorm" bottom: "x" top: "y" }
        """
    )
    path = str(tmp_path / "net.prototxt")
    train, test = (summarize(read_net(path, SummaryOptions(phase=phase))) for phase in (pb.TRAIN, pb.TEST))
    assert (train.stats_batch_sizes, test.stats_batch_sizes) == ((2,), ())
    assert "; for groups of 2 images" in "\n".join(render_table(train))
    assert "by themselves" not in "\n".join(render_table(test))


def test_weights_shared_by_name_are_counted_once_and_frozen_ones_apart(tmp_path: Path) -> None:
    shared = {"num_output": 5, "param": [{"name": "w"}, {"name": "b", "lr_mult": 0}]}
    found = summary_of(
        tmp_path,
        image(2, 4),
        L.layer("left", "InnerProduct", "data", **shared),  # type: ignore[arg-type]
        L.layer("right", "InnerProduct", "data", **shared),  # type: ignore[arg-type]
    )
    assert (found.totals.parameters, found.totals.frozen) == (25, 5)
    assert found.layers[-1].shares_with == "left"
    assert found.totals.multiply_adds == 2 * 2 * 20


def test_activations_exclude_in_place_layers_and_views(tmp_path: Path) -> None:
    found = summary_of(
        tmp_path,
        image(2, 4, 3, 3),
        L.relu("relu", "data"),
        L.layer("flat", "Flatten", "data"),
        L.inner_product("ip", "flat", num_output=5),
    )
    assert [layer.activation_bytes for layer in found.layers] == [288, 0, 0, 40]
    assert found.layers[1].in_place


@pytest.mark.parametrize(
    ("layer", "adds", "other"),
    [
        (
            L.layer("x", "Deconvolution", "data", convolution_param={"num_output": 6, "kernel_size": 2}),
            2 * 36 * 6 * 4,
            0,
        ),
        (L.layer("x", "Convolution", "data", num_output=8, kernel_size=3, group=4), 2 * 8 * 1 * 9, 0),
        (L.layer("x", "InnerProduct", "data", num_output=5, transpose=True), 2 * 5 * 36, 0),
        (L.layer("x", "Scale", "data", bias_term=True), 0, 72),
        (L.layer("x", "BatchNorm", "data"), 0, 72),
        (L.layer("x", "BatchNorm", "data", use_global_stats=False), 0, 216),
        (L.layer("x", "LRN", "data", local_size=3), 0, 216),
        (L.layer("x", "LRN", "data", local_size=3, norm_region="WITHIN_CHANNEL"), 0, 648),
        (L.pooling("x", "data", pool="AVE", kernel_h=3, kernel_w=1), 0, 2 * 4 * 3 * 3),
        (L.pooling("x", "data", pool="MAX", kernel_size=2), 0, 2 * 4 * 4 * 4),
        (L.pooling("x", "data", pool="AVE", global_pooling=True), 0, 72),
        (L.layer("x", "Eltwise", ["data"] * 3), 0, 144),
        (L.layer("x", "Reduction", "data", axis=1), 0, 72),
        (L.layer("x", "Softmax", "data"), 0, 0),
        (L.layer("x", "MVN", "data"), 0, 3 * 72),
        (L.layer("x", "MVN", "data", normalize_variance=False), 0, 2 * 72),
        (L.layer("x", "Normalize", "data"), 0, 2 * 72),
        (L.layer("x", "SPP", "data", pyramid_height=2), 0, 2 * 72),
        (L.layer("x", "Embed", "data", num_output=5, input_dim=3), 0, 5 * 72),
        (L.layer("x", "Embed", "data", num_output=5, input_dim=3, bias_term=False), 0, 0),
        (L.layer("x", "Tile", "data", tiles=3), 0, 0),
    ],
    ids=lambda value: value.type if isinstance(value, pb.LayerParameter) else str(value),
)
def test_the_arithmetic_of_a_layer_is_that_of_its_formula(
    tmp_path: Path, layer: pb.LayerParameter, adds: int, other: int
) -> None:
    found = summary_of(tmp_path, image(2, 4, 3, 3), layer).layers[-1]
    assert (found.multiply_adds, found.other_operations) == (adds, other)


@pytest.mark.parametrize(
    ("layer", "adds"),
    [
        (L.layer("x", "LSTM", ["data", "cont"], recurrent_param={"num_output": 5}), 6 * 20 * (4 + 5)),
        (
            L.layer("x", "LSTM", ["data", "cont", "still"], recurrent_param={"num_output": 5}),
            6 * 20 * (4 + 5) + 2 * 20 * 7,
        ),
        (L.layer("x", "RNN", ["data", "cont"], recurrent_param={"num_output": 5}), 6 * (5 * 4 + 25 + 25)),
    ],
    ids=["lstm", "lstm with a static input", "rnn"],
)
def test_a_recurrent_layer_takes_each_matrix_at_every_step(
    tmp_path: Path, layer: pb.LayerParameter, adds: int
) -> None:
    others = (
        L.layer(name, "Input", shape={"dim": dims}) for name, dims in (("cont", (3, 2)), ("still", (2, 7)))
    )
    found = summary_of(tmp_path, image(3, 2, 4), *others, layer)
    assert found.layers[-1].multiply_adds == adds


def test_each_phase_has_its_own_layers_and_names_them(tmp_path: Path) -> None:
    test = L.layer("test-data", "Input", top="data", shape={"dim": [4, 3, 6, 6]}, include={"phase": "TEST"})
    layers = [L.data(source="x", batch_size=8, phase="TRAIN", top="data"), test, CONV]
    train = summary_of(tmp_path, *layers, image=(3, 6, 6))
    assert (train.phase, train.batch) == ("TRAIN", 8)
    assert [layer.phase for layer in train.layers] == ["TRAIN", ""]
    tested = summary_of(tmp_path, *layers, phase=pb.TEST)
    assert (tested.phase, tested.batch) == ("TEST", 4)
    assert [layer.name for layer in tested.layers] == ["test-data", "conv"]


def test_stages_and_levels_choose_layers(tmp_path: Path) -> None:
    extra = L.relu("extra", "data", include={"stage": "deploy", "min_level": 1})
    assert len(summary_of(tmp_path, image(1, 3), extra).layers) == 1
    assert len(summary_of(tmp_path, image(1, 3), extra, stages=("deploy",), level=1).layers) == 2


def test_shapes_that_do_not_fit_name_both_layers(tmp_path: Path) -> None:
    layers = (image(1, 3, 9, 9), CONV, L.eltwise_sum("sum", ["data", "conv"]))
    with pytest.raises(PrototxtError, match=r"layer 'sum'.*from layer 'data'.*from layer 'conv'"):
        summary_of(tmp_path, *layers)


def write_solver(folder: Path, text: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "solver.prototxt").write_text(text)
    return str(folder / "solver.prototxt")


def test_a_solvers_net_is_found_above_it_beside_it_and_under_caffe_root(tmp_path: Path) -> None:
    (tmp_path / "models" / "a").mkdir(parents=True)
    net = tmp_path / "models" / "a" / "net.prototxt"
    net.write_text(render_prototxt(L.net("n", *lenet())))
    above = write_solver(tmp_path / "models" / "a", "base_lr: 1 net: 'models/a/net.prototxt'")
    assert read_net(above, SummaryOptions()).path == str(net)
    beside = write_solver(tmp_path / "models" / "a", "base_lr: 1 net: 'elsewhere/net.prototxt'")
    assert read_net(beside, SummaryOptions()).path == str(net)
    other = write_solver(tmp_path / "other", "base_lr: 1 net: 'a/net.prototxt'")
    with pytest.raises(InputError, match=r"its net 'a/net\.prototxt' was not found; give --caffe-root"):
        read_net(other, SummaryOptions())
    assert read_net(other, SummaryOptions(caffe_root=tmp_path / "models")).path == str(net)


def test_a_solver_may_hold_its_net_and_its_stages(tmp_path: Path) -> None:
    solver = write_solver(
        tmp_path,
        "base_lr: 1 train_state { stage: 'a' } net_param { layer { name: 'in' type: 'Input' top: 'x'"
        " input_param { shape { dim: 2 } } include { stage: 'a' } } }",
    )
    assert len(summarize(read_net(solver, SummaryOptions())).layers) == 1


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("base_lr: 1", "names no net"),
        ("item { name: 'a' }", "LabelMap, which has no layers"),
        ("name: 'n'", "has no layers"),
        ("params_pair { batch_size: 1 }", "MultiPhaseSolverParameter, which has no layers"),
        (
            "layer { name: 'x' type: 'Input' include { phase: TEST } } layer { name: 'y' type: 'Python' "
            "include { phase: TEST } }",
            "",
        ),
    ],
)
def test_a_file_without_a_net_is_one_line(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "x.prototxt"
    path.write_text(text)
    if not what:
        assert summarize(read_net(str(path), SummaryOptions())).phase == "TEST"
        with pytest.raises(InputError, match="no layer in phase TRAIN"):
            summarize(read_net(str(path), SummaryOptions(phase=pb.TRAIN)))
        return
    with pytest.raises(CaffeRecipesError, match=what) as caught:
        read_net(str(path), SummaryOptions())
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_a_folder_stands_for_its_only_net_or_lists_its_nets(tmp_path: Path) -> None:
    write_solver(tmp_path, 'net: "a.prototxt"')
    with pytest.raises(InputError, match=r": is a folder without a net; give a net, a solver or a recipe$"):
        load_given_net(str(tmp_path))
    names = [str(tmp_path / name) for name in ("a.prototxt", "b.prototxt", "sub/c.prototxt", "sub/d.pt")]
    (tmp_path / "sub").mkdir()
    Path(names[0]).write_text(render_prototxt(L.net("a", image(1, 3, 9, 9))))
    assert load_given_net(str(tmp_path)).path == names[0]
    for count, listed in ((2, names[:2]), (3, names[:3]), (4, [*names[:3], "..."])):
        Path(names[count - 1]).write_text(render_prototxt(L.net("b", image(1, 3, 9, 9))))
        with pytest.raises(InputError) as caught:
            load_given_net(str(tmp_path))
        message = f"{tmp_path}: is a folder with several nets; give one: {', '.join(listed)}"
        assert str(caught.value) == message


def test_a_recipe_takes_precedence_over_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "digits-local").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_given_net("digits-local").path == "digits-local:train_val"
