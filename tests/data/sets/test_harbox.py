from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.data import registry
from fedkin.data.registry import DataSet
from fedkin.data.sets import harbox
from fedkin.data.source import File, Source
from fedkin.errors import FedkinError


def table(windows: np.ndarray, start: float = 0.0) -> str:
    """Windows (n, 900) as upstream writes them: 100 lines per window, a time stamp and nine readings each."""
    lines = windows.reshape(-1, 9)
    return "\n".join(f"{start + i} " + " ".join(f"{v:.6f}" for v in line) for i, line in enumerate(lines))


def write(path: Path, rng: np.random.Generator) -> dict[tuple[int, str], np.ndarray]:
    content = {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for user in (1, 2, 10):
            for activity in harbox.ACTIVITY_OF_FILE if user != 2 else ("Walk", "typing"):
                content[user, activity] = rng.normal(size=(8, 900))
                name = f"large_scale_HARBox/{user}/{activity}_train.txt"
                archive.writestr(name, table(content[user, activity]))
        archive.writestr("__MACOSX/large_scale_HARBox/1/._Walk_train.txt", "x")
        archive.writestr("large_scale_HARBox/data_pre.py", "print()")
    return content


def test_folders_of_users_become_clients(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = write(tmp_path / "large_scale_HARBox.zip", np.random.default_rng(0))
    arrays = harbox.read_upstream({"a": tmp_path / "large_scale_HARBox.zip"})
    assert sorted(set(arrays["user"].tolist())) == [1, 2, 10]
    for (user, activity), windows in content.items():
        rows = (arrays["user"] == user) & (arrays["y"] == list(harbox.ACTIVITY_OF_FILE).index(activity))
        assert np.allclose(arrays["x"][rows], windows, atol=1e-5)
    source = Source("upstream", (File("large_scale_HARBox.zip"),), harbox.read_upstream)
    monkeypatch.setitem(registry._sets(), "small", DataSet("small", "", "", "", "", harbox.harbox, (source,), "users"))
    federation = fedkin.data.load("small", directory=tmp_path)
    assert federation.names == ("user-001", "user-002", "user-010")
    assert federation.task.input_shape == (900,)
    assert federation.task.classes[4] == "waving"


def test_incomplete_windows_are_refused() -> None:
    with pytest.raises(FedkinError, match="no whole windows"):
        harbox.parse_windows(table(np.zeros((2, 900)))[:-400].encode().rsplit(b"\n", 1)[0], "1/Walk_train.txt")
    with pytest.raises(FedkinError, match="not a table of numbers"):
        harbox.parse_windows(b"a b c\nd e f", "1/Walk_train.txt")


def test_an_archive_without_users_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    with pytest.raises(FedkinError, match="holds no files"):
        harbox.read_upstream({"a": tmp_path / "a.zip"})
