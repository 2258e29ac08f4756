"""Output for people holds no terminal control sequences; output for programs is unchanged."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.table import Table
from rich.text import Text

from caffe_recipes.cli import monitor, streams
from caffe_recipes.cli.main import COMMANDS, commands, main
from caffe_recipes.run.console import Reporter, SafeConsole
from caffe_recipes.wording import printable
from tests.run.conftest import RECIPE
from tests.run.recorded_run import WHOLE, failed, launched, started, write_run

ROOT = Path(__file__).resolve().parent.parent.parent
# A title of the window, a cleared screen in 8 bits, text from right to left, no width, a line overwritten.
EVIL = "a\x1b]0;x\x07\x9b2J\u202eb\u2066\u200b\rc\x7f"
NET = """name: "{0}"
layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: 1 dim: 3 dim: 8 dim: 8 }} }} }}
layer {{ name: "{0}" type: "ReLU" bottom: "data" top: "{0}" }}
layer {{ name: "{0}" type: "{0}" bottom: "{1}" top: "x" }}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with files whose text and names hold terminal control sequences."""
    monkeypatch.chdir(tmp_path)
    evil = "".join(f"\\{byte:03o}" for byte in EVIL.encode())
    (tmp_path / "net.prototxt").write_text(NET.format(evil, evil).partition('layer {{ name: "x')[0])
    (tmp_path / "good.prototxt").write_text("\n".join(NET.format(evil, evil).splitlines()[:3]))
    (tmp_path / "other.prototxt").write_text(NET.format("b", "data"))
    (tmp_path / f"{EVIL}.prototxt").write_text(NET.format(evil, evil))
    (tmp_path / f"{EVIL}.yaml").write_text("name: x\n")
    (tmp_path / "key.yaml").write_text(f'name: "{json.dumps(EVIL)[1:-1]}"\n"{json.dumps(EVIL)[1:-1]}": 1\n')
    run = tmp_path / "runs" / f"{EVIL}-1"
    run.mkdir(parents=True)
    (run / "journal.jsonl").write_text(json.dumps({"time": EVIL, "event": EVIL}) + "\n")
    return tmp_path


def call(*words: str) -> Result:
    return CliRunner().invoke(commands, words)


def is_clean(text: str) -> bool:
    return all(char.isprintable() or char in "\n\t" for char in text)


@pytest.mark.promise("no name or text commands a terminal")
@pytest.mark.parametrize(
    "words",
    [
        ["summary", "good.prototxt"],
        ["summary", "--csv", "good.prototxt"],
        ["lint", "net.prototxt"],
        ["lint", "."],
        ["lint", f"{EVIL}.prototxt"],
        ["diff", "net.prototxt", "other.prototxt"],
        ["diff", f"{EVIL}.prototxt", "other.prototxt"],
        ["fmt", "--check", f"{EVIL}.prototxt"],
        ["fmt", f"{EVIL}.prototxt"],
        ["status"],
        ["runs"],
    ],
    ids=lambda words: " ".join(words).encode("unicode_escape").decode(),
)
def test_no_terminal_control_sequence_is_printed(words: list[str]) -> None:
    done = call(*words)
    assert is_clean(done.stdout)
    assert is_clean(done.stderr)
    assert r"\x1b]0;x\x07" in printable(done.stdout + str(done.exception)).replace("\\\\", "\\")


@pytest.mark.promise("no name or text commands a terminal")
@pytest.mark.parametrize(
    "words",
    [
        ["show", f"{EVIL}.yaml"],
        ["show", "key.yaml"],
        ["logs", EVIL],
        ["attach", EVIL],
        ["recipes", f"--{EVIL}"],
    ],
    ids=["file", "key", "logs", "attach", "option"],
)
def test_an_error_is_one_printable_line(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["caffe-recipes", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    output = capsys.readouterr()
    assert len(output.err.splitlines()) == 1
    assert is_clean(output.out + output.err)


@pytest.mark.parametrize("words", [["summary", "good.prototxt"], ["lint", "net.prototxt"]])
def test_json_holds_the_same_names_without_terminal_control_sequences(words: list[str]) -> None:
    found = call(words[0], "--json", *words[1:]).stdout
    assert is_clean(found.replace("\x7f", ""))  # which terminals ignore
    assert EVIL in strings_of(json.loads(found))


# A name forges a line, colours it and reverses it; the others fill the terminal, with and without spaces.
NAMES = {
    "line": "a\nforged line\x1b[31m\u202eb",
    "word": "y" * 120_000,
    "words": "y " * 60_000,
}
LONGEST_ERROR = 11_000  # characters: a message, and the word before it
LONGEST_LINE = 110_000


def write_named(folder: Path, name: str) -> list[str]:
    """Write input of each kind that holds a name, and return the commands that read it."""
    quoted = name if name.isprintable() else "".join(f"\\{byte:03o}" for byte in name.encode())
    text = NET.format(quoted, "data").replace(f'type: "{quoted}"', 'type: "ReLU"')
    files = {
        "net": text,
        "unnamed": text.replace(quoted, "z"),
        "type": NET.format(quoted, "data"),
        "bottom": NET.format("b", quoted),
        "solver": f'net: "net.prototxt" base_lr: 1 lr_policy: "{quoted}" max_iter: 9 snapshot_prefix: "a"',
        "netless": f'net: "{quoted}" base_lr: 1 lr_policy: "fixed" max_iter: 9 snapshot_prefix: "a"',
        "fixable": f'base_lr: 1 lr_policy: "fixed" max_iter: 9 gamma: 2 snapshot_prefix: "{quoted}"',
        "field": f"{name}: 1",
        "enum": f'layer {{ name: "a" type: "Pooling" pooling_param {{ pool: {name} }} }}',
    }
    for file, written in files.items():
        (folder / f"{file}.prototxt").write_text(written)
    recipe = RECIPE.replace("title: Three short phases", f"title: {json.dumps(name)}")
    recipes = {
        "title": recipe,
        "key": f"{RECIPE}{json.dumps(name)}: 1\n",
        "phase": RECIPE.replace("name: cyc1", f"name: {json.dumps(name)}"),
        "name": RECIPE.replace("name: small", f"name: {json.dumps(name)}"),
        "policy": RECIPE.replace("lr_policy: fixed", f"lr_policy: {json.dumps(name)}"),
        "lmdb": RECIPE.replace("lmdb: data/test_lmdb", f"lmdb: {json.dumps(name)}"),
        "builder": RECIPE.replace("builder: resnet_small", f"builder: {json.dumps(name)}"),
    }
    for file, written in recipes.items():
        (folder / f"{file}.yaml").write_text(written)
    (folder / "small.yaml").write_text(RECIPE)
    run = write_run(folder, folder / "small.yaml", *WHOLE)
    kept = run / "recipe.json"
    kept.write_text(json.dumps({**json.loads(kept.read_text()), name: 1}))
    failed_run = write_run(
        folder, folder / "small.yaml", started(), launched(), failed("init", name), number=2
    )
    prototxts = [f"{file}.prototxt" for file in files]
    return [
        *(f"lint {file}" for file in [*prototxts, "title.yaml", "lmdb.yaml"]),
        *(f"{command} {file}" for command in ("summary", "lr", "upgrade --check") for file in prototxts),
        *(f"diff {old} {new}" for old, new in pairwise(prototxts)),
        *("diff small.yaml lmdb.yaml", "summary --csv net.prototxt", "summary --wide net.prototxt"),
        *(f"show {file}.yaml" for file in recipes),
        *(
            "estimate title.yaml --images-per-s 9",
            "preflight lmdb.yaml",
            "submit title.yaml --dry-run",
            "run key.yaml",
            "run name.yaml",
        ),
        *("status", f"status {run.name}", f"status {failed_run.name}", f"attach --once {failed_run.name}"),
        *(f"logs {run.name} --phase NAME", "logs NAME", "show NAME", "lint NAME", "status NAME", "NAME"),
        *("lint --explain NAME", "summary small.yaml:NAME", "diff NAME small.yaml", "recipes --NAME"),
        *("new --images 9 --epochs 9 --net NAME", "profiles NAME", "data check NAME", "tf log NAME"),
    ]


def call_main(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["caffe-recipes", *words])
    with pytest.raises(SystemExit):
        main()


@pytest.mark.parametrize("kind", NAMES)
def test_no_name_forges_a_line_or_fills_the_terminal(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = write_named(folder, NAMES[kind])
    for line in calls:
        call_main([word.replace("NAME", NAMES[kind]) for word in line.split(" ")], monkeypatch)
        output = capsys.readouterr()
        wrong = [
            *(shown for shown in (output.out, output.err) if not is_clean(shown)),
            *(shown for shown in (output.out + output.err).splitlines() if shown.startswith("forged line")),
            *(shown for shown in output.err.splitlines() if len(shown) > LONGEST_ERROR),
            *(
                shown
                for shown in output.out.splitlines()
                if len(shown) > LONGEST_LINE and "--csv" not in line
            ),
        ]
        assert [shown[:300] for shown in wrong] == [], line


@pytest.mark.parametrize("name", ["a\nforged line\x1b[31m\u202eb", "y" * 240])
def test_no_path_forges_a_line(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).mkdir()
    (folder / "small.yaml").write_text(RECIPE)
    write_run(folder, folder / "small.yaml", *WHOLE).rename(folder / "runs" / name)
    (folder / name / "solver.prototxt").write_text("base_lr: 1 lr_policy: 'fixed' max_iter: 2 type: 'SGD'")
    calls = (
        *("status", "generate small.yaml --out NAME", "fmt --check NAME", "fmt NAME", "lint NAME", "lint ."),
        *("summary good.prototxt --graph NAME/g.svg", "plot NAME/solver.prototxt --out NAME/p.svg"),
        *("new --images 9000 --epochs 9 --out NAME/new.yaml", "data build digits --out NAME/digits"),
        *("data check NAME/digits/digits_train_lmdb --sheet NAME/s.png", "upgrade NAME/solver.prototxt"),
        *(
            "lr NAME/solver.prototxt NAME/solver.prototxt",
            "lr --csv NAME/solver.prototxt NAME/solver.prototxt",
        ),
        *(
            "diff NAME .",
            "diff NAME/solver.prototxt other.prototxt",
            "logs NAME",
            "status NAME",
            "attach NAME",
        ),
    )
    for line in calls:
        call_main([word.replace("NAME", name) for word in line.split(" ")], monkeypatch)
        output = capsys.readouterr()
        assert is_clean(output.out + output.err), line
        assert "\nforged line" not in output.out + output.err, line


def strings_of(value: object) -> str:
    """Return all strings in JSON values, keys as well, one after the other."""
    if isinstance(value, dict):
        return "".join(map(strings_of, [*value, *value.values()]))
    return "".join(map(strings_of, value)) if isinstance(value, list) else str(value)


def test_output_for_programs_is_unchanged_byte_for_byte(folder: Path) -> None:
    assert json.loads(call("summary", "--json", "good.prototxt").stdout)["layers"][1]["name"] == EVIL
    text = call("fmt", "-").stdout_bytes  # empty input
    assert text == b""


@pytest.mark.promise("no name or text commands a terminal")
def test_a_log_is_printable_on_a_terminal_and_raw_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    data = f"I0101 {EVIL}é\r\n".encode() + b"\xff\n"
    monitor._printer()(data)
    assert capfdbinary.readouterr().out == data
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    write = monitor._printer()
    for start in range(len(data)):  # in pieces that cut a character in two
        write(data[start : start + 1])
    text = capfdbinary.readouterr().out.decode()
    assert is_clean(text)
    assert text.startswith("I0101 a\\x1b]0;x")
    assert "é" in text


@pytest.mark.promise("no name or text commands a terminal")
@pytest.mark.parametrize(
    "words", ["fmt --diff", "fmt -", "upgrade", "upgrade --diff", "lint --fix --diff"], ids=str
)
def test_a_comment_is_printable_on_a_terminal_and_raw_in_a_pipe(
    words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    evil = EVIL.replace("\r", "") + "é"
    text = f'base_lr: 1 # {evil}\nlr_policy: "fixed"\nmax_iter: 1\ngamma: 2\nsolver_type: ADAM\n'
    (folder / "solver.prototxt").write_text(text)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    for is_terminal in (False, True):
        sys.stdin.seek(0)
        monkeypatch.setattr("sys.stdout.isatty", lambda shown=is_terminal: shown, raising=False)
        with suppress(SystemExit):
            commands([*words.split(), *([] if words.endswith(" -") else ["solver.prototxt"])])
        printed = capfdbinary.readouterr().out
        assert (evil.encode() in printed) == (not is_terminal)
        assert is_clean(printed.decode()) == is_terminal
        assert "é".encode() in printed


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_lines_of_a_run_are_printable(is_terminal: bool) -> None:
    file = io.StringIO()
    console = SafeConsole(file=file, force_terminal=is_terminal, soft_wrap=True, highlight=False, width=200)
    Reporter(console).say(EVIL)
    table = Table(box=None)
    table.add_column(Text(EVIL))
    table.add_row(EVIL)
    console.print(table)
    text = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())  # rich's own colours
    assert is_clean(text)
    assert text.count(r"a\x1b]0;x") == 3  # the rest rich strips, or has no room for


def test_paint_colours_text_whose_own_colours_do_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    streams.echo(streams.paint("\x1b[31mred", "green"), color=True)
    assert capsys.readouterr().out == "\x1b[32m\\x1b[31mred\x1b[0m\n"


@pytest.mark.promise("no name or text commands a terminal")
@pytest.mark.parametrize("target", [".", "::add-mask::a.prototxt", "::add-mask::##[group]b"])
def test_no_name_becomes_a_workflow_command_in_a_job_log(folder: Path, target: str) -> None:
    text = 'net: "##[group]x" base_lr: 1 lr_policy: "##[group]fixed" max_iter: 1'
    for name in ("::add-mask::a.prototxt", "::add-mask::##[group]b/x.prototxt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    done = call("lint", target)
    assert r"\x3a:add-mask::" in done.output or target == "."
    assert r"#\x23[group]" in done.output
    for line in f"{done.output}\nError: {printable(str(done.exception))}".splitlines():
        assert not line.lstrip().startswith("::")
        assert "##[" not in line
    assert call("lint", "--format", "github", target).stdout.startswith("::")


@pytest.mark.promise("no name or text commands a terminal")
def test_a_line_feed_in_the_name_of_a_file_is_escaped(folder: Path) -> None:
    (folder / "odd").mkdir()
    (folder / "odd" / "a\n0 errors, 0 warnings.prototxt").write_text("name:  'n'")
    for words in (["fmt", "--check"], ["fmt", "--diff"], ["fmt"]):
        lines = call(*words, "odd").output.splitlines()
        assert not [line for line in lines if line.startswith("0 errors")]
        assert any(r"a\n0 errors" in line for line in lines)


@pytest.mark.promise("no name or text commands a terminal")
@pytest.mark.parametrize("start", ["", "a\\n"], ids=["at the start", "in a second line"])
def test_no_name_in_a_csv_becomes_a_workflow_command(folder: Path, start: str) -> None:
    text = NET.format(f"{start}::error title=x::y", "data")
    (folder / "csv.prototxt").write_text("\n".join(text.splitlines()[:3]))
    lines = call("summary", "--csv", "csv.prototxt").output.splitlines()
    assert not [line for line in lines if line.lstrip().startswith("::")]
    assert any(r"\x3a:error title=x::y" in line for line in lines)


def test_commands_print_for_people_through_one_function() -> None:
    """All other output is JSON or bytes."""
    for lazy in COMMANDS.values():
        path = ROOT / f"caffe_recipes/cli/{lazy.module}.py"
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) in ("click.echo", "print")):
                continue
            given = ast.unparse(node.args[0])
            assert re.match(r"(json\.dumps|(\w+\.)?render_(\w+_)?json)\(|data$", given), given


SCREENS = (
    "recipes",
    "show digits-local",
    "show stampede2-64n-72ep",
    "show tf-256n-90ep",
    "profiles",
    "doctor",
    "estimate stampede2-64n-72ep",
    "estimate stampede2-64n-72ep --sweep nodes=64,128",
    "lint --rules",
    "lint --explain net-folder",
    "data check digits/digits_train_lmdb",
)


@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_fits_a_terminal_of_80_columns(
    screen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if screen.startswith("data"):
        call("data", "build", "digits", "--out", "digits")
    ours, theirs = os.openpty()
    program = "from caffe_recipes.cli.main import main; main()"
    environment = {**os.environ, "COLUMNS": "80"}
    with subprocess.Popen(
        [sys.executable, "-c", program, *screen.split()], stdout=theirs, stderr=theirs, env=environment
    ):
        os.close(theirs)
        shown = b""
        with (
            os.fdopen(ours, "rb", buffering=0) as terminal,
            suppress(OSError),
        ):  # raised when the child has ended
            while piece := terminal.read(65536):
                shown += piece
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).splitlines()
    assert len(lines) > 5
    assert [line for line in lines if len(line) > 80] == []
