"""The entry of a layer type: all that Caffe's sources say about it, and what a drawing shows."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.dimensions import (
    Dim,
    Images,
    LayerShapes,
    MisfitError,
    Shape,
    Shapes,
    product,
    sum_sizes,
)
from caffe_recipes.caffe.prototxt import parse_prototxt, render_prototxt
from caffe_recipes.errors import PrototxtError
from caffe_recipes.wording import describe_count

MANY = math.inf  # bottoms of a layer that takes any number of them

Result = tuple[Shapes, Shapes]
CountWork = Callable[[LayerShapes, int], Dim]


class Refusal(NamedTuple):
    """A setting at which Caffe aborts: the rule, the field, what is wrong, the effect, and what to write."""

    rule: str
    field: str
    what: str
    effect: str
    write: str


RefusalCheck = Callable[[pb.LayerParameter], Iterator[Refusal]]


@dataclass(frozen=True)
class Bound:
    """A field with values at which Caffe aborts or computes nonsense; `is_wrong` detects them in a layer."""

    field: str
    is_wrong: Callable[[pb.LayerParameter], bool]
    effect: str
    write: str

    def __call__(self, layer: pb.LayerParameter) -> Iterator[Refusal]:
        """Yield the refusal of a layer whose value is wrong."""
        if self.is_wrong(layer):
            block, _, name = self.field.partition(".")
            value = getattr(getattr(layer, block), name) if name else ""
            shown = f" {value:g}" if isinstance(value, float) else f" {value}" if name else ""
            what = f"has no {name}" if name and value == "" else f"has {name or block}{shown}"
            yield Refusal("layer-value-refused", self.field, what, self.effect, self.write)


@dataclass(frozen=True)
class TopCount:
    """The number of tops of a type that has a fixed number, where its shapes do not say so."""

    count: int

    def __call__(self, layer: pb.LayerParameter) -> Iterator[Refusal]:
        """Yield the refusal of a layer with another number of tops."""
        if layer.top and len(layer.top) != self.count:
            yield Refusal(
                "tops-count",
                "top[0]",
                f"has {describe_count(len(layer.top), 'top')}, but its type makes {self.count}",
                "Caffe aborts when it sets up the layer, since it checks the number of tops",
                f"give it {describe_count(self.count, 'top')}",
            )


@dataclass(frozen=True)
class Source:
    """How a data layer makes its tops; `shapes` infers them from the layer and its first record.

    `reads_files` says whether it reads its records itself, `names_source` whether from the `source` beside
    its batch_size, and `is_sized_by_files` whether the size of its images may be that of a record.
    """

    shapes: Callable[[pb.LayerParameter, Images], Sequence[Shape | None]]
    reads_files: bool = True
    names_source: bool = True
    is_sized_by_files: bool = True


_OWN_BLOCKS = {
    field.name.replace("_", ""): field.name
    for field in pb.LayerParameter.DESCRIPTOR.fields
    if field.message_type and field.name.endswith("_param")
}


def own_block(name: str) -> str:
    """Return the block of LayerParameter that is named after a layer type; "" if there is none.

    >>> own_block("InnerProduct"), own_block("Deconvolution")
    ('inner_product_param', '')
    """
    return _OWN_BLOCKS.get(f"{name.lower()}param", "")


def own_number(layer: pb.LayerParameter, block: str, field: str, default: int = 0) -> int:
    """Return an integer of a fork's block, whose values are read as text. Raises MisfitError."""
    text = getattr(getattr(layer, block, None), field, "") or str(default)
    if not (isinstance(text, str) and re.fullmatch(r"-?[0-9]{1,20}", text)):
        raise MisfitError(f"has {field} {text}, which is not an integer")
    return int(text)


def own_fillers(layer: pb.LayerParameter, block: str, *names: str) -> list[pb.FillerParameter]:
    """Return fillers of a fork's block, whose values are read as text: all zeros where none is given.

    Raises MisfitError for what is not a filler.
    """
    fillers = list[pb.FillerParameter]()
    for name in names:
        given = getattr(getattr(layer, block, None), name, pb.FillerParameter())
        if not isinstance(given, Message):
            raise MisfitError(f"has {block}.{name} {given}, which is not a filler")
        text = render_prototxt(given) if given.ListFields() else ""
        try:
            fillers.append(parse_prototxt(text, pb.FillerParameter) if text else pb.FillerParameter())
        except PrototxtError as error:
            raise MisfitError(f"has a wrong {block}.{name}: {error.what}") from None
    return fillers


