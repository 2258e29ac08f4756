"""What `lint` is given: recipes by name or file, prototxts as one chain, folders."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from caffe_recipes.errors import InputError
from caffe_recipes.review.findings import SEVERITIES, Finding
from caffe_recipes.review.lint.chains.check import sort_findings, split_place
from caffe_recipes.review.lint.reading.commands import check_commands
from caffe_recipes.review.lint.reading.files import lint_files
from caffe_recipes.review.lint.reading.folder import lint_folder
from caffe_recipes.review.lint.reading.reader import Options, Reader
from caffe_recipes.review.lint.reading.script import Script, load_script
from caffe_recipes.review.lint.rules import RULES, Rule
from caffe_recipes.review.naming import RECIPE_SUFFIXES, find_named


def lint(targets: Sequence[str], options: Options) -> list[Finding]:
    """Find what is wrong with recipes one after the other, then with folders, then with files as one chain.

    Raises InputError for what cannot be read, and for options of files where only recipes are given.
    """
    if not all(target.strip() for target in targets):
        raise InputError("", "an empty name is given", "is a variable unset?")
    recipes = [target for target in targets if is_recipe(target)]
    others = [Path(target) for target in targets if target not in recipes]
    if not others:
        _refuse_options(options)
    found: list[Finding] = []
    for recipe in recipes:
        from caffe_recipes.review.lint.reading.recipes import lint_recipe  # pydantic is slow to start

        found += lint_recipe(recipe, options.dialect)
    return found + _lint_paths(others, options)


def is_recipe(target: str) -> bool:
    """Whether a target is a recipe: a YAML file, the name of one that ships, or a name that is no path.

    >>> is_recipe("mine.yaml"), is_recipe("stampede2-64n-72ep"), is_recipe("a/solver.prototxt")
    (True, True, False)
    """
    named = find_named(target)
    if named is not None:
        return named.kind == "recipe"
    return target.endswith(RECIPE_SUFFIXES) or not ("/" in target or "." in target)


def is_at_least(found: Finding, severity: str) -> bool:
    """Whether a finding is accepted by nobody and as grave as `severity`, or graver; `never` is above all."""
    if found.accepted or severity == "never":
        return False
    return found.severity in SEVERITIES[: [str(one) for one in SEVERITIES].index(severity) + 1]


def all_rules() -> Mapping[str, Rule]:
    """Return every rule that lint has, by id."""
    from caffe_recipes.review.lint.dialect import DIALECT_RULES
    from caffe_recipes.review.lint.nets import NET_RULES

    return {**RULES, **{name: Rule(*about) for name, about in (*NET_RULES.items(), *DIALECT_RULES.items())}}


def explain_rule(name: str) -> Mapping[str, Rule]:
    """Return one rule by its id; InputError, with the nearest, if there is none."""
    rules = all_rules()
    if name not in rules:
        near = difflib.get_close_matches(name, rules, n=1)
        raise InputError(
            "", f"no rule '{name}'", f"did you mean '{near[0]}'?" if near else "--rules lists them"
        )
    return {name: rules[name]}


def _lint_paths(paths: Sequence[Path], options: Options) -> list[Finding]:
    script = load_script(options.script, options.max_bytes) if options.script else Script()
    reader = Reader(options)
    found: list[Finding] = [*check_commands(script)]
    for folder in (path for path in paths if path.is_dir()):
        found += lint_folder(reader, folder, script)
    found += lint_files(reader, [path for path in paths if not path.is_dir()], script)
    return merge_folders(sort_findings([*reader.findings, *found], reader.order))


def merge_folders(findings: Sequence[Finding]) -> list[Finding]:
    """Say once for all solvers of a folder that their nets are said to lie in another, where the first is."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for found in findings:
        if found.id == "net-folder":
            home = Path(split_place(found.where)[0]).parent
            groups.setdefault((home, found.values["folder"]), []).append(found)
    merged = {id(group[0]): _merge(group) for group in groups.values()}
    gone = {id(found) for group in groups.values() for found in group[1:]}
    return [merged.get(id(found), found) for found in findings if id(found) not in gone]


def _merge(group: Sequence[Finding]) -> Finding:
    first = group[0]
    names = [*dict.fromkeys(found.phase for found in group)]
    if len(names) == 1:
        return first
    folder, own = first.values["folder"], first.values["own"]
    what = f"the nets of {', '.join(names)} lie in {folder}, and the solvers in {own}"
    return replace(first, what=what, phase="")


def _refuse_options(options: Options) -> None:
    given = [
        name
        for name in ("ranks", "images", "classes", "caffe_root", "script")
        if getattr(options, name) is not None
    ]
    if given:
        what = f"--{given[0].replace('_', '-')} is for files: a recipe states its own"
        raise InputError("", what, "give prototxts, or leave it out")
