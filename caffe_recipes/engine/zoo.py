"""Which nets of a folder of prototxts the engine trains: two iterations on made-up data of the net's shapes.

Each net is tried in a process of its own, with bounds on its time and memory, at a batch of two images:

    python -m caffe_recipes.engine.zoo DIR [-o TABLE.md]
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.schema import load_lenient, parse_lenient, to_ours
from caffe_recipes.caffe.layer_types import detection, type_of
from caffe_recipes.caffe.prototxt import Document, is_kind, render_prototxt
from caffe_recipes.caffe.shapes import infer_shapes, select_layers
from caffe_recipes.caffe.upgrade import upgrade_net
from caffe_recipes.engine.communication import AgreedFailure, Ranks
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.operators.data import SOURCES, DataContext
from caffe_recipes.engine.settings import load_net, runnable_net
from caffe_recipes.engine.signal_requests import SignalRequests
from caffe_recipes.engine.solver import Solver
from caffe_recipes.engine.supported import check_supported
from caffe_recipes.engine.updates import flatten_params
from caffe_recipes.errors import CaffeRecipesError, InputError, RunFailed
from caffe_recipes.wording import one_line, shorten

BATCH = 2
MOST_S = 180
MOST_BYTES = 12 * 2**30
# What readers are tried with whose images have an unknown size. The last ones are three frames (colours,
# and flow), a text, and 16 or 8 frames of a video.
_SIZES = (
    (3, 224, 224),
    (3, 360, 480),
    (1, 28, 28),
    (2, 28, 28),
    (3, 32, 32),
    (3, 473, 473),
    (9, 224, 224),
    (30, 224, 224),
    (1, 1014, 1),
    (3, 16, 112, 112),
    (3, 8, 112, 112),
)
_IMAGES = tuple((BATCH, *size) for size in _SIZES)
_NOT_COUNTED = ("Python", "MemoryData")  # code of the user's own
_DETECTION = (
    *(entry.name for entry in detection.TYPES),
    *("MultiBoxLoss", "RegionLoss", "Yolov3", "YoloDetectionOutput"),
)
_SUFFIXES = (".prototxt", ".pt", ".txt")


@dataclass(frozen=True)
class Tried:
    """A net of a folder: its layers in TRAIN, why it does not train ("" if it does), whether it counts.

    `replaced` are the types of its readers that the engine does not run. Like all readers, they are
    replaced by made-up data. `is_detector` says whether it has layers of detectors.
    """

    path: str
    layers: int
    why: str
    is_counted: bool
    replaced: str = ""
    is_detector: bool = False


def made_up(net: Any, image: Sequence[int]) -> Any:  # noqa: ANN401 - of ours, or in the schema of all Caffes
    """Return a TRAIN net whose readers are DummyData of its shapes, or else of an `image` and targets."""
    made = deepcopy(net)
    del made.layer[:]
    made.layer.extend(select_layers(net, pb.TRAIN, stages=net.state.stage))
    _shrink(made)
    found = infer_shapes(made, pb.TRAIN)
    readers = [
        (layer, shapes.tops)
        for layer, shapes in zip(made.layer, found.layers, strict=True)
        if type_of(layer).is_reader and layer.type != "DummyData"
    ]
    for layer, tops in readers:
        layer.type = "Input"
        layer.ClearField("transform_param")
        layer.input_param.shape.add(dim=_known(tops[0], image))
        for shape in tops[1:]:
            layer.input_param.shape.add(dim=() if shape is None else _known(shape, image))
    unknown = {
        name
        for layer, tops in readers
        for name, shape in zip(layer.top, tops, strict=True)
        if shape is None or name == layer.top[0]  # an image of unknown size, or labels of their own reader
    }
    is_text = any(
        layer.type == "Embed" for layer in made.layer
    )  # its first word, as the first class of labels
    for layer, _ in readers:
        is_image = [i == 0 and not _is_target(made, name) for i, name in enumerate(layer.top)]
        shapes = [
            _target(made, name, image) if name in unknown and not is_image[i] else None
            for i, name in enumerate(layer.top)
        ]
        layer.type = "DummyData"
        for index, given in enumerate(layer.input_param.shape):
            layer.dummy_data_param.shape.add(dim=shapes[index] or given.dim)
            is_noise = is_image[index] and not is_text
            kind = {"type": "gaussian", "std": 1} if is_noise else {"type": "constant"}
            layer.dummy_data_param.data_filler.add(**kind)
    return made


def _shrink(net: Any) -> None:  # noqa: ANN401
    """Give all layers the batch of two images, and leave out the rules by which they were selected."""
    for layer in net.layer:
        del layer.include[:], layer.exclude[:]
        if batch_block := type_of(layer).batch_block:
            getattr(layer, batch_block).batch_size = BATCH
        for shape in layer.dummy_data_param.shape:
            shape.dim[:1] = [min(shape.dim[0], BATCH)] if shape.dim else []
        if layer.dummy_data_param.num:
            layer.dummy_data_param.num[:] = [min(each, BATCH) for each in layer.dummy_data_param.num]
        if layer.batch_norm_param.stats_batch_size:
            layer.batch_norm_param.stats_batch_size = BATCH
    if net.HasField("bn_stats_batch_size"):
        net.bn_stats_batch_size = BATCH


def _known(shape: Sequence[int | None] | None, image: Sequence[int]) -> list[int]:
    """Return a shape with its unknown sizes filled in."""
    return [
        size or image[min(axis, len(image) - 1)] for axis, size in enumerate(shape or [None] * len(image))
    ]


def _is_target(net: Any, name: str) -> bool:  # noqa: ANN401
    """Return whether layers only compare something with a blob, as with labels from a reader of their own."""
    readers = [layer.bottom for layer in net.layer if name in layer.bottom]
    return bool(readers) and all(name in bottoms[1:] for bottoms in readers)


def _target(net: Any, name: str, image: Sequence[int]) -> Sequence[int]:  # noqa: ANN401
    """Return the shape of targets, whose size the data say: that of what a layer compares them with."""
    for reader in net.layer:
        if name in reader.bottom and reader.type == "Interp":
            return (BATCH, 1, *image[2:])
        if name in reader.bottom and len(reader.bottom) > 1:
            if type_of(reader).is_view:  # each top is a bottom, as of a Gather
                return _target(net, reader.top[list(reader.bottom).index(name)], image)
            other = next(blob for blob in reader.bottom if blob != name)
            cut = deepcopy(net)
            del cut.layer[[layer.name for layer in net.layer].index(reader.name) :]
            try:
                shape = infer_shapes(cut, pb.TRAIN).blobs[other] or (BATCH,)
            except CaffeRecipesError:
                return (BATCH,)
            sizes = [size or 1 for size in shape]
            if type_of(reader).is_classifier:
                del sizes[reader.softmax_param.axis]
            return sizes
    return (BATCH,)


def without_foreign_readers(path: Path) -> tuple[Document[Any], list[int]]:
    """Return the net in a file with readers that the engine runs, and the sides of the images they cropped.

    Another Caffe's reader becomes one whose shapes are unknown; our readers lose the fields of other Caffes.
    """
    document = load_lenient(path)
    if not is_kind(document.message, pb.NetParameter):
        raise InputError(path, "is not a net", "give the prototxt of a net")
    net = upgrade_net(document.message).message
    layers, sides = [], []
    for layer in net.layer:
        ours: Any = to_ours(layer)
        if is_foreign_reader(layer):
            if side := ours.transform_param.crop_size:
                sides.append(side)
            kept = pb.LayerParameter(
                name=layer.name, top=layer.top, include=ours.include, exclude=ours.exclude
            )
            kept.type = "HDF5Data"
            kept.hdf5_data_param.batch_size = BATCH
            layers.append(kept)
        else:
            layers.append(ours if type_of(layer).is_reader else layer)
    del net.layer[:]
    texts = [render_prototxt(net), *(f"layer {{\n{render_prototxt(layer)}}}\n" for layer in layers)]
    return parse_lenient("".join(texts), path), sides


def is_foreign_reader(layer: pb.LayerParameter) -> bool:
    """Return whether a layer reads data in a way that the engine does not run."""
    if layer.type in SOURCES or layer.bottom or not layer.top or layer.type in _NOT_COUNTED:
        return False
    return type_of(layer).is_reader or layer.type.lower().endswith("data")


def train_twice(path: Path) -> None:
    """Train the net in a file for two iterations. Raises CaffeRecipesError if the engine cannot."""
    document, sides = without_foreign_readers(path)
    net = runnable_net(document)
    net.state.phase = pb.TRAIN
    net.state.stage.extend(_find_stage(net))
    check_supported([(net, str(path))])
    log = Log(enabled=False)
    param = pb.SolverParameter(
        base_lr=1e-6, lr_policy="fixed", max_iter=2, type="SGD", snapshot_after_train=False
    )
    runnable = _set_up(net, str(path), [*((BATCH, 3, side, side) for side in sides), *_IMAGES], log)
    solver = Solver(param, runnable, flatten_params(runnable, param), [], Ranks(), SignalRequests(), log)
    try:
        solver.solve()
    except AgreedFailure as failure:  # such as a loss that is not finite
        raise RunFailed(path, failure.text) from None


def _find_stage(net: pb.NetParameter) -> list[str]:
    """Return the first stage in which a net has data, for one that has none without a stage."""
    stages = dict.fromkeys(name for layer in net.layer for rule in layer.include for name in rule.stage)
    for stage in ([], *([name] for name in stages)):
        if net.input or any(not layer.bottom for layer in select_layers(net, pb.TRAIN, stages=stage)):
            return stage
    return []


def _set_up(net: Any, path: str, images: Iterable[Sequence[int]], log: Log) -> RunnableNet:  # noqa: ANN401
    """Return a net with data of the first of `images` that fits. Raises what the first one raises."""
    first: InputError | None = None
    for image in images:
        context, generator = DataContext(0, 1, 0, 0, log), torch.Generator().manual_seed(0)
        try:
            return RunnableNet(made_up(net, image), path, context, generator)
        except InputError as error:
            first = first or error
    assert first is not None
    raise first


def _try(path: Path, answer: Connection) -> None:
    """Send why a net does not train; in a process of its own."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    torch.set_num_threads(1)
    try:
        train_twice(path)
        answer.send("")
    except CaffeRecipesError as error:
        answer.send(_reason(path, error))
    except MemoryError:
        answer.send(f"needs over {MOST_BYTES // 2**30} GiB of memory")


