"""Nets of the user's own: only their data layers change, and any mistake in them is one line."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.caffe.upgrade import V1_TYPES
from caffe_recipes.errors import CaffeRecipesError, PrototxtError, RecipeError
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.render.own_code import allowing_code
from caffe_recipes.render.prototxts import build_net

MakeRecipe = Callable[..., Recipe]

REST = """
layer {
  name: "c" type: "Convolution" bottom: "data" top: "c" convolution_param { num_output: 4 kernel_size: 3 }
}
layer { name: "odd" type: "MyOwnLayer" bottom: "c" top: "odd" }
layer { name: "ip" type: "InnerProduct" bottom: "c" top: "ip" inner_product_param { num_output: 10 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
DATA = """
layer { name: "mnist" type: "Data" top: "data" top: "label" include { phase: TRAIN } }
layer { name: "mnist" type: "Data" top: "data" top: "label" include { phase: TEST } }
"""
FUNCTION = "from caffe_recipes.caffe import layers as L\ndef build(net):\n"


@pytest.fixture(autouse=True)
def _allowed() -> Iterator[None]:
    with allowing_code("once"):
        yield


def with_net(make_recipe: MakeRecipe, **net: str) -> Recipe:
    def change(raw: dict[str, Any]) -> None:
        raw["net"] = {"name": "mine", "classes": 10, **net}

    return make_recipe(change)


def with_prototxt(make_recipe: MakeRecipe, folder: Path, text: str) -> Recipe:
    (folder / "mine.prototxt").write_text(text)
    return with_net(make_recipe, prototxt="mine.prototxt")


def with_function(make_recipe: MakeRecipe, folder: Path, text: str, name: str = "my_nets:build") -> Recipe:
    (folder / "my_nets.py").write_text(textwrap.dedent(text))
    return with_net(make_recipe, function=name)


def test_a_prototxt_keeps_all_but_its_data_layers(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    before = '\nlayer { name: "dummy" type: "DummyData" top: "dummy" dummy_data_param { shape { dim: 1 } } }'
    recipe = with_prototxt(make_recipe, tmp_path, 'name: "mine" force_backward: true' + before + DATA + REST)
    net = build_net(recipe, "train_val")
    assert [layer.name for layer in net.layer] == ["dummy", "mnist", "mnist", "c", "odd", "ip", "loss"]
    assert [layer.data_param.source for layer in net.layer[1:3]] == [
        "tmp/digits_train_lmdb",
        "examples/digits/digits_val_lmdb",
    ]
    given = parse_prototxt('name: "mine" force_backward: true' + before + REST, pb.NetParameter)
    del net.layer[1:3]
    assert net == given


def test_a_test_prototxt_is_joined_to_the_net_for_train(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    top5 = 'layer { name: "top5" type: "Accuracy" bottom: "ip" bottom: "label" top: "top5" }'
    (tmp_path / "train.prototxt").write_text(DATA + REST)
    (tmp_path / "val.prototxt").write_text(DATA + REST + top5)
    net = build_net(
        with_net(make_recipe, prototxt="train.prototxt", test_prototxt="val.prototxt"), "train_val"
    )
    assert [layer.name for layer in net.layer] == ["mnist", "mnist", "c", "odd", "ip", "loss", "top5"]
    assert [rule.phase for rule in net.layer[6].include] == [pb.TEST]


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [("test_prototxt", "val.prototxt", "the net for TRAIN"), ("dialect", "bvlc", "the net of that Caffe")],
)
def test_a_key_that_needs_a_prototxt_is_refused_without(
    make_recipe: MakeRecipe, key: str, value: str, what: str
) -> None:
    with pytest.raises(RecipeError, match=f"{key} needs prototxt, {what}"):
        with_net(make_recipe, builder="resnet50", **{key: value})


def test_a_prototxt_that_is_a_solver_is_refused(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    with pytest.raises(PrototxtError, match=r"mine.prototxt: is not a net; name the prototxt of a net"):
        build_net(with_prototxt(make_recipe, tmp_path, "base_lr: 1 max_iter: 1"), "train_val")


def test_data_layers_come_first_in_a_net_that_has_none(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    net = build_net(with_prototxt(make_recipe, tmp_path, REST), "train_val_noaug")
    assert [layer.name for layer in net.layer] == ["data", "c", "odd", "ip", "loss"]


def test_data_layers_take_over_the_tops_of_those_they_replace(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    renamed = (DATA + REST).replace('"data"', '"pixels"').replace('"label"', '"digit"')
    net = build_net(with_prototxt(make_recipe, tmp_path, renamed), "train_val")
    assert list(net.layer[0].top) == ["pixels", "digit"]


@pytest.mark.parametrize("returned", ["L.net('m', *layers)", "str(L.net('m', *layers))"])
def test_a_function_beside_the_recipe_is_called_with_its_net(
    make_recipe: MakeRecipe, tmp_path: Path, returned: str
) -> None:
    recipe = with_function(
        make_recipe,
        tmp_path,
        f"{FUNCTION}    layers = [L.inner_product('ip', 'data', num_output=net.classes),"
        f" L.softmax_with_loss('loss', 'ip', 'label')]\n    return {returned}\n",
    )
    net = build_net(recipe, "train_val")
    assert [layer.name for layer in net.layer] == ["data", "data", "ip", "loss"]
    assert {path.name for path in tmp_path.iterdir()} == {"my_nets.py"}


def test_modules_of_one_name_in_two_folders_are_two_modules(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    text = FUNCTION + "    return L.net('{}', L.inner_product('ip', 'data', num_output=10))\n"
    for name in ("first", "second"):
        recipe = with_function(make_recipe, tmp_path, text.format(name))
        assert build_net(recipe, "train_val").name == name


def test_a_module_that_cannot_be_read_is_not_called_wrong(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    (tmp_path / "my_nets.py").symlink_to("/proc/self/mem")  # a file that not even root reads from its start
    recipe = with_net(make_recipe, function="my_nets:build")
    with pytest.raises(
        RecipeError, match=r"net.function my_nets:build: my_nets.py cannot be read: .*; have its disk checked"
    ):
        build_net(recipe, "train_val")


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", "my_nests:build", "no module 'my_nests' next to the recipe; for an installed module, write"),
        ("", "my_nets.deep:build", "no module 'my_nets.deep'"),
        (
            "import nowhere_to_be_found",
            "my_nets:build",
            "ModuleNotFoundError: No module named 'nowhere_to_be_found'",
        ),
        ("", "my_nets:build", "module 'my_nets' has no function 'build'; check the name"),
        ("build = 3", "my_nets:build", "module 'my_nets' has no function 'build'"),
        ("def build(net)\n  pass", "my_nets:build", "my_nets.py:1: SyntaxError: "),
        (
            "def build(net):\n  return 1 / 0",
            "my_nets:build",
            "my_nets.py:2: ZeroDivisionError: division by zero",
        ),
        (
            "def build():\n  return 1",
            "my_nets:build",
            "build: TypeError: build() takes 0 positional arguments",
        ),
        ("import sys\nsys.exit(0)", "my_nets:build", "my_nets.py:2: SystemExit: 0"),
        (
            "def build(net):\n  return None",
            "my_nets:build",
            "returned builtins.NoneType; return a NetParameter",
        ),
        ("def build(net):\n  return 'layr { }'", "my_nets:build", "NetParameter has no field 'layr'"),
        ("def build(net):\n  return b'\\xff'", "my_nets:build", "returned builtins.bytes"),
        (
            FUNCTION + "    return L.net('m', L.relu('r', 'data', slop=1))",
            "my_nets:build",
            "my_nets.py:3: layer 'r': ReLU has no field 'slop'",
        ),
    ],
)
def test_a_mistake_in_a_function_is_one_line(
    make_recipe: MakeRecipe, tmp_path: Path, text: str, name: str, message: str
) -> None:
    with pytest.raises(CaffeRecipesError) as caught:
        build_net(with_function(make_recipe, tmp_path, text, name), "train_val")
    assert message in str(caught.value)
    assert "net.function my_ne" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_missing_prototxt_is_named(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe = with_net(make_recipe, prototxt="nowhere.prototxt")
    with pytest.raises(PrototxtError, match=r"nowhere\.prototxt: cannot be read"):
        build_net(recipe, "train_val")


def test_data_layers_keep_the_names_of_those_of_their_phase(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    own = DATA.replace("mnist", "digits", 1).replace("mnist", "digits_test")
    net = build_net(with_prototxt(make_recipe, tmp_path, own + REST), "train_val")
    assert [layer.name for layer in net.layer[:2]] == ["digits", "digits_test"]


@pytest.mark.parametrize("kind", ["ImageData", "HDF5Data"])
def test_a_net_that_reads_images_from_elsewhere_is_refused_in_one_line(
    kind: str, make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    own = DATA.replace('"Data"', f'"{kind}"')
    with pytest.raises(RecipeError) as caught:
        build_net(with_prototxt(make_recipe, tmp_path, own + REST), "train_val")
    what = f"layer 'mnist' reads {kind}, which is not an LMDB"
    hint = "to keep it, write `data: as-in-net` and `images: N`"
    assert str(caught.value) == f"{tmp_path}/mine.prototxt:2:1: {what}; {hint}"


def test_a_net_that_a_program_feeds_is_refused_in_one_line(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    own = DATA.replace('"Data"', '"MemoryData"')
    with pytest.raises(RecipeError) as caught:
        build_net(with_prototxt(make_recipe, tmp_path, own + REST), "train_val")
    what = "layer 'mnist' is fed by a program (MemoryData), which no recipe starts"
    assert str(caught.value).startswith(f"{tmp_path}/mine.prototxt:2:1: {what}; read the data from")


def test_a_net_of_data_layers_alone_is_refused(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"mine\.prototxt: has only Data layers; give a complete net"):
        build_net(with_prototxt(make_recipe, tmp_path, DATA), "train_val")


def test_layers_of_the_old_format_are_upgraded_as_caffe_does(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    rest = "".join(line for line in REST.splitlines(True) if "MyOwn" not in line)  # not a type of old nets
    old = (DATA + rest).replace("layer {", "layers {")
    for word, current in V1_TYPES.items():
        old = old.replace(f'type: "{current}"', f"type: {word}")
    built = [
        build_net(with_prototxt(make_recipe, tmp_path, text), "train_val") for text in (old, DATA + rest)
    ]
    assert built[0] == built[1]
    both = with_prototxt(make_recipe, tmp_path, old + REST)
    with pytest.raises(PrototxtError, match=r"mine\.prototxt:\d+:\d+: the net has both `layers` and `layer`"):
        build_net(both, "train_val")


def test_a_bottom_that_nothing_makes_is_named(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe = with_prototxt(make_recipe, tmp_path, REST.replace('bottom: "label"', 'bottom: "labels"'))
    with pytest.raises(
        PrototxtError,
        match=r"mine\.prototxt:7:1: .* reads blob 'labels', which no layer above it produces; .* 'label'",
    ):
        build_net(recipe, "train_val")


def test_other_outputs_than_classes_are_refused_naming_both(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe = with_prototxt(make_recipe, tmp_path, REST.replace("num_output: 10", "num_output: 12"))
    with pytest.raises(
        RecipeError, match=r"mine\.prototxt:6:85: layer 'ip' has num_output 12, but net\.classes is 10"
    ):
        build_net(recipe, "train_val")


def in_net(raw: dict[str, Any]) -> None:
    raw |= {"net": {"name": "mine", "classes": 10, "prototxt": "mine.prototxt"}}
    raw |= {"images": 1438, "test_images": 359, "data": "as-in-net", "nets": {"train_val": {}}}
    for phase in raw["phases"]:
        phase["net"] = "train_val"
    raw["evaluation"]["net"] = "train_val"


def test_with_data_as_in_the_net_all_of_it_stays(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    reads = DATA.replace('"Data"', '"ImageData" image_data_param { source: "list.txt" batch_size: 32 }')
    reads = (
        reads.replace("include { phase: TEST }", "exclude { phase: TRAIN }")
        .replace("32", "16")
        .replace("16", "32", 1)
    )
    (tmp_path / "mine.prototxt").write_text(reads + REST)
    recipe = make_recipe(in_net)
    assert build_net(recipe, "train_val") == parse_prototxt(reads + REST, pb.NetParameter)


DUMMY = 'layer { name: "d" type: "DummyData" top: "data" dummy_data_param { shape { dim: 8 dim: 1 } } }'


@pytest.mark.parametrize(
    ("reads", "what"),
    [
        (
            'layer { name: "i" type: "ImageData" top: "data" image_data_param { batch_size: 16 } }',
            r"mine\.prototxt:1:1: layer 'i' reads batches of 16, but cluster.batch_per_rank is 32; make",
        ),
        (DUMMY, "layer 'd' reads batches of 8, but cluster.batch_per_rank is 32; make them equal"),
        (
            'layer { name: "e" type: "Input" top: "data" input_param { shape { dim: 32 } } }',
            r"layer 'e' \(Input\) is filled by nothing in training; replace it by a data layer",
        ),
        ('input: "data"', r'mine\.prototxt:1:1: input: "data" is filled by nothing in training'),
    ],
)
def test_a_net_whose_own_data_do_not_fit_is_refused(
    make_recipe: MakeRecipe, tmp_path: Path, reads: str, what: str
) -> None:
    (tmp_path / "mine.prototxt").write_text(reads + REST)
    with pytest.raises(RecipeError, match=what):
        build_net(make_recipe(in_net), "train_val")
