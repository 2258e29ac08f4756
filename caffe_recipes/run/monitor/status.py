"""Where runs stand: local ones, those on other hosts, and those that are in a queue of Slurm's. Only read.

A state that cannot be asked for is unknown, and never a failure.

Where runs stand, as people and as programs read it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from caffe_recipes.errors import CaffeRecipesError, InputError
from caffe_recipes.run.console import describe_results
from caffe_recipes.run.events import is_trained
from caffe_recipes.run.folders import parse_run_name
from caffe_recipes.run.journal import empty_journal_error
from caffe_recipes.run.monitor.files import (
    HostFiles,
    RunFiles,
    find_run,
    load_frozen,
    name_recipe,
)
from caffe_recipes.run.monitor.follow import (
    FileFollower,
    FollowEnv,
    RunInterrupted,
    ShownRun,
    open_runs,
)
from caffe_recipes.run.plan import find_step, plan_steps
from caffe_recipes.run.process import TrainerProcess
from caffe_recipes.run.submit.submissions import (
    SUFFIX,
    Ask,
    SeenJob,
    Submission,
    Submissions,
    describe_job,
    name_seen,
    read_submissions,
    see_jobs,
    submitted_by_hand,
)
from caffe_recipes.run.trainer import find_trainer
from caffe_recipes.run.trainer_log import Progress
from caffe_recipes.units import describe_duration, write_clock
from caffe_recipes.wording import printable


@dataclass(frozen=True)
class StatusOptions:
    """Where the runs are; `root` is a path on the host `on`."""

    root: str = "."
    on: str | None = None


@dataclass(frozen=True)
class Standing:
    """Where a run stands, and its jobs; without a run only what was submitted of a recipe.

    `lives` tells of the run's process; None where that is not known. `spoilt` is why a run cannot be read.
    `left_pid` is the process that a killed run has left training, where that can be seen from here.
    """

    name: str
    recipe: str
    run: ShownRun | None = None
    lives: bool | None = None
    jobs: tuple[SeenJob, ...] = ()
    spoilt: CaffeRecipesError | None = None
    left_pid: int | None = None

    @property
    def branches(self) -> tuple[ShownRun, ...]:
        """What trains beside the main line, each as a run of its own."""
        beside = self.run.beside if self.run else ()
        return tuple(branch for branch in beside if branch.state.launch is not None)

    @property
    def progress(self) -> Progress | None:
        """Where the phase is that trains, or did when the run was last seen."""
        return self.run.progress() if self.run else None

    @property
    def state(self) -> str:
        """One word: finished, running, waiting, failed, interrupted, stopped, over or unknown."""
        standings = {job.standing for job in self.jobs}
        if self.run is not None and self.run.is_complete:
            return "finished"
        if self.lives or "running" in standings:
            return "running"
        if "waiting" in standings:
            return "waiting"
        if self.spoilt or "unknown" in standings:
            return "unknown"
        if self.run is None:
            return "over"
        if self.run.failure is not None:
            return "interrupted" if isinstance(self.run.failure, RunInterrupted) else "failed"
        return (
            "stopped" if self.lives is False or self.run.state.pid is None or self.is_job_over else "unknown"
        )

    @property
    def is_job_over(self) -> bool:
        """Whether the run's process was a job's that Slurm says is over."""
        over = [job.job_id for job in self.jobs if job.standing == "over"]
        return self.run is not None and self.run.job_id is not None and self.run.job_id in over

    @property
    def has_process(self) -> bool:
        """Whether the run's process is worth reporting: it may live, as far as is known."""
        if self.run is None or self.run.state.pid is None or self.state not in ("running", "unknown"):
            return False
        # A job that runs may not have begun to carry the run on.
        live = [job.job_id for job in self.jobs if job.is_live]
        return self.lives is not False and (not live or bool(self.lives) or self.run.job_id in live)

    @property
    def is_evaluating(self) -> bool:
        """Whether all phases are finished, and what is left is the evaluation."""
        return self.run is not None and is_trained(self.run.state, self.run.recipe)


