"""Make the pictures of README.md and docs/, by `make pictures`. The screen is that of a real run."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from fcntl import ioctl
from html import escape
from pathlib import Path
from socket import gethostname
from termios import TIOCSWINSZ

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
PROGRAM = Path(sys.executable).with_name("caffe-recipes")
COLUMNS, ROWS = 120, 26
# A phase of which this much is trained is worth a picture.
PHASE, SHARE = "cyc2", 0.4
TIMEOUT_S = 600
CONTROL = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")
COLOURS = {"31": "#f14c4c", "32": "#23d18b", "33": "#e5e510", "36": "#29b8db", "1": "#ffffff", "2": "#808080"}
FONT_PX, LINE_PX, CELL_PX = 13, 17, 7.83


class Screen:
    """A terminal without wrapping, as far as `run` uses one: rows of cells, a character and its style."""

    def __init__(self) -> None:
        self.rows: list[list[tuple[str, str]]] = [[]]
        self.row = self.column = 0
        self._style = ""

    def feed(self, text: str) -> None:
        """Print text with its control sequences."""
        at = 0
        for found in CONTROL.finditer(text):
            self._print(text[at : found.start()])
            self._control(found[1], found[2])
            at = found.end()
        self._print(text[at:])

    def _print(self, text: str) -> None:
        for letter in text:
            if letter == "\n":
                self.row, self.column = self.row + 1, 0
                self.rows += [[] for _ in range(self.row + 1 - len(self.rows))]
            elif letter == "\r":
                self.column = 0
            else:
                row = self.rows[self.row]
                row += [(" ", "")] * (self.column + 1 - len(row))
                row[self.column] = (letter, self._style)
                self.column += 1

    def _control(self, words: str, letter: str) -> None:
        if letter == "m":
            codes = [code for code in words.split(";") if code in COLOURS]
            self._style = codes[-1] if codes else ""
        elif letter == "A":
            self.row = max(0, self.row - int(words or 1))
        elif letter == "K":
            self.rows[self.row] = [] if words == "2" else self.rows[self.row][: self.column]

    def draw(self) -> str:
        """Return the last rows as SVG."""
        rows = [row for row in self.rows if row][-ROWS:]
        width, height = COLUMNS * CELL_PX + 24, len(rows) * LINE_PX + 24
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
            f'viewBox="0 0 {width:.0f} {height}">',
            f'<rect width="{width:.0f}" height="{height}" rx="6" fill="#1e1e1e"/>',
            f'<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="{FONT_PX}" '
            'fill="#d4d4d4" xml:space="preserve">',
        ]
        for number, row in enumerate(rows):
            y = 12 + LINE_PX * (number + 1) - 4
            for x, text, style in _spans(row):
                colour = f' fill="{COLOURS[style]}"' if style else ""
                length = f'textLength="{len(text) * CELL_PX:.1f}"'
                lines.append(
                    f'<text x="{12 + x * CELL_PX:.1f}" y="{y}" {length}{colour}>{escape(text)}</text>'
                )
        return "\n".join([*lines, "</g>", "</svg>", ""])


def _spans(row: list[tuple[str, str]]) -> Iterator[tuple[int, str, str]]:
    """Yield the texts of one style, each with its column; blanks between are left out."""
    start = 0
    while start < len(row):
        style, end = row[start][1], start
        while end < len(row) and row[end][1] == style:
            end += 1
        text = "".join(letter for letter, _ in row[start:end])
        for found in re.finditer(r"\S+(?: \S+)*", text):
            yield start + found.start(), found[0], style
        start = end


def record_run(curves: Path) -> str:
    """Train digits-local, draw its curves, and return the screen in the middle of a phase as SVG."""
    screen = Screen()
    with tempfile.TemporaryDirectory() as folder:
        master, slave = pty.openpty()
        ioctl(slave, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        words = [str(PROGRAM), "run", "digits-local", "--caffe-root", "."]
        run = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        try:
            # A reader's machine has other folders and another name.
            _watch(master, screen, {f"{folder}/": "", f"{ROOT}/": "", f" on {gethostname()}": " on head"})
            with suppress(OSError):  # it ends, and the terminal with it
                while os.read(master, 65536):
                    pass
        finally:
            run.terminate()
            run.wait()
            os.close(master)
        plot = [str(PROGRAM), "plot", "digits-local-1", "-o", str(curves)]
        subprocess.run(plot, check=True, cwd=folder)
    return screen.draw()


def _watch(master: int, screen: Screen, shown_as: Mapping[str, str]) -> None:
    """Read until the phase is as far as it is to be, with other words for some; raises TimeoutError."""
    until = time.monotonic() + TIMEOUT_S
    left = b""
    while time.monotonic() < until:
        if not select.select([master], [], [], 1)[0]:
            continue
        left += os.read(master, 65536)
        whole = left.rfind(b"\n") + 1 or left.rfind(b"\r") + 1
        text = left[:whole].decode(errors="replace").replace("\r\n", "\n")
        for word, other in shown_as.items():
            text = text.replace(word, other)
        screen.feed(text)
        left = left[whole:]
        shown = "\n".join("".join(letter for letter, _ in row) for row in screen.rows[-4:])
        found = re.search(rf"^{PHASE} .*?(\d+)/(\d+)\s+(?:lr|loss)", shown, re.MULTILINE)
        if found and int(found[1]) >= SHARE * int(found[2]):
            return
    raise TimeoutError(f"{PHASE} did not come as far within {TIMEOUT_S} s")


def main() -> None:
    """Write all pictures."""
    IMAGES.mkdir(exist_ok=True)
    recipes = ("stampede2-64n-72ep", "stampede2-448n-90ep")
    subprocess.run([PROGRAM, "plot", *recipes, "-o", str(IMAGES / "schedules.svg")], check=True)
    graph = ["summary", "stampede2-64n-72ep:train_val", "--graph", str(IMAGES / "resnet50.svg")]
    subprocess.run([PROGRAM, *graph], check=True, stdout=subprocess.DEVNULL)
    (IMAGES / "run.svg").write_text(record_run(IMAGES / "curves.svg"))


if __name__ == "__main__":
    main()
