"""The dashboard in a real Chromium, in front of an EMULATED fleet of 3,072 replicas.

DASHBOARD_SHOTS=FOLDER keeps the screenshots.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.entry.conftest import KEY
from tests.unit.entry.watched import EACH, NODES, TRIPPED, Stand, standing

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("NOT TESTED: no Chromium here (slurm/devcluster/install browser)", allow_module_level=True)
api = pytest.importorskip("playwright.sync_api", reason="NOT TESTED: playwright is not installed (make dev)")

PATIENCE = 60_000  # milliseconds


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with tempfile.TemporaryDirectory(prefix="exahpc-dashboard-") as home, standing(Path(home)) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as found:
        made = found.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


class Page:
    """A tab of its own. troubles: what its scripts threw, and what the policy kept from them; asked: URLs."""

    def __init__(self, browser: Any, stand: Stand, theme: str, width: int = 1440) -> None:
        self.tab = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=theme).new_page()
        self.tab.set_default_timeout(PATIENCE)
        self.troubles: list[str] = []
        self.asked: list[str] = []
        self.tab.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.tab.on("console", self._said)
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.goto(stand.entry.base + "/dashboard")

    def _said(self, line: Any) -> None:
        if line.type == "error":
            self.troubles.append(line.text)

    def enter(self) -> Page:
        self.tab.get_by_label("API key").fill(KEY)
        self.tab.keyboard.press("Enter")
        self.sees("#legend", "ready")
        return self

    def sees(self, where: str, text: str) -> None:
        api.expect(self.tab.locator(where)).to_contain_text(text, timeout=PATIENCE)

    def shoot(self, name: str) -> bytes:
        folder = os.environ.get("DASHBOARD_SHOTS")
        taken: bytes = self.tab.screenshot(path=Path(folder) / name if folder else None, full_page=True)
        return taken

    def spots(self, colour: str) -> list[tuple[int, int]]:
        """Where the upper left part of the map has this colour (#rrggbb), every third pixel."""
        script = """colour => {
            const map = document.getElementById("map"), pen = map.getContext("2d");
            const scale = map.width / map.clientWidth;
            const found = [], wanted = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
            for (let x = 0; x < 120; x += 3) for (let y = 18; y < 140; y += 3) {
                const { data } = pen.getImageData(x * scale, y * scale, 1, 1);
                if (wanted.every((value, at) => data[at] === value)) found.push([x, y]);
            }
            return found;
        }"""
        return [(x, y) for x, y in self.tab.evaluate(script, colour)]

    def colour(self, name: str) -> str:
        script = "name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()"
        return str(self.tab.evaluate(script, name))


@pytest.fixture
def page(request: pytest.FixtureRequest, browser: Any, stand: Stand) -> Iterator[Page]:
    made = Page(browser, stand, getattr(request, "param", "light")).enter()
    yield made
    made.tab.context.close()


def test_the_key_is_asked_for_and_never_part_of_an_address(browser: Any, stand: Stand) -> None:
    page = Page(browser, stand, "light")
    page.tab.get_by_label("API key").fill("sk-wrong-key-0000")
    page.tab.get_by_role("button", name="Open").click()
    page.sees("#door-said", "API key")
    page.enter()
    assert not any("sk-" in url for url in page.asked)
    assert {url.split("/")[2] for url in page.asked} == {stand.entry.base.split("/")[2]}, "nothing from elsewhere"
    page.tab.reload()
    page.sees("#legend", "ready")
    page.tab.get_by_role("button", name="Forget key").click()
    assert page.tab.evaluate("Object.keys(sessionStorage).length + document.cookie.length") == 0
    page.tab.context.close()


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
def test_a_fleet_of_3072_is_drawn_with_what_is_wrong_in_it(page: Page) -> None:
    page.sees("#map-title", f"{NODES * EACH:,} replicas on {NODES} nodes")
    page.sees("#legend", "tripped1")
    page.sees("#alerts", "98 % of the replicas are live")
    page.sees("#batches", "1.6M of 2.4M rows")
    page.sees("#ill", f"gpu/{TRIPPED}")
    page.sees("#emulated", "emulated")
    page.sees("#charts", "p99")
    api.expect(page.tab).to_have_title(re.compile("3002/3072 watched"))
    assert len(page.shoot(f"{page.tab.evaluate('document.documentElement.dataset.theme')}.png")) > 20_000
    assert page.troubles == []


def test_a_square_has_its_replicas_colour_and_tells_its_story(page: Page) -> None:
    found = page.spots(page.colour("--s-tripped"))
    assert 0 < len(found) < 30, "one square"
    assert len(page.spots(page.colour("--s-ready"))) > 300
    page.tab.locator("#map").click(position={"x": found[0][0], "y": found[0][1]})
    page.sees("#detail-title", f"Replica gpu/{TRIPPED}")
    page.sees("#detail-body", "tripped: its answers are 4.1 times as slow")
    page.sees("#detail-body", "ready, incarnation 2")
    assert page.troubles == []


def test_everything_can_be_done_by_keyboard(page: Page) -> None:
    page.tab.locator("#map").focus()
    page.tab.keyboard.press("n")
    page.sees("#cursor", f"gpu/{TRIPPED} on emulated-005")
    page.tab.keyboard.press("ArrowRight")
    page.sees("#cursor", f"gpu/{TRIPPED + EACH} on emulated-006")
    page.tab.keyboard.press("ArrowLeft")
    page.tab.keyboard.press("Enter")
    page.sees("#detail-body", "tripped")
    page.shoot(f"story-{page.tab.evaluate('document.documentElement.dataset.theme')}.png")
    page.tab.keyboard.press("Escape")
    api.expect(page.tab.locator("#detail")).to_be_hidden()
    for key, legend in (("2", "does not serve"), ("3", "not measured"), ("5", "v2")):
        page.tab.keyboard.press(key)
        page.sees("#legend", legend)
    page.tab.keyboard.press("/")
    page.tab.keyboard.type("cmpl-0000000000")
    page.tab.keyboard.press("Enter")
    page.sees("#detail-body", "Nothing is logged of it")
    unnamed = page.tab.evaluate(
        "[...document.querySelectorAll('button, input, canvas')].filter(one => !one.textContent.trim()"
        " && !one.getAttribute('aria-label') && !(one.labels && one.labels.length)).map(one => one.outerHTML)"
    )
    assert unnamed == [], "each control has a name"
    assert page.troubles == []


def test_a_narrow_window_needs_no_sideways_scrolling(browser: Any, stand: Stand) -> None:
    page = Page(browser, stand, "light", width=400).enter()
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= 400
    page.shoot("narrow.png")
    page.tab.context.close()


def test_data_that_looks_like_html_stays_text(page: Page) -> None:
    hostile = "<img src=x onerror=document.title='owned'>"
    script = """async (text) => {
        const panels = await import("/dashboard/panels.js");
        const place = document.createElement("div");
        panels.alerts(place, [{ name: text, state: "firing", seconds: 1, text }]);
        return [place.querySelectorAll("img").length, place.textContent.includes(text)];
    }"""
    assert page.tab.evaluate(script, hostile) == [0, True]
