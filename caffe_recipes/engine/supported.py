"""The layer types that the engine runs: the error for others, and the lists in docs/engine.md.

python -m caffe_recipes.engine.supported docs/engine.md
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import layer_type_dialects, nearest_layer_type, unsupported_names
from caffe_recipes.caffe.layer_types import FAMILIES, LAYER_TYPES, type_of
from caffe_recipes.caffe.refusals import find_refusals
from caffe_recipes.caffe.shapes import select_layers
from caffe_recipes.engine.fillers import FILLERS
from caffe_recipes.engine.operators import OPERATORS
from caffe_recipes.engine.operators.data import OUTPUTS, SOURCES, check_data_layer
from caffe_recipes.engine.operators.operator import LayerError, layer_error
from caffe_recipes.engine.operators.shape import ONE_PROCESS
from caffe_recipes.wording import join_names

BEGIN = "<!-- layer types: `make generate` writes the following -->"
END = "<!-- layer types: end -->"

RUN = frozenset((*OPERATORS, *SOURCES, *OUTPUTS))  # the layer types


def check_supported(nets: Sequence[tuple[pb.NetParameter, str]]) -> None:
    """Raise InputError that names all layers of nets, with their files, that the engine does not run."""
    wheres: dict[str, list[str]] = {}
    types: dict[str, None] = {}
    for net, path in nets:
        state = net.state
        for layer in _find_unsupported(select_layers(net, state.phase, state.level, state.stage)):
            types[layer.type] = None
            named = f"layer '{layer.name}' ({layer.type})"
            if named not in wheres.setdefault(path, []):
                wheres[path].append(named)
    if types:
        where = "; ".join(f"{path}: {', '.join(layers)}" for path, layers in wheres.items())
        raise _unsupported_error(where, types)


def _find_unsupported(layers: Iterable[pb.LayerParameter]) -> list[pb.LayerParameter]:
    """Return the layers whose type has no operator."""
    return [layer for layer in layers if layer.type not in RUN]


def _unsupported_error(where: str, types: Collection[str]) -> LayerError:
    """Return the error for types that the engine does not run, with the layers in `where`."""
    names = [f"'{name}'" for name in types]
    what = f"type{'s' if len(names) > 1 else ''} {', '.join(names)} {'are' if len(names) > 1 else 'is'}"
    slips = [name for name in types if not layer_type_dialects(name)]  # others may be of a fork
    meant = [f"'{near}'" for name in slips if (near := nearest_layer_type(name, RUN))]
    hints = [f"did you mean {join_names(meant)}?"] if meant else []
    if len(meant) < len(names):
        hints.append("docs/engine.md lists those that are")
    return LayerError(where, f"{what} not supported", " ".join(hints))


def check_layers(net: pb.NetParameter, ranks: int = 1) -> None:
    """Raise InputError for a layer that Caffe rejects, or for all layers that the engine does not support."""
    if unsupported := _find_unsupported(net.layer):
        where = ", ".join(f"layer '{layer.name}' ({layer.type})" for layer in unsupported)
        raise _unsupported_error(where, dict.fromkeys(layer.type for layer in unsupported))
    for layer in net.layer:
        if ranks > 1 and layer.type in ONE_PROCESS:
            raise layer_error(layer, f"runs in one process, not in {ranks}", "train with one process")
        for refusal in find_refusals(layer, net.engine):
            raise layer_error(layer, refusal.what, refusal.write)
        # A loss without a top gets an unnamed one.
        if not layer.top and type_of(layer).loss_weight != 1 and type_of(layer).makes_tops:
            raise layer_error(layer, "has no top", f'write top: "{layer.name}"')
        for top, bottom in zip(layer.top, layer.bottom, strict=False):
            if top == bottom and not type_of(layer).in_place:
                raise layer_error(
                    layer, f"cannot write its top over its bottom '{top}'", f'write top: "{layer.name}"'
                )
        check_data_layer(layer)


def render_supported() -> str:
    """Return the lists as Markdown, between their marks."""
    rows = []
    for family in FAMILIES:
        names = [entry.name for entry in family.TYPES]
        runs, lacks = ([name for name in names if (name in RUN) is wanted] for wanted in (True, False))
        title = family.__name__.rpartition(".")[2].replace("_", " ")
        rows.append(f"| {title} | {_list(runs)} | {_list(lacks)} |")
    others = sorted(unsupported_names.TYPES.keys() - LAYER_TYPES.keys())
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
