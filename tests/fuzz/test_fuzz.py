"""A thousand damaged files, or the million of `make fuzz`: each is read or refused, and none takes long."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from google.protobuf.message import Message

from caffe_recipes.caffe.measurements import MeasuredLog, read_measurements
from caffe_recipes.caffe.prototxt import (
    Document,
    decode_prototxt,
    digest,
    parse_document,
    parse_prototxt,
    render_checked,
)
from caffe_recipes.caffe.upgrade import upgrade_document
from caffe_recipes.cli.main import commands
from caffe_recipes.errors import CaffeRecipesError
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.recipe_files import generate
from caffe_recipes.review.inspect.training_logs import parse_tensorflow
from caffe_recipes.review.rewrites import format_text

ROOT = Path(__file__).parents[2]
MOST_S = 2.0  # of processor time, for one file
SCALE = int(os.environ.get("FUZZ_SCALE", "1"))
PROTOTXTS, RECIPES, FAMILIES, REVIEWED = 750 * SCALE, 250 * SCALE, 60 * SCALE, 100 * SCALE
PARTS = 3  # shared by the workers of pytest-xdist
REVIEWS = ("diff", "lint", "summary")

Spoil = Callable[[bytes, random.Random], bytes]

SOLVER = b"""# Five phases, 32 images on each of 128 ranks

