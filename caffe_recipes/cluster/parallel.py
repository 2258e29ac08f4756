"""Many hosts at once: what each of them answered, or why it did not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from caffe_recipes.cluster.hosts import Host
from caffe_recipes.errors import CaffeRecipesError, ClusterError

T = TypeVar("T")

AT_ONCE = 64
CONNECT_ALL_S = 120.0


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What an action gave on one host: a value, or the error that it raised."""

    host: Host
    value: T | None = None
    error: CaffeRecipesError | None = None


def open_all(names: Sequence[str], connect: Callable[[str], Host]) -> tuple[Host, ...]:
    """Return the hosts of these names, in their order; a slow name server is asked for all at once."""
    with ThreadPoolExecutor(min(AT_ONCE, max(1, len(names))), thread_name_prefix="names") as pool:
        return tuple(pool.map(connect, names))


def ask_all(
    hosts: Sequence[Host], act: Callable[[Host], T], timeout_s: float, at_once: int = AT_ONCE
) -> tuple[Answer[T], ...]:
    """Call `act` on all hosts, `at_once` at a time; answers in the hosts' order, whatever fails on some.

    A host that takes longer than `timeout_s` from its own start is let go: its connection is closed, so that
    whoever waits for it wakes. Errors that are not ours are raised.
    """
    begun: dict[int, float] = {}
    lock = threading.Lock()

    def timed(index: int) -> T:
        with lock:
            begun[index] = time.monotonic()
        return act(hosts[index])

    pool = ThreadPoolExecutor(min(at_once, max(1, len(hosts))), thread_name_prefix="hosts")
    try:
        futures = [pool.submit(timed, index) for index in range(len(hosts))]
        late: set[int] = set()
        while left := {index for index, future in enumerate(futures) if not future.done()} - late:
            wait([futures[index] for index in left], timeout=_until_next(begun, left, timeout_s))
            for index in left:
                if (
                    not futures[index].done()
                    and time.monotonic() - begun.get(index, time.monotonic()) > timeout_s
                ):
                    late.add(index)
                    hosts[index].close()
        return tuple(
            _late(host, timeout_s) if index in late else _answer(host, future.result)
            for index, (host, future) in enumerate(zip(hosts, futures, strict=True))
        )
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def connect_all(hosts: Sequence[Host], timeout_s: float = CONNECT_ALL_S) -> tuple[Answer[None], ...]:
    """Reach all hosts at once; one answer for each, in their order."""
    return ask_all(hosts, lambda host: host.connect(), timeout_s)


def on_all(hosts: Sequence[Host], act: Callable[[Host], T], timeout_s: float = CONNECT_ALL_S) -> list[T]:
    """Call `act` on all hosts at once; results in their order, or the first host's error is raised."""
    answers = ask_all(hosts, act, timeout_s)
    error = first_error(answers)
    if error is not None:
        raise error
    return [cast("T", answer.value) for answer in answers]


def try_each(hosts: Sequence[Host], act: Callable[[Host], str | None], limit_s: float) -> dict[str, str]:
    """Call `act` on every host at once; return what it says, its error, or that it is late.

    A thread that waits for a dead host is left behind: it holds up neither us nor the end of the program.
    """
    late = f"gave no answer within {limit_s:.0f} s"
    said: dict[str, str | None] = {host.name: late for host in hosts}
    left = threading.Semaphore(0)

    def ask(host: Host) -> None:
        try:
            said[host.name] = act(host)
        except CaffeRecipesError as error:
            said[host.name] = error.what
        finally:
            left.release()

    deadline = time.monotonic() + limit_s
    for host in hosts:
        threading.Thread(target=ask, args=(host,), daemon=True, name=f"each-{host.name}").start()
    for _ in hosts:
        left.acquire(timeout=max(0.0, deadline - time.monotonic()))
    return {name: reason for name, reason in dict(said).items() if reason is not None}


def first_error(answers: Sequence[Answer[T]]) -> CaffeRecipesError | None:
    """Return the first host's error, which says how many more there are; None if all answered."""
    failed = [answer.error for answer in answers if answer.error is not None]
    if len(failed) < 2:
        return failed[0] if failed else None
    others = f"{failed[0].what} (and {len(failed) - 1} more of {len(answers)} hosts failed)"
    return type(failed[0])(failed[0].where, others, failed[0].hint)


def _answer(host: Host, result: Callable[[], T]) -> Answer[T]:
    try:
        return Answer(host, result())
    except CaffeRecipesError as error:
        return Answer(host, error=error)


def _late(host: Host, timeout_s: float) -> Answer[T]:
    what = f"gave no answer within {timeout_s:.0f} s"
    return Answer(host, error=ClusterError(host.name, what, "check the host and its disks"))


def _until_next(begun: dict[int, float], left: set[int], timeout_s: float) -> float:
    """Return how long until the first of those that have begun is late; a while if none has."""
    starts = [begun[index] for index in left if index in begun]
    return max(0.01, min(starts) + timeout_s - time.monotonic() + 0.01) if starts else min(1.0, timeout_s)
