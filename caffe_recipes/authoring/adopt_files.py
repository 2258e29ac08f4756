"""Read the solvers, nets and script of a folder that `adopt` turns into a recipe.

The solvers give the phases, their order, and what each starts from; the nets give the keys of `data` and
`net`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from caffe_recipes.authoring.adopt_sources import (
    as_recipe_solvers,
    convert_with_notes,
    files_of,
    find_unsupported,
    guess_dialect,
    load_joined_net,
    load_solvers,
    phase_name,
    read_nets,
    with_phases,
)
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import (
    Chain,
    Link,
    NetDocument,
    SolverDocument,
    plan_starts,
    read_links,
    split_weights,
)
from caffe_recipes.caffe.dialects import OURS
from caffe_recipes.caffe.layers import source_batch
from caffe_recipes.caffe.nets import BUILDERS
from caffe_recipes.caffe.prototxt import MOST_BYTES, read_prototxt
from caffe_recipes.caffe.shapes import select_layers
from caffe_recipes.caffe.text.writer import float_text, string_text
from caffe_recipes.errors import InputError, PrototxtError, join_errors
from caffe_recipes.recipe.net_keys import NET_FILES, Transformation
from caffe_recipes.render.prototxts import reads_other_files
from caffe_recipes.review.lint.findings import split_place
from caffe_recipes.review.lint.folders import find_script, order_solvers
from caffe_recipes.review.lint.scripts import Script, load_script
from caffe_recipes.review.lint.solver_chains import apply_command, find_training
from caffe_recipes.wording import join_names


@dataclass(frozen=True)
class PhaseStart:
    """What a phase starts from: an earlier phase (its name), a weights file, or else the net's fillers."""

    phase: str = ""
    iteration: int | None = None
    file: str = ""
    why: str = ""


@dataclass(frozen=True)
class Adopted:
    """The content of a folder: phases in order, what each starts from, and the nets by file name (stem).

    `target` is the folder, or the solver in it that was given. `tested` is the name of the net that the
    script tests, and `untested` those of the nets that neither it nor a solver tests; `notes` list what was
    guessed or left out.
    """

    target: Path
    folder: Path
    links: tuple[Link, ...]
    starts: tuple[PhaseStart, ...]
    nets: Mapping[str, NetDocument]
    script: Script
    script_text: str = ""
    script_name: str = ""
    tested: str = ""
    notes: tuple[str, ...] = ()
    dialect: str = OURS
    untested: frozenset[str] = frozenset()


def read_folder(
    target: Path, script_file: Path | None, caffe_root: Path | None, given_dialect: str | None = None
) -> Adopted:
    """Read the solvers of a folder, or a single solver, with their nets and the script that starts them.

    Raises InputError or PrototxtError for a folder without solvers, for solvers in unknown order, for a net
    that is not found, and for a start of a phase that a recipe cannot express.
    """
    foreign = load_solvers(target)
    dialect, notes = guess_dialect(foreign, caffe_root, given_dialect)
    refused: dict[str, list[PrototxtError]] = {solver.path: [] for solver in foreign}
    converted = [convert_with_notes(solver, dialect, notes, refused[solver.path]) for solver in foreign]
    solvers, solver_notes = as_recipe_solvers(converted, dialect)
    notes += solver_notes
    folder = target if target.is_dir() else target.parent
    script = load_script(script_file, MOST_BYTES) if script_file else find_script(folder, solvers)
    ordered, order_notes = _order(folder, solvers, script, is_given=script_file is not None)
    notes += order_notes
    unsupported: list[InputError] = []
    for one in ordered:
        of_solver = [*refused[one.path], *find_unsupported(one)]
        in_order = sorted(of_solver, key=lambda each: split_place(each.where)[1:])
        unsupported += sorted(in_order, key=lambda each: not split_place(each.where)[1])  # no line: last
    if unsupported:
        raise join_errors(unsupported)
    nets: dict[str, NetDocument] = {}
    links = []
    for given in ordered:
        solver, net, net_notes = load_joined_net(given, caffe_root, dialect)
        notes += [note for note in net_notes if note not in notes]
        name = Path(net.path).stem
        files, others = files_of(net), files_of(nets.setdefault(name, net))
        if files != others:
            what = f"net: {' and '.join(files)} and {' and '.join(others)} have the same name"
            raise InputError(solver.where("net"), what, "rename one of them")
        links.append(_link(solver, nets[name], script))
    _refuse_resumed(links, script)
    starts = tuple(_phase_starts(links))
    notes += [f"{link.name} {start.why}" for link, start in zip(links, starts, strict=True) if start.why]
    path = script.trainings[0].where.rpartition(":")[0] if script.trainings else ""
    text = read_prototxt(path, MOST_BYTES) if path else ""
    found = Adopted(
        target, folder, tuple(links), starts, nets, script, text, Path(path).name, "", tuple(notes), dialect
    )
    return _with_untested(_with_tested(found))


