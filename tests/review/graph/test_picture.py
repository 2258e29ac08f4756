"""The picture of a graph: its contents, no overlaps, and valid SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest

from caffe_recipes.caffe import layers as L  # noqa: N812 - as net definitions write it
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import render_prototxt
from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.review.graph.boxes import build_graph, text_width
from caffe_recipes.review.graph.layout import Layout, PlacedBox, lay_out
from caffe_recipes.review.graph.picture import draw_graph, render_graph
from caffe_recipes.review.inspect.summary import LoadedNet, SummaryOptions, read_net, summarize

ROOT = Path(__file__).parents[3]
RESNET50 = ROOT / "prototxt" / "stampede2-64n-72ep" / "train_val.prototxt"
NOAUG = ROOT / "prototxt" / "stampede2-64n-72ep" / "train_val_noaug.prototxt"
SVG = "{http://www.w3.org/2000/svg}"
Layers = list[pb.LayerParameter]


def image(*dims: int) -> pb.LayerParameter:
    return L.layer("data", "Input", shape={"dim": dims})


def data(px: int) -> Layers:
    transform = {"crop_size": px, "mean_value": [1, 2, 3]}
    return [
        L.data(source="x", batch_size=8, phase="TRAIN", transform_param=transform),
        L.data(source="y", batch_size=4, phase="TEST", transform_param=transform),
    ]


def conv(name: str, bottom: str, stride: int = 1, width: int = 8) -> pb.LayerParameter:
    return L.conv(name, bottom, num_output=width, kernel_size=3, pad=1, stride=stride)


def head(scores: str, suffix: str = "") -> Layers:
    return [
        L.softmax_with_loss(f"loss{suffix}", scores, "label", include={"phase": "TRAIN"}),
        L.accuracy(f"top-1{suffix}", scores, "label", include={"phase": "TEST"}),
        L.accuracy(f"top-5{suffix}", scores, "label", top_k=5, include={"phase": "TEST"}),
    ]


def vgg() -> Layers:
    layers, bottom = data(224), "data"
    for stage, convs in enumerate([2, 2, 3, 3, 3], 1):
        for index in range(1, convs + 1):
            layers += [
                conv(f"conv{stage}_{index}", bottom),
                L.relu(f"relu{stage}_{index}", f"conv{stage}_{index}"),
            ]
            bottom = f"conv{stage}_{index}"
        layers.append(L.pooling(f"pool{stage}", bottom, pool="MAX", kernel_size=2, stride=2))
        bottom = f"pool{stage}"
    for name in ("fc6", "fc7"):
        layers += [
            L.inner_product(name, bottom, num_output=16),
            L.layer(f"drop{name}", "Dropout", name, name, include={"phase": "TRAIN"}),
        ]
        bottom = name
    return [*layers, L.inner_product("fc8", bottom, num_output=10), *head("fc8")]


def inception() -> Layers:
    """Give three modules of four branches, with an auxiliary classifier beside the second."""
    layers, bottom = [*data(28), conv("stem", "data")], "stem"
    for name in "abc":
        layers += [
            conv(f"{name}/1x1", bottom),
            conv(f"{name}/3x3_reduce", bottom),
            conv(f"{name}/3x3", f"{name}/3x3_reduce"),
            conv(f"{name}/5x5_reduce", bottom),
            conv(f"{name}/5x5", f"{name}/5x5_reduce"),
            L.pooling(f"{name}/pool", bottom, pool="MAX", kernel_size=3, stride=1, pad=1),
            conv(f"{name}/proj", f"{name}/pool"),
            L.layer(f"{name}/out", "Concat", [f"{name}/{end}" for end in ("1x1", "3x3", "5x5", "proj")]),
        ]
        bottom = f"{name}/out"
        if name == "a":
            layers += [
                L.pooling("aux/pool", bottom, pool="AVE", kernel_size=5, stride=3),
                L.inner_product("aux/fc", "aux/pool", num_output=10),
                *head("aux/fc", "/aux"),
            ]
    return [*layers, L.inner_product("fc", bottom, num_output=10), *head("fc")]


def siamese() -> Layers:
    def tower(suffix: str, bottom: str) -> Layers:
        return [
            conv(f"conv1{suffix}", bottom),
            L.pooling(f"pool1{suffix}", f"conv1{suffix}", pool="MAX", kernel_size=2, stride=2),
            conv(f"conv2{suffix}", f"pool1{suffix}"),
            L.inner_product(f"feat{suffix}", f"conv2{suffix}", num_output=2),
        ]

    pairs = L.data(
        "pairs",
        ("pairs", "same"),
        source="x",
        batch_size=8,
        phase="TRAIN",
        transform_param={"crop_size": 28, "mean_value": [1, 1]},
    )
    return [
        pairs,
        L.layer("slice", "Slice", "pairs", ("left", "right")),
        *tower("", "left"),
        *tower("_p", "right"),
        L.layer("loss", "ContrastiveLoss", ["feat", "feat_p", "same"]),
    ]


def unet() -> Layers:
    layers, bottom = [image(1, 3, 64, 64)], "data"
    for depth in range(4):
        layers += [conv(f"d{depth}", bottom), conv(f"down{depth}", f"d{depth}", stride=2)]
        bottom = f"down{depth}"
    for depth in range(3, -1, -1):
        up = {"num_output": 8, "kernel_size": [2], "stride": [2]}
        layers += [
            L.layer(f"up{depth}", "Deconvolution", bottom, convolution_param=up),
            L.layer(f"cat{depth}", "Concat", [f"d{depth}", f"up{depth}"]),
        ]
        bottom = f"cat{depth}"
    return [*layers, L.layer("prob", "Softmax", bottom)]


def all_to_all() -> Layers:
    layers, made = [image(1, 3, 9, 9), conv("c0", "data")], ["c0"]
    for index in range(1, 5):
        layers += [L.layer(f"cat{index}", "Concat", made), conv(f"c{index}", f"cat{index}")]
        made.append(f"c{index}")
    return [*layers, L.layer("out", "Concat", made)]


def long() -> Layers:
    names = ["data", *(f"c{index}" for index in range(150))]
    return [image(1, 3, 9, 9), *(conv(name, before) for before, name in pairwise(names))]


def scattered() -> Layers:
    """Return layers that read others in several columns, and one that reads nothing."""
    layers = long()
    return [
        *layers,
        L.layer("lost", "Input", shape={"dim": [3]}),
        L.eltwise_sum("far", ["c3", "c60"]),
        L.layer("tail", "ReLU", "far", "tail"),
        L.eltwise_sum("farther", ["c90", "tail"]),
        L.layer("gone", "Silence", ["farther", "c10"], ()),
        *(conv(f"e{index}", f"e{index - 1}" if index else "c149") for index in range(9)),
    ]


def ladder() -> Layers:
    """Give a wide block: every tower reads its neighbour's layers."""
    layers = [image(1, 3, 9, 9), *(conv(f"t{tower}_0", "data") for tower in range(4))]
    for step in range(1, 4):
        for tower in range(4):
            bottoms = [f"t{tower}_{step - 1}", f"t{(tower + 1) % 4}_{step - 1}"]
            layers.append(L.eltwise_sum(f"t{tower}_{step}", bottoms))
    return [*layers, L.layer("out", "Concat", [f"t{tower}_3" for tower in range(4)] + ["t0_0", "t3_1"])]


