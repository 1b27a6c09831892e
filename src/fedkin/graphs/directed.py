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


def peers_of(weights: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """What `directed` takes, from A (K, K): peers (K, p) and weights (K, 1 + p), own first; where there are fewer, weight 0.

    >>> peers, shares = peers_of(sp.csr_array(np.array([[0.75, 0.25], [0.0, 1.0]])))
    >>> bool((directed(peers, shares).toarray() == [[0.75, 0.25], [0.0, 1.0]]).all())
    True
    """
    clients = weights.shape[0]
    others = sp.csr_array(weights - sp.diags_array(weights.diagonal()))
    others.eliminate_zeros()
    count = np.diff(others.indptr)
    width = int(count.max(initial=0))
    real = np.arange(width)[None, :] < count[:, None]
    peers, shares = np.zeros((clients, width), dtype=np.int64), np.zeros((clients, 1 + width))
    peers[real], shares[:, 1:][real], shares[:, 0] = others.indices, others.data, weights.diagonal()
    return peers, shares
