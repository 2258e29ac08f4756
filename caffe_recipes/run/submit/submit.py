"""Submitting a chain once and only once: each job's name is on disk before sbatch is called.

Where a submit ended in between, or lost Slurm, the next one looks for the name before anything else.

The job that a submit is to wait for: one that Slurm forgot, or that failed, holds nothing back.

Whether a job that goes on with a recipe's run would find something to do, and not be refused by it.

Asking Slurm, before anything is submitted, whether it takes the jobs, and which nodes they go without.

The nodes that the next try of a chain goes without.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hostfile import parse_nodelist
from caffe_recipes.cluster.slurm_jobs import NodeGroup, State, describe_limit, explain_state, failed_nodes
from caffe_recipes.cluster.slurm_queries import (
    NoCommand,
    SchedulerAway,
    ask_node_groups,
    ask_partitions,
    find_jobs,
    has_slurm,
)
from caffe_recipes.cluster.slurm_submit import (
    Refused,
    Request,
    Submitted,
    cancel_jobs,
    find_submission,
    sbatch_argv,
    submit,
    try_submission,
)
from caffe_recipes.errors import ClusterError, InputError, RunFailed
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.render.scripts import find_warning_s
from caffe_recipes.render.tree import find_differences
from caffe_recipes.run.folders import describe_changes
from caffe_recipes.run.monitor.status import Standing, StatusOptions, find_standing
from caffe_recipes.run.plan import plan_files, plan_steps
from caffe_recipes.run.submit.plan import (
    Asked,
    JobStep,
    PlannedJobs,
    SubmitOptions,
    Verdict,
    build_request,
    check_slurm,
    check_source,
    find_output,
    plan_submission,
)
from caffe_recipes.run.submit.submissions import (
    SeenJob,
    Submission,
    SubmissionJournal,
    choose_group,
    describe_job,
    load_submissions,
    name_seen,
    slurm_of,
    submissions_path,
)
from caffe_recipes.run.trainer import find_trainer
from caffe_recipes.wording import describe_count


def check_after(host: Host, number: int, clusters: Sequence[str] = ()) -> None:
    """Raise InputError where a job behind this one would begin at once, or never; SchedulerAway.

    sbatch takes a dependency on a job that Slurm does not know, and drops it.
    """
    found = [job for cluster in clusters or ("",) for job in find_jobs(host, ids=[number], cluster=cluster)]
    if not found:
        hint = "leave --after out if it has completed"
        raise InputError("--after", f"Slurm knows no job {number} (any more)", hint)
    for job in found:
        if job.state.is_over and job.state is not State.COMPLETED:
            what = f"a job behind job {number} would never begin: it {explain_state(job)[0]}"
            raise InputError("--after", what, "give one that can end well, or none")


def check_startable(recipe: AnyRecipe, standing: Standing | None) -> None:
    """Raise InputError where a job would find nothing to do, or what it would refuse."""
    if standing is None or standing.run is None or any(job.is_live for job in standing.jobs):
        return
    folder = standing.run.folder
    if standing.state == "finished":
        hint = "move its folder away to train another, or use caffe-recipes run --new"
        raise InputError(folder, "is finished: a job would have nothing to do", hint)
    if standing.lives:
        process = standing.run.process
        what = f"process {process.pid} on {process.node} carries this run on"
        raise InputError(folder, what, "wait for it, or stop it: caffe-recipes cancel")
    launch = standing.run.state.launch
    if launch is not None and not launch.job:  # a job's own run would refuse it, and the job would fail
        what = f"phase {launch.phase} was started on {launch.host}, and its outcome is unknown"
        raise InputError(folder, what, f"{standing.run.resume_hint} there; stop it once it does, and submit")
    check_unchanged(recipe, standing)


def check_placed(recipe: AnyRecipe, options: SubmitOptions) -> None:
    """Raise InputError for a prototxt in the Caffe root that the job would refuse, or read another for."""
    for difference in find_differences(plan_files(recipe), options.root):
        if difference.what == "changed":
            what = "differs from what the recipe generates, and the job would stop at it"
            raise InputError(options.root / difference.path, what, "move it away, or generate it anew")


def check_unchanged(recipe: AnyRecipe, standing: Standing | None) -> None:
    """Raise InputError for a recipe that the run, which its job is to go on with, was not started with."""
    run = standing.run if standing is not None else None
    if run is not None and not run.is_complete and (changes := describe_changes(Path(run.path), recipe)):
        hint = "undo that to resume this run, or move its folder away to train another"
        raise InputError(run.folder, changes, hint)


_EXCLUDE = "--exclude="


@dataclass(frozen=True)
class BadNodes:
    """Nodes that failed: those that a job goes without, and those that it cannot do without."""

    excluded: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()

    def describe(self) -> Iterator[str]:
        """Yield a line for either."""
        if self.excluded:
            them = "it" if len(self.excluded) == 1 else "them"
            yield f"without {_list(self.excluded)}, which failed before; --include-failed tries {them} again"
        if self.needed:
            them, they = ("it", "it is") if len(self.needed) == 1 else ("them", "they are")
            what = f"without {them} too few nodes are left: {they} tried again"
            yield f"{_list(self.needed)} failed before, and {what}"

    def with_all_needed(self) -> BadNodes:
        """Return them with none left out."""
        return BadNodes((), (*self.excluded, *self.needed))


def find_bad_nodes(
    standing: Standing | None,
    groups: Sequence[NodeGroup],
    partitions: Collection[str],
    nodes: int,
    unwanted: Collection[str] = (),
) -> BadNodes:
    """Return the nodes that are not to be tried again: those that Slurm blames, or the run, or did before.

    Those that are `unwanted` are left out in any case. As many stay as one of the partitions needs for a
    job of `nodes`; who was blamed last goes first.
    """
    there = {
        name: {host for group in groups if group.partition == name for host in _names(group.node_list)}
        for name in partitions
    }
    excluded: list[str] = []
    needed: list[str] = []
    for host in _blamed(standing, groups):
        if host in unwanted:
            continue
        without = {*unwanted, *excluded, host}
        if any(len(hosts - without) >= nodes for hosts in there.values()):
            excluded.append(host)
        else:
            needed.append(host)
    return BadNodes(tuple(excluded), tuple(needed))


def nodes_excluded(submission: Submission) -> tuple[str, ...]:
    """Return the nodes that a submission went without since they had failed."""
    words = [word.removeprefix(_EXCLUDE) for word in submission.argv if word.startswith(_EXCLUDE)]
    return tuple(words[0].split(",")) if words else ()


def _blamed(standing: Standing | None, groups: Sequence[NodeGroup]) -> tuple[str, ...]:
    if standing is None:
        return ()
    known = {name for group in groups for name in _names(group.node_list)}
    blamed = [name for job in standing.jobs if job.job for name in failed_nodes(job.job, groups)]
    lost = standing.run.blamed if standing.run is not None else ()
    before = [name for job in standing.jobs for name in nodes_excluded(job.submission)]
    return tuple(dict.fromkeys(name for name in (*blamed, *lost, *before) if name in known))


def _names(node_list: str) -> tuple[str, ...]:
    try:
        return parse_nodelist(node_list, "")
    except InputError:
        return ()


def _list(hosts: Sequence[str]) -> str:
    return ", ".join(hosts)


_NO_NODES = "node configuration is not available"


def check_with_slurm(
    planned: PlannedJobs, standing: Standing | None, say: Callable[[str], None], host: Host
) -> tuple[str, ...]:
    """Ask Slurm whether it takes the jobs; return the nodes to exclude.

    Raises ClusterError if it does not, SchedulerAway.
    """
    verdict, groups = Verdict((), must_wait=False, partitions=()), tuple[NodeGroup, ...]()
    if len(planned.clusters) < 2:  # of several only sbatch knows which it takes
        cluster = "".join(planned.clusters)
        partitions, groups = ask_partitions(host, cluster), ask_node_groups(host, cluster=cluster)
        asked = Asked(planned.nodes, planned.longest_s, planned.batch)
        verdict = check_slurm(asked, partitions, groups)
    for note in verdict.notes:
        say(note)
    bad = BadNodes()
    if not planned.options.include_failed:
        bad = find_bad_nodes(standing, groups, verdict.partitions, planned.nodes, planned.unwanted)
    refused = _refusal(planned, bad.excluded, host)
    if refused is not None and bad.excluded and _NO_NODES in refused:
        # Those that are left may lack what the job asks for, which only Slurm knows.
        bad, refused = bad.with_all_needed(), _refusal(planned, (), host)
    # Of nodes that are drained the test says the same as of nodes that there are not.
    if refused is not None and not (verdict.must_wait and _NO_NODES in refused):
        raise ClusterError("sbatch", refused, "nothing was submitted")
    for line in bad.describe():
        say(line)
    if planned.options.time_s is None and planned.longest_s is not None:
        say(f"time: {describe_limit(planned.longest_s)}, by the images/s of the recipe; --time gives another")
    return bad.excluded


def _refusal(planned: PlannedJobs, exclude: Sequence[str], host: Host) -> str | None:
    """Return why Slurm would not take one of the jobs; None if it takes all."""
    for step in planned.steps:
        request = build_request(planned, step, "test", planned.options.after, exclude)
        refused = try_submission(host, request)
        if refused is not None:
            return refused
    return None


Say = Callable[[str], None]
T = TypeVar("T")
# A controller that is restarted is away for some seconds. After sbatch gave no answer: one that comes back
# has taken the job by then, or has not.
_LOOKS_S = (1.0, 2.0, 4.0, 8.0, 15.0)
_LOOK_FIRST = "run the same command again: it first finds out what was submitted"


@dataclass(frozen=True)
class SubmitEnv:
    """How time passes, and which Slurm is asked."""

    host: Host
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.time


@dataclass(frozen=True)
class _JobPlace:
    """Where a job goes: to a submit's others, `behind` one of them or none, on its cluster."""

    group: str
    behind: int | None
    exclude: tuple[str, ...]
    cluster: str = ""


