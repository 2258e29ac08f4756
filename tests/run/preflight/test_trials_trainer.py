"""The trial of a Caffe: what it is given, and how its end is reported."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.remote import NodeRefusal, call
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.caffe import trial_net, trial_solvers
from caffe_recipes.run.context import RunOptions, find_setting
from caffe_recipes.run.events import RunState
from caffe_recipes.run.preflight.findings import Commands, HostProblem
from caffe_recipes.run.preflight.nodes import NodeFacts, NodeView, Processors
from caffe_recipes.run.preflight.trials import (
    check_trainer,
    find_untrusted,
    parse_attempt,
    parse_places,
    render_environment,
    try_trainer,
)
from caffe_recipes.run.trainer import Attempt
from caffe_recipes.run.training_plan import find_trainer, plan_training

if TYPE_CHECKING:
    from tests.run.conftest import Place

FATAL = "F1120 11:49:33.775818  6374 sgd_solver.cpp:117] Unknown learning rate policy: poly_cyc"
DONE = "I1120 11:49:33.775818  6374 solver.cpp:443] Optimization Done."
# As glog and libprotobuf have it of an unknown field.
UNKNOWN_FIELD = (
    "[libprotobuf ERROR google/protobuf/text_format.cc:274] Error parsing text-format caffe.SolverParameter: "
    '19:12: Message type "caffe.SolverParameter" has no field named "lr_iter".\n'
    "F1120 11:49:33.775818  6374 upgrade_proto.cpp:90] Check failed: ReadProtoFromTextFile(param_file, param)"
)
NO_GPU = (
    "F1120 11:49:33.775818  6374 main.py:90] solver_1.prototxt: solver_mode is GPU, but PyTorch finds none"
)


def try_caffe(place: Place, script: str, limit_s: float = 60.0) -> list[HostProblem]:
    (place.root / "caffe").write_text(f"#!/bin/sh\n{script}\n")
    recipe = load_recipe(place.recipe)
    setting = find_setting(recipe, RunOptions(root=place.root), lambda name, copy_with: LocalHost(name))
    return try_trainer(setting, setting.hosts, Commands(), limit_s)


def test_each_policy_is_tried_once_with_the_phase_that_sets_most_of_its_fields() -> None:
    solvers = trial_solvers(load_recipe("stampede2-64n-72ep"))
    assert list(solvers) == ["poly_cyc", "poly"]
    tried = solvers["poly_cyc"]
    assert (tried.max_iter, tried.warmup_iter, tried.lr_iter, tried.display) == (2, 1, 18720, 1)
    assert (tried.net, tried.snapshot_after_train, tried.solver_mode) == ("net.prototxt", False, tried.CPU)
    assert not solvers["poly"].HasField("warmup_iter")


def test_the_net_of_a_trial_needs_no_data() -> None:
    assert infer_shapes(trial_net(), pb.TRAIN).blobs["ip"] == (2, 2)


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        (Attempt(0, DONE), None),
        (Attempt(134, FATAL), "fails: Unknown learning rate policy: poly_cyc"),
        (Attempt(0, f"{DONE}\n{FATAL}"), "fails: Unknown learning rate policy: poly_cyc"),
        (Attempt(2, NO_GPU), "fails: the solver: solver_mode is GPU"),
        (Attempt(134, UNKNOWN_FIELD), "has no field named"),
        (Attempt(0, ""), "a tiny net: it exits with 0, but prints no `Optimization Done.`"),
        (Attempt(124, "waiting for a licence"), "within 120 s; its last line: waiting for a licence"),
        (Attempt(126, "sh: caffe: Permission denied"), "does not start: sh: caffe: Permission denied"),
        (
            Attempt(139, "Segmentation fault"),
            "it exits with 139; its last line: Segmentation fault",
        ),
    ],
)
def test_a_trial_is_judged_by_its_log(attempt: Attempt, expected: str | None) -> None:
    seen = find_trainer(load_recipe("digits-local")).trial().judge(attempt, 120)
    assert seen is None if expected is None else re.search(expected, seen or "")


def test_a_trial_is_one_process_without_other_ranks_in_its_own_folder(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PMI_RANK": "1", "SLURM_PROCID": "1", "MINE": "it's $(mine)\n"}.items():
        monkeypatch.setenv(name, value)
    place.edit("omp_num_threads: 1", "omp_num_threads: 3")
    script = f"""
        pwd -P >>'{place.root}/where'; stat -c %a . >>'{place.root}/where'
        printf '%s,' "${{PMI_RANK-}}" "${{SLURM_PROCID-}}" "$OMP_NUM_THREADS" "$MINE" "$*" >'{place.root}/got'
        touch core; echo '{DONE}' >&2"""
    assert try_caffe(place, script) == []
    folder, mode = (place.root / "where").read_text().split()
    assert (place.root / "got").read_text() == ",,3,it's $(mine)\n,train --solver=solver_0.prototxt,"
    assert mode == "700"
    assert not Path(folder).exists()


def test_a_caffe_that_hangs_is_ended_and_named_and_leaves_nothing(place: Place) -> None:
    script = f"echo waiting >&2; pwd -P >'{place.root}/where'; trap '' TERM; sleep 600 & wait; sleep 600"
    begun = time.monotonic()
    troubles = try_caffe(place, script, limit_s=1.0)
    assert time.monotonic() - begun < 30
    assert [trouble.what for trouble in troubles] == [
        "does not finish a trial within 1 s; its last line: waiting"
    ]
    assert (troubles[0].host, troubles[0].place) == ("localhost", "./caffe")
    assert not Path((place.root / "where").read_text().strip()).exists()


def test_a_trial_answer_with_too_many_digits_is_not_parsed() -> None:
    attempt = parse_attempt("tried 1 eA==")
    assert attempt is not None and (attempt.code, attempt.log) == (1, "x")
    assert parse_attempt(f"tried {'9' * 5000} eA==") is None
    assert parse_places(f"caffe-recipes: rank {'9' * 5000} on n1\n") == {}


@pytest.mark.promise("nothing is run or obeyed that others could change")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
@pytest.mark.parametrize("by_link", [False, True])
def test_on_a_host_where_others_can_change_the_weights_nothing_is_tried(
    place: Place, shared: Path, by_link: bool
) -> None:
    weights = shared / "w.caffemodel"
    weights.touch()
    (place.root / "w.caffemodel").symlink_to(weights)  # in the shared root, but to a disk of each host
    given = "w.caffemodel" if by_link else weights
    place.edit("{name: init,", f"{{name: init, weights: {given},")
    recipe = load_recipe(place.recipe)
    setting = find_setting(recipe, RunOptions(root=place.root), lambda name, copy_with: LocalHost(name))
    two = Processors(frozenset({0, 1}), 2, 1)
    facts = NodeFacts("localhost", "here", 0.0, 0.0, 2, two, 10**9, 10**9, program="program")
    view = NodeView(setting, plan_training(recipe, "runs/small-1"), RunState(), {"localhost": facts}, {})
    assert find_untrusted(view) == []
    os.chown(weights, 65534, 65534)
    (place.root / "caffe").write_text(f"#!/bin/sh\ntouch '{place.root}/tried'\n")
    (found,) = check_trainer(view)
    assert f"is used with {weights}, which belongs to user nobody (65534)" in found.message
    assert not (place.root / "tried").exists()


def test_rank_variables_are_removed_and_functions_are_not_treated_as_variables() -> None:
    given = {"PMI_SIZE": "2", "CAFFE_RECIPES_LAUNCH": "x", "BASH_FUNC_module%%": "() { :; }", "A": "$(b) 'c'"}
    assert render_environment(given).splitlines() == [
        "unset PMI_SIZE",
        "unset CAFFE_RECIPES_LAUNCH",
        "export A='$(b) '\"'\"'c'\"'\"''",
        "export GLOG_logtostderr=1",
    ]


def test_a_tmp_that_takes_no_file_is_reported_once_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing"
    monkeypatch.setenv("TMPDIR", str(missing))
    with pytest.raises(NodeRefusal) as caught:
        call(LocalHost("n1"), "trial", "try", "5", "0", "0")
    message = f"n1: cannot be tried: cannot write to {missing}: No such file or directory"
    assert str(caught.value) == message
