"""Load the net of a net file, a solver or a recipe, and set its batch size and image size.

An image size that is not given is read from the first record of the LMDB that a data layer names.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.schema import load_lenient
from caffe_recipes.caffe.layer_types import LAYER_TYPES, type_of
from caffe_recipes.caffe.prototxt import MOST_BYTES, NO_COMMENTS, is_kind, load_document
from caffe_recipes.caffe.upgrade import upgrade_document
from caffe_recipes.errors import DataError, InputError, PrototxtError
from caffe_recipes.quoting import hiding_foreign_text, refuse_foreign_link, refuse_foreign_names
from caffe_recipes.recipe.shipped import RECIPE_SUFFIXES
from caffe_recipes.review.naming import (
    Named,
    find_at_path,
    find_beside,
    find_named,
    find_shared,
    is_file,
    walk_prototxts,
)

if TYPE_CHECKING:
    from caffe_recipes.caffe.layer_types.dimensions import Image, Images
    from caffe_recipes.caffe.prototxt import Document

_LISTED = 3  # nets of a folder, in the error that asks for one of them


@dataclass(frozen=True)
class GivenNet:
    """A net, its name for errors, the state that its solver sets, if any, and the file that it is from."""

    path: str
    message: pb.NetParameter
    state: pb.NetState
    document: Document[Message] | None = None


def load_given_net(
    given: str, phase: int | None = None, caffe_root: Path | None = None, max_bytes: int = MOST_BYTES
) -> GivenNet:
    """Return the net of a net prototxt, a solver prototxt, a recipe (`NAME[:net]`) or a folder with one net.

    For a solver it is the net of `phase`, TRAIN by default, under `caffe_root`; without a root, the net is
    searched for as in `naming.find_at_path`, and beside the solver.
    Raises PrototxtError, RecipeError or InputError.
    """
    if given == "-":
        what, hint = "a net is not read from standard input", "give a file, or <(...) for a command's output"
        raise InputError(given, what, hint)
    named = find_named(given) or _name_unknown_recipe(given)
    if named is not None and named.kind in ("recipe", "net"):
        return _recipe_net(named)
    if named is not None and named.kind == "folder":
        folder, given = given, _only_net(given, max_bytes)
        refuse_foreign_link(given, folder)
    document = load_lenient(given, max_bytes)
    message = document.message
    if is_kind(message, pb.NetParameter):
        return GivenNet(given, _upgrade_net(document), message.state, document)
    if is_kind(message, pb.SolverParameter):
        return _solver_net(document, message, phase, caffe_root, max_bytes)
    what = f"is a {type(message).DESCRIPTOR.name}, which has no layers"
    raise InputError(given, what, "give a net, a solver of one phase, or a recipe")


def _name_unknown_recipe(given: str) -> Named | None:
    """Return an unknown name as that of a recipe, which `load_recipe` reports; None for a file's path."""
    name, _, net = given.partition(":")
    is_recipe = name.endswith(RECIPE_SUFFIXES) or (
        "/" not in name and not name.endswith((".prototxt", ".pt"))
    )
    return Named("recipe", name, net) if is_recipe else None


def _recipe_net(named: Named) -> GivenNet:
    # Imported here because they are slow to import, and prototxts do not need them.
    from caffe_recipes.recipe.source import load_recipe
    from caffe_recipes.render.prototxts import build_net

    recipe = load_recipe(named.path)
    net = named.net or next(iter(recipe.nets))
    return GivenNet(f"{recipe.name}:{net}", build_net(recipe, net), pb.NetState())


def _only_net(folder: str, max_bytes: int) -> str:
    """Return the only net below a folder. Raises InputError if it has none, or several, which are listed."""
    files = (file for _, found in walk_prototxts(folder) for file in found)
    nets = list(islice((file for file in files if _is_net(file, max_bytes)), _LISTED + 1))
    if not nets:
        raise InputError(folder, "is a folder without a net", "give a net, a solver or a recipe")
    if len(nets) > 1:
        more = ", ..." if len(nets) > _LISTED else ""
        raise InputError(
            folder, "is a folder with several nets", f"give one: {', '.join(nets[:_LISTED])}{more}"
        )
    return nets[0]


def _is_net(path: str, max_bytes: int) -> bool:
    try:
        return is_kind(load_lenient(path, max_bytes).message, pb.NetParameter)
    except PrototxtError:
        return False


def _upgrade_net(document: Document[Message]) -> pb.NetParameter:
    """Return a net in the current format; inputs without a shape, which Caffe drops, become a layer."""
    old, net = document.message, upgrade_document(document).message
    if not is_kind(old, pb.NetParameter) or not is_kind(net, pb.NetParameter):
        raise TypeError(f"{document.path} does not contain a net")
    if not old.input or old.input_shape or old.input_dim:
        return net
    with_inputs = type(net)()
    with_inputs.layer.add(name="input", type="Input", top=old.input)
    with_inputs.MergeFrom(net)
    return with_inputs


