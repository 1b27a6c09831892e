"""The federations that judge auto: ten it was developed on, and natural ones.

Every federation comes without validation samples: auto cuts folds of its own, and the fixed methods train on the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from fedkin import Federation, data
from fedkin.federation import Split
from fedkin.models import ModelLike


@dataclass(frozen=True)
class Case:
    """A federation that a seed draws anew, and the network its clients train."""

    name: str
    kind: str
    """development: auto was designed with its test results in view; seen: the prototype was tried on it once; new."""
    make: Callable[[int], Federation]
    model: ModelLike = "mlp:32"


def again(
    federation: Federation,
    change: Callable[[np.ndarray], np.ndarray] = lambda x: x,
    label: Callable[[int, np.ndarray], np.ndarray] = lambda k, y: y,
    validation_trains: bool = False,
) -> Federation:
    """The same clients with other inputs or labels; validation samples are dropped, or go to training."""
    clients = {}
    for k, name in enumerate(federation.names):
        parts = {part: getattr(federation, part)[k] for part in ("train", "validation", "test")}
        if validation_trains:
            parts["train"] = tuple(np.concatenate(both) for both in zip(parts["train"], parts["validation"]))
        del parts["validation"]
        clients[name] = {part: (change(x), label(k, y)) for part, (x, y) in parts.items()}
    classes = list(range(len(federation.task.classes))) if federation.task.kind == "classification" else None
    return Federation.from_arrays(clients, task=federation.task.kind, classes=classes)


def loaded(name: str, **options: Any) -> Callable[[int], Federation]:
    return lambda seed: data.load(name, seed=seed, **options)


def har(**options: Any) -> Callable[[int], Federation]:
    """Every third of the 561 features, 5,000 windows, half of them for testing."""
    return lambda seed: again(
        data.load("har", seed=seed, samples=5000, test_fraction=0.5, **options), lambda x: x[:, ::3]
    )


def halved(x: np.ndarray) -> np.ndarray:
    """Images (n, 784) or (n, 1, 28, 28) with 2 × 2 pixels averaged, (n, 196)."""
    return x.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(len(x), 196)


def mnist(partition: str, clients: int, samples: int) -> Callable[[int], Federation]:
    """About 60 training and 140 test images per client, 14 × 14."""
    how = {"partition": partition, "clients": clients, "samples": samples, "test_fraction": 0.7}
    return lambda seed: again(data.load("mnist", seed=seed, **how), halved)


def permuted(seed: int) -> Federation:
    """Three groups of ten clients whose labels mean different digits."""
    shuffled = [np.random.default_rng((seed, group)).permutation(10) for group in range(3)]
    return again(mnist("dirichlet:100", 30, 6000)(seed), label=lambda k, y: shuffled[k % 3][y])


def contrary(seed: int) -> Federation:
    """40 sites of four kinds: which inputs speak for the class, and in which direction, is the kind's own."""
    rng = np.random.default_rng(seed)
    slopes = rng.normal(size=(4, 10))
    clients = {}
    for k in range(40):
        train = int(rng.integers(20, 80))
        x = rng.normal(size=(train + 200, 10))
        y = (rng.random(len(x)) < 1 / (1 + np.exp(-1.5 * x @ slopes[k % 4]))).astype(int)
        clients[f"site-{k}"] = {"train": (x[:train], y[:train]), "test": (x[train:], y[train:])}
    return Federation.from_arrays(clients, classes=[0, 1])


def clustered(seed: int) -> Federation:
    return again(data.load("clusters", clients=45, samples=20, seed=seed))


def metr_la(seed: int) -> Federation:
    """40 sensors, every sixth window; days in order."""
    return again(data.load("metr-la", clients=40, stride=6, seed=seed), validation_trains=True)


