"""Build and print ResNet-50's train_val, ours against pycaffe's NetSpec on the same messages.

`--netspec FILE` names your copy of pycaffe's net_spec.py; it is not part of this project.
"""

from __future__ import annotations

import argparse
import collections
import collections.abc
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import caffe_recipes as cr
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.nets import NetOptions, resnet50
from caffe_recipes.caffe.prototxt import render_prototxt
from caffe_recipes.render.prototxts import build_data_layers, build_net

CALLS = 15
RECIPE = cr.load_recipe("stampede2-64n-72ep")
STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
ZERO = {"type": "constant", "value": 0}
MSRA = {"type": "msra"}


def load_netspec(path: Path) -> ModuleType:
    """Import net_spec.py as a module of a package whose protobuf is ours, with what old copies expect."""
    spec = importlib.util.spec_from_file_location("pycaffe.net_spec", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path}: not a Python module; name pycaffe's net_spec.py")
    package, proto, six = ModuleType("pycaffe"), ModuleType("pycaffe.proto"), ModuleType("six")
    package.__path__ = []
    proto.caffe_pb2 = pb  # type: ignore[attr-defined]
    six.iteritems = lambda mapping: iter(mapping.items())  # type: ignore[attr-defined]
    six.string_types = (str,)  # type: ignore[attr-defined]
    sys.modules |= {"pycaffe": package, "pycaffe.proto": proto, "pycaffe.proto.caffe_pb2": pb}
    sys.modules.setdefault("six", six)
    collections.Iterable = collections.abc.Iterable  # type: ignore[attr-defined]  # moved in Python 3.3
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def data_settings(layer: pb.LayerParameter) -> dict[str, Any]:
    """Give a data layer's settings as the dicts that NetSpec takes."""

    def plain(message: Any) -> Any:  # noqa: ANN401 - any message or value
        if hasattr(message, "ListFields"):
            return {field.name: plain(value) for field, value in message.ListFields()}
        if hasattr(message, "extend"):
            return [plain(value) for value in message]
        return message

    return {key: value for key, value in plain(layer).items() if key not in ("name", "type", "top")}


# Written down beforehand, as a user of NetSpec would have them.
TRAIN_DATA, TEST_DATA = (
    data_settings(layer) for layer in build_net(RECIPE, "train_val").layer if layer.type == "Data"
)


