"""What the processor says of its caches decides how many clients are worked on at once, and no number of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedkin.compute import processor
from fedkin.federation import Federation
from fedkin.local.kernels import linear
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.training import train_rows
from fedkin.models import ModelSpec
from fedkin.streams import Streams


def test_the_largest_cache_is_shared_among_its_cores(tmp_path: Path) -> None:
    for index, size, cores in ((0, "32K", "0"), (2, "1024K", "0"), (3, "32768K", "0-5,12,13")):
        (folder := tmp_path / f"index{index}").mkdir()
        (folder / "size").write_text(f"{size}\n")
        (folder / "shared_cpu_list").write_text(f"{cores}\n")
    assert processor.cache_per_core(tmp_path) == 4 * 2**20


def test_where_the_system_does_not_tell_a_usual_size_is_taken(tmp_path: Path) -> None:
    assert processor.cache_per_core(tmp_path) == processor.USUAL


@pytest.mark.parametrize("model", ["mlr", "mlp:40"])
def test_another_cache_gives_the_same_numbers(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    data = {f"c{k}": (rng.normal(size=(30 + k, 200)).astype(np.float32), rng.integers(0, 3, 30 + k)) for k in range(12)}
    federation = Federation.from_arrays(data, classes=[0, 1, 2], test_fraction=0)

    def trained(cache: int) -> tuple[int, torch.Tensor]:
        monkeypatch.setattr(linear, "cache_per_core", lambda: cache)
        shard = Shard(federation, ModelSpec.of(model, federation.task), Streams(0), workers=1)
        with shard.kernel() as kernel:
            chunk = kernel.chunk
        start = shard.spec.initial_row(shard.streams).expand(len(shard), -1)
        return chunk, train_rows(shard, np.arange(12), start, Sgd(lr=0.1), round=1)[0]

    (few, small), (many, large) = trained(2**10), trained(2**30)
    assert few < many
    assert torch.equal(small, large)
