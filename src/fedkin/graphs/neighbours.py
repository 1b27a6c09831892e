"""Nearest neighbours of many clients, exact where that is quick, approximate where it is not; never a K×K array."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import scipy.sparse as sp

from fedkin.errors import FedkinError, unknown
from fedkin.streams import Streams

Search = Literal["auto", "exact", "approximate"]

EXACT_CLIENTS = 20_000
"""Up to this many clients all distances are computed, or a k-d tree is asked."""
EXACT_FEATURES = 5
"""Up to this many features a k-d tree answers quickly however many clients there are."""


def nearest(features: np.ndarray, k: int, search: Search = "auto", seed: int = 0) -> sp.csr_array:
    """Distances to the k nearest clients by their vectors (K, M): a (K, K) sparse array with k entries per row.

    `exact` asks scikit-learn (a k-d tree up to 15 features, else all distances). `approximate` asks PyNNDescent, which
    improves random neighbour lists through neighbours of neighbours; it finds nearly all (docs/graphs.md says how many)
    and, for a seed, always the same. `auto` is exact up to 20,000 clients or 5 features.

    Reference: Dong, Moses and Li, Efficient k-nearest neighbor graph construction for generic similarity measures, 2011.
    """
    if search not in get_args(Search):
        raise unknown("search for nearest neighbours", search, get_args(Search))
    clients, width = features.shape
    quick = clients <= EXACT_CLIENTS or width <= EXACT_FEATURES
    if search == "exact" or (search == "auto" and quick):
        from sklearn.neighbors import NearestNeighbors

        return sp.csr_array(NearestNeighbors(n_neighbors=k).fit(features).kneighbors_graph(mode="distance"))
    return _descended(features, k, seed)


def _descended(features: np.ndarray, k: int, seed: int) -> sp.csr_array:
    clients, width = features.shape
    try:
        from pynndescent import NNDescent
    except ImportError as problem:
        raise FedkinError(
            f"the nearest among {clients:,} clients by {width} features are found by PyNNDescent: "
            f"pip install 'fedkin[neighbours]' (or give at most {EXACT_FEATURES} features, or search='exact')"
        ) from problem
    # The lists are longer than asked for, which is what makes them nearly complete; a client is in its own.
    listed = min(clients - 1, max(30, 2 * k + 1))
    state = Streams(seed).integer("neighbours") % 2**31
    found, distance = NNDescent(features.astype(np.float32), n_neighbors=listed, random_state=state).neighbor_graph
    others = (found != np.arange(clients)[:, None]) & (found >= 0)
    first = np.argsort(~others, axis=1, kind="stable")[:, :k]
    short = np.flatnonzero(others.sum(axis=1) < k)
    if len(short):
        raise FedkinError(
            f"PyNNDescent found fewer than {k} neighbours of client {int(short[0])} (many equal vectors?); "
            "use a smaller k or search='exact'"
        )
    columns = np.take_along_axis(found, first, axis=1).ravel()
    values = np.take_along_axis(distance, first, axis=1).ravel().astype(np.float64)
    return sp.csr_array((values, columns, np.arange(clients + 1) * k), shape=(clients, clients))
