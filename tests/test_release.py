"""A release says one version and one date everywhere; `fedkin.__version__` is what was installed."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import fedkin

ROOT = Path(__file__).parents[1]


def test_changelog_citation_and_fallback_name_the_same_release() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    first, *releases = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", changelog, re.MULTILINE)
    assert first == ("Unreleased", "")
    assert all(date for _, date in releases)
    citation = dict(re.findall(r"^(version|date-released): (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    assert (citation["version"], citation["date-released"]) == releases[0]
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    assert hatch["version"]["fallback-version"] == releases[0][0]


def test_the_version_is_the_installed_one() -> None:
    assert fedkin.__version__ == importlib.metadata.version("fedkin")


def test_source_that_is_not_installed_says_so() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); import fedkin; print(fedkin.__version__)"
    # -S: no site-packages, hence no installation to be found.
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "0+unknown\n"
