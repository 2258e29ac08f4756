"""What all tests stand on."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Undo what nohup, or a shell's `&`, has us ignore: programs under test would ignore it, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
