"""Small real runs to report on, and ways to make variants of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedkin
from fedkin.result import Result

HOSTILE = '<script>alert("x")</script> & $1_'


@pytest.fixture(scope="session")
def runs() -> list[Result]:
    """Local, FedAvg and FedPnP with two seeds each on eight clients, one of which has a hostile name."""
    federation = fedkin.data.load("digits", clients=8, partition="dirichlet:0.5")
    federation = replace(federation, names=(*federation.names[:-1], HOSTILE), notes=("a note <b>on</b> the data",))
    made = []
    settings: dict[str, dict[str, Any]] = {"local": {}, "fedavg": {}, "fedpnp": {"eta": 0.1}}
    for name, own in settings.items():
        for seed in (0, 1):
            method = fedkin.algorithms.make(name, {"epochs": 1, **own})
            graph = "statistics:published" if name == "fedpnp" else None  # its clusters are not in the given order
            made.append(fedkin.train(federation, "mlr", method, graph, rounds=3, seed=seed, eval_every=1))
    return made


@pytest.fixture
def scored(runs: list[Result]) -> Callable[..., Result]:
    """A variant of the first run: another method, seed and deployed accuracy of every client."""

    def make(name: str, values: Any, seed: int = 0, fingerprint: str = "same") -> Result:
        run = runs[0]
        metrics = {
            when: {**table, run.metric: np.asarray(values, float).tolist()} for when, table in run.metrics.items()
        }
        config = {
            **run.config,
            "algorithm": {**run.config["algorithm"], "name": name},
            "run": {**run.config["run"], "seed": seed},
            "data": {"fingerprint": fingerprint},
        }
        return replace(run, metrics=metrics, config=config, facts={**run.facts, "title": name.title()})

    return make
