from __future__ import annotations

import pytest

from fedkin.data.progress import bar, working


def test_progress_is_shown_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def both() -> str:
        with bar("toy.bin", 100) as advance:
            advance(50)
        with working("reading toy"):
            pass
        return capsys.readouterr().err

    assert both() == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert "toy.bin" in both()
