"""The locks that a run shares with run.sh: one training of a recipe under one Caffe root.

As in the script, one is for who carries a chain, and one is inherited by what trains: so a launcher that
outlived its killed run shows beside a run at work, by either. What a run launches shares that one: so the run
that goes on beside a trainer of a killed one may launch others. The script's is its alone.

Nobody else may open them: who can read a lock can hold it, and keep a run from starting.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from caffe_recipes.errors import InputError
from caffe_recipes.files import open_lock, try_lock

_POLL_S = 0.1
# Hydra's proxies outlive mpiexec by a moment, and hold what it held.
_LINGER_S = 10.0
_CARRIED = ("script.lock", "another run.sh or caffe-recipes run is at work", "wait for it, or end it")
_TRAINED = ("lock", "the mpiexec of a killed run is still at work", "wait for its end, or end it")


class RecipeLock:
    """The locks of one recipe under one Caffe root; held until closed.

    `preparing` is for the threads of a run: what they place and stage is partly the same.
    """

    def __init__(self, root: Path, recipe_name: str, linger_s: float = _LINGER_S) -> None:
        """Hold nothing yet."""
        self.folder = root / "logs" / recipe_name
        self._linger_s = linger_s
        self._files: dict[str, int] = {}
        self._locking = threading.Lock()
        self.preparing = threading.RLock()

    def take(self) -> None:
        """Become who carries the chain; raises InputError if a run.sh, or another run, does."""
        self._lock(*_CARRIED, patience_s=0)

    def take_trainer(self) -> tuple[int, ...]:
        """Return what a trainer is to inherit; raises InputError if one of a killed run still trains.

        Empty where the disk has no locks.
        """
        with self._locking:
            return self._lock(*_TRAINED, patience_s=self._linger_s, then=fcntl.LOCK_SH)

    def join_trainers(self) -> None:
        """Share what trainers of a killed run inherited, which a run goes on with, if they share it."""
        with suppress(InputError):  # those of an earlier version's do not
            self._lock(*_TRAINED, patience_s=0, how=fcntl.LOCK_SH)

    def check(self) -> None:
        """Raise InputError as `take` would; nothing is taken, and nothing made."""
        name, what, hint = _CARRIED
        if self.is_carried():
            raise InputError(self.folder / name, what, hint)

    def is_carried(self) -> bool:
        """Tell whether another carries the chain; False where the disk has no locks."""
        return _is_held(self.folder / _CARRIED[0])

    def is_trained(self) -> bool:
        """Tell whether a trainer lives that another has launched; False where the disk has no locks."""
        return _is_held(self.folder / _TRAINED[0], fcntl.LOCK_EX)

    def close(self) -> None:
        """Let go; a trainer that has inherited its lock holds it on."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _lock(
        self,
        name: str,
        what: str,
        hint: str,
        patience_s: float,
        how: int = fcntl.LOCK_EX,
        then: int | None = None,
    ) -> tuple[int, ...]:
        """Lock a file `how`, and `then` change that to what it is to be held by."""
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
                raise InputError(path, what, "have it removed when nothing trains there") from None
            return ()  # whatever a run writes next says so better
        try:
            while not try_lock(file, how):
                if time.monotonic() >= deadline:
                    os.close(file)
                    raise InputError(path, what, hint)
                time.sleep(_POLL_S)
            if then is not None:
                fcntl.flock(file, then)
        except OSError:
            os.close(file)
            return ()
        self._files[name] = file
        return (file,)


def _owner_of(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:
        return None


def _is_held(path: Path, how: int = fcntl.LOCK_SH) -> bool:
    """Tell whether another process holds a lock; it is held, `how`, for the moment that this takes."""
    try:  # NFS has nobody lock alone what he may not write
        file = os.open(path, (os.O_RDONLY if how == fcntl.LOCK_SH else os.O_RDWR) | os.O_NONBLOCK)
    except PermissionError:
        return _is_listed(path)  # another user's, which only they can open
    except OSError:
        return False
    try:
        return not try_lock(file, how)
    except OSError:
        return False
    finally:
        os.close(file)


def _is_listed(path: Path) -> bool:
    """Tell whether the kernel lists a process here, of whichever user, that holds a lock on a file."""
    try:
        status = path.stat()
        locks = Path("/proc/locks").read_text()
    except OSError:
        return False
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(line.split()[5:6] == [device] for line in locks.splitlines())
