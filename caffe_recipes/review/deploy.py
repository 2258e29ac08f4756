"""Derive the deploy net of a net file, a solver or a recipe; check that a dialect reads it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.deploy import Deploy, DeployOptions, derive_deploy
from caffe_recipes.caffe.dialects import find_dialect, layer_type_dialects, nearest_layer_type
from caffe_recipes.caffe.dialects.check import DIFFERENCE_RULES, check_message
from caffe_recipes.caffe.dialects.schema import (
    foreign_values,
    is_known,
    is_of_fork,
    list_unknown_names,
    name_error,
    nearest_name,
)
from caffe_recipes.caffe.dialects.unsupported_names import TYPES
from caffe_recipes.caffe.layer_types import LAYER_TYPES
from caffe_recipes.caffe.model_folder import DEPLOY, search_model
from caffe_recipes.caffe.prototxt import (
    MOST_BYTES,
    NO_COMMENTS,
    Comment,
    encode_prototxt,
    is_kind,
)
from caffe_recipes.caffe.text.parser import ForeignName
from caffe_recipes.caffe.upgrade import upgrade_document
from caffe_recipes.caffe.weights import serialize
from caffe_recipes.errors import InputError, PrototxtError, join_errors
from caffe_recipes.files.atomic_writes import check_output, output_error, write_whole
from caffe_recipes.files.bounded_reads import read_bytes
from caffe_recipes.limits import limit
from caffe_recipes.recipe.shipped import RECIPE_SUFFIXES
from caffe_recipes.review.inspect.nets import GivenNet, image_reader, load_given_net
from caffe_recipes.review.naming import KINDS, find_named, require_named
from caffe_recipes.run_names import RUNS
from caffe_recipes.wording import describe_names


@dataclass(frozen=True)
class DeployChoices:
    """What the user chose: the image size and batch of the net, its losses, and how its source is read."""

    image: tuple[int, int, int] | None = None
    batch: int | None = None
    losses: tuple[str, ...] = ()
    caffe_root: Path | None = None
    dialect: str | None = None
    max_bytes: int = MOST_BYTES


def load_deploy(given: str, choices: DeployChoices) -> Deploy:
    """Return the deploy net of a net file, a solver, a recipe (`NAME[:net]`), a folder with one net or a run.

    A run has one if it is finished. Raises PrototxtError, RecipeError or InputError.
    """
    if choices.image is not None:
        pixels, most = math.prod(choices.image[1:]), limit("image-pixels")
        if pixels > most:
            what = f"an image of {pixels:,} pixels is too large to be read; the limit is {most:,}"
            raise InputError("--input", what, "give the size of the images, e.g. 3,224,224")
    if given != "-" and find_named(given) is None:
        given = _find_run(given, choices.caffe_root or Path())
    found = load_given_net(given, pb.TEST, choices.caffe_root, choices.max_bytes)
    comments: Mapping[str, Comment] = NO_COMMENTS
    _refuse_slips(found)
    if found.document is not None:
        upgraded = upgrade_document(found.document)
        if upgraded.message == found.message:
            comments = upgraded.comments
    options = DeployOptions(choices.image, choices.batch, choices.losses, found.state)
    images = image_reader(None, choices.caffe_root, [])
    made = derive_deploy(found.message, options, comments=comments, images=images, path=found.path)
    return replace(made, notes=(*made.notes, *_note_unknown(made.net)))


def _find_run(given: str, root: Path) -> str:
    """Return the deploy net of a run, or the path or `NAME:net` as it was given. Raises InputError."""
    if (model := search_model(given, root)) is not None:
        return str(model / DEPLOY)
    if os.path.isdir(root / RUNS / given):  # noqa: PTH112 - false for any text, while Path raises
        raise InputError(given, "is a run that has no model yet", "give the name of its recipe, or its net")
    if given.endswith((*RECIPE_SUFFIXES, ".prototxt", ".pt")) or {"/", ":"} & set(given):
        return given
    return require_named(given, KINDS, "", takes_runs=True).path


def _refuse_slips(found: GivenNet) -> None:
    """Raise PrototxtError for the fields of a net, and the types of its layers, that are likely slips.

    What else no known Caffe has may be of a fork, or in layers that the deploy net does not contain.
    """
    document, net = found.document, found.message
    errors = list[PrototxtError]()
    if document is not None and is_kind(document.message, pb.NetParameter):
        net = document.message
        errors += [name_error(document, name) for name in list_unknown_names(document) if nearest_name(name)]
    types = set[str]()
    for index, layer in enumerate(net.layer):
        if layer.type in types or _is_known_type(layer.type):
            continue
        near = nearest_layer_type(layer.type)
        if near or (layer.bottom and not layer.type):
            types.add(layer.type)
            what = f"has type '{layer.type}', which no known Caffe has" if near else "has no type"
            hint = f"did you mean '{near}'?" if near else "docs/engine.md lists the types that are known"
            where = document.where(f"layer[{index}].type") if document else found.path
            errors.append(PrototxtError(where, f"layer '{layer.name}' {what}", hint))
    if errors:
        raise join_errors(errors)


def _is_known_type(name: str) -> bool:
    return name in LAYER_TYPES or name in TYPES or bool(layer_type_dialects(name))


def _note_unknown(net: pb.NetParameter) -> list[str]:
    """Return a note on the layer types and fields of a deploy net that no known Caffe has."""
    names = [f"layer type '{layer.type}'" for layer in net.layer if not _is_known_type(layer.type)]
    for _, owner, field, _ in foreign_values(net):
        if not (is_known(name := ForeignName(owner, field, 0)) or is_of_fork(name)):
            names.append(f"field '{owner}.{field}'")
    shown = describe_names([*dict.fromkeys(names)])
    return [f"no known Caffe has {shown}: kept, since they may be of a fork"] if names else []


def check_dialect(deploy: Deploy, dialect: str, path: str) -> Deploy:
    """Return a deploy net with notes on what the Caffe of a dialect reads, but interprets differently.

    Raises InputError for all parts of the net that it lacks.
    """
    errors, notes = list[InputError](), list[str]()
    for difference in check_message(deploy.net, find_dialect(dialect)):
        severity = DIFFERENCE_RULES[difference.rule].severity
        if severity == "error":
            errors.append(InputError(path, difference.what, difference.write))
        elif severity == "warning":
            notes.append(f"{difference.what}; {difference.write}")
    if errors:
        raise join_errors(errors)
    return replace(deploy, notes=(*deploy.notes, *notes))


def check_deploy_output(out: Path, inputs: Sequence[str | Path], *, has_weights: bool) -> None:
    """Raise InputError if a deploy net, or weights beside it, cannot be written, or would replace an input.

    Called before the net is folded or compared, which may take minutes.
    """
    if out.suffix in (".caffemodel", ".solverstate", ".h5"):
        raise InputError(out, "is the name of weights, and a net is written", "give e.g. deploy.prototxt")
    check_output(out, inputs, "--out")
    if has_weights:
        check_output(out.with_suffix(".caffemodel"), inputs, "--out")


def write_deploy(out: Path, text: str, weights: pb.NetParameter | None) -> list[Path]:
    """Write a deploy net and, if given, the weights beside it; return both paths.

    Raises InputError, also before it would write over other weights.
    """
    files = {out: encode_prototxt(text)}
    if weights is not None:
        files[out.with_suffix(".caffemodel")] = serialize(weights)
    for path in filter(Path.exists, [*files][1:]):
        if path.stat().st_size and not _holds(path, files[path]):
            raise InputError(path, "holds other weights", "remove it, or give another file with --out")
    try:
        write_whole(files)
    except OSError as error:
        raise output_error(out, error) from None
    return list(files)


def _holds(path: Path, data: bytes) -> bool:
    """Return whether a file holds these bytes; one that cannot be read does not."""
    try:
        return read_bytes(path, len(data) + 1) == data
    except OSError:
        return False
