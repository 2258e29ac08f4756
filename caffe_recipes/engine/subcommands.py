"""The commands of `caffe-torch`: `train` trains a net, `test` averages its outputs, `predict` writes scores.

`predict` writes the input of the last softmax for each image of an LMDB, not its probabilities: two different
scores may have the same probability in float32. `test` ranks the scores as well.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from google.protobuf import text_format
from numpy.typing import NDArray
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import open_datums
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.rates import float32
from caffe_recipes.caffe.shapes import select_layers
from caffe_recipes.caffe.weights import check_weights_files, load_solverstate, load_weights
from caffe_recipes.engine.communication import AgreedFailure, Ranks
from caffe_recipes.engine.folded_calls import fold_calls
from caffe_recipes.engine.glog import Log, format_number
from caffe_recipes.engine.hdf5_output import check_outputs
from caffe_recipes.engine.launch_variables import find_place, rank_on_host
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.nodes import LayerNode, label_hint, start_outputs, write_outputs
from caffe_recipes.engine.operators.data import DataContext
from caffe_recipes.engine.operators.operator import BatchStatistics, layer_error
from caffe_recipes.engine.packed_calls import pack_calls
from caffe_recipes.engine.settings import load_net, test_nets, train_net
from caffe_recipes.engine.signal_requests import SignalRequests
from caffe_recipes.engine.snapshot import check_complete, check_prefix, copy_history, copy_weights
from caffe_recipes.engine.solver import Solver, format_output
from caffe_recipes.engine.supported import check_supported
from caffe_recipes.engine.updates import flatten_params
from caffe_recipes.errors import DataError, DiskFailed, InputError, RunFailed
from caffe_recipes.files.atomic_writes import write_whole
from caffe_recipes.wording import describe_count


@dataclass(frozen=True)
class StartPoint:
    """Where a training starts from: weights files, a solverstate, or the fillers if both are empty.

    `new_layers` start from their fillers even if the weights contain them.
    """

    weights: tuple[str, ...] = ()
    snapshot: str = ""
    new_layers: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise WeightsError if one of the files cannot be read, or is of another kind."""
        check_weights_files(self.weights)
        if self.snapshot:
            load_solverstate(self.snapshot)


@dataclass(frozen=True)
class TrainingOptions:
    """Options of `train` that Caffe does not have, as PyTorch names them.

    `precision` is float32, tf32 (on a GPU) or bf16; `recomputes` keeps fewer blobs for the backward pass;
    `synchronises` takes the statistics of a BatchNorm over all ranks.
    """

    precision: str = "float32"
    recomputes: bool = False
    synchronises: bool = False


_PLAIN = TrainingOptions()


def find_device(
    flag: str, place: str, log: Log, solver: pb.SolverParameter | None = None, path: str = ""
) -> str:
    """Return PyTorch's name of the device that the flag -gpu names, and log it at a `place`.

    If it names several, the ranks of a host take one each. Without the flag, this is the device of the solver
    in the file `path`, or the CPU without a solver; a GPU without a device_id is also that of the rank.
    Raises InputError, with what asked for a GPU, if PyTorch cannot use it.
    """
    count = torch.cuda.device_count()
    if flag:
        asked, hint = f"-gpu {flag}", "leave -gpu out to use the CPU"
        gpu = _gpu_of_rank(range(count) if flag == "all" else [int(one) for one in flag.split(",")], asked)
    elif solver is not None and solver.solver_mode == solver.GPU:  # the default
        gpu, hint = solver.device_id, "write solver_mode: CPU"
        asked = f"{path}: solver_mode is GPU or missing"
        if count and not solver.HasField("device_id"):
            gpu = rank_on_host(os.environ) % count
    else:
        log.info(place, "Use CPU.")
        return "cpu"
    name = _gpu_name(gpu, count, asked, hint)
    log.info(place, f"Use GPU with device ID {gpu}: {name}")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False  # as in Caffe: float32
    torch.backends.cudnn.deterministic = True
    return f"cuda:{gpu}"


