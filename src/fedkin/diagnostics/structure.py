"""The structure of a federation: which clients form a cluster and which clusters are related; as FedCedar finds it, or true."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph
from fedkin.result.history import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Structure:
    """Clients in clusters, and how strongly the clusters are related."""

    clients: tuple[str, ...]
    cluster: np.ndarray
    """The cluster 0 … c−1 of each client, (n,)."""
    weights: np.ndarray
    """The relation of the clusters, (c, c), symmetric, in [0, 1]; ones on the diagonal."""

    def graph(self) -> ClientGraph:
        """The client graph: weight 1 inside a cluster, the clusters' relation between two of them."""
        adjacency = self.weights[np.ix_(self.cluster, self.cluster)]
        np.fill_diagonal(adjacency, 0.0)
        return ClientGraph(adjacency, self.clients)

    def aligned(self, other: Structure) -> Structure:
        """The same structure, its clusters renumbered so that as many clients as possible are where `other` has them."""
        from scipy.optimize import linear_sum_assignment

        theirs = dict(zip(other.clients, other.cluster))
        size = max(len(self.weights), len(other.weights))
        both = np.zeros((size, size))
        for client, code in zip(self.clients, self.cluster):
            if client in theirs:
                both[code, theirs[client]] += 1
        place = linear_sum_assignment(both, maximize=True)[1]
        weights = np.eye(size)
        weights[np.ix_(place[: len(self.weights)], place[: len(self.weights)])] = self.weights
        return Structure(self.clients, place[self.cluster], weights)

    def draw(self, ax: Axes | None = None, colours: Sequence[Any] | None = None) -> Axes:
        """Clusters on a circle, their clients around them; a line is as strong as the relation, its weight beside it."""
        import matplotlib.pyplot as plt

        if ax is None:
            _, ax = plt.subplots(figsize=(4, 4))
        number = len(self.weights)
        angle = np.pi / 2 - 2 * np.pi * np.arange(number) / number
        centre = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        for i, j in np.argwhere(np.triu(self.weights, 1) > 0.005):
            ax.plot(*centre[[i, j]].T, color="#3a4656", linewidth=6 * self.weights[i, j], alpha=0.5, zorder=1)
            x, y = 0.62 * centre[i] + 0.38 * centre[j]
            box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
            ax.text(x, y, f"{self.weights[i, j]:.2f}", fontsize=8, ha="center", va="center", bbox=box, zorder=2)
        for code in range(number):
            members = np.flatnonzero(self.cluster == code)
            turn = np.arange(len(members)) * np.pi * (3 - np.sqrt(5))  # a sunflower
            spread = 0.05 * np.sqrt(np.arange(len(members)) + 0.5)
            spots = centre[code] + spread[:, None] * np.stack([np.cos(turn), np.sin(turn)], axis=1)
            shade = [f"C{code}"] * len(members) if colours is None else [colours[int(k)] for k in members]
            ax.scatter(spots[:, 0], spots[:, 1], s=16, color=shade, edgecolors="white", linewidths=0.4, zorder=3)
        ax.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal")
        ax.set_axis_off()
        return ax


def recovered(history: Iterable[Record]) -> Structure:
    """What a FedCedar run has found, from the logs of its rounds.

    A client is in the cluster it was in last. The relation is R of the last round, made symmetric and stretched so that the
    nearest two clusters have weight 1 and the farthest 0. Clients that never took part, or whose cluster the last round did
    not form, are left out.
    """
    logs = [record["log"] for record in history if {"clusters", "relation"} <= set(record["log"])]
    if not logs:
        raise FedkinError(
            "recovered() needs the history of a FedCedar run whose log names its clusters (up to 200 clients)"
        )
    cluster = {client: name for log in logs for name, members in log["clusters"].items() for client in members}
    place = {name: code for code, name in enumerate(logs[-1]["clusters"])}
    clients = tuple(sorted(client for client, name in cluster.items() if name in place))
    weights = np.array(logs[-1]["relation"])
    weights = (weights + weights.T) / 2
    apart = ~np.eye(len(weights), dtype=bool)
    if apart.any():
        spread = np.ptp(weights[apart])
        weights[apart] = (weights[apart] - weights[apart].min()) / spread if spread > 0 else 1.0
    np.fill_diagonal(weights, 1.0)
    return Structure(clients, np.array([place[cluster[client]] for client in clients]), weights)


def true_structure(federation: Federation) -> Structure:
    """What the maker of the data knows: its clusters, related as much as its graph joins their clients on average."""
    if "cluster" not in federation.truth or federation.graph is None:
        raise FedkinError("the true structure of this federation is unknown; see the topology partition")
    labels, code = np.unique(federation.truth["cluster"], return_inverse=True)
    member = np.eye(len(labels))[code]
    size = member.sum(axis=0)
    weights = member.T @ federation.graph.adjacency.toarray() @ member / np.outer(size, size)
    np.fill_diagonal(weights, 1.0)
    return Structure(federation.names, code, weights)
