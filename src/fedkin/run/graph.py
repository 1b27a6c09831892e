"""The graph of a run: the one given, or else the data's own, or else what the method builds from what clients disclose."""

from __future__ import annotations

import warnings

import numpy as np

from fedkin.algorithm import Algorithm
from fedkin.clients import Clients
from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph
from fedkin.graphs.build import build
from fedkin.roster import Roster


def wanted(graph: ClientGraph | str | None, algorithm: Algorithm, roster: Roster) -> ClientGraph | str | None:
    """The graph given; without one, and where the method needs one, that of the data or the method's default."""
    if graph is None and algorithm.default_graph() is not None:
        graph = roster.graph or algorithm.default_graph()
    return graph.align(roster.names) if isinstance(graph, ClientGraph) else graph


def warn_of_lone_clients(graph: ClientGraph, algorithm: Algorithm) -> None:
    """Clients without a neighbour train alone under every method that builds on the graph: said before the first round."""
    if algorithm.default_graph() is not None and len(graph) > 1:
        for remark in graph.alone(algorithm.name):
            warnings.warn(remark, stacklevel=3)


def build_from(spec: str, roster: Roster, clients: Clients, seed: int) -> ClientGraph:
    """The graph that `spec` describes, from what clients disclose: statistics, label counts, sizes. Never samples."""

    def disclosed(what: str, **options: float) -> np.ndarray:
        if what in roster.truth:
            return roster.truth[what]
        replies = clients.ask(what, np.arange(len(roster)), shared=options)
        if replies.failed:
            name, reason = next(iter(replies.failed.items()))
            raise FedkinError(f"client {name!r} could not disclose its {what}: {reason}")
        return replies[what].cpu().numpy()

    return build(spec, roster.names, disclosed, seed)
