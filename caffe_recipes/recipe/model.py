"""The recipe as frozen values: net, data, cluster, phases, and the results that the source reports.

Keys have Caffe's names where Caffe has one. Units are suffixes of keys. Paths are relative to Caffe's working
directory (the Caffe root), unless a key's description says differently.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from caffe_recipes.caffe.dialects import ENGINE, OURS
from caffe_recipes.caffe.rates import POLICY_NEEDS
from caffe_recipes.config import (
    Count,
    CountOrZero,
    EntryText,
    FileName,
    FolderText,
    Frozen,
    NotNegative,
    PathText,
    Positive,
    Text,
    Value,
)
from caffe_recipes.recipe.net_keys import Interpolation, Net, NetVariant, Transformation
from caffe_recipes.tensorflow.run import HorovodRun, TensorFlowRun

# Images per second of all ranks; the fastest machines reach some millions.
SLOWEST, FASTEST = 0.001, 1e9
Speed = Annotated[float, Field(ge=SLOWEST, le=FASTEST)]


LrPolicy = Literal["fixed", "step", "exp", "inv", "multistep", "poly", "poly_cyc", "sigmoid", "plateau"]

# The trainer of a recipe without phases, and the one that runs prototxts on PyTorch.
TENSORFLOW = "tensorflow"
OUR_TRAINER = ENGINE

# The value of `data` with which the nets keep their own data layers.
AS_IN_NET = "as-in-net"

# Caffe reads a missing `power` as 0, a constant rate; a recipe that wants one should say `fixed`.
_POWERS: tuple[LrPolicy, ...] = ("inv", "poly", "poly_cyc")


class Derived(Value):
    """A value that the source does not state, and the rule that gives it."""

    phase: FileName | None = Field(None, description="of this phase only")
    key: Text = Field(description="a key of the phase, or a dotted key such as `cluster.ranks_per_node`")
    rule: Text


class Difference(Value):
    """A number that the source prints and the recipe does not reproduce, or that the source contradicts."""

    key: Text = Field(description="a key of the recipe or of `reported`")
    printed: float | Text = Field(description="the value in the source")
    ours: float | Text = Field(description="the value that follows from the recipe")
    why: Text


class Reported(Value):
    """The results that the source reports."""

    table: Text | None = Field(None, description="table or figure of the source, such as `II`")
    row: Count | None = Field(None, description="row of the table, counted from 1")
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
    """Fields of SolverParameter; those under `solver` apply to every phase that does not set them."""

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
    solver_mode: Literal["CPU", "GPU"] | None = Field(
        None, description="default: GPU, as Caffe's; with caffe-torch on one node, `run` chooses"
    )
    random_seed: CountOrZero | None = None


class Phase(SolverSettings):
    """One phase of the training: a solver, its net, and the weights that it starts from."""

    name: FileName
    net: FileName = Field(description="one of `nets`")
    base_lr: Positive
    lr_policy: LrPolicy
    max_iter: Count
    weights: Text | None = Field(
        None, description="a phase's name, a caffemodel's path, or `none`; default: the previous phase"
    )
    weights_iter: Count | None = Field(
        None, description="start from that phase's snapshot at this iteration; default: its last"
    )
    stop_iter: Count | None = Field(
        None, description="stop Caffe after the snapshot at this iteration, before max_iter"
    )
    snapshot_prefix: EntryText
    comment: Text | None = Field(None, description="one line at the top of the solver")
    reported: Reported = Field(
        Reported(), description="what the source reports for the run up to the end of this phase"
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
            raise ValueError("stop_iter must be below max_iter and a multiple of snapshot")
        return self

    @property
    def snapshot_every_iter(self) -> int:
        """Iterations between snapshots."""
        return self.snapshot or self.last_iter

    @property
    def last_iter(self) -> int:
        """Number of iterations that the phase trains: max_iter, or stop_iter if it has one."""
        return self.stop_iter or self.max_iter

    @property
    def final_snapshot(self) -> str:
        """Path of the caffemodel that the last iteration writes, on the first host."""
        return self.snapshot_at(self.last_iter)

    def snapshot_at(self, iteration: int) -> str:
        """Path of the caffemodel of an iteration, on the first host."""
        return f"{self.snapshot_prefix}_iter_{iteration}.caffemodel"


class TrainData(Transformation):
    """The training LMDB on every node, and the keys of its transformation that differ from `data`."""

    lmdb: PathText = Field(description="path on every node: the data layer's `source`")
    source: PathText | None = Field(None, description="LMDB to stage; the variable LMDB_SOURCE overrides it")
    images: Count
    size_gb: Positive | None = Field(None, description="size on disk in 10^9 bytes")
    shuffle: bool = False
    prefetch: Count | None = None


class TestData(Transformation):
    """The test LMDB, read where Caffe runs, and the keys of its transformation that differ from `data`."""

    lmdb: PathText
    images: Count
    batch_size: Count
    shorter_side_px: Count | None = Field(None, description="resize the shorter side to this, then crop")
    interp_mode: Interpolation = "CUBIC"


class Data(Transformation):
    """The images, and the transformation that TRAIN and TEST share."""

    train: TrainData
    test: TestData
    mirror: bool | None = Field(
        False, description="flip half of the TRAIN images, at random, and no TEST image; null: not written"
    )
    prepare: Literal["digits"] | None = Field(None, description="data set to build if the LMDBs are missing")

    @property
    def is_in_net(self) -> bool:
        """Whether the nets' own data layers are kept, whatever they read."""
        return self.train.lmdb == AS_IN_NET

    def transform_of(self, part: Literal["train", "test"]) -> Transformation:
        """Return the transformation of one part: its own keys over those of `data`; only TRAIN mirrors."""
        values = {key: getattr(self, key) for key in Transformation.model_fields}
        if part == "test" and self.mirror:
            values["mirror"] = False
        own: TrainData | TestData = getattr(self, part)
        given = {key: value for key in values if (value := getattr(own, key)) not in (None, ())}
        return Transformation(**values | given)

    @property
    def mean_files(self) -> tuple[str, ...]:
        """Return the mean files that training or testing subtracts, each once."""
        means = (self.transform_of("train").mean_file, self.transform_of("test").mean_file)
        return tuple(dict.fromkeys(filter(None, means)))


