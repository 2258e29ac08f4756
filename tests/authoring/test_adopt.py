"""A folder of solvers and nets becomes a recipe that regenerates them; fields that cannot are named."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from caffe_recipes.authoring.adopt import adopt
from caffe_recipes.authoring.adopt_cluster import AdoptOptions
from caffe_recipes.authoring.recipe_yaml import NewRecipe
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.caffe.prototxt import load_prototxt, parse_prototxt, render_prototxt
from caffe_recipes.errors import CaffeRecipesError
from caffe_recipes.recipe.model import Phase
from caffe_recipes.recipe.source import load_recipe, parse_recipe
from caffe_recipes.render.dialect import translate_whole
from caffe_recipes.render.recipe_files import generate

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT.parent / "shared" / "reference" / "surfsara"
COMMITTED = ["stampede2-64n-72ep", "stampede2-448n-90ep", "digits-local"]


# A file, the text replaced in it, the new text, and the expected message.
REFUSED = [
    (
        "solver_cyc1",
        "display",
        "debug_info: true display",
        r"solver_cyc1.prototxt:\d+:1: debug_info: recipes do not support",
    ),
    (
        "solver_cyc1",
        "display: 20",
        "type: 'Sgd'",
        r"solver_cyc1.prototxt:\d+: type: must be 'SGD'",
    ),
    (
        "solver_cyc1",
        "base_lr: 0.064",
        "",
        "solver_cyc1.prototxt: base_lr: is missing",
    ),
    (
        "solver_cyc1",
        "lr_iter: 540",
        "",
        "lr_policy poly_cyc needs lr_iter",
    ),
    (
        "solver_cyc1",
        'net: "models/small/train_val.prototxt"',
        'train_net: "a"',
        "net: a not found, neither in the current folder",
    ),
    (
        "solver_cyc1",
        "models/small/train_val",
        "models/small/none",
        "none.prototxt not found, neither in the current folder nor next",
    ),
    (
        "solver_cyc1",
        "max_iter",
        "weights: 'w' max_iter",
        r"solver_cyc1.prototxt:\d+:1: cyc1 starts from w, which is not a .caffemodel",
    ),
    (
        "solver_cyc1",
        "max_iter",
        "weights: 'a.caffemodel' weights: 'b.caffemodel' max_iter",
        r"solver_cyc1.prototxt:\d+:25: weights: is given 2 times, but a phase starts from one file; keep",
    ),
    (
        "solver_cyc1",
        "max_iter",
        "weights: 'a.caffemodel,b.caffemodel' max_iter",
        r"solver_cyc1.prototxt:\d+:1: cyc1 starts from 2 files, a.caffemodel,b.caffemodel, but a phase",
    ),
    (
        "solver_cyc1",
        "max_iter",
        "solver_data_type: FLOAT16 max_iter",
        r"solver_data_type of nvcaffe has no equal in a recipe; remove it; here every number is a FLOAT",
    ),
    (
        "train_val",
        "batch_size: 32",
        "batch_size: 16",
        "train_val_noaug.prototxt: .*batch_size: 32, but a recipe generates 16",
    ),
    (
        "train_val_noaug",
        "num_output: 8",
        "num_output: 9",
        r"train_val_noaug.prototxt: layer '\w+' .*num_output: 9",
    ),
    (
        "train_val_noaug",
        "mirror: false",
        "mirror: true",
        "mirror: true, but a recipe generates false",
    ),
]


def messages(folder: Path) -> dict[str, Message]:
    return {
        path.name: load_prototxt(path, pb.SolverParameter if "solver" in path.name else pb.NetParameter)
        for path in sorted(folder.glob("*.prototxt"))
    }


def generated(made: NewRecipe, home: Path) -> dict[str, Message]:
    """Generate from the YAML, as a user would."""
    files = generate(parse_recipe(made.text, "adopted.yaml", home))
    return {
        path.rpartition("/")[2]: parse_prototxt(
            text, pb.SolverParameter if "solver" in path else pb.NetParameter
        )
        for path, text in files.items()
        if path.endswith(".prototxt")
    }


def settings_of(phase: Phase) -> dict[str, Any]:
    """Return the fields of a phase in its solver file and in the script."""
    kept = phase.model_dump(exclude={"comment", "reported"})
    return kept | {"snapshot": phase.snapshot_every_iter}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A small chain of files, with a net of the user's own."""
    folder = tmp_path / "small"
    folder.mkdir()
    files = generate(load_recipe("digits-local"))
    for path, text in files.items():
        if path.endswith(".prototxt"):
            (folder / path.rpartition("/")[2]).write_text(
                re.sub(r"prototxt/digits-local/", "models/small/", text)
            )
    return folder


def change(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))


# One solver and its net, which the tests below write in other ways of the same meaning.
ALONE = """net: "net.prototxt"
test_iter: 6
test_interval: 100
base_lr: 0.05
lr_policy: "fixed"
max_iter: 400
snapshot: 100
snapshot_prefix: "s"
"""
NET = """layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { scale: 0.5 } data_param { source: "train" batch_size: 8 backend: LMDB } }
layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TEST }
  transform_param { scale: 0.5 } data_param { source: "test" batch_size: 10 backend: LMDB } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
"""
OLD_NET = (
    NET.replace("layer {", "layers {")
    .replace('"Data"', "DATA")
    .replace('"InnerProduct"', "INNER_PRODUCT")
    .replace('"SoftmaxWithLoss"', "SOFTMAX_LOSS")
)