def resnet50_by(netspec: Any) -> pb.NetParameter:  # noqa: ANN401 - the user's own module
    """Write the published train_val as a user of NetSpec would."""
    layers, n = netspec.layers, netspec.NetSpec()

    def branch(name: str, bottom: str, gamma: int = 1, **convolution: Any) -> None:  # noqa: ANN401
        blob = f"res{name}" if name[0].isdigit() else name
        suffix = name if name[0].isdigit() else f"_{name}"
        n[blob] = layers.Convolution(n[bottom], **convolution, bias_filler=ZERO)
        n[f"bn{suffix}"] = layers.BatchNorm(
            n[blob],
            in_place=True,
            param=[{"lr_mult": 0}] * 3,
            moving_average_fraction=0.95,
            filler={"value": gamma},
        )
        n[f"scale{suffix}"] = layers.Scale(
            n[f"bn{suffix}"], in_place=True, bias_term=True, param=[{"decay_mult": 0}] * 2
        )

    def relu(name: str, bottom: str) -> None:
        n[name] = layers.ReLU(n[bottom], in_place=True)

    n["data"], n["label"] = layers.Data(ntop=2, **TRAIN_DATA)
    branch(
        "conv1",
        "data",
        num_output=64,
        kernel_size=7,
        pad=3,
        stride=2,
        weight_filler={"type": "msra", "variance_norm": pb.FillerParameter.FAN_OUT},
    )
    relu("conv1_relu", "scale_conv1")
    n["pool1"] = layers.Pooling(n["conv1_relu"], pool=pb.PoolingParameter.MAX, kernel_size=3, stride=2)
    bottom = "pool1"
    for stage, (blocks, width, stride) in enumerate(STAGES, 2):
        for index in range(blocks):
            block, first = f"{stage}{'abcdef'[index]}", index == 0
            settings: dict[str, Any] = {"bias_term": False, "weight_filler": MSRA}
            step = stride if first else 1
            shortcut = bottom
            if first:
                branch(
                    f"{block}_branch1",
                    bottom,
                    num_output=4 * width,
                    kernel_size=1,
                    pad=0,
                    stride=step,
                    **settings,
                )
                shortcut = f"scale{block}_branch1"
            branch(f"{block}_branch2a", bottom, num_output=width, kernel_size=1, pad=0, stride=1, **settings)
            relu(f"res{block}_branch2a_relu", f"scale{block}_branch2a")
            branch(
                f"{block}_branch2b",
                f"res{block}_branch2a_relu",
                num_output=width,
                kernel_size=3,
                pad=1,
                stride=step,
                **settings,
            )
            relu(f"res{block}_branch2b_relu", f"scale{block}_branch2b")
            gamma = 0 if index == blocks - 1 else 1
            branch(
                f"{block}_branch2c",
                f"res{block}_branch2b_relu",
                gamma,
                num_output=4 * width,
                kernel_size=1,
                pad=0,
                stride=1,
                **settings,
            )
            n[f"res{block}"] = layers.Eltwise(n[shortcut], n[f"scale{block}_branch2c"])
            relu(f"res{block}_relu", f"res{block}")
            bottom = f"res{block}_relu"
    n["pool5"] = layers.Pooling(n[bottom], pool=pb.PoolingParameter.AVE, kernel_size=7, stride=1)
    gaussian = {"type": "gaussian", "std": 0.01}
    n["fc1000"] = layers.InnerProduct(n["pool5"], num_output=1000, weight_filler=gaussian, bias_filler=ZERO)
    n["loss"] = layers.SoftmaxWithLoss(n["fc1000"], n["label"], name="prob")
    n["loss3/top-1"] = layers.Accuracy(n["fc1000"], n["label"])
    n["loss3/top-5"] = layers.Accuracy(n["fc1000"], n["label"], top_k=5)
    # NetSpec has one layer of a name; the TEST data is a spec of its own, set between.
    other = netspec.NetSpec()
    other["data"], other["label"] = layers.Data(ntop=2, **TEST_DATA)
    body = n.to_proto()
    return pb.NetParameter(name="ResNet-50", layer=[body.layer[0], *other.to_proto().layer, *body.layer[1:]])


def seconds_of(work: Callable[[], object]) -> float:
    """Give the median time of a call."""
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def without_empty_blocks(net: pb.NetParameter) -> pb.NetParameter:
    """Leave out `relu_param { }` and its like: NetSpec cannot write them."""
    copy = pb.NetParameter()
    copy.CopyFrom(net)
    for layer in copy.layer:
        for field, value in layer.ListFields():
            if field.name.endswith("_param") and not value.ListFields():
                layer.ClearField(field.name)
    return copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--netspec", metavar="FILE", type=Path)
    path = parser.parse_known_args()[0].netspec
    if path is None:
        print("not measured: --netspec FILE names your copy of pycaffe's net_spec.py")
        return
    netspec = load_netspec(path)
    theirs, built = resnet50_by(netspec), build_net(RECIPE, "train_val")
    if without_empty_blocks(theirs) != without_empty_blocks(built):
        raise SystemExit("the two nets differ: nothing to compare")
    variant = RECIPE.nets["train_val"]
    fillers: dict[str, Any] = {
        "conv1_filler": {"type": "msra", "variance_norm": "FAN_OUT"},
        "conv_filler": MSRA,
        "classifier_filler": {"type": "gaussian", "std": 0.01},
    }
    options = NetOptions(1000, 224, 0.95, "last-block", **fillers)

    def ours() -> str:
        return render_prototxt(resnet50("ResNet-50", build_data_layers(RECIPE, variant), options))

    measured = {
        "NetSpec": seconds_of(lambda: str(resnet50_by(netspec))),
        "ours": seconds_of(ours),
        "ours, from the recipe": seconds_of(lambda: render_prototxt(build_net(RECIPE, "train_val"))),
    }
    for name, seconds in measured.items():
        ratio = measured["NetSpec"] / seconds
        print(f"{name:24} {1000 * seconds:7.1f} ms, {ratio:.2f} times as fast as NetSpec")


if __name__ == "__main__":
    main()
