"""The papers' networks and two general ones, each split into `features` and `classifier`.

A network is `Sequential(features=…, classifier=…)`, so that methods which exchange features (FedSKA) or keep the head
private (FedRep, FedPer) find the split by name. Add a network with `@network("name")`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from inspect import signature
from math import prod
from typing import Any

from torch import nn

from fedkin import plugins
from fedkin.errors import FedkinError
from fedkin.task import Task

NETWORKS: dict[str, Callable[..., nn.Module]] = {}


def network(name: str) -> Callable[[Callable[..., nn.Module]], Callable[..., nn.Module]]:
    """Register a function (task, *options) → nn.Module under a name users can write."""

    def register(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        NETWORKS[name] = build
        return build

    return register


def build_network(spec: str, task: Task) -> nn.Module:
    """Build the network `spec` ("mlp", or with options "mlp:100,100") for a task."""
    module = make_network(spec, task)
    if not isinstance(module, nn.Module):
        raise FedkinError(f"model {spec!r} is a {type(module).__name__}, not a network; weights cannot be exchanged")
    return module


def make_network(spec: str, task: Task, known: Mapping[str, Any] = NETWORKS) -> Any:
    """What `spec` names: a network of ours, of an installed package, or of `package.module:function` (fedkin.plugins).

    A function whose first argument has no default is given the task, as ours are; any other only the options.
    """
    name, options = plugins.split_name("model", spec, known)
    function = plugins.find("model", name, known)
    try:
        numbers = [int(part) for part in options.split(",")] if options else []
    except ValueError:
        raise FedkinError(f"model {spec!r}: its options must be whole numbers, as in 'mlp:100,100'") from None
    if any(number < 1 for number in numbers):
        raise FedkinError(f"model {spec!r}: layer widths must be at least 1")
    if not callable(function):
        raise FedkinError(f"model {spec!r} is a {type(function).__name__}, not a function that returns a model")
    try:
        given = [task, *numbers] if _takes_task(function) else numbers
        signature(function).bind(*given)
    except ValueError as problem:  # some functions written in C do not say what they take
        raise FedkinError(f"model {spec!r} cannot be called: {problem}") from problem
    except TypeError:
        most = len(signature(function).parameters) - len(given) + len(numbers)
        takes = f"at most {most}" if most else "no"
        raise FedkinError(f"model {spec!r}: {name!r} takes {takes} options, but {len(numbers)} are given") from None
    return function(*given)


def _takes_task(function: Callable[..., Any]) -> bool:
    first = next(iter(signature(function).parameters.values()), None)
    return first is not None and first.default is first.empty and first.kind is not first.VAR_POSITIONAL


def two_parts(features: list[nn.Module], classifier: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(features=nn.Sequential(*features), classifier=classifier))


def _require_image(task: Task, name: str, *shapes: tuple[int, ...]) -> None:
    if task.input_shape not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise FedkinError(f"model {name!r} takes inputs of shape {wanted}, but the data has {task.input_shape}")


@network("mlr")
def logistic(task: Task) -> nn.Module:
    """Multinomial logistic regression, or a linear regressor: one linear layer (FedU's convex model)."""
    return two_parts([nn.Flatten()], nn.Linear(prod(task.input_shape), task.outputs))


@network("zero-mlr")
def logistic_from_zero(task: Task) -> nn.Module:
    """`mlr` whose weights are 0 at the start: private training has no steps to spend on forgetting random ones."""
    module = logistic(task)
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


@network("linear")
def linear(task: Task) -> nn.Module:
    """One linear layer without bias (FedRelax's linear model)."""
    return two_parts([nn.Flatten()], nn.Linear(prod(task.input_shape), task.outputs, bias=False))


@network("mlp")
def perceptron(task: Task, *hidden: int) -> nn.Module:
    """Fully connected layers with ReLU; one hidden layer of 100 unless widths are given (FedU: mlp:100,100)."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = prod(task.input_shape)
    for size in hidden or (100,):
        layers += [nn.Linear(width, size), nn.ReLU()]
        width = size
    return two_parts(layers, nn.Linear(width, task.outputs))


@network("bn-mlp")
def normalised_perceptron(task: Task, hidden: int = 400) -> nn.Module:
    """One hidden layer with batch norm and ReLU (FedPnP's HARBOX network: 900→400→5)."""
    layers = [nn.Flatten(), nn.Linear(prod(task.input_shape), hidden), nn.BatchNorm1d(hidden), nn.ReLU()]
    return two_parts(layers, nn.Linear(hidden, task.outputs))


@network("feature-mlp")
def feature_perceptron(task: Task, width: int = 64) -> nn.Module:
    """A linear feature layer and a linear classifier, nothing between (FedSKA's MNIST network)."""
    return two_parts([nn.Flatten(), nn.Linear(prod(task.input_shape), width)], nn.Linear(width, task.outputs))


@network("fedpnp-mnist")
def fedpnp_mnist(task: Task) -> nn.Module:
    """Two convolutions and two linear layers with batch norm and tanh (FedPnP, MNIST)."""
    _require_image(task, "fedpnp-mnist", (1, 28, 28))
    layers = [
        *(nn.Conv2d(1, 16, 8, stride=2, padding=2), nn.BatchNorm2d(16), nn.Tanh(), nn.MaxPool2d(2, stride=1)),
        *(nn.Conv2d(16, 32, 4, stride=2), nn.BatchNorm2d(32), nn.Tanh(), nn.MaxPool2d(2, stride=1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.BatchNorm1d(32), nn.Tanh()),
    ]
    return two_parts(layers, nn.Linear(32, task.outputs))


@network("fedpnp-cifar10")
def fedpnp_cifar10(task: Task) -> nn.Module:
    """LeNet with batch norm (FedPnP, CIFAR-10)."""
    _require_image(task, "fedpnp-cifar10", (3, 32, 32))
    layers = [
        *(nn.Conv2d(3, 6, 5), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.BatchNorm1d(120), nn.ReLU()),
        *(nn.Linear(120, 84), nn.BatchNorm1d(84), nn.ReLU()),
    ]
    return two_parts(layers, nn.Linear(84, task.outputs))


@network("fedu-cifar10")
def fedu_cifar10(task: Task) -> nn.Module:
    """LeNet without batch norm (FedU, CIFAR-10)."""
    _require_image(task, "fedu-cifar10", (3, 32, 32))
    layers = [
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 100), nn.ReLU()),
    ]
    return two_parts(layers, nn.Linear(100, task.outputs))


@network("fedcedar-small")
def fedcedar_small(task: Task) -> nn.Module:
    """Three convolutions and two linear layers (FedCedar, MNIST and SVHN)."""
    _require_image(task, "fedcedar-small", (1, 28, 28), (3, 32, 32))
    channels, side = task.input_shape[0], task.input_shape[1]
    layers: list[nn.Module] = []
    for before, after in ((channels, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(64 * (side // 8) ** 2, 128), nn.ReLU()]
    return two_parts(layers, nn.Linear(128, task.outputs))


@network("fedcedar-cifar10")
def fedcedar_cifar10(task: Task) -> nn.Module:
    """Six convolutions and two linear layers (FedCedar, CIFAR-10)."""
    _require_image(task, "fedcedar-cifar10", (3, 32, 32))
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(after, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(2048, 256), nn.ReLU()]
    return two_parts(layers, nn.Linear(256, task.outputs))