def describe_submission(
    recipe: AnyRecipe, options: SubmitOptions, note: str = "", *, with_scripts: bool = False
) -> str:
    """Return what would be submitted: five lines for a person, then the commands; Slurm is not asked.

    `with_scripts` adds the text of the scripts. Raises InputError as `submit_chain` does, but not for a Caffe
    root that this machine lacks, which is a line; so is a `note` of the caller's.
    """
    standing = None
    with suppress(InputError):  # no run, and nothing submitted
        standing = find_standing(recipe.name, _where(options), ask=lambda ids, names: (), reach=False)
    planned = plan_submission(recipe, options, _done(standing))
    if not note and not options.root.is_dir():
        note = f"{options.root} does not exist on this machine; paths are those of the cluster"
    lines = [*_summarize(planned), *([f"note:         {note}"] if note else [])]
    group, before = choose_group(), None
    for step in planned.steps:
        dependency = options.after if before is None else 0
        argv = sbatch_argv(build_request(planned, step, group, dependency))
        word = f"--dependency=afterok:{f'<job of {before}>' if before else options.after}"
        words = [word if each.startswith("--dependency=") else each for each in argv]
        lines += ["", _wrap_command(words)]
        before = step.phase
    if with_scripts:
        lines += dict.fromkeys(f"\n# {step.script}\n{step.text.rstrip()}" for step in planned.steps)
    return "\n".join(lines)


