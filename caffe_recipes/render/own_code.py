"""Run the Python code next to a recipe, if the user has allowed it, and only the files that were allowed.

`net: function:` is a program. `generate`, `run` and a real `submit` count as consent to run it, and record
the SHA-256 of each imported file that is next to the recipe. All other commands run it only while these files
are unchanged. The record belongs to the user and is outside any repository: in
`$XDG_STATE_HOME/caffe-recipes`.

Installed packages, and files that the code opens itself, are not checked.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import os
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Literal, NoReturn

from caffe_recipes.errors import CaffeRecipesError, RecipeError, hint_for
from caffe_recipes.file_format import FORMAT
from caffe_recipes.files.bounded_reads import read_code, read_pieces
from caffe_recipes.files.user_cache import private_cache, write_cache_file
from caffe_recipes.trust import UntrustedPathError, find_other_writer, is_changed_by_group

RUN_CODE = "CAFFE_RECIPES_RUN_CODE"

# What may be run: only recorded code; any code, once; any code, which is then recorded.
Level = Literal["recorded", "once", "always"]

_MOST_BYTES = 16_000_000  # of a module, and of a record
_OURS = "caffe_recipes"


@dataclass(frozen=True)
class _Consent:
    level: Level = "recorded"
    line: str = ""
    warn: Callable[[str], None] = lambda text: None


_consent = _Consent()


@contextmanager
def allowing_code(
    level: Level, line: str = "", warn: Callable[[str], None] = lambda text: None
) -> Iterator[None]:
    """Set what code next to recipes may be run within the context; outside of it, the level is `recorded`.

    `line` is the command that allows refused code; `warn` is called if a consent could not be recorded.
    """
    global _consent
    before, _consent = _consent, _Consent(level, line, warn)
    try:
        yield
    finally:
        _consent = before


def call_beside(folder: Path, name: str, argument: object, where: str) -> object:
    """Call `module:function` in a file next to the recipe with one argument, and return its result.

    Raises RecipeError if the module is not in `folder`, if the code is not allowed, or if it fails; `where`
    names the recipe.
    """
    module, _, attribute = name.partition(":")
    consent = _consent
    if consent.level == "recorded" and os.environ.get(RUN_CODE) == "1":
        consent = _Consent("once")
    given, folder = Path.cwd() / folder, Path(os.path.realpath(folder))
    known = _read_record(folder, name)
    files = _Files(folder, given, module.partition(".")[0], consent, known)
    if not files.is_own_root(files.root):
        hint = f"for an installed module, write a file there with `from {module} import {attribute}`"
        raise RecipeError(where, f"no module '{files.root}' next to the recipe", hint)
    if consent.level == "recorded":
        _check_unchanged(files, known, module, where, consent)
    try:
        with _import_lock, _importing(files):
            function = getattr(importlib.import_module(module), attribute, None)
            made = function(argument) if callable(function) else None
    except (Exception, SystemExit) as error:
        if not files.refused:
            raise _failed(where, module, error) from error
    if files.refused:  # the code may have caught the ImportError
        raise RecipeError(where, *files.refused)
    if not callable(function):
        raise RecipeError(where, f"module '{module}' has no function '{attribute}'", "check the name")
    if consent.level == "always":
        _record(folder, name, known or {}, files, consent)
    return made


class _UnreadableCodeError(OSError):
    """Raised for code that cannot be read, unlike the errors that it raises itself."""


class _Files(MetaPathFinder, Loader):
    """Find and run the modules next to a recipe, from the same bytes whose digest is compared or recorded.

    They take precedence over installed modules, except the standard library's, and are read as source, never
    as bytecode; nothing else below them can be imported. `root` is the module that the recipe names; it may
    have the name of a standard module. Files are opened below `given`, the path by which the user named the
    folder, so that its links are checked.
    """

    def __init__(
        self, folder: Path, given: Path, root: str, consent: _Consent, known: Mapping[str, str] | None
    ) -> None:
        self.folder = folder
        self._given = given
        self.root = root
        self._consent = consent
        self._known = known or {}
        self.refused: tuple[str, str] | None = None
        self.ran: dict[str, str] = {}
        self._installed = [entry for entry in sys.path if os.path.isabs(entry) and _real(entry) != folder]  # noqa: PTH117 - text

    def read(self, file: Path) -> tuple[str, bytes, str]:
        """Return a file's path relative to the folder, its bytes and their digest; raises OSError.

        Refuses a file that another user could have planted or changed.
        """
        shown = file.relative_to(self.folder).as_posix()
        try:
            data = read_code(self._given / shown, _MOST_BYTES + 1)
        except UntrustedPathError as error:
            hint = "keep the recipe and its code where only you can write"
            self._refuse(f"{shown} is not run: {error.why}", hint)
        except OSError as error:
            raise _UnreadableCodeError(error.errno, error.strerror, str(file)) from error
        if len(data) > _MOST_BYTES:
            raise OSError(errno.EFBIG, f"it is over {_MOST_BYTES:,} bytes", str(file))
        return shown, data, hashlib.sha256(data).hexdigest()

    def is_own_root(self, name: str) -> bool:
        """Return whether a top-level module is one next to the recipe."""
        if name == _OURS or (name != self.root and name in sys.stdlib_module_names):
            return False
        return self.file_of(name) is not None or (
            (self.folder / name).is_dir() and (name == self.root or self._find_installed(name) is None)
        )

    def own_roots(self) -> set[str]:
        """Return the names of loaded top-level modules that modules next to the recipe replace."""
        return {name for name in list(sys.modules) if "." not in name and self.is_own_root(name)}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root = name.partition(".")[0]
        if not self.is_own_root(root):
            return self._find_elsewhere(name, path)
        file = self.file_of(name)
        if file is None:
            below = self.folder.joinpath(*name.split("."))
            if not below.is_dir():
                self._refuse_without_source(name, path)
            namespace = ModuleSpec(name, None, is_package=True)
            namespace.submodule_search_locations = [str(below)]
            return namespace
        shown, data, digest = self.read(file)
        if self._consent.level == "recorded" and self._known.get(shown) != digest:
            what = (
                "has changed since you allowed it"
                if shown in self._known
                else "is code that you have not allowed"
            )
            self._refuse(f"{shown} {what}", _hint(self._consent))
        self.ran[shown] = digest
        is_package = file.name == "__init__.py"
        spec = spec_from_file_location(
            name, file, loader=self, submodule_search_locations=[str(file.parent)] if is_package else None
        )
        if spec is not None:
            spec.loader_state = data
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        exec(compile(spec.loader_state, spec.origin or "", "exec", dont_inherit=True), module.__dict__)

    def file_of(self, name: str) -> Path | None:
        """Return the file of a module next to the recipe, whether it can be read or not; None without one."""
        base = self.folder.joinpath(*name.split("."))
        files = (base / "__init__.py", base.with_name(f"{base.name}.py"))
        return next((file for file in files if os.path.lexists(file)), None)

    def _find_installed(self, name: str) -> ModuleSpec | None:
        for finder in (BuiltinImporter, FrozenImporter):
            if found := finder.find_spec(name):
                return found
        return PathFinder.find_spec(name, self._installed)

    def _find_elsewhere(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Find an installed module; one in a folder that the code itself added to `sys.path` is refused.

        So is one below such a folder, by which Python extends an installed package that is a namespace.
        """
        if path is None:
            found = self._find_installed(name)
        else:
            kept = [entry for entry in path if not self._is_added(entry)]
            if len(kept) == len(path) or name.partition(".")[0] == _OURS:
                return None
            found = PathFinder.find_spec(name, kept)
        if found is None and PathFinder.find_spec(name, path) is not None:
            what = f"it imports '{name}', which is neither next to the recipe nor installed"
            self._refuse(what, "put it next to the recipe")
        return found

    def _is_added(self, entry: str) -> bool:
        """Return whether a folder is below the recipe's, or one added to `sys.path`, and not installed."""
        added = {self.folder, *(_real(each) for each in sys.path if each not in self._installed)}
        folders = {_real(entry), *_real(entry).parents}
        return not added.isdisjoint(folders) and folders.isdisjoint(map(_real, self._installed))

    def _refuse_without_source(self, name: str, path: Sequence[str] | None) -> NoReturn:
        """Raise ImportError for a module below one next to the recipe: no other finder may look for it."""
        found = PathFinder.find_spec(name, path)
        if found is None or not found.origin:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        shown = os.path.relpath(found.origin, self.folder)
        is_source = found.origin.endswith(".py")  # elsewhere, by a `__path__` that the code sets
        what = "outside the recipe's folder" if is_source else "not source"
        self._refuse(f"it imports '{name}', but {shown} is {what}", "put its source next to the recipe")

    def _refuse(self, what: str, hint: str) -> NoReturn:
        self.refused = self.refused or (what, hint)
        raise ImportError(what)