net: "models/resnet/train_val.prototxt"
test_iter: 1000 # all of them
test_interval: 625
base_lr: 1.6
lr_policy: "poly_cyc"
power: 1.0
max_iter: 7800
lr_iter: 18720
warmup_iter: 1560 # 5 epochs
warmup_start_lr: 1e-1
momentum: .9
weight_decay: 0.00005f
stepvalue: [1, 0x10, 017]
solver_type: SGD
snapshot_prefix: 'a' "b"
solver_mode: CPU;
train_state { level: 1 stage: "x" }
"""
V0 = b"""
name: "AlexNet"
input: "data" input_dim: 10 input_dim: 3 input_dim: 227 input_dim: 227
# pads
layers { layer { name: "pad1" type: "padding" pad: 2 } bottom: "data" top: "pad1" }
layers {
  layer { name: "conv1" type: "conv" num_output: 96 kernelsize: 11 stride: 4
    weight_filler { type: "gaussian" std: 0.01 } bias_filler { type: "constant" value: 0. }
    blobs_lr: 1. blobs_lr: 2. weight_decay: 1. weight_decay: 0. # none
  }
  bottom: "pad1" top: "conv1"
}
layers { layer { name: "relu1" type: "relu" } bottom: "conv1" top: "conv1" }
layers { layer { name: "pool1" type: "pool" pool: MAX kernelsize: 3 stride: 2 } bottom: "conv1" top: "pool1" }
layers { layer { name: "fc" type: "innerproduct" num_output: 10 } bottom: "pool1" top: "fc" }
"""
V1 = b"""
layers {
  name: "mnist" type: DATA top: "data" top: "label" include: { phase: TRAIN }
  data_param { source: "train" backend: LMDB batch_size: 64 scale: 0.00390625 mirror: true }
}
layers {
  name: "conv1" type: CONVOLUTION bottom: "data" top: "conv1" blobs_lr: 1 blobs_lr: 2 weight_decay: 1
  convolution_param < num_output: 20, kernel_size: [5, 5] weight_filler { type: "xavier" } > # end
}
layers { name: "ip" type: INNER_PRODUCT bottom: "conv1" top: "ip" param: "w" blob_share_mode: PERMISSIVE }
layers { name: "loss" type: SOFTMAX_LOSS bottom: "ip" bottom: "label" loss_weight: 0.5 }
"""
TODAY = b"""
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: [1, 3, 32, 32] } } }
layer {
  name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 8 kernel_size: 3 pad: 1 stride: 2 weight_filler { type: "msra" } }
}
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" param { } param { } param { } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" relu_param { engine: CAFFE } }
layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc" inner_product_param { num_output: 10 } }
"""
LABELS = b'item { name: "n01440764" label: 0 display_name: "tench" } item { name: "\\303\\251" label: 1 }'
PHASES = (
    b"params_pair { solver_params { net_param { layers { type: RELU } } solver_type: ADAM } batch_size: 3 }"
)
TEXTS = (SOLVER, V0, V1, TODAY, LABELS, PHASES, SOLVER, V0, V1, TODAY)


def read_prototxt(data: bytes) -> None:
    """Do with a file what `fmt` and `upgrade` do."""
    text = decode_prototxt(data, "spoilt.prototxt")
    document: Document[Message] = parse_document(text, "spoilt.prototxt")
    written = format_text(text, "spoilt.prototxt").after
    assert digest(parse_prototxt(written, type(document.message))) == digest(document.message)
    assert format_text(written, "spoilt.prototxt").after == written
    upgraded = upgrade_document(document)
    written = render_checked(upgraded.message, upgraded.comments, "spoilt.prototxt")
    again: Document[Message] = parse_document(written, "spoilt.prototxt", type(document.message))
    assert not upgrade_document(again).changes


def read_recipe(path: Path | str) -> None:
    generate(load_recipe(path))


def outcome(read: Callable[[Any], None], given: Any) -> str:  # noqa: ANN401 - what `read` takes
    """Return whether a file was read or refused in one line and in time; any other exception is a defect."""
    start = time.process_time()
    try:
        read(given)
        result = "read"
    except CaffeRecipesError as error:
        assert error.exit_code == 2
        assert len(str(error)) < 2_000
        result = "refused"
    except Exception as error:
        raise AssertionError(f"{given!r} is neither read nor refused") from error
    assert time.process_time() - start < MOST_S
    return result


@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_prototxts_are_read_or_refused(part: int, spoil: Spoil) -> None:
    outcomes = set()
    for index in range(part, PROTOTXTS, PARTS):
        draw = random.Random(index)
        outcomes.add(outcome(read_prototxt, spoil(TEXTS[index % len(TEXTS)], draw)))
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_recipes_are_read_or_refused(part: int, spoil: Spoil, tmp_path: Path) -> None:
    texts = list({one.file.name: one.file.read_bytes() for one in shipped_recipes().values()}.values())
    outcomes = set()
    path = tmp_path / "spoilt.yaml"
    for index in range(part, RECIPES, PARTS):
        draw = random.Random(index)
        path.write_bytes(spoil(texts[draw.choice((0, 0, 0, 1, 2))], draw))
        outcomes.add(outcome(read_recipe, path))
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_families_are_read_or_refused(part: int, spoil: Spoil, tmp_path: Path) -> None:
    rows = [(name, one) for name, one in shipped_recipes().items() if one.row is not None]
    outcomes = set()
    path = tmp_path / "spoilt.yaml"
    for index in range(part, FAMILIES, PARTS):
        draw = random.Random(index)
        name, one = draw.choice(rows)
        path.write_bytes(spoil(one.file.read_bytes(), draw))
        outcomes.add(outcome(read_recipe, f"{path}:{name}"))
    assert outcomes == {"read", "refused"}


LOG = b"".join(
    b"[%d] I1231 23:59:%02d.000000  7 solver.cpp:%d] %s\n" % (at % 2, at, at, text)
    for at, text in enumerate(
        (
            b"Solving a", b"Solving a", b"Iteration 5, Testing net (#0)", b"Iteration 5, loss = 2.5",
            b"    Test net output #0: top-1 = 0.5", b"    Train net output #0: a = 1 (* 1 = 1 loss)",
            b"Iteration 5 (1 iter/s, 5s/5 iter), loss = 2.5", b"Snapshotting to x_iter_5.caffemodel",
            b"    Train net output #0: a = 1 (* 1 = 1 loss)", b"Iteration 5, lr = 0.1",
            b"Iteration 5, lr = 0.1, m = 0.9", b"Optimization Done.", b"Resuming from x_iter_5.solverstate",
        )
    )
)  # fmt: skip
LOGS = 10 * SCALE


def test_damaged_logs_are_read_and_their_lines_counted(spoil: Spoil, tmp_path: Path) -> None:
    path = tmp_path / "spoilt.log"
    for index in range(LOGS):
        path.write_bytes(spoil(LOG, random.Random(index)))
        log = MeasuredLog(parse_tensorflow)
        start = time.process_time()
        rows = [row for group in read_measurements(path, log) for row in group]
        assert time.process_time() - start < MOST_S
        assert log.measurements == len(rows)
        assert log.lines == len(path.read_bytes().decode(errors="replace").splitlines()), index


@pytest.mark.parametrize("command", REVIEWS)
def test_prototxts_that_are_read_are_reviewed_or_refused(command: str, spoil: Spoil, tmp_path: Path) -> None:
    review = commands.get_command(click.Context(commands), command)
    assert review is not None
    path, whole = tmp_path / "spoilt.prototxt", tmp_path / "whole.prototxt"
    codes = set()
    for index in range(REVIEWED):
        draw = random.Random(index)
        text = draw.choice(TEXTS)
        path.write_bytes(spoil(text, draw))
        whole.write_bytes(text)
        start = time.process_time()
        done = CliRunner().invoke(review, [*([str(whole)] if command == "diff" else []), str(path)])
        assert time.process_time() - start < MOST_S
        assert done.exception is None or isinstance(done.exception, (SystemExit, CaffeRecipesError)), index
        codes.add(getattr(done.exception, "exit_code", done.exit_code))
    assert {0, 2} <= codes <= {0, 1, 2}


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("prototxt/digits-local/*.prototxt")), ids=lambda path: path.name
)
def test_damaged_files_of_our_own_formats_are_read_or_refused(path: Path, spoil: Spoil) -> None:
    for index in range(20):
        draw = random.Random(f"{path.name}{index}")
        outcome(read_prototxt, spoil(path.read_bytes(), draw))


def test_the_same_seed_spoils_in_the_same_way(spoil: Spoil) -> None:
    spoilt = [spoil(SOLVER, random.Random(index)) for index in range(100)]
    assert spoilt == [spoil(SOLVER, random.Random(index)) for index in range(100)]
    assert len(set(spoilt)) > 95
