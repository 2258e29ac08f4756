"""Lint the arguments of the command: recipes by name or file, prototxts as one chain, and folders.

In a folder, its solvers are found, and the order in which they are probably trained.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import phase_name_from_path, phase_order
from caffe_recipes.caffe.dialects import OURS
from caffe_recipes.caffe.dialects.schema import load_lenient
from caffe_recipes.errors import CaffeRecipesError, InputError, PrototxtError
from caffe_recipes.files.bounded_reads import open_file, read_bytes
from caffe_recipes.limits import MOST_LINTED_FILES, MOST_SCRIPT_BYTES, MOST_SCRIPT_LINES
from caffe_recipes.quoting import hiding_foreign_text, is_quotable, refuse_foreign_names
from caffe_recipes.recipe.shipped import RECIPE_SUFFIXES
from caffe_recipes.render.headers import is_generated
from caffe_recipes.review.lint.check import sort_findings
from caffe_recipes.review.lint.findings import SEVERITIES, split_place
from caffe_recipes.review.lint.inputs import Reader, convert_to_ours, is_solver
from caffe_recipes.review.lint.old_nets import upgrade_if_old
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.scripts import Script, load_script, parse_script
from caffe_recipes.review.lint.solver_chains import (
    check_untrained,
    find_training,
    lint_chain,
    lint_files,
    lint_single,
    split_trained,
)
from caffe_recipes.review.lint.subjects import deploy_rule, script_rule
from caffe_recipes.review.naming import (
    find_named,
    walk_prototxts,
)

if TYPE_CHECKING:
    from caffe_recipes.caffe.prototxt import Document
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.inputs import LintOptions

_SCRIPT_NAME = re.compile(r"(?i).*\.(sh|bash|slurm|sbatch|job|pbs|md|rst)|readme.*|run[^.]*")
_SOLVER_FIELD = re.compile(rb"(?m)^[ \t]*(base_lr|lr_policy|max_iter|snapshot_prefix)\s*:")


def lint_folder(reader: Reader, folder: Path, script: Script) -> Iterator[Finding]:
    """Find mistakes in the prototxts below a folder; the solvers in each subfolder are one chain.

    Raises InputError for a folder that has no prototxts or cannot be read, and PrototxtError for a solver
    that cannot be read, because the chain without it would be a different one.
    """
    groups = _group_prototxts(folder)
    if not groups:
        raise InputError(folder, "contains no .prototxt file", "give a folder with solvers and nets")
    for home, paths in groups.items():
        documents = [document for path in paths if (document := _read_prototxt(reader, path))]
        solvers = [document for document in documents if is_solver(document)]
        text = script if script != Script() else find_script(home, solvers)
        yield from script_rule.run(text)
        trained, untrained = split_trained(solvers, script)
        # A script for one folder is not expected to train the solvers of another.
        if (trained or len(groups) == 1) and not reader.options.is_alone:
            yield from check_untrained(untrained)
        ordered, why = order_solvers(trained or solvers, text)
        alone = [solver for solver in solvers if solver not in ordered]
        unordered = [solver for solver in alone if solver not in untrained]
        if len(ordered) > 1 and not reader.options.is_alone:
            if text is not script:
                yield from report_order(home, ordered, why)
            yield from lint_chain(reader, ordered, text)
        else:
            alone = solvers
            unordered = trained or solvers
        if len(unordered) > 1 and not reader.options.is_alone:
            yield from report_order(home, unordered, "")
        for solver in alone:
            yield from lint_chain(reader, [solver], text, is_whole=[solver] in (solvers, trained))
        for document in documents:
            yield from lint_single(reader, document)
        yield from deploy_rule.run(
            [upgrade_if_old(one) for one in documents if isinstance(one.message, pb.NetParameter)]
        )


def _read_prototxt(reader: Reader, path: Path) -> Document[Any] | None:
    """Read a prototxt. One that cannot be read is a finding, unless its name or text is that of a solver."""
    try:
        with hiding_foreign_text(path, path.parent, *reader.named, reader.options.caffe_root):
            return reader.read(path, path)
    except PrototxtError:
        if "solver" in path.name.lower() or _SOLVER_FIELD.search(_read_beginning(path)):
            raise
        return reader.read_leniently(path)


def _read_beginning(path: Path) -> bytes:
    try:
        return read_bytes(path, MOST_SCRIPT_BYTES)
    except OSError:
        return b""


def order_solvers(solvers: Sequence[Document[Any]], script: Script) -> tuple[list[Document[Any]], str]:
    """Sort solvers by a script's commands, or else by their names; also return which of the two was used.

    Solvers that the script does not train are left out. Empty if the order is unknown.
    """
    by_command = []
    for training in script.trainings:
        trained = [solver for solver in solvers if find_training(script, solver.path) is training]
        by_command += [solver for solver in trained if solver not in by_command]
    orders = [phase_order(phase_name_from_path(solver.path)) for solver in solvers]
    is_plain = all(isinstance(solver.message, pb.SolverParameter) for solver in solvers)
    is_unknown = None in orders or len(set(orders)) < len(orders) or not is_plain
    if len(by_command) > 1 and (is_unknown or not script.unresolved):
        return by_command, "by the commands of a script"
    if is_unknown:
        return [], ""
    pairs = sorted(zip(orders, range(len(orders)), strict=True), key=lambda pair: (pair[0] or 0, pair[1]))
    return [solvers[index] for _, index in pairs], "by their names"


def find_chain(folder: Path, max_bytes: int, *, is_ordered: bool = True) -> list[str]:
    """Return the solver files below a folder in the order of their training, found as `lint` finds it.

    Raises InputError for a folder without solvers, with several that have any, or, if `is_ordered`, in which
    the order is unknown; and PrototxtError for a file that cannot be read.
    """
    found: dict[Path, list[Document[Any]]] = {}
    for home, paths in _group_prototxts(folder).items():
        documents = [_load_found(path, folder, max_bytes) for path in paths]
        if solvers := [document for document in documents if is_solver(document)]:
            found[home] = solvers
    if not found:
        raise InputError(folder, "contains no solver", "give a folder of solvers, or a recipe")
    if len(found) > 1:
        raise InputError(folder, f"has solvers in {', '.join(map(str, found))}", "give one of these folders")
    ((home, solvers),) = found.items()
    ordered = order_solvers(solvers, find_script(home, solvers))[0] if len(solvers) > 1 else solvers
    if is_ordered and not ordered:
        names = ", ".join(Path(solver.path).name for solver in solvers)
        what = f"the order of its solvers is unknown: {names}"
        raise InputError(folder, what, "name the files in their order, or give --apart")
    return [solver.path for solver in ordered or solvers]


def _load_found(path: Path, folder: Path, max_bytes: int) -> Document[Any]:
    with hiding_foreign_text(path, folder):
        document = load_lenient(path, max_bytes)
        refuse_foreign_names(path, document.foreign, folder)
        return convert_to_ours(document, OURS)[0]


def _group_prototxts(folder: Path) -> dict[Path, list[Path]]:
    """List the prototxts below a folder, by the folder that they are in; hidden folders are skipped."""
    groups: dict[Path, list[Path]] = {}
    count = 0
    for home, found in walk_prototxts(folder):
        count += len(found)
        if count > MOST_LINTED_FILES:
            raise InputError(
                folder, f"contains more than {MOST_LINTED_FILES:,} prototxts", "give one of its subfolders"
            )
        if found:
            groups[Path(home)] = [Path(file) for file in found]
    return groups


def find_script(home: Path, solvers: Sequence[Document[Any]]) -> Script:
    """Return the script or README in a folder that trains the most of its solvers; empty if none does.

    A link out of the folder counts for none, since findings quote what a script says.
    """
    best, best_count = Script(), 1
    for path in sorted(home.iterdir()):
        if not (_SCRIPT_NAME.fullmatch(path.name) and path.is_file() and is_quotable(path, home)):
            continue
        try:
            with open_file(path) as file:  # and not what it is exchanged for meanwhile
                data = file.read(MOST_SCRIPT_BYTES + 1)
            text = data.decode("utf-8", errors="replace")
            if len(data) > MOST_SCRIPT_BYTES or text.count("\n") > MOST_SCRIPT_LINES:
                continue
            script = parse_script(text, path)
        except (OSError, CaffeRecipesError):
            continue
        count = sum(find_training(script, solver.path) is not None for solver in solvers)
        if count > best_count or (count and count == len(solvers)):
            best, best_count = script, count
    return best


def lint_targets(
    targets: Sequence[str], options: LintOptions, report: Callable[[str], None] = lambda line: None
) -> list[Finding]:
    """Find mistakes in each recipe, then in each folder, then in the files as one chain.

    Calls `report` with a line for each chain of several solvers, and for each recipe whose files on disk are
    stale. Raises InputError for unreadable input, and for options of files if only recipes are given.
    """
    if not all(target.strip() for target in targets):
        raise InputError("", "an empty name is given", "is a variable unset?")
    recipes = [target for target in targets if is_recipe(target)]
    others = [Path(target) for target in targets if target not in recipes]
    if not others:
        _refuse_options(options)
    found: list[Finding] = []
    if recipes:
        from caffe_recipes.recipe.source import expand_families  # pydantic is slow to import
        from caffe_recipes.review.lint.recipe_lint import lint_recipe

        for recipe in expand_families(recipes):
            new = lint_recipe(recipe, options.dialect, report)
            found += [one for one in new if one not in found]  # rows share the lines of their base
    return _advise_recipes(found + _lint_paths(others, options, report))


def _advise_recipes(findings: Sequence[Finding]) -> list[Finding]:
    """Advise to change the recipe where a finding is in a generated file, which is written again."""
    paths = {split_place(found.where)[0] for found in findings}
    generated = {path for path in paths if is_generated(_read_beginning(Path(path)).decode(errors="replace"))}
    return [
        replace(found, write=f"change the recipe, not this generated file: {found.write}")
        if split_place(found.where)[0] in generated
        else found
        for found in findings
    ]


def is_recipe(target: str) -> bool:
    """Return whether a target is a recipe: a YAML file, a shipped recipe, or a name that is not a path.

    >>> is_recipe("mine.yaml"), is_recipe("stampede2-64n-72ep"), is_recipe("a/solver.prototxt")
    (True, True, False)
    """
    named = find_named(target)
    if named is not None:
        return named.kind == "recipe"
    return target.endswith(RECIPE_SUFFIXES) or not ("/" in target or "." in target)


def is_at_least(found: Finding, severity: str) -> bool:
    """Return whether a finding is not accepted and at least as severe as `severity`; False for `never`."""
    if found.accepted or severity == "never":
        return False
    return found.severity in SEVERITIES[: [str(one) for one in SEVERITIES].index(severity) + 1]


def _lint_paths(paths: Sequence[Path], options: LintOptions, report: Callable[[str], None]) -> list[Finding]:
    script = load_script(options.script, options.max_bytes) if options.script else Script()
    reader = Reader(options, tuple(path for path in paths if path.is_dir()))
    found: list[Finding] = [*script_rule.run(script)]
    for folder in (path for path in paths if path.is_dir()):
        found += lint_folder(reader, folder, script)
    found += lint_files(reader, [path for path in paths if not path.is_dir()], script)
    for chain in reader.chains:
        homes = {str(Path(path).parent) for path in chain}
        where = f"{homes.pop()}: " if len(reader.chains) > 1 and len(homes) == 1 else ""
        report(f"{where}{len(chain)} solvers are checked as one chain; --alone checks each by itself")
    return merge_folders(sort_findings([*reader.findings, *found], reader.order))


def merge_folders(findings: Sequence[Finding]) -> list[Finding]:
    """Merge the `net-folder` findings of a folder's solvers that name the same folder into the first one."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for found in findings:
        if found.id == "net-folder":
            home = Path(split_place(found.where)[0]).parent
            groups.setdefault((home, found.values["folder"]), []).append(found)
    merged = {id(group[0]): _merge_group(group) for group in groups.values()}
    gone = {id(found) for group in groups.values() for found in group[1:]}
    return [merged.get(id(found), found) for found in findings if id(found) not in gone]


def _merge_group(group: Sequence[Finding]) -> Finding:
    first = group[0]
    names = [*dict.fromkeys(found.phase for found in group)]
    if len(names) == 1:
        return first
    folder, own = first.values["folder"], first.values["own"]
    what = f"the nets of {', '.join(names)} are in {folder}, but the solvers are in {own}"
    return replace(first, what=what, phase="", fixes=tuple(fix for found in group for fix in found.fixes))


def _refuse_options(options: LintOptions) -> None:
    given = [
        name
        for name in ("ranks", "images", "test_images", "classes", "caffe_root", "script")
        if getattr(options, name) is not None
    ]
    if given:
        what = f"--{given[0].replace('_', '-')} applies to files only: a recipe sets its own"
        raise InputError("", what, "give prototxts, or remove the option")


def report_order(home: Path, solvers: Sequence[Document[Any]], why: str) -> Iterator[Finding]:
    """Report the assumed order of a folder's solvers and its reason, or that the order is unknown."""
    names = ", ".join(Path(solver.path).name for solver in solvers)
    if why:
        yield finding("order-guessed", str(home), count=len(solvers), why=why, names=names)
    else:
        yield finding("order-unknown", str(home), names=names)
