"""The context of a run: its options and policy, its hosts and programs, and the run itself.

None of this changes what is trained. A Slurm job also gets the digest of the recipe that was submitted, so
that a recipe edited since is not trained silently.
"""

from __future__ import annotations

import os
import pwd
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hostfile import find_hosts_outside_job, fold_hosts, load_hostfile, take_hosts
from caffe_recipes.cluster.hosts import LocalHost, open_all
from caffe_recipes.cluster.launchers.hydra import FABRIC_OPTIONS
from caffe_recipes.cluster.launchers.launcher import RankLaunch, with_modules
from caffe_recipes.cluster.profiles import LauncherDefaults, Profile, find_caffe_root, load_profile
from caffe_recipes.cluster.remote import NodeRefusal, check_trust
from caffe_recipes.cluster.slurm.this_job import slurm_hosts
from caffe_recipes.cluster.staging import Way
from caffe_recipes.errors import ClusterError, InputError, RunFailed
from caffe_recipes.limits import STOP_GRACE_S
from caffe_recipes.quoting import is_quotable
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.recipe.shipped import split_row
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.events import Chosen, Event, Notice
from caffe_recipes.run.folders import check_root, digest_recipe
from caffe_recipes.run.journal import Journal
from caffe_recipes.run.lock import RecipeLock
from caffe_recipes.run.policy import Policy, check_policy
from caffe_recipes.run.process import StartTrainer, launch_trainer
from caffe_recipes.run.signals import Interrupts
from caffe_recipes.run.trainer import Trainer, TrainingPlan
from caffe_recipes.run.trainer_log import LogTail
from caffe_recipes.run.training_plan import bind_ranks, find_trainer, plan_launch
from caffe_recipes.run_names import RUNS
from caffe_recipes.trust import is_open, is_sticky, is_trusted
from caffe_recipes.wording import describe_count


class LaunchFailed(RunFailed):
    """A launch that failed; `host` is the host that caused it, if known."""

    def __init__(self, what: str, hint: str = "", host: str | None = None, where: str = "") -> None:
        """Create the error; a caller that knows the phase sets `where`."""
        super().__init__(where, what, hint)
        self.host = host


class SnapshotOutOfReach(LaunchFailed):
    """Raised when a phase has finished but its snapshot cannot be fetched; it must not be trained again."""


class SnapshotNotKept(RunFailed):
    """Raised when a snapshot cannot be written to the local disk; launching again would not help."""


Connect = Callable[[str, Literal["ssh", "auto"]], Host]


@dataclass(frozen=True)
class StageOptions:
    """Options of `stage`; `run` has them too."""

    root: Path = Path()
    hostfile: Path | None = None
    lmdb_source: Path | None = None
    how: Way | None = None
    profile: str | None = None
    is_whole: bool = False


@dataclass(frozen=True)
class RunOptions(StageOptions):
    """Options of `run`; `tensorboard` is the folder for event files."""

    new: bool = False
    until: str | None = None
    overwrite: bool = False
    stop_grace_s: float = STOP_GRACE_S
    policy: Policy = field(default_factory=Policy)
    side_by_side: bool = False
    tensorboard: Path | None = None


