"""What is written to a pipe is read before this process ends."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from caffe_recipes.files.pipes import wait_until_read


@pytest.mark.parametrize("make", [os.pipe, lambda: tuple(end.detach() for end in socket.socketpair())])
def test_writing_to_a_pipe_waits_until_it_is_read(
    make: Callable[[], tuple[int, int]],
) -> None:
    out, into = make()
    os.write(into, b"why" * 1000)
    left: list[int] = []

    def wait() -> None:
        wait_until_read(into)
        left.append(len(os.read(out, 3000)) if select.select([out], [], [], 0)[0] else 0)

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.05)  # one that does not wait has read it all by now
    read = os.read(out, 3000) if waiting.is_alive() else b""
    waiting.join()
    assert (read, left) == (b"why" * 1000, [0])
    os.close(out)
    os.close(into)


def test_a_file_and_a_pipe_without_a_reader_are_not_waited_for(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as file:
        file.write("why")
        file.seek(0)
        wait_until_read(file.fileno())
    out, into = os.pipe()
    os.write(into, b"why")
    os.close(out)
    before = time.monotonic()
    wait_until_read(into, 3600)
    assert time.monotonic() - before < 3600
    os.close(into)
