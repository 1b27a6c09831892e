"""Clusters of clients: exact k-means on long rows, names that last from round to round, the Rand index."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BeforeValidator
from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph
from fedkin.history import Record
from fedkin.streams import client_keys

RESTARTS, ITERATIONS = 10, 300


def embed(rows: Tensor) -> np.ndarray:
    """Points (m, m) that are as far from each other as the rows (m, B), however long those are.

    With W̄ the centred rows and W̄ W̄ᵀ = V diag(s²) Vᵀ, the points V diag(s) have the same Gram matrix, hence the same
    distances, and so do all means of points: k-means cannot tell them from the rows. Costs one pass over the rows, in
    float64, instead of one per restart and iteration.
    """
    gram = torch.zeros((len(rows), len(rows)), dtype=torch.float64)
    for part in rows.split(2**16, dim=1):
        block = part.double()
        block = block - block.mean(dim=0)
        gram += block @ block.T
    squares, axes = np.linalg.eigh(gram.numpy())
    return axes * np.sqrt(np.maximum(squares, 0))


def k_means(rows: Tensor, clusters: int, seed: int) -> np.ndarray:
    """The cluster of each row (m, B), codes 0, 1, … in order of appearance: min Σ_c Σ_{i in c} ‖w_i − mean_c‖².

    k-means++ seeding, ten restarts, Lloyd's iterations until labels stay (at most 300), by scikit-learn; a cluster that
    loses all members restarts at the farthest row. Rows that coincide are never told apart, so there may be fewer
    clusters than asked for, never an empty one.

    >>> k_means(torch.tensor([[5.0], [0.0], [5.1], [0.2]]), 2, seed=0)
    array([0, 1, 0, 1])
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    method = KMeans(min(clusters, len(rows)), n_init=RESTARTS, max_iter=ITERATIONS, tol=0, random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters
        labels = method.fit(embed(rows)).labels_
    return in_order(labels)[1]


def k_means_seeds(rows: Tensor, clusters: int, seed: int) -> np.ndarray:
    """Positions of the rows that k-means++ takes for first centres: far from each other, at random."""
    from sklearn.cluster import kmeans_plusplus

    with np.errstate(invalid="ignore"):  # all rows alike
        return kmeans_plusplus(embed(rows), min(clusters, len(rows)), random_state=seed % 2**32)[1]


def nearest(rows: Tensor, centres: Tensor) -> np.ndarray:
    """The centre (of p, B) each row (of m, B) is closest to, (m,)."""
    return np.array([int((centres - row).square().sum(dim=1, dtype=torch.float64).argmin()) for row in rows])


def in_order(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The labels that occur, in order of appearance (c,), and everyone's code 0 … c−1 among them (m,).

    >>> in_order(np.array([7, 2, 7, 0]))
    (array([7, 2, 0]), array([0, 1, 0, 2]))
    """
    found, first, codes = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return found[order], np.argsort(order)[codes]


def by_name(ids: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The same clients in an order that depends on their names alone, so that k-means does not see how they are listed."""
    return ids[np.argsort(client_keys([names[k] for k in ids]), kind="stable")]


def lasting_names(labels: np.ndarray, last: np.ndarray, clusters: int) -> np.ndarray:
    """A name for each of a round's c ≤ `clusters` clusters, out of 0 … clusters−1: the one most of its members bore.

    `labels` (m,) are codes 0 … c−1, `last` (m,) the members' former cluster names (−1: none). Names are given so that as
    many members as possible keep theirs (an assignment problem).

    >>> lasting_names(np.array([0, 0, 1, 1]), np.array([2, 2, 0, -1]), 3)
    array([2, 0])
    """
    from scipy.optimize import linear_sum_assignment

    kept = np.zeros((int(labels.max()) + 1, clusters))
    known = last >= 0
    np.add.at(kept, (labels[known], last[known]), 1)
    return np.asarray(linear_sum_assignment(kept, maximize=True)[1])


def rand_index(one: Sequence[object] | np.ndarray, other: Sequence[object] | np.ndarray) -> float:
    """The share of pairs on which two partitions agree: together in both or apart in both. Not adjusted for chance.

    >>> rand_index([0, 0, 1, 1], ["a", "a", "a", "b"])
    0.5
    """
    if len(one) != len(other) or len(one) < 2:
        raise FedkinError(
            f"Rand index: two partitions of the same 2 or more clients, not of {len(one)} and {len(other)}"
        )
    _, a = np.unique(np.asarray(one), return_inverse=True)
    _, b = np.unique(np.asarray(other), return_inverse=True)
    both = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(both, (a, b), 1)

    def pairs(counts: Any) -> float:
        return float((counts * (counts - 1) / 2).sum())

    every = len(a) * (len(a) - 1) / 2
    return (every + 2 * pairs(both) - pairs(both.sum(axis=0)) - pairs(both.sum(axis=1))) / every


def recovered_graph(history: Iterable[Record]) -> ClientGraph:
    """The client graph FedCedar has found, from what its rounds logged: who shares a cluster, and which clusters are near.

    A client belongs to the cluster it was in last. Two clients of one cluster are joined with weight 1, clients of two
    clusters by the relation R of the last round, stretched so that the nearest two clusters get 1 and the farthest 0.
    Clients that never took part, and clusters the last round did not form, are left out.
    """
    logs = [record["log"] for record in history if {"clusters", "relation"} <= set(record["log"])]
    if not logs:
        raise FedkinError("recovered_graph needs the history of a FedCedar run with named clusters (up to 200 clients)")
    cluster = {client: name for log in logs for name, members in log["clusters"].items() for client in members}
    place = {name: code for code, name in enumerate(logs[-1]["clusters"])}
    clients = sorted(client for client, name in cluster.items() if name in place)
    relation = np.array(logs[-1]["relation"])
    relation = (relation + relation.T) / 2
    apart = ~np.eye(len(relation), dtype=bool)
    if apart.any() and np.ptp(relation[apart]) > 0:
        relation[apart] = (relation[apart] - relation[apart].min()) / np.ptp(relation[apart])
    np.fill_diagonal(relation, 1.0)
    codes = [place[cluster[client]] for client in clients]
    adjacency = relation[np.ix_(codes, codes)]
    np.fill_diagonal(adjacency, 0.0)
    return ClientGraph(adjacency, clients)


def _as_list(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


Label = int | str
Labels = Annotated[dict[str, Label] | tuple[Label, ...], BeforeValidator(_as_list)]
"""Labels of clients as users give them: {client name: label}, or one per client in order (a list or an array)."""


def told_labels(
    field: str, given: Labels | None, names: Sequence[str], truth: Mapping[str, np.ndarray]
) -> np.ndarray | None:
    """The label of every client, (K,), as the user gave them ({name: label}, or in order) or as the data's maker knows.

    None where nobody knows. `field` names the parameter in messages: "oracle: clusters".
    """
    found: Any = truth.get("cluster") if given is None else given
    if isinstance(found, dict):
        missing = [name for name in names if name not in found]
        if missing:
            raise FedkinError(f"{field} has no label for client {missing[0]!r}; give every client one")
        found = [found[name] for name in names]
    if found is None:
        return None
    if len(found) != len(names):
        raise FedkinError(f"{field} has {len(found)} labels for {len(names)} clients; give one each")
    return np.array([str(label) for label in found])
