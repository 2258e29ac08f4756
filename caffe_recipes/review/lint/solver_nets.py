"""Find a solver's net: at its path under the Caffe root, or beside the solver."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import sub_document
from caffe_recipes.caffe.text.writer import string_text
from caffe_recipes.render.headers import MARK
from caffe_recipes.review.lint.findings import Fix
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.naming import find_at_path, find_beside, find_shared

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from caffe_recipes.caffe.chain import NetDocument, SolverDocument
    from caffe_recipes.review.lint.findings import Finding


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


def inline_net(solver: SolverDocument, field: str) -> NetDocument:
    """Return the net inside a solver's file, with its places in that file."""
    given = None if solver.given is None else _field_value(solver.given, field)
    return replace(sub_document(solver, field, _field_value(solver.message, field)), given=given)


def find_net(solver: SolverDocument, field: str, caffe_root: Path | None, phase: str) -> NetPlace:
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