def _order(
    folder: Path, solvers: Sequence[SolverDocument], script: Script, *, is_given: bool
) -> tuple[list[SolverDocument], list[str]]:
    """Return the solvers in training order, and notes; raises InputError if they may be alternatives."""
    if len(solvers) == 1:
        return list(solvers), []
    ordered, why = order_solvers(solvers, script)
    left = [solver for solver in solvers if solver not in ordered]
    # In a folder with several chains, each has its own script.
    if not ordered or (left and not is_given and find_script(folder, left).trainings):
        names = ", ".join(Path(solver.path).name for solver in solvers)
        one = f"adopt one of them (`caffe-recipes adopt {solvers[0].path}`)"
        what = f"contains {len(solvers)} solvers in unknown order: {names}"
        raise InputError(
            folder, what, f"{one}, or give the script that trains them as a chain (--script FILE)"
        )
    notes = [f"order {why}: {', '.join(Path(solver.path).name for solver in ordered)}"]
    if left:
        names = ", ".join(Path(solver.path).name for solver in left)
        notes.append(f"left out: {names}, which the script does not train")
    return ordered, notes


def _link(solver: SolverDocument, net: NetDocument, script: Script) -> Link:
    own = getattr(solver.given, "weights", ())  # of BVLC's Caffe; a command's --weights overrides it
    if len(own) > 1:
        what = f"weights: is given {len(own)} times, but a phase starts from one file"
        raise InputError(solver.where("weights[1]"), what, "keep one")
    (alone,) = read_links(solver, phase_name(solver.path))
    return apply_command(replace(alone, net=net), find_training(script, solver.path))


def _refuse_resumed(links: Sequence[Link], script: Script) -> None:
    """Raise InputError for a chain that continues with `--snapshot`; the hint gives an equivalent solver."""
    for link in links:
        if link.resumes:
            what = f"{link.name} resumes {link.resumes}, but a recipe's phases start from weights"
            first = script.trainings[0].solver if script.trainings else "the solver that writes it"
            fields = _as_one_solver([one.solver.message for one in links])
            hint = f"adopt {first} alone, changed to {fields}" if fields else f"adopt {first} alone"
            raise InputError(link.weights_where, what, hint)


def _as_one_solver(solvers: Sequence[pb.SolverParameter]) -> str:
    """Return the fields of one solver that replaces phases whose fixed rates fall by equal factors; else "".

    >>> ends = {1000: 0.1, 1500: 0.01, 1800: 0.001}
    >>> make = pb.SolverParameter
    >>> _as_one_solver([make(lr_policy="fixed", base_lr=ends[end], max_iter=end) for end in ends])
    'lr_policy: "multistep" gamma: 0.1 stepvalue: 1000 stepvalue: 1500 max_iter: 1800'
    """
    factors = {
        f"{after.base_lr / before.base_lr:.6g}" for before, after in pairwise(solvers) if before.base_lr
    }
    if {solver.lr_policy for solver in solvers} != {"fixed"} or len(factors) != 1:
        return ""
    steps = " ".join(f"stepvalue: {solver.max_iter}" for solver in solvers[:-1])
    return f'lr_policy: "multistep" gamma: {factors.pop()} {steps} max_iter: {solvers[-1].max_iter}'