def find_standings(
    options: StatusOptions, env: FollowEnv | None = None, ask: Ask | None = None
) -> list[Standing]:
    """Return where all runs stand: by recipe, the latest first.

    Raises InputError for a root that is not there, ClusterError for the host.
    """
    with open_runs(options.root, options.on, env or FollowEnv(), ask) as runs:
        files, path = runs.files, runs.path
        found = [_read_run(files, f"{path}/{name}") for name in files.names(path)]
        submitted = {name: read_submissions(files, path, name) for name in files.recipes(path, SUFFIX)}
        if not found and not submitted:
            _check_root(files, options.root)
        return _join(found, submitted, runs.ask)


def find_standing(
    run: str,
    options: StatusOptions,
    env: FollowEnv | None = None,
    ask: Ask | None = None,
    *,
    reach: bool = True,
) -> Standing:
    """Return where one run stands, given as attach is; raises InputError if there is neither it nor a job.

    The host of its process is asked, if need be and `reach`, whether that lives.
    """
    env = env or FollowEnv()
    with ExitStack() as stack:
        runs = stack.enter_context(open_runs(options.root, options.on, env, ask))
        files, recipe = runs.files, name_recipe(run)
        submitted = read_submissions(files, runs.path, recipe)
        try:
            path = find_run(files, options.root, run)
        except InputError:
            if not submitted.all:
                raise
            return Standing(recipe, recipe, jobs=see_jobs(submitted.latest, runs.ask))
        standing = _read_run(files, path, given=run)
        if standing.spoilt:
            raise standing.spoilt
        if not submitted.all:
            submitted = read_submissions(files, posixpath.dirname(path), standing.recipe)
        is_latest = find_run(files, options.root, standing.recipe) == path
        latest = submitted.latest if is_latest or _is_of(standing, submitted.latest) else ()
        standing = _with_jobs(standing, see_jobs((*latest, *_by_hand(standing, submitted)), runs.ask))
        is_ours = any(job.submission.is_ours for job in standing.jobs)
        if reach and standing.state == "unknown" and not is_ours and standing.run is not None:
            follower = FileFollower(files, standing.run.reporter, env, once=True)
            stack.callback(follower.close)
            follower.look(standing.run)  # which host it is, so that the run's own can be another
            return replace(standing, lives=follower.look(standing.run).lives)
        return standing


def _check_root(files: RunFiles, root: str) -> None:
    """Raise InputError if there is no such folder, in which there are no runs either."""
    if isinstance(files, HostFiles):
        is_there = files.there.run(["test", "-d", root]).returncode == 0
    else:
        is_there = Path(root).is_dir()
    if not is_there:
        where = f"{files.host}:{root}" if files.host else root
        raise InputError(where, "no such folder", "give the one that holds `runs` with --caffe-root")


def _read_run(files: RunFiles, path: str, given: str = "") -> Standing:
    """Read a run's files; what cannot be read is named in the standing."""
    name = posixpath.basename(path)
    found = parse_run_name(name)
    recipe = found[0] if found else name
    try:
        shown = ShownRun(given or recipe, path, load_frozen(files, path), with_branches=True)
        shown.take(files.look(shown.wanted()).pieces)
        look = files.look(shown.wanted(), shown.process)
        shown.take(look.pieces, live=False)
        if shown.beside:  # each has a journal, which names its log
            shown.take(files.look(shown.wanted()).pieces, live=False)
        if shown.last_s is None and files.recipes(
            f"{path}/snapshots", find_trainer(shown.recipe).model_suffix
        ):
            raise empty_journal_error(f"{path}/journal.jsonl")
    except CaffeRecipesError as error:
        return Standing(name, recipe, spoilt=error)
    left_pid = _find_left(shown) if look.lives is False and not files.host else None
    return Standing(name, shown.recipe.name, shown, look.lives, left_pid=left_pid)


def _find_left(run: ShownRun) -> int | None:
    """Return the process that a killed run of this machine has left training, if one has outlived it."""
    launch = run.state.launch
    return TrainerProcess(Path(run.path, "logs", posixpath.basename(launch.log))).pid() if launch else None


