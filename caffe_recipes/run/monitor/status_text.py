"""Render the status of runs as a line, as a table, in detail, or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from caffe_recipes.run.console import describe_results
from caffe_recipes.run.monitor.followed_run import FollowedRun, RunInterrupted
from caffe_recipes.run.monitor.status import StatusEntry
from caffe_recipes.run.submit.submissions import (
    SubmittedJob,
    describe_job,
)
from caffe_recipes.run.trainer_log import PhaseProgress, next_display
from caffe_recipes.run.training_plan import find_step
from caffe_recipes.units import write_clock
from caffe_recipes.wording import one_line, shorten

# Below this share of the earlier speed a run is slow.
_SLOW = 0.8


def summarize_status(status: StatusEntry) -> str:
    """Return one line about a run, to follow its name and its state."""
    run = status.run
    if status.unreadable is not None:
        return str(status.unreadable)
    jobs = [f"job {job.label} {_describe_seen(status, job)}" for job in _shown_jobs(status)]
    if run is None:
        return "; ".join(jobs)
    if status.state == "finished":
        between = "; " if len(run.state.evaluations) > 1 else ", "
        return between.join(describe_results(run.recipe, run.state).values()) or "all phases are finished"
    if status.state in ("running", "unknown"):
        branches = [f"in parallel {_describe_work(branch, status)}" for branch in status.branches]
        return "; ".join([_describe_work(run, status), *branches, *(jobs or [_describe_process(status)])])
    if status.state == "waiting":
        return "; ".join(jobs)
    if run.failure is None:
        return "; ".join([*jobs, *_describe_left(status), _resume_hint(run, status)])
    failure = run.failure
    if isinstance(failure, RunInterrupted):
        failure = failure.reworded(hint=_resume_hint(run, status))
    return "; ".join([*jobs, str(failure)])


# The columns of the table of runs, and those that are dropped on a narrow terminal, in this order.
_COLUMNS = ("run", "state", "phase", "reached", "started", "elapsed", "left", "result")
_DROPPED = ("started", "reached", "elapsed", "left", "phase")
_NUMBERS = ("reached", "elapsed", "left")
# The width to keep for the result before other columns are dropped.
_RESULT_WIDTH = 13
_STYLES = {
    "finished": "green",
    "running": "cyan",
    "waiting": "blue",
    "failed": "red",
    "interrupted": "yellow",
    "stopped": "yellow",
    "unattended": "magenta",
    "unknown": "magenta",
}


def status_table(
    statuses: Sequence[StatusEntry], now_s: float, width: int | None = None
) -> list[list[tuple[str, str]]]:
    """Return a header and a line for each run, the newest first, as pieces of text with their styles.

    With `width` the lines fit a terminal: less important columns are dropped, and a long result is truncated.
    """
    newest = sorted(statuses, key=lambda each: -(_started_s(each) or now_s))
    rows = [_COLUMNS, *(_row(each, now_s) for each in newest)]
    widths = {name: max(len(row[index]) for row in rows) for index, name in enumerate(_COLUMNS)}
    shown = [
        name for name in _COLUMNS if name == "result" or any(row[_COLUMNS.index(name)] for row in rows[1:])
    ]
    for name in _DROPPED if width is not None else ():
        if sum(widths[each] + 2 for each in shown[:-1]) + min(_RESULT_WIDTH, widths["result"]) <= (
            width or 0
        ):
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
        room = len(row[-1]) if width is None else max(0, width - sum(len(text) for text, _ in pieces))
        pieces.append((shorten(row[-1], room), "" if number else "bold"))
        lines.append(pieces)
    return lines


def _row(status: StatusEntry, now_s: float) -> tuple[str, ...]:
    """Return the cells of a run's line in the table."""
    run, progress = status.run, status.progress
    started_s, left_s = _started_s(status), _left_s(status)
    spent_s = elapsed_s(status, now_s)
    reached = ""
    if progress is not None and status.state == "running":
        reached = f"{progress.iteration}/{progress.last_iter}"
    elif run is not None and status.state != "finished":
        reached = _reached(run, progress)
    cells = (
        status.name,
        status.state,
        _phase_of(run),
        reached,
        _local_time(started_s) if started_s is not None else "",
        write_clock(spent_s) if spent_s is not None else "",
        write_clock(left_s) if left_s is not None else "",
        _result(status),
    )
    return tuple(map(one_line, cells))


def _phase_of(run: FollowedRun | None) -> str:
    """Return the number and name of the current phase, or of the next one; "" once all are finished."""
    if run is None or run.is_complete:
        return ""
    names = [step.phase for step in run.steps]
    launched = run.state.launch.phase if run.state.launch else None
    left = [launched] if launched in names else [name for name in names if name not in run.state.finished]
    return f"{names.index(left[0]) + 1}/{len(names)} {left[0]}" if left and left[0] else "evaluation"


def _reached(run: FollowedRun, progress: PhaseProgress | None) -> str:
    """Return the checkpoint that an unfinished phase resumes from, else the iteration that it reached."""
    newest = [kept[-1].iteration for phase, kept in run.state.checkpoints.items() if kept]
    if newest:
        return f"checkpoint {newest[-1]}"
    return f"{progress.iteration}/{progress.last_iter}" if progress is not None else ""


