"""Two nets, layer by layer: edits, renames, moves, phases, and what follows from them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import load_prototxt, parse_prototxt
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.prototxts import build_net
from caffe_recipes.review.diff.changes import Change
from caffe_recipes.review.diff.nets import diff_nets, match_layers, title_of

AUTHORS = Path(__file__).resolve().parents[4] / "shared" / "reference" / "surfsara"
HEAD = """
name: "small"
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  data_param { batch_size: 32 } }
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TEST }
  data_param { batch_size: 50 } }
"""
CONV1 = (
    'layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"'
    " convolution_param { num_output: 8 kernel_size: 3 pad: 1 } }\n"
)
RELU1 = 'layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }\n'
CONV2 = (
    'layer { name: "conv2" type: "Convolution" bottom: "conv1" top: "conv2"'
    " convolution_param { num_output: 8 kernel_size: 3 pad: 1 } }\n"
)
RELU2 = 'layer { name: "relu2" type: "ReLU" bottom: "conv2" top: "conv2" }\n'
SIDE = 'layer { name: "side" type: "Pooling" bottom: "data" top: "side" pooling_param { kernel_size: 2 } }\n'
SUM = 'layer { name: "sum" type: "Eltwise" bottom: "conv1" bottom: "conv2" top: "sum" }\n'
SMALL = HEAD + CONV1 + RELU1 + CONV2 + RELU2 + SUM

RESNET = build_net(load_recipe("stampede2-64n-72ep"), "train_val").SerializeToString()

examples = settings(max_examples=60, database=None, derandomize=True)


def net(text: str) -> pb.NetParameter:
    return parse_prototxt(text, pb.NetParameter)


def show(change: Change) -> str:
    note = f" ({change.note})" if change.note and change.kind != "added" else ""
    field = f"{change.field} " if change.field else ""
    return f"{change.kind} {change.layer}: {field}{change.old.text} -> {change.new.text}{note}"


def changes(old: str, new: str) -> list[str]:
    return [show(change) for change in diff_nets(net(old), net(new))]


@pytest.mark.skipif(not AUTHORS.is_dir(), reason="the published files are not beside this checkout")
def test_the_two_published_nets_differ_in_the_training_batch_only() -> None:
    old, new = (
        load_prototxt(AUTHORS / folder / "train_val.prototxt", pb.NetParameter)
        for folder in ("resnet50_custom_lr", "resnet50_448nodes")
    )
    assert [show(change) for change in diff_nets(old, new)] == [
        "changed data (TRAIN): data_param.batch_size 32 -> 16"
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_a_net_of_20_000_layers_is_compared_quickly(order: int) -> None:
    def build(name: str, outputs: int) -> pb.NetParameter:
        return pb.NetParameter(
            layer=[
                pb.LayerParameter(
                    name=f"{name}{k}",
                    type="InnerProduct",
                    bottom=[f"b{k}"],
                    top=[f"b{k + 1}"],
                    inner_product_param=pb.InnerProductParameter(num_output=outputs if k % 100 == 0 else 7),
                )
                for k in range(20_000)[::order]
            ]
        )

    kinds = Counter(change.kind for change in diff_nets(build("a", 8), build("b", 9)))
    assert kinds == {"renamed": 20_000, "changed": 200}


def test_a_reversed_net_of_20_000_layers_is_compared_quickly() -> None:
    layers = [pb.LayerParameter(name=f"a{k}", type="ReLU") for k in range(20_000)]
    found = diff_nets(pb.NetParameter(layer=layers), pb.NetParameter(layer=layers[::-1]))
    assert {change.kind for change in found} == {"moved"}
    assert len(found) == 19_999


def test_layers_with_no_name_or_the_same_name_are_matched_by_their_content() -> None:
    for name in ("", 'name: "x" '):
        row = [
            f'layer {{ {name}type: "{kind}" bottom: "a" top: "a" }}\n' for kind in ("ReLU", "TanH", "BNLL")
        ]
        first = f'layer {{ {name}type: "Sigmoid" bottom: "a" top: "a" }}\n'
        [line] = changes("".join(row), first + "".join(row))
        assert line.startswith("added")
        [line] = changes("".join(row), row[0] + row[2])
        assert line.startswith("removed")
        found = changes("".join(row), "".join(row).replace("TanH", "AbsVal"))
        assert len(found) == (1 if name else 2)  # another type makes another layer, unless the name says no


def test_layers_with_the_same_name_are_distinguished_by_phase() -> None:
    assert changes(SMALL, SMALL.replace("batch_size: 50", "batch_size: 25")) == [
        "changed data (TEST): data_param.batch_size 50 -> 25"
    ]
    assert changes(SMALL, SMALL.replace("phase: TEST", 'phase: TEST stage: "late"')) == [
        'changed data (TEST): include[0].stage not set -> "late"'
    ]


def test_data_layers_in_another_order_have_only_moved() -> None:
    _, train, test, rest = SMALL.split("layer", 3)
    assert changes(SMALL, "layer".join(['name: "small"\n', test, train, rest])) in (
        [
            "moved data (TEST): after data (TRAIN) -> first (no connection changes)",
        ],
        [
            "moved data (TRAIN): first -> after data (TEST) (no connection changes)",
        ],
    )


def test_a_layer_left_out_of_a_phase_carries_the_other_one_s_name() -> None:
    layer = pb.LayerParameter(name="loss", exclude=[pb.NetStateRule(phase=pb.TRAIN)])
    assert title_of(layer) == "loss (TEST)"
    assert title_of(pb.LayerParameter(name="loss", include=[pb.NetStateRule(stage=["x"])])) == "loss"
    assert title_of(pb.LayerParameter(name="a\nb")) == '"a\\nb"'


def test_a_renamed_layer_is_one_change_with_the_blob_that_follows_it() -> None:
    assert changes(SMALL, SMALL.replace('"conv1"', '"stem"')) == [
        "renamed stem: conv1 -> stem (its blob too)"
    ]


def test_a_layer_renamed_without_its_blob_is_one_change() -> None:
    assert changes(SMALL, SMALL.replace('name: "conv1"', 'name: "stem"')) == ["renamed stem: conv1 -> stem"]


def test_a_blob_renamed_without_its_layer_is_one_change_where_it_is_made() -> None:
    new = SMALL.replace('top: "conv1"', 'top: "stem"').replace('bottom: "conv1"', 'bottom: "stem"')
    assert changes(SMALL, new) == ['changed conv1: top "conv1" -> "stem" (and where 2 layers read it)']


def test_a_blob_that_two_phases_make_is_renamed_once() -> None:
    new = SMALL.replace('top: "data"', 'top: "image"').replace('bottom: "data"', 'bottom: "image"')
    assert changes(SMALL, new) == [
        'changed data (TRAIN): top[0] "data" -> "image" (and where 1 layer reads it)'
    ]


def test_a_renamed_layer_that_was_edited_too_shows_both() -> None:
    new = SMALL.replace(CONV2, CONV2.replace("pad: 1", "pad: 0")).replace('"conv2"', '"late"')
    assert changes(SMALL, new) == [
        "renamed late: conv2 -> late (its blob too)",
        "changed late: convolution_param.pad 1 -> 0 (default)",
    ]


def test_every_layer_renamed_is_nothing_but_renames() -> None:
    new = SMALL
    for name in ("data", "label", "conv1", "conv2", "relu1", "relu2", "sum"):
        new = new.replace(f'"{name}"', f'"net/{name}"')
    found = diff_nets(net(SMALL), net(new))
    assert [change.kind for change in found] == ["renamed"] * len(net(SMALL).layer)


def test_one_reader_wired_to_another_blob_is_one_change() -> None:
    new = SMALL.replace('bottom: "conv1" bottom: "conv2"', 'bottom: "data" bottom: "conv2"')
    assert changes(SMALL, new) == ['changed sum: bottom[0] "conv1" -> "data"']


def test_a_top_renamed_while_its_readers_stay_is_not_a_rename_of_the_blob() -> None:
    new = SMALL.replace('bottom: "data" top: "conv1"', 'bottom: "data" top: "lost"')
    assert changes(SMALL, new) == ['changed conv1: top "conv1" -> "lost"']


def test_added_and_removed_layers_are_reported_with_their_position() -> None:
    assert changes(SMALL, SMALL.replace(RELU1, RELU1 + SIDE)) == ["added side: not set -> after relu1"]
    assert changes(SMALL, SMALL.replace(RELU2, "")) == ["removed relu2: after conv2 -> not set (ReLU)"]


def test_a_move_is_noted_unless_it_changes_the_wiring() -> None:
    old = SMALL + SIDE
    assert changes(old, SMALL.replace(CONV1, SIDE + CONV1)) == [
        "moved side: after sum -> after data (TEST) (no connection changes)"
    ]
    moved = HEAD + CONV1 + CONV2 + RELU2 + RELU1 + SUM
    assert changes(SMALL, moved) == ["moved relu1: after conv1 -> after relu2"]


def test_a_layer_renamed_and_moved_is_both() -> None:
    new = SMALL.replace(CONV1, SIDE.replace('name: "side"', 'name: "aside"') + CONV1)
    assert changes(SMALL + SIDE, new) == [
        "renamed aside: side -> aside",
        "moved aside: after sum -> after data (TEST) (no connection changes)",
    ]


def test_a_layer_of_another_kind_in_the_same_place_is_not_a_rename() -> None:
    other = 'layer { name: "drop" type: "Dropout" bottom: "conv2" top: "conv2" }\n'
    assert changes(SMALL, SMALL.replace(RELU2, other)) == [
        "removed relu2: after conv2 -> not set (ReLU)",
        "added drop: not set -> after conv2",
    ]


def test_two_layers_of_one_name_in_one_phase_pair_in_order() -> None:
    old = SMALL + RELU2
    assert changes(old, old) == []
    assert changes(old, SMALL) == ["removed relu2: after sum -> not set (ReLU)"]


def test_inputs_are_reported_once_and_not_where_they_are_read() -> None:
    old = 'input: "data" input_dim: [1, 3, 8, 8]\n' + CONV1
    assert changes(old, old.replace('"data"', '"image"')) == ['changed : input "data" -> "image"']


def test_nets_without_layers_or_with_unnamed_ones_compare() -> None:
    assert changes('name: "a"', 'name: "b"') == ['changed : name "a" -> "b"']
    assert changes("layer { }", "layer { } layer { }") == ['added "": not set -> after ""']


EDITS = ("drop", "duplicate", "swap", "rename", "type", "top", "bottom", "pad", "phase")


def edit(draw: st.DrawFn, target: pb.NetParameter) -> None:
    layers = list(target.layer)
    if not layers:
        return
    k = draw(st.integers(0, len(layers) - 1))
    kind = draw(st.sampled_from(EDITS))
    word = draw(st.sampled_from(["conv1", "x", "y", "data"]))
    if kind == "drop":
        del layers[k]
    elif kind == "duplicate":
        layers.insert(draw(st.integers(0, len(layers))), layers[k])
    elif kind == "swap":
        layers.insert(draw(st.integers(0, len(layers) - 1)), layers.pop(k))
    elif kind == "rename":
        layers[k].name = word
    elif kind == "type":
        layers[k].type = draw(st.sampled_from(["ReLU", "Pooling"]))
    elif kind == "pad":
        layers[k].convolution_param.pad[:] = [draw(st.integers(0, 3))]
    elif kind == "phase":
        layers[k].include.add(phase=pb.TEST)
    else:
        names = getattr(layers[k], kind)
        names[: draw(st.integers(0, 1))] = [word]
    copies = [pb.LayerParameter.FromString(layer.SerializeToString()) for layer in layers]
    del target.layer[:]
    target.layer.extend(copies)


@st.composite
def pairs_of_nets(draw: st.DrawFn) -> tuple[pb.NetParameter, pb.NetParameter]:
    old, new = net(SMALL + SIDE), net(SMALL + SIDE)
    for target in (old, new):
        for _ in range(draw(st.integers(0, 3))):
            edit(draw, target)
    return old, new


@examples
@given(pairs_of_nets())
def test_nothing_is_found_exactly_where_the_nets_are_equal(
    nets: tuple[pb.NetParameter, pb.NetParameter],
) -> None:
    old, new = nets
    assert (diff_nets(old, new) == []) == (old == new)
    assert (diff_nets(new, old) == []) == (old == new)
    assert diff_nets(old, old) == []


@examples
@given(pairs_of_nets())
def test_a_layer_is_paired_with_one_layer_at_most(nets: tuple[pb.NetParameter, pb.NetParameter]) -> None:
    matching = match_layers(list(nets[0].layer), list(nets[1].layer))
    assert len(set(matching.pairs.values())) == len(matching.pairs)
    assert matching.in_place <= matching.pairs.keys()
    stays = sorted(matching.in_place)
    assert [matching.pairs[i] for i in stays] == sorted(matching.pairs[i] for i in stays)
    found = diff_nets(*nets)
    added = sum(change.kind == "added" for change in found)
    removed = sum(change.kind == "removed" for change in found)
    assert len(nets[1].layer) - added == len(nets[0].layer) - removed == len(matching.pairs)


@examples
@given(st.data())
def test_a_single_edit_of_resnet_is_that_one_line(data: st.DataObject) -> None:
    old, new = pb.NetParameter.FromString(RESNET), pb.NetParameter.FromString(RESNET)
    convolutions = [k for k, layer in enumerate(new.layer) if layer.type == "Convolution"]
    layer = new.layer[data.draw(st.sampled_from(convolutions))]
    layer.convolution_param.num_output += 1
    [change] = diff_nets(old, new)
    assert (change.layer, change.field) == (layer.name, "convolution_param.num_output")


def long_net(layers: int, prefix: str, pad: int) -> pb.NetParameter:
    result = pb.NetParameter()
    for k in range(layers):
        layer = result.layer.add(name=f"{prefix}{k}", type=("Convolution", "ReLU", "Pooling")[k % 3])
        layer.bottom.extend([f"{prefix}{k - 1}"] if k else [])
        layer.top.append(f"{prefix}{k}")
        if k % 3 == 0:
            layer.convolution_param.num_output = 8
            layer.convolution_param.pad.append(pad)
    return result


def test_three_thousand_layers_renamed_are_as_many_renames() -> None:
    found = diff_nets(long_net(3000, "a", 1), long_net(3000, "b", 1))
    assert [change.kind for change in found] == ["renamed"] * 3000


def test_long_nets_of_different_length_align_around_what_was_taken_out() -> None:
    old, new = long_net(3000, "a", 1), long_net(3000, "a", 1)
    del new.layer[1000:1600]
    assert [change.kind for change in diff_nets(old, new)] == ["removed"] * 600


def siamese(*names: tuple[str, str]) -> str:
    return "".join(
        f'layer {{ name: "{layer}" type: "InnerProduct" bottom: "data" top: "{layer}"'
        f" param {{ {name} lr_mult: 1 }} inner_product_param {{ num_output: 2 }} }}\n"
        for layer, name in names
    )


SHARED = siamese(("ip", 'name: "w"'), ("ip_p", 'name: "w"'), ("ip_n", 'name: "w"'))


def test_sharing_names_that_change_alike_are_not_a_difference() -> None:
    assert changes(SHARED, SHARED.replace('"w"', '"weights"')) == []


def test_an_unshared_param_name_is_not_reported() -> None:
    assert changes(siamese(("ip", 'name: "w"')), siamese(("ip", ""))) == []
    assert changes(siamese(("ip", 'name: "w"')), siamese(("ip", 'name: "v"'))) == []


def test_a_param_name_mistyped_in_one_branch_is_reported_as_no_longer_shared() -> None:
    broken = siamese(("ip", 'name: "w"'), ("ip_p", 'name: "w_"'), ("ip_n", 'name: "w"'))
    assert changes(SHARED, broken) == [
        'changed ip_p: param[0].name "w" -> "w_" (no longer shared with ip, ip_n)'
    ]
    assert changes(broken, SHARED) == ['changed ip_p: param[0].name "w_" -> "w" (now shared with ip, ip_n)']


def test_a_removed_sharing_is_reported_with_whom() -> None:
    removed = siamese(("ip", ""), ("ip_p", ""), ("ip_n", ""))
    assert changes(SHARED, removed) == [
        'changed ip: param[0] { name: "w" lr_mult: 1 } -> not set (no longer shared with ip_p, ip_n)',
        'changed ip_p: param[0] { name: "w" lr_mult: 1 } -> not set (no longer shared with ip, ip_n)',
        'changed ip_n: param[0] { name: "w" lr_mult: 1 } -> not set (no longer shared with ip, ip_p)',
    ]


def test_weights_shared_with_another_layer_are_reported_with_both_partners() -> None:
    old = siamese(("a", 'name: "x"'), ("b", 'name: "x"'), ("c", 'name: "y"'), ("d", 'name: "y"'))
    new = siamese(("a", 'name: "x"'), ("b", 'name: "y"'), ("c", 'name: "y"'), ("d", 'name: "y"'))
    assert changes(old, new) == [
        'changed b: param[0].name "x" -> "y" (no longer shared with a; now shared with c, d)'
    ]


def test_sharing_names_swapped_between_two_pairs_are_not_a_difference() -> None:
    old = siamese(("a", 'name: "x"'), ("b", 'name: "x"'), ("c", 'name: "y"'), ("d", 'name: "y"'))
    new = siamese(("a", 'name: "y"'), ("b", 'name: "y"'), ("c", 'name: "x"'), ("d", 'name: "x"'))
    assert changes(old, new) == []


def test_differently_spelled_kernels_and_rules_are_not_a_difference() -> None:
    sides = "kernel_h: 3 kernel_w: 3 pad_h: 1 pad_w: 1"
    new = SMALL.replace("kernel_size: 3 pad: 1", sides).replace(
        "include { phase: TEST }", "exclude { phase: TRAIN }"
    )
    assert changes(SMALL, new) == changes(new, SMALL) == []


def test_ten_thousand_layers_sharing_one_weight_are_compared_quickly() -> None:
    old = siamese(*((f"ip{k}", 'name: "w"') for k in range(10_000)))
    assert changes(old, old.replace('"w"', '"v"')) == []
    apart = old.replace('"w"', '"v"', 1)
    note = "no longer shared with ip1, ip2, ip3, 9996 more"
    assert changes(old, apart) == [f'changed ip0: param[0].name "w" -> "v" ({note})']