@pytest.mark.parametrize(
    ("solver", "net", "note"),
    [
        (
            'train_net: "net.prototxt" test_net: "net.prototxt"',
            NET,
            "solver.prototxt names its net in `net`, not in train_net and test_net",
        ),
        ('net: "net.prototxt" solver_type: NESTEROV', NET, "solver.prototxt solver_type is now type"),
        (
            'net: "net.prototxt" debug_info: false test_compute_loss: false',
            NET,
            "solver.prototxt drops debug_info, which has its default",
        ),
        (
            'net: "net.prototxt" snapshot_after_train: true',
            NET,
            "solver.prototxt drops snapshot_after_train, which has its default",
        ),
        (
            'net: "net.prototxt" snapshot_after_train: false',
            NET,
            "main drops snapshot_after_train: a run needs the snapshot of the last iteration",
        ),
        ('net: "net.prototxt"', OLD_NET, "net.prototxt is in the old format: upgraded, as Caffe does"),
        (
            'net: "net.prototxt"',
            NET.replace("backend: LMDB", "backend: LMDB shuffle: false"),
            "net.prototxt is written without values that are the default: data_param.shuffle",
        ),
        (
            'net: "net.prototxt" snapshot_prefix: "out/"',
            NET,
            "solver.prototxt writes its snapshots to out/main, not to a file without a name",
        ),
        (
            'net: "net.prototxt" snapshot_prefix: ""',
            NET,
            "solver.prototxt writes its snapshots to main, not to a file without a name",
        ),
    ],
)
def test_what_means_the_same_is_adopted_and_reported(
    tmp_path: Path, solver: str, net: str, note: str
) -> None:
    text = ALONE.replace('net: "net.prototxt"', solver)
    (tmp_path / "solver.prototxt").write_text(
        text.replace('snapshot_prefix: "s"\n', "") if "snapshot_prefix" in solver else text
    )
    (tmp_path / "net.prototxt").write_text(net)
    made = adopt(tmp_path / "solver.prototxt", AdoptOptions(images=80), home=tmp_path)
    assert note in made.notes
    plain = parse_prototxt(ALONE.replace("net.proto", "./net.proto"), pb.SolverParameter)
    if "NESTEROV" in solver:
        plain.type = "Nesterov"
    if "snapshot_prefix" in solver:
        plain.snapshot_prefix = "out/main" if "out/" in solver else "main"
    files = generated(made, tmp_path)
    assert files["net.prototxt"] == parse_prototxt(NET, pb.NetParameter)
    assert [message for name, message in files.items() if name != "net.prototxt"] == [plain]


def layers_of(text: str, *phases: str) -> str:
    """Return a net's layers that are in one of the phases, without their includes."""
    layers = re.split(r"(?m)^(?=layer)", text)
    kept = [one for one in layers if "include" not in one or any(f"phase: {each}" in one for each in phases)]
    return re.sub(r"include \{ phase: \w+ \}", "", "".join(kept))


TOP5 = 'layer { name: "top5" type: "Accuracy" bottom: "fc" bottom: "label" top: "top5" }\n'


def write_two_nets(folder: Path, solver: str = ALONE) -> Path:
    nets = 'train_net: "t/a_train.prototxt" test_net: "t/a_val.prototxt"'
    (folder / "solver.prototxt").write_text(solver.replace('net: "net.prototxt"', nets))
    (folder / "a_train.prototxt").write_text('name: "A"\n' + layers_of(NET, "TRAIN"))
    (folder / "a_val.prototxt").write_text('name: "B"\n' + layers_of(NET, "TEST") + TOP5)
    return folder / "solver.prototxt"


def test_a_training_net_and_a_test_net_are_adopted_as_one(tmp_path: Path) -> None:
    made = adopt(write_two_nets(tmp_path), AdoptOptions(images=80), home=tmp_path)
    assert made.recipe.net.files == ("a_train.prototxt", "a_val.prototxt")
    both = "a_train.prototxt and a_val.prototxt"
    assert f"{both} are one net: each layer that only one has gets an include" in made.notes
    assert f"net: read from {both}; its data layers are replaced by the recipe's" in made.notes
    files = generated(made, tmp_path)
    top5 = TOP5.replace(" }\n", " include { phase: TEST } }")
    assert files["a_train_val.prototxt"] == parse_prototxt(f'name: "A" {NET} {top5}', pb.NetParameter)
    solver = ALONE.replace("net.prototxt", "t/a_train_val.prototxt")
    assert files["solver_main.prototxt"] == parse_prototxt(solver, pb.SolverParameter)


def test_a_net_that_is_only_trained_has_no_test_data(tmp_path: Path) -> None:
    text = re.sub(r"test_\w+: \d+\n", "", ALONE).replace("net:", "train_net:")
    (tmp_path / "solver.prototxt").write_text(text)
    (tmp_path / "net.prototxt").write_text(layers_of(NET, "TRAIN"))
    made = adopt(tmp_path / "solver.prototxt", AdoptOptions(images=80), home=tmp_path)
    assert not made.recipe.nets["net"].test
    what = "layer 'd' gets include { phase: TRAIN }, since nothing tests the net"
    assert f"net.prototxt: {what}" in made.notes
    again = generated(made, tmp_path)["net.prototxt"]
    assert isinstance(again, pb.NetParameter)
    assert [layer.name for layer in again.layer] == ["d", "fc", "loss"]


ONE_SOURCE = layers_of(NET, "TRAIN")
UNTESTED = re.sub(r"test_\w+: \d+\n", "", ALONE)


