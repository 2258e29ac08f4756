"""Read cluster profiles: descriptions of machines, as frozen values from YAML.

A value that a profile does not give is None; code that needs it queries the hosts.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from caffe_recipes.cluster.launchers import DEFAULT_LAUNCHER, LAUNCHERS
from caffe_recipes.cluster.launchers.launcher import Launcher
from caffe_recipes.config import (
    Count,
    CountOrZero,
    FileName,
    Frozen,
    PathText,
    Positive,
    Text,
    Value,
    parse_yaml,
    validate,
)
from caffe_recipes.errors import InputError
from caffe_recipes.files.yaml_text import load_yaml_text
from caffe_recipes.wording import describe_count, did_you_mean

HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=253)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)]

# A name, or an expression of names, as Slurm accepts it: without blanks.
Word = Annotated[str, Field(pattern=r"^[^\s\x00-\x1f\x7f]+$", max_length=200)]


# The shipped profile of a machine that is not part of a cluster.
THIS_MACHINE = "local"


if TYPE_CHECKING:
    Program = str
else:
    Program = Literal[tuple(LAUNCHERS)]


class LauncherDefaults(Value):
    """The program that starts ranks, and the options that precede all others."""

    program: Program = DEFAULT_LAUNCHER.program
    options: tuple[Text, ...] = Field((), description="such as -PSM2, which only Intel MPI 2018 accepts")
    environment: Frozen[Variable, Text] = Field(
        {}, validate_default=True, description="variables of every rank, in addition to the recipe's"
    )


class PartitionLimits(Value):
    """A queue's limits for one job."""

    nodes: Count | None = None
    hours: Positive | None = None


class SbatchDefaults(Value):
    """Options of sbatch for every job on the machine, besides those derived from the recipe."""

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Word | None = Field(None, description="features of the nodes, such as `skx|icx`")
    options: tuple[Text, ...] = Field((), description="further options, one word each, such as --exclusive")
    requires: tuple[Literal["partition", "account", "qos", "constraint"], ...] = Field(
        (), description="options that the site requires: the profile or the command line must give them"
    )


class Container(Value):
    """The image in which each rank's trainer runs; the launcher itself runs outside."""

    image: PathText = Field(
        description="path of the image on every node; the recipe's trainer is a path inside it"
    )
    program: Literal["apptainer", "singularity"] = "apptainer"
    options: tuple[Text, ...] = Field(
        (), description="options of `exec`, one word each, such as --bind, /work"
    )

    @property
    def words(self) -> tuple[str, ...]:
        """The words that start a rank's command in the container.

        From Apptainer's user guide: `apptainer exec [OPTION]... IMAGE PROGRAM...` passes on its environment,
        including the variable that identifies ranks. It keeps the working directory, shares the host's
        process ids, so that signals reach the program, and mounts /tmp and the home folder. Options bind
        other folders.
        """
        return (self.program, "exec", *self.options, self.image)


class Node(Value):
    """One node; `core_numbering` is `alternate` if successive core numbers alternate between the sockets."""

    sockets: Count | None = None
    cores_per_socket: Count | None = None
    core_numbering: Literal["alternate", "by-socket"] | None = None
    memory_gb: Positive | None = Field(None, description="in 10^9 bytes")
    tmp_gb: Positive | None = Field(None, description="capacity of /tmp, in 10^9 bytes")

    @property
    def cores(self) -> int | None:
        """The number of cores; None unless both sockets and cores per socket are known."""
        known = self.sockets is not None and self.cores_per_socket is not None
        return (self.sockets or 0) * (self.cores_per_socket or 0) if known else None


class MlslDefaults(Value):
    """Intel MLSL's communication servers, and the cores they are pinned to."""

    num_servers: CountOrZero | None = None
    server_affinity: tuple[CountOrZero, ...] = ()


class MachineRates(Value):
    """Transfer rates in 10^9 bytes per second, from which staging times are estimated."""

    link_gb_per_s: Positive | None = Field(None, description="between two nodes")
    shared_gb_per_s: Positive | None = Field(
        None, description="from the shared file system to all nodes together"
    )
    disk_gb_per_s: Positive | None = Field(None, description="of writes to a node's /tmp")


