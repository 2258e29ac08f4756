"""Files as chains: solvers in order, with their nets, and what a script says of how they are run.

Where a solver's net lies: at its path under the Caffe root, or beside the solver.

Reading what lint is given: documents of any dialect, each once, and what is wrong with the text itself.

The LMDBs that a net's data layers name, where they are here: whether they can be read at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import OURS
from caffe_recipes.caffe.prototxt import MOST_BYTES, Document, parse_document, read_prototxt
from caffe_recipes.errors import DataError, PrototxtError
from caffe_recipes.review.inspect.nets import read_first
from caffe_recipes.review.lint.chain import (
    Chain,
    ChainFacts,
    Link,
    NetState,
    has_source,
    restrict_net,
    select_sources,
    stop_phases,
)
from caffe_recipes.review.lint.chain_rules import check_deploys, solver_type
from caffe_recipes.review.lint.check import check_chain, check_dialect, check_net
from caffe_recipes.review.lint.net_view import upgrade_old
from caffe_recipes.review.lint.recipe_rules import check_cores
from caffe_recipes.review.lint.rules import Explanation, file_rule, finding, path_rule
from caffe_recipes.review.lint.snapshot_rules import check_evaluations, check_started, name_of, name_rank
from caffe_recipes.review.lint.solver_rules import (
    check_other_rates,
    check_snapshot_folder,
    drop_rates,
    solvers_in,
)
from caffe_recipes.review.naming import find_at_path, find_beside, find_shared, is_file, real_path

if TYPE_CHECKING:
    from caffe_recipes.review.lint.chain import (
        Net,
        Solver,
    )
    from caffe_recipes.review.lint.rules import Finding
    from caffe_recipes.review.lint.scripts import Script, TrainCommand

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class NetPlace:
    """The file that holds a solver's net, None if there is none here, and what is to say about its path."""

    file: Path | None
    findings: tuple[Finding, ...] = ()


def net_field(solver: pb.SolverParameter) -> str:
    """Name the field of a solver that gives the training net; empty if none does.

    >>> net_field(pb.SolverParameter(train_net="a.prototxt"))
    'train_net'
    """
    fields = ("net", "train_net", "net_param", "train_net_param")
    return next((field for field in fields if solver.HasField(field)), "")


def inline_net(solver: Solver, field: str) -> Net:
    """Take the net that stands inside a solver's file, with its places there."""
    return part_of(solver, field, _value(solver.message, field))


def part_of(document: Document[Any], field: str, message: M) -> Document[M]:
    """Take the message inside a document that a field path names, with its places and comments."""
    start = f"{field}."
    offsets = {
        path.removeprefix(start): at for path, at in document.offsets.items() if path.startswith(start)
    }
    comments = {
        path.removeprefix(start): c for path, c in document.comments.items() if path.startswith(start)
    }
    return Document(document.path, document.text, message, comments, offsets)


@path_rule(
    "net-not-found",
    "note",
    "a net that is not there to be looked at",
    effect="its own rules are not looked at",
    write="--caffe-root DIR, or a copy of the net beside the solver",
)
@path_rule(
    "net-missing",
    "error",
    "a net that is not at its path under the Caffe root",
    effect="Caffe stops with `File not found`",
)
def find_net(solver: Solver, field: str, caffe_root: Path | None, phase: str, *, is_ours: bool) -> NetPlace:
    """Find the net that `field` of a solver gives.

    Without a Caffe root it is sought as `net_paths.find_at_path` does; then, and where it is missing, beside
    the solver by its file name. The recipe chooses the folder of a file that is generated, which may be one
    that recipes share.
    """
    given: str = _value(solver.message, field)
    found = find_at_path(solver.path, given, caffe_root)
    if found is not None:
        return NetPlace(found)
    beside_file = find_beside(solver.path, given) or (find_shared(solver.path, given) if is_ours else None)
    where = solver.where(field)
    if caffe_root is not None:
        what = f"no file {given} under {caffe_root}"
        return NetPlace(
            beside_file,
            (
                finding(
                    "net-missing", where, what, phase, write=f"{field}: the net's path from the Caffe root"
                ),
            ),
        )
    home = Path(solver.path).absolute().parent.name
    findings = () if is_ours else tuple(_folder(given, home, where, field, phase, beside_file))
    if beside_file is None:
        what = f"{given} is neither here nor beside the solver"
        unread = finding("net-not-found", where, what, phase)
        findings = (*findings, unread)
    return NetPlace(beside_file, findings)


