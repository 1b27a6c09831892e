"""Robust couplings: the same graph and weights, but no neighbour moves a client further than its honest ones could.

A robust coupling is a plain one, Ψ = M Ω, whose sums Σ_j m_ij w_j are replaced by a rule that a minority cannot lead astray.
None needs to know how many clients are hostile; all need a client's neighbours to be mostly honest, by weight.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedkin.couplings import aggregation
from fedkin.couplings.aggregation import Aggregate
from fedkin.couplings.coupling import Coupling, Group

RobustRule = Callable[[Tensor, Tensor, int | None], Aggregate]
"""values (d, B), weights (d,) that sum to 1, the client's own place among them (None: several clients get this row)."""

Witness = Callable[[sp.csr_array], tuple[sp.csr_array, np.ndarray]]
"""The pairs (i, j) that matter, (K, K) → the loss of model j on client i's samples on these pairs, and its noise (K,)."""


class Robust(Coupling):
    """w_i ← rule over the rows j with m_ij ≠ 0, for every client i; clients with the same row of M get the same model.

    What a client gets of itself, m_ii w_i, is not in question: rules of the kind "mean, but robust" replace the part of the
    others, (1 − m_ii)·rule({w_j}, m_ij). Where several clients get the same row (FedAvg, a cluster) there is no "self", and
    the rule takes all of them.

    With `evidence` weights fall first: m_ij·t_ij, t_ij = `trust_in` what the models do on client i's own samples. What is
    taken from others a client gives to itself; where several get the same row they judge together, by the trimmed mean of
    their losses, and the weights are scaled to the same sum.

    `shares` is the matrix the last rows came to, sparse (K, K), for the influence matrix.
    """

    linear = False

    def __init__(
        self, coupling: Coupling, rule: RobustRule, evidence: Witness | None = None, strength: float = 1.0
    ) -> None:
        self.plain, self.rule, self.clients = coupling, rule, coupling.clients
        self.evidence, self.strength = evidence, strength

    def apply(self, rows: Tensor) -> Tensor:
        rows, groups = self._check(rows), list(self.plain.groups())
        if self.evidence is not None:
            losses, noise = self.evidence(_pairs(groups, self.clients))
            groups = [self._judged(group, losses, noise) for group in groups]
        mixed, lines = torch.empty_like(rows, memory_format=torch.contiguous_format), _Lines(self.clients)
        for clients, sources, weights in groups:
            total, values = weights.sum(), rows[torch.as_tensor(sources)]
            own = np.flatnonzero((sources == clients[0]) & (len(clients) == 1))
            row, share = (torch.as_tensor(weights) @ values.double()).to(rows.dtype), weights
            if abs(total) > 1e-12:
                found = self.rule(values, torch.as_tensor(weights / total), int(own[0]) if len(own) else None)
                row, share = found[0] * total, found[1].cpu().numpy() * total
            mixed[torch.as_tensor(clients)] = row
            lines.add(clients, sources, share)
        self.shares = lines.matrix()
        return mixed

    def _judged(self, group: Group, losses: sp.csr_array, noise: np.ndarray) -> Group:
        """The group with weights by evidence."""
        clients, sources, weights = group
        others = sources != clients[0] if len(clients) == 1 else np.ones(len(sources), dtype=bool)
        if others.sum() < 2 or not len(clients):
            return group
        if len(clients) == 1:
            told = losses[[int(clients[0])]][:, sources[others]].toarray()[0]
            trusted = weights[others] * trust_in(told, float(noise[clients[0]]), self.strength)
            rest = weights.sum() - trusted.sum()
            return clients, np.append(sources[others], clients[0]), np.append(trusted, rest)
        told, error = together(losses[clients][:, sources].toarray(), clients[:, None] == sources[None, :])
        trusted = weights * trust_in(told, error, self.strength)
        return clients, sources, trusted * (weights.sum() / trusted.sum())

    def __repr__(self) -> str:
        return f"Robust({self.plain!r})"


def together(losses: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, float]:
    """What several clients say of models: per model, the trimmed mean over clients of its loss beyond the client's median.

    `losses` (clients, models), `own` the same shape: a client has no say about its own model. Also gives the median
    standard error of these means. Liars are trimmed: a quarter at both ends.
    """
    from scipy.stats import trim_mean

    apart = np.where(own, np.nan, losses)
    apart = apart - np.nanmedian(apart, axis=1, keepdims=True)
    columns = [column[~np.isnan(column)] for column in apart.T]
    means = np.array([trim_mean(column, 0.25) if len(column) else 0.0 for column in columns])
    errors = [np.subtract(*np.percentile(c, [75, 25])) / 1.35 / len(c) ** 0.5 for c in columns if len(c)]
    return means, float(np.median(errors)) if errors else 0.0


def clipping(factor: float = 1.0) -> RobustRule:
    """Self-centred clipping: w_i + Σ_j m_ij·clip(w_j − w_i, τ_i), clip(x, τ) = x·min(1, τ/‖x‖).

    τ_i = factor × the weighted median of the distances ‖w_j − w_i‖ to the others, so that no number of attackers need be
    known; factor = ∞ is the plain coupling. Where several clients get the same row the centre is the geometric median.

    Reference: He, Karimireddy and Jaggi, Byzantine-Robust Decentralized Learning via ClippedGossip, 2022; with a centre of
    the server's: Karimireddy, He and Jaggi, Learning from History for Byzantine Robust Optimization, 2021.
    """

    def rule(values: Tensor, weights: Tensor, own: int | None) -> Aggregate:
        if own is None:
            centre, back = aggregation.geometric_median(values, weights)
        else:
            centre, back = values[own], torch.nn.functional.one_hot(torch.tensor(own), len(values)).double()
        apart = (values.double() - centre.double()).norm(dim=1)
        tau = factor * _typical(apart, weights.abs(), own) if np.isfinite(factor) else np.inf
        shares = weights * torch.where(apart <= tau, 1.0, tau / apart)
        shares = shares + (1 - shares.sum()) * back
        return (shares @ values.double()).to(values.dtype), shares

    return rule


