"""Recipes are read whole or refused in one line that names file, line and key."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest

from caffe_recipes.errors import RecipeError
from caffe_recipes.recipe.model import Recipe, TensorFlowRecipe
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_any_recipe, load_recipe, parse_recipe

DIGITS = shipped_recipes()["digits-local"].file.read_text("utf-8")


def refuse(text: str) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "mine.yaml", Path())
    assert "\n" not in str(caught.value)
    return caught.value


def line_of(text: str, needle: str) -> int:
    return text[: text.index(needle)].count("\n") + 1


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_every_shipped_recipe_loads_under_its_own_name(name: str) -> None:
    assert load_any_recipe(name).name == name


def test_the_published_recipe_states_what_its_source_reports() -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    assert (recipe.cluster.ranks, recipe.cluster.global_batch) == (128, 4096)
    assert recipe.reported.images_per_s == 6303
    assert [phase.name for phase in recipe.phases] == ["init", "cyc1", "cyc2", "cyc3", "collapse"]
    assert [phase.weight_decay for phase in recipe.phases] == [0.00005] * 4 + [0.0002]
    assert recipe.phases[-1].final_snapshot == "/tmp/resnet_50_64nodes_cyc_collapse_iter_1560.caffemodel"


@pytest.mark.parametrize(
    ("speed", "bound"), [("1e300", "1000000000 or less"), ("1e-300", "0.001 or more"), ("0", "0.001 or more")]
)
def test_a_speed_that_no_machine_has_is_refused(speed: str, bound: str) -> None:
    error = refuse(f"{DIGITS}reported: {{images_per_s: {speed}}}\n")
    assert error.where == f"mine.yaml:{DIGITS.count(chr(10)) + 1}"
    assert error.what.startswith(f"reported.images_per_s: must be {bound}")


def test_a_phase_starts_from_the_previous_one_by_default() -> None:
    recipe = load_recipe("digits-local")
    assert recipe.starts_from(recipe.phases[0]) is None
    assert recipe.starts_from(recipe.phases[2]) == recipe.phases[1]
    text = DIGITS.replace("- name: cyc3\n", "- name: cyc3\n    weights: init\n", 1)
    branched = parse_recipe(text, "mine.yaml", Path())
    assert branched.starts_from(branched.phases[3]) == branched.phases[0]
    scratch = parse_recipe(text.replace("weights: init", "weights: none"), "mine.yaml", Path())
    assert scratch.starts_from(scratch.phases[3]) is None
    file = parse_recipe(text.replace("weights: init", "weights: a.caffemodel"), "mine.yaml", Path())
    assert file.starts_from(file.phases[3]) == "a.caffemodel"


def test_a_phase_overrides_the_solver_block() -> None:
    recipe = parse_recipe(DIGITS, "mine.yaml", Path())
    assert [phase.weight_decay for phase in recipe.phases] == [0.002, 0.002, 0.002, 0.002, 0.008]


def test_a_recipe_is_frozen() -> None:
    recipe = load_recipe("digits-local")
    with pytest.raises(ValueError, match="frozen"):
        recipe.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError, match="does not support item assignment"):
        recipe.nets["train_val"] = recipe.nets["train_val_noaug"]  # type: ignore[index]


def test_a_recipe_is_a_value_compared_hashed_and_dumped_by_its_fields() -> None:
    recipe, again = load_recipe("digits-local"), load_recipe("digits-local")
    assert (recipe, hash(recipe)) == (again, hash(again))
    assert copy.deepcopy(recipe) == pickle.loads(pickle.dumps(recipe)) == recipe
    assert recipe.model_copy(update={"nets": {}}) != recipe
    assert Recipe.model_validate(recipe.model_dump()) == recipe
    assert json.loads(recipe.model_dump_json())["nets"]["train_val_noaug"]["test"] is False
    assert recipe.model_dump()["nets"]["train_val_noaug"] == {"random_aspect_ratio": None, "test": False}
    nets = Recipe.model_json_schema()["properties"]["nets"]
    assert list(nets["patternProperties"].values()) == [{"$ref": "#/$defs/NetVariant"}]


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ("lr_policy: poly", "power"),
        ("lr_policy: inv, gamma: 0.1", "power"),
        ("lr_policy: poly_cyc, power: 1", "lr_iter"),
        ("lr_policy: plateau, gamma: 0.1", "plateau_winsize"),
        ("lr_policy: step, gamma: 0.1", "stepsize"),
    ],
)
def test_a_policy_is_refused_without_what_its_rate_is_made_of(settings: str, needed: str) -> None:
    phase = f"{{name: last, net: train_val, base_lr: 0.1, max_iter: 9, snapshot_prefix: tmp/a, {settings}}}"
    before, _, after = DIGITS.partition("  - name: collapse")
    text = f"{before}  - {phase}\n\n{after[after.index('evaluation:') :]}"
    policy = settings.split()[1].rstrip(",")
    assert f"phases[4]: lr_policy {policy} needs {needed}" in str(refuse(text))


@pytest.mark.parametrize(
    ("old", "new", "key", "what"),
    [
        ("momentum: 0.9", "momentun: 0.9", "solver.momentun", "did you mean 'momentum'?"),
        ("max_iter: 560", "max_iter: -5", "phases[0].max_iter", "not -5"),
        ("max_iter: 560", "max_itr: 560", "phases[0].max_itr", "did you mean 'max_iter'?"),
        ("lr_policy: poly\n", "lr_policy: polly\n", "phases[4].lr_policy", "did you mean 'poly'?"),
        ("nodes: 1\n", "nodes: true\n", "cluster.nodes", "must be an integer"),
        ("nodes: 1\n", "nodes: 1.5\n", "cluster.nodes", "must be an integer"),
        ("display: 20", "display: yes", "solver.display", "must be an integer"),
        ("weight_decay: 0.002", "weight_decay: .nan", "solver.weight_decay", "number"),
        ("base_lr: 0.1\n", "base_lr: 0\n", "phases[0].base_lr", "must be above 0"),
        ("net: train_val\n", "net: trainval\n", "phases[0].net", "did you mean 'train_val'?"),
        ("evaluation:\n  net: train_val", "evaluation:\n  net: train_val_noaug", "evaluation.net", "no TEST"),
        ("name: cyc1", "name: init", "phases[1].name", "two phases"),
        ("tmp/digits_cyc3", "tmp/digits_cyc2", "phases[3].snapshot_prefix", "another phase"),
        ("builder: resnet_small", "builder: resnet_smal", "net.builder", "did you mean 'resnet_small'?"),
        ("name: digits-local", "name: ../escape", "name", "must start with a letter"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(old: str, new: str, key: str, what: str) -> None:
    assert DIGITS.count(old) >= 1
    text = DIGITS.replace(old, new, 1)
    error = refuse(text)
    assert key in str(error)
    assert what in str(error)
    last_line = DIGITS[: DIGITS.index(old)].count("\n") + 1 + new.rstrip("\n").count("\n")
    assert error.where == f"mine.yaml:{last_line}"


@pytest.mark.parametrize(
    ("removed", "key"),
    [
        ("  classes: 10\n", "net.classes: missing"),
        ("    lr_iter: 1344\n", "needs lr_iter"),
        ("title: ", "title"),
    ],
)
def test_a_missing_value_is_named(removed: str, key: str) -> None:
    assert key in str(refuse(DIGITS.replace(removed, "" if removed.endswith("\n") else "titel: ", 1)))


@pytest.mark.parametrize(
    "weights", ["cyc3", "itself-not-there", "collapse"], ids=["itself", "unknown", "a later one"]
)
def test_a_phase_cannot_start_from_a_later_one(weights: str) -> None:
    text = DIGITS.replace("- name: cyc3\n", f"- name: cyc3\n    weights: {weights}\n", 1)
    assert "phases[3].weights" in str(refuse(text))


def test_a_key_given_twice_is_refused() -> None:
    error = refuse(DIGITS.replace("    power: 1\n", "    power: 1\n    power: 3\n", 1))
    assert "duplicate key 'power'" in str(error)
    assert error.where == f"mine.yaml:{line_of(DIGITS, 'power: 1') + 1}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "- a\n- b",
        "name: [",
        "\tname: x",
        "a: &x [*x]",
        "{" * 3000,
        "? {a: 1}\n: 2",
        "!!python/object:os.system x",
    ],
)
def test_a_file_that_is_not_a_recipe_gets_one_line(text: str) -> None:
    refuse(text)


def test_an_iteration_takes_no_more_images_than_exist() -> None:
    assert "cluster.batch_per_rank" in str(
        refuse(DIGITS.replace("batch_per_rank: 32", "batch_per_rank: 3200"))
    )


def test_scientific_numbers_and_words_are_read_as_intended() -> None:
    text = DIGITS.replace("weight_decay: 0.002", "weight_decay: 5e-4").replace(
        "title: The", "title: no: ' ", 0
    )
    assert parse_recipe(text, "mine.yaml", Path()).phases[0].weight_decay == 5e-4


def test_an_unknown_name_suggests_the_nearest_and_lists_the_rest() -> None:
    with pytest.raises(RecipeError, match=r"did you mean 'stampede2-64n-72ep'\?.*digits-local"):
        load_recipe("stampede2-64n-72epp")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"nowhere\.yaml: cannot be read: No such file"):
        load_recipe(tmp_path / "nowhere.yaml")
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(f"{tmp_path}/.yaml/..yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(RecipeError, match="not UTF-8"):
        load_recipe(binary)
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(RecipeError, match="is a folder; give a recipe's name, or the path of its YAML"):
        load_recipe(tmp_path / "folder.yaml")


def test_a_recipe_s_misspelt_file_is_compared_with_those_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").touch()
    with pytest.raises(RecipeError, match=r"No such file or directory; did you mean 'mine\.yaml'\?"):
        load_recipe(tmp_path / "mine.yml")
    with pytest.raises(RecipeError, match=r"give the path to a recipe's YAML"):
        load_recipe(tmp_path / "quite_other.yaml")


def test_a_net_has_exactly_one_origin() -> None:
    assert "exactly one of" in str(refuse(DIGITS.replace("  builder: resnet_small\n", "")))
    both = DIGITS.replace("  builder: resnet_small\n", "  builder: resnet_small\n  prototxt: a.prototxt\n")
    assert "exactly one of" in str(refuse(both))


def test_builder_settings_are_refused_where_the_net_is_the_users_own() -> None:
    assert "batch_norm_fraction" in str(
        refuse(DIGITS.replace("builder: resnet_small", "prototxt: a.prototxt"))
    )


def test_the_recipe_remembers_the_folder_it_was_read_from(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(DIGITS)
    assert load_recipe(tmp_path / "mine.yaml").folder == tmp_path


def test_two_last_snapshots_of_one_name_are_refused_though_their_folders_differ() -> None:
    same = DIGITS.replace("max_iter: 270", "max_iter: 560").replace(
        "tmp/digits_cyc1", "elsewhere/digits_init"
    )
    assert "also called digits_init_iter_560.caffemodel;" in str(refuse(same))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    source: examples/digits/digits_train_lmdb\n", ""),
        ("source: examples/digits/digits_train_lmdb", "source: elsewhere/digits_train_lmdb"),
        ("lmdb: examples/digits/digits_val_lmdb", "lmdb: examples/digits/val"),
    ],
)
def test_prepared_digits_lie_where_they_are_built(old: str, new: str) -> None:
    assert "data.prepare" in str(refuse(DIGITS.replace(old, new)))


def test_a_line_break_in_a_path_is_refused() -> None:
    assert "line break" in str(refuse(DIGITS.replace("lmdb: tmp/digits_train_lmdb", 'lmdb: "tmp/a\\nb"')))


def test_aliases_of_aliases_are_refused_and_not_expanded() -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
    )
    assert "contains more than 20,000 values" in str(refuse(bomb))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("name: &a\n  x: *a\n", ":2: recursive alias 'a'; write the values out"),
        ("name: &a [*a]\n", ":1: recursive alias 'a'"),
        ("name: " + "[" * 3000 + "]" * 3000, ":1: values nest more than 50 deep"),
    ],
)
def test_endless_nesting_is_reported_in_plain_words(text: str, what: str) -> None:
    assert what in str(refuse(text))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("name: !!timestamp 99999-99-99", "the tag 'tag:yaml.org,2002:timestamp' is not supported"),
        ("name: !!int ''", "the tag 'tag:yaml.org,2002:int' is not supported"),
        ("? [a, b]\n: 1\n", ":1: a key is not plain text; write each key as text"),
        ("a: &a x\n*a : 1\n", ":2: a key is not plain text"),
    ],
)
def test_yaml_features_that_a_recipe_does_not_need_are_refused(text: str, what: str) -> None:
    assert what in str(refuse(text))


def test_a_long_value_is_shortened_in_the_message() -> None:
    number, key = "9" * 5000, "k" * 5000
    for text in (
        DIGITS.replace("display: 20", f"display: '{number}'"),
        f"{key}: 1\n{DIGITS}",
        f"{key}: 1\n{key}: 2\n",
    ):
        assert len(str(refuse(text))) < 500


def test_a_file_that_is_endless_or_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("#" * 1_000_001)
    with pytest.raises(RecipeError, match=r"mine.yaml: is over 1,000,000 bytes; is it a recipe\? if you"):
        load_recipe(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(RecipeError, match=r"cannot be read: it is a device, not a file; give"):
        load_recipe(path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("max_iter: 560", "max_iter:"), "phases[0].max_iter: is empty; it must be an integer"),
        (("max_iter: 560", "max_iter: '560'"), "must be an integer, not '560'; remove the quotes"),
        (("lr_policy: poly_cyc", "lr_policy: polly"), "phases[0].lr_policy: must be 'fixed', 'step'"),
        (("momentum: 0.9", "momentum: 9"), "solver.momentum: must be below 1, not 9"),
        (("mean_value: [104, 117, 123]", "mean_value: 3"), "data.mean_value: must be a list of values"),
        (("max_iter: 560", "max_iter: 0560"), "an integer, not '0560'; write it without leading zeros"),
        (("title: ", "title: ' ' #"), "title: must not be blank"),
        (("snapshot_prefix: tmp/", "snapshot_prefix: tmp/ #"), "must end in a name, not in `/`"),
        (("prototxt_dir: ", "prototxt_dir: ../../"), "must not leave the Caffe root through `..`"),
        (("  zero_init: last-block", "  zero_init: 3"), "must be 'none', 'last-block' or 'every-block'"),
    ],
)
def test_errors_are_described_in_plain_words(change: tuple[str, str], expected: str) -> None:
    text = shipped_recipes()["digits-local"].file.read_text("utf-8").replace(*change, 1)
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "r.yaml", Path())
    assert expected in str(caught.value)
    assert "input should" not in str(caught.value)


def test_empty_phases_are_reported_as_empty() -> None:
    text = shipped_recipes()["digits-local"].file.read_text("utf-8")
    with pytest.raises(RecipeError, match="phases: is empty; it must be a list"):
        parse_recipe(text[: text.index("phases:")] + "phases:\n", "r.yaml", Path())


@pytest.mark.parametrize("name", ["solver.prototxt", "net.pbtxt", "x.caffemodel"])
def test_a_file_of_caffe_s_is_not_a_recipe(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('net: "a"\n')
    with pytest.raises(RecipeError, match=r"a Caffe file, not a recipe.*lint"):
        load_recipe(tmp_path / name)


def test_a_recipe_that_tensorflow_trains_has_images_and_no_phases() -> None:
    recipe = load_any_recipe("tf-digits-local")
    assert isinstance(recipe, TensorFlowRecipe)
    assert (recipe.train_images, recipe.tested_images) == (1438, 359)
    assert (recipe.cluster.ranks, recipe.cluster.global_batch) == (2, 64)


def test_commands_that_need_phases_refuse_a_tensorflow_recipe() -> None:
    what = "tf-digits-local: is trained by TensorFlow and has no phases, solvers, nets or LMDBs; use it"
    with pytest.raises(RecipeError, match=what):
        load_recipe("tf-digits-local")