def _reason(path: Path, error: CaffeRecipesError) -> str:
    """Return what is wrong with a file, in one line without its path."""
    return one_line(str(error)).replace(f"{path}:", "").lstrip()


def why_not(path: Path, most_s: float = MOST_S) -> str:
    """Return why a net does not train two iterations; "" if it does."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    child = fork.Process(target=_try, args=(path, theirs))
    child.start()
    theirs.close()
    try:
        why: str = ours.recv() if ours.poll(most_s) else f"takes over {most_s:g} s"
    except EOFError:
        why = "its process died"
    child.kill()
    child.join()
    return why


def try_nets(folder: Path, most_s: float = MOST_S) -> Iterable[Tried]:
    """Yield each net with a loss below a folder; of files with the same content, the first."""
    seen = set()
    for path in sorted(folder.rglob("*")):
        if path.suffix not in _SUFFIXES or not path.is_file() or (content := path.read_bytes()) in seen:
            continue
        seen.add(content)
        is_detector = any(f'"{name}"'.encode() in content for name in _DETECTION)
        try:
            message = load_lenient(path).message
            if not is_kind(message, pb.NetParameter):
                continue
            layers = select_layers(upgrade_net(message).message, pb.TRAIN)
        except CaffeRecipesError as error:
            if b"loss" in content.lower() and b"layer" in content:
                why = _reason(path, error)
                name = str(path.relative_to(folder))
                yield Tried(name, 0, why, is_counted=True, is_detector=is_detector)
            continue
        if any("Loss" in layer.type or any(layer.loss_weight) for layer in layers):
            counted = not any(layer.type in _NOT_COUNTED for layer in layers)
            why = why_not(path, most_s) if counted else "has layers of the user's own code"
            name, replaced = str(path.relative_to(folder)), _replaced(path, layers)
            yield Tried(name, len(layers), why, counted, replaced, is_detector)


def _replaced(path: Path, layers: Iterable[Any]) -> str:
    """Return what of a net's readers the engine does not run."""
    types = dict.fromkeys(layer.type for layer in layers if is_foreign_reader(layer))
    try:
        load_net(str(path))
    except CaffeRecipesError:
        return ", ".join(types) or "fields of its readers"
    return ", ".join(types)


