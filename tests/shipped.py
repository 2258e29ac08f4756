"""The recipes that ship: which Caffe trains, and which the repository holds the files of."""

from __future__ import annotations

from pathlib import Path

from caffe_recipes.recipe.shipped import shipped_recipes

OF_CAFFE = [
    name
    for name, one in shipped_recipes().items()
    if "\ntrainer: tensorflow\n" not in one.file.read_text("utf-8")
]
_MAKEFILE = (Path(__file__).parent.parent / "Makefile").read_text()
# What `make generate` writes; of the others there are digests.
COMMITTED = _MAKEFILE.partition("\nRECIPES := ")[2].partition("\n")[0].split()
