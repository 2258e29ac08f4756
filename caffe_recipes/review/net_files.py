"""The net that a user means: a net's file, a solver's, or a recipe's by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.documents import Document, load_document
from caffe_recipes.caffe.prototxt import MOST_BYTES
from caffe_recipes.caffe.upgrade import upgrade_document
from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.review.naming import RECIPE_SUFFIXES, find_named
from caffe_recipes.review.net_paths import find_at_path, find_beside, find_shared


@dataclass(frozen=True)
class GivenNet:
    """A net, what to call it in errors, and the state of the phase that its solver sets, if it says one."""

    path: str
    message: pb.NetParameter
    state: pb.NetState


def load_net(
    given: str, phase: int | None = None, caffe_root: Path | None = None, max_bytes: int = MOST_BYTES
) -> GivenNet:
    """Read a net from a net's prototxt, from a solver's, or from a recipe, `NAME[:net]`.

    A solver's net is that of `phase`, TRAIN unless said, and lies under `caffe_root`; without one it is
    looked for as `net_paths.find_at_path` does, and beside it.
    Raises PrototxtError, RecipeError or InputError.
    """
    if _is_recipe(given):
        return _recipe_net(given)
    document: Document[Message] = load_document(given, max_bytes=max_bytes)
    message = document.message
    if isinstance(message, pb.NetParameter):
        return GivenNet(given, _today(document), message.state)
    if isinstance(message, pb.SolverParameter):
        return _solver_net(document, message, phase, caffe_root, max_bytes)
    what = f"is a {type(message).DESCRIPTOR.name}, which has no layers"
    raise InputError(given, what, "give a net, a solver of one phase, or a recipe")


def _is_recipe(given: str) -> bool:
    """Tell a recipe, or a net of one, from a prototxt; a name of nothing is a recipe's that is misspelt."""
    named = find_named(given)
    if named is not None:
        return named.kind in ("recipe", "net")
    name = given.partition(":")[0]
    return name.endswith(RECIPE_SUFFIXES) or ("/" not in name and not name.endswith((".prototxt", ".pt")))


def _recipe_net(given: str) -> GivenNet:
    # Slow to import, and no prototxt needs them.
    from caffe_recipes.generate.nets import build_net
    from caffe_recipes.recipe.source import load_recipe

    named = find_named(given)
    recipe = load_recipe(named.path if named else given.partition(":")[0])
    net = (named.net if named else given.partition(":")[2]) or next(iter(recipe.nets))
    return GivenNet(f"{recipe.name}:{net}", build_net(recipe, net), pb.NetState())


def _today(document: Document[Message]) -> pb.NetParameter:
    """Give a net in today's form; inputs without a shape, which Caffe drops, become a layer without one."""
    old, net = document.message, upgrade_document(document).message
    if not isinstance(old, pb.NetParameter) or not isinstance(net, pb.NetParameter):
        raise TypeError(f"{document.path} holds no net")
    if not old.input or old.input_shape or old.input_dim:
        return net
    with_inputs = pb.NetParameter(layer=[pb.LayerParameter(name="input", type="Input", top=old.input)])
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
        return GivenNet(given, _today(replace(document, message=inline[0])), state)
    if not named:
        raise PrototxtError(given, "is a solver that names no net", "give the net's own file")
    path = _find(given, named, caffe_root)
    net: Document[Message] = load_document(path, pb.NetParameter, max_bytes=max_bytes)
    return GivenNet(str(path), _today(net), state)


def _if_set(solver: pb.SolverParameter, field: str) -> list[pb.NetParameter]:
    return [getattr(solver, field)] if solver.HasField(field) else []


def _find(solver: str, named: str, caffe_root: Path | None) -> Path:
    path = find_at_path(solver, named, caffe_root)
    if path is None and caffe_root is None:
        path = find_beside(solver, named) or find_shared(solver, named)
    if path is not None:
        return path
    hint = "give the net's own file" if caffe_root else "give --caffe-root, or the net's own file"
    raise InputError(solver, f"its net '{named}' is not {'there' if caffe_root else 'found'}", hint)
