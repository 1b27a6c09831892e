from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no folder of data or mirror named by the environment."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDKIN_CACHE", str(folder))
    monkeypatch.delenv("FEDKIN_DATA", raising=False)
    monkeypatch.delenv("FEDKIN_MIRROR", raising=False)
    return folder