def _phase_starts(links: Sequence[Link]) -> Iterator[PhaseStart]:
    starts = plan_starts(Chain(tuple(links)))
    for index, (link, start) in enumerate(zip(links, starts, strict=True)):
        if start is not None:
            before = links[start.index]
            is_last = start.iteration == before.last_iter
            which = "the last snapshot" if is_last else f"iteration {start.iteration}"
            how = "guessed"
            if start.is_guess:
                how += f": of {start.candidates} snapshots, the one whose rate is nearest"
            why = f"starts from {which} of {before.name} ({how})" if link.weights is None else ""
            yield PhaseStart(before.name, None if is_last else start.iteration, why=why)
        elif link.weights:
            if files := link.weights.count(","):  # Caffe copies each of them, in this order
                what = f"{link.name} starts from {files + 1} files, {link.weights}, but a phase from one"
                raise InputError(link.weights_where, what, "keep one")
            if not link.weights.endswith(".caffemodel"):
                what = f"{link.name} starts from {link.weights}, which is not a .caffemodel"
                raise InputError(link.weights_where, what, "name the file that Caffe writes")
            prefix = split_weights(link.weights)[0]
            yield PhaseStart(file=link.weights, why=f"starts from {prefix}, which no phase writes")
        elif index and link.weights is None:
            what = f"{links[index - 1].name} writes no snapshot for {link.name} to start from"
            raise InputError(link.solver.path, what, "fix its max_iter and snapshot")
        else:
            yield PhaseStart()


def _with_tested(found: Adopted) -> Adopted:
    """Set the net that the script tests: one of the nets, or another file in the folder."""
    for model in found.script.tested:
        file = found.folder / Path(model).name
        if file.stem in found.nets:
            return replace(found, tested=file.stem)
        if file.is_file():
            notes: list[str] = []
            net = read_nets([file], found.folder, None, found.dialect, notes)
            nets = {**found.nets, file.stem: net}
            return replace(found, tested=file.stem, nets=nets, notes=(*found.notes, *notes))
    return found


def _with_untested(found: Adopted) -> Adopted:
    """Set the nets that nothing tests, and give the Data layers of each net the phases that they are for.

    Nets that keep their data layers stay as they are.
    """
    links = [(Path(link.net.path).stem if link.net else "", link) for link in found.links]
    tested = {name for name, link in links if link.solver.message.test_iter}
    tested |= {Path(model).stem for model in found.script.tested}
    untested = frozenset(found.nets) - tested
    if find_other_data(found.nets.values()):
        return replace(found, untested=untested)
    notes = [*found.notes]
    nets = {name: with_phases(net, notes, is_tested=name in tested) for name, net in found.nets.items()}
    return replace(
        found,
        untested=untested,
        nets=nets,
        links=tuple(replace(link, net=nets.get(name)) for name, link in links),
        notes=tuple(notes),
    )


def find_other_data(nets: Iterable[NetDocument]) -> str:
    """Return what the nets' data layers read if a recipe's cannot replace them, as in `ImageData`; else "".

    These are layers that read no LMDB, and two for the same phase.
    """
    for net in nets:
        for phase in (pb.TRAIN, pb.TEST):
            sources = _sources(net, phase)
            data = [layer for layer in sources if layer.type == "Data"]
            others = [layer for layer in sources if reads_other_files(layer)]
            if not data and not others:
                others = [layer for layer in sources if phase == pb.TRAIN or source_batch(layer)]
            if others:
                return str(others[0].type)
            if any(layer.data_param.backend == pb.DataParameter.LEVELDB for layer in data):
                return "a LevelDB"
            if len(data) > 1:
                return "two LMDBs"
    return ""


