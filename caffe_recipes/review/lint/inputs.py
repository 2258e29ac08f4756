"""Read files as chains: solvers in order, their nets, and the commands in a script.

Find a solver's net: at its path under the Caffe root, or beside the solver.

Read documents of any dialect, each once, and find mistakes in the text itself.

Check that the LMDBs and mean files of data layers can be read, if they exist on this machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import Chain, ChainFacts, Link, read_links, stop_phases, sub_document
from caffe_recipes.caffe.dialects import OURS
from caffe_recipes.caffe.dialects.schema import parse_lenient, to_any, to_ours
from caffe_recipes.caffe.net_states import NetState, has_data, restrict_net, select_data_layers
from caffe_recipes.caffe.prototxt import MOST_BYTES, Document, empty_file_error, read_prototxt
from caffe_recipes.caffe.text.parser import V1_TYPE
from caffe_recipes.caffe.text.writer import string_text
from caffe_recipes.caffe.weights import load_mean, mean_shape, show_image
from caffe_recipes.data.manifest import load_manifest
from caffe_recipes.errors import DataError, PrototxtError
from caffe_recipes.files import open_file
from caffe_recipes.limits import limit
from caffe_recipes.quoting import Home, hiding_foreign_text, real_path, refuse_foreign_names
from caffe_recipes.render.headers import MARK
from caffe_recipes.review.inspect.nets import read_first_datum
from caffe_recipes.review.lint.chain_rules import check_deploys, solver_type
from caffe_recipes.review.lint.check import check_chain, check_dialect, check_foreign, check_net
from caffe_recipes.review.lint.net_view import record_shape, upgrade_old
from caffe_recipes.review.lint.recipe_rules import check_cores
from caffe_recipes.review.lint.rules import Explanation, Finding, Fix, file_rule, finding, path_rule
from caffe_recipes.review.lint.snapshot_rules import (
    check_evaluations,
    check_untrained,
    phase_name_from_path,
    phase_order,
)
from caffe_recipes.review.lint.solver_rules import (
    check_dialect_rates,
    check_snapshot_folder,
    drop_rate_findings,
)
from caffe_recipes.review.naming import (
    find_at_path,
    find_beside,
    find_shared,
    is_file,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from caffe_recipes.caffe.chain import Net, Solver
    from caffe_recipes.review.lint.net_view import DatumOf
    from caffe_recipes.review.lint.rules import Finding
    from caffe_recipes.review.lint.scripts import Script, TrainCommand


@dataclass(frozen=True)
class NetPlace:
    """The file of a solver's net, None if not found, and the findings about its path."""

    file: Path | None
    findings: tuple[Finding, ...] = ()


def net_field(solver: pb.SolverParameter) -> str:
    """Return the name of the solver field that sets the training net; empty if none does.

    >>> net_field(pb.SolverParameter(train_net="a.prototxt"))
    'train_net'
    """
    fields = ("net", "train_net", "net_param", "train_net_param")
    return next((field for field in fields if solver.HasField(field)), "")


def inline_net(solver: Solver, field: str) -> Net:
    """Return the net inside a solver's file, with its places in that file."""
    given = None if solver.given is None else _field_value(solver.given, field)
    return replace(sub_document(solver, field, _field_value(solver.message, field)), given=given)