class Mlsl(Value):
    """Intel MLSL's communication servers."""

    num_servers: CountOrZero = Field(description="number of servers per rank; 0: none")
    server_affinity: tuple[CountOrZero, ...] = Field(
        (), description="the cores that they run on; default: MLSL's choice"
    )


class Cluster(Value):
    """The nodes that the recipe runs on, its ranks, and the images per iteration."""

    nodes: Count
    ranks_per_node: Count
    batch_per_rank: Count
    omp_num_threads: Count | None = Field(
        None, description="threads of a rank; default: on one node, `run` divides its cores by the ranks"
    )
    kmp_affinity: Text | None = None
    mlsl: Mlsl | None = None
    fabric: Literal["psm2"] | None = None
    sockets_per_node: Count | None = None
    cores_per_socket: Count | None = None
    tmp_gb: Positive | None = Field(None, description="size of a node's /tmp in 10^9 bytes")
    copy_with: Literal["ssh", "auto"] = Field(
        "auto", description="how files are copied to and from hosts; auto: cp if the host is this machine"
    )

    @property
    def ranks(self) -> int:
        """Total number of MPI ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def global_batch(self) -> int:
        """Images per iteration over all ranks."""
        return self.ranks * self.batch_per_rank


class Evaluation(Value):
    """`caffe test` of the final model of each branch; a recipe without branches has one final model."""

    net: FileName
    iterations: Count
    phases: Annotated[tuple[FileName, ...], Field(min_length=1)] | None = Field(
        None, description="test the models of these phases; default: those from which no other phase starts"
    )


class Ensemble(Value):
    """The phases whose models are averaged, and what the source reports of their ensemble."""

    members: Annotated[tuple[FileName, ...], Field(min_length=2)]
    reported: Reported = Reported()


class Acceptance(Value):
    """A finding of `lint` that the recipe's author accepts, with the reason."""

    finding: Text = Field(description="the finding's id, as lint prints it")
    phase: FileName | None = Field(None, description="of this phase only")
    reason: Text


@dataclass(frozen=True)
class Family:
    """The family that contains a recipe as a row; the first `derived` derived values come from the base."""

    name: str
    title: str
    derived: int = 0