def _value(solver: pb.SolverParameter, field: str) -> Any:  # noqa: ANN401
    """Give the value of a field, or of one in a list: `test_net[0]`."""
    name, _, index = field.partition("[")
    value = getattr(solver, name)
    return value[int(index.removesuffix("]"))] if index else value


@path_rule(
    "net-folder",
    "warning",
    "a net in another folder than the solver's own",
    effect="Caffe stops with `File not found` if there is no such folder",
    explanation=Explanation(
        "`net:` is a path from the folder that Caffe is started in, mostly its root. Lint has no "
        "root to look under, and the folder's name differs from the solver's own, as after a "
        "rename.",
        "The right path, or --caffe-root DIR to have it looked for.",
    ),
)
def _folder(
    given: str, home: str, where: str, field: str, phase: str, beside_file: Path | None
) -> Iterator[Finding]:
    path = PurePosixPath(given)
    folder = path.parent.name
    if folder and folder != ".." and folder != home:
        what = f"the net lies in {folder}, and the solver in {home}"
        write = f'{field}: "{path.parent.with_name(home) / path.name}"'
        if beside_file is None:
            write = f"{field}: the path of a net that is there; {home} has none of this name"
        yield finding("net-folder", where, what, phase, write=write, folder=folder, own=home)


def find_datum(source: str, root: Path | None) -> pb.Datum | None:
    """Read the first Datum of an LMDB, from the Caffe root or from here; None if there is none to read."""
    try:
        return read_first(source, root)
    except DataError:
        return None


def count_records(source: str, root: Path | None) -> int:
    """Count the records of an LMDB, from the Caffe root or from here; 0 if there is none to read."""
    folder = (root or Path()) / source
    if not source or not is_file(folder / "data.mdb"):
        return 0
    from caffe_recipes.caffe.datums import open_datums  # LMDB's library, only where there is one to read

    try:
        with open_datums(folder) as datums:
            return len(datums)
    except DataError:
        return 0


@path_rule(
    "lmdb-unreadable",
    "warning",
    "an LMDB that is here, and is empty or damaged",
    effect="Caffe stops with it, or reads no record; what its images are is not known here",
)
def check_records(net: Document[pb.NetParameter], root: Path | None) -> Iterator[Finding]:
    """Find LMDBs that are here, and empty or damaged; each once, at the first layer that names it."""
    seen: set[str] = set()
    for index, layer in enumerate(net.message.layer):
        source = layer.data_param.source
        if source in seen:
            continue
        seen.add(source)
        try:
            read_first(source, root)
        except DataError as error:
            where = net.where(f"layer[{index}].data_param.source")
            yield finding(
                "lmdb-unreadable",
                where,
                f"{error.where} {error.what}",
                write=error.hint or "build the LMDB again",
            )


FOR_GPUS = ("bvlc", "nvcaffe")


