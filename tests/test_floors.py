"""The floors of docs/architecture.md hold: a package imports itself and lower floors only."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from caffe_recipes.caffe.layer_types import LAYER_TYPES
from caffe_recipes.cluster.launchers import LAUNCHERS
from caffe_recipes.recipe.shipped import shipped_recipes
from tests.house import House, Module, defined_names, read_house

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "caffe_recipes"


def read_floors() -> dict[str, int]:
    """Read the table of floors from the document that people read."""
    rows = re.findall(
        r"^\| (\d) \| `(\w+)/?` \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE
    )
    return {package: int(floor) for floor, package in rows}


FLOORS = read_floors()


@pytest.fixture(scope="module", autouse=True)
def _only_here() -> Iterator[None]:
    """Collect no garbage among half a million nodes, which takes longer than parsing; drop them after."""
    gc.disable()
    yield
    for cached in (house, nodes_of, imports_of):
        cached.cache_clear()
    gc.enable()


@cache
def house() -> House:
    return read_house()


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return the syntax tree of a file, which for one of the package is parsed once for all tests."""
    if SOURCE not in path.parents:
        return list(ast.walk(ast.parse(path.read_text())))
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return house().modules[name].nodes


@cache
def imports_of(path: Path) -> list[str]:
    """Return the part of `caffe_recipes` that each import of a file names: `caffe`, `errors`, ..."""
    return list(_imports_of(path))


def _imports_of(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("caffe_recipes."))


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


def test_the_table_names_every_package() -> None:
    assert {package_of(path) for path in FILES} == set(FLOORS)
    assert len(FLOORS) == 23


def test_a_package_imports_itself_and_lower_floors_only() -> None:
    too_high = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path in FILES
        for name in sorted(set(imports_of(path)) - {package_of(path)})
        if FLOORS.get(name, 9) >= FLOORS[package_of(path)]
    ]
    assert too_high == []


def test_the_engine_stands_alone() -> None:
    engine = {name for path in FILES if package_of(path) == "engine" for name in imports_of(path)}
    assert engine <= {"engine", "caffe", "errors", "files", "limits", "standard_streams", "trust", "wording"}
    users = {package_of(path) for path in FILES if "engine" in imports_of(path)}
    assert users <= {"engine", "cli", "api"}  # what predicts imports it in its body


def test_floor_2_knows_no_recipe() -> None:
    ground = {name for path in FILES if FLOORS[package_of(path)] == 2 for name in imports_of(path)}
    assert ground <= {
        "caffe",
        "cluster",
        "config",
        "errors",
        "file_format",
        "files",
        "limits",
        "run_names",
        "tensorflow",
        "trust",
        "units",
        "wording",
    }


def test_an_import_upwards_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "shapes.py"
    file.write_text("from caffe_recipes import run\nimport caffe_recipes.recipe.model\nimport os\n")
    assert imports_of(file) == ["run", "recipe"]


def test_no_modules_import_each_other() -> None:
    assert house().circle == []


def test_no_two_modules_define_a_class_function_or_alias_of_one_name() -> None:
    assert house().repeated_names == []


def test_a_name_that_a_module_defines_is_seen() -> None:
    text = "Shape = int\nHow: object = str\nMOST = 1\n_Own = int\nclass _Plan: ...\n"
    functions = "def plan(): ...\ndef _own(): ...\ndef main(): ..."
    names = {*defined_names(Module("caffe_recipes.run.one", text + functions, False))}
    assert names == {"How", "Shape", "_Plan", "plan"}
    registered = "@command\ndef plan(): ...\ndef plan_it(): ..."
    assert [*defined_names(Module("caffe_recipes.cli.plan", registered, False))] == ["plan_it"]


def test_no_module_has_over_600_lines() -> None:
    assert house().large_modules == []


def test_no_function_has_over_45_lines_or_8_parameters() -> None:
    assert house().large_functions == []


def test_committed_jobs_stay_small_enough_to_review() -> None:
    folders = (name for name, one in shipped_recipes().items() if one.row is None)
    files = [path for folder in folders for path in (ROOT / "jobs" / folder).glob("*") if path.is_file()]
    lines = {path: path.read_text().count("\n") for path in files}
    for path, count in lines.items():
        if path.name == "run.sh":
            phases = path.read_text().count("\nif begin ")
            assert count <= 120 + max(0, 8 * (phases - 5)), path
        elif path.name == "submit.sh":
            assert count <= 60, path
        elif path.suffix == ".sbatch":
            assert count <= 40, path
    assert sum(count for path, count in lines.items() if path.name.startswith("tf_")) <= 150
    assert sum(lines.values()) <= 1_300


# Where layer types are listed: their entries, the operators that run them, and what other Caffes lack.
LAYER_TYPE_HOMES = (
    "caffe/layer_types",
    "engine/operators",
    "engine/onnx_operators",
    "caffe/opencv_nets",
    "caffe/dialects",
)


