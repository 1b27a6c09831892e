"""Clusters of clients: exact k-means on long rows, names that last from round to round, the Rand index."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BeforeValidator
from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.streams import client_keys

RESTARTS, ITERATIONS = 10, 300
GRAM_ROWS = 3_000
"""With more rows the eigenvectors of their Gram matrix cost more than long rows do."""


def embed(rows: Tensor) -> np.ndarray:
    """Points (m, m) that are as far from each other as the rows (m, B), however long those are; above 3,000 rows these themselves.

    With W̄ the centred rows and W̄ W̄ᵀ = V diag(s²) Vᵀ, the points V diag(s) have the same Gram matrix, hence the same
    distances, and so do all means of points: k-means cannot tell them from the rows. Costs one pass over the rows, in
    float64, instead of one per restart and iteration.
    """
    if len(rows) > GRAM_ROWS:
        points = rows.double().cpu().numpy()
        return points - points.mean(axis=0)
    gram = torch.zeros((len(rows), len(rows)), dtype=torch.float64)
    for part in rows.split(2**16, dim=1):
        block = part.double()
        block = block - block.mean(dim=0)
        gram += block @ block.T
    squares, axes = np.linalg.eigh(gram.cpu().numpy())
    points = axes * np.sqrt(np.maximum(squares, 0))
    norms = gram.diagonal()
    alike = norms[:, None] + norms[None, :] - 2 * gram <= 1e-12 * norms.max()
    return points[alike.int().argmax(dim=1).cpu().numpy()]  # rounding must not tell equal rows apart


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


def nearest_centre(rows: Tensor, centres: Tensor) -> np.ndarray:
    """The centre (of p, B) each row (of m, B) is closest to, (m,)."""
    return np.array([int(_squares(centres, row).argmin()) for row in rows])


def _squares(rows: Tensor, other: Tensor) -> Tensor:
    """‖row − other‖² of every row, in float64: squares of float32 numbers end at 1.8e19."""
    return (rows.double() - other.double()).square().sum(dim=1)


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


def lasting_names(centres: Tensor, before: Tensor) -> np.ndarray:
    """Names 0, 1, … for a round's clusters, (c,): cluster by cluster the name of the former one it goes on from.

    `centres` (c, P) are those of the round, row j of `before` (s, P) the last centre of the cluster called j. Names are
    given so that Σ ‖centre − former centre‖² is least, an assignment problem in which a drift that all share cancels. If
    there are more clusters than names, the others get new names s, s+1, …

    >>> lasting_names(torch.tensor([[9.0], [1.0], [5.0]]), torch.tensor([[1.2], [8.0]]))
    array([1, 0, 2])
    """
    from scipy.optimize import linear_sum_assignment

    names = np.full(len(centres), -1)
    if len(before):
        square = torch.stack([_squares(before, row) for row in centres])
        far = np.finfo(np.float64).max / 1e9  # a centre too far away to be told how far, and no reason to stop
        new, old = linear_sum_assignment(np.nan_to_num(square.cpu().numpy(), nan=far, posinf=far))
        names[new] = old
    names[names < 0] = len(before) + np.arange((names < 0).sum())
    return names


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


def _as_list(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


ClusterLabel = int | str
Labels = Annotated[dict[str, ClusterLabel] | tuple[ClusterLabel, ...], BeforeValidator(_as_list)]
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
