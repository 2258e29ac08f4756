"""What lint's rules check, and what their checks are given. A check stands in a module of `rules/`.

The findings at one place are in the order of the subjects here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caffe_recipes.review.lint.registry import Subject

if TYPE_CHECKING:
    from caffe_recipes.caffe import pb
    from caffe_recipes.caffe.chain import Chain, Link, NetDocument, Start
    from caffe_recipes.caffe.prototxt import Document
    from caffe_recipes.config import Location
    from caffe_recipes.recipe.model import Recipe
    from caffe_recipes.review.lint.learned_blobs import Learned
    from caffe_recipes.review.lint.net_view import DatumOf, NetView, PhaseNet
    from caffe_recipes.review.lint.scripts import Script


@dataclass(frozen=True)
class ReadFile:
    """A prototxt as it was read, with the fields of all Caffes, for the Caffe of `dialect`."""

    given: Document[Any]
    dialect: str
    caffe_root: Path | None = None


@dataclass(frozen=True)
class SolverView:
    """The solver of a phase; `message` has the type that the old field `solver_type` stands for.

    `is_last` is whether the phase is the last of its chain, and `is_alone` whether it is the only one.
    `batch` is the number of images of all ranks in one iteration, 0 if unknown.
    """

    link: Link
    message: pb.SolverParameter
    is_last: bool
    is_alone: bool
    batch: int


@dataclass(frozen=True)
class Join:
    """A phase (`link`) of a chain that starts from a snapshot of the last of the `earlier` phases.

    `learned` returns the blobs that a phase's net learns.
    """

    chain: Chain
    earlier: Sequence[Link]
    link: Link
    start: Start
    learned: Callable[[Link], Learned | None]

    @property
    def before(self) -> Link:
        """The phase that writes the snapshot."""
        return self.earlier[-1]


@dataclass(frozen=True)
class RecipeView:
    """A recipe, its phases as a chain, and the net of its evaluation. `locate` returns the place of a key."""

    recipe: Recipe
    chain: Chain
    evaluated: pb.NetParameter | None
    locate: Callable[[Location], str]


_FILE = "a file by itself"
_RATE = "the rate of one solver"
_VALUES = "the values of one solver"
_CHAIN = "a chain of solvers, or a recipe"
_HANDOVER = "a chain of solvers with their nets"
_PATHS = "a solver, its net, and their paths"
_DIALECT = "any prototxt, for the Caffe given by --dialect"
_DATA = "the data layers of a net: the source, number and order of records"
_TRANSFORM = "the `transform_param` of a net: resizing, cropping, mirroring, means"
_FILLER = "the fillers of a net, which initialize its weights"
_LEARNING = "what a net learns: rate multipliers, loss weights, and accuracies"

# A file, as it is read: its text, its path and the dialect; or the message in it.
text_rule: Subject[[str, str | Path, str]] = Subject(_FILE)
dialect_text_rule: Subject[[str, str | Path, str]] = Subject(_DIALECT)
file_rule: Subject[[ReadFile]] = Subject(_FILE)
file_rate_rule: Subject[[ReadFile]] = Subject(_RATE)
file_value_rule: Subject[[ReadFile]] = Subject(_VALUES)
record_rule: Subject[[Document[pb.NetParameter], Path | None, DatumOf]] = Subject(_PATHS)

# A solver.
rate_rule: Subject[[SolverView]] = Subject(_RATE)
value_rule: Subject[[SolverView]] = Subject(_VALUES)

# A chain, each of its phases that starts from an earlier one, and the scripts that train and test it.
chain_rule: Subject[[Chain]] = Subject(_CHAIN)
handover_rule: Subject[[Chain]] = Subject(_HANDOVER)
start_rule: Subject[[Chain]] = Subject("a chain of solvers, and the weights that each starts from")
path_rule: Subject[[Chain]] = Subject(_PATHS)
join_rule: Subject[[Join]] = Subject(_CHAIN)
change_rule: Subject[[Join]] = Subject(_HANDOVER)
script_rule: Subject[[Script]] = Subject(_PATHS)
evaluation_rule: Subject[[Sequence[Link], Script, bool]] = Subject(_PATHS)
deploy_rule: Subject[[Sequence[NetDocument]]] = Subject(_PATHS)

# A recipe.
title_rule: Subject[[RecipeView]] = Subject(_CHAIN)
recipe_rule: Subject[[RecipeView]] = Subject("a folder, or a recipe")

# The layers of a net, in the order of the file.
old_net_rule: Subject[[NetView]] = Subject("a net in the old format")
phase_rule: Subject[[NetView]] = Subject(
    "the phases of a net: the layers in each, and what must be the same in both"
)
data_rule: Subject[[NetView, int, pb.LayerParameter]] = Subject(_DATA)
transform_rule: Subject[[NetView, int, pb.LayerParameter]] = Subject(_TRANSFORM)
filler_rule: Subject[[NetView]] = Subject(_FILLER)
multiplier_rule: Subject[[NetView]] = Subject(_LEARNING)
refusal_rule: Subject[[NetView]] = Subject("the layers of a net: what Caffe checks when it sets one up")
read_rule: Subject[[NetView]] = Subject(
    "the fields of a net that are never read: blocks of other types, and fields without effect"
)

# The layers of one phase of a net.
dialect_rule: Subject[[NetView, PhaseNet]] = Subject(_DIALECT)
label_rule: Subject[[NetView, PhaseNet]] = Subject(
    "the outputs and labels of a net: what losses and accuracies are computed from"
)
record_order_rule: Subject[[NetView, PhaseNet]] = Subject(_DATA)
norm_rule: Subject[[NetView, PhaseNet]] = Subject(
    "the batch normalization of a net, and residual blocks that start as the identity"
)
learning_rule: Subject[[NetView, PhaseNet]] = Subject(_LEARNING)
blob_rule: Subject[[NetView, PhaseNet]] = Subject(
    "the blobs and names of a net: missing, unread and duplicate ones"
)
shape_rule: Subject[[NetView, PhaseNet]] = Subject(
    "the shapes of a net: layers that do not fit together, and learned or shared blobs"
)
test_transform_rule: Subject[[NetView, PhaseNet]] = Subject(_TRANSFORM)
start_filler_rule: Subject[[NetView, PhaseNet]] = Subject(_FILLER)

FILE_SUBJECTS = (file_rule, file_rate_rule, file_value_rule)
SOLVER_SUBJECTS = (rate_rule, value_rule)
CHAIN_SUBJECTS = (chain_rule, handover_rule, start_rule, path_rule)
JOIN_SUBJECTS = (join_rule, change_rule)
RECIPE_SUBJECTS = (title_rule, recipe_rule)
LAYER_SUBJECTS = (data_rule, transform_rule)
NET_SUBJECTS = (filler_rule, multiplier_rule, refusal_rule, read_rule)
PHASE_SUBJECTS = (
    dialect_rule,
    label_rule,
    record_order_rule,
    norm_rule,
    learning_rule,
    blob_rule,
    shape_rule,
    test_transform_rule,
    start_filler_rule,
)
