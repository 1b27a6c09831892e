"""Coupling through cluster centres: assign → centres → propagate → hand back (FedCedar; without the third step: IFCA, FedSem)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.couplings.coupling import Coupling
from fedkin.errors import FedkinError

MEAN, KEEP = -1, -2
"""What a client may be handed back instead of a cluster's model: the mean over clusters, or what it has."""

SimOn = Literal["params", "updates", "centred"]


class ClusterPropagation(Coupling):
    """M = H Rᴾ C: members are averaged into centres, centres mixed P times along their graph, models handed back.

    C (c, K) averages the `members` by their `labels` 0 … c−1 (equally, or by `weights`), R (c, c) is the `relation` of the
    centres with rows that sum to 1 (default: none, R = I), and row k of H picks what client k gets: the model of cluster
    `hand_back[k]`, the mean of all models (`MEAN`), or its own row unchanged (`KEEP`). Rows outside `members` are read
    for `KEEP` only.

    >>> coupling = ClusterPropagation([0, 1, 2], [0, 0, 1], hand_back=[0, 0, 1, MEAN, KEEP])
    >>> coupling.apply(torch.tensor([[0.0], [2.0], [5.0], [8.0], [9.0]])).ravel()
    tensor([1., 1., 5., 3., 9.])
    """

    def __init__(
        self,
        members: np.ndarray | list[int],
        labels: np.ndarray | list[int],
        hand_back: np.ndarray | list[int],
        relation: np.ndarray | None = None,
        propagations: int = 0,
        weights: np.ndarray | None = None,
    ) -> None:
        self.members, self.labels, self.hand_back = (
            np.asarray(a, dtype=np.int64) for a in (members, labels, hand_back)
        )
        self.clients = len(self.hand_back)
        sizes = np.bincount(self.labels)
        if len(self.members) != len(self.labels) or not len(sizes) or not sizes.all():
            raise FedkinError("ClusterPropagation needs one label per member, 0 … c−1, and no empty cluster")
        if propagations < 0:
            raise FedkinError(f"ClusterPropagation: propagations = {propagations}; use 0 or more")
        self.averages = averaging(self.labels, weights)
        self.relation = np.eye(len(sizes)) if relation is None else relation
        self.mixing = np.linalg.matrix_power(self.relation, propagations)

    def models(self, rows: Tensor) -> Tensor:
        """Rᴾ C Ω, the model of each cluster, (c, B)."""
        through = torch.as_tensor(self.mixing @ self.averages, dtype=rows.dtype)
        return through @ rows[torch.as_tensor(self.members)]

    def apply(self, rows: Tensor) -> Tensor:
        models = self.models(self._check(rows))
        mean = models.mean(dim=0, keepdim=True)
        if (self.hand_back == MEAN).all():
            return mean.expand(self.clients, -1)
        kept = torch.as_tensor(self.hand_back == KEEP)
        handed = torch.cat([models, mean])[np.where(self.hand_back < 0, len(models), self.hand_back)]
        handed[kept] = rows[kept]
        return handed


def averaging(labels: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """C (c, m): row i averages the members with label i, equally or by their weights (m,)."""
    share = np.ones(len(labels)) if weights is None else np.asarray(weights, dtype=np.float64)
    averages = np.zeros((labels.max() + 1, len(labels)))
    averages[labels, np.arange(len(labels))] = share / np.bincount(labels, share)[labels]
    return averages


def by_members(relation: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """R_ij n_j / Σ_l R_il n_l (c, c): clusters of n_j members that speak for them, not each as one.

    >>> by_members(np.full((2, 2), 0.5), np.array([0, 0, 0, 1]))
    array([[0.75, 0.25],
           [0.75, 0.25]])
    """
    spoken = relation * np.bincount(labels)
    return np.asarray(spoken / spoken.sum(axis=1, keepdims=True))


def handed_back(names: np.ndarray, last: np.ndarray) -> np.ndarray:
    """What each client is handed back by its last cluster: `names` (c,) are the clusters of this round, `last` (K,).

    A client whose cluster was formed this round gets its model, one whose cluster was not keeps what it has, one that
    never had a cluster (−1) gets the mean.

    >>> handed_back(np.array([4, 7]), np.array([7, 4, 5, -1]))
    array([ 1,  0, -2, -1])
    """
    place = {int(name): code for code, name in enumerate(names)}
    return np.array([MEAN if name < 0 else place.get(int(name), KEEP) for name in last], dtype=np.int64)


def cosines(centres: Tensor) -> np.ndarray:
    """cos(c_i, c_j) of the centres (c, B), float64, with ones on the diagonal; 0 next to a zero row."""
    gram = torch.zeros((len(centres), len(centres)), dtype=torch.float64)
    for part in centres.split(2**16, dim=1):
        block = part.double()
        gram += block @ block.T
    norms = gram.diagonal().sqrt()
    norms = torch.where(norms > 0, norms, 1)
    found = (gram / norms[:, None] / norms[None, :]).clamp(-1, 1).cpu().numpy()
    np.fill_diagonal(found, 1.0)
    return found


def relate(similarity: np.ndarray, temperature: float | None = None, minmax: bool = False) -> np.ndarray:
    """The relation R (c, c) of centres with these similarities: rows sum to 1, self included.

        r_ij = max(s_ij, 0) / Σ_j max(s_ij, 0),      or with a temperature   r_ij = exp(s_ij/T) / Σ_j exp(s_ij/T)

    `minmax` first stretches the similarities off the diagonal to [0, 1]: the least similar pair gets 0, the most similar
    1, as much as a centre has to itself. (Where they are all alike there is nothing to stretch.)

    >>> relate(np.array([[1.0, 0.6], [0.6, 1.0]]))
    array([[0.625, 0.375],
           [0.375, 0.625]])
    """
    similarity = similarity.copy()
    apart = ~np.eye(len(similarity), dtype=bool)
    if minmax and apart.any() and np.ptp(similarity[apart]) > 0:
        similarity[apart] = (similarity[apart] - similarity[apart].min()) / np.ptp(similarity[apart])
    if temperature is None:
        weights = np.maximum(similarity, 0)
    else:
        weights = np.exp((similarity - similarity.max(axis=1, keepdims=True)) / temperature)
    return weights / weights.sum(axis=1, keepdims=True)