@dataclass(frozen=True)
class LintOptions:
    """What the files do not hold, and how they are to be read."""

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
    """Reads each file once; keeps what was found in its text, and the order in which to speak of files.

    `phases` are those in which the solvers read a net's file, `other_rates` the solvers whose rates are not
    judged.
    """

    options: LintOptions
    documents: dict[Path, Document[Any] | PrototxtError] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    phases: dict[Path, set[int]] = field(default_factory=dict)
    other_rates: set[str] = field(default_factory=set)

    def read(self, path: Path) -> Document[Any]:
        """Read a prototxt file; PrototxtError if it cannot be read, or is not what Caffe reads."""
        key = real_path(path)
        if key not in self.documents:
            try:
                self.documents[key] = self._read(path)
            except PrototxtError as error:
                self.documents[key] = error
        found = self.documents[key]
        if isinstance(found, PrototxtError):
            raise found
        return found

    @file_rule(
        "unreadable",
        "error",
        "a prototxt of a folder that Caffe could not read",
        effect="Caffe stops with it",
    )
    def read_leniently(self, path: Path) -> Document[Any] | None:
        """Read a prototxt file, and find what cannot be read instead of raising it."""
        try:
            return self.read(path)
        except PrototxtError as error:
            self.findings.append(
                finding("unreadable", error.where, error.what, write=error.hint or "correct it")
            )
            return None

    def nets(self) -> list[Document[pb.NetParameter]]:
        """Give the nets that were read."""
        read = [one for one in self.documents.values() if isinstance(one, Document)]
        return [one for one in read if isinstance(one.message, pb.NetParameter)]

    def check(self, net: Document[pb.NetParameter]) -> list[Finding]:
        """Find what is wrong with a net by itself, in the phases that solvers read it in, or in both."""
        options = self.options
        phases = self.phases.get(real_path(net.path), ())
        if len(phases) == 1:
            (phase,) = phases
            only = restrict_net(net.message, phase)
            # Without data in that phase the rules on chains have said so.
            net = replace(net, message=only) if has_source(only, NetState(phase)) else net
        found = check_net(
            net,
            classes=options.classes,
            datum_of=lambda source: find_datum(source, options.caffe_root),
            dialect=options.dialect,
        )
        return [*found, *check_records(net, options.caffe_root)]

    def _read(self, path: Path) -> Document[Any]:
        text = read_prototxt(path, self.options.max_bytes)
        document = parse_text(text, path, self.options.dialect)
        if not document.message.ListFields():
            raise PrototxtError(path, "holds no field at all", "was it copied whole?")
        self.findings.extend(check_text(text, path, self.options.dialect))
        self.findings.extend(check_forms(document))
        if self.options.dialect != OURS:
            from caffe_recipes.caffe.dialects.schema import parse_lenient

            other = [*check_other_rates(parse_lenient(text, path), self.options.dialect)]
            self.findings.extend(other)
            self.other_rates.update(document.path for _ in other)
        if self.options.caffe_root is not None and isinstance(document.message, pb.SolverParameter):
            self.findings.extend(check_snapshot_folder(document, self.options.caffe_root))
        return document


def parse_text(text: str, path: str | Path, dialect: str) -> Document[Any]:
    """Parse the text of a dialect into our messages, without what our Caffe does not have; PrototxtError."""
    if dialect == OURS:
        return parse_document(text, path)
    from caffe_recipes.caffe.dialects.schema import parse_lenient, to_ours

    given = parse_lenient(text, path)
    return Document(
        given.path, given.text, to_ours(given.message), given.comments, given.offsets, given.newer_forms
    )


@file_rule(
    "byte-order-mark",
    "error",
    "a byte-order mark at the start of a file: Caffe's parser refuses it",
    effect="Caffe stops with `Error parsing text-format`: its parser does not know it",
    write="the file again as UTF-8 without a BOM; `caffe-recipes fmt` does",
)
def check_text(text: str, path: str | Path, dialect: str) -> Iterator[Finding]:
    """Find what a dialect's parser refuses or reads otherwise, and a byte-order mark."""
    if text.startswith("\ufeff"):
        what = "the file starts with a byte-order mark"
        yield finding("byte-order-mark", f"{path}:1:1", what)
    if dialect != OURS:
        yield from check_dialect(path, text, dialect)


@file_rule("newer-text", "note", "text that a Caffe built with an old protobuf cannot read")
def check_forms(document: Document[Any]) -> Iterator[Finding]:
    """Find text that a Caffe built with an old protobuf cannot read; each form once, where it is first."""
    seen: set[str] = set()
    for form in document.newer_forms:
        if form.what not in seen:
            seen.add(form.what)
            what = f"{form.field.rpartition('.')[2]}: {form.what}"
            yield finding(
                "newer-text",
                document.place(form.offset),
                what,
                effect=f"a Caffe built with {form.versions} would {form.effect}",
                write=f"{form.write}; `caffe-recipes fmt` writes the file so that all read it",
            )


@file_rule(
    "label-twice",
    "warning",
    "a label map that gives one label, or one name, twice",
    effect="whichever is read last, or first, is taken for both",
)
def check_labels(document: Document[pb.LabelMap]) -> Iterator[Finding]:
    """Find a label map that gives a label or a name twice."""
    for key in ("label", "name"):
        seen: dict[object, int] = {}
        for index, item in enumerate(document.message.item):
            if not item.HasField(key):
                continue
            value = getattr(item, key)
            first = seen.setdefault(value, index)
            if first != index:
                what = f"{key} {value!r} is given twice, by items {first} and {index}"
                where = document.where(f"item[{index}].{key}")
                yield finding("label-twice", where, what, write=f"one item for each {key}")


