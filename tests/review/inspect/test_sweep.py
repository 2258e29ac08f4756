"""Which speed an estimate uses, what it reads, and what it prints."""

from __future__ import annotations

import gzip
import io
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from caffe_recipes.cluster.profiles import load_profile
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.pace import RunSize, shape_of
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.review.inspect.estimate_tables import estimate_values, render_estimate, render_sweep
from caffe_recipes.review.inspect.sweep import (
    SpeedInputs,
    add_speedups,
    estimate_shapes,
    model_bytes,
    read_logs,
)

START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
LOG = """[0] I1120 10:00:10.000000  6374 solver.cpp:228] Iteration 0, loss = 6.9
[0] I1120 10:00:30.000000  6374 solver.cpp:228] Iteration 40, loss = 6.8
"""


@pytest.fixture
def recipe() -> Recipe:
    return load_recipe("stampede2-64n-72ep")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "train.log").write_text(LOG)
    return tmp_path / "train.log"


def kinds(recipe: Recipe, known: SpeedInputs) -> list[str]:
    (found,) = estimate_shapes(recipe, [shape_of(recipe)], known)
    return [found.pace.kind, *(other.kind for other in found.others)]


def test_the_user_s_log_takes_precedence_over_the_source_and_that_over_the_tables(
    recipe: Recipe, log: Path
) -> None:
    known = SpeedInputs((log,), 7000, load_profile("stampede2-skx"))
    assert kinds(recipe, known) == ["log", "given", "reported", "measured"]
    assert kinds(recipe, SpeedInputs(profile=load_profile("stampede2-skx"))) == ["reported", "measured"]


def test_the_source_chosen_for_the_recipe_s_own_shape_is_used_for_all() -> None:
    recipe = load_recipe("stampede2-448n-90ep")
    shapes = [RunSize(256, 2, 16), RunSize(448, 2, 16)]
    found = estimate_shapes(recipe, shapes, SpeedInputs())
    # Table VI has 256 such nodes, but not 448.
    assert [each.pace.kind for each in found] == ["minutes", "minutes"]
    assert [each.others[0].notes == () for each in found] == [True, False]


@pytest.mark.parametrize("name", ["local", "mpich"])
def test_a_machine_without_measurements_is_reported_as_unknown(name: str) -> None:
    recipe = load_recipe("paper-t2-8192-256n")
    (own,) = estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs())
    (found,) = estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs(profile=load_profile(name)))
    message = f"on the recipe's own machine; the speed of {name} is unknown: give --log or --images-per-s"
    assert [pace.notes for pace in (found.pace, *found.others)] == [(message,), (message,)]
    assert (found.pace.images_per_s, own.pace.notes) == (own.pace.images_per_s, ())
    known = SpeedInputs(images_per_s=7000, profile=load_profile(name))
    (given,) = estimate_shapes(recipe, [shape_of(recipe)], known)
    assert (given.pace.kind, given.pace.notes) == ("given", ())


def test_a_machine_of_other_nodes_has_the_table_of_those() -> None:
    recipe = load_recipe("paper-t2-8192-256n")
    (found,) = estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs(profile=load_profile("stampede2-skx")))
    assert found.pace.source == "the paper's Table VI (nodes with 2 x 24 cores)"
    assert [other.notes for other in found.others] == [("on the recipe's own machine",)]
    (found,) = estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs(profile=load_profile("stampede2-knl")))
    assert (found.pace.source, found.others[0].notes) == ("the paper's Table V", ())


def test_a_measured_machine_takes_precedence_over_one_with_the_same_nodes(recipe: Recipe) -> None:
    (found,) = estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs(profile=load_profile("marenostrum4")))
    assert (found.pace.kind, found.pace.source) == ("measured", "the paper's Table VI")
    assert [other.notes for other in found.others] == [("on the recipe's own machine",)]
    theirs = load_recipe("paper-t7-8192-256n")
    (found,) = estimate_shapes(theirs, [shape_of(theirs)], SpeedInputs(profile=load_profile("marenostrum4")))
    assert not any(pace.is_elsewhere for pace in (found.pace, *found.others))


