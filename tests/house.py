"""Measure the package: `make house` prints the table, and tests/test_floors.py enforces its limits."""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASELINE = Path(__file__).with_name("house_baseline.json")
MOST_LINES = 600
MOST_FUNCTION_LINES = 45
MOST_PARAMETERS = 8
# Where functions are called by what they are registered with, not by their names.
REGISTERED = ("caffe_recipes.cli.", "caffe_recipes.review.lint.rules.")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One Python file of the package, by its dotted name."""

    name: str
    text: str
    is_package: bool

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.text)))


@dataclass(frozen=True)
class House:
    """The modules of a checkout, and their measurements."""

    root: Path
    modules: Mapping[str, Module]

    @cached_property
    def imports(self) -> Mapping[str, frozenset[str]]:
        """The modules of the package that each module imports, wherever the import stands."""
        return {module.name: frozenset(self._imported(module)) for module in self.modules.values()}

    def _imported(self, module: Module) -> Iterator[str]:
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    name = whole if whole in self.modules else node.module
                    if name in self.modules and name != module.name:
                        yield name

    @property
    def repeated_names(self) -> list[str]:
        """Names of classes, and of public functions and type aliases, that two modules define."""
        places: dict[str, set[str]] = defaultdict(set)
        for module in self.modules.values():
            for name in defined_names(module):
                places[name].add(module.name)
        return sorted(name for name, where in places.items() if len(where) > 1)

    @property
    def circle(self) -> list[str]:
        """Modules each of which imports the next, the last the first; empty if there are none."""
        try:
            TopologicalSorter(self.imports).prepare()
        except CycleError as error:
            return [str(name) for name in error.args[1]]
        return []

    @property
    def large_modules(self) -> list[str]:
        """Modules over 600 lines."""
        return [module.name for module in self.modules.values() if module.text.count("\n") > MOST_LINES]

    @property
    def large_functions(self) -> list[str]:
        """Functions over 45 lines, or with over 8 parameters."""
        return [
            f"{module.name}.{node.name}"
            for module in self.modules.values()
            for node in module.nodes
            if isinstance(node, Function)
            and (_lines_of(node) > MOST_FUNCTION_LINES or _count_parameters(node) > MOST_PARAMETERS)
        ]

    @property
    def statements(self) -> int:
        """Statements other than imports and docstrings."""
        return sum(
            isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom)
            for module in self.modules.values()
            for node in module.nodes
        ) - sum(
            ast.get_docstring(node, clean=False) is not None
            for module in self.modules.values()
            for node in module.nodes
            if isinstance(node, ast.Module | ast.ClassDef | Function)
        )

    @property
    def nodes(self) -> int:
        return sum(len(module.nodes) for module in self.modules.values())

    @property
    def job_lines(self) -> int:
        """Lines of all committed files in jobs/."""
        return sum(_count_lines(path) for path in (self.root / "jobs").rglob("*") if path.is_file())

    @property
    def script_lines(self) -> int:
        return _count_lines(self.root / "jobs" / "stampede2-64n-72ep" / "run.sh")


def defined_names(module: Module) -> Iterator[str]:
    """Yield the names of a module's classes, and of its public functions and type aliases.

    The functions of commands and of lint's rules do not count: click and the registry call them. Nor does
    `main`, where a program starts.
    """
    yield from (node.name for node in module.nodes if isinstance(node, ast.ClassDef))
    for node in ast.iter_child_nodes(module.nodes[0]):
        if isinstance(node, Function) and not (node.decorator_list and module.name.startswith(REGISTERED)):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [one.id for one in targets if isinstance(one, ast.Name) and not one.id.isupper()]
        else:
            continue
        yield from (name for name in names if not name.startswith("_") and name != "main")


def read_house(root: Path = ROOT) -> House:
    """Read the package of a checkout."""
    found = {}
    for path in sorted((root / "caffe_recipes").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = Module(name, path.read_text(), is_package)
    return House(root, found)


def _lines_of(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _count_parameters(node: Function) -> int:
    each = node.args
    return (
        len(each.posonlyargs) + len(each.args) + len(each.kwonlyargs) + bool(each.vararg) + bool(each.kwarg)
    )


def _count_lines(path: Path) -> int:
    return len(path.read_bytes().splitlines())


def read_baseline() -> dict[str, int]:
    """Return the counts of the day on which the rebuilding began."""
    counts: dict[str, int] = json.loads(BASELINE.read_text())
    return counts


def render_house(house: House, baseline: Mapping[str, int]) -> str:
    """Write the table: what is counted, the count, and where it began."""
    rows = {
        "modules over 600 lines": len(house.large_modules),
        "names of two modules": len(house.repeated_names),
        "circles of imports": int(bool(house.circle)),
        "lines in jobs/": house.job_lines,
        "lines of run.sh of stampede2-64n-72ep": house.script_lines,
        "functions over 45 lines or 8 parameters": len(house.large_functions),
        "statements": house.statements,
        "syntax tree nodes": house.nodes,
    }
    width = max(map(len, rows))
    lines = [f"{'':{width}}  {'began':>8}  {'now':>8}"]
    lines += [f"{name:{width}}  {baseline[name]:>8,}  {count:>8,}" for name, count in rows.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(render_house(read_house(), read_baseline()))
