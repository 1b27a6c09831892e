"""FedSKA's figures 5 and 6, the client graph that it learns; and for table 2 what any forecast must beat."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage

from fedkin import data
from fedkin.federation import Federation
from fedkin.local.forecasts import persistence
from fedkin.papers.originals import as_published
from fedkin.run import train


def learned_graph(
    seed: int, source: dict[str, Any], model: str, rounds: int, parameters: dict[str, Any]
) -> dict[str, Any]:
    """Train FedSKA and return the graph of the last round, and how well it follows what is known of the clients.

    `follows_truth` is the correlation, over pairs of clients, between the learned weight and the truth: the road graph
    where the data has one, else the overlap of the clients' labels. In the matrix those that belong together stand
    together (leaves of a clustering of the truth), so that a picture shows whether it is followed.
    """
    federation = data.load(**{"seed": seed, **source})
    method = as_published("fedska", parameters)
    result = train(federation, model, method, rounds=rounds, seed=seed, eval_every=rounds, workers=1)
    learned = result.learned_graph().adjacency.toarray()
    truth, apart = known(federation), ~np.eye(len(federation), dtype=bool)
    found = {"follows_truth": float(np.corrcoef(learned[apart], truth[apart])[0, 1])}
    order = leaves_list(linkage(truth, "average", optimal_ordering=True))
    return {"pre": found, "post": found, "matrix": learned[np.ix_(order, order)]}


def no_change(seed: int, source: dict[str, Any]) -> dict[str, float]:
    """The errors of saying that every speed stays as it is, the mean over sensors."""
    return {
        str(name): float(error) for name, error in persistence(data.load(**{"seed": seed, **source})).mean().items()
    }


def known(federation: Federation) -> np.ndarray:
    """Who belongs together, (K, K): the federation's own graph, or Σ_c min(p_c, q_c) of label distributions p, q."""
    if federation.graph is not None:
        return federation.graph.adjacency.toarray()
    counts = federation.label_counts("train").astype(float)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return np.minimum(shares[:, None], shares[None]).sum(axis=2)
