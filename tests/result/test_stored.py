"""Results that a stranger crafted, checksums and all: every array is looked at before anything is computed from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedkin
from fedkin import data
from fedkin.errors import FedkinError
from fedkin.files import MANIFEST, read_tensors, write_tensors


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    federation, folder = data.load("digits", clients=4, seed=0), tmp_path_factory.mktemp("results")
    for name, graph in (("kin", None), ("dfedu", "knn:1"), ("fedska", None)):
        fedkin.train(federation, "mlp:8", name, graph, rounds=1, out=folder / name)
    return {path.name: path for path in folder.iterdir()}


Craft = Callable[[Tensor], Tensor]
CRAFTED: list[tuple[str, str, Craft]] = [
    ("kin", "extra/kin_peers", lambda v: v + 4),
    ("kin", "extra/kin_peers", lambda v: v - 9),
    ("kin", "extra/kin_peers", lambda v: v.double()),
    ("kin", "extra/kin_peers", lambda v: v[:1]),
    ("kin", "extra/kin_weights", lambda v: v[:, :1]),
    ("kin", "extra/kin_weights", lambda v: v * torch.nan),
    ("kin", "extra/kin", lambda v: torch.ones((4, 3))),
    ("kin", "extra/roc", lambda v: v[:, :0]),
    ("kin", "extra/calibration", lambda v: v[:, :, :9]),
    ("kin", "extra/blend_weights", lambda v: torch.ones((4, 3))),
    ("kin", "influence", lambda v: torch.ones((4, 2), dtype=torch.float64)),
    ("kin", "influence", lambda v: torch.ones((4, 4, 4))),
    ("kin", "label_counts", lambda v: torch.ones((4, 2), dtype=torch.int64)),
    ("kin", "sizes", lambda v: -torch.ones(4, dtype=torch.int64)),
    ("kin", "sizes", lambda v: torch.ones((4, 4), dtype=torch.int64)),
    ("kin", "counters", lambda v: torch.zeros((4, 7), dtype=torch.int64)),
    ("kin", "models", lambda v: torch.ones((4, 3))),
    ("kin", "rows", lambda v: torch.ones(4)),
    ("dfedu", "extra/edge_traffic", lambda v: v[:-1]),
    ("dfedu", "extra/edge_traffic", lambda v: v.repeat(1, 2)),
    ("fedska", "extra/learned_graphs", lambda v: v[:, :, :2]),
    ("fedska", "extra/learned_graphs", lambda v: v[:0]),
    ("fedska", "extra/learned_rounds", lambda v: v.float()),
]


def crafted(result: Path, out: Path, name: str, craft: Craft) -> Path:
    """The result with another array; its checksums fit, and there is no manifest to tell."""
    shutil.copytree(result, out)
    tensors, facts = read_tensors(out / "result.safetensors")
    new = craft(tensors.get(name, torch.zeros(0))).clone().contiguous()
    write_tensors(out / "result.safetensors", {**tensors, name: new}, facts)
    (out / MANIFEST).unlink()
    return out


@pytest.mark.parametrize(("method", "name", "craft"), CRAFTED)
def test_a_crafted_array_is_refused_in_one_line(
    method: str, name: str, craft: Craft, results: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(FedkinError) as told:
        fedkin.load(crafted(results[method], tmp_path / "run", name, craft))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("method", ["kin", "dfedu", "fedska"])
def test_what_fedkin_wrote_is_read(method: str, results: dict[str, Path], tmp_path: Path) -> None:
    result = fedkin.load(crafted(results[method], tmp_path / "run", "sizes", lambda v: v))
    assert result.influence is None or result.influence.shape == (4, 4)
    assert (result.kin is not None) == (method == "kin")
    assert len(result.table()) == len(result.models) == 4