def test_a_net_that_only_a_later_solver_tests_has_its_data_for_both_phases(tmp_path: Path) -> None:
    for name, text in (("a", UNTESTED), ("b", ALONE)):
        (tmp_path / f"solver_{name}.prototxt").write_text(text.replace('"s"', f'"s_{name}"'))
    (tmp_path / "net.prototxt").write_text(ONE_SOURCE)
    script = tmp_path / "train.sh"
    script.write_text(
        "caffe train --solver=solver_a.prototxt\n"
        "caffe train --solver=solver_b.prototxt --weights=s_a_iter_400.caffemodel\n"
    )
    made = adopt(tmp_path, AdoptOptions(images=80), script=script, home=tmp_path)
    assert "net.prototxt: layer 'd' gets include { phase: TRAIN }, and is repeated for TEST" in made.notes
    test = NET.replace('"test" batch_size: 10', '"train" batch_size: 8')
    assert generated(made, tmp_path)["net.prototxt"] == parse_prototxt(test, pb.NetParameter)


def test_a_net_that_only_the_script_tests_is_evaluated(tmp_path: Path) -> None:
    (tmp_path / "solver.prototxt").write_text(UNTESTED)
    (tmp_path / "net.prototxt").write_text(ONE_SOURCE)
    script = tmp_path / "train.sh"
    script.write_text(
        "caffe train --solver=solver.prototxt\n"
        "caffe test --model=net.prototxt --weights=s_iter_400.caffemodel --iterations=5\n"
    )
    made = adopt(tmp_path, AdoptOptions(images=80), script=script, home=tmp_path)
    assert made.recipe.nets["net"].test
    assert made.recipe.evaluation is not None


@pytest.mark.parametrize(
    "net",
    [
        ONE_SOURCE + 'layer { name: "e" type: "Data" top: "e" data_param { source: "e" batch_size: 8 } }',
        ONE_SOURCE.replace('"Data"', '"HDF5Data" hdf5_data_param { source: "list" batch_size: 10 }'),
    ],
)
def test_kept_data_that_nothing_tests_are_no_test_data(net: str, tmp_path: Path) -> None:
    (tmp_path / "solver.prototxt").write_text(UNTESTED)
    (tmp_path / "net.prototxt").write_text(net)
    made = adopt(tmp_path, AdoptOptions(images=80), home=tmp_path)
    assert made.recipe.data.is_in_net
    assert not made.recipe.nets["net"].test
    assert made.recipe.evaluation is None
    assert "test_images" not in made.text
    assert generated(made, tmp_path)["net.prototxt"] == parse_prototxt(net, pb.NetParameter)


