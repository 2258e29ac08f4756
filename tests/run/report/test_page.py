from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.run.hidden_texts import digest_texts
from caffe_recipes.run.journal import load_journal
from caffe_recipes.run.report.contents import load_contents
from caffe_recipes.run.report.page import render_report
from tests.run.recorded_run import LOG, append_events, failed, finished, launched, started, write_run

if TYPE_CHECKING:
    from tests.run.conftest import Place

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'"


def write_hostile(place: Place, number: int = 1) -> Path:
    """Write a run in whose recipe, hosts and logs there is HTML."""
    recipe = place.root / "hostile.yaml"
    recipe.write_text(place.recipe.read_text().replace("Three short phases", json.dumps(HOSTILE)))
    events = (started(), launched(hosts=[HOSTILE, "b"]), failed("init", f"rank 1 {HOSTILE}"))
    line = f"[1] F1120 11:49:35.000000  6374 x.cpp:1] Check failed: {HOSTILE}\n"
    return write_run(place.root, recipe, *events, log=f"{LOG}\n{line}", number=number)


class Attributes(HTMLParser):
    """Collects the names of the attributes of a page's elements."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names |= {name for name, _ in attrs}


def data_of(page: str) -> dict[str, object]:
    """Return the data of a page, as its script reads them."""
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    values: dict[str, object] = json.loads(found[0])
    return values


def test_names_of_recipe_hosts_and_logs_stay_text(place: Place) -> None:
    page = render_report([load_contents(str(write_hostile(place)), str(place.root))])
    assert "<img" not in page
    assert "alert(1)</script>" not in page
    assert len(re.findall(r"<script\b", page)) == page.count("</script>") == 2
    assert page.count("&lt;img src=x onerror=alert(2)&gt;") >= 3
    assert HOSTILE in json.dumps(data_of(page), ensure_ascii=False).replace('\\"', '"')


def test_the_policy_allows_only_the_style_and_script_of_the_page(place: Place) -> None:
    page = render_report([load_contents(str(write_hostile(place)), str(place.root))])
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)[0]
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)[0]
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)[0]
    for kind, text in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src &#39;sha256-{digest}&#39;" in policy
    assert policy.startswith("default-src &#39;none&#39;;")
    assert "unsafe" not in policy
    assert not re.search(r"\beval\(|innerHTML|new Function|document\.write", script)
    assert re.findall(r"https?://[^\"]*", script) == ["http://www.w3.org/2000/svg"]
    parser = Attributes()
    parser.feed(page)
    assert "class" in parser.names
    assert not {name for name in parser.names if name.startswith("on") or name in ("style", "src", "action")}


def test_secrets_are_left_out_of_text_and_data(place: Place) -> None:
    secret = "hunter2&<secret>"
    folder = write_run(place.root, place.recipe, log=LOG)
    digests = digest_texts([secret], load_journal(folder / "journal.jsonl").id)
    reason = f"died with TOKEN={secret}"
    append_events(folder, started(hidden=digests), launched(hosts=["a", secret]), failed("init", reason))
    page = render_report([load_contents(str(folder), str(place.root))])
    assert "hunter2" not in page
    assert "TOKEN=(hidden)" in page


@pytest.mark.parametrize("before", [190, 490, 990, 995])
def test_a_secret_is_left_out_also_where_a_long_text_is_shortened(place: Place, before: int) -> None:
    secret = "hunter2-is-a-long-secret"
    folder = write_run(place.root, place.recipe, log=LOG)
    digests = digest_texts([secret], load_journal(folder / "journal.jsonl").id)
    reason = f"{'x' * before}{secret}{'x' * 1000}"
    append_events(folder, started(hidden=digests), launched(hosts=["a"]), failed("init", reason))
    page = render_report([load_contents(str(folder), str(place.root))])
    assert "hunt" not in page


@pytest.mark.parametrize("before", [235, 480])
def test_a_secret_is_left_out_of_lines_that_are_shortened(place: Place, before: int) -> None:
    secret = "hunter2-is-a-long-secret"
    line = f"{'x' * before}{secret}{'x' * 1000}"
    logged = [
        f"[1] F1120 11:49:35.000000  6374 x.cpp:1] Check failed: {line}",
        f"[1] F1120 11:49:35.000000  6374 io.cpp:66] {line}: No space left on device",
    ]
    folder = write_run(place.root, place.recipe, log="\n".join([LOG, *logged, ""]))
    digests = digest_texts([secret], load_journal(folder / "journal.jsonl").id)
    built: tuple[str, dict[str, object]] = "built", {"lmdbs": ["x" * before, secret, "x" * 1000]}
    append_events(folder, started(hidden=digests), launched(), built, failed("init", "failed"))
    contents = load_contents(str(folder), str(place.root))
    assert contents.explained[0].fatal and contents.explained[0].found
    assert "hunt" not in render_report([contents])


def test_a_page_shows_two_runs_and_what_differs_between_their_recipes(place: Place) -> None:
    first = write_run(place.root, place.recipe, started(), launched(), finished("init"), log=LOG)
    other = place.root / "other.yaml"
    other.write_text(place.recipe.read_text().replace("base_lr: 0.1,", "base_lr: 0.2,"))
    second = write_run(place.root, other, started(), launched(run="small-2"), log=LOG, number=2)
    page = render_report([load_contents(str(folder), str(place.root)) for folder in (first, second)])
    assert re.search(r"phases\[0\]\.base_lr</code></td><td><code>0\.1</code></td><td><code>0\.2</code>", page)
    charts = data_of(page)["charts"]
    assert isinstance(charts, list)
    assert {one["run"] for one in charts[0]["series"]} == {0, 1}


def test_images_per_s_by_host_are_shown_where_there_are_several_hosts(place: Place) -> None:
    pages = []
    for number, hosts in enumerate((["a"], ["a", "b"]), 1):
        events = (started(), launched(hosts=hosts), finished("init"))
        folder = write_run(place.root, place.recipe, *events, log=LOG, number=number)
        pages.append(render_report([load_contents(str(folder), str(place.root))]))
    assert [page.count(">by host<") for page in pages] == [0, 1]
    assert ">617.2<" in pages[1]


def test_more_runs_than_can_be_told_apart_are_refused(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    run = load_contents(str(folder), str(place.root))
    with pytest.raises(InputError, match="shows at most 4 runs, not 5"):
        render_report([run] * 5)


def test_values_that_are_not_finite_are_valid_json(place: Place) -> None:
    log = LOG.replace("loss = 1.25", "loss = nan")
    folder = write_run(place.root, place.recipe, started(), launched(), log=log)
    append_events(folder, failed("init", "loss is nan"))
    charts = data_of(render_report([load_contents(str(folder), str(place.root))]))["charts"]
    assert isinstance(charts, list)
    assert charts[0]["series"][0]["values"] == [2.5, None]