def _real(path: str) -> Path:
    return Path(os.path.realpath(path))


# Imports change the whole process, and a run builds its nets in several threads.
_import_lock = threading.RLock()


@contextmanager
def _importing(files: _Files) -> Iterator[None]:
    """Allow imports of modules next to the recipe, and remove them from `sys.modules` afterwards."""
    hidden = files.own_roots()
    before = {name: module for name, module in sys.modules.copy().items() if name.partition(".")[0] in hidden}
    path, writes_bytecode = sys.path.copy(), sys.dont_write_bytecode
    for name in before:
        del sys.modules[name]
    sys.meta_path.insert(0, files)
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not files]
        sys.path[:], sys.dont_write_bytecode = path, writes_bytecode
        own = hidden | files.own_roots()
        for name in [name for name in list(sys.modules) if name.partition(".")[0] in own]:
            del sys.modules[name]
        sys.modules.update(before)


def _check_unchanged(
    files: _Files, known: Mapping[str, str] | None, module: str, where: str, consent: _Consent
) -> None:
    """Raise RecipeError unless the code is recorded and none of its files has changed since."""
    if known is None:
        if root := files.file_of(files.root):
            _digest_now(files, root, where)  # code that is refused in any case needs no consent
        what = f"needs the code of '{module}' next to the recipe, which you have not allowed"
        raise RecipeError(where, what, _hint(consent))
    for shown, digest in known.items():
        if _digest_now(files, files.folder / shown, where) != digest:
            raise RecipeError(where, f"{shown} has changed since you allowed it", _hint(consent))