@pytest.mark.parametrize(
    ("nets", "dialect", "prefix", "note"),
    [
        ('train_net: "models/x/net.prototxt"', None, "models/x/main", "not to a file without a name"),
        ('net: "models/x/net.prototxt"', "bvlc", "models/x/solver", "after the solver, as BVLC's Caffe does"),
    ],
)
def test_a_missing_snapshot_prefix_is_in_the_folder_of_the_training_net(
    nets: str, dialect: str | None, prefix: str, note: str, tmp_path: Path
) -> None:
    text = UNTESTED.replace('snapshot_prefix: "s"', "").replace('net: "net.prototxt"', nets)
    (tmp_path / "solver.prototxt").write_text(text)
    (tmp_path / "net.prototxt").write_text(ONE_SOURCE)
    made = adopt(tmp_path, AdoptOptions(images=80, dialect=dialect), home=tmp_path)
    assert made.recipe.phases[0].snapshot_prefix == prefix
    assert f"solver.prototxt writes its snapshots to {prefix}, {note}" in "\n".join(made.notes)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "test_iter: 6",
            'test_iter: 6 test_net: "c"',
            r":2:14: test_net: is given 2 times, but a recipe has one test",
        ),
        (
            "test_iter: 6",
            "test_iter: 6 test_iter: 6",
            r":2:14: test_iter: is given 2 times, but a recipe has one test net",
        ),
        (
            'test_net: "t/a_val.prototxt"',
            "",
            r":2:1: test_net: is given 0 times, .*; write net: \"t/a_train.prototxt\"",
        ),
        (
            "test_iter: 6",
            "test_net_param { }",
            r":2:1: test_net_param: is a net inside the solver; write the net to a",
        ),
        (
            "t/a_val",
            "t/nowhere",
            r":1:\d+: test_net: t/nowhere.prototxt not found, neither in the current folder",
        ),
    ],
)
def test_other_nets_of_a_solver_are_refused_with_their_line(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    change(write_two_nets(tmp_path), before, after)
    with pytest.raises(CaffeRecipesError, match=rf"solver.prototxt{message}"):
        adopt(tmp_path / "solver.prototxt", AdoptOptions(images=80), home=tmp_path)


def test_two_nets_to_train_are_refused(tmp_path: Path) -> None:
    write_zoo_net(tmp_path / "zoo")
    solver = write_zoo_solver(tmp_path / "zoo", "solver", more="train_net: 'zoo/train.prototxt'")
    with pytest.raises(CaffeRecipesError, match=r"solver.prototxt:\d+:\d+: net and train_net each set a net"):
        adopt(solver, AdoptOptions(), home=tmp_path)


def test_a_difference_is_named_at_its_place_in_its_own_file(tmp_path: Path) -> None:
    solver = write_two_nets(tmp_path)
    change(tmp_path / "a_val.prototxt", '"Data"', '"MemoryData"')
    with pytest.raises(CaffeRecipesError, match=r"a_val.prototxt:2:19: layer 'd' is fed by a program"):
        adopt(solver, AdoptOptions(images=80), home=tmp_path)


# A net with what NVIDIA's examples have: its own scale in a BatchNorm, rates that it sets itself, a cache.
NVIDIA_NET = NET.replace("batch_size: 8", "batch_size: 8 cache: true shuffle: true").replace(
    'layer { name: "loss"',
    'layer { name: "bn" type: "BatchNorm" bottom: "fc" top: "bn" param { lr_mult: 1 }\n'
    '  batch_norm_param { scale_bias: true scale_filler { type: "constant" value: 1 } } }\n'
    'layer { name: "loss"',
)


def write_nvidia(folder: Path, solver: str = "", net: str = NVIDIA_NET) -> Path:
    (folder / "solver.prototxt").write_text(ALONE + solver)
    (folder / "net.prototxt").write_text(net)
    return folder / "solver.prototxt"


@pytest.mark.parametrize("dialect", ["nvcaffe", None])
def test_files_of_another_caffe_are_adopted_and_generated_for_it_again(
    tmp_path: Path, dialect: str | None
) -> None:
    solver = write_nvidia(tmp_path, "solver_data_type: FLOAT")
    made = adopt(solver, AdoptOptions(images=80, dialect=dialect), home=tmp_path)
    assert made.recipe.net.dialect == "nvcaffe"
    read_as = f"{solver}:9:1: read as a file of nvcaffe; it has solver_data_type"
    assert (read_as in made.notes) == (dialect is None)
    net = tmp_path / "net.prototxt"
    for place, note in (
        (f"{solver}:9:1", "drops SolverParameter.solver_data_type, which has its default"),
        (f"{solver}:3:1", "gets test_initialization: false, nvcaffe's default"),
        (f"{net}:2:77", "drops DataParameter.cache, which changes only speed, memory or files"),
        (f"{net}:7:20", "a Scale layer after it holds the scale and shift of a BatchNorm"),
    ):
        assert made.notes.count(f"{place}: {note}") == 1
    assert 'name: "bn_scale"' in str(generated(made, tmp_path)["net.prototxt"])
    recipe = translate_whole(parse_recipe(made.text, "adopted.yaml", tmp_path), "nvcaffe")
    texts = {path.rpartition("/")[2]: text for path, text in generate(recipe).items()}
    assert parse_lenient(texts["net.prototxt"]).message == parse_lenient(NVIDIA_NET).message
    changed = ALONE.replace('"net.proto', '"nvcaffe/net.proto').replace('"s"', '"s-nvcaffe"')
    expected = parse_lenient(f"{changed} test_initialization: false").message
    assert parse_lenient(texts["solver_main.prototxt"]).message == expected


def test_the_weights_of_a_solver_of_bvlc_are_those_of_the_phase(tmp_path: Path) -> None:
    solver = write_nvidia(tmp_path, 'weights: "vgg.caffemodel"', NET)
    made = adopt(solver, AdoptOptions(images=80), home=tmp_path)
    assert made.recipe.phases[0].weights == "vgg.caffemodel"
    assert f"{solver}:9:1: SolverParameter.weights is `weights` of the phase" in made.notes


def test_two_nets_of_another_caffe_are_generated_for_it_again(tmp_path: Path) -> None:
    solver = write_two_nets(tmp_path)
    for name in ("a_train", "a_val"):
        change(
            tmp_path / f"{name}.prototxt", "inner_product_param", "forward_type: FLOAT inner_product_param"
        )
    made = adopt(solver, AdoptOptions(images=80, dialect="nvcaffe"), home=tmp_path)
    recipe = translate_whole(parse_recipe(made.text, "adopted.yaml", tmp_path), "nvcaffe")
    (text,) = (text for path, text in generate(recipe).items() if path.endswith("a_train_val.prototxt"))
    assert text.count("forward_type: FLOAT") == 1


@pytest.mark.parametrize(
    ("solver", "before", "after", "message"),
    [
        (
            "solver_data_type: FLOAT16",
            "",
            "",
            r"solver.prototxt:9:1: SolverParameter.solver_data_type of nvcaffe has",
        ),
        ("", "cache: true", "cache: true zip: 1", r"net.prototxt:2:\d+: DataParameter has no field 'zip'"),
        ("", "lr_mult", "larc_mult", r"net.prototxt:7:69: ParamSpec has no field 'larc_mult'"),
    ],
)
def test_what_a_recipe_cannot_hold_of_another_caffe_is_named_with_its_line(
    tmp_path: Path, solver: str, before: str, after: str, message: str
) -> None:
    write_nvidia(tmp_path, solver, NVIDIA_NET.replace(before, after) if before else NVIDIA_NET)
    with pytest.raises(CaffeRecipesError, match=message) as caught:
        adopt(tmp_path / "solver.prototxt", AdoptOptions(images=80, dialect="nvcaffe"), home=tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            'type: "MemoryData"',
            r"net.prototxt:1:19: layer 'd' is fed by a program \(MemoryData\), which no recipe starts; "
            "read the data from an LMDB, HDF5 files or a list of images",
        ),
        (
            'type: "Python"',
            r"net.prototxt:1:19: layer 'd' is fed by a program \(Python\), which no recipe starts",
        ),
        (
            'type: "DummyData"',
            r"net.prototxt: has no data layer with .*; its data come from 'd' \(DummyData\); add one",
        ),
    ],
)
def test_data_that_a_program_makes_are_refused_by_name(tmp_path: Path, source: str, message: str) -> None:
    train, mark, test = NET.partition('type: "Data"')
    solver = write_nvidia(tmp_path, net=f"{train}{source}{test}")
    assert mark
    with pytest.raises(CaffeRecipesError, match=message):
        adopt(solver, AdoptOptions(images=80), home=tmp_path)


def test_a_layer_of_the_old_format_is_refused_with_its_line(tmp_path: Path) -> None:
    train, _, test = OLD_NET.partition("type: DATA")
    solver = write_nvidia(tmp_path, net=f"{train}type: MEMORY_DATA{test}")
    with pytest.raises(CaffeRecipesError, match=r"net.prototxt:1:20: layer 'd' is fed by a program"):
        adopt(solver, AdoptOptions(images=80), home=tmp_path)


