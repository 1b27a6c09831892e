"""Trust: which neighbours keep their weight in a robust coupling, by what their models do or where their updates point.

A judge takes rows (K, B) and the groups of a coupling — who gets a row, of whom it is made, with which weights — and gives
the groups with weights m_ij·t_ij, t_ij from 0 to 1. What is taken from others a client gives to itself; where several clients
get the same row the weights are scaled to the same sum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedkin.couplings import aggregation
from fedkin.couplings.coupling import Group

Judge = Callable[[Tensor, list[Group]], list[Group]]

Witness = Callable[[sp.csr_array], tuple[sp.csr_array, np.ndarray]]
"""The pairs (i, j) that matter, (K, K) → the loss of model j on client i's samples on these pairs, and its noise (K,)."""


def by_evidence(witness: Witness, strength: float = 1.0) -> Judge:
    """t_ij = `trust_in` what model j does on client i's own samples; clients that get the same row judge `together`."""

    def judge(rows: Tensor, groups: list[Group]) -> list[Group]:
        losses, noise = witness(_pairs(groups, len(rows)))

        def trust(group: Group, others: np.ndarray) -> np.ndarray:
            clients, sources, _ = group
            if len(clients) == 1:
                told, error = losses[[int(clients[0])]][:, sources[others]].toarray()[0], float(noise[clients[0]])
            else:
                own = clients[:, None] == sources[None, others]
                told, error = together(losses[clients][:, sources[others]].toarray(), own)
            return trust_in(told, error, strength)

        return [_weighed(group, trust) for group in groups]

    return judge


def by_direction(before: Tensor, strength: float = 1.0) -> Judge:
    """t_ij = `aligned` update j with client i's own; where several get the same row, with the geometric median of directions.

    `before` (K, B) are the rows clients started from. Nothing is asked of clients. With a trusted update of the server's in
    place of the client's own: Cao et al., FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping, 2021.
    """

    def judge(rows: Tensor, groups: list[Group]) -> list[Group]:
        ways = torch.nn.functional.normalize(rows.double() - before.double(), dim=1)

        def trust(group: Group, others: np.ndarray) -> np.ndarray:
            clients, sources, weights = group
            among = ways[torch.from_numpy(sources[others])]
            moved = among.any(dim=1)
            if len(clients) == 1:
                centre = ways[int(clients[0])]
            elif int(moved.sum()) > 2:
                share = torch.from_numpy(weights[others]).abs()[moved]
                centre, _ = aggregation.geometric_median(among[moved], share / share.sum())
            else:
                return np.ones(len(among))
            trusted = np.ones(len(among))  # who did not move is not judged
            trusted[moved.cpu().numpy()] = aligned((among[moved] @ centre).cpu().numpy(), strength)
            return trusted

        return [_weighed(group, trust) for group in groups]

    return judge


def _weighed(group: Group, trust: Callable[[Group, np.ndarray], np.ndarray]) -> Group:
    """The group with weights by trust in the others (a mask of the sources)."""
    clients, sources, weights = group
    alone = len(clients) == 1
    others = sources != clients[0] if alone else np.ones(len(sources), dtype=bool)
    if others.sum() < 2 or not len(clients):
        return group
    trusted = weights[others] * trust(group, others)
    if alone:
        rest = weights.sum() - trusted.sum()
        return clients, np.append(sources[others], clients[0]), np.append(trusted, rest)
    return clients, sources, trusted * (weights.sum() / trusted.sum())


def together(losses: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, float]:
    """What several clients say of models: per model, the trimmed mean over clients of its loss beyond the client's median.

    `losses` (clients, models), `own` the same shape: a client has no say about its own model. Also gives the median
    standard error of these means. Liars are trimmed: a quarter at both ends.
    """
    apart = np.where(own, np.nan, losses)
    apart = apart - np.nanmedian(apart, axis=1, keepdims=True)
    columns = [column[~np.isnan(column)] for column in apart.T]
    from scipy.stats import trim_mean  # a second of imports

    means = np.array([trim_mean(column, 0.25) if len(column) else 0.0 for column in columns])
    errors = [np.subtract(*np.percentile(c, [75, 25])) / 1.35 / len(c) ** 0.5 for c in columns if len(c)]
    return means, float(np.median(errors)) if errors else 0.0


def trust_in(losses: np.ndarray, noise: float, strength: float = 1.0) -> np.ndarray:
    """How much a client trusts others whose models have these losses on its own samples, (d,) from 0 to 1.

        t_j = exp(−strength·max(0, T_j − b) / s),   b = median T,   s = noise + (b − min T)

    The better half is trusted in full, beyond the median trust falls. The unit s is how far the better half spreads, plus the
    standard error of losses, so that a client needs no threshold and no number of attackers. Evidence comes from the client's
    own samples, as in UBAR (Guo et al., Byzantine-Resilient Decentralized Stochastic Gradient Descent, 2021).
    """
    middle = np.median(losses)
    spread = noise + middle - losses.min()
    return np.exp(-strength * np.maximum(0, losses - middle) / max(spread, 1e-12))


def aligned(along: np.ndarray, strength: float = 1.0) -> np.ndarray:
    """Trust in updates that go so far `along` a direction that can be trusted, cosines (d,) → (d,) from 0 to 1.

        t_j = clip(cos_j / median cos, 0, 1)^strength

    The better half is trusted in full, who goes sideways or back not at all. Where the median is not above 0 there is no common
    direction to judge by, and all are trusted.

    >>> aligned(np.array([0.6, 0.5, 0.4, 0.2, -0.9])).round(2).tolist()
    [1.0, 1.0, 1.0, 0.5, 0.0]
    """
    middle = np.median(along) if len(along) else 0.0
    if middle <= 0:
        return np.ones(len(along))
    found: np.ndarray = np.clip(along / middle, 0, 1) ** strength
    return found


def _pairs(groups: list[Group], clients: int) -> sp.csr_array:
    """1 at every (i, j) for which i ≠ j and m_ij ≠ 0."""
    i = np.concatenate([np.repeat(own, len(sources)) for own, sources, _ in groups])
    j = np.concatenate([np.tile(sources, len(own)) for own, sources, _ in groups])
    apart = i != j
    return sp.csr_array((np.ones(apart.sum()), (i[apart], j[apart])), shape=(clients, clients))
