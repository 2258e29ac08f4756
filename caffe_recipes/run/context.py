"""A run under way: what is done where, and who is informed.

What a run works with on this day: folders, hosts, programs. None of it changes what is trained.

What a run does of its own accord: after a failure, about checkpoints, when a log falls silent.

What a job's environment tells of the recipe that was submitted: an edit since is not trained silently.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hostfile import find_strangers, fold_hosts, load_hostfile, slurm_hosts, take_hosts
from caffe_recipes.cluster.hosts import LocalHost, open_all
from caffe_recipes.cluster.launcher import (
    FABRIC_OPTIONS,
    HYDRA,
    RankLaunch,
    launcher_knows,
    ssh_environment,
    with_modules,
)
from caffe_recipes.cluster.profiles import Launcher, Profile, find_key, load_profile
from caffe_recipes.cluster.staging.plan import How
from caffe_recipes.errors import ClusterError, InputError, RunFailed
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.recipe.source import split_row
from caffe_recipes.render.scripts import STOP_GRACE_S
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.events import Event, Notice
from caffe_recipes.run.folders import RUNS, digest_recipe
from caffe_recipes.run.journal import Journal
from caffe_recipes.run.lock import RecipeLock
from caffe_recipes.run.plan import plan_launch
from caffe_recipes.run.signals import Interrupts
from caffe_recipes.run.steps import RunPlan
from caffe_recipes.run.trainer import Trainer, find_trainer
from caffe_recipes.run.trainer_log import LogTail

OnFailure = Literal["stop", "retry", "replace"]
ON_FAILURE: tuple[OnFailure, ...] = get_args(OnFailure)
RETRIES = 3


@dataclass(frozen=True)
class Policy:
    """What to do after a failed launch, and how often; iterations between checkpoints; silence that counts.

    `replace` puts a spare of the hostfile in a failed host's place, and launches again; without such a host
    it does as `retry`. Without `stall_s` the log's own pace decides.
    """

    on_failure: OnFailure = "stop"
    retries: int = RETRIES
    checkpoint_every: int | None = None
    stall_s: float | None = None


def check_policy(policy: Policy, launcher: str, *, side_by_side: bool = False) -> None:
    """Raise InputError for spares under a launcher that would start no rank on them."""
    what = "ibrun starts ranks on the first hosts of the job, and none on a spare"
    if policy.on_failure == "replace" and launcher == "ibrun":
        raise InputError("--on-failure replace", what, "use --on-failure retry, or another --profile")
    if side_by_side and launcher == "ibrun":
        raise InputError("--side-by-side", what, "leave it out, or use another --profile")


class LaunchFailed(RunFailed):
    """A launch that came to nothing; `host` is the one that is to blame, if one is."""

    def __init__(self, what: str, hint: str = "", host: str | None = None, where: str = "") -> None:
        """Keep the host; where it happened is for whoever knows the phase to say."""
        super().__init__(where, what, hint)
        self.host = host


class SnapshotOutOfReach(LaunchFailed):
    """A phase that has trained, and whose snapshot cannot be fetched now: it is not to be trained again."""


class SnapshotNotKept(RunFailed):
    """A snapshot that our own disk does not take: no launch is to blame, and to try again helps nothing."""


_LAUNCHER_HINTS = {
    HYDRA: "load an MPI that has it, or install this project's extra 'local'",
    "srun": "run on a machine of the Slurm cluster, or with another --profile",
    "ibrun": "run inside a job at TACC, or with another --profile",
}
_READ_BY_SHELLS = re.compile(r'["$`\\;&|<>\x00-\x1f\x7f]')
Connect = Callable[[str, Literal["ssh", "auto"]], Host]


@dataclass(frozen=True)
class StageOptions:
    """What the user says of hosts and staging besides the recipe."""

    root: Path = Path()
    hostfile: Path | None = None
    lmdb_source: Path | None = None
    how: How | None = None
    profile: str | None = None
    is_whole: bool = False


@dataclass(frozen=True)
class RunOptions(StageOptions):
    """What the user says of a run besides the recipe."""

    new: bool = False
    until: str | None = None
    overwrite: bool = False
    stop_grace_s: float = STOP_GRACE_S
    policy: Policy = field(default_factory=Policy)
    side_by_side: bool = False


@dataclass(frozen=True)
class Setting:
    """A recipe and where it is run; `environment` is what the launcher gets besides ours.

    The profile is in it as the launcher that is here takes it: of its options without `left_out`, those that
    the launcher refuses. `spares` are the hostfile's hosts beyond those that get ranks; none is connected,
    `connect` does that. `side_by_side` has branches train on them. `stale` is FoundHosts'.
    """

    recipe: AnyRecipe
    root: Path
    hosts: tuple[Host, ...]
    program: str
    environment: Mapping[str, str]
    lmdb_source: Path | None
    overwrite: bool
    profile: Profile
    connect: Callable[[str], Host]
    left_out: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    stale: str = ""
    how: How | None = None
    stop_grace_s: float = STOP_GRACE_S
    policy: Policy = field(default_factory=Policy)
    side_by_side: bool = False

    @property
    def trainer(self) -> Trainer:
        """What trains the recipe."""
        return find_trainer(self.recipe)

    def launch(self, hostfile: str = "") -> RankLaunch:
        """Return how ranks are started on our hosts, which the hostfile holds, one a line."""
        names = [host.name for host in self.hosts]
        return plan_launch(self.recipe, self.profile, names, hostfile, self.environment["PATH"])

    def training_argv(self, arguments: Sequence[str], hostfile: str) -> tuple[str, ...]:
        """Return the argv that starts the trainer on every rank."""
        launch = self.launch(hostfile)
        return launch.argv(launch.contained((self.program, *arguments)))

    def trainer_argv(self, arguments: Sequence[str]) -> tuple[str, ...]:
        """Return the argv that starts the trainer on its own, on this machine."""
        return self.launch().argv_alone((self.program, *arguments))

    def find_launcher(self) -> str:
        """Return where the launcher is; raises ClusterError if it is nowhere."""
        launcher = self.profile.launcher.program
        return find_launcher(self.environment["PATH"], launcher, self.profile.modules)

    @property
    def lmdb_hosts(self) -> tuple[Host, ...]:
        """The hosts that need a training LMDB of their own: one, if it lies under the Caffe root of all."""
        return self.hosts if Path(self.trainer.data_folder).is_absolute() else self.hosts[:1]

    @property
    def built_data(self) -> tuple[Path, ...]:
        """The training data that are built where they are missing."""
        return tuple(self.root / path for path in self.trainer.built)

    def show(self, path: str | Path) -> str:
        """Return a path as people read it: from the Caffe root if it lies there."""
        path = self.root / path
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)

    def path(self, path: str | Path) -> str:
        """Return a path from the Caffe root as an absolute one, as other hosts need it."""
        return str(self.root / path)


def find_setting(recipe: AnyRecipe, options: RunOptions, connect: Connect) -> Setting:
    """Find hosts and programs.

    Raises InputError for a hostfile or trainer that is missing, and for a policy that the launcher cannot
    follow; ClusterError for a launcher that is missing.
    """
    if not options.root.is_dir():
        raise InputError(options.root, "no such folder", "give the Caffe root with --caffe-root")
    root = options.root.resolve()
    profile = find_profile(recipe, options.profile)
    check_policy(options.policy, profile.launcher.program, side_by_side=options.side_by_side)
    found = all_hosts(root, options.hostfile, recipe.cluster.nodes)
    names, spares = choose_hosts(recipe, found)
    check_job_hosts(profile, names)
    trainer = find_trainer(recipe)
    path = search_path(ours_first=trainer.is_ours)
    source = options.lmdb_source or trainer.data_source

    def reach(name: str) -> Host:
        return connect(name, profile.copy_with)

    program = trainer.find_program(root, path, profile)
    known, left_out = split_options(profile, path)
    own = trainer.environment(root)
    environment = {**own, **plan_launch(recipe, profile, names, "", path).process_environment()}
    return Setting(
        recipe=recipe,
        root=root,
        hosts=open_all(names, reach),
        program=program,
        environment={**environment, **ssh_environment({**os.environ, **environment})},
        lmdb_source=root / source if source else None,
        overwrite=options.overwrite,
        profile=known,
        connect=reach,
        left_out=left_out,
        spares=spares,
        stale=found.stale,
        how=options.how,
        stop_grace_s=options.stop_grace_s,
        policy=options.policy,
        side_by_side=options.side_by_side,
    )


def find_profile(recipe: AnyRecipe, name: str | None) -> Profile:
    """Return the profile of that name or file; without one, what the recipe says of its machine.

    With a profile it alone decides on the fabric's option: that belongs to the launcher, not to the recipe.
    """
    cluster = recipe.cluster
    if name is None:
        options = tuple(" ".join(FABRIC_OPTIONS[fabric]) for fabric in (cluster.fabric,) if fabric)
        launcher = Launcher(options=options)
        return Profile(name="recipe", title=recipe.title, launcher=launcher, copy_with=cluster.copy_with)
    profile = load_profile(name)
    is_given = "copy_with" in cluster.model_fields_set
    return profile.model_copy(update={"copy_with": cluster.copy_with}) if is_given else profile


def find_root(
    given: Path | None, profile: str | None, recipe: AnyRecipe | None = None, typed: Sequence[str | None] = ()
) -> Path:
    """Return the Caffe root: the one that is given, else the profile's, else the current folder.

    The current folder counts only if something of the recipe lies there; `typed` are paths from the command
    line, of the recipe and of its trainer. Without `recipe` any folder will do. Raises InputError for a
    profile's folder that does not exist, and for a current folder that is not a Caffe root.
    """
    known = load_profile(profile).caffe_root if profile is not None else None
    if given is None and profile is not None and known is not None and not Path(known).is_dir():
        where, what = find_key(profile, "caffe_root"), f"caffe_root: {known!r} is not a folder here"
        raise InputError(where, what, "correct it, or give the Caffe root with --caffe-root")
    if given is not None or known is not None:
        return given or Path(known or ".")
    if recipe is not None:
        _check_current_folder(recipe, [path for path in typed if path is not None])
    return Path()


def _check_current_folder(recipe: AnyRecipe, typed: Sequence[str]) -> None:
    folders = find_trainer(recipe).folders()
    files = [split_row(path)[0] for path in (*typed, recipe.trainer)]
    if any(_is_here(Path(path)) and Path(path).is_file() for path in files):
        return
    if any(_is_here(Path(path)) and Path(path).is_dir() for path in (*folders, RUNS)):
        return
    lacking = ", ".join((recipe.trainer, *folders))
    what = f"is not a Caffe root: it has neither the recipe's file nor {lacking} or {RUNS}"
    hint = "go to the Caffe root, or name it with --caffe-root; `--caffe-root .` takes this folder"
    raise InputError(Path.cwd(), what, hint)


def _is_here(path: Path) -> bool:
    """Tell whether a path begins in the current folder; an absolute one counts if it ends there."""
    return path.parent.resolve() == Path.cwd() if path.is_absolute() else ".." not in path.parts


class FoundHosts(NamedTuple):
    """All hosts that there are, None without any, and where they are named, or a hostfile would be.

    `stale` says which hosts of a `hostfile` that is passed over are not of the Slurm job around us.
    """

    names: tuple[str, ...] | None
    where: str | Path
    stale: str = ""


def all_hosts(root: Path, given: Path | None, least: int = 0) -> FoundHosts:
    """Return all hosts: of the hostfile, else of the Slurm job around us.

    In a job no other hosts will do: a `hostfile` in the Caffe root that names any, fewer than `least`, or
    cannot be read is of another day, and passed over. Raises InputError for one that is given and names any.
    """
    default, job = root / "hostfile", slurm_hosts(os.environ)
    hostfile = given or (default if default.exists() else None)
    if hostfile is None:
        return FoundHosts(job, "the Slurm job" if job else default)
    if job is None:
        return FoundHosts(load_hostfile(hostfile), hostfile)
    if given is not None:
        hosts = load_hostfile(given)
        what = _describe_strangers(hosts, job)
        if what:
            raise InputError(given, what, "go without --hostfile to use the job's hosts")
        return FoundHosts(hosts, given)
    try:
        hosts = load_hostfile(default)
    except InputError as error:
        return FoundHosts(job, "the Slurm job", f"{error.without_hint}; the job's hosts are used")
    few = f"names {len(hosts)} of the {least} hosts that are needed" if len(hosts) < least else ""
    what = _describe_strangers(hosts, job) or few
    if what:
        return FoundHosts(job, "the Slurm job", f"{default} {what}; the job's own are used")
    return FoundHosts(hosts, default)


def _describe_strangers(hosts: Sequence[str], job: Sequence[str]) -> str:
    strangers = find_strangers(hosts, job)
    return f"names hosts outside this Slurm job: {fold_hosts(strangers)[:200]}" if strangers else ""


def choose_hosts(recipe: AnyRecipe, found: FoundHosts) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the hosts that get ranks, and the spares; without any, one node is this machine.

    Raises InputError if there are too few.
    """
    nodes, ranks_per_node = recipe.cluster.nodes, recipe.cluster.ranks_per_node
    if found.names is not None:
        return take_hosts(found.names, nodes, ranks_per_node, found.where), found.names[nodes:]
    if nodes > 1:
        raise InputError(found.where, "no such file", f"write {nodes} hosts there, or give --hostfile")
    return ("localhost",), ()


