"""Enter user namespaces, as containers do; run as a program, it then runs a command.

    python tests/user_namespace.py USER MAP... -- WORD...

Each MAP is a text of /proc/PID/uid_map; of several, each namespace is in the one before. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path

_CLONE_NEWUSER = 0x10000000
NO_NAMESPACE = 77  # this machine allows none


def enter_namespaces(maps: Sequence[str], user: int) -> None:
    """Move this process, which has one thread, into new user namespaces, and become a user there.

    Raises OSError if the machine allows no user namespace.
    """
    for text in maps:
        _enter(text)
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _enter(text: str) -> None:
    """Enter one namespace: only a process outside of it may write a map of many users."""
    asked, ask = os.pipe()
    made, make = os.pipe()
    parent = os.getpid()
    if os.fork() == 0:
        os.close(ask)
        if os.read(asked, 1):
            for kind in ("uid", "gid"):
                Path(f"/proc/{parent}/{kind}_map").write_text(text)
            os.write(make, b"x")
        os._exit(0)
    os.close(asked)
    os.close(make)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    os.write(ask, b"x")
    is_made = os.read(made, 1)
    os.wait()
    for end in (ask, made):
        os.close(end)
    if not is_made:
        raise PermissionError("the map was refused")


if __name__ == "__main__":
    split = sys.argv.index("--")
    try:
        enter_namespaces(sys.argv[2:split], int(sys.argv[1]))
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(NO_NAMESPACE)
    os.execvp(sys.argv[split + 1], sys.argv[split + 1 :])
