"""Change a module in one place at a time, run its tests, and count the changes that they catch.

    python benchmarks/mutants.py                                        # lists the mutants, runs nothing
    python benchmarks/mutants.py --out after.json --before before.json  # runs them; the same command resumes

The mutants are drawn from a fixed revision, so that two later trees are given the same ones. If the line or
the function of a mutant no longer exists, the next mutant takes its place. The tests of `a/b.py` are
`tests/a/test_b.py` and `test_b_*.py`, except those on several hosts, and the examples in the docstrings of
its package. They run in a copy of the tree, where they must first pass without a change. If that tree has a
`.venv` of its own, use its Python.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import contextlib
import difflib
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parent.parent
BASE = "d41d9aece4dfc2413c2facdc6da55c28a3fcc494"
SEED, DRAWN, COUNTED, MOST_PER_MODULE = 1, 90, 60, 2
LIMIT_S = 1800  # for the tests of an unchanged module
GENERATED = "caffe_recipes/caffe/pb.py"
EXAMPLES = "tests/test_caffe_recipes_docstrings.py"
# A tree may leave slow tests out by default; this overrides its selection.
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not cluster and not tensorflow")
_PAIRS = (
    *(("<", "<="), (">", ">="), ("==", "!="), ("is", "is not"), ("in", "not in"), ("and", "or")),
    *(("+", "-"), ("+=", "-="), ("True", "False"), ("break", "continue")),
)
SWAPS = dict(_PAIRS) | {after: before for before, after in _PAIRS}
_CHANGED_INSIDE = ast.Compare | ast.BoolOp | ast.UnaryOp  # a condition that other changes negate
_Point = tuple[int, int]
_Change = tuple[_Point, _Point, str]
_Task = tuple[str, str | None, list[str], float]  # the arguments of Copy.start


@dataclass(frozen=True)
class Mutant:
    """A change of one line; `line` counts from 1 and `column` from 0, in the revision BASE."""

    path: str
    line: int
    column: int
    before: str
    after: str
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.before} -> {self.after or 'nothing'}"

    def apply(self, base: str, root: Path) -> str | None:
        """Return the changed text of the module in a tree, or None if its function has no such line now."""
        if not (root / self.path).exists():
            return None
        now = (root / self.path).read_text("utf-8")
        lines = now.split("\n")
        matcher = difflib.SequenceMatcher(None, base.split("\n"), lines, autojunk=False)
        for block in matcher.get_matching_blocks():
            line = self.line - block.a + block.b
            if block.b < line <= block.b + block.size and function_at(ast.parse(now), line) == self.function:
                old = lines[line - 1]
                lines[line - 1] = old[: self.column] + self.after + old[self.column + len(self.before) :]
                return "\n".join(lines)
        return None


class Result(TypedDict):
    """How the tests of a module ended; `by` is the first that failed."""

    failed: bool
    by: str
    seconds: float


def find_tests(files: Iterable[str]) -> dict[str, list[str]]:
    """Return the test files of each module; a test file belongs to the longest name of a module that fits."""
    modules, files = {}, sorted(files)
    for path in files:
        if path.startswith("caffe_recipes/") and path.endswith(".py"):
            *folders, name = path.removesuffix(".py").removesuffix("/__init__").split("/")
            modules["/".join(["tests", *folders[1:], f"test_{name}"])] = path
    tests: dict[str, list[str]] = {path: [] for path in modules.values()}
    for path in files:
        if re.match(r"tests/(.+/)?test_\w+\.py$", path) and not path.endswith("_on_hosts.py"):
            name = path.removesuffix(".py")
            while name and name not in modules:
                name = name.rpartition("_")[0]
            if name:
                tests[modules[name]].append(path)
    if EXAMPLES in files:
        for path, found in tests.items():
            found.append(f"{EXAMPLES}::test_the_examples_of_a_package_hold[{path.split('/')[1]}]")
    return tests


def function_at(tree: ast.Module, line: int) -> str:
    """Return the qualified name of the function or class that contains a line."""
    names = [
        (node.lineno, node.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return ".".join(name for _, name in sorted(names))


def walk_code(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree, except annotations, code that runs in no test, and f-strings.

    Before Python 3.12, the positions in an f-string are not exact.
    """
    yield node
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            match child:
                case ast.JoinedStr() | ast.Call(ast.Name("dataclass")):
                    pass
                case ast.If(ast.Name("TYPE_CHECKING") | ast.Compare(ast.Name("__name__"))):
                    pass
                case ast.AST() if field not in ("annotation", "returns"):
                    yield from walk_code(child)