def keep_shape(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Return the shape of a layer whose only top has that of its bottom."""
    return [bottoms[0]], []


def no_tops(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Return the shapes of a layer that only reads its bottoms."""
    return [], []


def per_value(found: LayerShapes, times: int) -> Dim:
    """Return `times` operations for each number of a layer's first top."""
    return product([sum_sizes(found.tops[:1]), times])


def one_per_value(found: LayerShapes, phase: int) -> Dim:
    """Return one operation for each number of a layer's first top."""
    return per_value(found, 1)


@dataclass(frozen=True)
class LayerType:
    """A layer type. What is not known of a type has the default, as all of an unknown type has.

    The schema: `blocks` are the blocks that it reads besides the one named after it; `v1` is its name in V1
    nets, where it is not its own in capitals; `has_engine` says whether its block selects its engine, and
    `is_run` whether caffe-torch has an operator for it.

    The shapes: `shapes` infers the tops and the learned blobs from the bottoms, and `source` the tops of a
    data layer. Where `shapes` is known, it takes from `bottoms[0]` to `bottoms[1]` bottoms, and makes at
    least `min_tops(layer)` tops if it has any. With `is_sized_by_values`, the tops have at most as many
    images as it says: their number depends on the values of the bottoms. It learns at most `learned` blobs;
    `fillers` gives the filler of each, and None is all zeros. `blob_names` are the names of its blobs in
    PyTorch's manner. With `has_statistics`, these are statistics of its bottom, which no gradient changes.

    The checks of its LayerSetUp: `refuses`. If one of `zeroing_fields` is 0, its output ignores its input.

    The passes: `in_place` says whether its top may overwrite its bottom; `no_backward` lists the bottoms that
    Caffe does not backpropagate to (-1 is the last one, None means all); `backward_reads_top` says whether
    its backward pass reads its top, and `loses_bottom` whether that of a layer in place needs the bottom that
    it has overwritten, or writes before it reads.

    The loss: `loss_weight` is that of its first top if none is set: 1 for a loss, 0 for a loss whose
    LayerSetUp does not call LossLayer's; `is_never_loss` says that a weight makes no sense; `is_classifier`
    that it compares class scores with labels; and `activation` is the type that it applies to them itself,
    with the loss to use after that type.

    What its top is: the bottom with other dimensions (`is_view`), a function of each value of its bottoms
    (`is_elementwise`), 0 where the bottom is 0 (`keeps_zero`), in the order of the bottom's values
    (`keeps_order`), `num_output` weighted sums (`is_linear`), never a class number (`is_never_label`), or a
    result, which need not be read (`is_result`).

    The costs of a batch in a phase: `multiply_adds` with learned matrices, and `operations` other than those.
    Functions of single values, layers that only move values, and losses count as none.

    What tables and drawings show: `kernel`, as Caffe's summarize.py writes it; `details`, the main settings;
    and `kind`, which decides the colour of a box.
    """

    name: str
    _: KW_ONLY
    blocks: tuple[str, ...] = ()
    v1: str = ""
    has_engine: bool = False
    is_run: bool = True
    shapes: Callable[[pb.LayerParameter, Shapes], Result] | None = None
    source: Source | None = None
    bottoms: tuple[int, float] = (1, 1)
    min_tops: Callable[[pb.LayerParameter], int] = lambda layer: 1
    is_sized_by_values: bool = False
    learned: int = 0
    has_statistics: bool = False
    fillers: Callable[[pb.LayerParameter], list[pb.FillerParameter]] | None = None
    blob_names: Callable[[pb.LayerParameter], tuple[str, ...]] = lambda layer: ("weight", "bias")
    refuses: tuple[RefusalCheck, ...] = ()
    zeroing_fields: tuple[str, ...] = ()
    in_place: bool = False
    no_backward: tuple[int, ...] | None = ()
    backward_reads_top: bool = False
    loses_bottom: Callable[[pb.LayerParameter], bool] = lambda layer: False
    loss_weight: int | None = None
    is_never_loss: bool = False
    is_classifier: bool = False
    activation: tuple[str, str] | None = None
    is_view: bool = False
    is_elementwise: bool = False
    keeps_zero: bool = False
    keeps_order: bool = False
    is_linear: bool = False
    is_never_label: bool = False
    is_result: bool = False
    multiply_adds: CountWork = lambda found, phase: 0
    operations: CountWork = lambda found, phase: 0
    kernel: Callable[[pb.LayerParameter], str] = lambda layer: ""
    details: Callable[[pb.LayerParameter], str] = lambda layer: ""
    kind: str = "other"

    @functools.cached_property
    def block(self) -> str:
        """The block that holds its main settings; "" if it has none."""
        return own_block(self.name) or next(iter(self.blocks), "")

    @functools.cached_property
    def batch_block(self) -> str:
        """The block that holds the batch_size of a data layer; "" if there is none."""
        blocks = (own_block(self.name), *self.blocks) if self.source else ()
        none = pb.LayerParameter()
        return next((block for block in blocks if hasattr(getattr(none, block, None), "batch_size")), "")

    @property
    def makes_tops(self) -> bool:
        """Whether a layer of this type may have tops."""
        return self.shapes is not no_tops

    @property
    def is_reader(self) -> bool:
        """Whether it makes records by itself, rather than being an input that a program sets."""
        return self.source is not None and self.name != "Input"

    @property
    def arity(self) -> str:
        """How many bottoms the layer takes, in words."""
        least, most = self.bottoms
        if least == most:
            return describe_count(least, "bottom")
        return f"{least} {'or more' if most == MANY else f'to {most}'} bottoms"

    def starting_fillers(self, layer: pb.LayerParameter) -> list[pb.FillerParameter]:
        """Return the filler of each learned blob: the layer's own, or the default of its type."""
        return self.fillers(layer) if self.fillers else [pb.FillerParameter(type="constant")] * self.learned
