"""Read files as chains: solvers in order, their nets, and the commands in a script."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import (
    Chain,
    ChainFacts,
    phase_name_from_path,
    phase_order,
    read_links,
    solver_type,
    stop_phases,
)
from caffe_recipes.caffe.net_states import NetState, select_data_layers
from caffe_recipes.review.lint.check import check_chain
from caffe_recipes.review.lint.inputs import GPU_DIALECTS, is_solver
from caffe_recipes.review.lint.old_nets import upgrade_if_old
from caffe_recipes.review.lint.records import count_images
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.rules.dialect_rates import drop_rate_findings
from caffe_recipes.review.lint.rules.machine import check_server_cores
from caffe_recipes.review.lint.solver_nets import NetPlace, find_net, inline_net, net_field
from caffe_recipes.review.lint.subjects import deploy_rule, evaluation_rule
from caffe_recipes.review.naming import is_file

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Link, NetDocument, SolverDocument
    from caffe_recipes.caffe.prototxt import Document
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.inputs import Reader
    from caffe_recipes.review.lint.scripts import Script, TrainCommand


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
    yield from deploy_rule.run([*map(upgrade_if_old, reader.nets())])


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


def _report_separate_chains(chains: Sequence[Sequence[Document[Any]]]) -> Iterator[Finding]:
    if len(chains) < 2:
        return
    shown = [", ".join(Path(solver.path).name for solver in chain) for chain in chains if len(chain) > 1]
    alone = [Path(chain[0].path).name for chain in chains if len(chain) == 1]
    each = "each " if len(alone) > 1 else ""
    parts = [*(f"{names} as one chain" for names in shown)]
    parts += [f"{', '.join(alone)} {each}by itself"] if alone else []
    yield finding("taken-alone", chains[0][0].path, parts="; ".join(parts))


def lint_single(reader: Reader, document: Document[Any]) -> Iterator[Finding]:
    """Find mistakes in a net by itself."""
    reader.order.append(document.path)
    if isinstance(document.message, pb.NetParameter):
        yield from reader.check(document)


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
    is_all = is_whole and _covers_script(documents, script)
    yield from evaluation_rule.run(stop_phases(chain).links, script, is_all)
    for net in _nets_of(links):
        yield from reader.check(net)
    if script.mlsl_where:
        yield from check_server_cores(chain.facts, script.mlsl_where)


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


def _nets_of(links: Sequence[Link]) -> list[NetDocument]:
    return [net for link in links for net in (link.net, *link.test_nets) if net is not None]


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


def _read_nets(
    reader: Reader, solver: SolverDocument, name: str
) -> Iterator[tuple[NetPlace, NetDocument | None]]:
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


def _read_net(
    reader: Reader, solver: SolverDocument, field: str, name: str, phases: Sequence[int]
) -> tuple[NetPlace, NetDocument | None]:
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


def _display_path(path: Path, solver: SolverDocument) -> Path:
    """Return a path in the same form as the solver's: absolute, or relative to the current folder."""
    return path if Path(solver.path).is_absolute() else Path(os.path.relpath(path))


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


def _tested_nets(reader: Reader, links: Sequence[Link], script: Script) -> Iterator[NetDocument]:
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


def check_untrained(untrained: Sequence[Document[Any]]) -> Iterator[Finding]:
    """Report each solver that no command trains."""
    for solver in untrained:
        yield finding(
            "not-started", solver.path, phase=phase_name_from_path(solver.path), file=Path(solver.path).name
        )
