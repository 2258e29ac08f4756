"""`gradual_warmup_then_dec`, the rate of the Horovod run, by its breakpoints.

Source: SURFsara's and Intel's recipe for TensorFlow 1.6, section 2 c vi: linear from `learning_rate` to
`end_learning_rate` in `warmup_steps`, then linear to 0 in the rest of `steps`.
"""

from __future__ import annotations

from pydantic import model_validator

from caffe_recipes.config.values import Count, NotNegative, Positive, Value


class GradualWarmup(Value):
    """The function's arguments, by its own names."""

    learning_rate: NotNegative
    warmup_steps: Count
    end_learning_rate: Positive
    steps: Count

    @model_validator(mode="after")
    def _warm_up_ends(self) -> GradualWarmup:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"{self.warmup_steps} steps of warm-up leave none of {self.steps}")
        return self

    @property
    def breakpoints(self) -> tuple[tuple[int, float], ...]:
        """The steps at which the rate turns, and the rate there; in between it is linear."""
        return (
            (0, self.learning_rate),
            (self.warmup_steps, self.end_learning_rate),
            (self.steps, 0.0),
        )

    def rate_at(self, step: int) -> float:
        """Return the rate that the update of a global step (from 0) uses; 0 from `steps` on.

        >>> run = GradualWarmup(learning_rate=0.1, warmup_steps=260, end_learning_rate=4.8, steps=4680)
        >>> [round(run.rate_at(step), 6) for step in (0, 130, 260, 2470, 4679, 4680)]
        [0.1, 2.45, 4.8, 2.4, 0.001086, 0.0]
        """
        if step < self.warmup_steps:
            rise = self.end_learning_rate - self.learning_rate
            return self.learning_rate + rise * step / self.warmup_steps
        left = max(0, self.steps - step)
        return self.end_learning_rate * left / (self.steps - self.warmup_steps)
