"""`caffe-recipes lint`: what is wrong with recipes, chains of solvers, nets, and folders of them."""

from __future__ import annotations

import click

from caffe_recipes.caffe.dialects import OURS, load_dialects
from caffe_recipes.caffe.prototxt import MOST_BYTES
from caffe_recipes.cli import consent
from caffe_recipes.cli.options import FOLDER, PATH, RECIPE_OR_PROTOTXT, Whole, gather
from caffe_recipes.cli.streams import echo
from caffe_recipes.review.lint.folders import explain_rule, is_at_least
from caffe_recipes.review.lint.folders import lint as find_all
from caffe_recipes.review.lint.inputs import LintOptions
from caffe_recipes.review.lint.rules import SEVERITIES, render_findings, render_json, render_rules

_COUNT = Whole(min=1, max=2**31 - 1)


def _show_rules(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        echo(render_rules())
        ctx.exit()


def _explain(ctx: click.Context, _: click.Parameter, name: str | None) -> None:
    if name is not None:
        echo(explain_rule(name))
        ctx.exit()


@click.command()
@click.argument(
    "targets",
    metavar="NAME|FILE.yaml|FILE.prototxt...|FOLDER...",
    nargs=-1,
    required=True,
    type=RECIPE_OR_PROTOTXT,
)
@click.option("--ranks", metavar="N", type=_COUNT, help="MPI ranks that train.")
@click.option("--images", metavar="N", type=_COUNT, help="Images of the training LMDB.")
@click.option("--test-images", metavar="N", type=_COUNT, help="Images of the LMDB that is tested.")
@click.option("--classes", metavar="N", type=_COUNT, help="Classes that the labels count.")
@click.option(
    "--caffe-root",
    metavar="DIR",
    type=FOLDER,
    help="Where the solvers' net: paths start.",
)
@click.option(
    "--script",
    metavar="FILE",
    type=PATH,
    help="A script, README or log with the commands: ranks, weights, order, MLSL's cores.",
)
@click.option(
    "--dialect",
    type=click.Choice(list(load_dialects())),
    default=OURS,
    show_default=True,
    help="Also say what this Caffe would refuse or read otherwise; recipes are taken as generated for it.",
)
@consent.run_code
@click.option("--alone", "is_alone", is_flag=True, help="The files are no chain: look at each solver alone.")
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects.")
@click.option("--max-bytes", metavar="N", type=Whole(min=1), default=MOST_BYTES, show_default=True)
@click.option(
    "--fail-on",
    type=click.Choice([*SEVERITIES, "never"]),
    default="warning",
    show_default=True,
    help="Exit 1 if a finding that is not accepted is this grave.",
)
@click.option(
    "--rules", is_flag=True, is_eager=True, expose_value=False, callback=_show_rules, help="List all ids."
)
@click.option(
    "--explain", metavar="ID", is_eager=True, expose_value=False, callback=_explain, help="Explain one id."
)
@gather(LintOptions, "options")
def lint(targets: tuple[str, ...], options: LintOptions, as_json: bool, fail_on: str) -> None:
    """Say what is wrong with recipes, solvers in the order of their chain, nets, or folders of them."""
    found = find_all(targets, options)
    if as_json:
        click.echo(render_json(found))
    else:
        echo(render_findings(found))
    if any(is_at_least(one, fail_on) for one in found):
        click.get_current_context().exit(1)
