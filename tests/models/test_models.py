"""Layouts and networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedkin.errors import FedkinError
from fedkin.models import NETWORKS, Layout, ModelSpec, build_network
from fedkin.streams import Streams
from fedkin.task import Task

INPUTS = {
    "fedpnp-mnist": (1, 28, 28),
    "fedpnp-cifar10": (3, 32, 32),
    "fedu-cifar10": (3, 32, 32),
    "fedcedar-small": (1, 28, 28),
    "fedcedar-cifar10": (3, 32, 32),
}
# Trainable parameters counted by hand from the layer tables (weights, biases, batch-norm scales and shifts).
COUNTS = {
    "mlr": 784 * 10 + 10,
    "zero-mlr": 784 * 10 + 10,
    "linear": 784 * 10,
    "mlp": 784 * 100 + 100 + 100 * 10 + 10,
    "bn-mlp": 784 * 400 + 400 + 800 + 400 * 10 + 10,
    "feature-mlp": 784 * 64 + 64 + 64 * 10 + 10,
    "fedpnp-mnist": 64 * 16 + 16 + 32 + 16 * 16 * 32 + 32 + 64 + 512 * 32 + 32 + 64 + 32 * 10 + 10,
    "fedpnp-cifar10": 456 + 12 + 2416 + 32 + 48120 + 240 + 10164 + 168 + 850,
    "fedu-cifar10": 456 + 2416 + 48120 + 12100 + 1010,
    "fedcedar-small": 320 + 18496 + 36928 + 576 * 128 + 128 + 1290,
    "fedcedar-cifar10": 896 + 9248 + 18496 + 36928 + 73856 + 147584 + 2048 * 256 + 256 + 2570,
}


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_networks_have_the_papers_sizes_and_a_named_split(name: str) -> None:
    task = Task("classification", INPUTS.get(name, (1, 28, 28)), classes=tuple(range(10)))
    net = build_network(name, task)
    assert Layout.of(net).n_parameters == COUNTS[name]
    x = torch.randn(3, *task.input_shape)
    net.eval()
    assert torch.equal(net(x), net.classifier(net.features(x)))
    assert net(x).shape == (3, 10)


def test_every_network_is_listed_here() -> None:
    elsewhere = {"gru-forecaster", "lstm-text", "mobilenet-v2", "transformer-text"}
    assert set(COUNTS) | elsewhere >= set(NETWORKS)


def test_a_model_that_starts_at_zero() -> None:
    task = Task("classification", (4,), classes=(0, 1, 2))
    from_zero, mlr = (ModelSpec.of(name, task, torch.float64) for name in ("zero-mlr", "mlr"))
    assert not from_zero.initial_row(Streams(0)).any()
    assert from_zero.layout.n_parameters == mlr.layout.n_parameters


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mlr:4", "model 'mlr:4': 'mlr' takes no options, but 1 are given"),
        ("feature-mlp:4,5", "'feature-mlp' takes at most 1 options, but 2 are given"),
        ("mobilenet-v3", "did you mean 'mobilenet-v2'"),
        ("mlp:0", "layer widths must be at least 1"),
    ],
)
def test_wrong_options_are_one_line(spec: str, message: str) -> None:
    with pytest.raises(FedkinError, match=message) as problem:
        build_network(spec, Task("classification", (3, 32, 32), classes=(0, 1)))
    assert "\n" not in str(problem.value)


def test_rows_and_modules_are_two_views_of_one_thing() -> None:
    task = Task("classification", (4,), classes=(0, 1, 2))
    spec = ModelSpec.of("bn-mlp:5", task, torch.float64)
    row = spec.initial_row(Streams(0))
    assert row.shape == (spec.layout.width,)
    module = spec.module(row, torch.tensor([7]))
    assert torch.equal(spec.layout.pack(module, torch.float64), row)
    assert module.features[2].num_batches_tracked == 7
    assert not module.training
    assert torch.equal(row, spec.initial_row(Streams(0)))
    assert not torch.equal(row, spec.initial_row(Streams(0), index=1))
    assert not torch.equal(row, spec.initial_row(Streams(1)))


def test_batch_norm_is_found_by_type_whatever_its_name() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn_like, self.other = nn.Linear(2, 2), nn.BatchNorm1d(2)

    layout = Layout.of(Odd())
    assert set(layout.norms) == {
        f"other.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }
    assert int(layout.mask(layout.norms).sum()) == 8
    assert int(layout.variance_columns.sum()) == 2
    assert layout.counters == ("other.num_batches_tracked",)


def test_tied_and_frozen_parameters() -> None:
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    net[1].weight = net[0].weight
    assert Layout.of(net).n_parameters == 9
    net[0].weight.requires_grad_(False)
    layout = Layout.of(net)
    assert (layout.n_parameters, layout.width, layout.frozen) == (0, 0, ("0.weight",))
    carried = Layout.of(net, carried=True)
    assert (carried.n_parameters, carried.width, carried.frozen) == (0, 9, ())
