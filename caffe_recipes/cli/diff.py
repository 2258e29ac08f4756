"""`caffe-recipes diff`: compare prototxts, recipes, runs, folders or git revisions by meaning."""

from __future__ import annotations

import os
import sys

import click

from caffe_recipes.cli import consent
from caffe_recipes.cli.options import RECIPE_OR_PROTOTXT, Whole, examples, gather
from caffe_recipes.cli.streams import any_dialect, echo, echo_text, max_bytes_option, painter
from caffe_recipes.errors import InputError
from caffe_recipes.review.diff.compare import DiffOptions, compare_sides
from caffe_recipes.review.diff.report import render_comparison, render_comparison_json, render_for_git
from caffe_recipes.review.diff.sources import open_sides
from caffe_recipes.review.foreign import describe_foreign
from caffe_recipes.wording import describe_names, plural

_REST = "caffe_recipes.diff.rest"


class _Diff(click.Command):
    """Separates the paths after `--`, and the arguments that git adds after `--git`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        mark = next((word for word in args if word in ("--", "--git")), None)
        place = args.index(mark) if mark else len(args)
        ctx.meta[_REST] = args[place + 1 :]
        return super().parse_args(ctx, [*args[:place], *([mark] if mark == "--git" else [])])


def _read_ranks(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = text.split(",")
    numbers = [int(part) for part in parts if part.isascii() and part.isdigit() and len(part) < 10]
    if len(numbers) != len(parts) or len(numbers) > 2 or 0 in numbers:
        raise click.BadParameter(f"'{text}' is not a number of ranks; write 128, or 64,128 for two")
    return numbers[0], numbers[-1]


@click.command(
    cls=_Diff,
    epilog=examples(
        "caffe-recipes diff old/solver.prototxt solver.prototxt",
        "caffe-recipes diff stampede2-64n-72ep mine.yaml",
        "caffe-recipes diff digits-local-1 digits-local-2",
        "caffe-recipes diff HEAD~1 HEAD -- prototxt/",
        "caffe-recipes diff HEAD:./mine.yaml mine.yaml",
    ),
)
@click.argument("sides", metavar="A [B] [-- PATH...]", nargs=-1, type=RECIPE_OR_PROTOTXT)
@click.option("--defaults", is_flag=True, help="Report fields that are set to their default.")
@click.option(
    "--images", type=Whole(1), metavar="N", help="Images in an epoch, to compare solvers in epochs."
)
@click.option(
    "--ranks",
    metavar="N[,N]",
    callback=_read_ranks,
    help="Number of MPI ranks; N,M if A and B have different numbers.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@any_dialect
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; only set the exit code.")
@click.option("--git", is_flag=True, help="Act as git's diff driver; must come last (see docs/reviewing.md).")
@consent.run_code
@max_bytes_option
@click.pass_context
@gather(DiffOptions, "options")
def diff(
    ctx: click.Context,
    sides: tuple[str, ...],
    options: DiffOptions,
    as_json: bool,
    quiet: bool,
    git: bool,
) -> None:
    """Compare prototxts, recipes, runs, folders or git revisions by meaning; exit 1 if they differ.

    A single revision is compared with the working tree; untracked files are only listed.
    PATHs restrict the comparison. The order of fields, comments and formatting are ignored. With --images and
    --ranks, solvers are also compared in epochs. In folders and revisions, recipes are compared by their
    values. If A and B are recipes, the files that they generate are compared too.
    Of two runs, named or given as folders, the recipes and the results are compared; only the recipes decide
    the exit code.
    """
    rest = ctx.meta[_REST]
    if git:
        lines, text = render_for_git([*sides, *rest], options, painter(_is_shown()))
        echo(*lines, color=True)
        echo_text(text)
        return
    if "" in rest:
        raise InputError("PATH", "'' is not a path", "is a variable unset?")
    if not sides:
        raise click.UsageError("Missing argument 'A'.", ctx)
    if (options.images is None) != (options.ranks is None):
        raise InputError("", "--images and --ranks must be given together", "give both, or neither")
    if not rest and _are_runs(sides):
        ctx.exit(_diff_runs(*sides, as_json=as_json, quiet=quiet))
    comparison = compare_sides(open_sides(sides, rest, max_bytes=options.max_bytes), options)
    for line in () if quiet else describe_foreign(options.foreign, options.dialect):
        echo(line, err=True)
    if comparison.untracked and not quiet:
        names = describe_names(comparison.untracked)
        are = plural(len(comparison.untracked), "is", "are")
        hint = "run `git add` on what you want to compare"
        echo(f"not compared: {names} {are} new in the working tree; {hint}", err=True)
    if as_json and not quiet:
        click.echo(render_comparison_json(comparison))
    elif not quiet:
        lines = render_comparison(comparison, painter(sys.stdout.isatty()))
        echo(*(lines or ["no difference in meaning"]))
    ctx.exit(2 if comparison.unreadable else 0 if comparison.equal else 1)


def _are_runs(sides: tuple[str, ...]) -> bool:
    """Return whether there are two sides, each the folder of a run or the name of one.

    Raises InputError if only one is.
    """
    places = [(side, os.path.join(_root(), "runs", side)) for side in sides]  # noqa: PTH118
    # Path.is_dir raises if a name is too long.
    found = [any(map(os.path.isdir, both)) for both in places]
    if len(sides) != 2 or not any(found):
        return False
    from caffe_recipes.run.monitor.curves import is_run  # slow, and needed only for runs

    runs = [is_run(side, _root()) for side in sides]
    if any(runs) and not all(runs):
        run, other = sorted(sides, key=lambda side: not runs[sides.index(side)])
        raise InputError(other, f"is not a run, but {run} is", "compare two runs")
    return all(runs)


def _root() -> str:
    return os.environ.get("CAFFE_ROOT") or "."


def _diff_runs(old: str, new: str, *, as_json: bool, quiet: bool) -> int:
    from caffe_recipes.run.monitor.comparison import compare_two_runs, render_results, results_json

    compared, results = compare_two_runs(old, new, _root())
    if as_json and not quiet:
        click.echo(render_comparison_json(compared, results=results_json(*results)))
    elif not quiet:
        lines = render_comparison(compared, painter(sys.stdout.isatty()))
        echo(*(lines or ["recipe: no difference in meaning"]), *render_results(*results))
    return 0 if compared.equal else 1


def _is_shown() -> bool:
    """Return whether the output is shown to a person: git's pager shows colours, although it is a pipe."""
    return os.environ.get("GIT_PAGER_IN_USE") in ("1", "true") or sys.stdout.isatty()
