"""Apply Caffe's update rules to flat buffers, each with all parameters that have the same multipliers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.rates import float32
from caffe_recipes.engine.glog import Log, format_number
from caffe_recipes.engine.net import Param

_ALIGNMENT = 16  # floats: each parameter starts on a cache line, which makes convolutions faster


class HasParams(Protocol):
    """An object with parameters, such as a net."""

    params: list[Param]

    def replace_blobs(self, moved: Callable[[Tensor], Tensor], /) -> None:
        """Replace each blob with another tensor."""


@dataclass
class ParamGroup:
    """Parameters with the same lr_mult and decay_mult in one buffer. `ranges` are (index, start, stop)."""

    lr_mult: float
    decay_mult: float
    weights: Tensor
    grads: Tensor
    history: list[Tensor]
    ranges: list[tuple[int, int, int]]


Rule = Callable[[ParamGroup, float, pb.SolverParameter, int], None]


def flatten_params(net: HasParams, solver: pb.SolverParameter) -> list[ParamGroup]:
    """Move a net's parameters and gradients into one buffer per (lr_mult, decay_mult), and return the groups.

    Statistics get separate buffers: a forward pass changes them, and autograd would treat all parameters in
    the same buffer as changed.
    """
    members: dict[tuple[float, float, bool], list[int]] = {}
    for index, param in enumerate(net.params):
        members.setdefault((param.lr_mult, param.decay_mult, param.has_gradient), []).append(index)
    moved: dict[int, Tensor] = {}
    groups = []
    for (lr_mult, decay_mult, has_gradient), indices in members.items():
        ranges, size = [], 0
        for index in indices:
            count = net.params[index].tensor.numel()
            ranges.append((index, size, size + count))
            size += -(-count // _ALIGNMENT) * _ALIGNMENT
        device = net.params[indices[0]].tensor.device
        weights, grads = torch.zeros(size, device=device), torch.zeros(size, device=device)
        history = [torch.zeros_like(weights) for _ in range(history_count(solver))]
        for index, start, stop in ranges:
            param = net.params[index]
            view = view_as_blob(weights[start:stop], param.tensor.shape)
            view.copy_(param.tensor)
            if lr_mult and has_gradient:
                view.requires_grad_()
                view.grad = view_as_blob(grads[start:stop], view.shape)
            moved[id(param.tensor)] = view
        groups.append(ParamGroup(lr_mult, decay_mult, weights, grads, history, ranges))
    net.replace_blobs(lambda tensor: moved[id(tensor)])
    return groups


def view_as_blob(flat: Tensor, shape: torch.Size) -> Tensor:
    """Return a part of a buffer as a blob. Kernels are channels-last, which makes convolutions faster."""
    if len(shape) != 4:
        return flat.view(shape)
    outputs, channels, height, width = shape
    return flat.view(outputs, height, width, channels).permute(0, 3, 1, 2)


@torch.no_grad()
def update(
    groups: Iterable[ParamGroup], solver: pb.SolverParameter, rate: float, iteration: int, log: Log
) -> None:
    """Clip the gradients, average them over iter_size, add weight decay, and update the weights at `rate`."""
    groups = [group for group in groups if group.lr_mult]
    if solver.clip_gradients >= 0:
        _clip(groups, solver.clip_gradients, log)
    is_adaptive = solver.local_lr_auto and solver.type == "SGD"  # other types ignore it
    for group in groups:
        factors = _adaptive_factors(group, solver) if is_adaptive and group.lr_mult > 0 else None
        if solver.iter_size > 1:
            group.grads.mul_(1 / solver.iter_size)
        decay = float32(solver.weight_decay * group.decay_mult)
        if decay:
            pull = group.weights.sign() if solver.regularization_type == "L1" else group.weights
            group.grads.add_(pull, alpha=decay)
        if factors is not None:
            group.grads.mul_(factors)
        local = rate if factors is not None else float32(rate * group.lr_mult)
        RULES[solver.type](group, local, solver, iteration)


def _adaptive_factors(group: ParamGroup, solver: pb.SolverParameter) -> Tensor:
    """Return what `local_lr_auto` puts in the place of lr_mult: a factor for each number of a group.

    That of a parameter is ratio |w| / (|g| + weight_decay |w|), or 1 if a norm is 0. As in SURFsara's Caffe,
    decay_mult does not count, and g is the sum over iter_size, clipped, but without the weight decay.
    """
    factors = torch.ones_like(group.weights)
    for _, start, stop in group.ranges:
        weights, gradient = group.weights[start:stop].norm(), group.grads[start:stop].norm()
        factor = solver.local_gw_ratio * weights / (gradient + solver.weight_decay * weights)
        factors[start:stop] = torch.where((weights > 0) & (gradient > 0), factor, 1.0)
    return factors


def _clip(groups: list[ParamGroup], limit: float, log: Log) -> None:
    """Scale all gradients to a norm of at most `limit`: as in Caffe, that of the sum over iter_size."""
    norm = math.sqrt(sum(float(group.grads.dot(group.grads)) for group in groups))
    if norm > limit:
        factor = limit / norm
        log.info(
            "sgd_solver.cpp:203",
            "Gradient clipping: scaling down gradients "
            f"(L2 norm {format_number(norm)} > {format_number(limit)}) "
            f"by scale factor {format_number(factor)}",
        )
        for group in groups:
            group.grads.mul_(factor)


def _sgd(group: ParamGroup, rate: float, solver: pb.SolverParameter, iteration: int) -> None:
    """V = momentum V + rate g; W -= V. The history V includes the rate."""
    (velocity,) = group.history
    velocity.mul_(solver.momentum).add_(group.grads, alpha=rate)
    group.weights.sub_(velocity)


def _nesterov(group: ParamGroup, rate: float, solver: pb.SolverParameter, iteration: int) -> None:
    """V' = momentum V + rate g; W -= (1 + momentum) V' - momentum V."""
    (velocity,) = group.history
    group.weights.add_(velocity, alpha=solver.momentum)
    velocity.mul_(solver.momentum).add_(group.grads, alpha=rate)
    group.weights.sub_(velocity, alpha=1 + solver.momentum)


def _adagrad(group: ParamGroup, rate: float, solver: pb.SolverParameter, iteration: int) -> None:
    """H += g^2; W -= rate g / (sqrt(H) + delta)."""
    (squares,) = group.history
    squares.addcmul_(group.grads, group.grads)
    group.weights.addcdiv_(group.grads, squares.sqrt().add_(solver.delta), value=-rate)


def _rmsprop(group: ParamGroup, rate: float, solver: pb.SolverParameter, iteration: int) -> None:
    """H = d H + (1 - d) g^2; V = momentum V + rate g / sqrt(H + delta); W -= V."""
    squares = group.history[0]
    squares.mul_(solver.rms_decay).addcmul_(group.grads, group.grads, value=1 - solver.rms_decay)
    roots = squares.add(solver.delta).sqrt_()
    if len(group.history) == 1:
        group.weights.addcdiv_(group.grads, roots, value=-rate)
    else:
        group.history[1].mul_(solver.momentum).addcdiv_(group.grads, roots, value=rate)
        group.weights.sub_(group.history[1])


def _adadelta(group: ParamGroup, rate: float, solver: pb.SolverParameter, iteration: int) -> None:
    """H = m H + (1 - m) g^2; u = g sqrt((U + delta) / (H + delta)); U = m U + (1 - m) u^2; W -= rate u."""
    squares, updates = group.history
    share = 1 - solver.momentum
    squares.mul_(solver.momentum).addcmul_(group.grads, group.grads, value=share)
    step = updates.add(solver.delta).div_(squares + solver.delta).sqrt_().mul_(group.grads)
    updates.mul_(solver.momentum).addcmul_(step, step, value=share)
    group.weights.sub_(step, alpha=rate)


def _adam(group: ParamGroup, rate: float, solver: pb.SolverParameter, iteration: int) -> None:
    """W -= rate sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + delta), with moments m and v; t starts at 1."""
    first, second = group.history
    beta1, beta2 = solver.momentum, solver.momentum2
    first.mul_(beta1).add_(group.grads, alpha=1 - beta1)
    second.mul_(beta2).addcmul_(group.grads, group.grads, value=1 - beta2)
    correction = math.sqrt(1 - beta2 ** (iteration + 1)) / (1 - beta1 ** (iteration + 1))
    group.weights.addcdiv_(first, second.sqrt().add_(solver.delta), value=-rate * correction)


RULES: dict[str, Rule] = {
    "SGD": _sgd,
    "Nesterov": _nesterov,
    "AdaGrad": _adagrad,
    "RMSProp": _rmsprop,
    "AdaDelta": _adadelta,
    "Adam": _adam,
}


def history_count(solver: pb.SolverParameter) -> int:
    """Return the number of history blobs per parameter. RMSProp has a velocity only with momentum.

    A solverstate contains the first blob of each parameter, then the second ones.
    """
    if solver.type == "RMSProp":
        return 1 + (solver.momentum != 0)
    return 2 if solver.type in ("AdaDelta", "Adam") else 1