def data_values(net: NetDocument) -> dict[str, Any]:
    """Return the keys of `data` from a net's data layers, without the numbers of images.

    Raises InputError for a net without a Data layer for TRAIN.
    """
    train, test = _data_layer(net, pb.TRAIN), _data_layer(net, pb.TEST)
    if train is None:
        raise InputError(net.where(), describe_no_data(net), "add one that reads an LMDB")
    data = train.data_param
    values: dict[str, Any] = {"train": {"lmdb": data.source}, "test": {}}
    if data.HasField("shuffle"):
        values["train"]["shuffle"] = data.shuffle
    if data.HasField("prefetch"):
        values["train"]["prefetch"] = data.prefetch
    if test is not None:
        values["test"] = {"lmdb": test.data_param.source, "batch_size": test.data_param.batch_size}
        resize = test.transform_param.random_resize_param
        if test.transform_param.HasField("random_resize_param"):
            values["test"]["shorter_side_px"] = resize.min_size
            values["test"]["interp_mode"] = _interpolation(resize.resize_param)
    _add_transforms(values, train, test)
    return values


def describe_no_data(net: NetDocument) -> str:
    """Return that a net has no data for TRAIN that adopt can use, and what it reads instead."""
    sources = [f"`input: {string_text(name)}`" for name in net.message.input]
    layers = select_layers(net.message, pb.TRAIN)
    sources += [f"'{layer.name}' ({layer.type})" for layer in layers if not layer.bottom]
    others = f"; its data come from {join_names(sources)}" if sources else ""
    return f"has no data layer with a batch_size for TRAIN{others}"


def _add_transforms(values: dict[str, Any], train: pb.LayerParameter, test: pb.LayerParameter | None) -> None:
    """Add the transformation: shared keys under `data`, all others under `train` and `test`."""
    ours = _transform_values(train)
    theirs = ours if test is None else _transform_values(test)
    for key in Transformation.model_fields:
        own, other = ours.get(key), theirs.get(key)
        is_shared = own == other if key != "mirror" else own is not None and (test is None or other is False)
        if is_shared:
            values |= {} if own is None else {key: own}
            continue
        if key == "mirror":
            values[key] = None
        for part, value in (("train", own), ("test", other)):
            values[part] |= {} if value is None else {key: value}


def _transform_values(layer: pb.LayerParameter) -> dict[str, Any]:
    """Return the transformation of a data layer as keys of a recipe."""
    values: dict[str, Any] = {}
    for field, value in layer.transform_param.ListFields():
        if field.name == "mean_value":
            values[field.name] = tuple(_float(one) for one in value)
        elif field.name in Transformation.model_fields:
            values[field.name] = _float(value) if field.name == "scale" else value
    return values


def batch_per_rank_of(net: NetDocument) -> int:
    """Return the batch size per rank; raises InputError if the net gives none."""
    if size := next(filter(None, map(source_batch, _sources(net, pb.TRAIN))), 0):
        return size
    raise InputError(net.path, describe_no_data(net), "add one that reads an LMDB")


def _sources(net: NetDocument, phase: int) -> list[pb.LayerParameter]:
    """Return the layers of a phase that have no bottoms, among them its data layers."""
    return [layer for layer in select_layers(net.message, phase) if not layer.bottom]


def find_sources(nets: Iterable[NetDocument], phase: int) -> tuple[str, int]:
    """Return what the first data layer of a phase names as its source, or else "", and its batch size."""
    for net in nets:
        for layer in _sources(net, phase):
            params = (param for field, param in layer.ListFields() if field.message_type)
            named = (param.source for param in params if isinstance(getattr(param, "source", None), str))
            if size := source_batch(layer):
                return next(filter(None, named), ""), size
    return "", 1


