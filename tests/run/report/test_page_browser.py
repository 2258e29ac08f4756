"""The page in Debian's Chromium, headless: nothing is loaded, every chart is drawn, and keys work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.run.report.writing import write_report
from tests.run.report.chromium import PROGRAM, Page, open_chromium
from tests.run.report.test_page import HOSTILE, write_hostile

if TYPE_CHECKING:
    from tests.run.conftest import Place

DRAWN = (
    "[...document.querySelectorAll('figure.chart')].map((one) => one.querySelectorAll('path, rect').length)"
)
BACK = "getComputedStyle(document.body).backgroundColor"
TIP = "document.querySelector('[data-chart] .tip').textContent"


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs Debian's package chromium")
def test_a_browser_draws_every_chart_and_obeys_keys(place: Place, tmp_path: Path) -> None:
    names = [str(write_hostile(place, number)) for number in (1, 2)]
    out = tmp_path / "report.html"
    write_report(names, out, str(place.root))
    with open_chromium(tmp_path / "profile") as page:
        for width in (1280, 400):
            page.open(out, width)
            drawn = page.ask(DRAWN)
            assert len(drawn) >= 4
            assert min(drawn) > 1
            assert page.ask("document.documentElement.scrollWidth") <= width
            assert HOSTILE in page.ask("document.body.innerText")
            check_keys(page)
            check_touch(page)
        check_colours(page)
        assert page.messages == []
        assert {url for url in page.requests if not url.startswith("about:")} == {out.as_uri()}
        # The policy holds: neither text as code nor anything from elsewhere.
        assert (
            page.ask("(() => { try { return eval('1') } catch (error) { return error.name } })()")
            == "EvalError"
        )


def check_keys(page: Page) -> None:
    """Move the cursor of the first chart, zoom and choose another axis, with keys alone."""
    page.ask("document.querySelector('[data-chart] svg').focus()")
    page.press("ArrowRight")
    first = page.ask(TIP)
    assert "iteration 0" in first
    page.press("ArrowRight")
    assert page.ask(TIP) != first
    ticks = "document.querySelector('[data-chart] svg').textContent"
    whole = page.ask(ticks)
    page.press("+")
    assert page.ask(ticks) != whole
    page.press("Escape")
    assert page.ask(ticks) == whole
    page.ask("document.querySelector('[data-axis=iterations]').focus()")
    page.send("Input.dispatchKeyEvent", type="keyDown", key="Enter", text="\r")
    page.send("Input.dispatchKeyEvent", type="keyUp", key="Enter")
    assert page.ask("document.querySelector('[data-axis=iterations]').ariaPressed") == "true"


def check_touch(page: Page) -> None:
    """Zoom the first chart with two fingers, and move what it shows with one."""
    chart = "document.querySelector('[data-chart] svg')"
    page.ask(f"{chart}.scrollIntoView({{block: 'center'}})")
    left, y, width = page.ask(f"(({{x, y, width}}) => [x, y + 90, width])({chart}.getBoundingClientRect())")
    ticks = f"{chart}.textContent"
    whole = page.ask(ticks)
    page.touch(
        [(left + 0.5 * width, y), (left + 0.6 * width, y)], [(left + 0.3 * width, y), (left + 0.8 * width, y)]
    )
    zoomed = page.ask(ticks)
    page.touch([(left + 0.7 * width, y)], [(left + 0.4 * width, y)])
    assert len({whole, zoomed, page.ask(ticks)}) == 3
    page.ask(f"{chart}.focus()")
    page.press("Escape")
    assert page.ask(ticks) == whole


def check_colours(page: Page) -> None:
    """See that the page follows the desktop's preference, and its own button overrides it."""
    page.prefer("light")
    light = page.ask(BACK)
    page.prefer("dark")
    dark = page.ask(BACK)
    assert light != dark
    click = "document.getElementById('theme').click()"
    page.ask(click)
    page.prefer("light")
    assert page.ask(BACK) == dark
    page.ask(click)
    assert page.ask(BACK) == light
