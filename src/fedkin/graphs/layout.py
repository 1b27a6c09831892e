"""Where clients go in a picture of their graph, and which of them belong together."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from fedkin.graphs.client_graph import ClientGraph
from fedkin.streams import Streams

LOUVAIN_LIMIT = 2_000
"""Up to so many clients communities are found by Louvain's method, which is slow in Python."""


def strongest_edges(adjacency: sp.csr_array, per_client: int) -> sp.csr_array:
    """The edges that are among the `per_client` strongest of one of their two clients, (K, K), symmetric."""
    edges = adjacency.tocoo()
    order = np.lexsort((edges.col, -edges.data, edges.row))
    row = edges.row[order]
    rank = np.arange(len(row)) - np.searchsorted(row, row)
    kept = order[rank < per_client]
    half = sp.coo_array((edges.data[kept], (edges.row[kept], edges.col[kept])), shape=adjacency.shape).tocsr()
    return sp.csr_array(half.maximum(half.T))


def communities(graph: ClientGraph, seed: int = 0) -> np.ndarray:
    """Groups of clients with strong edges among themselves, (K,) codes, the largest group first.

    Louvain's method (Blondel et al. 2008) up to 2,000 clients. Above, spectral clustering (Ng, Jordan and Weiss 2001)
    with the smoothest modes found by a few subspace iterations of I + D^(−1/2) A D^(−1/2), linear in the edges.
    """
    if len(graph) > LOUVAIN_LIMIT:
        return _by_size(_diffused(graph, seed))
    import networkx as nx

    picture = nx.from_scipy_sparse_array(strongest_edges(graph.adjacency, 10))
    found = nx.community.louvain_communities(picture, weight="weight", seed=seed)
    codes = np.empty(len(graph), dtype=int)
    for code, members in enumerate(found):
        codes[list(members)] = code
    return _by_size(codes)


def _diffused(graph: ClientGraph, seed: int, modes: int = 24, steps: int = 60) -> np.ndarray:
    from sklearn.cluster import MiniBatchKMeans

    signals = Streams(seed).generator("groups").normal(size=(len(graph), modes))
    root = sp.diags_array(1 / np.sqrt(np.maximum(graph.degrees, 1e-300)))
    smooth = root @ graph.adjacency @ root
    for _ in range(steps):
        signals = np.linalg.qr(signals + smooth @ signals)[0]
    signals /= np.maximum(np.linalg.norm(signals, axis=1, keepdims=True), 1e-300)
    groups = int(np.clip(np.sqrt(len(graph)) / 3, 12, 60))
    return MiniBatchKMeans(groups, random_state=seed, n_init=3, batch_size=4096).fit_predict(signals)


def _by_size(codes: np.ndarray) -> np.ndarray:
    """Codes 0, 1, … from the largest group to the smallest (ties: by first member)."""
    labels, first, inverse, counts = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
    rank = np.empty(len(labels), dtype=int)
    rank[np.lexsort((first, -counts))] = np.arange(len(labels))
    return rank[inverse]


def positions(graph: ClientGraph, seed: int = 0) -> np.ndarray:
    """Coordinates in the unit square, (K, 2): each connected part by springs, parts side by side, none on top of another.

    >>> positions(ClientGraph([[0, 1], [1, 0]])).shape
    (2, 2)
    """
    parts = graph.components()
    sizes = np.bincount(parts)
    corner, place = _shelves(np.sqrt(sizes)), np.zeros((len(graph), 2))
    for part, size in enumerate(sizes):
        members = np.flatnonzero(parts == part)
        local = _springs(graph.take(members), seed) if size > 1 else np.full((1, 2), 0.5)
        place[members] = corner[part] + np.sqrt(size) * (0.06 + 0.88 * local)
    return _unit(_apart(_unit(place), seed))


def _springs(graph: ClientGraph, seed: int) -> np.ndarray:
    """Fruchterman and Reingold's springs (1991) from a spectral start, in the unit square, (K, 2).

    Any two clients repel each other with k²/d, neighbours attract with w d²/k, k = 1/√K; weights are scaled to a mean
    degree of 4, so that a dense graph does not collapse, and a weak pull to the middle keeps the picture compact.
    """
    from scipy.spatial.distance import cdist

    clients = len(graph)
    near = strongest_edges(graph.adjacency, 6 if clients > 60 else 10)
    near = near * (4 * clients / near.sum())
    rng = Streams(seed).generator("layout")
    place = rng.uniform(size=(clients, 2))
    if 3 < clients <= 1_000:
        place = 0.7 * _unit(graph.eigen()[1][:, 1:3]) + 0.3 * place
    row = np.repeat(np.arange(clients), np.diff(near.indptr))
    ideal, rounds = 1 / np.sqrt(clients), 120 if clients <= 500 else 60
    for step in np.linspace(0.1, 0.002, rounds):
        push = ideal**2 / np.maximum(cdist(place, place, "sqeuclidean"), 1e-8)
        np.fill_diagonal(push, 0)
        pull = near.copy()
        pull.data = near.data * np.linalg.norm(place[row] - place[near.indices], axis=1) / ideal
        move = place * (push.sum(axis=1) - pull.sum(axis=1))[:, None] - push @ place + pull @ place
        move -= 0.6 * (place - place.mean(axis=0))
        length = np.maximum(np.linalg.norm(move, axis=1, keepdims=True), 1e-12)
        place = place + move / length * np.minimum(length, step)
    return _unit(place)


def _shelves(widths: np.ndarray) -> np.ndarray:
    """Lower left corners that pack squares in rows, the largest first, (parts, 2)."""
    limit = max(float(np.sqrt((widths**2).sum()) * 1.1), float(widths.max()))
    corner, x, y, height = np.zeros((len(widths), 2)), 0.0, 0.0, 0.0
    for part in np.argsort(-widths, kind="stable"):
        if x + widths[part] > limit + 1e-9:
            x, y, height = 0.0, y + height, 0.0
        corner[part] = x, y
        x, height = x + widths[part], max(height, float(widths[part]))
    return corner


def _apart(place: np.ndarray, seed: int, rounds: int = 100) -> np.ndarray:
    """Push clients that touch away from each other, so that every one can be seen and pointed at."""
    from scipy.spatial import cKDTree

    distance = 0.62 / np.sqrt(len(place))
    place = place + 1e-6 * Streams(seed).generator("apart").normal(size=place.shape)
    for _ in range(rounds):
        pairs = cKDTree(place).query_pairs(distance, output_type="ndarray")
        if not len(pairs):
            break
        gap = place[pairs[:, 0]] - place[pairs[:, 1]]
        length = np.maximum(np.linalg.norm(gap, axis=1, keepdims=True), 1e-12)
        push = gap / length * (distance - length) / 2
        np.add.at(place, pairs[:, 0], push)
        np.add.at(place, pairs[:, 1], -push)
    return place


def _unit(place: np.ndarray) -> np.ndarray:
    """Scaled to the unit square without changing its proportions, centred."""
    low, extent = place.min(axis=0), np.ptp(place, axis=0)
    return (place - low - extent / 2) / max(float(extent.max()), 1e-12) + 0.5