_GENERATED = "Generated by `caffe-recipes generate "


def lint_files(reader: Reader, paths: Iterable[Path], script: Script) -> Iterator[Finding]:
    """Find what is wrong with files: the solvers as one chain in their order, unless each stands alone."""
    documents = [reader.read(path) for path in paths]
    solvers = [document for document in documents if is_solver(document)]
    if reader.options.is_alone:
        for solver in solvers:
            yield from lint_chain(reader, [solver], script, is_whole=False)
    else:
        started, idle = split_started(solvers, script)
        chains = [started] if started and script.trainings else split_chains(solvers)
        yield from _say_alone(chains)
        for chain in chains:
            yield from lint_chain(reader, chain, script, is_whole=len(chains) == 1 or len(chain) > 1)
        yield from check_started(idle)
        for solver in idle if started else ():
            yield from lint_chain(reader, [solver], script, is_whole=False)
    for document in documents:
        yield from lint_single(reader, document)
    yield from check_deploys([*map(upgraded, reader.nets())])


def split_chains(solvers: Sequence[Document[Any]]) -> list[list[Document[Any]]]:
    """Split solvers into chains, each in the given order: by their nets, numbers and snapshot prefixes."""
    chains: list[list[Document[Any]]] = []
    for solver in solvers:
        linked = [chain for chain in chains if any(_is_linked(one, solver) for one in chain)]
        joined = [one for chain in linked for one in chain]
        chains = [chain for chain in chains if chain not in linked]
        chains.append([one for one in solvers if one in joined or one is solver])
    order = {id(solver): index for index, solver in enumerate(solvers)}
    return sorted(chains, key=lambda chain: order[id(chain[0])]) or [[]]


def _is_linked(one: Document[Any], other: Document[Any]) -> bool:
    """Whether two solvers look like phases of one chain."""
    if not all(isinstance(each.message, pb.SolverParameter) for each in (one, other)):
        return True  # several solvers in one file go with what they are given with
    nets = [getattr(each.message, net_field(each.message) or "net") for each in (one, other)]
    is_same_net = (
        bool(nets[0]) and nets[0] == nets[1] and solver_type(one.message) == solver_type(other.message)
    )
    names = [name_of(each.path) for each in (one, other)]
    ranks = [name_rank(name) for name in names]
    homes = [Path(each.path).parent for each in (one, other)]
    is_numbered = homes[0] == homes[1] and None not in ranks and ranks[0] != ranks[1]
    stems = [_stem(each, name) for each, name in zip((one, other), names, strict=True)]
    return is_same_net or is_numbered or bool(stems[0] and stems[0] == stems[1])


def _stem(solver: Document[Any], name: str) -> str:
    """Give a snapshot_prefix without its phase's name at the end; empty if it does not end so."""
    prefix: str = solver.message.snapshot_prefix
    return (
        prefix.removesuffix(name) if prefix.endswith(name) and prefix.removesuffix(name)[-1:] != "/" else ""
    )


@path_rule(
    "taken-alone",
    "note",
    "solvers given together that are not one chain",
    effect="what happens between those taken apart was not looked at",
    write="--script FILE with the commands, if they are one",
)
def _say_alone(chains: Sequence[Sequence[Document[Any]]]) -> Iterator[Finding]:
    if len(chains) < 2:
        return
    shown = [", ".join(Path(solver.path).name for solver in chain) for chain in chains if len(chain) > 1]
    alone = ", ".join(Path(chain[0].path).name for chain in chains if len(chain) == 1)
    parts = [*(f"{names} as one chain" for names in shown), *([f"{alone} each alone"] if alone else [])]
    what = f"these solvers are not one chain; they were taken so: {'; '.join(parts)}"
    yield finding("taken-alone", chains[0][0].path, what)


def is_solver(document: Document[Any]) -> bool:
    """Whether a document is a solver, or several in one."""
    return isinstance(document.message, pb.SolverParameter | pb.MultiPhaseSolverParameter)


def lint_single(reader: Reader, document: Document[Any]) -> Iterator[Finding]:
    """Find what is wrong with a net or a label map by itself."""
    reader.order.append(document.path)
    if isinstance(document.message, pb.NetParameter):
        yield from reader.check(document)
    elif isinstance(document.message, pb.LabelMap):
        yield from check_labels(document)


