"""`caffe-torch`: train and test nets as the `caffe` tool does, with its flags, log and files; and predict.

Flags can be written as in gflags: `-solver X`, `--solver X`, `-solver=X`, `--solver=X`.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from importlib.util import find_spec

from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.ranks import AgreedFailure, Ranks, join_ranks, place_of
from caffe_recipes.engine.settings import load_solver
from caffe_recipes.engine.solver import EFFECTS, Requests
from caffe_recipes.errors import CaffeRecipesError, InputError, escaped_error
from caffe_recipes.limits import LIMITS_VARIABLE, raise_limits
from caffe_recipes.wording import printable


@dataclass(frozen=True)
class Flags:
    """The flags of `caffe` with its defaults, then three flags of our own."""

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


def parse_flags(argv: Sequence[str]) -> tuple[str, Flags]:
    """Return the command and its flags; raises InputError for an unknown flag and a missing or bad value.

    >>> parse_flags(["test", "-model", "net.prototxt", "--iterations=4"])[1].iterations
    4
    """
    commands: list[str] = []
    given: dict[str, str | int] = {}
    words = iter(argv)
    for word in words:
        if not word.startswith("-"):
            commands.append(word)
            continue
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        if name.removeprefix("no") in _SWITCHES:
            continue
        if name not in _KINDS:
            known = ", ".join(f"-{name}" for name in _KINDS)
            raise InputError("", f"unknown flag {word}", f"known are {known}")
        if not equals:
            following = next(words, None)
            if following is None:
                raise InputError("", f"{word} has no value", f"write {word} <{name}>")
            value = following
        if name in _PATHS and not value.strip():
            raise InputError("", f"-{name} '{value}' is not a path", "is a variable unset?")
        given[name] = _number(name, value) if _KINDS[name] is int else value
    for name in _OF_GLOG:
        given.pop(name, None)
    if len(commands) != 1:
        what = "no command" if not commands else f"{len(commands)} commands: {' '.join(commands)}"
        raise InputError("", what, "give one: train, test, predict, version")
    return commands[0], Flags(**given)  # type: ignore[arg-type]


# glog's flags are accepted and ignored: the log goes to stderr. Its switches take no value.
_SWITCHES = ("logtostderr", "alsologtostderr", "colorlogtostderr")
_OF_GLOG = {"minloglevel": int, "stderrthreshold": int, "v": int, "log_dir": str}
_KINDS = {field.name: type(field.default) for field in fields(Flags)} | _OF_GLOG


_PATHS = ("solver", "model", "weights", "snapshot", "source", "out")  # "" is probably an unset variable
_INT32 = range(-(2**31), 2**31)  # as gflags' DEFINE_int32


def _number(name: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        raise InputError("", f"-{name} {value[:80]} is not an integer", "write e.g. 50") from None
    if number not in _INT32:
        hint = f"give {_INT32[-1]} or less" if number > 0 else f"give {_INT32[0]} or more"
        raise InputError("", f"-{name} {value[:80]} does not fit in int32, as in Caffe", hint)
    return number


EXTRA = ("torch", "numpy", "cv2", "mpi4py")  # imported once the flags are checked

USAGE = """caffe-torch: run Caffe's prototxts on PyTorch

usage:
  caffe-torch train -solver FILE [-weights FILE[,FILE] | -snapshot FILE]
  caffe-torch test -model FILE -weights FILE[,FILE] [-iterations N]
  caffe-torch predict -model FILE -weights FILE[,FILE] -out FILE.npz
                      [-source LMDB]
  caffe-torch version

  -out FILE.npz          write the scores (images x classes) that go into the
                         last softmax, and the labels, once for every image of
                         the net's TEST LMDB
  -source LMDB           read this LMDB instead of the net's
  -new_layers A,B        start these layers from their fillers, even if they are
                         in the weights; all others must be in the weights
  -level N, -stage A,B   the net's state, for include and exclude rules
  -sigint_effect, -sighup_effect
                         snapshot, stop or none; by default SIGINT stops, and
                         SIGHUP snapshots
  -logtostderr, -v N, ...
                         glog's flags are accepted and ignored: the log goes to
                         stderr