def _gpu_of_rank(gpus: Sequence[int], asked: str) -> int:
    """Return the GPU of this process, or 0 without one. Raises InputError with fewer processes than GPUs."""
    size = find_place(os.environ).size
    if len(gpus) > size:
        what = f"{asked} means {len(gpus)} GPUs, but this is {describe_count(size, 'process', 'processes')}"
        raise InputError("", what, "start one process for each GPU, with mpiexec.hydra or torchrun")
    return gpus[rank_on_host(os.environ) % len(gpus)] if gpus else 0


def _gpu_name(gpu: int, count: int, asked: str, hint: str) -> str:
    """Return the name of one of this host's GPUs. Raises InputError if PyTorch cannot use it."""
    if not count:
        raise InputError("", f"{asked}, but PyTorch finds no GPU", hint)
    if not 0 <= gpu < count:
        known = f"GPUs 0 to {count - 1}" if count > 1 else "only GPU 0"
        raise InputError("", f"{asked}, but there is no GPU {gpu}", f"this host has {known}")
    try:
        return torch.cuda.get_device_name(gpu)
    except (AssertionError, RuntimeError) as error:  # the driver is too old, or another process has the GPU
        reason = str(error).partition("\n")[0]
        raise InputError("", f"{asked}, but PyTorch cannot use it: {reason}", hint) from None