def lint_chain(
    reader: Reader, documents: Sequence[Document[Any]], script: Script, *, is_whole: bool = True
) -> Iterator[Finding]:
    """Find what is wrong with solvers as one chain, and with their nets."""
    links: list[Link] = []
    for document in documents:
        for name, solver in _solvers_in(document):
            training = find_training(script, document.path)
            nets = [*_nets(reader, solver, name)]
            yield from (found for place, _ in nets for found in place.findings)
            links.append(_link(reader, name, solver, [net for _, net in nets], training, links))
        if not script.is_ours:
            yield from _script_path(reader, document, script)
    reader.order.extend([link.solver.path for link in links] + [net.path for net in _nets_of(links)])
    tested = tuple(map(upgraded, _tested(reader, links, script)))
    chain = Chain(tuple(_modern(reader, link) for link in links), _setting(reader, script), is_whole, tested)
    found = drop_rates(check_chain(chain), reader.other_rates)
    # BVLC's Caffe takes the solver's file name for a prefix.
    is_named = reader.options.dialect == "bvlc"
    yield from (one for one in found if not is_named or one.id != "snapshot-prefix-missing")
    yield from check_evaluations(
        stop_phases(chain).links, script, is_all=is_whole and _is_all(documents, script)
    )
    for net in _nets_of(links):
        yield from reader.check(net)
    if script.mlsl_where:
        yield from check_cores(chain.setting, script.mlsl_where)


def _is_all(documents: Sequence[Document[Any]], script: Script) -> bool:
    """Whether each command of the script trains one of these solvers."""
    trained = [find_training(script, document.path) for document in documents]
    return not script.untold and all(training in trained for training in script.trainings)


def _modern(reader: Reader, link: Link) -> Link:
    net, tests = link.net and upgraded(link.net), tuple(map(upgraded, link.test_nets))
    state = NetState(pb.TEST)
    sources = [layer for one in tests or [net] if one for layer in select_sources(one.message, state)]
    names = [layer.data_param.source for layer in sources if layer.type == "Data"]
    images = count_records(names[0], reader.options.caffe_root) if names else 0
    return replace(link, net=net, test_nets=tests, tested_images=images)


def _nets_of(links: Sequence[Link]) -> list[Net]:
    return [net for link in links for net in (link.net, *link.test_nets) if net is not None]


def upgraded(net: Net) -> Net:
    """Give a net of `layers` as Caffe upgrades it, any other as it is."""
    return upgrade_old(net)[0] if net.message.layers else net


def find_training(script: Script, path: str) -> TrainCommand | None:
    """Find the first command whose solver is the file: of the same name, with the most folders in common."""
    parts = Path(path).absolute().parts[::-1]

    def common(training: TrainCommand) -> int:
        theirs = PurePosixPath(training.solver).parts[::-1]
        same = [one == other for one, other in zip(parts, theirs, strict=False)]
        return [*same, False].index(False)

    return max((training for training in script.trainings if common(training)), key=common, default=None)


def split_started(
    solvers: Sequence[Document[Any]], script: Script
) -> tuple[list[Document[Any]], list[Document[Any]]]:
    """Split solvers into those that a script trains, and those that it does not.

    All are of the first where the script trains nothing, or something that cannot be told.
    """
    if not script.trainings or script.untold:
        return list(solvers), []
    started = [solver for solver in solvers if find_training(script, solver.path)]
    return started, [solver for solver in solvers if solver not in started]


def _solvers_in(document: Document[Any]) -> Iterator[tuple[str, Solver]]:
    name = name_of(document.path)
    for number, (start, solver) in enumerate(solvers_in(document.message), 1):
        if start:
            yield f"{name} {number}", part_of(document, start.removesuffix("."), solver)
        else:
            yield name, document


def _link(
    reader: Reader,
    name: str,
    solver: Solver,
    nets: Sequence[Net | None],
    training: TrainCommand | None,
    earlier: Sequence[Link],
) -> Link:
    """Make a phase of a solver, its training net first of `nets`, and the command that starts it."""
    tests = tuple(net for net in nets[1:] if net is not None)
    last_iter, after = max(solver.message.max_iter, 0), earlier[-1:]
    if after and after[0].solver.path == solver.path:  # several in one file, each from the one before
        weights = f"{after[0].solver.message.snapshot_prefix}_iter_{after[0].last_iter}.caffemodel"
        return Link(name, solver, nets[0], last_iter, weights, test_nets=tests)
    if training is None:
        return Link(name, solver, nets[0], last_iter, test_nets=tests)
    return Link(
        name,
        solver,
        nets[0],
        training.stop_iter or last_iter,
        training.weights,
        training.where,
        training.snapshot,
        None if reader.options.ranks else training.ranks,
        tests,
    )