def test_a_user_machine_with_as_many_cores_is_reported_as_unknown(recipe: Recipe) -> None:
    ours = load_profile("stampede2-skx").model_copy(update={"name": "ours"})
    (found,) = estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs(profile=ours))
    assert found.pace.kind == "reported"
    assert found.pace.notes[0].startswith("of nodes with as many cores; the speed of ours is unknown: give")
    (found,) = estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs(profile=ours, images_per_s=5000))
    assert (found.pace.kind, found.pace.notes) == ("given", ())


def test_links_that_cannot_carry_the_traffic_are_reported(recipe: Recipe) -> None:
    skylake = load_profile("stampede2-skx")
    slow = skylake.model_copy(update={"rates": skylake.rates.model_copy(update={"link_gb_per_s": 0.05})})
    (found,) = estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs(profile=slow))
    # 6,303 / 4,096 iterations a second of 102.2 MB each way.
    assert found.notes[-1].startswith(
        "at this speed each rank sends and receives 0.16 GB/s, more than the 0.05"
    )
    (found,) = estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs(profile=skylake))
    assert not any("links" in note for note in found.notes)


def test_a_reported_rate_moves_in_proportion_to_the_table_of_such_nodes(recipe: Recipe) -> None:
    small, own = RunSize(64, 2, 1), shape_of(recipe)
    known = SpeedInputs()
    found = {each.shape: each for each in estimate_shapes(recipe, [small, own], known)}
    paces = {shape: (each.pace, each.others[0]) for shape, each in found.items()}
    assert {pace.kind for pace, _ in paces.values()} == {"reported"}
    by_report, by_table = (paces[small][at].images_per_s / paces[own][at].images_per_s for at in (0, 1))
    assert by_report == pytest.approx(by_table)
    assert by_report < 0.5  # an iteration's communication is shared by few images


def test_another_speed_can_be_requested(recipe: Recipe, log: Path) -> None:
    assert (
        kinds(recipe, SpeedInputs((log,), profile=load_profile("stampede2-skx"), by="measured"))[0]
        == "measured"
    )


def test_a_requested_speed_that_is_unknown_is_refused(recipe: Recipe) -> None:
    with pytest.raises(InputError, match="no speed is known for --by log; known: reported, measured; "):
        estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs(by="log"))


def test_resnet50_s_complete_model_is_the_paper_s_98_mb(recipe: Recipe) -> None:
    size = model_bytes(recipe)
    assert size == (25_557_096 + 53_173) * 4
    assert round(size / 2**20) == 98


def test_a_run_s_folder_gives_all_of_its_logs(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("init-1.log", "cyc1-1.log", "evaluation.txt"):
        (tmp_path / "logs" / name).write_text(LOG)
    assert [Path(path).name for path, _ in read_logs([tmp_path])] == ["cyc1-1.log", "init-1.log"]


def test_standard_input_has_a_name_of_its_own(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LOG.encode())))
    (found,) = estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs((Path("-"),)))
    assert found.pace.source == "standard input"


def test_a_folder_named_like_a_log_is_not_a_log(tmp_path: Path, log: Path) -> None:
    (tmp_path / "old.log").mkdir()
    assert [path for path, _ in read_logs([tmp_path])] == [str(log)]


def test_an_unreadable_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"contains no logs; give a run's folder or a log"):
        list(read_logs([tmp_path]))
    ((_, lines),) = read_logs([tmp_path / "none.log"])
    with pytest.raises(InputError, match=r"none.log: cannot be read: No such file or directory"):
        list(lines)


def test_a_log_of_anything_is_read_and_refused(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(bytes(range(256)) * 100)
    with pytest.raises(InputError, match=r"a\.log: no lines `Iteration N, loss = "):
        estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs((tmp_path / "a.log",)))


