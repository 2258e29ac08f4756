"""Pictures of schedules: their contents, that they are the same anywhere, and what is refused."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import Chain, Link
from caffe_recipes.caffe.prototxt import Document
from caffe_recipes.cli.main import commands
from caffe_recipes.cli.plot import plot
from caffe_recipes.errors import InputError
from caffe_recipes.review.inspect.plot_style import format_of
from caffe_recipes.review.inspect.schedules import PlottedSchedule, load_schedules, schedule_chain
from caffe_recipes.review.inspect.schedules_plot import curve_of, draw_schedules, render_plot
from tests.cli.command_line import call_main
from tests.extras import needs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

pytestmark = needs("plot", "matplotlib")

ROOT = Path(__file__).resolve().parents[3]
BOTH = ("stampede2-64n-72ep", "stampede2-448n-90ep")
FIXED = 'base_lr: 0.5 lr_policy: "fixed" max_iter: 50'
NET = 'layer { name: "in" type: "Input" top: "in" input_param { shape { dim: [1, 3, 8, 8] } } }'
KINDS = ("svg", "png", "pdf")
COMMANDS = [
    ["plot", "digits-local", "-o", "a.svg"],
    *(["plot", "solver_a.prototxt", "-o", f"a.{kind}"] for kind in KINDS[1:]),
    ["summary", "net.prototxt", "--graph", "b.png"],
    ["estimate", "digits-local", "--images-per-s", "100", "--sweep", "nodes=1,2", "--plot", "c.svg"],
]
# One process draws all pictures: starting it and importing matplotlib takes longer than drawing them.
EACH_COMMAND = """
import json, sys
from caffe_recipes.cli.main import commands
for words in json.loads(sys.argv[1]):
    commands(words, standalone_mode=False)