@dataclass(frozen=True)
class RunSetup:
    """A recipe and the resolved environment of its run: folders, hosts, programs, options.

    `environment` is added to this process's environment for the launcher. `profile` lacks the launcher
    options that the installed launcher does not know; these are `refused_options`. `spares` are the hosts of
    the hostfile beyond those that get ranks; they are not connected yet, which `connect` does. With
    `side_by_side` branches train on them. `stale` is as in FoundHosts. `start` starts the trainer.
    `chosen` is what the recipe leaves to the machine; `recipe` has the chosen threads.
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
    refused_options: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    stale: str = ""
    how: Way | None = None
    stop_grace_s: float = STOP_GRACE_S
    policy: Policy = field(default_factory=Policy)
    side_by_side: bool = False
    start: StartTrainer = launch_trainer
    chosen: Chosen = field(default_factory=Chosen)

    @property
    def trainer(self) -> Trainer:
        """The trainer of the recipe."""
        return find_trainer(self.recipe)

    def launch(self, hostfile: str = "") -> RankLaunch:
        """Return how ranks are started on our hosts, which `hostfile` lists one per line."""
        names = [host.name for host in self.hosts]
        return plan_launch(self.recipe, self.profile, names, hostfile, self.environment["PATH"])

    def training_argv(self, arguments: Sequence[str], hostfile: str, step: str = "") -> tuple[str, ...]:
        """Return the argv that starts the trainer on every rank; `step` names srun's step."""
        launch = replace(self.launch(hostfile), step=step)
        return launch.argv(launch.in_container((self.program, *arguments, *self.chosen.training_arguments)))

    def trainer_argv(self, arguments: Sequence[str]) -> tuple[str, ...]:
        """Return the argv that starts the trainer without a launcher, on this machine."""
        return self.launch().argv_without_launcher((self.program, *arguments))

    def find_launcher(self) -> str:
        """Return the path of the launcher; raises ClusterError if it is not found."""
        return self.profile.rank_launcher.find(self.environment["PATH"], self.profile.modules)

    @property
    def lmdb_hosts(self) -> tuple[Host, ...]:
        """The hosts that need a copy of the training LMDB: only one if it is in the shared Caffe root."""
        folder = self.trainer.data.folder
        return self.hosts if folder and Path(folder).is_absolute() else self.hosts[:1]

    @property
    def data_path(self) -> str:
        """The absolute path of the training data on each node; "" if the nets name their data."""
        folder = self.trainer.data.folder
        return "" if folder is None else self.path(folder)

    @property
    def built_data(self) -> tuple[Path, ...]:
        """The training data that is built if it is missing."""
        return tuple(self.root / path for path in self.trainer.data.built)

    def show(self, path: str | Path) -> str:
        """Return a path for messages: relative to the Caffe root if it is inside."""
        path = self.root / path
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)

    def path(self, path: str | Path) -> str:
        """Return a path relative to the Caffe root as an absolute path, which other hosts need."""
        return str(self.root / path)


def find_setting(recipe: AnyRecipe, options: RunOptions, connect: Connect) -> RunSetup:
    """Return the setting of a run: its hosts, programs and environment.

    Raises InputError if the hostfile or the trainer is missing, or if the launcher cannot follow the policy,
    and ClusterError if the launcher is missing.
    """
    check_root(options.root)
    root = options.root.resolve()
    profile = find_profile(recipe, options.profile)
    check_policy(options.policy, profile.rank_launcher, side_by_side=options.side_by_side)
    found = find_hosts(root, options.hostfile, recipe.cluster.nodes)
    names, spares = choose_hosts(recipe, found)
    check_job_hosts(profile, names)
    trainer = find_trainer(recipe)
    path = search_path(ours_first=trainer.is_ours)
    source = options.lmdb_source or trainer.data.source

    def connect_to(name: str) -> Host:
        return connect(name, profile.copy_with)

    program = trainer.find_program(root, path, profile)
    check_own_root(root, [root / (profile.container.image if profile.container else program)])
    known, refused = drop_refused_options(bind_ranks(profile, recipe), path)
    own = trainer.environment(root)
    environment = {**own, **plan_launch(recipe, profile, names, "", path).process_environment()}
    return RunSetup(
        recipe=recipe,
        root=root,
        hosts=open_all(names, connect_to),
        program=program,
        environment={**environment, **profile.rank_launcher.environment({**os.environ, **environment})},
        lmdb_source=root / source if source else None,
        overwrite=options.overwrite,
        profile=known,
        connect=connect_to,
        refused_options=refused,
        spares=spares,
        stale=found.stale,
        how=options.how,
        stop_grace_s=options.stop_grace_s,
        policy=options.policy,
        side_by_side=options.side_by_side,
    )


def find_profile(recipe: AnyRecipe, name: str | None) -> Profile:
    """Return the profile with that name or file; without one, a profile made from the recipe's `cluster`.

    A profile decides alone on the fabric options, which belong to the launcher and not to the recipe.
    """
    cluster = recipe.cluster
    if name is None:
        options = tuple(" ".join(FABRIC_OPTIONS[fabric]) for fabric in (cluster.fabric,) if fabric)
        launcher = LauncherDefaults(options=options)
        return Profile(name="recipe", title=recipe.title, launcher=launcher, copy_with=cluster.copy_with)
    profile = load_profile(name)
    is_given = "copy_with" in cluster.model_fields_set
    return profile.model_copy(update={"copy_with": cluster.copy_with}) if is_given else profile


