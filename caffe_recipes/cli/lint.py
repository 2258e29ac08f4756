"""`caffe-recipes lint`: check recipes, chains of solvers, nets, and folders of them for mistakes.

What only a body needs is imported there, so that `--help` and completion are fast.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from caffe_recipes.caffe.dialects import ENGINE
from caffe_recipes.cli import consent, run_options
from caffe_recipes.cli.options import FOLDER, PATH, RECIPE_OR_PROTOTXT, Whole, examples, gather
from caffe_recipes.cli.streams import echo, echo_rows, max_bytes_option, painter, print_text, terminal_width
from caffe_recipes.errors import InputError
from caffe_recipes.review.lint.findings import SEVERITIES, Finding
from caffe_recipes.review.lint.registry import load_rules
from caffe_recipes.review.lint.report import (
    render_findings,
    render_findings_json,
    render_github,
    render_rules,
)

if TYPE_CHECKING:
    from caffe_recipes.review.lint.inputs import LintOptions

_COUNT = Whole(min=1, max=2**31 - 1)


def _show_rules(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        echo(*render_rules(terminal_width()))
        ctx.exit()


def _explain(ctx: click.Context, _: click.Parameter, name: str | None) -> None:
    if name is not None:
        from caffe_recipes.review.lint.explain import explain_rule

        echo(*explain_rule(name, terminal_width()))
        ctx.exit()


def _complete_rule(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    return [CompletionItem(rule) for rule in load_rules() if rule.startswith(typed)]


@click.command(
    epilog=examples(
        "caffe-recipes lint mine.yaml",
        "caffe-recipes lint init.prototxt cyc1.prototxt --ranks 128",
        "caffe-recipes lint --fix --diff models/mine",
        "caffe-recipes lint prototxt/NAME --script jobs/NAME/run.sh",
        "caffe-recipes lint --explain join-jump",
    )
)
@click.argument(
    "targets",
    metavar="NAME|FILE.yaml|FILE.prototxt...|FOLDER...",
    nargs=-1,
    required=True,
    type=RECIPE_OR_PROTOTXT,
)
@click.option("--ranks", metavar="N", type=_COUNT, help="Number of MPI ranks.")
@click.option("--images", metavar="N", type=_COUNT, help="Images in the training LMDB.")
@click.option("--test-images", metavar="N", type=_COUNT, help="Images in the test LMDB.")
@click.option("--classes", metavar="N", type=_COUNT, help="Number of classes.")
@click.option(
    "--caffe-root",
    metavar="DIR",
    type=FOLDER,
    help="The folder that Caffe is started in; `net:` paths are relative to it.",
)
@click.option(
    "--script",
    metavar="FILE",
    type=PATH,
    help="A script, README or log with the training commands, to find order, weights, ranks and MLSL's "
    "cores.",
)
@run_options.dialect(
    "Also report what this Caffe refuses or reads differently; a recipe is checked as generated for it.",
    ENGINE,
)
@consent.run_code
@click.option(
    "--verbose", "is_verbose", is_flag=True, help="Print accepted findings in full, not as a line each."
)
@click.option("--alone", "is_alone", is_flag=True, help="Check each solver by itself, not as a chain.")
@click.option("--fix", "is_fixing", is_flag=True, help="Fix mechanical mistakes in the files, then lint.")
@click.option("--diff", "is_diff", is_flag=True, help="With --fix: write nothing; print a diff.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    show_default=True,
    help="Output format; github prints annotations for the lines of a pull request.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@max_bytes_option
@click.option(
    "--fail-on",
    type=click.Choice([*SEVERITIES, "never"]),
    default="warning",
    show_default=True,
    help="Exit 1 if a finding is at least this severe and not accepted.",
)
@click.option(
    "--rules", is_flag=True, is_eager=True, expose_value=False, callback=_show_rules, help="List all rules."
)
@click.option(
    "--explain",
    metavar="ID",
    shell_complete=_complete_rule,
    is_eager=True,
    expose_value=False,
    callback=_explain,
    help="Explain one rule.",
)
@gather("caffe_recipes.review.lint.inputs:LintOptions", "options")
def lint(
    targets: tuple[str, ...],
    options: LintOptions,
    is_fixing: bool,
    is_diff: bool,
    form: str,
    as_json: bool,
    fail_on: str,
    is_verbose: bool,
) -> None:
    """Check recipes, solvers and nets for mistakes.

    Several solvers are checked as a chain, in the given order. For a folder, all prototxts in it are checked.
    --fix edits prototxts in place, and changes nothing else in them.
    """
    from caffe_recipes.review.lint.folders import is_at_least, lint_targets

    context = click.get_current_context()
    is_given = context.get_parameter_source("form") is ParameterSource.COMMANDLINE
    if as_json and is_given and form != "json":
        raise InputError("--json", f"cannot be combined with --format {form}", "give one of them")
    form = "json" if as_json else form
    if is_diff and not is_fixing:
        raise click.UsageError("--diff needs --fix")
    notices: list[str] = []
    found = lint_targets(targets, options, notices.append)
    if is_fixing:
        homes = [*targets, *(Path(target).parent for target in targets), options.caffe_root]
        if _fix(found, homes, options.max_bytes, is_diff=is_diff):
            found = lint_targets(targets, options)
    if not is_diff:
        _print(found, form, notices, is_verbose=is_verbose)
    if any(is_at_least(one, fail_on) for one in found):
        context.exit(1)


def _fix(found: list[Finding], homes: list[str | Path | None], max_bytes: int, *, is_diff: bool) -> bool:
    """Fix files, or print a diff if `is_diff`; return whether a file was changed."""
    from caffe_recipes.review.rewrites import plan_fixes, render_diff, save_rewrites

    rewrites, fixed, generated = plan_fixes(found, homes, max_bytes)
    for path in generated:
        hint = "edit its recipe and run `caffe-recipes generate`"
        echo(f"skipped {path}: it is generated; {hint}", err=True)
    if not rewrites:
        echo("no findings that --fix can fix", err=True)
    if is_diff:
        for rewrite in rewrites:
            print_text(render_diff(rewrite))
        return False
    if not save_rewrites(rewrites):
        return False
    for one in fixed:
        echo(f"fixed {one.where} [{one.id}] {one.what}", err=True)
    return True


def _print(found: list[Finding], form: str, notices: list[str], *, is_verbose: bool) -> None:
    if form == "json":
        click.echo(render_findings_json(found))
    elif form == "github":
        echo_rows(render_github(found), is_command=True)
    else:
        for line in notices:
            echo(line, err=True)
        paint = painter(sys.stdout.isatty())
        echo(*render_findings(found, paint, terminal_width(), is_verbose=is_verbose))
