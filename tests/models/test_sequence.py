"""Recurrent networks: sizes, splits, and a decoder that never sees the target."""

from __future__ import annotations

import pytest
import torch

import fedkin
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.local.kernels import choose_kernel
from fedkin.models import Layout, ModelSpec, build_network
from fedkin.task import Task

SERIES = Task("regression", (12,), output_shape=(12,))
TEXT = Task("classification", (80,), classes=tuple(range(100)), tokens=True)


def test_sizes_counted_by_hand() -> None:
    # A GRU layer has 3 gates of (inputs + hidden) weights and two biases; an LSTM layer 4.
    layer1, layer2 = 3 * 64 * (1 + 64) + 6 * 64, 3 * 64 * (64 + 64) + 6 * 64
    assert Layout.of(build_network("gru-forecaster", SERIES)).n_parameters == 2 * (layer1 + layer2) + 64 + 1
    lstm = 4 * 256 * (8 + 256) + 8 * 256
    assert Layout.of(build_network("lstm-text", TEXT)).n_parameters == 100 * 8 + lstm + 256 * 100 + 100


@pytest.mark.parametrize(("model", "kernel"), [("gru-forecaster:8,2", "vmap"), ("lstm-text:8,2", "loop")])
def test_they_are_split_and_trained_by_their_kernel(model: str, kernel: str) -> None:
    task = SERIES if model.startswith("gru") else TEXT
    net = build_network(model, task).eval()
    x = torch.randint(0, 100, (3, 80)) if task.tokens else torch.randn(3, 12)
    assert torch.equal(net(x), net.classifier(net.features(x)))
    assert net(x).reshape(3, -1).shape == (3, task.outputs)
    assert choose_kernel(ModelSpec.of(model, task), task).name == kernel


def test_the_decoder_feeds_on_its_own_predictions() -> None:
    net = build_network("gru-forecaster:8,2", SERIES).eval()
    state = net.features(torch.randn(2, 12))
    decoder = net.classifier
    whole = decoder(state)
    hidden, value, steps = state.reshape(2, 2, 8).transpose(0, 1).contiguous(), torch.zeros(2, 1, 1), []
    for _ in range(12):
        seen, hidden = decoder.gru(value, hidden)
        value = decoder.readout(seen)
        steps.append(value)
    assert torch.allclose(whole, torch.cat(steps, dim=1))
    slope = torch.autograd.grad(whole[:, 11].sum(), decoder.readout.weight)[0]
    alone = torch.autograd.grad(decoder.readout(seen.detach()).sum(), decoder.readout.weight)[0]
    assert not torch.allclose(slope, alone), "later steps do not depend on earlier predictions"


def test_channels() -> None:
    task = Task("regression", (12, 2), output_shape=(6, 3))
    assert build_network("gru-forecaster:4", task)(torch.randn(5, 12, 2)).shape == (5, 6, 3)


def test_wrong_tasks_are_refused() -> None:
    with pytest.raises(FedkinError, match="'gru-forecaster' takes a series"):
        build_network("gru-forecaster", TEXT)
    with pytest.raises(FedkinError, match="'lstm-text' takes texts"):
        build_network("lstm-text", SERIES)


def test_a_forecaster_learns_a_sine() -> None:
    generator = torch.Generator().manual_seed(0)
    clients = {}
    for k in range(3):
        start = torch.rand(60, 1, generator=generator) * 6.28
        wave = torch.sin(start + 0.5 * torch.arange(16)).numpy()
        clients[f"wave-{k}"] = (wave[:, :12], wave[:, 12:])
    federation = Federation.from_arrays(clients, test_fraction=0.2)
    method = fedkin.algorithms.FedAvg(lr=0.2, epochs=5, batch_size=16)
    result = fedkin.train(federation, "gru-forecaster:12,1", method, rounds=12)
    assert result.summary("pre")["mean"] < 0.1, "the variance of a sine is 0.5"
