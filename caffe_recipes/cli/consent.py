"""Handle the consent to run a recipe's own code: `--run-code`, and commands that imply it."""

from __future__ import annotations

import shlex
import sys

import click

from caffe_recipes.cli.streams import echo


def _allow_once(context: click.Context, option: click.Parameter, is_given: bool) -> None:
    from caffe_recipes.render.own_code import allowing_code

    behind = sys.argv.index(str(context.info_name), 1) + 1 if context.info_name in sys.argv[1:] else 1
    words = ["caffe-recipes", *sys.argv[1:behind], "--run-code", *sys.argv[behind:]]
    context.with_resource(allowing_code("once" if is_given else "recorded", shlex.join(words)))


# For commands that build nets only to read them.
run_code = click.option(
    "--run-code",
    is_flag=True,
    expose_value=False,
    callback=_allow_once,
    help="Allow this command to run the Python code of the recipe's `net: function:`.",
)


def allow_code() -> None:
    """Record this command as the user's consent to run a recipe's `net: function:`."""
    from caffe_recipes.render.own_code import allowing_code

    def warn(text: str) -> None:
        echo(f"warning: {text}", err=True)

    click.get_current_context().with_resource(allowing_code("always", warn=warn))