def _join(found: Sequence[Standing], submitted: dict[str, Submissions], ask: Ask) -> list[Standing]:
    """Put jobs to the runs that they carry on, or are to; of Slurm all is asked at once."""
    joined = sorted(found, key=lambda each: (each.recipe, -_number(each.name)))
    by_hand: dict[str, tuple[Submission, ...]] = {}  # of each recipe's latest run
    for each in joined:
        by_hand.setdefault(each.recipe, _by_hand(each, submitted.get(each.recipe, Submissions())))
    groups = {recipe: submissions.latest for recipe, submissions in submitted.items()}
    everything = [each for group in (*groups.values(), *by_hand.values()) for each in group]
    seen = dict(zip(everything, see_jobs(everything, ask), strict=True))
    for recipe, own_jobs in by_hand.items():
        latest = next(index for index, each in enumerate(joined) if each.recipe == recipe)
        joined[latest] = _with_jobs(joined[latest], [seen[each] for each in own_jobs])
    for recipe, group in groups.items():
        jobs = tuple(seen[each] for each in group)
        of_recipe = [index for index, each in enumerate(joined) if each.recipe == recipe]
        own = next((index for index in of_recipe if _is_of(joined[index], group)), None)
        at = own if own is not None else next(iter(of_recipe), None)
        begins_new = at is None or (own is None and joined[at].state == "finished")
        if at is not None and not begins_new:
            joined[at] = _with_jobs(joined[at], jobs)
        elif begins_new and (at is None or any(job.standing != "over" for job in jobs)):
            place = at if at is not None else len(joined)
            joined.insert(place, Standing(recipe, recipe, jobs=jobs))
    return sorted(joined, key=lambda each: each.recipe)


def _by_hand(standing: Standing, submitted: Submissions) -> tuple[Submission, ...]:
    """Return what stands for the job of an unfinished run that a user's own sbatch has submitted."""
    run = standing.run
    if run is None or run.job_id is None or run.is_complete or run.last_s is None:
        return ()
    if any(each.job_id == run.job_id for each in submitted.all):
        return ()
    return (submitted_by_hand(standing.recipe, run.job_id, run.last_s),)


def _with_jobs(standing: Standing, jobs: Sequence[SeenJob]) -> Standing:
    """Return it with more jobs, in the order in which they were first seen.

    Of a run whose end is journaled, a Slurm that gives no answer makes nothing unknown; and once it is
    gone on with, a job that is over matters to nobody.
    """
    has_ended = standing.run is not None and standing.run.failure is not None
    everything = (*standing.jobs, *jobs)
    ours = [job for job in everything if job.submission.is_ours]
    others = [job for job in everything if not job.submission.is_ours and not (job.away and has_ended)]
    if any(job.is_live for job in ours):
        others = [job for job in others if job.standing != "over"]
    is_later = any(job.submission.time_s > other.submission.time_s for job in ours for other in others)
    return replace(standing, jobs=(*others, *ours) if is_later else (*ours, *others))


def _is_of(standing: Standing, submitted: Sequence[Submission]) -> bool:
    """Tell whether one of the jobs has carried the run on."""
    ids = standing.run.job_ids if standing.run else ()
    return any(each.job_id in ids for each in submitted)


def _number(name: str) -> int:
    found = parse_run_name(name)
    return found[1] if found else 0


def summarize_standing(standing: Standing) -> str:
    """Say on one line where a run stands, behind its name and the word for its state."""
    run = standing.run
    if standing.spoilt is not None:
        return str(standing.spoilt)
    jobs = [f"{name_seen(job)} {_describe_seen(standing, job)}" for job in _shown_jobs(standing)]
    if run is None:
        return "; ".join(jobs)
    if standing.state == "finished":
        between = "; " if len(run.state.evaluations) > 1 else ", "
        return between.join(describe_results(run.recipe, run.state)) or "all phases are finished"
    if standing.state in ("running", "unknown"):
        beside = [f"beside it {_describe_work(branch, standing)}" for branch in standing.branches]
        return "; ".join([_describe_work(run, standing), *beside, *(jobs or [_describe_process(standing)])])
    if standing.state == "waiting":
        return "; ".join(jobs)
    if run.failure is None:
        return "; ".join([*jobs, *_describe_left(standing), _resume_hint(run, standing)])
    failure = run.failure
    if isinstance(failure, RunInterrupted):
        failure = failure.reworded(hint=_resume_hint(run, standing))
    return "; ".join([*jobs, str(failure)])


