"""Fixtures and checks for all tests."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The time limit of a test with one of these marks: one waits for up to 1,000 s for a Slurm job.
LONG_S, LONG_MARKS = 1200, ("slow", "cluster", "tensorflow")


def pytest_configure() -> None:
    """Restore signals that nohup, or a shell's `&`, makes us ignore: programs under test inherit this."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Tests run side by side: an OpenMP thread that waits must not keep the processor from the one it waits
    # for. The library reads this as torch loads it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # A busy machine is slow, and that is no failure. Where CI is set, Hypothesis does the same by itself.
    settings.register_profile(
        "untimed", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("untimed")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a marked test more time, and refuse a test on hosts that `make test-cluster` would not find."""
    if any(item.get_closest_marker(mark) for mark in LONG_MARKS) and not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(LONG_S))
    if item.get_closest_marker("cluster") and not item.nodeid.startswith("tests/cluster/"):
        raise pytest.UsageError(f"{item.nodeid}: tests marked `cluster` belong in tests/cluster")


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests consent to out of the user's own record; programs under test inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delitem(os.environ, "CAFFE_RECIPES_RUN_CODE", raising=False)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Run each test, with the fixtures that it is the first to need, from an empty folder of its own.

    What the user's own runs have left in the folder that pytest was started in changes no test.
    """
    with tempfile.TemporaryDirectory(prefix="caffe-recipes-test-") as folder, contextlib.chdir(folder):
        Path(folder).chmod(0o755)  # a program that a test starts as another user begins here, too
        return (yield)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves files in the folder that it was started in."""
    here = Path.cwd()
    yield
    assert list(here.iterdir()) == []


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Make a folder as /tmp is, and the user's own file beside it, which an attacker is after."""
    (tmp_path / "profile").write_text("mine")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    return tmp_path / "tmp"