@path_rule(
    "net-not-found",
    "note",
    "a net that was not found, and so not checked",
    what="{given} was found neither in the current folder nor beside the solver",
    effect="the net, and whether it fits its solver, were not checked",
    write="give --caffe-root DIR, or put a copy of the net beside the solver",
)
@path_rule(
    "net-missing",
    "error",
    "a net that does not exist at its path under the Caffe root",
    what="no file {given} under {caffe_root}",
    effect="Caffe aborts with `File not found`",
    write="{field}: {path}",
    fix="writes the path, relative to the Caffe root, of the net with this name beside the solver",
)
def find_net(solver: Solver, field: str, caffe_root: Path | None, phase: str) -> NetPlace:
    """Find the net that a solver's `field` names.

    Without a Caffe root, the net is searched for as by `naming.find_at_path`, and then by its file name
    beside the solver. The net of a generated solver may be in a folder that recipes share.
    """
    given: str = _field_value(solver.message, field)
    is_generated = MARK in solver.text[:1000]
    found = find_at_path(solver.path, given, caffe_root)
    if found is not None:
        return NetPlace(found)
    beside_file = find_beside(solver.path, given) or (
        find_shared(solver.path, given) if is_generated else None
    )
    where = solver.where(field)
    if caffe_root is not None:
        existing = _path_from(caffe_root, beside_file)
        fixes = _net_fixes(where, field, existing)
        missing = finding(
            "net-missing",
            where,
            phase=phase,
            fixes=fixes,
            given=given,
            caffe_root=caffe_root,
            field=field,
            path=existing or "the path of the net, relative to the Caffe root",
        )
        return NetPlace(beside_file, (missing,))
    home = Path(solver.path).absolute().parent.name
    findings = () if is_generated else tuple(_check_net_folder(given, home, where, field, phase, beside_file))
    if beside_file is None:
        unread = finding("net-not-found", where, phase=phase, given=given)
        findings = (*findings, unread)
    return NetPlace(beside_file, findings)


def _field_value(solver: Message, field: str) -> Any:  # noqa: ANN401
    """Return the value of a field, or of an element of a list, such as `test_net[0]`."""
    name, _, index = field.partition("[")
    value = getattr(solver, name)
    return value[int(index.removesuffix("]"))] if index else value


@path_rule(
    "net-folder",
    "warning",
    "a net whose path names a folder other than the solver's",
    effect="Caffe aborts with `File not found` if that folder does not exist",
    values=("folder", "own"),
    explanation=Explanation(
        "`net:` is a path relative to the folder that Caffe is started in, usually its root. Lint does not "
        "know that folder, and the name of the net's folder differs from that of the solver's, as it does "
        "after a folder was renamed.",
        "Correct the path, or give --caffe-root DIR to search for the net there.",
    ),
    fix="writes the path of a net of this name that is beside the solver, if it ends like the solver's own "
    "folder or lies below the current one",
)
def _check_net_folder(
    given: str, home: str, where: str, field: str, phase: str, beside_file: Path | None
) -> Iterator[Finding]:
    path = PurePosixPath(given)
    folder = path.parent.name
    if folder and folder != ".." and folder != home:
        what = f"the net is in {folder}, but the solver is in {home}"
        renamed = path.parent.with_name(home) / path.name
        existing = _path_from(None, beside_file, renamed)
        fixes = _net_fixes(where, field, existing)
        write = f"{field}: the path of the net; {home} has no net of this name"
        if beside_file is not None:
            write = f"{field}: {existing or string_text(str(renamed))}"
        yield finding("net-folder", where, what, phase, write=write, fixes=fixes, folder=folder, own=home)


def _path_from(root: Path | None, file: Path | None, guess: PurePosixPath | None = None) -> str:
    """Return the path of a file as a value of `net`: the guess if the file's path ends in it, or else from
    the root or the current folder; empty if the file is not below it.
    """
    if file is None:
        return ""
    full, top = (Path(os.path.abspath(one)) for one in (file, root or ""))  # noqa: PTH100 - keeps links
    if guess and full.parts[-len(guess.parts) :] == guess.parts:
        return string_text(str(guess))
    return string_text(full.relative_to(top).as_posix()) if full.is_relative_to(top) else ""


def _net_fixes(where: str, field: str, path: str) -> tuple[Fix, ...]:
    return (Fix(where, field.partition("[")[0], path),) if path else ()


def find_datum(source: str, root: Path | None) -> pb.Datum | None:
    """Return the first Datum of an LMDB under the Caffe root or the current folder; None if unreadable."""
    try:
        return read_first_datum(source, root)
    except DataError:
        return None


def find_labels(source: str, root: Path | None) -> tuple[int, int] | None:
    """Return the smallest and largest label of an LMDB by its manifest; None if there is none here."""
    if not source:
        return None
    try:
        manifest = load_manifest((root or Path()) / source)
    except (DataError, ValueError):  # such as a source that contains a NUL
        return None
    return (min(manifest.labels), max(manifest.labels)) if manifest and manifest.labels else None


