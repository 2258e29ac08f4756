"""What the screen of a run shows, as values: phases, curves, speed, hosts and alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from caffe_recipes.run.monitor.followed_run import FollowedRun
from caffe_recipes.run.monitor.screen.alarms import WatchedTraining, find_alarms
from caffe_recipes.run.trainer import Training
from caffe_recipes.run.trainer_log import PhaseProgress

# More points than this have no room on any terminal; then every second one is dropped.
_MOST_POINTS = 4096
CurvePoint = tuple[float, float]  # epochs since the beginning of the run, and a value


@dataclass(frozen=True)
class PhaseRow:
    """A phase: its progress, last loss and speed, None where not known; `word` is its state."""

    name: str
    word: str
    iteration: int
    last_iter: int
    loss: float | None = None
    images_per_s: float | None = None
    left_s: float | None = None


@dataclass(frozen=True)
class HostCell:
    """A host of the ranks, and how it is: `ok`, `late` (others wait for it) or `blamed` (a launch ended)."""

    name: str
    state: str = "ok"


@dataclass(frozen=True)
class ScreenContents:
    """All that the screen shows. Times are in seconds and None if not known; `tested` is the last accuracy.

    `losses` and `rates` are curves over epochs. `waits_for` says what the speed and times wait for.
    """

    name: str
    doing: str
    ran_s: float | None = None
    left_s: float | None = None
    phases: Sequence[PhaseRow] = ()
    epochs: float = 0.0
    all_epochs: float = 0.0
    losses: Sequence[CurvePoint] = ()
    rates: Sequence[CurvePoint] = ()
    images_per_s: float | None = None
    tested: float | None = None
    reported_percent: float | None = None
    hosts: Sequence[HostCell] = ()
    ranks: int = 0
    alarms: Sequence[str] = ()
    waits_for: str = ""


@dataclass
class CurveHistory:
    """The losses and rates of the main line since the screen was opened, through all phases."""

    losses: list[CurvePoint] = field(default_factory=list)
    rates: list[CurvePoint] = field(default_factory=list)
    _log: str = ""
    _last_iter: int = -1

    def add(self, run: FollowedRun) -> None:
        """Add what the log of the current launch shows since the last time."""
        launch, step = run.state.launch, run.step
        if launch is None or step is None:
            return
        if launch.log != self._log:
            self._log, self._last_iter = launch.log, -1
        for iteration, loss in reversed(_since(run.summary.losses, self._last_iter)):
            epoch = (step.images_before + iteration * step.images_per_iter) / run.recipe.train_images
            self.losses.append((epoch, loss))
            if iteration in run.summary.rates:
                self.rates.append((epoch, run.summary.rates[iteration]))
            self._last_iter = max(self._last_iter, iteration)
        self.trim()

    def trim(self) -> None:
        """Drop every second point once there are more than any terminal has columns for."""
        for points in (self.losses, self.rates):
            if len(points) > _MOST_POINTS:
                del points[1::2]


def _since(values: dict[int, float], last_iter: int) -> list[tuple[int, float]]:
    """Return the values after an iteration, the newest first, without reading those before it."""
    found: list[tuple[int, float]] = []
    for at, value in reversed(values.items()):
        if at <= last_iter:
            break
        found.append((at, value))
    return found


def read_contents(run: FollowedRun, history: CurveHistory, quiet_s: float, now_s: float) -> ScreenContents:
    """Return what the screen shows of a run; `now_s` is the time, in seconds since 1970."""
    history.add(run)
    progress, step = run.progress(), run.step
    each = [run, *run.beside]
    shown = {one.phase: one for one in (other.progress() for other in each) if one is not None}
    rows = [_describe_phase(run, each_step, shown.get(each_step.phase)) for each_step in run.steps]
    done = sum(row.iteration * one.images_per_iter for row, one in zip(rows, run.steps, strict=True))
    watched = [_watch(one, quiet_s) for one in each]
    alarms = [alarm for one in watched if one is not None for alarm in find_alarms(one)]
    main = watched[0]
    return ScreenContents(
        run.folder,
        _describe_doing(run, step),
        None if run.first_s is None else max(0.0, now_s - run.first_s),
        progress.chain_left_s if progress else None,
        rows,
        done / run.recipe.train_images,
        sum(one.images for one in run.steps) / run.recipe.train_images,
        history.losses,
        history.rates,
        progress.images_per_s if progress else None,
        progress.test_accuracy if progress else None,
        run.recipe.reported.top1_percent,
        () if main is None else _describe_hosts(main),
        run.recipe.cluster.nodes * run.recipe.cluster.ranks_per_node,
        tuple(dict.fromkeys(alarms)),
        progress.waits_for if progress else "",
    )


def _describe_doing(run: FollowedRun, step: Training | None) -> str:
    if run.is_complete:
        return "finished"
    if step is None:
        return "between phases" if run.state.finished else "starting"
    number = [one.phase for one in run.steps].index(step.phase) + 1
    return f"{step.phase}, phase {number} of {len(run.steps)}"


def _describe_phase(run: FollowedRun, step: Training, progress: PhaseProgress | None) -> PhaseRow:
    finish = run.state.finished.get(step.phase)
    if finish is not None:
        return PhaseRow(
            step.phase, "finished", step.last_iter, step.last_iter, finish.loss, finish.images_per_s, 0.0
        )
    if progress is not None:
        return PhaseRow(
            step.phase,
            "training" if step.is_main else "branch",
            progress.iteration,
            step.last_iter,
            progress.loss,
            progress.images_per_s,
            progress.phase_left_s,
        )
    launch = run.state.launch
    is_starting = launch is not None and launch.phase == step.phase
    return PhaseRow(step.phase, "starting" if is_starting else "waiting", 0, step.last_iter)


def _watch(run: FollowedRun, quiet_s: float) -> WatchedTraining | None:
    launch, step = run.state.launch, run.step
    if launch is None or step is None:
        return None
    return WatchedTraining(
        run.recipe, step, run.summary, quiet_s, run.shown_by_rank, launch.hosts, tuple(run.blamed)
    )


def _describe_hosts(watched: WatchedTraining) -> list[HostCell]:
    late = {watched.host_of(rank) for rank in watched.late_ranks()}
    cells = [HostCell(host, "late" if host in late else "ok") for host in watched.hosts]
    return cells + [HostCell(host, "blamed") for host in watched.blamed if host not in watched.hosts]