# The columns of the table of runs, and those that a narrow terminal goes without, one after the other.
_COLUMNS = ("run", "state", "phase", "reached", "started", "elapsed", "left", "result")
_DROPPED = ("started", "reached", "elapsed", "left", "phase")
_NUMBERS = ("reached", "elapsed", "left")
# So much of a result is worth a column of its own.
_RESULT = 13
_STYLES = {
    "finished": "green",
    "running": "cyan",
    "waiting": "blue",
    "failed": "red",
    "interrupted": "yellow",
    "stopped": "yellow",
    "unknown": "magenta",
}


def table_of_standings(
    standings: Sequence[Standing], now_s: float, width: int | None = None
) -> list[list[tuple[str, str]]]:
    """Return a line for each run below a header, the newest first, as pieces of text with their styles.

    With `width` each fits a terminal: the less important columns are left out, and a long result is cut.
    """
    newest = sorted(standings, key=lambda each: -(_started_s(each) or now_s))
    rows = [_COLUMNS, *(_row(each, now_s) for each in newest)]
    widths = {name: max(len(row[index]) for row in rows) for index, name in enumerate(_COLUMNS)}
    shown = [
        name for name in _COLUMNS if name == "result" or any(row[_COLUMNS.index(name)] for row in rows[1:])
    ]
    for name in _DROPPED if width is not None else ():
        if sum(widths[each] + 2 for each in shown[:-1]) + min(_RESULT, widths["result"]) <= (width or 0):
            break
        shown = [each for each in shown if each != name]
    lines = []
    for number, row in enumerate(rows):
        pieces: list[tuple[str, str]] = []
        for name in shown[:-1]:
            text, wide = row[_COLUMNS.index(name)], widths[name]
            padded = text.rjust(wide) if name in _NUMBERS else text.ljust(wide)
            style = "bold" if number == 0 else _STYLES.get(text, "") if name == "state" else ""
            pieces += [(padded, style), ("  ", "")]
        room = None if width is None else max(0, width - sum(len(text) for text, _ in pieces))
        pieces.append((_cut(row[-1], room), "" if number else "bold"))
        lines.append(pieces)
    return lines


def _cut(text: str, room: int | None) -> str:
    return text if room is None or len(text) <= room else f"{text[: max(0, room - 3)]}..."[:room]


def _row(standing: Standing, now_s: float) -> tuple[str, ...]:
    """Return what the table shows of a run, in the order of its columns."""
    run, progress = standing.run, standing.progress
    started_s, left_s = _started_s(standing), _left_s(standing)
    elapsed_s = _elapsed_s(standing, now_s)
    reached = ""
    if progress is not None and standing.state == "running":
        reached = f"{progress.iteration}/{progress.last_iter}"
    elif run is not None and standing.state != "finished":
        reached = _reached(run, progress)
    return (
        standing.name,
        standing.state,
        _place(run),
        reached,
        _here(started_s) if started_s is not None else "",
        write_clock(elapsed_s) if elapsed_s is not None else "",
        write_clock(left_s) if left_s is not None else "",
        printable(_result(standing)),
    )


def _place(run: ShownRun | None) -> str:
    """Return the phase that trains, or that is next, behind its number; "" once all are finished."""
    if run is None or run.is_complete:
        return ""
    names = [step.phase for step in plan_steps(run.recipe)]
    launched = run.state.launch.phase if run.state.launch else None
    left = [launched] if launched in names else [name for name in names if name not in run.state.finished]
    return f"{names.index(left[0]) + 1}/{len(names)} {left[0]}" if left and left[0] else "evaluation"


def _reached(run: ShownRun, progress: Progress | None) -> str:
    """Return the checkpoint from which an unfinished phase resumes, else the iteration that it reached."""
    newest = [kept[-1].iteration for phase, kept in run.state.checkpoints.items() if kept]
    if newest:
        return f"checkpoint {newest[-1]}"
    return f"{progress.iteration}/{progress.last_iter}" if progress is not None else ""


def _started_s(standing: Standing) -> float | None:
    """Return when a run began, or its first job was submitted."""
    if standing.run is not None:
        return standing.run.first_s
    return min((job.submission.time_s for job in standing.jobs if job.submission.time_s), default=None)


def _elapsed_s(standing: Standing, now_s: float) -> float | None:
    """Return the seconds since a run began, until now if it runs, else until its last event."""
    run = standing.run
    if run is None or run.first_s is None or run.last_s is None:
        return None
    return max(0.0, (now_s if standing.state == "running" else run.last_s) - run.first_s)


