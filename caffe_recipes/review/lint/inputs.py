"""Read documents of any dialect, each once, and find mistakes in the text itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import OURS
from caffe_recipes.caffe.dialects.schema import parse_lenient, to_any, to_ours
from caffe_recipes.caffe.net_states import NetState, has_data, restrict_net
from caffe_recipes.caffe.prototxt import MOST_BYTES, Document, empty_file_error, read_prototxt
from caffe_recipes.caffe.text.parser import V1_TYPE
from caffe_recipes.errors import PrototxtError
from caffe_recipes.quoting import hiding_foreign_text, real_path, refuse_foreign_names
from caffe_recipes.review.lint.check import check_net
from caffe_recipes.review.lint.old_nets import upgrade_old
from caffe_recipes.review.lint.records import find_datum, find_labels
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.rules.dialect_rates import UNCHECKED_RATES
from caffe_recipes.review.lint.subjects import (
    FILE_SUBJECTS,
    ReadFile,
    dialect_text_rule,
    record_rule,
    text_rule,
)

if TYPE_CHECKING:
    from caffe_recipes.quoting import Home
    from caffe_recipes.review.lint.findings import Finding


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
        return [*found, *record_rule.run(net, options.caffe_root, find_first)]

    def _read(self, path: Path, named_by: str | Path) -> Document[Any]:
        text = read_prototxt(path, self.options.max_bytes)
        given = parse_lenient(text, path)
        if not given.message.ListFields():
            raise empty_file_error(path)
        if named_by:
            refuse_foreign_names(path, given.foreign, *self._homes(named_by))
        document, notes = convert_to_ours(given, self.options.dialect)
        file = ReadFile(given, self.options.dialect, self.options.caffe_root)
        found = [one for subject in FILE_SUBJECTS for one in subject.run(file)]
        if any(one.id == UNCHECKED_RATES for one in found):
            self.unchecked_rates.add(document.path)
        self.findings.extend((*found, *notes, *lint_text(text, path, self.options.dialect)))
        return document


def lint_text(text: str, path: str | Path, dialect: str) -> Iterator[Finding]:
    """Find mistakes in the text of a file, and what a dialect's Caffe would refuse or read differently."""
    yield from text_rule.run(text, path, dialect)
    if dialect != OURS:
        yield from dialect_text_rule.run(text, path, dialect)


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


def is_solver(document: Document[Any]) -> bool:
    """Return whether a document is a solver, or several solvers in one file."""
    return isinstance(document.message, pb.SolverParameter | pb.MultiPhaseSolverParameter)
