"""Check whether this machine has what the commands need, and say how to install what is missing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.launchers import DEFAULT_LAUNCHER
from caffe_recipes.errors import CaffeRecipesError, ClusterError
from caffe_recipes.run.context import search_path
from caffe_recipes.units import describe_bytes

# What should be free in /tmp for a recipe's snapshots; ImageNet's LMDB needs more.
_TMP_BYTES = 2 * 10**9
_ASK_S = 10.0
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Machine:
    """The machine to examine; programs are started on `host`, which is local."""

    host: Host
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    home: Path = field(default_factory=Path.home)
    tmp: Path = Path("/tmp")

    def find(self, program: str) -> str | None:
        """Return the path of a program; None if it is not on PATH."""
        return shutil.which(program, path=self.environment.get("PATH", os.defpath))

    def version(self, argv: Sequence[str]) -> str:
        """Return the first version number in the output of a command; "" if there is none."""
        try:
            done = self.host.run(list(argv), _ASK_S)
        except CaffeRecipesError:
            return ""
        found = re.search(r"\d+(?:\.\d+)+\w*", f"{done.stdout}\n{done.stderr}")
        return found[0] if found else ""


@dataclass(frozen=True)
class Symptom:
    """The result of looking for one thing that `commands` need; `install` says how to get it if missing.

    `only_for` says in which cases they need it; "" means always.
    """

    name: str
    is_found: bool
    what: str
    commands: tuple[str, ...]
    install: str = ""
    only_for: str = ""

    @property
    def is_fatal(self) -> bool:
        """Whether something is missing without which the commands cannot work."""
        return not self.is_found and not self.only_for


@dataclass(frozen=True)
class _Need:
    name: str
    commands: tuple[str, ...]
    find: Callable[[Machine], str | None]
    missing: str
    install: str
    only_for: str = ""


def _launcher(machine: Machine) -> str | None:
    try:
        program = DEFAULT_LAUNCHER.find(search_path(ours_first=False))
    except CaffeRecipesError:
        return None
    return f"{program} {machine.version([program, DEFAULT_LAUNCHER.version_option])}".rstrip()


def _package(*names: str) -> Callable[[Machine], str | None]:
    """Return a function that finds packages by their metadata, since importing torch takes seconds."""

    def find(machine: Machine) -> str | None:
        versions = []
        for name in names:
            try:
                versions.append(f"{name} {metadata.version(name)}")
            except metadata.PackageNotFoundError:
                return None
        return ", ".join(versions)

    return find


def _program(name: str, *asks: str) -> Callable[[Machine], str | None]:
    """Return a function that finds a program and its version; `asks` are the arguments that print it."""

    def find(machine: Machine) -> str | None:
        path = machine.find(name)
        return None if path is None else " ".join(filter(None, (path, machine.version([path, *asks]))))

    return find


def _slurm(machine: Machine) -> str | None:
    """Return sbatch and its version. Raises ClusterError if Slurm is not set up, or does not answer."""
    for name, *asks in (("sbatch", "--version"), ("sinfo", "--noheader", "--format=%P")):
        if path := machine.find(name):
            done = machine.host.run([path, *asks], _ASK_S)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
                raise ClusterError(path, reason, "")
    return _program("sbatch", "--version")(machine)


def _caffe(machine: Machine) -> str | None:
    root = machine.environment.get("CAFFE_ROOT")
    built = Path(root, "build/tools/caffe") if root else None
    if built is not None and os.access(built, os.X_OK):
        return str(built)
    return machine.find("caffe")


def _threads(machine: Machine) -> str | None:
    cores = len(os.sched_getaffinity(0))
    given = {name: machine.environment[name] for name in _THREADS if machine.environment.get(name)}
    too_many = [name for name, value in given.items() if value.isdecimal() and int(value) > cores]
    if too_many:
        return None
    shown = ", ".join(f"{name}={value}" for name, value in given.items()) or "set by each recipe"
    return f"{cores} core{'s' if cores != 1 else ''}; threads: {shown}"


def _tmp(machine: Machine) -> str | None:
    free = shutil.disk_usage(machine.tmp).free
    is_fit = os.access(machine.tmp, os.W_OK | os.X_OK) and free >= _TMP_BYTES
    return f"{describe_bytes(free)} free in {machine.tmp}" if is_fit else None


def _ssh_key(machine: Machine) -> str | None:
    folder = machine.home / ".ssh"
    has_agent = bool(machine.environment.get("SSH_AUTH_SOCK"))
    try:
        keys = sorted(path.stem for path in folder.glob("id_*.pub"))
    except OSError:
        keys = []
    if not (keys or has_agent):
        return None
    return "an agent" if has_agent else f"~/.ssh/{keys[0]}"


_RUNS = ("run", "preflight")
_NEEDS = (
    _Need(
        "launcher",
        _RUNS,
        _launcher,
        f"{DEFAULT_LAUNCHER.program} not found on PATH",
        "pip install 'caffe-recipes[local]'  # on a cluster: module load its MPI",
    ),
    _Need(
        "mpi4py",
        ("stage", "run"),
        _package("mpi4py"),
        "not installed",
        "pip install 'caffe-recipes[engine]'",
        "staging by a chain",
    ),
    _Need(
        "Caffe",
        _RUNS,
        _caffe,
        "caffe not found on PATH or in $CAFFE_ROOT/build/tools",
        "export CAFFE_ROOT=DIR  # the folder of a built sara-nl/caffe",
        "recipes trained by Caffe",
    ),
    _Need(
        "torch",
        ("run", "ensemble", "caffe-torch"),
        _package("torch", "numpy"),
        "not installed",
        "pip install 'caffe-recipes[engine]'",
        "recipes with `trainer: caffe-torch`",
    ),
    _Need(
        "threads",
        ("run", "caffe-torch"),
        _threads,
        f"one of {', '.join(_THREADS)} is above the number of cores",
        f"unset {' '.join(_THREADS)}  # each recipe sets its own",
    ),
    _Need(
        "images",
        ("data",),
        _package("opencv-python-headless"),
        "OpenCV is not installed",
        "pip install 'caffe-recipes[data]'",
    ),
    _Need(
        "digits",
        ("data", "run"),
        _package("scikit-learn"),
        "scikit-learn is not installed",
        "pip install 'caffe-recipes[local]'",
        "the digits recipes",
    ),
    _Need(
        "plots",
        ("plot", "estimate"),
        _package("matplotlib"),
        "matplotlib is not installed",
        "pip install 'caffe-recipes[plot]'",
    ),
    _Need(
        "/tmp",
        ("run", "stage"),
        _tmp,
        f"cannot be written, or has less than {describe_bytes(_TMP_BYTES)} free",
        "du -xh --max-depth=1 /tmp | sort -h  # remove what is not needed",
    ),
    _Need(
        "ssh",
        ("run", "stage"),
        _program("ssh", "-V"),
        "ssh not found on PATH",
        "apt-get install openssh-client",
        "more than one host",
    ),
    _Need(
        "ssh key",
        ("run", "stage"),
        _ssh_key,
        "no key ~/.ssh/id_*.pub, and no agent in $SSH_AUTH_SOCK",
        "ssh-keygen -t ed25519 && ssh-copy-id HOST",
        "more than one host",
    ),
    _Need(
        "Slurm",
        ("submit", "cancel", "status"),
        _slurm,
        "sbatch not found on PATH",
        "module load slurm  # on a login node of the cluster",
    ),
    _Need(
        "git",
        ("diff",),
        _program("git", "--version"),
        "git not found on PATH",
        "apt-get install git",
        "git revisions",
    ),
)
COMMANDS_WITH_NEEDS = tuple(sorted({command for need in _NEEDS for command in need.commands}))


def examine(machine: Machine, commands: Sequence[str] = ()) -> Iterator[Symptom]:
    """Check what `commands`, or all commands, need on this machine; nothing is changed."""
    for need in _NEEDS:
        if commands and not set(commands) & set(need.commands):
            continue
        missing = need.missing
        try:
            found = need.find(machine)
        except CaffeRecipesError as error:
            found, missing = None, error.without_hint
        install = "" if found else need.install
        yield Symptom(need.name, found is not None, found or missing, need.commands, install, need.only_for)
