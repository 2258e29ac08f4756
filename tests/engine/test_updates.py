"""Update rules against numpy models of Caffe's, over several iterations."""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from caffe_recipes.caffe import pb
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.net import Param
from caffe_recipes.engine.updates import ParamGroup, flatten_params, update

Array = NDArray[np.float64]
Model = Callable[[Array, Array, list[Array], float, pb.SolverParameter, int], Array]
QUIET = Log(enabled=False)


class Params:
    """A net that has nothing but parameters."""

    def __init__(self, *params: Param) -> None:
        self.params = list(params)

    def replace_blobs(self, moved: Callable[[torch.Tensor], torch.Tensor]) -> None:
        for param in self.params:
            param.tensor = moved(param.tensor)


def make(*mults: tuple[float, float], shape: tuple[int, ...] = (3, 2, 2, 2)) -> Params:
    random = np.random.default_rng(0)
    tensors = [torch.from_numpy(random.standard_normal(shape).astype(np.float32)) for _ in mults]
    return Params(*[Param(t, "l", lr, decay, True) for t, (lr, decay) in zip(tensors, mults, strict=True)])


def sgd(w: Array, g: Array, h: list[Array], rate: float, s: pb.SolverParameter, i: int) -> Array:
    h[0] = s.momentum * h[0] + rate * g
    return w - h[0]


def nesterov(w: Array, g: Array, h: list[Array], rate: float, s: pb.SolverParameter, i: int) -> Array:
    old = h[0]
    h[0] = s.momentum * old + rate * g
    return w - ((1 + s.momentum) * h[0] - s.momentum * old)


def adagrad(w: Array, g: Array, h: list[Array], rate: float, s: pb.SolverParameter, i: int) -> Array:
    h[0] = h[0] + g * g
    return w - rate * g / (np.sqrt(h[0]) + s.delta)


def rmsprop(w: Array, g: Array, h: list[Array], rate: float, s: pb.SolverParameter, i: int) -> Array:
    h[0] = s.rms_decay * h[0] + (1 - s.rms_decay) * g * g
    h[1] = s.momentum * h[1] + rate * g / np.sqrt(h[0] + s.delta)
    return w - h[1]


def adadelta(w: Array, g: Array, h: list[Array], rate: float, s: pb.SolverParameter, i: int) -> Array:
    h[0] = s.momentum * h[0] + (1 - s.momentum) * g * g
    step = g * np.sqrt((h[1] + s.delta) / (h[0] + s.delta))
    h[1] = s.momentum * h[1] + (1 - s.momentum) * step * step
    return w - rate * step


def adam(w: Array, g: Array, h: list[Array], rate: float, s: pb.SolverParameter, i: int) -> Array:
    b1, b2, t = s.momentum, s.momentum2, i + 1
    h[0] = b1 * h[0] + (1 - b1) * g
    h[1] = b2 * h[1] + (1 - b2) * g * g
    correction = math.sqrt(1 - b2**t) / (1 - b1**t)
    return w - rate * correction * h[0] / (np.sqrt(h[1]) + s.delta)


@pytest.mark.parametrize(("momentum", "count"), [(0, 1), (0.9, 2)])
def test_rmsprop_keeps_a_velocity_only_with_momentum(momentum: float, count: int) -> None:
    solver = pb.SolverParameter(type="RMSProp", momentum=momentum, rms_decay=0.8, delta=1e-4)
    net = make((1, 1))
    start = net.params[0].tensor.numpy().astype(np.float64)
    (group,) = flatten_params(net, solver)
    group.grads.fill_(0.5)
    update([group], solver, 0.1, 0, QUIET)
    want = rmsprop(start, np.full_like(start, 0.5), [np.zeros_like(start)] * 2, 0.1, solver, 0)
    assert net.params[0].tensor.detach().numpy() == pytest.approx(want, abs=1e-6)
    assert len(group.history) == count


