"""Import TensorFlow once, which takes seconds, and fork for each program that a test starts.

    python fork_server.py PATH                      serve on a Unix socket, until stdin ends
    python -IS fork_server.py PATH SCRIPT WORD...   run as `python SCRIPT WORD...` would; also `-c CODE`

The second has the first run the program in a fork of itself, with this one's streams, folder, environment and
the connection to its launcher, and ends as the program does. If it is killed, so is the program.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import runpy
import select
import shutil
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

# Above all that a launcher gives to a rank.
FREE_DESCRIPTOR = 200


def serve(path: str) -> None:
    """Import what the programs import, then fork for each request."""
    import horovod.tensorflow
    import tensorflow.compat.v1 as tf
    from tensorflow.config.experimental import enable_op_determinism

    # TensorFlow loads these when they are first used.
    _ = tf.estimator.Estimator, horovod.tensorflow.init, tf.layers.conv2d, enable_op_determinism
    gc.freeze()  # a fork that looks through these objects would copy their memory
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    print("ready", flush=True)
    stdin = sys.stdin.fileno()
    while stdin not in select.select([listener.fileno(), stdin], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            answer(connection)
        connection.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    shutil.rmtree(os.path.dirname(path))  # noqa: PTH120


def answer(connection: socket.socket) -> NoReturn:
    """Run the program that is asked for in a child; send its exit status."""
    message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 4)
    child = os.fork()
    if child == 0:
        connection.close()
        end_as(lambda: become(json.loads(message), descriptors))
    for descriptor in descriptors:
        os.close(descriptor)
    ended = os.pidfd_open(child)
    if ended not in select.select([ended, connection.fileno()], [], [])[0]:
        os.kill(child, 9)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):  # whoever asked has been killed
        connection.send(str(status).encode())
    os._exit(0)


def end_as(program: Callable[[], None]) -> NoReturn:
    """Run a program; end as a Python does, but without taking apart what was imported, which takes 2 s."""
    status: object = 0
    try:
        program()
    except SystemExit as error:
        status = error.code
    except BaseException:
        traceback.print_exc()
        status = 1
    if not isinstance(status, int | None):
        print(status, file=sys.stderr)
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def become(request: dict[str, object], descriptors: list[int]) -> None:
    """Run a program as a Python does that has just started."""
    folder, environment, numbers, argv = request.values()
    assert isinstance(environment, dict) and isinstance(numbers, list) and isinstance(argv, list)
    out_of_the_way = [fcntl.fcntl(one, fcntl.F_DUPFD, FREE_DESCRIPTOR) for one in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for number, given in zip(numbers, out_of_the_way, strict=True):
        os.dup2(given, number)
        os.close(given)
    os.chdir(str(folder))
    os.environ.clear()
    os.environ.update(environment)
    sys.path[1:1] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if argv[0] == "-c":
        sys.path[0], code, sys.argv = "", argv[1], ["-c", *argv[2:]]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path[0], sys.argv = os.path.dirname(os.path.realpath(argv[0])), argv  # noqa: PTH120
        runpy.run_path(argv[0], run_name="__main__")


def ask(path: str, argv: list[str]) -> NoReturn:
    """Have a server run a program; exit with its status."""
    numbers = [0, 1, 2]
    if "PMI_FD" in os.environ:
        numbers.append(int(os.environ["PMI_FD"]))
    request = {"folder": os.getcwd(), "environment": dict(os.environ), "numbers": numbers, "argv": argv}  # noqa: PTH109
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(path)
        socket.send_fds(connection, [json.dumps(request).encode()], numbers)
        status = int(connection.recv(16))
    if status < 0:
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    if sys.argv[2:]:
        ask(sys.argv[1], sys.argv[2:])
    serve(sys.argv[1])
