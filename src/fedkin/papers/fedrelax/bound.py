"""The variation bound of FedRelax as a diagnostic for data whose noise is known.

One cluster C with y = X w̄ + ε:  Σ_{i∈C} ‖ŵ_i − mean‖² ≤ ε^C / (α λ_2(L_C)),  ε^C = Σ_i ‖ε_i‖²/m_i,
where L_C is the Laplacian of the edges inside C. It is derived for the distance of parameters with every edge counted
once; FedRelax couples predictions and counts edges twice, so the bound holds on average, not for every draw.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph


def variation(rows: np.ndarray, clusters: Sequence[int] | np.ndarray) -> np.ndarray:
    """Σ_i ‖ŵ_i − mean‖² within every cluster: rows (K, B) → one number per cluster, in the order of `np.unique`.

    >>> variation(np.array([[0.0], [2.0], [5.0]]), [0, 0, 1])
    array([2., 0.])
    """
    labels = np.asarray(clusters)
    return np.array([np.square(rows[labels == c] - rows[labels == c].mean(axis=0)).sum() for c in np.unique(labels)])


def variation_bound(federation: Federation, alpha: float, graph: ClientGraph | None = None) -> np.ndarray:
    """ε^C / (α λ_2(L_C)) of every cluster, infinite where its clients are not connected or α = 0.

    The federation must know its truth: "weights" (K, d) and "cluster" (K,), as synthetic ones do.
    """
    if not {"weights", "cluster"} <= set(federation.truth):
        raise FedkinError("the bound needs the true weights and clusters; this federation does not know them")
    used = graph.align(federation.names) if graph is not None else federation.graph
    if used is None:
        raise FedkinError("the bound needs a graph; pass graph=…")
    weights, clusters = federation.truth["weights"], federation.truth["cluster"]
    noise = np.array([np.square(y - x @ w).mean() for (x, y), w in zip(federation.train, weights)])
    bounds = []
    for cluster in np.unique(clusters):
        members = np.flatnonzero(clusters == cluster)
        gap = used.take(members).lambda_1() if len(members) > 1 else np.inf
        bounds.append(noise[members].sum() / (alpha * gap) if alpha * gap > 0 else np.inf)
    return np.array(bounds)
