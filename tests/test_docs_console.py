"""The ```console blocks of pages that walk through something run as written, one after the other."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedkin.cli import app

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands_of(page: str) -> list[str]:
    lines = "".join(BLOCK.findall((DOCS / page).read_text())).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ fedkin ") for line in lines if line.startswith("$ fedkin ")]


def run_all(page: str) -> None:
    assert commands_of(page)
    for command in commands_of(page):
        done = CliRunner().invoke(app, shlex.split(command))
        assert done.exit_code == 0, f"{command}: {done.output}"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_tuning() -> None:
    run_all("tuning.md")
    (text,) = re.findall(r"^```toml\n(.*?)^```$", (DOCS / "tuning.md").read_text(), re.MULTILINE | re.DOTALL)
    Path("sweep.toml").write_text(text)
    done = CliRunner().invoke(app, "tune sweep.toml --trials 3 --rounds 2")
    assert done.exit_code == 0, done.output


def test_first_steps() -> None:
    run_all("first-steps.md")
    (text,) = re.findall(r"^```toml\n(.*?)^```$", (DOCS / "first-steps.md").read_text(), re.MULTILINE | re.DOTALL)
    Path("experiment.toml").write_text(text)
    rows = [f"hospital-{i % 3},{i % 7},{i % 5},{'ill' if i % 7 > 3 else 'well'}" for i in range(90)]
    Path("visits.csv").write_text("\n".join(["hospital,age,pressure,outcome", *rows]) + "\n")
    done = CliRunner().invoke(app, "compare experiment.toml --seeds 1 --rounds 2")
    assert done.exit_code == 0, done.output
