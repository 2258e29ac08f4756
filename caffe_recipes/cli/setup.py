"""`caffe-recipes doctor`, `profiles` and `completion`: check and set up a machine and a shell."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click
from click.shell_completion import get_completion_class

from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import PATH_TEXT, examples
from caffe_recipes.cli.streams import echo, echo_text, paint, terminal_width
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.profiles import load_profile, profile_text, shipped_profiles
from caffe_recipes.review.text_columns import align_columns, wrap_line
from caffe_recipes.run.preflight.doctor import COMMANDS_WITH_NEEDS, Machine, examine

SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog=examples("caffe-recipes doctor", "caffe-recipes doctor run", "caffe-recipes doctor submit --json")
)
@click.argument("commands", metavar="[COMMAND]...", nargs=-1, type=click.Choice(COMMANDS_WITH_NEEDS))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(commands: tuple[str, ...], as_json: bool) -> None:
    """Check this machine: launcher, MPI, Caffe, torch, threads, /tmp, ssh, Slurm.

    For each missing part, print the commands that need it, and how to install it. With
    COMMANDs, check only what these need, and exit 1 if they cannot run. To check the hosts of a run, use
    `preflight`.
    """
    symptoms = list(examine(Machine(LocalHost()), commands))
    if as_json:
        click.echo(json.dumps([asdict(symptom) for symptom in symptoms], indent=1))
    else:
        width = max(len(symptom.name) for symptom in symptoms)
        for symptom in symptoms:
            mark, colour = (
                ("ok", "green") if symptom.is_found else ("missing", "red") if symptom.is_fatal else ("-", "")
            )
            only = f", for {symptom.only_for}" if symptom.only_for else ""
            lines = [f"{mark:7} {symptom.name:{width}}  {symptom.what}"]
            if not symptom.is_found:
                lines += [
                    f"{'':{width + 10}}needed by: {', '.join(symptom.commands)}{only}",
                    f"{'':{width + 10}}install:   {symptom.install}",
                ]
            first, *rest = (part for line in lines for part in wrap_line(line, terminal_width(), width + 10))
            echo(f"{paint(first[:7], colour)}{first[7:]}", *rest)
    if commands and any(symptom.is_fatal for symptom in symptoms):
        sys.exit(1)


@click.command(epilog=examples("caffe-recipes profiles", "caffe-recipes profiles slurm > cluster.yaml"))
@click.argument(
    "name",
    metavar="[NAME|FILE.yaml]",
    required=False,
    type=PATH_TEXT,
    shell_complete=run_options.complete_profile,
)
def profiles(name: str | None) -> None:
    """List the shipped profiles, or print the YAML of one, to edit for your own machine.

    A FILE.yaml is checked first.
    """
    if name is not None:
        echo_text(profile_text(name))
        return
    loaded = [load_profile(each) for each in shipped_profiles()]
    rows = [
        (profile.name if text is profile.title else "", text)
        for profile in loaded
        for text in (profile.title, *(f"  {note}" for note in profile.notes))
    ]
    echo(*align_columns(rows, width=terminal_width()))


@click.command(
    epilog=examples(
        "caffe-recipes completion bash > /etc/bash_completion.d/caffe-recipes",
        "caffe-recipes completion zsh > ~/.zfunc/_caffe-recipes",
        "caffe-recipes completion fish | source",
    )
)
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell completion script, for commands, options, recipes, runs, phases and rules."""
    kind = get_completion_class(shell)
    assert kind
    program = "caffe-recipes"
    source = kind(context.find_root().command, {}, program, "_CAFFE_RECIPES_COMPLETE").source()
    echo_text(source)
