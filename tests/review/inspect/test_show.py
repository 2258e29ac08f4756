"""A recipe on a page: what `show` prints about each phase, as text and as values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from caffe_recipes.cli.recipes import show
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_any_recipe, load_recipe, parse_recipe
from caffe_recipes.review.inspect.show import render_list, render_recipe, shown_values, summarize_phase

DIGITS = shipped_recipes()["digits-local"].file.read_text("utf-8")


def test_one_rank_is_written_in_the_singular() -> None:
    shape = "256 nodes x 1 rank x 32 images = 8,192 images per iteration"
    assert shape in "\n".join(render_recipe(load_recipe("paper-t2-8192-256n")))


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(show, [str(word) for word in words])


def rows_of(text: str, heading: str) -> list[list[str]]:
    """Return the words of the rows of a table, found by its first heading and another one."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("phase") and heading in line)
    end = lines.index("", first) if "" in lines[first:] else len(lines)
    return [line.split() for line in lines[first + 1 : end]]


def test_the_64_node_chain_has_the_published_rates() -> None:
    rows = rows_of("\n".join(render_recipe(load_recipe("stampede2-64n-72ep"))), "warm-up ends")
    init, cyc1, cyc2, cyc3, collapse, total = rows
    assert " ".join(init[2:]) == "7,800 24.94 31,948,800 0.1 1.59904 1.46667 0.933419 5e-05 84.5"
    assert " ".join(cyc1[2:]) == "3,750 11.99 15,360,000 1.02 0.255136 5e-05 40.6"
    assert cyc2[5:9] == ["0.255", "0.763491", "0.573849", "0.10279"]
    assert cyc3[5:9] == ["0.19", "0.571618", "0.429636", "0.0769582"]
    assert " ".join(collapse[2:]) == "1,560 4.99 6,389,760 0.143 5.87648e-08 0.0002 16.9"
    assert " ".join(total) == "all 22,610 72.29 92,610,560 244.9"


def test_a_branch_shows_where_it_starts_and_at_which_rate() -> None:
    text = "\n".join(render_recipe(load_recipe("stampede2-448n-90ep")))
    main, collapse = rows_of(text, "at rate")
    assert main[:3] == ["main", "fillers", "train_val"]
    assert collapse[:6] == ["collapse", "main,", "iteration", "7,638", "0.24", "train_val_noaug"]
    assert "89.97 epochs of training; 94.46 over all phases" in text
    assert rows_of(text, "snapshot")[:2] == [
        ["main", "/tmp/resnet_50_448nodes_iter_7638.caffemodel", "collapse"],
        ["main", "/tmp/resnet_50_448nodes_iter_8040.caffemodel"],
    ]


def test_the_448_node_recipe_quotes_what_its_source_reports_of_both_runs() -> None:
    text = "\n".join(render_recipe(load_recipe("stampede2-448n-90ep")))
    assert "reported  after main: about 60 minutes, top-1 75.6%, top-5 92.7%\n" in text
    assert "\n          about 65 minutes, top-1 76.1%, top-5 93.2%\n" in text
    assert "448 nodes x 2 ranks x 16 images = 14,336 images per iteration" in text


def test_the_72_epochs_are_shown_as_a_reduced_version_of_the_paper_s_run() -> None:
    text = "\n".join(render_recipe(load_recipe("stampede2-64n-72ep")))
    assert "a reduced version of the paper's run of 120 epochs (paper-f4-4096-120ep)" in text


def test_the_xeon_phi_recipes_say_that_they_have_no_option_for_the_fabric() -> None:
    text = " ".join("\n".join(render_recipe(load_recipe("paper-t9-49152-1536n"))).split())
    assert "the authors' 64-node README has -PSM2, here no option for the fabric" in text


def test_the_ensemble_s_members_and_its_reported_accuracy_are_reported() -> None:
    text = "\n".join(render_recipe(load_recipe("paper-f4-4096-120ep")))
    assert "\nensemble  c2, c3, c4, c5, c6; reported: top-1 77.5%\n" in text
    ensemble = shown_values(load_recipe("paper-f4-4096-120ep"))["ensemble"]
    assert isinstance(ensemble, dict)
    assert ensemble["members"] == ("c2", "c3", "c4", "c5", "c6")
    assert ensemble["reported"]["top1_percent"] == 77.5
    assert shown_values(load_recipe("digits-cyclic"))["ensemble"] is None


