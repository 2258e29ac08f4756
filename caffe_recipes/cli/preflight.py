"""`caffe-recipes preflight`: look at everything that would waste an allocation, and change nothing."""

from __future__ import annotations

import json
from pathlib import Path

import click

from caffe_recipes.chain.policy import Policy
from caffe_recipes.chain.preflight import Finding
from caffe_recipes.chain.preflight.findings import describe_outcome
from caffe_recipes.chain.preflight.recipe import preflight_recipe
from caffe_recipes.chain.report import Reporter
from caffe_recipes.chain.setting import Options, find_root
from caffe_recipes.cli import options as given
from caffe_recipes.cli.names import RECIPE
from caffe_recipes.cli.numbers import Whole
from caffe_recipes.cluster.hosts import open_host
from caffe_recipes.cluster.staging.costs import How


@click.command()
@click.argument("recipe", metavar="NAME|FILE.yaml", type=RECIPE)
@given.hostfile
@given.profile
@given.caffe
@given.caffe_root
@given.lmdb_source
@given.how
@given.dialect
@click.option(
    "--checkpoint-every",
    type=Whole(min=1),
    metavar="N",
    help="Count on the disks' room for `run --checkpoint-every N`.",
)
@click.option("--new", is_flag=True, help="Look as for another run, whatever became of the latest.")
@click.option("--overwrite", is_flag=True, help="Let prototxts differ that `run --overwrite` overwrites.")
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects.")
def preflight(
    recipe: str,
    hostfile: Path | None,
    profile: str | None,
    caffe: str | None,
    caffe_root: Path | None,
    lmdb_source: Path | None,
    how: How | None,
    dialect: str,
    checkpoint_every: int | None,
    new: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Look at hosts, launcher, Caffe, data and disks, as `run` does first; nothing is changed anywhere.

    Exit 1 if a check fails.
    """
    options = Options(
        root=find_root(caffe_root, profile),
        hostfile=hostfile,
        lmdb_source=lmdb_source,
        how=how,
        profile=profile,
        new=new,
        overwrite=overwrite,
        policy=Policy(checkpoint_every=checkpoint_every),
    )
    found = preflight_recipe(given.load_given(recipe, dialect, caffe), options, open_host)
    if as_json:
        click.echo(json.dumps([_as_json(finding) for finding in found], indent=1))
    else:
        Reporter().show_findings(found)
        click.echo(describe_outcome(found))
    if any(finding.error for finding in found):
        click.get_current_context().exit(1)


def _as_json(finding: Finding) -> dict[str, object]:
    return {
        "subject": finding.subject,
        "mark": finding.mark,
        "said": finding.said,
        "hosts": list(finding.hosts),
        "hint": finding.error.hint if finding.error else "",
    }