def test_partitions_that_do_not_take_it_as_one_job_are_named(recipe: Recipe) -> None:
    known = SpeedInputs(images_per_s=100, profile=load_profile("stampede2-skx"), by="given")
    few, many = estimate_shapes(recipe, [shape_of(recipe), RunSize(448, 2, 32)], known)
    assert [note.partition(",")[0] for note in few.notes] == ["skx-normal runs a job for at most 48 h"]
    assert "skx-normal allows at most 128 nodes, and the recipe needs 448" in many.notes


def test_a_page_names_the_source_of_the_speed_and_the_end(recipe: Recipe) -> None:
    (found,) = estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs(profile=load_profile("stampede2-skx")))
    text = "\n".join(render_estimate(found, START))
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert "speed 6,303 images/s: the recipe's reported images/s" in lines
    assert "also 5,001 images/s: the paper's Table VI (nodes with 2 x 24 cores)" in lines
    assert "training 22,610 72.29 244.9" in lines
    assert "starts 2026-03-01 09:00+00:00" in lines
    assert "ends 2026-03-01 13:27+00:00" in lines
    traffic = "97.7 MiB each way per rank per iteration: 24.4 GiB over all ranks"
    assert any(line.startswith(f"traffic {traffic}") for line in lines)
    assert max(map(len, text.splitlines())) <= 120


def test_a_page_of_years_is_in_years_and_one_beyond_the_calendar_is_refused(recipe: Recipe) -> None:
    ages, too_long = (
        estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs(images_per_s=speed))[0]
        for speed in (0.05, 0.0003)
    )
    lines = [" ".join(line.split()) for line in render_estimate(ages, START)]
    assert "speed 0.05 images/s: as given" in lines
    assert "part iterations epochs years" in lines
    assert "epoch 7,117.6 h, 1,281,167 images" in lines
    assert "total 60.0" in lines
    refused = "takes 10,008 years: started at 2026-03-01 09:00+00:00, it would end after the year 9999; "
    with pytest.raises(InputError, match=re.escape(refused)):
        "\n".join(render_estimate(too_long, START))


def test_the_page_of_one_machine_states_its_allowances(log: Path) -> None:
    recipe = load_recipe("digits-local")
    (found,) = estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs((log,)))
    lines = [" ".join(line.split()) for line in render_estimate(found, START)]
    assert "overhead 0.4 allowance for starts and snapshots: 5 seconds per phase on one node" in lines
    assert estimate_values([found], START)[0]["joins_s"] == 25


def test_the_json_values_match_the_page(recipe: Recipe) -> None:
    estimates = estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs())
    (values,) = estimate_values(estimates, START)
    assert values["ends"] == "2026-03-01T13:27:04+00:00"
    assert values["total_s"] == estimates[0].total_s
    assert values["global_batch"] == 4096


def test_a_sweep_s_efficiency_is_a_node_s_speed_against_one_alone(recipe: Recipe) -> None:
    shapes = [RunSize(nodes, 1, 16) for nodes in (1, 256, 512, 768, 1024)]
    known = SpeedInputs(profile=load_profile("stampede2-knl"), by="measured")
    text = "\n".join(render_sweep(estimate_shapes(recipe, shapes, known)))
    rows = [line.split() for line in text.splitlines()]
    assert [row[4] for row in rows[3:8]] == ["100%", "97%", "82%", "87%", "79%"]
    alone, printed = "one node alone with as many images per node", '"above 97%" at 256 nodes'
    table = f"in the paper's table 60.6 images/s with 32 images per node, derived from {printed}"
    # The speed of the row of one node.
    assert rows[3][3] == "51"
    assert (
        f"note: efficiency: 100% is the speed of {alone}, here 50.5 images/s with 16 images; {table}"
        in text.splitlines()
    )
    rises = [line for line in text.splitlines() if "faster among" in line]
    faster = "each node is faster among 768 nodes than among 512, as the paper measured"
    assert rises == [f"note: with 16 images per node, {faster}"]