def clustered_anew(seed: int) -> Federation:
    """30 clients of five unequal kinds, 6 to 24 training samples of eight inputs, each with a noise of its own."""
    rng = np.random.default_rng((seed, 2026))
    slopes = rng.normal(size=(5, 8))
    clients = {}
    for k, kind in enumerate(np.repeat(np.arange(5), [11, 8, 6, 4, 1])):
        train, noise = int(rng.integers(6, 25)), rng.uniform(0.3, 1.5)
        x = rng.normal(size=(train + 100, 8))
        y = x @ slopes[kind] + noise * rng.normal(size=len(x))
        clients[f"site-{k}"] = {"train": (x[:train], y[:train]), "test": (x[train:], y[train:])}
    return Federation.from_arrays(clients, task="regression")


def small_photographs(seed: int) -> Federation:
    """CIFAR-10, 20 clients with about 100 training photographs, 2 × 2 pixels averaged: 3 × 16 × 16."""
    how = {"partition": "dirichlet:0.3", "clients": 20, "samples": 4000, "test_fraction": 0.5}
    loaded = data.load("cifar10", seed=seed, **how)
    return again(loaded, lambda x: x.reshape(-1, 3, 16, 2, 16, 2).mean(axis=(3, 5)))


def small_cnn() -> nn.Module:
    layers = [nn.Conv2d(3, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10))


def roles(seed: int) -> Federation:
    """20 of Shakespeare's roles with many lines: the last 150 windows of ten characters before the test lines, and the first 150 of those."""
    everyone = data.load("shakespeare", length=10, stride=20, minimum=16_000)
    some = everyone.take(np.sort(np.random.default_rng(seed).choice(len(everyone), 20, replace=False)))
    sizes = some.train.sizes
    train = [some.train.part(k, np.arange(max(0, n - 150), n)) for k, n in enumerate(sizes)]
    test = [some.test.part(k, np.arange(min(n, 150))) for k, n in enumerate(some.test.sizes)]
    return replace(some, train=Split.join(train, some.train.scaling), test=Split.join(test, some.test.scaling))


CHARACTERS = 100


def last_characters() -> nn.Module:
    """The ten last characters, each embedded in eight numbers, and a hidden layer."""
    layers = [nn.Embedding(CHARACTERS, 8), nn.Flatten(), nn.Linear(80, 32), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(32, CHARACTERS))


CASES = (
    Case("heart (4 hospitals)", "seen", loaded("heart", test_fraction=0.5)),
    Case("vehicle (23 sensors)", "seen", loaded("vehicle", test_fraction=0.5)),
    Case("parkinsons (42 patients)", "new", loaded("parkinsons", test_fraction=0.5)),
    Case("wisdm (36 people)", "seen", loaded("wisdm", test_fraction=0.5)),
    Case("fmi (192 stations)", "new", loaded("fmi")),
    Case("school (139 schools)", "seen", loaded("school", test_fraction=0.5)),
    Case("tabular, 4 contrary kinds (40)", "development", contrary),
    Case("clustered regression (45)", "development", clustered, "linear"),
    Case("digits Dir(0.1) (20)", "development", loaded("digits", clients=20, partition="dirichlet:0.1", test_fraction=0.5)),
    Case("digits Dir(1) (20)", "development", loaded("digits", clients=20, partition="dirichlet:1.0", test_fraction=0.5)),
    Case("MNIST, 3 label permutations (30)", "development", permuted),
    Case("MNIST Dir(1) (40)", "development", mnist("dirichlet:1.0", 40, 8000)),
    Case("MNIST 2 shards (40)", "development", mnist("shards:2", 40, 8000)),
    Case("HAR Dir(0.1) (30)", "development", har(clients=30, partition="dirichlet:0.1")),
    Case("HAR people (30)", "development", har(partition="natural")),
    Case("METR-LA (40 sensors)", "development", metr_la),
    Case("HAR people, all features (30)", "new", loaded("har", samples=5000, test_fraction=0.5, partition="natural")),
    Case("CIFAR-10 Dir(0.3), CNN (20)", "new", small_photographs, small_cnn),
    Case("Shakespeare (20 roles)", "new", roles, last_characters),
    Case("clustered regression, drawn anew (30)", "new", clustered_anew, "linear"),
)  # fmt: skip
