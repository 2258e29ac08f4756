"""The digests of what recipes generate that is not committed; `make generate` rewrites them.

A prototxt's is that of its text. Rows whose nets are equal as messages share one digest, under the net's name
and what tells it apart. All scripts of a recipe share one.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import caffe_recipes as cr
from caffe_recipes.caffe.prototxt import digest
from caffe_recipes.recipe.model import AnyRecipe, Recipe
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_any_recipe
from caffe_recipes.render.prototxts import build_net
from tests.shipped import COMMITTED

FILE = Path(__file__).resolve().parent.parent / "family_digests.json"
ROWS = [name for name, one in shipped_recipes().items() if one.row is not None]
DIGESTED = [name for name in shipped_recipes() if name not in COMMITTED]


def net_key(recipe: Recipe, net: str) -> str:
    """Return what distinguishes one of the families' nets from the others."""
    return f"{net}, {recipe.cluster.batch_per_rank} images of {recipe.data.train.lmdb}"


def net_digests(recipe: Recipe) -> dict[str, str]:
    """Return the digest of each of a recipe's nets, as messages."""
    return {net_key(recipe, net): digest(build_net(recipe, net)) for net in recipe.nets}


def file_digests(recipe: AnyRecipe) -> dict[str, str]:
    """Return the digest of the text of each prototxt in the recipe's own folder, and one of all scripts."""
    files = cr.generate(recipe)
    own = f"prototxt/{recipe.name}/"
    prototxts = {path.removeprefix(own): text for path, text in files.items() if path.startswith(own)}
    scripts = sorted((path, text) for path, text in files.items() if path.startswith(f"jobs/{recipe.name}/"))
    found = {name: _sha256(text) for name, text in prototxts.items()}
    return found | {"jobs": _sha256("".join(f"{path}\n{text}" for path, text in scripts))}


def all_digests() -> dict[str, dict[str, str]]:
    """Return the contents of the file."""
    nets: dict[str, str] = {}
    for name in ROWS:
        nets |= net_digests(cr.load_recipe(name))
    files = {name: file_digests(load_any_recipe(name)) for name in DIGESTED}
    return {"nets": dict(sorted(nets.items())), **files}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    text = json.dumps(all_digests(), indent=2) + "\n"
    if not FILE.is_file() or FILE.read_text() != text:
        FILE.write_text(text)
        sys.stdout.write(f"wrote {FILE.name}\n")
