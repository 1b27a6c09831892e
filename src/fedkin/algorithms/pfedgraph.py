"""pFedGraph: a collaboration graph that is learned in every round, one small quadratic programme per client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Algorithm, Deploys, LocalWork, Setting, State, mix, place
from fedkin.algorithms.afl import project_to_simplex
from fedkin.clients import Replies
from fedkin.couplings import Mixing
from fedkin.couplings.clusters import cosines
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, training_task, widened
from fedkin.local.training import train_rows
from fedkin.privacy.settings import Level


class PFedGraph(Algorithm):
    """Clients whose models moved the same way from the common start are averaged more.

        d_ij = −cos(w_i − w⁰, w_j − w⁰)                                        w⁰ the common initial weights
        A_i  = argmin_{a in the simplex} Σ_j a_j d_ij + λ ‖a − p‖² = Π(p − d_i / 2λ),    p_j = n_j / Σ_S n
        server:  w_i ← Σ_j A_ij w_j
        client:  SGD from w_i on f_i(w) − μ Σ_j A_ij cos(w, w_j)

    Π is the Euclidean projection on the simplex, so the programme needs no solver. The pull μ compares with the models that
    were averaged, through one vector u_i = Σ_j A_ij w_j/‖w_j‖ that travels beside the model. Distances and cosines count
    trainable parameters; a client that did not move is like itself alone. λ → ∞ and μ = 0 is FedAvg, λ → 0 and μ = 0 is
    Local (unless two clients are alike). λ is `alpha`, as on the authors' command line, μ is their `lam`, with their defaults.

    Published code (MediaBrain-SJTU/pFedGraph) rounds cosines above 0.9 up to 1, and adds +μ cos(w, ·) to the loss, which
    pushes a client away from its collaborators; here the sign is the paper's.

    Reference: Ye, Ni, Wu, Chen and Wang, Personalized Federated Learning with Inferred Collaboration Graphs, 2023.
    """

    name: ClassVar[str] = "pfedgraph"
    title: ClassVar[str] = "pFedGraph"
    protects: ClassVar[tuple[Level, ...]] = ("sample",)
    deploys: ClassVar[Deploys] = "trained"

    alpha: float = Field(
        0.8, gt=0, description="strength λ with which collaboration weights stay near the shares of samples"
    )
    lam: float = Field(0.01, ge=0, description="pull μ of local training towards the collaborators' directions")

    def start(self, setting: Setting) -> State:
        state, n = super().start(setting), setting.spec.layout.n_parameters
        return state if not self.lam else state.with_arrays(towards=torch.zeros_like(state.rows[:, :n]))

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        if not self.lam:
            return LocalWork()
        towards = state.arrays["towards"][torch.as_tensor(ids)]
        return LocalWork(f"{__name__}:pfedgraph", {"towards": towards}, {"lam": self.lam})

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        trained, n, ids = place(state.rows, replies), setting.spec.layout.n_parameters, torch.as_tensor(replies.ids)
        weights, start = trained[ids, :n], setting.spec.initial_row(setting.streams)[:n]
        collaboration = collaborate(weights - start, setting.sizes[replies.ids], self.alpha)
        state = state.with_log(own_weight=float(collaboration.diagonal().mean()))
        if self.lam:
            towards = state.arrays["towards"].clone()
            lengths = torch.linalg.vector_norm(weights, dim=1, dtype=torch.float64).clamp(min=1e-12)
            towards[ids] = (torch.as_tensor(collaboration).to(lengths) / lengths).to(weights) @ weights
            state = state.with_arrays(towards=towards)
        return mix(state, replies, Mixing(collaboration, len(setting), replies.ids), trained=trained)


def collaborate(moved: Tensor, sizes: np.ndarray, alpha: float) -> np.ndarray:
    """A (m, m), rows in the simplex, from how the clients' parameters moved (m, P) and their numbers of samples (m,)."""
    points = sizes / sizes.sum() + cosines(moved) / (2 * alpha)
    return np.stack([project_to_simplex(point) for point in points])


@dataclass(frozen=True)
class Align:
    """g ← g − μ∇(u·w/‖w‖) = g − μ (u − (u·ŵ) ŵ)/‖w‖, ŵ = w/‖w‖, with a vector u (k, P) for every client."""

    mu: float
    towards: Tensor
    travels: Tensor | None
    """1 for parameters that w counts, 0 for those that stay at home, (P,); None: all travel."""

    def add(self, slopes: Tensor, weights: Tensor) -> None:
        weights = weights if self.travels is None else weights * self.travels
        u, size = self.towards[: len(slopes)], torch.linalg.vector_norm(weights, dim=1, keepdim=True).clamp(min=1e-12)
        along = torch.linalg.vecdot(u, weights)[:, None] / size**2
        slopes.addcmul_(u, -self.mu / size).addcmul_(weights, along * (self.mu / size))

    def of(self, place: np.ndarray) -> Align:
        return replace(self, towards=self.towards[place])

    def affine(self, rate: float) -> None:
        return None


@training_task("pfedgraph")
def train_aligned(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """SGD with a pull towards the directions of the collaborators' models."""
    given, nothing = request.per_client["towards"].to(rows.dtype), rows.new_zeros(shard.spec.layout.n_parameters)
    towards = widened(shard, request, given, nothing)
    travels = widened(shard, request, torch.ones_like(given[0]), nothing)
    pull = Align(request.shared["lam"], towards, None if travels.all() else travels)
    settings = Sgd(**request.shared["sgd"])
    trained, loss = train_rows(shard, request.ids, rows, settings, request.shared["round"], [pull], counters)
    return Trained(trained, loss)
