"""Where runs stand, as people and as programs read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from caffe_recipes.chain.report import describe_results
from caffe_recipes.chain.shown_run import ShownRun
from caffe_recipes.chain.status import Standing
from caffe_recipes.chain.submitting.seen import SeenJob, describe_job, name_seen
from caffe_recipes.chain.units import describe_duration
from caffe_recipes.chain.watch import Progress
from caffe_recipes.recipe.arithmetic import images_per_iter


def summarize_standing(standing: Standing) -> str:
    """Say on one line where a run stands, behind its name and the word for its state."""
    run = standing.run
    if standing.spoilt is not None:
        return str(standing.spoilt)
    jobs = [f"{name_seen(job)} {_told(standing, job)}" for job in _telling(standing)]
    if run is None:
        return "; ".join(jobs)
    if standing.state == "finished":
        between = "; " if len(run.state.evaluations) > 1 else ", "
        return between.join(describe_results(run.recipe, run.state)) or "all phases are finished"
    if standing.state in ("running", "unknown"):
        beside = [
            f"beside it {said}" for said in [_describe_work(run, standing) for run in standing.branches]
        ]
        said = [_describe_work(run, standing), *beside]
        return "; ".join([*said, *(jobs or [_describe_process(standing)])])
    if standing.state == "waiting":
        return "; ".join(jobs)
    if run.failure is None:
        return "; ".join([*jobs, *_describe_left(standing), _go_on(run, standing)])
    return "; ".join([*jobs, str(run.failure).replace(run.go_on, _go_on(run, standing))])


def table_of_standings(standings: list[Standing]) -> Table:
    """Return a line for each run."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for column in ("run", "state"):
        table.add_column(column, no_wrap=True)
    table.add_column("said", overflow="fold")
    for standing in standings:
        table.add_row(standing.name, standing.state, summarize_standing(standing))
    return table


def detail_standing(standing: Standing) -> Iterator[tuple[str, str]]:
    """Yield all that is known of one run: a word for what it is, and it in words."""
    run, progress = standing.run, standing.progress
    yield "state", standing.state
    if run is not None and standing.state in ("running", "unknown"):
        yield "phase", _describe_phase(run, standing)
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
        yield "job", f"{name_seen(job).removeprefix('job ')} {_told(standing, job)}"
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
            yield "next", _go_on(run, standing)


def standing_as_json(standing: Standing) -> dict[str, Any]:
    """Return where a run stands as JSON values; units stand in the names, times are in UTC."""
    run, progress = standing.run, standing.progress
    return {
        "run": standing.name if run or standing.spoilt else None,
        "recipe": standing.recipe,
        "state": standing.state,
        "said": summarize_standing(standing),
        "time": _utc(run.last_s) if run and run.last_s is not None else None,
        "progress": asdict(progress) | {"s_per_iter": _pace(run, progress)} if run and progress else None,
        "beside": [
            {"phase": phase, "log": log, "progress": asdict(progress) if progress else None}
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
                "said": _told(standing, job),
            }
            for job in standing.jobs
        ],
        "failure": _describe_failure(run) if run else None,
        "log": run.launches[-1][1] if run and run.launches else None,
    }


def _go_on(run: ShownRun, standing: Standing) -> str:
    """Say what goes on with a run as it was begun: here, or in a job."""
    return run.go_on.replace("caffe-recipes run", "caffe-recipes submit") if standing.jobs else run.go_on


def _describe_left(standing: Standing) -> list[str]:
    """Say that the trainer of a killed run lives, which a run goes on with."""
    return [] if standing.trainer is None else [f"process {standing.trainer} of a killed run still trains"]


def _is_past(standing: Standing) -> bool:
    """Tell whether the last failure is behind the run: it has gone on, or its job is about to."""
    run = standing.run
    return run is not None and (run.failure is None or standing.state in ("running", "waiting"))


def _describe_failure(run: ShownRun) -> str | None:
    """Say what the run failed of last; what goes on with it is said once, and elsewhere."""
    failure = run.last_failure
    if failure is None:
        return None
    return failure.what if failure.hint == run.go_on else str(failure)


def _describe_work(run: ShownRun, standing: Standing) -> str:
    """Say what a run, or what trains beside it, does, in a few words."""
    progress = run.progress()
    if progress is None:
        return _describe_phase(run, standing)
    parts = [f"{progress.phase} {progress.iteration:,}/{progress.last_iter:,}"]
    if progress.images_per_s is not None:
        parts.append(f"{progress.images_per_s:,.0f} images/s")
    if progress.phase_left_s is not None and progress.chain_left_s is not None:
        phase, chain = describe_duration(progress.phase_left_s), describe_duration(progress.chain_left_s)
        parts.append(f"{phase} left, {chain} in all")
    return ", ".join(parts)


def _describe_phase(run: ShownRun, standing: Standing) -> str:
    progress = run.progress()
    if run.state.launch is None:
        return "evaluating" if standing.is_evaluating else "preparing"
    name = run.state.launch.phase
    names = [phase.name for phase in run.recipe.phases]
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
        phase, chain = describe_duration(progress.phase_left_s), describe_duration(progress.chain_left_s)
        yield "left", f"{phase} of the phase, {chain} in all"


def _pace(run: ShownRun, progress: Progress) -> float | None:
    """Return the seconds of an iteration."""
    if not progress.images_per_s:
        return None
    return images_per_iter(run.recipe, run.recipe.phase(progress.phase)) / progress.images_per_s


def _describe_process(standing: Standing) -> str:
    run = standing.run
    if run is None or run.state.pid is None:
        return "no process"
    name = f"process {run.state.pid} on {run.state.host}"
    if standing.lives is not None:
        return name if standing.lives else f"{name}, which is gone"
    heard = f", heard of last at {_here(run.last_s)}" if run.last_s is not None else ""
    return (
        name if standing.state in ("running", "finished") else f"{name}{heard}: whether it lives is not known"
    )


def _telling(standing: Standing) -> list[SeenJob]:
    """Return the jobs of which a line should tell: those that live, else the last."""
    live = [job for job in standing.jobs if job.standing != "over"]
    return live[:1] or list(standing.jobs[-1:])


def _told(standing: Standing, job: SeenJob) -> str:
    """Say what a job does; where Slurm is away, since when that is not known."""
    run = standing.run
    if run is not None and run.last_s is not None and run.last_s > job.submission.time_s:
        return describe_job(job, run.last_s, "then the run went on")
    return describe_job(job)


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _here(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")
