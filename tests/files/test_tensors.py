"""Tensors on disk are plain safetensors, read lazily; histories grow by appending; JSON holds a million values quickly."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedkin import files
from fedkin.errors import FedkinError
from fedkin.result.history import History

TENSORS = {
    "rows": torch.arange(12, dtype=torch.float32).view(4, 3),
    "flag": torch.tensor([True, False, True]),
    "one": torch.tensor(3, dtype=torch.int64),
    "none": torch.zeros((5, 0)),
    "double": torch.linspace(0, 1, 7, dtype=torch.float64),
    "byte": torch.tensor([1, 2, 3], dtype=torch.uint8),
}


def test_files_are_safetensors_whatever_the_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkin.files.tensors.PIECE", 8)
    path, pieces = tmp_path / "a.safetensors", []
    files.write_tensors(path, TENSORS, {"round": 3}, after_piece=lambda: pieces.append(1))
    assert len(pieces) > 10
    ours, facts = files.read_tensors(path)
    theirs = load_file(path)
    assert facts == {"round": 3}
    assert set(ours) == set(theirs) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert torch.equal(theirs[name], tensor)
        assert torch.equal(ours[name], tensor)
        assert ours[name].dtype == theirs[name].dtype == tensor.dtype


@pytest.mark.parametrize("shape", [(1,), (1, 1), (3,), (2, 1), (1, 4)])
def test_tensors_with_any_strides(shape: tuple[int, ...], tmp_path: Path) -> None:
    """A scalar seen as one row has stride 0, and so have its clones."""
    seen = torch.tensor(0.5, dtype=torch.float64).expand(shape)
    given = {"view": seen, "clone": seen.clone(), "across": torch.rand(4, 3).T[:2]}
    files.write_tensors(tmp_path / "state.safetensors", given, {})
    found, _ = files.read_tensors(tmp_path / "state.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in given.items())


def test_what_was_read_can_be_written_to_without_touching_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    files.write_tensors(path, TENSORS, {})
    tensors, _ = files.read_tensors(path)
    tensors["rows"].fill_(-1)
    assert torch.equal(files.read_tensors(path)[0]["rows"], TENSORS["rows"])


def test_damage_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    files.write_tensors(path, TENSORS, {})
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\xff")
    with pytest.raises(FedkinError, match=r"^\S+ is damaged"):
        files.read_tensors(path)
    path.write_bytes(b"")
    with pytest.raises(FedkinError, match="cannot be read"):
        files.read_tensors(path)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([1.0, float("nan"), float("-inf")], [1.0, None, None]),
        (("a", "b"), ["a", "b"]),
        ([1, True, "a"], [1, True, "a"]),
        ([1, 2.5, None], [1, 2.5, None]),
        ([np.float32(0.5), float("inf")], [0.5, None]),
        (torch.tensor([[1.0, float("nan")]]), [[1.0, None]]),
        ([], []),
    ],
)
def test_plain_values(value: object, told: object) -> None:
    assert files.plain(value) == told
    json.dumps(files.plain(value), allow_nan=False)


def record(number: int) -> dict[str, object]:
    return {"round": number, "log": {}, "pre": {"test_loss": [number / 3, float("nan")]}}


def test_history_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(["a", "b"], [record(1)])
    history.save(path)
    first = path.stat().st_ino
    history.records.append(record(2))
    history.save(path)
    history.save(path)
    assert path.stat().st_ino == first  # the same file, not a new one in its place
    assert [r["round"] for r in History.load(path, ["a", "b"])] == [1, 2]
    assert History.load(path, ["a", "b"])[1]["pre"]["test_loss"] == [2 / 3, None]


def test_history_that_someone_else_changed_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(["a", "b"], [record(1)])
    history.save(path)
    path.write_text(path.read_text() + '{"round": 9')
    assert [r["round"] for r in History.load(path, ["a", "b"])] == [1]  # half a line is none
    history.records.append(record(2))
    history.save(path)
    assert [r["round"] for r in History.load(path, ["a", "b"])] == [1, 2]
