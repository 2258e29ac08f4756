"""`caffe-recipes ensemble`: evaluate the models of a run, individually and averaged."""

from __future__ import annotations

import json
from pathlib import Path

import click

from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import PATH, RUN, examples
from caffe_recipes.cli.streams import echo


def _names(context: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if "" in names:
        raise click.BadParameter("a name is empty; write A,B")
    return names


@click.command(
    epilog=examples(
        "caffe-recipes ensemble digits-cyclic",
        "caffe-recipes ensemble digits-cyclic-1 --members cyc1,cyc2 --average votes",
    )
)
@click.argument("run", type=RUN)
@run_options.runs_root
@click.option(
    "--members",
    metavar="A,B,...",
    callback=_names,
    help="Phases or .caffemodel files [default: the recipe's members, else the last phase of each branch]",
)
@click.option(
    "--lmdb",
    type=PATH,
    metavar="DIR",
    help="LMDB to evaluate on [default: the recipe's test LMDB]",
)
@click.option(
    "--average",
    type=click.Choice(["probabilities", "geometric", "votes"]),
    default="probabilities",
    show_default=True,
    help="How predictions are combined.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ensemble(
    run: str, caffe_root: str, members: tuple[str, ...] | None, lmdb: Path | None, average: str, as_json: bool
) -> None:
    """Evaluate the models of a run on a test LMDB: individually, averaged, and what each one adds.

    RUN is the folder or name of a run (digits-cyclic-1), or the name or YAML of a recipe, meaning its latest
    run. caffe-torch computes the predictions of each model once, and stores them beside the
    snapshots.
    """
    from caffe_recipes.run import ensemble as ensembles  # numpy is an extra, and slow to import

    options = ensembles.EnsembleOptions(Path(caffe_root), members, lmdb, average)
    found = ensembles.measure_ensemble(run, options, lambda text: echo(text, err=True))
    if as_json:
        click.echo(json.dumps(ensembles.ensemble_as_json(found), indent=1))
        return
    root = Path(caffe_root).absolute()
    shown = found.lmdb.relative_to(root) if found.lmdb.is_relative_to(root) else found.lmdb
    echo(*ensembles.render_ensemble(found, str(shown)))