def check_job_hosts(profile: Profile, names: tuple[str, ...]) -> None:
    """Refuse hosts that ibrun would not use: it takes the first ones of the job, in the job's order."""
    if profile.launcher.program != "ibrun":
        return
    job = slurm_hosts(os.environ)
    if job is None:
        raise InputError(profile.name, "ibrun starts ranks inside a job only", "run within one, or by sbatch")
    if job[: len(names)] != names:
        what = f"ibrun takes its hosts from the job, {', '.join(job[:3])}, ..., not from a hostfile"
        raise InputError(profile.name, what, "go without --hostfile, or with another --profile")


def search_path(*, ours_first: bool) -> str:
    """Return PATH with the folder of this Python's programs, where pip puts a launcher and caffe-torch."""
    beside, path = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    return os.pathsep.join([beside, path] if ours_first else [path, beside])


def split_options(profile: Profile, path: str) -> tuple[Profile, tuple[str, ...]]:
    """Return the profile without the options that the launcher says it does not know, and those.

    A launcher that is missing, or fails otherwise, is for preflight to name. Of ibrun's options nothing is
    asked: it cannot be called without starting ranks.
    """
    launcher = profile.launcher
    if not launcher.options or launcher.program == "ibrun":
        return profile, ()
    try:
        program = find_launcher(path, launcher.program, profile.modules)
        left_out = tuple(
            option
            for option in launcher.options
            if not launcher_knows(
                LocalHost(), program, option, lambda argv: with_modules(argv, profile.modules, path)
            )
        )
    except ClusterError:
        return profile, ()
    options = tuple(option for option in launcher.options if option not in left_out)
    known = launcher.model_copy(update={"options": options})
    return profile.model_copy(update={"launcher": known}), left_out