def count_records(source: str, root: Path | None) -> int:
    """Return the number of records of an LMDB under the Caffe root or the current folder; 0 if unknown."""
    folder = (root or Path()) / source
    if not source or not is_file(folder / "data.mdb"):
        return 0
    from caffe_recipes.caffe.datums import open_datums  # imports the LMDB library

    try:
        with open_datums(folder) as datums:
            return len(datums)
    except DataError:
        return 0


def count_images(layer: pb.LayerParameter, root: Path | None) -> int:
    """Return the number of images of a data layer's LMDB, or list of images; 0 if unknown."""
    if layer.type == "ImageData":
        return _count_lines(layer.image_data_param.source, root)
    return count_records(layer.data_param.source, root) if layer.type == "Data" else 0


def _count_lines(source: str, root: Path | None) -> int:
    """Return the number of lines of a file that are not empty; 0 if it is not here, or over the limit."""
    path = (root or Path()) / source
    if not source or not is_file(path):
        return 0
    try:
        with open_file(path) as file:
            data = file.read(limit("list-bytes") + 1)
    except OSError:
        return 0
    return sum(map(bool, map(bytes.strip, data.splitlines()))) if len(data) <= limit("list-bytes") else 0


@path_rule(
    "lmdb-unreadable",
    "warning",
    "an LMDB that exists here but is empty or damaged",
    what="{place} {fault}",
    effect="Caffe aborts or reads no record; lint cannot check its images",
)
@path_rule(
    "mean-unreadable",
    "warning",
    "a mean file that exists here but is not a mean image",
    what="{place} {fault}",
    effect="Caffe aborts when it reads it",
)
def check_records(net: Document[pb.NetParameter], root: Path | None) -> Iterator[Finding]:
    """Find LMDBs and mean files that exist here but are empty or damaged; each once, at its first layer.

    Those that do not exist here may exist on the cluster, where `preflight` looks for them.
    """
    seen: set[tuple[str, str]] = set()
    for index, layer in enumerate(net.message.layer):
        source, mean = layer.data_param.source, layer.transform_param.mean_file
        for rule, key, path, read in (
            ("lmdb-unreadable", "data_param.source", source, read_first_datum),
            ("mean-unreadable", "transform_param.mean_file", mean, _read_mean),
        ):
            if (rule, path) in seen:
                continue
            seen.add((rule, path))
            try:
                read(path, root)
            except DataError as error:
                where = net.where(f"layer[{index}].{key}")
                write = error.hint or "build it again"
                yield finding(rule, where, write=write, place=error.where, fault=error.what)


def _read_mean(path: str, root: Path | None) -> pb.BlobProto | None:
    """Load a mean file, if there is one here. Raises DataError."""
    if path and is_file((root or Path()) / path):
        return load_mean((root or Path()) / path)
    return None


@path_rule(
    "mean-file-misfit",
    "error",
    "a mean file of another size than the images",
    what="{mean} is a mean of {theirs}, but the first record of {source} is of {ours}",
    effect="Caffe aborts at the first image: Check failed: datum_height == data_mean_.height()",
    write="make it of these images with compute_image_mean, or write mean_value",
)
def check_mean_sizes(
    net: Document[pb.NetParameter], root: Path | None, datum_of: DatumOf
) -> Iterator[Finding]:
    """Find mean files that exist here and do not fit the first image that they are subtracted from.

    Source: BVLC Caffe, src/caffe/data_transformer.cpp: channels, height and width must agree.
    """
    for index, layer in enumerate(net.message.layer):
        param, source = layer.transform_param, layer.data_param.source
        datum = datum_of(source) if source and param.mean_file else None
        shape = record_shape(datum)
        resizes = any(map(param.HasField, _RESIZES))
        if datum is None or shape is None or resizes:
            continue
        try:
            mean = _read_mean(param.mean_file, root)
        except DataError:  # which check_records reports
            continue
        if datum.encoded and (param.force_color or param.force_gray):
            shape = (3 if param.force_color else 1, *shape[1:])
        if mean is not None and mean_shape(mean) != shape:
            yield finding(
                "mean-file-misfit",
                net.where(f"layer[{index}].transform_param.mean_file"),
                mean=param.mean_file,
                source=source,
                theirs=show_image(mean_shape(mean)),
                ours=show_image(shape),
            )


