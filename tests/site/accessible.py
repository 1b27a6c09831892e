"""axe-core in the page that a browser shows."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def violations(browser: Any, *rules: str) -> list[tuple[str, Any, str]]:
    """(rule, element, what is wrong) of every fault against these rules or tags of axe-core."""
    package = importlib.util.find_spec("axe_core_python")
    assert package
    assert package.submodule_search_locations
    (axe,) = Path(package.submodule_search_locations[0]).rglob("axe.min.js")
    browser.execute_script(axe.read_text())
    script = "axe.run(document, {runOnly: arguments[0]}).then(arguments[arguments.length - 1])"
    found = browser.execute_async_script(script, list(rules))["violations"]
    return [(fault["id"], node["target"], node["failureSummary"]) for fault in found for node in fault["nodes"]]
