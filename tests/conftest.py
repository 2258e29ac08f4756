"""What all tests stand on."""

from __future__ import annotations

import signal

import pytest


def pytest_configure() -> None:
    """Undo what nohup, or a shell's `&`, has us ignore: programs under test would ignore it, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Refuse a test on hosts that `make test-cluster` would not find, and that would so never run."""
    if item.get_closest_marker("cluster") and not item.nodeid.startswith("tests/cluster/"):
        raise pytest.UsageError(f"{item.nodeid}: tests marked `cluster` belong in tests/cluster")
