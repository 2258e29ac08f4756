"""Time caffe-torch's training iterations on one thread against the same net written in torch.nn.

The plain net is fed one batch from memory; caffe-torch decodes, augments, shuffles, and keeps statistics.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import torch
from torch import Tensor, nn

import caffe_recipes as cr
from caffe_recipes.data.digits import build_digits
from caffe_recipes.recipe.model import Recipe

ITERATIONS, BATCH = 200, 32


class Bottleneck(nn.Module):
    """The block of `resnet_small`: 1x1, 3x3 with the stride, 1x1; the first of a stage projects its input."""

    def __init__(self, inputs: int, width: int, stride: int, *, is_first: bool) -> None:
        super().__init__()
        self.shortcut = conv(inputs, 4 * width, 1, stride) if is_first else nn.Identity()
        self.branch = nn.Sequential(
            conv(inputs, width, 1),
            nn.ReLU(),
            conv(width, width, 3, stride),
            nn.ReLU(),
            conv(width, 4 * width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.shortcut(x) + self.branch(x))


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    plain = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(plain, nn.BatchNorm2d(outputs))


def plain_net() -> nn.Module:
    blocks = [Bottleneck(16, 8, 1, is_first=True), Bottleneck(32, 8, 1, is_first=False)]
    blocks += [Bottleneck(32, 16, 2, is_first=True), Bottleneck(64, 16, 1, is_first=False)]
    pool = nn.MaxPool2d(3, 2, ceil_mode=True)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return nn.Sequential(conv(3, 16, 3), nn.ReLU(), pool, *blocks, *head)


def plain_iteration_s() -> float:
    torch.set_num_threads(1)
    net = plain_net()
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stub knows tensors only
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=0.0005)
    images = torch.randn(BATCH, 3, 28, 28).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (BATCH,))
    start = 0.0
    for iteration in range(ITERATIONS + 20):
        if iteration == 20:
            start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    return (time.perf_counter() - start) / ITERATIONS


def our_iteration_s(recipe: Recipe) -> float:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, text in cr.generate(recipe).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        lmdb = folder / recipe.data.train.lmdb
        lmdb.parent.mkdir()
        build_digits(folder / "digits").train.rename(lmdb)
        words = ["train", "-solver", f"{recipe.prototxt_dir}/solver_init.prototxt"]
        command = [str(Path(sys.executable).with_name("caffe-torch")), *words]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=folder, env=one_thread, check=True, capture_output=True, text=True)
    found = re.findall(r"^I\d+ (\S+) .*Iteration (\d+), loss", done.stderr, re.MULTILINE)
    times = {int(iteration): datetime.strptime(clock, "%H:%M:%S.%f") for clock, iteration in found}
    return (times[ITERATIONS + 20] - times[20]).total_seconds() / ITERATIONS


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_known_args()
    recipe = cr.load_recipe("digits-local")
    shape = recipe.cluster.model_copy(update={"ranks_per_node": 1})
    phase = recipe.phases[0].model_copy(update={"max_iter": ITERATIONS + 40, "display": 20})
    ours = our_iteration_s(recipe.model_copy(update={"cluster": shape, "phases": (phase,)}))
    plain = plain_iteration_s()
    print(f"resnet_small, batch {BATCH}: {1000 * ours:.1f} ms an iteration, {BATCH / ours:,.0f} images/s")
    print(f"the same in torch.nn:   {1000 * plain:.1f} ms; caffe-torch takes {ours / plain:.2f} of that")


if __name__ == "__main__":
    main()