def single() -> Layers:
    return [image(1, 3)]


NETS = {
    net.__name__: net for net in (vgg, inception, siamese, unet, all_to_all, long, scattered, ladder, single)
}


def tangle(seed: int) -> Layers:
    """Return a net whose layers read arbitrary earlier ones, as no person would design it."""
    random = Random(seed)
    layers = [L.layer(f"in{index}", "Input", (), f"in{index}", shape={"dim": [2, 4]}) for index in range(2)]
    blobs = [layer.top[0] for layer in layers]
    for index in range(40):
        near = blobs[-random.choice([1, 3, 8, 30]) :]
        bottoms = list(dict.fromkeys(random.choices(near, k=random.choice([1, 1, 2, 3]))))
        tops = [f"b{index}_{part}" for part in range(random.choice([1, 1, 1, 2, 3]))]
        if len(bottoms) > 1:
            layers.append(L.eltwise_sum(f"l{index}", bottoms, tops[0]))
            blobs.append(tops[0])
        elif random.random() < 0.2:
            layers.append(L.relu(f"l{index}", bottoms[0]))
        else:
            layers.append(L.layer(f"l{index}", "Split", bottoms, tops))
            blobs += tops
    return layers


def net_in(folder: Path, name: str, **options: object) -> LoadedNet:
    if name.startswith("resnet50"):
        path = NOAUG if name.endswith("noaug") else RESNET50
    else:
        path = folder / f"{name}.prototxt"
        path.write_text(render_prototxt(L.net(name, *NETS[name]())))
    return read_net(str(path), SummaryOptions(**options))  # type: ignore[arg-type]


