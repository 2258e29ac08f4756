"""A phase: Caffe's solver settings in Caffe's words, its net, and the weights it starts from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from caffe_recipes.caffe.rates import POLICY_NEEDS
from caffe_recipes.config.values import (
    Count,
    CountOrZero,
    FileName,
    NotNegative,
    PathText,
    Positive,
    Text,
    Value,
)
from caffe_recipes.recipe.values import Speed

LrPolicy = Literal["fixed", "step", "exp", "inv", "multistep", "poly", "poly_cyc", "sigmoid", "plateau"]

# Caffe takes a missing `power` for 0, a constant rate; a recipe that means that says `fixed`.
_POWERS: tuple[LrPolicy, ...] = ("inv", "poly", "poly_cyc")


class Derived(Value):
    """A value that the source does not state, and the rule that it follows from."""

    phase: FileName | None = Field(None, description="of this phase only")
    key: Text = Field(description="of the phase, or from the top of the recipe, as `cluster.ranks_per_node`")
    rule: Text


class Difference(Value):
    """A number of the source's that is not what the recipe makes, or that the source contradicts itself."""

    key: Text = Field(description="as under `reported`, or of the recipe")
    printed: float | Text = Field(description="as the source has it")
    ours: float | Text = Field(description="as the recipe makes it")
    why: Text


class Reported(Value):
    """What the source says of its own run."""

    table: Text | None = Field(None, description="of the source, as `II`; it may be a figure")
    row: Count | None = Field(None, description="from 1")
    batch: Count | None = None
    nodes: Count | None = None
    cpus: Count | None = Field(None, description="sockets")
    iterations: Count | None = None
    epochs: Positive | None = None
    images_per_s: Speed | None = None
    images_per_s_per_node: Speed | None = None
    minutes: Positive | None = None
    loss: Positive | None = None
    top1_percent: Annotated[float, Field(gt=0, le=100)] | None = None
    top5_percent: Annotated[float, Field(gt=0, le=100)] | None = None


class SolverSettings(Value):
    """Fields of SolverParameter that hold for every phase unless the phase says otherwise."""

    type: Literal["SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"] | None = None
    base_lr: Positive | None = None
    lr_policy: LrPolicy | None = None
    gamma: Positive | None = None
    power: NotNegative | None = None
    stepsize: Count | None = None
    stepvalue: tuple[Count, ...] = ()
    plateau_winsize: tuple[Count, ...] = ()
    max_iter: Count | None = None
    lr_iter: Count | None = None
    warmup_iter: Count | None = None
    warmup_start_lr: NotNegative | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    momentum2: Annotated[float, Field(ge=0, lt=1)] | None = None
    rms_decay: Annotated[float, Field(ge=0, lt=1)] | None = None
    delta: Positive | None = None
    weight_decay: NotNegative | None = None
    regularization_type: Literal["L1", "L2"] | None = None
    clip_gradients: Positive | None = None
    iter_size: Count | None = None
    display: CountOrZero | None = None
    average_loss: Count | None = None
    test_iter: Count | None = None
    test_interval: Count | None = None
    test_initialization: bool | None = None
    snapshot: Count | None = Field(None, description="default: max_iter, one snapshot at the end")
    solver_mode: Literal["CPU", "GPU"] | None = None
    random_seed: CountOrZero | None = None


class Phase(SolverSettings):
    """One link of the chain: a solver, its net, and the weights it starts from."""

    name: FileName
    net: FileName = Field(description="one of `nets`")
    base_lr: Positive
    lr_policy: LrPolicy
    max_iter: Count
    weights: Text | None = Field(
        None, description="a phase's name, a caffemodel's path, or `none`; default: the phase before"
    )
    weights_iter: Count | None = Field(
        None, description="start from the snapshot of this iteration of that phase; default: its last"
    )
    stop_iter: Count | None = Field(
        None, description="stop Caffe once the snapshot of this iteration is whole, short of max_iter"
    )
    snapshot_prefix: PathText
    comment: Text | None = Field(None, description="one line at the top of the solver")
    reported: Reported = Field(
        Reported(), description="what the source says of the run up to this phase's end"
    )

    @model_validator(mode="after")
    def _policy_has_what_it_needs(self) -> Phase:
        power = ("power",) if self.lr_policy in _POWERS else ()
        for key in (*POLICY_NEEDS[self.lr_policy], *power):
            if getattr(self, key) in (None, ()):
                raise ValueError(f"lr_policy {self.lr_policy} needs {key}")
        if self.test_interval and not self.test_iter:
            raise ValueError("test_interval needs test_iter")
        if self.stop_iter and (self.stop_iter >= self.max_iter or self.stop_iter % self.snapshot_every_iter):
            raise ValueError("stop_iter is an iteration before max_iter at which a snapshot fires")
        return self

    @property
    def snapshot_every_iter(self) -> int:
        """Iterations between snapshots."""
        return self.snapshot or self.last_iter

    @property
    def last_iter(self) -> int:
        """Number of iterations that the phase trains: max_iter, unless it is stopped before."""
        return self.stop_iter or self.max_iter

    @property
    def final_snapshot(self) -> str:
        """Path of the caffemodel that the last iteration writes, on the first host."""
        return self.snapshot_at(self.last_iter)

    def snapshot_at(self, iteration: int) -> str:
        """Path of the caffemodel of an iteration, on the first host."""
        return f"{self.snapshot_prefix}_iter_{iteration}.caffemodel"
