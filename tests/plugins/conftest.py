"""The example package, installed for real into a folder of its own, and the command line with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
Fedkin = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed example, built from a copy so that the source tree stays clean."""
    source, target = tmp_path_factory.mktemp("source") / "plugin", tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, source)
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True, capture_output=True, text=True)
    return target


@pytest.fixture
def fedkin(tmp_path: Path) -> Fedkin:
    """Call the command line, or Python code, in a new process that also sees the folder `on`."""

    def call(
        *words: str, on: Path, code: str = "from fedkin.cli import main; main()"
    ) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(on), *sys.path])
        environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
        return subprocess.run(
            [sys.executable, "-c", code, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    return call
