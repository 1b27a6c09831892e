"""Penalties of features: the hand-written chain against vmap of autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedkin.algorithms.feddbe import drift
from fedkin.algorithms.fedproto import distance
from fedkin.local.batches import Batch
from fedkin.local.features import guided_loss, misalignment
from fedkin.local.kernels import choose_kernel
from fedkin.local.kernels.linear import LinearKernel
from fedkin.local.kernels.tapped import Penalty, TappedKernel, layers_up_to
from fedkin.models import ModelSpec
from fedkin.models.cut import cut
from fedkin.task import Task
from fedkin.task.losses import loss_of

CLASSES = Task("classification", (6,), classes=("a", "b", "c"))
NUMBERS = Task("regression", (6,), output_shape=(3,))


def deep() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.ReLU()),
        nn.Linear(5, 4),
        nn.Tanh(),
        nn.Linear(4, 3),
    )


@pytest.mark.parametrize("task", [CLASSES, NUMBERS], ids=["classes", "numbers"])
@pytest.mark.parametrize(
    ("penalty", "weighed"), [(misalignment, False), (distance, False), (drift, True)], ids=["cosine", "squares", "mean"]
)
def test_the_chain_with_a_penalty_is_the_vmapped_program(task: Task, penalty: Penalty, weighed: bool) -> None:
    torch.manual_seed(0)
    spec = ModelSpec.of(deep, task, torch.float64)
    choice = choose_kernel(spec, task)
    tapped = cut(spec, task, "0").tapped()
    rows = torch.stack([spec.layout.pack(deep().double(), torch.float64) for _ in range(3)])
    x, guides = torch.randn(3, 8, 6, dtype=torch.float64), torch.randn(3, 8, 5, dtype=torch.float64)
    y = torch.randint(3, (3, 8)) if task is CLASSES else torch.randn(3, 8, 3, dtype=torch.float64)
    weight = torch.rand(3, 8, dtype=torch.float64)
    weight = weight / weight.sum(dim=1, keepdim=True)
    batch = Batch(x, y, weight, (guides, weight) if weighed else (guides,))
    linear = choice.make()
    assert isinstance(linear, LinearKernel)
    fast = TappedKernel(linear, 2, 0.7, penalty)
    slow = choice.variant(tapped, guided_loss(loss_of(task), 3, 0.7, penalty))
    found, expected = torch.empty_like(rows), torch.empty_like(rows)
    losses = fast.gradient(rows, batch, found)
    wanted = slow.gradient(rows, batch, expected)
    torch.testing.assert_close(losses, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(fast.outputs(rows, x), slow.outputs(rows, x), rtol=1e-12, atol=1e-12)


def test_features_are_tapped_only_where_the_next_layer_gets_them_as_they_are() -> None:
    assert layers_up_to(deep(), "0") == 2
    assert layers_up_to(deep(), "0.1") == 1
    assert layers_up_to(deep(), "0.0") is None  # before the activation
    assert layers_up_to(deep(), "3") is None  # the outputs
    assert layers_up_to(deep(), "elsewhere") is None
