"""Graphs from what clients are like: data statistics, feature vectors, places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import scipy  # its parts are imported when they are first used
import scipy.sparse as sp

from fedkin.errors import FedkinError, unknown
from fedkin.graphs.builders import ClientNames
from fedkin.graphs.client_graph import ClientGraph
from fedkin.graphs.neighbours import Search, nearest

Weights = Literal["similarity", "gaussian", "literal", "literal_raw"]
WeightScale = Literal["max", "mean_degree"]
Moment = Literal["mean", "variance", "skewness", "kurtosis"]
LEAST = 0.05
"""The least similarity: the two clients that differ most keep an edge, so that two clients alone are joined."""
EARTH_KM = 6371.0088


def from_statistics(
    stats: np.ndarray | Sequence[np.ndarray],
    names: ClientNames = None,
    weights: Weights = "similarity",
    scale: WeightScale | None = None,
    moments: Sequence[Moment] = get_args(Moment),
    published: bool = False,
) -> ClientGraph:
    """FedPnP's graph: from the moments (K, 4, M) of every client (`fedkin.graphs.statistics.moments`).

    d_ij is the mean over the chosen `moments` of ‖s_r^i − s_r^j‖ / D_r, D_r the mean of ‖s_r^i − s_r^j‖ over pairs, so that
    each counts alike; the paper (`published`) has no D_r, and kurtosis is then most of the distance. `weights`:
    `similarity` max(1 − d/max d, 0.05) (`published`: without the 0.05, so that the farthest pair is not joined);
    `gaussian` exp(−d²/σ²), σ the median distance of two clients; `literal` d/max d and `literal_raw` d, which follow
    the paper's text and pull the most different clients together hardest. `scale`: `max` makes the largest weight 1,
    `mean_degree` makes the average degree K − 1, so that one β means the same on every data set.
    """
    for name in moments or ("",):
        if name not in get_args(Moment):
            raise unknown("moment of the statistics graph", name, get_args(Moment))
    if weights not in get_args(Weights):
        raise unknown("weights of the statistics graph", weights, get_args(Weights))
    if scale is not None and scale not in get_args(WeightScale):
        raise unknown("scale of the statistics graph", scale, get_args(WeightScale))
    told, chosen = _stacked(stats, names), [get_args(Moment).index(name) for name in moments]
    apart = [scipy.spatial.distance.cdist(told[:, r], told[:, r]) for r in chosen]
    distance = np.mean(apart if published else [d / (d.sum() or 1.0) * (d.size - len(d)) for d in apart], axis=0)
    largest = distance.max(initial=0.0) or 1.0
    if weights == "similarity":
        return ClientGraph(_scaled(_alike(distance, 0 if published else LEAST), scale), names)
    if weights == "gaussian":
        adjacency = np.exp(-((distance / _median(distance)) ** 2))
    else:
        adjacency = distance / largest if weights == "literal" else distance
    np.fill_diagonal(adjacency, 0)
    return ClientGraph(_scaled(adjacency, scale), names)


def from_models(rows: np.ndarray, names: ClientNames = None) -> ClientGraph:
    """FedPnP's graph learned from models (appendix A.5), one row of parameters per client (K, P).

    The paper has A_ij grow with the distance ‖w_i − w_j‖; here it falls with it, max(1 − d/max d, 0.05).

    >>> from_models(np.array([[0.0], [1.0], [4.0]])).adjacency.toarray()
    array([[0.  , 0.75, 0.05],
           [0.75, 0.  , 0.25],
           [0.05, 0.25, 0.  ]])
    """
    rows = _features(rows, names)
    return ClientGraph(_alike(scipy.spatial.distance.cdist(rows, rows), LEAST), names)


def correlated(features: np.ndarray, names: ClientNames = None) -> ClientGraph:
    """a_ij = max(0, Pearson's correlation of two clients' vectors (K, M)), FedPnP's figure 5; 0 where a vector is constant.

    >>> correlated(np.array([[0.0, 1.0, 2.0], [0.0, 2.0, 4.0], [2.0, 1.0, 0.0]])).adjacency.toarray().round(9)
    array([[0., 1., 0.],
           [1., 0., 0.],
           [0., 0., 0.]])
    """
    features = _features(features, names)
    centred = features - features.mean(axis=1, keepdims=True)
    size = np.linalg.norm(centred, axis=1)
    unit = centred / np.where(size > 0, size, 1.0)[:, None]
    adjacency = (unit @ unit.T).clip(0, 1)
    np.fill_diagonal(adjacency, 0)
    return ClientGraph((adjacency + adjacency.T) / 2, names)


def input_divergence(stats: np.ndarray, names: ClientNames = None) -> ClientGraph:
    """a_ij = exp(−J_ij/σ), J the symmetric Kullback–Leibler divergence of two clients' inputs, σ its median over pairs.

    From means and variances alone, of moments (K, 4, M): every feature is taken for normal,
    J_ij = mean_m [ (v_i/v_j + v_j/v_i)/2 − 1 + (μ_i − μ_j)² (1/v_i + 1/v_j)/2 ]. A thousandth of a feature's mean variance is added
    to each; features that vary nowhere are left out.
    """
    told = _stacked(stats, names)
    mean, variance = told[:, 0], told[:, 1]
    varies = variance.mean(axis=0) > 0
    mean, variance = mean[:, varies], variance[:, varies] * 1.0
    variance += 1e-3 * variance.mean(axis=0)
    apart = np.zeros((len(told), len(told)))
    for i in range(len(told) if varies.any() else 0):
        ratio = (variance / variance[i] + variance[i] / variance) / 2 - 1
        apart[i] = (ratio + np.square(mean - mean[i]) * (1 / variance + 1 / variance[i]) / 2).mean(axis=1)
    return ClientGraph(_falling(apart), names)


def label_divergence(counts: np.ndarray, names: ClientNames = None) -> ClientGraph:
    """a_ij = exp(−J_ij/σ), J the symmetric Kullback–Leibler divergence of label shares, from counts (K, C) with 1/2 added to each.

    >>> weights = label_divergence(np.array([[9, 1], [9, 1], [1, 9]])).adjacency.toarray()
    >>> bool(weights[0, 1] == 1 and weights[0, 2] < weights[0, 1])
    True
    """
    share = _features(counts, names) + 0.5
    share /= share.sum(axis=1, keepdims=True)
    logs = np.log(share)
    own = (share * logs).sum(axis=1)
    across = share @ logs.T
    apart = (own[:, None] + own[None, :] - across - across.T) / 2
    return ClientGraph(_falling(apart.clip(0)), names)


def _alike(distance: np.ndarray, least: float) -> np.ndarray:
    """max(1 − d/max d, least) off the diagonal, (K, K)."""
    adjacency = (1 - distance / (distance.max(initial=0.0) or 1.0)).clip(least)
    np.fill_diagonal(adjacency, 0)
    return adjacency


def _falling(apart: np.ndarray) -> np.ndarray:
    """exp(−d/median d) off the diagonal, (K, K)."""
    adjacency = np.exp(-(apart + apart.T) / 2 / _median(apart))
    np.fill_diagonal(adjacency, 0)
    return adjacency


def gaussian(features: np.ndarray, names: ClientNames = None, sigma: float | None = None) -> ClientGraph:
    """a_ij = exp(−‖x_i − x_j‖²/σ²) for all pairs, from one vector per client (K, M); σ: the median distance."""
    features = _features(features, names)
    distance = scipy.spatial.distance.cdist(features, features)
    adjacency = np.exp(-((distance / (sigma or _median(distance))) ** 2))
    np.fill_diagonal(adjacency, 0)
    return ClientGraph(adjacency, names)


def knn(
    features: np.ndarray,
    k: int = 5,
    names: ClientNames = None,
    weights: Literal["binary", "gaussian"] = "binary",
    search: Search = "auto",
    seed: int = 0,
) -> ClientGraph:
    """Clients are joined when one is among the k nearest of the other, from one vector per client (K, M).

    Weight 1, or exp(−d²/σ²) with σ the median distance of the joined (`gaussian`). No K×K array is formed; `search` says
    whether neighbours are found exactly or approximately (see `fedkin.graphs.neighbours.nearest`).
    """
    features = _features(features, names)
    if weights not in ("binary", "gaussian"):
        raise unknown("weights of the kNN graph", weights, ("binary", "gaussian"))
    if not 1 <= k < len(features):
        raise FedkinError(f"knn: k must be from 1 to {len(features) - 1} (one less than the clients), not {k}")
    near = nearest(features, k, search, seed)
    return ClientGraph(_joined(near, None if weights == "binary" else _median(near.data)), names)


def coordinates(
    latlon: np.ndarray,
    k: int | None = None,
    radius: float | None = None,
    names: ClientNames = None,
    sigma: float | None = None,
    threshold: float = 0.1,
) -> ClientGraph:
    """Places on Earth (K, 2), latitude and longitude in degrees: a_ij = exp(−d²/σ²), weights under `threshold` dropped.

    d is the great-circle distance in km, among the `k` nearest or within `radius` km (give one). σ: root mean square of
    those distances, so that a typical neighbour weighs e⁻¹.
    """
    from sklearn.neighbors import NearestNeighbors

    places = _features(latlon, names)
    if places.shape[1:] != (2,) or (abs(places[:, 0]) > 90).any():
        raise FedkinError("coordinates must be (clients, 2): latitude from −90 to 90 and longitude, in degrees")
    if (k is None) == (radius is None):
        raise FedkinError("coordinates: give either k (nearest clients) or radius (km)")
    if k is not None and not 1 <= k < len(places):
        raise FedkinError(f"coordinates: k must be from 1 to {len(places) - 1} (one less than the clients), not {k}")
    search = NearestNeighbors(metric="haversine", algorithm="ball_tree").fit(np.radians(places))
    if k is not None:
        near = search.kneighbors_graph(n_neighbors=k, mode="distance")
    elif radius is not None and radius > 0:
        near = search.radius_neighbors_graph(radius=radius / EARTH_KM, mode="distance")
    else:
        raise FedkinError(f"coordinates: radius must be positive (km), not {radius!r}")
    near = sp.csr_array(near) * EARTH_KM
    adjacency = _joined(near, sigma or float(np.sqrt(np.mean(near.data**2))) if near.nnz else 1.0)
    adjacency.data[adjacency.data < threshold] = 0
    return ClientGraph(adjacency, names)


def _joined(near: sp.csr_array, sigma: float | None) -> sp.csr_array:
    """Weights from directed neighbour distances; joined when either names the other, also at distance 0."""
    weight = near.copy()
    weight.data = np.ones_like(near.data) if sigma is None else np.exp(-((near.data / (sigma or 1.0)) ** 2))
    return sp.csr_array(weight.maximum(weight.T))


def _median(distance: np.ndarray) -> float:
    """The median off-diagonal (or listed) distance; 1 where it is 0, so that twins get weight 1."""
    listed = distance if distance.ndim == 1 else distance[np.triu_indices(len(distance), 1)]
    return float(np.median(listed)) or 1.0 if len(listed) else 1.0


def _scaled(adjacency: np.ndarray, scale: WeightScale | None) -> np.ndarray:
    clients = len(adjacency)
    if scale is None or not adjacency.any():
        return adjacency
    return adjacency / adjacency.max() if scale == "max" else adjacency * (clients - 1) * clients / adjacency.sum()


def _name(names: ClientNames, k: int) -> str:
    return f"client-{k}" if names is None else names[k]


def _stacked(stats: np.ndarray | Sequence[np.ndarray], names: ClientNames) -> np.ndarray:
    """(K, 4, M), refused with the client's name where one client's statistics do not fit."""
    parts = [np.asarray(part, dtype=float) for part in stats]
    for k, part in enumerate(parts):
        if part.ndim != 2 or part.shape[0] != 4 or part.shape != parts[0].shape:
            raise FedkinError(
                f"client {_name(names, k)!r}: its statistics have shape {part.shape}, expected (4, features) "
                f"{parts[0].shape} as for {_name(names, 0)!r}; all clients must have the same features"
            )
        if not np.isfinite(part).all():
            raise FedkinError(f"client {_name(names, k)!r}: its statistics are not finite; look for NaN in its data")
    return np.stack(parts)


def _features(features: np.ndarray, names: ClientNames) -> np.ndarray:
    features = np.asarray(features, dtype=float)
    if features.ndim != 2:
        raise FedkinError(f"features must be one vector per client (K, M), not of shape {features.shape}")
    bad = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(bad):
        raise FedkinError(f"client {_name(names, int(bad[0]))!r}: its features are not finite")
    return features
