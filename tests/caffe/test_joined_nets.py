"""A training net and a test net become one, from which Caffe filters each of the two again."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.joined_nets import join_documents, join_file_names
from caffe_recipes.caffe.prototxt import parse_document
from caffe_recipes.caffe.shapes import select_layers
from caffe_recipes.errors import PrototxtError

SHARED = 'layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" }\n'
TRAIN = (
    'name: "t" layer { name: "d" type: "Data" top: "data" data_param { source: "a" } }\n'
    f'{SHARED}layer {{ name: "drop" type: "Dropout" bottom: "fc" top: "fc" }}\n'
    'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" include { phase: TRAIN } }\n'
)
TEST = (
    'name: "v" layer { name: "d" type: "Data" top: "data" data_param { source: "b" } }\n'
    f"{SHARED}"
    'layer { name: "top5" type: "Accuracy" bottom: "fc" exclude { phase: TRAIN } }\n'
    'layer { name: "unused" type: "Silence" bottom: "fc" include { phase: TRAIN } }\n'
)


def join(train: str, test: str) -> pb.NetParameter:
    documents = (parse_document(text, "a.prototxt", pb.NetParameter) for text in (train, test))
    return join_documents(*documents).message


def test_layers_of_both_nets_stand_once_and_all_others_get_an_include() -> None:
    joined = join(TRAIN, TEST)
    assert joined.name == "t"
    assert [(layer.name, [rule.phase for rule in layer.include]) for layer in joined.layer] == [
        ("d", [pb.TRAIN]),
        ("d", [pb.TEST]),
        ("fc", []),
        ("drop", [pb.TRAIN]),
        ("loss", [pb.TRAIN]),
        ("top5", [pb.TEST]),
    ]
    assert [layer.name for layer in select_layers(joined, pb.TEST)] == ["d", "fc", "top5"]


def test_a_layer_that_moves_or_differs_stands_twice_and_both_orders_are_kept() -> None:
    def names(*layers: str) -> pb.NetParameter:
        return pb.NetParameter(layer=[{"name": name[0], "type": name} for name in layers])

    train, test = names("a", "b1", "c", "d"), names("c", "a", "b2", "d")
    joined = join(str(train), str(test))
    for phase, given in ((pb.TRAIN, train), (pb.TEST, test)):
        assert [layer.type for layer in select_layers(joined, phase)] == [layer.type for layer in given.layer]
    assert len([layer for layer in joined.layer if not layer.include]) == 2


def test_equal_data_layers_stand_once_for_each_phase_as_in_a_recipe() -> None:
    joined = join(TRAIN, TRAIN)
    assert [(layer.name, len(layer.include)) for layer in joined.layer[:3]] == [("d", 1), ("d", 1), ("fc", 0)]


def test_nets_that_differ_elsewhere_are_refused_with_the_field() -> None:
    train, test = (
        parse_document(TRAIN, "a", pb.NetParameter),
        parse_document("force_backward: true\n" + TEST, "b", pb.NetParameter),
    )
    with pytest.raises(PrototxtError, match=r"^b:1:1: force_backward: differs between the training net"):
        join_documents(train, test)


@pytest.mark.parametrize("rule", ['include { stage: "x" }', "exclude { phase: TEST min_level: 1 }"])
def test_rules_by_stage_or_level_are_refused_with_the_layer(rule: str) -> None:
    odd = parse_document(f'layer {{ name: "odd"\n {rule} }}', "a", pb.NetParameter)
    plain = parse_document(SHARED, "b", pb.NetParameter)
    for pair in ((odd, plain), (plain, odd)):
        with pytest.raises(PrototxtError, match=r"^a:2:2: layer 'odd' has (stage|min_level) in"):
            join_documents(*pair)


def test_each_field_of_a_joined_net_has_its_place_in_its_own_file() -> None:
    joined = join_documents(
        parse_document(TRAIN, "x/train.prototxt", pb.NetParameter),
        parse_document(TEST, "x/val.prototxt", pb.NetParameter),
    )
    assert joined.where("layer[0].data_param") == "x/train.prototxt:1:54"
    assert joined.where("layer[1].data_param") == "x/val.prototxt:1:54"
    assert joined.where("layer[5].type") == "x/val.prototxt:3:22"
    assert joined.where() == "x/train.prototxt"
    assert Path(joined.path) == Path("x/train_val.prototxt")


@pytest.mark.parametrize(
    ("train", "test", "joined"),
    [
        ("train.prototxt", "test.prototxt", "train_test.prototxt"),
        ("lenet_train.prototxt", "lenet_test.prototxt", "lenet_train_test.prototxt"),
        ("a_b_train.prototxt", "a_c_test.prototxt", "a_b_train_c_test.prototxt"),
        ("net.prototxt", "net.prototxt", "net_net.prototxt"),
        ("a_net.prototxt", "a_.prototxt", "a_net_a_.prototxt"),
        ("a.prototxt", "a_b.prototxt", "a_a_b.prototxt"),
        ("x", "y.pt", "x_y.prototxt"),
    ],
)
def test_a_joined_file_has_both_names_and_is_neither(train: str, test: str, joined: str) -> None:
    assert join_file_names(train, test) == joined