def _summarize(planned: PlannedJobs) -> Iterator[str]:
    """Yield five lines: the jobs, their nodes, time and account, and what happens at their time limit."""
    recipe, options, batch, steps = planned.recipe, planned.options, planned.batch, planned.steps
    count = describe_count(len(steps), "job")
    yield f"jobs:         {count}, " + (
        "one for each phase, each after the one before" if options.split else "for all phases that are left"
    )
    ranks = f"{describe_count(recipe.cluster.ranks_per_node, 'rank')} each"
    spares = f", {describe_count(options.spares, 'spare')} among them" if options.spares else ""
    yield f"nodes:        {planned.nodes:,} with {ranks}{spares}"
    times = [step.time_s for step in steps if step.time_s is not None]
    if len(times) < len(steps):
        yield "time:         not known: the default of the partition; --time gives another"
    else:
        source = "by --time" if options.time_s is not None else "estimated from the recipe's images/s"
        hours = f"{planned.nodes * sum(times) / 3600:,.1f} node-hours"
        yield f"time:         {describe_limit(sum(times))} at most, {hours}; {source}"
    given = [f"{name} {value}" for name in ("partition", "qos") if (value := getattr(batch, name))]
    yield f"account:      {', '.join([batch.account or 'your default', *given])}"
    warning = describe_limit(min(find_warning_s(step.time_s) for step in steps)) if steps else ""
    trainer = find_trainer(planned.recipe)
    is_asked = trainer.snapshot_argument(()) is not None
    end = f"{trainer.title} writes a snapshot" if is_asked else "the run is stopped"
    yield f"at the limit: {warning} before it {end}; the job is requeued and resumes"