def find_changes(text: str) -> Iterator[_Change]:
    """Yield the start and end of each place that can be changed, and its new text (`{}` is the old text)."""
    lines = text.split("\n")
    kinds = (tokenize.OP, tokenize.NAME)
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type in kinds]

    def start(node: ast.expr | ast.stmt) -> _Point:
        return node.lineno, len(lines[node.lineno - 1].encode()[: node.col_offset].decode())

    def end(node: ast.expr | ast.stmt) -> _Point:
        line = node.end_lineno or 0
        return line, len(lines[line - 1].encode()[: node.end_col_offset].decode())

    def swap(first: _Point, last: _Point) -> Iterator[_Change]:
        low = bisect.bisect_left(tokens, first, key=lambda token: token.start)
        high = bisect.bisect_right(tokens, last, key=lambda token: token.end)
        inside = [token for token in tokens[low:high] if token.string not in "()"]
        if after := SWAPS.get(" ".join(token.string for token in inside)):
            yield inside[0].start, inside[-1].end, after

    for node in walk_code(ast.parse(text)):
        match node:
            case ast.Compare(left, _, others):
                for one, other in pairwise([left, *others]):
                    yield from swap(end(one), start(other))
            case ast.BoolOp(_, values):
                for one, other in pairwise(values):
                    yield from swap(end(one), start(other))
            case ast.BinOp(one, _, other) | ast.AugAssign(one, _, other):
                yield from swap(end(one), start(other))
            case ast.Constant(bool()) | ast.Break() | ast.Continue():
                yield from swap(start(node), end(node))
            case ast.Constant(int(number)):
                yield start(node), end(node), str(number + 1)
            case ast.UnaryOp(ast.Not()):
                line, column = start(node)
                yield (line, column), (line, column + len("not")), ""
            case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant):
                yield start(value), end(value), "None"
            case ast.If(test) | ast.IfExp(test) if not isinstance(test, _CHANGED_INSIDE):
                yield start(test), end(test), "not ({})"


def read_base() -> dict[str, str]:
    """Return the package and the tests of BASE, by path."""
    command = ["git", "-C", str(ROOT), "archive", BASE, "caffe_recipes", "tests"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        sys.exit(f"git cannot read {BASE}, from which the mutants are drawn; clone with the whole history")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        files = {member.name: tar.extractfile(member) for member in tar if member.name.endswith(".py")}
        return {name: file.read().decode() for name, file in files.items() if file}


def draw_mutants(base: Mapping[str, str]) -> list[Mutant]:
    """Draw mutants of modules that have tests; each place is as likely as any other."""
    found: list[tuple[bytes, Mutant]] = []
    for path in [path for path, tests in find_tests(base).items() if tests and path != GENERATED]:
        lines = base[path].split("\n")
        for (line, column), (last, end), after in find_changes(base[path]):
            if line == last:
                before = lines[line - 1][column:end]
                mutant = Mutant(path, line, column, before, after.format(before), "")
                found.append((hashlib.sha256(f"{SEED} {mutant}".encode()).digest(), mutant))
    modules: Counter[str] = Counter()
    drawn: list[Mutant] = []
    for _, mutant in sorted(found, key=lambda pair: pair[0]):
        modules[mutant.path] += 1
        if modules[mutant.path] <= MOST_PER_MODULE and len(drawn) < DRAWN:
            function = function_at(ast.parse(base[mutant.path]), mutant.line)
            drawn.append(replace(mutant, function=function))
    return drawn


def list_files(root: Path) -> list[str]:
    """Return the tracked files of a tree that exist."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, check=True)
    return [path for path in os.fsdecode(listed.stdout).split("\0") if path and os.path.lexists(root / path)]


class Copy:
    """A copy of a tree, in which the tests of one module run at a time."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.tree, self._tmp, self._output = folder / "tree", folder / "tmp", folder / "output"
        for path in list_files(root):
            (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, self.tree / path, follow_symlinks=False)
        # With CI set, Hypothesis uses the same examples each time.
        more = {"CI": "true", "MPLBACKEND": "Agg", "PYTHONDONTWRITEBYTECODE": "", "TMPDIR": str(self._tmp)}
        self._environment = os.environ | more | {"PYTHONPATH": str(self.tree)}
        # A changed module can have the size and the time of the original, but not its hash.
        argv = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "caffe_recipes"]
        subprocess.run([sys.executable, *argv], cwd=self.tree, check=True)
        argv = ["-c", "import caffe_recipes; print(caffe_recipes.__file__)"]
        found = subprocess.check_output([sys.executable, *argv], cwd="/", env=self._environment, text=True)
        assert found.startswith(str(self.tree)), f"{found.strip()} is imported instead of the copy"

    def start(self, path: str, text: str | None, tests: list[str], limit_s: float) -> None:
        """Start the tests of a module; with a text, the module has that text until they end."""
        self._module = self.tree / path
        self._original = self._module.read_text("utf-8")
        self._module.write_text(text or self._original, "utf-8")
        self._tmp.mkdir()
        self._tmp.chmod(0o1777)
        argv = [sys.executable, *PYTEST, *tests]
        self._started, self._limit_s = time.monotonic(), limit_s
        with self._output.open("wb") as output, Path(os.devnull).open() as empty:
            self._process = subprocess.Popen(
                argv, cwd=self.tree, env=self._environment, stdin=empty, stdout=output, stderr=output
            )

    def poll(self) -> Result | None:
        """Return how the tests ended, or None while they run."""
        code, seconds = self._process.poll(), round(time.monotonic() - self._started, 1)
        if code is None and seconds < self._limit_s:
            return None
        self.end()
        self._module.write_text(self._original, "utf-8")
        if code in (0, 5):  # 5: no tests were selected
            return Result(failed=False, by="", seconds=seconds)
        output = self._output.read_text("utf-8", errors="replace")
        first = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
        by = "time limit" if code is None else first[1] if first else f"pytest: exit {code}"
        return Result(failed=True, by=by, seconds=seconds)

    def end(self) -> None:
        """Kill every process that the tests have started, also in other sessions, and remove their files."""
        while found := [process for process in Path("/proc").glob("[0-9]*") if self._has_started(process)]:
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process.name), signal.SIGKILL)
            time.sleep(0.05)
        self._process.wait()
        shutil.rmtree(self._tmp, ignore_errors=True)

    def _has_started(self, process: Path) -> bool:
        with contextlib.suppress(OSError):
            return os.fsencode(self.tree) in (process / "environ").read_bytes()
        return False


