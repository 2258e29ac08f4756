"""Describe a TensorFlow and Horovod run as frozen values, and build the argv of its three programs.

Source: SURFsara's and Intel's recipe for TensorFlow 1.6 on 256 nodes, sections 5 i, 4 a and 5 a. Its flags
are copied verbatim, even where it mixes `--flag value` and `--flag=value`. The learning rate is the source's
`gradual_warmup_then_dec`, section 2 c vi: linear from `learning_rate` to `end_learning_rate` in
`warmup_steps`, then linear to 0 in the rest of `steps`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from caffe_recipes.config import (
    Count,
    CountOrZero,
    FileName,
    Fraction,
    Frozen,
    FrozenMapping,
    Location,
    NotNegative,
    PathText,
    Positive,
    Text,
    Value,
)
from caffe_recipes.wording import did_you_mean

# The default values of the programs' flags, which are those of tensorflow/tpu.
_TRAIN_IMAGES, _EVAL_IMAGES = 1_281_167, 50_000
_MODEL = {"resnet_depth": 50, "num_label_classes": 1000, "image_size": 224, "label_offset": 1}

FlagName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
ProgramFlags = Frozen[FlagName, bool | int | float | Text]


def _no_flags() -> ProgramFlags:
    return FrozenMapping({})


class GradualWarmup(Value):
    """The arguments of `gradual_warmup_then_dec`, with its parameter names."""

    learning_rate: NotNegative
    warmup_steps: Count
    end_learning_rate: Positive
    steps: Count

    @model_validator(mode="after")
    def _warm_up_ends(self) -> GradualWarmup:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be less than steps {self.steps}")
        return self

    @property
    def breakpoints(self) -> tuple[tuple[int, float], ...]:
        """The steps at which the slope changes, with the rate there; in between, the rate is linear."""
        return (
            (0, self.learning_rate),
            (self.warmup_steps, self.end_learning_rate),
            (self.steps, 0.0),
        )


class Records(Value):
    """A folder of TFRecords; the manifest of `train` is beside it, as `train.manifest.json`."""

    folder: PathText = Field(description="path on every node that reads the records")
    source: PathText | None = Field(None, description="the folder from which the records are staged")
    files: Count
    images: Count


class RecordData(Value):
    """The TFRecords that a TensorFlow run trains on, and those that it evaluates on."""

    train: Records
    validation: Records
    label_offset: Literal[0, 1] = Field(1, description="the label of the first class in the records")
    prepare: Literal["digits"] | None = Field(None, description="how to build missing records")


class HorovodEvaluation(Value):
    """The settings for evaluating a trained model on one node."""

    batch_size: Count
    omp_num_threads: Count
    intra_threads: Count
    inter_threads: Count
    kmp_blocktime: CountOrZero = Field(description="milliseconds")
    flags: ProgramFlags = Field(default_factory=_no_flags, description="other flags of resnet_eval.py")


class HorovodRun(Value):
    """The settings of a TensorFlow run, besides those that all recipes have.

    By default, the programs train a ResNet-50 with 1,000 classes on crops of 224 x 224 pixels.
    """

    data: RecordData | None = None
    resnet_depth: Count | None = Field(None, description="layers; default: 50")
    classes: Count | None = Field(None, description="default: 1,000")
    image_px: Count | None = Field(
        None, description="height and width of the model's input, in pixels; default: 224"
    )
    schedule: GradualWarmup
    images_per_epoch: Count = Field(description="as given by the source, which may round")
    linear_share: Fraction | None = Field(None, description="speed as a fraction of that of linear scaling")
    intra_threads: Count = Field(description="per worker; so are inter_threads and kmp_blocktime")
    inter_threads: Count
    kmp_blocktime: CountOrZero = Field(description="milliseconds")
    model: FileName = Field(description="the model's folder inside the folder of all models")
    flags: ProgramFlags = Field(default_factory=_no_flags, description="other flags of resnet_main.py")
    evaluation: HorovodEvaluation

    @model_validator(mode="after")
    def _each_flag_once(self) -> HorovodRun:
        for key, flags, argv in (
            ("flags", self.flags, train_argv(self, workers=1, per_node=1, batch=1, images=1)),
            ("evaluation.flags", self.evaluation.flags, evaluate_argv(self, images=1)),
        ):
            others = {word.partition("=")[0].removeprefix("--") for word in argv[: len(argv) - len(flags)]}
            if duplicates := sorted((others | _MODEL.keys()) & flags.keys()):
                raise ValueError(
                    f"{key}: {duplicates[0]} is derived from other keys of the recipe; remove it"
                )
        return self


class TensorFlowRun(HorovodRun):
    """The run of a recipe that is trained with TensorFlow only."""

    data: RecordData


# Python 3.11, and without the folders of the program and of the caller among those that it imports from.
_PYTHON = ("python", "-P")
TOO_OLD = "Unknown option: -P"  # as an older Python says


def prepare_argv(script: str, raw_data_dir: str, local_scratch_dir: str) -> tuple[str, ...]:
    """Return the argv that builds TFRecords from ImageNet's raw images, with classes shuffled across files.

    >>> " ".join(prepare_argv("imagenet_to_gcs.py", "raw", "records"))
    'python -P imagenet_to_gcs.py --raw_data_dir raw --local_scratch_dir records'
    """
    return (*_PYTHON, script, "--raw_data_dir", raw_data_dir, "--local_scratch_dir", local_scratch_dir)


def train_argv(
    run: HorovodRun,
    *,
    workers: int,
    per_node: int,
    batch: int,
    images: int,
    script: str = "resnet_main.py",
    data_dir: str = "train",
    model_dir: str = "model",
) -> tuple[str, ...]:
    """Return the argv that trains on `workers` Horovod ranks, with a global batch of `batch` images."""
    return (
        *("mpirun", "-np", str(workers), "-ppn", str(per_node), *_PYTHON, script),
        *("--train_batch_size", str(batch)),
        *("--train_steps", str(run.schedule.steps)),
        *("--num_intra_threads", str(run.intra_threads), "--num_inter_threads", str(run.inter_threads)),
        f"--data_dir={data_dir}",
        *("--model_dir", model_dir),
        *("--use_tpu=False", "--kmp_blocktime", str(run.kmp_blocktime)),
        *_model_flags(run),
        *((f"--num_train_images={images}",) if images != _TRAIN_IMAGES else ()),
        *_write_flags(run.flags),
    )


def evaluate_argv(
    run: HorovodRun,
    *,
    images: int,
    script: str = "resnet_eval.py",
    data_dir: str = "validation",
    model_dir: str = "model",
) -> tuple[str, ...]:
    """Return the argv that evaluates a model on one node; set `evaluate_environment` for it."""
    evaluation = run.evaluation
    threads = (str(evaluation.intra_threads), "--num_inter_threads", str(evaluation.inter_threads))
    return (
        *_PYTHON,
        script,
        *("--eval_batch_size", str(evaluation.batch_size)),
        *("--num_intra_threads", *threads),
        f"--data_dir={data_dir}",
        f"--model_dir={model_dir}",
        *("--use_tpu=False", "--kmp_blocktime", str(evaluation.kmp_blocktime)),
        *_model_flags(run),
        *((f"--num_eval_images={images}",) if images != _EVAL_IMAGES else ()),
        *_write_flags(evaluation.flags),
    )


def _model_flags(run: HorovodRun) -> tuple[str, ...]:
    """Return the model's flags, for both programs, that differ from the defaults."""
    known = {
        "resnet_depth": run.resnet_depth,
        "num_label_classes": run.classes,
        "image_size": run.image_px,
        "label_offset": run.data.label_offset if run.data else None,
    }
    return _write_flags({name: value for name, value in known.items() if value not in (None, _MODEL[name])})