def variant_values(net: NetDocument, *, is_data_kept: bool = False, is_tested: bool = True) -> dict[str, Any]:
    """Return the keys of an entry of `nets`: the augmentation, and whether it has TEST data.

    If the net's data layers are kept, so is their augmentation; those of TRAIN are no TEST data of a net that
    nothing tests.
    """
    values: dict[str, Any] = {}
    train = _data_layer(net, pb.TRAIN)
    if is_data_kept:
        trained = [] if is_tested else _sources(net, pb.TRAIN)
        has_tests = any(layer not in trained for layer in _sources(net, pb.TEST))
        return {} if has_tests else {"test": False}
    if train is not None and train.transform_param.HasField("random_aspect_ratio_param"):
        ratio = train.transform_param.random_aspect_ratio_param
        values["random_aspect_ratio"] = {
            "min_area_ratio": _float(ratio.min_area_ratio),
            "max_area_ratio": _float(ratio.max_area_ratio),
            "aspect_ratio_change": _float(ratio.aspect_ratio_change),
            "interp_mode": _interpolation(ratio.resize_param),
        }
    if _data_layer(net, pb.TEST) is None:
        values["test"] = False
    return values


def guess_nets(net: NetDocument, classes: int) -> Iterator[dict[str, Any]]:
    """Yield the keys of `net` for every builder, with the given net's fillers and batch-norm fraction."""
    fillers = dict(_fillers(net.message))
    norms = [layer.batch_norm_param for layer in net.message.layer if layer.type == "BatchNorm"]
    fraction = _float(norms[0].moving_average_fraction) if norms else 0
    if len(fillers) < 3 or not 0 < fraction < 1:
        return
    for builder in BUILDERS:
        for zero_init in ("last-block", "every-block", "none"):
            yield {
                "name": net.message.name,
                "classes": classes,
                "builder": builder,
                "batch_norm_fraction": fraction,
                "zero_init": zero_init,
                "fillers": fillers,
            }


def count_classes(net: NetDocument) -> int:
    """Return the outputs of a net's last inner product, or else its last convolution; 0 if it has neither."""
    counts = {
        "InnerProduct": [one.inner_product_param.num_output for one in net.message.layer],
        "Convolution": [one.convolution_param.num_output for one in net.message.layer],
    }
    return next((int(one) for kind in counts.values() for one in reversed(kind) if one), 0)


def has_classifier(net: NetDocument) -> bool:
    """Return whether a net has an inner product, whose outputs are then its classes."""
    return any(one.type == "InnerProduct" and one.inner_product_param.num_output for one in net.message.layer)


def _fillers(net: pb.NetParameter) -> Iterator[tuple[str, dict[str, Any]]]:
    convolutions = [layer.convolution_param for layer in net.layer if layer.type == "Convolution"]
    products = [layer.inner_product_param for layer in net.layer if layer.type == "InnerProduct"]
    for key, params in (
        ("conv1", convolutions[:1]),
        ("conv", convolutions[1:2]),
        ("classifier", products[-1:]),
    ):
        for param in params:
            yield key, {name: value for name, value in _fields(param.weight_filler) if value is not None}


def _fields(filler: pb.FillerParameter) -> Iterator[tuple[str, Any]]:
    yield "type", filler.type
    for name in ("value", "min", "max", "mean", "std"):
        if filler.HasField(name):
            yield name, _float(getattr(filler, name))
    if filler.HasField("variance_norm"):
        yield "variance_norm", pb.FillerParameter.VarianceNorm.Name(filler.variance_norm)


def _data_layer(net: NetDocument, phase: int) -> pb.LayerParameter | None:
    """Return the Data layer of a phase; one without `include` belongs to both phases."""
    for layer in net.message.layer:
        phases = {rule.phase for rule in layer.include if rule.HasField("phase")}
        if layer.type == "Data" and (phase in phases or not phases):
            return layer
    return None


def _interpolation(param: pb.ResizeParameter) -> str:
    given = param.interp_mode[0] if param.interp_mode else pb.ResizeParameter.LINEAR
    return pb.ResizeParameter.Interp_mode.Name(given)


def _float(value: float) -> float:
    return float(float_text(value))


def prototxt_net(net: NetDocument, classes: int, folder: Path) -> dict[str, Any]:
    """Return the keys of `net` for one or two prototxts, with paths relative to the recipe's folder."""
    paths = (os.path.relpath(file, folder).replace(os.sep, "/") for file in files_of(net))
    name = net.message.name or Path(net.path).stem
    return {"name": name, "classes": classes, **dict(zip(NET_FILES, paths, strict=False))}