def layer_type_lists(path: Path) -> Iterator[int]:
    """Yield the line of each collection, condition or text in a file that lists three or more layer types."""
    collections = (ast.BoolOp, ast.Dict, ast.List, ast.Set, ast.Tuple)
    for node in nodes_of(path):
        if isinstance(node, collections):
            texts = {str(one.value) for one in ast.walk(node) if isinstance(one, ast.Constant)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = set(node.value.replace(",", " ").split())
            texts = words if words <= LAYER_TYPES.keys() else set()
        else:
            continue
        if len(texts & LAYER_TYPES.keys()) >= 3:
            yield node.lineno


def test_layer_types_are_listed_in_one_place_only() -> None:
    elsewhere = [one for one in FILES if not str(one.relative_to(SOURCE)).startswith(LAYER_TYPE_HOMES)]
    assert [f"{path}:{line}" for path in elsewhere for line in layer_type_lists(path)] == []


@pytest.mark.parametrize(
    "text",
    [
        'KINDS = {"ReLU": 1, "Pooling": 2, "Data": 3}',
        'WORDS = "ReLU Pooling, Data"',
        'wrong = kind == "ReLU" or kind == "Pooling" or kind == "Data"',
        'PAIRS = [("ReLU", "Pooling"), ("Data", "x")]',
    ],
)
def test_a_list_of_layer_types_is_seen(tmp_path: Path, text: str) -> None:
    file = tmp_path / "shapes.py"
    file.write_text(f'"""ReLU Pooling Data and others."""\n{text}\nTWO = ("ReLU", "Pooling")\n')
    assert set(layer_type_lists(file)) == {2}


# Where launchers are told apart: in their own modules, and where lint reads the scripts of other people.
LAUNCHER_HOMES = ("cluster/launchers", "review/lint/scripts.py")


def launcher_names(path: Path) -> Iterator[int]:
    """Yield the line of each text in a file that is the name of a launcher, and each comparison of one."""
    for node in nodes_of(path):
        compared = [*ast.iter_child_nodes(node)] if isinstance(node, ast.Compare | ast.Match) else []
        if any(_names_launcher(one) for one in compared):
            yield node.lineno  # type: ignore[attr-defined]
        elif isinstance(node, ast.Constant) and node.value in LAUNCHERS:
            yield node.lineno


def _names_launcher(node: ast.AST) -> bool:
    """Tell whether an expression is a launcher, or its name, as in `profile.launcher.program`."""
    words = re.findall(r"\w+", ast.unparse(node))
    return words[-2:] == ["launcher", "program"] or words[-1:] in (["DEFAULT_LAUNCHER"], ["rank_launcher"])


def test_a_launcher_is_told_from_others_in_its_own_module_only() -> None:
    elsewhere = [one for one in FILES if not str(one.relative_to(SOURCE)).startswith(LAUNCHER_HOMES)]
    assert [f"{path}:{line}" for path in elsewhere for line in launcher_names(path)] == []


@pytest.mark.parametrize(
    "text",
    [
        'if profile.launcher.program == "srun": pass',
        'HINTS = {"ibrun": "run inside a job"}',
        'match program:\n    case "srun": pass',
        'WORDS = ("mpiexec.hydra",)',
        "wrong = profile.launcher.program != program",
        "wrong = launcher is DEFAULT_LAUNCHER",
    ],
)
def test_a_comparison_of_launchers_is_seen(tmp_path: Path, text: str) -> None:
    file = tmp_path / "shapes.py"
    file.write_text(
        f'"""What srun does."""\n{text}\nwhat = f"{{profile.launcher.program}} fails as srun does"\n'
    )
    assert set(launcher_names(file)) & {2, 3}
    assert len(set(launcher_names(file))) == 1


TESTS = ROOT / "tests"
# Tests of no one module: of scripts, of damaged files, and of the repository.
BEHAVIOUR_FOLDERS = {"cluster/faults", "fuzz", "jobs"}
BEHAVIOUR_NAMES = {"test_floors", "test_modifications", "test_security", "test_tensorboard", "test_wheel"}


def mirrors(test: Path) -> bool:
    """Tell whether a test file is named after a module, program, helper or folder in the place it mirrors."""
    folder = test.parent.relative_to(TESTS)
    places = ((SOURCE, "*"), (ROOT, "*"), (TESTS, "[!t]*.py"))
    paths = [path for place, pattern in places for path in (place / folder).glob(pattern)]
    names = {f"test_{path.name.partition('.')[0]}".lower().replace("-", "_") for path in paths}
    return test.stem in names or any(test.stem.startswith(f"{name}_") for name in names if name != "test_")


def is_of_behaviour(test: Path) -> bool:
    """Tell whether a test file needs hosts of its own, or tests no one module."""
    folder = str(test.parent.relative_to(TESTS))
    by_name = test.stem in BEHAVIOUR_NAMES or test.stem.endswith(("_on_hosts", "_on_slurm"))
    return by_name or folder in BEHAVIOUR_FOLDERS


def test_every_test_file_is_named_after_the_module_it_tests() -> None:
    tests = sorted(TESTS.rglob("test_*.py"))
    assert not [str(test) for test in tests if not mirrors(test) and not is_of_behaviour(test)]
    assert mirrors(TESTS / "run/test_trainer_log_errors.py")
    assert not mirrors(TESTS / "run/test_errors.py")
