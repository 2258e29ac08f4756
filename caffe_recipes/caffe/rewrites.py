"""Prototxt files as they are and as they are to be: compute all of them, then write, or show a diff.

Nothing is written before every text is there and reads back as its message; each file changes in one step,
through a symbolic link, and keeps its mode.
"""

from __future__ import annotations

import difflib
import errno
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import Message

from caffe_recipes.caffe.documents import guess_class
from caffe_recipes.caffe.prototxt import MOST_BYTES, digest, parse_prototxt, read_prototxt, render_prototxt
from caffe_recipes.caffe.text_comments import Comment
from caffe_recipes.caffe.text_parser import parse_text
from caffe_recipes.errors import InputError, PrototxtError


@dataclass(frozen=True)
class Rewrite:
    """One file: its text as it is, and as it is to be."""

    path: str
    before: str
    after: str

    @property
    def is_change(self) -> bool:
        """Whether the two differ in any byte."""
        return self.before != self.after


def find_prototxts(paths: Iterable[str]) -> list[str]:
    """Replace each folder by the `*.prototxt` below it, sorted; name each file once.

    Folders whose names start with a dot are left out, and links to folders are not followed. Raises
    InputError for a folder without any.
    """
    found: dict[str, str] = {}
    for path in paths:
        files = list(_walk(path)) if os.path.isdir(path) else [path]  # noqa: PTH112 - a NUL is no error here
        if not files:
            raise InputError(path, "holds no *.prototxt", "name the files")
        for file in files:
            found.setdefault(os.path.realpath(file) if "\0" not in file else file, file)
    return list(found.values())


def plan_format(path: str, *, max_bytes: int = MOST_BYTES) -> Rewrite:
    """Read a file and work out its canonical text; PrototxtError where it is no prototxt."""
    text = read_prototxt(path, max_bytes)
    return Rewrite(path, text, format_text(text, path))


def format_text(text: str, path: str) -> str:
    """Write a text of any kind of prototxt canonically; PrototxtError where it is none, or holds no field."""
    message: Message = guess_class(text, path)()
    comments = parse_text(text, message, path)
    if not message.ListFields():
        raise PrototxtError(path, "holds no field at all", "was it copied whole?")
    return render_checked(message, comments, path)


def render_checked(message: Message, comments: Mapping[str, Comment], path: str) -> str:
    """Write the canonical text of a message, and make sure that it reads back as the very same."""
    text = render_prototxt(message, comments)
    if digest(parse_prototxt(text, type(message), path)) != digest(message):
        raise PrototxtError(
            path, "would read back as another message", "nothing is written; report this file"
        )
    return text


def render_diff(rewrite: Rewrite) -> str:
    """Write a change as a unified diff; nothing where there is none."""
    lines = difflib.unified_diff(
        list(io.StringIO(rewrite.before)),  # not splitlines, which splits at more than line feeds
        list(io.StringIO(rewrite.after)),
        f"a/{rewrite.path}",
        f"b/{rewrite.path}",
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def check_writable(path: str, hint: str) -> None:
    """Refuse, with InputError, to write to what is there but no file, such as a pipe or a folder."""
    if Path(path).exists() and not Path(path).is_file():
        raise InputError(path, "is no file that could be written", hint)


def save_rewrites(rewrites: Iterable[Rewrite]) -> list[Rewrite]:
    """Write what changes and return it; InputError, with nothing written, where a file cannot be.

    All texts lie beside their files under temporary names before the first is renamed.
    """
    changed = [rewrite for rewrite in rewrites if rewrite.is_change]
    waiting: dict[Path, Path] = {}
    target = Path()
    try:
        for rewrite in changed:
            target = Path(os.path.realpath(rewrite.path))
            waiting[target] = target.with_name(f".{target.name}.{os.getpid()}")
            _write(waiting[target], target, rewrite.after)
        for target in list(waiting):
            waiting.pop(target).replace(target)
    except OSError as error:
        what = f"cannot be written ({error.strerror})"
        raise InputError(target, what, "check its folder, its permissions and the disk") from error
    finally:
        for temporary in waiting.values():
            with suppress(OSError):
                temporary.unlink()
    return changed


def _walk(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = (os.path.join(place, name) for name in sorted(names) if name.endswith(".prototxt"))  # noqa: PTH118
        yield from filter(os.path.isfile, files)


def _write(temporary: Path, target: Path, text: str) -> None:
    is_new = not target.exists()
    if not is_new and not os.access(target, os.W_OK):  # a rename would not ask
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    with temporary.open("wb") as file:
        file.write(text.encode())
    if not is_new:
        temporary.chmod(target.stat().st_mode & 0o7777)
