"""How many epochs an iteration of solvers' files is: by what the user says, and the nets beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.documents import Document, load_document
from caffe_recipes.caffe.prototxt import MOST_BYTES
from caffe_recipes.errors import InputError
from caffe_recipes.review.diff.compare import batch_of


def find_epochs_per_iter(
    files: Sequence[str],
    images: int | None,
    ranks: int | None,
    batch: int | None,
    max_bytes: int = MOST_BYTES,
) -> float | None:
    """Give the epochs of an iteration of one batch a rank; None where nothing is said of epochs.

    `ranks` is 1 unless said. A `batch` that is not said is that of the nets beside the solvers' files, or in
    them. Raises InputError that names all that is missing, and where these nets differ.
    """
    if images is None and ranks is None and batch is None:
        return None
    missing = [] if images is not None else ["--images"]
    batches = {} if batch else {file: batch_beside(file, max_bytes) for file in files}
    unknown = [file for file, size in batches.items() if size is None]
    if batch is None and (unknown or not files):
        missing.append("--batch")
    if missing or images is None:
        beside = f" (no net with a batch_size lies beside {unknown[0]})" if unknown else ""
        raise InputError(
            "",
            f"epochs need {' and '.join(missing)}{beside}",
            "give what is missing, or none of them, for iterations",
        )
    sizes = {size for size in batches.values() if size is not None}
    if len(sizes) > 1:
        said = ", ".join(f"{size} of {file}" for file, size in batches.items())
        raise InputError("", f"the nets beside the solvers have other batches: {said}", "give --batch")
    return (ranks or 1) * (batch or sizes.pop()) / images


def batch_beside(file: str, max_bytes: int = MOST_BYTES) -> int | None:
    """Give the images of a rank's batch in the net in a solver's file, or beside it; None if there is none.

    Raises PrototxtError for a solver that cannot be read.
    """
    document: Document[Message] = load_document(file, max_bytes=max_bytes)
    message = document.message
    if isinstance(message, pb.MultiPhaseSolverParameter) and message.params_pair:
        message = message.params_pair[0].solver_params
    return batch_of(message, file, _read) if isinstance(message, pb.SolverParameter) else None


def _read(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError):
        return None
