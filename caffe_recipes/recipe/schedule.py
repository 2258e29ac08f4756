"""What a source states of a run's schedule, in the authors' terms."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from caffe_recipes.config.values import Count, Fraction, NotNegative, Positive, Value


class Cycles(Value):
    """A decay to a share of the peak, power 1 then power 2, and cycles after it. Source: section VI."""

    count: Count = 5
    linear_epochs: Positive = 30
    linear_to: Fraction = Field(0.5, description="share of the peak at which the linear decay is left")
    square_epochs: Positive = 15
    square_to: Fraction = Field(0.22, description="share of the peak at which the first cycle starts")
    rise_epochs: Positive = 3
    rise_times: Annotated[float, Field(gt=1)] = 3
    fall_epochs: Positive = 12
    fall_times: Annotated[float, Field(gt=1)] = 4
    collapse_epochs: tuple[Positive, ...] = Field(
        (), description="of each branch: one from the end of the decay, then one from that of each cycle"
    )
    last_collapse_epochs: Positive | None = Field(
        None, description="of a collapse after the last cycle, in the chain, as in the 72-epoch recipe"
    )

    @property
    def epochs(self) -> float:
        """Epochs of the chain, without its branches."""
        cycle = self.rise_epochs + self.fall_epochs
        collapse = self.last_collapse_epochs or 0
        return self.linear_epochs + self.square_epochs + self.count * cycle + collapse

    @property
    def has_collapse(self) -> bool:
        """Whether any model is collapsed."""
        return bool(self.collapse_epochs or self.last_collapse_epochs)

    @model_validator(mode="after")
    def _ordered(self) -> Cycles:
        if self.square_to >= self.linear_to:
            raise ValueError("square_to is not below linear_to")
        if len(self.collapse_epochs) > self.count + 1:
            raise ValueError(f"collapse_epochs has more than the {self.count + 1} ends that there are")
        return self


class Schedule(Value):
    """What a source states of a run's schedule; None is not stated, and follows from the rules."""

    iterations: Count | None = Field(None, description="of the whole chain")
    epochs: Positive | None = None
    decay: Literal["linear", "steps", "cycles"] = "linear"
    base_lr: Positive | None = None
    warmup_epochs: NotNegative | None = None
    warmup: Literal["inside", "own-phase"] = Field(
        "inside",
        description="in the solver that it leads to, into whose rate it drops, or a phase of its own",
    )
    weight_decay: Positive | None = None
    weight_decay_steps: Count = Field(1, description="parts before the collapse, each of a larger decay")
    collapse: bool = Field(False, description="end without augmentation, at twice the weight decay")
    collapse_epochs: Positive | None = None
    cycles: Cycles = Cycles()

    @model_validator(mode="after")
    def _one_length(self) -> Schedule:
        lengths = (self.iterations, self.epochs)
        if self.decay == "cycles":
            if lengths != (None, None):
                raise ValueError("the length of a schedule with cycles is that of its parts")
            if self.collapse or self.collapse_epochs or self.weight_decay_steps > 1:
                raise ValueError("cycles have `collapse_epochs` of their own, and one weight decay")
        elif lengths.count(None) != 1:
            raise ValueError("give one of iterations and epochs")
        if self.decay == "steps" and (self.collapse or self.weight_decay_steps > 1):
            raise ValueError("a decay in steps has neither a collapse nor several weight decays")
        return self