def _digest_now(files: _Files, file: Path, where: str) -> str:
    """Return the digest of a file, "" if it cannot be read; raises RecipeError if it is refused."""
    try:
        return files.read(file)[2]
    except ImportError:
        raise RecipeError(where, *(files.refused or ("", ""))) from None
    except (OSError, ValueError):
        return ""


def _hint(consent: _Consent) -> str:
    line = f"run `{consent.line}`" if consent.line else f"set {RUN_CODE}=1"
    return f"read it, then {line}; running `caffe-recipes generate` allows it until it changes"


def _record_path(folder: Path, name: str) -> Path | None:
    """Return the path of the record of consent; None for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        root = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    key = hashlib.sha256(os.fsencode(folder) + b"\0" + name.encode()).hexdigest()[:32]
    return root / "caffe-recipes" / "code" / f"{key}.json"


def _read_record(folder: Path, name: str) -> dict[str, str] | None:
    """Return the recorded digests of a function's files; None without a record that only we can write."""
    path = _record_path(folder, name)
    if path is None:
        return None
    try:
        for each in (path.parent.parent, path.parent):
            if each.is_symlink() or find_other_writer(each.stat()) or is_changed_by_group(each):
                return None
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(number, "rb") as file:
            status = os.fstat(number)
            is_ours = not find_other_writer(status) and not is_changed_by_group(f"/proc/self/fd/{number}")
            if not stat.S_ISREG(status.st_mode) or not is_ours:
                return None
            held = json.loads(read_pieces(file, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    wanted = {"format": FORMAT, "folder": str(folder), "function": name}
    if not isinstance(held, dict) or {key: held.get(key) for key in wanted} != wanted:
        return None
    files = held.get("files")
    return {str(file): str(digest) for file, digest in files.items()} if isinstance(files, dict) else None


def _record(folder: Path, name: str, known: Mapping[str, str], files: _Files, consent: _Consent) -> None:
    """Record the digests of the files that were run, with those that other recipes in the folder imported."""
    kept: dict[str, str] = {}
    for shown, digest in known.items():
        try:
            kept |= {shown: digest} if files.read(folder / shown)[2] == digest else {}
        except (OSError, ValueError, ImportError):
            continue
    made = dict(sorted({**kept, **files.ran}.items()))
    if made == known:
        return
    path = _record_path(folder, name)
    try:
        if path is None:
            raise PermissionError(0, "no home folder")
        private_cache(path.parent.parent)
        private_cache(path.parent)
        record = {"format": FORMAT, "folder": str(folder), "function": name, "files": made}
        write_cache_file(path, json.dumps(record, indent=1))
    except OSError as error:
        consent.warn(f"cannot record your consent to {name}: {error.strerror}")


def _failed(where: str, module: str, error: BaseException) -> RecipeError:
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return RecipeError(where, f"no module '{error.name}' next to the recipe", "check the name")
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, _UnreadableCodeError):
        file = Path(error.filename).name
        hint = hint_for(error, "check its permissions")
        return RecipeError(where, f"{file} cannot be read: {error.strerror}", hint)
    if isinstance(error, SyntaxError):
        frames.append((error.filename or "", error.lineno))
    theirs = [frame for frame in frames if Path(frame[0]).stem == module.rpartition(".")[2]]
    at = "".join(f"{Path(file).name}:{line}: " for file, line in theirs[-1:])
    message = str(error) if isinstance(error, CaffeRecipesError) else f"{type(error).__name__}: {error}"
    return RecipeError(where, f"{at}{' '.join(message.split())}", "correct the function")
