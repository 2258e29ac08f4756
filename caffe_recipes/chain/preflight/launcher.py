"""The launcher tried: it starts the ranks, and each where the hostfile has it."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from caffe_recipes.chain.preflight.commands import Commands
from caffe_recipes.chain.preflight.findings import Finding, Trouble, fold_names, tell
from caffe_recipes.chain.preflight.look import Look
from caffe_recipes.chain.setting import Setting
from caffe_recipes.chain.units import describe_count
from caffe_recipes.cluster.hostfile import render_hostfile
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.errors import ClusterError

_START_S = 120.0
# Hydra dies of SIGPIPE if its ranks end before it has told them that there is no standard input.
_RANK = (
    "sh",
    "-c",
    'echo "caffe-recipes: rank ${PMI_RANK:-${PMIX_RANK:-${SLURM_PROCID:-?}}} on $(uname -n)"; sleep 0.3',
)
_PLACE = re.compile(r"caffe-recipes: rank (\d+) on (\S+)")


@dataclass(frozen=True)
class Places:
    """Where ranks were: `by_rank` the node's name of each; `expected`, of each host, its node's name."""

    by_rank: Mapping[int, str]
    expected: Mapping[str, str]
    ranks_per_node: int


def check_launcher(look: Look) -> list[Finding]:
    """Start a small command on every rank, and compare where each was with the hostfile."""
    setting = look.setting
    if look.under_way:
        return look.leave("launcher")
    if look.errors:
        return look.skip("launcher", list(look.errors))
    launcher = setting.find_launcher()
    places = Places(
        parse_places(start_ranks(setting, look.commands)),
        {name: facts.node_name for name, facts in look.facts.items()},
        setting.recipe.cluster.ranks_per_node,
    )
    misplaced = misplaced_ranks(places, setting)
    if misplaced:
        return misplaced
    ranks = describe_count(setting.recipe.cluster.ranks_per_node, "rank")
    said = f"{launcher} starts {ranks} on each host"
    if not setting.left_out:
        return [Finding("launcher", said)]
    options = ", ".join(setting.left_out)
    return [Finding("launcher", f"{said}, without {options}, which it does not know", warns=True)]


def start_ranks(setting: Setting, commands: Commands) -> str:
    """Have every rank say where it is; return what the launcher printed.

    Raises ClusterError with the launcher's own first word if it fails.
    """
    program = setting.profile.launcher.program
    variables = [f"{name}={value}" for name, value in setting.environment.items()]
    with os.fdopen(os.memfd_create("hostfile"), "w") as hostfile:  # nothing may be written to a disk yet
        hostfile.write(render_hostfile([host.name for host in setting.hosts]))
        hostfile.flush()
        argv = setting.launch_argv(_RANK, f"/proc/{os.getpid()}/fd/{hostfile.fileno()}")
        try:
            done = commands.run(LocalHost(), ["env", "-C", str(setting.root), *variables, *argv], _START_S)
        except ClusterError as error:
            raise ClusterError(program, error.what.replace("env", program, 1), _by_hand(setting)) from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[0].strip() if lines else f"returned {done.returncode}"
        raise ClusterError(program, f"does not start: {reason}", _by_hand(setting))
    return done.stdout


def parse_places(said: str) -> dict[int, str]:
    """Read each rank's node.

    >>> parse_places("[1] caffe-recipes: rank 1 on n2\\n[0] caffe-recipes: rank 0 on n1\\n")
    {1: 'n2', 0: 'n1'}
    """
    return {int(rank): node for rank, node in _PLACE.findall(said)}


def misplaced_ranks(places: Places, setting: Setting) -> list[Finding]:
    """Say which ranks are elsewhere than the hostfile has them, and which hosts have too few or too many."""
    first, hint = next(iter(places.expected)), _by_hand(setting)
    found: list[Finding] = []
    if places.by_rank.get(0, places.expected[first]) != places.expected[first]:
        what = f"rank 0 is on {places.by_rank[0]}, and not on {first}, the first host"
        error = ClusterError(setting.find_launcher(), what, f"snapshots are fetched from {first}; {hint}")
        found.append(Finding("launcher", str(error), error))
    found += tell("launcher", list(_wrong_counts(places, hint)))
    unknown = Counter(node for node in places.by_rank.values() if node not in places.expected.values())
    for node, count in unknown.items():
        ranks = f"{describe_count(count, 'rank')} {'is' if count == 1 else 'are'}"
        what = f"{ranks} on {node}, which is no host of ours"
        error = ClusterError(setting.find_launcher(), what, hint)
        found.append(Finding("launcher", str(error), error))
    if not found:
        found += tell("launcher", list(_wrong_order(places)))
    return found


def _wrong_counts(places: Places, hint: str) -> Iterator[Trouble]:
    shared = Counter(places.expected.values())  # names of one machine, as localhost and its own
    counts = Counter(places.by_rank.values())
    for host, node in places.expected.items():
        wanted = places.ranks_per_node * shared[node]
        if counts[node] != wanted:
            has = f"gets {counts[node] or 'no'} rank{'s' if counts[node] != 1 else ''}"
            yield Trouble(host, f"{has} from the launcher instead of {wanted}", hint)


def _wrong_order(places: Places) -> Iterator[Trouble]:
    nodes = list(places.expected.items())
    for index, (host, node) in enumerate(nodes):
        ranks = range(index * places.ranks_per_node, (index + 1) * places.ranks_per_node)
        if any(places.by_rank[rank] != node for rank in ranks):
            hint = "speeds by rank are told of other hosts than they are of"
            yield Trouble(host, "has not the ranks that its line in the hostfile gives it", hint, fails=False)


def _by_hand(setting: Setting) -> str:
    named = fold_names([host.name for host in setting.hosts])
    return f"try `{shlex.join(setting.launch_argv(_RANK, 'HOSTFILE'))}` by hand, with {named} in HOSTFILE"