def list_gpus(flag: str = "") -> list[str]:
    """Return a line with number and name for each GPU that the flag -gpu names; for all without it.

    Raises InputError if PyTorch cannot use one of them.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = range(count) if flag in ("", "all") else map(int, flag.split(","))
    asked, hint = f"-gpu {flag}" if flag else "all GPUs", "check the driver with nvidia-smi"
    return [f"GPU {gpu}: {_gpu_name(gpu, count, asked, hint)}" for gpu in gpus]


def prepare_solver(
    param: pb.SolverParameter,
    path: str,
    start: StartPoint,
    ranks: Ranks,
    requests: SignalRequests,
    log: Log,
    device: str,
    options: TrainingOptions = _PLAIN,
) -> Solver:
    """Return the solver with its nets set up. Raises InputError before anything is written."""
    if options.precision == "tf32":
        if device == "cpu":
            raise InputError("", "-precision tf32 works only on a GPU", "leave it out to train on the CPU")
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    log.info("solver.cpp:107", "Initializing solver from parameters: \n" + _text(param))
    if param.snapshot or param.snapshot_after_train:
        check_prefix(param.snapshot_prefix, param.max_iter)
    seed = param.random_seed if param.random_seed >= 0 else ranks.entropy
    generator = torch.Generator().manual_seed(seed)
    rank_seed = (seed * ranks.size + ranks.rank) % 2**62
    torch.manual_seed(rank_seed)
    message, source = train_net(param, path)
    tested = test_nets(param, path)
    check_supported([(message, source), *tested])
    statistics = _choose_statistics(options, ranks, [(message, source), *tested])
    log.info("solver.cpp:153", f"Creating training net from net file: {source}")
    context = DataContext(ranks.rank, ranks.size, seed, rank_seed, log, device, statistics)
    context = replace(context, uses_bf16=options.precision == "bf16", recomputes=options.recomputes)
    net = RunnableNet(message, source, context, generator)
    _warn(net, param.debug_info or message.debug_info, log)
    groups = flatten_params(net, param)
    tests = []
    for index, (message, source) in enumerate(tested):
        log.info("solver.cpp:249", f"Creating test net (#{index}) specified by net file: {source}")
        context = replace(context, shuffle_seed=seed + index + 1, augment_seed=rank_seed + index + 1)
        tests.append(RunnableNet(message, source, context, generator, net))
    _check_outputs([net, *tests], param.snapshot_prefix)
    log.info("solver.cpp:121", "Solver scaffolding done.")
    solver = Solver(param, net, groups, tests, ranks, requests, log)
    _load_start(solver, start, log)
    return solver


def _warn(net: RunnableNet, has_debug_info: bool, log: Log) -> None:
    """Log what is probably not as its author expects: a TRAIN net without a loss, and debug_info."""
    if not any(node.weighted for node in net.nodes):
        what = f"{net.path}: no layer of the TRAIN net has a loss, so nothing is learned"
        log.warning("caffe-torch", f"{what}; add one, such as SoftmaxWithLoss, or a loss_weight")
    if has_debug_info:
        log.warning("caffe-torch", "debug_info is ignored: it prints nothing here")


def _check_outputs(nets: Sequence[RunnableNet], snapshot_prefix: str = "") -> None:
    """Raise InputError if an HDF5Output of these nets would write over what they read or write."""
    nodes = [node for net in nets for node in net.nodes if node.param.type == "HDF5Data"]  # no other is HDF5
    read = [file for node in nodes if node.source is not None for file in node.source.files()]
    outputs = [(net.path, node.output) for net in nets for node in net.nodes if node.output is not None]
    check_outputs(outputs, read, snapshot_prefix)


def _choose_statistics(
    options: TrainingOptions, ranks: Ranks, nets: Sequence[tuple[pb.NetParameter, str]]
) -> BatchStatistics:
    """Return whose images the statistics of a BatchNorm are of: with -sync-bn, those of all ranks.

    Raises InputError if the batches of the ranks, which count equally, would have different sizes.
    """
    if not options.synchronises or ranks.size < 2:
        return BatchStatistics()
    for net, path in nets:
        for layer in select_layers(net, net.state.phase, net.state.level, net.state.stage):
            if type_of(layer).is_sized_by_values:
                what = "selects another number of images on each rank, but -sync-bn needs the same"
                error = layer_error(layer, what, "leave one of the two out")
                raise error.reworded(where=f"{path}: {error.where}")
    return BatchStatistics(ranks.size, lambda tensor: ranks.sum(tensor)())


def _load_start(solver: Solver, start: StartPoint, log: Log) -> None:
    """Load the weights or the solverstate to start from."""
    if start.snapshot:
        log.info("caffe.cpp:316", f"Resuming from {start.snapshot}")
        state = load_solverstate(start.snapshot)
        hint = "resume with the net that wrote the snapshot"
        snapshot = {state.learned_net: _load(solver, state.learned_net, (), log, hint)}
        check_complete(solver.net, snapshot, hint)
        log.info("sgd_solver.cpp:808", f"{solver.param.type}Solver: restoring history")
        copy_history(solver.net, solver.groups, solver.param, state, start.snapshot)
        solver.iteration = state.iter
        solver.schedule.resume(state)
    trained, layers_by_file, new = solver.net.blobs(), dict[str, list[str]](), start.new_layers
    for name in new:
        if name not in trained:
            what = f"'{name}' is not a learned layer of {solver.net.path}"
            raise InputError("-new_layers", what, f"choose from {', '.join(trained)}")
    for path in start.weights:
        log.info("caffe.cpp:218", f"Finetuning from {path}")
        layers_by_file[path] = _load(solver, path, new, log, "give the weights of this net, or " + _RENEW)
    if layers_by_file:
        check_complete(solver.net, layers_by_file, "rename it, or " + _RENEW, new)


_RENEW = "give -new_layers {layers} to train from fillers"


def _load(solver: Solver, path: str, new: tuple[str, ...], log: Log, hint: str) -> list[str]:
    """Copy the weights of a file into all nets, and return the names of its learned layers."""
    weights = load_weights(path)
    layers = copy_weights(solver.net, weights, path, log, new, hint)
    trained = solver.net.blobs()
    for net in solver.test_nets:
        if net.blobs().keys() - trained:  # layers that the TRAIN net does not have
            copy_weights(net, weights, path, Log(enabled=False), new, hint)
    return layers


def _text(message: pb.SolverParameter) -> str:
    return text_format.MessageToString(message).rstrip("\n")


_NETS_OF_SOLVER = ("net", "train_net", "test_net", "net_param", "train_net_param", "test_net_param")
_OF_HOST = (*_NETS_OF_SOLVER, "snapshot_prefix", "solver_mode", "device_id")


def check_agreement(solver: Solver, ranks: Ranks, options: TrainingOptions) -> None:
    """Raise AgreedFailure on all ranks if one trains something else than rank 0.

    The ranks would wait for each other, or add up what does not belong together. Paths may differ from host
    to host, and so may the sizes of batches, except for common statistics.
    """
    common = pb.SolverParameter()
    common.CopyFrom(solver.param)
    for name in _OF_HOST:
        common.ClearField(name)
    sources = [node for node in solver.net.nodes if node.source is not None and options.synchronises]
    own = {
        "solver": _text(common),
        "net": str([tuple(param.tensor.shape) for param in solver.net.params]),
        "test nets": str([[output.name for output in net.outputs] for net in solver.test_nets]),
        "batch size": str([solver.net.shape(index) for node in sources for index in node.tops]),
        "iteration to start from": str(solver.iteration),
        "-precision or -sync-bn": f"{options.precision} {options.synchronises}",
    }
    first, *others = map(json.loads, ranks.gather(json.dumps(own)))
    for rank, other in enumerate(others, 1):
        for name in own:
            if other[name] != first[name]:
                error = InputError(
                    f"rank {rank}", f"has another {name} than rank 0", "give all ranks the same"
                )
                raise AgreedFailure(error.exit_code, str(error))


def run(solver: Solver, ranks: Ranks, log: Log, device: str) -> None:
    """Train to max_iter on a device. All ranks start from rank 0's blobs."""
    ranks.connect(device)
    _log_batch(solver, ranks, log)
    for param in solver.net.params:
        ranks.broadcast(param.tensor.detach())
    log.info("caffe.cpp:342", "Starting Optimization")
    solver.solve()
    log.info("caffe.cpp:345", "Optimization Done.")


