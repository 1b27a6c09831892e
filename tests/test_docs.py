"""The ```python blocks of README.md and docs/*.md run, page by page, each page from top to bottom in one namespace.

A block that cannot run here (it needs a cluster, say) follows a line `<!-- not executed: reason -->`.
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if page.exists()]
BLOCK = re.compile(r"^(<!-- not executed: .+ -->\n)?```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IMAGE = re.compile(r"!\[[^]]*\]\((?!https?:)([^)]+)\)")


def blocks(page: Path) -> list[tuple[int, str]]:
    """Line number and text of every block to run."""
    text = page.read_text()
    return [(text.count("\n", 0, found.start(2)), found[2]) for found in BLOCK.finditer(text) if not found[1]]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to run in, with the files that pages speak of."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [f"{'north' if i % 2 else 'south'},{rng.normal():.3f},{rng.normal():.3f},{i % 3 % 2}" for i in range(60)]
    (tmp_path / "patients.csv").write_text("\n".join(["hospital,age,pressure,outcome", *rows]) + "\n")


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_code_on_the_page_runs(page: Path) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    with matplotlib.rc_context({"backend": "agg"}):
        for line, block in blocks(page):
            # Leading newlines make tracebacks point at the line of the page.
            exec(compile("\n" * line + block, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pictures_are_small(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in IMAGE.findall(text):
        assert (page.parent / target).stat().st_size <= 100_000, f"{target} is larger than 100 KB"