def find_root(
    given: Path | None, profile: str | None, recipe: AnyRecipe | None = None, typed: Sequence[str | None] = ()
) -> Path:
    """Return the Caffe root: the one that is given, else the profile's, else the current folder.

    The current folder must contain a file or folder of the recipe, unless `recipe` is None. `typed` are the
    paths of the recipe and of its trainer from the command line. Raises InputError if the profile's folder
    does not exist, or if the current folder is not a Caffe root.
    """
    known = load_profile(profile).caffe_root if profile is not None else None
    if given is None and profile is not None and known is not None and not Path(known).is_dir():
        where, what = find_caffe_root(profile), f"caffe_root: {known!r} is not a folder here"
        raise InputError(where, what, "correct it, or give the Caffe root with --caffe-root")
    if given is not None or known is not None:
        return given or Path(known or ".")
    if recipe is not None:
        _check_current_folder(recipe, [path for path in typed if path is not None])
    return Path()


def find_trusted(profile: str | None, given: Sequence[str]) -> list[int]:
    """Return the numbers of the users that a profile and `--trust-owner` name; raises InputError."""
    named = [(profile, name) for name in (load_profile(profile).trust if profile else ())]
    return [_find_user(name, where) for where, name in [*named, *(("--trust-owner", name) for name in given)]]


def _find_user(name: str, where: str | None) -> int:
    try:
        return int(name) if name.isdecimal() and name.isascii() else pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        hint = "give the name or number of a user, as `ls -l` shows it"
        raise InputError(where or "", f"unknown user '{name[:80]}'", hint) from None


def check_own_root(root: Path, paths: Iterable[Path] = ()) -> None:
    """Raise InputError for a Caffe root in which other users could have put programs, hosts or journals.

    `paths` are of files and folders that are read or run, there or elsewhere, such as those of `own_paths`.
    """
    root, paths = root.absolute(), [path.absolute() for path in paths]
    if refused := describe_access(root, root, paths):
        at_fault = root
        if not describe_access(root, root):
            at_fault = next((path for path in paths if describe_access(root, root, [path])), root)
        raise InputError(root, refused, _hint_for_owner(at_fault, root))


def _hint_for_owner(path: Path, root: Path) -> str:
    """Return what to do about a path that others can change; only the owner of a file can change its mode."""
    root, target = root.resolve(), Path(os.path.realpath(path))
    for step in (target, *target.parents):
        try:
            status = step.stat()
        except OSError:  # it does not exist yet
            continue
        if step in root.parents:
            break
        can_replace = is_open(status) and not is_sticky(status)
        if can_replace and status.st_uid == os.geteuid():
            break
        is_ours = is_trusted(status.st_uid) or status.st_uid == root.stat().st_uid
        if can_replace and (is_ours or root not in step.parents):
            ask = f"ask user {_name_user(status.st_uid)} to make it writable only by its owner"
            return f"use a copy in a folder of your own, or {ask}"
        if not is_ours:
            return "use a copy in a folder of your own"
    if not os.path.lexists(path):
        return "create it first, or use a folder of your own"
    return "make it writable only by you, or choose another"


def _name_user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # of another machine
        return str(number)


def describe_access(folder: Path, root: Path = Path("/"), paths: Iterable[Path] = ()) -> str:
    """Return why users other than root and the owner of `root` could have put files in a folder, else "".

    Or why others could have put the `paths` there; the owner of a folder in which only they can write is
    trusted with those.
    """
    words = [str(path.absolute()) for path in paths]
    try:
        check_trust(LocalHost(), "trust", str(folder.absolute()), str(root), *words, hint="")
    except NodeRefusal as refusal:
        return refusal.what
    return ""


def _check_current_folder(recipe: AnyRecipe, typed: Sequence[str]) -> None:
    landmarks = find_trainer(recipe).landmarks
    if any(
        _is_in_current_folder(Path(path)) and Path(path).is_file()
        for path in (split_row(each)[0] for each in typed)
    ):
        return
    if any(_is_in_current_folder(Path(path)) and Path(path).exists() for path in (*landmarks, RUNS)):
        return
    lacking = ", ".join((*landmarks, RUNS))
    what = f"is not a Caffe root: it has neither the recipe's file nor any of {lacking}"
    hint = "cd to the Caffe root, or give it with --caffe-root; `--caffe-root .` uses this folder"
    raise InputError(Path.cwd(), what, hint)


def _is_in_current_folder(path: Path) -> bool:
    """Return whether a path is inside the current folder; an absolute path must be directly in it."""
    return path.parent.resolve() == Path.cwd() if path.is_absolute() else ".." not in path.parts