class Loaded(Value):
    """Base class of recipes; also keeps the folder of the file, the family, and the dialect.

    If it `reads_lmdb`, its training data are an LMDB; else TFRecords, or what its nets name.
    """

    _folder: Path = PrivateAttr(Path())
    _family: Family | None = PrivateAttr(None)
    _dialect: str = PrivateAttr(OURS)

    def model_post_init(self, context: Any, /) -> None:  # noqa: ANN401 - pydantic's signature
        """Keep the folder and the family that the loader read the recipe from."""
        if isinstance(context, dict):
            self._folder = context.get("folder", Path())
            self._family = context.get("family")

    @property
    def reads_lmdb(self) -> bool:
        """Whether its training data are an LMDB that the recipe names."""
        return False

    @property
    def names_no_data(self) -> bool:
        """Whether its nets name their data, which are then neither staged nor checked."""
        return False

    @property
    def chooses_device(self) -> bool:
        """Whether `run` chooses the CPU or a GPU, since the recipe leaves it open."""
        return False

    @property
    def folder(self) -> Path:
        """The folder of the recipe's file, to which the path of a prototxt net is relative."""
        return self._folder

    @property
    def family(self) -> Family | None:
        """The family that contains the recipe; None if it has its own file."""
        return self._family

    @property
    def dialect(self) -> str:
        """The dialect that the recipe's solvers are written in; a recipe file's is SURFsara's."""
        return self._dialect


class TensorFlowRecipe(Loaded):
    """A recipe that only TensorFlow trains; it has no phases, nets or LMDBs."""

    name: FileName
    title: Text
    source: Text | None = None
    trainer: Literal["tensorflow"] = Field(description="programs with the flags of `tensorflow/tpu`")
    cluster: Cluster
    tensorflow: TensorFlowRun
    reported: Reported = Reported()
    derived: tuple[Derived, ...] = Field((), description="values not in the source, and their rules")
    differences: tuple[Difference, ...] = Field((), description="where the source contradicts the recipe")
    notes: tuple[Text, ...] = Field((), description="further facts, one per line")

    @property
    def train_images(self) -> int:
        """Number of images to train on."""
        return self.tensorflow.data.train.images

    @property
    def tested_images(self) -> int:
        """Number of images to test on."""
        return self.tensorflow.data.validation.images

    @property
    def classes(self) -> int:
        """Number of classes that the model distinguishes."""
        return self.tensorflow.classes or 1000