def test_a_python_layer_that_computes_is_kept(tmp_path: Path) -> None:
    own = 'layer { name: "p" type: "Python" bottom: "fc" top: "p" }\n'
    made = adopt(write_nvidia(tmp_path, net=NET + own), AdoptOptions(images=80), home=tmp_path)
    assert generated(made, tmp_path)["net.prototxt"] == parse_prototxt(NET + own, pb.NetParameter)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not beside this checkout")
@pytest.mark.parametrize("name", ["resnet50_custom_lr", "resnet50_448nodes"])
def test_regenerating_the_published_folders_gives_equal_messages(name: str, tmp_path: Path) -> None:
    theirs = messages(PUBLISHED / name)
    if name == "resnet50_448nodes":
        theirs["solver_main.prototxt"] = theirs.pop("solver.prototxt")
        collapse = theirs["solver_collapse.prototxt"]
        assert isinstance(collapse, pb.SolverParameter)
        # The mistake that is corrected, and reported.
        collapse.net = collapse.net.replace("resnet_50_448nodes", "resnet50_448nodes")
    made = adopt(PUBLISHED / name, AdoptOptions(), home=tmp_path)
    assert generated(made, tmp_path) == theirs
    assert made.recipe.net.builder == "resnet50"


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not beside this checkout")
def test_a_start_within_a_phase_is_found_by_the_rates_and_a_wrong_folder_is_reported(tmp_path: Path) -> None:
    made = adopt(PUBLISHED / "resnet50_448nodes", AdoptOptions(), home=tmp_path)
    assert made.recipe.phase("collapse").weights_iter == 7638
    notes = "\n".join(made.notes)
    assert (
        "collapse starts from iteration 7638 of main (guessed: of 20 snapshots, the one whose rate" in notes
    )
    assert "solver_collapse.prototxt names its net in models/" in notes
    assert "896 ranks: from the comments: 14,336 images per iteration, 16 per rank" in notes


@pytest.mark.parametrize("name", COMMITTED)
def test_files_generated_from_a_recipe_are_adopted_as_that_recipe(name: str) -> None:
    script = ROOT / "jobs" / name / "run.sh"
    made = adopt(
        ROOT / "prototxt" / name, AdoptOptions(images=load_recipe(name).data.train.images), script=script
    )
    ours, theirs = made.recipe, load_recipe(name)
    assert list(map(settings_of, ours.phases)) == list(map(settings_of, theirs.phases))
    assert (ours.net, dict(ours.nets)) == (theirs.net, dict(theirs.nets))
    assert ours.cluster.global_batch == theirs.cluster.global_batch
    assert not [note for note in made.notes if "starts from" in note]


def test_the_order_and_the_weights_are_those_of_a_script_s_commands(small: Path) -> None:
    solver = "caffe train --solver=models/small/solver_"
    (small / "README.md").write_text(
        f"    export MLSL_NUM_SERVERS=2 MLSL_SERVER_AFFINITY=3,4\n"
        f"    mpirun -n 8 -ppn 2 -genv OMP_NUM_THREADS 7 ./bin/{solver}init.prototxt\n"
        f"    mpirun -n 8 -ppn 2 ./bin/{solver}cyc1.prototxt --weights=/a/digits_init_iter_560.caffemodel\n"
        f"    mpirun -n 8 -ppn 2 ./bin/{solver}cyc3.prototxt --weights=digits_cyc1_iter_270.caffemodel\n"
        f"    mpirun -n 8 -ppn 2 ./bin/{solver}collapse.prototxt --weights=digits_init_iter_560.caffemodel\n"
    )
    recipe = adopt(small, AdoptOptions(images=1438)).recipe
    assert [(phase.name, phase.weights) for phase in recipe.phases] == [
        ("init", None), ("cyc1", None), ("cyc3", None), ("collapse", "init"),
    ]  # fmt: skip
    cluster = recipe.cluster
    assert (cluster.nodes, cluster.ranks_per_node, cluster.omp_num_threads) == (4, 2, 7)
    assert cluster.mlsl is not None and cluster.mlsl.server_affinity == (3, 4)
    assert recipe.trainer == "./bin/caffe"
    given = adopt(small, AdoptOptions(images=1438, trainer="caffe-torch"))
    assert given.recipe.trainer == "caffe-torch"
    assert "# as given\ntrainer: caffe-torch\n" in given.text


@pytest.mark.parametrize("servers", [0, 2])
def test_servers_are_counted_where_no_cores_are_named(small: Path, servers: int) -> None:
    script = small / "README.md"
    script.write_text(
        f"    export MLSL_NUM_SERVERS={servers}\n"
        "    mpirun -n 8 -ppn 2 ./caffe train --solver=models/small/solver_init.prototxt\n"
    )
    recipe = adopt(small, AdoptOptions(images=1438), script=script).recipe
    assert recipe.cluster.mlsl is not None
    assert (recipe.cluster.mlsl.num_servers, recipe.cluster.mlsl.server_affinity) == (servers, ())
    assert f"MLSL_NUM_SERVERS={servers}" in generate(recipe)[f"jobs/{recipe.name}/run.sh"]


def test_a_net_of_the_user_s_own_is_taken_from_its_file(small: Path, tmp_path: Path) -> None:
    for name in ("train_val", "train_val_noaug"):
        change(small / f"{name}.prototxt", "num_output: 8", "num_output: 9")
    made = adopt(small, AdoptOptions(images=1438), home=tmp_path)
    assert made.recipe.net.prototxt == "small/train_val.prototxt"
    assert generated(made, tmp_path) == messages(small)


def test_a_solver_without_snapshot_gets_one_at_its_last_iteration(small: Path) -> None:
    change(small / "solver_cyc1.prototxt", "snapshot: 270", "")
    made = adopt(small, AdoptOptions(images=1438))
    assert "cyc1 gets snapshot: 270, the iteration of Caffe's final snapshot" in made.notes