@pytest.fixture(params=["resnet50", "resnet50_noaug", *NETS])
def net(request: pytest.FixtureRequest, tmp_path: Path) -> LoadedNet:
    return net_in(tmp_path, request.param)


@pytest.fixture
def layout(net: LoadedNet) -> Layout:
    return lay_out(build_graph(net))[0]


def draw(net: LoadedNet) -> ElementTree.Element:
    return ElementTree.fromstring(draw_graph(net, summarize(net)))


def test_every_layer_stands_in_one_box(net: LoadedNet, layout: Layout) -> None:
    names = [line.name for placed in layout.boxes for line in placed.box.lines]
    assert sorted(names) == sorted(layer.name for layer in net.message.layer)


def test_no_two_boxes_overlap(layout: Layout) -> None:
    for one, other in combinations(layout.boxes, 2):
        assert (
            one.x + one.width < other.x
            or other.x + other.width < one.x
            or one.y + one.height < other.y
            or other.y + other.height < one.y
        ), (one.box.lines[0].name, other.box.lines[0].name)


def is_on_border(x: float, y: float, box: PlacedBox) -> bool:
    right, bottom = box.x + box.width, box.y + box.height
    upright = x in (box.x, right) and box.y <= y <= bottom
    level = y in (box.y, bottom) and box.x <= x <= right
    return upright or level


def test_every_wire_runs_from_the_border_of_its_source_to_that_of_its_target(layout: Layout) -> None:
    boxes = {placed.box.id: placed for placed in layout.boxes}
    for wire in layout.wires:
        assert is_on_border(*wire.points[0], boxes[wire.edge.source]), wire
        assert is_on_border(*wire.points[-1], boxes[wire.edge.target]), wire


def test_every_edge_is_a_wire_or_is_named_in_both_its_boxes(net: LoadedNet) -> None:
    graph = build_graph(net)
    layout, wiring = lay_out(graph)
    assert sorted([wire.edge for wire in layout.wires], key=repr) == sorted(wiring.wires, key=repr)
    assert set(wiring.wires) | set(wiring.distant) == set(graph.edges)
    boxes = {placed.box.id: placed.box for placed in layout.boxes}
    for edge in wiring.distant:
        assert f"{edge.blob} ({edge.shape}) →" in boxes[edge.source].notes
        assert f"← {edge.blob}" in boxes[edge.target].notes


Segment = tuple[float, float, float, float]


def segments(points: Sequence[tuple[float, float]]) -> Iterator[Segment]:
    for (x, y), (to_x, to_y) in pairwise(points):
        assert x == to_x or y == to_y, "wires run level or upright"
        yield min(x, to_x), min(y, to_y), max(x, to_x), max(y, to_y)


def test_no_wire_runs_through_a_box(layout: Layout) -> None:
    for wire in layout.wires:
        for left, top, right, bottom in segments(wire.points):
            for box in layout.boxes:
                assert not (
                    left < box.x + box.width and right > box.x and top < box.y + box.height and bottom > box.y
                ), (wire.edge, box.box.lines[0].name)


def test_wires_of_two_blobs_never_run_on_top_of_each_other(layout: Layout) -> None:
    upright: dict[float, list[tuple[float, float, tuple[int, str]]]] = {}
    level: dict[float, list[tuple[float, float, tuple[int, str]]]] = {}
    for wire in layout.wires:
        key = (wire.edge.source, wire.edge.blob)
        for left, top, right, bottom in segments(wire.points):
            if left == right:
                upright.setdefault(left, []).append((top, bottom, key))
            else:
                level.setdefault(top, []).append((left, right, key))
    for runs in (*upright.values(), *level.values()):
        for (begin, end, key), (other_begin, other_end, other) in combinations(runs, 2):
            assert key == other or end <= other_begin or other_end <= begin, (key, other)


