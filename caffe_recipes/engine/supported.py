"""The lists of layer types in docs/engine.md, made from the tables of operators and of layer types.

python -m caffe_recipes.engine.supported docs/engine.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from caffe_recipes.caffe.dialects import forks
from caffe_recipes.caffe.layer_types import FAMILIES, LAYER_TYPES
from caffe_recipes.engine.fillers import FILLERS
from caffe_recipes.engine.operators import OPERATORS
from caffe_recipes.engine.operators.data import SOURCES

BEGIN = "<!-- layer types: `make generate` writes the following -->"
END = "<!-- layer types: end -->"


def render_supported() -> str:
    """Return the lists as Markdown, between their marks."""
    run = {*OPERATORS, *SOURCES}
    rows = []
    for family in FAMILIES:
        names = [entry.name for entry in family.TYPES]
        runs, lacks = ([name for name in names if (name in run) is wanted] for wanted in (True, False))
        title = family.__name__.rpartition(".")[2].replace("_", " ")
        rows.append(f"| {title} | {_list(runs)} | {_list(lacks)} |")
    others = sorted(forks.TYPES.keys() - LAYER_TYPES.keys())
    return "\n".join(
        [
            BEGIN,
            "| family | runs | does not run |",
            "|---|---|---|",
            *rows,
            "",
            f"Of forks, it also lacks {_list(others)}.",
            "",
            f"Fillers: {_list(sorted(FILLERS))}.",
            END,
        ]
    )


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names, key=str.lower))


def replace_lists(text: str) -> str:
    """Return the text of docs/engine.md with its lists as they should be."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{render_supported()}{after}"


def main(words: Sequence[str]) -> int:
    """Write the lists into a document."""
    document = Path(words[0])
    document.write_text(replace_lists(document.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