_RESIZES = ("random_resize_param", "random_aspect_ratio_param", "resize_param")


GPU_DIALECTS = ("bvlc", "nvcaffe")


@dataclass(frozen=True)
class LintOptions:
    """The options of `lint`: facts that the files do not contain, and how to read the files."""

    ranks: int | None = None
    images: int | None = None
    classes: int | None = None
    caffe_root: Path | None = None
    script: Path | None = None
    dialect: str = OURS
    max_bytes: int = MOST_BYTES
    is_alone: bool = False
    test_images: int | None = None


@dataclass(frozen=True)
class Reader:
    """Reads each file once; keeps the findings in its text, and the order of files in the report.

    `phases` are the phases in which solvers read each net file. `unchecked_rates` are the solvers whose rates
    are not checked. `chains` are the paths of the solvers that were read as one chain.
    `named` are the folders that the user named.
    """

    options: LintOptions
    named: tuple[Path, ...] = ()
    documents: dict[Path, Document[Any] | PrototxtError] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    phases: dict[Path, set[int]] = field(default_factory=dict)
    unchecked_rates: set[str] = field(default_factory=set)
    chains: list[list[str]] = field(default_factory=list)

    def read(self, path: Path, named_by: str | Path = "") -> Document[Any]:
        """Read a prototxt file. Raises PrototxtError if it is unreadable, or no Caffe would accept it.

        If a file or folder names it, its names are reported only if it is one of the user's files.
        """
        key = real_path(path)
        if key not in self.documents:
            try:
                self.documents[key] = self._read(path, named_by)
            except PrototxtError as error:
                self.documents[key] = error
        found = self.documents[key]
        if isinstance(found, PrototxtError):
            raise found
        return found

    @file_rule(
        "unreadable",
        "error",
        "a prototxt in a folder that Caffe cannot read",
        effect="Caffe aborts when it reads the file",
    )
    def read_leniently(self, path: Path, named_by: str = "") -> Document[Any] | None:
        """Read a prototxt file that a solver names; if that fails, report a finding and return None."""
        try:
            with hiding_foreign_text(path, *self._homes(named_by or path)):
                return self.read(path, named_by or path)
        except PrototxtError as error:
            self.findings.append(
                finding("unreadable", error.where, error.what, write=error.hint or "correct it")
            )
            return None

    def _homes(self, named_by: str | Path) -> tuple[Home, ...]:
        """Return the folders whose files may be quoted, where a file names another one."""
        return (Path(named_by).parent, *self.named, self.options.caffe_root)

    def nets(self) -> list[Document[pb.NetParameter]]:
        """Return the nets that were read."""
        read = [one for one in self.documents.values() if isinstance(one, Document)]
        return [one for one in read if isinstance(one.message, pb.NetParameter)]

    def check(self, net: Document[pb.NetParameter]) -> list[Finding]:
        """Find mistakes in a net by itself: in the phases that solvers read it in, or else in both."""
        options = self.options
        phases = self.phases.get(real_path(net.path), ())
        if len(phases) == 1:
            (phase,) = phases
            only = restrict_net(net.message, phase)
            # The rules for chains report a phase that has no data.
            net = replace(net, message=only) if has_data(only, NetState(phase)) else net

        def find_first(source: str) -> pb.Datum | None:
            return find_datum(source, options.caffe_root)

        found = check_net(
            net,
            classes=options.classes,
            datum_of=find_first,
            labels_of=lambda source: find_labels(source, options.caffe_root),
            dialect=options.dialect,
        )
        found += check_records(net, options.caffe_root)
        return [*found, *check_mean_sizes(net, options.caffe_root, find_first)]

    def _read(self, path: Path, named_by: str | Path) -> Document[Any]:
        text = read_prototxt(path, self.options.max_bytes)
        given = parse_lenient(text, path)
        if not given.message.ListFields():
            raise empty_file_error(path)
        if named_by:
            refuse_foreign_names(path, given.foreign, *self._homes(named_by))
        self.findings.extend(check_foreign(given, self.options.dialect))
        document, notes = convert_to_ours(given, self.options.dialect)
        self.findings.extend(notes)
        self.findings.extend(check_text(text, path, self.options.dialect))
        self.findings.extend(check_newer_text(document))
        if self.options.dialect != OURS:
            other = [*check_dialect_rates(given, self.options.dialect)]
            self.findings.extend(other)
            self.unchecked_rates.update(document.path for _ in other)
        if self.options.caffe_root is not None and isinstance(document.message, pb.SolverParameter):
            self.findings.extend(check_snapshot_folder(document, self.options.caffe_root))
        return document