def _wrap_command(words: Sequence[str], width: int = 80) -> str:
    """Return a command for a shell, in lines that a terminal shows whole where its words allow it."""
    lines = [""]
    for word in map(shlex.quote, words):
        if lines[-1] and len(lines[-1]) + len(word) + 3 > width:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


def submit_chain(recipe: AnyRecipe, options: SubmitOptions, say: Say, env: SubmitEnv) -> list[Submission]:
    """Submit a recipe's chain, or find that it is submitted; return its jobs.

    Raises InputError or ClusterError before anything is submitted, RunFailed where Slurm gives no answer.
    """
    plan_submission(recipe, options)
    if not options.root.is_dir():
        raise InputError(options.root, "no such folder", "give the Caffe root with --caffe-root")
    check_source(options.environment)
    check_placed(recipe, options)
    if not has_slurm(env.host):
        hint = "submit on a machine of the Slurm cluster; --dry-run shows what would be submitted"
        raise ClusterError("sbatch", "not found on PATH", hint)
    path = submissions_path(options.root, recipe.name)
    before = load_submissions(path)
    standing = _patiently(lambda: _look(recipe, options, env), say, env)
    check_startable(recipe, standing)
    planned = plan_submission(recipe, options, _done(standing))
    exclude: tuple[str, ...] = ()
    if not any(job.is_live for job in _jobs(standing)):
        try:
            exclude = _patiently(lambda: _check(planned, standing, say, env), say, env)
        except SchedulerAway as error:
            raise RunFailed(error.where, error.what, f"nothing is submitted; {error.hint}") from None
    with closing(SubmissionJournal(path, env.clock)) as journal:
        if journal.state() != before:
            raise InputError(path, "another submit has just ended", "see caffe-recipes status")
        adopted = _adopt(journal, _jobs(standing), say)
        live = [job for job in _jobs(standing) if job.is_live]
        place, steps = _JobPlace(choose_group(), options.after, exclude), planned.steps
        for job in live:
            if not job.submission.is_ours:
                raise _already(job, recipe)
        if live:
            steps = _left(planned, live, _jobs(standing))
            if not steps and adopted:
                return list(journal.state().latest)
            if not steps:
                raise _already(live[0], recipe)
            check_unchanged(recipe, standing)
            last = live[-1]
            excluded = nodes_excluded(last.submission)
            place = _JobPlace(last.submission.group, last.job_id, excluded, last.cluster)
        return _submit_steps(journal, planned, steps, place, say, env)


def _patiently(ask: Callable[[], T], say: Say, env: SubmitEnv) -> T:
    """Return what Slurm is asked for, however often that takes in half a minute; raises what is raised last.

    That is SchedulerAway, or for what is submitted RunFailed, for which Slurm is away.
    """
    for pause_s in _LOOKS_S:
        try:
            return ask()
        except NoCommand:
            raise
        except (SchedulerAway, _NotKnown) as error:
            if pause_s == _LOOKS_S[0]:
                say(f"{error.without_hint}; asking again")
        env.pause(pause_s)
    return ask()


class _NotKnown(RunFailed):
    """Slurm does not say what became of a job that was submitted before."""


def _check(planned: PlannedJobs, standing: Standing | None, say: Say, env: SubmitEnv) -> tuple[str, ...]:
    """Ask Slurm whether it takes the jobs; return the nodes to exclude."""
    if planned.options.after is not None:
        check_after(env.host, planned.options.after, planned.clusters)
    return check_with_slurm(planned, standing, say, env.host)


def _look(recipe: AnyRecipe, options: SubmitOptions, env: SubmitEnv) -> Standing | None:
    """Return where the recipe stands; None without run and job. Raises RunFailed if Slurm is away."""
    ask = slurm_of(env.host)
    try:
        standing = find_standing(recipe.name, _where(options), ask=ask, reach=False)
    except InputError:
        if load_submissions(submissions_path(options.root, recipe.name)).all:
            raise
        return None
    for job in standing.jobs:
        why = job.away or (f"it {describe_job(job)}" if job.is_elsewhere else "")
        if why:
            what = f"whether {name_seen(job)} waits or runs is not known: {why}"
            raise (_NotKnown if job.away else RunFailed)("", what, "nothing is submitted")
    return standing


