"""Fixtures for all tests: a cache of their own, and the folder of real data sets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests never touch the user's cache of data sets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDKIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def real_data() -> Path:
    """The folder with the real data sets; tests that use it are skipped where there is none."""
    folder = os.environ.get("FEDKIN_DATA")
    if not folder:
        pytest.skip("set FEDKIN_DATA to a folder with the real data sets to run this test")
    return Path(folder)