def convert_to_ours(given: Document[Any], dialect: str) -> tuple[Document[Any], list[Finding]]:
    """Return a document in our schema, without what our Caffe does not have, and findings about its format.

    An old net with a fork's layer types is upgraded first: our schema has no place for them. For another
    dialect than ours, the document keeps the message with all fields, by which its rules judge.
    """
    notes: list[Finding] = []
    if any(name.owner == V1_TYPE for name in given.foreign):
        given, notes = upgrade_old(given)
    whole = None if dialect == OURS else to_any(given.message)
    document = replace(given, message=to_ours(given.message), given=whole)
    return document, [note.located(given.where) for note in notes]


@file_rule(
    "byte-order-mark",
    "error",
    "a byte-order mark at the start of a file, which Caffe's parser rejects",
    what="the file starts with a byte-order mark",
    effect="Caffe aborts with `Error parsing text-format`",
    write="save the file as UTF-8 without a BOM, for example with `caffe-recipes fmt`",
)
def check_text(text: str, path: str | Path, dialect: str) -> Iterator[Finding]:
    """Find a byte-order mark, and what a dialect's Caffe would refuse or read differently."""
    if text.startswith("\ufeff"):
        yield finding("byte-order-mark", f"{path}:1:1")
    if dialect != OURS:
        yield from check_dialect(path, text, dialect)


@file_rule(
    "newer-text",
    "note",
    "text that a Caffe built with an old protobuf cannot read",
    what="{field}: {fault}",
    effect="a Caffe built with {versions} would {outcome}",
    write="{advice}; `caffe-recipes fmt` writes text that all versions read",
)
def check_newer_text(document: Document[Any]) -> Iterator[Finding]:
    """Find text that a Caffe built with an old protobuf cannot read; each kind once, at its first place."""
    seen: set[str] = set()
    for form in document.newer_forms:
        if form.what not in seen:
            seen.add(form.what)
            yield finding(
                "newer-text",
                document.place(form.offset),
                field=form.field.rpartition(".")[2],
                fault=form.what,
                versions=form.versions,
                outcome=form.effect,
                advice=form.write,
            )


@file_rule(
    "label-twice",
    "warning",
    "a label map with a duplicate label or name",
    what="{key} {value!r} appears twice, in items {first} and {index}",
    effect="only the first or the last of the two is used",
    write="keep one item for each {key}",
)
def check_labels(document: Document[pb.LabelMap]) -> Iterator[Finding]:
    """Find duplicate labels and names in a label map."""
    for key in ("label", "name"):
        seen: dict[object, int] = {}
        for index, item in enumerate(document.message.item):
            if not item.HasField(key):
                continue
            value = getattr(item, key)
            first = seen.setdefault(value, index)
            if first != index:
                where = document.where(f"item[{index}].{key}")
                yield finding("label-twice", where, key=key, value=value, first=first, index=index)


def lint_files(reader: Reader, paths: Iterable[Path], script: Script) -> Iterator[Finding]:
    """Find mistakes in files. The solvers are one chain in the given order, unless --alone is given."""
    documents = [reader.read(path) for path in paths]
    solvers = [document for document in documents if is_solver(document)]
    if reader.options.is_alone:
        for solver in solvers:
            yield from lint_chain(reader, [solver], script, is_whole=False)
    else:
        trained, untrained = split_trained(solvers, script)
        chains = [trained] if trained and script.trainings else split_chains(solvers)
        yield from _report_separate_chains(chains)
        for chain in chains:
            yield from lint_chain(reader, chain, script, is_whole=len(chains) == 1 or len(chain) > 1)
        yield from check_untrained(untrained)
        for solver in untrained if trained else ():
            yield from lint_chain(reader, [solver], script, is_whole=False)
    for document in documents:
        yield from lint_single(reader, document)
    yield from check_deploys([*map(upgrade_if_old, reader.nets())])


