"""Kin: averaging over a directed graph that is learned from how well clients' models do on each other's data."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Algorithm, Deploys, Setting, State, mix, place
from fedkin.clients import Clients, Replies
from fedkin.couplings import Identity, Mixing
from fedkin.graphs.directed import directed
from fedkin.graphs.neighbours import nearest
from fedkin.local.transfer import TRANSFER, in_pieces


class Kin(Algorithm):
    """Every client averages with those whose models do well on its own training samples.

        T_ij = mean loss of client j's model on client i's training samples (cross entropy capped at 6)
        m_i  = min_{j≠i} T_ij,   T_ii := m_i              a client is as good a peer to itself as its best other peer
        s_i  = median over j of the standard error of the paired losses of j and of i's best peer
        τ_i  = s_i/2 + (median_j T_ij − m_i)/10
        A_ij ∝ n_j exp(−(T_ij − m_i)/τ_i),   Σ_j A_ij = 1
        each round:  w_k ← SGD(w_k; D_k),   Ψ = A Ω

    For j ≠ i the first estimate is honest: j's model has never seen i's data. Clients train alone for `alone` of the
    rounds, then A is estimated, and estimated again from their trained models after 1/3 and 2/3 of the rounds: one stage
    is not enough. A model visits at most `peers` candidates, those with the nearest rows, so that bytes grow with
    K·peers. Clients that are absent keep their rows and their weights. A = I is Local; equal losses give FedAvg.
    """

    name: ClassVar[str] = "kin"
    title: ClassVar[str] = "Kin"
    deploys: ClassVar[Deploys] = "validated"
    keeps: ClassVar[tuple[str, ...]] = ("kin_peers", "kin_weights")

    peers: int = Field(20, ge=1, description="candidates whose models a client tries on its own samples")
    alone: float = Field(0.1, gt=0, le=1, description="share of the rounds that clients first train alone")
    stages: int = Field(3, ge=1, description="how often the weights are estimated, spread over the rounds")
    sharpness: float = Field(1.0, gt=0, description="divides the temperature τ: larger trusts the losses more")

    def round(self, state: State, clients: Clients, cohort: np.ndarray, setting: Setting) -> State:
        replies = self.train(state, clients, cohort, setting)
        state = self.logged(state, replies)
        if len(replies):
            trained = place(state.rows, replies)
            if state.round + 1 in self.estimates(setting.rounds):
                state = self.estimated(state, trained, clients, replies.ids, setting)
            guarded = self.defended(state, clients, setting)
            state = mix(guarded, replies, self.coupling(state, replies, setting), trained=trained)
        return replace(state, round=state.round + 1, defence=None)

    def estimates(self, rounds: int) -> set[int]:
        """The rounds after whose training A is estimated: when clients have trained alone, then evenly spread."""
        first = max(1, round(self.alone * rounds))
        return {max(first, round(stage * rounds / self.stages)) for stage in range(self.stages)} - {0}

    def coupling(self, state: State, replies: Replies, setting: Setting) -> Mixing | Identity:
        """A among those who answered; before the first estimate everybody stays alone."""
        if "kin_weights" not in state.arrays:
            return Identity(len(setting))
        return Mixing(among(weights_of(state), replies.ids), len(setting), replies.ids)

    def estimated(self, state: State, models: Tensor, clients: Clients, ids: np.ndarray, setting: Setting) -> State:
        """The state with weights from `models` (K, B): clients `ids` try the models of their candidates among `ids`.

        Whoever has a model that diverged is nobody's candidate and keeps the weights it has.
        """
        ids = ids[models[torch.as_tensor(ids)].isfinite().all(dim=1).cpu().numpy()]
        count = min(self.peers, len(ids) - 1)
        if count < 1:
            return state
        parameters = models[torch.as_tensor(ids), : setting.spec.layout.n_parameters]
        chosen = candidates(parameters.double().cpu().numpy(), count, setting.streams.seed)
        peers, weights = self._kept(state, count, setting)
        for some in in_pieces(len(ids), count * models.shape[1] * models.element_size()):
            tried = {"models": models[torch.as_tensor(ids[chosen[some]])]}
            told = clients.ask(TRANSFER, ids[some], tried, setting.at_home)
            asked = np.searchsorted(ids, told.ids)
            found = kin_weights(
                told["transfer"].cpu().numpy(), told["noise"].cpu().numpy() / self.sharpness,
                setting.sizes[ids[chosen[asked]]], setting.sizes[told.ids], 10 * self.sharpness,
            )  # fmt: skip
            peers[told.ids, :count] = torch.as_tensor(ids[chosen[asked]])
            weights[told.ids] = 0
            weights[told.ids, : count + 1] = torch.as_tensor(found)
        state = state.with_arrays(kin_peers=peers, kin_weights=weights)
        return state.with_log(own_weight=float(weights[:, 0].mean()))

    def _kept(self, state: State, count: int, setting: Setting) -> tuple[Tensor, Tensor]:
        """Peers (K, p) and weights (K, 1 + p), own first, as they were; clients without an estimate are on their own."""
        width = max(count, min(self.peers, len(setting) - 1))
        if "kin_weights" in state.arrays:
            return state.arrays["kin_peers"].clone(), state.arrays["kin_weights"].clone()
        weights = torch.zeros((len(setting), width + 1), dtype=torch.float64)
        weights[:, 0] = 1
        return torch.zeros((len(setting), width), dtype=torch.int64), weights


def candidates(rows: np.ndarray, count: int, seed: int) -> np.ndarray:
    """The `count` others with the nearest rows (m, P), ascending, (m, count)."""
    m = len(rows)
    if count == m - 1:
        return np.stack([np.delete(np.arange(m), k) for k in range(m)])
    return np.sort(nearest(rows, count, seed=seed).indices.reshape(m, count), axis=1)


def kin_weights(
    transfer: np.ndarray, noise: np.ndarray, sizes: np.ndarray, own: np.ndarray, spread: float = 10.0
) -> np.ndarray:
    """A (k, 1 + p), own weight first, from T (k, p), s (k,), the peers' sizes (k, p) and the clients' own (k,)."""
    best = transfer.min(axis=1, keepdims=True)
    tau = 0.5 * noise[:, None] + (np.median(transfer, axis=1, keepdims=True) - best) / spread
    closeness = np.exp(-(transfer - best) / np.maximum(tau, 1e-12))
    raw = np.concatenate([own[:, None].astype(float), sizes * closeness], axis=1)
    return raw / raw.sum(axis=1, keepdims=True)


def weights_of(state: State) -> sp.csr_array:
    """A (K, K) of a state, sparse, rows sum to 1."""
    return directed(state.arrays["kin_peers"].cpu().numpy(), state.arrays["kin_weights"].cpu().numpy())


def among(weights: sp.csr_array, ids: np.ndarray) -> sp.csr_array:
    """A between the clients `ids`, what the others would have had shared out in proportion."""
    part = sp.csr_array(weights[ids][:, ids])
    total = np.asarray(part.sum(axis=1)).ravel()
    return sp.csr_array(sp.diags_array(1 / np.where(total > 0, total, 1)) @ part + sp.diags_array((total <= 0) * 1.0))