class Recipe(Loaded):
    """A complete recipe for Caffe, from which everything is generated, checked and run."""

    name: FileName
    title: Text
    source: Text | None = None
    trainer: Text = Field(
        description="`caffe-torch`, or the path of a Caffe binary, relative to the Caffe root"
    )
    prototxt_dir: FolderText = Field(description="folder of the solvers and nets under the Caffe root")
    nets_dir: FolderText | None = Field(None, description="folder of shared nets; default: prototxt_dir")
    net: Net
    nets: Frozen[FileName, NetVariant]
    images: Count | None = Field(None, description="training images, an epoch; for `data: as-in-net`")
    test_images: Count | None = Field(None, description="test images; for `data: as-in-net`")
    data: Data = Field(
        description="or as-in-net: the nets keep their own data layers, whatever these read",
        json_schema_extra=lambda schema: schema.update(
            anyOf=[{"const": AS_IN_NET}, {"$ref": schema.pop("$ref")}]
        ),
    )
    cluster: Cluster
    solver: SolverSettings = SolverSettings()
    phases: Annotated[tuple[Phase, ...], Field(min_length=1)]
    evaluation: Evaluation | None = None
    ensemble: Ensemble | None = Field(
        None, description="models to average; default: those of phases from which no other phase starts"
    )
    tensorflow: HorovodRun | None = Field(
        None, description="the TensorFlow and Horovod run whose schedule the phases reproduce"
    )
    reported: Reported = Reported()
    derived: tuple[Derived, ...] = Field((), description="values not in the source, and their rules")
    differences: tuple[Difference, ...] = Field((), description="where the source contradicts the recipe")
    notes: tuple[Text, ...] = Field((), description="further facts, one per line")
    accept: tuple[Acceptance, ...] = Field((), description="findings of lint that are accepted")

    @property
    def reads_lmdb(self) -> bool:
        """Whether the recipe names its LMDBs."""
        return not self.data.is_in_net

    @property
    def names_no_data(self) -> bool:
        """Whether its nets name their data, which are then neither staged nor checked."""
        return self.data.is_in_net

    @property
    def train_images(self) -> int:
        """Number of images to train on."""
        return self.data.train.images

    @property
    def tested_images(self) -> int:
        """Number of images to test on."""
        return self.data.test.images

    def in_dialect(self, dialect: str, changes: Mapping[str, Any]) -> Recipe:
        """Return the recipe in another dialect, with the changed keys that `translate` computes."""
        changed = self.model_copy(update=dict(changes))
        changed._dialect = dialect
        return changed

    @field_validator("data", mode="before")
    @classmethod
    def _data_in_net(cls, raw: Any, info: ValidationInfo) -> Any:  # noqa: ANN401 - whatever the YAML held
        is_frozen = isinstance(info.context, dict) and info.context.get("is_frozen", False)
        train = raw.get("train") if isinstance(raw, dict) and not is_frozen else None
        if isinstance(train, dict) and train.get("lmdb") == AS_IN_NET:
            raise ValueError(f"write `data: {AS_IN_NET}` instead of keys, or another path of the LMDB")
        if isinstance(raw, str) and raw != AS_IN_NET:
            raise ValueError(f"must be a mapping of keys, or {AS_IN_NET}, not '{raw[:100]}'")
        if raw != AS_IN_NET:
            return raw
        if info.data.get("images") is None:
            raise ValueError(f"{AS_IN_NET} needs `images: N`, the training images of an epoch")
        # What the nets decide has a placeholder.
        train = {"lmdb": AS_IN_NET, "images": info.data["images"]}
        return {
            "train": train,
            "test": {**train, "images": info.data.get("test_images") or 1, "batch_size": 1},
        }

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
        """The folders of its solvers and nets under the Caffe root: two if it shares its nets, else one."""
        return tuple(dict.fromkeys((self.prototxt_dir, self.nets_dir or self.prototxt_dir)))

    def solver_path(self, phase: str) -> str:
        """Return the path of a phase's solver under the Caffe root."""
        return posixpath.join(self.prototxt_dir, f"solver_{phase}.prototxt")

    def net_path(self, net: str) -> str:
        """Return the path under the Caffe root of one of the recipe's `nets`."""
        return posixpath.join(self.nets_dir or self.prototxt_dir, f"{net}.prototxt")

    @property
    def chooses_device(self) -> bool:
        """Whether `run` chooses the CPU or a GPU: on one node with caffe-torch, if no solver_mode is set."""
        is_open = self.trainer == OUR_TRAINER and self.cluster.nodes == 1
        return is_open and not any(phase.solver_mode for phase in self.phases)

    @property
    def classes(self) -> int:
        """Number of classes that the net distinguishes."""
        return self.net.classes

    def phase(self, name: str) -> Phase:
        """Return a phase by name; raises KeyError for an unknown name."""
        return {phase.name: phase for phase in self.phases}[name]

    def starts_from(self, phase: Phase) -> Phase | str | None:
        """Return what `phase` starts from: a phase, a caffemodel's path, or None for its net's fillers."""
        if phase.weights is None:
            # By name, since comparing whole phases is slow.
            index = [other.name for other in self.phases].index(phase.name)
            return self.phases[index - 1] if index else None
        if phase.weights == "none":
            return None
        by_name = {other.name: other for other in self.phases}
        return by_name.get(phase.weights, phase.weights)

    def needed_iters(self, phase: Phase) -> tuple[int, ...]:
        """Return the iterations of `phase`, except its last, from whose snapshots later phases start."""
        branching = [other for other in self.phases if other.weights_iter]
        needed = {other.weights_iter for other in branching if self.starts_from(other) is phase}
        return tuple(sorted(number for number in needed if number and number != phase.last_iter))


AnyRecipe = Recipe | TensorFlowRecipe


def validate_frozen(values: Any) -> AnyRecipe:  # noqa: ANN401 - whatever the JSON held
    """Return the recipe from values that include every default; raises pydantic's ValidationError."""
    is_tensorflow = isinstance(values, dict) and values.get("trainer") == TENSORFLOW
    kind = TensorFlowRecipe if is_tensorflow else Recipe
    return kind.model_validate(values, context={"is_frozen": True})


def train_by_tensorflow(recipe: Recipe) -> TensorFlowRecipe:
    """Return the TensorFlow run of a Caffe recipe as a recipe; raises ValidationError if it has no data."""
    own = {key: getattr(recipe, key) for key in ("source", "reported", "derived", "differences", "notes")}
    run = recipe.tensorflow.model_dump() if recipe.tensorflow else None
    return TensorFlowRecipe.model_validate(
        {
            **own,
            "name": f"{recipe.name}-{TENSORFLOW}",
            "title": recipe.title,
            "trainer": TENSORFLOW,
            "cluster": recipe.cluster.model_copy(update={"mlsl": None}),
            "tensorflow": run,
        },
        context={"is_frozen": True},
    )