def test_nets_named_without_a_folder_are_written_with_the_current_one(small: Path) -> None:
    for path in small.glob("solver*"):
        change(path, "models/small/", "")
    made = adopt(small, AdoptOptions(images=1438))
    assert "the solvers name their nets without a folder: written with ./" in made.notes
    assert made.recipe.prototxt_dir == "."


def test_a_net_file_with_another_extension_is_refused(small: Path) -> None:
    for path in small.glob("solver*"):
        path.write_text(path.read_text().replace("train_val.prototxt", "train_val.pt"))
    (small / "train_val.prototxt").rename(small / "train_val.pt")
    message = r"solver_init.prototxt: net: .*train_val.pt.*, but a recipe generates .*train_val.prototxt"
    with pytest.raises(CaffeRecipesError, match=message):
        adopt(small, AdoptOptions(images=1438))


def test_guesses_are_reported(small: Path) -> None:
    for path in small.glob("solver*"):
        path.write_text(render_prototxt(load_prototxt(path, pb.SolverParameter), {}))
    notes = "\n".join(adopt(small, AdoptOptions(images=1438)).notes)
    for guess in (
        "order by their names: solver_init.prototxt, solver_cyc1.prototxt",
        "cyc1 starts from the last snapshot of init (guessed)",
        "1 rank: guessed, since no file gives the number (set it with --ranks)",
        "1 OpenMP thread per rank: guessed",
        "1,438 training images: as given",
        "359 test images: guessed: one batch (set it with --test-images)",
        "net: equal to the net of the builder resnet_small",
    ):
        assert guess in notes


@pytest.mark.parametrize(
    ("file", "before", "after", "message"),
    REFUSED,
)
def test_what_a_recipe_cannot_express_is_reported_with_field_and_file(
    small: Path, file: str, before: str, after: str, message: str
) -> None:
    change(small / f"{file}.prototxt", before, after)
    with pytest.raises(CaffeRecipesError, match=message) as raised:
        adopt(small, AdoptOptions(images=1438))
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)


def test_two_folders_of_nets_are_refused(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "models" / "other"
    other.mkdir(parents=True)
    shutil.copy(small / "train_val.prototxt", other / "train_val2.prototxt")
    change(small / "solver_cyc1.prototxt", "models/small/train_val.", "models/other/train_val2.")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CaffeRecipesError, match=r"solver_cyc1.prototxt:\d+:1: net: is in models/other"):
        adopt(small, AdoptOptions(images=1438))


# The data layers and the solvers of the zoo's folders differ in these fields.
ZOO = {
    "mean-file-and-no-mirror": ("mean_file: 'mean.binaryproto'", "mean_file: 'mean.binaryproto'", ""),
    "mean-file-and-mirror": (
        "mirror: true crop_size: 20 mean_file: 'm'",
        "mirror: false crop_size: 20 mean_file: 'm'",
        "",
    ),
    "scale-alone": ("scale: 0.00390625", "scale: 0.00390625", ""),
    "mean-values": (
        "mirror: true crop_size: 20 mean_value: 104 mean_value: 117 mean_value: 123",
        "mirror: false crop_size: 20 mean_value: 104 mean_value: 117 mean_value: 123",
        "",
    ),
    "mirror-unset-in-test": ("mirror: true force_gray: true", "force_gray: true", ""),
    "another-mean-in-test": ("mean_file: 'train.mean'", "mean_value: 128", ""),
    "nothing": ("", "", ""),
    "hdf5": ("scale: 0.5", "scale: 0.5", "snapshot_format: HDF5 device_id: 1"),
}


def write_zoo_net(folder: Path, train: str = "", test: str = "") -> None:
    folder.mkdir(exist_ok=True)
    layers = "".join(
        f'layer {{ name: "cifar" type: "Data" top: "data" top: "label" include {{ phase: {phase} }} '
        + (f"transform_param {{ {transform} }} " if transform else "")
        + f'data_param {{ source: "cifar10_{phase}_lmdb" batch_size: 10 backend: LMDB }} }}\n'
        for phase, transform in (("TRAIN", train), ("TEST", test))
    )
    rest = """
    layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 10 } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }"""
    (folder / "train_test.prototxt").write_text(f'name: "Zoo" {layers} {rest}')


def write_zoo_solver(
    folder: Path, name: str, base_lr: float = 0.1, max_iter: int = 100, more: str = ""
) -> Path:
    path = folder / f"{name}.prototxt"
    path.write_text(
        f"net: 'zoo/train_test.prototxt' base_lr: {base_lr} lr_policy: 'fixed' max_iter: {max_iter} "
        f"snapshot: {max_iter} snapshot_prefix: 'zoo/{name}' test_iter: 3 test_interval: 10 {more}"
    )
    return path


@pytest.mark.parametrize("shape", ZOO)
def test_the_transformations_of_the_zoo_are_regenerated_as_equal_messages(shape: str, tmp_path: Path) -> None:
    folder, (train, test, more) = tmp_path / "zoo", ZOO[shape]
    write_zoo_net(folder, train, test)
    write_zoo_solver(folder, "solver", more=more)
    made = adopt(folder, AdoptOptions(), home=tmp_path)
    again, given = generated(made, tmp_path), messages(folder)
    assert again["train_test.prototxt"] == given["train_test.prototxt"]
    solver = given["solver.prototxt"]
    solver.ClearField("snapshot_format")
    solver.ClearField("device_id")
    assert again["solver_main.prototxt"] == solver
    left_out = sorted(note for note in made.notes if " drops " in note)
    assert [note.split(":")[0] for note in left_out] == (
        ["main drops device_id", "main drops snapshot_format"] if more else []
    )