class Profile(Value):
    """A machine: its launcher, software environment, queues, nodes and transfer rates."""

    name: FileName
    title: Text
    source: Text | None = Field(None, description="where these values come from")
    notes: tuple[Text, ...] = Field((), description="further facts about the machine, one per line")
    launcher: LauncherDefaults = LauncherDefaults()
    fabric: Text | None = None
    modules: tuple[Text, ...] = Field((), description="loaded before the launcher starts")
    container: Container | None = None
    slurm: SbatchDefaults = SbatchDefaults()
    partitions: Frozen[FileName, PartitionLimits] = Field(
        {}, validate_default=True, description="queues by name"
    )
    node: Node = Node()
    omp_num_threads: Count | None = Field(None, description="OpenMP threads of a rank")
    kmp_affinity: Text | None = None
    mlsl: MlslDefaults | None = None
    python: PathText | None = Field(
        None, description="the Python that has TensorFlow and Horovod, on every node"
    )
    shared_folder: PathText | None = Field(None, description="a folder that all nodes share")
    caffe_root: PathText | None = None
    trust: tuple[Word, ...] = Field(
        (), description="users whose data may be used in folders where everybody can write, such as /scratch"
    )
    copy_with: Literal["ssh", "auto"] = "auto"
    rates: MachineRates = MachineRates()
    head: HostName | None = Field(None, description="the host name by which the nodes reach this machine")

    @property
    def rank_launcher(self) -> Launcher:
        """The launcher that `launcher.program` names."""
        return LAUNCHERS[self.launcher.program]

    @model_validator(mode="after")
    def _cores_exist(self) -> Profile:
        cores = self.node.cores
        for core in self.mlsl.server_affinity if self.mlsl and cores else ():
            if core >= (cores or 0):
                what = f"core {core} does not exist; the cores of a node are 0 to {(cores or 0) - 1}"
                raise ValueError(f"mlsl.server_affinity: {what}")
        return self


def shipped_profiles() -> dict[str, Traversable]:
    """Return the files of the profiles that ship with the package, by name."""
    files = resources.files("caffe_recipes").joinpath("profiles").iterdir()
    return {
        file.name.removesuffix(".yaml"): file
        for file in sorted(files, key=lambda file: file.name)
        if file.name.endswith(".yaml")
    }


def load_profile(name_or_path: str | Path) -> Profile:
    """Return a shipped profile by its name, or the user's own profile by its path.

    Raises InputError if the name is unknown or, with `file:line`, if the file is not a valid profile.

    >>> load_profile("stampede2-skx").mlsl.server_affinity
    (39, 38, 43, 42)
    """
    return parse_profile(*_read(str(name_or_path)))


def profile_text(name_or_path: str) -> str:
    """Return the YAML of a profile. Raises InputError as `load_profile` does."""
    text, where = _read(name_or_path)
    parse_profile(text, where)
    return text


def find_caffe_root(name_or_path: str) -> str:
    """Return the `file:line` of a profile's `caffe_root`. Raises InputError if it cannot be read."""
    return parse_yaml(*_read(name_or_path), "profile", InputError).place(("caffe_root",))


def parse_profile(text: str, where: str | Path) -> Profile:
    """Return the profile in a YAML text. Raises InputError if it is not valid."""
    return validate(parse_yaml(text, where, "profile", InputError), Profile)


def find_partitions(profile: Profile, nodes: int, hours: float | None = None) -> list[str]:
    """Return the partitions that accept a job with that many nodes and hours.

    >>> find_partitions(load_profile("stampede2-skx"), nodes=64, hours=4)
    ['skx-normal']
    >>> find_partitions(load_profile("stampede2-skx"), nodes=448)
    []
    """
    return [
        name
        for name in profile.partitions
        if not list(check_partition(profile, name, nodes=nodes, hours=hours))
    ]


def check_partition(profile: Profile, name: str, *, nodes: int, hours: float | None) -> Iterator[str]:
    """Yield a line for each limit of a partition that a job exceeds.

    Raises InputError if the partition is unknown.

    >>> list(check_partition(load_profile("stampede2-skx"), "skx-normal", nodes=448, hours=1))
    ['skx-normal allows at most 128 nodes, and the recipe needs 448']
    """
    if name not in profile.partitions:
        known = ", ".join(profile.partitions) or "none"
        raise InputError(profile.name, f"unknown partition '{name}'", f"known partitions: {known}")
    limits = profile.partitions[name]
    if limits.nodes is not None and nodes > limits.nodes:
        most = describe_count(limits.nodes, "node")
        yield f"{name} allows at most {most}, and the recipe needs {nodes}"
    if limits.hours is not None and hours is not None and hours > limits.hours:
        yield f"{name} runs a job for at most {limits.hours:g} h, and the recipe needs {hours:.1f} h"


def _read(name: str) -> tuple[str, str | Path]:
    """Return a profile's text, and the name to use for it in error messages."""
    shipped = shipped_profiles()
    if name in shipped:
        return shipped[name].read_text("utf-8"), f"{name}.yaml"
    path = Path(name)
    if not name.endswith((".yaml", ".yml")) and not path.is_file():
        hint = f"{did_you_mean(name, shipped)} known profiles: {', '.join(shipped)}, or give a .yaml file"
        raise InputError("", f"unknown profile '{name[:80]}'", hint.lstrip())
    return load_yaml_text(path, "profile", InputError), path
