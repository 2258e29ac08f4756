"""The options of sbatch: those that a job gets from us, and those that a user or a profile gives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from caffe_recipes.cluster.hostfile import is_host_name
from caffe_recipes.cluster.slurm.times import render_limit
from caffe_recipes.errors import ClusterError, InputError

MAIL_TYPES = "END,FAIL,REQUEUE"
# The one-letter forms of sbatch options.
_LETTERS = {"partition": "p", "account": "A", "qos": "q", "constraint": "C", "clusters": "M", "exclude": "x"}
# The options that `submit` itself gives to sbatch, with their letters and what the user can do instead.
_RESERVED = (
    ("job-name", "J", "submit identifies its jobs by their names"),
    ("dependency", "d", "give --after"),
    ("time", "t", "give --time"),
    ("nodes", "N", "give --spares, or change the recipe"),
    ("output", "o", "the output is in runs/ under the Caffe root"),
    *(
        (name, letter, "submit the script with sbatch to use it")
        for name, letter in (
            ("array", "a"),
            ("wrap", ""),
            ("wait", "W"),
            ("test-only", ""),
            ("export", ""),
            ("signal", ""),
        )
    ),
)


@dataclass(frozen=True)
class JobRequest:
    """A job to submit; None and empty values leave the choice to the site, or to the script's #SBATCH lines.

    `dependency` is the id of the job that must succeed first. `options` are passed to sbatch unchanged, after
    ours. The job inherits the submitter's environment, to which `environment` is added. `arguments` are the
    arguments of the script.
    """

    script: str
    name: str
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time_s: float | None = None
    nodes: int | None = None
    exclude: tuple[str, ...] = ()
    dependency: int | None = None
    mail_user: str | None = None
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


def sbatch_argv(request: JobRequest, *, test_only: bool = False) -> tuple[str, ...]:
    """Return the command that submits a script, or only tests the submission. Raises ClusterError.

    Variables are set in the environment of sbatch, since --export splits values at commas.

    >>> " ".join(sbatch_argv(JobRequest("chain.sbatch", "chain-0123", partition="normal", time_s=5400)))
    'sbatch --parsable --job-name=chain-0123 --partition=normal --time=01:30:00 -- chain.sbatch'
    >>> sbatch_argv(JobRequest("a b.sh", "a", environment={"RUN": "1, 2"}, dependency=7))[:5]
    ('env', 'RUN=1, 2', 'sbatch', '--parsable', '--job-name=a')
    """
    _check(request)
    entries = [f"{name}={value}" for name, value in request.environment.items()]
    options = ["--test-only" if test_only else "--parsable", *_options(request)]
    if entries:
        options.append("--export=ALL")
    head = ["env", *entries] if entries else []
    return (*head, "sbatch", *options, *request.options, "--", request.script, *request.arguments)


def _options(request: JobRequest) -> Iterator[str]:
    yield f"--job-name={request.name}"
    for option in ("partition", "account", "qos", "constraint"):
        value = getattr(request, option)
        if value is not None:
            yield f"--{option}={value}"
    if request.time_s is not None:
        yield f"--time={render_limit(request.time_s)}"
    if request.nodes is not None:
        yield f"--nodes={request.nodes}"
    if request.exclude:
        yield f"--exclude={','.join(request.exclude)}"
    if request.dependency is not None:
        yield f"--dependency=afterok:{request.dependency}"
        yield "--kill-on-invalid-dep=yes"  # else the job waits forever if that job fails
    if request.mail_user is not None:
        yield f"--mail-user={request.mail_user}"
        yield f"--mail-type={MAIL_TYPES}"


def _check(request: JobRequest) -> None:
    """Raise ClusterError for values that sbatch would misread."""
    if not request.script:
        raise ClusterError("sbatch", "no script given", "name one")
    if not request.name or not request.name.isprintable():
        raise ClusterError("--job-name", f"{request.name[:80]!r} is not a job name", "use letters and digits")
    if request.options and not request.options[0].startswith("-"):
        what = f"{request.options[0][:80]!r} is not an option; sbatch would read it as the script"
        raise ClusterError("sbatch", what, "start it with --")
    for name in request.environment:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ClusterError(
                "environment", f"{name[:80]!r} is not a variable name", "use letters and digits"
            )
    for host in request.exclude:
        if not is_host_name(host):
            raise ClusterError("--exclude", f"{host[:80]!r} is not a host name", "write the name of a host")


def check_options(words: Sequence[str]) -> None:
    """Raise InputError for words that sbatch would take for the script, and for reserved options."""
    for word in words:
        if not re.fullmatch(r"-[A-Za-z].*|--[a-z].*", word):
            what = f"{word[:80]!r} is not an option of sbatch"
            raise InputError("--sbatch-option", what, "write --name=value")
        name = word.partition("=")[0]
        for reserved, letter, instead in _RESERVED:
            # sbatch accepts any prefix of the name of an option.
            if reserved.startswith(name[2:]) if word.startswith("--") else word[1] == letter:
                raise InputError("--sbatch-option", f"--{reserved} is set by submit", instead)


def pop_option(words: Sequence[str], name: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the value of an sbatch option, the last one if it is repeated, and the other options.

    >>> pop_option(["-p", "long", "--exclusive", "--partition=debug"], "partition")
    ('debug', ('--exclusive',))
    """
    found, rest, remaining = None, [], iter(words)
    for word in remaining:
        if word in (f"--{name}", f"-{_LETTERS[name]}"):
            found = next(remaining, "")  # without a value, sbatch would take the next word
        elif word.startswith(f"--{name}="):
            found = word.partition("=")[2]
        elif word.startswith(f"-{_LETTERS[name]}"):
            found = word[2:]
        else:
            rest.append(word)
    return found, tuple(rest)


def check_mail(address: str | None) -> None:
    """Raise InputError for an invalid mail address: sbatch accepts anything, and no mail would arrive."""
    if address is not None and not (address.isprintable() and re.fullmatch(r"[^\s-]\S*", address)):
        what = f"{address[:80]!r} is not a mail address"
        raise InputError("--mail", what, "write it as you@example.org")
