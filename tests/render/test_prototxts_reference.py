"""What the two published recipes generate equals the authors' own files, as messages."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

import caffe_recipes as cr
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import digest, load_prototxt, parse_prototxt

HERE = Path(__file__).resolve().parent
PUBLISHED = HERE.parent.parent.parent / "shared" / "reference" / "surfsara"
FOLDERS = {"stampede2-64n-72ep": "resnet50_custom_lr", "stampede2-448n-90ep": "resnet50_448nodes"}

# Of the authors' own messages, by recipe and by our name of the file.
DIGESTS = json.loads((HERE.parent / "reference_digests.json").read_text())
FILES = [(recipe, name) for recipe, digests in DIGESTS.items() for name in digests]

# The authors named the first of the two solvers for no phase.
THEIR_NAMES = {("stampede2-448n-90ep", "solver_main.prototxt"): "solver.prototxt"}

# The one mistake that the recipe fixes: the folder of this net is called resnet50_448nodes.
SLIPS = {
    ("stampede2-448n-90ep", "solver_collapse.prototxt"): (
        "models/intel_optimized_models/multinode/resnet_50_448nodes/train_val_noaug.prototxt"
    )
}


@cache
def generated(recipe: str) -> dict[str, str]:
    return cr.generate(cr.load_recipe(recipe))


def message_class(name: str) -> type[pb.SolverParameter] | type[pb.NetParameter]:
    return pb.SolverParameter if name.startswith("solver") else pb.NetParameter


def message_of(recipe: str, name: str) -> pb.SolverParameter | pb.NetParameter:
    """What we generate, with the authors' mistake put back where they made one."""
    text = generated(recipe)[f"prototxt/{recipe}/{name}"]
    message = parse_prototxt(text, message_class(name))
    if isinstance(message, pb.SolverParameter) and (recipe, name) in SLIPS:
        message.net = SLIPS[recipe, name]
    return message


@pytest.mark.parametrize(("recipe", "count"), [("stampede2-64n-72ep", 7), ("stampede2-448n-90ep", 4)])
def test_the_published_files_are_generated_and_no_other_prototxt(recipe: str, count: int) -> None:
    ours = {path for path in generated(recipe) if path.endswith(".prototxt")}
    assert ours == {f"prototxt/{recipe}/{name}" for name in DIGESTS[recipe]}
    assert len(ours) == count


@pytest.mark.parametrize(("recipe", "name"), FILES)
def test_a_generated_file_has_the_published_digest(recipe: str, name: str) -> None:
    assert digest(message_of(recipe, name)) == DIGESTS[recipe][name]


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not beside this checkout")
@pytest.mark.parametrize(("recipe", "name"), FILES)
def test_a_generated_file_equals_the_published_message(recipe: str, name: str) -> None:
    file = PUBLISHED / FOLDERS[recipe] / THEIR_NAMES.get((recipe, name), name)
    assert message_of(recipe, name) == load_prototxt(file, message_class(name))


@pytest.mark.parametrize(("recipe", "name"), SLIPS)
def test_a_fixed_solver_names_the_existing_folder(recipe: str, name: str) -> None:
    text = generated(recipe)[f"prototxt/{recipe}/{name}"]
    net = parse_prototxt(text, pb.SolverParameter).net
    assert net == SLIPS[recipe, name].replace("resnet_50_448nodes", "resnet50_448nodes")
    assert net.rpartition("/")[0] == cr.load_recipe(recipe).prototxt_dir
