"""`caffe-torch`: train and test nets as the `caffe` tool does, with its flags, log and files, and predict.

Flags can be written as for gflags: `-solver X`, `--solver X`, `-solver=X`, `--solver=X`.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
from collections.abc import Callable, Container, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from caffe_recipes.engine.communication import AgreedFailure, Ranks, join_ranks
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.heap import keep_large_blocks
from caffe_recipes.engine.launch_variables import check_store, count_lone_tasks, find_place
from caffe_recipes.engine.settings import load_solver
from caffe_recipes.engine.signal_requests import SIGNAL_EFFECTS, SignalRequests
from caffe_recipes.engine.usage import render_usage
from caffe_recipes.errors import CaffeRecipesError, InputError, ReaderGone, escaped_error
from caffe_recipes.files.atomic_writes import check_output
from caffe_recipes.limits import LIMITS_VARIABLE, close_umask, raise_limits
from caffe_recipes.standard_streams import open_standard_files, print_error, print_output, unwritable
from caffe_recipes.wording import is_unicode, join_names, shorten_middle


@dataclass(frozen=True)
class Flags:
    """The flags of `caffe`, with its defaults, and our own, from `new_layers` on."""

    solver: str = ""
    model: str = ""
    weights: str = ""
    snapshot: str = ""
    iterations: int = 50
    phase: str = ""
    level: int = 0
    stage: str = ""
    sigint_effect: str = "stop"
    sighup_effect: str = "snapshot"
    gpu: str = ""
    engine: str = ""
    new_layers: str = ""
    source: str = ""
    out: str = ""
    trace: str = ""
    precision: str = "float32"
    checkpoint_activations: bool = False
    sync_bn: bool = False


def parse_flags(argv: Sequence[str]) -> tuple[str, Flags]:
    """Return the command and its flags. Raises InputError for an unknown flag, or a missing or bad value.

    >>> parse_flags(["test", "-model", "net.prototxt", "--iterations=4"])[1].iterations
    4
    """
    command, before = "", ""
    given: dict[str, str | int | bool] = {}
    words = iter(argv)
    for word in words:
        if not word.startswith("-"):
            if command:
                raise _unexpected(word, command, before, given)
            command = word
            continue
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        if name.removeprefix("no") in _GLOG_SWITCHES:
            continue
        name = name.replace("-", "_")
        if name not in _FLAG_TYPES:
            known = ", ".join(map(_shown, _FLAG_TYPES))
            raise InputError("", f"unknown flag {word}", f"choose from {known}")
        before = _shown(name)
        if _FLAG_TYPES[name] is bool:
            if equals:
                raise InputError("", f"{word}: {before} takes no value", f"write {before}, or leave it out")
            given[name] = True
            continue
        if not equals:
            following = next(words, None)
            if following is None:
                raise InputError("", f"{word} has no value", f"write {word} <{name}>")
            value = following
        if name in _PATH_FLAGS and not value.strip():
            raise InputError("", f"-{name} '{value}' is not a path", "is a variable unset?")
        given[name] = _number(name, value) if _FLAG_TYPES[name] is int else value
    for name in _GLOG_FLAGS:
        given.pop(name, None)
    if not command:
        raise InputError("", "no command", f"give one: {', '.join(COMMANDS)}")
    return command, Flags(**given)  # type: ignore[arg-type]


def _unexpected(word: str, command: str, before: str, given: Container[str]) -> InputError:
    """Return the error for a word after a command, the flag `before` and the flags `given`."""
    if command not in COMMANDS:  # such as a misspelt one
        return InputError("", f"2 commands: {command} {word}", f"give one: {', '.join(COMMANDS)}")
    asked = "solver" if command == "train" else "model"
    if before in _SWITCHES:
        hint = f"{before} takes no value"
    elif command in (*_ONLY["solver"], *_ONLY["model"]) and asked not in given:
        hint = f"write -{asked} {word}"
    else:
        hint = "leave it out"
    return InputError("", f"unexpected argument '{word}'", hint)


def _shown(name: str) -> str:
    """Return a flag as the help writes it."""
    return f"-{name.replace('_', '-') if _FLAG_TYPES[name] is bool else name}"


# glog's flags are accepted and ignored: the log goes to stderr. Its switches take no value.
_GLOG_SWITCHES = ("logtostderr", "alsologtostderr", "colorlogtostderr")
_GLOG_FLAGS = {"minloglevel": int, "stderrthreshold": int, "v": int, "log_dir": str}
_FLAG_TYPES = {field.name: type(field.default) for field in fields(Flags)} | _GLOG_FLAGS
_SWITCHES = [_shown(name) for name, kind in _FLAG_TYPES.items() if kind is bool]

_PATH_FLAGS = (
    "solver",
    "model",
    "weights",
    "snapshot",
    "source",
    "out",
    "trace",
)  # "" is probably an unset variable
_SUFFIXES = {"out": ".npz", "trace": ".json"}  # no file that a net reads ends like this
_GPUS = re.compile(r"[0-9]{1,3}(,[0-9]{1,3})*|all")
_INT32 = range(-(2**31), 2**31)  # the range of gflags' DEFINE_int32


def _number(name: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        example = getattr(Flags, name, 0)
        hint = f"write e.g. -{name} {example}"
        raise InputError("", f"-{name} {value[:80]} is not an integer", hint) from None
    if number not in _INT32:
        hint = f"give {_INT32[-1]} or less" if number > 0 else f"give {_INT32[0]} or more"
        raise InputError("", f"-{name} {value[:80]} does not fit in int32, as in Caffe", hint)
    return number


PRECISIONS = ("float32", "tf32", "bf16")
# The commands that read a flag, of those that not every command reads.
_ONLY = {
    "solver": ("train",),
    "model": ("test", "predict", "time"),
    "weights": ("train", "test", "predict", "time"),
    "snapshot": ("train",),
    "iterations": ("test", "time"),
    "phase": ("time",),
    "sigint_effect": ("train",),
    "sighup_effect": ("train",),
    "source": ("predict",),
    "out": ("predict",),
    "trace": ("time",),
    "precision": ("train",),
    "checkpoint_activations": ("train",),
    "sync_bn": ("train",),
}

# Caffe's own commands ignore these where they do not read them.
_OF_CAFFE = {
    "solver",
    "model",
    "weights",
    "snapshot",
    "iterations",
    "phase",
    "sigint_effect",
    "sighup_effect",
}

REQUIRED_MODULES = ("torch", "numpy", "cv2", "mpi4py")  # imported only after the flags are checked


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns 0 on success, as Caffe does, 2 for bad input, 3 for a failed run, and 141 if the reader of the
    output has ended.
    """
    if argv is not None:
        return _run(argv)
    open_standard_files()
    keep_large_blocks()
    code = 1  # for an uncaught exception

    def end() -> None:
        os._exit(code)

    # Registered first, so called last: unloading torch would take Python a second. MPI is not finalized.
    atexit.register(end)
    code = _run(sys.argv[1:])
    return code