def _log_batch(solver: Solver, ranks: Ranks, log: Log) -> None:
    """Log the number of ranks, and of the images of an iteration on all of them; Caffe does not."""
    inputs = [solver.net.shape(node.tops[0]) for node in solver.net.nodes if node.source is not None]
    own = inputs[0][0] * solver.param.iter_size if inputs and inputs[0] else 0
    total = sum(map(int, ranks.gather(str(own))))
    batch = f", global batch size {total}" if total else ""
    log.info("caffe-torch:0", f"Training with {describe_count(ranks.size, 'rank')}{batch}")


def load_test_net(
    model: str,
    weights: Sequence[str],
    level: int,
    stages: Sequence[str],
    log: Log,
    device: str,
    source: str | None = None,
) -> RunnableNet:
    """Return a net in phase TEST, with its weights. Raises InputError on a mismatch.

    With a `source`, its Data layers read that LMDB, or their own for "", in order.
    """
    param = load_net(model)
    if source:
        with open_datums(source):  # an error names this LMDB, not the net
            pass
    for layer in param.layer:
        if layer.type == "Data" and source is not None:
            layer.data_param.shuffle = False
            layer.data_param.source = source or layer.data_param.source
    param.state.phase = pb.TEST
    param.state.level = level
    param.state.stage.extend(stages)
    check_weights_files(weights)
    context = DataContext(0, 1, 0, 0, log, device)
    net = RunnableNet(param, model, context, torch.Generator().manual_seed(0))
    _check_outputs([net])
    layers_by_file = {path: copy_weights(net, load_weights(path), path, log) for path in weights}
    check_complete(net, layers_by_file, "give the weights of this net")
    moved = {id(param.tensor): _channels_last(param.tensor) for param in net.params}
    net.replace_blobs(lambda blob: moved[id(blob)])
    net.calls = pack_calls(fold_calls(net.calls), net.shape)
    return net


def _channels_last(blob: Tensor) -> Tensor:
    """Return a blob with kernels in the order of memory with which convolutions are faster."""
    return blob.contiguous(memory_format=torch.channels_last) if blob.dim() == 4 else blob


