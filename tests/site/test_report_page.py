"""The report in a real browser, as people with other eyes and hands meet it: axe-core finds no fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accessible import violations
from test_site import show

import fedkin
from fedkin import data

pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with a graph, an auto and a Local, from the command's own parts."""
    out = tmp_path_factory.mktemp("report")
    federation = data.load("digits", clients=5, partition="dirichlet:0.4", seed=0)
    how = {"graph": "knn:2", "rounds": 3}
    found = fedkin.compare(federation, "mlp:8", ["local", "fedpnp", "auto"], seeds=(0,), out=out, **how)
    found.report(out / "report.html")
    return out / "report.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_fault_by_axe(browser: Any, page: Path, dark: bool) -> None:
    show(browser, page.as_uri(), dark=dark)
    browser.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert violations(browser, "wcag2a", "wcag2aa", "wcag21a", "wcag21aa") == []


def test_what_is_for_specialists_is_behind_a_door(browser: Any, page: Path) -> None:
    show(browser, page.as_uri())
    seen = "return document.querySelector('#spectrum-plot svg').checkVisibility({contentVisibilityAuto: true})"
    assert not browser.execute_script(seen)
    browser.execute_script("document.querySelector('#specialists summary').click()")
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert browser.execute_script(seen)
    assert browser.execute_script("return document.querySelector('#spectrum-plot svg').viewBox.baseVal.width") > 300