def _run(words: Sequence[str]) -> int:
    close_umask()
    is_rank_0 = True
    try:
        if {"-h", "-help", "--help"} & set(words) or not words:
            asked = next((word for word in words if word in COMMANDS), "")
            print_output(render_usage(asked).rstrip("\n"), err=not words)
            return 0 if words else 2
        is_rank_0 = find_place(os.environ).rank == 0
        command, flags = parse_flags(words)
        if command not in COMMANDS:
            known = ", ".join(COMMANDS)
            raise InputError("", f"unknown command '{command}'", f"choose from {known}")
        _check_flags(command, flags)
        if command == "train":
            check_store(os.environ)
        _check_limits()
        check_modules()
    except CaffeRecipesError as error:
        return _report(error, is_rank_0)
    try:
        return COMMANDS[command](flags)
    except CaffeRecipesError as error:
        return _report(error)
    except Exception as error:
        return _report(escaped_error(command, error))


def check_modules(find: Callable[[str], object] = find_spec) -> None:
    """Raise InputError if `find` does not find a module of the extra 'engine'."""
    for name in REQUIRED_MODULES:
        if find(name) is None:
            hint = "install the extra 'engine' of caffe-recipes (see its README)"
            raise InputError("", f"{name} is not installed", hint)


def _report(error: CaffeRecipesError, prints: bool = True) -> int:
    if prints and not isinstance(error, ReaderGone):
        print_error(f"caffe-torch: {error}")
    return error.exit_code


