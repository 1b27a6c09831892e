"""fedkin data prepare: files from a folder, once, and every later command finds them in the cache."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedkin.cli import app


def test_prepare_reads_a_folder_into_the_cache(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDKIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDKIN_DATA", raising=False)
    done = CliRunner().invoke(app, ["data", "prepare", "har", "--from", str(real_data)])
    assert done.exit_code == 0, done.output
    told = CliRunner().invoke(app, ["data", "info", "har"])
    assert "in the cache" in told.output


def test_prepare_from_a_folder_without_the_files_says_what_is_missing(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["data", "prepare", "svhn", "--from", str(tmp_path)])
    assert done.exit_code != 0


def test_info_draws_who_holds_what(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "digits.svg"
    done = CliRunner().invoke(app, ["data", "info", "digits", "--clients", "4", "--plot", str(picture)])
    assert done.exit_code == 0, done.output
    assert f"wrote {picture}" in done.output.replace("\n", "")
    assert "training samples" in picture.read_text()
