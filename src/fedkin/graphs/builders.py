"""Graphs that need no features: from nothing, from label counts, from data sizes, from chance."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import scipy.sparse as sp

from fedkin.errors import FedkinError
from fedkin.graphs.client_graph import ClientGraph
from fedkin.streams import Streams, client_keys

ClientNames = Sequence[str] | None


def complete(names: Sequence[str], weight: float = 1.0) -> ClientGraph:
    """Everyone is joined to everyone: a_kl = weight.

    >>> complete(["a", "b", "c"])
    ClientGraph(3 clients, 3 edges, 1 component, mean degree 2)
    """
    adjacency = np.full((len(names), len(names)), float(weight))
    np.fill_diagonal(adjacency, 0)
    return ClientGraph(adjacency, names)


def equal(names: Sequence[str], weight: float = 0.5) -> ClientGraph:
    """FedU's graph E: a_kl = 0.5 for all pairs."""
    return complete(names, weight)


def empty(names: Sequence[str]) -> ClientGraph:
    """No edges: every client alone."""
    return ClientGraph(sp.csr_array((len(names), len(names))), names)


@lru_cache(maxsize=4)
def starred(graph: ClientGraph, weight: float) -> ClientGraph:
    """A graph with one node more, the last, joined to every client by an edge of `weight`: a star where it has no edges.

    >>> starred(empty(["a", "b"]), 0.5).adjacency.toarray()
    array([[0. , 0. , 0.5],
           [0. , 0. , 0.5],
           [0.5, 0.5, 0. ]])
    """
    spokes = sp.csr_array(np.full((len(graph), 1), float(weight)))
    name = "hub"
    while name in graph.names:
        name += "'"
    return ClientGraph(
        sp.block_array([[graph.adjacency, spokes], [spokes.T, None]], format="csr"), (*graph.names, name)
    )


def label_overlap(counts: np.ndarray, names: ClientNames = None) -> ClientGraph:
    """FedU's graph S: a_kl = |labels_k ∩ labels_l| / |labels_k ∪ labels_l|, from label counts (K, C).

    >>> label_overlap(np.array([[5, 5, 0], [0, 1, 1], [0, 0, 9]])).adjacency.toarray().round(2)
    array([[0.  , 0.33, 0.  ],
           [0.33, 0.  , 0.5 ],
           [0.  , 0.5 , 0.  ]])
    """
    holds = (_counts(counts, names) > 0).astype(float)
    both = holds @ holds.T
    either = holds.sum(axis=1)[:, None] + holds.sum(axis=1)[None, :] - both
    return _off_diagonal(np.divide(both, either, out=np.zeros_like(both), where=either > 0), names)


def shared_labels(counts: np.ndarray, names: ClientNames = None, main: int = 5) -> ClientGraph:
    """FedSKA's given graph: clients are joined (weight 1) when they share one of their `main` most frequent labels."""
    counts = _counts(counts, names)
    rank = np.argsort(np.argsort(-counts, axis=1, kind="stable"), axis=1)
    holds = ((rank < main) & (counts > 0)).astype(float)
    return _off_diagonal((holds @ holds.T > 0).astype(float), names)


def data_sizes(sizes: np.ndarray, names: ClientNames = None) -> ClientGraph:
    """FedU's graph W: 0 between two small clients, 0.5 between a small and a large one, 1 between two large ones.

    A client is large when it has at least the median number of samples.

    >>> data_sizes(np.array([10, 20, 30])).adjacency.toarray()
    array([[0. , 0.5, 0.5],
           [0.5, 0. , 1. ],
           [0.5, 1. , 0. ]])
    """
    sizes = np.asarray(sizes, dtype=float)
    if sizes.ndim != 1 or not np.isfinite(sizes).all():
        raise FedkinError("data sizes must be one finite number per client")
    large = (sizes >= np.median(sizes)).astype(float)
    return _off_diagonal((large[:, None] + large[None, :]) / 2, names)


def random(names: Sequence[str], seed: int, below: float = 0.25) -> ClientGraph:
    """FedU's graph R: (u_kl + u_lk)/2 with u uniform on (0, 1), values under 0.25 set to 0.

    u_kl is drawn from the two clients' names, so their weight does not depend on who else is there or in which order.
    """
    first, second = _pair_words(names, seed, "random-graph")
    draws = _uniform(first[:, None] + second[None, :], seed)
    weights = (draws + draws.T) / 2
    return _off_diagonal(np.where(weights < below, 0.0, weights), names)


def sbm(
    clusters: Sequence[int] | np.ndarray, p_in: float, p_out: float, seed: int, names: ClientNames = None
) -> ClientGraph:
    """Stochastic block model: an edge of weight 1 with probability p_in inside a cluster and p_out between clusters."""
    labels = np.asarray(clusters)
    for name, p in (("p_in", p_in), ("p_out", p_out)):
        if not 0 <= p <= 1:
            raise FedkinError(f"sbm: {name} is a probability, not {p!r}")
    names = [f"client-{k}" for k in range(len(labels))] if names is None else names
    first, _ = _pair_words(names, seed, "sbm")
    edges = []
    for at in range(0, len(labels), 1_000):  # a slice of rows at a time: K×K numbers are never held
        rows = slice(at, at + 1_000)
        chance = np.where(labels[rows, None] == labels[None, :], p_in, p_out)
        joined = _uniform(first[rows, None] + first[None, :], seed) < chance
        joined &= np.arange(len(labels))[rows, None] != np.arange(len(labels))[None, :]
        edges.append(sp.csr_array(joined.astype(float)))
    return ClientGraph(sp.vstack(edges, format="csr"), names)


def _pair_words(names: Sequence[str], seed: int, purpose: str) -> tuple[np.ndarray, np.ndarray]:
    """Two random words per client; their sums name ordered (first + second) or unordered (first + first) pairs."""
    keys, streams = client_keys(names), Streams(seed)
    return streams.words(purpose, 0, keys), streams.words(purpose, 1, keys)


def _uniform(words: np.ndarray, seed: int) -> np.ndarray:
    """Uniform numbers in [0, 1) from sums of words."""
    return (Streams(seed).words("pair", 0, words) >> np.uint64(11)) * 2.0**-53


def _off_diagonal(weights: np.ndarray, names: ClientNames) -> ClientGraph:
    np.fill_diagonal(weights, 0)
    return ClientGraph(weights, names)


def _counts(counts: np.ndarray, names: ClientNames) -> np.ndarray:
    counts = np.asarray(counts, dtype=float)
    if counts.ndim != 2 or not np.isfinite(counts).all() or (counts < 0).any():
        raise FedkinError("label counts must be a (clients, labels) array of numbers ≥ 0")
    return counts