def split_chains(solvers: Sequence[Document[Any]]) -> list[list[Document[Any]]]:
    """Split solvers into chains, by nets, numbers and snapshot prefixes; each keeps the given order."""
    chains: list[list[Document[Any]]] = []
    for solver in solvers:
        linked = [chain for chain in chains if any(_is_linked(one, solver) for one in chain)]
        joined = [one for chain in linked for one in chain]
        chains = [chain for chain in chains if chain not in linked]
        chains.append([one for one in solvers if one in joined or one is solver])
    order = {id(solver): index for index, solver in enumerate(solvers)}
    return sorted(chains, key=lambda chain: order[id(chain[0])]) or [[]]


def _is_linked(one: Document[Any], other: Document[Any]) -> bool:
    """Return whether two solvers look like phases of the same chain."""
    if not all(isinstance(each.message, pb.SolverParameter) for each in (one, other)):
        return True  # a file of several solvers is in one chain with the other solvers
    nets = [getattr(each.message, net_field(each.message) or "net") for each in (one, other)]
    is_same_net = (
        bool(nets[0]) and nets[0] == nets[1] and solver_type(one.message) == solver_type(other.message)
    )
    names = [phase_name_from_path(each.path) for each in (one, other)]
    orders = [phase_order(name) for name in names]
    homes = [Path(each.path).parent for each in (one, other)]
    is_numbered = homes[0] == homes[1] and None not in orders and orders[0] != orders[1]
    stems = [_prefix_stem(each, name) for each, name in zip((one, other), names, strict=True)]
    return is_same_net or is_numbered or bool(stems[0] and stems[0] == stems[1])


def _prefix_stem(solver: Document[Any], name: str) -> str:
    """Return a snapshot_prefix without the phase's name at its end; empty if it does not end in the name."""
    prefix: str = solver.message.snapshot_prefix
    return (
        prefix.removesuffix(name) if prefix.endswith(name) and prefix.removesuffix(name)[-1:] != "/" else ""
    )


@path_rule(
    "taken-alone",
    "note",
    "solvers given together that do not look like one chain",
    what="these solvers do not look like one chain; checked {parts}",
    effect="the transitions between chains were not checked",
    write="if they are one chain, give --script FILE with the commands that train it",
)
def _report_separate_chains(chains: Sequence[Sequence[Document[Any]]]) -> Iterator[Finding]:
    if len(chains) < 2:
        return
    shown = [", ".join(Path(solver.path).name for solver in chain) for chain in chains if len(chain) > 1]
    alone = [Path(chain[0].path).name for chain in chains if len(chain) == 1]
    each = "each " if len(alone) > 1 else ""
    parts = [*(f"{names} as one chain" for names in shown)]
    parts += [f"{', '.join(alone)} {each}by itself"] if alone else []
    yield finding("taken-alone", chains[0][0].path, parts="; ".join(parts))


def is_solver(document: Document[Any]) -> bool:
    """Return whether a document is a solver, or several solvers in one file."""
    return isinstance(document.message, pb.SolverParameter | pb.MultiPhaseSolverParameter)


def lint_single(reader: Reader, document: Document[Any]) -> Iterator[Finding]:
    """Find mistakes in a net or a label map by itself."""
    reader.order.append(document.path)
    if isinstance(document.message, pb.NetParameter):
        yield from reader.check(document)
    elif isinstance(document.message, pb.LabelMap):
        yield from check_labels(document)


