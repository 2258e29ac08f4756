"""Nets of the user's own: a prototxt file, or a function, found from the recipe's folder."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import load_prototxt, parse_prototxt
from caffe_recipes.errors import CaffeRecipesError, RecipeError
from caffe_recipes.generate.data_layers import build_data_layers
from caffe_recipes.recipe.model import NetVariant, Recipe


def load_own_net(recipe: Recipe) -> pb.NetParameter:
    """Read `net.prototxt`, or call `net.function` with the recipe's Net.

    Raises PrototxtError for text that does not parse, RecipeError for a function that cannot be found, fails,
    or returns something else than a NetParameter or its text.
    """
    if recipe.net.prototxt is not None:
        return load_prototxt(recipe.folder / recipe.net.prototxt, pb.NetParameter)
    name = recipe.net.function or ""
    where = f"{recipe.name}: net.function {name}"
    module, _, attribute = name.partition(":")
    try:
        with _importing_from(recipe.folder, module.partition(".")[0]):
            function = getattr(importlib.import_module(module), attribute, None)
            made = function(recipe.net) if callable(function) else None
    except (Exception, SystemExit) as error:
        raise _failed(where, module, error) from error
    if not callable(function):
        raise RecipeError(where, f"module '{module}' has no function '{attribute}'", "check the name")
    if isinstance(made, str):
        return parse_prototxt(made, pb.NetParameter, where)
    if isinstance(made, pb.NetParameter):
        return made
    kind = f"{type(made).__module__}.{type(made).__qualname__}"
    raise RecipeError(
        where, f"returned {kind}", "return a NetParameter of caffe_recipes.caffe.pb, or its text"
    )


def with_data(net: pb.NetParameter, recipe: Recipe, variant: NetVariant) -> pb.NetParameter:
    """Return the net with the recipe's data layers where its own Data layers are, or first if it has none.

    They keep the name and the tops of the first that they replace; all other layers stay as they are.
    """
    own = [index for index, layer in enumerate(net.layer) if layer.type == "Data"]
    first = own[0] if own else 0
    names = (net.layer[first].name, list(net.layer[first].top)) if own else ()
    others = [layer for layer in net.layer if layer.type != "Data"]
    if not others and not net.layers:
        origin = recipe.net.prototxt or recipe.net.function
        raise RecipeError(recipe.name, f"{origin} holds no layers but Data", "give a whole net")
    result = pb.NetParameter()
    result.CopyFrom(net)
    del result.layer[:]
    result.layer.extend([*others[:first], *build_data_layers(recipe, variant, *names), *others[first:]])
    return result


@contextmanager
def _importing_from(folder: Path, package: str) -> Iterator[None]:
    """Let modules beside the recipe be imported; they win over installed ones, and over another recipe's."""
    is_theirs = (folder / package).is_dir() or (folder / f"{package}.py").is_file()
    if is_theirs and package != "caffe_recipes":
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]
    before, writes_bytecode = sys.path.copy(), sys.dont_write_bytecode
    sys.path.insert(0, str(folder.absolute()))
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = before, writes_bytecode


def _failed(where: str, module: str, error: BaseException) -> RecipeError:
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return RecipeError(where, f"no module '{error.name}'", "put it beside the recipe, or install it")
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, OSError) and frames[-1][0].startswith("<frozen importlib"):
        file = Path(error.filename or f"{module}.py").name
        return RecipeError(where, f"{file} cannot be read: {error.strerror}", "let it be read")
    if isinstance(error, SyntaxError):
        frames.append((error.filename or "", error.lineno))
    theirs = [frame for frame in frames if Path(frame[0]).stem == module.rpartition(".")[2]]
    at = "".join(f"{Path(file).name}:{line}: " for file, line in theirs[-1:])
    said = str(error) if isinstance(error, CaffeRecipesError) else f"{type(error).__name__}: {error}"
    return RecipeError(where, f"{at}{' '.join(said.split())}", "mend the function")