@path_rule(
    "net-not-named",
    "error",
    "a solver that names no net",
    effect="Caffe stops with `SolverParameter must specify a train net`",
    write="net: the net's path",
)
def _nets(reader: Reader, solver: Solver, name: str) -> Iterator[tuple[NetPlace, Net | None]]:
    """Yield where a solver's nets lie and what they are: the trained one, then those it tests besides."""
    field = net_field(solver.message)
    if not field:
        what = "the solver names no net"
        yield NetPlace(None, (finding("net-not-named", solver.path, what, name),)), None
    else:
        # A solver of 2014 has a file for each phase.
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
    "a net inside a solver that Caffe would have to upgrade, and does not",
    effect="Caffe takes it for an empty net, and stops",
    write="the net in a file, named by `net:`; or `layer`, and an Input layer",
)
def _read_net(
    reader: Reader, solver: Solver, field: str, name: str, phases: Sequence[int]
) -> tuple[NetPlace, Net | None]:
    if field.partition("[")[0].endswith("param"):
        net = inline_net(solver, field)
        old = next((each for each in ("layers", "input") if getattr(net.message, each)), None)
        if old is None:
            return NetPlace(None), net
        what = f"the net in {field} has `{old}`, which Caffe upgrades in files of their own alone"
        where = solver.where(f"{field}.{old}[0]")
        return NetPlace(None, (finding("inline-net-old", where, what, name),)), None
    is_ours = _GENERATED in solver.text[:1000]
    place = find_net(solver, field, reader.options.caffe_root, name, is_ours=is_ours)
    if place.file is None:
        return place, None
    document = reader.read_leniently(_shown(place.file, solver))
    if document is None or not isinstance(document.message, pb.NetParameter):
        return place, None
    reader.phases.setdefault(place.file.resolve(), set()).update(phases)
    return place, document


def _shown(path: Path, solver: Solver) -> Path:
    """Give a path as the solver's was given: absolute, or from here."""
    return path if Path(solver.path).is_absolute() else Path(os.path.relpath(path))


@path_rule(
    "solver-path",
    "warning",
    "a command that gives --solver another folder than the file's",
    effect="Caffe stops with `File not found` if there is no such folder",
)
def _script_path(reader: Reader, document: Document[Any], script: Script) -> Iterator[Finding]:
    """Find a command that seeks the solver in another folder than it lies in."""
    training = find_training(script, document.path)
    if training is None:
        return
    root, home = reader.options.caffe_root, Path(document.path).absolute().parent.name
    theirs = PurePosixPath(training.solver)
    folder = theirs.parent.name
    is_there = is_file(root / training.solver) if root else folder in ("", "..", home)
    if not is_there:
        what = f"the command gives --solver={training.solver}, and the file lies in {home}"
        yield finding(
            "solver-path",
            training.where,
            what,
            name_of(document.path),
            write=f"--solver={theirs.parent.with_name(home) / Path(document.path).name}",
        )


def _setting(reader: Reader, script: Script) -> ChainFacts:
    options = reader.options
    return ChainFacts(
        ranks=options.ranks or script.ranks,
        images=options.images,
        test_images=options.test_images,
        ranks_per_node=script.ranks_per_node,
        omp_num_threads=script.omp_num_threads,
        mlsl_cores=script.mlsl_cores,
        has_gpus=options.dialect in FOR_GPUS,
    )


def _tested(reader: Reader, links: Sequence[Link], script: Script) -> Iterator[Net]:
    """Give the nets that the script's tests use, where they are under the Caffe root or beside a solver."""
    for model in script.tested:
        root = reader.options.caffe_root or Path()
        beside = (Path(link.solver.path).parent / PurePosixPath(model).name for link in links)
        file = next((path for path in (root / model, *beside) if is_file(path)), None)
        document = reader.read_leniently(_shown(file, links[0].solver)) if file and links else None
        if document is not None and isinstance(document.message, pb.NetParameter):
            yield document
