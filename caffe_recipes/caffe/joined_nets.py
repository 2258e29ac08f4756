"""Join the nets of `train_net` and `test_net` into one, as solvers with `net` have it.

A layer that both nets have stands once; each other layer gets `include { phase: TRAIN }` or TEST, and so does
each Data layer, since a recipe has data for each phase. The order of the layers of both nets is kept.

Source: BVLC Caffe, solver.cpp (InitTrainNet, InitTestNets) and net.cpp (FilterNet): the training net is
filtered with phase TRAIN, the test net with TEST, so that a layer for the other phase has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from difflib import SequenceMatcher

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import LAYER, NO_COMMENTS, Document
from caffe_recipes.caffe.shapes import select_layers
from caffe_recipes.errors import PrototxtError
from caffe_recipes.wording import shorten

_PHASES = (pb.TRAIN, pb.TEST)


def _join(train: pb.NetParameter, test: pb.NetParameter) -> tuple[pb.NetParameter, list[tuple[int, int]]]:
    """Return the joined net, and the phase of each of its layers, with its index in the net of that phase."""
    _check_fields(train, test)
    joined = deepcopy(train)
    joined.ClearField("layer")
    origins: list[tuple[int, int]] = []
    parts = [list(_layers_of(net, phase)) for net, phase in zip((train, test), _PHASES, strict=True)]
    for pair in _align(*parts):
        one, other = (None if part is None else part[1] for part in pair)
        is_shared = one is not None and one == other and one.type != "Data"
        for phase, part in zip(_PHASES, pair, strict=True):
            if part is None or (is_shared and phase == pb.TEST):
                continue
            layer = joined.layer.add()
            layer.CopyFrom(part[1])
            if not is_shared:
                layer.include.add(phase=pb.Phase.Name(phase))
            origins.append((phase, part[0]))
    assert _is_joined(joined, train, test)
    return joined, origins


# A layer with its index in its net, without its rules.
_Layer = tuple[int, pb.LayerParameter]


def _layers_of(net: pb.NetParameter, phase: int) -> Iterator[_Layer]:
    for index, layer in enumerate(net.layer):
        if select_layers(pb.NetParameter(layer=[layer]), phase):
            yield index, _without_rules(layer)


def _without_rules(layer: pb.LayerParameter) -> pb.LayerParameter:
    bare = deepcopy(layer)
    bare.ClearField("include")
    bare.ClearField("exclude")
    return bare


def _align(train: Sequence[_Layer], test: Sequence[_Layer]) -> Iterator[tuple[_Layer | None, _Layer | None]]:
    """Yield the layers of both nets in an order that keeps that of each, equal names and types in pairs."""
    ours, theirs = ([(layer.name, layer.type) for _, layer in part] for part in (train, test))
    for kind, a, b, c, d in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if kind == "equal":
            yield from zip(train[a:b], test[c:d], strict=True)
        else:
            yield from ((one, None) for one in train[a:b])
            yield from ((None, one) for one in test[c:d])


def _check_rules(net: pb.NetParameter) -> None:
    """Raise PrototxtError, whose `where` is the field, for a rule of a layer with more than a phase."""
    for index, layer in enumerate(net.layer):
        for kind in ("include", "exclude"):
            for number, rule in enumerate(getattr(layer, kind)):
                extra = next((field.name for field, _ in rule.ListFields() if field.name != "phase"), "")
                if extra:
                    what = f"layer '{shorten(layer.name)}' has {extra} in {kind}"
                    hint = "keep only its phase: a train_net and a test_net are joined by phases"
                    raise PrototxtError(f"layer[{index}].{kind}[{number}]", what, hint)


def _check_fields(train: pb.NetParameter, test: pb.NetParameter) -> None:
    """Raise PrototxtError if a field of the nets differs, except their names and layers."""
    for field in train.DESCRIPTOR.fields:
        name = field.name
        if name not in ("name", "layer") and getattr(train, name) != getattr(test, name):
            what = f"{name}: differs between the training net and the test net"
            raise PrototxtError(name, what, "make them equal, so that they can be one net")


def _is_joined(joined: pb.NetParameter, train: pb.NetParameter, test: pb.NetParameter) -> bool:
    """Return whether Caffe filters the joined net to the layers of the net of each phase."""
    return all(
        [_without_rules(layer) for layer in select_layers(net, phase)]
        == [_without_rules(layer) for layer in select_layers(joined, phase)]
        for net, phase in zip((train, test), _PHASES, strict=True)
    )


@dataclass(frozen=True)
class JoinedDocument(Document[pb.NetParameter]):
    """A training net and a test net, joined to one whose fields are at their places in the two files.

    `path` is that of a file that need not exist, whose name shows both.
    """

    nets: tuple[Document[pb.NetParameter], ...] = ()
    origins: tuple[tuple[int, int], ...] = ()

    def where(self, field: str = "") -> str:
        """Return `file:line:column` of a field in the training net, or of a layer of TEST in its own."""
        match = LAYER.match(field)
        if match is None:
            return self.nets[0].where(field)
        phase, index = self.origins[int(match[1])]
        return self.nets[_PHASES.index(phase)].where(f"layer[{index}]{field[match.end() :]}")


def join_documents(train: Document[pb.NetParameter], test: Document[pb.NetParameter]) -> JoinedDocument:
    """Return one net that Caffe filters to the layers of `train` in TRAIN, and to those of `test` in TEST.

    Both are in the current format and our schema; the name is that of `train`. Raises PrototxtError, with
    file and line, if another field of the two nets differs, or for a rule by more than a phase.
    """
    document = train
    try:
        _check_rules(train.message)
        document = test
        _check_rules(test.message)
        joined, origins = _join(train.message, test.message)
    except PrototxtError as error:
        raise error.reworded(where=document.where(error.where)) from None
    folder, mark, file = train.path.rpartition("/")
    path = folder + mark + join_file_names(file, test.path.rpartition("/")[2])
    return JoinedDocument(
        path,
        train.text,
        joined,
        NO_COMMENTS,
        train.offsets,
        nets=(train, test),
        origins=tuple(origins),
    )


def join_file_names(train: str, test: str) -> str:
    """Return the name of a file for both nets, which is the name of neither.

    >>> join_file_names("train.prototxt", "test.prototxt"), join_file_names("lenet_train.pt", "lenet_test.pt")
    ('train_test.prototxt', 'lenet_train_test.prototxt')
    """
    stems = [file.rpartition(".")[0] or file for file in (train, test)]
    start = max((stems[0].rfind(mark) + 1 for mark in "_-."), default=0)
    while start and not stems[1].startswith(stems[0][:start]):
        start = max(stems[0].rfind(mark, 0, start - 1) + 1 for mark in "_-.")
    return f"{stems[0]}_{stems[1][start:] or stems[1]}.prototxt"
