"""Directed weights between clients: each takes shares from a few others and from itself."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp


def directed(peers: np.ndarray, weights: np.ndarray) -> sp.csr_array:
    """A (K, K), sparse, from every client's peers (K, p) and weights (K, 1 + p), its own first.

    >>> directed(np.array([[1], [0]]), np.array([[0.75, 0.25], [1.0, 0.0]])).toarray()
    array([[0.75, 0.25],
           [0.  , 1.  ]])
    """
    clients = len(peers)
    columns = np.concatenate([np.arange(clients)[:, None], peers], axis=1)
    start = np.repeat(np.arange(clients), columns.shape[1])
    found = sp.csr_array((weights.ravel(), (start, columns.ravel())), shape=(clients, clients))
    found.eliminate_zeros()
    return found