def test_the_servers_of_mlsl_are_shown_with_their_cores_if_the_recipe_sets_them() -> None:
    def mlsl_line(name: str) -> str | None:
        lines = render_recipe(load_recipe(name))
        return next((line.split(maxsplit=1)[1] for line in lines if line.startswith("MLSL ")), None)

    assert mlsl_line("stampede2-64n-72ep") == "2 servers per rank, on cores 39, 38, 43, 42"
    assert mlsl_line("paper-t7-8192-256n") == "2 servers per rank, on cores chosen by MLSL"
    assert mlsl_line("digits-local") is None
    assert shown_values(load_recipe("paper-t7-8192-256n"))["mlsl"] == {
        "num_servers": 2,
        "server_affinity": (),
    }


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_page_is_at_most_120_columns_wide(name: str) -> None:
    lines = render_recipe(load_any_recipe(name), 1234567)
    assert max(map(len, lines)) <= 120
    assert all(line == line.rstrip() for line in lines)


def test_a_long_source_continues_below_itself() -> None:
    words = " ".join(["word"] * 60)
    recipe = parse_recipe(DIGITS.replace("source: derived", f"source: {words} derived"), "a.yaml", Path())
    lines = render_recipe(recipe)
    first = next(i for i, line in enumerate(lines) if line.startswith("source"))
    assert lines[first + 1].startswith("          word")
    assert max(map(len, lines)) <= 120


def test_the_random_augmentation_of_each_phase_is_shown() -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    augmentations = [
        summarize_phase(recipe, recipe.phase(name)).augmentation for name in ("init", "collapse")
    ]
    assert augmentations == [
        "random area 0.08 to 1, aspect 0.5625 to 1.778, mirror",
        "random crop of 224 px, mirror",
    ]
    raw = yaml.safe_load(DIGITS)
    raw["nets"]["train_val"].pop("random_aspect_ratio")
    raw["data"].pop("crop_size")
    raw["net"] = {
        "name": "mine",
        "classes": 10,
        "prototxt": "mine.prototxt",
        "test_prototxt": "test.prototxt",
    }
    plain = parse_recipe(yaml.safe_dump(raw), "mine.yaml", Path())
    assert "net       mine, 10 classes, by mine.prototxt and test.prototxt" in render_recipe(plain)
    assert summarize_phase(plain, plain.phases[0]).augmentation == "none"


def test_a_speed_gives_minutes_where_none_is_reported() -> None:
    assert "minutes" not in call("digits-local").output
    text = call("digits-local", "--images-per-s", "2000").output
    assert "estimated  0.9 minutes of training at 2,000 images/s" in text
    assert rows_of(text, "policy")[-1][-1] == "0.9"
    assert rows_of(text, "policy")[0][-1] == "0.3"


def test_a_plateau_s_rates_are_not_made_up() -> None:
    plateau = "lr_policy: plateau\n    gamma: 0.1\n    plateau_winsize: [5]"
    text = DIGITS.replace("lr_policy: poly\n", f"{plateau}\n", 1)
    recipe = parse_recipe(text, "a.yaml", Path())
    assert summarize_phase(recipe, recipe.phases[-1]).rates is None
    assert rows_of("\n".join(render_recipe(recipe)), "policy")[4][5:] == ["?", "?", "0.008"]


def test_a_stop_and_iter_size_count_in_epochs_images_and_the_last_rate() -> None:
    settings = "    max_iter: 560\n    stop_iter: 280\n    snapshot: 280\n    iter_size: 2\n"
    recipe = parse_recipe(DIGITS.replace("    max_iter: 560\n", settings), "a.yaml", Path())
    phase = summarize_phase(recipe, recipe.phases[0])
    assert (phase.iterations, phase.images) == (280, 280 * 128)
    assert phase.rates is not None
    assert phase.rates.last == pytest.approx(0.1 * (1 - 279 / 1344), rel=1e-6)
    assert [snapshot.iteration for snapshot in phase.snapshots] == [280]


def test_accepted_findings_are_shown_with_their_reasons() -> None:
    raw = yaml.safe_load(DIGITS)
    raw["accept"] = [{"finding": "some-id", "phase": "collapse", "reason": "as published"}]
    recipe = parse_recipe(yaml.safe_dump(raw), "a.yaml", Path())
    assert "accepted  some-id (collapse): as published" in "\n".join(render_recipe(recipe))


def test_json_is_a_list_of_the_same_values_unrounded() -> None:
    first, second = json.loads(call("stampede2-448n-90ep", "digits-local", "--json").output)
    assert (first["name"], second["name"]) == ("stampede2-448n-90ep", "digits-local")
    collapse = first["phases"][1]
    assert (collapse["starts_from"], collapse["starts_from_iter"]) == ("main", 7638)
    assert collapse["rate_before"] == pytest.approx(0.24, rel=1e-6)
    assert collapse["rates"]["warmup_end"] is None
    assert first["phases"][0]["rates"]["warmup_end"] == pytest.approx(4.78946, rel=1e-6)
    assert first["phases"][0]["snapshots"][0] == {
        "path": "/tmp/resnet_50_448nodes_iter_7638.caffemodel",
        "iteration": 7638,
        "used_by": ["collapse"],
    }
    assert first["model_epochs"] == pytest.approx(8040 * 14336 / 1281167)
    assert first["reported"]["minutes"] == 65
    assert first["reported_by_phase"]["main"]["top1_percent"] == 75.6
    assert second["minutes"] is None


