"""The first convolution client by client, as it is taken on processors without AVX-512: the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedkin.federation import Federation
from fedkin.local.kernels import grouped
from fedkin.local.oracle import train_by_loop
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.training import train_rows
from fedkin.models import ModelSpec
from fedkin.streams import Streams


@pytest.mark.parametrize("bias", [True, False])
def test_training_agrees_with_the_plain_loop(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def network() -> nn.Module:
        first = nn.Conv2d(3, 6, 5, stride=2, padding=1, bias=bias)
        return nn.Sequential(first, nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 4))

    rng = np.random.default_rng(0)
    data = {f"c{k}": (rng.normal(size=(20 + k, 3, 16, 16)), rng.integers(0, 4, 20 + k)) for k in range(5)}
    federation = Federation.from_arrays(data, classes=[0, 1, 2, 3], test_fraction=0)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    shard = Shard(federation, ModelSpec.of(network, federation.task, torch.float64), Streams(0), workers=1)
    with shard.kernel() as kernel:
        assert isinstance(kernel, grouped.GroupedKernel)
        assert kernel.first_alone
    start, settings = shard.spec.initial_row(shard.streams).expand(5, -1), Sgd(lr=0.1, epochs=2, batch_size=8)
    rows, _ = train_rows(shard, np.arange(5), start, settings, round=1)
    due = train_by_loop(shard, np.arange(5), start, settings, round=1)
    torch.testing.assert_close(rows, due, rtol=0, atol=1e-10)


def test_only_three_channels_without_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert grouped.first_alone(nn.Conv2d(3, 6, 5))
    assert not grouped.first_alone(nn.Conv2d(1, 6, 5))
    assert not grouped.first_alone(nn.Linear(3, 6))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert not grouped.first_alone(nn.Conv2d(3, 6, 5))