MODELS: dict[str, Model] = {
    "SGD": sgd,
    "Nesterov": nesterov,
    "AdaGrad": adagrad,
    "RMSProp": rmsprop,
    "AdaDelta": adadelta,
    "Adam": adam,
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("regularization", ["L1", "L2"])
def test_each_solver_type_follows_its_model(kind: str, regularization: str) -> None:
    solver = pb.SolverParameter(
        type=kind, momentum=0 if kind == "AdaGrad" else 0.9, weight_decay=0.01, delta=1e-4, rms_decay=0.8,
        regularization_type=regularization,
    )  # fmt: skip
    net = make((1, 1), (2, 0))
    models = [param.tensor.numpy().astype(np.float64) for param in net.params]
    history = [[np.zeros_like(w), np.zeros_like(w)] for w in models]
    groups = flatten_params(net, solver)
    random = np.random.default_rng(1)
    for iteration in range(5):
        for index, param in enumerate(net.params):
            gradient = random.standard_normal(tuple(param.tensor.shape))
            assert param.tensor.grad is not None
            param.tensor.grad.copy_(torch.from_numpy(gradient))
            decay = 0.01 * param.decay_mult
            pull = np.sign(models[index]) if regularization == "L1" else models[index]
            pulled = gradient + decay * pull
            rate = 0.1 * param.lr_mult
            models[index] = MODELS[kind](models[index], pulled, history[index], rate, solver, iteration)
        update(groups, solver, 0.1, iteration, QUIET)
    for param, want in zip(net.params, models, strict=True):
        assert param.tensor.detach().numpy() == pytest.approx(want, abs=2e-5)


def one_gradient(**fields: float) -> tuple[Params, list[ParamGroup], pb.SolverParameter]:
    solver = pb.SolverParameter(**fields)  # type: ignore[arg-type]
    net = make((1, 0), shape=(4,))
    groups = flatten_params(net, solver)
    net.params[0].tensor.detach().zero_()
    assert net.params[0].tensor.grad is not None
    net.params[0].tensor.grad.copy_(torch.tensor([3.0, 4.0, 0.0, 0.0]))
    return net, groups, solver


def test_gradients_are_averaged_over_iter_size() -> None:
    net, groups, solver = one_gradient(iter_size=2)
    update(groups, solver, 1.0, 0, QUIET)
    assert net.params[0].tensor.tolist() == [-1.5, -2, 0, 0]


def test_clipping_compares_the_sum_before_it_is_averaged() -> None:
    net, groups, solver = one_gradient(iter_size=2, clip_gradients=4.0)
    stream = io.StringIO()
    update(groups, solver, 1.0, 0, Log(stream=stream))
    assert net.params[0].tensor.tolist() == pytest.approx([-1.2, -1.6, 0, 0])
    assert "(L2 norm 5 > 4) by scale factor 0.8" in stream.getvalue()


def test_a_small_gradient_is_not_clipped() -> None:
    net, groups, solver = one_gradient(clip_gradients=5.0)
    update(groups, solver, 1.0, 0, QUIET)
    assert net.params[0].tensor.tolist() == [-3, -4, 0, 0]


def test_a_parameter_without_rate_stays_and_has_no_gradient() -> None:
    net = make((0, 1), (1, 1))
    before = net.params[0].tensor.clone()
    solver = pb.SolverParameter(weight_decay=0.5, momentum=0.9)
    groups = flatten_params(net, solver)
    update(groups, solver, 0.1, 0, QUIET)
    assert torch.equal(net.params[0].tensor, before)
    assert not net.params[0].tensor.requires_grad
    assert net.params[1].tensor.requires_grad


def test_kernels_keep_their_values_when_they_move_to_channels_last() -> None:
    net = make((1, 1))
    before = net.params[0].tensor.clone()
    flatten_params(net, pb.SolverParameter())
    moved = net.params[0].tensor
    assert torch.equal(moved, before)
    assert moved.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", ["SGD", "Nesterov"])
def test_local_lr_auto_replaces_lr_mult_by_a_ratio_of_norms_in_sgd_alone(kind: str) -> None:
    solver = pb.SolverParameter(
        type=kind, momentum=0.9, weight_decay=0.1, iter_size=2, local_lr_auto=True, local_gw_ratio=0.02
    )
    net = make((3, 0.5), (3, 0.5), (2, 0), shape=(5,))
    net.params[1].tensor.zero_()  # whose factor is 1, as there is no ratio
    models = [param.tensor.numpy().astype(np.float64) for param in net.params]
    history = [[np.zeros_like(w), np.zeros_like(w)] for w in models]
    groups = flatten_params(net, solver)
    random = np.random.default_rng(1)
    for iteration in range(3):
        for index, param in enumerate(net.params):
            total = random.standard_normal(5)
            assert param.tensor.grad is not None
            param.tensor.grad.copy_(torch.from_numpy(total))
            length, slope = np.linalg.norm(models[index]), np.linalg.norm(total)
            factor = float(0.02 * length / (slope + 0.1 * length)) if length else 1.0
            rate = 0.1 * (factor if kind == "SGD" else param.lr_mult)
            pulled = total / 2 + 0.1 * param.decay_mult * models[index]
            models[index] = MODELS[kind](models[index], pulled, history[index], rate, solver, iteration)
        update(groups, solver, 0.1, iteration, QUIET)
    for param, want in zip(net.params, models, strict=True):
        assert param.tensor.detach().numpy() == pytest.approx(want, abs=2e-6)