def lint_chain(
    reader: Reader, documents: Sequence[Document[Any]], script: Script, *, is_whole: bool = True
) -> Iterator[Finding]:
    """Find mistakes in solvers as one chain, and in their nets."""
    if len(documents) > 1:
        reader.chains.append([document.path for document in documents])
    links: list[Link] = []
    for document in documents:
        training = find_training(script, document.path)
        for link in read_links(document, phase_name_from_path(document.path)):
            nets = [*_read_nets(reader, link.solver, link.name)]
            yield from (found for place, _ in nets for found in place.findings)
            tests = tuple(net for _, net in nets[1:] if net is not None)
            whole = replace(link, net=nets[0][1], test_nets=tests)
            links.append(apply_command(whole, training, reader.options.ranks))
        if not script.is_generated:
            yield from _check_script_path(reader, document, script)
    reader.order.extend([link.solver.path for link in links] + [net.path for net in _nets_of(links)])
    tested = tuple(map(upgrade_if_old, _tested_nets(reader, links, script)))
    chain = Chain(
        tuple(_upgrade_link(reader, link) for link in links), _chain_facts(reader, script), is_whole, tested
    )
    found = drop_rate_findings(check_chain(chain), reader.unchecked_rates)
    # BVLC's Caffe uses the solver's file name as the default snapshot_prefix.
    has_default = reader.options.dialect == "bvlc"
    yield from (one for one in found if not has_default or one.id != "snapshot-prefix-missing")
    yield from check_evaluations(
        stop_phases(chain).links, script, is_all=is_whole and _covers_script(documents, script)
    )
    for net in _nets_of(links):
        yield from reader.check(net)
    if script.mlsl_where:
        yield from check_cores(chain.facts, script.mlsl_where)


def _covers_script(documents: Sequence[Document[Any]], script: Script) -> bool:
    """Return whether each training command of the script trains one of these solvers."""
    trained = [find_training(script, document.path) for document in documents]
    return not script.unresolved and all(training in trained for training in script.trainings)


def _upgrade_link(reader: Reader, link: Link) -> Link:
    net, tests = link.net and upgrade_if_old(link.net), tuple(map(upgrade_if_old, link.test_nets))
    state = NetState(pb.TEST)
    sources = [layer for one in tests or [net] if one for layer in select_data_layers(one.message, state)]
    counts = (count_images(layer, reader.options.caffe_root) for layer in sources)
    images = next(filter(None, counts), 0)
    return replace(link, net=net, test_nets=tests, tested_images=images)


def _nets_of(links: Sequence[Link]) -> list[Net]:
    return [net for link in links for net in (link.net, *link.test_nets) if net is not None]


def upgrade_if_old(net: Net) -> Net:
    """Return a net in the old format (`layers`) as Caffe upgrades it; return any other net unchanged."""
    return upgrade_old(net)[0] if net.message.layers else net


def find_training(script: Script, path: str) -> TrainCommand | None:
    """Return the command that trains a file, by file name and the most folders in common; None if none."""
    parts = Path(path).absolute().parts[::-1]

    def common(training: TrainCommand) -> int:
        theirs = PurePosixPath(training.solver).parts[::-1]
        same = [one == other for one, other in zip(parts, theirs, strict=False)]
        return [*same, False].index(False)

    return max((training for training in script.trainings if common(training)), key=common, default=None)


def split_trained(
    solvers: Sequence[Document[Any]], script: Script
) -> tuple[list[Document[Any]], list[Document[Any]]]:
    """Split solvers into those that a script trains and those that it does not.

    All count as trained if the script trains none, or if one of its solvers is unknown.
    """
    if not script.trainings or script.unresolved:
        return list(solvers), []
    trained = [solver for solver in solvers if find_training(script, solver.path)]
    return trained, [solver for solver in solvers if solver not in trained]


def apply_command(link: Link, training: TrainCommand | None, ranks: int | None = None) -> Link:
    """Return a phase with the weights and ranks of the command that trains it; unchanged if there is none.

    A phase from a file of several solvers is unchanged too: it starts from the previous phase.
    """
    if training is None or (link.part and link.weights is not None):
        return link
    return replace(
        link,
        last_iter=training.stop_iter or link.last_iter,
        weights=training.weights or link.weights or training.weights,
        weights_where=training.where,
        resumes=training.snapshot,
        ranks=None if ranks else training.ranks,
    )


