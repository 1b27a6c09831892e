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
from fedkin.couplings.coupling import Coupling
from fedkin.couplings.trust import Judge

RobustRule = Callable[[Tensor, Tensor, int | None], Aggregate]
"""values (d, B), weights (d,) that sum to 1, the client's own place among them (None: several clients get this row)."""


class Robust(Coupling):
    """w_i ← rule over the rows j with m_ij ≠ 0, for every client i; clients with the same row of M get the same model.

    What a client gets of itself, m_ii w_i, is not in question: rules of the kind "mean, but robust" replace the part of the
    others, (1 − m_ii)·rule({w_j}, m_ij). Where several clients get the same row (FedAvg, a cluster) there is no "self", and
    the rule takes all of them. With a `judge` weights fall first (`fedkin.couplings.trust`).

    `shares` is the matrix the last rows came to, sparse (K, K), for the influence matrix.
    """

    linear = False

    def __init__(self, coupling: Coupling, rule: RobustRule, judge: Judge | None = None) -> None:
        self.plain, self.rule, self.judge, self.clients = coupling, rule, judge, coupling.clients

    def apply(self, rows: Tensor) -> Tensor:
        rows, groups = self._check(rows), list(self.plain.groups())
        if self.judge is not None:
            groups = self.judge(rows, groups)
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

    def __repr__(self) -> str:
        return f"Robust({self.plain!r})"


def clipping(factor: float = 1.0) -> RobustRule:
    """Self-centred clipping: w_i + Σ_j m_ij·clip(w_j − w_i, τ_i), clip(x, τ) = x·min(1, τ/‖x‖).

    τ_i = factor × the weighted median of the distances ‖w_j − w_i‖ to the others, so that no number of attackers need be
    known; factor = ∞ is the plain coupling. Where several clients get the same row the centre is the geometric median.

    Reference: He, Karimireddy and Jaggi, Byzantine-Robust Decentralized Learning via ClippedGossip, 2022; with a centre of
    the server's: Karimireddy, He and Jaggi, Learning from History for Byzantine Robust Optimization, 2021.
    """

    def rule(values: Tensor, weights: Tensor, own: int | None) -> Aggregate:
        _, back, kept = _shortening(values, weights, own, factor)
        shares = weights * kept
        shares = shares + (1 - shares.sum()) * back
        return (shares @ values.double()).to(values.dtype), shares

    return rule


def of_clipped(rule: RobustRule, factor: float) -> RobustRule:
    """Another rule, of rows that are first brought as near as `clipping` brings them."""

    def clipped(values: Tensor, weights: Tensor, own: int | None) -> Aggregate:
        centre, back, kept = _shortening(values, weights, own, factor)
        near = centre + kept[:, None] * (values.double() - centre)
        row, shares = rule(near.to(values.dtype), weights, own)
        shares = shares * kept
        return row, shares + (1 - shares.sum()) * back

    return clipped


def _shortening(values: Tensor, weights: Tensor, own: int | None, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    """The centre (B,) that `clipping` has, the shares of values in it (d,), and min(1, τ/‖w_j − centre‖) for each value (d,)."""
    if own is None:
        centre, back = aggregation.geometric_median(values, weights)
    else:
        centre, back = values[own], torch.nn.functional.one_hot(torch.tensor(own), len(values)).double()
    apart = (values.double() - centre.double()).norm(dim=1)
    tau = factor * _typical(apart, weights.abs(), own) if np.isfinite(factor) else np.inf
    return centre.double(), back, torch.where(apart <= tau, 1.0, tau / apart)


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
