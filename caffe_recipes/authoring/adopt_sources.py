"""Read the solvers and nets that `adopt` is given, in the format that recipes have.

Nets of a train_net and a test_net are joined, old ones upgraded, and those of another Caffe converted; each
change is noted. What a recipe cannot hold is refused with file and line.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from caffe_recipes.authoring.recipe_yaml import clean_name
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import NetDocument, SolverDocument, phase_name_from_path
from caffe_recipes.caffe.dialects import OURS
from caffe_recipes.caffe.dialects.convert import convert_document, convert_nets
from caffe_recipes.caffe.dialects.schema import load_lenient
from caffe_recipes.caffe.joined_nets import JoinedDocument
from caffe_recipes.caffe.prototxt import Document, is_kind
from caffe_recipes.caffe.text.writer import string_text
from caffe_recipes.caffe.upgrade import upgrade_solver
from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.files.bounded_reads import reading
from caffe_recipes.quoting import hiding_foreign_text, is_quotable, refuse_foreign_names
from caffe_recipes.recipe.model import SolverSettings
from caffe_recipes.recipe.shipped import RECIPE_SUFFIXES, shipped_recipes
from caffe_recipes.render.prototxts import find_program_data
from caffe_recipes.review.diff.forms import normalize_all
from caffe_recipes.review.foreign import recognize_dialect
from caffe_recipes.review.lint.solver_nets import find_net, net_field
from caffe_recipes.review.naming import is_prototxt_file

_NO_PHASE = {"solver": "main"}  # the phase of a file whose name contains none


def phase_name(path: str | Path) -> str:
    """Return the phase's name, from its solver's file, in the characters that a recipe allows.

    >>> phase_name("a/solver_cyc1.prototxt"), phase_name("solver.prototxt"), phase_name("solver_a b.prototxt")
    ('cyc1', 'main', 'a-b')
    """
    name = phase_name_from_path(path)
    return _NO_PHASE.get(name) or clean_name(name) or "main"


def load_solvers(target: Path) -> list[SolverDocument]:
    """Return the solvers of a folder, or a single one, of any Caffe; raises InputError if there is none."""
    is_yaml = target.suffix in RECIPE_SUFFIXES and target.is_file()
    if is_yaml or (not target.exists() and str(target) in shipped_recipes()):
        kind = "a YAML file, as recipes are" if is_yaml else "a recipe already"
        hint = "`caffe-recipes generate` writes a recipe's solvers and nets, and `rescale` changes its size"
        raise InputError(target, f"is {kind}: adopt reads solvers", hint)
    if target.is_file():
        paths = [target]
    else:
        with reading(target, InputError, "give a folder of solvers"):
            paths = sorted(path for path in target.iterdir() if is_prototxt_file(path))
    documents: list[Document[Any]] = []
    for path in paths:
        with hiding_foreign_text(path, target):
            documents.append(load_lenient(path))
    for document in documents:
        if is_kind(document.message, pb.MultiPhaseSolverParameter):
            what = "contains several solvers, but each phase of a recipe has its own"
            raise InputError(document.path, what, "write each solver to a separate file")
    solvers = [document for document in documents if is_kind(document.message, pb.SolverParameter)]
    if not solvers:
        what = "is not a solver" if target.is_file() else "contains no solver"
        raise InputError(target, what, "give a solver, or the folder of the solvers' .prototxt files")
    return solvers


def guess_dialect(
    solvers: Sequence[Document[Any]], caffe_root: Path | None, given: str | None
) -> tuple[str, list[str]]:
    """Return the dialect of the files: the given one, else by their fields, with a note on it."""
    if given is not None:
        return given, []
    documents = [*solvers]
    for solver in solvers:
        for field, value in solver.message.ListFields():
            if field.name not in ("net", "train_net", "test_net"):
                continue
            place = find_net(solver, f"{field.name}[0]" if field.is_repeated else field.name, caffe_root, "")
            if value and place.file and is_quotable(place.file, Path(solver.path).parent, caffe_root):
                with suppress(PrototxtError):  # which is raised where the net is read
                    documents.append(load_lenient(place.file))
    found = recognize_dialect(documents)
    return (found[0], [found[1]]) if found else (OURS, [])


def convert_with_notes(
    document: Document[Any], dialect: str, notes: list[str], refused: list[PrototxtError]
) -> Document[Any]:
    """Return a document in our schema, and add notes on what changes, and errors on what it cannot hold."""
    converted, more = convert_document(document, dialect, refused=refused)
    notes += [note for note in more if note not in notes]
    return converted


def as_recipe_solvers(
    solvers: Sequence[SolverDocument], dialect: str
) -> tuple[list[SolverDocument], list[str]]:
    """Return solvers of equal meaning that a recipe can express, and notes on what changes.

    A net that is named for training and for tests is named once; an old `solver_type` becomes `type`; fields
    that recipes lack are left out if they have their default; a snapshot_prefix that is missing or a folder
    gets a name.
    """
    found, notes = [], []
    for solver in solvers:
        file = Path(solver.path).name
        message = upgrade_solver(solver.message).message
        changed = [] if message == solver.message else ["solver_type is now type"]
        normalize_all(message)
        if message.HasField("net") and not solver.message.HasField("net"):
            changed.append("names its net in `net`, not in train_net and test_net")
        for field, value in message.ListFields():
            if field.name in _SOLVER_KEYS or field.is_repeated or field.message_type:
                continue
            if value == field.default_value:
                message.ClearField(field.name)
                changed.append(f"drops {field.name}, which has its default")
        if not message.snapshot_prefix or message.snapshot_prefix.endswith("/"):
            net = str(getattr(message, net_field(message) or "net"))
            folder = message.snapshot_prefix or posixpath.join(posixpath.dirname(net), "")
            is_named = dialect == "bvlc"
            message.snapshot_prefix = folder + (Path(file).stem if is_named else phase_name(solver.path))
            why = "after the solver, as BVLC's Caffe does" if is_named else "not to a file without a name"
            changed.append(f"writes its snapshots to {message.snapshot_prefix}, {why}")
        found.append(replace(solver, message=message))
        notes += [f"{file} {change}" for change in changed]
    return found, notes


def find_unsupported(solver: SolverDocument) -> Iterator[InputError]:
    """Yield an error for each field that recipes do not have, and for those that every phase needs."""
    named = [field for field, _ in solver.message.ListFields()]
    known = {*SolverSettings.model_fields, "snapshot_prefix", *DROPPED, *_NET_FIELDS}
    for field in named:
        if field.name not in known:
            yield InputError(
                solver.where(place_of(field)), f"{field.name}: recipes do not support it", "remove it"
            )
    for key in ("base_lr", "lr_policy", "max_iter"):
        if not solver.message.HasField(key):
            yield InputError(solver.path, f"{key}: is missing", "every phase of a recipe needs it")


# Fields for which recipes have no key, and why the generated solvers do not need them.
DROPPED = {
    "snapshot_format": "a run verifies snapshots of the default format",
    "device_id": "a run's launcher places its ranks",
    "snapshot_after_train": "a run needs the snapshot of the last iteration",
}

# The fields that recipes write or drop, whatever their value.
_SOLVER_KEYS = {*SolverSettings.model_fields, "net", "train_net", "snapshot_prefix"}


def load_joined_net(
    solver: SolverDocument, caffe_root: Path | None, dialect: str
) -> tuple[SolverDocument, NetDocument, list[str]]:
    """Return a solver that names one net, that net, and notes.

    The nets of train_net and test_net are joined; the solver then names a file that need not exist, next to
    the training net.
    """
    message, field = solver.message, net_field(solver.message)
    inline = [each for each, _ in message.ListFields() if each.name in _INLINE_NETS]
    if inline or not field:
        name = inline[0].name if inline else "net"
        what = f"{name}: is {'a net inside the solver' if inline else 'missing'}"
        where = solver.where(place_of(inline[0]) if inline else "")
        raise InputError(where, what, "write the net to a separate file, and name it in `net`")
    if field == "net" and message.train_net:
        raise InputError(solver.where("train_net"), "net and train_net each set a net to train", "keep one")
    tests = len(message.test_net)
    if tests > 1 or (message.test_iter and not tests and field == "train_net"):
        what = f"test_net: is given {tests} times, but a recipe has one test net"
        hint = "keep one" if tests else f"write net: {string_text(message.train_net)} for tests of this net"
        raise InputError(solver.where("test_net[1]" if tests else "test_iter[0]"), what, hint)
    notes: list[str] = []
    files = [_find_file(solver, each, caffe_root) for each in (field, *["test_net[0]"] * tests)]
    net = read_nets(files, Path(solver.path).parent, caffe_root, dialect, notes)
    if field == "net" and not tests:
        return solver, net, notes
    if tests:
        both = " and ".join(file.name for file in files)
        notes.append(f"{both} are one net: each layer that only one has gets an include")
    named = deepcopy(message)
    named.ClearField("train_net")
    named.ClearField("test_net")
    named.net = posixpath.join(posixpath.dirname(getattr(message, field)), posixpath.basename(net.path))
    return replace(solver, message=named), net, notes


def with_phases(net: NetDocument, notes: list[str], *, is_tested: bool) -> NetDocument:
    """Return a net whose Data layers without a rule get an include of TRAIN, and a copy for TEST if needed.

    A recipe has data for each phase.
    """
    message = deepcopy(net.message)
    del message.layer[:]
    for layer in net.message.layer:
        is_for_both = layer.type == "Data" and not (layer.include or layer.exclude)
        phases = ("TRAIN", "TEST")[: 1 + is_tested] if is_for_both else ()
        for phase in phases or (None,):
            made = message.layer.add()
            made.CopyFrom(layer)
            if phase:
                made.include.add(phase=phase)
        if is_for_both:
            what = f"layer '{layer.name}' gets include {{ phase: TRAIN }}"
            more = ", and is repeated for TEST" if is_tested else ", since nothing tests the net"
            notes.append(f"{Path(net.path).name}: {what}{more}")
    return replace(net, message=message)


def place_of(field: FieldDescriptor) -> str:
    """Return the path of a field of a solver, or of its first value."""
    return f"{field.name}[0]" if field.is_repeated else field.name


_INLINE_NETS = ("net_param", "train_net_param", "test_net_param")
_NET_FIELDS = (*_INLINE_NETS, "net", "train_net", "test_net")  # `load_net` refuses some of them


def files_of(net: NetDocument) -> tuple[str, ...]:
    """Return the one or two files that a net was read from."""
    return tuple(one.path for one in net.nets) if isinstance(net, JoinedDocument) else (net.path,)


def _find_file(solver: SolverDocument, field: str, caffe_root: Path | None) -> Path:
    """Return the file of a net that a field of a solver names; raises InputError if it is not found."""
    place = find_net(solver, field, caffe_root, "")
    if place.file is None:
        name, _, index = field.partition("[")
        given = solver.message.test_net[0] if index else getattr(solver.message, name)
        what = f"{name}: {given} not found, neither in the current folder nor next to the solver"
        raise InputError(solver.where(field), what, "put it next to the solver, or give --caffe-root DIR")
    return place.file


def read_nets(
    files: Sequence[Path], folder: Path, caffe_root: Path | None, dialect: str, notes: list[str]
) -> NetDocument:
    """Return the net of one file, or of two that are joined, as `convert_nets` does; raises InputError.

    `folder` is that of the solvers.
    """
    with ExitStack() as stack:
        documents = []
        for file in files:
            stack.enter_context(hiding_foreign_text(file, folder, caffe_root))
            documents.append(load_lenient(file))
            refuse_foreign_names(file, documents[-1].foreign, folder, caffe_root)
        net = convert_nets(documents, dialect, notes)
    for index, what, hint in find_program_data(net.message):
        raise InputError(net.where(f"layer[{index}].type"), what, hint)
    return net