"""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Draw all pictures in two places whose `matplotlibrc` changes a picture, or blocks who reads it."""
    # A solver is labelled with its folder's name, so both places end in the same one.
    folders = [tmp_path_factory.mktemp(name) / "here" for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    os.mkfifo(folders[0] / "matplotlibrc")
    (folders[1] / "matplotlibrc").write_text("lines.linewidth: 9\nfont.size: 30\n")
    for seed, folder in enumerate(folders, 1):
        (folder / "solver_a.prototxt").write_text(FIXED)
        (folder / "net.prototxt").write_text(NET)
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "SOURCE_DATE_EPOCH": str(seed)}
        argv = [sys.executable, "-c", EACH_COMMAND, json.dumps(COMMANDS)]
        done = subprocess.run(
            argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr
    return folders


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(plot, [str(word) for word in words])


Call = Callable[..., Result]


def texts_in(svg: Path) -> list[str]:
    """The texts of an SVG, which its letters' outlines stand below as comments."""
    ElementTree.parse(svg)
    return re.findall(r"<!-- (.*?) -->", svg.read_text())


def fixed(**fields: object) -> PlottedSchedule:
    solver = pb.SolverParameter(**{"lr_policy": "fixed", "base_lr": 1.0, "max_iter": 10} | fields)  # type: ignore[arg-type]
    link = Link("x", Document("", "", solver, {}, {}), None, solver.max_iter)
    return schedule_chain("a", Chain((link,)), None)


def test_a_recipe_s_picture_names_its_phases_and_both_rates_of_each_jump(call: Call, tmp_path: Path) -> None:
    assert call("stampede2-64n-72ep", "-o", "a.svg").output == "wrote a.svg\n"
    texts = texts_in(tmp_path / "a.svg")
    assert {"init", "cyc1", "cyc2", "cyc3", "collapse", "epochs", "learning rate", "weight decay"} <= set(
        texts
    )
    for jump in ("1.599 → 1.467", "0.7635 → 0.5738", "0.5716 → 0.4296", "0.9334 → 1.02", "0.1028 → 0.19"):
        assert jump in texts
    assert "0.07696 → 0.143" in texts
    assert {"0.00005", "0.0002"} <= set(texts)


def test_a_name_that_is_not_utf_8_is_drawn_escaped(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "a\udcff"
    folder.mkdir()
    (folder / "solver_x.prototxt").write_text(FIXED)
    (folder / "net.prototxt").write_text(NET)
    assert call(folder / "solver_x.prototxt", "-o", "a.svg").exit_code == 0
    assert any(r"a\udcff" in text for text in texts_in(tmp_path / "a.svg"))


def test_branches_are_drawn_off_the_phases_that_they_start_from(call: Call, tmp_path: Path) -> None:
    assert call("digits-cyclic", "stampede2-64n-72ep", "-o", "a.svg").exit_code == 0
    texts = texts_in(tmp_path / "a.svg")
    assert len([text for text in texts if text.startswith("col")]) >= 5


def test_several_recipes_have_lines_of_their_own_style_and_name(call: Call, tmp_path: Path) -> None:
    call(*BOTH, "-o", "b.svg")
    texts = texts_in(tmp_path / "b.svg")
    assert all(texts.count(name) == 1 for name in BOTH)  # above the picture, beside the line's style
    assert "0.24 → 0.254" in texts
    assert "stroke-dasharray" in (tmp_path / "b.svg").read_text()


def test_the_bytes_are_the_same_in_another_process_folder_and_year(drawn: list[Path]) -> None:
    one, other = drawn
    for words in COMMANDS:
        picture = (one / words[-1]).read_bytes()
        assert len(picture) > 1000
        assert picture == (other / words[-1]).read_bytes(), words


def test_a_picture_names_neither_the_day_nor_the_program_s_version(drawn: list[Path]) -> None:
    for kind in KINDS:
        picture = (drawn[0] / f"a.{kind}").read_bytes()
        assert not re.search(rb"Matplotlib v?\d|CreationDate|dc:date|Software", picture)


def test_a_picture_s_format_is_that_of_its_name(call: Call, tmp_path: Path) -> None:
    starts = {"a.svg": b"<?xml", "a.PNG": b"\x89PNG", "a.pdf": b"%PDF"}
    (tmp_path / "solver.prototxt").write_text(FIXED)
    for name, start in starts.items():
        assert call("solver.prototxt", "-o", name).exit_code == 0
        assert (tmp_path / name).read_bytes().startswith(start)


def test_solvers_are_drawn_in_a_row_over_iterations_or_epochs(call: Call, tmp_path: Path) -> None:
    (tmp_path / "solver_a.prototxt").write_text(FIXED)
    (tmp_path / "solver_b.prototxt").write_text(FIXED.replace("0.5", "0.25"))
    call("solver_a.prototxt", "solver_b.prototxt", "-o", "a.svg")
    assert {"a", "b", "iterations", "0.5 → 0.25"} <= set(texts_in(tmp_path / "a.svg"))
    epochs = ("--images", 100, "--ranks", 2, "--batch", 5)
    call("solver_a.prototxt", "solver_b.prototxt", *epochs, "-o", "b.svg")
    assert {"epochs", "0.5 → 0.25"} <= set(texts_in(tmp_path / "b.svg"))
    call("solver_a.prototxt", "solver_b.prototxt", "--apart", "-o", "c.svg")
    assert "0.5 → 0.25" not in texts_in(tmp_path / "c.svg")


def test_a_dollar_in_a_name_is_not_a_formula(call: Call, tmp_path: Path) -> None:
    (tmp_path / "solver_$\\frac$.prototxt").write_text(FIXED)
    assert call("solver_$\\frac$.prototxt", "-o", "a.svg").exit_code == 0


def test_a_logarithmic_axis_holds_a_rate_that_ends_at_nothing(call: Call, tmp_path: Path) -> None:
    assert call(*BOTH, "--log", "-o", "a.svg").exit_code == 0
    texts = texts_in(tmp_path / "a.svg")
    assert {"0.001", "0.01", "0.1", "1"} <= set(texts)
    assert "1e-08" not in texts


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("digits-local", "-o", "a.jpg"),
            "a.jpg: is not a picture file; end it in .svg, .png or .pdf",
        ),
        (("digits-local", "-o", "a"), "a: is not a picture file"),
        (("digits-lokal", "-o", "a.svg"), "did you mean 'digits-local'?"),
        (("digits-local", "-o", "none/a.svg"), "none/a.svg: the folder none does not exist; create it"),
        (("none.prototxt", "-o", "a.svg"), "none.prototxt: no such file"),
        (
            ("digits-local", "zero.prototxt", "-o", "a.svg"),
            "cannot be drawn beside a recipe, whose schedule is in epochs; give --images",
        ),
        (("zero.prototxt", "-o", "a.svg"), "no iteration has a rate above 0 to draw"),
        (("many.prototxt", "-o", "a.svg"), "101 phases to draw; give 100 at most"),
    ],
)
def test_a_schedule_that_cannot_be_drawn_gets_one_line_and_no_file(
    words: tuple[str, ...], message: str, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "zero.prototxt").write_text('lr_policy: "fixed" max_iter: 5')
    pair = f"params_pair {{ solver_params {{ {FIXED} }} }}\n"
    (tmp_path / "many.prototxt").write_text(pair * 101)
    done = call(*words)
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)
    assert {path.name for path in tmp_path.iterdir()} == {"zero.prototxt", "many.prototxt"}