def test_everything_lies_within_the_page_and_shapes_beside_boxes(layout: Layout) -> None:
    for box in layout.boxes:
        assert box.x >= 0
        assert box.x + box.width <= layout.width
        assert 0 <= box.y < box.y + box.height <= layout.height
    for wire in layout.wires:
        assert all(0 <= x <= layout.width and 0 <= y <= layout.height for x, y in wire.points)
    for text in layout.shapes:
        end = text.x + text_width(text.text, 9)
        assert 0 <= text.x < end <= layout.width
        for box in layout.boxes:
            assert not (
                text.x < box.x + box.width
                and end > box.x
                and text.y - 7 < box.y + box.height
                and text.y > box.y
            ), (text, box.box.lines[0].name)
    for band in layout.bands:
        assert band.x + text_width(band.title, 13, is_bold=True) <= band.x + band.width


def test_shapes_are_not_written_over_each_other(layout: Layout) -> None:
    for one, other in combinations(layout.shapes, 2):
        if abs(one.y - other.y) < 8:
            ends = (one.x + text_width(one.text, 9), other.x + text_width(other.text, 9))
            assert ends[0] <= other.x or ends[1] <= one.x, (one, other)


def test_the_text_of_a_box_fits_in_it(layout: Layout) -> None:
    for placed in layout.boxes:
        first = placed.box.lines[0]
        assert text_width(first.what, 9) < placed.width
        for line in placed.box.lines[1:]:
            assert text_width(f"{line.name}{line.what}", 9) < placed.width


@pytest.mark.parametrize("seed", range(30))
def test_even_a_tangled_net_is_drawn_without_overlaps(seed: int) -> None:
    net = LoadedNet("tangle", L.net("tangle", *tangle(seed)), pb.TRAIN, 0, ())
    layout, _ = lay_out(build_graph(net))
    test_every_layer_stands_in_one_box(net, layout)
    test_no_two_boxes_overlap(layout)
    test_every_wire_runs_from_the_border_of_its_source_to_that_of_its_target(layout)
    test_no_wire_runs_through_a_box(layout)
    test_wires_of_two_blobs_never_run_on_top_of_each_other(layout)
    test_everything_lies_within_the_page_and_shapes_beside_boxes(layout)
    test_shapes_are_not_written_over_each_other(layout)


def test_wires_go_down_and_boxes_stand_below_what_they_read(net: LoadedNet) -> None:
    graph = build_graph(net)
    assert all(edge.source < edge.target for edge in graph.edges)


def test_the_picture_is_svg_whose_texts_can_be_selected(net: LoadedNet) -> None:
    root = draw(net)
    assert root.tag == f"{SVG}svg"
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    texts = {text.text for text in root.iter(f"{SVG}text")}
    titles = ", ".join(title.text or "" for title in root.iter(f"{SVG}title"))
    for layer in net.message.layer:
        assert layer.name in texts
        assert layer.name in titles


def test_the_same_net_is_the_same_picture_to_the_byte(tmp_path: Path) -> None:
    pictures = set()
    for _ in range(2):
        net = net_in(tmp_path, "inception")
        pictures.add(draw_graph(net, summarize(net)))
    assert len(pictures) == 1


def test_a_resnet_has_its_stages_side_by_side_and_its_main_path_straight_down(tmp_path: Path) -> None:
    layout, _ = lay_out(build_graph(net_in(tmp_path, "resnet50")))
    assert [band.title for band in layout.bands] == [
        "112 × 112",
        "56 × 56",
        "28 × 28",
        "14 × 14",
        "7 × 7",
        "vectors",
    ]
    at = {placed.box.lines[0].name: placed for placed in layout.boxes}
    tops = {name: at[name].y for name in ("res3a_branch2a", "res4a_branch2a", "res5a_branch2a")}
    assert len(set(tops.values())) == 1
    for stage, blocks in (("2", "abc"), ("3", "abcd"), ("4", "abcdef"), ("5", "abc")):
        main = [
            at[f"res{stage}{block}{part}"]
            for block in blocks
            for part in ("_branch2a", "_branch2b", "_branch2c", "")
        ]
        assert len({placed.x for placed in main}) == 1
        assert [placed.y for placed in main] == sorted(placed.y for placed in main)
        assert at[f"res{stage}a_branch1"].x > main[0].x + main[0].width


