"""The options of `new`, completed from the net and the LMDBs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from caffe_recipes.authoring.adopt_files import count_classes, data_values, prototxt_net, variant_values
from caffe_recipes.authoring.new import (
    DEFAULT_CLASSES,
    PAPERS_DEPTH,
    PUBLISHED,
    ImageKeys,
    RecipeRequest,
    builder_net,
)
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import NetDocument
from caffe_recipes.caffe.nets import BUILDERS
from caffe_recipes.caffe.prototxt import load_document
from caffe_recipes.cluster.profiles import Profile
from caffe_recipes.data.manifest import load_manifest
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.net_keys import Transformation
from caffe_recipes.wording import describe_count, did_you_mean, plural

_USUAL_BATCH_PER_RANK = 32
_MOST_SCANNED = 100_000  # records whose labels are read to count classes without a manifest
_SAMPLED = 256  # of more records, whose labels are only compared with the number of classes
# The mean_value of images by their channels, and what it is.
_MEANS = {
    1: ((128.0,), "mean_value is the middle of the range"),
    3: ((104.0, 117.0, 123.0), "mean_value is ImageNet's"),
}


@dataclass(frozen=True)
class NewOptions:
    """The options of `new` as given; None is completed from the net, LMDBs, rules or profile."""

    epochs: float
    images: int | None = None
    batch: int | None = None
    nodes: int | None = None
    ranks_per_node: int | None = None
    batch_per_rank: int | None = None
    cycles: int = 0
    collapse: Literal["last", "each"] = "last"
    collapse_epochs: float | None = None
    net: str | None = None
    depth: int | None = None
    classes: int | None = None
    test_images: int | None = None
    lmdb: str | None = None
    test_lmdb: str | None = None
    name: str | None = None
    profile: Profile | None = None
    trainer: str | None = None


@dataclass(frozen=True)
class LmdbFacts:
    """The size of an LMDB, its images and classes (0 if unknown), and its first image's (C, H, W).

    `least_classes` are needed at least for the labels that were read.
    """

    size_bytes: int
    images: int
    classes: int
    least_classes: int
    shape: tuple[int, int, int] | None
    is_encoded: bool


def make_request(asked: NewOptions, home: Path) -> RecipeRequest:
    """Complete the options of `new`; the recipe's YAML will be in the folder `home`.

    Raises InputError for a net that is not found, and for numbers that cannot be determined.
    """
    own = _load_prototxt(asked.net, home)
    data = data_values(own) if own and any(one.type == "Data" for one in own.message.layer) else None
    lmdb = asked.lmdb or (data["train"]["lmdb"] if data else RecipeRequest.lmdb)
    named = data["test"].get("lmdb") if data and not asked.lmdb else None
    test_lmdb = asked.test_lmdb or named or RecipeRequest.test_lmdb
    train, test = read_lmdb(lmdb), read_lmdb(test_lmdb)
    if asked.lmdb and train and not asked.test_lmdb:
        raise InputError("--lmdb", "needs an LMDB of test images too", "give --test-lmdb DIR")
    images, test_images = _count_images(asked, (lmdb, train), (test_lmdb, test))
    net = _net_values(asked, own, train, home)
    notes = tuple(_unused_outputs(lmdb, train, own, net["classes"]))
    _check_labels(lmdb, train, net["classes"])
    _check_labels(test_lmdb, test, net["classes"])
    if asked.depth and asked.net not in (None, f"resnet{asked.depth}"):
        raise InputError("--depth", f"contradicts --net {asked.net}", "give only one of them")
    ranks = (asked.nodes or 1) * (asked.ranks_per_node or _sockets(asked.profile))
    given = {
        field.name: getattr(asked, field.name)
        for field in fields(RecipeRequest)
        if hasattr(asked, field.name)
    }
    return RecipeRequest(
        **given
        | {
            "images": images,
            "batch": asked.batch or ranks * min(_USUAL_BATCH_PER_RANK, max(images // ranks, 1)),
            "lmdb": lmdb,
            "test_lmdb": test_lmdb,
            "test_images": test_images,
            "size_bytes": train.size_bytes if train else None,
            "net": net,
            "notes": notes,
            "transform": _prototxt_transform(own, data, train, lmdb)
            if own and data
            else _default_transform(lmdb, train),
        }
    )


def _count_images(
    asked: NewOptions, train: tuple[str, LmdbFacts | None], test: tuple[str, LmdbFacts | None]
) -> tuple[int, int]:
    """Return the numbers of training and test images, as given or of LMDBs with these paths and facts."""
    images = asked.images or (train[1].images if train[1] else 0)
    of_imagenet = RecipeRequest.test_images if test[0] == RecipeRequest.test_lmdb else 0
    test_images = asked.test_images or (test[1].images if test[1] else of_imagenet)
    if not images:
        raise _missing_lmdb("", train[0], is_named=train[0] != RecipeRequest.lmdb)
    if not test_images:
        raise _missing_lmdb("test-", test[0], is_named=True)
    return images, test_images


def _missing_lmdb(part: str, path: str, *, is_named: bool) -> InputError:
    """Return the error for an LMDB whose images cannot be counted; `part` is "" or `test-`."""
    if not is_named:
        hint = f"give --{part}lmdb DIR, or --{part}images N"
        return InputError(f"--{part}images", f"cannot count the images: no LMDB at {path}", hint)
    hint = "build it with `caffe-recipes data build`, or correct the path"
    if not Path(path).exists():
        hint += f"; give --{part}images N if it is on another machine"
    return InputError(f"--{part}lmdb", f"no LMDB at {path} (no data.mdb)", hint)


def read_lmdb(path: str) -> LmdbFacts | None:
    """Read an LMDB and its manifest; None if it is not on this machine. Raises DataError if it is damaged."""
    folder = Path(path)
    if not (folder / "data.mdb").is_file():
        return None
    from caffe_recipes.caffe.datums import datum_shape, open_datums  # LMDB's library
    from caffe_recipes.data.check import spread_evenly

    manifest = load_manifest(folder)
    with open_datums(folder) as datums:
        first, count = datums[0], len(datums)
        if manifest:
            least = 1 + max(manifest.labels, default=-1)
            classes = len(manifest.classes or ()) or least
        elif count <= _MOST_SCANNED:
            classes = least = 1 + max(one.label for _, one in datums)
        else:
            classes, least = 0, 1 + max(datums[index].label for index in spread_evenly(count, _SAMPLED))
    try:
        shape = datum_shape(first)
    except ValueError:
        shape = None
    return LmdbFacts((folder / "data.mdb").stat().st_size, count, classes, least, shape, first.encoded)


def _check_labels(lmdb: str, facts: LmdbFacts | None, classes: int) -> None:
    """Raise InputError if an LMDB has labels that the classes do not include."""
    if facts and facts.least_classes > classes:
        needed = facts.least_classes
        what = (
            f"{classes:,} {plural(classes, 'class', 'classes')}, but {lmdb} has labels up to {needed - 1:,}"
        )
        raise InputError("--classes", what, f"give --classes {needed}, or another LMDB")


def _unused_outputs(
    lmdb: str, train: LmdbFacts | None, own: NetDocument | None, classes: int
) -> Iterator[str]:
    """Yield a warning if a net has more outputs than the training data has classes."""
    if train and 0 < train.classes < classes:
        labels = describe_count(train.classes, "class", "classes")
        what = f"warning: {own.path if own else 'the net'} has {classes:,} outputs, but {lmdb} has {labels}"
        change = f"num_output: {train.classes} in its last layer" if own else f"--classes {train.classes}"
        yield f"{what}; {change} fits, unless images of more classes will follow"


def _sockets(profile: Profile | None) -> int:
    return (profile.node.sockets if profile else None) or 1


def _load_prototxt(name: str | None, home: Path) -> NetDocument | None:
    """Return the net of a .prototxt; None for a builder, and for a function, which is not run here."""
    if not name or name in BUILDERS:
        return None
    if name.endswith(".prototxt"):
        net: NetDocument = load_document(name, pb.NetParameter)
        if net.message.layers:
            what = "has layers in the old format"
            raise InputError(net.path, what, "run `caffe-recipes upgrade` on it first")
        return net
    module, colon, function = name.partition(":")
    if not (colon and function):
        hint = did_you_mean(name, BUILDERS, f"give {', '.join(BUILDERS)}, FILE.prototxt or MODULE:FUNCTION")
        raise InputError("--net", f"'{name}' is not a net", hint)
    file = home.joinpath(*module.split(".")).with_suffix(".py")
    if not file.is_file():
        raise InputError("--net", f"{file} does not exist", "put the module in the recipe's folder")
    return None


def _net_values(
    asked: NewOptions, own: NetDocument | None, train: LmdbFacts | None, home: Path
) -> dict[str, Any]:
    """Return the keys of `net`; the classes of a prototxt are the outputs of its last layer."""
    classes = asked.classes or (count_classes(own) if own else 0) or (train.classes if train else 0)
    if own:
        if not classes:
            raise InputError("--classes", f"{own.path} has no classifier layer", "give --classes N")
        if train and train.classes > classes:
            what = f"{own.path} has {classes} classes, but the labels of the LMDB need {train.classes}"
            raise InputError("--net", what, "change num_output of its last layer")
        return prototxt_net(own, classes, home)
    classes = classes or DEFAULT_CLASSES
    name = asked.net or f"resnet{asked.depth or PAPERS_DEPTH}"
    if name in BUILDERS:
        return builder_net(name, classes)
    return {"name": name.rpartition(":")[2], "classes": classes, "function": name}


def _prototxt_transform(
    own: NetDocument, data: Mapping[str, Any], train: LmdbFacts | None, lmdb: str
) -> ImageKeys:
    """Return the transformation of a prototxt's data layers; raises InputError for too small images."""
    keys = set(Transformation.model_fields)
    parts = {part: {key: data[part][key] for key in data[part] if key in keys} for part in ("train", "test")}
    parts["test"] |= {
        key: data["test"][key] for key in ("shorter_side_px", "interp_mode") if key in data["test"]
    }
    augmented = {key: value for key, value in variant_values(own).items() if key == "random_aspect_ratio"}
    crop = data.get("crop_size") or parts["train"].get("crop_size")
    if crop and not augmented and train and train.shape and crop > min(train.shape[1:]):
        what = f"{own.path} crops to {crop} px, but the first image is {train.shape[1]} x {train.shape[2]}"
        raise InputError("--net", what, "use larger images, or a smaller crop_size")
    shared = {key: data[key] for key in data if key in keys}
    why = "The transformation is taken from the net's file."
    if lmdb != data["train"]["lmdb"] and "mean_file" in {**shared, **parts["train"], **parts["test"]}:
        why += " Its mean_file is of other images: write the mean_value of yours, which `data check` prints."
    return ImageKeys(shared, parts["train"], parts["test"], augmented, why)


