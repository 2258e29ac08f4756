"""Turn existing solvers and nets into a recipe that generates files equal to them as messages."""

from __future__ import annotations

import math
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from caffe_recipes.authoring.adopt_cluster import AdoptOptions, find_cluster, find_images, find_trainer_path
from caffe_recipes.authoring.adopt_files import (
    Adopted,
    PhaseStart,
    batch_per_rank_of,
    count_classes,
    data_values,
    find_other_data,
    find_sources,
    guess_nets,
    has_classifier,
    prototxt_net,
    read_folder,
    variant_values,
)
from caffe_recipes.authoring.adopt_sources import DROPPED
from caffe_recipes.authoring.recipe_yaml import NewRecipe, clean_name, make_recipe, write_recipe
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import Link, NetDocument, SolverDocument
from caffe_recipes.caffe.dialects import OURS
from caffe_recipes.caffe.text.writer import float_text
from caffe_recipes.config import Location, YamlSource, validate
from caffe_recipes.errors import CaffeRecipesError, InputError
from caffe_recipes.recipe.model import AS_IN_NET, Phase, Recipe
from caffe_recipes.render.prototxts import build_net, build_solver
from caffe_recipes.review.diff.messages import diff_messages
from caffe_recipes.review.diff.nets import diff_nets
from caffe_recipes.review.naming import is_file
from caffe_recipes.wording import describe_count


def phase_values(found: Adopted, index: int) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of a phase, and notes on it.

    Raises InputError, with the solver's file and field, for settings that a recipe's phase cannot have.
    """
    link, start = found.links[index], found.starts[index]
    settings, notes = solver_values(link)
    before = found.links[index - 1].name if index else ""
    values = {
        "name": link.name,
        "net": PurePosixPath(link.net.path).stem if link.net else "",
        **_start_keys(start, before, is_first=not index),
        **settings,
    }
    _check(link.solver, values)
    return values, notes


def solver_values(link: Link) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a solver as keys of its phase, and notes on the fields that will differ."""
    solver = link.solver
    values: dict[str, Any] = {}
    notes = []
    for field, value in solver.message.ListFields():
        if field.name == "net":
            continue
        if field.name in DROPPED:
            notes.append(f"{link.name} drops {field.name}: {DROPPED[field.name]}")
            continue
        values[field.name] = _plain(solver, field, value)
    if link.last_iter != solver.message.max_iter:
        values["stop_iter"] = link.last_iter
    if not values.get("snapshot"):
        note = f"gets snapshot: {link.last_iter}, the iteration of Caffe's final snapshot"
        notes.append(f"{link.name} {note}")
    if values.get("snapshot", 0) in (0, link.last_iter):
        values.pop("snapshot", None)
    return values, notes


def _start_keys(start: PhaseStart, before: str, *, is_first: bool) -> dict[str, Any]:
    at = {"weights_iter": start.iteration} if start.iteration is not None else {}
    if start.phase:
        return at if start.phase == before else {"weights": start.phase, **at}
    if start.file:
        return {"weights": start.file}
    return {} if is_first else {"weights": "none"}


