"""The recipe as frozen values: net, data, cluster, phases, and what the source reports.

Keys are Caffe's own words where Caffe has one. Units stand in suffixes; paths are as Caffe sees them,
from its working directory (the Caffe root), unless said otherwise.

A phase: Caffe's solver settings in Caffe's words, its net, and the weights it starts from.

What only a recipe's values are made of, besides those of `config.values`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from caffe_recipes.caffe.dialects import OURS
from caffe_recipes.caffe.rates import POLICY_NEEDS
from caffe_recipes.config import (
    Count,
    CountOrZero,
    EntryText,
    FileName,
    FolderText,
    Fraction,
    Frozen,
    NotNegative,
    PathText,
    Positive,
    Text,
    Value,
)
from caffe_recipes.tensorflow.run import HorovodRun

# Images a second of all ranks; the fastest machines train some millions.
SLOWEST, FASTEST = 0.001, 1e9
Speed = Annotated[float, Field(ge=SLOWEST, le=FASTEST)]

Interpolation = Literal["LINEAR", "AREA", "NEAREST", "CUBIC", "LANCZOS4"]
Builder = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet_small"]


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
    snapshot_prefix: EntryText
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


class Filler(Value):
    """How a learned blob starts."""

    type: Literal["constant", "uniform", "gaussian", "positive_unitball", "xavier", "msra", "bilinear"]
    value: float | None = None
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: NotNegative | None = None
    variance_norm: Literal["FAN_IN", "FAN_OUT", "AVERAGE"] | None = None


class Fillers(Value):
    """Fillers of a builder's net: the first convolution, the others, and the classifier."""

    conv1: Filler = Filler(type="msra", variance_norm="FAN_OUT")
    conv: Filler = Filler(type="msra")
    classifier: Filler = Filler(type="gaussian", std=0.01)