def _started_s(status: StatusEntry) -> float | None:
    """Return the time at which a run was started, or its first job was submitted."""
    if status.run is not None:
        return status.run.first_s
    return min((job.submission.time_s for job in status.jobs if job.submission.time_s), default=None)


def elapsed_s(status: StatusEntry, now_s: float) -> float | None:
    """Return for how many seconds a run has run, without pauses, until now or its last known event."""
    run = status.run
    if run is None or run.last_s is None:
        return None
    is_running = status.state == "running" and status.has_process
    return run.ran_s + (max(0.0, now_s - run.last_s) if is_running else 0.0)


def _left_s(status: StatusEntry) -> float | None:
    progress = status.progress
    return progress.chain_left_s if progress is not None and status.state == "running" else None


def _result(status: StatusEntry) -> str:
    """Return the most important fact about a run: its accuracy, its loss, or why it is not running."""
    run, progress = status.run, status.progress
    if run is not None and status.state == "finished":
        found = describe_results(run.recipe, run.state)
        first = next(iter(found.values()), "all phases finished")
        return next((line for name, line in found.items() if "top-1" in name), first)
    if run is not None and status.state == "running":
        if progress is not None and progress.loss is not None:
            return f"loss {progress.loss:#.4g}"
        return "evaluating" if status.is_evaluating else "preparing"
    if run is not None and status.state == "failed" and run.failure is not None:
        return run.failure.without_hint
    if status.state == "unattended" and status.left is not None:
        return status.left.text
    if status.state in ("interrupted", "stopped"):
        again = "renamed; not resumed" if status.is_renamed else "run again to resume"
        return f"superseded by {status.later}" if status.later else again
    return summarize_status(status)


def status_details(status: StatusEntry, now_s: float) -> Iterator[tuple[str, str]]:
    """Yield everything that is known about a run, as pairs of a label and a text."""
    run, progress = status.run, status.progress
    yield "state", status.state
    if (started_s := _started_s(status)) is not None:
        yield "started", _local_time(started_s)
    if (spent_s := elapsed_s(status, now_s)) is not None:
        yield "elapsed", write_clock(spent_s)
    if run is not None and status.state in ("running", "unknown"):
        yield "phase", _describe_phase(run, status)
    elif run is not None and status.state != "finished":
        yield "phase", "  ".join(filter(None, (_phase_of(run), _reached(run, progress))))
    if run is not None and status.state in ("running", "unknown"):
        for branch in status.branches:
            yield "branch", _describe_phase(branch, status)
    if run is not None and progress is not None:
        yield from _describe_rate(run, progress, status.earlier)
    for finish in run.state.finished.values() if run else ():
        loss = f", loss {finish.loss:.4g}" if finish.loss is not None else ""
        yield finish.phase, f"{finish.describe()}{loss}"
    for line in describe_results(run.recipe, run.state).values() if run else ():
        yield "result", line
    for job in status.jobs:
        yield "job", f"{job.label} {_describe_seen(status, job)}"
    if run is not None:
        for line in _describe_left(status):
            yield "trainer", line
        if status.has_process:
            yield "process", _describe_process(status).removeprefix("process ")
        failure = _describe_failure(run)
        if failure and status.state != "finished":
            name = "stopped" if isinstance(run.last_failure, RunInterrupted) else "failure"
            yield "before" if _is_past(status) else name, failure
            if run.cause:
                yield "cause", run.cause
        if run.launches:
            yield "log", run.launches[-1][1]
        for branch in status.branches:
            yield "log", branch.launches[-1][1]
        if status.state == "finished":
            for model in run.models:
                yield "model", model
        elif status.state in ("failed", "interrupted", "unattended", "stopped"):
            yield "next", _resume_hint(run, status)


def status_as_json(status: StatusEntry) -> dict[str, Any]:
    """Return the status of a run as JSON values; the keys name the units, and times are in UTC."""
    run, progress = status.run, status.progress
    return {
        "run": status.name if run or status.unreadable else None,
        "recipe": status.recipe,
        "state": status.state,
        "said": summarize_status(status),
        "time": _utc(run.last_s) if run and run.last_s is not None else None,
        "progress": progress.as_json() | {"s_per_iter": _iteration_s(run, progress)}
        if run and progress
        else None,
        "beside": [
            {"phase": phase, "log": log, "progress": progress.as_json() if progress else None}
            for branch in status.branches
            for (phase, log), progress in [(branch.launches[-1], branch.progress())]
        ],
        "phases": [asdict(finish) for finish in run.state.finished.values()] if run else [],
        "outputs": dict(run.state.outputs) if run and run.state.outputs else None,
        "evaluations": {phase: dict(each) for phase, each in run.state.evaluations.items()} if run else {},
        "process": {"pid": run.state.pid, "host": run.state.host, "lives": status.lives}
        if run and run.state.pid is not None
        else None,
        "jobs": [
            {
                "job": job.job_id,
                "name": job.submission.name,
                "phase": job.submission.phase,
                "state": job.job.state.value if job.job else None,
                "standing": job.standing,
                "said": _describe_seen(status, job),
            }
            for job in status.jobs
        ],
        "failure": _describe_failure(run) if run else None,
        "log": run.launches[-1][1] if run and run.launches else None,
    }