def render_zoo(nets: Sequence[Tried]) -> str:
    """Return the results as Markdown."""
    counted = [net for net in nets if net.is_counted]
    others = [net for net in counted if not net.is_detector]
    trained = sum(not net.why for net in counted)
    rows = [f"| {net.path} | {net.layers or ''} | {_answer(net)} | {_cell(net.why)} |" for net in nets]
    head = (
        f"{trained} of {len(counted)} nets with a loss train two iterations ({_share(counted)}), and "
        f"{_share(others)} of the {len(others)} that are not detectors; "
    )
    without = sum(not net.why and bool(net.replaced) for net in counted)
    note = f"{without} of them have a reader that the engine does not run; it is replaced like all others."
    table = ["| net | layers | trains | why not |", "|---|---|---|---|", *rows]
    return "\n".join(
        [
            f"{head}nets with {' or '.join(_NOT_COUNTED)} layers do not count.",
            *[note] * (without > 0),
            "",
            *table,
            "",
        ]
    )


def _share(nets: Sequence[Tried]) -> str:
    return f"{100 * sum(not net.why for net in nets) / max(1, len(nets)):.0f}%"


def _answer(net: Tried) -> str:
    return "no" if net.why else f"yes, without {net.replaced}" if net.replaced else "yes"


def _cell(text: str) -> str:
    return shorten(text.replace("|", "\\|"), 300)


def main(words: Sequence[str]) -> int:
    """Try the nets below a folder, and write the table of results."""
    if len(words) not in (1, 3) or not Path(words[0]).is_dir() or words[1:2] not in ([], ["-o"]):
        print("usage: python -m caffe_recipes.engine.zoo DIR [-o TABLE.md]", file=sys.stderr)
        return 2
    nets = []
    for net in try_nets(Path(words[0])):
        print(f"{net.path}: {net.why or 'trains'}", file=sys.stderr, flush=True)
        nets.append(net)
    table = render_zoo(nets)
    if len(words) == 3:
        Path(words[2]).write_text(table)
    else:
        print(table, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
