"""The three networks in PyTorch, for the peers that take an nn.Module. The same layers as fedkin's own (a test compares)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn


def network(model: str, initial: Sequence[np.ndarray] = ()) -> nn.Sequential:
    """Logistic regression 784→10, the perceptron 784-100-100-10, or FedPnP's MNIST CNN, with given initial parameters."""
    net = nn.Sequential(*_LAYERS[model]())
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), initial):
            parameter.copy_(torch.from_numpy(value))
    return net


def parameters(net: nn.Module) -> list[np.ndarray]:
    return [p.detach().cpu().numpy() for p in net.parameters()]


def _mlr() -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(784, 10)]


def _mlp() -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)]


def _cnn() -> list[nn.Module]:
    """Every weight layer but the last is followed by batch norm and tanh; pooling windows overlap (stride 1)."""
    return [
        *(nn.Conv2d(1, 16, 8, stride=2, padding=2), nn.BatchNorm2d(16), nn.Tanh(), nn.MaxPool2d(2, stride=1)),
        *(nn.Conv2d(16, 32, 4, stride=2), nn.BatchNorm2d(32), nn.Tanh(), nn.MaxPool2d(2, stride=1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 10)),
    ]


_LAYERS = {"mlr": _mlr, "mlp": _mlp, "cnn": _cnn}
