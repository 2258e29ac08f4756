"""`caffe-recipes report`: write the report of runs, as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import PATH, RUN, examples
from caffe_recipes.cli.streams import echo


@click.command(
    epilog=examples(
        "caffe-recipes report digits-local -o report.html",
        "caffe-recipes report digits-local-1 digits-local-2 -o compared.html",
    )
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=RUN)
@click.option("-o", "--out", metavar="FILE", type=PATH, required=True, help="The .html file to write.")
@run_options.runs_root
def report(runs: tuple[str, ...], out: Path, caffe_root: str) -> None:
    """Write the report of runs as one HTML page, which a browser shows without a network.

    It has the timeline of all hosts, the curves, the throughput, what failed and what was done about it,
    lint's findings, the recipe, the digests of all files, and the commands to do it again. Several runs are
    drawn into the same charts, and what differs between their recipes is listed. RUN is the folder or name of
    a run (digits-local-1), or a recipe, which stands for its latest run, as a family does for those of its
    rows. Each `run` writes such a page, too: runs/NAME/report.html.

    What cannot be read is listed on the page and on standard error.
    """
    from caffe_recipes.run.report.writing import write_report

    for line in write_report(runs, out, caffe_root):
        echo(f"not read: {line}", err=True)
    echo(f"wrote {out}")
