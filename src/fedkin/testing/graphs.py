"""check_graph_builder: what a run may expect of a function that builds its graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import fedkin
from fedkin.errors import FedkinError, unknown
from fedkin.graphs import ClientGraph
from fedkin.graphs.build import Builder, build
from fedkin.testing.federations import uneven_federation
from fedkin.testing.promises import Promise, need, numpys_state, promise, selected

GRAPH_PROMISES: dict[str, Promise] = {}
"""Promise → its check, a function of a `GraphTrial`."""

ORDER = np.array([3, 1, 5, 0, 4, 2])
ALL_CLIENTS = range(len(ORDER))


def _disclosures() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    clients, features, classes = len(ORDER), 5, 3
    return {
        "statistics": np.abs(rng.normal(size=(clients, 4, features))),
        "label_counts": rng.integers(1, 9, (clients, classes)),
        "sizes": rng.integers(5, 50, clients),
        "coordinates": np.column_stack([rng.uniform(40, 60, clients), rng.uniform(0, 20, clients)]),
    }


@dataclass(frozen=True)
class GraphTrial:
    """A graph builder put to the test."""

    builder: str | Builder
    option: str
    told: dict[str, np.ndarray] = field(default_factory=_disclosures)
    names: tuple[str, ...] = tuple(f"site-{k}" for k in range(len(ORDER)))

    @property
    def name(self) -> str:
        return self.builder if isinstance(self.builder, str) else getattr(self.builder, "__name__", "own")

    def graph(self, who: Sequence[int] | np.ndarray = ALL_CLIENTS, seed: int = 0) -> ClientGraph:
        """The graph of the clients at these positions."""
        names = [self.names[k] for k in who]

        def disclosed(what: str, **options: Any) -> np.ndarray:
            if what not in self.told:
                raise unknown("disclosure", what, self.told)
            return self.told[what][np.array(who)]

        if isinstance(self.builder, str):
            return build(f"{self.builder}:{self.option}".removesuffix(":"), names, disclosed, seed)
        return self.builder(names, disclosed, seed, self.option)


def check_graph_builder(builder: str | Builder, option: str = "", only: Iterable[str] | None = None) -> None:
    """Raise an AssertionError if a graph builder breaks a promise: see `GRAPH_PROMISES`.

    `builder` is a function f(names, disclosed, seed, option) or its name; `option` what follows the colon.

    >>> check_graph_builder("knn", "2")
    """
    trial = GraphTrial(builder, option)
    for check in selected(GRAPH_PROMISES, only):
        check(trial)


@promise("it gives a ClientGraph over the clients it is asked for, in their order", GRAPH_PROMISES)
def _names(trial: GraphTrial) -> None:
    graph = trial.graph()
    need(isinstance(graph, ClientGraph), f"it gives a {type(graph).__name__}")
    need(graph.names == trial.names, f"its clients are {graph.names}, not {trial.names}")


@promise("the same seed gives the same graph", GRAPH_PROMISES)
def _repeats(trial: GraphTrial) -> None:
    need(trial.graph(seed=3) == trial.graph(seed=3), "two calls differ")


@promise("the order of clients does not matter", GRAPH_PROMISES)
def _order(trial: GraphTrial) -> None:
    straight, shuffled = trial.graph().adjacency.toarray(), trial.graph(ORDER).adjacency.toarray()
    need(np.allclose(shuffled, straight[np.ix_(ORDER, ORDER)]), "permuted clients give other weights")


@promise("what clients disclose is not changed", GRAPH_PROMISES)
def _inputs(trial: GraphTrial) -> None:
    trial.graph()
    changed = [what for what, values in _disclosures().items() if not np.array_equal(values, trial.told[what])]
    need(not changed, f"it writes over the {', '.join(changed)}")


@promise("few clients have a graph, or are refused by a FedkinError", GRAPH_PROMISES)
def _few(trial: GraphTrial) -> None:
    for few in (1, 2):
        with suppress(FedkinError):
            need(len(trial.graph(range(few))) == few, f"the graph of {few} clients has another size")


@promise("the global random state is left alone", GRAPH_PROMISES)
def _random_state(trial: GraphTrial) -> None:
    before = numpys_state()
    trial.graph()
    need(np.array_equal(before, numpys_state()), "numpy's generator was used")


@promise("FedU trains on it", GRAPH_PROMISES)
def _trains(trial: GraphTrial) -> None:
    graph = ClientGraph(trial.graph().adjacency, uneven_federation().names)
    result = fedkin.train(uneven_federation(), "mlr", "fedu", graph=graph, rounds=2)
    need(np.isfinite(result.rows).all(), "rows are not finite")
