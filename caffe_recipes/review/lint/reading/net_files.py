"""Where a solver's net lies: at its path under the Caffe root, or beside the solver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.documents import Document
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.chains.chain import Net, Solver
from caffe_recipes.review.lint.rules import finding
from caffe_recipes.review.net_paths import find_at_path, find_beside, find_shared

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
        effect = "Caffe stops with `File not found`"
        write = f"{field}: the net's path from the Caffe root"
        what = f"no file {given} under {caffe_root}"
        return NetPlace(beside_file, (finding("net-missing", where, what, effect, write, phase),))
    home = Path(solver.path).absolute().parent.name
    findings = () if is_ours else tuple(_folder(given, home, where, field, phase, beside_file))
    if beside_file is None:
        what = f"{given} is neither here nor beside the solver"
        write = "--caffe-root DIR, or a copy of the net beside the solver"
        unread = finding("net-not-found", where, what, "its own rules are not looked at", write, phase)
        findings = (*findings, unread)
    return NetPlace(beside_file, findings)


def _value(solver: pb.SolverParameter, field: str) -> Any:  # noqa: ANN401
    """Give the value of a field, or of one in a list: `test_net[0]`."""
    name, _, index = field.partition("[")
    value = getattr(solver, name)
    return value[int(index.removesuffix("]"))] if index else value


def _folder(
    given: str, home: str, where: str, field: str, phase: str, beside_file: Path | None
) -> Iterator[Finding]:
    path = PurePosixPath(given)
    folder = path.parent.name
    if folder and folder != ".." and folder != home:
        what = f"the net lies in {folder}, and the solver in {home}"
        effect = "Caffe stops with `File not found` if there is no such folder"
        write = f'{field}: "{path.parent.with_name(home) / path.name}"'
        if beside_file is None:
            write = f"{field}: the path of a net that is there; {home} has none of this name"
        yield finding("net-folder", where, what, effect, write, phase, folder=folder, own=home)
