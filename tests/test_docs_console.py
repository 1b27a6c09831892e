"""The ```console blocks of pages that walk through something run as written, one after the other."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from fedkin.cli import app

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands_of(page: str) -> list[str]:
    lines = "".join(BLOCK.findall((DOCS / page).read_text())).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ fedkin ") for line in lines if line.startswith("$ fedkin ")]


BLOCKS = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def walks() -> list[tuple[str, str]]:
    """The chapters of docs/walks.md: title and text."""
    parts = re.split(r"^## (.*)$", (DOCS / "walks.md").read_text(), flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2]))


@pytest.mark.real_data
@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize(("title", "text"), walks(), ids=[title for title, _ in walks()])
def test_a_walk_from_file_to_decision(title: str, text: str) -> None:
    """Python and commands of a chapter, in order, on the real files."""
    namespace: dict[str, object] = {"__name__": "__main__", "os": os, "Path": Path, "pd": pd}
    said = []
    for language, block in BLOCKS.findall(text):
        if language == "python":
            exec(compile(block, f"walks.md: {title}", "exec"), namespace)
            continue
        for line in block.splitlines():
            done = CliRunner().invoke(app, shlex.split(line.removeprefix("$ fedkin ")))
            assert done.exit_code == 0, f"{line}: {done.output}"
            said.append(" ".join(done.output.split()))
    for quoted in re.findall(r"^> (.*)$", text, re.MULTILINE):
        assert any(quoted in output for output in said), quoted
    assert list(Path().glob("*.html"))


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