def _write_flags(flags: Mapping[str, bool | int | float | str]) -> tuple[str, ...]:
    return tuple(f"--{name}={value}" for name, value in flags.items())


def evaluate_environment(run: HorovodRun) -> dict[str, str]:
    """Return the environment variables for the evaluation."""
    return {"OMP_NUM_THREADS": str(run.evaluation.omp_num_threads)}


_DEFINED = re.compile(r'flags\.DEFINE_\w+\(\s*"(\w+)"')
# The flags of every program that uses absl.
_OF_ABSL = frozenset(
    (
        *("alsologtostderr", "flagfile", "log_dir", "logger_levels", "logtostderr", "only_check_args", "pdb"),
        *("pdb_post_mortem", "profile_file", "run_with_pdb", "run_with_profiling", "showprefixforinfo"),
        *("stderrthreshold", "undefok", "use_cprofile_for_profiling", "v", "verbosity"),
    )
)


def find_unknown_flags(run: HorovodRun) -> Iterator[tuple[Location, str, str]]:
    """Yield (location in a recipe, what is wrong, hint) for each flag that our programs do not know."""
    texts = dict(program_texts())
    known: set[str] = {*_OF_ABSL}
    for program, at, flags in (
        ("resnet_main.py", ("tensorflow", "flags"), run.flags),
        ("resnet_eval.py", ("tensorflow", "evaluation", "flags"), run.evaluation.flags),
    ):
        known |= set(_DEFINED.findall(texts[program]))  # resnet_eval.py imports the flags of resnet_main.py
        for name in () if "undefok" in flags else flags:
            if name not in known:
                other = "remove it, or set RESNET_DIR to programs that know it"
                yield (*at, name), f"{program} has no flag --{name}", did_you_mean(name, known, other)


def program_texts() -> Iterator[tuple[str, str]]:
    """Yield the name and text of each of our programs and modules, except the one that writes records."""
    try:
        folder = resources.files("caffe_recipes.tensorflow_programs")
    except ModuleNotFoundError:
        folder = checkout() / "tensorflow_programs"
    for file in sorted(folder.iterdir(), key=lambda each: each.name):
        if file.name.endswith(".py") and file.name != "imagenet_to_gcs.py":
            yield file.name, file.read_text("utf-8")


def checkout() -> Path:
    """Return the folder that contains this package, which is the project's in a checkout."""
    return Path(__file__).resolve().parents[2]


def own_programs() -> tuple[str, ...]:
    """Return the folder of the user's own programs, $RESNET_DIR, if set, as the generated scripts do."""
    given = os.environ.get("RESNET_DIR")
    return (str(Path(given).absolute()),) if given else ()
