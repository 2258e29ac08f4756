"""check_net over whole nets: right ones of many kinds, the published ones, places, merging, order."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

import caffe_recipes as cr
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import load_document, parse_document
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.lint.check import check_net
from caffe_recipes.review.lint.findings import SEVERITIES
from caffe_recipes.review.lint.registry import load_rules

PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "reference" / "surfsara"
NETS = sorted((Path(__file__).parent / "zoo").glob("*.prototxt"))

# Notes about these nets, which are correct.
NOTES = {
    "autoencoder": ["layer-name-twice", "train-unshuffled"],
    "fcn": ["no-fillers"],
    "lenet": ["train-unshuffled"],
    "old_lenet": ["old-format", "train-unshuffled"],
}


def test_all_12_nets_are_found() -> None:
    assert len(NETS) == 12
    assert NOTES.keys() <= {path.stem for path in NETS}


@pytest.mark.parametrize("path", NETS, ids=lambda path: path.stem)
def test_a_correct_net_has_no_findings(path: Path) -> None:
    found = check_net(load_document(path, pb.NetParameter))
    assert sorted(finding.id for finding in found) == NOTES.get(path.stem, [])
    assert all(finding.severity == "note" for finding in found)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not beside this checkout")
@pytest.mark.parametrize("recipe", ["resnet50_custom_lr", "resnet50_448nodes"])
@pytest.mark.parametrize("file", ["train_val.prototxt", "train_val_noaug.prototxt"])
def test_the_published_nets_have_three_notes_and_nothing_above(recipe: str, file: str) -> None:
    document = load_document(PUBLISHED / recipe / file, pb.NetParameter)
    found = {finding.id: finding for finding in check_net(document, classes=1000)}
    assert list(found) == ["bias-before-norm", "field-idle", "zero-start-partly"]
    zero = found["zero-start-partly"]
    assert zero.values == {"zero": 4, "blocks": 16}
    assert "res2c, res3d, res4f, res5c; not res2a," in zero.what
    assert found["bias-before-norm"].values == {"layers": 1}
    assert found["field-idle"].values == {"layers": 52}


@pytest.mark.parametrize("recipe", ["digits-local", "stampede2-64n-72ep"])
def test_the_nets_that_we_generate_have_nothing_above_a_note(recipe: str) -> None:
    files = cr.generate(cr.load_recipe(recipe))
    nets = [path for path in files if path.endswith(".prototxt") and "solver" not in path]
    assert nets
    for path in nets:
        found = check_net(parse_document(files[path], path, pb.NetParameter))
        assert {finding.severity for finding in found} <= {"note"}, found


def test_findings_stand_at_their_field_and_come_once_for_both_phases() -> None:
    text = "\n".join(
        [
            'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 } } }',
            'layer { name: "fc" type: "InnerProduct" bottom: "date" top: "fc"',
            "  inner_product_param {",
            "    num_output: 4",
            "    std: 1 }",
            "}",
        ]
    ).replace("    std: 1 }", '    weight_filler { type: "xavier" std: 1 } }')
    found = check_net(parse_document(text, "n.prototxt", pb.NetParameter))
    assert [(finding.id, finding.where) for finding in found] == [
        ("unknown-bottom", "n.prototxt:2:41"),
        ("field-unread", "n.prototxt:5:36"),
    ]
    assert found[0].write == 'bottom: "data"'


def test_findings_come_gravest_first_and_their_ids_are_all_in_the_table() -> None:
    text = (Path(__file__).parent / "zoo" / "alexnet.prototxt").read_text()
    wrong = text.replace('"xavier"', '"xavvier"').replace("shuffle: true", "").replace("dim: 3", "dim: 4")
    wrong = wrong.replace("dropout_ratio: 0.5", "dropout_ratio: 2").replace("mirror: false", "mirror: true")
    found = check_net(parse_document(wrong, "n.prototxt", pb.NetParameter))
    ranks = [SEVERITIES.index(finding.severity) for finding in found]
    assert ranks == sorted(ranks) and set(ranks) == {0, 1, 2}
    assert {finding.id for finding in found} <= load_rules().keys()


def test_a_net_of_the_old_format_is_checked_as_caffe_upgrades_it() -> None:
    text = (Path(__file__).parent / "zoo" / "old_lenet.prototxt").read_text()
    wrong = text.replace('bottom: "ip1" top: "ip2"', 'bottom: "ip3" top: "ip2"')
    line = next(at for at, each in enumerate(wrong.splitlines(), 1) if "ip3" in each)
    found = {each.id: each for each in check_net(parse_document(wrong, "n.prototxt", pb.NetParameter))}
    assert "reads blob 'ip3'" in found["unknown-bottom"].what
    assert found["unknown-bottom"].where.startswith(f"n.prototxt:{line}:")
    assert found["old-format"].where.startswith("n.prototxt:2:")


def test_a_net_that_mixes_both_formats_is_one_error() -> None:
    text = 'layer { name: "a" type: "ReLU" } layers { name: "b" type: RELU }'
    (found,) = check_net(parse_document(text, "n.prototxt", pb.NetParameter))
    assert (found.id, found.where) == ("upgrade-refused", "n.prototxt:1:34")


def test_a_net_with_nan_in_a_layer_loses_none_of_its_layers() -> None:
    text = """
    layer { name: "in" type: "Input" top: "a" input_param { shape { dim: 1 } } }
    layer { name: "x" type: "Power" bottom: "a" top: "b" power_param { shift: nan } }
    layer { name: "y" type: "ReLU" bottom: "c" top: "d" }
    """
    found = [f.id for f in check_net(parse_document(text, "n", pb.NetParameter))]
    assert found == ["value-not-finite", "unknown-bottom"]


def test_a_net_of_very_many_wrong_layers_is_reported_briefly_and_soon() -> None:
    data = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 } } }\n'
    text = data + "".join(
        f'layer {{ name: "l{i}" type: "ReLU" bottom: "x{i}" top: "y{i}" }}\n' for i in range(5000)
    )
    found = check_net(parse_document(text, "n.prototxt", pb.NetParameter))
    assert [finding.id for finding in found] == ["unknown-bottom"] * 20
    assert "4981 more bottoms" in found[-1].what


@pytest.mark.parametrize("path", NETS, ids=lambda path: path.stem)
def test_a_net_with_any_tokens_swapped_is_checked_without_a_traceback(path: Path) -> None:
    random = Random(path.stem)
    words = re.findall(r'"[^"]*"|[\w.+-]+|\S', path.read_text())
    pool = [word for other in NETS for word in re.findall(r'"[^"]*"|[\w.+-]+', other.read_text())]
    raw, checked = pb.Datum(channels=3, height=8, width=8), 0
    for _ in range(300):
        text = list(words)
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(text))
            kind = [word for word in random.choices(pool, k=30) if word[0].isdigit() == text[at][0].isdigit()]
            numbers = ["0", "1", "-1", "4294967295", "nan"] if text[at][0].isdigit() else kind
            same = [word for word in [*kind, *numbers] if (word[0] == '"') == (text[at][0] == '"')]
            if text[at] not in "{}:" and same:
                text[at] = random.choice(same)
        try:
            document = parse_document(" ".join(text), path.name, pb.NetParameter)
        except PrototxtError:
            continue
        for finding in check_net(document, classes=10, datum_of=lambda source: raw):
            assert finding.where.startswith(path.name) and "\0" not in finding.what
        checked += 1
    assert checked >= 20
