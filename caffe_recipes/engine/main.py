"""`caffe-torch`: train and test nets as the `caffe` tool does, with its flags, log and files; and predict."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec

from caffe_recipes.engine.flags import Flags, parse_flags
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.ranks import AgreedFailure, Ranks, join_ranks, place_of
from caffe_recipes.engine.requests import EFFECTS, Requests
from caffe_recipes.engine.settings import load_solver
from caffe_recipes.errors import CaffeRecipesError, InputError

EXTRA = ("torch", "numpy", "cv2", "mpi4py")  # imported once the flags are checked

USAGE = """caffe-torch: run Caffe's prototxts on PyTorch

usage: caffe-torch train -solver FILE [-weights FILE[,FILE] | -snapshot FILE.solverstate]
       caffe-torch test -model FILE -weights FILE[,FILE] [-iterations N]
       caffe-torch predict -model FILE -weights FILE[,FILE] -out FILE.npz [-source LMDB]
       caffe-torch version

  -out FILE.npz                 the scores (images x classes) that go into the last softmax, and the labels,
                                of every image of the net's TEST LMDB, or of -source, each once
  -new_layers A,B               layers to train from their fillers, whatever the weights hold; any other
                                learned layer of the net must be in the weights
  -level N, -stage A,B          the net's state, for include and exclude rules
  -sigint_effect, -sighup_effect  snapshot, stop (the default of SIGINT) or none
  -logtostderr, -v N, ...       glog's flags are taken and change nothing: the log goes to stderr
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 as Caffe, 2 for bad input, 3 for a run that failed."""
    if argv is not None:
        return _run(argv)
    code = 1  # of an exception that nobody catches

    def end() -> None:
        sys.stdout.flush()
        os._exit(code)

    # Registered first, so called last, when MPI has ended: Python would take a second to take torch apart.
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
            raise InputError("caffe-torch", f"unknown command '{command}'", f"known are {known}")
        _check_flags(command, flags)
        check_extra()
    except CaffeRecipesError as error:
        return _fail(error, leads)
    return COMMANDS[command](flags)


def check_extra(find: Callable[[str], object] = find_spec) -> None:
    """Raise InputError unless `find` knows every module of the extra 'engine'."""
    for name in EXTRA:
        if find(name) is None:
            hint = "install this project's extra 'engine', as its README says"
            raise InputError("caffe-torch", f"needs {name}", hint)


def _fail(error: CaffeRecipesError, speaks: bool = True) -> int:
    if speaks:
        print(f"caffe-torch: {str(error).removeprefix('caffe-torch: ')}", file=sys.stderr, flush=True)
    return error.exit_code


def _check_flags(command: str, flags: Flags) -> None:
    for name in ("sigint_effect", "sighup_effect"):
        if getattr(flags, name) not in EFFECTS:
            what = f"-{name} '{getattr(flags, name)}' is unknown"
            raise InputError("caffe-torch", what, f"give {', '.join(EFFECTS)}")
    if flags.gpu:
        raise InputError("caffe-torch", "-gpu is not supported", "the engine runs on CPUs")
    if flags.iterations < 1:
        raise InputError("caffe-torch", f"-iterations is {flags.iterations}", "give 1 or more")
    if flags.weights and flags.snapshot:
        raise InputError("caffe-torch", "-weights and -snapshot exclude each other", "give only one")
    for name in ("weights", "new_layers"):
        if getattr(flags, name) and "" in getattr(flags, name).split(","):
            raise InputError("caffe-torch", f"-{name} {getattr(flags, name)} holds an empty name", "give A,B")
    for name in ("source", "out"):
        if getattr(flags, name) and command != "predict":
            raise InputError("caffe-torch", f"-{name} is for predict", "leave it out")
    if flags.new_layers and not (command == "train" and flags.weights):
        raise InputError("caffe-torch", "-new_layers is for train with -weights", "leave it out")


def _train(flags: Flags) -> int:
    """Train; the ranks of one mpiexec fail together, and only one of them says why."""
    rank, ranks = place_of(os.environ)
    if ranks > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported
    log = Log(enabled=rank == 0)
    requests = Requests()
    requests.listen(flags.sigint_effect, flags.sighup_effect)
    world = Ranks()
    try:
        world = join_ranks(os.environ)
        # MPI has begun: beneath MPICH, UCX takes SIGHUP for itself, to switch its own debugging on.
        requests.listen(flags.sigint_effect, flags.sighup_effect)
        log.info("caffe.cpp:285", "Use CPU.")
        _run_training(flags, world, requests, log)
    except AgreedFailure as failure:
        if rank == 0:
            print(f"caffe-torch: {failure.text}", file=sys.stderr, flush=True)
        return failure.code
    except CaffeRecipesError as error:
        _fail(error)
        world.abort(error.exit_code)
        return error.exit_code
    except Exception:
        if ranks > 1:  # the others would wait for ever, and MPI's own end for them
            traceback.print_exc()
            world.abort(3)
        raise
    return 0


def _run_training(flags: Flags, world: Ranks, requests: Requests, log: Log) -> None:
    with world.together():
        if not flags.solver:
            raise InputError("caffe-torch train", "no solver", "give -solver FILE")
        param = load_solver(flags.solver, flags.level, flags.stage.split(","))
        from caffe_recipes.engine import training  # imports torch: seconds that bad input need not cost

        start = training.Start(_names(flags.weights), flags.snapshot, _names(flags.new_layers))
        solver = training.prepare(param, flags.solver, start, world, requests, log)
    try:
        training.run(solver, world, log)
    finally:
        solver.close()


def _names(listed: str) -> tuple[str, ...]:
    return tuple(listed.split(",")) if listed else ()


def _test(flags: Flags) -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to save: end at once, and without a traceback
    if place_of(os.environ)[0] > 0:  # one process tests
        return 0
    log = Log()
    try:
        if not flags.model or not flags.weights:
            raise InputError("caffe-torch test", "no model or no weights", "give -model FILE -weights FILE")
        log.info("caffe.cpp:465", "Use CPU.")
        from caffe_recipes.engine import testing  # imports torch

        stages, weights = flags.stage.split(","), flags.weights.split(",")
        net = testing.load_tested(flags.model, weights, flags.level, stages, log)
        testing.test(net, flags.iterations, log)
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
        from caffe_recipes.engine import predicting  # imports torch

        predicting.check_out(flags.out)
        stages, weights = flags.stage.split(","), flags.weights.split(",")
        net = predicting.load_predicting(flags.model, weights, flags.source, flags.level, stages, log)
        try:
            predicting.predict(net, flags.out, log)
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
