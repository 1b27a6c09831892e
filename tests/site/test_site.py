"""The built documentation site in a real, headless Chromium, served on loopback: `make docs` builds it and runs this."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from accessible import violations

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"
PAGES = ["index", "tutorials/1-hospitals", "how-to", "reference/python", "reference/commands", "auto", "fedpnp"]

pytestmark = pytest.mark.site


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Requests are no news."""


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    """The address of the site."""
    assert (SITE / "index.html").exists(), "the site is not built; run: make docs"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def show(browser: Any, address: str, width: int = 1400, dark: bool = False) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get_log("browser")
    browser.get(address)


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_sound(browser: Any, home: str, page: str) -> None:
    """No error in the console, and nothing wider than a telephone."""
    show(browser, f"{home}/{page}.html", width=400)
    faults = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not faults
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_contrast(browser: Any, home: str, page: str, dark: bool) -> None:
    show(browser, f"{home}/{page}.html", dark=dark)
    assert violations(browser, "color-contrast") == []


def test_search_finds_a_method(browser: Any, home: str) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    show(browser, f"{home}/search.html?q=FedPnP")
    found = WebDriverWait(browser, 20).until(lambda b: b.find_elements(By.CSS_SELECTOR, "#search-results li a"))
    assert any("fedpnp" in link.get_attribute("href").lower() for link in found)


def test_nothing_is_fetched_from_elsewhere() -> None:
    """Scripts, styles and pictures are the site's own: it can be read without a network."""
    for page in SITE.rglob("*.html"):
        outside = re.findall(
            r"<(?:script|img|link rel=\"stylesheet\")[^>]+(?:src|href)=\"(https?://[^\"]+)\"", page.read_text()
        )
        assert not outside, page