def find_launcher(path: str, program: str = HYDRA, modules: Sequence[str] = ()) -> str:
    """Return where the launcher is; raises ClusterError if it is not on the search path, or in no module."""
    if not modules:
        found = shutil.which(program, path=path)
    else:
        asked = with_modules(["bash", "-c", 'command -v "$0"', program], modules, path)
        done = LocalHost().run(asked)
        found = done.stdout.rstrip("\n").rpartition("\n")[2] if done.returncode == 0 else None
        if not found and done.stderr.strip():
            what = f"module load {' '.join(modules)} fails: {done.stderr.strip().splitlines()[0][:200]}"
            raise ClusterError(program, what, "check the profile's modules with `module avail`")
    if not found:
        raise ClusterError(program, "not found on PATH", _LAUNCHER_HINTS[program])
    if program == HYDRA and _READ_BY_SHELLS.search(found):
        what = "hydra gives its own path to the hosts' shells, which would read more than a path in this one"
        raise ClusterError(found, what, "install it in a folder of a plain name")
    return found


class Spares:
    """The spare hosts of a run, of which its main line and its branches each take the next one."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        """Have all of them to give, in their order."""
        self._names, self._taking = deque(names), threading.Lock()

    def take(self) -> str | None:
        """Return the next one, which nobody else gets; None if none is left."""
        with self._taking:
            return self._names.popleft() if self._names else None

    @property
    def left(self) -> tuple[str, ...]:
        """Those that nobody has taken."""
        with self._taking:
            return tuple(self._names)


@dataclass(frozen=True)
class Run:
    """A run under way; `id` is what its ranks are known by, `folder` its folder from the Caffe root.

    `main` is the journal of the whole run where this is a branch of it.
    """

    id: str
    setting: Setting
    plan: RunPlan
    folder: str
    journal: Journal
    reporter: Reporter
    interrupts: Interrupts
    lock: RecipeLock
    main: Journal | None = None
    spares: Spares = field(default_factory=Spares)

    def emit(self, event: Event) -> None:
        """Journal an event, then print its line; raises RunFailed where the journal cannot be written."""
        self.record(event)
        line = event.line(self.setting.recipe, self.folder)
        if line:
            self.reporter.say(line)

    def record(self, event: Event) -> None:
        """Journal an event whose line somebody else prints; raises RunFailed."""
        self.journal.append(event)

    def notify(self, message: str, phase: str = "") -> None:
        """Print a remark, and journal it if the disk takes it at once: nothing depends on it."""
        notice = Notice(message, phase)
        with suppress(RunFailed):
            self.journal.append(notice, patience_s=0.0)
        self.reporter.say(notice.line(self.setting.recipe, self.folder))

    def path(self, path: str) -> Path:
        """Return a path from the Caffe root as one from here."""
        return self.setting.root / path

    def read_log(self, log: str) -> LogTail:
        """Return a log of the trainer's, of which nothing is read yet."""
        return LogTail(self.path(log), self.setting.trainer.new_log_summary())

    def snapshots(self) -> Mapping[str, tuple[str, str]]:
        """Return the SHA-256 and the phase of every snapshot that the whole run has kept, by path."""
        return (self.main or self.journal).state().snapshots

    def check_folder(self) -> None:
        """Raise RunFailed if the run's folder is no longer there: nothing of what it does would be kept."""
        if not self.journal.is_there():
            what = "was removed or moved while the run used it"
            raise RunFailed(self.folder, what, "put it back, and run again")


_SUBMITTED = "CAFFE_RECIPES_SUBMITTED"


def note_submitted(recipe: AnyRecipe, job: str) -> dict[str, str]:
    """Return what a job of that name is to have in its environment."""
    return {_SUBMITTED: f"{job} {digest_recipe(recipe)}"}


def check_submitted(recipe: AnyRecipe, environment: Mapping[str, str]) -> None:
    """Raise InputError in a job that was submitted with another recipe than this one.

    A job that is submitted inside of another inherits that one's note, which says nothing of its own.
    """
    job, _, digest = environment.get(_SUBMITTED, "").partition(" ")
    if job and job == environment.get("SLURM_JOB_NAME") and digest != digest_recipe(recipe):
        what = "the recipe has changed since it was submitted"
        raise InputError(recipe.name, what, "submit it again, or undo that")