@path_rule(
    "net-not-named",
    "error",
    "a solver without a net",
    what="the solver has no net",
    effect="Caffe aborts with `SolverParameter must specify a train net`",
    write="net: the path of the net",
)
def _read_nets(reader: Reader, solver: Solver, name: str) -> Iterator[tuple[NetPlace, Net | None]]:
    """Yield the place and the content of each net of a solver: the training net first, then the test nets."""
    field = net_field(solver.message)
    if not field:
        yield NetPlace(None, (finding("net-not-named", solver.path, phase=name),)), None
    else:
        # Solvers from 2014 had one net file per phase.
        phases = (pb.TRAIN,) if field.startswith("train") else (pb.TRAIN, pb.TEST)
        yield _read_net(reader, solver, field, name, phases)
    for kind in ("test_net_param", "test_net"):
        for index in range(len(getattr(solver.message, kind))):
            place, net = _read_net(reader, solver, f"{kind}[{index}]", name, (pb.TEST,))
            missing = tuple(one for one in place.findings if one.id in ("net-missing", "inline-net-old"))
            yield replace(place, findings=missing), net


@path_rule(
    "inline-net-old",
    "error",
    "a net inside a solver, in the old format, which Caffe does not upgrade there",
    what="the net in {field} has `{old}`, which Caffe upgrades only in a net's own file",
    effect="Caffe aborts, because it sees an empty net",
    write="move the net to a file and set `net:` to its path; or use `layer`, and an Input layer",
)
def _read_net(
    reader: Reader, solver: Solver, field: str, name: str, phases: Sequence[int]
) -> tuple[NetPlace, Net | None]:
    if field.partition("[")[0].endswith("param"):
        net = inline_net(solver, field)
        old = next((each for each in ("layers", "input") if getattr(net.message, each)), None)
        if old is None:
            return NetPlace(None), net
        where = solver.where(f"{field}.{old}[0]")
        return NetPlace(None, (finding("inline-net-old", where, phase=name, field=field, old=old),)), None
    place = find_net(solver, field, reader.options.caffe_root, name)
    if place.file is None:
        return place, None
    document = reader.read_leniently(_display_path(place.file, solver), solver.path)
    if document is None or not isinstance(document.message, pb.NetParameter):
        return place, None
    reader.phases.setdefault(place.file.resolve(), set()).update(phases)
    return place, document


def _display_path(path: Path, solver: Solver) -> Path:
    """Return a path in the same form as the solver's: absolute, or relative to the current folder."""
    return path if Path(solver.path).is_absolute() else Path(os.path.relpath(path))


@path_rule(
    "solver-path",
    "warning",
    "a command whose --solver names a folder other than the one that contains the file",
    what="the command gives --solver={path}, but the file is in {home}",
    effect="Caffe aborts with `File not found` if that folder does not exist",
    write="--solver={renamed}",
)
def _check_script_path(reader: Reader, document: Document[Any], script: Script) -> Iterator[Finding]:
    """Find a command whose --solver names another folder than the one that the solver is in."""
    training = find_training(script, document.path)
    if training is None:
        return
    root, home = reader.options.caffe_root, Path(document.path).absolute().parent.name
    theirs = PurePosixPath(training.solver)
    folder = theirs.parent.name
    is_right = is_file(root / training.solver) if root else folder in ("", "..", home)
    if not is_right:
        yield finding(
            "solver-path",
            training.where,
            phase=phase_name_from_path(document.path),
            path=training.solver,
            home=home,
            renamed=theirs.parent.with_name(home) / Path(document.path).name,
        )


def _chain_facts(reader: Reader, script: Script) -> ChainFacts:
    options = reader.options
    return ChainFacts(
        ranks=options.ranks or script.ranks,
        images=options.images,
        test_images=options.test_images,
        ranks_per_node=script.ranks_per_node,
        omp_num_threads=script.omp_num_threads,
        mlsl_cores=script.mlsl_cores,
        has_gpus=options.dialect in GPU_DIALECTS,
    )


def _tested_nets(reader: Reader, links: Sequence[Link], script: Script) -> Iterator[Net]:
    """Yield the nets that the script tests with, if found under the Caffe root or beside a solver."""
    for model in script.tested:
        root = reader.options.caffe_root or Path()
        beside = (Path(link.solver.path).parent / PurePosixPath(model).name for link in links)
        file = next((path for path in (root / model, *beside) if is_file(path)), None)
        if file is None or not links:
            continue
        solver = links[0].solver
        document = reader.read_leniently(_display_path(file, solver), solver.path)
        if document is not None and isinstance(document.message, pb.NetParameter):
            yield document