def _resume_hint(run: FollowedRun, status: StatusEntry) -> str:
    """Return the hint that resumes a run the way it was started: on this machine, or in a job."""
    if status.later:
        return f"superseded by {status.later}; only the latest run of a recipe is resumed"
    resumes = run.resume_hint("submit" if status.jobs else "run")
    return f"first, {run.change}; then {resumes}" if run.change else resumes


def _describe_left(status: StatusEntry) -> list[str]:
    """Return a line about what is left of a killed run, if anything; a resumed run adopts or ends it."""
    return [status.left.text] if status.left else []


def _is_past(status: StatusEntry) -> bool:
    """Return whether the run has been resumed after its last failure, or a job is about to resume it."""
    run = status.run
    return run is not None and (run.failure is None or status.state in ("running", "waiting"))


def _describe_failure(run: FollowedRun) -> str | None:
    """Return the last failure of the run, without the hint that resumes it; None without a failure."""
    failure = run.last_failure
    if failure is None:
        return None
    return failure.what if isinstance(failure, RunInterrupted) else str(failure)


def _describe_work(run: FollowedRun, status: StatusEntry) -> str:
    """Return what a run or a branch is doing, in a few words."""
    progress = run.progress()
    if progress is None:
        return _describe_phase(run, status)
    place = f"{progress.phase} {progress.iteration:,}/{progress.last_iter:,}"
    return ", ".join([place, *progress.timing, *filter(None, [progress.waits_for])])


def _describe_phase(run: FollowedRun, status: StatusEntry) -> str:
    progress = run.progress()
    if run.state.launch is None:
        return "evaluating" if status.is_evaluating else "preparing"
    name = run.state.launch.phase
    names = [step.phase for step in run.steps]
    place = f" ({names.index(name) + 1} of {len(names)})" if name in names else ""
    if progress is None:
        step = find_step(run.recipe, name) if name in names else None
        at = step and next_display(run.state.launch.resumed or 0, step.display_iter, step.last_iter)
        return f"{name}{place}: no iteration yet" + (f"; first loss at iteration {at:,}" if at else "")
    loss = f", loss {progress.loss:.4g}" if progress.loss is not None else ""
    rate = f", lr {progress.rate:.5g}" if progress.rate is not None else ""
    waits = f"; {progress.waits_for}" if progress.waits_for else ""
    return f"{name}{place}: iteration {progress.iteration:,} of {progress.last_iter:,}{rate}{loss}{waits}"


def _describe_rate(
    run: FollowedRun, progress: PhaseProgress, earlier: tuple[str, float] | None
) -> Iterator[tuple[str, str]]:
    iteration_s = _iteration_s(run, progress)
    if progress.images_per_s is not None and iteration_s is not None:
        speed = f"{progress.images_per_s:,.0f} images/s, {iteration_s:.3g} s per iteration"
        is_slow = earlier is not None and progress.images_per_s < _SLOW * earlier[1]
        yield (
            "rate",
            f"{speed}; {earlier[0]} had {earlier[1]:,.0f} images/s" if earlier and is_slow else speed,
        )
    if progress.waited is not None:
        yield "waited", progress.waited
    if progress.phase_left_s is not None and progress.chain_left_s is not None:
        phase, chain = write_clock(progress.phase_left_s), write_clock(progress.chain_left_s)
        yield "left", f"phase {phase}, run {chain}"


def _iteration_s(run: FollowedRun, progress: PhaseProgress) -> float | None:
    """Return the seconds per iteration; None if the speed is not known."""
    if not progress.images_per_s:
        return None
    return find_step(run.recipe, progress.phase).images_per_iter / progress.images_per_s


def _describe_process(status: StatusEntry) -> str:
    run = status.run
    if run is None or run.state.pid is None:
        return "no process"
    name = f"process {run.state.pid} on {run.state.host}"
    if status.lives is not None:
        return name if status.lives else f"{name}, which has ended"
    if status.state in ("running", "finished"):
        return name
    seen = f", last seen at {_local_time(run.last_s)}" if run.last_s is not None else ""
    return f"{name}{seen}; cannot tell whether it is alive"


def _shown_jobs(status: StatusEntry) -> list[SubmittedJob]:
    """Return the job to show on a line: the first that is not over, else the last."""
    live = [job for job in status.jobs if job.standing != "over"]
    return live[:1] or list(status.jobs[-1:])


def _describe_seen(status: StatusEntry, job: SubmittedJob) -> str:
    """Return the state of a job, or since when it is not known because Slurm gives no answer."""
    run = status.run
    if run is not None and run.last_s is not None and run.last_s > job.submission.time_s:
        return describe_job(job, run.last_s, "the last event of the run")
    return describe_job(job)


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _local_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")
