"""Reading what lint is given: documents of any dialect, each once, and what is wrong with the text itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import OURS
from caffe_recipes.caffe.documents import Document, parse_document
from caffe_recipes.caffe.prototxt import MOST_BYTES, read_prototxt
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.chains.other_rates import check_other_rates
from caffe_recipes.review.lint.chains.solver_values import check_snapshot_folder
from caffe_recipes.review.lint.chains.states import State, has_source, restrict_net
from caffe_recipes.review.lint.nets import check_net
from caffe_recipes.review.lint.reading.records import check_records, find_datum
from caffe_recipes.review.lint.rules import finding
from caffe_recipes.review.net_paths import real_path

FOR_GPUS = ("bvlc", "nvcaffe")


@dataclass(frozen=True)
class Options:
    """What the files do not hold, and how they are to be read."""

    ranks: int | None = None
    images: int | None = None
    classes: int | None = None
    caffe_root: Path | None = None
    script: Path | None = None
    dialect: str = OURS
    max_bytes: int = MOST_BYTES
    is_alone: bool = False


@dataclass(frozen=True)
class Reader:
    """Reads each file once; keeps what was found in its text, and the order in which to speak of files.

    `phases` are those in which the solvers read a net's file, `other_rates` the solvers whose rates are not
    judged.
    """

    options: Options
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

    def read_leniently(self, path: Path) -> Document[Any] | None:
        """Read a prototxt file, and find what cannot be read instead of raising it."""
        try:
            return self.read(path)
        except PrototxtError as error:
            self.findings.append(
                finding("unreadable", error.where, error.what, "Caffe stops with it", error.hint or "mend it")
            )
            return None

    def check(self, net: Document[pb.NetParameter]) -> list[Finding]:
        """Find what is wrong with a net by itself, in the phases that solvers read it in, or in both."""
        options = self.options
        phases = self.phases.get(real_path(net.path), ())
        if len(phases) == 1:
            (phase,) = phases
            only = restrict_net(net.message, phase)
            # Without data in that phase the rules on chains have said so.
            net = replace(net, message=only) if has_source(only, State(phase)) else net
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
    return Document(given.path, given.text, to_ours(given.message), given.comments, given.offsets)


def check_text(text: str, path: str | Path, dialect: str) -> Iterator[Finding]:
    """Find what a dialect's parser refuses or reads otherwise, and a byte-order mark."""
    if text.startswith("\ufeff"):
        what = "the file starts with a byte-order mark"
        effect = "Caffe stops with `Error parsing text-format`: its parser does not know it"
        write = "the file again as UTF-8 without a BOM; `caffe-recipes fmt` does"
        yield finding("byte-order-mark", f"{path}:1:1", what, effect, write)
    if dialect != OURS:
        from caffe_recipes.review.lint.dialect import check_dialect

        yield from check_dialect(path, text, dialect)


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
                effect = "whichever is read last, or first, is taken for both"
                where = document.where(f"item[{index}].{key}")
                yield finding("label-twice", where, what, effect, f"one item for each {key}")
