"""`caffe-recipes preflight`: look at everything that would waste an allocation, and change nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import click

from caffe_recipes.cli import consent, run_options
from caffe_recipes.cli.options import RECIPE, Whole, gather
from caffe_recipes.cli.streams import echo
from caffe_recipes.cluster.hosts import open_host
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.context import Policy
from caffe_recipes.run.preflight.checks import preflight_recipe
from caffe_recipes.run.preflight.findings import CheckResult, describe_outcome


@click.command()
@click.argument("recipe", metavar="NAME|FILE.yaml", type=RECIPE)
@run_options.hostfile
@run_options.profile
@run_options.caffe
@run_options.caffe_root
@run_options.lmdb_source
@run_options.how
@run_options.dialect
@click.option(
    "--checkpoint-every",
    type=Whole(min=1),
    metavar="N",
    help="Count on the disks' room for `run --checkpoint-every N`.",
)
@click.option("--new", is_flag=True, help="Look as for another run, whatever became of the latest.")
@click.option("--overwrite", is_flag=True, help="Let prototxts differ that `run --overwrite` overwrites.")
@consent.run_code
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects.")
@gather(run_options.GivenRun, "typed")
def preflight(
    typed: run_options.GivenRun, checkpoint_every: int | None, new: bool, overwrite: bool, as_json: bool
) -> None:
    """Look at hosts, launcher, Caffe, data and disks, as `run` does first; nothing is changed anywhere.

    Exit 1 if a check fails.
    """
    loaded, policy = typed.load(), Policy(checkpoint_every=checkpoint_every)
    options = replace(typed.options(loaded), new=new, overwrite=overwrite, policy=policy)
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