def _plain(solver: SolverDocument, field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401 - as the field is
    if field.name == "test_iter":
        if len(value) > 1:
            what = f"test_iter: is given {len(value)} times, but a recipe has one test net"
            raise InputError(solver.where("test_iter[1]"), what, "keep one")
        return value[0]
    if field.is_repeated:
        return tuple(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    is_float = field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
    return float(float_text(value)) if is_float else value


def _check(solver: SolverDocument, values: Mapping[str, Any]) -> None:
    """Validate the keys of a phase; errors have the solver's file and line."""
    lines: dict[Location, int] = {(): 1}
    for key in values:
        place = solver.where(key if key in solver.offsets else f"{key}[0]")
        line = place.rsplit(":", 2)[1:2] if place != solver.path else []
        if line:
            lines[(key,)] = int(line[0])
    validate(YamlSource(solver.path, "solver of a recipe", values, lines, InputError), Phase)


def adopt(
    target: Path,
    options: AdoptOptions,
    *,
    name: str | None = None,
    script: Path | None = None,
    home: Path = Path(),
) -> NewRecipe:
    """Turn the files of a folder, or one solver, into a recipe whose YAML will be in the folder `home`.

    Raises InputError or PrototxtError, with file and field, for anything that a recipe cannot express.
    """
    found = read_folder(target, script, options.caffe_root, options.dialect)
    first = found.links[0].net
    assert first is not None  # read_folder finds the net of every solver
    values, comments, notes = _values(found, first, options, name)
    classes, counted = options.classes, count_classes(first)
    if classes and classes != counted and has_classifier(first):
        raise InputError("--classes", f"the net has {counted:,} classes, not {classes:,}", "omit it")
    classes = classes or counted
    if not classes:
        raise InputError(first.path, "has no classifier layer", "give --classes N")
    recipe, origin = _with_net(values, found, first, classes, home, _given_options(options))
    comments |= {("net",): [origin]}
    dropped = [*_check_same(recipe, found), *_warn_replaced(recipe)]
    lines = (*found.notes, *notes, *dropped, f"net: {origin}")
    return NewRecipe(recipe, write_recipe(recipe, comments), lines)


def _values(
    found: Adopted, first: NetDocument, options: AdoptOptions, name: str | None
) -> tuple[dict[str, Any], dict[Location, list[str]], list[str]]:
    """Return a recipe's values without its net, comments on where the values come from, and notes."""
    folder = found.folder.absolute().name
    trainer, trainer_from = find_trainer_path(found, options)
    other = find_other_data(found.nets.values())
    nets = {
        each: variant_values(net, is_data_kept=bool(other), is_tested=each not in found.untested)
        for each, net in found.nets.items()
    }
    tested = [net for each, net in found.nets.items() if nets[each].get("test", True)]
    data, data_notes = _data_in_nets(found, options, other, tested) if other else _data(found, first, options)
    cluster, cluster_notes = find_cluster(found, options, batch_per_rank_of(first))
    prototxt_dir, dir_notes = _prototxt_dir(found)
    phases, notes = [], [*cluster_notes, *data_notes, *dir_notes]
    comments: dict[Location, list[str]] = {
        (): [f"Adopted from the files in {folder}; `caffe-recipes generate` regenerates them."],
        ("trainer",): [trainer_from],
        ("prototxt_dir",): dir_notes,
        ("cluster",): cluster_notes,
        ("data",): data_notes,
    }
    for index, link in enumerate(found.links):
        phase, solver_notes = phase_values(found, index)
        phases.append(phase)
        notes += solver_notes
        why = found.starts[index].why
        file = Path(link.solver.path).name
        comments[("phases", index)] = [f"{file}: {why}" if why else file, *solver_notes]
    phase_count = describe_count(len(phases), "phase")
    values = {
        "name": name or clean_name(_name_of(found)) or "adopted",
        "title": f"{first.message.name or 'A net'} in {phase_count}, adopted from {folder}",
        "trainer": trainer,
        "prototxt_dir": prototxt_dir,
        "nets": nets,
        **data,
        "cluster": cluster,
        "phases": phases,
    }
    evaluation = _evaluation(found, nets, data)
    if evaluation:
        values["evaluation"] = evaluation
    return values, {place: lines for place, lines in comments.items() if lines}, notes


def _name_of(found: Adopted) -> str:
    """Return the recipe's name: the folder's, followed by the phase's if a single solver was given."""
    folder, phase = found.folder.absolute().name, found.links[0].name
    if found.target == found.folder or phase == "main":
        return folder
    return phase if phase.startswith(folder) else f"{folder}-{phase}"


def _given_options(options: AdoptOptions) -> dict[str, str]:
    """Return the option to name in an error, by recipe key; a batch is too large for --ranks or --images."""
    given = [option for option, value in (("--ranks", options.ranks), ("--images", options.images)) if value]
    return {"trainer": "--trainer"} | ({"cluster.batch_per_rank": given[0]} if given else {})


def _data(found: Adopted, first: NetDocument, options: AdoptOptions) -> tuple[dict[str, Any], list[str]]:
    """Return the TRAIN data of the first net, and the TEST data of the first net that has any, with notes."""
    data = data_values(first)
    tested = next((test for net in found.nets.values() if (test := data_values(net)["test"])), None)
    data["test"] = tested or {"lmdb": "none", "batch_size": 1}
    source = tested["lmdb"] if tested else ""
    train, test, notes = find_images(
        found, options, data["train"]["lmdb"], source, data["test"]["batch_size"]
    )
    data["train"]["images"], data["test"]["images"] = train, test
    if tested is None:
        notes.append("no net has TEST data: `test` is a placeholder")
    return {"data": data}, notes


def _data_in_nets(
    found: Adopted, options: AdoptOptions, other: str, tested: Sequence[NetDocument]
) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of a recipe whose nets keep their data layers, since they read `other` data."""
    source, _ = find_sources(found.nets.values(), pb.TRAIN)
    train, test, notes = find_images(found, options, source, *find_sources(tested, pb.TEST))
    kept = f"the nets read {other}: they keep their data layers, and runs leave these data alone"
    images = {"images": train, "test_images": test} if tested else {"images": train}
    return {**images, "data": AS_IN_NET}, [*notes, kept]


def _prototxt_dir(found: Adopted) -> tuple[str, list[str]]:
    """Return the folder in which the solvers look for their nets, and notes.

    A solver that names a folder without its net is fixed. Raises InputError for nets in several folders.
    """
    folders = [posixpath.dirname(link.solver.message.net) for link in found.links]
    own = found.folder.absolute().name
    ranked = sorted(
        dict.fromkeys(folders), key=lambda one: (-folders.count(one), posixpath.basename(one) != own)
    )
    chosen, notes = ranked[0], []
    for link, folder in zip(found.links, folders, strict=True):
        if folder == chosen:
            continue
        given = link.solver.message.net
        beside = found.folder / posixpath.basename(given)
        if is_file(Path(given)) or not is_file(beside):
            what = f"net: is in {folder or '.'}, but the nets of other solvers are in {chosen or '.'}"
            raise InputError(link.solver.where("net"), what, "put all nets into the same folder")
        notes.append(
            f"{Path(link.solver.path).name} names its net in {folder or '.'}, where it does not exist: fixed"
        )
    if not chosen:
        notes.append("the solvers name their nets without a folder: written with ./")
    return chosen or ".", notes


def _evaluation(found: Adopted, nets: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the evaluation: of the net that the script tests, else of the last phase's net, else of any."""
    able = [name for name in found.nets if nets[name].get("test", True)]
    last = found.links[-1].net
    wanted = [found.tested, Path(last.path).stem if last else "", *able]
    net = next((name for name in wanted if name in able), None)
    if net is None:
        return None
    images, (_, batch) = data.get("test_images"), find_sources([found.nets[net]], pb.TEST)
    return {"net": net, "iterations": math.ceil((images or data["data"]["test"]["images"]) / batch)}


def _with_net(
    values: Mapping[str, Any],
    found: Adopted,
    first: NetDocument,
    classes: int,
    home: Path,
    options: Mapping[str, str],
) -> tuple[Recipe, str]:
    """Return the recipe and a note, with a builder if one builds all nets, else with the first net's file."""
    for guess in guess_nets(first, classes):
        try:
            recipe = make_recipe({**values, "net": guess}, str(found.folder))
            if all(build_net(recipe, name) == net.message for name, net in found.nets.items()):
                return recipe, f"equal to the net of the builder {guess['builder']}"
        except CaffeRecipesError:  # only this guess is wrong; real errors are raised below
            continue
    own = prototxt_net(first, classes, home)
    if found.dialect != OURS:
        own["dialect"] = found.dialect
    recipe = make_recipe({**values, "net": own}, str(found.folder), home, options)
    files = " and ".join(Path(own[key]).name for key in ("prototxt", "test_prototxt") if key in own)
    kept = "" if recipe.data.is_in_net else "; its data layers are replaced by the recipe's"
    return recipe, f"read from {files}{kept}"


def _warn_replaced(recipe: Recipe) -> Iterator[str]:
    """Yield a warning if a run from here would replace a file that the recipe reads its net from."""
    files = {os.path.realpath(recipe.folder / file) for file in recipe.net.files}
    for path in map(recipe.net_path, recipe.nets):
        if os.path.realpath(path) in files:
            moved = f"copy it beside the recipe, or set prototxt_dir: prototxt/{recipe.name}"
            yield f"warning: the recipe reads its net from {path}, which `run` refuses to replace: {moved}"


def _check_same(recipe: Recipe, found: Adopted) -> list[str]:
    """Raise InputError if the recipe generates other files, except for differences that are in the notes.

    Return notes on nets that differ only in values that are the default.
    """
    notes = []
    for name, net in found.nets.items():
        made = build_net(recipe, name)
        if made == net.message:
            continue
        if diff_nets(net.message, made):
            raise _difference_error(net, net.message, made)
        changes = diff_nets(net.message, made, defaults=True)
        fields = ", ".join(dict.fromkeys(change.field or change.kind for change in changes))
        notes.append(f"{Path(net.path).name} is written without values that are the default: {fields}")
    for link, phase in zip(found.links, recipe.phases, strict=True):
        solver = build_solver(recipe, phase)
        given = _as_generated(link, recipe)
        if solver != given:
            raise _difference_error(link.solver, given, solver)
    return notes


def _as_generated(link: Link, recipe: Recipe) -> pb.SolverParameter:
    """Return a solver as a recipe generates it: the net in the recipe's folder, a snapshot at its end."""
    solver = deepcopy(link.solver.message)
    solver.net = posixpath.join(recipe.prototxt_dir, posixpath.basename(solver.net))
    if not solver.snapshot:
        solver.snapshot = link.last_iter
    for field in DROPPED:
        solver.ClearField(field)
    return solver


def _difference_error(document: Any, given: Message, made: Message) -> InputError:  # noqa: ANN401 - a document of either
    """Return the error for a file that the recipe generates differently, with the first such field."""
    if isinstance(given, pb.NetParameter) and isinstance(made, pb.NetParameter):
        changes = diff_nets(given, made, defaults=True)
    else:
        changes = diff_messages(given, made, defaults=True)
    if not changes:
        return InputError(
            document.path, "a recipe generates it differently", "compare them with `caffe-recipes diff`"
        )
    first = changes[0]
    layer = f"layer '{first.layer}' " if first.layer else ""
    what = f"{layer}{first.field or first.kind}: {first.old.text}, but a recipe generates {first.new.text}"
    return InputError(document.path, what, "make the files consistent, or keep them hand-written")