def test_the_images_of_public_data_sets_are_guessed_from_the_name_of_the_lmdb(tmp_path: Path) -> None:
    write_zoo_net(tmp_path / "zoo")
    write_zoo_solver(tmp_path / "zoo", "solver")
    made = adopt(tmp_path / "zoo", AdoptOptions(), home=tmp_path)
    assert "50,000 training images: guessed (CIFAR-10) from the name of cifar10_TRAIN_lmdb" in made.notes


def test_one_of_several_solvers_may_be_named_and_names_the_recipe(tmp_path: Path) -> None:
    write_zoo_net(tmp_path / "zoo")
    quick = write_zoo_solver(tmp_path / "zoo", "quick_solver", base_lr=0.5)
    write_zoo_solver(tmp_path / "zoo", "solver")
    made = adopt(quick, AdoptOptions(), home=tmp_path)
    assert (made.recipe.name, [phase.base_lr for phase in made.recipe.phases]) == ("zoo-quick", [0.5])


def test_solvers_that_are_alternatives_are_listed_with_what_to_type(tmp_path: Path) -> None:
    folder = tmp_path / "zoo"
    write_zoo_net(folder)
    quick = write_zoo_solver(folder, "quick_solver")
    write_zoo_solver(folder, "solver")
    with pytest.raises(CaffeRecipesError) as caught:
        adopt(folder, AdoptOptions(), home=tmp_path)
    what = f"{folder}: contains 2 solvers in unknown order: quick_solver.prototxt, solver.prototxt"
    hint = f"adopt one of them (`caffe-recipes adopt {quick}`), or give the script"
    assert str(caught.value) == f"{what}; {hint} that trains them as a chain (--script FILE)"


def test_two_scripts_of_a_folder_that_train_different_solvers_make_alternatives(tmp_path: Path) -> None:
    folder = tmp_path / "zoo"
    write_zoo_net(folder)
    for chain in ("quick", "full"):
        names = [write_zoo_solver(folder, f"{chain}_solver{end}") for end in ("", "_fine")]
        lines = [f"caffe train --solver=zoo/{name.name}" for name in names]
        (folder / f"train_{chain}.sh").write_text("\n".join(lines))
    with pytest.raises(CaffeRecipesError, match="contains 4 solvers in unknown order"):
        adopt(folder, AdoptOptions(), home=tmp_path)
    made = adopt(folder, AdoptOptions(), script=folder / "train_quick.sh", home=tmp_path)
    assert len(made.recipe.phases) == 2


def test_a_chain_of_solverstates_is_refused_with_the_one_solver_that_trains_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "zoo"
    write_zoo_net(folder)
    write_zoo_solver(folder, "full_solver", 0.001, 600)
    write_zoo_solver(folder, "full_solver_lr1", 0.0001, 650)
    write_zoo_solver(folder, "full_solver_lr2", 0.00001, 700)
    lines = ["caffe train --solver=zoo/full_solver.prototxt"]
    lines += [
        f"caffe train --solver=zoo/full_solver_lr{number}.prototxt "
        f"--snapshot=zoo/full_solver_iter_{at}.solverstate"
        for number, at in ((1, 600), (2, 650))
    ]
    (folder / "train_full.sh").write_text("\n".join(lines))
    with pytest.raises(CaffeRecipesError) as caught:
        adopt(folder, AdoptOptions(), home=tmp_path)
    what = "full_lr1 resumes zoo/full_solver_iter_600.solverstate, but a recipe's phases start from weights"
    fields = 'lr_policy: "multistep" gamma: 0.1 stepvalue: 600 stepvalue: 650 max_iter: 700'
    hint = f"adopt zoo/full_solver.prototxt alone, changed to {fields}"
    assert str(caught.value).endswith(f"train_full.sh:2: {what}; {hint}")
    with pytest.raises(CaffeRecipesError, match=r"; adopt zoo/full_solver\.prototxt alone$"):
        adopt(folder / "full_solver_lr1.prototxt", AdoptOptions(), home=tmp_path)


def test_the_one_solver_that_a_chain_of_solverstates_is_to_become_is_adopted(tmp_path: Path) -> None:
    folder = tmp_path / "zoo"
    write_zoo_net(folder)
    more = "gamma: 0.1 stepvalue: 600 stepvalue: 650"
    solver = write_zoo_solver(folder, "full_solver", 0.001, 700, more)
    change(solver, "'fixed'", "'multistep'")
    made = adopt(solver, AdoptOptions(), home=tmp_path)
    assert generated(made, tmp_path)["solver_full.prototxt"] == messages(folder)["full_solver.prototxt"]


READ_BY_THE_NET = {
    "ImageData": "image_data_param { source: 'flickr/PHASE.txt' batch_size: 10 new_height: 8 new_width: 8 }",
    "HDF5Data": "hdf5_data_param { source: 'h5/PHASE.txt' batch_size: 10 }",
    "WindowData": "window_data_param { source: 'windows/PHASE.txt' batch_size: 10 crop_mode: 'warp' } "
    "transform_param { crop_size: 8 }",
    "Data": "data_param { source: 'PHASE_leveldb' batch_size: 10 }",
}


