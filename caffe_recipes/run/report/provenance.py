"""Where a run came from: the digests of what it read and wrote, as its journal and its folder hold them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from caffe_recipes.data.manifest import manifest_path
from caffe_recipes.errors import CaffeRecipesError
from caffe_recipes.files.bounded_reads import read_within
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.run.events import Checkpointed, Event, Finish, Launch, Staged
from caffe_recipes.run.folders import RECIPE_JSON, digest_recipe, load_digests
from caffe_recipes.run.journal import JOURNAL
from caffe_recipes.units import describe_bytes

_REVISION = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_REF = re.compile(r"ref: (refs/[\w./-]+)")


@dataclass(frozen=True)
class Origin:
    """Something that a run came from or made; `is_now` if it was read for the report, not by the run."""

    what: str
    name: str
    value: str
    is_now: bool = False


def find_origins(
    folder: str, root: str, recipe: AnyRecipe, events: Sequence[Event], unread: list[str]
) -> Iterator[Origin]:
    """Yield where a run came from; what cannot be read is added to `unread`."""
    yield Origin("recipe", recipe.name, digest_recipe(recipe))
    try:
        for path, digest in load_digests(Path(folder)).items():
            if path != "format":
                yield Origin("file", path, str(digest))
    except CaffeRecipesError as error:
        unread.append(str(error))
    seen = set[tuple[str, str]]()
    for origin in (one for event in events for one in _of_event(event)):
        if (origin.name, origin.value) not in seen:
            seen.add((origin.name, origin.value))
            yield origin
    for lmdb in dict.fromkeys(event.source for event in events if isinstance(event, Staged)):
        yield from _digest_file("manifest of the LMDB", manifest_path(Path(root, lmdb)), root)
    for name in ("hostfile", RECIPE_JSON, JOURNAL):
        yield from _digest_file("file of the run", Path(folder, name), folder)
    revision = find_revision(Path(root))
    if revision:
        yield Origin("git revision", str(Path(root)), revision, is_now=True)
    yield Origin("version", "caffe-recipes", version("caffe-recipes"), is_now=True)


def _of_event(event: Event) -> Iterator[Origin]:
    if isinstance(event, Staged):
        yield Origin("staged LMDB", event.source, describe_bytes(event.bytes))
    elif isinstance(event, Launch):
        for path, sha256 in event.weights.items():
            yield Origin("weights", path, sha256)
    elif isinstance(event, Finish):
        yield Origin("snapshot", event.snapshot, event.sha256)
        for path, sha256 in event.needed.items():
            yield Origin("snapshot", path, sha256)
    elif isinstance(event, Checkpointed):
        yield Origin("checkpoint", event.checkpoint.state, event.checkpoint.state_sha256)


def _digest_file(what: str, path: Path, folder: str) -> Iterator[Origin]:
    """Yield the digest of a file in a folder, to which no link leads; nothing if it cannot be read."""
    try:
        if not path.resolve().is_relative_to(Path(folder).resolve()):
            return
        digest = hashlib.sha256(read_within(path, "journal-bytes")).hexdigest()
    except OSError:
        return
    yield Origin(what, str(path), digest, is_now=True)


def find_revision(root: Path) -> str:
    """Return the git revision that is checked out in a folder; "" if that is not known. Git is not run."""
    try:
        head = read_within(root / ".git" / "HEAD", "json-bytes").decode(errors="replace").strip()
        ref = _REF.fullmatch(head)
        if ref and ".." not in ref[1]:
            head = read_within(root / ".git" / ref[1], "json-bytes").decode(errors="replace").strip()
    except OSError:
        return ""
    return head if _REVISION.fullmatch(head) else ""
