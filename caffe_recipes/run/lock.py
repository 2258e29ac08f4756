"""The locks, shared with run.sh, that allow one training at a time of a recipe under one Caffe root.

There are two lock files. A run holds `run.lock`, exclusively. What trains holds `lock`, which launchers
inherit, so that a launcher which outlives its killed run is noticed. run.sh and its launchers hold `lock`
exclusively; `run` shares it with its launchers, so that a run which takes over a trainer of a killed run can
launch others.

No other user may open the files: whoever can read a lock file can lock it, and keep a run from starting.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from caffe_recipes.errors import InputError, InUse
from caffe_recipes.files.locks import open_lock, try_lock
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.render.tree import find_differences
from caffe_recipes.run_names import run_folders

_POLL_S = 0.1
# Hydra's proxies outlive mpiexec by a moment, and still hold the lock that it held.
_LINGER_S = 10.0
_RUN = ("run.lock", "another caffe-recipes run is running", "wait for it, or stop it")
_SCRIPT = ("lock", "run.sh, or the mpiexec of a killed one, is running", "wait for it, or stop it")
_TRAINER = ("lock", "the mpiexec of a killed run is still running", "wait until it ends, or kill it")


class RecipeLock:
    """The locks of one recipe under one Caffe root, held until closed.

    The threads of a run hold `preparing` while they write and stage files, since some files are needed by
    several.
    """

    def __init__(self, root: Path, recipe_name: str, linger_s: float = _LINGER_S) -> None:
        """Create the locks without acquiring them."""
        self.folder = root / "logs" / recipe_name
        self._linger_s = linger_s
        self._files: dict[str, int] = {}
        self._locking = threading.Lock()
        self.preparing = threading.RLock()

    def acquire(self) -> None:
        """Acquire the lock of the run. Raises InputError if another run holds it."""
        self._acquire(*_RUN, patience_s=0)

    def acquire_trainer(self) -> tuple[int, ...]:
        """Acquire the trainer's lock; return the file descriptors that the trainer must inherit.

        Raises InputError if the trainer of a killed run holds it. Empty if the file system has no locks.
        """
        with self._locking:
            return self._acquire(*_TRAINER, patience_s=self._linger_s, then=fcntl.LOCK_SH)

    def share_trainer(self) -> None:
        """Share the lock that the trainer of a killed run has inherited.

        Raises InputError if the trainer of a killed run.sh holds it.
        """
        self._acquire(*_TRAINER, patience_s=0, how=fcntl.LOCK_SH)

    def check(self) -> None:
        """Raise InputError if another run or run.sh is active, without acquiring or creating a lock."""
        for name, what, hint in (_RUN, _SCRIPT):
            if is_held(self.folder / name):
                raise InUse(self.folder / name, what, hint)

    def is_run_active(self) -> bool:
        """Return whether another run or run.sh is active; False if the file system has no locks."""
        return any(is_held(self.folder / name) for name, _, _ in (_RUN, _SCRIPT))

    def is_trainer_active(self) -> bool:
        """Return whether a trainer of another run is active; False if the file system has no locks."""
        return is_held(self.folder / _TRAINER[0], fcntl.LOCK_EX)

    def close(self) -> None:
        """Release the locks. A trainer that has inherited its lock keeps it."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _acquire(
        self,
        name: str,
        what: str,
        hint: str,
        patience_s: float,
        how: int = fcntl.LOCK_EX,
        then: int | None = None,
    ) -> tuple[int, ...]:
        """Lock a file in the mode `how`, then change the lock to the mode `then`; return its descriptor."""
        if name in self._files:
            return (self._files[name],)
        path, deadline = self.folder / name, time.monotonic() + patience_s
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = open_lock(path)
        except OSError as error:
            if (
                error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP)
                and (found := _owner_of(path)) is not None
            ):
                what = f"cannot be opened: {error.strerror}; it belongs to user {found}"
                raise InputError(
                    path, what, "ask its owner to remove it when no training is running there"
                ) from None
            return ()  # the next write of the run fails with a better message
        try:
            while not try_lock(file, how):
                if time.monotonic() >= deadline:
                    os.close(file)
                    raise InUse(path, what, hint)
                time.sleep(_POLL_S)
            if then is not None:
                fcntl.flock(file, then)
        except OSError:
            os.close(file)
            return ()
        self._files[name] = file
        return (file,)


def check_unread(recipes: Iterable[AnyRecipe], files: Mapping[str, str], root: Path) -> None:
    """Raise InputError if writing `files` would change a file that an active run under `root` reads."""
    try:
        names = sorted(folder.name for folder in (root / "logs").iterdir())
    except OSError:
        return
    for name in names:
        if RecipeLock(root, name).is_run_active():
            read = _files_of_run(root, name, recipes)
            written = {path: text for path, text in files.items() if path in read}
            changed = [each.path for each in find_differences(written, root) if each.what == "changed"]
            if changed:
                what = (
                    f"a run of {name} reads it, and would stop, or continue with a mix of old and new files"
                )
                hint = "wait for the run, cancel it, or generate elsewhere with --out; nothing was written"
                raise InputError(root / changed[0], what, hint)


def _files_of_run(root: Path, name: str, recipes: Iterable[AnyRecipe]) -> set[str]:
    """Return the paths of the files that the active run of a recipe, or its run.sh, may read."""
    from caffe_recipes.run.folders import load_digests  # slow to import, and seldom needed
    from caffe_recipes.run.training_plan import plan_files

    read: set[str] = set()
    for recipe in recipes:
        read |= plan_files(recipe).keys() if recipe.name == name else set()
    for folder in run_folders(root, name)[-1:]:
        with suppress(InputError):
            read |= load_digests(folder).keys()
    return read


def _owner_of(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:
        return None


def is_held(path: Path, how: int = fcntl.LOCK_SH) -> bool:
    """Return whether another process holds a lock, by acquiring it for a moment in the mode `how`."""
    try:  # NFS needs a file to be writable for an exclusive lock
        file = os.open(path, (os.O_RDONLY if how == fcntl.LOCK_SH else os.O_RDWR) | os.O_NONBLOCK)
    except PermissionError:
        return _is_in_proc_locks(path, how)  # it belongs to another user, who alone can open it
    except OSError:
        return False
    try:
        return not try_lock(file, how)
    except OSError:
        return False
    finally:
        os.close(file)


def _is_in_proc_locks(path: Path, how: int) -> bool:
    """Return whether /proc/locks lists a lock that excludes one in the mode `how`, by any process here."""
    try:
        status = path.stat()
        locks = Path("/proc/locks").read_text()
    except OSError:
        return False
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    found = [line.split() for line in locks.splitlines()]
    kinds = ("WRITE",) if how == fcntl.LOCK_SH else ("WRITE", "READ")
    return any(words[5:6] == [device] and words[3] in kinds for words in found)
