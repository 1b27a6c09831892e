"""MobileNetV2: its size, its split, its place in a federation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fedkin
from fedkin.algorithms.fedavg import FedAvg
from fedkin.algorithms.fedska import FedSKA
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.local.kernels import choose_kernel
from fedkin.models import Layout, ModelSpec, build_network
from fedkin.models.cut import cut
from fedkin.models.mobilenet import InvertedResidual
from fedkin.task import Task

IMAGES = Task("classification", (3, 32, 32), classes=tuple(range(10)))


def test_size_as_published() -> None:
    """The 1000-class network has 3 504 872 parameters; its last layer alone depends on the classes."""
    published = 3_504_872
    for classes in (10, 1000):
        task = Task("classification", (3, 32, 32), classes=tuple(range(classes)))
        assert Layout.of(build_network("mobilenet-v2", task)).n_parameters == published - 1281 * (1000 - classes)


def test_it_is_split_after_1280_features() -> None:
    net = build_network("mobilenet-v2", IMAGES).eval()
    x = torch.randn(3, 3, 32, 32)
    features = net.features(x)
    assert features.shape == (3, 1280)
    assert net.features[:-2](x).shape == (3, 1280, 2, 2)
    assert torch.equal(net(x), net.classifier(features))
    found = cut(ModelSpec.of("mobilenet-v2", IMAGES), IMAGES, "features")
    assert (found.size, found.classifier) == (1280, ("classifier.1.weight", "classifier.1.bias"))


def test_every_parameter_has_a_gradient() -> None:
    net = build_network("mobilenet-v2", IMAGES).train()
    loss = F.cross_entropy(net(torch.randn(8, 3, 32, 32)), torch.arange(8))
    loss.backward()
    assert loss.isfinite()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_a_block_adds_its_input_where_shapes_agree() -> None:
    x = torch.randn(2, 8, 6, 6)
    for after, stride, added in ((8, 1, True), (8, 2, False), (12, 1, False)):
        block = InvertedResidual(8, after, stride, expansion=6).eval()
        assert torch.equal(block(x), block.layers(x) + x if added else block.layers(x))
        assert block(x).shape == (2, after, 6 // stride, 6 // stride)
        assert block.layers[0].out_channels == block.layers[3].groups == 48


@pytest.mark.parametrize(
    "method",
    [FedAvg(batch_size=8), FedSKA(batch_size=8, k=1, structure_steps=1, encoder_steps=1)],
    ids=["fedavg", "fedska"],
)
def test_it_trains(method: FedAvg) -> None:
    rng = np.random.default_rng(0)
    clients = {name: (rng.normal(size=(10, 3, 32, 32)).astype(np.float32), np.arange(10) % 2) for name in "ab"}
    federation = Federation.from_arrays(clients, test_fraction=0.2)
    result = fedkin.train(federation, "mobilenet-v2", method, rounds=2, seed=0, eval_every=2)
    losses = [entry["log"]["train_loss"] for entry in result.history]
    assert np.isfinite(losses).all()
    assert losses[0] != losses[1], "a round changes the model"


def test_dropout_is_drawn_client_by_client() -> None:
    choice = choose_kernel(ModelSpec.of("mobilenet-v2", IMAGES), IMAGES)
    assert (choice.name, choice.stochastic) == ("loop", True)


def test_other_inputs_are_refused() -> None:
    with pytest.raises(FedkinError, match=r"'mobilenet-v2' takes images .* but the data has \(561,\)"):
        build_network("mobilenet-v2", Task("classification", (561,), classes=(0, 1)))
