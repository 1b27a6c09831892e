"""The page in a real, headless Chromium: no error, no request, and everything that moves does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedkin.reports.page import write_report


@pytest.fixture(scope="module")
def page(runs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(runs, tmp_path_factory.mktemp("page") / "report.html")


def show(browser: Any, page: Path, width: int = 1400, dark: bool = False) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(page.as_uri())


def requests(browser: Any) -> list[str]:
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith("chrome://")]  # the browser's own page, on a slow start


def press(browser: Any, css: str) -> Any:
    from selenium.webdriver.common.by import By

    element = browser.find_element(By.CSS_SELECTOR, css)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    element.click()
    return element


def text(browser: Any, css: str) -> str:
    return str(browser.execute_script("return document.querySelector(arguments[0]).textContent", css))


def test_loads_without_error_or_request(browser, page):
    show(browser, page)
    assert [url for url in requests(browser) if not url.startswith("data:")] == [page.as_uri()]
    press(browser, "#theme")
    press(browser, "#curves-controls button[data-value='pre']")
    press(browser, "#influence-controls button[data-value='given']")
    assert browser.get_log("browser") == []
    assert [url for url in requests(browser) if not url.startswith(("file:", "data:"))] == []


def test_hostile_name_is_text(browser, page, runs):
    show(browser, page)
    assert browser.execute_script("return document.querySelectorAll('script').length") == 2
    names = browser.execute_script("return page.units.names")
    assert names == list(runs[0].names)
    browser.execute_script("document.querySelector('#network-controls label:last-child select').value = '7'")
    browser.execute_script(
        "document.querySelector('#network-controls label:last-child select').dispatchEvent(new Event('change'))"
    )
    assert text(browser, "#client-card h3") == runs[0].names[-1]


def test_sorting_by_button_and_keyboard(browser, page):
    from selenium.webdriver.common.keys import Keys

    show(browser, page)

    def column():
        cells = "return [...document.querySelectorAll('#table tbody td[data-key=worst5]')].map(c => Number(c.dataset.value))"
        return browser.execute_script(cells)

    press(browser, "#table th[data-key=worst5] button")
    assert column() == sorted(column(), reverse=True)
    button = browser.switch_to.active_element
    button.send_keys(Keys.ENTER)
    assert column() == sorted(column())
    assert browser.execute_script("return document.querySelector('th[data-key=worst5]').ariaSort") == "ascending"
    assert "ascending" in text(browser, "#sorted")


def test_hovering_and_walking_the_graph(browser, page, runs):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    show(browser, page)
    canvas = browser.find_element(By.ID, "network-canvas")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", canvas)
    assert "Point at" in text(browser, "#client-card")
    for k in (0, 3):
        x, y = browser.execute_script("return arguments[0].locate(arguments[1])", canvas, k)
        frame = canvas.size
        ActionChains(browser, duration=0).move_to_element_with_offset(
            canvas, round(x - frame["width"] / 2), round(y - frame["height"] / 2)
        ).perform()
        assert text(browser, "#client-card h3") == runs[0].names[k]
        assert f"{runs[0].sizes[k]} training samples" in text(browser, "#client-card")
        neighbours = len(runs[4].graph.neighbours(runs[0].names[k]))
        assert f"Neighbours ({neighbours})" in text(browser, "#client-card")
    canvas.click()
    zoom = "return document.getElementById('network-canvas').view.zoom"
    canvas.send_keys("+")
    assert browser.execute_script(zoom) > 1
    canvas.send_keys("0")
    assert browser.execute_script(zoom) == 1
    canvas.send_keys(Keys.ESCAPE, Keys.ARROW_LEFT)
    before = text(browser, "#client-card h3")
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert text(browser, "#client-card h3") != before
    ActionChains(browser, duration=0).click_and_hold(canvas).move_by_offset(40, 25).release().perform()
    assert browser.execute_script("return Math.round(document.getElementById('network-canvas').view.x)") == 40


def choose(browser: Any, css: str, value: str) -> None:
    script = "const list = document.querySelector(arguments[0]); list.value = arguments[1]; list.dispatchEvent(new Event('change'))"
    browser.execute_script(script, css, value)


def test_a_client_is_picked_out_of_the_curves(browser, page, runs):
    show(browser, page)
    lines = "return [document.querySelectorAll('#roc-plot .client').length, document.querySelectorAll('#roc-plot .chosen').length]"
    drawn, chosen = browser.execute_script(lines)
    assert drawn == int((runs[4].extras["roc"][:, -1] >= 0).sum())
    assert chosen == 0
    choose(browser, "#calibration-controls select[aria-label=Client]", "2")
    assert browser.execute_script(lines)[1] == 1
    assert text(browser, "#roc-readout").startswith(f"{runs[0].names[2]}: AUROC")
    assert text(browser, "#calibration-readout").startswith(runs[0].names[2])


def test_toggles_change_the_pictures(browser, page):
    show(browser, page)
    curves = "return document.querySelector('#curves-plot svg').outerHTML"
    after = browser.execute_script(curves)
    bands = "return document.querySelectorAll('#curves-plot .band').length"
    assert browser.execute_script(bands) == 1, "the bands of three methods would merge into one block"
    choose(browser, "#curves-controls select[aria-label=of]", "all")
    assert browser.execute_script(bands) == 3
    choose(browser, "#curves-controls select[aria-label=of]", "1")
    press(
        browser,
        "#curves-controls button[aria-pressed=false][data-value=pre], #curves-controls button[aria-pressed=false][data-value=post]",
    )
    assert browser.execute_script(curves) != after
    press(browser, "#curves-legend button")
    assert browser.execute_script("return document.querySelectorAll('#curves-plot .line').length") == 2
    heat = "return document.getElementById('influence-canvas').toDataURL()"
    given = browser.execute_script(heat)
    press(browser, "#influence-controls button[data-value=given]")
    assert browser.execute_script(heat) != given
    network = "return document.getElementById('network-canvas').toDataURL()"
    seen = set()
    for colour in ("gain", "metric", "cluster", "labels"):
        press(browser, f"#network-controls button[data-value={colour}]")
        seen.add(browser.execute_script(network))
    assert len(seen) == 4


def test_theme_follows_the_system_and_the_switch(browser, page):
    paper = "return getComputedStyle(document.body).backgroundColor"
    show(browser, page, dark=True)
    dark = browser.execute_script(paper)
    show(browser, page)
    light = browser.execute_script(paper)
    assert light != dark
    button = press(browser, "#theme")
    assert browser.execute_script(paper) == dark
    assert button.get_attribute("aria-pressed") == "true"


OVERLAPS = """
const boxes = [...document.querySelectorAll('main > section, main > .two > section, #specialists section, #specialists > summary, header, .tile, .controls > *, h2, .legend > *, .plot svg text, .card, .zoom, .ramp')]
  .filter(e => e.getClientRects().length).map(e => [e, e.getBoundingClientRect()]);