def test_several_recipes_follow_one_another() -> None:
    text = call("digits-local", "stampede2-448n-90ep").output
    assert text.startswith("The five phases on scikit-learn's digits")
    assert "\n\n\nResNet-50 on ImageNet-1K in 90 epochs on 448 Stampede2 nodes\n" in text


def test_one_unknown_name_of_several_shows_nothing() -> None:
    done = call("digits-local", "digits-lokal")
    assert "did you mean 'digits-local'?" in str(done.exception)
    assert done.output == ""


def test_a_recipe_is_shown_as_it_is_for_another_caffe() -> None:
    text = call("stampede2-64n-72ep", "--dialect", "intel").output
    init = rows_of(text, "policy")[0]
    assert init[:6] == ["init", "poly", "7,800", "24.94", "31,948,800", "0.1"]
    assert "/tmp/resnet_50_64nodes_init-intel_iter_7800.caffemodel" in text
    refused = call("digits-local", "--dialect", "bvlc")
    assert "no exact equivalent in BVLC's Caffe" in str(refused.exception)
    assert refused.output == ""


def test_a_page_lists_what_differs_from_the_source_and_what_is_derived() -> None:
    text = "\n".join(render_recipe(load_recipe("paper-t3-12288-768n")))
    assert "reported  Table III, row 5, batch 12,288, 768 nodes, 11,560 iterations, 37 epochs" in text
    assert "differs   data.test.shorter_side_px: published a centre crop of the 256x256 resized image" in text
    assert (
        "\n          epochs: published 37, here 110.9: iterations and epochs are printed as in row 1" in text
    )
    assert "main: base_lr: 0.1 for each 256 images" in text
    values = shown_values(load_recipe("paper-t3-12288-768n"))
    assert values["family"] == "paper-stampede2-knl"
    assert isinstance(values["differences"], list)
    assert [one["key"] for one in values["differences"]] == [
        "data.test.shorter_side_px",
        "cluster.fabric",
        "epochs",
        "minutes",
    ]


def test_the_list_has_families_below_their_titles() -> None:
    text = "\n".join(
        render_list(
            load_recipe(name) for name in ("digits-local", "paper-t9-65536-128n", "paper-t2-8192-256n")
        )
    )
    alone, vlab, knl = text.split("\n\n")
    assert alone.startswith("digits-local  The five phases")
    assert vlab.splitlines()[0].startswith("The paper's runs on Intel's VLAB cluster")
    assert vlab.splitlines()[1].startswith("  paper-t9-65536-128n  ResNet-50, batch 65,536")
    assert len(knl.splitlines()) == 2


@pytest.mark.parametrize(
    ("name", "notes"),
    [
        ("stampede2-64n-72ep", ["loss 0.942313, top-1 0.762781, top-5 0.931862"]),
        ("paper-t3-12288-768n", ["11,560 iterations are 110.9 epochs", "37 epochs are 3,858"]),
        ("paper-t9-49152-1536n", ["above 90% scaling", "28 minutes on up to 104K cores"]),
        ("paper-f4-4096-120ep", ["as high as 77% in 90 to 120 epochs", "77.5% as a collapsed ensemble"]),
    ],
)
def test_other_facts_from_the_source_of_a_run_are_on_its_page_and_in_the_list(
    name: str, notes: list[str]
) -> None:
    recipe = load_recipe(name)
    page = " ".join("\n".join(render_recipe(recipe)).split())
    for note in notes:
        assert note in page
        assert note in "\n".join(render_list([recipe]))
    assert shown_values(recipe)["notes"] == list(recipe.notes)


def test_a_recipe_with_branches_shows_the_epochs_of_each_model() -> None:
    text = "\n".join(render_recipe(load_recipe("digits-cyclic")))
    flat = " ".join(text.split())
    assert "collapse1 36.05, collapse2 48.07, collapse3 60.08, collapse4 72.10, collapse5 84.12" in flat
    assert "epochs of training; 100.14 over all phases" in flat
    rows = [line.split() for line in text.splitlines() if line.startswith("collapse")]
    assert [row[1] for row in rows if row[2].startswith("0.")] == [f"cyc{number}" for number in range(1, 6)]
    used = [line for line in text.splitlines() if line.endswith("the evaluation")]
    assert len(used) == 5
