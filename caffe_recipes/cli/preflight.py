"""`caffe-recipes preflight`: check hosts, files and launcher before a run."""

from __future__ import annotations

import json

import click

from caffe_recipes.cli import consent, run_options
from caffe_recipes.cli.options import RECIPE, Whole, examples, gather
from caffe_recipes.cli.streams import echo
from caffe_recipes.cluster.hosts import open_host
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.context import Policy, RunOptions
from caffe_recipes.run.preflight.checks import preflight_recipe
from caffe_recipes.run.preflight.findings import CheckResult, describe_outcome


@click.command(
    epilog=examples(
        "caffe-recipes preflight digits-local",
        "caffe-recipes preflight mine.yaml --hostfile hosts --caffe-root $HOME/caffe",
    )
)
@click.argument("recipe", metavar="NAME|FILE.yaml", type=RECIPE)
@run_options.machine
@click.option(
    "--checkpoint-every",
    type=Whole(min=1),
    metavar="N",
    help="Also check the disk space that `run --checkpoint-every N` needs.",
)
@click.option("--new", is_flag=True, help="Check as for `run --new`.")
@click.option("--overwrite", is_flag=True, help="Accept prototxts that differ, as `run --overwrite` does.")
@consent.run_code
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@gather(run_options.GivenRun, "typed")
@gather(Policy, "policy")
@gather(RunOptions, "given")
def preflight(typed: run_options.GivenRun, given: RunOptions, as_json: bool) -> None:
    """Check hosts, files and launcher, as `run` does before training; exit 1 if a check fails.

    Nothing is changed on any host.
    """
    loaded = typed.load()
    options = typed.options(loaded, given)
    found = preflight_recipe(loaded, options, open_host)
    if as_json:
        click.echo(json.dumps([_as_json(finding) for finding in found], indent=1))
    else:
        Reporter().show_findings(found)
        echo(describe_outcome(found))
    if any(finding.error for finding in found):
        click.get_current_context().exit(1)


def _as_json(finding: CheckResult) -> dict[str, object]:
    return {
        "subject": finding.subject,
        "mark": finding.mark,
        "said": finding.message,
        "hosts": list(finding.hosts),
        "hint": finding.error.hint if finding.error else "",
    }
