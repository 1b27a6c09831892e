"""Parameters as the papers have them, where fedkin's own defaults differ (docs/defaults.md). Published tables are computed
with these, below what a table says itself, so that a better default changes no reproduced number. (Per-FedAvg counts samples in
them, as the comparisons they reproduce do; its own paper counts clients alike, and so does its default.)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedkin import algorithms
from fedkin.algorithm import Algorithm
from fedkin.federation import Federation

ORIGINALS: dict[str, dict[str, Any]] = {
    "afl": {"average": True},
    "dfedu": {"eta": 0.01},
    "fedpnp": {"eta": 0.1, "delta": 1},
    "fedrelax": {"inner_steps": 1},
    "fedska": {"granularity": "client", "server_optimiser": "sgd"},
    "fedu": {"eta": 0.01},
    "pfedbayes": {"lr": 0.001, "zeta": 10.0},
    "perfedavg": {"weights": "size"},
    "pfedme": {"lr": 0.005, "lam": 15.0, "personal_lr": 0.1},
}


def as_published(name: str, parameters: Mapping[str, Any]) -> Algorithm:
    """A method with these parameters, all others as in its paper; one epoch a round unless told."""
    return algorithms.make(name, {"epochs": 1, **ORIGINALS.get(name, {}), **parameters})


def published_graph(graph: str | None, method: Algorithm, federation: Federation) -> str | None:
    """The graph of a table's cell: the one it names, or the paper's form of the method's own."""
    default = method.default_graph()
    if default == "statistics" and graph is None and federation.graph is None:
        return "statistics:published"
    return None if default is None else graph