def _check_limits() -> None:
    try:
        raise_limits(())
    except ValueError as error:
        raise InputError(LIMITS_VARIABLE, str(error)) from None


def _check_flags(command: str, flags: Flags) -> None:
    for name in ("sigint_effect", "sighup_effect"):
        if getattr(flags, name) not in SIGNAL_EFFECTS:
            what = f"-{name} '{getattr(flags, name)}' is unknown"
            raise InputError("", what, f"give {', '.join(SIGNAL_EFFECTS)}")
    if flags.gpu and not _GPUS.fullmatch(flags.gpu):
        raise InputError("", f"-gpu {flags.gpu[:80]} is not a device ID", "write 0, 0,1 or all")
    if not flags.gpu.isdigit() and flags.gpu and command not in ("train", "device_query"):
        hint = "give one device ID, such as 0"
        raise InputError("", f"-gpu {flags.gpu} works only with train and device_query", hint)
    for name in ("source", "stage"):
        if not is_unicode(getattr(flags, name)):
            what = f"-{name} {getattr(flags, name)} is not UTF-8, as texts of a net are"
            raise InputError("", what, "give another name")
    for name, suffix in _SUFFIXES.items():
        if (file := getattr(flags, name)) and not file.endswith(suffix):
            what = f"-{name} {shorten_middle(file, 80)} does not end in {suffix}"
            raise InputError("", what, f"write -{name} FILE{suffix}")
    if flags.iterations < 1:
        raise InputError("", f"-iterations is {flags.iterations}", "give 1 or more")
    if flags.weights and flags.snapshot:
        raise InputError("", "-weights and -snapshot are mutually exclusive", "give only one")
    for name in ("weights", "new_layers"):
        if getattr(flags, name) and "" in getattr(flags, name).split(","):
            raise InputError("", f"-{name} {getattr(flags, name)} has an empty name", "write A,B")
    if flags.precision not in PRECISIONS:
        what = f"-precision '{flags.precision[:80]}' is unknown"
        raise InputError("", what, f"give {', '.join(PRECISIONS)}")
    for name, only in _ONLY.items():
        is_ignored = name in _OF_CAFFE and command != "predict"
        if getattr(flags, name) != getattr(Flags, name) and command not in only and not is_ignored:
            raise InputError("", f"{_shown(name)} works only with {join_names(only)}", "leave it out")
    if flags.new_layers and not (command == "train" and flags.weights):
        raise InputError("", "-new_layers works only with train and -weights", "leave it out")


def _train(flags: Flags) -> int:
    """Train. If one rank of an mpiexec fails, all do, and only one of them prints the reason."""
    place = find_place(os.environ)
    if place.size > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # both are read when torch is imported
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its warnings are stack traces
    log = Log(enabled=place.rank == 0)
    if (tasks := count_lone_tasks(os.environ)) > 1:
        advice = "set MASTER_ADDR and MASTER_PORT, or use --mpi=pmi2, if they are ranks"
        log.warning("caffe-torch", f"trains alone, as each of the {tasks} tasks of this srun does; {advice}")
    requests = SignalRequests()
    requests.listen(flags.sigint_effect, flags.sighup_effect)
    world, code = Ranks(), 0
    try:
        world = join_ranks(os.environ)
        # Again after MPI_Init, since UCX (under MPICH) installs a SIGHUP handler for debugging.
        requests.listen(flags.sigint_effect, flags.sighup_effect)
        _run_training(flags, world, requests, log)
    except AgreedFailure as failure:
        if place.rank == 0:
            print_error(f"caffe-torch: {failure.text}")
        code = failure.code
    except CaffeRecipesError as error:
        _report(error)
        world.abort(error.exit_code)
        return error.exit_code
    except Exception as error:  # the other ranks, and MPI_Finalize, would wait for this one forever
        code = _report(escaped_error("train", error))
        world.abort(code)
        return code
    world.leave()
    return code


