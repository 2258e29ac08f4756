"""Families: rows over a base; mistakes are reported at the line of their value."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from caffe_recipes.config import Loader
from caffe_recipes.errors import RecipeError
from caffe_recipes.recipe.shipped import find_rows, is_family, shipped_recipes, split_row
from caffe_recipes.recipe.source import load_recipe, locate_keys, parse_recipe
from caffe_recipes.render.headers import header_line

FAMILY = """\
family: ours
title: Runs of ours
base:
  title: One of ours
  trainer: caffe-torch
  prototxt_dir: models
  net: {name: ours, builder: resnet_small, classes: 10}
  nets:
    train_val: {}
  data:
    train: {lmdb: /tmp/train, images: 100000}
    test: {lmdb: val, images: 100, batch_size: 10}
    crop_size: 28
  cluster:
    nodes: 2
    ranks_per_node: 1
    batch_per_rank: 32
    omp_num_threads: 1
  solver: {momentum: 0.9}
  derived:
    - {key: trainer, rule: ours}
rows:
  ours-small:
    schedule: {epochs: 20}
    reported_by_phase: {main: {minutes: 3}}
  ours-large:
    title: The large one
    nets: {train_val_noaug: {test: false}}
    cluster: {nodes: 8}
    schedule:
      epochs: 40
      collapse: true
    derived:
      - {key: title, rule: mine}