const found = [];
for (const [a, r] of boxes) {
  if (r.left < -1 || r.right > innerWidth + 1) found.push(['outside', a.outerHTML.slice(0, 80)]);
  for (const [b, s] of boxes) {
    if (a === b || a.contains(b) || b.contains(a) || a.compareDocumentPosition(b) & 2) continue;
    const wide = Math.min(r.right, s.right) - Math.max(r.left, s.left), high = Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top);
    if (wide > 2 && high > 2) found.push([a.outerHTML.slice(0, 90), b.outerHTML.slice(0, 90)]);
  }
}
return found;
"""


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_overlaps_or_sticks_out(browser, page, width):
    show(browser, page, width)
    browser.execute_script("document.querySelector('#specialists').open = true")
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert (
        browser.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        <= 0
    )
    assert browser.execute_script(OVERLAPS) == []


def test_prints(browser, page):
    import base64

    show(browser, page, dark=True)
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert pdf.startswith(b"%PDF")
    show(browser, page, width=720)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    table = "const t = document.getElementById('table'); return t.offsetWidth - t.parentElement.clientWidth"
    assert browser.execute_script(table) <= 0
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert browser.get_log("browser") == []


def test_every_control_has_a_name_and_can_be_reached(browser, page):
    show(browser, page)
    nameless = """return [...document.querySelectorAll('button, select, canvas')].filter(e =>
      e.tabIndex < 0 || !(e.ariaLabel || e.textContent.trim() || e.closest('label'))).map(e => e.outerHTML)"""
    assert browser.execute_script(nameless) == []
