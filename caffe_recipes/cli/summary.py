"""`caffe-recipes summary`: print the shapes and costs of a net's layers, and draw its graph."""

from __future__ import annotations

from pathlib import Path

import click

from caffe_recipes.caffe import pb
from caffe_recipes.cli import consent
from caffe_recipes.cli.options import FOLDER, NET, PATH, Whole, examples, gather
from caffe_recipes.cli.streams import any_dialect, echo, echo_rows, max_bytes_option, terminal_width
from caffe_recipes.errors import InputError
from caffe_recipes.files.atomic_writes import check_output
from caffe_recipes.review.foreign import describe_foreign
from caffe_recipes.review.inspect.summary import (
    SummaryOptions,
    read_net,
    render_csv,
    render_summary_json,
    render_table,
    render_wide_table,
    summarize,
)

_MOST_DIM = 2**31 - 1


def image_size(
    context: click.Context, option: click.Parameter, text: str | None
) -> tuple[int, int, int] | None:
    """Return the value of an option such as 3,224,224; the callback of --input."""
    if text is None:
        return None
    parts = text.replace("x", ",").split(",")
    if len(parts) != 3 or not all(part.isdecimal() and 0 < int(part) <= _MOST_DIM for part in parts):
        raise click.BadParameter(
            f"'{text}' is not channels,height,width; e.g. 3,256,256, or 50,1,1 for 50 numbers"
        )
    channels, height, width = map(int, parts)
    return channels, height, width


@click.command(
    epilog=examples(
        "caffe-recipes summary train_val.prototxt",
        "caffe-recipes summary stampede2-64n-72ep:train_val --graph resnet50.svg",
    )
)
@click.argument("net", metavar="FILE|FOLDER|NAME[:net]", type=NET)
@click.option(
    "--phase",
    type=click.Choice(["TRAIN", "TEST"]),
    callback=lambda context, option, phase: pb.Phase.Value(phase) if phase else None,
    help="The phase to summarize [default: TRAIN, or TEST for a deploy net]",
)
@click.option(
    "--level",
    type=Whole(-(2**31), 2**31 - 1),
    metavar="N",
    help="The level of the net, for layers that are included or excluded by level.",
)
@click.option(
    "--stage",
    "stages",
    multiple=True,
    metavar="NAME",
    help="A stage of the net, for layers that are included or excluded by stage; may be repeated.",
)
@click.option("--batch", type=Whole(1, _MOST_DIM), metavar="N", help="Images per batch [default: the net's]")
@click.option(
    "--input",
    "image",
    callback=image_size,
    metavar="C,H,W",
    help="Size of the images, e.g. 3,256,256, if it cannot be read from a file on this machine.",
)
@click.option("--caffe-root", type=FOLDER, metavar="DIR", help="The folder that Caffe is started in.")
@click.option(
    "--wide",
    "is_wide",
    is_flag=True,
    help="Print all columns, such as bottoms, statistics and activations.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of a table; it has all columns.")
@click.option(
    "--graph",
    type=PATH,
    metavar="FILE.svg|.png|.pdf",
    help="Also draw the graph: of both phases, unless --phase is given.",
)
@any_dialect
@consent.run_code
@max_bytes_option
@gather(SummaryOptions, "options")
def summary(
    net: str, options: SummaryOptions, is_wide: bool, as_json: bool, as_csv: bool, graph: Path | None
) -> None:
    """Print a net layer by layer: kernel, output, parameters and multiply-adds; then the totals.

    FILE is the prototxt of a net, or of a solver, whose net is then read. FOLDER contains one net. NAME is
    the name of a recipe, and NAME:NET is one of its nets.
    """
    if as_json and as_csv:
        raise InputError("--csv", "cannot be combined with --json", "give one of them")
    if graph is not None:
        from caffe_recipes.review.inspect.plot_style import format_of

        kind = format_of(graph)
        check_output(graph, [net], "--graph")
    read = read_net(net, options)
    for line in describe_foreign([read.document] if read.document else [], options.dialect):
        echo(line, err=True)
    found = summarize(read)
    if graph is not None:
        from caffe_recipes.render.tree import write_file
        from caffe_recipes.review.graph.picture import render_graph

        write_file(graph, render_graph(read, found, kind))
        echo(f"wrote {graph}", err=True)
    if as_json:
        click.echo(render_summary_json(found))
    elif as_csv:
        echo_rows(render_csv(found))
    else:
        echo(*(render_wide_table(found) if is_wide else render_table(found, terminal_width(in_pipes=True))))