"""


def refuse(text: str, row: str | None = "ours-small") -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "mine.yaml", Path(), row)
    assert "\n" not in str(caught.value)
    return caught.value


def line_of(needle: str) -> str:
    return f"mine.yaml:{FAMILY[: FAMILY.index(needle)].count(chr(10)) + 1}"


def test_a_row_overrides_the_base_mapping_by_mapping() -> None:
    small, large = (parse_recipe(FAMILY, "mine.yaml", Path(), row) for row in ("ours-small", "ours-large"))
    assert (small.name, small.title, large.title) == ("ours-small", "One of ours", "The large one")
    assert (small.cluster.nodes, large.cluster.nodes, large.cluster.batch_per_rank) == (2, 8, 32)
    assert (list(small.nets), list(large.nets)) == (["train_val"], ["train_val", "train_val_noaug"])
    assert (small.prototxt_dir, large.prototxt_dir) == ("models/ours-small", "models/ours-large")
    assert small.family is not None
    assert (small.family, small.family.title) == (large.family, "Runs of ours")


def test_a_row_s_schedule_makes_its_phases_at_its_own_batch() -> None:
    large = parse_recipe(FAMILY, "mine.yaml", Path(), "ours-large")
    main, collapse = large.phases
    assert (main.base_lr, main.momentum, collapse.net) == (0.1, 0.9, "train_val_noaug")
    assert main.max_iter + collapse.max_iter == 40 * 100000 / 256
    assert collapse.snapshot_prefix == "/tmp/ours-large_collapse"
    assert parse_recipe(FAMILY, "mine.yaml", Path(), "ours-small").phases[0].reported.minutes == 3


def test_derived_values_of_base_row_and_rules_are_combined() -> None:
    large = parse_recipe(FAMILY, "mine.yaml", Path(), "ours-large")
    assert [one.rule for one in large.derived[:2]] == ["ours", "mine"]
    assert {one.phase for one in large.derived[2:]} == {"main", "collapse"}


def test_the_differences_of_a_row_follow_those_of_all_rows() -> None:
    one = "- {key: minutes, printed: 9, ours: 8, why: rounded}"
    text = FAMILY.replace("  derived:\n", f"  differences:\n    {one}\n  derived:\n", 1)
    text += f"    differences:\n      {one.replace('minutes', 'epochs')}\n"
    large, small = (parse_recipe(text, "mine.yaml", Path(), row) for row in ("ours-large", "ours-small"))
    assert [each.key for each in large.differences] == ["minutes", "epochs"]
    assert [each.key for each in small.differences] == ["minutes"]
    noted = FAMILY.replace("  derived:\n", "  notes: [of all]\n  derived:\n", 1) + "    notes: [of one]\n"
    assert parse_recipe(noted, "mine.yaml", Path(), "ours-large").notes == ("of all", "of one")
    refused = refuse(noted.replace("[of one]", "of one"), "ours-large")
    assert "notes: must be a list of lines of text that each start with `-`" in str(refused)
    error = refuse(text.replace("epochs, printed: 9", "epochs, print: 9"), "ours-large")
    assert "differences[1].print: unknown key" in str(error)
    assert error.where == f"mine.yaml:{text.count(chr(10))}"


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("nodes: 2", "nodes: 0", "cluster.nodes: must be 1 or more"),
        ("{epochs: 20}", "{epochs: -1}", "schedule.epochs: must be above 0"),
        ("{epochs: 20}", "{epoch: 20}", "schedule.epoch: unknown key; did you mean 'epochs'"),
        ("{epochs: 20}", "{epochs: 2}", "schedule: the decay would end"),
        ("{epochs: 20}", "20", "schedule: must be a mapping"),
        ("{minutes: 3}", "{minute: 3}", "phases[0].reported.minute: unknown key"),
        ("{main: {minutes: 3}}", "{mian: {}}", "no phase 'mian'; did you mean 'main'?"),
        ("{main: {minutes: 3}}", "3", "reported_by_phase: must be a mapping"),
        ("momentum: 0.9", "momentum: 9", "momentum: must be below 1"),
        ("trainer: caffe-torch", "trainer: '-x'", "trainer: a launcher"),
        ("- {key: trainer, rule: ours}", "- {key: trainer}", "derived[0].rule: missing"),
        ("  title: One of ours", "  name: x", "name: the key of a row is its name; remove it"),
        ("    schedule: {epochs: 20}", "    name: x", "name: the key of a row is its name; remove it"),
        ("family: ours", "family: ../ours", "family: must start with a letter"),
    ],
)
def test_a_mistake_is_reported_at_its_own_line(old: str, new: str, key: str) -> None:
    assert FAMILY.count(old) == 1
    error = refuse(FAMILY.replace(old, new))
    assert key in str(error)
    assert error.where == line_of(old)


def test_a_mistake_in_the_derived_values_of_a_later_row_is_reported_there() -> None:
    error = refuse(FAMILY.replace("rule: mine", "rul: mine"), "ours-large")
    assert error.where == line_of("- {key: title")
    assert "derived[1].rul: unknown key" in str(error)


def test_a_family_s_own_keys_are_known() -> None:
    error = refuse(FAMILY.replace("title: Runs of ours", "titel: Runs"))
    assert "titel: unknown key; did you mean 'title'?" in str(error)
    assert "rows: missing" in str(refuse(FAMILY.partition("rows:")[0]))
    assert "base: missing" in str(refuse("family: a\ntitle: b\nrows:\n  ours-small: {}\n"))
    assert "rows" in str(refuse(FAMILY.partition("rows:")[0] + "rows: {}\n"))


def test_a_family_named_without_a_row_lists_its_rows() -> None:
    assert "is a family of recipes; use mine.yaml:ROW, where ROW is one of ours-small" in str(
        refuse(FAMILY, None)
    )
    assert "did you mean 'mine.yaml:ours-small'?" in str(refuse(FAMILY, "ours-smal"))


def test_phases_and_a_schedule_are_one_too_many() -> None:
    both = FAMILY.replace("    schedule: {epochs: 20}\n", "    schedule: {epochs: 20}\n    phases: []\n")
    assert "there is also a schedule" in str(refuse(both))


def test_a_row_may_write_its_phases_itself() -> None:
    phase = "{name: a, net: train_val, base_lr: 1, lr_policy: fixed, max_iter: 9, snapshot_prefix: b}"
    text = FAMILY.replace("    schedule: {epochs: 20}\n    reported_by_phase: {main: {minutes: 3}}\n",
                          f"    phases: [{phase}]\n")  # fmt: skip
    assert [phase.name for phase in parse_recipe(text, "mine.yaml", Path(), "ours-small").phases] == ["a"]


def test_a_row_of_a_file_is_named_after_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(FAMILY)
    recipe = load_recipe(f"{path}:ours-large")
    assert (recipe.name, recipe.folder) == ("ours-large", tmp_path)
    assert "`caffe-recipes generate ours.yaml:ours-large`" in header_line(recipe)
    assert locate_keys(f"{path}:ours-large")(("cluster", "nodes")) == f"{path}:29"
    assert locate_keys(f"{path}:ours-small")(("cluster", "nodes")) == f"{path}:15"
    assert locate_keys(f"{path}:ours-large")(("phases", 1, "max_iter")) == f"{path}:30"


def test_a_file_without_rows_refuses_one(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_bytes(shipped_recipes()["digits-local"].file.read_bytes())
    with pytest.raises(RecipeError, match="not a family, so it has no row 'x'"):
        load_recipe(f"{tmp_path}/one.yaml:x")


def test_a_file_with_a_colon_in_its_name_is_that_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml:x"
    path.write_text(FAMILY)
    assert split_row(str(path)) == (str(path), None)
    assert split_row(f"{'a' * 5000}.yaml:b") == (f"{'a' * 5000}.yaml", "b")


def test_the_names_of_rows_are_found_without_yaml_as_with_it() -> None:
    files = {one.file.name: one.file.read_text("utf-8") for one in shipped_recipes().values()}
    families = {name: text for name, text in files.items() if is_family(text)}
    assert len(families) >= 3
    for text in families.values():
        assert find_rows(text) == list(yaml.load(text, Loader=Loader)["rows"])
    for name in set(files) - set(families):
        assert "family" not in yaml.load(files[name], Loader=Loader)


def test_no_two_recipes_that_ship_have_one_name() -> None:
    files = {one.file.name: one.file.read_text("utf-8") for one in shipped_recipes().values()}
    rows = [row for text in files.values() if is_family(text) for row in find_rows(text)]
    alone = [name.removesuffix(".yaml") for name, text in files.items() if not is_family(text)]
    assert sorted([*rows, *alone]) == sorted(shipped_recipes())


def nets_dir(text: str, row: str) -> str | None:
    return parse_recipe(text, "mine.yaml", Path(), row).nets_dir


def test_rows_of_one_batch_share_their_nets() -> None:
    assert nets_dir(FAMILY, "ours-small") == nets_dir(FAMILY, "ours-large") == "models/ours-batch-32"
    other = FAMILY.replace("{nodes: 8}", "{nodes: 4, batch_per_rank: 64}")
    assert nets_dir(other, "ours-large") == "models/ours-batch-64"


@pytest.mark.parametrize(
    "own",
    ["net: {classes: 11}", "data: {crop_size: 32}", "nets: {train_val: {test: false}, train_val_noaug: {}}"],
)
def test_a_row_with_different_nets_keeps_them_beside_its_solvers(own: str) -> None:
    text = FAMILY.replace("    nets: {train_val_noaug: {test: false}}\n", f"    {own}\n")
    text = text.replace("      collapse: true\n", "")
    assert nets_dir(text, "ours-small") == "models/ours-batch-32"
    large = parse_recipe(text, "mine.yaml", Path(), "ours-large")
    assert large.prototxt_dirs == ("models/ours-large",)
    assert large.net_path("train_val") == "models/ours-large/train_val.prototxt"


def test_a_row_may_name_its_folders_itself() -> None:
    text = FAMILY.replace("  ours-small:\n", "  ours-small:\n    prototxt_dir: there\n")
    assert parse_recipe(text, "mine.yaml", Path(), "ours-small").prototxt_dirs == ("there",)
    text = FAMILY.replace("  ours-small:\n", "  ours-small:\n    nets_dir: nets/mine\n")
    assert nets_dir(text, "ours-small") == "nets/mine"
    for bad in ("nets/", "nets/.", "'a b'"):
        error = refuse(text.replace("nets/mine", bad))
        assert "nets_dir: does not end in a valid folder name; use letters" in str(error)


def test_a_mistake_in_the_nets_of_another_row_is_reported_for_that_row() -> None:
    for bad in ("nets: 3", "cluster: []", "cluster: {batch_per_rank: x}"):
        text = FAMILY.replace(
            "    nets: {train_val_noaug: {test: false}}\n    cluster: {nodes: 8}\n", f"    {bad}\n"
        )
        assert nets_dir(text, "ours-small") == "models/ours-batch-32"
        refuse(text, "ours-large")


def test_the_epochs_of_a_row_may_follow_from_data_that_the_nets_name() -> None:
    lmdbs = FAMILY[FAMILY.index("  data:") : FAMILY.index("  cluster:")]
    text = FAMILY.replace(lmdbs, "  data: as-in-net\n  images: 100000\n")
    text = text.replace("builder: resnet_small", "prototxt: ours.prototxt")
    recipe = parse_recipe(text, "mine.yaml", Path(), "ours-small")
    assert (
        recipe.phases[-1].max_iter
        == parse_recipe(FAMILY, "mine.yaml", Path(), "ours-small").phases[-1].max_iter
    )
    assert "data: as-in-net needs `images: N`" in str(refuse(text.replace("  images: 100000\n", "")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "family: 7\nrows:\n  - a: {}\nbase: 3\n",
            "1: family: must be text, not 7; also wrong: base (line 4), rows (line 2); also missing: title",
        ),
        (
            "family: x\ntitle: x\nbase: {prototxt_dirr: x}\nrows:\n  a: {cluster: 3, net: {classes: x}}\n",
            "3: prototxt_dirr: unknown key; did you mean 'prototxt_dir'? Also wrong: net.classes (line 5),"
            " cluster (line 5); also missing: title, trainer, net.name, nets, data, phases",
        ),
    ],
)
def test_all_mistakes_of_a_family_or_a_row_are_named_in_one_error(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as raised:
        load_recipe(f"{path}:a")
    assert str(raised.value) == f"{path}:{message}"
