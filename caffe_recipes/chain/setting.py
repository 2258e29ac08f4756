"""What a run works with on this day: folders, hosts, programs. None of it changes what is trained."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from caffe_recipes.chain.plan import trainer_environment
from caffe_recipes.cluster.hostfile import find_hosts, take_hosts
from caffe_recipes.cluster.hosts import Host, LocalHost
from caffe_recipes.cluster.launcher import FABRIC_OPTIONS, HYDRA
from caffe_recipes.cluster.probe import launcher_knows
from caffe_recipes.errors import ClusterError
from caffe_recipes.recipe.model import Recipe

OUR_TRAINER = "caffe-torch"
# From SIGINT to the end: an iteration, and a snapshot of it.
STOP_GRACE_S = 120.0
Connect = Callable[[str, Literal["ssh", "auto"]], Host]


@dataclass(frozen=True)
class Options:
    """What the user says of a run besides the recipe."""

    root: Path = Path()
    hostfile: Path | None = None
    lmdb_source: Path | None = None
    new: bool = False
    overwrite: bool = False
    stop_grace_s: float = STOP_GRACE_S


@dataclass(frozen=True)
class Setting:
    """A recipe and where it is run; `environment` is what the launcher gets besides ours.

    `fabric` is the recipe's, or None where the launcher that is here does not know its option.
    """

    recipe: Recipe
    root: Path
    hosts: tuple[Host, ...]
    trainer: str
    environment: dict[str, str]
    lmdb_source: Path | None
    overwrite: bool
    fabric: str | None
    stop_grace_s: float = STOP_GRACE_S

    @property
    def lmdb_hosts(self) -> tuple[Host, ...]:
        """The hosts that need a training LMDB of their own: one, if it lies under the Caffe root of all."""
        return self.hosts if Path(self.recipe.data.train.lmdb).is_absolute() else self.hosts[:1]

    @property
    def built_lmdbs(self) -> tuple[Path, ...]:
        """The LMDBs that are built where they are missing."""
        if self.recipe.data.prepare is None:
            return ()
        folder = (self.root / self.recipe.data.test.lmdb).parent
        return (folder / "digits_train_lmdb", folder / "digits_val_lmdb")

    def show(self, path: str | Path) -> str:
        """Return a path as people read it: from the Caffe root if it lies there."""
        path = self.root / path
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)

    def path(self, path: str | Path) -> str:
        """Return a path from the Caffe root as an absolute one, as other hosts need it."""
        return str(self.root / path)


def find_setting(recipe: Recipe, options: Options, connect: Connect) -> Setting:
    """Find hosts and programs; raises ClusterError for a hostfile or a program that is missing."""
    if not options.root.is_dir():
        raise ClusterError(options.root, "no such folder", "give the Caffe root with --caffe-root")
    root = options.root.resolve()
    names = choose_hosts(recipe, root, options.hostfile)
    ours = recipe.trainer == OUR_TRAINER
    path = search_path(ours_first=ours)
    source = options.lmdb_source or recipe.data.train.source
    return Setting(
        recipe=recipe,
        root=root,
        hosts=tuple(connect(name, recipe.cluster.copy_with) for name in names),
        trainer=find_our_trainer(path) if ours else find_caffe(recipe.trainer, root),
        environment={"PATH": path, **trainer_environment(recipe)},
        lmdb_source=root / source if source else None,
        overwrite=options.overwrite,
        fabric=find_fabric(recipe.cluster.fabric, path),
        stop_grace_s=options.stop_grace_s,
    )


def choose_hosts(recipe: Recipe, root: Path, given: Path | None) -> tuple[str, ...]:
    """Return the hosts that get ranks: of the hostfile, else of the Slurm job around us.

    Without either one node is this machine. Raises ClusterError if there are too few.
    """
    nodes, ranks_per_node = recipe.cluster.nodes, recipe.cluster.ranks_per_node
    default = root / "hostfile"
    hostfile = given or (default if default.exists() else None)
    hosts = find_hosts(hostfile, os.environ)
    if hosts is not None:
        return take_hosts(hosts, nodes, ranks_per_node, hostfile or "the Slurm job")
    if nodes > 1:
        raise ClusterError(default, "no such file", f"write {nodes} hosts there, or give --hostfile")
    return ("localhost",)


def search_path(*, ours_first: bool) -> str:
    """Return PATH with the folder of this Python's programs, where pip puts a launcher and caffe-torch."""
    beside, path = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    return os.pathsep.join([beside, path] if ours_first else [path, beside])


def find_our_trainer(path: str) -> str:
    """Return where caffe-torch is; raises ClusterError if it is not installed."""
    found = shutil.which(OUR_TRAINER, path=path)
    if found is None:
        raise ClusterError(
            OUR_TRAINER, "not found", "install this project's extra 'engine', as its README says"
        )
    return found


def find_caffe(trainer: str, root: Path) -> str:
    """Return the Caffe binary as it is called from the Caffe root; ClusterError if none is there.

    A run never falls back on caffe-torch: a recipe that is to be trained by it says so.
    """
    if Path(trainer).name == OUR_TRAINER:
        raise ClusterError(trainer, "is no Caffe", f"write `trainer: {OUR_TRAINER}` in the recipe to use it")
    path = root / trainer
    hint = f"build Caffe in {root}, or give its path with --caffe"
    if not path.exists():
        raise ClusterError(path, "no such Caffe binary", hint)
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ClusterError(path, "is no program that may be run", hint)
    return trainer


def find_fabric(fabric: str | None, path: str) -> str | None:
    """Return the fabric, unless the launcher says that it does not know its option; None then.

    A launcher that is missing, or fails otherwise, is for preflight to name.
    """
    if fabric is None:
        return None
    try:
        known = launcher_knows(LocalHost(), find_launcher(path), " ".join(FABRIC_OPTIONS[fabric]))
    except ClusterError:
        return fabric
    return fabric if known else None


def find_launcher(path: str) -> str:
    """Return where the launcher is; raises ClusterError if it is not on the search path."""
    found = shutil.which(HYDRA, path=path)
    if found is None:
        raise ClusterError(
            HYDRA, "not found on PATH", "load an MPI that has it, or install this project's extra 'local'"
        )
    return found