class FoundHosts(NamedTuple):
    """The hosts that were found, or None, and the hostfile or Slurm job that names them, or should.

    `stale_reason` is why a `hostfile` was ignored, such as that its hosts are not part of this Slurm job.
    """

    names: tuple[str, ...] | None
    where: str | Path
    stale_reason: str = ""

    @property
    def stale(self) -> str:
        """A warning about the `hostfile` that was ignored; empty if none was."""
        return f"{self.stale_reason}; using the job's hosts" if self.stale_reason else ""


def find_hosts(root: Path, given: Path | None, min_hosts: int = 0) -> FoundHosts:
    """Return the hosts of the hostfile, else those of the current Slurm job.

    Inside a job only its own hosts can be used. A `hostfile` in the Caffe root that names other hosts, names
    fewer than `min_hosts`, or cannot be read is stale and ignored. Raises InputError if a hostfile that the
    user gave names other hosts.
    """
    default, job = root / "hostfile", slurm_hosts(os.environ)
    hostfile = given or (default if default.exists() else None)
    if hostfile is None:
        return FoundHosts(job, "the Slurm job" if job else default)
    if job is None:
        return FoundHosts(load_hostfile(given) if given else _load_default(root), hostfile)
    if given is not None:
        hosts = load_hostfile(given)
        what = _describe_strangers(hosts, job)
        if what:
            raise InputError(given, what, "leave out --hostfile to use the job's hosts")
        return FoundHosts(hosts, given)
    try:
        hosts = _load_default(root)
    except InputError as error:
        return FoundHosts(job, "the Slurm job", error.without_hint)
    count = describe_count(len(hosts), "host")
    few = f"names {count}, but {min_hosts} are needed" if len(hosts) < min_hosts else ""
    what = _describe_strangers(hosts, job) or few
    if what:
        return FoundHosts(job, "the Slurm job", f"{default} {what}")
    return FoundHosts(hosts, default)


def _load_default(root: Path) -> tuple[str, ...]:
    """Return the hosts of the Caffe root's hostfile; an error does not quote a file that it is a link to."""
    path = root / "hostfile"
    try:
        return load_hostfile(path)
    except InputError:
        if is_quotable(path, root):
            raise
        what = "is a link to a file that is not a hostfile"
        raise InputError(path, what, f"give it as --hostfile {path}, to see why") from None


def _describe_strangers(hosts: Sequence[str], job: Sequence[str]) -> str:
    """Return a sentence about the hosts that are not part of the job; empty if there are none."""
    strangers = find_hosts_outside_job(hosts, job)
    return f"lists hosts outside this Slurm job: {fold_hosts(strangers)[:200]}" if strangers else ""


def name_hosts(recipe: AnyRecipe, found: FoundHosts) -> tuple[str, ...]:
    """Return the hosts that were found; if none are named, a single node is this machine.

    Raises InputError if none are named for several nodes.
    """
    nodes = recipe.cluster.nodes
    if found.names is None and nodes > 1:
        raise InputError(found.where, "no such file", f"write {nodes} hosts to it, or give --hostfile")
    return ("localhost",) if found.names is None else found.names


def choose_hosts(recipe: AnyRecipe, found: FoundHosts) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the hosts that get ranks, and the spares; raises InputError if there are too few hosts."""
    names, nodes = name_hosts(recipe, found), recipe.cluster.nodes
    return take_hosts(names, nodes, recipe.cluster.ranks_per_node, found.where), names[nodes:]


def check_job_hosts(profile: Profile, names: tuple[str, ...]) -> None:
    """Raise InputError for other hosts than the job's first, in their order, if a launcher takes these."""
    program = profile.launcher.program
    if profile.rank_launcher.chooses_hosts:
        return
    job = slurm_hosts(os.environ)
    if job is None:
        what = f"{program} starts ranks only inside a job"
        raise InputError(profile.name, what, "run inside a job, or use sbatch")
    if job[: len(names)] != names:
        what = f"{program} takes its hosts from the job ({', '.join(job[:3])}, ...), not from a hostfile"
        raise InputError(profile.name, what, "leave out --hostfile, or use another --profile")


def search_path(*, ours_first: bool) -> str:
    """Return PATH with this Python's bin folder, where pip installs a launcher and caffe-torch."""
    beside, path = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    return os.pathsep.join([beside, path] if ours_first else [path, beside])