def _run_training(flags: Flags, world: Ranks, requests: SignalRequests, log: Log) -> None:
    with world.failing_together():
        if not flags.solver:
            raise InputError("train", "no solver", "give -solver FILE")
        param = load_solver(flags.solver, flags.level, flags.stage.split(","))
        from caffe_recipes.engine import subcommands  # imports torch, which takes seconds

        device = subcommands.find_device(flags.gpu, "caffe.cpp:285", log, param, flags.solver)
        start = subcommands.StartPoint(_names(flags.weights), flags.snapshot, _names(flags.new_layers))
        start.check()
        options = subcommands.TrainingOptions(flags.precision, flags.checkpoint_activations, flags.sync_bn)
        solver = subcommands.prepare_solver(param, flags.solver, start, world, requests, log, device, options)
    try:
        subcommands.check_agreement(solver, world, options)
        subcommands.run(solver, world, log, device)
    finally:
        solver.close()


def _names(listed: str) -> tuple[str, ...]:
    return tuple(listed.split(",")) if listed else ()


def _on_rank_0(work: Callable[[Flags, Log], None], flags: Flags) -> int:
    """Do `work` on rank 0, where SIGINT ends it at once, without a traceback: there is nothing to save."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if find_place(os.environ).rank > 0:
        return 0
    log = Log()
    work(flags, log)
    if log.failure is not None:
        raise unwritable("standard error", log.failure)
    return 0


def _test(flags: Flags, log: Log) -> None:
    if not flags.model or not flags.weights:
        raise InputError("test", "no model or no weights", "give -model FILE -weights FILE")
    from caffe_recipes.engine import subcommands  # imports torch

    device = subcommands.find_device(flags.gpu, "caffe.cpp:465", log)
    stages, weights = flags.stage.split(","), flags.weights.split(",")
    net = subcommands.load_test_net(flags.model, weights, flags.level, stages, log, device)
    with closing(net):
        subcommands.test(net, flags.iterations, log)


def _predict(flags: Flags, log: Log) -> None:
    if not flags.model or not flags.weights or not flags.out:
        hint = "give -model FILE -weights FILE -out FILE.npz"
        raise InputError("predict", "no model, no weights or no output", hint)
    from caffe_recipes.engine import subcommands  # imports torch

    stages, weights = flags.stage.split(","), flags.weights.split(",")
    check_output(Path(flags.out), [flags.model, *weights], "-out")
    device = subcommands.find_device(flags.gpu, "predict", log)
    net = subcommands.load_test_net(flags.model, weights, flags.level, stages, log, device, flags.source)
    with closing(net):
        subcommands.predict(net, flags.out, log)


def _time(flags: Flags, log: Log) -> None:
    if not flags.model:
        raise InputError("time", "no model", "give -model FILE")
    from caffe_recipes.engine import subcommands, timing  # import torch

    stages, weights = flags.stage.split(","), _names(flags.weights)
    if flags.trace:
        check_output(Path(flags.trace), [flags.model, *weights], "-trace")
    device = subcommands.find_device(flags.gpu, "time", log)
    net = timing.load_timed_net(flags.model, weights, flags.phase, flags.level, stages, log, device)
    with closing(net):
        timing.time_net(net, flags.iterations, device, log)
        if flags.trace:
            timing.trace_net(net, flags.trace, log)


def _version(flags: Flags) -> int:
    print_output(f"caffe-torch {version('caffe-recipes')}")
    return 0


def _device_query(flags: Flags) -> int:
    from caffe_recipes.engine import subcommands  # imports torch

    print_output("\n".join(subcommands.list_gpus(flags.gpu)) or "no GPU that PyTorch can use")
    return 0


COMMANDS: dict[str, Callable[[Flags], int]] = {
    "train": _train,
    "test": partial(_on_rank_0, _test),
    "predict": partial(_on_rank_0, _predict),
    "time": partial(_on_rank_0, _time),
    "device_query": _device_query,
    "version": _version,
}


if __name__ == "__main__":
    sys.exit(main())
