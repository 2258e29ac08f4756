"""Normalization against plain numpy loops or values worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.caffe.layer_types.normalization import unlearned_blobs
from caffe_recipes.engine.operators.operator import BatchStatistics
from caffe_recipes.errors import PrototxtError
from tests.engine.operators.conftest import apply, noise, set_up


def test_batch_norm_normalises_by_the_batch_and_keeps_sums_of_statistics() -> None:
    x = noise(4, 3, 5, 5) * 2 + 1
    blobs = [torch.ones(3), torch.ones(3), torch.full((1,), 2.0)]
    text = 'type: "BatchNorm" batch_norm_param { moving_average_fraction: 0.9 }'
    got = apply(text, x, blobs=blobs)
    values = x.numpy().transpose(1, 0, 2, 3).reshape(3, -1).astype(np.float64)
    mean, variance = values.mean(1), values.var(1)
    want = (x.numpy() - mean[:, None, None]) / np.sqrt(variance + 1e-5)[:, None, None]
    assert got == pytest.approx(want, abs=1e-5)
    assert blobs[0].numpy() == pytest.approx(0.9 + mean, rel=1e-5)
    assert blobs[1].numpy() == pytest.approx(0.9 + variance * 100 / 99, rel=1e-5)
    assert float(blobs[2]) == pytest.approx(0.9 * 2 + 1)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_batch_norm_sums_many_values_without_losing_digits(layout: torch.memory_format) -> None:
    x = (noise(8, 6, 56, 56) + 3).contiguous(memory_format=layout)
    blobs = [torch.zeros(6), torch.zeros(6), torch.zeros(1)]
    apply('type: "BatchNorm"', x, blobs=blobs)
    values = x.double()
    assert blobs[0].numpy() == pytest.approx(values.mean((0, 2, 3)).numpy(), abs=5e-7)
    assert blobs[1].numpy() == pytest.approx(values.var((0, 2, 3)).numpy(), abs=5e-7)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_batch_norm_sends_back_the_gradient_of_its_formula(layout: torch.memory_format) -> None:
    x, gamma, beta, slope = noise(4, 3, 5, 5), noise(3, seed=1), noise(3, seed=2), noise(4, 3, 5, 5, seed=3)
    inputs = [tensor.clone().requires_grad_() for tensor in (x, gamma, beta)]
    forward, _ = set_up('type: "BatchNorm"', (4, 3, 5, 5))
    blobs = [torch.zeros(3), torch.zeros(3), torch.zeros(1), *inputs[1:]]
    (forward([inputs[0].contiguous(memory_format=layout)], blobs)[0] * slope).sum().backward()
    exact = [tensor.double().requires_grad_() for tensor in (x, gamma, beta)]
    centred = exact[0] - exact[0].mean((0, 2, 3), keepdim=True)
    root = (centred.square().mean((0, 2, 3), keepdim=True) + 1e-5).sqrt()
    y = centred / root * exact[1][:, None, None] + exact[2][:, None, None]
    (y * slope).sum().backward()
    for own, true in zip(inputs, exact, strict=True):
        assert own.grad is not None and true.grad is not None
        assert own.grad.numpy() == pytest.approx(true.grad.numpy(), abs=1e-5)


def test_batch_norms_statistics_do_not_depend_on_what_memory_held() -> None:
    # Fills new memory with NaN, as use_deterministic_algorithms does, which imports torch's compiler as well.
    torch.set_deterministic_debug_mode("error")
    try:
        blobs = [torch.zeros(3), torch.zeros(3), torch.zeros(1)]
        apply('type: "BatchNorm"', noise(4, 3, 5, 5), blobs=blobs)
        assert torch.isnan(torch.empty(3)).all()
    finally:
        torch.set_deterministic_debug_mode("default")
    assert all(torch.isfinite(blob).all() for blob in blobs)


def test_each_stats_batch_is_normalised_and_counted_by_itself() -> None:
    x = noise(6, 3, 2, 2) * 3 + 1
    blobs = [torch.zeros(3), torch.zeros(3), torch.zeros(1)]
    text = 'type: "BatchNorm" batch_norm_param {{ moving_average_fraction: 0.5 stats_batch_size: {} }}'
    got = apply(text.format(2), x, blobs=blobs)
    sums = [np.zeros(3), np.zeros(3), np.zeros(1)]
    for i in range(3):
        part = x.numpy()[2 * i : 2 * i + 2].astype(np.float64)
        mean, variance = part.mean((0, 2, 3)), part.var((0, 2, 3))
        want = (part - mean[:, None, None]) / np.sqrt(variance + 1e-5)[:, None, None]
        assert got[2 * i : 2 * i + 2] == pytest.approx(want, abs=1e-5)
        new = (mean, variance * 8 / 7, np.ones(1))  # a part has 2 x 2 x 2 values of a channel
        sums = [0.5 * old + now for old, now in zip(sums, new, strict=True)]
    for blob, total in zip(blobs, sums, strict=True):
        assert blob.numpy() == pytest.approx(total, rel=1e-5)
    whole = apply('type: "BatchNorm"', x, blobs=[torch.zeros(3), torch.zeros(3), torch.zeros(1)])
    for size in (0, 6):
        same = apply(text.format(size), x, blobs=[torch.zeros(3), torch.zeros(3), torch.zeros(1)])
        assert same == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_gradient_of_stats_batches_is_that_of_finite_differences(layout: torch.memory_format) -> None:
    x = noise(4, 2, 2, 3).double().contiguous(memory_format=layout).requires_grad_()
    pull = noise(4, 2, 2, 3, seed=1).double()
    forward, _ = set_up('type: "BatchNorm" batch_norm_param { stats_batch_size: 2 }', (4, 2, 2, 3))

    def loss(x: Tensor) -> Tensor:
        return (forward([x], [torch.zeros(n, dtype=torch.double) for n in (2, 2, 1)])[0] * pull).sum()

    loss(x).backward()
    assert x.grad is not None
    step = 1e-5
    for place in np.ndindex(4, 2, 2, 3):
        shifted = torch.zeros_like(x)
        shifted[place] = step
        with torch.no_grad():
            slope = float(loss(x + shifted) - loss(x - shifted)) / (2 * step)
        assert float(x.grad[place]) == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_stats_batches_with_a_scale_are_those_of_batch_norms_one_after_another(
    layout: torch.memory_format,
) -> None:
    x, pull = (noise(6, 3, 5, 5, seed=n).contiguous(memory_format=layout) for n in (1, 2))
    text = 'type: "BatchNorm" batch_norm_param { moving_average_fraction: 0.9 %s }'
    found = []
    for size, own in ((6, "stats_batch_size: 2"), (2, "")):
        given = x.clone().requires_grad_()
        learned = [noise(3, seed=3).requires_grad_(), noise(3, seed=4).requires_grad_()]
        blobs = [torch.ones(3), torch.ones(3), torch.ones(1), *learned]
        forward, _ = set_up(text % own, (size, 3, 5, 5))
        parts = [given] if own else given.split(2)
        made = torch.cat([forward([part], blobs)[0] for part in parts])
        (made * pull).sum().backward()
        found.append([made.detach(), given.grad, *(one.grad for one in learned), *blobs[:3]])
    for mine, its in zip(*found, strict=True):
        assert mine is not None and its is not None
        assert torch.allclose(mine, its, rtol=1e-5, atol=1e-5)


def test_stats_batches_count_in_training_only_and_must_divide_the_batch() -> None:
    text = 'type: "BatchNorm" batch_norm_param { stats_batch_size: 4 }'
    blobs = [torch.ones(3), torch.ones(3), torch.ones(1)]
    plain = apply('type: "BatchNorm"', noise(6, 3, 2, 2), blobs=blobs, phase=pb.TEST)
    assert apply(text, noise(6, 3, 2, 2), blobs=blobs, phase=pb.TEST) == pytest.approx(plain)
    with pytest.raises(PrototxtError, match="stats_batch_size 4, which does not divide its batch of 6"):
        set_up(text, (6, 3, 2, 2))


def test_batch_norm_is_tested_with_its_sums_over_their_factor() -> None:
    x = noise(2, 3, 4, 4)
    blobs = [torch.tensor([3.0, 0.0, -3.0]), torch.tensor([3.0, 6.0, 12.0]), torch.tensor([3.0])]
    before = [blob.clone() for blob in blobs]
    got = apply('type: "BatchNorm"', x, blobs=blobs, phase=pb.TEST)
    mean, variance = np.array([1, 0, -1])[:, None, None], np.array([1, 2, 4])[:, None, None]
    assert got == pytest.approx((x.numpy() - mean) / np.sqrt(variance + 1e-5), abs=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(blobs, before, strict=True))


def test_batch_norm_without_statistics_divides_by_the_root_of_eps() -> None:
    x = noise(2, 3, 4, 4)
    got = apply('type: "BatchNorm"', x, blobs=[torch.zeros(3), torch.zeros(3), torch.zeros(1)], phase=pb.TEST)
    assert got == pytest.approx(x.numpy() / np.sqrt(1e-5), rel=1e-4)


def test_use_global_stats_overrides_the_phase() -> None:
    x, blobs = noise(2, 3), [torch.zeros(3), torch.full((3,), 4.0), torch.ones(1)]
    got = apply('type: "BatchNorm" batch_norm_param { use_global_stats: true }', x, blobs=blobs)
    assert got == pytest.approx(x.numpy() / 2, rel=1e-4)
    assert float(blobs[2]) == 1


def test_one_value_per_channel_normalises_to_zero_and_sends_no_gradient_back() -> None:
    x, blobs = noise(1, 3).requires_grad_(), [torch.zeros(3), torch.zeros(3), torch.zeros(1)]
    forward, _ = set_up('type: "BatchNorm"', (1, 3))
    (y,) = forward([x], blobs)
    assert float(y.detach().abs().max()) < 1e-4
    (y * noise(1, 3, seed=1)).sum().backward()
    assert x.grad is not None
    assert not x.grad.any()
    assert blobs[0].numpy() == pytest.approx(x.detach().numpy()[0])


def test_batch_norm_with_the_scale_after_it_equals_the_two_apart() -> None:
    x, gamma, beta = noise(4, 3, 5, 5), noise(3, seed=1), noise(3, seed=2)
    normalise, _ = set_up('type: "BatchNorm"', (4, 3, 5, 5))
    scale, _ = set_up('type: "Scale" scale_param { bias_term: true }', (4, 3, 5, 5))
    apart = scale(normalise([x], [torch.zeros(3), torch.zeros(3), torch.zeros(1)]), [gamma, beta])[0]
    joint = normalise([x], [torch.zeros(3), torch.zeros(3), torch.zeros(1), gamma, beta])[0]
    assert joint.numpy() == pytest.approx(apart.numpy(), abs=1e-5)


AVERAGED = 'type: "BN" bn_param { slope_filler { type: "constant" value: 1 } momentum: 0.8 %s }'


def averaged(x: Tensor, mean: Tensor, variance: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    of_channel = (1, -1, 1, 1)
    y = (x - mean.view(of_channel)) / torch.sqrt(variance.view(of_channel) + 1e-5)
    return y * scale.view(of_channel) + shift.view(of_channel)


@pytest.mark.parametrize(
    ("phase", "frozen", "is_moved"),
    [(pb.TRAIN, "", True), (pb.TRAIN, "frozen: true", False), (pb.TEST, "", False)],
)
def test_a_bn_with_a_slope_keeps_averages_unless_it_uses_them(
    phase: pb.Phase, frozen: str, is_moved: bool
) -> None:
    x, blobs = noise(3, 2, 4, 5), [noise(1, 2, seed=i).abs() + 0.5 for i in range(4)]
    before = [blob.clone() for blob in blobs]
    y = apply(AVERAGED % frozen, x, blobs=blobs, phase=phase)
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
    used = (mean, variance) if is_moved else before[2:]
    np.testing.assert_allclose(y, averaged(x, *used, *before[:2]).numpy(), rtol=1e-4, atol=1e-5)
    for blob, old, value in zip(blobs[2:], before[2:], (mean, variance), strict=True):
        moved = 0.8 * old + 0.2 * value if is_moved else old
        np.testing.assert_allclose(blob.numpy(), moved.numpy(), rtol=1e-4)


SEGNETS = 'type: "BN" bn_param { bn_mode: LEARN }'


def normalised(
    text: str, x: Tensor, dy: Tensor, batches: BatchStatistics | None = None
) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
    """Return what a layer makes of a batch, the gradient of that, and the blobs after it."""
    forward, shapes = set_up(text, tuple(x.shape), batches=batches)
    blobs = [noise(*shape, seed=seed).abs() + 0.5 for seed, shape in enumerate(shapes)]
    x = x.clone().requires_grad_()
    (y,) = forward([x], blobs)
    y.backward(dy)
    assert x.grad is not None
    return y.detach(), x.grad, blobs


@pytest.mark.parametrize("text", ['type: "BatchNorm"', AVERAGED % "", SEGNETS])
def test_ranks_that_share_statistics_normalise_as_one_rank_with_all_images(text: str) -> None:
    x, dy, meeting = noise(6, 2, 3, 3), noise(6, 2, 3, 3, seed=1), Barrier(2)
    shared: dict[int, Tensor] = {}

    def rank(number: int) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
        def add_up(tensor: Tensor) -> None:
            shared[number] = tensor.clone()
            meeting.wait(60)
            tensor.copy_(shared[0] + shared[1])
            meeting.wait(60)

        mine = slice(3 * number, 3 * number + 3)
        return normalised(text, x[mine], dy[mine], BatchStatistics(2, add_up))

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(rank, (0, 1))
    y, dx, blobs = normalised(text, x, dy)
    assert torch.allclose(torch.cat([first[0], second[0]]), y, atol=1e-5)
    assert torch.allclose(torch.cat([first[1], second[1]]), dx, atol=1e-5)
    for one, other, alone in zip(first[2], second[2], blobs, strict=True):
        assert torch.equal(one, other) and torch.allclose(one, alone, rtol=1e-5)


@pytest.mark.parametrize("across", [False, True])
def test_the_gradient_of_normalize_is_scaled_after_it_is_computed_as_in_caffe(across: bool) -> None:
    text = f'type: "Normalize" norm_param {{ across_spatial: {str(across).lower()} channel_shared: false }}'
    x, scale, dy = (
        noise(*shape, seed=i).double() for i, shape in enumerate([(2, 3, 2, 2), (3,), (2, 3, 2, 2)])
    )
    forward, _ = set_up(text, (2, 3, 2, 2))
    (y,) = forward([x.requires_grad_()], [scale.requires_grad_()])
    unit = x / (x.square().sum((1, 2, 3) if across else 1, keepdim=True) + 1e-10).sqrt()
    assert torch.allclose(y, unit * scale[:, None, None])
    dx, of_scale = torch.autograd.grad(y, [x, scale], dy)
    (of_unit,) = torch.autograd.grad(unit, x, dy, retain_graph=True)
    assert torch.allclose(dx, of_unit * scale[:, None, None])
    assert torch.allclose(of_scale, (dy * unit).sum((0, 2, 3)))


def test_no_gradient_changes_the_averages_of_a_bn_or_anything_of_a_frozen_one() -> None:
    for frozen, unlearned in (("", [2, 3]), ("frozen: true", [0, 1, 2, 3])):
        net: Any = parse_lenient(f"layer {{ {AVERAGED % frozen} }}").message
        assert [*unlearned_blobs(net.layer[0])] == unlearned