def test_a_sweep_without_the_speed_of_one_node_has_no_efficiency() -> None:
    shapes = [RunSize(1, 2, 32), RunSize(2, 2, 32)]
    text = "\n".join(
        render_sweep(estimate_shapes(load_recipe("digits-local"), shapes, SpeedInputs(images_per_s=100)))
    )
    assert "efficiency" not in text


@pytest.mark.parametrize(("percent", "epochs"), [(75.5, 48), (76, 64), (76.5, 78), (77, 120)])
def test_the_time_to_an_accuracy_is_that_of_the_paper_s_epochs(
    recipe: Recipe, percent: float, epochs: int
) -> None:
    known = SpeedInputs(images_per_s=1281167 / 60)
    (found,) = estimate_shapes(recipe, [shape_of(recipe)], known, percent)
    assert found.duration.training_s == pytest.approx(60 * epochs, abs=0.1)
    assert [phase.epochs for phase in found.phases] == [pytest.approx(epochs, abs=0.01)]
    assert found.duration.joins_s == 7 * 60
    assert found.notes[0].startswith(
        f"{percent:g}% top-1 takes {epochs} epochs according to the paper (Figure 4's"
    )


@pytest.mark.parametrize(("batch", "warns"), [(12_288, False), (24_576, True)])
def test_a_batch_beyond_those_that_the_paper_s_epochs_hold_for_is_noted(batch: int, warns: bool) -> None:
    recipe = load_recipe("tf-256n-90ep")
    (found,) = estimate_shapes(recipe, [RunSize(256, 2, batch // 512)], SpeedInputs(images_per_s=16_400), 76)
    assert (
        any("the same seems to hold for batch sizes of up to 8K to 12K" in note for note in found.notes)
        == warns
    )


def test_the_paper_s_projections_are_found_again_for_its_machines() -> None:
    knl, skylake = load_recipe("paper-t2-8192-256n"), load_recipe("paper-t7-8192-512n-50ep")
    for recipe, percent, minutes in ((knl, 76, 90), (skylake, 76.5, 68)):
        (found,) = estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs(by="measured"), percent)
        assert found.duration.training_s / 60 == pytest.approx(minutes, abs=1)


def test_the_speed_up_is_that_over_four_workers_as_in_figures_1_and_2() -> None:
    knl, skylake = load_recipe("paper-t2-8192-256n"), load_recipe("paper-t7-8192-512n-50ep")
    known = SpeedInputs(by="measured")
    for recipe, nodes in ((knl, (4, 256, 1536)), (skylake, (2, 256))):
        shapes = [replace(shape_of(recipe), nodes=count) for count in nodes]
        found = add_speedups(recipe, estimate_shapes(recipe, shapes, known), known)
        ideal = [shape.ranks / 4 for shape in shapes]
        ratios = [(each.speedup or 0) / best for each, best in zip(found, ideal, strict=True)]
        assert ratios[0] == pytest.approx(1)
        assert all(0.8 < ratio < 1 for ratio in ratios[1:])
        text = render_sweep(found)
        assert any("speed-up: over 4 ranks, as in the paper's Figures 1 and 2" in line for line in text)
        assert "speed-up" in text[2]


def test_an_accuracy_that_the_paper_has_no_epochs_for_is_refused(recipe: Recipe) -> None:
    known = re.escape("76.5 (78 epochs), 77 (120 epochs), 77.5 (120 epochs)")
    with pytest.raises(InputError, match=f"--to-accuracy: the epochs to 78% top-1 are unknown; .*{known}$"):
        estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs(), 78)
    digits = load_recipe("digits-local")
    with pytest.raises(InputError, match="--to-accuracy: digits-local does not train the paper"):
        estimate_shapes(digits, [shape_of(digits)], SpeedInputs(images_per_s=100), 76)


def test_a_sweep_of_batches_alone_has_no_efficiency(recipe: Recipe) -> None:
    known = SpeedInputs(profile=load_profile("stampede2-knl"), by="measured")
    text = "\n".join(render_sweep(estimate_shapes(recipe, [RunSize(256, 1, 16), RunSize(256, 1, 32)], known)))
    assert "efficiency" not in text
    rows = [line.split() for line in text.splitlines()]
    assert [row[3] for row in rows[2:5]] == ["images/s", "12,549", "15,059"]


def test_a_sweep_reports_each_caveat_once(recipe: Recipe) -> None:
    text = "\n".join(
        render_sweep(estimate_shapes(recipe, [RunSize(n, 2, 32) for n in (64, 128, 256)], SpeedInputs()))
    )
    assert text.count("* known for 64 nodes with 64 images each, scaled by the paper's Table VI") == 1
    lines = text.splitlines()
    assert lines[1] == "speed: the recipe's reported images/s"
    assert [line.endswith("  *") for line in lines[3:6]] == [False, True, True]


def test_a_sweep_has_each_source_once_and_its_number_in_the_rows(recipe: Recipe) -> None:
    known = SpeedInputs(profile=load_profile("stampede2-knl"), by="measured")
    text = "\n".join(
        render_sweep(estimate_shapes(recipe, [RunSize(n, 1, 16) for n in (256, 300, 512, 600)], known))
    )
    lines = text.splitlines()
    assert lines[1:3] == ["speed 1: the paper's Table V", "speed 2: the paper's Table V, interpolated"]
    assert [line.split()[-1] for line in lines[4:8]] == ["1", "2", "1", "2"]


def test_a_sweep_notes_that_rescale_keeps_the_batch_instead(recipe: Recipe) -> None:
    kept = "note: images per rank are kept; `rescale` keeps the images per iteration instead"
    accuracy = "note: learning rates and accuracy at other images per iteration are not considered"
    for shapes, notes in (
        ([RunSize(64, 2, 32), RunSize(128, 2, 32)], [kept, accuracy]),
        ([RunSize(64, 2, 32), RunSize(64, 2, 16)], [accuracy]),
        ([RunSize(64, 2, 32), RunSize(128, 2, 16)], []),
    ):
        lines = render_sweep(estimate_shapes(recipe, shapes, SpeedInputs()))
        assert [line for line in lines if line in (kept, accuracy)] == notes


def test_a_short_run_has_units_that_fit_and_marks_what_is_unknown() -> None:
    recipe = load_recipe("digits-local")
    (found,) = estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs(images_per_s=5000))
    lines = {" ".join(line.split()) for line in render_estimate(found, START)}
    assert "part iterations epochs seconds" in lines
    assert "training 1,622 72.19 20.8" in lines
    assert "staging ? not included" in lines
    assert "node-seconds 45.8" in lines
    assert any(
        line.startswith("traffic 60.6 KiB each way per rank per iteration: 242.4 KiB") for line in lines
    )
    assert estimate_values([found], START)[0]["staging"] == ()


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"name": "other"}, "is a run with recipe other, not stampede2-64n-72ep"),
        ({"cluster": {"batch_per_rank": 7}}, "is a run with batch 7, not 32"),
        ({"net": {"builder": "vgg"}}, "is a run with net vgg, not resnet50"),
        ({}, ""),
    ],
)
def test_a_run_of_another_recipe_or_batch_gives_no_pace(
    recipe: Recipe, log: Path, changed: dict[str, object], what: str
) -> None:
    frozen = recipe.model_dump(mode="json") | changed
    (log.parent / "recipe.json").write_text(json.dumps(frozen))
    known = SpeedInputs((log.parent,))
    if not what:
        assert kinds(recipe, known)[0] == "log"
        return
    with pytest.raises(InputError, match=what):
        kinds(recipe, known)


def test_a_compressed_log_gives_the_same_speed(recipe: Recipe, log: Path, tmp_path: Path) -> None:
    packed = tmp_path / "train.log.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    plain, same = (
        estimate_shapes(recipe, [shape_of(recipe)], SpeedInputs((path,)))[0] for path in (log, packed)
    )
    assert plain.pace is not None and same.pace is not None
    assert plain.pace.images_per_s == same.pace.images_per_s