def _left_s(standing: Standing) -> float | None:
    progress = standing.progress
    return progress.chain_left_s if progress is not None and standing.state == "running" else None


def _result(standing: Standing) -> str:
    """Return the one thing that matters about a run: its accuracy, its loss, or why it does not run."""
    run, progress = standing.run, standing.progress
    if run is not None and standing.state == "finished":
        found = describe_results(run.recipe, run.state)
        return (
            next((line for line in found if "top-1" in line), "; ".join(found[:1])) or "all phases finished"
        )
    if run is not None and standing.state == "running":
        if progress is not None and progress.loss is not None:
            return f"loss {progress.loss:#.4g}"
        return "evaluating" if standing.is_evaluating else "preparing"
    if run is not None and standing.state == "failed" and run.failure is not None:
        return run.failure.without_hint
    if standing.state in ("interrupted", "stopped"):
        return "run again to resume"
    return summarize_standing(standing)


def detail_standing(standing: Standing, now_s: float) -> Iterator[tuple[str, str]]:
    """Yield all that is known of one run: a word for what it is, and it in words."""
    run, progress = standing.run, standing.progress
    yield "state", standing.state
    if (started_s := _started_s(standing)) is not None:
        yield "started", _here(started_s)
    if (elapsed_s := _elapsed_s(standing, now_s)) is not None:
        yield "elapsed", write_clock(elapsed_s)
    if run is not None and standing.state in ("running", "unknown"):
        yield "phase", _describe_phase(run, standing)
    elif run is not None and standing.state != "finished":
        yield "phase", "  ".join(filter(None, (_place(run), _reached(run, progress))))
    if run is not None and standing.state in ("running", "unknown"):
        for branch in standing.branches:
            yield "beside", _describe_phase(branch, standing)
    if run is not None and progress is not None:
        yield from _describe_rate(run, progress)
    for finish in run.state.finished.values() if run else ():
        speed = f", {finish.images_per_s:,.0f} images/s" if finish.images_per_s else ""
        loss = f", loss {finish.loss:.4g}" if finish.loss is not None else ""
        yield finish.phase, f"finished in {describe_duration(finish.seconds)}{speed}{loss}"
    for line in describe_results(run.recipe, run.state) if run else ():
        yield "result", line
    for job in standing.jobs:
        yield "job", f"{name_seen(job).removeprefix('job ')} {_describe_seen(standing, job)}"
    if run is not None:
        for left in _describe_left(standing):
            yield "trainer", left
        if standing.has_process:
            yield "process", _describe_process(standing)
        failure = _describe_failure(run)
        if failure and standing.state != "finished":
            yield "before" if _is_past(standing) else "failure", failure
        if run.launches:
            yield "log", run.launches[-1][1]
        for branch in standing.branches:
            yield "log", branch.launches[-1][1]
        if standing.state == "finished":
            for model in run.models:
                yield "model", model
        elif standing.state in ("failed", "interrupted", "stopped"):
            yield "next", _resume_hint(run, standing)


def standing_as_json(standing: Standing) -> dict[str, Any]:
    """Return where a run stands as JSON values; units stand in the names, times are in UTC."""
    run, progress = standing.run, standing.progress
    return {
        "run": standing.name if run or standing.spoilt else None,
        "recipe": standing.recipe,
        "state": standing.state,
        "said": summarize_standing(standing),
        "time": _utc(run.last_s) if run and run.last_s is not None else None,
        "progress": progress.as_json() | {"s_per_iter": _pace(run, progress)} if run and progress else None,
        "beside": [
            {"phase": phase, "log": log, "progress": progress.as_json() if progress else None}
            for branch in standing.branches
            for (phase, log), progress in [(branch.launches[-1], branch.progress())]
        ],
        "phases": [asdict(finish) for finish in run.state.finished.values()] if run else [],
        "outputs": dict(run.state.outputs) if run and run.state.outputs else None,
        "evaluations": {phase: dict(each) for phase, each in run.state.evaluations.items()} if run else {},
        "process": {"pid": run.state.pid, "host": run.state.host, "lives": standing.lives}
        if run and run.state.pid is not None
        else None,
        "jobs": [
            {
                "job": job.job_id,
                "name": job.submission.name,
                "phase": job.submission.phase,
                "state": job.job.state.value if job.job else None,
                "standing": job.standing,
                "said": _describe_seen(standing, job),
            }
            for job in standing.jobs
        ],
        "failure": _describe_failure(run) if run else None,
        "log": run.launches[-1][1] if run and run.launches else None,
    }


