"""Submitting a chain to Slurm exactly once: the name of each job is on disk before sbatch is called.

If a submit was killed in between, or Slurm stopped answering, the next submit first looks for a job with that
name. Before anything is submitted, it is checked that a job would have something to do, that its run would
not refuse to resume, and that Slurm accepts the jobs. Nodes that failed before are excluded.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from caffe_recipes.cluster.commands import Host, Say
from caffe_recipes.cluster.slurm.calls import (
    NoCommand,
    NotConfigured,
    SchedulerAway,
    check_sbatch,
)
from caffe_recipes.cluster.slurm.jobs import NodeGroup, failed_nodes, list_hosts
from caffe_recipes.cluster.slurm.partitions import JobVerdict, Resources, check_slurm
from caffe_recipes.cluster.slurm.queries import Slurm, ask_node_groups, ask_partitions, check_after
from caffe_recipes.cluster.slurm.sbatch import (
    Refused,
    Submitted,
    cancel_jobs,
    find_submission,
    submit_job,
    try_submission,
)
from caffe_recipes.cluster.slurm.sbatch_options import JobRequest, sbatch_argv
from caffe_recipes.cluster.slurm.times import describe_limit
from caffe_recipes.errors import ClusterError, InputError, RunFailed
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.render.recipe_files import generate
from caffe_recipes.render.scripts import find_warning_s
from caffe_recipes.render.tree import find_differences
from caffe_recipes.review.text_columns import wrap_line
from caffe_recipes.run.context import check_own_root
from caffe_recipes.run.folders import check_root, describe_changes, own_paths
from caffe_recipes.run.monitor.follow import FollowEnv, StatusOptions
from caffe_recipes.run.monitor.status import StatusEntry, find_status
from caffe_recipes.run.submit.planned_jobs import (
    JobStep,
    PlannedJobs,
    SubmitOptions,
    build_request,
    check_lmdb_source,
    describe_assumed,
    describe_extrapolated,
    describe_generate,
    find_output,
    plan_submission,
)
from caffe_recipes.run.submit.submissions import (
    Submission,
    SubmissionJournal,
    SubmittedJob,
    choose_group,
    describe_job,
    load_submissions,
    submissions_path,
)
from caffe_recipes.run.training_plan import find_trainer, plan_files, plan_steps
from caffe_recipes.wording import describe_count


def check_startable(recipe: AnyRecipe, status: StatusEntry) -> None:
    """Raise InputError if a job would have nothing to do, or would refuse to resume the run."""
    if status.run is None or any(job.is_live for job in status.jobs):
        return
    folder = status.run.folder
    if status.state == "finished":
        hint = "move its folder away to train again, or use caffe-recipes run --new"
        raise InputError(folder, "is finished: a job would have nothing to do", hint)
    if status.lives:
        process = status.run.process
        what = f"is in use by process {process.pid} on {process.node}"
        raise InputError(folder, what, "wait for it, or stop it: caffe-recipes cancel")
    launch = status.run.state.launch
    # The run inside the job would refuse to resume a launch from outside a job.
    if launch is not None and not launch.job:
        what = f"phase {launch.phase} was started on {launch.host}, and its outcome is unknown"
        raise InputError(folder, what, f"{status.run.resume_hint()} there; then stop it and submit again")
    check_unchanged(recipe, status)


def check_placed(recipe: AnyRecipe, options: SubmitOptions) -> None:
    """Raise InputError if a prototxt in the Caffe root differs from the recipe; the job would refuse it."""
    for difference in find_differences(plan_files(recipe), options.root):
        if difference.what == "changed":
            what = "differs from what the recipe generates, and the job would refuse it"
            hint = "move it away"  # the job writes it where it is missing
            if difference.path in generate(recipe):
                command = describe_generate(recipe, options, options.root, "--overwrite")
                hint += f", or overwrite it: {command}"
            raise InputError(options.root / difference.path, what, hint)


def check_mistakes(recipe: AnyRecipe, options: SubmitOptions, done: Sequence[str]) -> None:
    """Raise InputError for an error of `lint` in the phases that are not `done`; the job would refuse it."""
    left = [step.phase for step in plan_steps(recipe) if step.phase not in done]
    source = options.environment.get("LMDB_SOURCE")
    for error in find_trainer(recipe).mistakes(left, options.root, Path(source) if source else None):
        raise error


def check_unchanged(recipe: AnyRecipe, status: StatusEntry) -> None:
    """Raise InputError if the recipe has changed since the run that the job would resume was started."""
    run = status.run
    if run is not None and not run.is_complete and (changes := describe_changes(Path(run.path), recipe)):
        hint = "undo the change to resume this run, or move its folder away to train again"
        raise InputError(run.folder, changes, hint)


@dataclass(frozen=True)
class BadNodes:
    """Nodes that failed: those that a job excludes, and those that it needs nevertheless."""

    excluded: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()

    def describe(self) -> Iterator[str]:
        """Yield a line for the excluded nodes, and one for the needed nodes."""
        if self.excluded:
            them = "it" if len(self.excluded) == 1 else "them"
            yield f"excluding {_list(self.excluded)}, which failed before; --include-failed uses {them} again"
        if self.needed:
            them = "it" if len(self.needed) == 1 else "them"
            what = f"but too few nodes are left without {them}: retrying"
            yield f"{_list(self.needed)} failed before, {what}"

    def with_all_needed(self) -> BadNodes:
        """Return the nodes with none excluded."""
        return BadNodes((), (*self.excluded, *self.needed))


def find_bad_nodes(
    status: StatusEntry,
    groups: Sequence[NodeGroup],
    partitions: Collection[str],
    nodes: int,
    unwanted: Collection[str] = (),
) -> BadNodes:
    """Return the nodes that failed according to Slurm, the run, or an earlier submit.

    Nodes that are `unwanted` are excluded in any case. Nodes are excluded, those blamed last first, only
    while one of the partitions still has enough for a job of `nodes`.
    """
    hosts_of = {
        name: {host for group in groups if group.partition == name for host in list_hosts(group.node_list)}
        for name in partitions
    }
    excluded: list[str] = []
    needed: list[str] = []
    for host in _blamed(status, groups):
        if host in unwanted:
            continue
        without = {*unwanted, *excluded, host}
        if any(len(hosts - without) >= nodes for hosts in hosts_of.values()):
            excluded.append(host)
        else:
            needed.append(host)
    return BadNodes(tuple(excluded), tuple(needed))


def _blamed(status: StatusEntry, groups: Sequence[NodeGroup]) -> tuple[str, ...]:
    known = {name for group in groups for name in list_hosts(group.node_list)}
    blamed = [name for job in status.jobs if job.job for name in failed_nodes(job.job, groups)]
    lost = status.run.blamed if status.run is not None else ()
    before = [name for job in status.jobs for name in job.submission.excluded]
    return tuple(dict.fromkeys(name for name in (*blamed, *lost, *before) if name in known))


def _list(hosts: Sequence[str]) -> str:
    return ", ".join(hosts)


_NO_NODES = "node configuration is not available"


def check_with_slurm(
    planned: PlannedJobs, status: StatusEntry, say: Callable[[str], None], host: Host
) -> tuple[str, ...]:
    """Check with Slurm that it accepts the jobs, and return the nodes to exclude.

    Raises ClusterError if it does not accept them, and SchedulerAway if it does not answer.
    """
    verdict, groups = JobVerdict((), must_wait=False, partitions=()), tuple[NodeGroup, ...]()
    if len(planned.clusters) < 2:  # of several clusters only sbatch knows which one it chooses
        cluster = "".join(planned.clusters)
        partitions, groups = ask_partitions(host, cluster), ask_node_groups(host, cluster=cluster)
        resources = Resources(planned.nodes, planned.longest_s, planned.batch)
        verdict = check_slurm(resources, partitions, groups)
    for note in verdict.notes:
        say(note)
    bad = BadNodes()
    if not planned.options.include_failed:
        bad = find_bad_nodes(status, groups, verdict.partitions, planned.nodes, planned.unwanted)
    refused = _refusal(planned, bad.excluded, host)
    if refused is not None and bad.excluded and _NO_NODES in refused:
        # The remaining nodes may lack a feature that the job requests, which only Slurm knows.
        bad, refused = bad.with_all_needed(), _refusal(planned, (), host)
    # sbatch --test-only gives the same answer for drained nodes as for nodes that do not exist.
    if refused is not None and not (verdict.must_wait and _NO_NODES in refused):
        raise ClusterError("sbatch", refused, "nothing was submitted")
    for line in bad.describe():
        say(line)
    if planned.options.time_s is None and planned.longest_s is not None:
        limit = describe_limit(planned.longest_s)
        say(f"time: {limit}; give --time to change it")
        say(f"      {describe_assumed(planned)}")
    return bad.excluded


def _refusal(planned: PlannedJobs, exclude: Sequence[str], host: Host) -> str | None:
    """Return why Slurm would refuse one of the jobs; None if it accepts all."""
    for step in planned.steps:
        request = build_request(planned, step, "test", planned.options.after, exclude)
        refused = try_submission(host, request)
        if refused is not None:
            return refused
    return None


T = TypeVar("T")
# The pauses between attempts to reach Slurm, long enough for its controller to restart. If sbatch gave no
# answer, it is certain after these whether the controller has accepted the job.
_RETRY_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0)
_WIDTH = 80  # of a dry run, for a terminal
_ANY_GROUP = "RANDOM"  # in place of a submit's random id, so that dry runs can be compared
_RERUN_HINT = "run the same command again: it first checks what was submitted"


@dataclass(frozen=True)
class SubmitEnv:
    """Injected sleep and clock functions, and the host on which Slurm is asked."""

    host: Host
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.time


@dataclass(frozen=True)
class _JobPlace:
    """The submit, predecessor (`behind`), excluded nodes and cluster of the next job to submit."""

    group: str
    behind: int | None
    exclude: tuple[str, ...]
    cluster: str = ""


def describe_submission(
    recipe: AnyRecipe, options: SubmitOptions, note: str = "", *, with_scripts: bool = False
) -> list[str]:
    """Return what would be submitted: five lines of summary, then the commands; Slurm is not asked.

    `note` is an additional line, and `with_scripts` adds the text of the scripts. Raises InputError as
    `submit_chain` does; but if the Caffe root does not exist on this machine, that is only a note.
    """
    status = StatusEntry(recipe.name, recipe.name)
    with suppress(InputError):  # there is no run, and nothing was submitted
        status = find_status(recipe.name, _where(options), FollowEnv(ask=lambda ids, names: ()), reach=False)
    check_mistakes(recipe, options, _done(status))
    planned = plan_submission(recipe, options, _done(status), is_dry=True)
    if not note and not options.root.is_dir():
        note = f"{options.root} does not exist on this machine; paths are those of the cluster"
    missing = next((step.script for step in planned.steps if not step.script.is_file()), None)
    notes = [note, f"{missing} does not exist yet; `caffe-recipes generate` writes it" if missing else ""]
    summary = [*_summarize(planned), *(f"note:         {each}" for each in notes if each)]
    lines = [part for line in summary for part in wrap_line(line, _WIDTH, indent=14)]
    before = None
    for step in planned.steps:
        dependency = options.after if before is None else 0
        argv = sbatch_argv(build_request(planned, step, _ANY_GROUP, dependency))
        word = f"--dependency=afterok:{f'<job of {before}>' if before else options.after}"
        words = [word if each.startswith("--dependency=") else each for each in argv]
        lines += ["", *_wrap_command(words)]
        before = step.phase
    if with_scripts:
        texts = {step.script: step.text for step in planned.steps}
        for script, text in texts.items():
            lines += ["", f"# {script}", *text.rstrip().split("\n")]
    return lines


def _summarize(planned: PlannedJobs) -> Iterator[str]:
    """Yield five lines about the jobs: number, nodes, time, account, and what happens at the time limit."""
    recipe, options, batch, steps = planned.recipe, planned.options, planned.batch, planned.steps
    count = describe_count(len(steps), "job")
    yield f"jobs:         {count}, " + (
        "one for each phase, each after the one before" if options.split else "for all remaining phases"
    )
    ranks = f"{describe_count(recipe.cluster.ranks_per_node, 'rank')} each"
    spares = f", including {describe_count(options.spares, 'spare')}" if options.spares else ""
    yield f"nodes:        {planned.nodes:,} with {ranks}{spares}"
    times = [step.time_s for step in steps if step.time_s is not None]
    if len(times) < len(steps):
        known = describe_extrapolated(planned)
        default = "not known; the partition's default, unless --time is given"
        yield f"time:         {f'not known from this recipe; {known}' if known else default}"
    else:
        source = "at the recipe's own speed"
        if options.time_s is not None:
            source = f"from --time{', for each job' if len(times) > 1 else ''}"
        hours = f"{planned.nodes * sum(times) / 3600:,.1f} node-hours"
        yield f"time:         {describe_limit(sum(times))} at most, {hours}; {source}"
        if options.time_s is None:
            yield f"assumes:      {describe_assumed(planned)}"
    given = [f"{name} {value}" for name in ("partition", "qos") if (value := getattr(batch, name))]
    yield f"account:      {', '.join([batch.account or 'your default', *given])}"
    warnings = sorted({find_warning_s(step.time_s) for step in steps})
    warning = " to ".join(map(describe_limit, dict.fromkeys((*warnings[:1], *warnings[-1:]))))
    trainer = find_trainer(planned.recipe)
    has_snapshots = trainer.snapshot_argument(()) is not None
    end = f"{trainer.words.title} writes a snapshot" if has_snapshots else "the run is stopped"
    unknown = " (with --time, a tenth of that time, 10 min at most)" if len(times) < len(steps) else ""
    yield f"at the limit: {end} {warning} before{unknown}; the requeued job resumes"


def _wrap_command(words: Sequence[str]) -> list[str]:
    """Return the lines of a shell command, wrapped to the width of a terminal if its words allow that."""
    lines = [""]
    for word in map(shlex.quote, words):
        if lines[-1] and len(lines[-1]) + len(word) + 3 > _WIDTH:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def submit_chain(recipe: AnyRecipe, options: SubmitOptions, say: Say, env: SubmitEnv) -> list[Submission]:
    """Submit a recipe's chain and return its jobs, including those that an interrupted submit left.

    Raises InputError or ClusterError before anything is submitted, and RunFailed if Slurm does not respond.
    """
    scripts = [step.script for step in plan_submission(recipe, options).steps]
    check_root(options.root)
    check_lmdb_source(options.environment)
    check_placed(recipe, options)
    check_sbatch(env.host)
    check_own_root(options.root, [*own_paths(options.root, recipe), *scripts])
    path = submissions_path(options.root, recipe.name)
    before = load_submissions(path)
    status = _patiently(lambda: _look(recipe, options, env), say, env)
    check_startable(recipe, status)
    done = _done(status)
    check_mistakes(recipe, options, done)
    planned = plan_submission(recipe, options, done)
    exclude: tuple[str, ...] = ()
    if not any(job.is_live for job in status.jobs):
        try:
            exclude = _patiently(lambda: _check(planned, status, say, env), say, env)
        except NotConfigured:
            raise
        except SchedulerAway as error:
            raise RunFailed(error.where, error.what, f"nothing was submitted; {error.hint}") from None
    with closing(SubmissionJournal(path, env.clock)) as journal:
        if journal.state() != before:
            raise InputError(path, "another submit has just ended", "see caffe-recipes status")
        adopted = _adopt(journal, status.jobs, say)
        live = [job for job in status.jobs if job.is_live]
        place, steps = _JobPlace(choose_group(), options.after, exclude), planned.steps
        for job in live:
            if not job.submission.is_ours:
                raise _already_submitted(job, recipe)
        if live:
            steps = _find_missing(planned, live, status.jobs)
            if not steps and adopted:
                return list(journal.state().latest)
            if not steps:
                raise _already_submitted(live[0], recipe)
            check_unchanged(recipe, status)
            last = live[-1]
            place = _JobPlace(last.submission.group, last.job_id, last.submission.excluded, last.cluster)
        return _submit_steps(journal, planned, steps, place, say, env)


def _patiently(ask: Callable[[], T], say: Say, env: SubmitEnv) -> T:
    """Return the answer from Slurm, asking again for half a minute; raises the last error if that fails.

    That is SchedulerAway, or RunFailed if the state of a submitted job stays unknown.
    """
    for pause_s in _RETRY_PAUSES_S:
        try:
            return ask()
        except (NoCommand, NotConfigured):
            raise
        except (SchedulerAway, _UnknownState) as error:
            if pause_s == _RETRY_PAUSES_S[0]:
                say(f"{error.without_hint}; retrying")
        env.pause(pause_s)
    return ask()


class _UnknownState(RunFailed):
    """Raised if Slurm does not report the state of a job that was submitted before."""


def _check(planned: PlannedJobs, status: StatusEntry, say: Say, env: SubmitEnv) -> tuple[str, ...]:
    """Check with Slurm that it accepts the jobs and their dependency; return the nodes to exclude."""
    if planned.options.after is not None:
        check_after(env.host, planned.options.after, planned.clusters)
    return check_with_slurm(planned, status, say, env.host)


def _look(recipe: AnyRecipe, options: SubmitOptions, env: SubmitEnv) -> StatusEntry:
    """Return the status of the recipe, which may have no run; raises RunFailed if Slurm does not answer."""
    ask = Slurm(env.host)
    try:
        status = find_status(recipe.name, _where(options), FollowEnv(ask=ask), reach=False)
    except InputError:
        if load_submissions(submissions_path(options.root, recipe.name)).all:
            raise
        return StatusEntry(recipe.name, recipe.name)
    for job in status.jobs:
        why = job.away or (f"it {describe_job(job)}" if job.is_elsewhere else "")
        if why:
            what = f"cannot tell whether job {job.label} is queued or running: {why}"
            raise (_UnknownState if job.away else RunFailed)("", what, "nothing was submitted")
    return status


def _adopt(journal: SubmissionJournal, jobs: Sequence[SubmittedJob], say: Say) -> bool:
    """Record the ids of jobs whose submit was killed before it could; return whether one of them is live."""
    adopted = False
    for seen in jobs:
        if seen.submission.is_settled or seen.job is None:
            continue
        journal.settle(seen.submission.name, seen.job.job_id, seen.cluster)
        say(f"job {seen.label} was already submitted ({seen.submission.name}); it {describe_job(seen)}")
        adopted = adopted or seen.is_live
    return adopted


def _find_missing(
    planned: PlannedJobs, live: Sequence[SubmittedJob], jobs: Sequence[SubmittedJob]
) -> tuple[JobStep, ...]:
    """Return the jobs that an interrupted --split did not submit: those after the last live one.

    A job that was about to be submitted and that Slurm does not know was not submitted.
    """
    phases = [step.phase for step in planned.steps]
    last = live[-1].submission
    known = [job.submission.name for job in jobs if job.job is not None or job.submission.is_settled]
    if not planned.options.split or last.phase not in phases or last.name != known[-1]:
        return ()
    return planned.steps[phases.index(last.phase) + 1 :]


def _already_submitted(seen: SubmittedJob, recipe: AnyRecipe) -> InputError:
    cancel = f"caffe-recipes cancel {shlex.quote(recipe.name)}"
    return InputError(
        "", f"already submitted: job {seen.label} {describe_job(seen)}", f"cancel it first ({cancel})"
    )


def _submit_steps(
    journal: SubmissionJournal,
    planned: PlannedJobs,
    steps: Sequence[JobStep],
    place: _JobPlace,
    say: Say,
    env: SubmitEnv,
) -> list[Submission]:
    """Submit jobs that each depend on the previous one; if one is refused, cancel the previous ones."""
    names: list[str] = []
    for step in steps:
        request = build_request(planned, step, place.group, place.behind, place.exclude)
        if place.cluster:  # jobs of different clusters cannot wait for each other
            request = replace(request, options=(*request.options, f"--clusters={place.cluster}"))
        clusters = place.cluster or ",".join(planned.clusters)
        submission = Submission(
            name=request.name,
            group=place.group,
            script=request.script,
            time_s=0.0,
            argv=sbatch_argv(request),
            profile=planned.options.profile,
            phase=step.phase,
            output=find_output(planned.options, request.name),
            cluster=clusters,
            excluded=tuple(place.exclude),
        )
        journal.begin(submission)
        outcome = _submit_surely(request, submission, say, env)
        if isinstance(outcome, Refused):
            journal.refuse(request.name, outcome.text)
            undone = _cancel_all(journal, names, env)
            raise ClusterError("sbatch", outcome.text, undone or "nothing was submitted")
        journal.settle(request.name, outcome.job_id, outcome.cluster)
        place = replace(place, behind=outcome.job_id, cluster=outcome.cluster or place.cluster)
        names.append(request.name)
        what = f"{step.phase}: " if step.phase else ""
        where = f" on {outcome.cluster}" if outcome.cluster else ""
        say(f"{what}submitted as job {outcome.job_id}{where} ({request.name})")
    state = journal.state()
    return [state.find(name) for name in names]


def _submit_surely(
    request: JobRequest, submission: Submission, say: Say, env: SubmitEnv
) -> Submitted | Refused:
    """Submit a job; if sbatch does not respond and Slurm knows no job with its name, submit it once more.

    Raises RunFailed if it is not known whether the job was submitted, or if sbatch does not respond twice.
    """
    text = ""
    for _ in range(2):
        outcome = submit_job(env.host, request)
        if isinstance(outcome, Submitted | Refused):
            return outcome
        text = outcome.text
        say(f"sbatch did not respond ({text}); looking for {request.name}")
        found = _find_submitted(submission, env)
        if found is not None:
            return found
        say(f"Slurm does not know job {request.name}")
    raise RunFailed("sbatch", f"the job was not submitted: {text}", _RERUN_HINT)


def _find_submitted(submission: Submission, env: SubmitEnv) -> Submitted | None:
    """Return a job that may have been submitted; None if Slurm still knows no job with its name at the end.

    Raises RunFailed if Slurm does not answer.
    """
    problem, name = "", submission.name
    for pause_s in _RETRY_PAUSES_S:
        env.pause(pause_s)
        problem = ""
        for cluster in submission.cluster.split(","):
            try:
                job = find_submission(env.host, name, cluster)
            except ClusterError as error:
                problem = str(error)
                continue
            if job is not None:
                return Submitted(job.job_id, cluster)
    if problem:
        raise RunFailed("sbatch", f"cannot tell whether the job was submitted: {problem}", _RERUN_HINT)
    return None


def _cancel_all(journal: SubmissionJournal, names: Sequence[str], env: SubmitEnv) -> str:
    """Cancel the jobs that were submitted, the last one first; return a hint about them, or ""."""
    state = journal.state()
    done = [each for name in reversed(names) if (each := state.find(name)).job_id is not None]
    if not done:
        return ""
    ids, cluster = [each.job_id for each in done if each.job_id is not None], done[0].cluster
    listed = ", ".join(map(str, ids))
    try:
        cancel_jobs(env.host, ids, cluster=cluster)
    except ClusterError as error:
        return f"cancel the previous jobs with `scancel {listed}`: {error}"
    for name in reversed(names):
        journal.cancel(name)
    return f"the previous jobs were cancelled: {listed}"


def _done(status: StatusEntry) -> tuple[str, ...]:
    """Return the finished phases, which need no job, except the last phase, whose job does the evaluation."""
    run = status.run
    if run is None or run.is_complete:
        return ()
    return tuple(step.phase for step in run.steps[:-1] if step.phase in run.state.finished)


def _where(options: SubmitOptions) -> StatusOptions:
    return StatusOptions(str(options.root))
