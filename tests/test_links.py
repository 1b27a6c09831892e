"""Links between pages lead somewhere: files exist, and headings that are linked to are on their page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    path
    for pattern in ("*.md", ".github/**/*.md", "docs/*.md", "docs/tutorials/*.md", "docs/tutorials/*.ipynb", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)  # fmt: skip
LINK = re.compile(r"!?\[[^]]*\]\(<?(?!\w+:)([^)>\s]+)|<(?:img|a)\s[^>]*(?:src|href)=\"(?!\w+:)([^\"]+)\"")


def prose(page: Path) -> str:
    """The page without its code."""
    text = page.read_text()
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return re.sub(r"^( *)(```+).*?^\1\2$|`[^`\n]+`(?!\])", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Names of headings as GitHub and MyST make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#{1,6} (.+?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    found = []
    for link in (one or other for one, other in LINK.findall(prose(page))):
        path, _, anchor = link.partition("#")
        # docs/reference/ is written while the site is built, which stops at a link that leads nowhere.
        if (page.parent / path).is_relative_to(DOCS / "reference"):
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


SOURCES = sorted(
    path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")
)
NAMED = re.compile(r"`((?:[\w-]+/)+[\w-]+\.py)`")
MODULE = re.compile(r"`(fedkin(?:\.\w+)+)`")


def test_files_and_modules_that_are_named_are_there() -> None:
    """`run/loop.py`, from the top, from src/fedkin or from beside the page; `fedkin.run`, and what is in it."""
    lost = []
    for page in [*PAGES, *SOURCES]:
        if page.name != "CHANGELOG.md":  # it tells what was
            places, text = (ROOT, ROOT / "src", ROOT / "src" / "fedkin", page.parent), page.read_text()
            named = [name for name in NAMED.findall(text) if not any((place / name).exists() for place in places)]
            named += [name for name in MODULE.findall(text) if not is_there(name)]
            lost += [(page.relative_to(ROOT).as_posix(), name) for name in named]
    assert lost == []


def is_there(name: str) -> bool:
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One, two\n[a](#one-two) [b](#three) [`c`](gone.md) ![d](gone.png) [e](page.md#no) [f](https://x.y)\n"
    )
    assert broken(page) == ["#three", "gone.md", "gone.png", "page.md#no"]