def _adopt(journal: SubmissionJournal, jobs: Sequence[SeenJob], say: Say) -> bool:
    """Write the numbers of jobs whose submit ended before it could; tell whether there is one that lives."""
    adopted = False
    for seen in jobs:
        if seen.submission.is_settled or seen.job is None:
            continue
        journal.settle(seen.submission.name, seen.job.job_id, seen.cluster)
        say(f"{name_seen(seen)} was submitted before ({seen.submission.name}); it {describe_job(seen)}")
        adopted = adopted or seen.is_live
    return adopted


def _left(planned: PlannedJobs, live: Sequence[SeenJob], jobs: Sequence[SeenJob]) -> tuple[JobStep, ...]:
    """Return the jobs that a submit by phases was ended before: those behind the last that lives.

    One that was about to be submitted, and that Slurm does not know, was not.
    """
    phases = [step.phase for step in planned.steps]
    last = live[-1].submission
    known = [job.submission.name for job in jobs if job.job is not None or job.submission.is_settled]
    if not planned.options.split or last.phase not in phases or last.name != known[-1]:
        return ()
    return planned.steps[phases.index(last.phase) + 1 :]


def _already(seen: SeenJob, recipe: AnyRecipe) -> InputError:
    cancel = f"caffe-recipes cancel {shlex.quote(recipe.name)}"
    return InputError(
        "", f"already submitted: {name_seen(seen)} {describe_job(seen)}", f"cancel it first ({cancel})"
    )


def _submit_steps(
    journal: SubmissionJournal,
    planned: PlannedJobs,
    steps: Sequence[JobStep],
    place: _JobPlace,
    say: Say,
    env: SubmitEnv,
) -> list[Submission]:
    """Submit jobs, each behind the one before; if one is refused, those before it are cancelled."""
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
        where = f" of {outcome.cluster}" if outcome.cluster else ""
        say(f"{what}submitted as job {outcome.job_id}{where} ({request.name})")
    state = journal.state()
    return [state.find(name) for name in names]


def _submit_surely(request: Request, submission: Submission, say: Say, env: SubmitEnv) -> Submitted | Refused:
    """Submit a job; once more where Slurm, asked after sbatch gave no answer, knows none of its name.

    Raises RunFailed where that cannot be known.
    """
    text = ""
    for _ in range(2):
        outcome = submit(env.host, request)
        if isinstance(outcome, Submitted | Refused):
            return outcome
        text = outcome.text
        say(f"sbatch gave no answer ({text}); looking for {request.name}")
        found = _look_again(submission, env)
        if found is not None:
            return found
        say(f"Slurm knows no job {request.name}")
    raise RunFailed("sbatch", f"submits no job: {text}", _LOOK_FIRST)


def _look_again(submission: Submission, env: SubmitEnv) -> Submitted | None:
    """Return a job that may have been submitted, None if Slurm knows none of its name in the end.

    Raises RunFailed if it does not say.
    """
    problem, name = "", submission.name
    for pause_s in _LOOKS_S:
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
        raise RunFailed("sbatch", f"whether the job was submitted is not known: {problem}", _LOOK_FIRST)
    return None


def _cancel_all(journal: SubmissionJournal, names: Sequence[str], env: SubmitEnv) -> str:
    """Cancel what was submitted, the last first; say what became of it."""
    state = journal.state()
    done = [each for name in reversed(names) if (each := state.find(name)).job_id is not None]
    if not done:
        return ""
    ids, cluster = [each.job_id for each in done if each.job_id is not None], done[0].cluster
    listed = ", ".join(map(str, ids))
    try:
        cancel_jobs(env.host, ids, cluster=cluster)
    except ClusterError as error:
        return f"cancel the jobs before it yourself, scancel {listed}: {error}"
    for name in reversed(names):
        journal.cancel(name)
    return f"the jobs before it are cancelled: {listed}"


def _done(standing: Standing | None) -> tuple[str, ...]:
    """Return the phases that need no job: the finished ones, but the last, which is evaluated."""
    run = standing.run if standing is not None else None
    if run is None or run.is_complete:
        return ()
    return tuple(step.phase for step in plan_steps(run.recipe)[:-1] if step.phase in run.state.finished)


def _jobs(standing: Standing | None) -> tuple[SeenJob, ...]:
    return standing.jobs if standing is not None else ()


def _where(options: SubmitOptions) -> StatusOptions:
    return StatusOptions(str(options.root))