def run(tasks: Mapping[str, _Task], copies: list[Copy], results: dict[str, Result], out: Path) -> None:
    """Run the tasks without a result, one in each copy at a time, and save each result at once."""
    waiting = [name for name in tasks if name not in results]
    running: dict[Copy, str] = {}
    try:
        while waiting or running:
            for copy in copies:
                if copy in running and (result := copy.poll()):
                    name = running.pop(copy)
                    results[name] = result
                    out.with_suffix(".part").write_text(json.dumps(results, indent=1) + "\n")
                    out.with_suffix(".part").replace(out)
                    print(f"{result['seconds']:6.1f} s  {name}  {result['by'] or 'passed'}", flush=True)
                if waiting and copy not in running:
                    running[copy] = waiting.pop(0)
                    copy.start(*tasks[running[copy]])
            time.sleep(0.1)
    finally:
        for copy in running:
            copy.end()


def measure(root: Path, kept: Mapping[Mutant, str], jobs: int, out: Path) -> dict[str, Result]:
    """Run the tests of each module, first unchanged, and return the results of the mutants."""
    tests = find_tests(list_files(root))
    saved: dict[str, Result] = json.loads(out.read_text()) if out.exists() else {}
    # Tests that fail without a change are run again, since the machine may have been too busy.
    results = {name: saved[name] for name in saved if not (name in tests and saved[name]["failed"])}
    for mutant in kept:
        if not tests[mutant.path]:  # without an argument, pytest would run all tests
            results[mutant.path] = results[str(mutant)] = Result(failed=False, by="", seconds=0)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        Path(folder).chmod(0o755)  # tests also start programs as other users
        copies = [Copy(root, Path(folder) / str(number)) for number in range(jobs)]
        modules = dict.fromkeys(mutant.path for mutant in kept)
        run({path: (path, None, tests[path], LIMIT_S) for path in modules}, copies, results, out)
        tasks: dict[str, _Task] = {}
        for mutant, text in kept.items():
            path, unchanged = mutant.path, results[mutant.path]
            if unchanged["failed"]:
                print(f"not counted, since the tests of {path} fail without a change: {mutant}")
            else:  # a busy machine is slow; what never ends is caught
                tasks[str(mutant)] = path, text, tests[path], 120 + 4 * unchanged["seconds"]
        run(tasks, copies, results, out)
    return {name: results[name] for name in tasks}


def main() -> None:
    """Draw the mutants, run them, and report which ones no test caught."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--root", type=Path, default=ROOT, help="tree to measure (default: this one)")
    add("--count", type=int, default=COUNTED, help="mutants to run (default: %(default)s)")
    add("--jobs", type=int, default=1, help="mutants to run at a time (default: %(default)s)")
    add("--out", type=Path, metavar="FILE.json", help="run, and save the results of this tree")
    add("--before", type=Path, metavar="FILE.json", help="results of the tree to compare with")
    given, _ = parser.parse_known_args()
    base, root = read_base(), given.root.resolve()
    if not (root / "caffe_recipes").is_dir():
        parser.error(f"--root {given.root}: not a checkout of this project")
    try:  # now, and not after an hour
        before: dict[str, Result] = json.loads(given.before.read_text()) if given.before else {}
    except (OSError, ValueError) as error:
        parser.error(f"--before {given.before}: {error}")
    drawn = draw_mutants(base)
    texts = {mutant: mutant.apply(base[mutant.path], root) for mutant in drawn}
    kept = dict([(mutant, text) for mutant, text in texts.items() if text is not None][: given.count])
    if not given.out:
        for mutant, text in texts.items():
            print(mutant, "" if mutant in kept else "(not in this tree)" if text is None else "(spare)")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    results = measure(root, kept, given.jobs, given.out)
    missed = [name for name, result in results.items() if not result["failed"]]
    print(f"caught {len(results) - len(missed)} of {len(results)}; not caught:", *missed, sep="\n  ")
    if given.before:
        both = [name for name in results if name in before]
        now, then = (sum(those[name]["failed"] for name in both) for those in (results, before))
        print(f"of the {len(both)} that were run before as well, {then} were caught then, and {now} now")
        sys.exit(now < then)


if __name__ == "__main__":
    main()
