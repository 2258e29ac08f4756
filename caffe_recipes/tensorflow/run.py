"""A TensorFlow and Horovod run as frozen values, and the argv of its three programs.

Source: SURFsara's and Intel's recipe for TensorFlow 1.6 on 256 nodes, sections 5 i, 4 a and 5 a, whose flags
and forms (`--flag value` here, `--flag=value` there) are kept word by word.

`gradual_warmup_then_dec`, the rate of the Horovod run, by its breakpoints.

Source: SURFsara's and Intel's recipe for TensorFlow 1.6, section 2 c vi: linear from `learning_rate` to
`end_learning_rate` in `warmup_steps`, then linear to 0 in the rest of `steps`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, model_validator

from caffe_recipes.config import Count, CountOrZero, FileName, Fraction, NotNegative, Positive, Value


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


class HorovodEvaluation(Value):
    """What the evaluation of a trained model is given, on one node."""

    batch_size: Count
    omp_num_threads: Count
    intra_threads: Count
    inter_threads: Count
    kmp_blocktime: CountOrZero = Field(description="milliseconds")


class HorovodRun(Value):
    """What a run of TensorFlow is given, besides what a recipe says of any run."""

    schedule: GradualWarmup
    images_per_epoch: Count = Field(description="as the source counts, which may round")
    linear_share: Fraction | None = Field(None, description="of the speed that linear scaling would give")
    intra_threads: Count = Field(description="of each worker, as all of these")
    inter_threads: Count
    kmp_blocktime: CountOrZero = Field(description="milliseconds")
    model: FileName = Field(description="folder of the model in the folder of models")
    evaluation: HorovodEvaluation


def prepare_argv(script: str, raw_data_dir: str, local_scratch_dir: str) -> tuple[str, ...]:
    """Return the argv that makes TFRecords of ImageNet's raw images, with classes shuffled across files.

    >>> " ".join(prepare_argv("imagenet_to_gcs.py", "raw", "records"))
    'python imagenet_to_gcs.py --raw_data_dir raw --local_scratch_dir records'
    """
    return ("python", script, "--raw_data_dir", raw_data_dir, "--local_scratch_dir", local_scratch_dir)


def train_argv(
    run: HorovodRun, *, workers: int, per_node: int, batch: int, script: str, data_dir: str, model_dir: str
) -> tuple[str, ...]:
    """Return the argv that trains on `workers` Horovod ranks, with `batch` images a step over all of them."""
    argv: Sequence[str] = (
        *("mpirun", "-np", str(workers), "-ppn", str(per_node), "python", script),
        *("--train_batch_size", str(batch)),
        *("--train_steps", str(run.schedule.steps)),
        *("--num_intra_threads", str(run.intra_threads), "--num_inter_threads", str(run.inter_threads)),
        f"--data_dir={data_dir}",
        *("--model_dir", model_dir),
        *("--use_tpu=False", "--kmp_blocktime", str(run.kmp_blocktime)),
    )
    return tuple(argv)


def evaluate_argv(run: HorovodRun, *, script: str, data_dir: str, model_dir: str) -> tuple[str, ...]:
    """Return the argv that tests a model on one node; `evaluate_environment` belongs to it."""
    testing = run.evaluation
    return (
        *("python", script),
        *("--eval_batch_size", str(testing.batch_size)),
        *(
            "--num_intra_threads",
            str(testing.intra_threads),
            "--num_inter_threads",
            str(testing.inter_threads),
        ),
        f"--data_dir={data_dir}",
        f"--model_dir={model_dir}",
        *("--use_tpu=False", "--kmp_blocktime", str(testing.kmp_blocktime)),
    )


def evaluate_environment(run: HorovodRun) -> dict[str, str]:
    """Return the variables of the evaluation's process."""
    return {"OMP_NUM_THREADS": str(run.evaluation.omp_num_threads)}