def _default_transform(lmdb: str, train: LmdbFacts | None) -> ImageKeys:
    """Return the published transformation, or for other images one with the same ratio of crop to image."""
    shape = train.shape if train else None
    side = min(shape[1:]) if shape else 256
    own_mean = f"`caffe-recipes data check {shlex.quote(lmdb)}` prints this set's own."
    if not train or shape is None or (train.is_encoded and side >= 256 and shape[0] == 3):
        is_imagenet = lmdb == RecipeRequest.lmdb
        why = PUBLISHED.why if is_imagenet else f"{PUBLISHED.why} {_MEANS[3][1]}: {own_mean}"
        return replace(PUBLISHED, why=why)
    mean, whose = _MEANS.get(shape[0], ((), ""))
    shared: dict[str, Any] = {"crop_size": max(side * 7 // 8, 1), "mirror": shape[0] == 3}
    shared |= {"mean_value": mean, "scale": 0.0078125}
    why = f"The crop is 7/8 of the {side} pixels of the first image in {lmdb}, as 224 is of 256."
    why += f" {whose}: {own_mean}" if mean else ""
    if train.is_encoded:
        return ImageKeys(shared, {}, {"shorter_side_px": side}, dict(PUBLISHED.augmented), why)
    raw = "Raw images are not resized: this Caffe resizes them incorrectly."
    return ImageKeys(shared, {}, {}, {}, f"{why} {raw}")
