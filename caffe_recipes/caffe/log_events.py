"""What a line of Caffe's log can tell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Started:
    """The solver begins with a net of this name."""

    net: str


@dataclass(frozen=True)
class Rate:
    """The learning rate of an iteration's update."""

    iteration: int
    rate: float


@dataclass(frozen=True)
class Loss:
    """The mean loss of the last `average_loss` iterations."""

    iteration: int
    loss: float


@dataclass(frozen=True)
class TrainOutput:
    """One value of the TRAIN net, of the iteration whose Loss came last."""

    index: int
    name: str
    value: float


@dataclass(frozen=True)
class TestStarted:
    """A TEST net is about to run."""

    iteration: int
    net: int


@dataclass(frozen=True)
class TestOutput:
    """One mean over `test_iter` batches of the TEST net that started last."""

    index: int
    name: str
    value: float


@dataclass(frozen=True)
class Snapshot:
    """A caffemodel is about to be written."""

    path: str


@dataclass(frozen=True)
class SolverState:
    """A solverstate is about to be written."""

    path: str


@dataclass(frozen=True)
class SnapshotEnded:
    """Caffemodel and solverstate are written."""


@dataclass(frozen=True)
class Finetuning:
    """Training starts from the weights of a caffemodel, though Caffe may yet find it empty."""

    path: str


@dataclass(frozen=True)
class Resuming:
    """Training goes on from a solverstate."""

    path: str


@dataclass(frozen=True)
class IgnoredLayer:
    """A layer of the weights that the net has not: what it has learned, if anything, is lost."""

    name: str


@dataclass(frozen=True)
class Done:
    """The solver has reached max_iter."""


@dataclass(frozen=True)
class StoppedEarly:
    """The solver has stopped at a signal, and will return 0 all the same."""


@dataclass(frozen=True)
class BatchOutput:
    """One value of one batch of `caffe test`."""

    batch: int
    name: str
    value: float


@dataclass(frozen=True)
class MeanOutput:
    """One mean over all batches of `caffe test`."""

    name: str
    value: float


@dataclass(frozen=True)
class MeanLoss:
    """The weighted sum of the mean losses of `caffe test`."""

    loss: float


@dataclass(frozen=True)
class Fatal:
    """Why the process is about to die."""

    text: str


@dataclass(frozen=True)
class Complaint:
    """What protobuf could not read or write; Caffe may go on without it."""

    text: str


Event = (
    Started | Rate | Loss | TrainOutput | TestStarted | TestOutput | Snapshot | SolverState | SnapshotEnded
    | Finetuning | Resuming | IgnoredLayer | Done | StoppedEarly | BatchOutput | MeanOutput | MeanLoss | Fatal
    | Complaint
)  # fmt: skip
