"""The graph of a run: the one given, or else the data's own, or else what the method builds from what clients disclose."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedkin.algorithm import Algorithm
from fedkin.clients import Clients, Replies
from fedkin.errors import EveryoneFailed, FedkinError
from fedkin.graphs import ClientGraph
from fedkin.graphs.build import build
from fedkin.graphs.growing import graph_for
from fedkin.roster import Roster


def wanted(graph: ClientGraph | str | None, algorithm: Algorithm, roster: Roster) -> ClientGraph | str | None:
    """The graph given; without one, and where the method needs one, that of the data or the method's default."""
    if graph is None and algorithm.default_graph() is not None:
        graph = roster.graph or algorithm.default_graph()
    if not isinstance(graph, ClientGraph):
        return graph
    fit, changed = graph_for(graph, roster.names)
    if changed:
        warnings.warn(changed, stacklevel=4)
    return fit


def warn_of_lone_clients(graph: ClientGraph, algorithm: Algorithm) -> None:
    """Clients without a neighbour train alone under every method that builds on the graph: said before the first round.

    A method that would itself take a graph without edges meets its clients elsewhere.
    """
    if algorithm.default_graph() not in (None, "empty") and len(graph) > 1:
        for remark in graph.alone(algorithm.name):
            warnings.warn(remark, stacklevel=3)


def build_from(spec: str, roster: Roster, clients: Clients, seed: int, private: bool = False) -> ClientGraph:
    """The graph that `spec` describes, from what clients disclose: statistics, label counts, sizes. Never samples.

    In a `private` run they disclose nothing of their samples without noise.
    A client that tells nothing, or nonsense, has no neighbours, and a warning says why; the others' graph is theirs alone.
    """
    told: dict[tuple[Any, ...], Replies] = {}
    silent: dict[str, str] = {}
    there = np.arange(len(roster))

    def disclosed(what: str, **options: float) -> np.ndarray:
        if what in roster.truth:
            return roster.truth[what][there]
        if private and what != "sizes" and not options:
            raise FedkinError(
                f"privacy: graph {spec!r} is built from what clients tell of their samples ({what}) without noise; give "
                "graph='complete', a file of your own, or 'statistics:noise=ε,δ,low,high'"
            )
        question = what, *sorted(options.items())
        if question not in told:
            told[question] = clients.ask(what, np.arange(len(roster)), shared=options)
        replies = told[question]
        if not np.isin(there, replies.ids).all():
            silent.update({name: f"told no {what}: {reason}" for name, reason in replies.failed.items()})
            raise EveryoneFailed(f"graph {spec}", silent)
        return replies[what].cpu().numpy()[np.searchsorted(replies.ids, there)]

    while True:
        try:
            graph = build(spec, [roster.names[k] for k in there], disclosed, seed)
            break
        except EveryoneFailed:
            there = np.array([k for k in there if roster.names[k] not in silent], dtype=np.int64)
            if not silent or not len(there):
                raise
    if not silent:
        return graph
    for name, reason in silent.items():
        warnings.warn(f"client {name!r} {reason}; it has no neighbours", stacklevel=2)
    edges = graph.adjacency.tocoo()
    shape = (len(roster), len(roster))
    return ClientGraph(sp.coo_array((edges.data, (there[edges.row], there[edges.col])), shape=shape), roster.names)
