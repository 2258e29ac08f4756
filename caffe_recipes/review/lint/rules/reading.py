"""Rules for what is found while files are read: nets that are missing, or solvers in no known order.

The modules that read the files report these, since no check can be called without what they lack.
"""

from __future__ import annotations

from caffe_recipes.review.lint.registry import Explanation
from caffe_recipes.review.lint.subjects import (
    file_rule,
    old_net_rule,
    path_rule,
    phase_rule,
    recipe_rule,
    shape_rule,
)

old_net_rule.also(
    "old-format",
    "note",
    "a net in the old format (`layers`)",
    what="the net has {count} `layers` in the old format",
    effect="Caffe upgrades it whenever it reads it; lint checked the upgraded net",
    write="convert it with `caffe-recipes upgrade FILE`",
)
old_net_rule.also(
    "upgrade-refused",
    "error",
    "a net in the old format that Caffe cannot upgrade",
    effect="Caffe aborts when it reads the net",
)
phase_rule.also(
    "no-data",
    "error",
    "a net in which no layer produces data, in either phase",
    what="no layer produces data, and the net has no `input`",
    effect="Caffe aborts: Unknown bottom blob; lint checked the net as if a layer produced data and label",
    write="add a data layer for each phase, or an Input layer; a recipe that names the net adds its own",
)
shape_rule.also(
    "shape-misfit",
    "error",
    "a layer whose bottoms have wrong shapes, or whose own shape is incomplete",
    effect="Caffe aborts when it sets up the net",
)
file_rule.also(
    "unreadable",
    "error",
    "a prototxt in a folder that Caffe cannot read",
    effect="Caffe aborts when it reads the file",
)
path_rule.also(
    "net-not-found",
    "note",
    "a net that was not found, and so not checked",
    what="{given} was found neither in the current folder nor beside the solver",
    effect="the net, and whether it fits its solver, were not checked",
    write="give --caffe-root DIR, or put a copy of the net beside the solver",
)
path_rule.also(
    "net-missing",
    "error",
    "a net that does not exist at its path under the Caffe root",
    what="no file {given} under {caffe_root}",
    effect="Caffe aborts with `File not found`",
    write="{field}: {path}",
    fix="writes the path, relative to the Caffe root, of the net with this name beside the solver",
)
path_rule.also(
    "net-folder",
    "warning",
    "a net whose path names a folder other than the solver's",
    effect="Caffe aborts with `File not found` if that folder does not exist",
    values=("folder", "own"),
    explanation=Explanation(
        "`net:` is a path relative to the folder that Caffe is started in, usually its root. Lint does not "
        "know that folder, and the name of the net's folder differs from that of the solver's, as it does "
        "after a folder was renamed.",
        "Correct the path, or give --caffe-root DIR to search for the net there.",
    ),
    fix="writes the path of a net of this name that is beside the solver, if it ends like the solver's own "
    "folder or lies below the current one",
)
path_rule.also(
    "taken-alone",
    "note",
    "solvers given together that do not look like one chain",
    what="these solvers do not look like one chain; checked {parts}",
    effect="the transitions between chains were not checked",
    write="if they are one chain, give --script FILE with the commands that train it",
)
path_rule.also(
    "net-not-named",
    "error",
    "a solver without a net",
    what="the solver has no net",
    effect="Caffe aborts with `SolverParameter must specify a train net`",
    write="net: the path of the net",
)
path_rule.also(
    "inline-net-old",
    "error",
    "a net inside a solver, in the old format, which Caffe does not upgrade there",
    what="the net in {field} has `{old}`, which Caffe upgrades only in a net's own file",
    effect="Caffe aborts, because it sees an empty net",
    write="move the net to a file and set `net:` to its path; or use `layer`, and an Input layer",
)
path_rule.also(
    "solver-path",
    "warning",
    "a command whose --solver names a folder other than the one that contains the file",
    what="the command gives --solver={path}, but the file is in {home}",
    effect="Caffe aborts with `File not found` if that folder does not exist",
    write="--solver={renamed}",
)
recipe_rule.also(
    "accept-unknown",
    "error",
    "an `accept:` entry that names a rule or phase that does not exist",
    effect="it accepts nothing, so the finding is still reported",
)
recipe_rule.also(
    "unused-accept",
    "warning",
    "an `accept:` entry that matches no finding",
    what="'{accepted}'{of_phase} is accepted, but matches no finding",
    effect="a later finding with this id would be accepted unnoticed",
    write="remove the entry, or correct its id or phase",
)
path_rule.also(
    "not-started",
    "warning",
    "a solver that no command in the given script trains",
    what="no command in the script trains {file}",
    effect="this phase is never trained, so a phase that starts from it finds no weights",
    write="add a command that trains it, or do not give this file to lint",
    explanation=Explanation(
        "The other solvers are checked as the chain that the script trains, and this one by itself.",
        "Add a command that trains it, or run lint without this file.",
    ),
)
recipe_rule.also(
    "order-guessed",
    "note",
    "the order in which a folder's solvers were checked as one chain",
    what="{count} solvers were checked as one chain, ordered {why}: {names}",
    effect="the transitions between phases were checked in this order",
    write="if it is wrong, list the solvers in the right order",
)
recipe_rule.also(
    "order-unknown",
    "note",
    "solvers of a folder whose order is unknown",
    what="the order of {names} is unknown, so each was checked by itself",
    effect="the transitions between them were not checked",
    write="list the solvers in the right order, or give --script FILE",
)