@torch.no_grad()
def test(net: RunnableNet, iterations: int, log: Log) -> None:
    """Print the outputs of each batch and their means. Raises RunFailed if the loss is not finite."""
    log.info("caffe.cpp:472", f"Running for {iterations} iterations.")
    sums: list[float] = []
    loss = 0.0
    start_outputs(net.nodes)
    for batch in range(iterations):
        net.pass_name = f"batch {batch}"
        loss = float32(loss + float(net.forward()))
        scores = net.scores()
        sums = sums or [0.0] * len(scores)
        if not math.isfinite(loss):
            what = f"the loss of batch {batch} is {format_number(loss)}"
            raise RunFailed("test", what, "the weights are damaged, or their training diverged")
        for index, (output, value) in enumerate(scores):
            sums[index] = float32(sums[index] + value)
            log.info("caffe.cpp:500", f"Batch {batch}, {output.name} = {format_number(value)}")
    log.info("caffe.cpp:505", f"Loss: {format_number(float32(loss / iterations))}")
    write_outputs(net.nodes)
    for (output, _), total in zip(net.scores(), sums, strict=True):
        log.info("caffe.cpp:517", format_output(output, float32(total / iterations)))


_SOFTMAX = ("SoftmaxWithLoss", "Softmax")


@torch.no_grad()
def predict(net: RunnableNet, out: str, log: Log) -> None:
    """Write `scores` (images x classes, float32) and `labels` (int32) atomically to an .npz file.

    Raises DataError if a label is not one of the classes, and RunFailed if a score is not finite.
    """
    data, last = _find_data(net), _find_softmax(net)
    net.keeps_blobs = True
    source = data.source
    assert source is not None
    with open_datums(source.where) as datums:
        count = len(datums)
    log.info("predict", f"Predicting {describe_count(count, 'image')} of {source.where}")
    scores: list[NDArray[np.float32]] = []
    labels: list[NDArray[np.int32]] = []
    done = 0
    while done < count:
        net.forward()
        # The last batch wraps around to the first record.
        batch = net.value(last.bottoms[0]).flatten(1).cpu().numpy()[: count - done].copy()
        label_batch = net.value(data.tops[1]).reshape(-1).cpu().numpy()[: count - done].astype(np.int32)
        _check_batch(net, source.where, source.keys, batch, label_batch)
        scores.append(batch)
        labels.append(label_batch)
        done += len(batch)
        log.info("predict", f"{done} of {count} images")
    _write(out, np.concatenate(scores), np.concatenate(labels))
    shape = "x".join(map(str, (count, scores[0].shape[1])))
    log.info("predict", f"Wrote {out}: scores ({shape}, float32) and labels ({count}, int32)")


def _find_data(net: RunnableNet) -> LayerNode:
    found = [node for node in net.nodes if node.param.type == "Data"]
    if len(found) != 1 or len(found[0].tops) != 2:
        what = (
            f"phase TEST has {len(found)} Data layers" if len(found) != 1 else "its Data layer has no labels"
        )
        raise InputError(net.path, what, "give a net that reads images and labels from one LMDB")
    return found[0]


def _find_softmax(net: RunnableNet) -> LayerNode:
    """Return the last softmax layer. Raises InputError unless it takes one score per class and image."""
    for node in reversed(net.nodes):
        if node.param.type in _SOFTMAX:
            shape = net.shape(node.bottoms[0])
            axis = node.param.softmax_param.axis
            if axis not in (1, 1 - len(shape)) or math.prod(shape[2:]) != 1:
                what = f"layer '{node.param.name}' takes {' x '.join(map(str, shape))} scores"
                raise InputError(net.path, what, "give a net with one score per class and image")
            return node
    raise InputError(
        net.path, "has no softmax layer in phase TEST", f"give a net with a {' or '.join(_SOFTMAX)} layer"
    )


def _check_batch(
    net: RunnableNet, where: str, keys: Sequence[str], scores: NDArray[np.float32], labels: NDArray[np.int32]
) -> None:
    classes = scores.shape[1]
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(outside):
        record = f"record '{keys[outside[0]]}' has label {labels[outside[0]]}"
        raise DataError(where, f"{record}, but {net.path} has {classes} classes", label_hint(classes))
    odd = np.flatnonzero(~np.isfinite(scores).all(1))
    if len(odd):
        what = f"the scores of record '{keys[odd[0]]}' are not finite"
        raise RunFailed(net.path, what, "check the weights and the data")


def _write(out: str, scores: NDArray[np.float32], labels: NDArray[np.int32]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, scores=scores, labels=labels)
    try:
        write_whole({Path(out): buffer.getvalue()})
    except OSError as error:
        raise DiskFailed(out, error) from None