def _typical(apart: Tensor, weights: Tensor, own: int | None) -> float:
    """The weighted median of the distances to the others."""
    others = torch.arange(len(apart)) != (-1 if own is None else own)
    total = weights[others].sum()
    if not total > 0:
        return 0.0
    return float(aggregation.median(apart[others][:, None], weights[others] / total)[0])


def replacing(aggregate: Callable[[Tensor, Tensor], Aggregate]) -> RobustRule:
    """m_ii w_i + (1 − m_ii)·aggregate of the others; of all where there is no self. Negative weights count as none."""

    def rule(values: Tensor, weights: Tensor, own: int | None) -> Aggregate:
        weights = weights.clamp(min=0) / weights.clamp(min=0).sum()
        others = torch.arange(len(values)) != (-1 if own is None else own)
        left = weights[others].sum()
        if own is None or not left > 0:
            return aggregate(values, weights)
        row, found = aggregate(values[others], weights[others] / left)
        shares = torch.zeros_like(weights)
        shares[others], shares[own] = left * found, weights[own]
        return (weights[own] * values[own].double() + left * row.double()).to(values.dtype), shares

    return rule


class _Lines:
    """A sparse (K, K) matrix that is written some rows at a time."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> None:
        """The same values at these columns in every one of the rows."""
        self.parts.append((np.repeat(rows, len(columns)), np.tile(columns, len(rows)), np.tile(values, len(rows))))

    def matrix(self) -> sp.csr_array:
        i, j, values = (np.concatenate(parts) for parts in zip(*self.parts))
        return sp.csr_array((values, (i, j)), shape=(self.clients, self.clients))


def _pairs(groups: list[tuple[np.ndarray, np.ndarray, np.ndarray]], clients: int) -> sp.csr_array:
    """1 at every (i, j) for which i ≠ j and m_ij ≠ 0."""
    i = np.concatenate([np.repeat(own, len(sources)) for own, sources, _ in groups])
    j = np.concatenate([np.tile(sources, len(own)) for own, sources, _ in groups])
    apart = i != j
    return sp.csr_array((np.ones(apart.sum()), (i[apart], j[apart])), shape=(clients, clients))


class NormBounded(Coupling):
    """The plain coupling of rows whose updates are no longer than `factor` times the median update.

        w_j ← before_j + u_j·min(1, b/‖u_j‖),   u_j = w_j − before_j,   b = factor·median of ‖u_j‖ over those who moved

    `before` (K, B) are the rows clients started from. factor = ∞ is the plain coupling. Reference: Sun et al., Can You
    Really Backdoor Federated Learning?, 2019.
    """

    linear = False

    def __init__(self, coupling: Coupling, before: Tensor, factor: float = 2.0) -> None:
        self.plain, self.before, self.factor, self.clients = coupling, before, factor, coupling.clients

    def apply(self, rows: Tensor) -> Tensor:
        update = self._check(rows).double() - self.before.double()
        length = update.norm(dim=1)
        bound = self.factor * float(length[length > 0].quantile(0.5)) if (length > 0).any() else 0.0
        scale = torch.where(length <= bound, 1.0, bound / length)
        if self.plain.linear:
            self.shares = sp.csr_array(self.plain.matrix() * scale.cpu().numpy())
        bounded = torch.where((scale < 1)[:, None], self.before + scale[:, None] * update, rows.double())
        return self.plain.apply(bounded.to(rows.dtype))


def in_the_crowd(rows: Tensor, factor: float = 3.0) -> np.ndarray:
    """Which rows (m, B) are at most `factor` times as far from the coordinate-wise median as the median row is, (m,) bool.

    For methods that look for structure in rows: one row far away can have a cluster to itself.
    """
    centre, _ = aggregation.median(rows, torch.full((len(rows),), 1 / len(rows), dtype=torch.float64))
    apart = (rows.double() - centre.double()).norm(dim=1)
    return (apart <= factor * apart.quantile(0.5)).cpu().numpy()


def trust_in(losses: np.ndarray, noise: float, strength: float = 1.0) -> np.ndarray:
    """How much a client trusts others whose models have these losses on its own samples, (d,) from 0 to 1.

        t_j = exp(−strength·max(0, T_j − b − s) / s),   b = median T,   s = noise + (b − min T)

    Whoever is no further above the median than the best is below it is trusted in full; beyond, trust falls. The unit s is
    how far the better half spreads, plus the standard error of losses, so that a client needs no threshold and no number of attackers. Evidence comes from the client's
    own samples, as in UBAR (Guo et al., Byzantine-Resilient Decentralized Stochastic Gradient Descent, 2021).
    """
    middle = np.median(losses)
    spread = noise + middle - losses.min()
    return np.exp(-strength * np.maximum(0, losses - middle - spread) / max(spread, 1e-12))