def test_in_place_layers_are_lines_of_the_box_that_they_work_on(tmp_path: Path) -> None:
    boxes = build_graph(net_in(tmp_path, "resnet50")).boxes
    conv1 = next(box for box in boxes if box.lines[0].name == "conv1")
    assert [(line.name, line.what) for line in conv1.lines] == [
        ("conv1", "Convolution 7×7, 64, stride 2"),
        ("bn_conv1", "BatchNorm"),
        ("scale_conv1", "Scale"),
        ("conv1_relu", "ReLU"),
    ]


def test_a_layer_read_before_an_in_place_layer_keeps_its_own_box(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    layers = [image(1, 3, 9, 9), conv("a", "data"), conv("b", "a"), L.relu("relu", "a"), conv("c", "a")]
    path.write_text(render_prototxt(L.net("n", *layers)))
    graph = build_graph(read_net(str(path), SummaryOptions()))
    names = [box.lines[0].name for box in graph.boxes]
    assert names == ["data", "a", "b", "relu", "c"]
    assert [(names[edge.source], names[edge.target]) for edge in graph.edges] == [
        ("data", "a"),
        ("a", "b"),
        ("a", "relu"),
        ("relu", "c"),
    ]


def test_layers_of_one_phase_are_marked_by_words_and_by_their_line(tmp_path: Path) -> None:
    root = draw(net_in(tmp_path, "vgg"))
    marked: dict[str, list[str]] = {"TRAIN only": [], "TEST only": [], "": []}
    dashes: dict[str, set[str | None]] = {key: set() for key in marked}
    for group in root.iter(f"{SVG}g"):
        if group.get("class") == "box":
            texts = [text.text or "" for text in group.iter(f"{SVG}text")]
            phase = texts[0] if texts[0] in marked else ""
            marked[phase].append(texts[1 if phase else 0])
            frame = group.find(f"{SVG}rect")
            assert frame is not None
            dashes[phase].add(f"{frame.get('stroke-width')} {frame.get('stroke-dasharray')}")
    assert marked["TRAIN only"] == ["data", "loss"]
    assert marked["TEST only"] == ["data", "top-1", "top-5"]
    assert {phase: len(lines) for phase, lines in dashes.items()} == {"TRAIN only": 1, "TEST only": 1, "": 1}
    assert len(set.union(*dashes.values())) == 3
    assert "TRAIN only Dropout 0.5" in {text.text for text in root.iter(f"{SVG}text")}


def test_one_phase_is_drawn_alone_on_request(tmp_path: Path) -> None:
    graph = build_graph(net_in(tmp_path, "vgg", phase=pb.TEST))
    names = [line.name for box in graph.boxes for line in box.lines]
    assert "loss" not in names
    assert "top-1" in names
    assert not any(box.phase for box in graph.boxes)


def test_four_branches_stand_side_by_side_around_the_middle(tmp_path: Path) -> None:
    layout, _ = lay_out(build_graph(net_in(tmp_path, "inception")))
    at = {placed.box.lines[0].name: placed.x for placed in layout.boxes}
    first = [at[f"a/{name}"] for name in ("1x1", "3x3_reduce", "5x5_reduce", "pool")]
    assert first == sorted(first)
    assert sum(first) / 4 == pytest.approx(at["a/out"])
    assert at["aux/pool"] > first[-1]


def test_two_towers_stand_level_and_mirror_each_other(tmp_path: Path) -> None:
    layout, _ = lay_out(build_graph(net_in(tmp_path, "siamese")))
    at = {placed.box.lines[0].name: placed for placed in layout.boxes}
    for name in ("conv1", "pool1", "conv2", "feat"):
        assert at[name].y == at[f"{name}_p"].y
        assert (at[name].x + at[f"{name}_p"].x) / 2 == pytest.approx(at["loss"].x)


def test_a_long_net_continues_in_further_columns(tmp_path: Path) -> None:
    layout, _ = lay_out(build_graph(net_in(tmp_path, "long")))
    titles = [band.title for band in layout.bands]
    assert titles[0] == "9 × 9"
    assert set(titles[1:]) == {"9 × 9, continued"}
    assert layout.height < 3 * layout.width


def test_names_of_any_kind_come_out_as_text(tmp_path: Path) -> None:
    names = ["a <b> & \"c\" 'd'", "層é", "tab\there", "x" * 200, "]]>", ""]
    layers, bottom = [image(1, 3, 9, 9)], "data"
    for index, name in enumerate(names):
        layers.append(L.layer(name, "Softmax", bottom, f"t{index}"))
        bottom = f"t{index}"
    path = tmp_path / "names.prototxt"
    path.write_text(render_prototxt(pb.NetParameter(name="<net> & co", layer=layers)))
    root = draw(read_net(str(path), SummaryOptions()))
    texts = {text.text for text in root.iter(f"{SVG}text")}
    assert {"a <b> & \"c\" 'd'", "層é", "tab\\there", "]]>", "(no name)", "<net> & co"} <= texts
    assert "x" * 200 in {title.text for title in root.iter(f"{SVG}title")}
    assert not any("x" * 50 in (text or "") for text in texts)


def test_unknown_shapes_are_question_marks(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        render_prototxt(L.net("n", L.layer("p", "Python", top="x"), L.layer("q", "ReLU", "x", "y")))
    )
    graph = build_graph(read_net(str(path), SummaryOptions()))
    assert [edge.shape for edge in graph.edges] == ["?"]


def test_a_phase_whose_shapes_do_not_fit_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    wrong = L.eltwise_sum("sum", ["data", "c"], include={"phase": "TEST"})
    path.write_text(render_prototxt(L.net("n", *data(9), conv("c", "data"), wrong)))
    net = read_net(str(path), SummaryOptions())
    assert summarize(net).phase == "TRAIN"
    with pytest.raises(PrototxtError, match="layer 'sum'"):
        build_graph(net)


def test_a_net_of_more_layers_than_anybody_can_look_at_is_not_drawn(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    relus = (f'layer {{ type: "ReLU" bottom: "b{i}" top: "b{i + 1}" }}\n' for i in range(5000))
    path.write_text(
        'layer { type: "Input" top: "b0" input_param { shape { dim: 1 dim: 2 } } }\n' + "".join(relus)
    )
    net = read_net(str(path), SummaryOptions())
    with pytest.raises(InputError, match=r"has 5,001 layers, but a picture can show only 5,000; remove --gr"):
        draw_graph(net, summarize(net))


@pytest.mark.parametrize(("kind", "mark"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_a_graph_is_drawn_as_png_and_pdf_to_the_same_bytes_each_time(
    kind: str, mark: bytes, tmp_path: Path
) -> None:
    net = net_in(tmp_path, "inception")  # as ResNet-50, it has every kind of element, but a quarter as many
    pictures = [render_graph(net, summarize(net), kind) for _ in range(2)]
    assert pictures[0].startswith(mark)
    assert pictures[0] == pictures[1]


def test_the_png_has_the_background_and_colours_of_the_svg(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(render_prototxt(L.net("$a_b", image(1, 3, 9, 9), conv("層", "data"))))
    net = read_net(str(path), SummaryOptions())
    root = draw(net)
    frame = next(
        rect for box in root.iter(f"{SVG}g") for rect in box if "class" in box.attrib and rect.get("rx")
    )
    down = next(group.attrib["transform"] for group in root if "transform" in group.attrib)
    pixels = cv2.imdecode(np.frombuffer(render_graph(net, summarize(net), "png"), np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None
    assert pixels.shape[:2] == tuple(round(2 * float(root.attrib[side])) for side in ("height", "width"))
    assert tuple(pixels[3, 3]) == (255, 255, 255)
    x, y = (2 * (float(frame.attrib[name]) + 3) for name in ("x", "y"))
    y += 2 * float(down.removeprefix("translate(0 ").removesuffix(")"))
    red, green, blue = bytes.fromhex(frame.attrib["fill"].removeprefix("#"))
    assert tuple(map(int, pixels[round(y), round(x)])) == (blue, green, red)