def _resume_hint(run: ShownRun, standing: Standing) -> str:
    """Return the command that resumes a run as it was begun: here, or in a job."""
    return (
        run.resume_hint.replace("caffe-recipes run", "caffe-recipes submit")
        if standing.jobs
        else run.resume_hint
    )


def _describe_left(standing: Standing) -> list[str]:
    """Report the trainer of a killed run that is alive, which a resumed run takes over."""
    return [] if standing.left_pid is None else [f"process {standing.left_pid} of a killed run still trains"]


def _is_past(standing: Standing) -> bool:
    """Tell whether the last failure is behind the run: it has gone on, or its job is about to."""
    run = standing.run
    return run is not None and (run.failure is None or standing.state in ("running", "waiting"))


def _describe_failure(run: ShownRun) -> str | None:
    """Say what the run failed of last; what resumes it is reported elsewhere."""
    failure = run.last_failure
    if failure is None:
        return None
    return failure.what if isinstance(failure, RunInterrupted) else str(failure)


def _describe_work(run: ShownRun, standing: Standing) -> str:
    """Say what a run, or what trains beside it, does, in a few words."""
    progress = run.progress()
    if progress is None:
        return _describe_phase(run, standing)
    place = f"{progress.phase} {progress.iteration:,}/{progress.last_iter:,}"
    return ", ".join([place, *progress.timing])


def _describe_phase(run: ShownRun, standing: Standing) -> str:
    progress = run.progress()
    if run.state.launch is None:
        return "evaluating" if standing.is_evaluating else "preparing"
    name = run.state.launch.phase
    names = [step.phase for step in plan_steps(run.recipe)]
    place = f" ({names.index(name) + 1} of {len(names)})" if name in names else ""
    if progress is None:
        return f"{name}{place}: no iteration yet"
    loss = f", loss {progress.loss:.4g}" if progress.loss is not None else ""
    rate = f", lr {progress.rate:.5g}" if progress.rate is not None else ""
    return f"{name}{place}: iteration {progress.iteration:,} of {progress.last_iter:,}{rate}{loss}"


def _describe_rate(run: ShownRun, progress: Progress) -> Iterator[tuple[str, str]]:
    pace = _pace(run, progress)
    if progress.images_per_s is not None and pace is not None:
        yield "rate", f"{progress.images_per_s:,.0f} images/s, {pace:.3g} s an iteration"
    if progress.phase_left_s is not None and progress.chain_left_s is not None:
        phase, chain = write_clock(progress.phase_left_s), write_clock(progress.chain_left_s)
        yield "left", f"phase {phase}, run {chain}"


def _pace(run: ShownRun, progress: Progress) -> float | None:
    """Return the seconds of an iteration."""
    if not progress.images_per_s:
        return None
    return find_step(run.recipe, progress.phase).images_per_iter / progress.images_per_s


def _describe_process(standing: Standing) -> str:
    run = standing.run
    if run is None or run.state.pid is None:
        return "no process"
    name = f"process {run.state.pid} on {run.state.host}"
    if standing.lives is not None:
        return name if standing.lives else f"{name}, which is gone"
    heard = f", last seen at {_here(run.last_s)}" if run.last_s is not None else ""
    return (
        name if standing.state in ("running", "finished") else f"{name}{heard}: whether it lives is not known"
    )


def _shown_jobs(standing: Standing) -> list[SeenJob]:
    """Return the jobs that a line shows: those that live, else the last."""
    live = [job for job in standing.jobs if job.standing != "over"]
    return live[:1] or list(standing.jobs[-1:])


def _describe_seen(standing: Standing, job: SeenJob) -> str:
    """Say what a job does; where Slurm is away, since when that is not known."""
    run = standing.run
    if run is not None and run.last_s is not None and run.last_s > job.submission.time_s:
        return describe_job(job, run.last_s, "then the run went on")
    return describe_job(job)


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _here(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")