@pytest.mark.parametrize("kind", READ_BY_THE_NET)
def test_what_reads_no_lmdb_is_kept_as_it_is(kind: str, tmp_path: Path) -> None:
    write_zoo_net(tmp_path / "zoo")
    write_zoo_solver(tmp_path / "zoo", "solver")
    net, reads = tmp_path / "zoo" / "train_test.prototxt", READ_BY_THE_NET[kind]
    for phase in ("TRAIN", "TEST"):
        lmdb = f'data_param {{ source: "cifar10_{phase}_lmdb" batch_size: 10 backend: LMDB }}'
        change(net, lmdb, reads.replace("PHASE", phase.lower()))
    net.write_text(net.read_text().replace('type: "Data"', f'type: "{kind}"'))
    made = adopt(tmp_path / "zoo", AdoptOptions(images=50, test_images=25), home=tmp_path)
    assert {"images: 50", "test_images: 25", "data: as-in-net"} < set(made.text.splitlines())
    assert "they keep their data layers, and runs leave these data alone" in "\n".join(made.notes)
    again = generated(made, tmp_path)
    assert again["train_test.prototxt"] == messages(tmp_path / "zoo")["train_test.prototxt"]
    assert again["solver_main.prototxt"] == messages(tmp_path / "zoo")["solver.prototxt"]
    assert made.recipe.cluster.batch_per_rank == 10
    assert made.recipe.evaluation is not None and made.recipe.evaluation.iterations == 3


def test_a_named_file_that_is_not_a_solver_is_refused(tmp_path: Path) -> None:
    write_zoo_net(tmp_path / "zoo")
    with pytest.raises(CaffeRecipesError, match=r"train_test\.prototxt: is not a solver; give a solver, or"):
        adopt(tmp_path / "zoo" / "train_test.prototxt", AdoptOptions(), home=tmp_path)


def test_an_unknown_number_of_images_is_an_error(small: Path) -> None:
    for path in small.glob("solver*"):
        path.write_text(render_prototxt(load_prototxt(path, pb.SolverParameter), {}))
    change(small / "train_val.prototxt", "tmp/digits_train_lmdb", "nowhere_lmdb")
    change(small / "train_val_noaug.prototxt", "tmp/digits_train_lmdb", "nowhere_lmdb")
    with pytest.raises(CaffeRecipesError, match="nowhere_lmdb: the number of images is unknown"):
        adopt(small, AdoptOptions())


def test_ranks_that_do_not_fill_whole_nodes_are_refused(small: Path) -> None:
    with pytest.raises(CaffeRecipesError, match="--ranks: 7 ranks do not fill whole nodes of 2"):
        adopt(small, AdoptOptions(images=1438, ranks=7, ranks_per_node=2))


def test_ranks_that_contradict_the_comments_are_a_warning(small: Path) -> None:
    message = "warning: the comments say 64 images per iteration, which is 2 ranks x 32; 3 ranks give 96"
    assert message in adopt(small, AdoptOptions(ranks=3)).notes
    assert not [note for note in adopt(small, AdoptOptions(ranks=2)).notes if note.startswith("warning:")]
    assert not [note for note in adopt(small, AdoptOptions()).notes if note.startswith("warning:")]


def test_a_folder_without_solvers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaffeRecipesError, match="contains no solver"):
        adopt(tmp_path, AdoptOptions())


def test_all_fields_that_a_recipe_cannot_hold_are_named_at_once(small: Path) -> None:
    change(small / "solver_init.prototxt", "\nmomentum", "\ndebug_info: true\nzip: 1\nmomentum")
    change(small / "solver_cyc1.prototxt", "\nmomentum", "\nstepearly: 3\nmomentum")
    with pytest.raises(CaffeRecipesError) as caught:
        adopt(small, AdoptOptions(images=1438))
    text = str(caught.value)
    for field in ("debug_info: recipes do not", "SolverParameter has no field 'zip'", "'stepearly'"):
        assert text.count(field) == 1
    assert text.count(f"{small}/solver_init.prototxt:") == 2
    assert text.count(f"{small}/solver_cyc1.prototxt:") == 1
    assert "\n" not in text
    change(small / "solver_init.prototxt", "debug_info: true\nzip: 1\n", "")
    change(
        small / "solver_cyc1.prototxt", "stepearly: 3\n", "a1: 1 a2: 1 a3: 1 a4: 1 a5: 1 a6: 1 a7: 1 a8: 1\n"
    )
    with pytest.raises(CaffeRecipesError, match=r"'a1'.*'a6'.*, and 2 more;"):
        adopt(small, AdoptOptions(images=1438))


def test_the_images_of_a_list_at_hand_are_counted(tmp_path: Path) -> None:
    write_zoo_net(tmp_path / "zoo")
    write_zoo_solver(tmp_path / "zoo", "solver")
    net = tmp_path / "zoo" / "train_test.prototxt"
    for phase, count in (("TRAIN", 70), ("TEST", 30)):
        lmdb = f'data_param {{ source: "cifar10_{phase}_lmdb" batch_size: 10 backend: LMDB }}'
        change(net, lmdb, f"image_data_param {{ source: '{phase}.txt' batch_size: 10 }}")
        (tmp_path / f"{phase}.txt").write_text(count * "a b.jpg 1\n" + "\n")
    net.write_text(net.read_text().replace('type: "Data"', 'type: "ImageData"'))
    made = adopt(tmp_path / "zoo", AdoptOptions(caffe_root=tmp_path), home=tmp_path)
    assert {"images: 70", "test_images: 30", "data: as-in-net"} < set(made.text.splitlines())
    assert "70 training images: counted in TRAIN.txt" in made.notes


def test_a_recipe_is_not_adopted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("name: mine\n")
    for target, kind in (("mine.yaml", "a YAML file, as recipes are"), ("digits-local", "a recipe already")):
        with pytest.raises(CaffeRecipesError) as caught:
            adopt(Path(target), AdoptOptions())
        assert str(caught.value).startswith(
            f"{target}: is {kind}: adopt reads solvers; `caffe-recipes generate`"
        )
    with pytest.raises(CaffeRecipesError, match="cannot be read: No such file"):
        adopt(Path("nothing.yaml"), AdoptOptions())
    Path("digits-local").mkdir()
    with pytest.raises(CaffeRecipesError, match="contains no solver"):
        adopt(Path("digits-local"), AdoptOptions())