def drop_refused_options(profile: Profile, path: str) -> tuple[Profile, tuple[str, ...]]:
    """Return the profile without the launcher options that the launcher does not know, and those options.

    A launcher that is missing or fails in another way is reported by the preflight.
    """
    launcher, starter, modules = profile.launcher, profile.rank_launcher, profile.modules
    if not launcher.options:
        return profile, ()
    try:
        program = starter.find(path, modules)
        refused = tuple(
            option
            for option in launcher.options
            if not starter.accepts(
                LocalHost(), program, option, lambda argv: with_modules(argv, modules, path)
            )
        )
    except ClusterError:
        return profile, ()
    options = tuple(option for option in launcher.options if option not in refused)
    known = launcher.model_copy(update={"options": options})
    return profile.model_copy(update={"launcher": known}), refused


# Gets each event of a run once it is in the journal, and its line, which is empty if it has none.
Observer = Callable[[Event, str], None]


class Spares:
    """The spare hosts of a run, shared by its main line and its branches; thread-safe."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        """Create the pool; spares are taken in this order."""
        self._names, self._taking = deque(names), threading.Lock()

    def take(self) -> str | None:
        """Remove and return the next spare; None if none is left."""
        with self._taking:
            return self._names.popleft() if self._names else None

    @property
    def left(self) -> tuple[str, ...]:
        """The spares that have not been taken."""
        with self._taking:
            return tuple(self._names)


@dataclass(frozen=True)
class Run:
    """A run in progress; `id` identifies its ranks, `folder` is its folder relative to the Caffe root.

    Its `observers` get its events; the `reporter` also shows what is not an event, such as progress. For a
    branch, `main` is the journal of the whole run.
    """

    id: str
    setting: RunSetup
    plan: TrainingPlan
    folder: str
    journal: Journal
    reporter: Reporter
    interrupts: Interrupts
    lock: RecipeLock
    observers: tuple[Observer, ...] = ()
    main: Journal | None = None
    spares: Spares = field(default_factory=Spares)

    def emit(self, event: Event) -> None:
        """Journal an event, then hand it to the observers; raises RunFailed if it cannot be journaled."""
        self.journal.append(event)
        self._show(event)

    def notify(self, message: str, phase: str = "") -> None:
        """Show a remark, and journal it unless the disk is full; nothing depends on a remark."""
        notice = Notice(message, phase)
        with suppress(RunFailed):
            self.journal.append(notice, patience_s=0.0)
        self._show(notice)

    def _show(self, event: Event) -> None:
        line = event.line(self.setting.recipe, self.folder)
        for observe in self.observers:
            observe(event, line)

    def path(self, path: str) -> Path:
        """Return the absolute path of a path that is relative to the Caffe root."""
        return self.setting.root / path

    def read_log(self, log: str) -> LogTail:
        """Return a reader of a trainer's log, positioned at its start."""
        secrets = self.setting.profile.launcher.environment.values()
        return LogTail(self.path(log), self.setting.trainer.new_log_summary(), [*secrets])

    def snapshots(self) -> Mapping[str, tuple[str, str]]:
        """Return the SHA-256 and the phase of every kept snapshot of the whole run, by path."""
        return (self.main or self.journal).state().snapshots

    def check_folder(self) -> None:
        """Raise RunFailed if the run's folder was removed or moved, as nothing more would be recorded."""
        if not self.journal.still_exists():
            what = "was removed or moved while the run used it"
            raise RunFailed(self.folder, what, "put it back, and run again")


_SUBMITTED = "CAFFE_RECIPES_SUBMITTED"


def submitted_environment(recipe: AnyRecipe, job: str) -> dict[str, str]:
    """Return the variables by which a job of that name recognizes a recipe that has changed."""
    return {_SUBMITTED: f"{job} {digest_recipe(recipe)}"}


def check_submitted(recipe: AnyRecipe, environment: Mapping[str, str]) -> None:
    """Raise InputError inside a job if the recipe has changed since the job was submitted.

    The variable is ignored if it names another job: a job that was submitted inside another inherits it.
    """
    job, _, digest = environment.get(_SUBMITTED, "").partition(" ")
    if job and job == environment.get("SLURM_JOB_NAME") and digest != digest_recipe(recipe):
        what = "the recipe has changed since it was submitted"
        raise InputError(recipe.name, what, "submit it again, or undo the change")
