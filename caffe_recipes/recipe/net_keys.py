"""The keys of a recipe for its net and for the transformation of its images."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, model_validator

from caffe_recipes.config import (
    Count,
    Fraction,
    NotNegative,
    PathText,
    Positive,
    Text,
    Value,
)

Interpolation = Literal["LINEAR", "AREA", "NEAREST", "CUBIC", "LANCZOS4"]
Builder = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet_small"]


class Filler(Value):
    """How a learned blob is initialized."""

    type: Literal["constant", "uniform", "gaussian", "positive_unitball", "xavier", "msra", "bilinear"]
    value: float | None = None
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: NotNegative | None = None
    variance_norm: Literal["FAN_IN", "FAN_OUT", "AVERAGE"] | None = None


class Fillers(Value):
    """Fillers of a builder's net: for the first convolution, the other ones, and the classifier."""

    conv1: Filler = Filler(type="msra", variance_norm="FAN_OUT")
    conv: Filler = Filler(type="msra")
    classifier: Filler = Filler(type="gaussian", std=0.01)


NET_FILES = ("prototxt", "test_prototxt")


class Net(Value):
    """The network: a builder of this package, a prototxt, or a `module:function` that returns a NetParameter.

    The data layers always come from the recipe; those of a prototxt or function are replaced.
    """

    name: Text
    classes: Count
    builder: Builder | None = None
    prototxt: PathText | None = Field(None, description="path of a net, relative to the recipe's folder")
    test_prototxt: PathText | None = Field(
        None, description="path of a net for TEST, which is joined to that of `prototxt`, then for TRAIN"
    )
    dialect: Literal["surfsara", "intel", "bvlc", "nvcaffe"] | None = Field(
        None, description="the Caffe whose fields the prototxts have; default: surfsara"
    )
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = None
    batch_norm_fraction: Fraction = Field(0.95, description="moving_average_fraction of every BatchNorm")
    batch_norm_images: Count | None = Field(
        None,
        description="images each BatchNorm normalizes together (bn_stats_batch_size); default: a rank's",
    )
    zero_init: Literal["none", "last-block", "every-block"] = Field(
        "none",
        description="residual blocks whose last BatchNorm filler is 0: none, the last of each stage, or all",
    )
    fillers: Fillers = Fillers()

    @model_validator(mode="after")
    def _one_origin(self, info: ValidationInfo) -> Net:
        given = [key for key in ("builder", "prototxt", "function") if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of builder, prototxt and function")
        for key, what in (("test_prototxt", "the net for TRAIN"), ("dialect", "the net of that Caffe")):
            if getattr(self, key) is not None and self.prototxt is None:
                raise ValueError(f"{key} needs prototxt, {what}")
        # A run's frozen recipe spells out every default, including keys that its author never wrote.
        is_frozen = isinstance(info.context, dict) and info.context.get("is_frozen", False)
        if self.builder is None and not is_frozen:
            only_ours = {
                "batch_norm_fraction",
                "batch_norm_images",
                "zero_init",
                "fillers",
            } & self.model_fields_set
            if only_ours:
                raise ValueError(
                    f"{', '.join(sorted(only_ours))}: only builders use it; set it in the net itself"
                )
        return self

    @property
    def files(self) -> tuple[str, ...]:
        """The prototxts that the net is read from, relative to the recipe's folder."""
        return tuple(filter(None, (getattr(self, key) for key in NET_FILES)))


class RandomAspectRatio(Value):
    """`random_aspect_ratio_param`: area ratio in [min, max], height/width within [change^2, 1/change^2]."""

    min_area_ratio: Annotated[float, Field(gt=0, le=1)]
    max_area_ratio: Annotated[float, Field(gt=0, le=1)] = 1.0
    aspect_ratio_change: Annotated[float, Field(gt=0, le=1)]
    interp_mode: Interpolation = "CUBIC"

    @model_validator(mode="after")
    def _ordered(self) -> RandomAspectRatio:
        if self.min_area_ratio > self.max_area_ratio:
            raise ValueError("min_area_ratio is greater than max_area_ratio")
        return self


class NetVariant(Value):
    """One net file: the net with a TRAIN data layer, and also with a TEST one if `test` is true."""

    random_aspect_ratio: RandomAspectRatio | None = None
    test: bool = True


class Transformation(Value):
    """The transformation of each image before the net reads it: keys of `transform_param`."""

    crop_size: Count | None = Field(
        None, description="side of the square crop in pixels: at a random place in TRAIN, central in TEST"
    )
    mirror: bool | None = Field(None, description="flip half of the images, at random")
    mean_file: PathText | None = Field(
        None, description="path on every node of a mean image to subtract, as compute_image_mean writes it"
    )
    mean_value: tuple[NotNegative, ...] = Field(
        (), description="subtracted from every pixel: one value, or one each for blue, green and red"
    )
    scale: Positive | None = Field(
        None, description="factor that every value is multiplied by, after the mean is subtracted"
    )
    force_color: bool | None = Field(None, description="decode every image to three channels")
    force_gray: bool | None = Field(None, description="decode every image to one channel")