def test_epochs_need_a_batch_and_images(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a.prototxt").write_text(FIXED)
    done = call("a.prototxt", "--images", 100, "-o", "a.svg")
    assert isinstance(done.exception, InputError)
    assert "epochs need --batch (found no net with a batch_size beside a.prototxt)" in str(done.exception)
    assert "epochs need --images and --batch" in str(
        call("a.prototxt", "--ranks", 2, "-o", "a.svg").exception
    )
    assert call("a.prototxt", "--images", 100, "--batch", 5, "-o", "a.svg").exit_code == 0


def test_an_old_picture_stays_where_the_new_one_cannot_be_drawn(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text("old")
    call("digits-lokal", "-o", "a.svg")
    assert (tmp_path / "a.svg").read_text() == "old"
    call("digits-local", "-o", "a.svg")
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")


def test_a_folder_is_drawn_as_its_solvers_in_their_order(call: Call, tmp_path: Path) -> None:
    folder = ROOT / "prototxt" / "digits-local"
    assert call(folder, "-o", "a.svg").exit_code == 0
    phases = ("init", "cyc1", "cyc2", "cyc3", "collapse")
    call(*(folder / f"solver_{phase}.prototxt" for phase in phases), "-o", "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_without_matplotlib_one_line_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = call_main("plot", "digits-local", "-o", "a.svg", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "Error: plot needs matplotlib; pip install 'caffe-recipes[plot]'\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("decay", [float("nan"), float("inf"), -1.0, 0.0])
def test_a_weight_decay_that_has_no_place_on_the_axis_leaves_the_rate_its_own(decay: float) -> None:
    assert render_plot([fixed(weight_decay=decay)], "svg")


def test_a_schedule_of_one_iteration_is_drawn() -> None:
    assert render_plot([fixed(max_iter=1)], "svg")


def test_a_file_s_format_is_known_by_its_ending() -> None:
    assert format_of(Path("a.b/C.SVG")) == "svg"


def touching(figure: Figure) -> list[str]:
    """Return what each text inside an axes touches: a line, a marker, the frame, or another text."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    found = []
    for axes in figure.axes:
        texts = [text for text in axes.texts if text.get_text()]
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts]  # type: ignore[no-untyped-call]
        for number, (text, box) in enumerate(zip(texts, boxes, strict=True)):
            frame = axes.bbox
            if not (frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 <= box.y1 <= frame.y1):
                found.append(f"{text.get_text()}: the frame")
            found += [
                f"{text.get_text()}: {texts[n].get_text()}" for n in range(number) if box.overlaps(boxes[n])
            ]
            for line in axes.lines:
                path = line.get_transform().transform_path(line.get_path())
                points = np.asarray(path.vertices)
                if len(points) > 1 and path.intersects_bbox(box, filled=False):
                    found.append(f"{text.get_text()}: a line")
                if line.get_marker() not in ("None", "", None):
                    radius = line.get_markersize() / 2 * figure.dpi / 72
                    if any(
                        box.x0 - radius < x < box.x1 + radius and box.y0 - radius < y < box.y1 + radius
                        for x, y in points
                    ):
                        found.append(f"{text.get_text()}: a marker")
    return found


@cache
def draw(*names: str, log: bool = False) -> Figure:
    """Draw a figure, which tests only look at."""
    schedules = load_schedules(names)
    curves = [[curve_of(stretch, 300) for stretch in schedule.stretches] for schedule in schedules]
    return draw_schedules(schedules, curves, log=log)


SOLVERS = sorted(str(path) for path in (ROOT / "prototxt" / "stampede2-64n-72ep").glob("solver_*.prototxt"))
ALL = ("stampede2-64n-72ep", "stampede2-448n-90ep", "digits-local", "digits-cyclic")


@pytest.mark.parametrize("log", [False, True], ids=["linear", "log"])
@pytest.mark.parametrize(
    "names",
    [
        *((name,) for name in ALL),
        ALL,
        BOTH,
        ("digits-local", "digits-cyclic"),
        ("digits-cyclic", "stampede2-448n-90ep"),
        tuple(SOLVERS),
        ("tf-256n-90ep", "stampede2-64n-72ep"),
        ALL * 2,
    ],
    ids=lambda names: " ".join(Path(name).stem for name in names) if isinstance(names, tuple) else None,
)
def test_no_label_touches_anything(names: tuple[str, ...], log: bool) -> None:
    assert touching(draw(*names, log=log)) == []


def test_only_jumps_of_more_than_a_percent_are_labelled() -> None:
    texts = {text.get_text() for axes in draw("stampede2-64n-72ep").axes for text in axes.texts}
    assert "0.1028 → 0.19" in texts
    assert "0.2551 → 0.255" not in texts


def test_no_label_is_far_from_its_jump() -> None:
    from matplotlib.text import Annotation

    for axes in draw("paper-f4-4096-120ep").axes:
        for text in axes.texts:
            assert not isinstance(text, Annotation) or math.hypot(*text.get_position()) <= 17


def test_a_phase_s_name_is_shortened_to_its_block_and_keeps_its_number() -> None:
    texts = {text.get_text() for axes in draw("digits-cyclic").axes for text in axes.texts}
    assert "init" in texts
    assert "collapse1" not in texts
    assert {number for text in texts if re.fullmatch(r"col\w*…\d", text) for number in text[-1]} == {*"12345"}


def test_schedules_of_different_scale_have_a_panel_each() -> None:
    panels = [axes for axes in draw(*ALL).axes if axes.get_ylabel() == "learning rate"]
    assert len(panels) == 4
    assert [round(axes.get_ylim()[1] / 1.12, 3) for axes in panels] == [1.599, 4.789, 0.099, 0.099]
    assert len([axes for axes in draw(*BOTH).axes if axes.get_ylabel() == "learning rate"]) == 1


def test_no_axis_writes_powers_of_ten() -> None:
    long = fixed(max_iter=30_000_000)
    curves = [[curve_of(stretch) for stretch in long.stretches]]
    figure = draw_schedules([long], curves, log=False)
    figure.canvas.draw()
    shown = [label.get_text() for axes in figure.axes for label in axes.get_xticklabels()]
    assert "10,000,000" in shown
    assert not any(axes.xaxis.get_offset_text().get_text() for axes in figure.axes)


class ImportSeen(Exception):
    """Matplotlib is imported while this folder is the current one."""


class SeenImport(MetaPathFinder, Loader):
    """Let an import of matplotlib find this, and fail with the folder that it would read settings in."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == "matplotlib" else None

    def exec_module(self, module: ModuleType) -> None:
        raise ImportSeen(Path.cwd())


@pytest.mark.promise("nothing is imported from the current folder")
@pytest.mark.parametrize("words", COMMANDS[2:], ids=lambda words: words[0])
def test_the_settings_of_matplotlib_in_the_current_folder_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("solver_a.prototxt").write_text(FIXED)
    Path("net.prototxt").write_text(NET)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [SeenImport(), *sys.meta_path])
    done = CliRunner().invoke(commands, words)
    assert isinstance(done.exception, ImportSeen), done.output
    assert str(done.exception) == "/"