examples:
  caffe-torch train -solver solver.prototxt
  mpiexec.hydra -n 2 caffe-torch train -solver solver.prototxt
  caffe-torch train -solver solver.prototxt -snapshot a_iter_20.solverstate
  caffe-torch test -model net.prototxt -weights a_iter_40.caffemodel
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0 as Caffe does, 2 for bad input, 3 for a failed run."""
    if argv is not None:
        return _run(argv)
    code = 1  # for an uncaught exception

    def end() -> None:
        sys.stdout.flush()
        os._exit(code)

    # Registered first, so called last, after MPI has ended: Python would need a second to unload torch.
    atexit.register(end)
    code = _run(sys.argv[1:])
    return code


def _run(words: Sequence[str]) -> int:
    if {"-h", "-help", "--help"} & set(words) or not words:
        print(USAGE, end="", file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    leads = place_of(os.environ)[0] == 0
    try:
        command, flags = parse_flags(words)
        if command not in COMMANDS:
            known = ", ".join(COMMANDS)
            raise InputError("", f"unknown command '{command}'", f"known are {known}")
        _check_flags(command, flags)
        _check_limits()
        check_extra()
    except CaffeRecipesError as error:
        return _fail(error, leads)
    try:
        return COMMANDS[command](flags)
    except Exception as error:
        return _fail(escaped_error(command, error))


def check_extra(find: Callable[[str], object] = find_spec) -> None:
    """Raise InputError unless `find` finds every module of the extra 'engine'."""
    for name in EXTRA:
        if find(name) is None:
            hint = "install this project's extra 'engine', as its README says"
            raise InputError("", f"needs {name}", hint)


def _fail(error: CaffeRecipesError, speaks: bool = True) -> int:
    if speaks:
        print(f"caffe-torch: {printable(str(error))}", file=sys.stderr, flush=True)
    return error.exit_code


def _check_limits() -> None:
    try:
        raise_limits(())
    except ValueError as error:
        raise InputError(LIMITS_VARIABLE, str(error)) from None


def _check_flags(command: str, flags: Flags) -> None:
    for name in ("sigint_effect", "sighup_effect"):
        if getattr(flags, name) not in EFFECTS:
            what = f"-{name} '{getattr(flags, name)}' is unknown"
            raise InputError("", what, f"give {', '.join(EFFECTS)}")
    if flags.gpu:
        raise InputError("", "-gpu is not supported", "the engine runs on CPUs")
    if flags.iterations < 1:
        raise InputError("", f"-iterations is {flags.iterations}", "give 1 or more")
    if flags.weights and flags.snapshot:
        raise InputError("", "-weights and -snapshot exclude each other", "give only one")
    for name in ("weights", "new_layers"):
        if getattr(flags, name) and "" in getattr(flags, name).split(","):
            raise InputError("", f"-{name} {getattr(flags, name)} has an empty name", "write A,B")
    for name in ("source", "out"):
        if getattr(flags, name) and command != "predict":
            raise InputError("", f"-{name} is for predict", "leave it out")
    if flags.new_layers and not (command == "train" and flags.weights):
        raise InputError("", "-new_layers is for train with -weights", "leave it out")


def _train(flags: Flags) -> int:
    """Train; the ranks of one mpiexec fail together, and only one of them prints the reason."""
    rank, ranks = place_of(os.environ)
    if ranks > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported
    log = Log(enabled=rank == 0)
    requests = Requests()
    requests.listen(flags.sigint_effect, flags.sighup_effect)
    world = Ranks()
    try:
        world = join_ranks(os.environ)
        # Again after MPI_Init, since under MPICH UCX sets its own handler of SIGHUP, for debugging.
        requests.listen(flags.sigint_effect, flags.sighup_effect)
        log.info("caffe.cpp:285", "Use CPU.")
        _run_training(flags, world, requests, log)
    except AgreedFailure as failure:
        if rank == 0:
            print(f"caffe-torch: {printable(failure.text)}", file=sys.stderr, flush=True)
        return failure.code
    except CaffeRecipesError as error:
        _fail(error)
        world.abort(error.exit_code)
        return error.exit_code
    except Exception as error:  # the other ranks would wait for this one for ever, as would MPI_Finalize
        code = _fail(escaped_error("train", error))
        world.abort(code)
        return code
    return 0


def _run_training(flags: Flags, world: Ranks, requests: Requests, log: Log) -> None:
    with world.together():
        if not flags.solver:
            raise InputError("caffe-torch train", "no solver", "give -solver FILE")
        param = load_solver(flags.solver, flags.level, flags.stage.split(","))
        from caffe_recipes.engine import commands  # imports torch, which takes seconds

        start = commands.StartPoint(_names(flags.weights), flags.snapshot, _names(flags.new_layers))
        solver = commands.prepare(param, flags.solver, start, world, requests, log)
    try:
        commands.run(solver, world, log)
    finally:
        solver.close()


def _names(listed: str) -> tuple[str, ...]:
    return tuple(listed.split(",")) if listed else ()


def _test(flags: Flags) -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to save: end at once, without a traceback
    if place_of(os.environ)[0] > 0:  # only rank 0 tests
        return 0
    log = Log()
    try:
        if not flags.model or not flags.weights:
            raise InputError("caffe-torch test", "no model or no weights", "give -model FILE -weights FILE")
        log.info("caffe.cpp:465", "Use CPU.")
        from caffe_recipes.engine import commands  # imports torch

        stages, weights = flags.stage.split(","), flags.weights.split(",")
        net = commands.load_tested(flags.model, weights, flags.level, stages, log)
        commands.test(net, flags.iterations, log)
        net.close()
    except CaffeRecipesError as error:
        return _fail(error)
    return 0


def _predict(flags: Flags) -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if place_of(os.environ)[0] > 0:
        return 0
    log = Log()
    try:
        if not flags.model or not flags.weights or not flags.out:
            hint = "give -model FILE -weights FILE -out FILE.npz"
            raise InputError("caffe-torch predict", "no model, no weights or no output", hint)
        from caffe_recipes.engine import commands  # imports torch

        commands.check_out(flags.out)
        stages, weights = flags.stage.split(","), flags.weights.split(",")
        net = commands.load_predicting(flags.model, weights, flags.source, flags.level, stages, log)
        try:
            commands.predict(net, flags.out, log)
        finally:
            net.close()
    except CaffeRecipesError as error:
        return _fail(error)
    return 0


def _version(flags: Flags) -> int:
    print(f"caffe-torch {version('caffe-recipes')}")
    return 0


COMMANDS: dict[str, Callable[[Flags], int]] = {
    "train": _train,
    "test": _test,
    "predict": _predict,
    "version": _version,
}


if __name__ == "__main__":
    sys.exit(main())
