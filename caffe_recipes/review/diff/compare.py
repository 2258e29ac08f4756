"""Compare two sides: find added, removed and renamed files, and the changes in the others."""

from __future__ import annotations

import posixpath
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layers import batch_size as layer_batch
from caffe_recipes.caffe.prototxt import MOST_BYTES, Document, is_kind
from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.recipe.shipped import RECIPE_SUFFIXES
from caffe_recipes.review.diff.changes import Comparison, FileDiff
from caffe_recipes.review.diff.documents import EpochScale, diff_documents, kind_of, read_document
from caffe_recipes.review.diff.messages import match_by_keys, meaning_bytes
from caffe_recipes.review.diff.nets import phase_of
from caffe_recipes.review.diff.sources import RecipeSide, TextFile, Tree

if TYPE_CHECKING:
    from caffe_recipes.review.diff.sources import Read, Sides


@dataclass(frozen=True)
class DiffOptions:
    """The options of `diff`; `images` per epoch and the `ranks` of each side give a solver's epochs.

    `foreign` collects the documents with names that our Caffe does not have.
    """

    defaults: bool = False
    images: int | None = None
    ranks: tuple[int, int] | None = None
    max_bytes: int = MOST_BYTES
    dialect: str | None = None
    foreign: list[Document[Message]] = field(default_factory=list, compare=False)


def compare_trees(old: Tree, new: Tree, options: DiffOptions) -> list[FileDiff]:
    """Return the files that differ, sorted by path; a file that cannot be compared is marked as unreadable.

    A removed file and an added one with the same meaning count as a rename.
    """
    common = old.files.keys() & new.files.keys()
    removed = {path: old.files[path] for path in sorted(old.files.keys() - common)}
    added = {path: new.files[path] for path in sorted(new.files.keys() - common)}
    pairs = match_by_keys([*removed.items()], [*added.items()], [_meaning]) if removed and added else {}
    origins, paths = [*removed], [*added]
    renamed = {paths[j]: origins[i] for i, j in pairs.items()}
    found = [_compare_entry(path, old, new, options) for path in common]
    found += [FileDiff(path, "renamed", renamed_from=origin) for path, origin in renamed.items()]
    found += [FileDiff(path, "removed") for path in removed.keys() - set(renamed.values())]
    found += [FileDiff(path, "added") for path in added.keys() - renamed.keys()]
    return sorted(filter(None, found), key=lambda file: file.path)


def _compare_entry(path: str, old: Tree, new: Tree, options: DiffOptions) -> FileDiff | None:
    sides = []
    for tree in (old, new):
        data = tree.files[path]
        if isinstance(data, PrototxtError):
            return FileDiff(path, "unreadable", note=str(data))
        sides.append(TextFile(f"{tree.prefix}{path}", path, data, tree.read))
    if sides[0].data == sides[1].data:
        return None
    try:
        return compare_files(sides[0], sides[1], options)
    except InputError as error:
        return FileDiff(path, "unreadable", note=str(error))


def _meaning(file: tuple[str, bytes | PrototxtError]) -> Hashable:
    """Return a key that is equal for files of equal meaning; for an unreadable file, its bytes."""
    path, data = file
    if isinstance(data, PrototxtError):
        return path, str(data)
    try:
        message = read_document(data, path).message
    except PrototxtError:
        return data
    return kind_of(message), meaning_bytes(message)


def compare_sides(sides: Sides, options: DiffOptions = DiffOptions()) -> Comparison:
    """Return the comparison of the two sides. Raises InputError if two files cannot be compared."""
    old, new = sides
    if isinstance(old, RecipeSide) and isinstance(new, RecipeSide):
        from caffe_recipes.review.diff.recipe_diff import compare_recipes  # pydantic: not for files

        return compare_recipes(old, new, options.defaults)
    if isinstance(old, Tree) and isinstance(new, Tree):
        files = compare_trees(old, new, options)
        return Comparison(old.label, new.label, tuple(files), untracked=new.untracked)
    assert isinstance(old, TextFile) and isinstance(new, TextFile)
    found = compare_files(old, new, options)
    return Comparison(old.label, new.label, (found,) if found else (), single=True)


def compare_files(old: TextFile, new: TextFile, options: DiffOptions) -> FileDiff | None:
    """Return the difference of two files; None if they have the same meaning.

    Raises PrototxtError or RecipeError if one cannot be read, InputError if they are of different kinds.
    """
    if old.path.endswith(RECIPE_SUFFIXES):
        from caffe_recipes.review.diff.recipe_diff import compare_recipe_files  # pydantic: not for prototxts

        return compare_recipe_files(old, new)
    read = [read_document(file.data, file.label, options.max_bytes) for file in (old, new)]
    options.foreign.extend(document for document in read if document.foreign)
    before, after = (document.message for document in read)
    if kind_of(before) != kind_of(after):
        what = f"'{old.label}' is a {kind_of(before)}, '{new.label}' a {kind_of(after)}"
        raise InputError("", what, "compare two of the same kind")
    scales, note = _scales((before, after), (old, new), options)
    return diff_documents(before, after, new.path, options.defaults, scales, note)


def _scales(
    messages: tuple[Message, Message], files: tuple[TextFile, TextFile], options: DiffOptions
) -> tuple[tuple[EpochScale, EpochScale], str]:
    """Return the epoch scale of each side, from the net beside its solver, and a note on what is unknown."""
    if options.images is None or options.ranks is None:
        return (EpochScale(), EpochScale()), ""
    scales, missing = [], []
    for message, file, ranks in zip(messages, files, options.ranks, strict=True):
        batch = None
        if is_kind(message, pb.SolverParameter):
            batch, problem = _find_batch(message, file, options.max_bytes)
            missing += [f"epochs unknown: {problem}"] if problem else []
        scales.append(EpochScale(options.images, batch * ranks if batch else None))
    return (scales[0], scales[1]), "; ".join(missing)


def _find_batch(solver: pb.SolverParameter, file: TextFile, max_bytes: int) -> tuple[int | None, str]:
    """Return the batch size of a solver's net, or None and the reason why it is unknown."""
    try:
        batch = solver_batch(solver, file.path, file.read, max_bytes)
    except PrototxtError as error:
        return None, str(error)
    return batch, "" if batch else f"found no net with a batch_size beside {file.label}"


def solver_batch(
    solver: pb.SolverParameter, path: str, read: Read, max_bytes: int = MOST_BYTES
) -> int | None:
    """Return the training batch of one rank, from the net inside a solver or in a file beside it.

    None if there is no such net. Raises PrototxtError if it cannot be read.
    """
    for name in ("net_param", "train_net_param"):
        if solver.HasField(name):
            return training_batch(getattr(solver, name))
    net = posixpath.basename(solver.net or solver.train_net)
    folder = path[: path.rindex("/") + 1] if "/" in path else path[: path.rfind(":") + 1]
    data = read(folder + net) if net else None
    message = read_document(data, folder + net, max_bytes).message if data else None
    return training_batch(message) if message and is_kind(message, pb.NetParameter) else None


def training_batch(net: pb.NetParameter) -> int | None:
    """Return the batch_size of a net's first training data layer, or None if it has none.

    >>> data = pb.LayerParameter(type="Data", data_param=pb.DataParameter(batch_size=32))
    >>> training_batch(pb.NetParameter(layer=[data]))
    32
    """
    sizes = (layer_batch(layer) for layer in net.layer if phase_of(layer) != "TEST")
    return next(filter(None, sizes), None)
