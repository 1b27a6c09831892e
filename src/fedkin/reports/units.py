"""What a page shows one of each: clients, or groups of clients where there are too many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from fedkin.graphs import ClientGraph, similarity
from fedkin.graphs.layout import communities
from fedkin.result import Result

GROUPS_ABOVE = 2_000
"""More clients than this are shown as groups."""


@dataclass(frozen=True)
class Units:
    """`names` of the N units; `of` tells each of the K clients its unit; `cluster` each unit its cluster."""

    names: tuple[str, ...]
    of: np.ndarray
    cluster: np.ndarray
    cluster_source: str

    @classmethod
    def of_result(cls, result: Result) -> Units:
        cluster, source = clusters_of(result)
        clients = len(result.names)
        if clients <= GROUPS_ABOVE:
            return cls(result.names, np.arange(clients), cluster, source)
        counts = np.bincount(cluster)
        names = tuple(f"group {k + 1} ({count:,} clients)" for k, count in enumerate(counts))
        return cls(names, cluster, np.arange(len(counts)), source)

    @property
    def grouped(self) -> bool:
        return len(self.names) < len(self.of)

    @property
    def members(self) -> np.ndarray:
        """Clients per unit, (N,)."""
        return np.bincount(self.of, minlength=len(self.names))

    def total(self, values: np.ndarray) -> np.ndarray:
        """Sums over the clients of each unit, (K, …) → (N, …)."""
        out = np.zeros((len(self.names), *values.shape[1:]), dtype=float)
        np.add.at(out, self.of, values)
        return out

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Means over the clients of each unit, NaN left out, (K,) → (N,)."""
        known = np.isfinite(values)
        count = self.total(known.astype(float))
        return np.where(count > 0, self.total(np.where(known, values, 0.0)) / np.maximum(count, 1), np.nan)

    def graph(self, graph: ClientGraph) -> ClientGraph:
        """The graph over units: between two groups, the sum of the weights between their clients."""
        if not self.grouped:
            return graph
        clients, n = len(self.of), len(self.names)
        member = sp.csr_array((np.ones(clients), (self.of, np.arange(clients))), shape=(n, clients))
        joined = (member @ graph.adjacency @ member.T).tolil()
        joined.setdiag(0)
        return ClientGraph.symmetrised(sp.csr_array(joined), self.names)


def clusters_of(result: Result) -> tuple[np.ndarray, str]:
    """A cluster for each client, (K,), and where it comes from: the truth, the graph, or what labels clients hold."""
    truth = result.facts.get("truth", {}).get("cluster")
    if truth is not None and len(result.names) <= GROUPS_ABOVE:
        return np.unique(np.asarray(truth), return_inverse=True)[1], "the true clusters of this data set"
    if result.graph is not None and result.graph.n_edges:
        return communities(result.graph), "communities of the graph"
    features, source = result.sizes[:, None].astype(float), "clients of similar size"
    if result.label_counts is not None:
        features, source = (
            result.label_counts / result.label_counts.sum(axis=1, keepdims=True),
            "clients with similar labels",
        )
    if len(result.names) < 4:
        return np.zeros(len(result.names), dtype=int), source
    return communities(similarity.knn(features, min(5, len(features) - 1), result.names, "gaussian")), source