class Net(Value):
    """The network: a builder of ours, a prototxt file, or a `module:function` that returns a NetParameter.

    The data layers always come from the recipe: those of a file or function are replaced.
    """

    name: Text
    classes: Count
    builder: Builder | None = None
    prototxt: PathText | None = Field(None, description="path of a net, from the recipe's folder")
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = None
    batch_norm_fraction: Fraction = Field(0.95, description="moving_average_fraction of every BatchNorm")
    zero_init: Literal["none", "last-block", "every-block"] = Field(
        "none",
        description="which residual blocks' last BatchNorm filler is 0: no, the last of a stage, every block",
    )
    fillers: Fillers = Fillers()

    @model_validator(mode="after")
    def _one_origin(self, info: ValidationInfo) -> Net:
        given = [key for key in ("builder", "prototxt", "function") if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of builder, prototxt and function")
        # A run's frozen recipe spells every default out: that is nothing that its author wrote.
        is_frozen = isinstance(info.context, dict) and info.context.get("is_frozen", False)
        if self.builder is None and not is_frozen:
            only_ours = {"batch_norm_fraction", "zero_init", "fillers"} & self.model_fields_set
            if only_ours:
                raise ValueError(
                    f"{', '.join(sorted(only_ours))}: only a builder takes it; set it in the net itself"
                )
        return self


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
    """One net file: the net behind a training data layer, and a TEST one if `test`."""

    random_aspect_ratio: RandomAspectRatio | None = None
    test: bool = True


class Transformation(Value):
    """What is done to each image before the net reads it: keys of `transform_param`."""

    crop_size: Count | None = Field(
        None, description="pixels of the square that is cut out: anywhere in TRAIN, the centre in TEST"
    )
    mirror: bool | None = Field(None, description="flip every other image")
    mean_file: PathText | None = Field(
        None, description="a mean image, as compute_image_mean writes it, that is subtracted; on every node"
    )
    mean_value: tuple[NotNegative, ...] = Field(
        (), description="subtracted from every pixel: one value, or those of blue, green and red"
    )
    scale: Positive | None = Field(None, description="what every value is multiplied by, after the mean")
    force_color: bool | None = Field(None, description="decode every image to three channels")
    force_gray: bool | None = Field(None, description="decode every image to one channel")


class TrainData(Transformation):
    """The training LMDB on every node, and where its transformation differs from that of `data`."""

    lmdb: PathText = Field(description="path on every node, as the data layer's `source`")
    source: PathText | None = Field(None, description="where it is staged from; LMDB_SOURCE overrides it")
    images: Count
    size_gb: Positive | None = Field(None, description="size on disk in 10^9 bytes")
    shuffle: bool = False
    prefetch: Count | None = None


class TestData(Transformation):
    """The test LMDB, read where Caffe runs, and where its transformation differs from that of `data`."""

    lmdb: PathText
    images: Count
    batch_size: Count
    shorter_side_px: Count | None = Field(None, description="resized to this before the centre crop")
    interp_mode: Interpolation = "CUBIC"


class Data(Transformation):
    """The images, and the transformation of both TRAIN and TEST."""

    train: TrainData
    test: TestData
    mirror: bool | None = Field(
        False, description="flip every other image in TRAIN, none in TEST; null leaves the field out"
    )
    prepare: Literal["digits"] | None = Field(None, description="what builds LMDBs that are missing")

    def transform_of(self, part: Literal["train", "test"]) -> Transformation:
        """Return the transformation of one part: its own keys, else those of `data`; only TRAIN mirrors."""
        values = {key: getattr(self, key) for key in Transformation.model_fields}
        if part == "test" and self.mirror:
            values["mirror"] = False
        own: TrainData | TestData = getattr(self, part)
        given = {key: value for key in values if (value := getattr(own, key)) not in (None, ())}
        return Transformation(**values | given)


class Mlsl(Value):
    """Intel MLSL's communication servers."""

    num_servers: Count = Field(description="of each rank")
    server_affinity: tuple[CountOrZero, ...] = Field((), description="their cores; default: MLSL's choice")


class Cluster(Value):
    """The shape of the machine."""

    nodes: Count
    ranks_per_node: Count
    batch_per_rank: Count
    omp_num_threads: Count
    kmp_affinity: Text | None = None
    mlsl: Mlsl | None = None
    fabric: Literal["psm2"] | None = None
    sockets_per_node: Count | None = None
    cores_per_socket: Count | None = None
    tmp_gb: Positive | None = Field(None, description="room in a node's /tmp, in 10^9 bytes")
    copy_with: Literal["ssh", "auto"] = Field(
        "auto", description="how files reach and leave hosts; auto: cp where the host is this machine"
    )

    @property
    def ranks(self) -> int:
        """Number of MPI ranks in all."""
        return self.nodes * self.ranks_per_node

    @property
    def global_batch(self) -> int:
        """Images per iteration over all ranks."""
        return self.ranks * self.batch_per_rank


class Evaluation(Value):
    """`caffe test` of the model that each branch of the recipe ends in; a line has one, its last phase's."""

    net: FileName
    iterations: Count
    phases: Annotated[tuple[FileName, ...], Field(min_length=1)] | None = Field(
        None, description="whose models are tested; default: of all phases that no other starts from"
    )


class Ensemble(Value):
    """The phases whose models are averaged, and what the source says of their ensemble."""

    members: Annotated[tuple[FileName, ...], Field(min_length=2)]
    reported: Reported = Reported()


class Acceptance(Value):
    """A finding of `lint` that the recipe's author knows of and keeps."""

    finding: Text = Field(description="the finding's id, as lint prints it")
    phase: FileName | None = Field(None, description="of this phase only")
    reason: Text


@dataclass(frozen=True)
class Family:
    """Recipes of one file, by its name and title; and how many of a row's first `derived` are the base's."""

    name: str
    title: str
    derived: int = 0


class Recipe(Value):
    """A whole recipe; everything that is generated, checked or run is a function of it."""

    name: FileName
    title: Text
    source: Text | None = None
    trainer: Text = Field(description="`caffe-torch`, or the path of a Caffe binary from the Caffe root")
    prototxt_dir: FolderText = Field(description="folder of the solvers and nets under the Caffe root")
    nets_dir: FolderText | None = Field(None, description="folder of shared nets; default: prototxt_dir")
    net: Net
    nets: Frozen[FileName, NetVariant]
    data: Data
    cluster: Cluster
    solver: SolverSettings = SolverSettings()
    phases: Annotated[tuple[Phase, ...], Field(min_length=1)]
    evaluation: Evaluation | None = None
    ensemble: Ensemble | None = Field(
        None, description="what is averaged; default: the models of all phases that no other starts from"
    )
    tensorflow: HorovodRun | None = Field(
        None, description="the run of TensorFlow and Horovod that the phases are the schedule of"
    )
    reported: Reported = Reported()
    derived: tuple[Derived, ...] = Field((), description="what the source does not state, by which rule")
    differences: tuple[Difference, ...] = Field((), description="where the source's numbers are not these")
    accept: tuple[Acceptance, ...] = Field((), description="findings of lint that are known and meant")

    _folder: Path = PrivateAttr(Path())
    _family: Family | None = PrivateAttr(None)
    _dialect: str = PrivateAttr(OURS)

    def model_post_init(self, context: Any, /) -> None:  # noqa: ANN401 - pydantic's signature
        """Keep the folder and the family that the loader read the recipe from."""
        if isinstance(context, dict):
            self._folder = context.get("folder", Path())
            self._family = context.get("family")

    @property
    def folder(self) -> Path:
        """The recipe file's folder: where the user's own net is found from."""
        return self._folder

    @property
    def family(self) -> Family | None:
        """The family that the recipe is a row of; None for a file of its own."""
        return self._family

    @property
    def dialect(self) -> str:
        """The Caffe that the recipe's solvers are written for; a recipe file's is SURFsara's."""
        return self._dialect

    def in_dialect(self, dialect: str, changes: Mapping[str, Any]) -> Recipe:
        """Return the recipe with changed keys as one of another dialect; `translate` makes the changes."""
        changed = self.model_copy(update=dict(changes))
        changed._dialect = dialect
        return changed

    @model_validator(mode="before")
    @classmethod
    def _phases_inherit_solver(cls, raw: Any) -> Any:  # noqa: ANN401 - whatever the YAML held
        if not isinstance(raw, dict) or not isinstance(raw.get("phases"), tuple):
            return raw
        common = raw.get("solver")
        if not isinstance(common, dict):
            return raw
        phases = tuple({**common, **phase} if isinstance(phase, dict) else phase for phase in raw["phases"])
        return {**raw, "phases": phases}

    @property
    def prototxt_dirs(self) -> tuple[str, ...]:
        """The folders of its solvers and nets under the Caffe root: one, or a second of shared nets."""
        return tuple(dict.fromkeys((self.prototxt_dir, self.nets_dir or self.prototxt_dir)))

    def solver_path(self, phase: str) -> str:
        """Return the path of a phase's solver under the Caffe root."""
        return posixpath.join(self.prototxt_dir, f"solver_{phase}.prototxt")

    def net_path(self, net: str) -> str:
        """Return the path of one of its `nets` under the Caffe root."""
        return posixpath.join(self.nets_dir or self.prototxt_dir, f"{net}.prototxt")

    def phase(self, name: str) -> Phase:
        """Return the phase of that name; KeyError if there is none."""
        return {phase.name: phase for phase in self.phases}[name]

    def starts_from(self, phase: Phase) -> Phase | str | None:
        """Return what `phase` starts from: a phase, a caffemodel's path, or None for its fillers."""
        if phase.weights is None:
            # By name, as comparing phases takes long.
            index = [other.name for other in self.phases].index(phase.name)
            return self.phases[index - 1] if index else None
        if phase.weights == "none":
            return None
        by_name = {other.name: other for other in self.phases}
        return by_name.get(phase.weights, phase.weights)

    def needed_iters(self, phase: Phase) -> tuple[int, ...]:
        """Return the iterations of `phase`, short of its last, from whose snapshots later phases start."""
        branching = [other for other in self.phases if other.weights_iter]
        needed = {other.weights_iter for other in branching if self.starts_from(other) is phase}
        return tuple(sorted(number for number in needed if number and number != phase.last_iter))
