"""FedAMP: every client has a cloud model that attends to the clients most like it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Algorithm, Deploys, LocalWork, Setting, State, mix, place
from fedkin.clients import Replies
from fedkin.couplings import Mixing
from fedkin.privacy.settings import Level


class FedAMP(Algorithm):
    """Attentive message passing: similar clients are averaged more, and more alike they become.

        server:  u_i = ξ_ii w_i + Σ_{j≠i} ξ_ij w_j,   ξ_ij = α/(m−1) · exp(−‖w_i − w_j‖²/σ),   ξ_ii = 1 − Σ_{j≠i} ξ_ij
        client:  w_i ≈ argmin f_i(w) + (μ/2)‖w − u_i‖², from w = u_i

    m is the number of clients in the round; the paper's step α_k is ασ/(m−1) and its λ is μα_k, so α ≤ 1 keeps every u_i
    a convex combination. The distance counts trainable parameters. σ = None takes the median of the round's
    ‖w_i − w_j‖², so that the method does not depend on the size of the model. α = 0 and μ = 0 is Local; σ → ∞ with
    α = (m−1)/m and μ = 0 is FedAvg with equal weights.

    Reference: Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, 2021.
    """

    name: ClassVar[str] = "fedamp"
    title: ClassVar[str] = "FedAMP"
    protects: ClassVar[tuple[Level, ...]] = ("sample",)
    deploys: ClassVar[Deploys] = "trained"

    alpha: float = Field(0.5, ge=0, le=1, description="share α of a cloud model that others can have at most")
    sigma: float | None = Field(
        None, gt=0, description="squared distance σ at which attention falls to 1/e (default: the round's median)"
    )
    mu: float = Field(0.1, ge=0, description="pull μ of local training towards the cloud model")

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        return LocalWork(shared={"mu": self.mu})

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        trained = place(state.rows, replies)
        weights = trained[torch.as_tensor(replies.ids), : setting.spec.layout.n_parameters]
        attention = attend(weights, self.alpha, self.sigma)
        state = state.with_log(own_weight=float(attention.diagonal().mean()))
        return mix(state, replies, Mixing(attention, len(setting), replies.ids), trained=trained)


def attend(weights: Tensor, alpha: float, sigma: float | None) -> Tensor:
    """ξ (m, m) of the clients with parameters `weights` (m, P); rows sum to 1."""
    m = len(weights)
    if m == 1:
        return torch.ones((1, 1), dtype=torch.float64)
    centred = weights.double() - weights.double().mean(dim=0)  # so that little is lost in the differences below
    gram = centred @ centred.T
    square = (gram.diagonal()[:, None] + gram.diagonal() - 2 * gram).clamp(min=0)
    if sigma is None:
        sigma = float(square[~torch.eye(m, dtype=torch.bool)].median()) or 1.0
    share = alpha / (m - 1) * torch.exp(-square / sigma)
    share.fill_diagonal_(0)
    return share + torch.diag(1 - share.sum(dim=1))
