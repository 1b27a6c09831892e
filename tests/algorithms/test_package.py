"""The package of methods: what is found there, and what is not taken for a method."""

from pathlib import Path

import pytest

from fedkin import algorithms


def test_a_file_with_an_underscore_is_no_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_shared_parts.py").write_text("")
    (tmp_path / "mymethod.py").write_text("")
    before = algorithms.names()
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    assert set(algorithms.names()) - set(before) == {"mymethod"}