def _solver_net(
    document: Document[Message],
    solver: pb.SolverParameter,
    phase: int | None,
    caffe_root: Path | None,
    max_bytes: int,
) -> GivenNet:
    given, is_test = document.path, phase == pb.TEST
    states = solver.test_state if is_test else [solver.train_state]
    state = states[0] if states else pb.NetState()
    inline = [*(solver.test_net_param if is_test else _if_set(solver, "train_net_param"))]
    inline += _if_set(solver, "net_param")
    paths = [*(solver.test_net if is_test else [solver.train_net]), solver.net]
    named = next(filter(None, paths), "")
    if inline and not named:
        inner = replace(document, message=inline[0], comments=NO_COMMENTS)
        return GivenNet(given, _upgrade_net(inner), state, inner)
    if not named:
        raise PrototxtError(given, "is a solver that names no net", "give the net file itself")
    path = _find_net(given, named, caffe_root)
    with hiding_foreign_text(path, Path(given).parent, caffe_root):
        net = load_lenient(path, max_bytes)
        refuse_foreign_names(path, net.foreign, Path(given).parent, caffe_root)
        if not is_kind(net.message, pb.NetParameter):
            load_document(path, pb.NetParameter, max_bytes=max_bytes)  # raises the error for its first field
    return GivenNet(str(path), _upgrade_net(net), state, net)


def _if_set(solver: pb.SolverParameter, field: str) -> list[pb.NetParameter]:
    return [getattr(solver, field)] if solver.HasField(field) else []


def _find_net(solver: str, named: str, caffe_root: Path | None) -> Path:
    path = find_at_path(solver, named, caffe_root)
    if path is None and caffe_root is None:
        path = find_beside(solver, named) or find_shared(solver, named)
    if path is not None:
        return path
    hint = "give the net file itself" if caffe_root else "give --caffe-root, or the net file itself"
    raise InputError(solver, f"its net '{named}' was not found", hint)


def read_first_datum(source: str, caffe_root: Path | None) -> pb.Datum | None:
    """Return the first Datum of an LMDB under the Caffe root or the current folder; None if there is no LMDB.

    Raises DataError if the LMDB is empty or damaged.
    """
    folder = (caffe_root or Path()) / source
    if not source or not is_file(folder / "data.mdb"):
        return None
    # Imported here to load the LMDB library only when there is an LMDB to read.
    from caffe_recipes.caffe.datums import open_datums

    with open_datums(folder) as datums:
        return next(iter(datums))[1]


_BLOCKS = sorted({entry.batch_block for entry in LAYER_TYPES.values()} - {""})


def image_reader(given: Image | None, caffe_root: Path | None, failures: list[str]) -> Images:
    """Return a function that returns the image size of a source: `given`, or that of its first record.

    The size is None if the source is not an LMDB on this machine or its record has no size. The function
    appends a description of each missing, empty or damaged LMDB to `failures`.
    """

    def read(source: str) -> Image | None:
        if given is not None:
            return given
        try:
            datum = read_first_datum(source, caffe_root)
            if datum is None and source:
                failures.append(f"its LMDB {source} was not found")
            return _shape_of(source, datum) if datum else None
        except DataError as error:
            failures.append(f"{error.where} {error.what}")
            return None

    return read


def _shape_of(source: str, datum: pb.Datum) -> Image | None:
    from caffe_recipes.caffe.datums import datum_shape

    try:
        return datum_shape(datum)
    except ValueError as error:
        raise DataError(source, f"begins with a record that {error}") from None


def with_image(net: pb.NetParameter, image: Image, batch: int) -> pb.NetParameter:
    """Return a copy of a net whose Input layers without a shape produce batches of such images."""
    changed = deepcopy(net)
    for layer in changed.layer:
        if layer.type == "Input" and not layer.input_param.shape and len(layer.top) == 1:
            layer.input_param.shape.add(dim=[batch, *(dim or 0 for dim in image)])
    return changed


def needs_image(net: pb.NetParameter) -> bool:
    """Return whether the net has a layer that may lack the size of its images."""
    return any(
        ((source := type_of(layer).source) and source.is_sized_by_files)
        or (layer.type == "Input" and not layer.input_param.shape)
        for layer in net.layer
    )


def with_batch(net: pb.NetParameter, batch: int) -> pb.NetParameter:
    """Return a copy of a net whose data layers and inputs have the batch size `batch`.

    Raises InputError if the net has no such layer.
    """
    changed = deepcopy(net)
    found = False
    for layer in changed.layer:
        for name in _BLOCKS:
            if layer.HasField(name):
                getattr(layer, name).batch_size = batch
                found = True
        for shape in _shapes(layer):
            shape.dim[0] = batch
            found = True
        for index in range(len(layer.dummy_data_param.num)):
            layer.dummy_data_param.num[index] = batch
            found = True
    if not found:
        raise InputError(net.name or "net", "has no layer whose batch can be set", "remove --batch")
    return changed


def _shapes(layer: pb.LayerParameter) -> Iterator[pb.BlobShape]:
    for param in (layer.input_param, layer.dummy_data_param):
        yield from (shape for shape in param.shape if shape.dim)
